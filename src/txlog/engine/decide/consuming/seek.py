"""Seek: moving a subscription to another position, forward or back.

Everything before the position becomes acknowledged and everything after it pending; leases and
redelivery counts are void. One frame moves all partitions. Transactions that hold acknowledgements
there are aborted first in that frame, if the caller agreed to it. An id moves its own partition
only. Source: spec/transactions 9.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from txlog.base.ids import MessageId, TxnId
from txlog.base.ranges import Bound
from txlog.base.settings import Settings
from txlog.clock import Instant
from txlog.engine.decide.draft import Decision, Draft
from txlog.engine.decide.transactions.resolve import abort_ops, aborter, finish_ops
from txlog.engine.folds.catalog import Subscription, Topic, number_of
from txlog.engine.folds.coordinator import OPEN
from txlog.engine.folds.cursor import Cursor
from txlog.engine.model.ops import Mark, Sought
from txlog.engine.plan.ack_sets import messages_in, resting, subtract, through
from txlog.engine.plan.lookup import check_owner
from txlog.engine.plan.participants import check_available
from txlog.engine.plan.reading.ranges import end_of, partition_of, resolve_bound
from txlog.engine.view import View
from txlog.errors import NotAllowed

HOLDERS_NAMED_MAX = 5


@dataclass(frozen=True, slots=True)
class SoughtPartition:
    """The next message of a partition before the seek and after it.

    redeliver: acknowledged messages that come again; skip: messages that are never delivered
    """

    partition: int
    before: MessageId
    after: MessageId
    redeliver: int
    skip: int


@dataclass(slots=True)
class SeekAnswer:
    """The changes of a seek; aborted: transactions aborted because of their acknowledgements."""

    partitions: list[SoughtPartition] = field(default_factory=list)
    aborted: list[TxnId] = field(default_factory=list)


def seek(
    view: View,
    settings: Settings,
    now: Instant,
    uid: int,
    topic: Topic,
    subscription: Subscription,
    to: Bound,
    indexes: Sequence[int] | None,
    *,
    force: bool,
) -> Decision[SeekAnswer]:
    """Decide that a subscription moves to just before a bound.

    indexes: the partitions that move, None for all; an id must be in one of these partitions
    force:   abort the transactions that hold acknowledgements there, in the same frame
    returns: a SeekAnswer, durable
    raises:  NotAllowed (held acknowledgements, another's transaction), PartitionUnavailable,
             MessageNotFound, SubscriptionNotFound
    """
    moved = list(range(topic.partitions) if indexes is None else indexes)
    if isinstance(to.value, MessageId):
        own_index = partition_of(view, topic, to.value)
        moved = [index for index in moved if index == own_index]
    draft = Draft(view, settings, now.wall_ms)
    answer = SeekAnswer()
    numbers = [number_of(topic, index) for index in moved]
    for number in numbers:
        check_available(view, topic, number)
    pairs = {
        pair for number in numbers for pair in view.cursor(subscription.number, number).pending
    }
    if pairs and not force:
        raise _held_error(subscription, sorted(pairs))
    for pair in sorted(pairs):
        txn = view.coordinator(pair[0]).unfinished[pair[1]]
        if txn.status == OPEN:
            check_owner(txn, uid)
            abort_ops(draft, txn, aborter(txn, uid))
            answer.aborted.append(TxnId(*pair))
        else:
            finish_ops(draft, txn)  # decided; already decided; the bounded sweep has not reached it
    for index, number in zip(moved, numbers, strict=True):
        mark = resting(view, number, resolve_bound(view, topic, index, to))
        answer.partitions.append(_moved(view, topic, subscription, index, mark))
        draft.ops.append(Sought(subscription.number, number, mark))
    return draft.decision(answer, sync=True)


def _held_error(subscription: Subscription, pairs: list[tuple[int, int]]) -> NotAllowed:
    names = ", ".join(str(TxnId(*pair)) for pair in pairs[:HOLDERS_NAMED_MAX])
    more = f" and {len(pairs) - HOLDERS_NAMED_MAX} more" if len(pairs) > HOLDERS_NAMED_MAX else ""
    return NotAllowed(
        f"transactions hold acknowledgements of {subscription.name}: {names}{more}",
        hint="end them, or --force aborts them",
        subscription=subscription.name,
        txn=TxnId(*pairs[0]),
    )


def _moved(
    view: View, topic: Topic, subscription: Subscription, index: int, mark: Mark
) -> SoughtPartition:
    number = number_of(topic, index)
    cursor = view.cursor(subscription.number, number)
    ledger, entries, _ = end_of(view, topic, index)
    end: Mark = (ledger, entries - 1, 0)
    messages_behind = messages_in(view, number, through(view, number, mark, end))
    unacked = _unacked(view, number, cursor, cursor.mark_delete, end)
    left_behind = _unacked(view, number, cursor, max(mark, cursor.mark_delete, key=_order), end)
    return SoughtPartition(
        index,
        next_of(view, number, cursor.mark_delete),
        next_of(view, number, mark),
        messages_behind - left_behind,
        unacked - left_behind,
    )


def _unacked(view: View, number: int, cursor: Cursor, start: Mark, end: Mark) -> int:
    """How many messages between two positions are not acknowledged."""
    runs = through(view, number, start, end)
    return sum(messages_in(view, number, subtract(view, number, run, cursor.acked)) for run in runs)


def _order(mark: Mark) -> tuple[int, int, int]:
    """Marks in order: places inside a marker come before those after it."""
    return (mark[0], mark[1], mark[2] or 1 << 62)


def next_of(view: View, number: int, mark: Mark) -> MessageId:
    """The position after a mark, as an id: the message that comes next, now or later."""
    ledger, entry, index = mark
    if index:
        return MessageId(ledger, entry, index + 1)
    ends = view.topic(number).ledgers
    for at, end in enumerate(ends):
        if end.ledger > ledger:
            return MessageId(end.ledger, 0)
        if end.ledger == ledger and (entry + 1 < end.entries or at == len(ends) - 1):
            return MessageId(ledger, entry + 1)
    return MessageId(ends[-1].ledger, ends[-1].entries)
