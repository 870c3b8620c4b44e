"""CONTRIBUTING's recipe of a command: its steps, and no others, lead to a green tree."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.source_tree import ROOT

BY_HAND_MAX = 6
COPIED = ("src", "tests", "scripts", "docs", "man", "examples", "data", ".ci")
# Each step appends a text to a file, or makes the file.
STEPS = {
    "src/txlog/cli/commands/topic.py": '''

@command(
    "topic count",
    "number of topics",
    examples=("txlog topic count", "txlog topic count --json"),
    rows="topics.TopicsCounted",
)
def count_topics(call: Call) -> None:
    """Count the topics."""
    call.output.rows([{"topics": len(call.client().topics())}])
''',
    "src/txlog/base/rows/topics.py": '''

class TopicsCounted(TypedDict):
    """Of `txlog topic count`."""

    topics: fields.Topics
''',
    "tests/golden/counting.txt": """\
$ txlog init shop -q; txlog topic create a b -q
$ txlog topic count --json
""",
    "CHANGELOG.md": "`txlog topic count` prints the number of topics.",
}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The tree without what git ignores."""
    ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
    for name in COPIED:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored, symlinks=True)
    for file in ROOT.iterdir():
        if file.is_file():
            shutil.copy(file, tmp_path / file.name)
    return tmp_path


def run(copy: Path, *words: str) -> str:
    """Run Python in the copy; return its output. The program has to succeed."""
    environment = {**os.environ, "PYTHONPATH": f"{copy / 'src'}:{copy}"}
    done = subprocess.run(
        [sys.executable, *words], cwd=copy, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    return done.stdout


def steps() -> str:
    """The recipe in CONTRIBUTING."""
    guide = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return guide.partition("### A command\n")[2].partition("\n### ")[0]


def add(file: Path, text: str) -> None:
    """Add text to a file: at its end, or in CHANGELOG to the part of the next version."""
    written = file.read_text(encoding="utf-8") if file.exists() else ""
    if file.name == "CHANGELOG.md":
        written = written.replace("## Unreleased\n", f"## Unreleased\n\n- {text}\n", 1)
        text = ""
    file.write_text(written + text, encoding="utf-8")


@pytest.mark.deep
def test_the_recipe_of_a_command_is_complete(copy: Path) -> None:
    """At most six files by hand; the generator writes the rest; the tests of the recipe pass.

    Kills: a place that a new command has to be entered in, and that the recipe does not name.
    """
    recipe = steps()
    for name, text in STEPS.items():
        folder = str(Path(name).parent).removeprefix("src/txlog/")
        assert (name if folder == "." else folder) in recipe
        add(copy / name, text)
    wrote = run(copy, "-m", "scripts.generate")
    made = set(re.findall(r"wrote:? (\S+)", wrote)) - STEPS.keys()
    assert made >= {"src/txlog/cli/line/catalogue.py", "docs/spec/cli.md"}
    assert '[{"topics":2}]' in (copy / "tests/golden/counting.txt").read_text(encoding="utf-8")
    guide = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert f"| a command | {len(STEPS)} to {BY_HAND_MAX} | {len(made)} |" in guide, made
    tests = [
        f"tests/{file}.py::{name}"
        for name, file in re.findall(r"`(test_\w+)`\s+\(([\w/]+)\)", recipe)
        if file != "project/test_recipe"
    ]
    assert len(tests) >= 6
    fences = ["tests/project/test_tidy.py", "tests/project/test_layers.py"]
    run(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", *tests, *fences)
    run(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "0", "tests/cli/test_golden.py",
        "-k", "counting")  # fmt: skip
