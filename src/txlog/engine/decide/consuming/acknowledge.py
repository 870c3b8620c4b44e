"""Acknowledging, one by one or up to a position, plain or in a transaction.

A request is checked as a whole before anything is written. In a transaction only PENDING messages
can be acknowledged; anything else is a conflict, and the frame then aborts the transaction
(spec/transactions 9.3 has the full matrix).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from txlog.base.ids import MessageId, TxnId
from txlog.base.settings import Settings
from txlog.clock import Instant
from txlog.engine.decide.draft import Decision, Draft
from txlog.engine.decide.transactions.transaction import Use, abort_ops, enter
from txlog.engine.folds import buffer as buffers
from txlog.engine.folds.catalog import Subscription, Topic, index_of
from txlog.engine.folds.cursor import Cursor
from txlog.engine.model.idset import Id
from txlog.engine.model.ops import AckConflicted, Acked, Mark, PendingAcked, Run, SubscriptionAdded
from txlog.engine.plan.ack_sets import (
    above_mark,
    acked_outcome,
    checked_run,
    is_trimmed,
    messages_in,
    subtract,
    through,
)
from txlog.engine.plan.lookup import is_overdue
from txlog.engine.plan.participants import check_available
from txlog.engine.plan.standing import OUTSIDE, ConsumerState, is_stale
from txlog.engine.view import View
from txlog.errors import MessageNotFound, NotAllowed, TransactionConflict

STALE = "stale"
_HOW = {
    "deleted": "is acknowledged already",
    STALE: "was received before messages below it came back",
}
Find = Callable[[View], tuple[Topic, Subscription]]


class AckAnswer(msgspec.Struct, frozen=True, gc=False):
    """How many messages it acknowledged, and how many were acknowledged already.

    dropped: not acknowledged, because a transaction holds them
    stale:   cumulative requests refused, because earlier messages were returned meanwhile
    """

    acked: int
    already: int
    dropped: int
    stale: int = 0


def by_partition(view: View, topic: Topic, runs: list[Run]) -> dict[int, list[Run]]:
    """The runs of each partition (its store-wide number), in normal form.

    raises: MessageNotFound, PartitionUnavailable
    """
    out: dict[int, list[Run]] = {}
    owners = view.catalog.owners
    for run in runs:
        owner = owners.get(run[0])
        if owner is None or owner[1] != "p" or index_of(topic, owner[0]) < 0:
            missing = MessageId(run[0], run[1], run[3])
            raise MessageNotFound(
                f"message {missing} does not exist in this topic", message_id=missing
            )
        check_available(view, topic, owner[0])
        out.setdefault(owner[0], []).append(run)
    return {
        partition: [checked_run(view, partition, run) for run in _distinct(runs_there)]
        for partition, runs_there in out.items()
    }


def _distinct(runs: list[Run]) -> list[Run]:
    """The runs without overlap: an id twice counts once, and so does a message with its marker."""
    if len(runs) == 1:
        return runs
    out: list[Run] = []
    for run in sorted(runs, key=lambda run_: (run_[0], run_[1], run_[3], run_[4], run_[2])):
        last = out[-1] if out else None
        if last is None or last[0] != run[0] or run[1] > last[2]:
            out.append(run)
        elif last[3] == 0 and run[2] > last[2]:
            out.append((run[0], last[2] + 1, run[2], 0, 0))
        elif last[3] and run[3] <= last[4] + 1:
            out[-1] = (*last[:4], max(last[4], run[4]))
        elif last[3]:
            out.append(run)
    return out


def _held_by_overdue(
    view: View, subscription: Subscription, partitions: Iterable[int], now: Instant
) -> bool:
    """True when a transaction that holds messages there is past its time-out (I-18).

    This has loaded its coordinator, so the sweep before the repeated call ends it.
    """
    is_overdue_found = False
    for partition in partitions:
        for coordinator, sequence in view.cursor(subscription.number, partition).pending:
            txn = view.coordinator(coordinator).unfinished.get(sequence)
            is_overdue_found = is_overdue_found or (txn is not None and is_overdue(txn, now))
    return is_overdue_found


def acknowledge(
    view: View,
    settings: Settings,
    now: Instant,
    find: Find,
    runs: list[Run],
    *,
    cumulative: bool,
    standing: ConsumerState = OUTSIDE,
) -> Decision[AckAnswer | None]:
    """Decide a plain acknowledgement; best effort, written but not flushed, as in Pulsar.

    standing: the state of the consumer that sends it
    answers:  an AckAnswer, which counts messages held by a transaction as dropped; None: repeat
              the call, because the sweep before it will end an overdue transaction
    raises:   MessageNotFound, NotAllowed (cumulative on a shared type), as find
    """
    topic, subscription = find(view)
    _check_cumulative(view, subscription, runs, cumulative)
    draft = Draft(view, settings, now.wall_ms)
    acked = already = dropped = stale = 0
    asked_of = by_partition(view, topic, runs)
    if _held_by_overdue(view, subscription, asked_of, now):
        return Decision([], answer=None)
    for partition, requested in asked_of.items():
        cursor = view.cursor(subscription.number, partition)
        expanded = requested
        if cumulative:
            target = _target(view, partition, requested)
            if is_stale(cursor, standing, partition, _last(view, partition, target), now):
                stale += 1
                continue
            expanded = through(view, partition, cursor.mark_delete, target)
        new: list[Run] = []
        dropped_before, acked_before = dropped, acked
        for run in expanded:
            open_ones = _undeleted(view, partition, cursor, run)
            count = messages_in(view, partition, open_ones)
            free = [
                part for run_ in open_ones for part in subtract(view, partition, run_, cursor.held)
            ]
            free_count = count if free == open_ones else messages_in(view, partition, free)
            if not (cumulative or open_ones == [run]):
                already += messages_in(view, partition, [run]) - count
            dropped += count - free_count
            acked += free_count
            new += free
        if new or dropped > dropped_before:
            outcome, mark = (
                acked_outcome(view, subscription.number, partition, new)
                if new
                else (new, cursor.mark_delete)
            )
            draft.ops.append(
                Acked(
                    subscription.number,
                    partition,
                    outcome,
                    mark,
                    acked - acked_before,
                    dropped - dropped_before,
                )
            )
    return draft.decision(AckAnswer(acked, already, dropped, stale))


def acknowledge_in_txn(
    view: View,
    settings: Settings,
    now: Instant,
    uid: int,
    find: Find,
    runs: list[Run],
    use: Use,
    *,
    cumulative: bool,
    standing: ConsumerState = OUTSIDE,
) -> Decision[tuple[TxnId, AckAnswer] | None]:
    """Decide an acknowledgement in a transaction: PENDING becomes PENDING_ACK.

    answers: (its TxnId, an AckAnswer), flushed by the commit; None: repeat the call
    raises:  TransactionNotFound, NotAllowed, InvalidTxnStatus and the like, MessageNotFound; and
             TransactionConflict as the error of a decision that aborts the transaction
    source:  PIP-31 "Acknowledge in a transaction", spec/transactions 9.3
    """
    draft = Draft(view, settings, now.wall_ms)
    txn = enter(draft, now, uid, use)
    if isinstance(txn, Decision):
        return txn
    topic, subscription = find(view)
    _check_cumulative(view, subscription, runs, cumulative)
    pair = (txn.coordinator, txn.sequence)
    opening = len(draft.ops)
    total = 0
    asked_of = by_partition(view, topic, runs)
    if _held_by_overdue(view, subscription, asked_of, now):
        return Decision([], answer=None)
    for partition, requested in asked_of.items():
        cursor = view.cursor(subscription.number, partition)
        conflict, claimed, mark = _claim(view, partition, cursor, requested, pair, cumulative)
        target = _target(view, partition, requested) if cumulative else None
        if target is not None and is_stale(
            cursor, standing, partition, _last(view, partition, target), now
        ):
            conflict = (MessageId(*target), STALE)
        if conflict is not None:
            del draft.ops[opening:]
            abort_ops(draft, txn, "conflict")
            draft.ops.append(AckConflicted(subscription.number, partition))
            return Decision(draft.ops, None, True, None, _conflict(TxnId(*pair), *conflict))
        key = (subscription.number, partition)
        if key not in txn.subscriptions:
            draft.ops.append(SubscriptionAdded(*pair, *key))
        count = messages_in(view, partition, claimed)
        draft.ops.append(PendingAcked(*key, *pair, claimed, mark, count, standing.consumer))
        total += count
    return draft.decision((TxnId(*pair), AckAnswer(total, 0, 0)))


def _claim(
    view: View,
    partition: int,
    cursor: Cursor,
    requested: list[Run],
    pair: tuple[int, int],
    cumulative: bool,
) -> tuple[tuple[MessageId, str] | None, list[Run], Mark | None]:
    """(conflict or None, runs to hold, cumulative mark) for one partition."""
    if not cumulative:
        for run in requested:
            if _undeleted(view, partition, cursor, run) != [run]:
                return (MessageId(run[0], run[1], run[3]), "deleted"), [], None
            common = cursor.held.first_common(run)
            if common is not None:
                return (MessageId(*common), _holder(cursor, common)), [], None
        return None, requested, None
    target = _target(view, partition, requested)
    for other, pending in cursor.pending.items():
        is_same = other == pair
        if pending.cumulative is not None and (
            not is_same or _at_or_below(target, pending.cumulative)
        ):
            return (MessageId(*pending.cumulative), _holder_text(other)), [], None
    expanded = through(view, partition, cursor.mark_delete, target)
    undeleted = [part for run in expanded for part in _undeleted(view, partition, cursor, run)]
    if not undeleted:
        return (MessageId(*target), "deleted"), [], None
    for other, pending in cursor.pending.items():
        if other != pair:
            for run in pending.runs:
                if _at_or_below((run[0], run[1], run[3] or 1), target):
                    return (MessageId(run[0], run[1], run[3]), _holder_text(other)), [], None
    free = [part for run_ in undeleted for part in subtract(view, partition, run_, cursor.held)]
    return None, free, target


def _undeleted(view: View, partition: int, cursor: Cursor, run: Run) -> list[Run]:
    """The part of the run that is not DELETED."""
    if is_trimmed(view, partition, run[0]):
        return []
    above, acked = above_mark(view, partition, run, cursor.mark_delete), cursor.acked
    if not (acked.entries or acked.inner):
        return above
    return [piece for part in above for piece in subtract(view, partition, part, acked)]


def _target(view: View, partition: int, requested: list[Run]) -> Mark:
    """The single id of a cumulative request, as a mark.

    The last message of a marker is the marker's entry.
    """
    ledger, _, entry, _, index = requested[0]
    marker = buffers.find_marker(view.buffer(partition), ledger, entry) if index else None
    if marker is not None and marker.count == index:
        index = 0
    return (ledger, entry, index)


def _last(view: View, partition: int, target: Mark) -> Id:
    """The last message that a mark covers; a consumer gets a marker's one by one."""
    ledger, entry, index = target
    marker = None if index else buffers.find_marker(view.buffer(partition), ledger, entry)
    return target if marker is None else (ledger, entry, marker.count)


def _at_or_below(first: Mark, second: Mark) -> bool:
    whole = 1 << 62
    return (first[0], first[1], first[2] or whole) <= (second[0], second[1], second[2] or whole)


def _check_cumulative(
    view: View, subscription: Subscription, runs: list[Run], cumulative: bool
) -> None:
    if not cumulative:
        return
    if subscription.type in ("shared", "key-shared"):
        raise NotAllowed(
            f"{subscription.name} is {subscription.type}: a cumulative acknowledgement is not "
            "allowed",
            hint="acknowledge message by message",
            subscription=subscription.name,
        )
    partition_owners = view.catalog.owners
    owners = [partition_owners[run[0]] for run in runs if run[0] in partition_owners]
    if len(set(owners)) != len(owners) or any(run[1] != run[2] for run in runs):
        raise NotAllowed("a cumulative acknowledgement takes exactly one id per partition")


def _holder(cursor: Cursor, common: tuple[int, int, int]) -> str:
    for pair, pending in cursor.pending.items():
        for ledger, first, last, index_first, index_last in pending.runs:
            if (
                ledger == common[0]
                and first <= common[1] <= last
                and (not index_first or not common[2] or index_first <= common[2] <= index_last)
            ):
                return _holder_text(pair)
    return "deleted"


def _holder_text(pair: tuple[int, int]) -> str:
    return f"{pair[0]}:{pair[1]}"


def _conflict(txn_id: TxnId, message: MessageId, holder: str) -> TransactionConflict:
    how = _HOW.get(holder, f"is held by {holder}")
    return TransactionConflict(
        f"message {message} {how}; transaction {txn_id} was aborted",
        hint="begin again: its messages are delivered again",
        txn=txn_id,
        message_id=message,
        holder=holder,
    )
