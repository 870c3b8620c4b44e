"""The sources of the ids of a new bucket: the mutable bucket, other buckets or the log.

Each source yields tables of IDS in key order, without due ids; a merge holds two segments.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import pyarrow as pa

from txlog.base.startup import compute as pc
from txlog.engine.folds import buffer as buffers
from txlog.engine.model.ops import NO_TIME, Id
from txlog.engine.model.schedule import Schedule
from txlog.engine.model.tail import repeat_runs
from txlog.engine.storage.bucket import IDS, BucketFile, one_array, times_of
from txlog.engine.store.store import Store
from txlog.engine.view import Request, View

# A ledger with more entries than this gets no table of its markers: its markers then never count as
# whole.
MARKED_ENTRIES_MAX = 1 << 25
# Rows of the log, or of a bucket, that are read together; at least one segment.
ROWS_READ = 1 << 16
INDEX_MAX = (1 << 31) - 1  # no message of a transaction has an index this high


def ids_of(schedule: Schedule, rows: int) -> pa.Table:
    """The first rows of a schedule as IDS in order of position, in their own memory."""
    columns = (schedule.at, schedule.ledger, schedule.entry, schedule.index)
    arrays = [
        pa.Array.from_buffers(field.type, rows, [None, pa.py_buffer(column[:rows])])
        for field, column in zip(IDS, columns, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=IDS)


def by_key(ids: pa.Table, cutoff: int) -> pa.Table:
    """Ids given in order of position, in key order, without those that are due."""
    ids = ids.filter(pc.greater(ids.column("deliver_at"), cutoff))
    order = pc.array_sort_indices(one_array(ids.column("deliver_at")))  # stable
    return ids.take(order).combine_chunks()


def span_of(ids: pa.Table) -> tuple[int, int]:
    """The earliest and the latest time."""
    bounds = pc.min_max(ids.column("deliver_at")).as_py()
    return int(bounds["min"] or 0), int(bounds["max"] or 0)


class MarkerTables:
    """How many messages the markers of each ledger have; looked up on first use."""

    __slots__ = ("_known", "_partition", "_store")

    def __init__(self, store: Store, partition: int) -> None:
        self._store = store
        self._partition = partition
        self._known: dict[int, pa.Array | None] = {}

    def __call__(self, ledger: int) -> pa.Array | None:
        if ledger not in self._known:
            partition = self._partition
            self._known[ledger] = self._store.read(
                lambda view: marker_table(view, partition, ledger), fresh=False
            )
        return self._known[ledger]


def marker_table(view: View, partition: int, ledger: int) -> pa.Array | None:
    """At each entry of a ledger the messages of the marker there, 0 for none."""
    markers = view.buffer(partition).markers.get(ledger)
    if not markers or markers[-1].entry >= MARKED_ENTRIES_MAX:
        return None
    size = markers[-1].entry + 1
    dense = array("i", bytes(4 * size))
    for marker in markers:
        dense[marker.entry] = marker.count
    return pa.Array.from_buffers(pa.int32(), size, [None, pa.py_buffer(dense)])


# --- other buckets ---------------------------------------------------------------------------


def merged(files: Sequence[BucketFile], cutoff: int) -> Iterator[pa.Table]:
    """The ids of one bucket, or of two neighbours, the lower one first; without due ids.

    It may emit all keys up to the lower of the two last loaded keys. For equal times, those of the
    lower bucket come first.
    """
    sides = [_live(file, cutoff) for file in files]
    if len(sides) == 1:
        yield from sides[0]
        return
    low, high = sides
    a, b = next(low, None), next(high, None)
    while a is not None and b is not None:
        ends_a, ends_b = times_of(a), times_of(b)
        if ends_a[-1] <= ends_b[-1]:
            split = bisect_left(ends_b, ends_a[-1])  # more of the lower side may have this time
            yield _united(a, b.slice(0, split))
            a, b = next(low, None), b.slice(split)
        else:
            split = bisect_right(ends_a, ends_b[-1])
            yield _united(a.slice(0, split), b)
            a, b = a.slice(split), next(high, None)
    for remaining, side in ((a, low), (b, high)):
        if remaining is not None:
            yield remaining
            yield from side


def _live(file: BucketFile, cutoff: int) -> Iterator[pa.Table]:
    """The ids that are not due, a few segments at a time."""
    segments = file.segments
    start = bisect_right(segments, cutoff, key=lambda segment: segment.max_at)
    while start < len(segments):
        stop, rows = start, 0
        while stop < len(segments) and (stop == start or rows + segments[stop].count <= ROWS_READ):
            rows += segments[stop].count
            stop += 1
        table = file.table(start, stop)
        yield table.slice(bisect_right(times_of(table), cutoff))
        start = stop


def _united(low: pa.Table, high: pa.Table) -> pa.Table:
    if not high.num_rows:
        return low
    if not low.num_rows:
        return high
    both = pa.concat_tables([low, high])
    return both.take(pc.array_sort_indices(one_array(both.column("deliver_at")))).combine_chunks()


# --- the log ---------------------------------------------------------------------------------


@dataclass(slots=True)
class LoggedIds:
    """Ids of the log in order of position; through: the last position that was read."""

    ids: pa.Table
    through: Id


# (view, partition, first, last, cutoff, ids_max) -> ids of a range of the log, from its beginning
Search = Callable[[View, int, Id, Id, int, int], LoggedIds]


def logged(view: View, partition: int, first: Id, last: Id, cutoff: int, ids_max: int) -> LoggedIds:
    """The delayed ids of a range of the log that are not due, from its beginning.

    It ends between two entries once there are about ids_max; another bucket gets the others.
    It reads only deliver_at: from ledgers and, for markers, from the sidecar.
    """
    tables: list[pa.Table] = []
    count = 0
    markers = view.buffer(partition).markers
    for end in view.topic(partition).ledgers:
        ledger = end.ledger
        if not first[0] <= ledger <= last[0]:
            continue
        low = first[1] + (first[2] > INDEX_MAX) if ledger == first[0] else 0
        high = min(end.entries, last[1] + 1) if ledger == last[0] else end.entries
        markers_there = markers.get(ledger, [])
        at = bisect_left(markers_there, low, key=_entry_of)
        while low < high:
            stop = min(high, low + ROWS_READ)
            until = bisect_left(markers_there, stop, at, key=_entry_of)
            plain = _plain(view, (ledger, low, stop), cutoff)
            inside = _inside(view, ledger, markers_there[at:until], cutoff)
            both = [table for table in (plain, inside) if table.num_rows]
            if len(both) == 2:
                order = [("entry", "ascending"), ("index", "ascending")]
                both = [pa.concat_tables(both).sort_by(order)]
            tables += both
            count += sum(table.num_rows for table in both)
            at, low = until, stop
            through = (ledger, stop - 1, INDEX_MAX)
            if count >= ids_max and through < last:
                return LoggedIds(_within(tables, first, through), through)
    return LoggedIds(_within(tables, first, last), last)


def looked_up(ids: pa.Table, end: Id) -> Search:
    """A search in ids found elsewhere: all of a partition up to a position, in order.

    After the position it reads the log itself.
    """

    def search(
        view: View, partition: int, first: Id, last: Id, cutoff: int, ids_max: int
    ) -> LoggedIds:
        if last > end:
            return logged(view, partition, first, last, cutoff, ids_max)
        ledger = ids.column("ledger")
        near = pc.and_(pc.greater_equal(ledger, first[0]), pc.less_equal(ledger, last[0]))
        rows = ids.filter(pc.and_(near, pc.greater(ids.column("deliver_at"), cutoff)))
        for (of, at, _), is_beyond in ((first, pc.less), (last, pc.greater)):
            there = pc.equal(rows.column("ledger"), of)
            rows = rows.filter(pc.invert(pc.and_(there, is_beyond(rows.column("entry"), at))))
        rows = _within([rows], first, last)
        if rows.num_rows > ids_max:
            stop = tuple(rows.column(name)[ids_max].as_py() for name in ("ledger", "entry"))
            through = (stop[0], stop[1], INDEX_MAX)
            if through < last:
                return LoggedIds(_through(rows, stop), through)
        return LoggedIds(rows, last)

    return search


def _through(rows: pa.Table, stop: tuple[int, int]) -> pa.Table:
    """The rows up to an entry, all of its messages included."""
    ledger, entry = rows.column("ledger"), rows.column("entry")
    at = pc.and_(pc.equal(ledger, stop[0]), pc.less_equal(entry, stop[1]))
    return rows.filter(pc.or_(pc.less(ledger, stop[0]), at)).combine_chunks()


def _entry_of(marker: buffers.Marker) -> int:
    return marker.entry


def _within(tables: list[pa.Table], first: Id, last: Id) -> pa.Table:
    """The tables as one, without messages beyond the ends, which a marker at an end may have."""
    ids = pa.concat_tables([IDS.empty_table(), *tables]).combine_chunks()
    for bound, is_beyond in ((first, pc.less), (last, pc.greater)):
        is_there = pc.and_(pc.equal(ids["ledger"], bound[0]), pc.equal(ids["entry"], bound[1]))
        beyond = pc.and_(is_there, is_beyond(ids["index"].cast(pa.int64()), bound[2]))
        ids = ids.filter(pc.invert(beyond))
    return ids


def _plain(view: View, request: Request, cutoff: int) -> pa.Table:
    """The ids of plain messages; a marker has no time."""
    ledger, entry, _ = request
    times = _times(view.rows([request], ["deliver_at"]))
    if times is None:
        return IDS.empty_table()
    places = pc.indices_nonzero(pc.greater(times, cutoff))
    entries = pc.add(places.cast(pa.int64()), entry)
    ledgers = pa.repeat(pa.scalar(ledger, pa.int64()), len(places))
    indexes = pa.repeat(pa.scalar(0, pa.int32()), len(places))
    return pa.Table.from_arrays([times.take(places), ledgers, entries, indexes], schema=IDS)


def _inside(view: View, ledger: int, markers: Sequence[buffers.Marker], cutoff: int) -> pa.Table:
    """The ids of messages of markers, by entry and index."""
    tables: list[pa.Table] = []
    start = 0
    while start < len(markers):
        stop, rows = start, 0
        while stop < len(markers) and rows < ROWS_READ:
            rows += markers[stop].count
            stop += 1
        ranges = [(marker.entry, part) for marker in markers[start:stop] for part in marker.ranges]
        requests = [(side, row, row + count) for _, (side, row, count, _) in ranges]
        times = _times(view.rows(requests, ["deliver_at"]))
        if times is not None:
            places = pc.indices_nonzero(pc.greater(times, cutoff))
            stops = list(accumulate(part[2] for _, part in ranges))
            firsts = [part[3] + part[2] - at for (_, part), at in zip(ranges, stops, strict=True)]
            entry = repeat_runs([entry for entry, _ in ranges], stops, pa.int64())
            index = pc.add(pa.arange(0, stops[-1]), repeat_runs(firsts, stops, pa.int64()))
            ledgers = pa.repeat(pa.scalar(ledger, pa.int64()), len(places))
            columns = [times.take(places), ledgers, entry.take(places)]
            columns.append(index.take(places).cast(pa.int32()))
            tables.append(pa.Table.from_arrays(columns, schema=IDS))
        start = stop
    return pa.concat_tables([IDS.empty_table(), *tables])


def _times(tables: list[pa.Table]) -> pa.Array | None:
    """deliver_at of rows as int64, NO_TIME for null; None when none has one."""
    if all(table.column(0).null_count == table.num_rows for table in tables):
        return None
    return one_array(pa.concat_tables(tables).column(0)).cast(pa.int64()).fill_null(NO_TIME)
