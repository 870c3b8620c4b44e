"""Merging the buckets of the index of delayed messages, and rebuilding the index from the log.

Each call runs the engine's upkeep, or with dry_run reports what that would do. The keys of the
answers are the fields that `txlog delay merge` and `txlog delay rebuild` print.
Source: spec/delayed 6, 9.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import pyarrow as pa

from txlog.base.ids import MessageId
from txlog.base.startup import compute as pc
from txlog.engine.door.catalog import topic_of
from txlog.engine.door.consuming import messages_in, through
from txlog.engine.door.delayed import (
    TIMES,
    Ranges,
    Search,
    cutoff_of,
    doomed,
    later_in,
    logged,
    merge_now,
    rebuild_now,
    scan,
)
from txlog.engine.door.facts import Bucket, Id, before
from txlog.engine.door.store import Store, View
from txlog.engine.door.transactions import check_available
from txlog.errors import IntegrityError

if TYPE_CHECKING:
    from txlog.base.rows.delayed import BucketsMerged, IndexRebuilt


INDEX_MAX = (1 << 31) - 1
BEFORE_ALL: Id = (0, 0, 0)
BEHIND_ALL: Id = (1 << 62, 0, 0)


def merge(
    store: Store, topic: str, numbers: Sequence[int], to: int, *, dry_run: bool
) -> BucketsMerged:
    """Merge the buckets of each partition until it has at most `to`.

    Buckets that are no longer needed are dropped first. Buckets with an unindexed range between
    them cannot be merged.
    returns: messages: how many ids are in the buckets afterwards
    """
    before_count, after_count, messages = 0, 0, 0
    for number in numbers:
        buckets, count = store.read(lambda view, number=number: _merged(view, store, number, to))  # type: ignore[misc]
        before_count += len(buckets)
        if not dry_run:
            merge_now(store, number, to)
            now = store.read(lambda view, number=number: [*view.delayed(number).buckets])  # type: ignore[misc]
            count, messages = len(now), messages + sum(bucket.count for bucket in now)
        else:
            messages += sum(bucket.count for bucket in buckets)
        after_count += count
    return {
        "topic": topic,
        "buckets_before": before_count,
        "buckets_after": after_count,
        "messages": messages,
    }


def _merged(view: View, store: Store, number: int, to: int) -> tuple[list[Bucket], int]:
    """The buckets of a partition, and how many a merge would leave."""
    check_available(view, topic_of(view.catalog, number), number)
    state = view.delayed(number)
    cutoff = cutoff_of(view, store.settings, number, store.clock.now())
    dropped = {gen for op in doomed(view, number, cutoff) for gen in op.gens}
    remaining = [bucket for bucket in state.buckets if bucket.gen not in dropped]
    runs = 1 + sum(
        any(low.last < first < high.first for first, _ in state.unindexed)
        for low, high in pairwise(remaining)
    )
    return list(state.buckets), min(len(remaining), max(runs, to)) if remaining else 0


@dataclass(slots=True)
class Rebuilt:
    """The figures of a rebuild; indexed, missing and surplus count messages that are not due."""

    partitions: int = 0
    messages_read: int = 0
    indexed: int = 0
    missing: int = 0
    surplus: int = 0
    buckets: int = 0


def rebuild(
    store: Store,
    topic: str,
    numbers: Sequence[int],
    first: MessageId | None,
    last: MessageId | None,
    *,
    dry_run: bool,
    searches: Mapping[int, Search] | None = None,
) -> IndexRebuilt:
    """Build the index of a range from the log, and report how the old one differed.

    first, last: the range, both included; None: from the beginning, to the end. A bucket that
                 overlaps the range is replaced as a whole.
    searches:    by partition: a function that finds the delayed ids; by default it reads the log
    returns:     missing: messages in the log that the index lacked; surplus: ids in the index that
                 the log does not have as delayed messages
    """
    low = BEFORE_ALL if first is None else (first.ledger, first.entry, first.index)
    high = BEHIND_ALL if last is None else (last.ledger, last.entry, last.index or INDEX_MAX)
    total = Rebuilt()
    for number in numbers:
        ranges = store.read(lambda view, number=number: _ranges(view, number, low, high))  # type: ignore[misc]
        if not ranges:
            continue
        total.partitions += 1
        total.messages_read += store.read(
            lambda view, number=number, ranges=ranges: _messages(view, number, ranges)  # type: ignore[misc]
        )
        if dry_run:
            store.read(
                lambda view, number=number, ranges=ranges: _compare(  # type: ignore[misc]
                    view, store, number, ranges, total
                )
            )
            continue
        search = (searches or {}).get(number, logged)
        report = rebuild_now(store, number, low, high, search)
        total.indexed += report.ids
        total.missing += report.missing
        total.surplus += report.extra
        total.buckets += report.buckets_made
    return {
        "topic": topic,
        "partitions": total.partitions,
        "messages_read": total.messages_read,
        "indexed": total.indexed,
        "missing": total.missing,
        "surplus": total.surplus,
        "buckets": total.buckets,
    }


def _ranges(view: View, number: int, low: Id, high: Id) -> Ranges:
    """The ranges that a rebuild reads: of whole buckets, and unindexed ranges."""
    check_available(view, topic_of(view.catalog, number), number)
    state = view.delayed(number)
    out: Ranges = [r for r in state.unindexed if not (r[1] < low or high < r[0])]
    ranges = [(bucket.first, bucket.last) for bucket in state.buckets]
    return sorted([*out, *(r for r in ranges if not (r[1] < low or high < r[0]))])


def _messages(view: View, number: int, ranges: Ranges) -> int:
    return sum(
        messages_in(view, number, through(view, number, before(first), _mark(last)))
        for first, last in ranges
    )


def _mark(last: Id) -> Id:
    """An id as the mark that covers it."""
    return (last[0], last[1], 0 if last[2] == INDEX_MAX else last[2])


def _compare(view: View, store: Store, number: int, ranges: Ranges, total: Rebuilt) -> None:
    """Count messages that only the log has, and ids that only the index has."""
    cutoff = cutoff_of(view, store.settings, number, store.clock.now())
    tables = [TIMES.empty_table()]
    for bucket in view.delayed(number).buckets:
        if any(first <= bucket.first and bucket.last <= last for first, last in ranges):
            try:
                tables.append(later_in(view, bucket, cutoff))
            except IntegrityError as error:
                store.note(f"a bucket of delayed messages cannot be read: {error}")
    indexed = pa.concat_tables(tables)
    most = store.settings.mutable_ids_max
    scanned = [TIMES.empty_table()]
    for first, last in ranges:
        times = scan(view, number, first, last)
        scanned.append(times.filter(pc.greater(times["deliver_at"], cutoff)))
        total.buckets += -(-scanned[-1].num_rows // most)
    in_log = pa.concat_tables(scanned)
    total.indexed += in_log.num_rows
    total.surplus += indexed.join(in_log, TIMES.names, join_type="left anti").num_rows
    total.missing += in_log.join(indexed, TIMES.names, join_type="left anti").num_rows
