"""Compacting a topic by key: the newest message of each key, in files that outlive the log.

    1 scan      the existing compacted rows, and the log after their horizon, up to one LSN: the
                number of the last message of each key, keys only (`NewestKeys`)
    2 build     the scan again, for the rows with these numbers, in order of their ids; a key whose
                newest value is null is dropped
    3 publish   each file, while its rows are built, under a ledger id that a frame reserved (role
                c); it is read back and compared with a copy in a scratch file
    4 switch    one frame for all partitions, decided again under the write lock; nothing
                names the old compaction's files then

However long the topic is, memory has only some keys (`NewestKeys`), a bit for each message, and the
rows of about a row group. A crash leaves, by the step in which it happens:

    1, 2, 3     no scratch files: these have no name, or one only for the moment in which they are
                created, and are empty then
    3           a reserved id without a file; a temporary with a part of a file, whose lock is free;
                files that nothing names
    4           before the frame is durable the same; after it files that nothing needs

The sweep removes all of it, and the next compaction begins again.

The frame has the horizon, the last entry that the scan read; later messages are read from the log.
So the next compaction reads the new messages and the compacted rows, never the history, and
trimming the log does not affect it. The caller holds the maintenance lock.

A row keeps the columns of its message and its id. `marker_ledger`, `marker_entry` and `txn_index`
have the id, as in a clean file of a sidecar; for a plain message the first two are its own place.
Rows are in the order of a reader: messages of a transaction at their marker, delayed messages where
they are stored, and none of aborted transactions. Messages without a key are not in the result, as
in Pulsar (without retain-null-key). Large messages are ordinary rows.

A key may be in two partitions, after partitions were added or by a producer's choice. Each
partition keeps its newest message of the key. A null stays as a row while another partition has a
value of its key. Otherwise a view of the whole topic would show that older value again.

`NewestKeys` finds the newest message of each key, for any number of keys, in little memory. A
message is identified by its number in a scan; every scan gives the same numbers. It keeps each key
with the number of its last message in memory, up to HELD_BYTES. Beyond that it divides these and
all later keys by a checksum of the key into shares, in a scratch file. A share is processed like
the whole, and divided again if it is too large. So every key is in one group with all its messages,
and a group is small. The result for a group is a set of numbers: as a bitmap, at most a bit per
message.
Source: Pulsar's TwoPhaseCompactor; Law 4, R17, R18.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

import pyarrow as pa
from pyroaring import BitMap

from txlog.base.ids import TopicName
from txlog.base.startup import compute as pc
from txlog.base.startup.crc32c import crc32c
from txlog.engine.decide.topics import ledgers as deciding
from txlog.engine.folds.catalog import numbers, topic_of
from txlog.engine.folds.topic import Compaction
from txlog.engine.model.ops import Mark, PartitionCompacted
from txlog.engine.model.schema import MESSAGE
from txlog.engine.plan.lookup import live_topic
from txlog.engine.plan.participants import check_available
from txlog.engine.plan.policies import is_compaction_due
from txlog.engine.plan.reading.dispatch import NO_MATTER, plan, visible_end
from txlog.engine.plan.reading.newest import (
    NewestRows,
    ScanSegment,
    fetched,
    in_ledgers,
    in_log,
    last_of_each,
)
from txlog.engine.plan.reading.ranges import start_of
from txlog.engine.plan.records import records_for
from txlog.engine.storage.columns import conform
from txlog.engine.storage.disk.protocol import Disk, Stream, as_views
from txlog.engine.storage.manifest import generations
from txlog.engine.storage.segment import (
    GROUP_ROWS,
    FileRef,
    SegmentStream,
    encode_part,
    piece_rows,
)
from txlog.engine.store.store import Store
from txlog.engine.upkeep.checkpoint.seal import compare_rows
from txlog.engine.view import View, ledger_dir, sealed_path
from txlog.errors import Corruption, DiskFailed, PartitionUnavailable, TopicNotFound

if TYPE_CHECKING:
    from typing_extensions import Buffer

# --- temporary bytes ------------------------------------------------------------------------------


class ScratchSlot(NamedTuple):
    """The position of bytes in a scratch file, and their CRC."""

    offset: int
    length: int
    crc: int


class Scratch:
    """A file for temporary bytes that no other process sees; for one thread.

    It has no name, so it vanishes however the process ends, and it is never flushed. Bytes that are
    read back are checked all the same: nothing reaches pyarrow unchecked (spec/reliability R5).
    """

    __slots__ = ("_file", "bytes")

    def __init__(self, disk: Disk) -> None:
        """Raises StoreFull, DiskFailed, NoResources."""
        self._file = disk.scratch()
        self.bytes = 0

    def put(self, parts: Sequence[Buffer]) -> ScratchSlot:
        """Write the joined parts; returns their slot; raises StoreFull, DiskFailed."""
        views, crc = as_views(parts), 0
        for view in views:
            crc = crc32c(view, crc)
        slot = ScratchSlot(self.bytes, sum(view.nbytes for view in views), crc)
        self._file.pwrite(slot.offset, views)
        self.bytes += slot.length
        return slot

    def get(self, slot: ScratchSlot) -> bytes:
        """The bytes of an earlier `put`; raises DiskFailed."""
        data = self._file.pread(slot.offset, slot.length)
        if len(data) != slot.length or crc32c(data) != slot.crc:
            raise DiskFailed("a temporary file reads back differently", offset=slot.offset)
        return data

    def close(self) -> None:
        """Close the file, which removes it; may be repeated."""
        self._file.close()


# --- the newest message of each key ---------------------------------------------------------------


KEYED = pa.schema([("key", pa.binary()), ("number", pa.int64())])
HELD_BYTES = 4 << 20
SHARE_BITS = 6  # of the checksum, for each division
CHECKSUM_BITS = 32
# Bytes of rows that are divided together, because otherwise shares would be many small pieces.
DIVIDED_BYTES = 4 << 20
CHECKED_ROWS = 50_000  # rows whose keys are Python objects at the same time
FRUITLESS = 8  # how many tables are not searched for repeated keys after one that had few
NUMBER_BITS = 32  # of a number in one bitmap

Group = dict[int, pa.Table]  # by partition: KEYED, in order


class NewestKeys:
    """The last message of each key, for each partition; for one thread, and to be closed.

    held_bytes: the bytes in memory now
    """

    __slots__ = (
        "_disk", "_divisions", "_held", "_scratch", "_shares", "_to_look_again", "_waiting",
        "held_bytes",
    )  # fmt: skip

    def __init__(self, disk: Disk, divisions: int = 0) -> None:
        """divisions: how often the incoming keys were divided before."""
        self._disk = disk
        self._divisions = divisions
        self._held: dict[int, NewestRows] = {}
        self.held_bytes = 0
        self._scratch: Scratch | None = None
        self._shares: list[list[tuple[int, ScratchSlot]]] = [[] for _ in range(1 << SHARE_BITS)]
        self._waiting: list[tuple[int, pa.Table]] = []  # to be divided
        self._to_look_again = 0

    def add(self, partition: int, table: pa.Table) -> None:
        """Add the next messages of a partition: KEYED, in the order of the scan; null is no key.

        raises: StoreFull, DiskFailed, NoResources
        """
        if self._scratch is not None:
            self._put_aside(partition, table)
            return
        latest = self._held.get(partition)
        if latest is None:
            latest = self._held[partition] = NewestRows(KEYED)
        bytes_before = latest.bytes
        latest.add(table)
        self.held_bytes += latest.bytes - bytes_before
        if self.held_bytes > HELD_BYTES:
            self._let_go()

    def groups(self) -> Iterator[Group]:
        """The last message of each key, as groups with some keys each; callers may repeat it.

        raises: StoreFull, DiskFailed, NoResources
        """
        if self._scratch is None:
            yield {partition: latest.table() for partition, latest in self._held.items()}
            return
        self._divide_waiting()
        for share in self._shares:
            inner = NewestKeys(self._disk, self._divisions + 1)
            try:
                for partition, pieces in groupby(share, key=itemgetter(0)):
                    for table in self._read([piece for _, piece in pieces]):
                        inner.add(partition, table)
                yield from inner.groups()
            finally:
                inner.close()

    def close(self) -> None:
        """Free all memory and close the scratch file."""
        self._held.clear()
        self._waiting.clear()
        if self._scratch is not None:
            self._scratch.close()

    def _let_go(self) -> None:
        """Divide the held keys, unless removing repetitions frees enough."""
        tables = {partition: latest.table() for partition, latest in self._held.items()}
        self.held_bytes = sum(latest.bytes for latest in self._held.values())
        # equal checksums cannot be divided
        if 2 * self.held_bytes <= HELD_BYTES or self._shift < 0:
            return
        self._scratch = Scratch(self._disk)
        self._held.clear()
        self.held_bytes = 0
        for partition, table in tables.items():
            self._put_aside(partition, table)

    @property
    def _shift(self) -> int:
        """The lowest bit of the checksum that tells the share; below 0: no bits are left.

        The first division uses the highest bits, because the lowest decide the partition of a key.
        """
        return CHECKSUM_BITS - SHARE_BITS * (self._divisions + 1)

    def _put_aside(self, partition: int, table: pa.Table) -> None:
        """Add rows to those that wait to be divided, without repeated keys if these are many."""
        keyed = table.filter(pc.is_valid(table.column("key")))
        if self._to_look_again:
            self._to_look_again -= 1
        else:
            last = last_of_each(keyed)
            if 4 * last.num_rows > 3 * keyed.num_rows:
                self._to_look_again = FRUITLESS
            keyed = last
        self._waiting.append((partition, keyed))
        self.held_bytes += keyed.nbytes
        if self.held_bytes >= DIVIDED_BYTES:
            self._divide_waiting()

    def _divide_waiting(self) -> None:
        """Write the waiting rows to the scratch file, each row in its share."""
        waiting, self._waiting, self.held_bytes = self._waiting, [], 0
        for partition, tables in groupby(waiting, key=itemgetter(0)):
            for batch in (
                pa.concat_tables([table for _, table in tables]).combine_chunks().to_batches()
            ):
                self._divide(partition, batch)

    def _divide(self, partition: int, batch: pa.RecordBatch) -> None:
        assert self._scratch is not None
        share = pa.concat_arrays(
            [
                self._share(batch.column("key").slice(start, CHECKED_ROWS))
                for start in range(0, batch.num_rows, CHECKED_ROWS)
            ]
        )
        order = pc.sort_indices(share)  # rows of equal shares stay in order
        rows, runs, start = batch.take(order), pc.run_end_encode(share.take(order)), 0
        for number, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
            piece = self._scratch.put([rows.slice(start, end - start).serialize()])
            self._shares[number].append((partition, piece))
            start = end

    def _share(self, keys: pa.Array) -> pa.Array:
        """The share of each key."""
        sums = pa.array([*map(crc32, keys.to_pylist())], pa.int64())
        return pc.bit_wise_and(pc.shift_right(sums, self._shift), len(self._shares) - 1)

    def _read(self, pieces: list[ScratchSlot]) -> Iterator[pa.Table]:
        """The tables put aside, in order: small pieces together."""
        assert self._scratch is not None
        batches, size = list[pa.RecordBatch](), 0
        for piece in pieces:
            data = pa.py_buffer(self._scratch.get(piece))
            batches.append(pa.ipc.read_record_batch(data, KEYED))
            size += piece.length
            if size >= DIVIDED_BYTES:
                yield pa.Table.from_batches(batches)
                batches, size = [], 0
        if batches:
            yield pa.Table.from_batches(batches)


class NumberSet:
    """A set of numbers of messages."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: dict[int, BitMap] = {}  # by their upper bits

    def __len__(self) -> int:
        return sum(map(len, self._parts.values()))

    def add(self, numbers: pa.Array) -> None:
        """Add numbers of type int64."""
        for upper, lower in _halves(numbers):
            self._parts[upper] = self._parts.get(upper, BitMap()) | lower

    def within(self, start: int, stop: int) -> pa.Array:
        """The numbers from start to stop - 1, rising."""
        bits: dict[int, BitMap] = {}
        while start < stop:
            upper = start >> NUMBER_BITS
            base, end = upper << NUMBER_BITS, min(stop, upper + 1 << NUMBER_BITS)
            bits[upper] = BitMap(range(start - base, end - base))
            start = end
        return self._and(bits)

    def has(self, numbers: pa.Array) -> pa.Array:
        """For each number, whether the set has it."""
        return pc.is_in(numbers, self._and(dict(_halves(numbers))))

    def _and(self, others: dict[int, BitMap]) -> pa.Array:
        parts = [pa.array([], pa.int64())]
        for upper, other in sorted(others.items()):
            part = self._parts.get(upper)
            if part is not None and (both := part & other):
                lower = both.to_array()
                data = pa.Array.from_buffers(pa.uint32(), len(lower), [None, pa.py_buffer(lower)])
                parts.append(pc.add(data.cast(pa.int64()), upper << NUMBER_BITS))
        return pa.concat_arrays(parts)


def _halves(numbers: pa.Array) -> Iterator[tuple[int, BitMap]]:
    """(upper bits, a bitmap of the lower bits) for the numbers with the same upper bits."""
    uppers = pc.shift_right(numbers, NUMBER_BITS)
    for upper in pc.unique(uppers).to_pylist():
        of_upper = numbers.filter(pc.equal(uppers, upper))
        lower = pc.bit_wise_and(of_upper, (1 << NUMBER_BITS) - 1).cast(pa.uint32())
        if isinstance(lower, pa.ChunkedArray):
            lower = lower.combine_chunks()
        lowers = array("I")
        lowers.frombytes(memoryview(lower.buffers()[1])[4 * lower.offset :][: 4 * len(lower)])
        yield upper, BitMap(lowers)


# --- compaction -----------------------------------------------------------------------------------


# Decoded bytes of open files: plain messages and messages of transactions come in turns, from row
# groups of two files.
KEPT_DECODED_BYTES = 32 << 20


@dataclass(slots=True)
class TopicCompactReport:
    """The counts of a compaction of a topic, or of a dry run.

    lsn:          the LSN up to which all partitions are compacted
    partitions:   how many partitions have new messages
    messages:     how many the scan read, including old compacted rows
    keys_kept:    rows in the result; keys_deleted: by a null; without_key: messages without a key
    """

    lsn: int = 0
    partitions: int = 0
    messages: int = 0
    keys_kept: int = 0
    keys_deleted: int = 0
    without_key: int = 0
    files: int = 0
    size_before_bytes: int = 0
    size_after_bytes: int = 0


def compact_topic(
    store: Store, number: int, report: TopicCompactReport, *, dry_run: bool = False
) -> bool:
    """Compact all partitions of a topic as of one LSN; returns whether files changed.

    number:  of the topic
    dry_run: only fill in the report; nothing is written, and no lock is needed
    raises:  TopicNotFound, PartitionUnavailable, StoreFull, DiskFailed, Corruption
    """
    view = View.open(store.disk, store.identity.salt, store.clock.now().boot_id)
    try:
        view.files.kept_bytes_max = KEPT_DECODED_BYTES
        view.take(view.journal.read_durable())
        work = _TopicCompaction(store, view, number, report)
        if not work.changed:
            return False
        ops = [work.of(partition, dry_run=dry_run) for partition in work.changed]
        if dry_run or store.write(lambda live, now: deciding.switch_compacted(live, ops)):
            return not dry_run
        for op in ops:
            for file in op.files:
                if file.ledger:
                    store.disk.unlink(file.path)
        return False
    finally:
        view.close()


def compact_due(store: Store) -> int:
    """Compact each topic past its threshold; returns how many got new files.

    A topic that cannot be compacted is noted and retried later; it does not stop the others.
    raises: StoreFull, DiskFailed
    """

    def due(view: View) -> list[tuple[int, str]]:
        return [
            (topic.number, topic.name)
            for topic in view.catalog.topics.values()
            if is_compaction_due(view, store.settings, topic)
        ]

    count = 0
    for number, name in store.read(due):
        try:
            count += compact_topic(store, number, TopicCompactReport())
        except TopicNotFound:  # deleted meanwhile
            continue
        except (PartitionUnavailable, Corruption) as error:
            line = f"{TopicName.parse(name).short} is not compacted by key: {error}"
            if line not in store.reports:
                store.note(line)
    return count


def compacted_bytes(view: View, partitions: list[int]) -> int:
    """Bytes of the files of compacted rows of partitions."""
    compactions = [view.topic(partition).compaction for partition in partitions]
    ledgers = [
        ledger
        for compaction in compactions
        if compaction is not None
        for ledger in compaction.ledgers
    ]
    return sum(ref.bytes for ledger in ledgers for ref in view.files.of(ledger))


class _TopicCompaction:
    """A compaction: it finds the newest messages of each partition, and writes the files.

    changed: the partitions with messages after their horizon, by store-wide number
    """

    def __init__(self, store: Store, view: View, topic: int, report: TopicCompactReport) -> None:
        self._store, self._view, self._report = store, view, report
        topic_record = live_topic(view, topic, "")
        partitions = list(numbers(topic_record))
        for partition in partitions:
            check_available(view, topic_record, partition)
        report.lsn = view.lsn
        report.size_before_bytes = compacted_bytes(view, partitions)
        self.changed = [partition for partition in partitions if self._has_more(partition)]
        report.partitions = len(self.changed)
        of_all = partitions if self.changed else []
        self._newest = {partition: NumberSet() for partition in of_all}
        self._shared: dict[int, NumberSet] = {}  # numbers of keys that several partitions have
        self._staying: dict[int, NumberSet] = {}  # nulls: another partition has a value of the key
        with closing(NewestKeys(store.disk)) as keys:
            for partition in of_all:
                self._scan(partition, keys)
            for group in keys.groups():
                self._note(group)
            nulls = {
                partition_: self._nulls(partition_, numbers_)
                for partition_, numbers_ in self._shared.items()
            }
            for group in keys.groups() if any(map(len, nulls.values())) else ():
                self._note_staying(group, nulls)
        unchanged = [partition for partition in partitions if partition not in self.changed]
        report.size_after_bytes = compacted_bytes(view, unchanged)
        report.keys_kept = sum(
            ref.rows
            for partition in unchanged
            if (known := view.topic(partition).compaction) is not None
            for ledger in known.ledgers
            for ref in view.files.of(ledger)
        )

    def _behind(self, partition: int) -> Mark:
        """The position after which messages are not compacted yet."""
        compaction, first = self._view.topic(partition).compaction, start_of(self._view, partition)
        if compaction is None or self._has_lost(compaction):
            return first
        return max((*compaction.horizon, 0), first)

    def _has_lost(self, compaction: Compaction) -> bool:
        """Whether a repair gave up rows of it; then the whole log is read, which may have them."""
        return any(loss.ledger in compaction.ledgers for loss in self._view.catalog.losses)

    def _has_more(self, partition: int) -> bool:
        start = self._behind(partition)
        return bool(plan(self._view, partition, start, 1, bytes_max=NO_MATTER).messages)

    def _stretches(self, partition: int) -> Iterator[tuple[int, ScanSegment]]:
        """The segments of a scan, in order, each with the number of its first message."""
        view, start, at = self._view, self._behind(partition), 0
        compaction = view.topic(partition).compaction
        for stretches in (
            in_ledgers(view, () if compaction is None else compaction.ledgers),
            in_log(view, partition, start),
        ):
            for stretch in stretches:
                view.files.forget_but({ledger for ledger, _, _ in stretch.requests})
                _give_back()
                yield at, stretch
                at += stretch.rows

    def _scan(self, partition: int, keys: NewestKeys) -> None:
        for at, stretch in self._stretches(partition):
            key = stretch.keys(self._view)
            self._report.messages += stretch.rows
            self._report.without_key += key.null_count
            number = pa.arange(at, at + stretch.rows)
            keys.add(partition, pa.Table.from_arrays([key, number], schema=KEYED))

    def _note(self, group: Group) -> None:
        """Note the newest messages of some keys, and the keys that are in several partitions."""
        for partition, table in group.items():
            self._newest[partition].add(table.column("number"))
        if len(group) < 2:
            return
        keys = pa.concat_tables([table.select(["key"]) for table in group.values()])
        counted = pc.value_counts(keys.column("key"))
        shared = counted.field("values").filter(pc.greater(counted.field("counts"), 1))
        for partition, table in group.items() if len(shared) else ():
            of_shared = table.filter(pc.is_in(table.column("key"), shared))
            self._shared.setdefault(partition, NumberSet()).add(of_shared.column("number"))

    def _nulls(self, partition: int, numbers: NumberSet) -> NumberSet:
        """The given messages that have no value."""
        nulls = NumberSet()
        for at, rows in self._rows(partition, numbers, ("value",)):
            nulls.add(at.filter(pc.is_null(rows.column("value"))))
        return nulls

    def _note_staying(self, group: Group, nulls: dict[int, NumberSet]) -> None:
        """Note the nulls of a group that stay: their keys have a value in another partition."""
        alive, waiting = list[pa.Array](), dict[int, pa.Table]()
        for partition, table in group.items():
            if partition not in nulls:
                continue
            shadowing = table.filter(self._shared[partition].has(table.column("number")))
            is_null = nulls[partition].has(shadowing.column("number"))
            alive += shadowing.filter(pc.invert(is_null)).column("key").chunks
            waiting[partition] = shadowing.filter(is_null)
        alive_keys = pa.chunked_array(alive, pa.binary()).combine_chunks()
        for partition, table in waiting.items():
            shadowing = table.filter(pc.is_in(table.column("key"), alive_keys))
            self._staying.setdefault(partition, NumberSet()).add(shadowing.column("number"))

    def _rows(
        self, partition: int, numbers: NumberSet, names: Sequence[str] = tuple(MESSAGE.names)
    ) -> Iterator[tuple[pa.Array, pa.Table]]:
        """The given messages in order: (their numbers, their rows with these columns of
        MESSAGE).
        """
        for at, stretch in self._stretches(partition):
            here = numbers.within(at, at + stretch.rows)
            if not len(here):
                continue
            places, done = stretch.places(self._view).take(pc.subtract(here, at)), 0
            for rows in fetched(self._view, places, names):
                yield here.slice(done, rows.num_rows), rows
                done += rows.num_rows

    def of(self, partition: int, *, dry_run: bool) -> PartitionCompacted:
        """Publish the files of a partition; a dry run only encodes and counts them."""
        view = self._view
        compaction = view.topic(partition).compaction
        last = visible_end(view, partition)
        files = list[FileRef]()
        numbers = self._newest.pop(partition)
        rows_left, pieces = len(numbers), self._pieces(partition, numbers)
        while (first := next(pieces, None)) is not None:
            files.append(self._publish(partition, first, pieces, rows_left, dry_run=dry_run))
            rows_left -= files[-1].rows
        self._report.files += len(files)
        self._report.size_after_bytes += sum(file.bytes for file in files)
        old = [] if compaction is None else compaction.ledgers
        return PartitionCompacted(partition, [*old], files, last[:2], view.lsn)

    def _staying_rows(self, partition: int, numbers: NumberSet) -> Iterator[pa.Table]:
        """The rows of a partition that stay."""
        staying = self._staying.get(partition)
        for at, rows in self._rows(partition, numbers):
            is_kept = pc.is_valid(rows.column("value"))
            if staying is not None:
                is_kept = pc.or_(is_kept, staying.has(at))
            staying_rows = rows
            # a slice of few rows would keep all its row groups in memory, so copy them
            if 2 * rows.nbytes < rows.get_total_buffer_size() or not pc.all(is_kept).as_py():
                staying_rows = rows.filter(is_kept)
            self._report.keys_kept += staying_rows.num_rows
            self._report.keys_deleted += rows.num_rows - staying_rows.num_rows
            yield staying_rows

    def _pieces(self, partition: int, numbers: NumberSet) -> Iterator[pa.Table]:
        """The same rows, about a row group at a time, and at most as many as a file may have."""
        waiting, most = list[pa.Table](), self._store.settings.ledger_bytes_max
        rows = size = 0
        for rows_ in self._staying_rows(partition, numbers):
            waiting.append(rows_)
            rows, size = rows + rows_.num_rows, size + rows_.nbytes
            step = min(piece_rows(rows, 2 * size), max(1, most * rows // max(1, size)))
            if rows < step:
                continue
            whole = pa.concat_tables(waiting)
            while rows >= step:
                yield whole.slice(0, step)
                whole, rows = whole.slice(step), rows - step
            waiting, size = [whole], whole.nbytes
        if rows:
            yield pa.concat_tables(waiting)

    def _publish(
        self,
        partition: int,
        first: pa.Table,
        more: Iterator[pa.Table],
        rows_left: int,
        *,
        dry_run: bool,
    ) -> FileRef:
        """Write a file with the first piece, and with more pieces up to its size limit.

        rows_left: at most so many rows are left, each with its own key
        """
        store, records = self._store, records_for(topic_of(self._view.catalog, partition))
        segment = SegmentStream(records)
        pieces = self._of_one_file(first, more)
        ledger = 0
        if not dry_run:
            ledger = store.write(lambda live, now: deciding.reserve(live, partition))
        keys = min(rows_left, GROUP_ROWS)
        if not ledger:  # also if the topic was deleted; the switch is refused then
            for _ in segment.sealed(pieces, keys):
                pass
            return segment.ref("", ledger, clean=True)
        generation = max([self._view.manifest.generation, *generations(store.disk)])
        path = sealed_path(ledger_dir(self._view.catalog, partition, "c"), ledger, generation)
        with closing(Scratch(store.disk)) as aside:
            copies = list[ScratchSlot]()
            stream = Stream(segment.sealed(_put_aside(pieces, aside, copies), keys))
            with store.disk.publishing(path, stream):
                pass
            ref = segment.ref(path, ledger, clean=True)
            compare_rows(store, ref, _put_there(aside, copies), records=records)
        return ref

    def _of_one_file(self, piece: pa.Table | None, more: Iterator[pa.Table]) -> Iterator[pa.Table]:
        at, bytes_left = 0, self._store.settings.ledger_bytes_max
        entry = MESSAGE.get_field_index("entry")
        while piece is not None:
            count, bytes_left = piece.num_rows, bytes_left - piece.nbytes
            yield piece.set_column(entry, "entry", pa.arange(at, at + count))
            at += count
            piece = next(more, None) if bytes_left > 0 else None


def _put_aside(
    pieces: Iterable[pa.Table], aside: Scratch, copies: list[ScratchSlot]
) -> Iterator[pa.Table]:
    """The same pieces; puts a copy of each aside."""
    for piece in pieces:
        copies.append(aside.put(encode_part(piece)))
        yield piece
        _give_back()


def _put_there(aside: Scratch, copies: Iterable[ScratchSlot]) -> Iterator[pa.Table]:
    """Read the copies back, one by one."""
    for copy in copies:
        with pa.ipc.open_file(pa.py_buffer(aside.get(copy))) as reader:
            yield conform(reader.read_all())
        _give_back()


def _give_back() -> None:
    """Return freed memory to the system: the allocator keeps blocks, and later blocks have
    other sizes.
    """
    pool = pa.default_memory_pool()
    pool.release_unused()
    if pool.backend_name != "system":
        pa.system_memory_pool().release_unused()
