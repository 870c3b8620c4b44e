"""Changing what a subscription delivers next, by command: seek, skip, expire, promote, cancel.

    seek       the position moves, forward or back: everything before it is acknowledged, everything
               after it pending; leases and redelivery counts are void
    skip       the next messages, the backlog, or those older than a limit or the time to live of
               the topic are acknowledged without being named
    promote    delayed messages are released on the subscription now (Promoted); later ones wait
    cancel     delayed messages are acknowledged before they are due (Acked)

One frame moves all partitions. Before a seek, transactions that hold acknowledgements there are
aborted in that frame, if the caller agreed to it. An id moves its own partition only.

The others act like plain acknowledgements: acknowledgements that a transaction holds stay with it,
and a message that is leased is acknowledged where it is. A time to live counts from the moment when
a message became visible, or from deliver_at, if that is later and the policy selects it.

A promotion is checked as a whole before anything is written. Whether a message is delayed is read
from its row if it is named, and otherwise from the index.
Source: spec/transactions 9.1, spec/delayed 1, 8, 9, 11.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa

from txlog.base.ids import MessageId, TopicName, TxnId
from txlog.base.ranges import Bound
from txlog.base.settings import Settings
from txlog.base.startup import compute as pc
from txlog.base.suggest import command_line
from txlog.clock import Instant
from txlog.engine.decide.consuming.acknowledge import by_partition
from txlog.engine.decide.draft import Decision, Draft
from txlog.engine.decide.sending.send import AT
from txlog.engine.decide.transactions.transaction import abort_ops, aborter, finish_ops
from txlog.engine.folds.catalog import Subscription, Topic, number_of, numbers
from txlog.engine.folds.coordinator import OPEN, PREPARED
from txlog.engine.folds.cursor import Cursor
from txlog.engine.model.idset import Id, IdSet, size
from txlog.engine.model.ops import Acked, Mark, Promoted, Run, Sought
from txlog.engine.plan.ack_sets import (
    CursorEffect,
    above_mark,
    acked_outcome,
    is_trimmed,
    messages_in,
    resting,
    subtract,
    through,
)
from txlog.engine.plan.clock_trust import trusted
from txlog.engine.plan.delayed.index import index_of_partition
from txlog.engine.plan.delayed.upcoming import (
    TIMES,
    Note,
    is_behind,
    is_in,
    runs_in_order,
    times_of,
    upcoming_in_any_order,
)
from txlog.engine.plan.lookup import check_owner, prepared_error
from txlog.engine.plan.participants import check_available
from txlog.engine.plan.policies import delay_policy, retention_policy
from txlog.engine.plan.reading.dispatch import (
    NO_MATTER,
    Piece,
    Skip,
    plan,
    requests_of,
    taken_apart,
)
from txlog.engine.plan.reading.ranges import (
    before_time,
    end_of,
    partition_of,
    resolve_bound,
    stop_after,
)
from txlog.engine.view import View
from txlog.errors import MessageNotFound, NotAllowed

# --- seek -----------------------------------------------------------------------------------------

HOLDERS_NAMED_MAX = 5
# A way back has a line for each partition; more runs would not fit a terminal.
UNDO_RUNS_MAX = 100


@dataclass(frozen=True, slots=True)
class SoughtPartition:
    """The next message of a partition before the seek and after it.

    redeliver: acknowledged messages that come again; skip: messages that are never delivered
    acked:     those acknowledged before the seek and after `before`, at most UNDO_RUNS_MAX runs
    left_out:  how many more there were
    forgotten: messages whose redelivery count, lease, delay or promotion ends
    """

    partition: int
    before: MessageId
    after: MessageId
    redeliver: int
    skip: int
    acked: list[Run]
    left_out: int
    forgotten: int


@dataclass(slots=True)
class SeekAnswer:
    """The changes of a seek; aborted: the transactions it aborted for their acknowledgements."""

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
    acked: Sequence[Run] = (),
) -> Decision[SeekAnswer]:
    """Decide that a subscription moves to just before a bound.

    indexes: the partitions that move, None for all; an id must be in one of these partitions
    force:   abort the transactions that hold acknowledgements there, in the same frame
    acked:   messages after the bound that are acknowledged in the same frame; in these partitions
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
        if txn.status == PREPARED:
            raise prepared_error(txn)
        if txn.status == OPEN:
            check_owner(txn, uid)
            abort_ops(draft, txn, aborter(txn, uid))
            answer.aborted.append(TxnId(*pair))
        else:
            finish_ops(draft, txn)  # it is decided, and the bounded sweep has not reached it
    runs_after = by_partition(view, topic, [*acked])
    if missing := runs_after.keys() - {*numbers}:
        raise _not_found(topic, runs_after[min(missing)][0])
    for index, number in zip(moved, numbers, strict=True):
        mark = resting(view, number, resolve_bound(view, topic, index, to))
        runs = [
            part
            for run in runs_after.get(number, ())
            if not is_trimmed(view, number, run[0])
            for part in above_mark(view, number, run, mark)
        ]
        answer.partitions.append(_moved(view, topic, subscription, index, mark, runs))
        _move(draft, subscription.number, number, mark, runs)
    return draft.decision(answer, sync=True)


def _move(draft: Draft, subscription: int, number: int, mark: Mark, runs: list[Run]) -> None:
    """Move a cursor to a mark, and acknowledge messages after it."""
    view = draft.view
    draft.ops.append(Sought(subscription, number, mark))
    if runs:
        effect = CursorEffect(mark)
        outcome, end = acked_outcome(view, subscription, number, runs, effect, acked=IdSet())
        count = messages_in(view, number, runs)
        draft.ops.append(Acked(subscription, number, outcome, end, count))


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
    view: View,
    topic: Topic,
    subscription: Subscription,
    index: int,
    mark: Mark,
    runs: Sequence[Run],
) -> SoughtPartition:
    """The effect of a seek to a mark, after which these runs are acknowledged."""
    number = number_of(topic, index)
    cursor = view.cursor(subscription.number, number)
    ledger, entries, _ = end_of(view, topic, index)
    end: Mark = (ledger, entries - 1, 0)
    acked_after, acked_ever = IdSet(), cursor.acked.copy()
    for run in runs:
        acked_after.add(run)
        acked_ever.add(run)
    unacked = _unacked(view, number, cursor.acked, cursor.mark_delete, end)
    unacked_after = _unacked(view, number, acked_after, mark, end)
    both = max(mark, cursor.mark_delete, key=_order)
    left_behind = _unacked(view, number, acked_ever, both, end)
    first_runs = cursor.acked.first_runs(UNDO_RUNS_MAX)
    all_after = messages_in(view, number, through(view, number, cursor.mark_delete, end))
    leases = cursor.leases
    forgotten = {*cursor.redelivered, *leases.waiting}
    counted = sum(map(sum, (cursor.released.count(), leases.leased.count())))
    return SoughtPartition(
        index,
        next_of(view, number, cursor.mark_delete),
        next_of(view, number, mark),
        unacked_after - left_behind,
        unacked - left_behind,
        first_runs,
        all_after - unacked - messages_in(view, number, first_runs),
        len(forgotten) + counted,
    )


def _unacked(view: View, number: int, acked: IdSet, start: Mark, end: Mark) -> int:
    """How many messages between two positions are not in a set."""
    runs = through(view, number, start, end)
    return sum(messages_in(view, number, subtract(view, number, run, acked)) for run in runs)


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


# --- skip -----------------------------------------------------------------------------------------

ALL = 1 << 62


class SkipLimit(msgspec.Struct, frozen=True, gc=False):
    """How much to skip: at most so many messages of each partition.

    before_ms: only messages older than this instant; None: any age
    due_ms:    set if their age counts from a later deliver_at: the instant up to which it is due
    """

    messages: int = ALL
    before_ms: int | None = None
    due_ms: int | None = None


def skip(
    view: View,
    settings: Settings,
    now: Instant,
    topic: Topic,
    subscription: Subscription,
    amount: SkipLimit,
    indexes: Sequence[int] | None,
) -> Decision[int]:
    """Decide to acknowledge the next messages of a subscription.

    indexes: the partitions, None for all
    answers: how many messages; durable
    raises:  PartitionUnavailable
    """
    draft = Draft(view, settings, now.wall_ms)
    total = 0
    for index in range(topic.partitions) if indexes is None else indexes:
        number = number_of(topic, index)
        check_available(view, topic, number)
        total += _skip(draft, subscription.number, number, amount)
    return draft.decision(total, sync=True)


def expire(
    view: View, settings: Settings, now: Instant, pairs: Sequence[tuple[int, int]]
) -> Decision[int]:
    """Decide to acknowledge messages past the time to live of their topic; written but not flushed.

    pairs: (topic, subscription) numbers; deleted or unavailable ones are skipped
    returns: how many messages
    """
    draft = Draft(view, settings, now.wall_ms)
    total = 0
    for topic_number, subscription in pairs:
        topic = view.catalog.topics.get(topic_number)
        if topic is None or subscription not in topic.subscriptions:
            continue
        amount = past_ttl(view, settings, topic, now)
        if amount is None:
            continue
        for number in numbers(topic):
            if number not in view.catalog.unavailable and _is_due(
                view, subscription, number, amount
            ):
                total += _skip(draft, subscription, number, amount)
    return draft.decision(total)


def past_ttl(view: View, settings: Settings, topic: Topic, now: Instant) -> SkipLimit | None:
    """The messages past the topic's time to live; None: the topic has none."""
    ttl_ms = retention_policy(view, settings, topic).ttl_ms
    if ttl_ms is None:
        return None
    policy = delay_policy(view, settings, topic)
    now_ms = trusted(view, settings, now).wall_ms
    due_ms = policy.cutoff(now_ms) if policy.is_ttl_from_deliver_at else None
    return SkipLimit(before_ms=now_ms - ttl_ms, due_ms=due_ms)


def _is_due(view: View, subscription: int, number: int, amount: SkipLimit) -> bool:
    """True when the first PENDING message is too old; costs reading the time of one row.

    If deliver_at counts, this looks at the first message that is due. If that message is not too
    old, no later message is.
    """
    before_ms = amount.before_ms
    assert before_ms is not None
    cursor = view.cursor(subscription, number)
    for end in view.topic(number).ledgers:
        if end.entries and end.ledger >= cursor.mark_delete[0]:
            if end.first_ms >= before_ms:  # `before_time` stops there
                return False
            break
    left_alone = _left_alone(view, number, cursor, amount)
    pieces = plan(view, number, cursor.mark_delete, 1, left_alone).pieces
    if not pieces:
        return False
    if pieces[0].marker is not None:
        return pieces[0].marker.time_ms < before_ms
    ledger, entry = pieces[0].ledger, pieces[0].entry
    (rows,) = view.rows([(ledger, entry, entry + 1)], ["publish_time"])
    return bool(rows.column(0).cast("int64")[0].as_py() < before_ms)


def _skip(draft: Draft, subscription: int, number: int, amount: SkipLimit) -> int:
    view = draft.view
    cursor = view.cursor(subscription, number)
    stop = None
    if amount.before_ms is not None:
        stop = stop_after(before_time(view, number, amount.before_ms))
    planned = plan(
        view,
        number,
        cursor.mark_delete,
        amount.messages,
        _left_alone(view, number, cursor, amount),
        stop,
        bytes_max=NO_MATTER,
    )
    pieces, messages = planned.pieces, planned.messages
    if amount.due_ms is not None and amount.before_ms is not None:
        pieces = _delivered_before(view, number, pieces, amount.before_ms)
        messages = sum(piece.rows for piece in pieces)
    if messages:
        outcome, mark = acked_outcome(view, subscription, number, runs_of(pieces))
        draft.ops.append(Acked(subscription, number, outcome, mark, messages))
    return messages


def _left_alone(view: View, number: int, cursor: Cursor, amount: SkipLimit) -> Skip:
    """Ids that a skip passes over: acknowledged, held by a transaction, or (due_ms) not due."""
    if amount.due_ms is None or view.delayed(number).is_empty:
        return (cursor.acked, cursor.held)
    index = index_of_partition(view, number, amount.due_ms)
    waiting, _ = index.futures(cursor, cursor.mark_delete, make_do=True)
    return (cursor.acked, cursor.held, *waiting)


def _delivered_before(view: View, number: int, pieces: list[Piece], before_ms: int) -> list[Piece]:
    """The messages without a deliver_at, or with one before this instant."""
    delayed = view.delayed(number)
    if not pieces or (delayed.is_empty and delayed.passed_ms < before_ms):
        return pieces  # no message there can have such a time
    column = pa.chunked_array(
        [
            chunk
            for table in view.rows(requests_of(pieces), [AT])
            for chunk in table.column(0).cast(pa.int64()).chunks
        ],
        pa.int64(),
    )
    is_before = pc.fill_null(pc.less(column, pa.scalar(before_ms, pa.int64())), True)
    encoded = pc.run_end_encode(is_before.combine_chunks())
    out: list[Piece] = []
    at = start = 0  # in the rows of the piece at hand, and of all pieces before it
    low = 0
    for value, high in zip(encoded.values.to_pylist(), encoded.run_ends.to_pylist(), strict=True):
        while low < high:
            piece = pieces[at]
            stop = min(high, start + piece.rows)
            if value:
                out.append(_part(piece, low - start, stop - low))
            low = stop
            if low == start + piece.rows:
                start, at = low, at + 1
    return out


def _part(piece: Piece, first: int, rows: int) -> Piece:
    """Consecutive messages of a piece."""
    if piece.marker is None:
        return Piece(piece.ledger, piece.entry + first, rows, 0, None)
    return Piece(piece.ledger, piece.entry, rows, piece.index + first, piece.marker)


def runs_of(pieces: list[Piece]) -> list[Run]:
    """The messages of a plan as runs; all messages of a marker are its entry."""
    out: list[Run] = []
    for piece in pieces:
        ledger, entry, last = piece.ledger, piece.entry, piece.entry + piece.rows - 1
        if piece.marker is not None:
            last = entry
            if piece.rows != piece.marker.count:
                out.append((ledger, entry, entry, piece.index, piece.index + piece.rows - 1))
                continue
        if out and out[-1][0] == ledger and out[-1][2] == entry - 1 and not out[-1][3]:
            out[-1] = (ledger, out[-1][1], last, 0, 0)
        else:
            out.append((ledger, entry, last, 0, 0))
    return out


# --- promotion ------------------------------------------------------------------------------------

HONOURING = ("shared", "key-shared")  # the types that wait for the time of a message
Find = Callable[[View], tuple[Topic, Subscription | None]]


class DelayedSelection(msgspec.Struct, frozen=True, gc=False):
    """Which delayed messages a caller means: named ones, those due before an instant, or all.

    indexes: the partitions; note: called with each bucket of the index that could not be read
    """

    indexes: Sequence[int]
    note: Note
    runs: list[Run] | None = None
    before_ms: int | None = None


class PromotionResult(msgspec.Struct, frozen=True, gc=False):
    """How many messages changed, and how many named messages are not delayed.

    first_ms, last_ms: the least and the greatest time of delivery of the former
    """

    messages: int
    not_delayed: int = 0
    first_ms: int | None = None
    last_ms: int | None = None


def promote(
    view: View, settings: Settings, now: Instant, find: Find, which: DelayedSelection
) -> Decision[PromotionResult]:
    """Decide to release delayed messages, on one subscription, or on all of a type that waits.

    answers: PromotionResult; durable
    raises:  NotAllowed (another type of subscription; a transaction holds one), MessageNotFound,
             PartitionUnavailable, as find
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
    """Decide a change of the delayed messages that `is_left` selects on each subscription.

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
    """(delayed messages that the caller means, by partition; how many named are not delayed)."""
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
        hint=f"see what it holds: {command_line('txn show', holder)}",
        subscription=subscription.name,
        message_id=message,
        txn=holder,
    )


def _has(run: Run, id_: Id) -> bool:
    ledger, first, last, index_first, index_last = run
    inside = ledger == id_[0] and first <= id_[1] <= last
    return inside and (not index_first or index_first <= id_[2] <= index_last)
