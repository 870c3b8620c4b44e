"""Skip, clear-backlog, expiry and the time to live: acknowledgements without message ids."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine_kit import Bench, begin, ids, pending, send, send_txn, values
from txlog import Bound, Client, Range
from txlog.base.settings import RECEIVE_BYTES_MAX
from txlog.engine.plan.reading import dispatch
from txlog.errors import InvalidArgument, PartitionUnavailable, TransactionConflict

pytestmark = pytest.mark.usefixtures("quick_disk")
HOUR_MS = 3_600_000


def bench_of(folder: Path, partitions: int = 1, **policies: int) -> Bench:
    bench = Bench(folder / "store", ledger_entries_max=4, coordinators=1)
    bench.client.create_topic("t", partitions)
    bench.client.set_policies("t", **policies)
    bench.client.create_subscription("t", "s")
    return bench


def left(client: Client) -> list[bytes]:
    """The unacknowledged messages; the backlog is the same number (I-22)."""
    found_values = values(client, range=Range(kind="unacked", subscription="s"))
    assert client.subscription("t", "s").describe()["backlog"] == len(found_values)
    return found_values


def fill(client: Client) -> None:
    send(client, b"0", b"1", b"2")
    send_txn(client, b"3", b"4", b"5")
    send(client, b"6", b"7", b"8")


@pytest.mark.parametrize("count", [1, 3, 4, 5, 6, 8, 9, 100])
def test_the_next_messages_are_skipped(tmp_path: Path, count: int) -> None:
    """Also in the middle of a marker, and over acknowledged messages."""
    bench = bench_of(tmp_path)
    client = bench.client
    fill(client)
    handle = client.subscription("t", "s")
    assert handle.skip(count, dry_run=True)["skipped"] == min(count, 9)
    assert len(left(client)) == 9
    assert handle.skip(count) == {"topic": "t", "subscription": "s", "skipped": min(count, 9)}
    assert left(client) == [b"%d" % n for n in range(count, 9)]
    assert handle.skip(1)["skipped"] == (count < 9)
    client.checkpoint(roll_all=True)
    assert left(bench.reopen()) == [b"%d" % n for n in range(count + 1, 9)]


def test_acknowledged_messages_are_not_counted(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    client = bench.client
    fill(client)
    message_ids = ids(client)
    client.acknowledge("t", "s", [message_ids[at] for at in (1, 4, 7)])
    assert client.subscription("t", "s").skip(3)["skipped"] == 3
    assert left(client) == [b"5", b"6", b"8"]
    assert client.subscription("t", "s").clear_backlog()["skipped"] == 3
    assert left(client) == []
    send(client, b"new")
    assert left(client) == [b"new"]


def test_bytes_do_not_bound_what_is_only_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More bytes than one receive may return: skip and seek pass them all the same."""
    bench = bench_of(tmp_path)
    client = bench.client
    fill(client)
    message_ids = ids(client)
    *others, bytes_max = dispatch.plan.__defaults__ or ()
    assert bytes_max == RECEIVE_BYTES_MAX
    monkeypatch.setattr(dispatch.plan, "__defaults__", (*others, 2))
    handle = client.subscription("t", "s")
    assert handle.seek(Bound("last", 1))["partition_list"][0]["to"] == message_ids[8]
    assert handle.seek(Bound("skip", 8))["skip"] == 0
    handle.seek(Bound("start"))
    assert handle.skip(5, dry_run=True)["skipped"] == 5
    assert [row["messages"] for row in handle.backlog("ledger")] == [6, 3]
    assert handle.clear_backlog()["skipped"] == 9


def test_each_partition_is_counted_for_itself(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, 2)
    client = bench.client
    send(client, b"0", b"1", b"2", partition=0)
    send(client, b"3", b"4", b"5", partition=1)
    assert client.subscription("t", "s").skip(1)["skipped"] == 2
    assert client.subscription("t/1", "s").skip(all=True)["skipped"] == 2
    assert left(client) == [b"1", b"2"]


def test_pending_messages_stay_with_their_transaction(tmp_path: Path) -> None:
    """Spec 9.1: skip, clear-backlog and expiry do not touch PENDING_ACK."""
    bench = bench_of(tmp_path, ttl_ms=HOUR_MS)
    client = bench.client
    fill(client)
    message_ids = ids(client)
    txn = begin(client, 10 * HOUR_MS)
    client.acknowledge("t", "s", [message_ids[0], message_ids[4]], txn=txn)
    handle = client.subscription("t", "s")
    assert handle.skip(2)["skipped"] == 2
    assert handle.clear_backlog()["skipped"] == 5
    bench.clock.advance(2 * HOUR_MS)
    assert handle.expire()["skipped"] == 0
    assert pending(client) == []
    assert left(client) == [b"0", b"4"]
    client.abort(txn)
    assert handle.expire(dry_run=True)["skipped"] == 2
    assert pending(client) == []  # the returned messages have expired
    assert left(client) == []


def test_a_transaction_conflicts_with_a_skip(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    client = bench.client
    (message_id, *_) = send(client, b"0", b"1")
    client.subscription("t", "s").skip(1)
    with pytest.raises(TransactionConflict):
        client.acknowledge("t", "s", [message_id], txn=begin(client))


def test_expiry_goes_by_the_time_a_message_became_visible(tmp_path: Path) -> None:
    """For a transaction this is the commit; only strictly older messages expire."""
    bench = bench_of(tmp_path)
    client = bench.client
    with client.transaction(50 * HOUR_MS // 10) as txn:
        client.producer("t").send(b"late", txn=txn)
        send(client, b"0")
        bench.clock.advance(HOUR_MS)
        send(client, b"1")
    handle = client.subscription("t", "s")
    assert handle.expire(HOUR_MS)["skipped"] == 0  # not older, just as old
    bench.clock.advance(1)
    assert handle.expire(HOUR_MS)["skipped"] == 1
    assert left(client) == [b"1", b"late"]
    assert handle.skip(older_than_ms=0)["skipped"] == 2
    assert left(client) == []


def test_the_time_to_live_is_applied_by_polls_checkpoints_and_commands(tmp_path: Path) -> None:
    """By receive, by a checkpoint, by command; a topic without one keeps every message."""
    bench = bench_of(tmp_path, 2, ttl_ms=HOUR_MS)
    client = bench.client
    client.create_subscription("t", "other")
    for partition in range(2):
        send(client, b"0", b"1", partition=partition)
    bench.clock.advance(HOUR_MS + 1)
    send(client, b"new")
    assert [m.value for m in pending(bench.another())] == [b"new"]
    assert left(client) == [b"new"]
    (row,) = [row for row in client.subscriptions("t") if row["subscription"] == "other"]
    assert row["backlog"] == 5  # no consumer has polled there
    client.checkpoint()
    (row,) = [row for row in client.subscriptions("t") if row["subscription"] == "other"]
    assert row["backlog"] == 1
    client.admin.update_topic("t", ttl_ms=None)
    bench.clock.advance(10 * HOUR_MS)
    assert [m.value for m in pending(client)] == [b"new"]
    with pytest.raises(InvalidArgument, match="time to live"):
        client.subscription("t", "s").expire()
    assert client.subscription("t", "s").expire(HOUR_MS)["skipped"] == 1


def test_receiving_writes_nothing_for_a_time_to_live_that_is_not_over(tmp_path: Path) -> None:
    """A poll of such a topic writes no frame, even if its oldest message is pending."""
    bench = bench_of(tmp_path, ttl_ms=HOUR_MS)
    client = bench.client
    (message_id, *_) = send(client, b"0", b"1")
    client.acknowledge("t", "s", [message_id], txn=begin(client, 10 * HOUR_MS))
    with client.consumer("t", "s") as consumer:
        assert consumer.receive_batch().num_rows == 1
        bench.clock.advance(HOUR_MS + 1)
        consumer.receive_batch()
        lsn = client.wait_for_change(0)
        for _ in range(3):
            consumer.receive_batch()
        assert client.wait_for_change(0) == lsn


def test_a_partition_that_is_away(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, 2, ttl_ms=HOUR_MS)
    client = bench.client
    send(client, b"0", partition=0)
    send(client, b"1", partition=1)
    client.admin.set_offline("t", 1)
    bench.clock.advance(HOUR_MS + 1)
    with pytest.raises(PartitionUnavailable):
        client.subscription("t", "s").clear_backlog()
    assert pending(client) == []  # the time to live does not apply to it
    client.admin.set_online("t", 1)
    assert left(client) == [b"1"]


def test_senseless_skips_are_refused(tmp_path: Path) -> None:
    handle = bench_of(tmp_path).client.subscription("t", "s")
    for call in (
        handle.skip,
        lambda: handle.skip(1, all=True),
        lambda: handle.skip(0),
        lambda: handle.skip(older_than_ms=-1),
        lambda: handle.backlog("size"),
        lambda: handle.backlog("age", 0),
    ):
        with pytest.raises(InvalidArgument):
            call()
