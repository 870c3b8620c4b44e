"""Owns Schedule: delayed ids with their times, as columns in the order of position.

28 bytes per id; tuples in a list would cost about 200. Source: spec/delayed 3.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator

import msgspec

from txlog.engine.model.ops import NO_TIME, Id


class DumpedSchedule(msgspec.Struct, array_like=True):
    """The columns as bytes, little endian: int64 three times, int32."""

    at: bytes = b""
    ledger: bytes = b""
    entry: bytes = b""
    index: bytes = b""


class Schedule:
    """Columns at, ledger, entry (int64) and index (int32); (ledger, entry, index) rises."""

    __slots__ = ("at", "entry", "index", "ledger")

    def __init__(self) -> None:
        self.at = array("q")
        self.ledger = array("q")
        self.entry = array("q")
        self.index = array("i")

    def __len__(self) -> int:
        return len(self.at)

    def __iter__(self) -> Iterator[tuple[int, int, int, int]]:
        """(at, ledger, entry, index), in order of position; for tests and small schedules."""
        return zip(self.at, self.ledger, self.entry, self.index, strict=True)

    def place(self, number: int) -> Id:
        """The id of a row."""
        return (self.ledger[number], self.entry[number], self.index[number])

    def add_entries(self, ledger: int, first: int, times: array[int], now_ms: int) -> int:
        """Add the consecutive plain messages whose time is later than now_ms.

        returns: the greatest time that was not added, NO_TIME if there is none
        """
        if min(times) > now_ms:  # most batches: all are later, or none
            count = len(times)
            self.at.extend(times)
            self.ledger.extend(array("q", [ledger]) * count)
            self.entry.extend(range(first, first + count))
            self.index.extend(array("i", [0]) * count)
            return NO_TIME
        passed = NO_TIME
        for entry, at in enumerate(times, first):
            if at > now_ms:
                self._add(at, ledger, entry, 0)
            elif at > passed:
                passed = at
        return passed

    def add_messages(
        self, ledger: int, entry: int, indexes: Iterable[int], times: Iterable[int], now_ms: int
    ) -> int:
        """Add the messages of one marker whose time is after now_ms; returns as add_entries."""
        passed = NO_TIME
        for index, at in zip(indexes, times, strict=True):
            if at > now_ms:
                self._add(at, ledger, entry, index)
            elif at > passed:
                passed = at
        return passed

    def _add(self, at: int, ledger: int, entry: int, index: int) -> None:
        self.at.append(at)
        self.ledger.append(ledger)
        self.entry.append(entry)
        self.index.append(index)

    def rows_through(self, last: Id) -> int:
        """How many rows are at or below an id."""
        return bisect_left(range(len(self)), True, key=lambda row: self.place(row) > last)

    def cut(self, rows: int) -> None:
        """Drop the first rows."""
        del self.at[:rows], self.ledger[:rows], self.entry[:rows], self.index[:rows]

    def dump(self) -> DumpedSchedule:
        """Plain values, for msgpack."""
        return DumpedSchedule(
            self.at.tobytes(), self.ledger.tobytes(), self.entry.tobytes(), self.index.tobytes()
        )

    @classmethod
    def load(cls, dumped: DumpedSchedule) -> Schedule:
        """The inverse of dump."""
        schedule = cls()
        schedule.at.frombytes(dumped.at)
        schedule.ledger.frombytes(dumped.ledger)
        schedule.entry.frombytes(dumped.entry)
        schedule.index.frombytes(dumped.index)
        return schedule


def times_from(data: bytes) -> array[int]:
    """The times of an op: int64 little endian, NO_TIME for none."""
    out = array("q")
    out.frombytes(data)
    return out
