"""The coordinator fold: an id counter and the status of its transactions.

Ledger: system/transaction_log/<coordinator>. Ops
  IdsReserved, CounterRaised, TxnOpened, PartitionAdded, SubscriptionAdded, StatusUpdated,
  TxnsForgotten.

    OPEN ──> COMMITTING ──> COMMITTED          the first arrow is the point of no return
      └────> ABORTING ────> ABORTED

COMMITTING and ABORTING outlive their frame only while a participant is not available; the markers
it gets later come with the last change of status. `ended` is in order of decision.

Invariants
  1. Every change of status is one of the arrows; replay never lowers a status.
  2. A sequence is opened once, and only below the reserved bound.
Source: PIP-31 "Transaction coordinator"; spec/transactions 4.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any

import msgspec

from txlog.engine.model.fold import Fold, broken, unexpected
from txlog.engine.model.ops import (
    CounterRaised,
    IdsReserved,
    Op,
    PartitionAdded,
    StatusUpdated,
    SubscriptionAdded,
    TxnOpened,
    TxnsForgotten,
)
from txlog.engine.storage.late_values import Late

OPEN, COMMITTING, COMMITTED = "OPEN", "COMMITTING", "COMMITTED"
ABORTING, ABORTED = "ABORTING", "ABORTED"
ARROWS = {(OPEN, COMMITTING), (COMMITTING, COMMITTED), (OPEN, ABORTING), (ABORTING, ABORTED)}
ENDED = (COMMITTED, ABORTED)
_ENDS = {(COMMITTING, COMMITTED), (ABORTING, ABORTED)}
# Upper bounds of the durations' histogram, in ms (spec/transactions 16); one more is above.
DURATION_BOUNDS_MS = (
    10, 20, 50, 100, 500, 1_000, 5_000, 15_000, 30_000, 60_000, 300_000, 1_500_000, 3_000_000,
)  # fmt: skip


class Txn(msgspec.Struct, array_like=True, gc=False):
    """The record of a transaction; instants in ms.

    Tuples of numbers: of lists the collector would look at those of every one that is remembered.
    skipped: (partition, subscription) that were deleted before its end
    """

    coordinator: int
    sequence: int
    owner_uid: int
    owner: str
    timeout_ms: int
    wall_ms: int
    boot_id: str
    boot_ms: int
    key: str | None
    epoch: int
    status: str = OPEN
    reason: str | None = None
    modified_ms: int = 0
    ended_ms: int = 0
    decision_lsn: int = 0
    partitions: tuple[int, ...] = ()
    subscriptions: tuple[tuple[int, int], ...] = ()
    messages: int = 0
    acks: int = 0
    markers: tuple[tuple[int, int, int, int], ...] = ()
    skipped: tuple[tuple[int, int], ...] = ()


class Coordinator(msgspec.Struct, array_like=True):
    """State; `unfinished`: OPEN, COMMITTING, ABORTING; `ended` in order of their decision.

    The figures below `timed_out_count` only grow: aborts by reason; ops taken; for each final
    status how many took at most each of DURATION_BOUNDS_MS and no less (then those above, then the
    sum in ms); ends whose decision was in an earlier frame.
    """

    next_sequence: int = 0
    reserved_below: int = 0
    unfinished: dict[int, Txn] = {}
    ended: dict[int, Txn] = {}
    committed_count: int = 0
    aborted_count: int = 0
    timed_out_count: int = 0
    created_count: int = 0
    aborted_by: dict[str, int] = {}
    log_ops: int = 0
    durations: dict[str, list[int]] = {}
    rolled_forward: int = 0
    rolled_back: int = 0


def apply(state: Coordinator, lsn: int, time_ms: int, op: Op) -> None:
    """Apply one op."""
    take = _TAKES.get(type(op))
    if take is None:
        raise unexpected("coordinator", lsn, op)
    take(state, lsn, time_ms, op)


def _take_txn_opened(state: Coordinator, lsn: int, time_ms: int, op: TxnOpened) -> None:
    if op.sequence < state.next_sequence or op.sequence >= state.reserved_below:
        raise broken("coordinator", lsn, f"sequence {op.sequence} is not free")
    state.next_sequence = op.sequence + 1
    state.created_count += 1
    state.unfinished[op.sequence] = Txn(
        op.coordinator,
        op.sequence,
        op.owner_uid,
        op.owner,
        op.timeout_ms,
        op.wall_ms,
        op.boot_id,
        op.boot_ms,
        op.key,
        op.epoch,
        modified_ms=time_ms,
    )
    state.log_ops += 1


def take_whole(state: Coordinator, lsn: int, time_ms: int, ops: list[Op]) -> bool:
    """Take all ops of a frame about the transaction that it opens first and ends: one record.

    Says nothing that the ops one by one would not. Most frames are of this form, and each process
    takes those of all others.
    returns: False: the frame is another, nothing was taken
    """
    own = [op for op in ops if type(op) in _TAKES]
    if not _is_whole(state, own):
        return False
    opened, decided, ended = own[0], own[-2], own[-1]
    assert type(opened) is TxnOpened
    assert type(decided) is StatusUpdated
    assert type(ended) is StatusUpdated
    number, sequence = opened.coordinator, opened.sequence
    partitions: list[int] = []
    subscriptions: list[tuple[int, int]] = []
    for op in own[1:-2]:
        if type(op) is PartitionAdded:
            partitions.append(op.partition)
        elif type(op) is SubscriptionAdded:
            subscriptions.append((op.subscription, op.partition))
        else:
            return False
        if op.sequence != sequence or op.coordinator != number:
            return False
    state.log_ops += len(own)
    state.next_sequence = sequence + 1
    state.created_count += 1
    txn = Txn(
        number,
        sequence,
        opened.owner_uid,
        opened.owner,
        opened.timeout_ms,
        opened.wall_ms,
        opened.boot_id,
        opened.boot_ms,
        opened.key,
        opened.epoch,
        ended.status,
        decided.reason,
        time_ms,
        time_ms,
        lsn,
        tuple(dict.fromkeys(partitions)),
        tuple(dict.fromkeys(subscriptions)),
        decided.messages,
        decided.acks,
        tuple(decided.markers),
        tuple(ended.skipped),
    )
    _remember(state, txn)
    _count_end(state, txn, late=False)
    return True


def _is_whole(state: Coordinator, own: list[Op]) -> bool:
    """Whether the first op opens a transaction that the last two end, and may do so."""
    if len(own) < 3:
        return False
    opened, decided, ended = own[0], own[-2], own[-1]
    return (
        type(opened) is TxnOpened
        and type(decided) is StatusUpdated
        and type(ended) is StatusUpdated
        and decided.sequence == ended.sequence == opened.sequence
        and decided.coordinator == ended.coordinator == opened.coordinator
        and state.next_sequence <= opened.sequence < state.reserved_below
        and decided.expected == OPEN
        and decided.status == ended.expected
        and (decided.status, ended.status) in _ENDS
        and not ended.markers
    )


def _take_partition_added(state: Coordinator, lsn: int, time_ms: int, op: PartitionAdded) -> None:
    txn = _unfinished(state, lsn, op.sequence)
    if op.partition not in txn.partitions:
        txn.partitions = (*txn.partitions, op.partition)
        txn.modified_ms = time_ms
    state.log_ops += 1


def _take_subscription_added(
    state: Coordinator, lsn: int, time_ms: int, op: SubscriptionAdded
) -> None:
    txn = _unfinished(state, lsn, op.sequence)
    if (op.subscription, op.partition) not in txn.subscriptions:
        txn.subscriptions = (*txn.subscriptions, (op.subscription, op.partition))
        txn.modified_ms = time_ms
    state.log_ops += 1


def _take_ids_reserved(state: Coordinator, lsn: int, time_ms: int, op: IdsReserved) -> None:
    state.reserved_below = max(state.reserved_below, op.below)
    state.log_ops += 1


def _take_counter_raised(state: Coordinator, lsn: int, time_ms: int, op: CounterRaised) -> None:
    state.next_sequence = max(state.next_sequence, op.sequence)
    state.log_ops += 1


def _take_txns_forgotten(state: Coordinator, lsn: int, time_ms: int, op: TxnsForgotten) -> None:
    for sequence in op.sequences:
        state.ended.pop(sequence, None)
    state.log_ops += 1


def _unfinished(state: Coordinator, lsn: int, sequence: int) -> Txn:
    txn = state.unfinished.get(sequence)
    if txn is None:
        raise broken("coordinator", lsn, f"transaction {sequence} is not unfinished")
    return txn


def _update(state: Coordinator, lsn: int, time_ms: int, op: StatusUpdated) -> None:
    txn = find(state, op.sequence)
    if txn is None:
        raise broken("coordinator", lsn, f"transaction {op.coordinator}:{op.sequence} is unknown")
    if txn.status != op.expected or (op.expected, op.status) not in ARROWS:
        raise broken(
            "coordinator",
            lsn,
            f"transaction {op.coordinator}:{op.sequence} is {txn.status}, the change "
            f"{op.expected} to {op.status} is not allowed",
        )
    txn.status = op.status
    txn.modified_ms = time_ms
    if op.expected == OPEN:
        txn.decision_lsn, txn.reason = lsn, op.reason
        txn.messages, txn.acks, txn.markers = op.messages, op.acks, tuple(op.markers)
    elif op.markers:
        txn.markers = tuple(sorted([*txn.markers, *op.markers]))
    if op.status in ENDED:
        txn.ended_ms, txn.skipped = time_ms, tuple(op.skipped)
        del state.unfinished[op.sequence]
        _remember(state, txn)
        _count_end(state, txn, late=lsn > txn.decision_lsn)
    state.log_ops += 1


def _count_end(state: Coordinator, txn: Txn, *, late: bool) -> None:
    if txn.status == COMMITTED:
        state.committed_count += 1
        state.rolled_forward += late
    else:
        reason = txn.reason or "user"
        state.aborted_count += 1
        state.timed_out_count += reason == "timeout"
        state.aborted_by[reason] = state.aborted_by.get(reason, 0) + 1
        state.rolled_back += late
    took_ms = max(0, txn.ended_ms - txn.wall_ms)
    buckets = state.durations.get(txn.status)
    if buckets is None:
        buckets = state.durations[txn.status] = [0] * (len(DURATION_BOUNDS_MS) + 2)
    buckets[bisect_left(DURATION_BOUNDS_MS, took_ms)] += 1
    buckets[-1] += took_ms


def _remember(state: Coordinator, txn: Txn) -> None:
    """Keep the ended in order of decision; only one that waited must go before others."""
    last = next(reversed(state.ended.values())) if state.ended else None
    state.ended[txn.sequence] = txn
    if last is not None and last.decision_lsn > txn.decision_lsn:
        order = sorted(state.ended.values(), key=lambda one: (one.decision_lsn, one.sequence))
        state.ended = {one.sequence: one for one in order}


def find(state: Coordinator, sequence: int) -> Txn | None:
    """The record of a transaction, None when it was never issued or is forgotten."""
    return state.unfinished.get(sequence) or state.ended.get(sequence)


# What `take_whole` has taken.
WHOLE = frozenset([TxnOpened, PartitionAdded, SubscriptionAdded, StatusUpdated])
# Looked up by the type of the op: a chain of isinstance would cost more than the ops do.
_TAKES: dict[type, Callable[[Coordinator, int, int, Any], None]] = {
    TxnOpened: _take_txn_opened,
    StatusUpdated: _update,
    PartitionAdded: _take_partition_added,
    SubscriptionAdded: _take_subscription_added,
    IdsReserved: _take_ids_reserved,
    CounterRaised: _take_counter_raised,
    TxnsForgotten: _take_txns_forgotten,
}


class _Dump(Coordinator, array_like=True):
    """A dump: of the ended ones a call needs one, or those that are forgotten next."""

    ended: dict[int, msgspec.Raw] = {}  # type: ignore[assignment]


def _load(data: bytes) -> Coordinator:
    dump = _decoder.decode(data)
    values = {name: getattr(dump, name) for name in Coordinator.__struct_fields__}
    return Coordinator(**{**values, "ended": Late(dump.ended, _txn.decode)})


assert _Dump.__struct_fields__ == Coordinator.__struct_fields__
_decoder, _txn = msgspec.msgpack.Decoder(_Dump), msgspec.msgpack.Decoder(Txn)
FOLD = Fold("coordinator", Coordinator, apply, msgspec.msgpack.encode, _load, _TAKES)
