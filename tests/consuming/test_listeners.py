"""Message listeners: one thread of a client calls them, and a failed message comes again."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

import txlog
from txlog import Client, Consumer, Message
from txlog.client.consuming import listeners
from txlog.errors import AlreadyClosed, NotAllowed

pytestmark = pytest.mark.usefixtures("quick_disk")


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    path = str(tmp_path / "store")
    txlog.init(path, free_bytes_min=0)
    with txlog.open(path) as new_client:
        for topic in ("a", "b"):
            new_client.create_topic(topic)
            new_client.create_subscription(topic, "s", type="shared")
        yield new_client


def test_each_message_is_given_to_the_listener_of_its_consumer(client: Client) -> None:
    """One thread for all listeners, which acknowledge; also of several topics and in memory."""
    got: Queue[tuple[str, bytes | None, int]] = Queue()

    def listen(name: str, consumer: Any, message: Message) -> None:
        consumer.acknowledge(message)
        got.put((name, message.value, threading.get_ident()))

    def listener(name: str) -> Any:
        return lambda consumer, message: listen(name, consumer, message)

    client.producer("a").send(b"0")  # before there is a listener
    client.consumer("a", "s", message_listener=listener("one"))
    assert got.get(timeout=60)[:2] == ("one", b"0")
    client.consumer(["a", "b"], "m", create=True, type="shared", message_listener=listener("many"))
    client.consumer("b", "glance", durable=False, message_listener=listener("memory"))
    client.producer("a").send(b"1")
    client.producer("b").send(b"2")
    events = [got.get(timeout=60) for _ in range(5)]
    assert sorted(event[:2] for event in events) == [
        ("many", b"0"), ("many", b"1"), ("many", b"2"), ("memory", b"2"), ("one", b"1"),
    ]  # fmt: skip
    threads = {event[2] for event in events}
    assert len(threads) == 1 and threading.get_ident() not in threads
    client.close()
    assert not [event for event in threading.enumerate() if event.ident in threads]


def test_an_error_of_a_listener_is_logged_and_its_message_comes_again(
    client: Client, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listeners, "LISTENER_NACK_DELAY_MS", 1)
    got: Queue[tuple[bytes | None, int | None]] = Queue()

    def listener(consumer: Consumer, message: Message) -> None:
        got.put((message.value, message.redelivery_count))
        if not message.redelivery_count:
            raise ValueError("not now")
        consumer.acknowledge(message)

    with caplog.at_level(logging.ERROR, "txlog.listener"):
        client.consumer("a", "s", message_listener=listener)
        client.producer("a").send(b"1")
        assert [got.get(timeout=60) for _ in range(2)] == [(b"1", 0), (b"1", 1)]
    assert "ValueError('not now')" in caplog.text
    client.close()


@pytest.mark.parametrize("where", ["consumer", "subscription", "topics", "memory"])
def test_the_delay_of_a_message_that_failed_is_that_of_its_consumer(
    client: Client, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """The delay of a listener, here an hour, is only for consumers without one."""
    monkeypatch.setattr(listeners, "LISTENER_NACK_DELAY_MS", 1 if where == "memory" else 3_600_000)
    got: Queue[int | None] = Queue()

    def listener(consumer: Consumer, message: Message) -> None:
        got.put(message.redelivery_count)
        if not message.redelivery_count:
            raise ValueError("not now")
        consumer.acknowledge(message)

    options: dict[str, Any] = {"message_listener": listener}
    if where == "subscription":
        client.subscription("a", "s").set_policies(nack_delay_ms=1)
    elif where == "memory":
        options["durable"] = False
    else:
        options["nack_delay_ms"] = 1
    client.consumer(["a"] if where == "topics" else "a", "s", **options)
    client.producer("a").send(b"1")
    assert [got.get(timeout=30) for _ in range(2)] == [0, 1]
    client.close()


def test_a_consumer_that_is_closed_by_its_listener_is_left(client: Client) -> None:
    """The same for a client: close does not wait for its own caller."""
    done = threading.Event()

    def once(consumer: Consumer, message: Message) -> None:
        consumer.acknowledge(message)
        consumer.close()

    def last(consumer: Consumer, message: Message) -> None:
        client.close()
        done.set()

    client.consumer("a", "s", message_listener=once)
    client.consumer("b", "s", message_listener=last)
    client.producer("a").send(b"1")
    client.producer("a").send(b"2")
    client.producer("b").send(b"3")
    assert done.wait(60)
    thread = client._listeners()._thread
    assert thread is not None
    thread.join(60)
    assert not thread.is_alive()


def test_a_paused_listener_is_not_called_until_it_is_resumed(client: Client) -> None:
    """Its messages ahead are free for peers; it may pause itself; other listeners go on."""
    got: Queue[bytes | None] = Queue()
    other: Queue[bytes | None] = Queue()

    def one_each(consumer: Any, message: Message) -> None:
        consumer.acknowledge(message)
        consumer.pause_message_listener()
        got.put(message.value)

    for kind in ("one", "many", "memory"):
        client.create_topic(kind)
        producer = client.producer(kind)
        for value in (b"1", b"2", b"3"):
            producer.send(value)
        options: dict[str, Any] = {"create": True, "type": "shared"}
        if kind == "memory":
            options = {"durable": False}
        topics: Any = [kind] if kind == "many" else kind
        listening = client.consumer(topics, "s", message_listener=one_each, **options)
        assert got.get(timeout=60) == b"1"
        client.consumer("a", "s", message_listener=lambda _, message: other.put(message.value))
        # with this message, the thread has called every listener
        client.producer("a").send(b"other")
        assert other.get(timeout=60) == b"other" and got.empty()
        listening.resume_message_listener()
        assert got.get(timeout=60) == b"2"
        if kind != "memory":
            with client.consumer(kind, "s") as free:
                message = free.receive()
                assert message is not None and message.value == b"3"
        listening.close()


def test_pause_returns_when_the_listener_is_not_being_called(client: Client) -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Event()

    def slow(consumer: Consumer, message: Message) -> None:
        begun.set()
        assert go_on.wait(60)
        ended.set()

    listening = client.consumer("a", "s", message_listener=slow)
    client.producer("a").send(b"1")
    assert begun.wait(60)
    paused: Queue[bool] = Queue()

    def pause() -> None:
        listening.pause_message_listener()
        paused.put(ended.is_set())

    thread = threading.Thread(target=pause)
    thread.start()
    assert paused.empty()
    go_on.set()
    assert paused.get(timeout=60)
    thread.join()


def test_only_a_consumer_with_a_listener_can_be_paused(client: Client) -> None:
    for durable in (True, False):
        consumer: Any = client.consumer("a", "s", durable=durable)
        for call in (consumer.pause_message_listener, consumer.resume_message_listener):
            with pytest.raises(NotAllowed, match="no message listener"):
                call()
        consumer.close()
        with pytest.raises(AlreadyClosed):
            consumer.pause_message_listener()
