"""Owns the list of commands, error codes, ops and the format that the last release had.

usage: python -m scripts.released

Writes tests/project/released.txt, as part of a release. Until the next one a test compares the
program with it, and every difference must be in the first section of CHANGELOG.md, "Unreleased".
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from txlog.cli.line.catalogue import COMMANDS
from txlog.engine.model.ops import Op
from txlog.engine.store.identity import FORMAT
from txlog.errors import error_table

ROOT = Path(__file__).resolve().parent.parent
RELEASED = ROOT / "tests" / "project" / "released.txt"


def main() -> int:
    """Write the list."""
    RELEASED.write_text("".join(f"{line}\n" for line in has()), encoding="utf-8")
    print(f"wrote {RELEASED.relative_to(ROOT)}")
    return 0


def has() -> list[str]:
    """A line for each command, error code and op, and the format, as they are now, sorted."""
    return sorted(
        [
            *(f"command {path}" for path in COMMANDS),
            *(f"error {code} {error.__name__}" for error in error_table() for code in error.codes),
            *(f"op {op.__struct_config__.tag}" for op in get_args(Op)),
            f"format {FORMAT}",
        ]
    )


def untold(changelog: str) -> Iterator[str]:
    """The lines added or removed since the last release that the newest part does not mention."""
    newest = changelog.split("\n## ")[1]
    for line in sorted({*RELEASED.read_text(encoding="utf-8").splitlines()} ^ {*has()}):
        kind, _, name = line.partition(" ")
        told = {
            "command": rf"`(txlog )?{name}\b",
            "error": rf"\b{name.rpartition(' ')[2]}\b",
            "op": "cannot be opened by",  # an older program refuses a journal with it
            "format": r"\bformat\b",
        }[kind]
        if re.search(told, newest) is None:
            yield line


if __name__ == "__main__":
    sys.exit(main())
