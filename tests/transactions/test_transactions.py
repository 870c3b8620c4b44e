"""Transactions: begin, end, time-out, ids, retention; spec/transactions 4, 5, 6."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine_kit import START_MS, Bench, begin, pending, read, send, values
from txlog import MessageId, TxnId
from txlog.errors import (
    CoordinatorNotFound,
    InvalidArgument,
    InvalidTxnStatus,
    LimitExceeded,
    TopicNotFound,
    TransactionNotFound,
    TransactionTimedOut,
)

pytestmark = [pytest.mark.usefixtures("quick_disk"), pytest.mark.store({"t": 2}, [("t", "s")])]


def test_a_commit_shows_everything_at_once(bench: Bench) -> None:
    """1.1, I-6: sends to two partitions and acks on one subscription are one frame."""
    client, other = bench.client, bench.another()
    (message_id,) = send(client, b"in")
    with client.transaction() as txn:
        for number in (0, 1):
            client.producer("t").send(b"out %d" % number, partition=number, txn=txn)
        client.acknowledge("t", "s", [message_id], txn=txn)
        assert values(other) == [b"in"]
        assert txn.state == "OPEN"
    lsn = client.wait_for_change(0)
    assert values(other) == [b"in", b"out 0", b"out 1"]
    assert [m.value for m in pending(other)] == [b"out 0", b"out 1"]
    txn_row = client.show_transaction(txn.id)
    assert txn_row["decision_lsn"] == lsn
    assert [(p["partition"], p["messages"]) for p in txn_row["partition_list"]] == [(0, 1), (1, 1)]
    assert txn.state == "COMMITTED"


def test_an_abort_leaves_nothing(bench: Bench) -> None:
    """I-5: an aborted transaction leaves entries, counts and last id of the partition unchanged."""
    client = bench.client
    (message_id,) = send(client, b"in")
    partition_before = client.describe_topic("t")["partition_list"][0]
    with pytest.raises(KeyError), client.transaction() as txn:
        client.producer("t").send(b"x", partition=0, txn=txn)
        client.acknowledge("t", "s", [message_id], txn=txn)
        raise KeyError
    partition_after = client.describe_topic("t")["partition_list"][0]
    for name in ("first", "last", "messages", "size_bytes", "ledgers"):
        assert partition_after[name] == partition_before[name]
    assert [(m.value, m.redelivery_count) for m in pending(client)] == [(b"in", 1)]
    assert send(client, b"next") == [MessageId(message_id.ledger, message_id.entry + 1)]
    assert client.show_transaction(txn.id)["reason"] == "user"


@pytest.mark.parametrize("commits", [True, False])
def test_an_end_reaches_every_participant(bench: Bench, commits: bool) -> None:
    """Two partitions with messages, and two subscriptions with acknowledgements."""
    client = bench.client
    client.create_subscription("t", "r")
    (message_id,) = send(client, b"in")
    txn = begin(client)
    for number in (0, 1):
        client.producer("t").send(b"out", partition=number, txn=txn)
    for subscription in ("s", "r"):
        client.acknowledge("t", subscription, [message_id], txn=txn)
    (client.commit if commits else client.abort)(txn)
    left = [b"out", b"out"] if commits else [b"in"]
    for subscription in ("s", "r"):
        assert [message.value for message in pending(client, "t", subscription)] == left
    assert client.admin.find_hanging(0) == []


def test_markers_complete_the_ids(bench: Bench) -> None:
    """2: a send answers (partition, I); the marker in the answer of the commit completes the id."""
    client = bench.client
    txn = begin(client)
    producer = client.producer("t")
    for number, value in ((1, b"a"), (0, b"b"), (1, b"c")):
        producer.send(value, partition=number, txn=txn)
    answer = client.commit(txn)
    rows = {row["partition"]: row for row in answer["marker_list"]}
    assert [rows[n]["messages"] for n in (0, 1)] == [1, 2]
    marker = rows[1]["marker"]
    assert [(m.message_id, m.value) for m in read(client, partitions=[1])] == [
        (MessageId(marker.ledger, marker.entry, 1), b"a"),
        (MessageId(marker.ledger, marker.entry, 2), b"c"),
    ]


def test_an_empty_transaction_ends_with_success(bench: Bench) -> None:
    """5.1: an empty transaction is success, without a marker."""
    for end in (bench.client.commit, bench.client.abort):
        answer = end(begin(bench.client))
        assert (answer["messages"], answer["acks"], answer["marker_list"]) == (0, 0, [])
    assert read(bench.client) == []


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize(
    ("ended", "commit", "abort", "use"),
    [
        ("commit", None, InvalidTxnStatus, InvalidTxnStatus),
        ("abort", InvalidTxnStatus, None, InvalidTxnStatus),
        ("timeout", TransactionTimedOut, None, TransactionTimedOut),
        ("never", TransactionNotFound, TransactionNotFound, TransactionNotFound),
    ],
)
def test_the_decision_table_of_an_end(
    bench: Bench,
    ended: str,
    commit: type[Exception] | None,
    abort: type[Exception] | None,
    use: type[Exception],
    fresh: bool,
) -> None:
    """5, EndTxn table; I-14: the same from every process and after every restart."""
    client = bench.client
    (message_id,) = send(client, b"in")
    txn = TxnId(3, 77) if ended == "never" else begin(client, 1000)
    if ended in ("commit", "abort"):
        getattr(client, ended)(txn)
    elif ended == "timeout":
        bench.clock.advance(1001)
    if fresh:
        client.checkpoint()
        client = bench.reopen()
    for _ in range(2):
        for end, error in ((client.commit, commit), (client.abort, abort)):
            if error is None:
                assert end(txn)["already"]
                continue
            with pytest.raises(error) as caught:
                end(txn)
            assert type(caught.value) is error
        with pytest.raises(use):
            client.producer("t").send(b"x", txn=txn)
        with pytest.raises(use):
            client.acknowledge("t", "s", [message_id], txn=txn)
    assert values(client) == [b"in"]
    if ended == "timeout":
        assert client.show_transaction(txn)["reason"] == "timeout"


def test_time_runs_from_the_start_and_strictly(bench: Bench) -> None:
    """6: strictly more than the time-out, never from the last activity."""
    client = bench.client
    exact, late = begin(client, 1000), begin(client, 1000)
    bench.clock.advance(600)
    client.producer("t").send(b"x", txn=late)
    bench.clock.advance(400)
    assert client.commit(exact)["state"] == "committed"
    bench.clock.advance(1)
    with pytest.raises(TransactionTimedOut):
        client.commit(late)
    assert values(client) == []


def test_the_wall_clock_expires_nothing_within_a_boot(bench: Bench) -> None:
    """6: within one boot both readings are of the boot clock."""
    client = bench.client
    txn = begin(client, 1000)
    bench.clock.set_wall(START_MS + 10_000_000)
    client.producer("t").send(b"x", partition=0, txn=txn)
    bench.clock.set_wall(START_MS - 10_000_000)
    assert client.commit(txn)["state"] == "committed"
    assert values(client) == [b"x"]


def test_an_expiry_is_never_undone(bench: Bench) -> None:
    """6: a clock that goes back never un-expires a transaction."""
    client = bench.client
    txn = begin(client, 1000)
    bench.clock.advance(1001)
    client.flush()
    bench.clock.set_wall(START_MS)
    with pytest.raises(TransactionTimedOut):
        bench.reopen().commit(txn)


def test_expiry_gives_back_what_was_held(bench: Bench) -> None:
    """I-11, 18: without any call by a user."""
    client = bench.client
    (message_id,) = send(client, b"in")
    txn = begin(client, 1000)
    client.acknowledge("t", "s", [message_id], txn=txn)
    assert pending(client) == []
    bench.clock.advance(1001)
    other = bench.another()
    assert [(m.value, m.redelivery_count) for m in pending(other)] == [(b"in", 1)]
    assert [row["state"] for row in other.transactions(all=True)] == ["aborted"]


def test_a_reboot_aborts_what_is_open(bench: Bench) -> None:
    """5.2: a lossy recovery ends every OPEN transaction, of all coordinators, no decided one."""
    client = bench.client
    done = begin(client)
    client.producer("t").send(b"kept", partition=0, txn=done)
    client.commit(done)
    open_ones = [begin(client) for _ in range(20)]
    client.producer("t").send(b"x", txn=open_ones[3])
    bench.close()
    bench.clock.reboot("another boot")
    client = bench.client = bench.another()
    fresh = begin(client)
    assert fresh not in open_ones
    for txn in open_ones:
        with pytest.raises(InvalidTxnStatus, match="recovery"):
            client.commit(txn)
        assert client.show_transaction(txn)["reason"] == "recovery"
    assert client.commit(done)["already"]
    assert client.commit(fresh)["state"] == "committed"
    assert values(client) == [b"kept"]


def test_ids_are_consecutive_while_the_machine_is_up(tmp_path: Path) -> None:
    """4: round robin over the coordinators, each counts from 0, also over reservations."""
    bench = Bench(tmp_path / "store", coordinators=3, txn_ids_reserved=2)
    client = bench.client
    got = [begin(client) for _ in range(5)]
    client.checkpoint()
    client = bench.reopen()
    got += [begin(client) for _ in range(7)]
    assert got == [TxnId(number % 3, number // 3) for number in range(12)]
    assert client.begin(coordinator=2)["txn"] == TxnId(2, 4)
    with pytest.raises(CoordinatorNotFound):
        client.begin(coordinator=3)


@pytest.mark.parametrize(("timeout", "error"), [(0, InvalidArgument), (-1, InvalidArgument),
                                                (86_400_001, LimitExceeded)])  # fmt: skip
def test_time_outs_out_of_bounds(bench: Bench, timeout: int, error: type[Exception]) -> None:
    """3: refused, and no transaction opened."""
    with pytest.raises(error):
        begin(bench.client, timeout)
    assert bench.client.transactions(all=True) == []
    assert begin(bench.client) == TxnId(0, 0)


def test_the_number_of_unfinished_is_bounded(tmp_path: Path) -> None:
    """3: beyond txn_active_max begin is LimitExceeded at once; an end makes room."""
    bench = Bench(tmp_path / "store", coordinators=1, txn_active_max=2)
    first = begin(bench.client)
    begin(bench.client, 1000)
    with pytest.raises(LimitExceeded) as caught:
        begin(bench.client)
    assert caught.value.fields["setting"] == "txn_active_max"
    bench.client.abort(first)
    begin(bench.client)
    bench.clock.advance(1001)
    begin(bench.client)


def test_ended_transactions_are_forgotten(tmp_path: Path) -> None:
    """4: by age, on the next call; the error says which kind of not found it is."""
    bench = Bench(tmp_path / "store", coordinators=1, txn_ended_retention_ms=1000)
    client = bench.client
    ended = [begin(client) for _ in range(64)]
    for txn in ended:
        client.commit(txn)
    bench.clock.advance(1000)
    client = bench.reopen()
    assert client.show_transaction(txn)["state"] == "committed"
    bench.clock.advance(1)
    with bench.another(read_only=True) as reader:
        assert reader.show_transaction(txn)["state"] == "committed"  # until a sweep records it
    with pytest.raises(TransactionNotFound, match="forgotten") as forgotten:
        client.commit(txn)
    with pytest.raises(TransactionNotFound, match="never issued") as never:
        client.commit(TxnId(0, 99))
    assert forgotten.value.code != never.value.code
    assert client.transactions(all=True) == []


def test_failures_leave_the_transaction_open(bench: Bench) -> None:
    """5, I-15: a call that raised changed nothing on its own behalf."""
    client = bench.client
    txn = begin(client)
    producer = client.producer("t")
    with pytest.raises(TopicNotFound):
        client.producer("nowhere")
    with pytest.raises(InvalidArgument):
        producer.send(b"x", partition=7, txn=txn)
    producer.send(b"a", partition=0, txn=txn)
    assert client.commit(txn)["messages"] == 1


def test_listing(bench: Bench) -> None:
    """15: the answers of list and show, for open and ended transactions."""
    client = bench.client
    first, second = begin(client), begin(client, 5000)
    client.producer("t").send(b"x", txn=second)
    bench.clock.advance(10)
    client.commit(first)
    assert [row["txn"] for row in client.transactions()] == [second]
    assert [row["state"] for row in client.transactions(all=True)] == ["committed", "open"]
    assert [row["txn"] for row in client.transactions(states=["committed"])] == [first]
    (row,) = client.transactions()
    assert (row["age_ms"], row["expires_in_ms"], row["messages"]) == (10, 4990, 1)
    assert row["topic_list"] == ["t"]
    with pytest.raises(TransactionNotFound):
        client.show_transaction(TxnId(0, 50))
