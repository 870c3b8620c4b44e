"""The worked examples of the specification (spec/watermarks 14), through a consumer."""

from __future__ import annotations

import pytest

from tests.engine_kit import Bench, begin, kill, say
from txlog import Client, Consumer, Message, TxnId
from txlog.engine.plan.reading.watermarks import WatermarkGenerator, tracking_position
from txlog.engine.session.reading.watermark_session import Watermark

pytestmark = [pytest.mark.usefixtures("quick_disk"), pytest.mark.store({"t": 1}, [("t", "s")])]


def post(client: Client, *times: int, txn: TxnId | None = None, partition: int = 0) -> None:
    """Send a message for each time."""
    for time in times:
        client.producer("t").send(b"%d" % time, event_time=time, txn=txn, partition=partition)


def drain(consumer: Consumer) -> tuple[list[int], list[Message]]:
    """All values and messages that a consumer gets now; events come first."""
    numbers: list[int] = []
    got: list[Message] = []
    while True:
        watermark_before = consumer.get_last_watermark()
        message = consumer.receive()
        now = consumer.get_last_watermark()
        if message is not None:
            assert now == watermark_before, "an event is not a message"
            got.append(message)
        elif now is not None and (watermark_before is None or now.number > watermark_before.number):
            numbers.append(now.event_time)
        else:
            return numbers, got


def values(consumer: Consumer) -> list[int]:
    """The values that a consumer gets now, when it has no message."""
    found_values, got = drain(consumer)
    assert not got
    return found_values


def times(messages: list[Message]) -> list[int | None]:
    return [message.event_time for message in messages]


def raw(client: Client, subscription: int = 1, partition: int = 1) -> int | None:
    """The materialized value."""
    generator = WatermarkGenerator(partition)
    client.store.read(
        lambda view: generator.seek(view, tracking_position(view, subscription, partition))
    )
    return generator.get_watermark()


def test_a_tracking_and_a_transaction(bench: Bench) -> None:
    """A: the value waits for the oldest message, and for a producer with a lower time."""
    client = bench.client
    say(client, "A", 100)
    post(client, 105)
    txn = begin(client)
    post(client, 103, 110, txn=txn)
    say(client, "A", 110, txn=txn)
    client.commit(txn)
    say(client, "B", 90)
    post(client, 111)
    with client.consumer("t", "s", enable_watermarking=True) as consumer:
        found_values, got = drain(consumer)
        assert found_values == [100]
        assert times(got) == [105, 103, 110, 111]
        consumer.acknowledge([got[0], got[2]])
        assert values(consumer) == []
        assert raw(client) == 100
        consumer.acknowledge(got[1])
        assert values(consumer) == []
        assert raw(client) == 90
        say(client, "B", 120)
        consumer.acknowledge(got[3])
        assert values(consumer) == [110]
        assert raw(client) == 110
        assert not any(message.is_late for message in got)


def test_b_own_open_transaction(bench: Bench) -> None:
    """B: an open transaction holds no value back, so its messages may be late.

    They are not late if the producer asserts its time in the same transaction.
    """
    client = bench.client
    with client.consumer("t", "s", enable_watermarking=True) as consumer:
        txn = begin(client)
        post(client, 50, txn=txn)
        say(client, "A", 80)
        assert values(consumer) == [80]
        client.commit(txn)
        found_values, (late,) = drain(consumer)
        assert (found_values, late.event_time, late.is_late) == ([], 50, True)
        consumer.acknowledge(late)
        txn = begin(client)
        post(client, 85, txn=txn)
        say(client, "A", 90, txn=txn)
        assert values(consumer) == []
        client.commit(txn)
        found_values, (on_time,) = drain(consumer)
        assert (found_values, on_time.is_late) == ([], False)
        consumer.acknowledge(on_time)
        assert values(consumer) == [90]
        assert consumer.late_messages == 1


def test_c_one_step_many_rows(bench: Bench) -> None:
    """C: values in between are never delivered."""
    client = bench.client
    post(client, 10)
    with client.consumer("t", "s", enable_watermarking=True) as consumer:
        say(client, "A", 50)
        say(client, "B", 45)
        say(client, "A", None)
        say(client, "B", 60)
        post(client, 70)
        found_values, got = drain(consumer)
        assert found_values == []
        assert consumer.watermark_status == "unknown"
        consumer.acknowledge_cumulative(got[1])
        assert values(consumer) == [60]
        assert consumer.get_last_watermark() == Watermark(60, 1)


def test_a_transaction_counts_once_all_of_it_is_acknowledged(bench: Bench) -> None:
    """Its watermark must not overtake the messages that were sent with it."""
    client = bench.client
    with client.consumer("t", "s", enable_watermarking=True) as consumer:
        say(client, "A", 50)
        assert values(consumer) == [50]
        txn = begin(client)
        post(client, 60, txn=txn)
        post(client, 70, txn=txn)
        say(client, "A", 90, txn=txn)
        client.commit(txn)
        _, (first, last) = drain(consumer)
        consumer.acknowledge_cumulative(first)
        assert values(consumer) == []
        consumer.acknowledge(last)
        assert values(consumer) == [90]


def test_d_idle_and_back(bench: Bench) -> None:
    """D: no producer is not the maximum; a returning one with a lower time holds the value
    there.
    """
    client = bench.client
    with client.consumer("t", "s", enable_watermarking=True) as consumer:
        say(client, "A", 50)
        assert values(consumer) == [50]
        say(client, "A", None)
        assert values(consumer) == []
        assert consumer.watermark_status == "idle"
        assert consumer.get_last_watermark() == Watermark(50, 1)
        say(client, "C", 20)
        assert values(consumer) == []
        assert (consumer.watermark_status, raw(client)) == ("active", 20)
        client.create_subscription("t", "other")
        with client.consumer("t", "other", enable_watermarking=True) as other:
            assert values(other) == [20]
        post(client, 30, 50)
        _, got = drain(consumer)
        assert [message.is_late for message in got] == [True, False]
        consumer.acknowledge(got)
        say(client, "C", 70)
        assert values(consumer) == [70]


def test_all_idle_on_attach_gives_what_was_handed_out(bench: Bench) -> None:
    """Section 8: on attach, the least clamp, if every partition has one."""
    client = bench.client
    say(client, "A", 50)
    with client.consumer("t", "s", enable_watermarking=True) as consumer:
        assert values(consumer) == [50]
    say(client, "A", None)
    client = bench.reopen()
    with client.consumer("t", "s", enable_watermarking=True) as consumer:
        assert values(consumer) == [50]
        assert consumer.watermark_status == "idle"


@pytest.mark.parametrize("how", ["closed", "dead"])
def test_e_partitions_and_failover(bench: Bench, how: str) -> None:
    """E: a consumer has the minimum of its partitions; a consumer ahead of it waits."""
    client, other = bench.client, bench.another()
    client.create_topic("e", partitions=2)
    client.create_subscription("e", "s", type="failover")

    def tell(time: int) -> None:
        say(client, "A", time, topic="e")

    tell(60)
    client.producer("e").send(b"65", event_time=65, partition=1)
    tell(80)
    first = client.consumer("e", "s", name="c1", enable_watermarking=True)
    assert first.receive() is None
    assert first.get_last_watermark() == Watermark(60, 1)
    second = other.consumer("e", "s", name="c2", enable_watermarking=True)
    found_values, got = drain(second)
    assert (found_values, times(got), got[0].is_late) == ([60], [65], False)
    assert values(first) == [80]
    if how == "closed":
        second.close()
    else:
        kill(second)
    found_values, got = drain(first)
    assert (found_values, times(got), got[0].is_late) == ([], [65], True)
    first.acknowledge(got)
    assert values(first) == []
    tell(90)
    assert values(first) == [90]
    first.close()


def test_a_standby_gets_its_value_before_its_first_message(bench: Bench) -> None:
    """Section 9; also when it notices the death of its peer only while it looks for messages."""
    client, other = bench.another(), bench.client
    other.create_topic("f")
    other.create_subscription("f", "s", type="failover")
    say(client, "A", 60, topic="f")
    client.producer("f").send(b"70", event_time=70)
    active = client.consumer("f", "s", name="c1", enable_watermarking=True)
    standby = other.consumer("f", "s", name="c2", enable_watermarking=True)
    assert drain(active)[0] == [60]
    assert drain(standby) == ([], [])
    assert standby.get_last_watermark() is None
    kill(active)
    batch = standby.receive_batch()
    assert batch.num_rows == 0
    assert standby.get_last_watermark() == Watermark(60, 1)
    batch = standby.receive_batch()
    assert batch["is_late"].to_pylist() == [False]
    assert standby.acknowledge(batch).acked == 1
    standby.close()


def test_f_seek(bench: Bench) -> None:
    """F: a new epoch, forwards and backwards, from a snapshot; its value before its messages."""
    client = bench.client
    say(client, "A", 200)
    post(client, 210)
    client.checkpoint(roll_all=True)
    post(client, *range(220, 225))
    say(client, "A", 260)
    post(client, 270)
    handle = client.subscription("t", "s")
    with client.consumer("t", "s", enable_watermarking=True) as consumer:
        found_values, got = drain(consumer)
        assert found_values == [200]
        consumer.acknowledge(got)
        assert values(consumer) == [260]
        back = got[3].message_id
        assert back is not None
        assert client.store.read(lambda view: view.watermark(1)).snapshots.keys() == {back.ledger}
        for seek in (handle.seek, consumer.seek):  # by another handle, and by the consumer itself
            seek(back)
            assert consumer.receive() is None
            assert consumer.get_last_watermark().event_time == 200  # type: ignore[union-attr]
            found_values, values_again = drain(consumer)
            assert found_values == []
            assert times(values_again) == [222, 223, 224, 270]
            assert not any(message.is_late for message in values_again)
            consumer.acknowledge(values_again[:3])
            assert values(consumer) == [260]
        consumer.seek("latest")
        assert values(consumer) == [260]
        consumer.seek("earliest")
        assert consumer.receive_batch().num_rows == 0
        assert consumer.receive_batch(3)["is_late"].to_pylist() == [False] * 3
        generator = WatermarkGenerator(1)
        client.store.read(lambda view: generator.seek(view, (back.ledger, back.entry - 1)))
        assert (generator.get_watermark(), generator.rows_folded) == (200, 1)


@pytest.mark.parametrize("ends", ["commit", "abort"])
def test_g_two_transactions(bench: Bench, ends: str) -> None:
    """G: a lower time changes no value, and an aborted time appears nowhere."""
    client = bench.client
    say(client, "B", 12)
    with client.consumer("t", "s", enable_watermarking=True) as consumer:
        assert values(consumer) == [12]
        x, y = begin(client), begin(client)
        say(client, "A", 10, txn=x)
        say(client, "A", 15, txn=y)
        say(client, "B", None, txn=y)
        assert values(consumer) == []
        client.commit(y)
        assert values(consumer) == [15]
        getattr(client, ends)(x)
        assert values(consumer) == []
        assert raw(client) == 15
