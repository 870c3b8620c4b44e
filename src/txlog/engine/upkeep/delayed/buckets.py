"""Upkeep of delayed indexes: their buckets are built, merged, pruned and rebuilt, step by step.

Nothing runs by itself. A process that has sent or committed, or is closing, checks its partitions,
and does their upkeep unless another process holds the maintenance lock. A checkpoint checks all
partitions. None of it is necessary: without upkeep, delivery costs more time and memory, but never
a message. A step of `Builder`:

    1 read      the index at an LSN, and the ids of a new bucket: from the mutable bucket, from
                other buckets or from the log, as tables of IDS in key order, without due ids
    2 publish   its file, under a name never used before
    3 switch    one frame, checked again under the write lock; nothing names the replaced files then

A crash before the frame leaves a file that nothing names, a crash after it files that nothing
needs. The sweep removes both. The caller holds the maintenance lock, so there are never two
builders in one directory. `Builder` retries a failed step, then gives it up: the log has
everything, and delivery continues. Source: spec/delayed 6, 11; R17, R18.
"""

from __future__ import annotations

import re
import time
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
import pyarrow as pa

from txlog.base.settings import SECOND_MS
from txlog.base.startup import compute as pc
from txlog.engine.decide.draft import Decision
from txlog.engine.decide.topics import buckets as flow
from txlog.engine.folds import buffer as buffers
from txlog.engine.model import ops
from txlog.engine.model.ops import NO_TIME, Id
from txlog.engine.model.tail import repeat_runs
from txlog.engine.storage import bucket as storage_bucket
from txlog.engine.store.store import Store
from txlog.engine.upkeep.checkpoint import checkpoint
from txlog.engine.view import Request, View, delayed_dir
from txlog.errors import (
    AlreadyClosed,
    Corruption,
    FormatMismatch,
    MissingFile,
    PartitionUnavailable,
    StoreLocked,
    TxlogError,
)

if TYPE_CHECKING:
    from txlog.engine.folds.delayed import Delayed, Schedule
    from txlog.engine.model.ops import Bucket
    from txlog.engine.storage.bucket import BucketFile, Source

# --- the ids of a new bucket ----------------------------------------------------------------------

# A ledger with more entries gets no table of its markers; all their messages are stored one by one.
MARKED_ENTRIES_MAX = 1 << 25
# Rows of the log, or of a bucket, that are read together; at least one segment.
ROWS_READ = 1 << 16
INDEX_MAX = (1 << 31) - 1  # no message of a transaction has an index this high


def ids_of(schedule: Schedule, rows: int) -> pa.Table:
    """The first rows of a schedule as IDS in order of position, in their own memory."""
    columns = (schedule.at, schedule.ledger, schedule.entry, schedule.index)
    arrays = [
        pa.Array.from_buffers(field.type, rows, [None, pa.py_buffer(column[:rows])])
        for field, column in zip(storage_bucket.IDS, columns, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=storage_bucket.IDS)


def by_key(ids: pa.Table, cutoff: int) -> pa.Table:
    """Ids given in order of position, in key order, without those that are due."""
    ids = ids.filter(pc.greater(ids.column("deliver_at"), cutoff))
    order = pc.array_sort_indices(storage_bucket.one_array(ids.column("deliver_at")))  # stable
    return ids.take(order).combine_chunks()


def span_of(ids: pa.Table) -> tuple[int, int]:
    """The earliest and the latest deliver_at of ids; (0, 0) without ids."""
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
    """By entry of a ledger, how many messages its marker has, 0: no marker; None: no table."""
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
    """The ids of one bucket, or of two neighbours (the lower first), in key order; without due ids.

    It yields all keys up to the lower of the two last loaded keys. For equal times, ids of the
    lower bucket come first.
    """
    sides = [_live(file, cutoff) for file in files]
    if len(sides) == 1:
        yield from sides[0]
        return
    low, high = sides
    a, b = next(low, None), next(high, None)
    while a is not None and b is not None:
        ends_a, ends_b = storage_bucket.times_of(a), storage_bucket.times_of(b)
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
        yield table.slice(bisect_right(storage_bucket.times_of(table), cutoff))
        start = stop


def _united(low: pa.Table, high: pa.Table) -> pa.Table:
    if not high.num_rows:
        return low
    if not low.num_rows:
        return high
    both = pa.concat_tables([low, high])
    return both.take(
        pc.array_sort_indices(storage_bucket.one_array(both.column("deliver_at")))
    ).combine_chunks()


# --- the log ---------------------------------------------------------------------------------


class LoggedIds(NamedTuple):
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
    ids = pa.concat_tables([storage_bucket.IDS.empty_table(), *tables]).combine_chunks()
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
        return storage_bucket.IDS.empty_table()
    places = pc.indices_nonzero(pc.greater(times, cutoff))
    entries = pc.add(places.cast(pa.int64()), entry)
    ledgers = pa.repeat(pa.scalar(ledger, pa.int64()), len(places))
    indexes = pa.repeat(pa.scalar(0, pa.int32()), len(places))
    return pa.Table.from_arrays(
        [times.take(places), ledgers, entries, indexes], schema=storage_bucket.IDS
    )


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
            tables.append(pa.Table.from_arrays(columns, schema=storage_bucket.IDS))
        start = stop
    return pa.concat_tables([storage_bucket.IDS.empty_table(), *tables])


def _times(tables: list[pa.Table]) -> pa.Array | None:
    """deliver_at of rows as int64, NO_TIME for null; None when none has one."""
    if all(table.column(0).null_count == table.num_rows for table in tables):
        return None
    return (
        storage_bucket.one_array(pa.concat_tables(tables).column(0))
        .cast(pa.int64())
        .fill_null(NO_TIME)
    )


# --- one step -------------------------------------------------------------------------------------

TRIES = 3
# A merge of up to this many ids keeps them in memory, 28 bytes each; a larger one reads its sources
# three times.
KEPT_IDS = 1 << 20
STEPS_MAX = 10_000  # of one kind in one pass; each step removes something, so it is not reached
T = TypeVar("T")
_GENERATION = re.compile(r"bucket-\d+-\d+-(\d+)\.parquet")


class IndexUpkeepReport(msgspec.Struct, gc=False):
    """How many steps of each kind were done; failed: given up; lost: unreadable buckets dropped."""

    deleted: int = 0
    pruned: int = 0
    sealed: int = 0
    merged: int = 0
    rebuilt: int = 0
    lost: int = 0
    failed: int = 0

    @property
    def steps(self) -> int:
        """Roughly how many frames were written."""
        return self.deleted + self.pruned + self.sealed + self.merged + self.rebuilt + self.lost


def is_lost(error: TxlogError) -> bool:
    """True when an error of reading a bucket means that its file will never be read."""
    return isinstance(error, Corruption | MissingFile | FormatMismatch)


def lose(store: Store, partition: int, gen: int, error: TxlogError) -> bool:
    """Drop an unreadable bucket from the index; False when it is not in the index any more."""
    dropped = store.write(lambda view, now: flow.lose(view, partition, [gen]))
    if dropped:
        store.bucket_ops.note("lost", 0.0)
        store.note(f"bucket {gen} of a delayed index is lost and will be rebuilt: {error}")
    return bool(dropped)


class Builder:
    """Steps of upkeep of one partition; each returns whether it changed something."""

    __slots__ = ("_partition", "_report", "_search", "_store")

    def __init__(
        self, store: Store, partition: int, report: IndexUpkeepReport, search: Search | None = None
    ) -> None:
        self._search = search or logged
        self._store = store
        self._partition = partition
        self._report = report

    def tend(self) -> None:
        """Run all due steps in this order, because a dropped bucket need not be merged."""
        report = self._report
        report.deleted += self._attempt("delete", self.delete)
        report.pruned += self.repeat("prune", self.prune)
        report.sealed += self.repeat("seal", self.seal)
        most = self._store.settings.max_num_buckets
        if most > 0:
            report.merged += self.repeat("merge", lambda: self.merge(most))
        report.rebuilt += self.repeat("rebuild", self.rebuild_wanted)

    def repeat(self, kind: str, step: Callable[[], bool]) -> int:
        """Repeat a step until it has nothing to do, or fails; returns how often it succeeded."""
        for done in range(STEPS_MAX):
            if not self._attempt(kind, step):
                return done
        return STEPS_MAX

    def _attempt(self, kind: str, step: Callable[[], bool]) -> bool:
        """Run a step, at most TRIES times, and return as it does; count and note a failure."""
        store = self._store
        tries = 0
        while True:
            began = time.monotonic()
            try:
                done = step()
            except AlreadyClosed:
                raise
            except PartitionUnavailable:  # it was taken away or deleted meanwhile
                return False
            except TxlogError as error:
                if self._is_source_lost(error):
                    continue  # each retry has one bucket less
                tries += 1
                if tries < TRIES and not isinstance(error, StoreLocked):
                    continue
                self._report.failed += 1
                store.bucket_ops.fail(kind, store.clock.now().wall_ms)
                store.note(f"a delayed index was left as it was, {kind} failed: {error}")
                return False
            if done:
                store.bucket_ops.note(kind, time.monotonic() - began)
            return done

    def _is_source_lost(self, error: TxlogError) -> bool:
        """Drop the bucket whose path an error has; False when it has the path of no bucket."""
        if not is_lost(error):
            return False
        path = error.fields.get("path")
        try:
            gens = [bucket.gen for bucket in self.buckets() if bucket.file.path == path]
            if gens:
                self._report.lost += lose(self._store, self._partition, gens[0], error)
        except TxlogError:
            return False  # count it as an ordinary failure
        return bool(gens)

    def look(self, question: Callable[[View, Delayed], T]) -> T:
        """The answer of a function of the index; raises PartitionUnavailable, also if deleted."""
        partition = self._partition

        def asked(view: View) -> T:
            if not flow.is_tended(view, partition):
                raise PartitionUnavailable("the partition is away", partition=partition)
            return question(view, view.delayed(partition))

        return self._store.read(asked)

    def buckets(self) -> list[Bucket]:
        """The buckets, in order of position."""
        return self.look(lambda view, state: list(state.buckets))

    def cutoff(self) -> int:
        """The cutoff at this moment: ids with a time up to it are due."""
        store, partition = self._store, self._partition
        now = store.clock.now()
        return self.look(lambda view, state: flow.cutoff_of(view, store.settings, partition, now))

    # --- steps -------------------------------------------------------------------------------

    def delete(self) -> bool:
        """Drop buckets that are due as a whole, trimmed, or acknowledged by all subscriptions."""
        store, partition = self._store, self._partition
        cutoff = self.cutoff()
        if not self.look(lambda view, state: flow.doomed(view, partition, cutoff)):
            return False
        return bool(
            store.write(lambda view, now: flow.delete(view, store.settings, now, partition))
        )

    def prune(self) -> bool:
        """Rewrite a bucket without its due ids."""
        cutoff = self.cutoff()
        prunable = self.look(lambda view, state: flow.to_prune(state, cutoff))
        return bool(prunable) and self._merge(prunable[:1], cutoff)

    def merge(self, most: int) -> bool:
        """Merge two neighbours into one bucket, if there are more than this many."""
        cutoff = self.cutoff()
        pairs = self.look(
            lambda view, state: flow.neighbours(state) if len(state.buckets) > most else []
        )
        live: dict[int, int] = {}
        for bucket in {bucket.gen: bucket for pair in pairs for bucket in pair}.values():
            with ExitStack() as stack:
                live[bucket.gen] = flow.live_ids(self._open(stack, bucket).head, cutoff)
        pair = flow.least_pair(pairs, live)
        return pair is not None and self._merge(pair, cutoff)

    def seal(self) -> bool:
        """Move ids from the mutable bucket into a new one."""
        partition, settings = self._partition, self._store.settings

        def full(view: View, state: Delayed) -> tuple[pa.Table, Id, Id] | None:
            through = flow.seal_through(state, settings)
            if through is None:
                return None
            rows = state.mutable.rows_through(through)
            return (
                ids_of(state.mutable, rows),
                state.mutable.place(0),
                through,
            )

        sealed = self.look(full)
        if sealed is None:
            return False
        ids, first, through = sealed
        cutoff = self.cutoff()
        bucket = self._publish_table(by_key(ids, cutoff), first, through, cutoff)
        op = ops.BucketSealed(partition, "seal", first, through, cutoff, bucket)
        rows = ids.num_rows
        return self._switch(bucket, lambda view: flow.seal(view, op, first, rows))

    def rebuild_wanted(self) -> bool:
        """Rebuild a part of the index that a subscription waits for."""
        partition = self._partition
        ranges = self.look(lambda view, state: flow.to_rebuild(view, partition))
        return bool(ranges) and self.rebuild(*ranges[0])

    def rebuild(self, first: Id, last: Id) -> bool:
        """Rebuild a part of the first unindexed range that overlaps the range `first` to `last`."""
        store, partition = self._store, self._partition
        view = View.open(store.disk, store.identity.salt, store.clock.now().boot_id)
        try:
            view.take(view.journal.read_durable())
            if not flow.is_tended(view, partition):
                return False
            ranges = view.delayed(partition).unindexed
            unindexed = next((r for r in ranges if not (r[1] < first or last < r[0])), None)
            if unindexed is None:
                return False
            cutoff = self.cutoff()
            most = store.settings.mutable_ids_max
            rows = self._search(view, partition, *unindexed, cutoff, most)
        finally:
            view.close()
        low, through = unindexed[0], rows.through
        bucket = self._publish_table(by_key(rows.ids, cutoff), low, through, cutoff)
        op = ops.BucketSealed(partition, "rebuild", low, through, cutoff, bucket)
        return self._switch(bucket, lambda view: flow.rebuild(view, op))

    def indexed(self, buckets: Sequence[Bucket]) -> pa.Table:
        """The ids of buckets; a bucket that cannot be read has none."""
        out = [storage_bucket.IDS.empty_table()]
        for bucket in buckets:
            with ExitStack() as stack:
                try:
                    file = self._open(stack, bucket)
                    out.append(file.table(0, len(file.segments)))
                except TxlogError as error:
                    if not is_lost(error):
                        raise
        return pa.concat_tables(out)

    # --- parts -------------------------------------------------------------------------------

    def _merge(self, sources: Sequence[Bucket], cutoff: int) -> bool:
        """Replace a bucket, or two neighbours, with one bucket without due ids."""
        first, last = sources[0].first, sources[-1].last
        span = (min(bucket.min_at for bucket in sources), max(bucket.max_at for bucket in sources))
        with ExitStack() as stack:
            files = [self._open(stack, bucket) for bucket in sources]
            source: Source = lambda: merged(files, cutoff)  # noqa: E731
            if sum(bucket.count for bucket in sources) <= KEPT_IDS:
                tables = list(source())
                source = lambda: tables  # noqa: E731
            bucket = self._publish(source, span, first, last, cutoff)
        op = ops.BucketsMerged(
            self._partition,
            [bucket.gen for bucket in sources],
            cutoff,
            bucket,
            [bucket.file.path for bucket in sources],
        )
        return self._switch(bucket, lambda view: flow.merge(view, op))

    def _open(self, stack: ExitStack, bucket: Bucket) -> BucketFile:
        file = self._store.disk.open(bucket.file.path)
        stack.callback(file.close)
        return storage_bucket.BucketFile(file, bucket.file)

    def _publish_table(self, ids: pa.Table, first: Id, last: Id, cutoff: int) -> Bucket | None:
        return self._publish(lambda: [ids], span_of(ids), first, last, cutoff)

    def _publish(
        self, source: Source, span: tuple[int, int], first: Id, last: Id, cutoff: int
    ) -> Bucket | None:
        """Publish a bucket; None when it would be empty."""
        store, partition = self._store, self._partition
        settings = store.settings
        directory, gen = self.look(
            lambda view, state: (delayed_dir(view.catalog, partition), state.next_gen)
        )
        used = map(_GENERATION.fullmatch, store.disk.listdir(directory))
        gen = max([gen, *(int(name[1]) + 1 for name in used if name)])  # Law 6: also of orphans
        cutting = storage_bucket.SegmentLimits(
            settings.time_step_per_bucket_snapshot_seconds * SECOND_MS,
            settings.max_indexes_per_snapshot_segment,
            settings.segments_max,
        )
        path = f"{directory}/{storage_bucket.bucket_name(first[0], last[0], gen)}"
        encoded = storage_bucket.encode_bucket(
            path,
            storage_bucket.BucketName(partition, gen, first, last, cutoff),
            source,
            span,
            cutting,
            MarkerTables(store, partition),
        )
        if encoded is None:
            return None
        store.disk.publish(path, encoded.buffers)
        return ops.Bucket(
            gen,
            encoded.file,
            first,
            last,
            encoded.head.count,
            encoded.min_at,
            encoded.max_at,
            cutoff,
            encoded.half_at,
        )

    def _switch(self, bucket: Bucket | None, decide: Callable[[View], Decision[Any]]) -> bool:
        """Write the frame that names a new bucket; if it is refused, remove the file."""
        if self._store.write(lambda view, now: decide(view)):
            return True
        if bucket is not None:
            self._store.disk.unlink(bucket.file.path)
        return False


# --- all steps ------------------------------------------------------------------------------------

FAILED_MAX = 3  # a full disk is full for every partition
ID_MIN: Id = (0, 0, 0)
ID_MAX: Id = (1 << 62, 0, 0)


def tend_due(store: Store, *, closing: bool = False) -> IndexUpkeepReport:
    """After a call: run upkeep for partitions that gained delayed messages since last time.

    While another process holds the maintenance lock it does nothing, unless a mutable bucket has
    twice its bound: then it waits, so that the process that adds to the bucket slows down.
    closing: also check partitions that are due only because time has passed
    """
    if store.disk.read_only or store.dry_run:
        return IndexUpkeepReport()
    if not closing and not store.has_delays_to_look_at:  # the usual case
        return IndexUpkeepReport()
    now, settings = store.clock.now(), store.settings

    def look(view: View) -> tuple[list[int], bool]:
        due = [number for number in touched if flow.upkeep_due(view, settings, number, now)]
        is_overfull = any(flow.is_overfull(view, settings, number) for number in due)
        view.delays_seen()
        return due, is_overfull

    try:
        touched = store.read(lambda view: view.delays_to_look_at(everything=closing), fresh=False)
        if not touched:
            return IndexUpkeepReport()
        if store.bucket_ops.is_resting(now.wall_ms):
            return IndexUpkeepReport()
        due, is_overfull = store.read(look, fresh=False)
        return tend(store, due, wait=is_overfull) if due else IndexUpkeepReport()
    except AlreadyClosed:
        return IndexUpkeepReport()
    except TxlogError as error:  # the caller's own call succeeded, so it must not fail
        store.bucket_ops.fail("tend", now.wall_ms)
        store.note(f"upkeep of delayed indexes failed: {error}")
        return IndexUpkeepReport()


def tend(
    store: Store, partitions: Iterable[int] | None, *, wait: bool = False
) -> IndexUpkeepReport:
    """Run the upkeep that the indexes of partitions (None: all) need.

    Failures are reported, not raised.

    wait: for the maintenance lock; otherwise nothing happens while another process has it
    raises: StoreLocked
    """
    with checkpoint.maintenance(store, wait=wait) as is_held:
        return tend_held(store, partitions) if is_held else IndexUpkeepReport()


def tend_held(store: Store, partitions: Iterable[int] | None = None) -> IndexUpkeepReport:
    """Like tend, for a caller that holds the maintenance lock."""
    report = IndexUpkeepReport()
    now = store.clock.now()

    def look(view: View) -> list[int]:
        numbers = delayed_partitions(view) if partitions is None else partitions
        return [number for number in numbers if flow.upkeep_due(view, store.settings, number, now)]

    for partition in store.read(look):
        if report.failed < FAILED_MAX:
            Builder(store, partition, report).tend()
    return report


def delayed_partitions(view: View) -> list[int]:
    """The partitions that have, or had, delayed messages."""
    return sorted(key[1] for key in view.known() if key[0] == "delayed")


# --- by command, and from delivery -----------------------------------------------------------


def merge_now(store: Store, partition: int, to: int = 1) -> IndexUpkeepReport:
    """Delete obsolete buckets, then merge until at most this many are left.

    raises: StoreLocked, ReadOnlyStore
    """
    store.need_writable()
    report = IndexUpkeepReport()
    with checkpoint.maintenance(store, wait=True):
        builder = Builder(store, partition, report)
        report.deleted += builder.repeat("delete", builder.delete)
        report.merged += builder.repeat("merge", lambda: builder.merge(max(1, to)))
    return report


def rebuild_if_free(store: Store, partition: int, first: Id, last: Id) -> bool:
    """Rebuild the missing index of a range that a caller is about to read.

    returns: False when another process has the maintenance lock, or it failed; the caller then
             reads the rows themselves
    """
    if store.disk.read_only or store.dry_run:
        return False
    if store.bucket_ops.is_resting(store.clock.now().wall_ms):
        return False
    with checkpoint.maintenance(store, wait=False) as is_held:
        if not is_held:
            return False
        report = IndexUpkeepReport()
        builder = Builder(store, partition, report)
        builder.repeat("rebuild", lambda: builder.rebuild(first, last))
        return not report.failed


def drop_lost(store: Store, partition: int, gen: int, error: TxlogError) -> bool:
    """Drop an unreadable bucket from the index; False: it is not there, or the store is read-only.

    From then on its range has no index, and readers read its rows until it is rebuilt. Only for
    errors that is_lost accepts.
    """
    if store.disk.read_only or store.dry_run:
        return False
    return lose(store, partition, gen, error)


def _wanted(ids: pa.Table, cutoff: int, oldest: int) -> pa.Table:
    """Ids of a bucket that are not due, in ledgers that were not trimmed."""
    is_later = pc.greater(ids.column("deliver_at"), cutoff)
    return ids.filter(pc.and_(is_later, pc.greater_equal(ids.column("ledger"), oldest)))


class RebuildReport(msgspec.Struct, gc=False):
    """The steps and findings of a rebuild by command, for ids that are not due.

    missing: in the log, not in the index; extra: the reverse; a wrong time counts as both
    """

    ids: int = 0
    missing: int = 0
    extra: int = 0
    buckets_dropped: int = 0
    buckets_made: int = 0


def rebuild_now(
    store: Store,
    partition: int,
    first: Id | None = None,
    last: Id | None = None,
    search: Search | None = None,
) -> RebuildReport:
    """Rebuild the index of a range from the log, and report what differed.

    first, last: None: from the beginning, to the end. Buckets are replaced whole. The mutable
                 bucket is not touched: it comes from the frames that make up the log
    search:      finds the delayed ids of a range; None: the log
    raises: StoreLocked, ReadOnlyStore, and the errors of reading a damaged log
    """
    store.need_writable()
    low, high = first or ID_MIN, last or ID_MAX
    report = RebuildReport()
    with checkpoint.maintenance(store, wait=True):
        builder = Builder(store, partition, IndexUpkeepReport(), search)
        old = [
            bucket for bucket in builder.buckets() if not (bucket.last < low or high < bucket.first)
        ]
        ids_before = builder.indexed(old)
        gens = [bucket.gen for bucket in old]
        answer = store.write(lambda view, now: flow.lose(view, partition, gens))
        report.buckets_dropped = answer
        low = min([low, *(bucket.first for bucket in old)])
        high = max([high, *(bucket.last for bucket in old)])
        old_gens = {bucket.gen for bucket in builder.buckets()}
        for _ in range(STEPS_MAX):
            if not builder.rebuild(low, high):
                break
        new_buckets = [bucket for bucket in builder.buckets() if bucket.gen not in old_gens]
        report.buckets_made = len(new_buckets)
        ids_after, cutoff = builder.indexed(new_buckets), builder.cutoff()
        oldest = builder.look(lambda view, state: view.topic(partition).ledgers[0].ledger)
    ids_before, ids_after = _wanted(ids_before, cutoff, oldest), _wanted(ids_after, cutoff, oldest)
    report.ids = ids_after.num_rows
    names = ids_before.column_names
    report.extra = ids_before.join(ids_after, names, join_type="left anti").num_rows
    report.missing = ids_after.join(ids_before, names, join_type="left anti").num_rows
    return report
