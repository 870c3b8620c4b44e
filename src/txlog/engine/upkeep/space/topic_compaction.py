"""Compacting a topic by key: the newest message of each key, in files that outlive the log.

    1 scan      the compacted rows there are, and the log after their horizon, up to one LSN: the
                last message of each key by its place, keys only (`plan/reading/newest`)
    2 build     the rows of those, in order of their ids; a key whose newest value is null is gone
    3 publish   under ledger ids that frames reserved (role c), read back and compared
    4 switch    one frame for all partitions, decided again under the write lock; the files of the
                compaction before lose their names

A crash before the frame leaves files that nothing names, one after it files that nothing needs:
both are swept. The frame holds the horizon, the last entry that was looked at; what comes after it
is read from the log. So the next compaction costs what came since and the keys, never the history,
and trimming the log takes nothing from it. The caller holds the maintenance lock.

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

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from txlog.engine.decide.topics import compaction
from txlog.engine.folds.catalog import numbers, topic_of
from txlog.engine.folds.topic import Compaction
from txlog.engine.model.ops import Mark, PartitionCompacted
from txlog.engine.model.schema import MESSAGE
from txlog.engine.plan.lookup import live_topic
from txlog.engine.plan.participants import check_available
from txlog.engine.plan.policies import is_compaction_due
from txlog.engine.plan.reading.dispatch import NO_MATTER, plan, visible_end
from txlog.engine.plan.reading.newest import PLACED, fetched, in_ledgers, in_log, newest
from txlog.engine.plan.reading.ranges import start_of
from txlog.engine.plan.records import records_for
from txlog.engine.storage.manifest import generations
from txlog.engine.storage.segment import FileRef, encode_sealed, make_ref
from txlog.engine.store.store import Store
from txlog.engine.upkeep.checkpoint.seal import compare_rows
from txlog.engine.view.paths import ledger_dir, sealed_path
from txlog.engine.view.view import View
from txlog.errors import Corruption, PartitionUnavailable, TopicNotFound
from txlog.ids import TopicName
from txlog.startup import compute as pc


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
        view.take(view.journal.read_durable())
        work = _Work(store, view, number, report)
        if not work.changed:
            return False
        ops = [work.of(partition, dry_run=dry_run) for partition in work.changed]
        if dry_run or store.write(lambda live, now: compaction.switch(live, ops)):
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
        self._newest = {partition: self._scan(partition) for partition in of_all}
        self._alive = self._alive_in_several() if len(of_all) > 1 else None
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

    def _scan(self, partition: int) -> pa.Table:
        view, behind = self._view, self._behind(partition)
        known = view.topic(partition).compaction

        def tables() -> Iterator[pa.Table]:
            yield from in_ledgers(view, () if known is None else known.ledgers)
            yield from in_log(view, partition, behind)

        table, rows, keyless = newest(tables())
        self._report.messages += rows
        self._report.without_key += keyless
        return table

    def _alive_in_several(self) -> pa.Array:
        """The keys that several partitions have, and one of them with a value."""
        every = pa.concat_tables([table.select(["key"]) for table in self._newest.values()])
        counted = pc.value_counts(every.column("key"))
        is_shared = pc.greater(counted.field("counts"), 1)
        shared = counted.field("values").filter(is_shared)
        alive: list[pa.Array] = []
        for table in self._newest.values() if len(shared) else ():
            some = table.filter(pc.is_in(table.column("key"), shared))
            for rows in fetched(self._view, some, ("key", "value")):
                alive += rows.filter(pc.is_valid(rows.column("value"))).column("key").chunks
        return pa.chunked_array(alive, pa.binary()).combine_chunks()

    def of(self, partition: int, *, dry_run: bool) -> PartitionCompacted:
        """The files of a partition, published; a dry run makes and counts them only."""
        view = self._view
        known = view.topic(partition).compaction
        last = visible_end(view, partition)
        files = [
            self._publish(partition, table, dry_run=dry_run) for table in self._tables(partition)
        ]
        self._report.files += len(files)
        self._report.size_after_bytes += sum(file.bytes for file in files)
        old = [] if known is None else known.ledgers
        return PartitionCompacted(partition, [*old], files, last[:2], view.lsn)

    def _tables(self, partition: int) -> Iterator[pa.Table]:
        """The rows of a partition, each table those of one file."""
        waiting: list[pa.Table] = []
        rows_waiting = size = 0
        for rows in fetched(self._view, self._newest.pop(partition, PLACED.empty_table())):
            is_kept = pc.is_valid(rows.column("value"))
            if self._alive is not None and len(self._alive):
                is_kept = pc.or_(is_kept, pc.is_in(rows.column("key"), self._alive))
            kept = rows.filter(is_kept)
            self._report.keys_kept += kept.num_rows
            self._report.keys_deleted += rows.num_rows - kept.num_rows
            waiting.append(kept)
            rows_waiting += kept.num_rows
            size += kept.nbytes
            if size >= self._store.settings.ledger_bytes_max and rows_waiting:
                yield _numbered(pa.concat_tables(waiting))
                waiting, rows_waiting, size = [], 0, 0
        if rows_waiting:
            yield _numbered(pa.concat_tables(waiting))

    def _publish(self, partition: int, table: pa.Table, *, dry_run: bool) -> FileRef:
        records = records_for(topic_of(self._view.catalog, partition))
        store, data = self._store, encode_sealed(table, has_keys=True, records=records)
        ledger: object = 0
        if not dry_run:
            ledger = store.write(lambda live, now: compaction.reserve(live, partition))
        assert isinstance(ledger, int)
        generation = max([self._view.manifest.generation, *generations(store.disk)])
        path = sealed_path(ledger_dir(self._view.catalog, partition, "c"), ledger, generation)
        ref = make_ref(path, ledger, data, table, form="sealed", clean=True, records=records)
        if ledger:  # 0: also where the topic was deleted, and then the switch is refused
            store.disk.publish(path, data)
            compare_rows(store, ref, [table], records=records)
        return ref


def _numbered(rows: pa.Table) -> pa.Table:
    at = MESSAGE.get_field_index("entry")
    return rows.set_column(at, "entry", pa.arange(0, rows.num_rows))
