"""Consumers of several topics and of patterns: the least value over all their partitions.

Source: spec/watermarks 8 (late joiners), 9.
"""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pytest

from tests.engine_kit import Bench, say
from txlog import Client, Message, MultiTopicsConsumer, messages
from txlog.base.choices import SubscriptionType
from txlog.base.ranges import START
from txlog.engine.session.consuming.receive import Guard, Receiving
from txlog.engine.session.reading.watermark_session import Watermark
from txlog.errors import TopicNotFound

pytestmark = [pytest.mark.usefixtures("quick_disk"), pytest.mark.store({"one": 2, "two": 1})]


def watch(
    client: Client, *topics: str, pattern: str | None = None, kind: SubscriptionType = "exclusive"
) -> MultiTopicsConsumer:
    return client.consumer(
        [*topics] if pattern is None else re.compile(pattern),
        "s",
        create=True,
        type=kind,
        enable_watermarking=True,
    )


def post(client: Client, topic: str, *times: int, partition: int = 0) -> None:
    for time in times:
        client.producer(topic).send(b"", event_time=time, partition=partition)


def drain(consumer: MultiTopicsConsumer) -> tuple[list[int], list[Message]]:
    """All values and messages that come now."""
    numbers: list[int] = []
    got: list[Message] = []
    while True:
        watermark_before = consumer.get_last_watermark()
        message = consumer.receive()
        now = consumer.get_last_watermark()
        if message is not None:
            assert now in (watermark_before, None)
            got.append(message)
        elif now is not None and (watermark_before is None or now.number > watermark_before.number):
            numbers.append(now.event_time)
        else:
            return numbers, got


def clamps(client: Client, topic: str) -> list[int | None]:
    """The clamp of subscription s in each partition of a topic."""
    row = client.topic(topic).watermarks.show("s")
    return [part["emitted"] for part in row["partition_list"]]


def test_the_least_over_all_partitions_of_all_topics(bench: Bench) -> None:
    client = bench.client
    with watch(client, "one", "two") as consumer:
        say(client, "A", 10, topic="one")
        assert drain(consumer) == ([], [])
        assert consumer.watermark_status == "unknown"
        say(client, "B", 20, topic="two")
        assert drain(consumer)[0] == [10]
        assert consumer.watermark_status == "active"
        assert (clamps(client, "one"), clamps(client, "two")) == ([10, 10], [10])
        post(client, "one", 10, partition=1)
        post(client, "two", 15)
        say(client, "A", 30, topic="one")
        values, got = drain(consumer)
        assert (values, sorted((m.topic, m.is_late) for m in got)) == (
            [],
            [("one", False), ("two", False)],
        )
        consumer.acknowledge(got)
        assert drain(consumer)[0] == [20]
        say(client, "B", 40, topic="two")
        assert drain(consumer)[0] == [30]
        say(client, "A", None, topic="one")
        assert drain(consumer)[0] == [40]


def test_batches_are_empty_on_a_change_and_judge_their_messages(bench: Bench) -> None:
    client = bench.client
    with watch(client, "one", "two") as consumer:
        for topic in ("one", "two"):
            say(client, "A", 20, topic=topic)
            post(client, topic, 10, 30)
        table = consumer.receive_batch()
        assert (table.num_rows, "is_late" in table.column_names) == (0, True)
        assert consumer.get_last_watermark() == Watermark(20, 1)
        table = consumer.receive_batch()
        assert table["is_late"].to_pylist() == [True, False] * 2
        assert [message.is_late for message in messages(table)] == [True, False] * 2
        assert consumer.late_messages == 2
        assert consumer.acknowledge(table).acked == 4
        table = consumer.receive_batch()
        assert (table.num_rows, "is_late" in table.column_names) == (0, True)
        assert consumer.get_last_watermark() == Watermark(20, 1)


def test_a_listener_has_the_handle(bench: Bench) -> None:
    reports = list[tuple[list[str], int]]()

    class Listener:
        def received_watermark(self, consumer: MultiTopicsConsumer, watermark: Watermark) -> None:
            assert consumer.get_last_watermark() == watermark
            reports.append((consumer.topics, watermark.event_time))

    for topic in ("one", "two"):
        say(bench.client, "A", 20, topic=topic)
    with bench.client.consumer(
        ["one", "two"], "s", create=True, enable_watermarking=True, listener=Listener()
    ) as consumer:
        assert consumer.receive(timeout_ms=None) is None
        assert len(reports) == 1
        assert [event for _, event in reports] == [20]
        assert [sorted(name.rpartition("/")[2] for name in topics) for topics, _ in reports] == [
            ["one", "two"]
        ]


def test_a_consumer_that_attaches_again_begins_at_the_least_clamp(bench: Bench) -> None:
    """Section 8: also when all producers are idle by then, and however far the raw value has
    fallen.
    """
    client = bench.client
    with watch(client, "one") as consumer:
        say(client, "A", 50, topic="one")
        assert drain(consumer)[0] == [50]
    with watch(client, "one", "two") as consumer:
        say(client, "A", 30, topic="two")
        assert drain(consumer)[0] == [30]
        for topic in ("one", "two"):
            say(client, "A", None, topic=topic)
        assert drain(consumer)[0] == []
        assert consumer.watermark_status == "idle"
    assert (clamps(client, "one"), clamps(client, "two")) == ([50, 50], [30])
    with watch(client, "one", "two") as consumer:
        assert drain(consumer)[0] == [30]


def test_a_topic_that_joins_later_never_lowers_the_value(bench: Bench) -> None:
    """A late joiner enters the minimum at once; the output stays until the minimum has
    passed it.
    """
    client = bench.client
    say(client, "A", 50, topic="one")
    say(client, "A", 60, topic="two")
    with watch(client, pattern="one|two|later") as consumer:
        assert drain(consumer)[0] == [50]
        client.create_topic("later")
        assert drain(consumer)[0] == []
        assert consumer.watermark_status == "unknown"
        say(client, "A", 55, topic="one")
        assert not drain(consumer)[0], "a topic of which nothing is known holds"
        say(client, "C", 20, topic="later")
        post(client, "later", 30, 52)
        values, got = drain(consumer)
        assert (values, [(m.event_time, m.is_late) for m in got]) == ([], [(30, True), (52, False)])
        consumer.acknowledge(got)
        assert clamps(client, "later") == [None]
        say(client, "C", 54, topic="later")
        assert drain(consumer)[0] == [54]
        assert clamps(client, "later") == [54]


def test_a_deleted_topic_does_not_hold_the_value(bench: Bench) -> None:
    client, other = bench.client, bench.another()
    client.create_topic("slow")
    for topic, time in (("one", 50), ("two", 60), ("slow", 10)):
        say(client, "A", time, topic=topic)
    with watch(client, pattern="one|two|slow") as consumer:
        assert drain(consumer)[0] == [10]
        other.admin.delete_topic("slow", force=True)
        assert drain(consumer)[0] == [50]
    with watch(client, "one", "two") as consumer:
        assert drain(consumer)[0] == [50]
        other.admin.delete_topic("one", force=True)
        with pytest.raises(TopicNotFound):
            consumer.receive()
        assert consumer.receive() is None
        assert consumer.get_last_watermark() == Watermark(60, 2)
        with pytest.raises(TopicNotFound):
            consumer.receive()


def test_a_seek_of_one_topic_begins_an_epoch(bench: Bench) -> None:
    """Its first value comes before its first message; the other topic keeps its clamp."""
    client, other = bench.client, bench.another()
    for topic in ("one", "two"):
        say(client, "A", 10, topic=topic)
        post(client, topic, 15)
        say(client, "A", 20, topic=topic)
    with watch(client, "one", "two") as consumer:
        values, got = drain(consumer)
        assert values == [10]
        consumer.acknowledge(got)
        assert drain(consumer)[0] == [20]
        other.subscription("two", "s").seek(START)
        values, got = drain(consumer)
        assert (values, [m.topic for m in got]) == ([10], ["two"])
        consumer.acknowledge(got)
        assert drain(consumer)[0] == [20]


def test_a_seek_between_the_value_and_the_messages_is_noticed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages of the new epoch are not compared with the old value; none is kept back."""
    client, other = bench.client, bench.another()
    post(client, "two", 11)
    for topic in ("one", "two"):
        say(client, "A", 20, topic=topic)
    with watch(client, "one", "two") as consumer:
        consumer.acknowledge(drain(consumer)[1])
        assert drain(consumer)[0] == [20]
        take, turns = Receiving.take, 0

        def seek_before_the_first(
            self: Receiving, limit: int, guard: Guard | None = None, **options: Any
        ) -> pa.Table:
            nonlocal turns
            turns += 1
            if turns == 1:
                other.subscription("two", "s").seek(START)
            return take(self, limit, guard, **options)

        monkeypatch.setattr(Receiving, "take", seek_before_the_first)
        message = consumer.receive()
        assert message is not None
        assert (message.event_time, message.is_late) == (11, False)
        assert consumer.get_last_watermark() is None


def test_partitions_by_name_count_alone(bench: Bench) -> None:
    client = bench.client
    for topic in ("one", "two"):
        say(client, "A", 10, topic=topic)
    post(client, "one", 11, partition=1)
    say(client, "A", 20, topic="one")
    say(client, "A", 20, topic="two")
    with watch(client, "one/0", "two") as consumer:
        assert drain(consumer)[0] == [20]


@pytest.mark.parametrize("kind", ("failover", "shared", "key-shared"))
def test_every_consumer_ends_at_the_same_value(bench: Bench, kind: SubscriptionType) -> None:
    client = bench.client
    for topic in ("one", "two"):
        say(client, "A", 10, topic=topic)
    both = [watch(bench.another(), "one", "two", kind=kind) for _ in range(2)]
    for topic in ("one", "two"):
        post(client, topic, 11, 12)
        say(client, "A", 20, topic=topic)
    for _ in range(3):
        for consumer in both:
            _, got = drain(consumer)
            assert not any(message.is_late for message in got)
            consumer.acknowledge(got)
    last = [consumer.get_last_watermark() for consumer in both]
    if kind == "failover":  # a standby gets no value
        assert {each_message.event_time for each_message in last if each_message is not None} == {
            20
        }
    else:
        assert [
            None if each_message is None else each_message.event_time for each_message in last
        ] == [20, 20]
    for consumer in both:
        consumer.close()


def test_without_the_flag_nothing_changes(bench: Bench) -> None:
    client = bench.client
    for topic in ("one", "two"):
        say(client, "A", 20, topic=topic)
        post(client, topic, 10)
    with client.consumer(["one", "two"], "s", create=True) as consumer:
        table = consumer.receive_batch()
        assert (table.num_rows, "is_late" in table.column_names) == (2, False)
        assert consumer.receive() is None
        assert (consumer.get_last_watermark(), consumer.watermark_status) == (None, None)
    assert clamps(client, "two") == [None]
