"""Ending transactions: the ops of commits and aborts, of late ends, and of a recovery.

One frame holds the decision, the markers, the cursor changes and the final status (Law 4):

    StatusUpdated OPEN→COMMITTING · CommitMarker + BufferCommitted per partition with messages
    · PendingCommitted per cursor with acknowledgements · StatusUpdated COMMITTING→COMMITTED
    · KeyReleased, if it was begun under a key

While a participant is unavailable, its part and the last status wait for a later frame
(`finish_ops`): the frame that brings the partition back, or that of a later sweep.
Source: PIP-31 "End transaction"; spec/transactions 5.1, 5.2, 11.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import msgspec

from txlog.clock import Instant
from txlog.engine.decide.draft import Decision, Draft
from txlog.engine.folds import buffer as buffers
from txlog.engine.folds.coordinator import (
    ABORTED,
    ABORTING,
    COMMITTED,
    COMMITTING,
    OPEN,
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
    PendingAborted,
    PendingCommitted,
    StatusUpdated,
)
from txlog.engine.plan.ack_sets import pending_outcome
from txlog.engine.plan.lookup import is_overdue, timed_out
from txlog.engine.plan.participants import Participant, Participants, participants
from txlog.engine.view import View


class EndOutcome(msgspec.Struct, frozen=True, gc=False):
    """The progress of an end: markers as (partition, ledger, entry, messages)."""

    status: str
    reason: str | None
    messages: int
    acks: int
    markers: list[tuple[int, int, int, int]]
    waiting: list[Participant]
    skipped: list[Participant]


def commit_ops(draft: Draft, txn: Txn) -> EndOutcome:
    """Add the ops that commit an OPEN transaction, as far as its participants are available."""
    involved = participants(draft.view, txn)
    body, markers = _commit_body(draft, txn, involved)
    _decide(draft, txn, COMMITTING, None, involved, markers)
    draft.ops += body
    return _outcome(draft, txn, COMMITTING, None, involved, markers, [])


def aborter(txn: Txn, uid: int) -> str:
    """The reason of a requested abort: by the owner, or by root for another user."""
    return "user" if uid == txn.owner_uid else "admin"


def abort_ops(draft: Draft, txn: Txn, reason: str) -> EndOutcome:
    """Add the ops that abort an OPEN transaction; nothing is written to a partition."""
    involved = participants(draft.view, txn)
    body = _abort_body(draft, txn, involved)
    _decide(draft, txn, ABORTING, reason, involved, [])
    draft.ops += body
    return _outcome(draft, txn, ABORTING, reason, involved, [], [])


def finish_ops(
    draft: Draft, txn: Txn, back: int = 0, deleted: Collection[Participant] = ()
) -> EndOutcome:
    """Continue a decided transaction: end what is available now, and the whole if nothing waits.

    back: a partition that the same frame makes available
    deleted: participants that the same frame deletes
    """
    involved = participants(draft.view, txn, back, deleted)
    if txn.status == ABORTING:
        draft.ops += _abort_body(draft, txn, involved)
        return _outcome(draft, txn, ABORTING, txn.reason, involved, [], [])
    body, markers = _commit_body(draft, txn, involved)
    draft.ops += body
    late = sorted([*markers, *unrecorded_markers(draft.view, txn)])
    return _outcome(draft, txn, COMMITTING, None, involved, sorted([*txn.markers, *late]), late)


def unrecorded_markers(view: View, txn: Txn) -> list[tuple[int, int, int, int]]:
    """Markers of a waiting transaction since its decision.

    They enter its record with the last status.
    """
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
) -> None:
    """Add the point of no return."""
    draft.ops.append(
        StatusUpdated(
            txn.coordinator,
            txn.sequence,
            OPEN,
            status,
            reason,
            involved.messages,
            involved.acks,
            markers,
        )
    )


def _outcome(
    draft: Draft,
    txn: Txn,
    status: str,
    reason: str | None,
    involved: Participants,
    markers: list[tuple[int, int, int, int]],
    late: list[tuple[int, int, int, int]],
) -> EndOutcome:
    """Add the last status unless a participant waits; returns how far the end has come."""
    if not involved.waiting:
        expected, status = status, COMMITTED if status == COMMITTING else ABORTED
        draft.ops.append(
            StatusUpdated(
                txn.coordinator,
                txn.sequence,
                expected,
                status,
                markers=late,
                skipped=involved.skipped,
            )
        )
        release_key(draft, txn)
    of = txn if txn.decision_lsn else involved
    return EndOutcome(
        status, reason, of.messages, of.acks, markers, involved.waiting, involved.skipped
    )


def _commit_body(
    draft: Draft, txn: Txn, involved: Participants
) -> tuple[list[Op], list[tuple[int, int, int, int]]]:
    """Markers and cursor changes at the available participants, and the markers for the record."""
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
    """The decision that aborts an overdue transaction and answers TransactionTimedOut, or None.

    The sweep of the call may not have known its coordinator yet (spec/transactions 6).
    """
    if not is_overdue(txn, now):
        return None
    abort_ops(draft, txn, "timeout")
    error = timed_out(txn)
    return Decision(draft.ops, None, True, None, error)


def recover_lossy(view: View, draft: Draft) -> int:
    """Abort all OPEN transactions and skip ids that clients may have (R9, R10)."""
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
