"""Messages that a consumer puts off wait on the retry topic, by its policies; spec/delayed 2."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.delayed.test_policies import counted
from tests.engine_kit import START_MS, Bench, read, send, values
from txlog import Client, Range
from txlog.base.ids import TopicName
from txlog.engine.folds.catalog import numbers
from txlog.engine.plan.lookup import topic as find_topic
from txlog.engine.view import View
from txlog.errors import InvalidMessage

pytestmark = pytest.mark.usefixtures("quick_disk")
RETRY, DLQ = "t-s-RETRY", "t-s-DLQ"
LARGE = b"x" * 5000
# The copy of the large one does not fit into a frame of a move, and is sent in chunks.
SIZES = [b"small", LARGE]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr("txlog.engine.session.consuming.dead_letters.FRAME_BYTES_MOST", 4500)
    new_bench = Bench(tmp_path / "store", max_message_bytes=4096)
    new_bench.client.create_topic("t")
    new_bench.client.create_subscription("t", "s", type="shared")
    return new_bench


def put_off(client: Client, value: bytes, delay_ms: int) -> None:
    client.producer("t", chunking=True).send(value)
    with client.consumer("t", "s") as consumer:
        message = consumer.receive()
        assert message is not None
        assert consumer.reconsume_later(message, delay_ms).moved == 1


def unacked(client: Client, topic: str = "t") -> list[bytes]:
    return values(client, topic, Range(kind="unacked", subscription="s"))


def indexed(client: Client, topic: str) -> list[int]:
    """The times in the index of a topic."""

    def look(view: View) -> list[int]:
        found_topic = find_topic(view, TopicName.parse(topic))
        return [at for number in numbers(found_topic) for at in view.delayed(number).mutable.at]

    return client.store.read(look)


@pytest.mark.parametrize("value", SIZES)
def test_a_message_put_off_enters_the_index(bench: Bench, value: bytes) -> None:
    """Its delay counts from the clock of the frame that moves it."""
    client = bench.client
    put_off(client, value, 5000)
    bench.clock.advance(10)
    put_off(client, value, 5000)
    put_off(client, value, 0)
    for _ in range(2):
        assert [m.deliver_at for m in read(bench.client, RETRY)] == [
            START_MS + 5000,
            START_MS + 5010,
            None,
        ]
        assert indexed(bench.client, RETRY) == [START_MS + 5000, START_MS + 5010]
        bench.client.checkpoint(roll_all=True)
        bench.reopen()


@pytest.mark.parametrize("value", SIZES)
def test_a_delay_above_the_maximum_of_the_retry_topic_moves_nothing(
    bench: Bench, value: bytes
) -> None:
    """11: refused with setting, limit and value; the message stays leased, and is not copied."""
    client = bench.client
    client.admin.set_delayed_policies(max_delivery_delay_ms=100)
    client.producer("t", chunking=True).send(value)
    for count in (0, 1):
        with client.consumer("t", "s") as consumer:
            message = consumer.receive()
            assert message is not None
            with pytest.raises(InvalidMessage) as caught:
                consumer.reconsume_later(message, 101)
            assert {name: caught.value.fields[name] for name in ("setting", "limit", "value")} == {
                "setting": "max_delivery_delay_ms",
                "limit": 100,
                "value": 101,
            }
            assert unacked(client) == [value]
            is_there = RETRY in [row["topic"] for row in client.topics()]
            assert not (is_there and read(client, RETRY))
            if count:
                assert counted(client, RETRY)["refused"] == 1
                assert consumer.reconsume_later(message, 100).moved == 1
        if not count and not is_there:
            client.create_topic(RETRY)
        elif not count:
            assert counted(client, RETRY)["refused"] == 1
            return
    assert [m.deliver_at for m in read(client, RETRY)] == [START_MS + 100]


@pytest.mark.parametrize("value", SIZES)
def test_a_fixed_delay_of_the_namespace_applies_to_moved_messages(
    bench: Bench, value: bytes
) -> None:
    """2: a move is a send like any other, also to the dead-letter topic."""
    client = bench.client
    client.admin.set_delayed_policies(namespace="public/default", fixed_delivery_delay_ms=7)
    client.admin.set_delayed_policies("t", fixed_delivery_delay_ms=0)
    put_off(client, value, 5000)
    assert [m.deliver_at for m in read(client, RETRY)] == [START_MS + 7]
    client.subscription("t", "s").set_policies(max_redeliver_count=0)
    client.producer("t", chunking=True).send(value)
    with client.consumer("t", "s") as consumer:
        message = consumer.receive()
        assert message is not None
        consumer.negative_acknowledge(message)
        assert consumer.receive() is None
    assert [m.deliver_at for m in read(client, DLQ)] == [START_MS + 7]
    assert indexed(client, DLQ) == [START_MS + 7]


def test_messages_that_will_expire_on_the_retry_topic_are_counted(bench: Bench) -> None:
    client = bench.client
    client.create_topic(RETRY, ttl_ms=10)
    put_off(client, b"x", 10)
    put_off(client, b"x", 11)
    assert counted(client, RETRY) == {"refused": 0, "beyond": 1}


def test_a_dead_letter_does_not_repeat_the_delay_of_its_original(bench: Bench) -> None:
    """It was due once, so the delay is not repeated, whatever the maximum is now."""
    client = bench.client
    client.subscription("t", "s").set_policies(max_redeliver_count=0)
    client.producer("t").send(b"x", deliver_at=START_MS)
    client.admin.set_delayed_policies(max_delivery_delay_ms=1)
    with client.consumer("t", "s") as consumer:
        message = consumer.receive()
        assert message is not None
        consumer.negative_acknowledge(message)
        assert consumer.receive() is None
    assert [m.deliver_at for m in read(client, DLQ)] == [None]
    send(client, b"y")
