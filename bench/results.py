"""Owns how a bench writes its section of RESULTS.md: in the place of the one before."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

RESULTS = Path(__file__).parent / "RESULTS.md"


def head(text: str) -> None:
    """Replace what stands before the first section."""
    _, mark, rest = RESULTS.read_text().partition("\n## ")
    RESULTS.write_text(f"{text.rstrip()}\n{mark}{rest}")


def put(heading: str, lines: Sequence[str]) -> None:
    """Replace the section with this heading, `## …`, or add it behind the others."""
    before, _, behind = RESULTS.read_text().partition(f"{heading}\n")
    _, mark, rest = behind.partition("\n## ")
    text = "\n".join([heading, "", *lines, ""])
    RESULTS.write_text(f"{before.rstrip()}\n\n{text}" + (f"\n## {rest}" if mark else ""))
