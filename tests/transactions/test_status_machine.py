"""The machine of statuses: the ops that the fold accepts and refuses; spec/transactions 4, I-2."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from txlog.engine.folds.coordinator import (
    ABORTED,
    ABORTING,
    COMMITTED,
    COMMITTING,
    FOLD,
    OPEN,
    PREPARED,
    Coordinator,
)
from txlog.engine.model.ops import (
    BufferCommitted,
    IdsReserved,
    Op,
    PartitionAdded,
    StatusUpdated,
    SubscriptionAdded,
    TxnEnded,
    TxnOpened,
    TxnPrepared,
    TxnsForgotten,
    decode_ops,
    encode_ops,
    merged,
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


PAIR = (0, 3)
OPENED = TxnOpened(*PAIR, 1000, "ana", 1000, 10, "boot", 10, "k", 7)
ENDED = TxnEnded(
    *PAIR, COMMITTED, None, 4, 2, [(1, 5, 0, 3), (4, 6, 2, 1)], [(9, 9)], OPENED, (1, 4), ((1, 2),)
)


def after(ops: Sequence[Op]) -> bytes | None:
    """The dump of a coordinator after the ops of a frame; None: the fold refuses them."""
    state = coordinator_in(COMMITTED)
    try:
        for op in ops:
            FOLD.apply(state, 20, 55, op)
    except Corruption:
        return None
    return bytes(FOLD.dump(state))


@st.composite
def ends(draw: st.DrawFn) -> TxnEnded:
    """A transaction that a frame opens and ends, in one op."""
    numbers = st.integers(min_value=1, max_value=9)
    places = st.lists(numbers, unique=True, max_size=3).map(tuple)
    pairs = st.lists(st.tuples(numbers, numbers), unique=True, max_size=3)
    is_commit = draw(st.booleans())
    markers = draw(st.lists(st.tuples(numbers, numbers, numbers, numbers), max_size=3))
    opened = TxnOpened(
        *PAIR, 1, "ana", draw(numbers), draw(numbers), "b", 7, draw(st.none() | st.just("k"))
    )
    return TxnEnded(
        *PAIR,
        COMMITTED if is_commit else ABORTED,
        None if is_commit else draw(st.sampled_from(["user", "timeout", "recovery"])),
        draw(numbers),
        draw(numbers),
        markers if is_commit else [],
        draw(pairs),
        opened,
        draw(places),
        tuple(draw(pairs)),
    )


@given(ends())
def test_an_end_in_one_op_is_as_by_its_steps(ended: TxnEnded) -> None:
    """Law 1: the same state, also where the op that opens it came before, as in its writer."""
    steps = ended.steps()
    wanted = after(steps)
    assert wanted is not None
    assert after([ended]) == wanted
    (back,) = decode_ops(encode_ops([ended]), lsn=1)
    assert back == ended
    opening = steps[:-2]
    rest = msgspec.structs.replace(ended, opened=None, partitions=(), subscriptions=())
    assert after([*opening, rest]) == wanted
    assert merged([*opening, rest]) == [ended]


def test_steps_are_the_ops_of_format_2() -> None:
    assert ENDED.steps() == [
        OPENED,
        PartitionAdded(*PAIR, 1),
        PartitionAdded(*PAIR, 4),
        SubscriptionAdded(*PAIR, 1, 2),
        StatusUpdated(*PAIR, OPEN, COMMITTING, None, 4, 2, [(1, 5, 0, 3), (4, 6, 2, 1)]),
        StatusUpdated(*PAIR, COMMITTING, COMMITTED, skipped=[(9, 9)]),
    ]


@pytest.mark.parametrize(
    "ops",
    [
        [ENDED, ENDED],
        [msgspec.structs.replace(ENDED, opened=None)],  # never opened
        [OPENED, ENDED],
        [msgspec.structs.replace(ENDED, status=COMMITTING)],
        [msgspec.structs.replace(ENDED, status=OPEN)],
        [msgspec.structs.replace(ENDED, sequence=4)],  # not the one that it opens
        [
            OPENED,
            StatusUpdated(*PAIR, OPEN, COMMITTING),
            msgspec.structs.replace(ENDED, opened=None),
        ],
        # a sequence that was given out before, and one that is not reserved
        *(
            [
                msgspec.structs.replace(
                    ENDED, sequence=number, opened=msgspec.structs.replace(OPENED, sequence=number)
                )
            ]
            for number in (0, 8)
        ),
    ],
)
def test_an_end_that_contradicts_the_state_is_refused(ops: list[Op]) -> None:
    """Kills: a transaction that ends twice, or under the number of another one."""
    assert after(ops) is None


@pytest.mark.parametrize(
    "ops",
    [
        [OPENED, PartitionAdded(*PAIR, 1)],
        [PartitionAdded(*PAIR, 1), msgspec.structs.replace(ENDED, opened=None)],
        [OPENED, msgspec.structs.replace(ENDED, sequence=2, opened=None)],
        [OPENED, PartitionAdded(*PAIR, 1), StatusUpdated(*PAIR, OPEN, COMMITTING)],
    ],
)
def test_only_a_whole_transaction_becomes_one_op(ops: list[Op]) -> None:
    assert merged(ops) is ops


def test_other_ops_of_the_frame_keep_their_order() -> None:
    """Folds of messages and cursors take them in the order of the decisions."""
    rest = msgspec.structs.replace(ENDED, opened=None, partitions=(), subscriptions=())
    first, last = BufferCommitted(1, *PAIR, 8, 0, 5, 0), TxnsForgotten(0, [1])
    opening = ENDED.steps()[:-2]
    ops = [opening[0], first, *opening[1:], rest, last]
    assert merged(ops) == [first, ENDED, last]


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
