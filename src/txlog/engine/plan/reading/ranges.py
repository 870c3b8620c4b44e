"""From words like `-10`, `@-1h`, `17:4`, `sub=billing` to positions.

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
from txlog.engine.folds.cursor import BEFORE_ALL, covers
from txlog.engine.model.ops import Mark
from txlog.engine.plan.ack_sets import is_trimmed
from txlog.engine.plan.lookup import subscription as find_subscription
from txlog.engine.plan.participants import check_available
from txlog.engine.plan.reading.compacted import (
    Left,
    compacted_files,
    last_row,
    rows_before,
    rows_earlier,
)
from txlog.engine.plan.reading.dispatch import NO_MATTER, plan, position_followed_by
from txlog.engine.plan.reading.skip_sets import Skip
from txlog.engine.view.view import View
from txlog.errors import InvalidArgument, MessageNotFound, TransactionNotFound

_STEADY = ("start", "skip", "id", "after", "time")  # bounds that later frames do not move back


class ReadRange(NamedTuple):
    """Where to read in one partition; subscription: leave out what it has acknowledged.

    compacted: these rows come first
    """

    after: Mark
    stop: Mark | None
    subscription: int | None = None
    compacted: Left | None = None


def resolve_range(
    view: View, topic: Topic, wanted: Range, partitions: list[int]
) -> dict[int, ReadRange]:
    """The place of each partition that the range touches.

    raises: MessageNotFound, SubscriptionNotFound, TransactionNotFound (never issued),
            InvalidArgument (ids of two partitions, no single subscription to mean, a bound that
            counts messages of a compacted range)
    """
    if wanted.kind == "txn":
        assert wanted.txn is not None
        return _of_txn(view, topic, wanted, partitions)
    if wanted.kind == "unacked":
        held = _subscription(view, topic, wanted.subscription)
        out = {}
        for partition in partitions:
            out[partition] = _of_unacked(view, topic, partition, wanted, held.number)
        return out
    named = [
        partition_of(view, topic, bound.value)
        for bound in (wanted.start, wanted.stop)
        if bound is not None and isinstance(bound.value, MessageId)
    ]
    if len(set(named)) > 1:
        raise InvalidArgument("the two ids of the range are of different partitions", code=203)
    if named:
        partitions = [number for number in partitions if number == named[0]]
    if wanted.kind == "compacted":
        return {one: compacted_range(view, topic, one, wanted) for one in partitions}
    out = {}
    for partition in partitions:
        stop = None
        if wanted.stop is not None:
            stop = stop_after(resolve_bound(view, topic, partition, wanted.stop))
        out[partition] = ReadRange(resolve_bound(view, topic, partition, wanted.start), stop)
    return out


def compacted_range(view: View, topic: Topic, partition: int, wanted: Range) -> ReadRange:
    """Where a compacted range begins: in the compacted rows, or after their horizon.

    Its bounds mean positions of the log, of which the first messages may have been trimmed.
    """
    number = number_of(topic, partition)
    known, files = view.topic(number).compaction, compacted_files(view, number)
    first = start_of(view, number)
    begin = _log_position(view, topic, partition, wanted.start)
    stop = None
    if wanted.stop is not None:
        stop = stop_after(_log_position(view, topic, partition, wanted.stop))
    horizon = BEFORE_ALL if known is None else (*known.horizon, 0)
    after = horizon if covers(horizon, begin) else begin
    if wanted.start.kind not in ("id", "after"):
        after = max(after, first)  # it was said to begin with what there is
    rows = sum(ref.rows for ref in files)
    low = 0 if begin == BEFORE_ALL else rows_before(view, files, stop_after(begin))
    if wanted.start.kind == "time" and begin == first:
        assert isinstance(wanted.start.value, int)
        low = rows_earlier(view, files, wanted.start.value)
    high = rows if stop is None else rows_before(view, files, stop)
    if wanted.stop is not None and wanted.stop.kind == "time" and stop == stop_after(first):
        assert isinstance(wanted.stop.value, int)
        high = rows_earlier(view, files, wanted.stop.value)
    if low >= high:
        return ReadRange(after, stop)
    return ReadRange(begin, stop, None, Left(files, low, high, after))


def _log_position(view: View, topic: Topic, partition: int, bound: Bound) -> Mark:
    """The position before a bound, also of what was trimmed."""
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
    view: View, topic: Topic, wanted: Range, places: dict[int, ReadRange], *, of_all: bool
) -> bool:
    """Whether no later frame, whatever it holds, can put a message into a range.

    Positions only grow, so it is settled when each stop is before the end, or is named `end`.
    So is a stop by time once a message of that time or later exists: nothing after it counts,
    however early. Counting from the end, or from a subscription, includes what follows.
    of_all: the range covers all partitions: an id means one, else frames may add partitions
    """
    stop = wanted.stop
    if stop is None or wanted.kind != "range" or wanted.start.kind not in _STEADY:
        return False
    if of_all and not any(isinstance(one.value, MessageId) for one in (wanted.start, stop)):
        return stop.kind == "start"
    return all(
        _is_settled(view, topic, partition, stop, place) for partition, place in places.items()
    )


def _is_settled(view: View, topic: Topic, partition: int, stop: Bound, place: ReadRange) -> bool:
    end = end_of(view, topic, partition)
    if isinstance(stop.value, MessageId):
        index = 0 if stop.value.index == 1 else stop.value.index
        return (stop.value.ledger, stop.value.entry, index) <= end
    if stop.kind == "skip":
        assert isinstance(stop.value, int)
        return stop.value <= view.topic(number_of(topic, partition)).messages
    if stop.kind == "time":
        assert place.stop is not None
        return place.stop < end
    return stop.kind == "start"


def resolve_bound(view: View, topic: Topic, partition: int, bound: Bound) -> Mark:
    """The position just before the bound in a partition."""
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
        wanted = bound.value
        if is_trimmed(view, number, wanted.ledger):
            return start_of(view, number)  # an id below the first one moves to that end
        return _before_id(view, number, wanted)
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


def _counted(view: View, number: int, bound: Bound, after: Mark, skip: Skip = ()) -> Mark:
    """The position this many messages after another, or before the end; skip: what does not count.

    cost:   O(pieces of these messages)
    raises: InvalidArgument for a bound that does not count
    """
    count = bound.value
    if bound.kind not in ("skip", "last") or not isinstance(count, int):
        raise InvalidArgument(
            f"unacknowledged messages are counted, not found by {bound}", code=203
        )
    if bound.kind == "last":
        return position_followed_by(view, number, count, after, skip) or after
    return plan(view, number, after, count, skip, bytes_max=NO_MATTER).after if count else after


def _of_unacked(
    view: View, topic: Topic, partition: int, wanted: Range, subscription: int
) -> ReadRange:
    """Where a subscription has messages left; bounds count those only."""
    number = number_of(topic, partition)
    cursor = view.cursor(subscription, number)
    after, stop = cursor.mark_delete, end_of(view, topic, partition)
    if wanted.stop is not None and wanted.stop.kind != "end":
        stop = stop_after(_counted(view, number, wanted.stop, after, (cursor.acked,)))
    if wanted.start.kind != "start":
        after = _counted(view, number, wanted.start, after, (cursor.acked,))
    return ReadRange(after, stop, subscription)


def _before_id(view: View, number: int, wanted: MessageId) -> Mark:
    """The position before an id; one after the last entry of its ledger moves to that end.

    raises: MessageNotFound for a message that its transaction does not have
    """
    ledger, entry, index = wanted.ledger, wanted.entry, wanted.index
    ends = view.topic(number).ledgers
    at = bisect_left(ends, ledger, key=lambda end: end.ledger)
    if at == len(ends) or ends[at].ledger != ledger:  # no row has this id: it lies between two
        before = ends[at - 1]
        return (before.ledger, before.entries - 1, 0)
    entries = ends[at].entries
    if entry >= entries:
        return (ledger, entries - 1, 0)
    if index <= 1:
        return (ledger, entry - 1, 0)
    marker = buffers.find_marker(view.buffer(number), ledger, entry)
    if marker is None or index > marker.count:
        raise MessageNotFound(f"message {wanted} does not exist", message_id=wanted)
    return (ledger, entry, index - 1)


def range_before(view: View, topic: Topic, wanted: MessageId, count: int) -> Range:
    """The `count` messages of a partition before an id, or as many as there are."""
    number = number_of(topic, partition_of(view, topic, wanted))
    stop = stop_after(_before_id(view, number, wanted))
    after = position_followed_by(view, number, count, start_of(view, number), stop=stop)
    first = START if after is None else Bound("id", MessageId(*stop_after(after)))
    return Range(first, Bound("id", wanted))


def _after_id(view: View, number: int, wanted: MessageId) -> Mark:
    """The position after a message; what was trimmed after it is missed by a reader that goes on.

    raises: MessageNotFound for one that does not exist yet
    """
    ledger, entry, index = wanted.ledger, wanted.entry, wanted.index
    if is_trimmed(view, number, ledger):
        return (ledger, entry, index)
    place = _before_id(view, number, wanted)
    end = next((one for one in view.topic(number).ledgers if one.ledger == ledger), None)
    if end is None:  # it lies between two, where no row has been
        return place
    if entry >= end.entries:
        raise MessageNotFound(f"message {wanted} does not exist yet", message_id=wanted)
    marker = buffers.find_marker(view.buffer(number), ledger, entry)
    is_last = marker is None or index in (0, marker.count)
    return (ledger, entry, 0 if is_last else index)


def start_of(view: View, number: int) -> Mark:
    """The position before the first message that still exists."""
    state = view.topic(number)
    return BEFORE_ALL if state.trimmed is None else (state.ledgers[0].ledger, -1, 0)


def check_retained(view: View, topic: Topic, number: int, place: Mark) -> None:
    """Refuse a position after which messages were trimmed: never a silent jump (R22).

    raises: MessageNotFound with the fields first and last, the range that is gone
    """
    last = view.topic(number).trimmed
    if last is None or covers(place, last):
        return
    first = MessageId(place[0], place[1], place[2]) if place[0] else None
    short = TopicName.parse(topic.name).short
    start = f"after {first}" if first is not None and place[1] >= 0 else "from the start"
    raise MessageNotFound(
        f"messages of {short}/{index_of(topic, number)} {start} up to "
        f"{MessageId(*last)} were trimmed",
        hint="read again from start, the first message that still exists",
        topic=short,
        partition=index_of(topic, number),
        message_id=MessageId(*last),
        first=None if first is None or place[1] < 0 else first,
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
    known, last = state.compaction, state.last_message
    if known is None or (last is not None and last[:2] > known.horizon):
        return last_message(view, number)
    mark = last_row(view, number)
    return None if mark is None else MessageId(*mark)


def stop_after(after: Mark) -> Mark:
    """The first position not to be passed, given the last one that is."""
    ledger, entry, index = after
    return (ledger, entry, index + 1) if index else (ledger, entry + 1, 0)


def before_time(view: View, number: int, time_ms: int) -> Mark:
    """The position before the first entry of that time or later; cost: the times of a ledger.

    Times are looked through in the order of entries, as they need not rise with it (R32).
    """
    after = start_of(view, number)
    for end in view.topic(number).ledgers:
        if end.entries and end.last_ms >= time_ms:
            at = 0
            for table in view.rows([(end.ledger, 0, end.entries)], ["publish_time"]):
                later = pc.greater_equal(table.column("publish_time").cast("int64"), time_ms)
                found = pc.index(later, True).as_py()
                if found >= 0:
                    return (end.ledger, at + found - 1, 0)
                at += table.num_rows
        after = (end.ledger, end.entries - 1, 0)
    return after


def partition_of(view: View, topic: Topic, wanted: MessageId) -> int:
    """The partition (from 0) of the topic that an id is of; raises MessageNotFound."""
    owner = view.catalog.owners.get(wanted.ledger)
    partition = -1 if owner is None or owner[1] != "p" else index_of(topic, owner[0])
    if partition < 0:
        raise MessageNotFound(
            f"message {wanted} does not exist in {TopicName.parse(topic.name).short}",
            message_id=wanted,
        )
    return partition


def _subscription(view: View, topic: Topic, name: str | None) -> Subscription:
    if name is not None:
        return find_subscription(view, topic, name)
    known = [view.catalog.subscriptions[number] for number in topic.subscriptions]
    if len(known) != 1:
        raise InvalidArgument(
            f"the topic has {len(known)} subscriptions, say which",
            code=205,
            hint=", ".join(sorted(one.name for one in known)) or None,
        )
    return known[0]


def _of_txn(view: View, topic: Topic, wanted: Range, partitions: list[int]) -> dict[int, ReadRange]:
    assert wanted.txn is not None
    pair = (wanted.txn.coordinator, wanted.txn.sequence)
    out: dict[int, ReadRange] = {}
    for partition in partitions:
        for ledger, known in view.buffer(number_of(topic, partition)).markers.items():
            for marker in known:
                if (marker.coordinator, marker.sequence) == pair:
                    out[partition] = ReadRange(
                        (ledger, marker.entry - 1, 0), (ledger, marker.entry + 1, 0)
                    )
    return out or _of_batch(view, topic, wanted.txn, partitions)


def _of_batch(view: View, topic: Topic, txn: TxnId, partitions: list[int]) -> dict[int, ReadRange]:
    """Where the ledgers lie that the transaction of a batch adopted, which has no marker."""
    state = view.coordinator(txn.coordinator)
    known = coordinators.find(state, txn.sequence)
    if known is None and txn.sequence >= state.next_sequence:
        raise TransactionNotFound(
            f"transaction {txn} was never issued",
            hint="txlog txn list shows the open ones",
            txn=txn,
        )
    out: dict[int, ReadRange] = {}
    for number, ledger, _, messages in () if known is None else known.markers:
        index, ends = index_of(topic, number), view.topic(number).ledgers
        at = bisect_left(ends, ledger, key=lambda end: end.ledger)
        if index not in partitions or at == len(ends) or ends[at].ledger != ledger:
            continue
        left, last = messages, ends[at]
        for last in ends[at:]:
            left -= last.entries
            if left <= 0:
                break
        out[index] = ReadRange((ledger, -1, 0), (last.ledger, last.entries, 0))
    return out
