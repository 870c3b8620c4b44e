"""Compacting a topic by key: the newest message of each key, in files that outlive the log.

    1 scan      the compacted rows there are, and the log after their horizon, up to one LSN: the
                number of the last message of each key, keys only (`newest_keys`)
    2 build     the scan again, for the rows with these numbers, in order of their ids; a key whose
                newest value is null is gone
    3 publish   under ledger ids that frames reserved (role c), each as its rows come; read back
                and compared with what was put aside of them
    4 switch    one frame for all partitions, decided again under the write lock; the files of the
                compaction before lose their names

However long the topic is, memory holds some keys (`newest_keys`), a bit for each message, and the
rows of about a row group. What a crash leaves, by the step it comes in:

    1, 2, 3     nothing of what was put aside: scratch files have no name, or none but for the
                moment in which they are made, and are empty then
    3           a reserved id without a file; a temporary with a part of a file, whose lock is free;
                files that nothing names
    4           before the frame is durable the same; after it files that nothing needs

All of it is swept, and the next compaction begins anew.

The frame holds the horizon, the last entry that was looked at; what comes after it is read from the
log. So the next compaction costs what came since and the keys, never the history, and trimming the
log takes nothing from it. The caller holds the maintenance lock.

A row keeps what its message had, and its id: `marker_ledger`, `marker_entry` and `txn_index` hold
it, as in a clean file of a sidecar, where the first two are a plain message's own place. What
counts is what a reader sees, in its order: messages of a transaction at their marker, delayed ones
as they were stored, of aborted ones nothing. Messages without a key are not in the result, as in
Pulsar (without retain-null-key). Large messages are rows like others.

Keys belong to partitions; one may be in two, after partitions were added or by a producer's choice.
Each keeps its newest. Only a null stays as a row while another partition has a value of its key,
or a view of the whole topic would show that older value again.

Source: Pulsar's TwoPhaseCompactor; Law 4, R17, R18.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

import pyarrow as pa

from txlog.base.ids import TopicName
from txlog.base.startup import compute as pc
from txlog.engine.decide.topics import files as deciding
from txlog.engine.folds.catalog import numbers, topic_of
from txlog.engine.folds.topic import Compaction
from txlog.engine.model.ops import Mark, PartitionCompacted
from txlog.engine.model.schema import MESSAGE
from txlog.engine.plan.lookup import live_topic
from txlog.engine.plan.participants import check_available
from txlog.engine.plan.policies import is_compaction_due
from txlog.engine.plan.reading.dispatch import NO_MATTER, plan, visible_end
from txlog.engine.plan.reading.newest import Stretch, fetched, in_ledgers, in_log
from txlog.engine.plan.reading.ranges import start_of
from txlog.engine.plan.records import records_for
from txlog.engine.storage.columns import conform
from txlog.engine.storage.disk.protocol import Stream
from txlog.engine.storage.manifest import generations
from txlog.engine.storage.scratch import Scratch, ScratchSlot
from txlog.engine.storage.segment import (
    GROUP_ROWS,
    FileRef,
    SegmentStream,
    encode_part,
    piece_rows,
)
from txlog.engine.store.store import Store
from txlog.engine.upkeep.checkpoint.seal import compare_rows
from txlog.engine.upkeep.space.newest_keys import KEYED, Group, NewestKeys, Numbers
from txlog.engine.view.paths import ledger_dir, sealed_path
from txlog.engine.view.view import View
from txlog.errors import Corruption, PartitionUnavailable, TopicNotFound

# Of open files: plain messages and those of transactions come by turns from the row groups of two.
KEPT_DECODED_BYTES = 32 << 20


@dataclass(slots=True)
class TopicCompactReport:
    """What a compaction of a topic did, or would do.

    lsn:          all partitions as of this one
    partitions:   those that had anything new
    messages:     how many were looked at, compacted rows of before included
    keys_kept:    rows that stay; keys_deleted: by a null; without_key: messages that have none
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
        work = _Work(store, view, number, report)
        if not work.changed:
            return False
        ops = [work.of(partition, dry_run=dry_run) for partition in work.changed]
        if dry_run or store.write(lambda live, now: deciding.switch(live, ops)):
            return not dry_run
        for op in ops:
            for file in op.files:
                if file.ledger:
                    store.disk.unlink(file.path)
        return False
    finally:
        view.close()


def compact_due(store: Store) -> int:
    """Compact each topic past its threshold; returns how many got other files.

    One that cannot be compacted is noted, and its turn comes again; it does not keep the others.
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
    """Bytes of the files of compacted rows."""
    known = [view.topic(partition).compaction for partition in partitions]
    ledgers = [ledger for one in known if one is not None for ledger in one.ledgers]
    return sum(ref.bytes for ledger in ledgers for ref in view.files.of(ledger))


class _Work:
    """One compaction: what of which partition is newest, and the files made of it.

    changed: the partitions with entries after their horizon, by store-wide number
    """

    def __init__(self, store: Store, view: View, topic: int, report: TopicCompactReport) -> None:
        self._store, self._view, self._report = store, view, report
        found = live_topic(view, topic, "")
        every = list(numbers(found))
        for partition in every:
            check_available(view, found, partition)
        report.lsn = view.lsn
        report.size_before_bytes = compacted_bytes(view, every)
        self.changed = [one for one in every if self._has_more(one)]
        report.partitions = len(self.changed)
        of_all = every if self.changed else []
        self._newest = {partition: Numbers() for partition in of_all}
        self._shared: dict[int, Numbers] = {}  # of keys that several partitions have
        self._staying: dict[int, Numbers] = {}  # nulls: another partition has a value of the key
        with closing(NewestKeys(store.disk)) as keys:
            for partition in of_all:
                self._scan(partition, keys)
            for group in keys.groups():
                self._note(group)
            nulls = {one: self._nulls(one, known) for one, known in self._shared.items()}
            for group in keys.groups() if any(map(len, nulls.values())) else ():
                self._note_staying(group, nulls)
        unchanged = [one for one in every if one not in self.changed]
        report.size_after_bytes = compacted_bytes(view, unchanged)
        report.keys_kept = sum(
            ref.rows
            for one in unchanged
            if (known := view.topic(one).compaction) is not None
            for ledger in known.ledgers
            for ref in view.files.of(ledger)
        )

    def _behind(self, partition: int) -> Mark:
        """What comes after this was not compacted yet, as far as it still exists."""
        known, first = self._view.topic(partition).compaction, start_of(self._view, partition)
        if known is None or self._has_lost(known):
            return first
        return max((*known.horizon, 0), first)

    def _has_lost(self, known: Compaction) -> bool:
        """Whether a repair gave up rows of it: the log may have them still, so all is read."""
        return any(loss.ledger in known.ledgers for loss in self._view.catalog.losses)

    def _has_more(self, partition: int) -> bool:
        behind = self._behind(partition)
        return bool(plan(self._view, partition, behind, 1, bytes_max=NO_MATTER).messages)

    def _stretches(self, partition: int) -> Iterator[tuple[int, Stretch]]:
        """The scan of a partition, in order, each with the number of its first message."""
        view, behind, at = self._view, self._behind(partition), 0
        known = view.topic(partition).compaction
        for stretches in (
            in_ledgers(view, () if known is None else known.ledgers),
            in_log(view, partition, behind),
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
        """Take the numbers of some keys, all that there are of them."""
        for partition, table in group.items():
            self._newest[partition].add(table.column("number"))
        if len(group) < 2:
            return
        every = pa.concat_tables([table.select(["key"]) for table in group.values()])
        counted = pc.value_counts(every.column("key"))
        shared = counted.field("values").filter(pc.greater(counted.field("counts"), 1))
        for partition, table in group.items() if len(shared) else ():
            some = table.filter(pc.is_in(table.column("key"), shared))
            self._shared.setdefault(partition, Numbers()).add(some.column("number"))

    def _nulls(self, partition: int, some: Numbers) -> Numbers:
        """Those of some messages that have no value."""
        nulls = Numbers()
        for at, rows in self._rows(partition, some, ("value",)):
            nulls.add(at.filter(pc.is_null(rows.column("value"))))
        return nulls

    def _note_staying(self, group: Group, nulls: dict[int, Numbers]) -> None:
        """Find the nulls among some keys of which another partition has a value."""
        alive, waiting = list[pa.Array](), dict[int, pa.Table]()
        for partition, table in group.items():
            if partition not in nulls:
                continue
            some = table.filter(self._shared[partition].has(table.column("number")))
            is_null = nulls[partition].has(some.column("number"))
            alive += some.filter(pc.invert(is_null)).column("key").chunks
            waiting[partition] = some.filter(is_null)
        known = pa.chunked_array(alive, pa.binary()).combine_chunks()
        for partition, table in waiting.items():
            some = table.filter(pc.is_in(table.column("key"), known))
            self._staying.setdefault(partition, Numbers()).add(some.column("number"))

    def _rows(
        self, partition: int, some: Numbers, names: Sequence[str] = tuple(MESSAGE.names)
    ) -> Iterator[tuple[pa.Array, pa.Table]]:
        """Some messages in order: (their numbers, their rows with these columns of MESSAGE)."""
        for at, stretch in self._stretches(partition):
            here = some.within(at, at + stretch.rows)
            if not len(here):
                continue
            places, done = stretch.places(self._view).take(pc.subtract(here, at)), 0
            for rows in fetched(self._view, places, names):
                yield here.slice(done, rows.num_rows), rows
                done += rows.num_rows

    def of(self, partition: int, *, dry_run: bool) -> PartitionCompacted:
        """The files of a partition, published; a dry run makes and counts them only."""
        view = self._view
        known = view.topic(partition).compaction
        last = visible_end(view, partition)
        files = list[FileRef]()
        some = self._newest.pop(partition)
        left, pieces = len(some), self._pieces(partition, some)
        while (first := next(pieces, None)) is not None:
            files.append(self._publish(partition, first, pieces, left, dry_run=dry_run))
            left -= files[-1].rows
        self._report.files += len(files)
        self._report.size_after_bytes += sum(file.bytes for file in files)
        old = [] if known is None else known.ledgers
        return PartitionCompacted(partition, [*old], files, last[:2], view.lsn)

    def _staying_rows(self, partition: int, some: Numbers) -> Iterator[pa.Table]:
        """The rows of a partition that stay."""
        staying = self._staying.get(partition)
        for at, rows in self._rows(partition, some):
            is_kept = pc.is_valid(rows.column("value"))
            if staying is not None:
                is_kept = pc.or_(is_kept, staying.has(at))
            kept = rows
            # a few rows that are no copy would keep all row groups they are from
            if 2 * rows.nbytes < rows.get_total_buffer_size() or not pc.all(is_kept).as_py():
                kept = rows.filter(is_kept)
            self._report.keys_kept += kept.num_rows
            self._report.keys_deleted += rows.num_rows - kept.num_rows
            yield kept

    def _pieces(self, partition: int, some: Numbers) -> Iterator[pa.Table]:
        """The same, about a row group at a time, and no more than a file may have."""
        waiting, most = list[pa.Table](), self._store.settings.ledger_bytes_max
        rows = size = 0
        for kept in self._staying_rows(partition, some):
            waiting.append(kept)
            rows, size = rows + kept.num_rows, size + kept.nbytes
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
        self, partition: int, first: pa.Table, more: Iterator[pa.Table], left: int, *, dry_run: bool
    ) -> FileRef:
        """A file of the first and more pieces, as many as it has room for.

        left: how many rows there are at most, each of another key
        """
        store, records = self._store, records_for(topic_of(self._view.catalog, partition))
        made = SegmentStream(records)
        pieces = self._of_one_file(first, more)
        ledger = 0
        if not dry_run:
            ledger = store.write(lambda live, now: deciding.reserve(live, partition))
        keys = min(left, GROUP_ROWS)
        if not ledger:  # also where the topic was deleted, and then the switch is refused
            for _ in made.sealed(pieces, keys):
                pass
            return made.ref("", ledger, clean=True)
        generation = max([self._view.manifest.generation, *generations(store.disk)])
        path = sealed_path(ledger_dir(self._view.catalog, partition, "c"), ledger, generation)
        with closing(Scratch(store.disk)) as aside:
            kept = list[ScratchSlot]()
            stream = Stream(made.sealed(_put_aside(pieces, aside, kept), keys))
            with store.disk.publishing(path, stream):
                pass
            ref = made.ref(path, ledger, clean=True)
            compare_rows(store, ref, _put_there(aside, kept), records=records)
        return ref

    def _of_one_file(self, piece: pa.Table | None, more: Iterator[pa.Table]) -> Iterator[pa.Table]:
        at, left = 0, self._store.settings.ledger_bytes_max
        entry = MESSAGE.get_field_index("entry")
        while piece is not None:
            count, left = piece.num_rows, left - piece.nbytes
            yield piece.set_column(entry, "entry", pa.arange(at, at + count))
            at += count
            piece = next(more, None) if left > 0 else None


def _put_aside(
    pieces: Iterable[pa.Table], aside: Scratch, kept: list[ScratchSlot]
) -> Iterator[pa.Table]:
    """The same pieces, of each a copy as it was."""
    for piece in pieces:
        kept.append(aside.put(encode_part(piece)))
        yield piece
        _give_back()


def _put_there(aside: Scratch, kept: Iterable[ScratchSlot]) -> Iterator[pa.Table]:
    """The copies, one by one."""
    for one in kept:
        with pa.ipc.open_file(pa.py_buffer(aside.get(one))) as reader:
            yield conform(reader.read_all())
        _give_back()


def _give_back() -> None:
    """Let the system have what was freed: it is kept, in sizes of which others come next."""
    pool = pa.default_memory_pool()
    pool.release_unused()
    if pool.backend_name != "system":
        pa.system_memory_pool().release_unused()
