"""Upkeep of delayed indexes: when it is due, running it, and the calls for commands and delivery.

Nothing runs by itself. A process that has sent or committed, or is closing, checks its partitions.
It does the upkeep unless another process holds the maintenance lock. A checkpoint checks all
partitions. None of it is necessary: without upkeep, delivery costs more time and memory, but never
a message. The steps are in `builder`. Source: spec/delayed 6.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from txlog.base.settings import Settings
from txlog.base.startup import compute as pc
from txlog.clock import Instant
from txlog.engine.decide.topics import buckets as flow
from txlog.engine.store.store import Store
from txlog.engine.upkeep.checkpoint import checkpoint
from txlog.engine.upkeep.delayed.builder import STEPS_MAX, Builder, IndexUpkeepReport, lose
from txlog.engine.upkeep.delayed.builder import is_lost as is_lost
from txlog.engine.view import View
from txlog.errors import AlreadyClosed, TxlogError

if TYPE_CHECKING:
    from txlog.engine.model.ops import Id
    from txlog.engine.upkeep.delayed.sources import Search

FAILED_MAX = 3  # a full disk is full for every partition
ID_MIN: Id = (0, 0, 0)
ID_MAX: Id = (1 << 62, 0, 0)


def upkeep_due(view: View, partition: int, settings: Settings, now: Instant) -> bool:
    """True when the index of a partition needs upkeep; reads no file."""
    return flow.upkeep_due(view, settings, partition, now)


def tend_due(store: Store, *, closing: bool = False) -> IndexUpkeepReport:
    """After a call: tend the partitions that gained delayed messages since last time.

    It gives way to the holder of the maintenance lock, unless a mutable bucket has twice its
    bound: then it waits, so that the process that adds to the bucket is the one that waits.
    closing: also check partitions that are due only because time has passed
    """
    if store.disk.read_only or store.dry_run:
        return IndexUpkeepReport()
    if not closing and not store.has_delays_to_look_at:  # the usual case
        return IndexUpkeepReport()
    now, settings = store.clock.now(), store.settings

    def look(view: View) -> tuple[list[int], bool]:
        due = [number for number in touched if upkeep_due(view, number, settings, now)]
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
        return [number for number in numbers if upkeep_due(view, number, store.settings, now)]

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
    """Record that a bucket cannot be read; False when it is no longer in the index.

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
