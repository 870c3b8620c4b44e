"""The machine of statuses: the ops that the fold accepts and refuses; spec/transactions 4, I-2."""

from __future__ import annotations

from itertools import product

import msgspec
import pytest

from txlog.engine.folds.coordinator import (
    ABORTED,
    ABORTING,
    COMMITTED,
    COMMITTING,
    FOLD,
    OPEN,
    PREPARED,
    Coordinator,
    take_whole,
)
from txlog.engine.model.ops import (
    BufferCommitted,
    IdsReserved,
    Op,
    PartitionAdded,
    StatusUpdated,
    SubscriptionAdded,
    TxnOpened,
    TxnPrepared,
    TxnsForgotten,
)
from txlog.errors import Corruption

STATUSES = (OPEN, PREPARED, COMMITTING, COMMITTED, ABORTING, ABORTED)
WAY = {
    OPEN: (),
    PREPARED: (),
    COMMITTING: (COMMITTING,),
    COMMITTED: (COMMITTING, COMMITTED),
    ABORTING: (ABORTING,),
    ABORTED: (ABORTING, ABORTED),
}
ACCEPTED = {
    (OPEN, COMMITTING), (OPEN, ABORTING), (COMMITTING, COMMITTED), (ABORTING, ABORTED),
    (PREPARED, COMMITTING), (PREPARED, ABORTING),
}  # fmt: skip


PREPARATION = TxnPrepared(0, 0, "0f", "sqlite", "d1", "orders.db")


def coordinator_in(status: str) -> Coordinator:
    """A coordinator whose transaction 0:0 has come to a status."""
    state: Coordinator = FOLD.new()
    FOLD.apply(state, 1, 10, IdsReserved(0, 8))
    FOLD.apply(state, 2, 10, TxnOpened(0, 0, 1000, "ana", 1000, 10, "boot", 10))
    state_before, lsn = OPEN, 3
    if status == PREPARED:
        FOLD.apply(state, lsn, 10 + lsn, PREPARATION)
    for state_after in WAY[status]:
        FOLD.apply(state, lsn, 10 + lsn, StatusUpdated(0, 0, state_before, state_after, "user"))
        state_before, lsn = state_after, lsn + 1
    return state


def status_of(state: Coordinator) -> str:
    (txn,) = [*state.unfinished.values(), *state.ended.values()]
    return txn.status


@pytest.mark.parametrize(("before", "after"), list(product(STATUSES, STATUSES)))
def test_every_pair_of_statuses(before: str, after: str) -> None:
    """4: the table; a pair without an arrow is refused, with both statuses in the message."""
    for through_dump in (False, True):
        state = coordinator_in(before)
        if through_dump:
            state = FOLD.load(FOLD.dump(state))
        op = StatusUpdated(0, 0, before, after, "user")
        if (before, after) in ACCEPTED:
            FOLD.apply(state, 9, 99, op)
            assert status_of(state) == after
            continue
        dump = FOLD.dump(state)
        with pytest.raises(Corruption) as caught:
            FOLD.apply(state, 9, 99, op)
        assert before in caught.value.message
        assert after in caught.value.message
        assert FOLD.dump(state) == dump  # replay never lowers a status


@pytest.mark.parametrize(("real", "expected"), list(product(STATUSES, STATUSES)))
def test_an_op_that_expects_another_status_is_refused(real: str, expected: str) -> None:
    """4: each op carries the status it expects, so a lost or doubled frame cannot pass."""
    if real == expected:
        return
    for status_after in STATUSES:
        with pytest.raises(Corruption):
            FOLD.apply(coordinator_in(real), 9, 99, StatusUpdated(0, 0, expected, status_after))


def test_a_status_of_an_unknown_transaction_is_refused() -> None:
    with pytest.raises(Corruption, match="unknown"):
        FOLD.apply(coordinator_in(OPEN), 9, 99, StatusUpdated(0, 5, OPEN, COMMITTING))


def test_the_decision_is_kept_when_the_end_comes_later() -> None:
    """11: reason, counts and LSN come from the decision; late markers extend the record."""
    state = coordinator_in(OPEN)
    FOLD.apply(state, 20, 50, StatusUpdated(0, 0, OPEN, COMMITTING, None, 3, 2, [(1, 4, 0, 2)]))
    FOLD.apply(state, 30, 90, StatusUpdated(0, 0, COMMITTING, COMMITTED, markers=[(2, 5, 7, 1)]))
    txn = state.ended.get(0)
    assert txn is not None
    assert (txn.decision_lsn, txn.messages, txn.acks, txn.ended_ms) == (20, 3, 2, 90)
    assert txn.markers == ((1, 4, 0, 2), (2, 5, 7, 1))


def test_ended_transactions_are_in_order_of_decision() -> None:
    """4: the newest `count` by decision LSN; one that waited comes before those decided later."""
    state: Coordinator = FOLD.new()
    FOLD.apply(state, 1, 10, IdsReserved(0, 8))
    for sequence in range(4):
        FOLD.apply(state, 2 + sequence, 10, TxnOpened(0, sequence, 1, "a", 9, 10, "boot", 10))
    for lsn, sequence in ((10, 2), (11, 0), (12, 3), (13, 1)):
        FOLD.apply(state, lsn, lsn, StatusUpdated(0, sequence, OPEN, COMMITTING))
    for lsn, sequence in ((20, 0), (21, 1), (22, 2), (23, 3)):
        FOLD.apply(state, lsn, lsn, StatusUpdated(0, sequence, COMMITTING, COMMITTED))
    assert list(state.ended) == [2, 0, 3, 1]
    assert list(FOLD.load(FOLD.dump(state)).ended) == [2, 0, 3, 1]


def one_frame(first: str, last: str) -> list[Op]:
    """A transaction that one frame opens and ends, with ops of other folds in between."""
    opened = TxnOpened(0, 3, 1000, "ana", 1000, 10, "boot", 10, "k", 7)
    parts: list[Op] = [
        PartitionAdded(0, 3, 1),
        SubscriptionAdded(0, 3, 1, 2),
        PartitionAdded(0, 3, 4),
    ]
    parts += [PartitionAdded(0, 3, 1), SubscriptionAdded(0, 3, 1, 2)]  # again
    markers = [(1, 5, 0, 3), (4, 6, 2, 1)] if first == COMMITTING else []
    reason = None if first == COMMITTING else "user"
    decided = StatusUpdated(0, 3, OPEN, first, reason, 4, 2, markers)
    ended = StatusUpdated(0, 3, first, last, skipped=[(9, 9)])
    return [opened, *parts, decided, BufferCommitted(1, 0, 3, 8, 0, 5, 0), ended]


def one_by_one(ops: list[Op]) -> bytes | None:
    """The dump after ops, one after another; None: the fold refuses them."""
    state = coordinator_in(COMMITTED)
    try:
        for op in ops:
            if not isinstance(op, BufferCommitted):
                FOLD.apply(state, 20, 55, op)
    except Corruption:
        return None
    return bytes(FOLD.dump(state))


@pytest.mark.parametrize("way", [(COMMITTING, COMMITTED), (ABORTING, ABORTED)])
def test_a_transaction_taken_whole_is_as_by_its_ops(way: tuple[str, str]) -> None:
    """Law 1: the same record and the same figures."""
    for ops in (
        one_frame(*way),
        [each_op for each_op in one_frame(*way) if type(each_op) is not PartitionAdded],
    ):
        state = coordinator_in(COMMITTED)
        rest_state = take_whole(state, 20, 55, ops)
        assert rest_state == [op for op in ops if isinstance(op, BufferCommitted)]
        assert FOLD.dump(state) == one_by_one(ops)


@pytest.mark.parametrize("way", [(COMMITTING, COMMITTED), (ABORTING, ABORTED)])
def test_a_frame_that_is_not_one_transaction_is_not_taken_whole(way: tuple[str, str]) -> None:
    """Law 1: one op left out, doubled, moved, of another transaction or out of place."""
    good = one_frame(*way)
    frames = [good[:at] + good[at + 1 :] for at in range(1, len(good))]
    frames += [good[: at + 1] + good[at:] for at in range(len(good))]
    frames += [[good[0], *good[at:], *good[1:at]] for at in range(1, len(good))]
    for at, op in enumerate(good):
        for name, value in (
            ("coordinator", 1), ("sequence", 4), ("sequence", 0), ("sequence", 8),
            ("expected", COMMITTED), ("status", OPEN), ("markers", [(1, 1, 1, 1)]),
        ):  # fmt: skip
            if name in op.__struct_fields__:
                frames.append(
                    [*good[:at], msgspec.structs.replace(op, **{name: value}), *good[at + 1 :]]
                )
    # ids that were given out before, and never
    frames += [[msgspec.structs.replace(op, sequence=number) for op in good] for number in (0, 8)]
    for strange in (TxnsForgotten(0, [0]), IdsReserved(0, 99)):
        frames += [[*good[:at], strange, *good[at:]] for at in range(1, len(good))]
    count = 0
    for ops in frames:
        state = coordinator_in(COMMITTED)
        dump_before = FOLD.dump(state)
        if take_whole(state, 20, 55, ops) is not None:
            count += 1
            others = [op for op in ops if not isinstance(op, BufferCommitted)]
            assert {op.coordinator for op in others} == {0}  # type: ignore[union-attr]
            assert FOLD.dump(state) == one_by_one(ops)
        else:
            assert FOLD.dump(state) == dump_before
    assert 0 < count < len(frames) // 2


@pytest.mark.parametrize("before", STATUSES)
def test_only_an_open_transaction_is_prepared(before: str) -> None:
    state = coordinator_in(before)
    if before == OPEN:
        FOLD.apply(state, 9, 99, PREPARATION)
        (txn,) = FOLD.load(FOLD.dump(state)).unfinished.values()
        assert txn.status == PREPARED
        assert (txn.prepared.token, txn.prepared.label) == ("0f", "orders.db")
        assert txn.prepared.since_ms == 99
        return
    dump = FOLD.dump(state)
    with pytest.raises(Corruption):
        FOLD.apply(state, 9, 99, PREPARATION)
    assert FOLD.dump(state) == dump


def test_a_prepared_transaction_takes_no_participant_and_keeps_its_database_after_the_end() -> None:
    state = coordinator_in(PREPARED)
    FOLD.apply(state, 9, 99, StatusUpdated(0, 0, PREPARED, COMMITTING, None, 3, 2))
    FOLD.apply(state, 9, 99, StatusUpdated(0, 0, COMMITTING, COMMITTED))
    (txn,) = FOLD.load(FOLD.dump(state)).ended.values()
    assert (txn.status, txn.messages, txn.acks, txn.decision_lsn) == (COMMITTED, 3, 2, 9)
    assert txn.prepared is not None
    assert txn.prepared.database == "d1"
