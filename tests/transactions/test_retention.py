"""How long ended transactions are remembered; spec/transactions 3, 4."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine_kit import START_MS, Bench, begin
from txlog import TxnId
from txlog.errors import TransactionNotFound

pytestmark = pytest.mark.usefixtures("quick_disk")


def ended(bench: Bench, coordinator: int) -> TxnId:
    """Commit an empty transaction of a coordinator."""
    txn = bench.client.begin(coordinator=coordinator)["txn"]
    assert isinstance(txn, TxnId)
    bench.client.commit(txn)
    return txn


def remembered(bench: Bench) -> list[TxnId]:
    """The ids of all transactions in a listing."""
    return [row["txn"] for row in bench.client.transactions(all=True)]


def test_the_newest_of_the_whole_store_are_remembered(tmp_path: Path) -> None:
    """4: by decision LSN over all coordinators, not an equal share of each."""
    bench = Bench(
        tmp_path / "store", coordinators=4, txn_ended_retention_count=5, txn_ended_retention_ms=-1
    )
    order = [ended(bench, number) for number in (0, 1, 0, 2, 0, 0, 3, 0, 0)]
    assert remembered(bench) == sorted(order[-5:])
    bench.clock.advance(10**9)
    assert remembered(bench) == sorted(order[-5:])
    for txn in order[:4]:
        with pytest.raises(TransactionNotFound) as caught:
            bench.client.commit(txn)
        assert caught.value.code == 305
    assert bench.client.commit(order[4])["already"]


def test_one_coordinator_may_use_the_whole_count(tmp_path: Path) -> None:
    """4: with transactions of one coordinator only, it remembers the whole count."""
    bench = Bench(tmp_path / "store", txn_ended_retention_count=40)
    order = [ended(bench, 3) for _ in range(40)]
    bench.client.checkpoint()
    assert remembered(bench) == order


def test_a_partial_view_never_forgets_too_early(tmp_path: Path) -> None:
    """4: a process that has loaded one coordinator keeps all that may be among the newest."""
    bench = Bench(tmp_path / "store", coordinators=2, txn_ended_retention_count=4)
    first = [ended(bench, 0) for _ in range(3)]
    second = [ended(bench, 1) for _ in range(3)]
    client = bench.reopen()
    client.store._sweeper._forget_lsn = 0
    assert client.commit(first[2])["already"]  # this client has loaded coordinator 0 only
    client.checkpoint()  # this client has loaded both
    assert remembered(bench) == sorted([first[2], *second])


@pytest.mark.parametrize("name", ["txn_ended_retention_ms", "txn_ended_retention_count"])
def test_zero_switches_remembering_off(tmp_path: Path, name: str) -> None:
    bench = Bench(tmp_path / "store", coordinators=1, **{name: 0})
    txn = ended(bench, 0)
    assert remembered(bench) == []
    with pytest.raises(TransactionNotFound, match="forgotten"):
        bench.client.commit(txn)


def test_age_counts_from_the_end_and_strictly(tmp_path: Path) -> None:
    bench = Bench(
        tmp_path / "store",
        coordinators=1,
        txn_ended_retention_ms=1000,
        txn_ended_retention_count=-1,
    )
    txn = begin(bench.client)
    bench.clock.advance(5000)
    bench.client.commit(txn)
    bench.clock.advance(1000)
    assert bench.client.commit(txn)["already"]
    bench.clock.advance(1)
    with pytest.raises(TransactionNotFound, match="forgotten"):
        bench.client.commit(txn)


def test_one_wrong_clock_does_not_keep_others(tmp_path: Path) -> None:
    """6: times have no floor; only a transaction that ended under a fast clock stays for long."""
    bench = Bench(tmp_path / "store", coordinators=1, txn_ended_retention_ms=1000)
    ended_before = ended(bench, 0)
    bench.clock.set_wall(START_MS + 10**9)
    ahead = ended(bench, 0)
    bench.clock.set_wall(START_MS)
    ended_after = ended(bench, 0)
    bench.clock.advance(1001)
    # the process with the wrong clock has forgotten `before`, or it is old by now
    assert remembered(bench) == [ahead]
    for txn in (ended_before, ended_after):
        with pytest.raises(TransactionNotFound, match="forgotten"):
            bench.client.commit(txn)


def test_an_idle_store_forgets_on_the_next_call(tmp_path: Path) -> None:
    """6 (3): no write is needed, and no work runs in the background."""
    bench = Bench(tmp_path / "store", txn_ended_retention_ms=1000)
    txns = [ended(bench, number) for number in range(3)]
    bench.clock.advance(1001)
    client = bench.reopen()
    lsn = client.wait_for_change(0)
    with bench.another(read_only=True) as reader:
        assert len(reader.transactions(all=True)) == 3
    assert client.wait_for_change(0) == lsn
    assert client.expire()["forgotten"] == 3
    assert client.expire()["forgotten"] == 0
    assert client.wait_for_change(0) == lsn + 1
    with pytest.raises(TransactionNotFound, match="forgotten"):
        client.show_transaction(txns[0])


def test_a_checkpoint_forgets(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", coordinators=8, txn_ended_retention_count=3)
    for number in range(8):
        ended(bench, number)
    client = bench.reopen()
    client.checkpoint()
    with bench.another(read_only=True) as reader:
        assert [row["txn"].coordinator for row in reader.transactions(all=True)] == [5, 6, 7]


def test_an_id_in_pulsars_form_is_not_found_with_a_hint(tmp_path: Path) -> None:
    """2: (3,18) is a counter that coordinator 0 never reaches; the user means 3:18."""
    client = Bench(tmp_path / "store").client
    for text, hint in {
        "(3,18)": "did you mean 3:18?",
        "(844424930131968,18)": "txlog txn list shows the open ones",
        "0:18": "txlog txn list shows the open ones",
    }.items():
        with pytest.raises(TransactionNotFound) as caught:
            client.commit(TxnId.parse(text))
        assert (caught.value.code, caught.value.hint) == (304, hint)


def test_the_counter_tells_forgotten_from_never_issued(tmp_path: Path) -> None:
    """4: over reopenings and checkpoints, too."""
    bench = Bench(tmp_path / "store", coordinators=1, txn_ended_retention_count=0)
    txn = ended(bench, 0)
    bench.client.checkpoint()
    client = bench.reopen()
    for sequence, code in ((txn.sequence, 305), (txn.sequence + 1, 304)):
        for act in (client.commit, client.abort, client.show_transaction):
            with pytest.raises(TransactionNotFound) as caught:
                act(TxnId(0, sequence))
            assert caught.value.code == code
