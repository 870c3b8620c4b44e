"""Ranges such as `-10`, `@-1h`, `17:4` or `sub=billing` become positions of each partition.

A start is the position *after* which reading begins; a stop is the first position that is not read.
Counts are of visible messages in each partition. Source: spec/cli 6.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

from txlog.base.ids import MessageId, TopicName, TxnId
from txlog.base.ranges import START, Bound, Range
from txlog.base.startup import compute as pc
from txlog.engine.folds import buffer as buffers
from txlog.engine.folds import coordinator as coordinators
from txlog.engine.folds.catalog import Subscription, Topic, index_of, number_of
from txlog.engine.folds.cursor import BEFORE_ALL
from txlog.engine.model.idset import covers
from txlog.engine.model.ops import Mark
from txlog.engine.plan.ack_sets import is_trimmed
from txlog.engine.plan.lookup import subscription as find_subscription
from txlog.engine.plan.participants import check_available
from txlog.engine.plan.reading.compacted import (
    CompactedRange,
    compacted_files,
    last_row,
    rows_before,
    rows_earlier,
)
from txlog.engine.plan.reading.dispatch import NO_MATTER, Skip, plan, position_followed_by
from txlog.engine.view import View
from txlog.errors import InvalidArgument, MessageNotFound, TransactionNotFound

_STEADY = ("start", "skip", "id", "after", "time")  # bounds that later frames do not move back


class ReadRange(NamedTuple):
    """The range to read in one partition: after `after`, before `stop` (None: no end).

    subscription: leave out messages that it has acknowledged
    compacted:    these rows come first
    """

    after: Mark
    stop: Mark | None
    subscription: int | None = None
    compacted: CompactedRange | None = None


def resolve_range(
    view: View, topic: Topic, requested: Range, partitions: list[int]
) -> dict[int, ReadRange]:
    """The range of each partition that the requested range touches.

    raises: MessageNotFound, SubscriptionNotFound, TransactionNotFound (never issued),
            PartitionUnavailable (a time), InvalidArgument (ids of two partitions, not exactly one
            subscription, a bound that counts messages of a compacted range)
    """
    if requested.kind == "txn":
        assert requested.txn is not None
        return _of_txn(view, topic, requested, partitions)
    if requested.kind == "unacked":
        subscription = _subscription(view, topic, requested.subscription)
        out = {}
        for partition in partitions:
            out[partition] = _of_unacked(view, topic, partition, requested, subscription.number)
        return out
    bound_partitions = [
        partition_of(view, topic, bound.value)
        for bound in (requested.start, requested.stop)
        if bound is not None and isinstance(bound.value, MessageId)
    ]
    if len(set(bound_partitions)) > 1:
        raise InvalidArgument("the two ids of the range are of different partitions", code=203)
    if bound_partitions:
        partitions = [number for number in partitions if number == bound_partitions[0]]
    if requested.kind == "compacted":
        return {number: compacted_range(view, topic, number, requested) for number in partitions}
    out = {}
    for partition in partitions:
        stop = None
        if requested.stop is not None:
            stop = stop_after(resolve_bound(view, topic, partition, requested.stop))
        out[partition] = ReadRange(resolve_bound(view, topic, partition, requested.start), stop)
    return out


def compacted_range(view: View, topic: Topic, partition: int, requested: Range) -> ReadRange:
    """The range to read in one partition for a compacted range: compacted rows, then the log.

    Its bounds are positions of the log, and the first messages there may have been trimmed.
    """
    number = number_of(topic, partition)
    compaction, files = view.topic(number).compaction, compacted_files(view, number)
    first = start_of(view, number)
    begin = _log_position(view, topic, partition, requested.start)
    stop = None
    if requested.stop is not None:
        stop = stop_after(_log_position(view, topic, partition, requested.stop))
    horizon = BEFORE_ALL if compaction is None else (*compaction.horizon, 0)
    start = horizon if covers(horizon, begin) else begin
    if requested.start.kind not in ("id", "after"):
        start = max(start, first)  # the caller asked to begin with the oldest existing message
    rows = sum(ref.rows for ref in files)
    low = 0 if begin == BEFORE_ALL else rows_before(view, files, stop_after(begin))
    if requested.start.kind == "time" and begin == first:
        assert isinstance(requested.start.value, int)
        low = rows_earlier(view, files, requested.start.value)
    high = rows if stop is None else rows_before(view, files, stop)
    if requested.stop is not None and requested.stop.kind == "time" and stop == stop_after(first):
        assert isinstance(requested.stop.value, int)
        high = rows_earlier(view, files, requested.stop.value)
    if low >= high:
        return ReadRange(start, stop)
    return ReadRange(begin, stop, None, CompactedRange(files, low, high, start))


def _log_position(view: View, topic: Topic, partition: int, bound: Bound) -> Mark:
    """The position before a bound, also of a trimmed message."""
    if bound.kind == "start":
        return BEFORE_ALL
    if bound.kind not in ("id", "after", "time", "end"):
        raise InvalidArgument(
            f"compacted messages are not counted: {bound} has no meaning for them", code=203
        )
    if isinstance(bound.value, MessageId) and is_trimmed(
        view, number_of(topic, partition), bound.value.ledger
    ):
        ledger, entry, index = bound.value.ledger, bound.value.entry, bound.value.index
        if bound.kind == "after":
            return (ledger, entry, index)
        return (ledger, entry - 1, 0) if index <= 1 else (ledger, entry, index - 1)
    return resolve_bound(view, topic, partition, bound)


def is_settled(
    view: View, topic: Topic, requested: Range, places: dict[int, ReadRange], *, of_all: bool
) -> bool:
    """Whether no later frame can put a message into a range.

    Positions only grow, so a range is settled when each stop is before the end of the partition. A
    stop by time is, once a message of that time or later exists: no message after it counts,
    whatever its time. A stop `end` or none, a count from the end, or a subscription never settles.
    of_all: the range covers all partitions, and frames may add more unless an id names one
    """
    stop = requested.stop
    if stop is None or requested.kind != "range" or requested.start.kind not in _STEADY:
        return False
    if of_all and not any(isinstance(bound.value, MessageId) for bound in (requested.start, stop)):
        return stop.kind == "start"
    return all(
        _is_settled(view, topic, partition, stop, partition_range)
        for partition, partition_range in places.items()
    )


def _is_settled(
    view: View, topic: Topic, partition: int, stop: Bound, partition_range: ReadRange
) -> bool:
    end = end_of(view, topic, partition)
    if isinstance(stop.value, MessageId):
        index = 0 if stop.value.index == 1 else stop.value.index
        return (stop.value.ledger, stop.value.entry, index) <= end
    if stop.kind == "skip":
        assert isinstance(stop.value, int)
        return stop.value <= view.topic(number_of(topic, partition)).messages
    if stop.kind == "time":
        assert partition_range.stop is not None
        return partition_range.stop < end
    return stop.kind == "start"


def resolve_bound(view: View, topic: Topic, partition: int, bound: Bound) -> Mark:
    """The position just before the bound in a partition; for `after`, just after that message.

    raises: as resolve_range
    """
    number = number_of(topic, partition)
    if bound.kind == "start":
        return start_of(view, number)
    if bound.kind == "end":
        ledger, entry, _ = end_of(view, topic, partition)
        return (ledger, entry - 1, 0)
    if bound.kind in ("skip", "last"):
        start, total = start_of(view, number), view.topic(number).messages
        if (
            bound.kind == "skip"
            and isinstance(bound.value, int)
            and total // 2 < bound.value <= total
        ):
            bound = Bound("last", total - bound.value)  # nearer from the end
        return _counted(view, number, bound, start)
    if bound.kind == "id":
        assert isinstance(bound.value, MessageId)
        partition_of(view, topic, bound.value)
        message_id = bound.value
        if is_trimmed(view, number, message_id.ledger):
            return start_of(view, number)  # an id below the first one moves to that end
        return _before_id(view, number, message_id)
    if bound.kind == "after":
        assert isinstance(bound.value, MessageId)
        partition_of(view, topic, bound.value)
        return _after_id(view, number, bound.value)
    if bound.kind == "sub":
        name = bound.value
        assert name is None or isinstance(name, str)
        return view.cursor(_subscription(view, topic, name).number, number).mark_delete
    assert bound.kind == "time"
    check_available(view, topic, number)  # the time of a position is in its row
    assert isinstance(bound.value, int)
    return before_time(view, number, bound.value)


def _counted(view: View, number: int, bound: Bound, start: Mark, skip: Skip = ()) -> Mark:
    """The position this many messages after another, or before the end.

    skip:   ids that do not count
    cost:   O(pieces of the counted messages)
    raises: InvalidArgument for a bound that does not count
    """
    count = bound.value
    if bound.kind not in ("skip", "last") or not isinstance(count, int):
        raise InvalidArgument(
            f"unacknowledged messages are counted, not found by {bound}", code=203
        )
    if bound.kind == "last":
        return position_followed_by(view, number, count, start, skip) or start
    return plan(view, number, start, count, skip, bytes_max=NO_MATTER).after if count else start


def _of_unacked(
    view: View, topic: Topic, partition: int, requested: Range, subscription: int
) -> ReadRange:
    """The range in which a subscription has unacknowledged messages; bounds count only these."""
    number = number_of(topic, partition)
    cursor = view.cursor(subscription, number)
    start, stop = cursor.mark_delete, end_of(view, topic, partition)
    if requested.stop is not None and requested.stop.kind != "end":
        stop = stop_after(_counted(view, number, requested.stop, start, (cursor.acked,)))
    if requested.start.kind != "start":
        start = _counted(view, number, requested.start, start, (cursor.acked,))
    return ReadRange(start, stop, subscription)


def _before_id(view: View, number: int, message_id: MessageId) -> Mark:
    """The position before an id; an id after the last entry of its ledger moves to that end.

    raises: MessageNotFound for a message that its transaction does not have
    """
    ledger, entry, index = message_id.ledger, message_id.entry, message_id.index
    ends = view.topic(number).ledgers
    at = bisect_left(ends, ledger, key=lambda end: end.ledger)
    # no row has this id, which is between two ledgers
    if at == len(ends) or ends[at].ledger != ledger:
        previous = ends[at - 1]
        return (previous.ledger, previous.entries - 1, 0)
    entries = ends[at].entries
    if entry >= entries:
        return (ledger, entries - 1, 0)
    if index <= 1:
        return (ledger, entry - 1, 0)
    marker = buffers.find_marker(view.buffer(number), ledger, entry)
    if marker is None or index > marker.count:
        raise MessageNotFound(f"message {message_id} does not exist", message_id=message_id)
    return (ledger, entry, index - 1)


def range_before(view: View, topic: Topic, message_id: MessageId, count: int) -> Range:
    """The range with the `count` messages of a partition before an id, or as many as there are."""
    number = number_of(topic, partition_of(view, topic, message_id))
    stop = stop_after(_before_id(view, number, message_id))
    start = position_followed_by(view, number, count, start_of(view, number), stop=stop)
    first = START if start is None else Bound("id", MessageId(*stop_after(start)))
    return Range(first, Bound("id", message_id))


def _after_id(view: View, number: int, message_id: MessageId) -> Mark:
    """The position after a message, which may be trimmed; `check_retained` then reports the gap.

    raises: MessageNotFound for a message that does not exist, or not yet
    """
    ledger, entry, index = message_id.ledger, message_id.entry, message_id.index
    if is_trimmed(view, number, ledger):
        return (ledger, entry, index)
    position = _before_id(view, number, message_id)
    end = next(
        (ledger_end for ledger_end in view.topic(number).ledgers if ledger_end.ledger == ledger),
        None,
    )
    if end is None:  # it is between two ledgers, where no row has been
        return position
    if entry >= end.entries:
        raise MessageNotFound(f"message {message_id} does not exist yet", message_id=message_id)
    marker = buffers.find_marker(view.buffer(number), ledger, entry)
    is_last = marker is None or index in (0, marker.count)
    return (ledger, entry, 0 if is_last else index)


def start_of(view: View, number: int) -> Mark:
    """The position before the first message that still exists."""
    state = view.topic(number)
    return BEFORE_ALL if state.trimmed is None else (state.ledgers[0].ledger, -1, 0)


def check_retained(view: View, topic: Topic, number: int, position: Mark) -> None:
    """Refuse a position after which messages were trimmed: a reader must not skip them (R22).

    raises: MessageNotFound with the fields first and last, the trimmed range
    """
    last = view.topic(number).trimmed
    if last is None or covers(position, last):
        return
    first = MessageId(position[0], position[1], position[2]) if position[0] else None
    short = TopicName.parse(topic.name).short
    start = f"after {first}" if first is not None and position[1] >= 0 else "from the start"
    raise MessageNotFound(
        f"messages of {short}/{index_of(topic, number)} {start} up to "
        f"{MessageId(*last)} were trimmed",
        hint="read again from start, the first message that still exists",
        topic=short,
        partition=index_of(topic, number),
        message_id=MessageId(*last),
        first=None if first is None or position[1] < 0 else first,
        last=MessageId(*last),
    )


def end_of(view: View, topic: Topic, partition: int) -> Mark:
    """The first position that is still empty."""
    last = view.topic(number_of(topic, partition)).ledgers[-1]
    return (last.ledger, last.entries, 0)


def last_message(view: View, number: int) -> MessageId | None:
    """The last message of a partition that is visible and still exists."""
    state = view.topic(number)
    last = state.last_message
    if last is None or (state.trimmed is not None and covers(state.trimmed, last)):
        return None
    return MessageId(*last)


def last_compacted(view: View, number: int) -> MessageId | None:
    """The last message of a partition that a reader of compacted messages gets."""
    state = view.topic(number)
    compaction, last = state.compaction, state.last_message
    if compaction is None or (last is not None and last[:2] > compaction.horizon):
        return last_message(view, number)
    mark = last_row(view, number)
    return None if mark is None else MessageId(*mark)


def stop_after(last: Mark) -> Mark:
    """The position that follows a position."""
    ledger, entry, index = last
    return (ledger, entry, index + 1) if index else (ledger, entry + 1, 0)


def before_time(view: View, number: int, time_ms: int) -> Mark:
    """The position before the first entry published at that time or later.

    It checks times in the order of entries, because they may fall (R32).
    cost: reads the times of the ledgers that may have it, usually one
    """
    position = start_of(view, number)
    for end in view.topic(number).ledgers:
        if end.entries and end.last_ms >= time_ms:
            at = 0
            for table in view.rows([(end.ledger, 0, end.entries)], ["publish_time"]):
                later = pc.greater_equal(table.column("publish_time").cast("int64"), time_ms)
                row = pc.index(later, True).as_py()
                if row >= 0:
                    return (end.ledger, at + row - 1, 0)
                at += table.num_rows
        position = (end.ledger, end.entries - 1, 0)
    return position


def partition_of(view: View, topic: Topic, message_id: MessageId) -> int:
    """The partition (from 0) of the topic that has an id; raises MessageNotFound."""
    owner = view.catalog.owners.get(message_id.ledger)
    partition = -1 if owner is None or owner[1] != "p" else index_of(topic, owner[0])
    if partition < 0:
        raise MessageNotFound(
            f"message {message_id} does not exist in {TopicName.parse(topic.name).short}",
            message_id=message_id,
        )
    return partition


def _subscription(view: View, topic: Topic, name: str | None) -> Subscription:
    if name is not None:
        return find_subscription(view, topic, name)
    subscriptions = [view.catalog.subscriptions[number] for number in topic.subscriptions]
    if len(subscriptions) != 1:
        raise InvalidArgument(
            f"the topic has {len(subscriptions)} subscriptions, say which",
            code=205,
            hint=", ".join(sorted(subscription.name for subscription in subscriptions)) or None,
        )
    return subscriptions[0]


def _of_txn(
    view: View, topic: Topic, requested: Range, partitions: list[int]
) -> dict[int, ReadRange]:
    assert requested.txn is not None
    pair = (requested.txn.coordinator, requested.txn.sequence)
    out: dict[int, ReadRange] = {}
    for partition in partitions:
        for ledger, markers in view.buffer(number_of(topic, partition)).markers.items():
            for marker in markers:
                if (marker.coordinator, marker.sequence) == pair:
                    out[partition] = ReadRange(
                        (ledger, marker.entry - 1, 0), (ledger, marker.entry + 1, 0)
                    )
    return out or _of_batch(view, topic, requested.txn, partitions)


def _of_batch(view: View, topic: Topic, txn: TxnId, partitions: list[int]) -> dict[int, ReadRange]:
    """The ranges of the ledgers that the transaction of a batch adopted.

    Such a transaction has no marker.
    """
    state = view.coordinator(txn.coordinator)
    record = coordinators.find(state, txn.sequence)
    if record is None and txn.sequence >= state.next_sequence:
        raise TransactionNotFound(
            f"transaction {txn} was never issued",
            hint="txlog txn list shows the open ones",
            txn=txn,
        )
    out: dict[int, ReadRange] = {}
    for number, ledger, _, messages in () if record is None else record.markers:
        index, ends = index_of(topic, number), view.topic(number).ledgers
        at = bisect_left(ends, ledger, key=lambda end: end.ledger)
        if index not in partitions or at == len(ends) or ends[at].ledger != ledger:
            continue
        remaining, last = messages, ends[at]
        for last in ends[at:]:
            remaining -= last.entries
            if remaining <= 0:
                break
        out[index] = ReadRange((ledger, -1, 0), (last.ledger, last.entries, 0))
    return out
