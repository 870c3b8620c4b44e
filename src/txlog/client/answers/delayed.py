"""Delayed messages as rows and counts: the answers of `txlog delay`, and counts of other commands.

    listings   read the messages that they show
    counts     of a partition, or on a subscription (msgDelayed): from the index alone; for ranges
               without an index, from the delivery times in the log
    buckets    of the index, as rows; they read no message

A message is delayed until its delivery time. Source: spec/delayed 9.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from txlog.base.ids import MessageId, TopicName
from txlog.base.settings import DAY_MS, HOUR_MS, MINUTE_MS, RECEIVE_BYTES_MAX
from txlog.base.startup import compute as pc
from txlog.engine.door.catalog import Subscription, Topic, index_of, number_of, numbers
from txlog.engine.door.consuming import covers
from txlog.engine.door.delayed import (
    HONOURING,
    ROW_BYTES,
    Delayed,
    DelayedIndex,
    LoadedPart,
    Note,
    count_later,
    index_of_partition,
    is_behind,
    is_in,
    runs_in_order,
    upcoming,
    upcoming_in_any_order,
)
from txlog.engine.door.facts import Bucket, Id
from txlog.engine.door.liveness import due_ms
from txlog.engine.door.reading import RECEIVED, fetch
from txlog.engine.door.store import Store, View
from txlog.engine.door.topics import delay_policy
from txlog.errors import IntegrityError

if TYPE_CHECKING:
    from txlog.base.rows.delayed import BucketRow, DueWithin


LISTED = pa.schema(
    [
        *(RECEIVED.field(name) for name in ("partition", "ledger", "entry", "index")),
        *(RECEIVED.field(name) for name in ("deliver_at", "key")),
        ("size_bytes", pa.int64()),
        *(RECEIVED.field(name) for name in ("txn_most", "txn_least")),
    ]
)
WITHIN = (MINUTE_MS, 10 * MINUTE_MS, HOUR_MS, DAY_MS)
# Messages to read at once; fewer if they are large, as their payloads are in memory. Messages next
# to each other in time may be in different files, so each step may read from every file.
ROWS_AT_ONCE = 1 << 16
_ORDER = [(name, "ascending") for name in ("deliver_at", "ledger", "entry", "index")]


# --- listings --------------------------------------------------------------------------------


class Scope(NamedTuple):
    """The messages to look at: partitions of a topic, at a time, perhaps for one subscription.

    held:      only messages that this subscription has not acknowledged
    before_ms: only messages that are due before this (ms since 1970 UTC)
    note:      called with a message for each bucket of the index that is unreadable
    """

    topic: Topic
    indexes: Sequence[int]
    now_ms: int
    note: Note
    held: Subscription | None = None
    before_ms: int | None = None


def listed(
    view: View, scope: Scope, limit: int | None = None, key: bytes | None = None
) -> pa.Table:
    """Delayed messages as LISTED, in order of time, at most limit.

    key:  only messages with this key
    cost: reads the messages it shows; with a key, also those it leaves out
    """
    out = [LISTED.empty_table()]
    room = limit
    most = _rows_at_once(view, scope)
    for times in ahead(view, scope):
        step = most if room is None or key is not None else min(room, most)
        for at in range(0, times.num_rows, max(1, step)):
            if room is not None and room <= 0:
                return pa.concat_tables(out)
            rows = _with_messages(view, scope, times.slice(at, step))
            if key is not None:
                rows = rows.filter(pc.fill_null(pc.equal(rows["key"], key), False))
            out.append(rows.slice(0, room))
            room = None if room is None else room - out[-1].num_rows
    return pa.concat_tables(out)


def _rows_at_once(view: View, scope: Scope) -> int:
    states = [view.topic(number_of(scope.topic, index)) for index in scope.indexes]
    size = sum(state.payload_bytes for state in states)
    mean = size // max(1, sum(state.messages for state in states))
    return max(1, min(ROWS_AT_ONCE, RECEIVE_BYTES_MAX // max(1, mean)))


def ahead(view: View, scope: Scope, *, in_order: bool = True) -> Iterator[pa.Table]:
    """Delayed messages as TIMES; in_order: by time. Cost: reads only the index."""
    numbers = [number_of(scope.topic, index) for index in scope.indexes]
    look = upcoming if in_order else upcoming_in_any_order
    for times in look(view, numbers, scope.note, scope.now_ms, scope.before_ms):
        if scope.held is not None:
            times = times.filter(_unacknowledged(view, scope.held, numbers, times))
        if times.num_rows:
            yield times


def _unacknowledged(
    view: View, subscription: Subscription, numbers: Sequence[int], times: pa.Table
) -> pa.ChunkedArray:
    mask = pa.chunked_array([pa.repeat(pa.scalar(False), times.num_rows)])
    for number in numbers:
        cursor = view.cursor(subscription.number, number)
        unacked = pc.and_(
            is_behind(times, cursor.mark_delete), pc.invert(is_in(times, cursor.acked))
        )
        mask = pc.or_(mask, pc.and_(unacked, _is_of(view, number, times)))
    return mask


def _is_of(view: View, number: int, times: pa.Table) -> pa.ChunkedArray:
    """True for messages of this partition, by their ledger numbers, which are store-wide."""
    ledgers = pa.array([end.ledger for end in view.topic(number).ledgers], pa.int64())
    return pc.is_in(times["ledger"], ledgers)


def _with_messages(view: View, scope: Scope, times: pa.Table) -> pa.Table:
    """The same messages in the same order, with the columns of LISTED."""
    short = TopicName.parse(scope.topic.name).short
    out: list[pa.Table] = []
    for index in scope.indexes:
        number = number_of(scope.topic, index)
        own_times = times.filter(_is_of(view, number, times)) if len(scope.indexes) > 1 else times
        if own_times.num_rows:
            out.append(fetch(view, short, index, number, runs_in_order(own_times)))
    rows = pa.concat_tables(out)
    size = pc.fill_null(pc.binary_length(rows["value"]), 0).cast(pa.int64())
    rows = rows.append_column("size_bytes", size)
    return rows.select(LISTED.names).sort_by(_ORDER)


def histogram(now_ms: int, tables: Iterable[pa.Table]) -> list[DueWithin]:
    """[{due_within_ms, messages}]: messages due within this time, but not within the one before.

    The last row has due_within_ms None, for all later messages.
    """
    counts = [0] * (len(WITHIN) + 1)
    for times in tables:
        below = 0
        for at, within_ms in enumerate(WITHIN):
            through = pc.sum(pc.less_equal(times["deliver_at"], now_ms + within_ms)).as_py() or 0
            counts[at] += through - below
            below = through
        counts[-1] += times.num_rows - below
    return [
        {"due_within_ms": within_ms, "messages": count}
        for within_ms, count in zip((*WITHIN, None), counts, strict=True)
    ]


# --- counts ----------------------------------------------------------------------------------


class DelayCounts:
    """Counts of the messages that are delayed now, by the policies of their topics."""

    __slots__ = ("_note", "_now_ms", "_settings", "_view")

    def __init__(self, view: View, store: Store) -> None:
        self._view = view
        self._note = store.note
        self._settings = store.settings
        self._now_ms = due_ms(view, store.settings, store.clock.now())

    def cutoff(self, topic: Topic) -> int | None:
        """Messages with a delivery time after this one are delayed; None: no message is."""
        policy = delay_policy(self._view, self._settings, topic)
        return policy.cutoff(self._now_ms) if policy.active else None

    def of_partition(self, topic: Topic, number: int) -> int:
        """How many messages of a partition are delayed."""
        cutoff = self.cutoff(topic)
        state = self._view.delayed(number)
        if cutoff is None or state.is_empty:
            return 0
        if state.unindexed or (
            state.buckets and state.buckets[0].first[0] < self._view.topic(number).ledgers[0].ledger
        ):
            # a range has no index, or a bucket still has ids of trimmed messages
            ahead = upcoming_in_any_order(self._view, [number], self._note, cutoff)
            return sum(times.num_rows for times in ahead)
        return index_of_partition(self._view, number, cutoff).count()

    def of_topic(self, topic: Topic) -> int:
        """As of_partition, over all partitions."""
        return sum(self.of_partition(topic, number) for number in numbers(topic))

    def of_cursor(self, topic: Topic, subscription: Subscription, number: int) -> int:
        """How many delayed messages of a partition a subscription has not acknowledged.

        0 for subscription types that ignore delays.
        """
        cutoff = self.cutoff(topic)
        if (
            cutoff is None
            or subscription.type not in HONOURING
            or self._view.delayed(number).is_empty
        ):
            return 0
        cursor = self._view.cursor(subscription.number, number)
        ranges = self._view.delayed(number).unindexed
        if any(not covers(cursor.mark_delete, last) for _, last in ranges):
            index = index_of(topic, number)
            scope = Scope(topic, [index], cutoff, self._note, subscription)
            return sum(times.num_rows for times in ahead(self._view, scope, in_order=False))
        return index_of_partition(self._view, number, cutoff).count_for(cursor)

    def of_subscription(self, topic: Topic, subscription: Subscription) -> int:
        """As of_cursor, over all partitions."""
        return sum(self.of_cursor(topic, subscription, number) for number in numbers(topic))


# --- buckets ---------------------------------------------------------------------------------

PENDING_BYTES = 12
INDEX_MAX = (1 << 31) - 1


def buckets(view: View, scope: Scope) -> list[BucketRow]:
    """The buckets of each partition: sealed ones, the mutable one, pending and missing ranges."""
    return [
        row
        for index in scope.indexes
        for row in _of_partition(view, scope, index, number_of(scope.topic, index))
    ]


def in_memory(view: View, number: int) -> LoadedPart:
    """The part of a partition's index that is in the memory of this process."""
    mutable = len(view.delayed(number).mutable)
    parts = [LoadedPart(0, mutable, ROW_BYTES * mutable)]
    index: DelayedIndex | None = view.timetables.get(number)
    if index is not None:
        copied, sealed = index.loaded()
        parts += [LoadedPart(0, 0, copied.bytes), *sealed.values()]
    return LoadedPart(
        sum(part.segments for part in parts),
        sum(part.ids for part in parts),
        sum(part.bytes for part in parts),
    )


def _of_partition(view: View, scope: Scope, index: int, number: int) -> Iterator[BucketRow]:
    state = view.delayed(number)
    empty: BucketRow = {
        "topic": TopicName.parse(scope.topic.name).short,
        "partition": index,
        "generation": None,
        "first": None,
        "last": None,
        "messages": None,
        "not_due": None,
        "min_deliver_at": None,
        "max_deliver_at": None,
        "file": None,
        "segments": 0,
        "loaded_segments": 0,
        "size_bytes": 0,
        "state": "unindexed",
    }
    timetable: DelayedIndex | None = view.timetables.get(number)
    loaded = {} if timetable is None else timetable.loaded()[1]
    for bucket in state.buckets:
        segments = loaded.get(bucket.gen, LoadedPart()).segments
        yield {**_sealed(view, scope, empty, bucket), "loaded_segments": segments}
    yield _mutable(state, empty, scope.now_ms)
    if state.pending:
        yield _pending(state, empty, scope.now_ms)
    for first, last in state.unindexed:
        yield {**empty, "first": _id(first), "last": _id(last)}


def _sealed(view: View, scope: Scope, empty: BucketRow, bucket: Bucket) -> BucketRow:
    not_due: int | None = None
    try:
        not_due = count_later(view, bucket, scope.now_ms)
    except IntegrityError as error:
        scope.note(f"a bucket of delayed messages cannot be read: {error}")
    return {
        **empty,
        "state": "sealed",
        "generation": bucket.gen,
        "first": _id(bucket.first),
        "last": _id(bucket.last),
        "messages": bucket.count,
        "not_due": not_due,
        "segments": len(bucket.file.groups),
        "size_bytes": bucket.file.bytes,
        "min_deliver_at": bucket.min_at,
        "max_deliver_at": bucket.max_at,
        "file": bucket.file.path,
    }


def _mutable(state: Delayed, empty: BucketRow, now_ms: int) -> BucketRow:
    mutable = state.mutable
    at = mutable.at
    return {
        **empty,
        "state": "mutable",
        "first": _id(mutable.place(0)) if mutable else None,
        "last": _id(mutable.place(-1)) if mutable else None,
        "messages": len(mutable),
        "not_due": sum(time > now_ms for time in at),
        "size_bytes": ROW_BYTES * len(mutable),
        "min_deliver_at": min(at, default=None),
        "max_deliver_at": max(at, default=None),
    }


def _pending(state: Delayed, empty: BucketRow, now_ms: int) -> BucketRow:
    times = [at for entry in state.pending.values() for at in entry.at]
    return {
        **empty,
        "state": "pending",
        "messages": len(times),
        "not_due": sum(at > now_ms for at in times),
        "size_bytes": PENDING_BYTES * len(times),
        "min_deliver_at": min(times, default=None),
        "max_deliver_at": max(times, default=None),
    }


def _id(message_id: Id) -> MessageId:
    """An id for people: a range may end inside or after a marker that does not exist."""
    ledger, entry, index = message_id
    return MessageId(ledger, max(0, entry), 0 if index == INDEX_MAX else index)
