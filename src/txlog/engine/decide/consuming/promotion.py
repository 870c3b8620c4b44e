"""Promoting delayed messages (deliver them now, whatever their time), or cancelling them.

    promote    Promoted: released on the subscription; later ones still wait
    cancel     Acked: the same as an acknowledgement before the message was due

A request is checked as a whole before anything is written, and is one frame. Whether a message is
delayed is read from its row if it is named, and otherwise from the index.
Source: spec/delayed 1, 9, 11.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import pyarrow as pa

from txlog.base.ids import MessageId, TopicName, TxnId
from txlog.base.settings import Settings
from txlog.base.startup import compute as pc
from txlog.clock import Instant
from txlog.engine.decide.consuming.acknowledge import by_partition
from txlog.engine.decide.draft import Decision, Draft
from txlog.engine.folds.catalog import Subscription, Topic, number_of
from txlog.engine.folds.cursor import Cursor
from txlog.engine.model.idset import Id, size
from txlog.engine.model.ops import Acked, Promoted, Run
from txlog.engine.plan.ack_sets import acked_outcome, is_trimmed
from txlog.engine.plan.delayed.upcoming import (
    TIMES,
    Note,
    is_behind,
    is_in,
    runs_in_order,
    times_of,
    upcoming_in_any_order,
)
from txlog.engine.plan.participants import check_available
from txlog.engine.plan.reading.fetch import taken_apart
from txlog.engine.view import View
from txlog.errors import MessageNotFound, NotAllowed

HONOURING = ("shared", "key-shared")  # the types that wait for the time of a message
Find = Callable[[View], tuple[Topic, Subscription | None]]


class DelayedSelection(msgspec.Struct, frozen=True, gc=False):
    """Which delayed messages a caller means: named messages, those before an instant, or all.

    indexes: the partitions; note: called with each bucket of the index that could not be read
    """

    indexes: Sequence[int]
    note: Note
    runs: list[Run] | None = None
    before_ms: int | None = None


class PromotionResult(msgspec.Struct, frozen=True, gc=False):
    """The number of messages that changed; first_ms, last_ms: the least and greatest of their
    times.
    """

    messages: int
    not_delayed: int = 0
    first_ms: int | None = None
    last_ms: int | None = None


def promote(
    view: View, settings: Settings, now: Instant, find: Find, which: DelayedSelection
) -> Decision[PromotionResult]:
    """Decide to release delayed messages, on one subscription, or on all of a type that waits.

    returns: PromotionResult, durable
    raises:  NotAllowed (another type of subscription; a transaction holds one), MessageNotFound,
             PartitionUnavailable, what find raises; nothing is changed then
    """
    topic, only = find(view)
    if only is not None and only.type not in HONOURING:
        raise NotAllowed(
            f"{only.name} is {only.type}: it gets messages whatever their time",
            hint="promote is for shared and key-shared subscriptions",
            subscription=only.name,
        )
    honouring = [
        subscription for subscription in _meant(view, topic, only) if subscription.type in HONOURING
    ]

    def release(draft: Draft, subscription: int, number: int, times: pa.Table) -> None:
        draft.ops.append(Promoted(subscription, number, runs_in_order(times)))

    def is_left(cursor: Cursor, times: pa.Table) -> pa.ChunkedArray:
        done = pc.or_(is_in(times, cursor.released), is_in(times, cursor.leases.leased))
        return pc.and_(_unacknowledged(cursor, times), pc.invert(done))

    return _change(view, settings, now, topic, honouring, which, is_left, release)


def cancel(
    view: View, settings: Settings, now: Instant, find: Find, which: DelayedSelection
) -> Decision[PromotionResult]:
    """Decide to acknowledge delayed messages, on one subscription or on all.

    returns, raises: as promote
    """
    topic, only = find(view)
    subscriptions = _meant(view, topic, only)

    def acknowledge(draft: Draft, subscription: int, number: int, times: pa.Table) -> None:
        runs = runs_in_order(times)
        outcome, mark = acked_outcome(view, subscription, number, runs)
        draft.ops.append(Acked(subscription, number, outcome, mark, times.num_rows))

    return _change(view, settings, now, topic, subscriptions, which, _unacknowledged, acknowledge)


def _meant(view: View, topic: Topic, only: Subscription | None) -> list[Subscription]:
    subscriptions = [view.catalog.subscriptions[number] for number in topic.subscriptions]
    return subscriptions if only is None else [only]


def _unacknowledged(cursor: Cursor, times: pa.Table) -> pa.ChunkedArray:
    return pc.and_(is_behind(times, cursor.mark_delete), pc.invert(is_in(times, cursor.acked)))


def _change(
    view: View,
    settings: Settings,
    now: Instant,
    topic: Topic,
    subscriptions: Sequence[Subscription],
    which: DelayedSelection,
    is_left: Callable[[Cursor, pa.Table], pa.ChunkedArray],
    change: Callable[[Draft, int, int, pa.Table], None],
) -> Decision[PromotionResult]:
    """Decide a change of those delayed messages that `is_left` selects on each subscription.

    Named messages count even if nothing changed for them; others count only if something changed.
    """
    draft = Draft(view, settings, now.wall_ms)
    delayed, not_delayed = _delayed(view, now, topic, which)
    done = [TIMES.empty_table()]
    for number, times in delayed.items():
        touched = pa.chunked_array([pa.repeat(pa.scalar(False), times.num_rows)])
        for subscription in subscriptions:
            cursor = view.cursor(subscription.number, number)
            is_pending = is_in(times, cursor.held)
            if which.runs is not None and pc.any(is_pending).as_py():
                raise _pending_error(subscription, cursor, times.filter(is_pending))
            changed = pc.and_(is_left(cursor, times), pc.invert(is_pending))
            touched = pc.or_(touched, changed)
            if pc.any(changed).as_py():
                change(draft, subscription.number, number, times.filter(changed))
        done.append(times if which.runs is not None and subscriptions else times.filter(touched))
    at = pa.concat_tables(done)["deliver_at"]
    ends = pc.min_max(at).as_py()
    answer = PromotionResult(len(at), not_delayed, ends["min"], ends["max"])
    return draft.decision(answer, sync=True)


def _delayed(
    view: View, now: Instant, topic: Topic, which: DelayedSelection
) -> tuple[dict[int, pa.Table], int]:
    """The delayed messages that the caller means, by partition, and how many named messages are
    not delayed.
    """
    numbers = [number_of(topic, index) for index in which.indexes]
    if which.runs is None:
        out: dict[int, pa.Table] = {}
        for number in numbers:
            check_available(view, topic, number)
            pieces = upcoming_in_any_order(view, [number], which.note, now.wall_ms, which.before_ms)
            out[number] = pa.concat_tables([TIMES.empty_table(), *pieces])
        return out, 0
    out, not_delayed = {}, 0
    for number, runs_there in by_partition(view, topic, which.runs).items():
        for run in runs_there:
            if number not in numbers or is_trimmed(view, number, run[0]):
                raise _not_found(topic, run)
        runs = taken_apart(view, number, runs_there)
        times = times_of(view, number, runs)
        out[number] = times.filter(pc.greater(times["deliver_at"], now.wall_ms))
        not_delayed += sum(map(size, runs)) - out[number].num_rows
    return out, not_delayed


def _not_found(topic: Topic, run: Run) -> MessageNotFound:
    missing = MessageId(run[0], run[1], run[3])
    short = TopicName.parse(topic.name).short
    return MessageNotFound(f"message {missing} does not exist in {short}", message_id=missing)


def _pending_error(subscription: Subscription, cursor: Cursor, times: pa.Table) -> NotAllowed:
    ledger, entry, index = (times[name][0].as_py() for name in TIMES.names[1:])
    message = MessageId(ledger, entry, index)
    holder = next(
        TxnId(*pair)
        for pair, pending in cursor.pending.items()
        if any(_has(run, (ledger, entry, index)) for run in pending.runs)
    )
    return NotAllowed(
        f"transaction {holder} has acknowledged message {message} on "
        f"{subscription.name}, and has not ended",
        hint=f"see what it holds: txlog txn show {holder}",
        subscription=subscription.name,
        message_id=message,
        txn=holder,
    )


def _has(run: Run, id_: Id) -> bool:
    ledger, first, last, index_first, index_last = run
    inside = ledger == id_[0] and first <= id_[1] <= last
    return inside and (not index_first or index_first <= id_[2] <= index_last)
