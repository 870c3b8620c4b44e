"""Which sequence numbers of a producer are stored: the highest, and the gaps below it.

    stored      0 .. 4, 7, 9 .. 12        sequence 12, gaps [5, 6, 8, 8]
    7 again     a repetition: it is stored
    6           new, although 12 came before it: the gaps become [5, 5, 8, 8]

A number is a repetition only if that number was stored. The highest number alone is not enough.
Batching clients reorder: delayed messages bypass the batch, and key-based batching builds one batch
per key. Applications also use offsets or times as numbers.

Gaps are bounded. Beyond `GAPS_MAX` a producer forgets its lowest quarter. From then on it is
unknown whether a number up to `unknown` was stored, and a send with such a number is refused.

Invariants
  1. `gaps` is flat: first and last number of each gap, rising, with a stored number between two.
  2. The last gap ends below `sequence`; the first begins above `unknown`.
  3. `runs`, the numbers to store, are flat in the same way; each number is stored once.
Source: PIP-6; spec/transactions 7.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final, Protocol

GAPS_MAX: Final = 65_536  # per producer in a partition, or in a transaction there


class Sequences(Protocol):
    """The state of a producer in a fold; sequence -1: nothing is stored.

    row: the sequence of the message whose position the fold has, -1: `sequence`
    """

    sequence: int
    gaps: list[int]
    unknown: int
    row: int


def placed(of: Sequences | None) -> int:
    """The sequence of the message whose position the fold has; -1: there is none."""
    return -1 if of is None else of.sequence if of.row < 0 else of.row


def fresh(of: Sequences | None, runs: list[int]) -> list[int]:
    """The parts of the runs that are not stored; every number must be above `unknown`."""
    if of is None or runs[0] > of.sequence:
        return runs
    out: list[int] = []
    gaps, last = of.gaps, of.sequence
    for at in range(0, len(runs), 2):
        low, high = runs[at], runs[at + 1]
        gap_end = bisect_left(gaps, low) | 1  # the end of the first gap that ends at low or later
        while gap_end < len(gaps) and gaps[gap_end - 1] <= high:
            out += (max(low, gaps[gap_end - 1]), min(high, gaps[gap_end]))
            gap_end += 2
        if high > last:
            out += (max(low, last + 1), high)
    return out


def is_next(of: Sequences | None, runs: list[int]) -> bool:
    """Whether this is one run right after the highest number, which leaves the gaps unchanged."""
    return len(runs) == 2 and runs[0] == (0 if of is None else of.sequence + 1)


def store(of: Sequences, runs: list[int]) -> bool:
    """Store runs of fresh numbers; False: a number was stored before, or may have been."""
    gaps, old_sequence = of.gaps, of.sequence
    # the first gap that may have a number of the runs
    start = gap_at = (bisect_left(gaps, runs[0]) | 1) - 1
    new_gaps: list[int] = []  # the remaining gaps between `start` and `gap_at`
    for at in range(0, len(runs), 2):
        low, high = runs[at], runs[at + 1]
        if low > of.sequence:
            if low > of.sequence + 1:
                gaps += (of.sequence + 1, low - 1)
            of.sequence = high
            continue
        end = bisect_left(gaps, low, gap_at) | 1
        if low > old_sequence or end >= len(gaps) or gaps[end - 1] > low or gaps[end] < high:
            return False
        new_gaps += gaps[gap_at : end - 1]
        if gaps[end - 1] < low:
            new_gaps += (gaps[end - 1], low - 1)
        gap_at = end + 1
        if high < gaps[end]:  # the next run may be in the remaining part of the gap
            gap_at = end - 1
            gaps[gap_at] = high + 1
    gaps[start:gap_at] = new_gaps
    surplus = len(gaps) // 2 - GAPS_MAX
    if surplus > 0:
        forget(of, max(surplus, GAPS_MAX // 4))
    return True


def forget(of: Sequences, count: int) -> None:
    """Forget the `count` lowest gaps."""
    if count:
        of.unknown = of.gaps[2 * count - 1]
        del of.gaps[: 2 * count]
