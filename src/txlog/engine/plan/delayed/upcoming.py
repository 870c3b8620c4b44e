"""Messages that are not due yet: delayed messages as columns, to list, count or pick.

    upcoming        in order of time, a table at a time, from the index: buckets and mutable;
                    upcoming_in_any_order, to count or pick from
    times_of        the times of named messages, from their rows
    is_in, is_behind, runs_in_order     the state of its messages on a cursor, by columns

Nothing here caches the index. Ids that the index lacks come from the log. So do the ids of a bucket
that cannot be read, and `note` is called with the reason: that costs time, but the call succeeds.
Source: spec/delayed 1, 9.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest

import pyarrow as pa

from txlog.base.startup import compute as pc
from txlog.engine.folds.delayed import Schedule
from txlog.engine.model.idset import IdSet, before
from txlog.engine.model.ops import Bucket, Id, Mark, Run
from txlog.engine.model.tail import repeat_runs
from txlog.engine.plan.ack_sets import runs_of_table
from txlog.engine.plan.reading.dispatch import NO_MATTER, Piece, pieces_of, plan, requests_of
from txlog.engine.storage.bucket import IDS, BucketFile, Key, memory_of, one_array
from txlog.engine.view import View
from txlog.errors import IntegrityError

Note = Callable[[str], None]
TIMES = IDS
KEY = [(name, "ascending") for name in TIMES.names]
PLACE = KEY[1:]
ROWS_AT_ONCE = 100_000
SEGMENTS_AT_ONCE = 64
EVERYWHERE: tuple[Id, Id] = ((0, 0, 0), (1 << 62, 0, 0))
_PLAIN = pa.scalar(0, pa.int64())


@dataclass(frozen=True, slots=True)
class UpcomingSource:
    """Delayed ids that are not loaded yet; all are due at `low` or later."""

    low: int
    load: Callable[[], pa.Table]


@dataclass(frozen=True, slots=True)
class TimeFilter:
    """A filter for delayed messages: with a time between two instants, and not trimmed.

    first_ledger: of the partition; a bucket may still have trimmed ids
    """

    after_ms: int
    before_ms: int | None
    first_ledger: int

    def of(self, times: pa.Table) -> pa.Table:
        """The rows of a table that match."""
        at = times["deliver_at"]
        is_match = pc.and_(
            pc.greater(at, self.after_ms), pc.greater_equal(times["ledger"], self.first_ledger)
        )
        if self.before_ms is not None:
            is_match = pc.and_(is_match, pc.less(at, self.before_ms))
        return times.filter(is_match)

    def since(self, after_ms: int) -> TimeFilter:
        """The same filter, only for times after an instant."""
        return TimeFilter(max(after_ms, self.after_ms), self.before_ms, self.first_ledger)

    def until(self, before_ms: int) -> TimeFilter:
        """The same filter, only for times before an instant."""
        if self.before_ms is not None:
            before_ms = min(before_ms, self.before_ms)
        return TimeFilter(self.after_ms, before_ms, self.first_ledger)

    def touches(self, min_at: int, max_at: int) -> bool:
        """True when a time between two times, both included, can match."""
        return max_at > self.after_ms and (self.before_ms is None or min_at < self.before_ms)


def upcoming(
    view: View, partitions: Sequence[int], note: Note, after_ms: int, before_ms: int | None = None
) -> Iterator[pa.Table]:
    """Delayed messages with a time between two instants, both left out, as TIMES in order of key.

    note:      called with a line of text for each bucket that could not be read
    before_ms: None: no upper bound
    cost:      segments of a bucket are loaded when the caller has taken all earlier ids
    """
    with ExitStack() as stack:
        sources = _all_sources(view, partitions, note, after_ms, before_ms, stack, few=True)
        sources.sort(key=lambda source: source.low)
        lows = [source.low for source in sources[1:]]
        loaded: list[_SortedTable] = []
        for source, below in zip_longest(sources, lows):
            loaded.append(_SortedTable(source.load()))
            parts = [table for rows in loaded if (table := rows.take(below)).num_rows]
            loaded = [rows for rows in loaded if rows.is_left]
            if len(parts) == 1:
                yield parts[0]
            elif parts:
                yield pa.concat_tables(parts).sort_by(KEY)


def upcoming_in_any_order(
    view: View, partitions: Sequence[int], note: Note, after_ms: int, before_ms: int | None = None
) -> Iterator[pa.Table]:
    """As `upcoming`, but in any order, with fewer and larger reads."""
    with ExitStack() as stack:
        for source in _all_sources(view, partitions, note, after_ms, before_ms, stack, few=False):
            yield source.load()


def _all_sources(
    view: View,
    partitions: Sequence[int],
    note: Note,
    after_ms: int,
    before_ms: int | None,
    stack: ExitStack,
    *,
    few: bool,
) -> list[UpcomingSource]:
    """few: load the first segment of a bucket alone, then more at a time; else many at once."""
    out: list[UpcomingSource] = []
    for number in partitions:
        filter_ = TimeFilter(after_ms, before_ms, view.topic(number).ledgers[0].ledger)
        out += _sources(view, number, filter_, note, stack, few=few)
    return out


class _SortedTable:
    """A table in order of key, from which the first rows are taken."""

    __slots__ = ("_at", "_start", "_table")

    def __init__(self, table: pa.Table) -> None:
        self._table = table.combine_chunks()
        self._at = memory_of(one_array(self._table["deliver_at"]))
        self._start = 0

    def take(self, below: int | None) -> pa.Table:
        """The next rows with a lower time; None: all remaining rows."""
        start = self._start
        self._start = len(self._at) if below is None else bisect_left(self._at, below, start)
        return self._table.slice(start, self._start - start)

    @property
    def is_left(self) -> bool:
        """True when rows remain."""
        return self._start < len(self._at)


def _sources(
    view: View, partition: int, filter_: TimeFilter, note: Note, stack: ExitStack, *, few: bool
) -> Iterator[UpcomingSource]:
    state = view.delayed(partition)
    if filter_.after_ms < state.passed_ms:
        # the clock went back, or another clock is ahead: up to here the index may lack ids
        early = filter_.until(state.passed_ms + 1)
        yield UpcomingSource(early.after_ms, partial(_scanned, view, partition, *EVERYWHERE, early))
        filter_ = filter_.since(state.passed_ms)
    mutable = filter_.of(columns_of(state.mutable)).sort_by(KEY)
    if mutable.num_rows:
        yield UpcomingSource(pc.min(mutable["deliver_at"]).as_py(), lambda: mutable)
    for first, last in state.unindexed:
        yield UpcomingSource(
            filter_.after_ms, partial(_scanned, view, partition, first, last, filter_)
        )
    for bucket in state.buckets:
        if filter_.touches(bucket.min_at, bucket.max_at):
            yield from _in_bucket(view, partition, bucket, filter_, note, stack, few=few)


def _in_bucket(
    view: View,
    partition: int,
    bucket: Bucket,
    filter_: TimeFilter,
    note: Note,
    stack: ExitStack,
    *,
    few: bool,
) -> Iterator[UpcomingSource]:
    """The matching ids of a bucket; if it cannot be read, the same from the log."""

    def from_log(error: IntegrityError) -> pa.Table:
        note(f"read the log instead of a bucket of delayed messages: {error}")
        return filter_.of(scan(view, partition, bucket.first, bucket.last)).sort_by(KEY)

    def load(start: int, stop: int) -> pa.Table:
        try:
            return filter_.of(reader.table(start, stop))
        except IntegrityError as error:
            until = segments[stop].first if stop < len(segments) else None
            return _of_segments(from_log(error), segments[start].first, until)

    try:
        file = view.disk.open(bucket.file.path)
        stack.callback(file.close)
        reader = BucketFile(file, bucket.file)
        segments = reader.segments
    except IntegrityError as error:
        yield UpcomingSource(max(filter_.after_ms, bucket.min_at), partial(from_log, error))
        return
    wide = [
        at for at, segment in enumerate(segments) if filter_.touches(segment.min_at, segment.max_at)
    ]
    if not wide:
        return
    start, count = wide[0], 1 if few else SEGMENTS_AT_ONCE
    while start <= wide[-1]:  # in order of key, so the matching segments are together
        stop = min(wide[-1] + 1, start + count)
        yield UpcomingSource(
            max(filter_.after_ms, segments[start].min_at), partial(load, start, stop)
        )
        start, count = stop, min(2 * count, SEGMENTS_AT_ONCE)


def count_later(view: View, bucket: Bucket, cutoff_ms: int) -> int:
    """How many ids of a bucket have a time above the cutoff; cost: loads at most one segment.

    raises: Corruption, FormatMismatch
    """
    if bucket.min_at > cutoff_ms or bucket.max_at <= cutoff_ms:
        return bucket.count if bucket.min_at > cutoff_ms else 0
    file = view.disk.open(bucket.file.path)
    try:
        reader = BucketFile(file, bucket.file)
        total = 0
        for at, segment in enumerate(reader.segments):
            if segment.min_at > cutoff_ms:
                total += segment.count
            elif segment.max_at > cutoff_ms:
                later = pc.greater(reader.table(at)["deliver_at"], cutoff_ms)
                total += int(pc.sum(later).as_py())
        return total
    finally:
        file.close()


def later_in(view: View, bucket: Bucket, cutoff_ms: int) -> pa.Table:
    """The ids of a bucket that have a later time, as TIMES; raises Corruption, FormatMismatch."""
    file = view.disk.open(bucket.file.path)
    try:
        reader = BucketFile(file, bucket.file)
        times = reader.table(0, len(reader.segments))
    finally:
        file.close()
    return times.filter(pc.greater(times["deliver_at"], cutoff_ms))


def _scanned(view: View, partition: int, first: Id, last: Id, filter_: TimeFilter) -> pa.Table:
    return filter_.of(scan(view, partition, first, last)).sort_by(KEY)


def _of_segments(times: pa.Table, first: Key, until: Key | None) -> pa.Table:
    """The rows from a key on, and before another."""
    rows = zip(*(times[name].to_pylist() for name in TIMES.names), strict=True)
    flags = [first <= row and (until is None or row < until) for row in rows]
    return times.filter(pa.array(flags, pa.bool_()))


def columns_of(schedule: Schedule) -> pa.Table:
    """A schedule as TIMES."""
    columns = [schedule.at, schedule.ledger, schedule.entry, schedule.index]
    return pa.Table.from_arrays(
        [_column(column, field.type) for column, field in zip(columns, TIMES, strict=True)],
        schema=TIMES,
    )


def _column(values: array[int], kind: pa.DataType) -> pa.Array:
    # a copy: an array cannot grow while there is a view of it
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values.tobytes())])


# --- from the log ----------------------------------------------------------------------------


def scan(view: View, partition: int, first: Id, last: Id) -> pa.Table:
    """The messages of a range of positions, both ends included, that have a time, as TIMES."""
    position: Mark = before(first)
    stop: Mark = (last[0], last[1], last[2] + 1) if last[2] else (last[0], last[1] + 1, 0)
    out = [TIMES.empty_table()]
    while True:
        planned = plan(view, partition, position, ROWS_AT_ONCE, (), stop, bytes_max=NO_MATTER)
        if not planned.pieces:
            break
        rows = _times(view, planned.pieces)
        out.append(rows.filter(rows["deliver_at"].is_valid()))
        position = planned.after
    whole = pa.concat_tables(out)
    return whole.filter(pc.and_(_at_least(whole, first), pc.invert(_above(whole, last))))


def times_of(view: View, partition: int, runs: Iterable[Run]) -> pa.Table:
    """The messages of runs without whole markers as TIMES, in the order of the runs.

    A message without a time has null.
    """
    pieces = pieces_of(view, partition, runs)
    return _times(view, pieces) if pieces else TIMES.empty_table()


def _times(view: View, pieces: list[Piece]) -> pa.Table:
    stored = pa.concat_tables(view.rows(requests_of(pieces), ("deliver_at",)))
    ends: list[int] = []
    bases: list[int] = []
    total = 0
    for piece in pieces:
        bases.append((piece.entry if piece.marker is None else piece.index) - total)
        total += piece.rows
        ends.append(total)
    assert stored.num_rows == total
    number = pc.add(pa.arange(0, total), repeat_runs(bases, ends, pa.int64()))
    fixed = repeat_runs([None if p.marker is None else p.entry for p in pieces], ends, pa.int64())
    is_plain = pc.is_null(fixed)
    columns = [
        stored.column("deliver_at").cast(pa.int64()),
        repeat_runs([piece.ledger for piece in pieces], ends, pa.int64()),
        pc.coalesce(fixed, number),
        pc.if_else(is_plain, _PLAIN, number).cast(pa.int32()),
    ]
    return pa.Table.from_arrays(columns, schema=TIMES)


# --- their state on a cursor -----------------------------------------------------------------


def _above(times: pa.Table, id_: Id) -> pa.ChunkedArray:
    """True for rows after an id."""
    ledger, entry = times["ledger"], times["entry"]
    same = pc.and_(pc.equal(ledger, id_[0]), pc.equal(entry, id_[1]))
    return pc.or_(
        pc.or_(
            pc.greater(ledger, id_[0]),
            pc.and_(pc.equal(ledger, id_[0]), pc.greater(entry, id_[1])),
        ),
        pc.and_(same, pc.greater(times["index"], id_[2])),
    )


def _at_least(times: pa.Table, id_: Id) -> pa.ChunkedArray:
    same = pc.and_(
        pc.and_(pc.equal(times["ledger"], id_[0]), pc.equal(times["entry"], id_[1])),
        pc.equal(times["index"], id_[2]),
    )
    return pc.or_(same, _above(times, id_))


def is_behind(times: pa.Table, mark: Mark) -> pa.ChunkedArray:
    """True for messages that a mark does not cover."""
    whole = (1 << 31) - 1  # index 0 of a mark covers its entry
    return _above(times, (mark[0], mark[1], mark[2] or whole))


def is_in(times: pa.Table, ids: IdSet) -> pa.ChunkedArray:
    """True for messages that are in a set, alone or with their whole marker."""
    mask = pa.chunked_array([pa.repeat(pa.scalar(False), times.num_rows)])
    ledgers = pc.unique(times["ledger"]).to_pylist()
    for ledger in ledgers:
        bits = ids.entries.get(ledger)
        if bits:
            entries = bits.to_array()
            values = pa.Array.from_buffers(
                pa.int64(), len(entries), [None, pa.py_buffer(entries.tobytes())]
            )
            here = pc.and_(pc.equal(times["ledger"], ledger), pc.is_in(times["entry"], values))
            mask = pc.or_(mask, here)
    inner = {key for key in ids.inner if key[0] in set(ledgers)}
    if inner:
        rows = zip(*(times[name].to_pylist() for name in TIMES.names[1:]), strict=True)
        flags = [
            (ledger, entry) in inner and index in ids.inner[(ledger, entry)]
            for ledger, entry, index in rows
        ]
        mask = pc.or_(mask, pa.array(flags, pa.bool_()))
    return mask


def runs_in_order(times: pa.Table) -> list[Run]:
    """The messages as runs, in order of position."""
    return runs_of_table(times.select(TIMES.names[1:]).sort_by(PLACE).combine_chunks())
