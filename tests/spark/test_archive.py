"""Tests of txlog.spark.archive: where it lies, and that a JVM starts from it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from txlog.errors import CommandFailed
from txlog.spark import prepare
from txlog.spark.archive import archive_path, option_to_make, option_to_use
from txlog.spark.java import Java

J17 = Java(Path("/jvm/17"), "17.0.15", frozenset())
J25 = Java(Path("/jvm/25"), "25.0.2", frozenset())

STARTS = """
from txlog.spark import session
spark = session("local[1]", {"spark.log.level": "ERROR"}, fast_start=True)
pid = spark.sparkContext._gateway.proc.pid
print(spark.range(3).count(), any(".classes" in line for line in open(f"/proc/{pid}/maps")))
spark.stop()
"""


def test_archive_is_named_by_everything_that_it_depends_on(tmp_path: Path) -> None:
    paths = {
        archive_path(tmp_path, J17, "4.3.0"),
        archive_path(tmp_path, J25, "4.3.0"),
        archive_path(tmp_path, J17, "4.4.0"),
        archive_path(tmp_path, J17._replace(home=Path("/other")), "4.3.0"),
    }
    assert len(paths) == 4
    assert archive_path(tmp_path, J17, "4.3.0") in paths
    assert archive_path(tmp_path, Java(Path("/x"), "", frozenset()), "4.3.0") is None


def test_each_java_has_its_own_form() -> None:
    archive = Path("/cache/a")
    assert option_to_use(J17, archive) == "-XX:SharedArchiveFile=/cache/a"
    assert option_to_make(J17, archive) == "-XX:ArchiveClassesAtExit=/cache/a"
    assert option_to_use(J25, archive) == "-XX:AOTCache=/cache/a"
    assert option_to_make(J25, archive) == "-XX:AOTCacheOutput=/cache/a"


def test_java_that_writes_no_archive_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: a path to a file that does not exist, and what was left of the try."""
    home = tmp_path / "jvm"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text("#!/bin/sh\necho no such option >&2\nexit 1\n")
    (home / "bin" / "java").chmod(0o755)
    (home / "release").write_text('JAVA_VERSION="21.0.1"\n')
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(CommandFailed, match=r"Java 21\.0\.1 wrote no archive"):
        prepare()
    left = (tmp_path / "cache" / "txlog").iterdir()
    assert [path.name for path in left if "classes" in path.name] == []


@pytest.mark.slow
@pytest.mark.spark
def test_prepared_archive_is_mapped_by_the_next_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = prepare()
    assert [p for p in path.parent.iterdir() if "classes" in p.name] == [path]
    made = path.stat()
    assert prepare() == path
    assert path.stat() == made
    done = subprocess.run(
        [sys.executable, "-c", STARTS], env=dict(os.environ), capture_output=True, check=True
    )
    assert done.stdout.split() == [b"3", b"True"]
