"""Owns the parts of a timetable: Sealed, the ids of one bucket, and Mutable, those above the last.

Each stands at a cutoff and answers for its own range of positions. Of a bucket its footer is read
first, then the segments that are due, and its bitmaps when a read comes by; what cannot be read is
BucketLost (it is to be dropped, and built again) or BucketAway (the next cycle tries again).

Invariants
  1. A set of future ids has an id only if it is indexed and its time is above the cutoff.
  2. No segment is read before its first id is due, and before the last of the one before it.
Source: spec/delayed-delivery 3, 7.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import NamedTuple, TypeVar

from txlog.engine.folds.cursor import covers
from txlog.engine.model.idset import IdSet
from txlog.engine.model.ops import NO_TIME, Bucket, Id, Mark
from txlog.engine.model.schedule import Schedule
from txlog.engine.plan.delayed.timerows import (
    ROW_BYTES,
    Key,
    behind_time,
    bytes_of,
    ids_of,
    key_of,
    keys,
    remove,
    rows_through,
    sorted_rows,
    unite,
)
from txlog.engine.storage.bucket.reader import BucketFile, Columns
from txlog.engine.storage.disk.protocol import File
from txlog.engine.view.view import View
from txlog.errors import DiskFailed, IntegrityError, NoResources

READS_MAX = 3  # so often a bucket is tried before the rest goes on without it
KEPT_SEGMENTS_MAX = 2  # of a bucket: the one that is falling due, and the one behind it
T = TypeVar("T")


class Loaded(NamedTuple):
    """What of a bucket is in the memory of this process; bytes: of rows and bitmaps."""

    segments: int = 0
    ids: int = 0
    bytes: int = 0


class BucketLost(Exception):
    """A bucket that is not what the frame said of it: it is dropped, and built again."""

    def __init__(self, partition: int, gen: int, error: IntegrityError) -> None:
        super().__init__(str(error))
        self.partition, self.gen, self.error = partition, gen, error


class BucketAway(Exception):
    """A bucket that cannot be read now; the next cycle tries again."""

    def __init__(self, bucket: Bucket) -> None:
        super().__init__(bucket.file.path)
        self.bucket = bucket


class Mutable:
    """The ids above the last bucket: chunks of them in order of key, a larger one before a smaller.

    Rows only come at the end and go at the front, so the first id says whether some have gone.
    """

    __slots__ = ("_chunks", "_cutoff", "_first", "_future", "_rows", "_view", "number")

    def __init__(self, view: View, number: int) -> None:
        self._view, self.number = view, number
        self._cutoff = NO_TIME
        self._begin_again()

    def _begin_again(self) -> None:
        self._chunks: list[Columns] = []
        self._first: Id | None = None
        self._rows = 0
        self._future: IdSet | None = None

    def follow(self, schedule: Schedule) -> None:
        """Take what was added since the last time."""
        count = len(schedule)
        if not count or count < self._rows or schedule.place(0) != self._first:
            self._begin_again()
        if count == self._rows:
            return
        self._first = schedule.place(0)
        start, self._rows = self._rows, count
        made = sorted_rows([_copied(schedule, start)])
        if self._future is not None:
            low = bisect_right(made.at, self._cutoff)
            unite(self._future, ids_of(made, low, len(made), self._view.buffer(self.number)))
        self._chunks.append(made)
        while len(self._chunks) > 1 and len(self._chunks[-2]) < 2 * len(self._chunks[-1]):
            self._chunks[-2:] = [sorted_rows(self._chunks[-2:])]

    def move(self, cutoff: int) -> None:
        """Stand at another cutoff."""
        before, self._cutoff = self._cutoff, cutoff
        if self._future is None or cutoff == before:
            return
        for chunk in self._chunks:
            _moved(self._future, chunk, before, cutoff, self._view, self.number)

    def future(self) -> IdSet:
        """The ids whose time is above the cutoff."""
        if self._future is None:
            self._future = IdSet()
            for chunk in self._chunks:
                low = bisect_right(chunk.at, self._cutoff)
                more = ids_of(chunk, low, len(chunk), self._view.buffer(self.number))
                unite(self._future, more)
        return self._future

    def keys(self, behind: Key, through: int, below: Mark) -> list[Iterator[Key]]:
        """Keys behind one, up to and with a time; each in order."""
        if self._first is None or not covers(below, self._first):
            return []
        return [
            keys(chunk, start, stop)
            for chunk in self._chunks
            if (start := rows_through(chunk, behind)) < (stop := bisect_right(chunk.at, through))
        ]

    def next_key(self) -> Key | None:
        """The lowest key above the cutoff."""
        found = (
            (chunk, row) for chunk in self._chunks
            if (row := bisect_right(chunk.at, self._cutoff)) < len(chunk)
        )  # fmt: skip
        return min((key_of(chunk, row) for chunk, row in found), default=None)

    def loaded(self) -> Loaded:
        """What of it is in memory."""
        return Loaded(0, self._rows, ROW_BYTES * self._rows + bytes_of(self._future))

    def count(self) -> int:
        """How many ids are above the cutoff."""
        return sum(len(chunk) - bisect_right(chunk.at, self._cutoff) for chunk in self._chunks)


class Sealed:
    """The ids of one bucket."""

    __slots__ = (
        "_cutoff", "_file", "_future", "_kept", "_open", "_starts", "_times", "_view", "bucket",
        "number",
    )  # fmt: skip

    def __init__(self, view: View, number: int, bucket: Bucket, cutoff: int) -> None:
        self._view, self.number, self.bucket = view, number, bucket
        self._cutoff = cutoff
        self._open: File | None = None
        self._file: BucketFile | None = None
        self._starts: list[int] = []  # the least time of each segment, and the greatest
        self._times: list[int] = []
        self._kept: dict[int, Columns] = {}
        self._future: IdSet | None = None

    def close(self) -> None:
        """Let go of the file; it is opened again when it is needed."""
        if self._open is not None:
            self._view.files.opened.closed(self)
            self._open.close()
        self._open = self._file = None

    def _read(self, look: Callable[[BucketFile], T]) -> T:
        """What a look at the file gives; raises BucketLost, BucketAway."""
        for _ in range(READS_MAX):
            try:
                if self._file is None:
                    opened = self._view.files.opened
                    self._open = opened.open(self, self.bucket.file.path, self.close)
                    made = BucketFile(self._open, self.bucket.file)
                    self._starts = [segment.min_at for segment in made.segments]
                    self._times = [segment.max_at for segment in made.segments]
                    self._file = made
                else:
                    self._view.files.opened.used(self)
                return look(self._file)
            except IntegrityError as error:
                self.close()
                raise BucketLost(self.number, self.bucket.gen, error) from error
            except (DiskFailed, NoResources):
                self.close()
        raise BucketAway(self.bucket)

    def _segment(self, number: int) -> Columns:
        found = self._kept.get(number)
        if found is None:
            found = self._read(lambda file: file.segment(number))
            while len(self._kept) >= KEPT_SEGMENTS_MAX:
                del self._kept[min(self._kept)]  # the oldest falls due no more
            self._kept[number] = found
        return found

    def _falling(self, at: int) -> int:
        """The first segment that has an id above a time."""
        self._read(lambda file: file.head)
        return bisect_right(self._times, at)

    def move(self, cutoff: int) -> None:
        """Stand at another cutoff."""
        before, self._cutoff = self._cutoff, cutoff
        if self._future is None or max(cutoff, before) < self.bucket.min_at:
            return
        number = bisect_right(self._times, before)
        if number == bisect_right(self._times, cutoff):
            if number == len(self._times) or max(cutoff, before) < self._starts[number]:
                return
            rows = self._kept.get(number)
            if rows is not None:
                _moved(self._future, rows, before, cutoff, self._view, self.number)
                return
        self._future = None  # made again from the bitmaps, when a read comes by

    def future(self) -> IdSet:
        """The ids whose time is above the cutoff."""
        if self._future is None:
            made = IdSet()
            cutoff = self._cutoff
            number = self._falling(cutoff)
            if number < len(self._times) and self._starts[number] <= cutoff:
                rows = self._segment(number)
                low = bisect_right(rows.at, cutoff)
                made = ids_of(rows, low, len(rows), self._view.buffer(self.number))
                number += 1
            if number < len(self._times):
                rest = IdSet()
                rest.entries, rest.inner = self._read(lambda file: file.joined(number))
                self._read(BucketFile.forget_bitmaps)
                unite(rest, made)
                made = rest
            self._future = made
        return self._future

    def keys(self, behind: Key, through: int) -> list[Iterator[Key]]:
        """Keys behind one, up to and with a time, in order."""
        if through < self.bucket.min_at or self.bucket.max_at < behind[0]:
            return []
        return [self._keys(behind, through)]

    def _keys(self, behind: Key, through: int) -> Iterator[Key]:
        segments = self._read(lambda file: file.segments)
        first = max(0, bisect_right(segments, behind, key=lambda one: one.first) - 1)
        for number in range(first, len(segments)):
            if segments[number].min_at > through:
                return
            if behind >= behind_time(segments[number].max_at):
                continue
            rows = self._segment(number)
            start, stop = rows_through(rows, behind), bisect_right(rows.at, through)
            yield from keys(rows, start, stop)

    def next_key(self) -> Key | None:
        """The lowest key above the cutoff."""
        if self.bucket.max_at <= self._cutoff:
            return None
        number = self._falling(self._cutoff)
        segment = self._read(lambda file: file.segments[number])
        if segment.min_at > self._cutoff:
            return segment.first
        rows = self._segment(number)
        return key_of(rows, bisect_right(rows.at, self._cutoff))

    def loaded(self) -> Loaded:
        """What of it is in memory."""
        rows = sum(map(len, self._kept.values()))
        return Loaded(len(self._kept), rows, ROW_BYTES * rows + bytes_of(self._future))

    def count(self) -> int:
        """How many ids are above the cutoff; raises BucketLost, BucketAway."""
        if self._cutoff < self.bucket.min_at:
            return self.bucket.count
        if self.bucket.max_at <= self._cutoff:
            return 0
        number = self._falling(self._cutoff)
        total = self._read(lambda file: sum(one.count for one in file.segments[number:]))
        if self._starts[number] <= self._cutoff:
            total -= bisect_right(self._segment(number).at, self._cutoff)
        return total


def _copied(schedule: Schedule, start: int) -> Columns:
    """Rows of a schedule from one on; copied, for it grows in place."""
    columns = (schedule.at, schedule.ledger, schedule.entry, schedule.index)
    at, ledger, entry, index = (memoryview(column[start:]) for column in columns)
    return Columns(at, ledger, entry, index)


def _moved(
    future: IdSet, rows: Columns, before: int, cutoff: int, view: View, number: int
) -> None:  # fmt: skip
    """Bring a set of future ids from one cutoff to another, as far as these rows go."""
    low, high = sorted((bisect_right(rows.at, before), bisect_right(rows.at, cutoff)))
    if low == high:
        return
    buffer = view.buffer(number)
    passed = ids_of(rows, low, high, buffer)
    if cutoff > before:
        remove(future, passed, buffer)
    else:
        unite(future, passed)
