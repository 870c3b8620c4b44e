"""The changes that upkeep may make to a partition's delayed index, and their frames.

Files are made without the write lock, from a state that may be out of date by the time they exist.
So each decision checks again; if a file no longer fits, the answer is False and nothing happens.

    delete    all of it is due, acknowledged by every subscription, or trimmed from the log
    prune     more than half of a bucket is due: it is written again without that part
    seal      the mutable bucket has ids of enough ledgers, or enough ids
    merge     there are more buckets than the setting allows: two neighbours become one
    rebuild   a range that the index lacks and that a subscription still waits for

Nothing here does I/O; callers pass in the contents of footers. Source: spec/delayed 6.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from itertools import pairwise

from txlog.base.settings import Settings
from txlog.clock import Instant
from txlog.engine.decide.consuming.lease import SHARED_TYPES
from txlog.engine.decide.draft import Decision
from txlog.engine.folds.catalog import has_partition, topic_of
from txlog.engine.folds.delayed import Delayed, Ranges
from txlog.engine.model.idset import covers
from txlog.engine.model.ops import NO_TIME, Bucket, BucketDeleted, BucketSealed, BucketsMerged, Id
from txlog.engine.plan.clock_trust import due_ms
from txlog.engine.plan.policies import delay_policy
from txlog.engine.storage.bucket import Head
from txlog.engine.view import View


def cutoff_of(view: View, settings: Settings, partition: int, now: Instant) -> int:
    """The cutoff of a partition, ms since 1970 UTC: messages with a time up to this are due."""
    topic = topic_of(view.catalog, partition)
    return delay_policy(view, settings, topic).cutoff(due_ms(view, settings, now))


def is_tended(view: View, partition: int) -> bool:
    """True when the partition exists and is available."""
    catalog = view.catalog
    return has_partition(catalog, partition) and partition not in catalog.unavailable


def upkeep_due(view: View, settings: Settings, partition: int, now: Instant) -> bool:
    """True when upkeep has something to do.

    Reads no file, and costs almost nothing without buckets.
    """
    if not is_tended(view, partition):
        return False
    state = view.delayed(partition)
    if state.is_empty:
        return False
    if seal_through(state, settings) is not None:
        return True
    if not (state.buckets or state.unindexed):
        return False
    cutoff = cutoff_of(view, settings, partition, now)
    return bool(
        doomed(view, partition, cutoff)
        or to_prune(state, cutoff)
        or (0 < settings.max_num_buckets < len(state.buckets) and neighbours(state))
        or to_rebuild(view, partition)
    )


def is_overfull(view: View, settings: Settings, partition: int) -> bool:
    """True when the mutable bucket has twice its bound: then it is sealed before it grows."""
    return len(view.delayed(partition).mutable) >= 2 * settings.mutable_ids_max


def doomed(view: View, partition: int, cutoff: int) -> list[BucketDeleted]:
    """The ops that delete buckets, one for each cause: due, trimmed, acknowledged."""
    state = view.delayed(partition)
    if not state.buckets:
        return []
    ends = view.topic(partition).ledgers
    marks = [
        view.cursor(number, partition).mark_delete
        for number in topic_of(view.catalog, partition).subscriptions
    ]
    by_cause: dict[str, list[Bucket]] = {}
    for bucket in state.buckets:
        if bucket.max_at <= cutoff:
            by_cause.setdefault("due", []).append(bucket)
        elif ends and bucket.last[0] < ends[0].ledger:
            by_cause.setdefault("trimmed", []).append(bucket)
        elif marks and all(covers(mark, bucket.last) for mark in marks):
            by_cause.setdefault("acknowledged", []).append(bucket)
    return [_deleted(partition, by_cause[cause], cause, cutoff) for cause in by_cause]


def all_gone(view: View, partition: int) -> list[BucketDeleted]:
    """The op that drops all buckets of a deleted partition, as they have files."""
    buckets = view.delayed(partition).buckets
    return [_deleted(partition, buckets, "trimmed", NO_TIME)] if buckets else []


def _deleted(partition: int, buckets: Iterable[Bucket], cause: str, cutoff: int) -> BucketDeleted:
    pairs = [(bucket.gen, bucket.file.path) for bucket in buckets]
    return BucketDeleted(
        partition, [gen for gen, _ in pairs], cause, cutoff, [path for _, path in pairs]
    )


def to_prune(state: Delayed, cutoff: int) -> list[Bucket]:
    """Buckets with more than half of their ids due, but not all."""
    return [bucket for bucket in state.buckets if bucket.half_at <= cutoff < bucket.max_at]


def seal_through(state: Delayed, settings: Settings) -> Id | None:
    """The last id of the mutable bucket to seal; None: nothing.

    At mutable_ids_max ids it is the last of all. Else it is the last before the newest ledger, if
    ledger_step_per_bucket ledgers and min_index_count_per_bucket ids come before that ledger.
    """
    mutable = state.mutable
    count = len(mutable)
    if count >= settings.mutable_ids_max:
        return mutable.place(-1)
    step = settings.ledger_step_per_bucket
    if step <= 0 or not count:
        return None
    ledgers = mutable.ledger
    below = bisect_left(ledgers, ledgers[-1])  # ids in the ledgers before the newest
    if below < max(1, settings.min_index_count_per_bucket):
        return None
    at, ledgers_below = 0, 0
    while at < below and ledgers_below < step:
        at = bisect_right(ledgers, ledgers[at], at)
        ledgers_below += 1
    return mutable.place(below - 1) if ledgers_below >= step else None


def neighbours(state: Delayed) -> list[tuple[Bucket, Bucket]]:
    """Pairs of neighbouring buckets that may be merged: no unindexed range is between them."""
    return [
        (low, high)
        for low, high in pairwise(state.buckets)
        if not any(low.last < first < high.first for first, _ in state.unindexed)
    ]


def least_pair(
    pairs: list[tuple[Bucket, Bucket]], live: Mapping[int, int]
) -> tuple[Bucket, Bucket] | None:
    """The pair with the fewest live ids, the earlier of equals; live: ids by generation."""
    return min(pairs, key=lambda pair: live[pair[0].gen] + live[pair[1].gen], default=None)


def live_ids(head: Head, cutoff: int) -> int:
    """How many ids are in segments that are not due as a whole."""
    return sum(segment.count for segment in head.segments if segment.max_at > cutoff)


def to_rebuild(view: View, partition: int) -> Ranges:
    """The unindexed ranges in which a subscription that waits has messages left."""
    state = view.delayed(partition)
    if not state.unindexed:
        return []
    catalog = view.catalog
    marks = [
        view.cursor(number, partition).mark_delete
        for number in topic_of(catalog, partition).subscriptions
        if catalog.subscriptions[number].type in SHARED_TYPES
    ]
    return [
        (first, last)
        for first, last in state.unindexed
        if any(not covers(mark, last) for mark in marks)
    ]


# --- decisions -------------------------------------------------------------------------------


def delete(view: View, settings: Settings, now: Instant, partition: int) -> Decision[int]:
    """Decide to delete buckets that are not needed any more; answers how many."""
    if not is_tended(view, partition):
        return Decision([], None, True, 0)
    ops = doomed(view, partition, cutoff_of(view, settings, partition, now))
    return Decision([*ops], None, True, sum(len(op.gens) for op in ops))


def lose(view: View, partition: int, gens: Iterable[int]) -> Decision[int]:
    """Decide to drop buckets that cannot be read; answers how many were still there."""
    if not has_partition(view.catalog, partition):
        return Decision([], None, True, 0)
    lost_gens = set(gens)
    lost = [bucket for bucket in view.delayed(partition).buckets if bucket.gen in lost_gens]
    if not lost:
        return Decision([], None, True, 0)
    cutoff = max(bucket.cutoff_ms for bucket in lost)
    return Decision([_deleted(partition, lost, "lost", cutoff)], None, True, len(lost))


def seal(view: View, op: BucketSealed, first: Id, rows: int) -> Decision[bool]:
    """Decide that a bucket takes ids out of the mutable one; answers whether it does.

    first, rows: the lowest id of the mutable bucket, and how many there were up to op.last
    """
    if not _fits(view, op.partition, op.bucket):
        return Decision([], None, True, False)
    mutable = view.delayed(op.partition).mutable
    is_same = mutable and mutable.place(0) == first and mutable.rows_through(op.last) == rows
    return Decision([op] if is_same else [], None, True, bool(is_same))


def rebuild(view: View, op: BucketSealed) -> Decision[bool]:
    """Decide that a range has an index again; answers whether it has."""
    if not _fits(view, op.partition, op.bucket):
        return Decision([], None, True, False)
    ranges = view.delayed(op.partition).unindexed
    assert op.first <= op.last  # else upkeep would retry forever
    is_same = any(low <= op.first and op.last <= high for low, high in ranges)
    return Decision([op] if is_same else [], None, True, is_same)


def merge(view: View, op: BucketsMerged) -> Decision[bool]:
    """Decide that a bucket replaces its sources; answers whether it does."""
    if not _fits(view, op.partition, op.bucket):
        return Decision([], None, True, False)
    state = view.delayed(op.partition)
    gens = [bucket.gen for bucket in state.buckets]
    pairs = [[low.gen, high.gen] for low, high in neighbours(state)]
    is_same = op.sources in pairs if len(op.sources) == 2 else op.sources[0] in gens
    return Decision([op] if is_same else [], None, True, is_same)


def _fits(view: View, partition: int, bucket: Bucket | None) -> bool:
    if not is_tended(view, partition):
        return False
    return bucket is None or bucket.gen >= view.delayed(partition).next_gen
