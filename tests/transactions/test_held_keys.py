"""A transaction key over restarts, and as a client of the Python library holds it."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from tests.engine_kit import Bench, values
from txlog import Client, TxnId
from txlog.engine.folds import transaction_key as keys
from txlog.errors import (
    CoordinatorNotFound,
    ExpiredTransaction,
    InvalidArgument,
    InvalidTxnStatus,
    NotAllowed,
    ProducerFenced,
    ReadOnlyStore,
)

pytestmark = [
    pytest.mark.usefixtures("quick_disk", "users"),
    pytest.mark.store({"t": 2}, [("t", "s")]),
]


# --- restarts --------------------------------------------------------------------------------


def test_keys_survive_checkpoints_and_processes(bench: Bench) -> None:
    """Law 1: epoch, open transaction and figures, in any process that opens the store."""
    client = bench.client
    done = client.begin(key="k")["txn"]
    bench.clock.advance(250)
    client.commit(done)
    txn = client.begin(key="k")["txn"]
    key_row = client.admin.transaction_key("k")
    for roll in (False, True):
        client.checkpoint(roll_all=roll)
        client = bench.reopen()
        assert client.admin.transaction_key("k") == key_row
    known_items = client.store.read(lambda view: keys.find(view.keys(txn.coordinator), 1000, "k"))
    assert known_items is not None
    assert (
        known_items.sequence,
        known_items.ended_count,
        known_items.open_ms_sum,
        known_items.recent_ms,
    ) == (
        txn.sequence,
        1,
        250,
        [250],
    )
    assert client.connect("k")["fenced_txn"] == txn


def test_a_lossy_recovery_is_no_fence(bench: Bench) -> None:
    """5.2: a reboot aborts open transactions, by recovery; the epoch stays, the key is free."""
    txn = bench.client.begin(key="k")["txn"]
    bench.client.flush()
    bench.close()
    bench.clock.reboot("another boot", bench.clock.now().wall_ms + 10)
    client = bench.another()
    assert client.begin(key="k", epoch=0)["fenced_txn"] is None
    assert client.show_transaction(txn)["reason"] == "recovery"
    with pytest.raises(InvalidTxnStatus):
        client.commit(txn)
    assert client.connect("k")["epoch"] == 1


def test_figures_are_kept_of_every_end(bench: Bench) -> None:
    """16: one observation per ended transaction: commit, abort, fence, time-out."""
    client = bench.client
    for number, end in enumerate(("commit", "abort", "fence", "timeout")):
        txn = client.begin(1000, key="k")["txn"]
        bench.clock.advance(100 + number if end != "timeout" else 1001)
        if end in ("commit", "abort"):
            getattr(client, end)(txn)
        else:
            client.connect("k")
    (row,) = client.admin.transaction_keys()
    known_items = client.store.read(
        lambda view: keys.find(view.keys(row["coordinator"]), 1000, "k")
    )
    assert known_items is not None
    assert known_items.recent_ms == [100, 101, 102, 1001]
    assert (known_items.ended_count, known_items.open_ms_sum, known_items.sequence) == (4, 1304, -1)


def test_the_description_of_a_key(bench: Bench) -> None:
    """10: owner, epoch, unfinished transaction, coordinator, connected and used."""
    client = bench.client
    client.connect("k")
    connected = bench.clock.now().wall_ms
    bench.clock.advance(500)
    txn = client.begin(key="k", epoch=0)["txn"]
    client.producer("t").send(b"x", partition=0, txn=txn)
    bench.clock.advance(200)
    (row,) = client.admin.transaction_keys()
    assert row == {
        "transaction_key": "k",
        "owner": "ana",
        "owner_uid": 1000,
        "epoch": 0,
        "txn": txn,
        "txn_state": "open",
        "coordinator": txn.coordinator,
        "deleted": False,
        "connected_time": connected,
        "last_used_time": connected + 500,
        "age_ms": 200,
        "topic_list": ["t"],
    }
    client.commit(txn)
    assert client.admin.transaction_keys()[0]["txn"] is None


# --- the Python API ---------------------------------------------------------------------------


def test_a_client_holds_its_key(bench: Bench) -> None:
    """10: it connects at its creation; its transactions run under the key, other holders
    fence it.
    """
    first = bench.another(transaction_key="k")
    assert (first.transaction_key, first.epoch) == ("k", 0)
    with first.transaction() as txn:
        first.producer("t").send(b"one", partition=0, txn=txn)
    txn_row = first.show_transaction(txn.id)
    assert (txn_row["transaction_key"], txn_row["epoch"]) == ("k", 0)
    first_txn = first.transaction()
    second = bench.another(transaction_key="k")
    assert second.epoch == 1
    with pytest.raises(ExpiredTransaction):
        first_txn.commit()
    for begins in (first.transaction, first.begin, first.new_transaction().build):
        with pytest.raises(ProducerFenced) as caught:
            begins()
        assert isinstance(caught.value, NotAllowed)
        assert caught.value.fields["transaction_key"] == "k"
    with second.transaction() as txn:
        second.producer("t").send(b"two", partition=0, txn=txn)
    assert values(bench.client) == [b"one", b"two"]
    with bench.client.transaction(key="k", epoch=1), pytest.raises(InvalidArgument):
        bench.client.transaction(epoch=1)
    with pytest.raises(InvalidArgument):
        bench.client.begin(owner="ana")
    with pytest.raises(InvalidArgument):
        second.new_transaction().with_coordinator(3).build()


def test_a_client_renews_its_own_connection(bench: Bench) -> None:
    """10: it presents the epoch it has, and goes on with the new one."""
    client = bench.another(transaction_key="k")
    open_one = client.begin()["txn"]
    assert client.connect("k", 0)["fenced_txn"] == open_one
    assert client.epoch == 1
    client.connect("other")
    assert (client.transaction_key, client.epoch) == ("k", 1)
    client.transaction().commit()


def test_the_builder_of_the_proposal(bench: Bench) -> None:
    """PIP-31: newTransaction().withTransactionTimeout(...).build(), besides the context manager."""
    client = bench.client
    txn = client.new_transaction().with_timeout(5000).with_coordinator(3).build()
    assert txn.id == TxnId(3, 0)
    assert (txn.state, client.show_transaction(txn.id)["timeout_ms"]) == ("OPEN", 5000)
    assert txn.abort().status == txn.state == "ABORTED"
    minutes = client.new_transaction().with_timeout(timedelta(minutes=2)).build()
    assert client.show_transaction(minutes.id)["timeout_ms"] == 120_000
    assert client.show_transaction(client.new_transaction().build().id)["timeout_ms"] == 60_000
    with pytest.raises(InvalidArgument):
        client.new_transaction().with_timeout(0).build()
    with pytest.raises(CoordinatorNotFound):
        client.new_transaction().with_coordinator(16).build().commit()


def test_a_fenced_block_raises_what_happened_first(bench: Bench) -> None:
    """The end of a `with` block never hides the error of its body."""
    task = bench.another(transaction_key="k")
    with pytest.raises(ExpiredTransaction, match="fenced"), task.transaction() as txn:
        bench.client.connect("k")
        task.producer("t").send(b"x", partition=0, txn=txn)
    bench.client.connect("k")
    task = bench.another(transaction_key="k")
    with pytest.raises(KeyError), task.transaction():
        bench.client.connect("k")
        raise KeyError
    task = bench.another(transaction_key="k")
    with pytest.raises(ExpiredTransaction), task.transaction():
        bench.client.connect("k")


def test_a_reader_cannot_connect(bench: Bench) -> None:
    """A read-only client refuses, and leaves no transaction open."""
    with pytest.raises(ReadOnlyStore):
        bench.another(read_only=True, transaction_key="k")
    assert bench.client.admin.transaction_keys() == []


def test_of_many_at_once_the_last_holds_the_key(bench: Bench) -> None:
    """I-1, I-16: every connection has an epoch of its own; one transaction is open at the end."""
    clients = [bench.another() for _ in range(4)]
    epochs: list[int] = []
    failures: list[BaseException] = []

    def work(client: Client) -> None:
        try:
            for _ in range(10):
                epoch = client.begin(key="k")["epoch"]
                assert epoch is not None
                epochs.append(epoch)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert sorted(epochs) == list(range(40))
    assert len(bench.client.transactions()) == 1
    assert bench.client.admin.transaction_key("k")["epoch"] == 39


def test_an_overdue_transaction_is_ended_before_its_key_is_shown(bench: Bench) -> None:
    """6: a call that names a key loads its coordinator; a read-only client shows the recorded
    state.
    """
    txn = bench.client.begin(1000, key="k")["txn"]
    bench.client.flush()
    bench.clock.advance(1001)
    reader = bench.another(read_only=True)
    assert reader.admin.transaction_key("k")["txn"] == txn
    assert bench.another().admin.transaction_key("k")["txn"] is None
    assert [row["txn"] for row in reader.admin.transaction_keys()] == [None]
