"""The rows of a transaction in a sidecar, and how compaction moves them.

The ranges of a transaction are in order of index; adjacent rows are one range.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from itertools import pairwise

# (ledger, first row, rows, index of the first row)
Range = tuple[int, int, int, int]
# by old ledger, its ranges in the new one: (first row, rows, first row there), rising
Moves = dict[int, list[tuple[int, int, int]]]


def moved_row(moves: list[tuple[int, int, int]], row: int, rows: int) -> int | None:
    """The new row of rows of an old ledger; None: they were not moved as one range."""
    at = bisect_right(moves, row, key=lambda move: move[0]) - 1
    first, count, new_row = moves[at] if at >= 0 else (0, 0, 0)
    return new_row + row - first if first <= row <= row + rows <= first + count else None


def moved(ranges: Iterable[Range], moves: Moves, ledger: int) -> list[Range] | None:
    """The ranges of a transaction after its rows were moved to a ledger; None: some were not."""
    out: list[Range] = []
    for part in ranges:
        if part[0] in moves:
            new_row = moved_row(moves[part[0]], part[1], part[2])
            if new_row is None:
                return None
            part = (ledger, new_row, part[2], part[3])
        out.append(part)
    for prior, following in pairwise(out):
        if (prior[0], prior[1] + prior[2], prior[3] + prior[2]) == (*following[:2], following[3]):
            return _joined(out)
    return out


def _joined(ranges: list[Range]) -> list[Range]:
    out = ranges[:1]
    for part in ranges[1:]:
        ledger, row, rows, index = out[-1]
        if (ledger, row + rows, index + rows) == (part[0], part[1], part[3]):
            out[-1] = (ledger, row, rows + part[2], index)
        else:
            out.append(part)
    return out
