"""Owns `scripts/test --changed`: lint, and the tests nearest to what differs from main.

The order: tests in a recipe of CONTRIBUTING that names a changed file, changed tests, tests named
after a changed module, the fences, tests that import one. At most FILES_MAX files run, and a run
stops after SECONDS.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SECONDS = 9
FILES_MAX = 20  # collecting the tests of a module that everything imports would take all the time
GUIDE = ROOT / "CONTRIBUTING.md"
FENCES = ("tests/project/test_layers.py", "tests/project/test_tidy.py")


def check() -> int:
    """Run ruff on the changed files, then the nearest tests; returns 0 if nothing failed."""
    files = sorted(_changed())
    began = time.monotonic()
    for words in (["format", "--check", "--quiet"], ["check", "--quiet"]):
        python = [file for file in files if file.endswith(".py") and (ROOT / file).exists()]
        if python and _run(["ruff", *words, *python]):
            return 1
    tests = list(dict.fromkeys(_near(files)))
    print(
        f"{len(files)} files differ from main, {len(tests)} test files are near, "
        f"{min(FILES_MAX, len(tests))} run",
        flush=True,
    )
    if not tests:
        return 0
    left = max(1, SECONDS - int(time.monotonic() - began))
    words = ["-q", "--maxfail", "9", "-n", "0", "--seconds", str(left), *tests[:FILES_MAX]]
    return _run(["pytest", *words, "-m", "not slow and not deep and not spark and not clients"])


def _run(words: list[str]) -> int:
    return subprocess.run([sys.executable, "-m", *words], cwd=ROOT, check=False).returncode


def _changed() -> set[str]:
    """Files that differ from the merge base with main, and untracked files."""
    base = _git("merge-base", "HEAD", "main") or ["HEAD"]
    return {
        *_git("diff", "--name-only", base[0]),
        *_git("ls-files", "--others", "--exclude-standard"),
    }


def _git(*words: str) -> list[str]:
    done = subprocess.run(
        ["git", *words], cwd=ROOT, check=False, capture_output=True, text=True, encoding="utf-8"
    )
    return done.stdout.splitlines()


def _near(files: list[str]) -> Iterator[str]:
    tests = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py"))
    yield from sorted(_named(files, tests), key=lambda test: "::" not in test)
    yield from (file for file in files if file in tests)
    modules = {
        file.removeprefix("src/").removesuffix(".py").replace("/", ".")
        for file in files
        if file.startswith("src/") and file.endswith(".py")
    }
    leaves = {module.rpartition(".")[2] for module in modules}
    yield from (test for test in tests if Path(test).stem.removeprefix("test_") in leaves)
    if modules:
        yield from FENCES
    yield from (test for test in tests if modules & _imported(ROOT / test))


def _named(files: list[str], tests: list[str]) -> Iterator[str]:
    """The tests that a part of CONTRIBUTING names, such as "An error", if it names a changed file.

    It names a test as `test_what`, a file of tests as cli/test_man, and a folder of code by path.
    """
    for part in re.split(r"^### ", GUIDE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        places = re.findall(r"`((?:[\w.]+/)*[\w.]+)`", part)
        if not any(_is_at(file, place) for file in files for place in places):
            continue
        names = re.findall(r"`(test_\w+)`", part)
        for test in tests:
            if re.search(rf"\b{test.removeprefix('tests/').removesuffix('.py')}\b", part):
                text = (ROOT / test).read_text(encoding="utf-8")
                named = [name for name in names if f"def {name}(" in text]
                yield from [f"{test}::{name}" for name in named] or [test]


def _is_at(file: str, place: str) -> bool:
    """Whether a file is a path below the project or package, or in the folder at that path."""
    return any(f"{file}/".startswith(f"{root}{place}/") for root in ("", "src/txlog/"))


def _imported(file: Path) -> set[str]:
    """Modules that a file imports, and names of them, with dots."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    return found
