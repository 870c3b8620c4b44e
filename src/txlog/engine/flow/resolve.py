"""Ending transactions: the ops of a commit and of an abort, the sweep, the lossy recovery.

One frame holds the decision, the markers, the cursor changes and the final status (Law 4):

    StatusUpdated OPEN→COMMITTING · CommitMarker + BufferCommitted per partition with messages
    · PendingCommitted per cursor with acknowledgements · StatusUpdated COMMITTING→COMMITTED
    · KeyReleased, if it was begun under a key

Source: PIP-31 "End transaction"; spec/transactions 5.1, 5.2, 6.
"""

from __future__ import annotations

from txlog.clock import Instant
from txlog.engine.flow.acksets import pending_outcome
from txlog.engine.flow.draft import Decision, Draft
from txlog.engine.flow.lookup import is_overdue, timed_out
from txlog.engine.folds import buffer as buffers
from txlog.engine.folds.coordinator import (
    ABORTED,
    ABORTING,
    COMMITTED,
    COMMITTING,
    OPEN,
    Coordinator,
    Txn,
)
from txlog.engine.model.ops import (
    BufferAborted,
    BufferCommitted,
    CommitMarker,
    CounterRaised,
    IdsReserved,
    KeyReleased,
    PendingAborted,
    PendingCommitted,
    StatusUpdated,
    TxnsForgotten,
)
from txlog.engine.view import View
from txlog.settings import Settings


def commit_ops(draft: Draft, txn: Txn) -> StatusUpdated:
    """Add the ops that commit an OPEN transaction; returns the point of no return."""
    view, pair = draft.view, (txn.coordinator, txn.sequence)
    markers: list[tuple[int, int, int, int]] = []
    messages = acks = 0
    body: list[tuple[CommitMarker, BufferCommitted]] = []
    for partition in sorted(txn.partitions):
        held = buffers.find_held(view.buffer(partition), *pair)
        if held is None:
            continue
        ledger, entry = draft.take_entries(partition, "p", 1)
        side_ledger, side_entry = draft.take_entries(partition, "s", 1)
        body.append((
            CommitMarker(partition, ledger, entry, *pair, held.count, held.payload_bytes),
            BufferCommitted(partition, *pair, side_ledger, side_entry, ledger, entry),
        ))  # fmt: skip
        markers.append((partition, ledger, entry, held.count))
        messages += held.count
    settled: list[PendingCommitted] = []
    for subscription, partition in sorted(txn.subscriptions):
        pending = view.cursor(subscription, partition).pending.get(pair)
        if pending is None:
            continue
        runs, mark = pending_outcome(view, subscription, partition, pending)
        settled.append(PendingCommitted(subscription, partition, *pair, runs, mark))
        acks += pending.count
    decided = StatusUpdated(*pair, OPEN, COMMITTING, None, messages, acks, markers)
    draft.ops.append(decided)
    for marker, committed in body:
        draft.ops += (marker, committed)
    draft.ops += settled
    draft.ops.append(StatusUpdated(*pair, COMMITTING, COMMITTED))
    release_key(draft, txn)
    return decided


def abort_ops(draft: Draft, txn: Txn, reason: str) -> StatusUpdated:
    """Add the ops that abort an OPEN transaction; nothing is written to the partition."""
    view, pair = draft.view, (txn.coordinator, txn.sequence)
    messages = acks = 0
    body: list[BufferAborted | PendingAborted] = []
    for partition in sorted(txn.partitions):
        held = buffers.find_held(view.buffer(partition), *pair)
        if held is not None:
            ledger, entry = draft.take_entries(partition, "s", 1)
            body.append(BufferAborted(partition, *pair, ledger, entry))
            messages += held.count
    for subscription, partition in sorted(txn.subscriptions):
        pending = view.cursor(subscription, partition).pending.get(pair)
        if pending is not None:
            body.append(PendingAborted(subscription, partition, *pair))
            acks += pending.count
    decided = StatusUpdated(*pair, OPEN, ABORTING, reason, messages, acks)
    draft.ops += (decided, *body, StatusUpdated(*pair, ABORTING, ABORTED))
    release_key(draft, txn)
    return decided


def release_key(draft: Draft, txn: Txn) -> None:
    """Add what the key of a transaction learns in the frame that makes it COMMITTED or ABORTED."""
    if txn.key is not None:
        open_ms = max(0, draft.now_ms - txn.wall_ms)
        draft.ops.append(
            KeyReleased(txn.coordinator, txn.owner_uid, txn.key, txn.sequence, open_ms)
        )


def expire_if_due(draft: Draft, txn: Txn, now: Instant) -> Decision | None:
    """The decision that aborts an overdue transaction and answers TransactionTimedOut, or None.

    The sweep of the call may not have known its coordinator yet (spec 6: lazy expiry).
    """
    if not is_overdue(txn, now):
        return None
    abort_ops(draft, txn, "timeout")
    error = timed_out(txn)
    return Decision(draft.ops, None, True, None, error)


def sweep(draft: Draft, now: Instant) -> int:
    """Abort overdue transactions of every loaded coordinator.

    returns: how many transactions were aborted; at most sweep_max, oldest first
    """
    expired = 0
    for _, state in draft.view.loaded_coordinators():
        overdue = [txn for txn in state.unfinished.values() if is_overdue(txn, now)]
        for txn in overdue[: draft.settings.sweep_max - expired]:
            abort_ops(draft, txn, "timeout")
            expired += 1
    return expired


def forget_ended(draft: Draft, now: Instant) -> None:
    """Forget ended transactions of loaded coordinators that are past the retention."""
    for number, state in draft.view.loaded_coordinators():
        forgotten = _forgettable(state, draft.settings, now.wall_ms)
        if forgotten:
            draft.ops.append(TxnsForgotten(number, forgotten))


def _forgettable(state: Coordinator, settings: Settings, now_ms: int) -> list[int]:
    """Ended transactions past either bound of the retention, oldest first."""
    share = max(1, settings.txn_ended_retention_count // settings.coordinators)
    surplus = len(state.ended) - share if settings.txn_ended_retention_count >= 0 else 0
    if settings.txn_ended_retention_count == 0:
        surplus = len(state.ended)
    out: list[int] = []
    for sequence, txn in state.ended.items():
        old = 0 <= settings.txn_ended_retention_ms < now_ms - txn.ended_ms
        if len(out) >= surplus and not old:
            break
        out.append(sequence)
    return out


def recover_lossy(view: View, draft: Draft) -> int:
    """Abort everything OPEN and step over ids that may have been given out (spec 5.2, R9, R10)."""
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
