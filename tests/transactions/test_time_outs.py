"""Time-outs over restarts, reboots and jumps of the wall clock; spec/transactions 6, I-18."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine_kit import START_MS, Bench, begin, pending, send, values
from txlog.errors import InvalidTxnStatus, TransactionConflict, TransactionTimedOut

pytestmark = [
    pytest.mark.usefixtures("quick_disk"),
    pytest.mark.store({"t": 2}, [("t", "s")], coordinators=4, txn_ended_retention_ms=-1),
]
HOUR = 3_600_000


@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_restart_resets_nothing(bench: Bench, checkpointed: bool) -> None:
    """6: the deadline counts from the start, through any number of processes."""
    txn = begin(bench.client, 1000)
    for _ in range(4):
        bench.clock.advance(250)
        if checkpointed:
            bench.client.checkpoint()
        bench.reopen().producer("t").send(b"x", partition=0, txn=txn)
    bench.clock.advance(1)
    with pytest.raises(TransactionTimedOut):
        bench.reopen().commit(txn)
    assert values(bench.client) == []


@pytest.mark.parametrize("jump", [-1000 * HOUR, -1, 1, 1000 * HOUR])
@pytest.mark.parametrize("reopened", [False, True])
def test_jumps_of_the_wall_clock_within_a_boot(bench: Bench, jump: int, reopened: bool) -> None:
    """6: both readings are of the boot clock, which no administrator turns."""
    client = bench.client
    early, late = begin(client, 1000), begin(client, 1001)
    client.producer("t").send(b"kept", partition=0, txn=late)
    bench.clock.set_wall(START_MS + jump)
    bench.clock.advance(1001)
    if reopened:
        client = bench.reopen()
    with pytest.raises(TransactionTimedOut):
        client.commit(early)
    assert client.commit(late)["state"] == "committed"
    bench.clock.set_wall(START_MS - jump)
    with pytest.raises(TransactionTimedOut):  # never un-expired
        client.commit(early)
    assert client.commit(late)["already"]


def test_a_jump_back_only_delays(bench: Bench) -> None:
    """6: without a boot id every process is a boot of its own, and the wall clock must do."""
    bench.close()
    bench.clock.reboot("", START_MS)
    client = bench.client = bench.another()
    txn = begin(client, 1000)
    bench.clock.set_wall(START_MS - 10 * HOUR)
    assert client.show_transaction(txn)["overdue"] is False
    bench.clock.set_wall(START_MS + 1000)
    assert client.show_transaction(txn)["state"] == "open"


@pytest.mark.parametrize("wall", [-10 * HOUR, 500, 10 * HOUR])
def test_after_a_reboot_nothing_is_open(bench: Bench, wall: int) -> None:
    """5.2: the reason is recovery, not the time-out, whatever the clocks are."""
    client = bench.client
    txn = begin(client, 1000)
    client.producer("t").send(b"x", partition=0, txn=txn)
    client.flush()
    bench.close()
    bench.clock.reboot("another boot", START_MS + wall)
    client = bench.client = bench.another()
    with pytest.raises(InvalidTxnStatus, match="recovery"):
        client.commit(txn)
    assert client.show_transaction(txn)["reason"] == "recovery"


def test_an_expiry_takes_no_part_in_later_clocks(bench: Bench) -> None:
    """6: one wrong reading far ahead expires open transactions, and has no later effect."""
    bench.close()
    bench.clock.reboot("", START_MS)
    client = bench.client = bench.another()
    lost = begin(client, 1000)
    bench.clock.set_wall(START_MS + 1000 * HOUR)
    client.flush()
    bench.clock.set_wall(START_MS)
    with pytest.raises(TransactionTimedOut):
        client.commit(lost)
    fresh = begin(client, 1000)
    client.producer("t").send(b"x", partition=0, txn=fresh)
    assert client.commit(fresh)["state"] == "committed"


def test_a_dead_holder_blocks_an_acknowledgement_no_longer(bench: Bench) -> None:
    """6, I-18: the call loads and sweeps the coordinator of the holder first."""
    client = bench.client
    message_ids = send(client, b"a", b"b", partition=0)
    dead = client.begin(1000, coordinator=3)["txn"]
    client.acknowledge("t", "s", message_ids[:1], txn=dead)
    client.flush()
    bench.clock.advance(1001)
    other = bench.another()
    own_txn = other.begin(coordinator=1)["txn"]
    assert other.acknowledge("t", "s", message_ids[:1], txn=own_txn)["acked"] == 1
    assert other.commit(own_txn)["acks"] == 1
    assert [m.value for m in pending(other)] == [b"b"]
    assert other.show_transaction(dead)["reason"] == "timeout"


def test_holders_are_swept_beyond_the_bound(tmp_path: Path) -> None:
    """6: beyond sweep_max, always the call's own and the holders of its messages."""
    bench = Bench(tmp_path / "store", coordinators=1, sweep_max=2)
    client = bench.client
    client.create_topic("t")
    client.create_subscription("t", "s")
    (message_id,) = send(client, b"a")
    crowd = [begin(client, 1000) for _ in range(8)]
    client.acknowledge("t", "s", [message_id], txn=crowd[7])
    bench.clock.advance(1001)
    own_txn = begin(client)  # a call that needs no transaction of the crowd ends two, the oldest
    with bench.another(read_only=True) as reader:
        remaining = [row["txn"] for row in reader.transactions() if row["overdue"]]
    assert remaining == crowd[2:]
    assert client.acknowledge("t", "s", [message_id], txn=own_txn)["acked"] == 1
    with bench.another(read_only=True) as reader:
        remaining = [row["txn"] for row in reader.transactions() if row["overdue"]]
    assert remaining == crowd[4:7]
    with pytest.raises(TransactionConflict):
        client.acknowledge("t", "s", [message_id], txn=begin(client))


def test_expire_ends_every_overdue_transaction(tmp_path: Path) -> None:
    """6: every coordinator, without the limit; a second call changes nothing."""
    bench = Bench(tmp_path / "store", coordinators=16, sweep_max=1)
    late = [begin(bench.client, 1000) for _ in range(40)]
    young = begin(bench.client)
    bench.clock.advance(1001)
    client = bench.reopen()
    assert bench.another(dry_run=True).expire()["expired"] == 40
    assert client.expire() == {
        "expired": 40,
        "rolled_forward": 0,
        "rolled_back": 0,
        "forgotten": 0,
        "waiting_list": [],
    }
    assert client.expire()["expired"] == 0
    assert [row["txn"] for row in client.transactions()] == [young]
    assert {client.show_transaction(txn)["reason"] for txn in late} == {"timeout"}


def test_a_reading_call_does_not_wait_for_the_lock(bench: Bench) -> None:
    """6: with the lock held elsewhere, it shows overdue transactions as recorded."""
    client = bench.client
    txn = begin(client, 1000)
    client.flush()
    bench.clock.advance(1001)
    other = bench.another(lock_timeout_ms=0)
    lock = client.store.disk.lock_file("lock")
    lock.acquire(0)
    try:
        (row,) = other.transactions()
        assert (row["txn"], row["state"], row["overdue"]) == (txn, "open", True)
        hanging_rows = other.admin.find_hanging()
        assert [(hanging_row["cause"], hanging_row["repair"]) for hanging_row in hanging_rows] == [
            ("overdue", "txlog txn expire")
        ]
    finally:
        lock.release()
        lock.close()
    assert other.transactions() == []


def test_commit_against_expiry(bench: Bench) -> None:
    """6, K11: the first holder of the lock decides; an ended transaction never expires."""
    client, other = bench.client, bench.another()
    txn = begin(client, 1000)
    client.producer("t").send(b"x", partition=0, txn=txn)
    bench.clock.advance(1000)
    assert client.commit(txn)["state"] == "committed"
    bench.clock.advance(HOUR // 2)
    assert other.expire()["expired"] == 0
    assert other.commit(txn)["already"]
