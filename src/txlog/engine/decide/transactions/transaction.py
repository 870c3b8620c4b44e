"""One transaction: how an operation enters it, how it begins, and how it ends.

The decision table of spec/transactions 5: the answer to an end depends only on (id, action) and the
record, so a repeated end gets the same answer from every process and after every restart.

An operation names a transaction by its id, or asks to open a new one. In that case the operation's
own frame opens the transaction, which saves a frame and changes no answer. Pulsar's clients name a
partition or subscription before they use it, and admin tools show it from then on. Messages and
acknowledgements register their place themselves, so nothing depends on `register`: the end of a
transaction skips a participant that holds nothing.

One frame holds the decision, the markers, the cursor changes and the final status (Law 4):

    TxnEnded · CommitMarker + BufferCommitted per partition with messages
    · PendingCommitted per cursor with acknowledgements · KeyReleased, if it was begun under a key

While a participant is unavailable, the frame has StatusUpdated OPEN→COMMITTING instead of TxnEnded.
The part of the participant and the last status wait for a later frame (`finish_ops`): the frame
that brings the partition back, or the frame of a later sweep. If one frame opens and ends the
transaction, its writer merges the ops that open it into TxnEnded (`ops.merged`).
Source: PIP-31 "Begin transaction", "Add partition", "Add subscription", "End transaction";
spec/transactions 4 to 6, 11.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from txlog.base.ids import TopicName, TxnId
from txlog.base.settings import Settings
from txlog.base.suggest import command_line
from txlog.clock import Instant
from txlog.engine.decide.draft import Decision, Draft
from txlog.engine.folds import buffer as buffers
from txlog.engine.folds import catalog as catalogs
from txlog.engine.folds.catalog import Topic
from txlog.engine.folds.coordinator import (
    ABORTED,
    ABORTING,
    COMMITTED,
    COMMITTING,
    ENDED,
    OPEN,
    PREPARED,
    Txn,
)
from txlog.engine.model.ops import (
    BufferAborted,
    BufferCommitted,
    CommitMarker,
    CounterRaised,
    Effect,
    IdsReserved,
    KeyReleased,
    Op,
    PartitionAdded,
    PendingAborted,
    PendingCommitted,
    StatusUpdated,
    SubscriptionAdded,
    TxnEnded,
    TxnOpened,
    TxnPrepared,
)
from txlog.engine.plan.ack_sets import pending_outcome
from txlog.engine.plan.lookup import (
    check_coordinator,
    check_open,
    check_owner,
    ended_error,
    is_overdue,
    prepared_error,
    timed_out,
    transaction,
)
from txlog.engine.plan.lookup import topic as find_topic
from txlog.engine.plan.participants import Participant, Participants, participants
from txlog.engine.view import View
from txlog.errors import InvalidArgument, InvalidTxnStatus, LimitExceeded

# --- the ops of an end ----------------------------------------------------------------------------


class EndOutcome(msgspec.Struct, frozen=True, gc=False):
    """How far a transaction's end has come; markers as (partition, ledger, entry, messages)."""

    status: str
    reason: str | None
    messages: int
    acks: int
    markers: list[tuple[int, int, int, int]]
    waiting: list[Participant]
    skipped: list[Participant]


def commit_ops(draft: Draft, txn: Txn) -> EndOutcome:
    """Add the ops that commit an OPEN or PREPARED transaction, where participants are available."""
    involved = participants(draft.view, txn)
    body, markers = _commit_body(draft, txn, involved)
    return _decide(draft, txn, COMMITTING, None, involved, markers, body)


def aborter(txn: Txn, uid: int) -> str:
    """The reason of an abort that a caller requests: `user` for the owner, else `admin`."""
    return "user" if uid == txn.owner_uid else "admin"


def abort_ops(draft: Draft, txn: Txn, reason: str) -> EndOutcome:
    """Add the ops that abort an OPEN or PREPARED transaction; nothing is written to a partition."""
    involved = participants(draft.view, txn)
    body = _abort_body(draft, txn, involved)
    return _decide(draft, txn, ABORTING, reason, involved, [], body)


def finish_ops(
    draft: Draft, txn: Txn, back: int = 0, deleted: Collection[Participant] = ()
) -> EndOutcome:
    """Add the ops that continue a decided transaction, at participants that are available now.

    If none is left, the transaction ends.
    back:    a partition that the same frame makes available
    deleted: participants that the same frame deletes
    """
    involved = participants(draft.view, txn, back, deleted)
    if txn.status == ABORTING:
        draft.ops += _abort_body(draft, txn, involved)
        return _finish(draft, txn, involved, [], [])
    body, markers = _commit_body(draft, txn, involved)
    draft.ops += body
    late = sorted([*markers, *unrecorded_markers(draft.view, txn)])
    return _finish(draft, txn, involved, sorted([*txn.markers, *late]), late)


def unrecorded_markers(view: View, txn: Txn) -> list[tuple[int, int, int, int]]:
    """Markers of a waiting transaction since its decision; the last status puts them on record."""
    out: list[tuple[int, int, int, int]] = []
    recorded = {marker[0] for marker in txn.markers}
    for partition in txn.partitions:
        if partition not in recorded:
            found_marker = buffers.marker_of(
                view.buffer(partition), txn.coordinator, txn.sequence, txn.decision_lsn
            )
            if found_marker is not None:
                ledger, placed = found_marker
                out.append((partition, ledger, placed.entry, placed.count))
    return out


def _decide(
    draft: Draft,
    txn: Txn,
    status: str,
    reason: str | None,
    involved: Participants,
    markers: list[tuple[int, int, int, int]],
    body: list[Op],
) -> EndOutcome:
    """Add the op that decides the transaction, the point of no return, and those that follow it.

    The log of a prepared transaction shows each change of its status: it has two ops.
    """
    pair = (txn.coordinator, txn.sequence)
    messages, acks, skipped = involved.messages, involved.acks, involved.skipped
    end = COMMITTED if status == COMMITTING else ABORTED
    if involved.waiting or txn.status == PREPARED:
        draft.ops.append(StatusUpdated(*pair, txn.status, status, reason, messages, acks, markers))
        draft.ops += body
    else:
        draft.ops.append(TxnEnded(*pair, end, reason, messages, acks, markers, skipped))
        draft.ops += body
    if not involved.waiting:
        if txn.status == PREPARED:
            draft.ops.append(StatusUpdated(*pair, status, end, skipped=skipped))
        status = end
        release_key(draft, txn)
    return EndOutcome(status, reason, messages, acks, markers, involved.waiting, skipped)


def _finish(
    draft: Draft,
    txn: Txn,
    involved: Participants,
    markers: list[tuple[int, int, int, int]],
    late: list[tuple[int, int, int, int]],
) -> EndOutcome:
    """Add the last status unless a participant waits; returns how far the end has come."""
    status = txn.status
    if not involved.waiting:
        status = COMMITTED if status == COMMITTING else ABORTED
        draft.ops.append(
            StatusUpdated(
                txn.coordinator,
                txn.sequence,
                txn.status,
                status,
                markers=late,
                skipped=involved.skipped,
            )
        )
        release_key(draft, txn)
    return EndOutcome(
        status, txn.reason, txn.messages, txn.acks, markers, involved.waiting, involved.skipped
    )


def _commit_body(
    draft: Draft, txn: Txn, involved: Participants
) -> tuple[list[Op], list[tuple[int, int, int, int]]]:
    """(ops that write markers and change cursors where available, the markers for the record)."""
    pair = (txn.coordinator, txn.sequence)
    body: list[Op] = []
    markers: list[tuple[int, int, int, int]] = []
    for partition, buffered in involved.partitions:
        ledger, entry = draft.take_entries(partition, "p", 1)
        side_ledger, side_entry = draft.take_entries(partition, "s", 1)
        body += (
            CommitMarker(
                partition,
                ledger,
                entry,
                *pair,
                buffered.count,
                buffered.payload_bytes,
                delayed=buffered.delayed,
                watermarks=_watermarks(draft.view, partition, pair) if buffered.watermarks else [],
            ),
            BufferCommitted(partition, *pair, side_ledger, side_entry, ledger, entry),
        )
        markers.append((partition, ledger, entry, buffered.count))
    for subscription, partition, pending in involved.cursors:
        settled = draft.settled(subscription, partition)
        runs, mark = pending_outcome(draft.view, subscription, partition, pending, settled)
        body.append(PendingCommitted(subscription, partition, *pair, runs, mark))
    return body, markers


def _watermarks(view: View, partition: int, pair: tuple[int, int]) -> list[Effect]:
    """The net effect of the transaction's watermark rows in a partition."""
    return view.watermark(partition).effects_of(*pair)


def _abort_body(draft: Draft, txn: Txn, involved: Participants) -> list[Op]:
    pair = (txn.coordinator, txn.sequence)
    body: list[Op] = []
    for partition, buffered in involved.partitions:
        position = draft.take_entries(partition, "s", 1)
        body.append(
            BufferAborted(partition, *pair, *position, buffered.delayed, buffered.watermarks > 0)
        )
    for subscription, partition, _ in involved.cursors:
        body.append(PendingAborted(subscription, partition, *pair))
    return body


def release_key(draft: Draft, txn: Txn) -> None:
    """Add the release of a transaction's key to the frame that makes it COMMITTED or ABORTED."""
    if txn.key is not None:
        open_ms = max(0, draft.now_ms - txn.wall_ms)
        draft.ops.append(
            KeyReleased(txn.coordinator, txn.owner_uid, txn.key, txn.sequence, open_ms)
        )


def expire_if_due(draft: Draft, txn: Txn, now: Instant) -> Decision[Any] | None:
    """The decision that aborts an overdue transaction and raises TransactionTimedOut, or None.

    The sweep of the call may not have known its coordinator yet (spec/transactions 6).
    """
    if not is_overdue(txn, now):
        return None
    abort_ops(draft, txn, "timeout")
    error = timed_out(txn)
    return Decision(draft.ops, None, True, None, error)


def recover_lossy(view: View, draft: Draft) -> int:
    """Add aborts of all OPEN transactions, and skip reserved ids (R9, R10); returns how many."""
    aborted = 0
    for key in sorted(view.known()):
        if key[0] != "coordinator":
            continue
        state = view.coordinator(key[1])
        for txn in list(state.unfinished.values()):
            if txn.status == OPEN:
                abort_ops(draft, txn, "recovery")
                aborted += 1
        if state.next_sequence < state.reserved_below:
            draft.ops.append(CounterRaised(key[1], state.reserved_below))
    draft.sync = True
    return aborted


def reserve_ids(draft: Draft, number: int, sequence: int) -> None:
    """Reserve a block of ids durably before the first of it is given out (R10)."""
    draft.ops.append(IdsReserved(number, sequence + draft.settings.txn_ids_reserved))
    draft.sync = True


# --- entering -------------------------------------------------------------------------------------


class NewTxn(msgspec.Struct, frozen=True, gc=False):
    """A transaction to open.

    owner:       (uid, name) of the process
    start:       when the caller began it; its time-out counts from here
    coordinator: None: they take turns
    """

    owner: tuple[int, str]
    start: Instant
    timeout_ms: int
    coordinator: int | None = None


Use = TxnId | NewTxn


def check_timeout(settings: Settings, timeout_ms: int | None) -> int:
    """The time-out to use, in ms; raises InvalidArgument, LimitExceeded."""
    timeout_ms = settings.txn_timeout_default_ms if timeout_ms is None else timeout_ms
    if type(timeout_ms) is not int:
        raise InvalidArgument(f"timeout_ms is {timeout_ms!r}, it must be an integer", code=203)
    if timeout_ms <= 0:
        raise InvalidArgument(
            f"the time-out is {timeout_ms} ms, it must be positive", code=203, value=timeout_ms
        )
    if timeout_ms > settings.txn_timeout_max_ms:
        raise LimitExceeded(
            f"the time-out is {timeout_ms} ms, txn_timeout_max_ms is {settings.txn_timeout_max_ms}",
            setting="txn_timeout_max_ms",
            limit=settings.txn_timeout_max_ms,
            value=timeout_ms,
        )
    return timeout_ms


def open_txn(
    draft: Draft, new: NewTxn, *, key: str | None = None, epoch: int = -1, freed: int = 0
) -> Txn:
    """Add the ops that open a transaction; returns its record.

    freed:  how many unfinished transactions of its coordinator the same frame ends
    raises: LimitExceeded (unfinished transactions), CoordinatorNotFound
    """
    view, settings = draft.view, draft.settings
    number = new.coordinator
    if number is None:
        number = view.catalog.unkeyed_txns % settings.coordinators
    check_coordinator(number, settings.coordinators)
    state = view.coordinator(number)
    if 0 < settings.txn_active_max <= len(state.unfinished) - freed:
        raise LimitExceeded(
            f"coordinator {number} has {len(state.unfinished)} unfinished transactions, "
            f"txn_active_max is {settings.txn_active_max}",
            hint="end some, or wait for their time-outs",
            setting="txn_active_max",
            limit=settings.txn_active_max,
            value=len(state.unfinished) + 1,
        )
    sequence = state.next_sequence
    if sequence >= state.reserved_below:
        reserve_ids(draft, number, sequence)
    (uid, name), start = new.owner, new.start
    draft.ops.append(
        TxnOpened(
            number,
            sequence,
            uid,
            name,
            new.timeout_ms,
            start.wall_ms,
            start.boot_id,
            start.boot_ms,
            key,
            epoch,
        )
    )
    return Txn(
        number,
        sequence,
        uid,
        name,
        new.timeout_ms,
        start.wall_ms,
        start.boot_id,
        start.boot_ms,
        key,
        epoch,
    )


def enter(draft: Draft, now: Instant, uid: int, use: Use) -> Txn | Decision[Any]:
    """The OPEN transaction of an operation, or the decision that aborts it as timed out.

    raises: TransactionNotFound, NotAllowed (owner), InvalidTxnStatus and the like; as open_txn
    """
    if isinstance(use, NewTxn):
        return open_txn(draft, use)
    txn = transaction(draft.view, use, draft.settings.coordinators)
    check_owner(txn, uid)
    expired = expire_if_due(draft, txn, now)
    if expired is not None:
        return expired
    check_open(txn)
    return txn


# --- places that a client names before it uses them -----------------------------------------------


# Places that a transaction may register ahead. A record grows by copying, so without a bound one
# short command would cost every process seconds. Places beyond it register when they are used.
AHEAD_MAX: Final = 1_000


class TxnPlace(NamedTuple):
    """A topic or partition; subscription: None for messages, else for acknowledgements on it."""

    name: TopicName
    subscription: str | None = None


def register(
    view: View, settings: Settings, now: Instant, uid: int, txn_id: TxnId, places: list[TxnPlace]
) -> Decision[TxnId]:
    """Decide which places take part in a transaction; a whole topic registers all its partitions.

    A subscription that the store does not have is in memory only: it has nothing to register.
    answers: its TxnId, not flushed
    raises:  TransactionNotFound, NotAllowed (owner), InvalidTxnStatus and the like, TopicNotFound
    """
    draft = Draft(view, settings, now.wall_ms)
    txn = enter(draft, now, uid, txn_id)
    if isinstance(txn, Decision):
        return txn
    topics = [
        (named_place, find_topic(view, named_place.name)) for named_place in dict.fromkeys(places)
    ]
    pair, registered = (txn.coordinator, txn.sequence), {*txn.partitions, *txn.subscriptions}
    room = max(0, AHEAD_MAX - len(registered))
    for named_place, topic in topics[:room]:
        subscription = _subscription(view, topic, named_place)
        for partition in _partitions(topic, named_place) if subscription is not None else ():
            participant = (subscription, partition) if subscription else partition
            if participant in registered or len(registered) >= AHEAD_MAX:
                continue
            registered.add(participant)
            draft.ops.append(
                SubscriptionAdded(*pair, subscription, partition)
                if subscription
                else PartitionAdded(*pair, partition)
            )
    return draft.decision(txn_id)


def _partitions(topic: Topic, named_place: TxnPlace) -> Sequence[int]:
    """The store-wide numbers of the partitions of a place."""
    if named_place.name.partition is None:
        return catalogs.numbers(topic)
    return [catalogs.number_of(topic, named_place.name.partition)]


def _subscription(view: View, topic: Topic, named_place: TxnPlace) -> int | None:
    """The number of the subscription; 0: the place is for messages; None: it is not stored."""
    if named_place.subscription is None:
        return 0
    subscription = catalogs.find_subscription(view.catalog, topic, named_place.subscription)
    return None if subscription is None else subscription.number


# --- the decision table ---------------------------------------------------------------------------


class EndAnswer(msgspec.Struct, frozen=True, gc=False):
    """How a transaction ended; markers as (partition number, ledger, entry, messages).

    txn_id:  None for an abort that was put off before the transaction got an id
    already: an earlier call or a time-out had decided it
    waiting: participants that are not available, with status COMMITTING or ABORTING
    skipped: participants that were deleted
    """

    txn_id: TxnId | None
    status: str
    already: bool
    reason: str | None
    messages: int
    acks: int
    markers: list[tuple[int, int, int, int]]
    open_ms: int
    waiting: list[Participant] = []
    skipped: list[Participant] = []


class OutcomeRow(NamedTuple):
    """The row that decides a prepared transaction; fields as in TxnPrepared."""

    token: str
    kind: str
    database: str
    label: str


def begin(view: View, settings: Settings, now: Instant, new: NewTxn) -> Decision[TxnId]:
    """Decide a new transaction; answers its TxnId.

    Written, not flushed: after a power cut every OPEN transaction is aborted anyway.
    raises: LimitExceeded (unfinished transactions), CoordinatorNotFound
    """
    draft = Draft(view, settings, now.wall_ms)
    txn = open_txn(draft, new)
    decision = draft.decision(TxnId(txn.coordinator, txn.sequence))
    decision.waits = decision.sync  # else its frame may be lost, as any frame of an OPEN one
    return decision


def end(
    view: View, settings: Settings, now: Instant, uid: int, txn_id: TxnId, *, commit: bool
) -> Decision[EndAnswer]:
    """Decide how a transaction ends; durable; the frame is its point of no return.

    answers: an EndAnswer, with `already` and without ops when the same end was decided before
    raises:  TransactionNotFound, NotAllowed (owner), TransactionTimedOut, ExpiredTransaction,
             InvalidTxnStatus (ended the other way)
    """
    txn = transaction(view, txn_id, settings.coordinators)
    check_owner(txn, uid)
    draft = Draft(view, settings, now.wall_ms)
    open_ms = now.wall_ms - txn.wall_ms
    if is_overdue(txn, now):  # the sweep of the call has a bound
        outcome = abort_ops(draft, txn, "timeout")
        answer = _answer(txn_id, outcome, True, open_ms)
        return Decision(draft.ops, None, True, answer, timed_out(txn) if commit else None)
    if txn.status == OPEN:
        outcome = commit_ops(draft, txn) if commit else abort_ops(draft, txn, aborter(txn, uid))
        return draft.decision(_answer(txn_id, outcome, False, open_ms), sync=True)
    if txn.status == PREPARED:
        raise prepared_error(txn)
    same = (COMMITTING, COMMITTED) if commit else (ABORTING, ABORTED)
    if txn.status not in same or txn.reason == "fenced":
        raise ended_error(txn)
    # the sweep has done everything. Another process may have written the end without flushing it
    return Decision([], None, True, recorded(view, txn_id, txn, open_ms))


def prepare(
    view: View, settings: Settings, now: Instant, uid: int, txn_id: TxnId, row: OutcomeRow
) -> Decision[EndAnswer]:
    """Decide that a row in a database of the user is going to end a transaction; durable, also
    with durability `os`: the database commits durably.

    From now on it takes no operation, no time-out and no recovery aborts it, and only `resolve`
    ends it.
    answers: an EndAnswer with status PREPARED; `already` if it had the same token before
    raises:  as `end`; InvalidTxnStatus also if another row decides it
    """
    txn = transaction(view, txn_id, settings.coordinators)
    check_owner(txn, uid)
    draft = Draft(view, settings, now.wall_ms)
    expired = expire_if_due(draft, txn, now)
    if expired is not None:
        return expired
    involved, open_ms = participants(view, txn), now.wall_ms - txn.wall_ms
    outcome = EndOutcome(PREPARED, None, involved.messages, involved.acks, [], [], [])
    if txn.prepared is not None and txn.prepared.token == row.token and txn.status == PREPARED:
        return Decision([], None, True, _answer(txn_id, outcome, True, open_ms))
    check_open(txn)
    draft.ops.append(TxnPrepared(txn.coordinator, txn.sequence, *row))
    decision = draft.decision(_answer(txn_id, outcome, False, open_ms), sync=True)
    decision.outlasts = True
    return decision


def resolve(
    view: View, settings: Settings, now: Instant, uid: int, txn_id: TxnId, *, commit: bool
) -> Decision[EndAnswer]:
    """Decide the end of a PREPARED transaction, as its database says or as an operator decides.

    Durable as `prepare`: afterwards the row may be deleted.
    The end of one that has ended is answered as by `end`; one that is still OPEN can be aborted.
    raises: as `end`; InvalidTxnStatus for the commit of one that is not prepared
    """
    txn = transaction(view, txn_id, settings.coordinators)
    if txn.status != PREPARED:
        if commit and txn.status == OPEN:
            raise InvalidTxnStatus(
                f"transaction {txn_id} is not prepared",
                hint=f"commit it: {command_line('txn commit', txn_id)}",
                txn=txn_id,
            )
        return end(view, settings, now, uid, txn_id, commit=commit)
    check_owner(txn, uid)
    draft = Draft(view, settings, now.wall_ms)
    outcome = commit_ops(draft, txn) if commit else abort_ops(draft, txn, aborter(txn, uid))
    answer = _answer(txn_id, outcome, False, now.wall_ms - txn.wall_ms)
    decision = draft.decision(answer, sync=True)
    decision.outlasts = True
    return decision


def _answer(txn_id: TxnId, outcome: EndOutcome, already: bool, open_ms: int) -> EndAnswer:
    return EndAnswer(
        txn_id,
        outcome.status,
        already,
        outcome.reason,
        outcome.messages,
        outcome.acks,
        outcome.markers,
        open_ms,
        outcome.waiting,
        outcome.skipped,
    )


def recorded(view: View, txn_id: TxnId, txn: Txn, open_ms: int) -> EndAnswer:
    """The answer for a transaction as its record is now; open_ms: if it has not ended."""
    if txn.status in ENDED:
        return EndAnswer(
            txn_id,
            txn.status,
            True,
            txn.reason,
            txn.messages,
            txn.acks,
            list(txn.markers),
            txn.ended_ms - txn.wall_ms,
            [],
            list(txn.skipped),
        )
    involved = participants(view, txn)
    markers = sorted([*txn.markers, *unrecorded_markers(view, txn)])
    return EndAnswer(
        txn_id,
        txn.status,
        True,
        txn.reason,
        txn.messages,
        txn.acks,
        markers,
        open_ms,
        involved.waiting,
        involved.skipped,
    )
