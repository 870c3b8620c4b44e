"""Each package is a room: its docstring lists its modules, and their number is bounded."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from tests.source_tree import PACKAGE, SOURCE

MODULES_MAX = 13
LISTS = {  # packages with more modules: plain lists, where a reader looks up one entry
    "client/answers": (25, "an answer a module"),
    "cli/commands": (30, "a noun a module"),
    "engine/door": (21, "a subject a module, each of imports alone"),
    "serve/pulsar": (17, "a subject of the protocol a module"),
    "lake/sql": (15, "a part of a statement a module: a query loads those that it needs"),
    "lake/spark": (18, "each loads another part of pyspark, which a call pays for"),
}
GERUNDS = {  # words of the field, and rooms
    "committing": "what Pulsar Functions calls the step that ends a batch",
    "consuming": "a room on every floor",
    "loading": "the step of a bulk load, or of a function from its file",
    "reading": "a room on every floor",
    "sending": "a room on every floor",
    "staging": "what files are in before a frame names them",
    "standing": "a noun",
    "streaming": "what Spark calls it",
    "testing": "what Flask, NumPy and Django call helpers for tests of users",
    "upcoming": "an adjective; the thing is all that is to come",
}
WHOLE = {  # names that look like two words and are one
    "client": "one word",
    "compaction": "one word, beside `compact`",
    "datasource": "what Spark calls it",
    "idset": "the type is IdSet",
    "workers": "those who do `work`",
}
ROOTS = sorted(file.parent for file in (SOURCE / PACKAGE).rglob("__init__.py"))
_LINE = re.compile(r"    (\w+/?) {3,}(\S.*)")


def _path(package: Path) -> str:
    path = package.relative_to(SOURCE / PACKAGE).as_posix()
    return "" if path == "." else path


@cache
def _modules(package: Path) -> list[str]:
    files = [file.stem for file in package.glob("*.py") if file.stem != "__init__"]
    rooms = [f"{path.name}/" for path in package.iterdir() if (path / "__init__.py").exists()]
    return sorted(files + rooms, key=lambda name: name.strip("_/"))


def _contents(package: Path) -> list[str]:
    text = ast.get_docstring(ast.parse((package / "__init__.py").read_text(encoding="utf-8")))
    assert text, f"{package} has no docstring"
    head, mark, tail = text.partition("\nContents:\n\n")
    assert mark, f"{package}/__init__.py has no line `Contents:`"
    assert len(head.split()) >= 5, f"{package}/__init__.py does not say what the package is"
    lines = [_LINE.fullmatch(line) for line in tail.splitlines()]
    assert all(lines), f"{package}/__init__.py: after `Contents:` stands a line a module, no more"
    return [line[1] for line in lines if line]


def test_docstring_of_a_package_lists_its_modules() -> None:
    """Kills: a module that a reader does not find, and a line about a removed module."""
    for package in ROOTS:
        assert _contents(package) == _modules(package)


def test_a_package_is_small_enough_to_be_known() -> None:
    for package in ROOTS:
        bound, _ = LISTS.get(_path(package), (MODULES_MAX, ""))
        count = sum(not name.endswith("/") for name in _modules(package))
        assert count <= bound, f"{package} has {count} modules"


def test_names_are_nouns() -> None:
    """As far as a program can see: no gerund, and no two words in one."""
    for package in ROOTS:
        words = {word for name in _all_modules() for word in name.split("_")}
        names = [module.strip("_/") for module in _modules(package)]
        for name in names:
            for word in name.split("_"):
                assert not word.endswith("ing") or word in GERUNDS, f"{package}/{name} is a gerund"
                if word in WHOLE:
                    continue
                parts = [(word[:at], word[at:]) for at in range(3, len(word) - 2)]
                glued = [pair for pair in parts if words.issuperset(pair) or pair[0] in names]
                assert not glued, f"{package}/{name} is two words: {glued[0]}"


def test_exceptions_are_needed() -> None:
    """Kills: an exception in the lists above for a module that no longer exists."""
    words = {word for name in _all_modules() for word in name.split("_")}
    assert {*GERUNDS, *WHOLE} <= words
    assert {path for path, (bound, _) in LISTS.items() if bound > MODULES_MAX} <= set(
        map(_path, ROOTS)
    )


def _all_modules() -> list[str]:
    return [name.strip("_/") for package in ROOTS for name in _modules(package)]
