"""Owns `-` in place of arguments: ids read from stdin, one a line."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def words_or_stdin(words: Sequence[str]) -> list[str]:
    """Return words, with each `-` replaced by the lines of stdin that are not blank."""
    out: list[str] = []
    for word in words:
        if word != "-":
            out.append(word)
        elif sys.stdin is not None:
            out.extend(line.strip() for line in sys.stdin if line.strip())
    return out
