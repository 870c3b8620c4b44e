"""The machine of statuses: what the fold takes and refuses; spec/transactions 4, I-2."""

from __future__ import annotations

from itertools import product

import pytest

from txlog.engine.folds.coordinator import (
    ABORTED,
    ABORTING,
    COMMITTED,
    COMMITTING,
    FOLD,
    OPEN,
    Coordinator,
)
from txlog.engine.model.ops import IdsReserved, StatusUpdated, TxnOpened
from txlog.errors import Corruption

STATUSES = (OPEN, COMMITTING, COMMITTED, ABORTING, ABORTED)
WAY = {
    OPEN: (),
    COMMITTING: (COMMITTING,),
    COMMITTED: (COMMITTING, COMMITTED),
    ABORTING: (ABORTING,),
    ABORTED: (ABORTING, ABORTED),
}
ACCEPTED = {
    (OPEN, COMMITTING), (OPEN, ABORTING), (COMMITTING, COMMITTED), (ABORTING, ABORTED),
}  # fmt: skip


def coordinator_in(status: str) -> Coordinator:
    """A coordinator whose transaction 0:0 has come to a status."""
    state: Coordinator = FOLD.new()
    FOLD.apply(state, 1, 10, IdsReserved(0, 8))
    FOLD.apply(state, 2, 10, TxnOpened(0, 0, 1000, "ana", 1000, 10, "boot", 10))
    before, lsn = OPEN, 3
    for after in WAY[status]:
        FOLD.apply(state, lsn, 10 + lsn, StatusUpdated(0, 0, before, after, "user"))
        before, lsn = after, lsn + 1
    return state


def status_of(state: Coordinator) -> str:
    (txn,) = [*state.unfinished.values(), *state.ended.values()]
    return txn.status


@pytest.mark.parametrize(("before", "after"), list(product(STATUSES, STATUSES)))
def test_every_pair_of_statuses(before: str, after: str) -> None:
    """4: the table; what is not an arrow is refused, with both statuses in the message."""
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
    for after in STATUSES:
        with pytest.raises(Corruption):
            FOLD.apply(coordinator_in(real), 9, 99, StatusUpdated(0, 0, expected, after))


def test_a_status_of_an_unknown_transaction_is_refused() -> None:
    with pytest.raises(Corruption, match="unknown"):
        FOLD.apply(coordinator_in(OPEN), 9, 99, StatusUpdated(0, 5, OPEN, COMMITTING))


def test_the_decision_is_kept_when_the_end_comes_later() -> None:
    """11: reason, counts and LSN are those of the decision; late markers extend the record."""
    state = coordinator_in(OPEN)
    FOLD.apply(state, 20, 50, StatusUpdated(0, 0, OPEN, COMMITTING, None, 3, 2, [(1, 4, 0, 2)]))
    FOLD.apply(state, 30, 90, StatusUpdated(0, 0, COMMITTING, COMMITTED, markers=[(2, 5, 7, 1)]))
    txn = state.ended[0]
    assert (txn.decision_lsn, txn.messages, txn.acks, txn.ended_ms) == (20, 3, 2, 90)
    assert txn.markers == [(1, 4, 0, 2), (2, 5, 7, 1)]


def test_the_ended_stand_in_order_of_decision() -> None:
    """4: the newest `count` by decision LSN; one that waited goes before those decided later."""
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
