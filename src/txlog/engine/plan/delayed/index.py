"""Owns DelayedIndex, the delayed messages of one partition in one process, and its parts.

There is one for all subscriptions. It follows the fold and is never stored: `view.timetables` keeps
it as long as the view lives. It has a cutoff, and answers

    poll      which ids are due, after a key, in order of key
    futures   which ids are not due: bitmaps by position, one set per bucket and one for mutable
    next_key  the key that is due next

Its parts are disjoint ranges of positions, in order: a SealedBucket for each file, then the
MutableBucket. A bucket reads its footer first, then the segments that are due, and its bitmaps when
a reader needs them. Polling removes nothing, so a failed poll (a full disk, a crash) loses nothing.
An unreadable bucket raises BucketLost (drop it and build it again) or BucketUnreadable (retry at
the next scan).

    key = (deliver_at, ledger, entry, index)

Rows of the index are in order of key. A few are checked one by one; Arrow groups many, without a
Python object per message. A marker whose messages are all in a set is stored as its entry: an
object for each message would cost 186 B.

Invariants
  1. A set of future ids has an id only if it is indexed and its time is above the cutoff.
  2. A segment is decoded only after its first id is due; a poll first finishes the previous poll.
Source: spec/delayed 3, 7.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from heapq import merge
from typing import NamedTuple, TypeVar

import pyarrow as pa
from pyroaring import BitMap, BitMap64

from txlog.base.startup import compute as pc
from txlog.engine.folds.buffer import Buffer, find_marker
from txlog.engine.folds.cursor import Cursor
from txlog.engine.folds.delayed import Delayed, Schedule
from txlog.engine.model.idset import IdSet, covers
from txlog.engine.model.ops import NO_TIME, Bucket, Id, Mark
from txlog.engine.plan.reading.dispatch import IdsExcept, Skip
from txlog.engine.storage.bucket import (
    IDS,
    BucketFile,
    Columns,
    joined,
    memory_of,
    one_array,
    pack_segments,
)
from txlog.engine.storage.disk.protocol import File
from txlog.engine.view import View
from txlog.errors import DiskFailed, IntegrityError, NoResources

Key = tuple[int, int, int, int]
FAR = 1 << 62  # above every ledger: (time, FAR, 0, 0) stands after all keys of that time
FEW_ROWS_MAX = 128  # up to this many are sorted faster one by one
SET_ROWS_MAX = 2048  # and up to this many put into a set
AT_ONCE = 512
ROW_BYTES = 28  # of a row in memory: three columns of 8 bytes, and its index


def after_time(at: int) -> Key:
    """The key after all keys of a time."""
    return (at, FAR, 0, 0)


def key_of(rows: Columns, row: int) -> Key:
    """The key of a row."""
    return (rows.at[row], rows.ledger[row], rows.entry[row], rows.index[row])


def rows_through(rows: Columns, key: Key) -> int:
    """How many rows have this key or a lower key."""
    low = bisect_left(rows.at, key[0])
    high = bisect_right(rows.at, key[0], low)
    if low == high or key[1] == FAR:
        return high
    return bisect_right(range(high), key, low, key=lambda row: key_of(rows, row))


def keys(rows: Columns, start: int, stop: int) -> Iterator[Key]:
    """The keys of rows, made lazily."""
    for low in range(start, stop, AT_ONCE):
        high = min(stop, low + AT_ONCE)
        columns = (rows.at, rows.ledger, rows.entry, rows.index)
        yield from zip(*(column[low:high].tolist() for column in columns), strict=True)


# --- sorted columns --------------------------------------------------------------------------


def sorted_rows(parts: Sequence[Columns]) -> Columns:
    """Rows of parts in order of key; each part is above those before it in position.

    Within a part, rows of one time are in order of position.
    """
    total = sum(map(len, parts))
    if total <= FEW_ROWS_MAX:
        rows = sorted(key for part in parts for key in keys(part, 0, len(part)))
        at, ledger, entry, index = zip(*rows, strict=True) if rows else ((), (), (), ())
        longs = [memoryview(array("q", column)) for column in (at, ledger, entry)]
        return Columns(longs[0], longs[1], longs[2], memoryview(array("i", index)))
    table = pa.concat_tables(table_of(part, 0, len(part)) for part in parts)
    columns = [one_array(column) for column in table.columns]
    order = pc.array_sort_indices(columns[0])  # stable: equal times keep the order of position
    sort = [memory_of(column.take(order)) for column in columns]
    return Columns(sort[0], sort[1], sort[2], sort[3])


def table_of(rows: Columns, start: int, stop: int) -> pa.Table:
    """Rows as IDS, without a copy."""
    count = stop - start
    columns = [
        pa.Array.from_buffers(kind, count, [None, pa.py_buffer(memory[start:stop])])
        for kind, memory in zip(
            IDS.types, (rows.at, rows.ledger, rows.entry, rows.index), strict=True
        )
    ]
    return pa.Table.from_arrays(columns, schema=IDS)


# --- sets of ids -----------------------------------------------------------------------------


def ids_of(rows: Columns, start: int, stop: int, buffer: Buffer) -> IdSet:
    """The ids of rows as a set; a marker with all its messages among them is stored as its
    entry.
    """
    ids = IdSet()
    if stop - start > SET_ROWS_MAX:
        table = table_of(rows, start, stop)
        is_plain = pc.equal(table["index"], 0)
        inside = table.filter(pc.invert(is_plain))
        if inside.num_rows:
            counts = [inside.num_rows]
            packed = pack_segments(inside, counts, lambda ledger: _counts(buffer, ledger))
            ids.entries, ids.inner = joined(packed)
            table = table.filter(is_plain)
        for ledger in pc.unique(table["ledger"]).to_pylist():
            of_ledger = table["entry"].filter(pc.equal(table["ledger"], ledger))
            several = BitMap64(array("Q", memory_of(one_array(of_ledger)).tobytes()))
            bits = ids.entries.get(ledger)
            ids.entries[ledger] = several if bits is None else bits | several
        return ids
    inner: dict[tuple[int, int], list[int]] = {}
    plain: dict[int, list[int]] = {}
    for _, ledger, entry, index in keys(rows, start, stop):
        if index:
            inner.setdefault((ledger, entry), []).append(index)
        else:
            plain.setdefault(ledger, []).append(entry)
    for (ledger, entry), indexes in inner.items():
        if len(indexes) == _count(buffer, ledger, entry):
            plain.setdefault(ledger, []).append(entry)
        else:
            ids.inner[(ledger, entry)] = BitMap(indexes)
    for ledger, entries in plain.items():
        ids.entries[ledger] = BitMap64(entries)
    return ids


def _count(buffer: Buffer, ledger: int, entry: int) -> int:
    marker = find_marker(buffer, ledger, entry)
    return 0 if marker is None else marker.count


def _counts(buffer: Buffer, ledger: int) -> pa.Array | None:
    """By entry of a ledger, how many messages its marker has; None: the ledger has no marker."""
    markers = buffer.markers.get(ledger)
    if not markers:
        return None
    counts = array("i", bytes(4 * (markers[-1].entry + 1)))
    for marker in markers:
        counts[marker.entry] = marker.count
    return pa.Array.from_buffers(pa.int32(), len(counts), [None, pa.py_buffer(counts)])


def unite(ids: IdSet, more: IdSet) -> None:
    """Add a set to another in place; do not use `more` after that."""
    for ledger, entries in more.entries.items():
        bits = ids.entries.get(ledger)
        if bits is None:
            ids.entries[ledger] = entries
        else:
            bits |= entries
        for key in [key for key in ids.inner if key[0] == ledger and key[1] in entries]:
            del ids.inner[key]
    for key, inner in more.inner.items():
        whole = ids.entries.get(key[0])
        if whole is not None and key[1] in whole:
            continue
        if key in ids.inner:
            ids.inner[key] |= inner
        else:
            ids.inner[key] = inner


def remove(ids: IdSet, removed: IdSet, buffer: Buffer) -> None:
    """Remove a set from another in place; the other messages of a whole marker stay."""
    for ledger, entries in removed.entries.items():
        bits = ids.entries.get(ledger)
        if bits is not None:
            bits -= entries
            if not bits:
                del ids.entries[ledger]
        if ids.inner:
            for key in [key for key in ids.inner if key[0] == ledger and key[1] in entries]:
                del ids.inner[key]
    for key, inner in removed.inner.items():
        whole = ids.entries.get(key[0])
        if whole is not None and key[1] in whole:
            whole.discard(key[1])
            if not whole:
                del ids.entries[key[0]]
            known_inner = BitMap(range(1, _count(buffer, *key) + 1))
        elif key in ids.inner:
            known_inner = ids.inner.pop(key)
        else:
            continue
        remaining = known_inner - inner
        if remaining:
            ids.inner[key] = remaining


def bytes_of(ids: IdSet | None) -> int:
    """The memory of the bitmaps of a set, without the objects around them."""
    bitmaps: list[BitMap | BitMap64] = []
    if ids is not None:
        bitmaps = [*ids.entries.values(), *ids.inner.values()]
    total = 0
    for bitmap in bitmaps:
        statistics = bitmap.get_statistics()
        total += statistics["n_bytes_array_containers"] + statistics["n_bytes_run_containers"]
        total += statistics["n_bytes_bitset_containers"]
    return total


def messages_of(ids: IdSet, buffer: Buffer) -> int:
    """How many messages a set covers; a whole marker counts with all its messages."""
    total = sum(map(len, ids.inner.values()))
    for ledger, entries in ids.entries.items():
        total += len(entries)
        for marker in buffer.markers.get(ledger, ()):
            if marker.count > 1 and marker.entry in entries:
                total += marker.count - 1
    return total


def common(first: IdSet, second: IdSet) -> IdSet:
    """The messages in both of two sets; each may have a marker as a whole or message by message."""
    shared_ids = IdSet()
    for ledger, entries in first.entries.items():
        bits = second.entries.get(ledger)
        if bits is not None and (both := entries & bits):
            shared_ids.entries[ledger] = both
    for set_a, set_b in ((first, second), (second, first)):
        for key, inner in set_a.inner.items():
            whole = set_b.entries.get(key[0])
            if whole is not None and key[1] in whole:
                shared_ids.inner[key] = inner
    for key, inner in first.inner.items():
        inner_b = second.inner.get(key)
        if inner_b is not None and key not in shared_ids.inner and (shared := inner & inner_b):
            shared_ids.inner[key] = shared
    return shared_ids


# --- the parts -------------------------------------------------------------------------------

READS_MAX = 3  # how often a bucket is read before the others continue without it
KEPT_SEGMENTS_MAX = 2  # of a bucket: the segment that is falling due, and the next
T = TypeVar("T")


class LoadedPart(NamedTuple):
    """The loaded part of a bucket; ids: in rows; bytes: of rows and bitmaps."""

    segments: int = 0
    ids: int = 0
    bytes: int = 0


class BucketLost(Exception):
    """The contents of a bucket differ from the frame that published it: drop and rebuild it."""

    def __init__(self, partition: int, gen: int, error: IntegrityError) -> None:
        super().__init__(str(error))
        self.partition, self.gen, self.error = partition, gen, error


class BucketUnreadable(Exception):
    """A bucket that cannot be read now; the next scan tries again."""

    def __init__(self, bucket: Bucket) -> None:
        super().__init__(bucket.file.path)
        self.bucket = bucket


class MutableBucket:
    """The ids above the last bucket: chunks in order of key, a larger chunk before a smaller one.

    Rows are only added at the end and removed at the front, so the first id shows whether rows were
    removed.
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
        """Copy the rows that the schedule gained since the last call; all, if it lost any."""
        count = len(schedule)
        if not count or count < self._rows or schedule.place(0) != self._first:
            self._begin_again()
        if count == self._rows:
            return
        self._first = schedule.place(0)
        start, self._rows = self._rows, count
        chunk = sorted_rows([_copied(schedule, start)])
        if self._future is not None:
            low = bisect_right(chunk.at, self._cutoff)
            unite(self._future, ids_of(chunk, low, len(chunk), self._view.buffer(self.number)))
        self._chunks.append(chunk)
        while len(self._chunks) > 1 and len(self._chunks[-2]) < 2 * len(self._chunks[-1]):
            self._chunks[-2:] = [sorted_rows(self._chunks[-2:])]

    def move(self, cutoff: int) -> None:
        """Move to another cutoff."""
        old_cutoff, self._cutoff = self._cutoff, cutoff
        if self._future is None or cutoff == old_cutoff:
            return
        for chunk in self._chunks:
            _moved(self._future, chunk, old_cutoff, cutoff, self._view, self.number)

    def future(self) -> IdSet:
        """The ids whose time is above the cutoff."""
        if self._future is None:
            self._future = IdSet()
            for chunk in self._chunks:
                low = bisect_right(chunk.at, self._cutoff)
                more = ids_of(chunk, low, len(chunk), self._view.buffer(self.number))
                unite(self._future, more)
        return self._future

    def keys(self, start_key: Key, through: int, below: Mark) -> list[Iterator[Key]]:
        """Iterators of the keys after a key, up to and including a time; each in order."""
        if self._first is None or not covers(below, self._first):
            return []
        return [
            keys(chunk, start, stop)
            for chunk in self._chunks
            if (start := rows_through(chunk, start_key)) < (stop := bisect_right(chunk.at, through))
        ]

    def next_key(self) -> Key | None:
        """The lowest key above the cutoff."""
        candidates = (
            (chunk, row)
            for chunk in self._chunks
            if (row := bisect_right(chunk.at, self._cutoff)) < len(chunk)
        )
        return min((key_of(chunk, row) for chunk, row in candidates), default=None)

    def loaded(self) -> LoadedPart:
        """How much is in memory; it has no segments."""
        return LoadedPart(0, self._rows, ROW_BYTES * self._rows + bytes_of(self._future))

    def count(self) -> int:
        """How many ids are above the cutoff."""
        return sum(len(chunk) - bisect_right(chunk.at, self._cutoff) for chunk in self._chunks)


class SealedBucket:
    """The ids of one published bucket, read from its file when needed."""

    __slots__ = (
        "_cutoff",
        "_file",
        "_future",
        "_kept",
        "_open",
        "_starts",
        "_times",
        "_view",
        "bucket",
        "number",
    )

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
        """Close the file; the next read opens it again."""
        if self._open is not None:
            self._view.files.opened.closed(self)
            self._open.close()
        self._open = self._file = None

    def _read(self, look: Callable[[BucketFile], T]) -> T:
        """Read the file and return the result; raises BucketLost, BucketUnreadable."""
        for _ in range(READS_MAX):
            try:
                if self._file is None:
                    opened = self._view.files.opened
                    self._open = opened.open(self, self.bucket.file.path, self.close)
                    bucket_file = BucketFile(self._open, self.bucket.file)
                    self._starts = [segment.min_at for segment in bucket_file.segments]
                    self._times = [segment.max_at for segment in bucket_file.segments]
                    self._file = bucket_file
                else:
                    self._view.files.opened.used(self)
                return look(self._file)
            except IntegrityError as error:
                self.close()
                raise BucketLost(self.number, self.bucket.gen, error) from error
            except (DiskFailed, NoResources):
                self.close()
        raise BucketUnreadable(self.bucket)

    def _segment(self, number: int) -> Columns:
        rows = self._kept.get(number)
        if rows is None:
            rows = self._read(lambda file: file.segment(number))
            while len(self._kept) >= KEPT_SEGMENTS_MAX:
                del self._kept[min(self._kept)]  # the oldest has fallen due already
            self._kept[number] = rows
        return rows

    def _falling(self, at: int) -> int:
        """The first segment that has an id above a time."""
        self._read(lambda file: file.head)
        return bisect_right(self._times, at)

    def move(self, cutoff: int) -> None:
        """Move to another cutoff."""
        old_cutoff, self._cutoff = self._cutoff, cutoff
        if self._future is None or max(cutoff, old_cutoff) < self.bucket.min_at:
            return
        number = bisect_right(self._times, old_cutoff)
        if number == bisect_right(self._times, cutoff):
            if number == len(self._times) or max(cutoff, old_cutoff) < self._starts[number]:
                return
            rows = self._kept.get(number)
            if rows is not None:
                _moved(self._future, rows, old_cutoff, cutoff, self._view, self.number)
                return
        self._future = None  # rebuilt from the bitmaps at the next read

    def future(self) -> IdSet:
        """The ids whose time is above the cutoff."""
        if self._future is None:
            ids = IdSet()
            cutoff = self._cutoff
            number = self._falling(cutoff)
            if number < len(self._times) and self._starts[number] <= cutoff:
                rows = self._segment(number)
                low = bisect_right(rows.at, cutoff)
                ids = ids_of(rows, low, len(rows), self._view.buffer(self.number))
                number += 1
            if number < len(self._times):
                later = IdSet()
                later.entries, later.inner = self._read(lambda file: file.joined(number))
                self._read(BucketFile.forget_bitmaps)
                unite(later, ids)
                ids = later
            self._future = ids
        return self._future

    def keys(self, start_key: Key, through: int) -> list[Iterator[Key]]:
        """An iterator of the keys after a key, up to and including a time, in order."""
        if through < self.bucket.min_at or self.bucket.max_at < start_key[0]:
            return []
        return [self._keys(start_key, through)]

    def _keys(self, start_key: Key, through: int) -> Iterator[Key]:
        segments = self._read(lambda file: file.segments)
        first = max(0, bisect_right(segments, start_key, key=lambda segment: segment.first) - 1)
        for number in range(first, len(segments)):
            if segments[number].min_at > through:
                return
            if start_key >= after_time(segments[number].max_at):
                continue
            rows = self._segment(number)
            start, stop = rows_through(rows, start_key), bisect_right(rows.at, through)
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

    def loaded(self) -> LoadedPart:
        """How much of the bucket is in memory."""
        rows = sum(map(len, self._kept.values()))
        return LoadedPart(len(self._kept), rows, ROW_BYTES * rows + bytes_of(self._future))

    def count(self) -> int:
        """How many ids are above the cutoff; raises BucketLost, BucketUnreadable."""
        if self._cutoff < self.bucket.min_at:
            return self.bucket.count
        if self.bucket.max_at <= self._cutoff:
            return 0
        number = self._falling(self._cutoff)
        total = self._read(lambda file: sum(segment.count for segment in file.segments[number:]))
        if self._starts[number] <= self._cutoff:
            total -= bisect_right(self._segment(number).at, self._cutoff)
        return total


def _copied(schedule: Schedule, start: int) -> Columns:
    """The rows of a schedule from a row on; copied, because it grows in place."""
    columns = (schedule.at, schedule.ledger, schedule.entry, schedule.index)
    at, ledger, entry, index = (memoryview(column[start:]) for column in columns)
    return Columns(at, ledger, entry, index)


def _moved(
    future: IdSet, rows: Columns, old_cutoff: int, cutoff: int, view: View, number: int
) -> None:
    """Bring a set of future ids from one cutoff to another, as far as these rows go."""
    low, high = sorted((bisect_right(rows.at, old_cutoff), bisect_right(rows.at, cutoff)))
    if low == high:
        return
    buffer = view.buffer(number)
    passed = ids_of(rows, low, high, buffer)
    if cutoff > old_cutoff:
        remove(future, passed, buffer)
    else:
        unite(future, passed)


# --- the index ------------------------------------------------------------------------------------


class DelayedIndex:
    """The index of one partition, at the cutoff it was last moved to."""

    __slots__ = ("_buckets", "_mutable", "_number", "_view", "cutoff")

    def __init__(self, view: View, number: int) -> None:
        self._view, self._number = view, number
        self._buckets: list[SealedBucket] = []
        self._mutable = MutableBucket(view, number)
        self.cutoff = NO_TIME

    def stand(self, cutoff: int) -> DelayedIndex:
        """Follow the fold, and move to a cutoff, above or below the last; returns itself."""
        delayed = self._view.delayed(self._number)
        if [sealed.bucket.gen for sealed in self._buckets] != [
            sealed.gen for sealed in delayed.buckets
        ]:
            self._follow(delayed)
        self._mutable.follow(delayed.mutable)
        if cutoff != self.cutoff:
            self.cutoff = cutoff
            self._mutable.move(cutoff)
            for sealed in self._buckets:
                sealed.move(cutoff)
        return self

    def _follow(self, delayed: Delayed) -> None:
        by_gen = {sealed.bucket.gen: sealed for sealed in self._buckets}
        self._buckets = [
            by_gen.pop(bucket.gen)
            if bucket.gen in by_gen
            else SealedBucket(self._view, self._number, bucket, self.cutoff)
            for bucket in delayed.buckets
        ]
        for sealed in by_gen.values():
            sealed.close()

    def close(self) -> None:
        """Close the files of the buckets."""
        for sealed in self._buckets:
            sealed.close()

    def futures(self, cursor: Cursor, start: Mark, *, make_do: bool) -> tuple[Skip, list[Bucket]]:
        """The ids that a read from a position leaves out as not due, and the buckets it
        cannot read.

        Ids released for the subscription are not left out.
        make_do: continue without a lost bucket; else raise BucketLost
        """
        out: list[IdSet] = []
        away: list[Bucket] = []
        for sealed in self._buckets:
            if sealed.bucket.max_at > self.cutoff and not covers(start, sealed.bucket.last):
                try:
                    out.append(sealed.future())
                except BucketUnreadable:
                    away.append(sealed.bucket)
                except BucketLost:
                    if not make_do:
                        raise
                    away.append(sealed.bucket)
        out.append(self._mutable.future())
        if not cursor.released:
            return tuple(ids for ids in out if ids), away
        return tuple(IdsExcept(ids, cursor.released) for ids in out if ids), away

    def poll(self, start: Key, below: Mark) -> Iterator[Key]:
        """The due keys after a key, in order, without those at or above a position.

        If the position is inside a bucket, all its keys come, and the caller must check. An
        unreadable bucket raises BucketUnreadable or BucketLost after the keys of all others.
        """
        iterators = self._mutable.keys(start, self.cutoff, below)
        for sealed in self._buckets:
            if covers(below, sealed.bucket.first):
                iterators += sealed.keys(start, self.cutoff)
        return merge(*iterators)

    def next_key(self) -> Key | None:
        """The lowest key above the cutoff; None: nothing waits."""
        best = self._mutable.next_key()
        for sealed in sorted(self._buckets, key=lambda sealed: sealed.bucket.min_at):
            if best is not None and best[0] < sealed.bucket.min_at:
                break  # no key in this bucket or a later bucket is lower
            try:
                key = sealed.next_key()
            except (BucketUnreadable, BucketLost):
                continue  # the next scan handles it
            if key is not None and (best is None or key < best):
                best = key
        return best

    def count(self) -> int:
        """How many ids are above the cutoff; all ids of a bucket that cannot be read count."""
        total = self._mutable.count()
        for sealed in self._buckets:
            try:
                total += sealed.count()
            except (BucketUnreadable, BucketLost):
                total += sealed.bucket.count
        return total

    def loaded(self) -> tuple[LoadedPart, dict[int, LoadedPart]]:
        """How much is in memory: of mutable, and of each bucket by its generation."""
        return self._mutable.loaded(), {
            sealed.bucket.gen: sealed.loaded() for sealed in self._buckets
        }

    def count_for(self, cursor: Cursor) -> int:
        """How many ids above the cutoff are not acknowledged; unreadable buckets count in full."""
        total = self._count_in(self._mutable.future(), cursor)
        for sealed in self._buckets:
            if sealed.bucket.max_at > self.cutoff and not covers(
                cursor.mark_delete, sealed.bucket.last
            ):
                try:
                    total += self._count_in(sealed.future(), cursor)
                except (BucketUnreadable, BucketLost):
                    total += sealed.bucket.count
        return total

    def _count_in(self, future: IdSet, cursor: Cursor) -> int:
        buffer = self._view.buffer(self._number)
        ids, mark = _copy(future), cursor.mark_delete
        if mark[2]:  # it is inside a marker, which may be in the set as a whole
            below = IdSet()
            below.add((mark[0], mark[1], mark[1], 1, mark[2]))
            remove(ids, below, buffer)
        ids.drop_through(mark)
        return messages_of(ids, buffer) - messages_of(common(ids, cursor.acked), buffer)


def _copy(ids: IdSet) -> IdSet:
    copy = IdSet()
    copy.entries = {ledger: bits.copy() for ledger, bits in ids.entries.items()}
    copy.inner = {key: bits.copy() for key, bits in ids.inner.items()}
    return copy


def index_of_partition(view: View, number: int, cutoff: int) -> DelayedIndex:
    """The index of a partition in this process, at a cutoff."""
    table: DelayedIndex | None = view.timetables.get(number)
    if table is None:
        table = view.timetables[number] = DelayedIndex(view, number)
    return table.stand(cutoff)
