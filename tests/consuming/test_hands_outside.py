"""Calls from outside on leased messages: nack, redeliver, seek, skip, acknowledge."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine_kit import Bench, begin, send
from txlog import Consumer, MessageId
from txlog.base.choices import SubscriptionType
from txlog.base.ranges import END, START
from txlog.errors import InvalidArgument, MessageNotFound

pytestmark = pytest.mark.usefixtures("quick_disk")


def bench_of(folder: Path, type: SubscriptionType = "shared") -> tuple[Bench, list[MessageId]]:
    bench = Bench(folder / "store", coordinators=1)
    bench.client.create_topic("t")
    bench.client.create_subscription("t", "s", type=type)
    return bench, send(bench.client, *(b"%d" % n for n in range(6)))


def taken(consumer: Consumer, limit: int = 100) -> list[tuple[bytes, int]]:
    table = consumer.receive_batch(limit)
    counts = table.column("redelivery_count").to_pylist()
    return list(zip(table.column("value").to_pylist(), counts, strict=True))


@pytest.mark.parametrize("type", ["shared", "exclusive"])
def test_a_nack_by_id_touches_what_is_in_hand(tmp_path: Path, type: SubscriptionType) -> None:
    """Spec 9.1: on any consumer; ids that are not leased, or pending in a transaction, are
    ignored.
    """
    bench, message_ids = bench_of(tmp_path, type)
    handle = bench.another().subscription("t", "s")
    with bench.client.consumer("t", "s") as consumer:
        assert len(taken(consumer, 4)) == 4
        plan = handle.negative_acknowledge(message_ids[2:6], dry_run=True)
        answer = handle.negative_acknowledge(message_ids[2:6])
        assert answer == plan == {"topic": "t", "subscription": "s", "nacked": 2, "ignored": 2}
        assert taken(consumer) == [(b"2", 1), (b"3", 1), (b"4", 0), (b"5", 0)]
        txn = begin(bench.client, 90_000)
        consumer.acknowledge(message_ids[0], txn=txn)
        assert handle.negative_acknowledge(message_ids[:2], 60_000)["nacked"] == 1
        assert taken(consumer) == []
        bench.clock.advance(60_001)
        assert taken(consumer)[0] == (b"1", 1)
        bench.client.abort(txn)
        assert taken(consumer)[0] == (b"0", 1)


def test_everything_in_hand_comes_again(tmp_path: Path) -> None:
    bench, message_ids = bench_of(tmp_path)
    handle = bench.client.subscription("t", "s")
    assert handle.redeliver()["redelivered"] == 0
    other = bench.another()
    with bench.client.consumer("t", "s") as first, other.consumer("t", "s") as second:
        assert len(taken(first, 2) + taken(second, 2)) == 4
        row = handle.describe()
        assert [who["leased"] for who in row["consumer_list"]] == [2, 2]
        assert row["partition_list"][0]["leased"] == 4
        assert handle.redeliver(message_ids[:1])["redelivered"] == 1
        assert handle.redeliver(dry_run=True)["redelivered"] == 3
        assert handle.redeliver()["redelivered"] == 3
        assert taken(first) == [(b"0", 1), (b"1", 1), (b"2", 1), (b"3", 1), (b"4", 0), (b"5", 0)]
        second.acknowledge(message_ids[0])  # it is leased to a peer, and the acknowledgement counts
        assert handle.describe()["backlog"] == 5
        assert handle.skip(2)["skipped"] == 2
        assert [who["leased"] for who in handle.describe()["consumer_list"]] == [3, 0]


@pytest.mark.parametrize("type", ["shared", "exclusive", "failover", "key-shared"])
def test_a_seek_empties_hands_and_waiting(tmp_path: Path, type: SubscriptionType) -> None:
    """Leases, counts and delays are void in both directions; consumers stay attached."""
    bench, message_ids = bench_of(tmp_path, type)
    handle = bench.another().subscription("t", "s")
    with bench.client.consumer("t", "s", type=type) as consumer:
        assert len(taken(consumer)) == 6
        handle.negative_acknowledge(message_ids[1:3], 60_000)
        consumer.acknowledge(message_ids[0])
        handle.seek(message_ids[1])
        assert handle.describe()["partition_list"][0]["leased"] == 0
        assert taken(consumer) == [(b"%d" % n, 0) for n in range(1, 6)]
        handle.seek(END)
        assert taken(consumer) == []
        handle.seek(START)
        assert taken(consumer) == [(b"%d" % n, 0) for n in range(6)]
        bench.client.checkpoint()
        assert bench.another().subscription("t", "s").describe()["backlog"] == 6


def test_an_earlier_cumulative_acknowledgement_is_stale_after_a_seek_back(tmp_path: Path) -> None:
    """Spec 9.1: acknowledging earlier messages would lose those that the seek requested again."""
    bench, message_ids = bench_of(tmp_path, "exclusive")
    handle = bench.client.subscription("t", "s")
    with bench.client.consumer("t", "s") as consumer:
        taken(consumer)
        handle.seek(message_ids[1])
        assert consumer.acknowledge_cumulative(message_ids[4]).stale
        assert handle.describe()["backlog"] == 5
        taken(consumer)
        assert not consumer.acknowledge_cumulative(message_ids[4]).stale
        assert handle.describe()["backlog"] == 1


def test_bad_ids_and_delays_are_refused(tmp_path: Path) -> None:
    bench, message_ids = bench_of(tmp_path)
    handle = bench.client.subscription("t", "s")
    with pytest.raises(InvalidArgument):
        handle.negative_acknowledge(message_ids, -1)
    for call in (handle.negative_acknowledge, handle.redeliver):
        with pytest.raises(MessageNotFound):
            call([MessageId(99, 0)])
