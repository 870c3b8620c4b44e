"""Owns IdSet, a set of message ids, and ids as runs: the form of acknowledgements and leases.

Whole entries are roaring bitmaps, one for each ledger; single messages of a transaction (marker:I)
are a bitmap for each marker. An id is (ledger, entry, index), with index 0 for a plain message or a
whole marker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from pyroaring import BitMap, BitMap64

from txlog.engine.model.ops import Mark, Run

Id = tuple[int, int, int]


class IdSet:
    """A set of message ids: whole entries by ledger, and single messages by marker."""

    __slots__ = ("entries", "inner")

    def __init__(self, entries: dict[int, BitMap64] | None = None) -> None:
        self.entries: dict[int, BitMap64] = {} if entries is None else entries
        self.inner: dict[tuple[int, int], BitMap] = {}

    def __bool__(self) -> bool:
        if not self.entries and not self.inner:  # the usual case
            return False
        return any(self.entries.values()) or any(self.inner.values())

    def __contains__(self, message: Id) -> bool:
        entries = self.entries.get(message[0])
        if entries is not None and message[1] in entries:
            return True
        inner = self.inner.get(message[:2])
        return inner is not None and message[2] in inner

    def add(self, run: Run) -> None:
        """Add a run; a whole entry replaces its single messages."""
        ledger, first, last, index_first, index_last = run
        if index_first:
            inner = self.inner.get((ledger, first))
            if inner is None:
                inner = self.inner[(ledger, first)] = BitMap()
            inner.add_range(index_first, index_last + 1)
            return
        entries = self.entries.get(ledger)
        if entries is None:
            entries = self.entries[ledger] = BitMap64()
        entries.add_range(first, last + 1)
        if self.inner:
            for key in self._inner_within(run):
                del self.inner[key]

    def discard(self, run: Run) -> None:
        """Remove a run; ids not in the set are ignored. A whole entry removes its messages, too."""
        ledger, first, last, index_first, index_last = run
        if index_first:
            inner = self.inner.get((ledger, first))
            if inner is not None:
                inner.remove_range(index_first, index_last + 1)
                if not inner:
                    del self.inner[(ledger, first)]
            return
        entries = self.entries.get(ledger)
        if entries is not None:
            entries.remove_range(first, last + 1)
            if not entries:
                del self.entries[ledger]
        if self.inner:
            for key in self._inner_within(run):
                del self.inner[key]

    def _inner_within(self, run: Run) -> list[tuple[int, int]]:
        """Markers of single messages among the entries of a run."""
        ledger, first, last = run[:3]
        if last - first < len(self.inner):
            keys = ((ledger, entry) for entry in range(first, last + 1))
            return [key for key in keys if key in self.inner]
        return [key for key in self.inner if key[0] == ledger and first <= key[1] <= last]

    def empty(self, runs: Iterable[Run]) -> None:
        """Empty the set, whose ids are these runs; keep the bitmaps: the next id is likely near."""
        for run in runs:
            entries = None if run[3] else self.entries.get(run[0])
            if entries is not None:
                entries.remove_range(run[1], run[2] + 1)
        if self.inner:
            self.inner.clear()

    def first_common(self, run: Run) -> Id | None:
        """The first id of the run that is in the set, as (ledger, entry, index)."""
        ledger, first, last, index_first, index_last = run
        entries = self.entries.get(ledger)
        if entries is not None and entries.range_cardinality(first, last + 1):
            below = entries.rank(first - 1) if first else 0
            return (ledger, entries[below], index_first)
        if index_first:
            inner = self.inner.get((ledger, first))
            if inner is not None and inner.range_cardinality(index_first, index_last + 1):
                return (ledger, first, next(i for i in inner if i >= index_first))
            return None
        for key in self.inner:
            if key[0] == ledger and first <= key[1] <= last:
                return (ledger, key[1], self.inner[key][0])
        return None

    def common(self, run: Run) -> list[Run]:
        """The part of a run that is in the set, in the set's form: entries and single messages."""
        ledger, first, last, index_first, index_last = run
        entries = self.entries.get(ledger)
        if index_first:
            if entries is not None and first in entries:
                return [run]
            inner = self.inner.get((ledger, first))
            both = BitMap() if inner is None else inner & BitMap(range(index_first, index_last + 1))
            return runs_of_inner(ledger, first, both)
        out: list[Run] = []
        if entries is not None and entries.range_cardinality(first, last + 1):
            out = runs_of_bitmap(ledger, entries & BitMap64(range(first, last + 1)))
        for key in self._inner_within(run) if self.inner else ():
            out += runs_of_inner(*key, self.inner[key])
        return sorted(out)

    def runs(self) -> list[Run]:
        """All ids, as runs in order of position."""
        out = [
            run
            for ledger, entries in self.entries.items()
            for run in runs_of_bitmap(ledger, entries)
        ]
        for key, inner in self.inner.items():
            out += runs_of_inner(*key, inner)
        return sorted(out)

    def first_runs(self, most: int) -> list[Run]:
        """The first runs in order of position, at most so many; it does not look at the others."""
        out: list[Run] = []
        inner = sorted(self.inner)
        for ledger in sorted({*self.entries, *(key[0] for key in inner)}):
            bits = self.entries.get(ledger)
            plain = [] if bits is None else islice(_long_runs(ledger, bits), most)
            within = (
                run
                for key in inner
                if key[0] == ledger
                for run in runs_of_inner(*key, self.inner[key])
            )
            out += sorted([*plain, *islice(within, most)])[: most - len(out)]
            if len(out) == most:
                break
        return out

    def first(self) -> Id | None:
        """The lowest id; None when the set is empty."""
        firsts = [(ledger, entries[0], 0) for ledger, entries in self.entries.items() if entries]
        firsts += [(*key, inner[0]) for key, inner in self.inner.items() if inner]
        return min(firsts, default=None)

    def drop_through(self, mark: Mark) -> None:
        """Remove all ids at or below a mark."""
        if not self.entries and not self.inner:  # the usual case
            return
        ledger, entry, index = mark
        for number in [n for n in self.entries if n <= ledger]:
            if number < ledger:
                del self.entries[number]
            else:
                self.entries[number].remove_range(0, entry + (index == 0))
                if not self.entries[number]:
                    del self.entries[number]
        if not self.inner:
            return
        for key in [k for k in self.inner if k < (ledger, entry)]:
            del self.inner[key]
        inner = self.inner.get((ledger, entry))
        if inner is not None:
            if index:
                inner.remove_range(0, index + 1)
            if not index or not inner:
                del self.inner[(ledger, entry)]

    def count(self) -> tuple[int, int]:
        """(whole entries, single messages)."""
        return sum(map(len, self.entries.values())), sum(map(len, self.inner.values()))

    def count_through(self, mark: Mark) -> int:
        """How many ids are at or below a mark."""
        ledger, entry, index = mark
        total = 0
        for number, entries in self.entries.items():
            if number < ledger:
                total += len(entries)
            elif number == ledger and entry - (index > 0) >= 0:
                total += entries.rank(entry - (index > 0))
        for key, inner in self.inner.items():
            if key < (ledger, entry) or (key == (ledger, entry) and not index):
                total += len(inner)
            elif key == (ledger, entry):
                total += inner.rank(index)
        return total

    def copy(self) -> IdSet:
        """The same ids; bitmaps are copied when one of the two is changed."""
        copied = IdSet({ledger: bitmap.copy() for ledger, bitmap in self.entries.items()})
        copied.inner = {key: bitmap.copy() for key, bitmap in self.inner.items()}
        return copied

    def dump(self) -> tuple[dict[int, bytes], list[tuple[int, int, bytes]]]:
        """Plain values, for msgpack."""
        return (
            {ledger: bitmap.serialize() for ledger, bitmap in sorted(self.entries.items())},
            [(k[0], k[1], bitmap.serialize()) for k, bitmap in sorted(self.inner.items())],
        )

    @classmethod
    def load(cls, entries: dict[int, bytes], inner: Iterable[tuple[int, int, bytes]]) -> IdSet:
        """The inverse of dump."""
        ids = cls()
        ids.entries = {ledger: BitMap64.deserialize(raw) for ledger, raw in entries.items()}
        ids.inner = {(ledger, entry): BitMap.deserialize(raw) for ledger, entry, raw in inner}
        return ids


def runs_of_bitmap(ledger: int, entries: BitMap64) -> list[Run]:
    """The entries of a bitmap as runs."""
    out: list[Run] = []
    if entries and entries[-1] - entries[0] + 1 == len(entries):
        return [(ledger, entries[0], entries[-1], 0, 0)]
    for entry in entries:
        if out and out[-1][2] == entry - 1:
            out[-1] = (ledger, out[-1][1], entry, 0, 0)
        else:
            out.append((ledger, entry, entry, 0, 0))
    return out


def _long_runs(ledger: int, entries: BitMap64) -> Iterator[Run]:
    """As runs_of_bitmap, one by one; a run costs the same whatever its length."""
    at = 0
    while at < len(entries):
        first = entries[at]
        low, high = at, len(entries) - 1  # places: consecutive ones hold consecutive entries
        while low < high:
            middle = (low + high + 1) // 2
            if entries[middle] - first == middle - at:
                low = middle
            else:
                high = middle - 1
        yield (ledger, first, entries[low], 0, 0)
        at = low + 1


def runs_of_inner(ledger: int, entry: int, indexes: BitMap) -> list[Run]:
    """Messages of one marker as runs."""
    out: list[Run] = []
    for index in indexes:
        if out and out[-1][4] == index - 1:
            out[-1] = (ledger, entry, entry, out[-1][3], index)
        else:
            out.append((ledger, entry, entry, index, index))
    return out


def each(run: Run) -> Iterator[Id]:
    """The ids of a run."""
    ledger, first, last, index_first, index_last = run
    if index_first:
        return ((ledger, first, index) for index in range(index_first, index_last + 1))
    return ((ledger, entry, 0) for entry in range(first, last + 1))


def size(run: Run) -> int:
    """How many ids a run has."""
    return run[4] - run[3] + 1 if run[3] else run[2] - run[1] + 1


def covers(mark: Mark, message: Id) -> bool:
    """True when the mark is at or after the message; index 0 of a mark covers its entry."""
    if message[:2] != mark[:2]:
        return message[:2] < mark[:2]
    return mark[2] == 0 or (message[2] != 0 and message[2] <= mark[2])


def before(message: Id) -> Mark:
    """The mark right before a message."""
    ledger, entry, index = message
    return (ledger, entry, index - 1) if index > 1 else (ledger, entry - 1, 0)
