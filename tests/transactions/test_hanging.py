"""find-hanging: waiting and overdue transactions, and the four states that Law 4 excludes.

Source: spec/transactions 15.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine_kit import Bench, begin, send
from txlog import TxnId
from txlog.engine.decide.draft import Decision
from txlog.engine.model.ops import (
    Op,
    StatusUpdated,
    TxnsForgotten,
)
from txlog.engine.view import View
from txlog.errors import TopicNotFound

pytestmark = pytest.mark.usefixtures("quick_disk")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    new_bench = Bench(tmp_path / "store", coordinators=2)
    for name in ("t", "u"):
        new_bench.client.create_topic(name, 2)
        new_bench.client.create_subscription(name, "s")
    return new_bench


def write(bench: Bench, *ops: Op) -> None:
    """A frame that no decision makes."""
    bench.client.store.write(lambda view, now: Decision(list(ops), None, True))


def test_healthy_stores_have_no_findings(bench: Bench) -> None:
    """Age alone is not a finding (KIP-664)."""
    client = bench.client
    begin(client, 86_400_000)
    for number in range(3):
        with client.transaction() as txn:
            client.producer("t").send(b"%d" % number, partition=0, txn=txn)
    bench.clock.advance(80_000_000)
    assert client.admin.find_hanging(0) == []


def test_waiting_for_a_partition(bench: Bench) -> None:
    client = bench.client
    txn = begin(client)
    client.producer("t").send(b"x", partition=1, txn=txn)
    client.admin.set_offline("t/1")
    client.commit(txn)
    bench.clock.advance(1000)
    assert client.admin.find_hanging(1000) == []
    (row,) = client.admin.find_hanging(999)
    assert row == {
        "txn": txn,
        "state": "committing",
        "age_ms": 1000,
        "cause": "unavailable",
        "repair": "txlog admin online t/1",
        "waiting_list": ["t/1"],
    }
    assert client.admin.find_hanging(0, ["t"]) == [row]
    assert client.admin.find_hanging(0, ["u"]) == []
    with pytest.raises(TopicNotFound):
        client.admin.find_hanging(0, ["nowhere"])


def test_overdue_in_a_read_only_client(bench: Bench) -> None:
    txn = begin(bench.client, 1000)
    bench.client.flush()
    bench.clock.advance(1001)
    with bench.another(read_only=True) as reader:
        (row,) = reader.admin.find_hanging()
        assert (row["txn"], row["cause"], row["state"]) == (txn, "overdue", "open")
    assert bench.client.admin.find_hanging() == []


def corrupt(bench: Bench) -> list[tuple[TxnId, str | None]]:
    rows = bench.client.admin.find_hanging(0)
    return [(row["txn"], row["state"]) for row in rows if row["cause"] == "corrupt"]


def test_committed_with_rows_and_no_marker(bench: Bench) -> None:
    client = bench.client
    txn = begin(client)
    client.producer("t").send(b"x", partition=1, txn=txn)
    pair = (txn.coordinator, txn.sequence)
    write(
        bench,
        StatusUpdated(*pair, "OPEN", "COMMITTING", None, 1, 0),
        StatusUpdated(*pair, "COMMITTING", "COMMITTED"),
    )
    assert corrupt(bench) == [(txn, "committed")]
    assert client.admin.find_hanging(0, ["u"]) == []
    write(bench, TxnsForgotten(txn.coordinator, [txn.sequence]))
    assert corrupt(bench) == [(txn, None)]


def test_aborted_with_a_marker(bench: Bench) -> None:
    client = bench.client
    with client.transaction() as txn:
        client.producer("t").send(b"x", partition=1, txn=txn)
    assert corrupt(bench) == []

    def lie(view: View) -> None:
        end = view.coordinator(txn.id.coordinator).ended.get(txn.id.sequence)
        assert end is not None
        end.status = "ABORTED"

    client.store.read(lie)
    assert corrupt(bench) == [(txn.id, "aborted")]


def test_rows_and_acknowledgements_of_the_unknown(bench: Bench) -> None:
    """At or above the counter, and without registration."""
    client = bench.client
    (message_id,) = send(client, b"a", partition=1)
    txn = begin(client)
    client.producer("t").send(b"x", partition=0, txn=txn)
    client.acknowledge("t", "s", [message_id], txn=txn)

    def unregister(view: View) -> None:
        record = view.coordinator(txn.coordinator).unfinished[txn.sequence]
        record.partitions = ()
        record.subscriptions = ()

    client.store.read(unregister)
    assert corrupt(bench) == [(txn, "open")]

    def unknow(view: View) -> None:
        state = view.coordinator(txn.coordinator)
        state.unfinished.clear()
        state.next_sequence = 0

    client.store.read(unknow)
    assert corrupt(bench) == [(txn, None)]
    assert "never issued" in client.admin.find_hanging(0)[0]["repair"]


def test_nothing_is_repaired(bench: Bench) -> None:
    """The command reports and never repairs silently."""
    client = bench.client
    txn = begin(client)
    client.producer("t").send(b"x", partition=1, txn=txn)
    pair = (txn.coordinator, txn.sequence)
    write(
        bench,
        StatusUpdated(*pair, "OPEN", "ABORTING", "user", 1, 0),
        StatusUpdated(*pair, "ABORTING", "ABORTED"),
    )
    lsn_before = client.wait_for_change(0)
    for _ in range(2):
        assert corrupt(bench) == [(txn, "aborted")]
    assert client.wait_for_change(0) == lsn_before
