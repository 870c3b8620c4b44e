"""Prepared transactions in the log: nothing but a resolve ends them; spec/transactions 5.3."""

from __future__ import annotations

import random

import pytest

from tests.disk.memory import MemoryDisk
from tests.engine_kit import START_MS, Bench, begin, client_on, prepare, send, values
from tests.transactions.users import BEN, ROOT, Users
from txlog import Client, TxnId, verify
from txlog.base.settings import Settings
from txlog.clock import ManualClock
from txlog.engine.session.transactions import end
from txlog.engine.store.identity import make_store
from txlog.errors import InvalidTxnStatus, NotAllowed, StillInUse

pytestmark = [
    pytest.mark.usefixtures("quick_disk"),
    pytest.mark.store({"t": 2}, [("t", "s")], coordinators=2),
]
DAY_MS = 86_400_000


def state_of(client: Client, txn: TxnId) -> str:
    return str(client.show_transaction(txn)["state"])


@pytest.fixture
def txn(bench: Bench) -> TxnId:
    """A prepared transaction with a message, and an acknowledgement of the message `in`."""
    client = bench.client
    (taken,) = send(client, b"in")
    txn_id = begin(client, 1000)
    client.producer("t").send(b"out", partition=1, txn=txn_id)
    client.acknowledge("t", "s", [taken], txn=txn_id)
    prepare(client, txn_id)
    return txn_id


def resolve(client: Client, txn: TxnId, *, commit: bool) -> str:
    return end.resolve(client.store, txn, commit=commit).status


def test_no_time_out_ends_it(bench: Bench, txn: TxnId) -> None:
    bench.clock.advance(3 * DAY_MS)
    assert bench.client.expire()["expired"] == 0
    send(bench.client, b"other")
    row = bench.client.show_transaction(txn)
    assert (row["state"], row["overdue"], row["prepared_ms"]) == ("prepared", False, 3 * DAY_MS)
    assert row["database"] == "sqlite:orders.db"
    assert (row["messages"], row["acks"]) == (1, 1)


@pytest.mark.parametrize("commit", [True, False])
def test_it_survives_a_power_cut_and_is_resolved_after_it(
    bench: Bench, txn: TxnId, *, commit: bool
) -> None:
    open_txn = begin(bench.client)
    bench.clock.reboot("another boot")
    client = bench.reopen()
    client.flush()
    assert state_of(client, open_txn) == "aborted"
    assert state_of(client, txn) == "prepared"
    assert values(client) == [b"in"]
    resolve(client, txn, commit=commit)
    assert values(client) == ([b"in", b"out"] if commit else [b"in"])
    with client.consumer("t", "s") as consumer:
        taken = consumer.receive_batch(9)["value"].to_pylist()
    assert sorted(taken) == ([b"out"] if commit else [b"in"])


def test_a_checkpoint_that_did_not_end_keeps_what_came_before_it() -> None:
    """With durability os the messages are not flushed when the journal is cut behind them."""
    clock, disk = ManualClock(START_MS), MemoryDisk()
    make_store(disk, Settings(durability="os"), clock)
    client = client_on(disk, clock)
    client.create_topic("t")
    txn = begin(client)
    client.producer("t").send(b"out", txn=txn)
    client.store.cut(lambda view: None)
    prepare(client, txn)
    for image in disk.images(random.Random(1), 32):
        later = ManualClock(START_MS)
        later.reboot("another boot")
        reopened = client_on(image, later)
        resolve(reopened, txn, commit=True)
        assert values(reopened) == [b"out"]


def test_checkpoint_and_compaction_keep_it(bench: Bench, txn: TxnId) -> None:
    bench.client.checkpoint(roll_all=True)
    bench.client.admin.compact("t")
    client = bench.reopen()
    assert [*client.store.read(end.prepared)] == [txn]
    resolve(client, txn, commit=True)
    assert values(client) == [b"in", b"out"]
    assert verify(bench.path, deep=True, clock=bench.clock)["errors"] == 0


def test_it_holds_what_it_acknowledged(bench: Bench, txn: TxnId) -> None:
    with bench.client.consumer("t", "s") as consumer:
        assert consumer.receive_batch(9).num_rows == 0
    subscription = bench.client.subscription("t", "s")
    with pytest.raises(InvalidTxnStatus, match="prepared"):
        subscription.seek("earliest", force=True)
    assert state_of(bench.client, txn) == "prepared"


def test_it_takes_nothing_and_plain_ends_are_refused(bench: Bench, txn: TxnId) -> None:
    client = bench.client
    message = next(iter(client.reader("t")))
    taken = message.message_id
    assert taken is not None
    for use in (
        lambda: client.commit(txn),
        lambda: client.abort(txn),
        lambda: client.producer("t").send(b"late", txn=txn),
        lambda: client.acknowledge("t", "s", [taken], txn=txn),
        lambda: prepare(client, txn, "another row"),
    ):
        with pytest.raises(InvalidTxnStatus, match=r"orders\.db"):
            use()
    prepare(client, txn)  # the same again is the same answer
    assert state_of(client, txn) == "prepared"


def test_resolve_answers_again_as_it_did_and_never_the_other_way(bench: Bench, txn: TxnId) -> None:
    client = bench.client
    assert resolve(client, txn, commit=True) == "COMMITTED"
    assert end.resolve(client.store, txn, commit=True).already
    with pytest.raises(InvalidTxnStatus):
        resolve(client, txn, commit=False)
    open_txn = begin(client)
    with pytest.raises(InvalidTxnStatus, match="not prepared"):
        resolve(client, open_txn, commit=True)
    assert resolve(client, open_txn, commit=False) == "ABORTED"


def test_only_its_owner_or_root_resolves_it(bench: Bench, txn: TxnId, users: Users) -> None:
    users.let(bench.client, BEN)
    with pytest.raises(NotAllowed):
        resolve(bench.client, txn, commit=True)
    users.let(bench.client, ROOT)
    assert resolve(bench.client, txn, commit=False) == "ABORTED"


def test_a_key_is_bound_until_its_transaction_is_resolved(bench: Bench) -> None:
    client = bench.client
    txn = client.begin(key="etl")["txn"]
    client.producer("t").send(b"out", txn=txn)
    prepare(client, txn)
    assert client.connect("etl")["fenced_txn"] is None  # a restarted program can open
    for use in (
        lambda: client.begin(key="etl"),
        lambda: client.begin(key="etl", epoch=1),
        lambda: client.admin.delete_transaction_key("etl"),
    ):
        with pytest.raises(InvalidTxnStatus, match="prepared"):
            use()
    assert verify(bench.path, deep=True, clock=bench.clock)["errors"] == 0
    resolve(client, txn, commit=True)
    assert client.begin(key="etl", epoch=1)["epoch"] == 1
    assert values(client) == [b"out"]


def test_a_topic_is_kept_from_deletion_unless_forced(bench: Bench, txn: TxnId) -> None:
    client = bench.client
    client.subscription("t", "s").delete()
    with pytest.raises(StillInUse):
        client.admin.delete_topic("t")
    client.admin.delete_topic("t", force=True)
    assert state_of(client, txn) == "prepared"
    assert resolve(client, txn, commit=True) == "COMMITTED"
    assert client.show_transaction(txn)["skipped_list"]


def test_an_unavailable_partition_holds_up_the_resolved_end(bench: Bench, txn: TxnId) -> None:
    client = bench.client
    client.admin.set_offline("t/1")
    assert resolve(client, txn, commit=True) == "COMMITTING"
    client.admin.set_online("t/1")
    assert state_of(client, txn) == "committed"
    assert values(client) == [b"in", b"out"]


def test_it_hangs_once_nobody_resolves_it(bench: Bench, txn: TxnId) -> None:
    client = bench.client
    assert client.admin.find_hanging() == []
    bench.clock.advance(DAY_MS)
    (row,) = client.admin.find_hanging()
    assert (row["txn"], row["state"], row["cause"]) == (txn, "prepared", "prepared")
    assert "txn resolve" in row["repair"]
    assert "orders.db" in row["repair"]
    counts = client.status()["txns"]
    assert (counts["prepared"], counts["open"]) == (1, 0)


def test_history_tells_of_it(bench: Bench, txn: TxnId) -> None:
    resolve(bench.client, txn, commit=True)
    bench.client.checkpoint(roll_all=True)
    rows = [row for row in bench.client.admin.transaction_log(txn) if row["detail"]]
    (prepared,) = [row for row in rows if row["op"] == "TxnPrepared"]
    assert prepared["detail"] == "sqlite orders.db, row 0f"
    assert any(row["detail"] == "PREPARED to COMMITTING, acks 1" for row in rows)
