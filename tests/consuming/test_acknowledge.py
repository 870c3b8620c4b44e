"""Acknowledgement: the complete conflict matrix of spec/transactions 9.3, and further cases.

The partition of every test holds  p0 p1 | T: t1 t2 t3 | p3 p4  (T is a marker with three messages).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine_kit import Bench, begin, pending, send, send_txn
from txlog import Client, MessageId, TxnId, messages
from txlog.errors import (
    InvalidTxnStatus,
    MessageNotFound,
    NotAllowed,
    TransactionConflict,
    TransactionNotFound,
    TransactionTimedOut,
)

pytestmark = pytest.mark.usefixtures("quick_disk")
NAMES = "p0 p1 t1 t2 t3 p3 p4".split()


class Board:
    """The partition of the matrix, with acknowledgements by short name; T is the marker itself."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.client = bench, bench.client
        self.client.create_topic("t")
        self.client.create_subscription("t", "s")
        first = send(self.client, b"p0", b"p1")
        marker, inner = send_txn(self.client, b"t1", b"t2", b"t3")
        last = send(self.client, b"p3", b"p4")
        self.ids = dict(zip(NAMES, [*first, *inner, *last], strict=True)) | {"T": marker}

    def ack(
        self,
        names: str,
        txn: TxnId | None = None,
        *,
        cumulative: bool = False,
        client: Client | None = None,
    ) -> tuple[int, int, int]:
        message_ids = [self.ids[name] for name in names.split()]
        answer = (client or self.client).acknowledge(
            "t", "s", message_ids, cumulative=cumulative, txn=txn
        )
        return answer["acked"], answer["already"], answer["dropped"]

    def conflict(self, names: str, txn: TxnId, *, cumulative: bool = False) -> TransactionConflict:
        with pytest.raises(TransactionConflict) as caught:
            self.ack(names, txn, cumulative=cumulative)
        assert caught.value.fields["txn"] == txn
        txn_row = self.client.show_transaction(txn)
        assert (txn_row["state"], txn_row["reason"]) == ("aborted", "conflict")
        return caught.value

    def left(self) -> str:
        return b" ".join(self.received()).decode()

    def received(self) -> list[bytes]:
        return [message.value or b"" for message in pending(self.client)]


@pytest.fixture
def board(tmp_path: Path) -> Board:
    return Board(Bench(tmp_path / "store"))


def test_the_board(board: Board) -> None:
    """The set-up of every test here is as the module says."""
    assert board.left() == " ".join(NAMES)


# --- individual p by X ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["p0", "p3", "t2", "T"])
def test_txn_ack_of_a_deleted_message_conflicts(board: Board, name: str) -> None:
    """9.3 row 1, column DELETED; p0 is below mark-delete, p3 a hole above it."""
    board.ack(name)
    txn = begin(board.client)
    assert board.conflict(name, txn).fields["holder"] == "deleted"


@pytest.mark.parametrize("other", [False, True])
@pytest.mark.parametrize(
    ("held", "wanted", "conflicts"),
    [
        ("p1", "p1", True), ("p1", "p3", False), ("p1", "p0", False),
        ("t2", "t2", True), ("t2", "t1", False), ("t2", "t3", False), ("t2", "T", True),
        ("T", "t1", True), ("T", "T", True), ("T", "p1", False), ("T", "p3", False),
        ("p1 T", "t3", True), ("p3", "p0 p1 p3", True),
    ],
)  # fmt: skip
def test_txn_ack_of_a_held_message_conflicts(
    board: Board, held: str, wanted: str, conflicts: bool, other: bool
) -> None:
    """9.3 row 1, columns individual of X and of Y: the same message, in either transaction."""
    holder = begin(board.client)
    asking = begin(board.client) if other else holder
    board.ack(held, holder)
    if not conflicts:
        board.ack(wanted, asking)
        assert board.client.commit(asking)["state"] == "committed"
        return
    assert board.conflict(wanted, asking).fields["holder"] == str(holder)
    if other:  # Y is not affected
        board.client.commit(holder)
        assert not set(held.split()) & set(board.left().split())


@pytest.mark.parametrize("other", [False, True])
@pytest.mark.parametrize(
    ("q", "wanted", "conflicts"),
    [
        ("p1", "p0", True), ("p1", "p1", True), ("p1", "t1", False), ("p1", "p4", False),
        ("t2", "t1", True), ("t2", "t2", True), ("t2", "t3", False), ("t2", "T", True),
        ("t3", "T", True), ("T", "t3", True), ("T", "p3", False),
    ],
)  # fmt: skip
def test_txn_ack_at_or_below_a_pending_cumulative_conflicts(
    board: Board, q: str, wanted: str, conflicts: bool, other: bool
) -> None:
    """9.3 row 1, columns cumulative of X and of Y at q: p ≤ q conflict, p > q ok."""
    holder = begin(board.client)
    asking = begin(board.client) if other else holder
    board.ack(q, holder, cumulative=True)
    if conflicts:
        board.conflict(wanted, asking)
    else:
        assert board.ack(wanted, asking)[0] == 1


# --- cumulative p by X ------------------------------------------------------------------------


def test_txn_cumulative_conflicts_when_all_is_deleted(board: Board) -> None:
    """9.3 row 2, column DELETED: conflict if all ≤ p are deleted, else they are skipped."""
    board.ack("p0 p1")
    board.conflict("p1", begin(board.client), cumulative=True)
    board.ack("t2")
    txn = begin(board.client)
    assert board.ack("T", txn, cumulative=True) == (2, 0, 0)
    board.client.commit(txn)
    assert board.left() == "p3 p4"


def test_txn_cumulative_absorbs_its_own(board: Board) -> None:
    """9.3 row 2, column individual of X; also when no new message is left to acknowledge."""
    txn = begin(board.client)
    board.ack("p1 t2", txn)
    assert board.ack("t3", txn, cumulative=True) == (3, 0, 0)
    other = begin(board.client)
    board.ack("p3", other)
    board.client.abort(other)
    assert board.client.commit(txn)["acks"] == 5
    assert board.left() == "p3 p4"
    both = begin(board.client)
    board.ack("p3", both)
    assert board.ack("p3", both, cumulative=True) == (0, 0, 0)
    assert board.client.commit(both)["acks"] == 1


@pytest.mark.parametrize(
    ("held", "p", "conflicts"),
    [
        ("p1", "p0", False), ("p1", "p1", True), ("p1", "T", True), ("t2", "t1", False),
        ("t2", "t2", True), ("t2", "T", True), ("T", "p1", False), ("T", "t1", True),
        ("T", "t3", True), ("T", "p4", True), ("p3", "T", False), ("p1 T p3", "t2", True),
    ],
)  # fmt: skip
def test_txn_cumulative_over_anothers_ack_conflicts(
    board: Board, held: str, p: str, conflicts: bool
) -> None:
    """9.3 row 2, column individual of Y: conflict if any of Y is ≤ p, inside a marker too."""
    holder, asking = begin(board.client), begin(board.client)
    board.ack(held, holder)
    if conflicts:
        assert board.conflict(p, asking, cumulative=True).fields["holder"] == str(holder)
    else:
        board.ack(p, asking, cumulative=True)


@pytest.mark.parametrize(("q", "p"), [("p1", "p0"), ("p1", "p1"), ("p1", "p4"), ("t2", "t3")])
def test_two_pending_cumulatives_conflict(board: Board, q: str, p: str) -> None:
    """9.3 row 2, last column: for any q."""
    holder, asking = begin(board.client), begin(board.client)
    board.ack(q, holder, cumulative=True)
    board.conflict(p, asking, cumulative=True)


@pytest.mark.parametrize(
    ("q", "p", "conflicts"),
    [("p1", "p0", True), ("p1", "p1", True), ("p1", "t1", False), ("t2", "t1", True),
     ("t2", "t2", True), ("t2", "t3", False), ("t2", "T", False), ("T", "t3", True),
     ("t3", "T", True)],
)  # fmt: skip
def test_txn_cumulative_extends_its_own(board: Board, q: str, p: str, conflicts: bool) -> None:
    """9.3 row 2, column cumulative of X at q: p > q extends, p ≤ q conflict."""
    txn = begin(board.client)
    board.ack(q, txn, cumulative=True)
    if conflicts:
        board.conflict(p, txn, cumulative=True)
        assert board.left() == " ".join(NAMES)
        return
    board.ack(p, txn, cumulative=True)
    board.client.commit(txn)
    stop = NAMES.index("t3" if p == "T" else p) + 1
    assert board.left() == " ".join(NAMES[stop:])


# --- plain ------------------------------------------------------------------------------------


def test_plain_ack_of_a_deleted_message_is_success(board: Board) -> None:
    """9.3 row 3, column DELETED; an id twice counts once, so does one inside its marker."""
    assert board.ack("p1 p1") == (1, 0, 0)
    assert board.ack("p1 p0") == (1, 1, 0)
    assert board.ack("t2 T t1") == (3, 0, 0)
    assert board.ack("T") == (0, 3, 0)
    assert board.client.subscriptions("t")[0]["backlog"] == 2


def test_txn_ack_of_a_marker_and_its_messages_counts_once(board: Board) -> None:
    """9.3: a request is checked as a whole, and an id twice in it counts once."""
    txn = begin(board.client)
    assert board.ack("T t1 t3 p0 p0", txn) == (4, 0, 0)
    assert board.client.commit(txn)["acks"] == 4
    assert board.left() == "p1 p3 p4"


def test_rows_in_any_order_and_twice_count_once(board: Board) -> None:
    """A table of received rows is a set of ids."""
    with board.client.consumer("t", "s") as consumer:
        table = consumer.receive_batch(100)
        twice = table.take([6, 3, 2, 2, 0, 6])
        txn = begin(board.client)
        assert consumer.acknowledge(twice, txn=txn).acked == 4
        board.client.abort(txn)
        assert consumer.acknowledge(twice).acked == 4
    assert board.left() == "p1 t3 p3"


@pytest.mark.parametrize(("held", "wanted"), [("p1", "p1"), ("t2", "t2"), ("T", "t1")])
def test_plain_ack_of_a_held_message_is_dropped(board: Board, held: str, wanted: str) -> None:
    """9.3 row 3: unchanged, no error, `dropped`; the abort gives the message back."""
    txn = begin(board.client)
    board.ack(held, txn)
    assert board.ack(wanted) == (0, 0, 1)
    board.client.abort(txn)
    assert wanted in board.left().split()


def test_plain_ack_of_a_marker_takes_what_is_free(board: Board) -> None:
    """9.2: PENDING messages are deleted, PENDING_ACK ones do not change."""
    txn = begin(board.client)
    board.ack("t2", txn)
    assert board.ack("T") == (2, 0, 1)
    board.client.abort(txn)
    assert board.left() == "p0 p1 t2 p3 p4"


@pytest.mark.parametrize(("wanted", "answer"), [("p0", (0, 0, 1)), ("t2", (0, 0, 1)),
                                                ("t3", (1, 0, 0)), ("p4", (1, 0, 0))])  # fmt: skip
def test_plain_ack_next_to_a_pending_cumulative(
    board: Board, wanted: str, answer: tuple[int, int, int]
) -> None:
    """9.3 row 3: p ≤ q is dropped, other messages are deleted."""
    txn = begin(board.client)
    board.ack("t2", txn, cumulative=True)
    assert board.ack(wanted) == answer


def test_plain_cumulative_leaves_what_is_held(board: Board) -> None:
    """9.3 row 4, columns individual of X and Y. Guards against deleting all ≤ p."""
    txn = begin(board.client)
    board.ack("p1 t2", txn)
    assert board.ack("p3", cumulative=True) == (4, 0, 2)
    assert board.left() == "p4"
    board.client.abort(txn)
    assert board.left() == "p1 t2 p4"
    assert board.ack("p3", cumulative=True)[0] == 2
    assert board.ack("p0", cumulative=True)[0] == 0  # DELETED: success, nothing


def test_plain_cumulative_over_a_pending_cumulative(board: Board) -> None:
    """9.3 row 4, columns cumulative at q: deletes the messages in (q, p]."""
    txn = begin(board.client)
    board.ack("t1", txn, cumulative=True)
    assert board.ack("p3", cumulative=True) == (3, 0, 3)
    board.client.abort(txn)
    assert board.left() == "p0 p1 t1 p4"


def test_plain_cumulative_into_a_marker(board: Board) -> None:
    """9.2: `5:7:2` covers everything before it and the inner messages 1 and 2."""
    assert board.ack("t2", cumulative=True) == (4, 0, 0)
    assert board.left() == "t3 p3 p4"
    board.bench.reopen()
    board.client = board.bench.client
    assert board.left() == "t3 p3 p4"
    assert board.ack("t3") == (1, 0, 0)
    marker = board.ids["T"]
    assert board.client.subscriptions("t")[0]["mark_delete"] == marker


def test_mark_delete_inside_a_marker_waits_for_the_rest_of_it(board: Board) -> None:
    board.client.subscription("t", "s").seek(board.ids["t2"])
    assert board.left() == "t2 t3 p3 p4"
    assert board.ack("p3") == (1, 0, 0)
    assert board.left() == "t2 t3 p4"


def test_what_a_transaction_holds_stays_held_over_a_checkpoint(board: Board) -> None:
    board.ack("p0 t2", begin(board.client))
    board.client.checkpoint()
    board.bench.reopen()
    board.client = board.bench.client
    assert board.left() == "p1 t1 t3 p3 p4"


# --- around the matrix ------------------------------------------------------------------------


def test_a_request_is_checked_as_a_whole(board: Board) -> None:
    """9.3: a refused request acknowledges no message, also not in the partition without
    conflict.
    """
    board.client.create_topic("two", 2)
    board.client.create_subscription("two", "s")
    zero, first_id = (send(board.client, b"x", topic="two", partition=n)[0] for n in (0, 1))
    board.client.acknowledge("two", "s", [first_id])
    txn = begin(board.client)
    with pytest.raises(TransactionConflict):
        board.client.acknowledge("two", "s", [zero, first_id], txn=txn)
    assert [m.message_id for m in pending(board.client, "two")] == [zero]
    assert board.client.subscriptions("two")[0]["pending_acks"] == 0


def test_a_conflict_aborts_durably_and_only_x(board: Board) -> None:
    """9.3: X's sends vanish, X's other acks come back with a count, in every process."""
    x, y = begin(board.client), begin(board.client)
    board.client.producer("t").send(b"of x", txn=x)
    board.ack("p0", x)
    board.ack("p1", y)
    error = board.conflict("p1", x)
    assert error.fields["message_id"] == board.ids["p1"]
    other = board.bench.another()
    with pytest.raises(InvalidTxnStatus, match="conflict"):
        other.commit(x)
    assert other.abort(x)["already"]
    pending_messages = pending(other)
    assert [(m.value, m.redelivery_count) for m in pending_messages[:2]] == [(b"p0", 1), (b"t1", 0)]
    assert b"of x" not in board.received()
    assert other.commit(y)["acks"] == 1


def test_failures_before_the_conflict_check_leave_the_txn_open(board: Board) -> None:
    """5, order of checks: failures 1 to 7 write nothing; I-15."""
    txn = begin(board.client)
    for wrong in (MessageId(99, 0), MessageId(1, 99), MessageId(1, 2, 4), MessageId(1, 0, 1)):
        with pytest.raises(MessageNotFound):
            board.client.acknowledge("t", "s", [wrong], txn=txn)
        with pytest.raises(MessageNotFound):
            board.client.acknowledge("t", "s", [wrong])
    with pytest.raises(NotAllowed):
        board.ack("p0 p1", txn, cumulative=True)
    assert board.client.show_transaction(txn)["state"] == "open"
    with pytest.raises(TransactionNotFound):
        board.ack("p0", TxnId(0, 500))


def test_cumulative_on_a_shared_subscription_is_not_allowed(board: Board) -> None:
    """9.1, 9.3: NotAllowed is no conflict."""
    board.client.create_subscription("t", "many", type="shared")
    txn = begin(board.client)
    for given_txn in (None, txn):
        with pytest.raises(NotAllowed):
            board.client.acknowledge("t", "many", [board.ids["p0"]], cumulative=True, txn=given_txn)
    assert board.client.commit(txn)["state"] == "committed"


def test_a_cumulative_request_has_one_id_per_partition(tmp_path: Path) -> None:
    """9.3: also from two ledgers; the lower id alone would acknowledge too little."""
    client = Bench(tmp_path / "store", ledger_entries_max=2).client
    client.create_topic("t", partitions=2)
    client.create_subscription("t", "s")
    first = send(client, b"a", b"b", b"c", b"d")
    other = send(client, b"e", partition=1)
    assert first[0].ledger != first[3].ledger
    txn = begin(client)
    for given_txn in (None, txn):
        for request in (first[0], first[2]), (first[0], first[3]), (first[0], other[0], first[3]):
            with pytest.raises(NotAllowed):
                client.acknowledge("t", "s", request, cumulative=True, txn=given_txn)
    assert len(pending(client)) == 5
    assert (
        client.acknowledge("t", "s", [first[3], other[0]], cumulative=True, txn=txn)["acked"] == 5
    )
    client.commit(txn)
    assert not pending(client)


def test_subscriptions_do_not_share_acknowledgements(board: Board) -> None:
    """9.2: a state belongs to a message on a subscription."""
    board.client.create_subscription("t", "other")
    txn = begin(board.client)
    board.ack("T", txn)
    board.client.acknowledge("t", "other", [board.ids["T"]], txn=txn)
    board.client.commit(txn)
    assert board.left() == "p0 p1 p3 p4"
    assert [m.value for m in pending(board.client, "t", "other")] == [b"p0", b"p1", b"p3", b"p4"]


def test_two_txns_share_a_marker(board: Board) -> None:
    """9.3: two messages of one marker may belong to different transactions."""
    x, y = begin(board.client), begin(board.client)
    board.ack("t1", x)
    board.ack("t2 t3", y)
    board.client.abort(x)
    assert board.left() == "p0 p1 t1 p3 p4"
    board.client.commit(y)
    assert board.left() == "p0 p1 t1 p3 p4"
    assert board.ack("t1") == (1, 0, 0)
    assert board.ack("p0 p1") == (2, 0, 0)
    assert board.client.subscriptions("t")[0]["mark_delete"] == board.ids["T"]


def test_an_overdue_holder_is_ended_by_the_next_acknowledgement(board: Board) -> None:
    """I-18, 6: acknowledgements of a killed process block other clients only until its time-out."""
    holders = [begin(board.client, 1000) for _ in range(3)]
    for name, holder in zip(("p0", "p1", "t2"), holders, strict=True):
        board.ack(name, holder)
    board.bench.clock.advance(1001)
    asking = board.bench.another().begin(coordinator=15)["txn"]
    assert board.ack("p0", asking, client=board.bench.another()) == (1, 0, 0)
    assert board.ack("p1", client=board.bench.another()) == (1, 0, 0)
    assert board.ack("T", asking, cumulative=True, client=board.bench.another())[0] == 3
    with pytest.raises(TransactionTimedOut):
        board.client.commit(holders[0])
    assert board.client.commit(asking)["acks"] == 4


def test_an_overdue_holder_is_ended_by_a_plain_ack_of_its_message(board: Board) -> None:
    """I-18: from a process that has not loaded the coordinator of the holder yet."""
    holder = begin(board.client, 1000)
    board.ack("p0 p1", holder)
    board.bench.clock.advance(1001)
    assert board.ack("p0", client=board.bench.another()) == (1, 0, 0)
    assert board.client.show_transaction(holder)["reason"] == "timeout"
    assert board.left() == "p1 t1 t2 t3 p3 p4"


def test_deleted_messages_are_not_received_by_a_consumer_behind(board: Board) -> None:
    """9.2: DELETED is final, also when mark-delete has passed the position of a consumer."""
    with board.client.consumer("t", "s") as consumer:
        assert [m.value for m in messages(consumer.receive_batch(1))] == [b"p0"]
        board.ack("t1", cumulative=True)
        board.client.producer("t").flush()
        assert [m.value for m in messages(consumer.receive_batch(1))] == [b"t2"]


def test_abort_rewinds_a_consumer(board: Board) -> None:
    """9.1, 9.2: messages acknowledged in an aborted transaction come again, first, with a count."""
    with board.client.consumer("t", "s") as consumer:
        txn = begin(board.client)
        table = consumer.receive_batch(4)
        consumer.acknowledge(table, txn=txn)
        assert consumer.receive_batch(1).column("value").to_pylist() == [b"t3"]
        board.client.abort(txn)
        messages_again = list(messages(consumer.receive_batch(100)))
        assert [m.value for m in messages_again] == [name.encode() for name in NAMES]
        assert [m.redelivery_count for m in messages_again] == [1, 1, 1, 1, 0, 0, 0]


def test_abort_of_a_cumulative_ack_rewinds_too(board: Board) -> None:
    """9.2: individual and cumulative alike; `receive` returns no buffered message of before."""
    with board.client.consumer("t", "s") as consumer:
        received = [consumer.receive() for _ in range(3)]
        txn = begin(board.client)
        assert received[2] is not None
        assert consumer.acknowledge_cumulative(received[2], txn=txn).acked == 3
        board.client.abort(txn)
        messages_again = [consumer.receive() for _ in NAMES]
        assert [m.value for m in messages_again if m] == [name.encode() for name in NAMES]
        assert consumer.receive() is None
