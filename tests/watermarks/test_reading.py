"""Readers and consumers in memory with watermarks: their position is the last delivered message.

Source: spec/watermarks 6, 8, 9.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tests.engine_kit import Bench, begin, read, say
from tests.watermarks.test_examples import post, times
from txlog import Message, NonDurableConsumer, Reader, messages
from txlog.engine.session.reading.watermark_session import Watermark
from txlog.errors import TopicNotFound

pytestmark = [pytest.mark.usefixtures("quick_disk"), pytest.mark.store({"t": 1})]
KINDS = ("reader", "in memory")
Handle = Reader | NonDurableConsumer


def watch(bench: Bench, kind: str, start: Any = None, **options: Any) -> Handle:
    topic = options.pop("topic", "t")
    if kind == "reader":
        return bench.client.reader(topic, start, enable_watermarking=True, **options)
    return bench.client.consumer(
        topic, "memory", durable=False, start=start, enable_watermarking=True, **options
    )


def step(handle: Handle) -> Message | int | None:
    """The next message, or the value of an event, or None when neither comes."""
    watermark_before = handle.get_last_watermark()
    message = handle.read_next() if isinstance(handle, Reader) else handle.receive()
    now = handle.get_last_watermark()
    if message is not None:
        assert now in (watermark_before, None), (
            "an event is not a message; a seek forgets the last one"
        )
        return message
    is_event = now is not None and (
        watermark_before is None or now.number > watermark_before.number
    )
    return now.event_time if is_event and now is not None else None


def story(handle: Handle, limit: int = 100) -> list[int | str]:
    """Everything that comes: event times as numbers, late ones as text with !, values as =N."""
    out: list[int | str] = []
    while len(out) < limit and (outcome := step(handle)) is not None:
        if isinstance(outcome, int):
            out.append(f"={outcome}")
        else:
            out.append(f"{outcome.event_time}!" if outcome.is_late else outcome.event_time or "-")
    return out


@pytest.mark.parametrize("kind", KINDS)
def test_the_value_follows_the_last_delivered_message(bench: Bench, kind: str) -> None:
    """Message by message: rows read ahead do not count, and rows without a message are passed."""
    client = bench.client
    post(client, 10)
    say(client, "A", 20)
    post(client, 25, 19)
    say(client, "A", 30)
    say(client, "A", 31)
    with watch(bench, kind) as handle:
        assert story(handle) == [10, "=20", 25, "19!", "=31"]
        assert (handle.watermark_status, handle.late_messages) == ("active", 1)
        post(client, 40)
        say(client, "A", 35)
        assert story(handle) == [40, "=35"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_behind_one_message_is_judged_by_the_same_values(bench: Bench, kind: str) -> None:
    """Messages that were read ahead and come in a batch count as delivered then, and not before."""
    client = bench.client
    post(client, 10)
    say(client, "A", 20)
    post(client, 25, 19)
    say(client, "A", 30)
    with watch(bench, kind) as handle:
        assert story(handle, 1) == [10]
        assert handle.receive_batch().num_rows == 0
        assert handle.get_last_watermark() == Watermark(20, 1)
        assert handle.receive_batch(1)["is_late"].to_pylist() == [False]
        assert handle.receive_batch(1)["is_late"].to_pylist() == [True]
        assert story(handle) == ["=30"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_is_handed_out_as_a_whole(bench: Bench, kind: str) -> None:
    """Values inside a batch are never delivered; the value after it comes with the next call."""
    client = bench.client
    say(client, "A", 5)
    post(client, 10)
    say(client, "A", 20)
    post(client, 15, 25)
    say(client, "A", 22)
    with watch(bench, kind) as handle:
        assert handle.receive_batch().num_rows == 0
        assert handle.get_last_watermark() == Watermark(5, 1)
        table = handle.receive_batch(2)
        assert table["is_late"].to_pylist() == [False, False]
        assert handle.receive_batch(2).num_rows == 0
        assert handle.get_last_watermark() == Watermark(20, 2)
        assert times([*messages(handle.receive_batch())]) == [25]
        table = handle.receive_batch()
        assert (table.num_rows, table["is_late"].type) == (0, pa.bool_())
        assert handle.get_last_watermark() == Watermark(22, 3)
        assert handle.receive_batch().num_rows == 0
        assert handle.get_last_watermark() == Watermark(22, 3)


@pytest.mark.parametrize("kind", KINDS)
def test_a_marker_is_passed_when_its_last_message_is_handed_out(bench: Bench, kind: str) -> None:
    """Section 6: a value in a transaction comes after its messages, also after queued ones."""
    client = bench.client
    say(client, "A", 1)
    txn = begin(client)
    post(client, 10, 11, txn=txn)
    say(client, "A", 10, txn=txn)
    client.commit(txn)
    post(client, 12)
    with watch(bench, kind) as handle:
        assert story(handle) == ["=1", 10, 11, "=10", 12]


@pytest.mark.parametrize("kind", KINDS)
def test_it_starts_with_the_value_of_its_place(bench: Bench, kind: str) -> None:
    client = bench.client
    say(client, "A", 10)
    post(client, 20, 21)
    say(client, "A", 20)
    post(client, 22)
    last = client.reader("t").get_last_message_id()
    assert last is not None
    with watch(bench, kind, last) as handle:
        assert story(handle) == ["=20", 22]
    with watch(bench, kind, "latest") as handle:
        assert story(handle) == ["=20"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_value_stays_for_a_late_joiner_and_while_all_are_idle(bench: Bench, kind: str) -> None:
    """Example D with a clamp in memory; two readers deliver values of their own."""
    client = bench.client
    with watch(bench, kind) as handle:
        say(client, "A", 50)
        assert story(handle) == ["=50"]
        say(client, "A", None)
        assert story(handle) == []
        assert handle.watermark_status == "idle"
        say(client, "C", 20)
        post(client, 30, 50)
        assert story(handle) == ["30!", 50]
        with watch(bench, kind, "latest") as other:
            assert story(other) == ["=20"]
        say(client, "C", 70)
        assert story(handle) == ["=70"]


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_written(bench: Bench, kind: str) -> None:
    """Clamps are in memory, so a read-only client has watermarks, too."""
    say(bench.client, "A", 10)
    post(bench.client, 11)
    bench.client = bench.another(read_only=True)
    lsn_before = bench.client.status()["journal"]["lsn"]
    with watch(bench, kind) as handle:
        assert story(handle) == ["=10", 11]
    assert bench.client.status()["journal"]["lsn"] == lsn_before


@pytest.mark.parametrize("kind", KINDS)
def test_the_least_of_its_partitions_counts(bench: Bench, kind: str) -> None:
    """Also of added partitions; and only of the partitions that it reads."""
    client = bench.client
    client.create_topic("two", partitions=2)
    producer = client.producer("two")
    say(client, "A", 10, topic="two")
    producer.send(b"", event_time=15, partition=0)
    producer.send(b"", event_time=12, partition=1)
    say(client, "A", 20, topic="two")
    with watch(bench, kind, topic="two") as handle, watch(bench, kind, topic="two/1") as each_watch:
        assert story(handle, 2) == ["=10", 15]
        assert story(each_watch) == ["=10", 12, "=20"]
        assert story(handle) == [12, "=20"]
        client.admin.update_topic("two", partitions=3)
        assert story(handle) == []
        assert handle.watermark_status == "active"
        producer.send(b"", event_time=21, partition=2)
        say(client, "A", 21, topic="two")
        assert story(handle) == [21, "=21"]
        assert story(each_watch) == ["=21"]


@pytest.mark.parametrize("kind", KINDS)
def test_an_offline_partition_holds_the_value_and_shows_in_the_status(
    bench: Bench, kind: str
) -> None:
    client = bench.client
    client.create_topic("two", partitions=2)
    say(client, "A", 10, topic="two")
    with watch(bench, kind, topic="two") as handle:
        assert story(handle) == ["=10"]
        client.admin.set_offline("two", 1)
        client.producer("two").send(b"", event_time=20, partition=0)
        assert times([*messages(handle.receive_batch())]) == [20]
        client.admin.set_online("two", 1)
        assert handle.watermark_status == "unavailable"
        say(client, "A", 20, topic="two")
        assert story(handle) == ["=20"]


def test_seeking_begins_a_new_epoch_where_it_seeks(bench: Bench) -> None:
    """The first value of the new epoch may be lower, and comes before its first message."""
    client = bench.client
    post(client, 5)
    say(client, "A", 10)
    post(client, 15)
    say(client, "A", 20)
    with client.reader("t", enable_watermarking=True) as reader:
        assert story(reader) == [5, "=10", 15, "=20"]
        last = reader.get_last_message_id()
        assert last is not None
        reader.seek(last)
        assert reader.get_last_watermark() == Watermark(20, 2)
        assert story(reader) == ["=10", 15, "=20"]
        reader.seek("earliest")
        assert step(reader) is not None
        reader.seek("latest")  # it drops the messages read ahead
        assert story(reader) == ["=20"]


def test_seeking_one_partition_leaves_the_clamp_of_the_others(bench: Bench) -> None:
    """A producer that joined later with a lower time does not lower partitions without a seek."""
    client = bench.client
    client.create_topic("two", partitions=2)
    say(client, "A", 50, topic="two")
    with client.reader("two", enable_watermarking=True) as reader:
        assert story(reader) == ["=50"]
        client.producer("two").send(b"", event_time=60, partition=0)
        say(client, "C", 20, topic="two")
        assert story(reader) == [60]
        last = reader.get_last_message_ids()[0]
        assert last is not None
        reader.seek(last)
        assert story(reader) == ["=50", 60]
        reader.seek("earliest")
        assert story(reader) == ["=20", 60], "a start of its own epoch: partition 1 is behind C"


def test_iterating_goes_on_after_an_event_and_calls_the_listener(bench: Bench) -> None:
    client, reports = bench.client, list[str]()

    class Listener:
        def received_watermark(self, reader: Reader, watermark: Watermark) -> None:
            assert reader.get_last_watermark() == watermark
            reports.append(f"={watermark.event_time}")

    say(client, "A", 1)
    post(client, 10)
    say(client, "A", 10)
    post(client, 20)
    say(client, "A", 20)
    with client.reader("t", enable_watermarking=True, listener=Listener()) as reader:
        for message in reader:
            reports.append(str(message.event_time))
    assert reports == ["=1", "10", "=10", "20", "=20"]


def test_a_listener_of_a_consumer_in_memory_is_called(bench: Bench) -> None:
    reports = list[int]()

    class Listener:
        def received_watermark(self, consumer: NonDurableConsumer, watermark: Watermark) -> None:
            assert consumer.name == "memory"
            reports.append(watermark.event_time)

    with bench.client.consumer(
        "t", "memory", durable=False, enable_watermarking=True, listener=Listener()
    ) as consumer:
        say(bench.client, "A", 10)
        assert consumer.receive(timeout_ms=None) is None
        assert consumer.receive_batch().num_rows == 0
    assert reports == [10]


def test_without_the_flag_a_reader_has_no_watermarks(bench: Bench) -> None:
    say(bench.client, "A", 10)
    post(bench.client, 5)
    with bench.client.reader("t") as reader:
        assert "is_late" not in reader.receive_batch().column_names
        assert (reader.get_last_watermark(), reader.watermark_status) == (None, None)
    with bench.client.consumer("t", "memory", durable=False) as consumer:
        assert "is_late" not in consumer.receive_batch().column_names
        assert (consumer.get_last_watermark(), consumer.late_messages) == (None, 0)


def test_in_memory_what_was_given_back_unseen_still_counts(bench: Bench) -> None:
    """Read ahead, and given back with other messages: the value does not pass it."""
    client = bench.client
    say(client, "A", 1)
    post(client, 10)
    say(client, "A", 10)
    post(client, 11, 12)
    say(client, "A", 13)
    with client.consumer("t", "m", durable=False, enable_watermarking=True) as consumer:
        assert story(consumer, 2) == ["=1", 10]
        consumer.redeliver_unacknowledged_messages()
        assert story(consumer, 3) == ["=10", 10, 11]
        consumer.redeliver_unacknowledged_messages()
        assert times([*messages(consumer.receive_batch(2))]) == [10, 11]
        assert consumer.get_last_watermark() == Watermark(10, 2)
        last = client.reader("t").get_last_message_id()
        assert last is not None
        consumer.acknowledge(last)  # 12: it never comes, so the value does not wait for it
        assert story(consumer) == ["=13"]


def test_in_memory_the_first_that_was_not_handed_out_counts_in_any_order(bench: Bench) -> None:
    """One message is put off before delivery, so later ones come first.

    One message of a marker is acknowledged before delivery.
    """
    client = bench.client
    post(client, 10, 11, 12)
    say(client, "A", 13)
    with client.consumer("t", "m", durable=False, enable_watermarking=True) as consumer:
        assert story(consumer, 1) == [10]
        consumer.negative_acknowledge(read(client)[1].message_id or [], delay_ms=1000)
        consumer.redeliver_unacknowledged_messages()
        assert story(consumer) == [10, 12]
        bench.clock.advance(1000)
        assert story(consumer) == [11, "=13"]
        txn = begin(client)
        post(client, 20, 21, txn=txn)
        say(client, "A", 22, txn=txn)
        post(client, 14)
        client.commit(txn)
        assert story(consumer, 1) == [14]
        consumer.redeliver_unacknowledged_messages()
        consumer.acknowledge(
            [
                message.message_id
                for message in read(client)
                if message.message_id and message.event_time != 20
            ]
        )
        assert story(consumer) == [20, "=22"]


def test_in_memory_what_comes_again_holds_nothing_back(bench: Bench) -> None:
    """It was delivered before, so the value does not wait for its redelivery."""
    client = bench.client
    say(client, "A", 1)
    post(client, 10, 11)
    with client.consumer("t", "m", durable=False, enable_watermarking=True) as consumer:
        assert story(consumer) == ["=1", 10, 11]
        consumer.redeliver_unacknowledged_messages()
        assert story(consumer, 1) == [10]
        say(client, "A", 12)
        assert story(consumer) == ["=12", "11!"]


def test_in_memory_a_redelivery_is_judged_by_the_value_of_its_moment(bench: Bench) -> None:
    """Acknowledgements do not hold the value: only deliveries count (section 6)."""
    client = bench.client
    post(client, 10, 11)
    say(client, "A", 20)
    with client.consumer("t", "m", durable=False, enable_watermarking=True) as consumer:
        first = consumer.receive()
        assert first is not None
        assert story(consumer) == [11, "=20"]
        consumer.negative_acknowledge(first)
        assert story(consumer) == ["10!"]


def test_reading_a_deleted_topic_raises(bench: Bench) -> None:
    say(bench.client, "A", 10)
    with bench.client.reader("t", enable_watermarking=True) as reader:
        assert story(reader) == ["=10"]
        bench.client.admin.delete_topic("t")
        with pytest.raises(TopicNotFound):
            reader.read_next()
