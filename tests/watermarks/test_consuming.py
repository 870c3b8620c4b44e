"""Consumers with watermarks: the contract of receive, listeners, late messages, failures.

Source: spec/watermarks 8, 9, 12.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.engine_kit import Bench, begin, kill, say
from tests.watermarks.test_examples import drain, post, times, values
from txlog import Client, Consumer, messages
from txlog.base.choices import SubscriptionType
from txlog.base.ranges import START
from txlog.engine.decide.consuming.watermark_offer import WatermarkOffer
from txlog.engine.session.consuming.receive import Guard, Receiving
from txlog.engine.session.reading.watermark_session import Watermark, WatermarkSession
from txlog.errors import (
    AlreadyClosed,
    DiskFailed,
    InvalidArgument,
    SubscriptionNotFound,
)

pytestmark = [pytest.mark.usefixtures("quick_disk"), pytest.mark.store({"t": 1})]
TYPES = ("exclusive", "failover", "shared", "key-shared")


def watch(client: Client, kind: SubscriptionType = "exclusive", name: str = "s") -> Consumer:
    return client.consumer("t", name, type=kind, create=True, enable_watermarking=True)


class Told:
    """A listener that keeps its events, and compares each with the consumer's last watermark."""

    def __init__(self) -> None:
        self.found: list[object] = []

    def received_watermark(self, consumer: Consumer, watermark: Watermark) -> None:
        assert consumer.get_last_watermark() == watermark
        self.found.append(watermark.event_time)


def test_without_the_flag_nothing_changes(bench: Bench) -> None:
    """Section 9: no event, no column, and no write."""
    say(bench.client, "A", 100)
    post(bench.client, 50)
    with bench.client.consumer("t", "s", create=True) as consumer:
        table = consumer.receive_batch()
        assert "is_late" not in table.column_names
        assert [message.is_late for message in messages(table)] == [False]
        assert consumer.receive() is None
        assert (consumer.get_last_watermark(), consumer.watermark_status) == (None, None)
        assert consumer.late_messages == 0
    assert not bench.client.store.read(lambda view: view.watermark(1)).clamps


@pytest.mark.parametrize("kind", TYPES)
def test_every_type_gets_values_and_judges_its_messages(
    bench: Bench, kind: SubscriptionType
) -> None:
    client = bench.client
    with watch(client, kind) as consumer:
        assert consumer.receive() is None
        assert consumer.watermark_status == "unknown"
        say(client, "A", 100)
        post(client, 99, 100, 101)
        client.producer("t").send(b"timeless")
        assert consumer.receive_batch().num_rows == 0
        assert consumer.get_last_watermark() == Watermark(100, 1)
        batch = consumer.receive_batch()
        late = [message.is_late for message in messages(batch)]
        assert late == batch["is_late"].to_pylist() == [True, False, False, False]
        assert consumer.late_messages == 1
        assert consumer.acknowledge(batch).acked == 4


@pytest.mark.parametrize("kind", ("shared", "key-shared"))
def test_every_consumer_of_a_subscription_ends_at_the_same_value(
    bench: Bench, kind: SubscriptionType
) -> None:
    """Section 9: for every type; a slow consumer skips values.

    One leased message stops the watermark for every consumer.
    """
    first, second = watch(bench.client, kind), watch(bench.another(), kind)
    say(bench.client, "A", 10)
    assert values(first) == [10]
    post(bench.client, 20)
    say(bench.client, "A", 20)
    message = first.receive() or second.receive()
    assert message is not None or second.get_last_watermark() == Watermark(10, 1)
    held_messages = [*drain(first)[1], *drain(second)[1], *([message] if message else [])]
    assert times(held_messages) == [20]
    assert [consumer.get_last_watermark() for consumer in (first, second)] == [Watermark(10, 1)] * 2
    first.acknowledge(held_messages)
    assert values(first) == [20]
    say(bench.client, "A", 30)
    assert values(second) == [30]
    assert values(first) == [30]
    first.close()
    second.close()


def test_a_listener_gets_each_event_once_and_in_order(bench: Bench) -> None:
    client, reports = bench.client, Told()
    with client.consumer(
        "t", "s", create=True, enable_watermarking=True, listener=reports
    ) as consumer:
        say(client, "A", 10)
        post(client, 11)
        assert consumer.receive() is None
        assert reports.found == [10]
        message = consumer.receive()
        assert message is not None
        consumer.acknowledge(message)
        say(client, "A", 12)
        assert consumer.receive_batch().num_rows == 0
        assert values(consumer) == []
        assert reports.found == [10, 12]


def test_a_message_held_back_stops_the_value_until_it_is_done(bench: Bench) -> None:
    """Invariant 3: pending in a transaction, given back, skipped."""
    client = bench.client
    with watch(client, "shared") as consumer:
        post(client, 10)
        say(client, "A", 20)
        found_values, got = drain(consumer)
        assert (found_values, consumer.watermark_status) == ([], "unknown")
        txn = begin(client)
        consumer.acknowledge(got, txn=txn)
        assert values(consumer) == []
        client.abort(txn)
        assert times(drain(consumer)[1]) == [10]
        consumer.negative_acknowledge(got, delay_ms=1000)
        assert values(consumer) == []
        client.subscription("t", "s").skip(1)
        assert values(consumer) == [20]


def test_a_returning_consumer_gets_the_value_again_and_first(bench: Bench) -> None:
    client = bench.client
    say(client, "A", 20)
    post(client, 30)
    for _ in range(2):
        with watch(client) as consumer:
            assert consumer.receive() is None
            assert consumer.get_last_watermark() == Watermark(20, 1)
            assert consumer.receive() is not None


def test_a_new_session_begins_at_no_less_than_was_handed_out(bench: Bench) -> None:
    """Invariant 5: a delivered value is a lower bound for later consumers, whichever producer
    joins.
    """
    client = bench.client
    say(client, "A", 50)
    with watch(client) as consumer:
        assert values(consumer) == [50]
    say(client, "C", 20)
    post(client, 30)
    with watch(client) as consumer:
        assert consumer.receive() is None
        assert consumer.get_last_watermark() == Watermark(50, 1)
        late = consumer.receive()
        assert late is not None and late.is_late
    with watch(client, name="other") as consumer:  # clamps are its own
        assert drain(consumer)[0] == [20]


@pytest.mark.parametrize("is_first", [False, True])
def test_a_seek_between_the_look_and_the_frame_starts_the_offer_over(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    """Section 8: the decision checks the epoch again, also where no value was delivered before."""
    client, other = bench.client, bench.another()
    say(client, "A", 10)
    post(client, 11)
    say(client, "A", 20)
    if is_first:
        with client.consumer("t", "s", create=True) as plain:
            plain.acknowledge(plain.receive_batch())
    with watch(client) as consumer:
        if not is_first:
            found_values, got = drain(consumer)
            assert found_values == [10]
            consumer.acknowledge(got)
        offered, looks = WatermarkSession._offered, 0

        def seek_behind_the_first(session: WatermarkSession) -> WatermarkOffer | None:
            nonlocal looks
            looks += 1
            offer = offered(session)
            if looks == 1:
                other.subscription("t", "s").seek(START)
            return offer

        monkeypatch.setattr(WatermarkSession, "_offered", seek_behind_the_first)
        assert consumer.receive() is None
        assert (looks, consumer.get_last_watermark()) == (2, Watermark(10, 2 - is_first))
        assert times(drain(consumer)[1]) == [11]


def test_a_seek_between_the_offer_and_the_messages_is_noticed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Section 8: the first value of the new epoch comes before its first message."""
    client, other = bench.client, bench.another()
    say(client, "A", 10)
    post(client, 11)
    say(client, "A", 20)
    with watch(client) as consumer:
        consumer.acknowledge(drain(consumer)[1])
        assert values(consumer) == [20]
        take, turns = Receiving.take, 0

        def seek_before_the_first(
            self: Receiving, limit: int, guard: Guard | None, **options: Any
        ) -> pa.Table:
            nonlocal turns
            turns += 1
            if turns == 1:
                other.subscription("t", "s").seek(START)
            return take(self, limit, guard, **options)

        monkeypatch.setattr(Receiving, "take", seek_before_the_first)
        assert consumer.receive_batch().num_rows == 0
        assert consumer.get_last_watermark() == Watermark(10, 3)
        assert consumer.receive_batch()["is_late"].to_pylist() == [False]


def test_events_are_spaced(tmp_path: Path) -> None:
    """watermark_emit_interval_ms: the least time between two events, except at a new epoch."""
    bench = Bench(tmp_path / "spaced", watermark_emit_interval_ms=1000)
    client = bench.client
    client.create_topic("t")
    with watch(client) as consumer:
        say(client, "A", 10)
        assert values(consumer) == [10]
        say(client, "A", 20)
        assert values(consumer) == []
        bench.clock.advance(999)
        assert values(consumer) == []
        bench.clock.advance(1)
        assert values(consumer) == [20]
        consumer.seek("earliest")
        assert values(consumer) == [20]
    bench.close()


def test_a_failed_flush_hands_out_nothing_and_the_next_call_does(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Invariant 6: a delivered value is durable."""
    say(bench.client, "A", 10)
    with watch(bench.client) as consumer:
        store = consumer.session.store

        def fail(*_: object, **__: object) -> object:
            raise DiskFailed("it broke")

        with monkeypatch.context() as patch:
            patch.setattr(type(store), "write", fail)
            with pytest.raises(DiskFailed):
                consumer.receive()
        assert consumer.get_last_watermark() is None
        assert values(consumer) == [10]


def test_an_offline_partition_holds_the_value_and_shows_in_the_status(bench: Bench) -> None:
    """Section 12: the value stays; it rises again when the partition is online."""
    client = bench.client
    client.create_topic("two", partitions=2)
    client.create_subscription("two", "s")
    with client.consumer("two", "s", enable_watermarking=True) as consumer:
        say(client, "A", 10, topic="two")
        assert values(consumer) == [10]
        client.admin.set_offline("two", 1)
        client.producer("two").send(b"x", event_time=20, partition=0)
        found_values, got = drain(consumer)
        assert (found_values, times(got), consumer.watermark_status) == ([], [20], "unavailable")
        consumer.acknowledge(got)
        assert consumer.get_last_watermark() == Watermark(10, 1)
        client.admin.set_online("two", 1)
        say(client, "A", 20, topic="two")
        assert values(consumer) == [20]
        assert consumer.watermark_status == "active"


def test_added_partitions_join_without_stopping_the_value(bench: Bench) -> None:
    """Section 10: they begin with a snapshot of the least times."""
    client = bench.client
    with watch(client) as consumer:
        say(client, "A", 10)
        assert values(consumer) == [10]
        client.admin.update_topic("t", partitions=3)
        assert values(consumer) == []
        assert consumer.watermark_status == "active"
        say(client, "A", 20)
        assert values(consumer) == [20]


def test_another_process_makes_its_own_offer_without_a_frame(bench: Bench) -> None:
    """Section 8: a consumer in another process sees the clamp; no clamp rises, no frame is
    written.
    """
    first, second = watch(bench.client, "shared"), watch(bench.another(), "shared")
    say(bench.client, "A", 10)
    assert values(first) == [10]
    changes_before = bench.client.store.read(lambda view: view.watermark(1)).changes
    assert values(second) == [10]
    assert bench.client.store.read(lambda view: view.watermark(1)).changes == changes_before
    kill(second)
    first.close()


def test_receive_on_a_closed_or_deleted_consumer_raises(bench: Bench) -> None:
    say(bench.client, "A", 10)
    consumer = watch(bench.client)
    assert values(consumer) == [10]
    consumer.close()
    with pytest.raises(AlreadyClosed):
        consumer.receive()
    assert consumer.get_last_watermark() == Watermark(10, 1)
    consumer = watch(bench.client)
    bench.client.subscription("t", "s").delete(force=True)
    with pytest.raises((AlreadyClosed, SubscriptionNotFound)):
        consumer.receive()


@pytest.mark.parametrize("given", ({}, {"durable": False}))
def test_a_listener_of_nothing_is_refused(bench: Bench, given: dict[str, bool]) -> None:
    client = bench.client
    client.create_subscription("t", "s")
    for topic in ("t", ["t"]) if not given else ("t",):
        with pytest.raises(InvalidArgument, match="listener"):
            client.consumer(topic, "s", listener=Told(), **given)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="listener"):
        client.reader("t", listener=Told())  # type: ignore[arg-type]
    with client.consumer("t", "s") as consumer:
        assert consumer.watermark_status is None


def test_a_seek_into_a_transaction_goes_below_its_watermark(bench: Bench) -> None:
    """9: the rest of the transaction is not acknowledged, so its assertion is not in effect."""
    client = bench.client
    say(client, "A", 1)
    producer = client.producer("t", name="A")
    with client.transaction() as txn:
        for time in (10, 20, 30):
            producer.send(b"m", event_time=time, txn=txn)
        producer.new_watermark(txn).event_time(50).send()
    consumer = watch(client)
    rows = [message for message in (consumer.receive() for _ in range(4)) if message is not None]
    consumer.acknowledge(rows)
    assert (consumer.receive(), mark_of(consumer)) == (None, 50)
    assert rows[1].message_id is not None
    consumer.seek(rows[1].message_id)
    assert (consumer.receive(), mark_of(consumer)) == (None, 1)
    again = [message for message in (consumer.receive(), consumer.receive()) if message]
    assert [(row.event_time, row.is_late) for row in again] == [(20, False), (30, False)]


def mark_of(consumer: Consumer) -> int:
    """The time of the last watermark that a consumer got."""
    mark = consumer.get_last_watermark()
    assert mark is not None
    return mark.event_time
