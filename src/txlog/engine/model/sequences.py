"""Which sequence numbers of a producer are stored: the highest, and the gaps below it.

    stored      0 .. 4, 7, 9 .. 12        sequence 12, gaps [5, 6, 8, 8]
    7 again     a repetition: it is stored
    6           new, although 12 came before it: the gaps become [5, 5, 8, 8]

A number is a repetition only if that number was stored. The highest number alone does not say so:
clients that make batches send delayed messages ahead of their batch and one batch for each key, and
applications number by offsets or times.

Gaps are bounded. Beyond `GAPS_MAX` a producer forgets its lowest quarter. From then on nobody can
say of a number up to `unknown` whether it was stored, and a send that has such a number is refused.

Invariants
  1. `gaps` is flat: first and last number of each gap, rising, with a stored number between two.
  2. The last gap ends below `sequence`; the first begins above `unknown`.
  3. A run of numbers is flat in the same way, and is stored once.
Source: PIP-6; spec/transactions 7.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final, Protocol

GAPS_MAX: Final = 65_536  # of a producer in a partition, or in a transaction there


class Sequences(Protocol):
    """What a fold holds of a producer; sequence -1: nothing is stored.

    row: the sequence of the message whose position the fold holds, -1: `sequence`
    """

    sequence: int
    gaps: list[int]
    unknown: int
    row: int


def placed(of: Sequences | None) -> int:
    """The sequence of the message whose position the fold holds; -1: there is none."""
    return -1 if of is None else of.sequence if of.row < 0 else of.row


def fresh(of: Sequences | None, runs: list[int]) -> list[int]:
    """The parts of some runs that are not stored; every number must be above `unknown`."""
    if of is None or runs[0] > of.sequence:
        return runs
    out: list[int] = []
    gaps, last = of.gaps, of.sequence
    for at in range(0, len(runs), 2):
        low, high = runs[at], runs[at + 1]
        place = bisect_left(gaps, low) | 1  # the end of the first gap that does not end before it
        while place < len(gaps) and gaps[place - 1] <= high:
            out += (max(low, gaps[place - 1]), min(high, gaps[place]))
            place += 2
        if high > last:
            out += (max(low, last + 1), high)
    return out


def is_next(of: Sequences | None, runs: list[int]) -> bool:
    """Whether a run goes on right behind the highest number, so that no gap comes or goes."""
    return len(runs) == 2 and runs[0] == (0 if of is None else of.sequence + 1)


def store(of: Sequences, runs: list[int]) -> bool:
    """Store runs of fresh numbers; False: one of them was stored before, or may have been."""
    gaps, known = of.gaps, of.sequence
    start = place = (bisect_left(gaps, runs[0]) | 1) - 1  # the first gap that may have one
    kept: list[int] = []  # of the gaps from there to `place`
    for at in range(0, len(runs), 2):
        low, high = runs[at], runs[at + 1]
        if low > of.sequence:
            if low > of.sequence + 1:
                gaps += (of.sequence + 1, low - 1)
            of.sequence = high
            continue
        end = bisect_left(gaps, low, place) | 1
        if low > known or end >= len(gaps) or gaps[end - 1] > low or gaps[end] < high:
            return False
        kept += gaps[place : end - 1]
        if gaps[end - 1] < low:
            kept += (gaps[end - 1], low - 1)
        place = end + 1
        if high < gaps[end]:  # the next run may be in what is left of it
            place = end - 1
            gaps[place] = high + 1
    gaps[start:place] = kept
    surplus = len(gaps) // 2 - GAPS_MAX
    if surplus > 0:
        forget(of, max(surplus, GAPS_MAX // 4))
    return True


def forget(of: Sequences, count: int) -> None:
    """Forget the lowest gaps, `count` of them."""
    if count:
        of.unknown = of.gaps[2 * count - 1]
        del of.gaps[: 2 * count]
