"""Every event that wakes a call that waits."""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import txlog
from tests.engine_kit import (
    begin,
    kill,
    send,
)
from tests.reading.waits import LONG_S, Thread, value
from txlog import Client
from txlog.engine.session.reading import pause
from txlog.errors import AlreadyClosed, StoreNotFound

pytestmark = pytest.mark.usefixtures("quick_disk")


@pytest.fixture
def never_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("POLL_SECONDS_MIN", "POLL_SECONDS_MAX", "REST_SECONDS_MAX"):
        monkeypatch.setattr(pause, name, LONG_S)
    monkeypatch.setattr("txlog.engine.session.consuming.receive.REST_SECONDS_MAX", LONG_S)
    monkeypatch.setattr("txlog.engine.session.consuming.ahead.REST_SECONDS_MAX", LONG_S)


@pytest.mark.usefixtures("never_polling")
class TestTold:
    """A waiting call wakes for changes by another process."""

    def test_a_message(self, path: str, rests: threading.Semaphore) -> None:
        with txlog.open(path) as own_client, txlog.open(path) as other:
            consumer = own_client.consumer("t", "s")
            thread = Thread(lambda: value(consumer.receive(timeout_ms=None)))
            assert rests.acquire(timeout=60)
            other.producer("t").send(b"1")
            assert thread.result() == b"1"

    def test_with_messages_in_hand(self, path: str, rests: threading.Semaphore) -> None:
        """The consumer and its peer both hold leases."""
        with txlog.open(path) as own_client, txlog.open(path) as other:
            send(other, b"1", b"2")
            consumer, peer = own_client.consumer("t", "s"), other.consumer("t", "s")
            assert value(consumer.receive()) == b"1" and value(peer.receive()) == b"2"
            thread = Thread(lambda: consumer.receive_batch(timeout_ms=10**6).num_rows)
            assert rests.acquire(timeout=60)
            other.producer("t").send(b"3")
            assert thread.result() == 1

    def test_a_commit_and_an_abort(self, path: str, rests: threading.Semaphore) -> None:
        """An abort gives back the messages that the transaction had acknowledged."""
        with txlog.open(path) as own_client, txlog.open(path) as other:
            consumer = own_client.consumer("t", "s")
            txn = begin(other)
            other.producer("t").send(b"1", txn=txn)
            thread = Thread(lambda: consumer.receive(timeout_ms=None))
            assert rests.acquire(timeout=60)
            other.commit(txn)
            message = thread.result()
            assert value(message) == b"1"
            txn = begin(other)
            consumer.acknowledge(message, txn=txn)
            thread = Thread(lambda: value(consumer.receive(timeout_ms=None)))
            assert rests.acquire(timeout=60)
            other.abort(txn)
            assert thread.result() == b"1"

    @pytest.mark.parametrize("is_new_file", [False, True], ids=["same file", "new file"])
    def test_a_message_that_a_peer_gives_back(
        self, path: str, rests: threading.Semaphore, is_new_file: bool
    ) -> None:
        """A nack is written and not flushed, perhaps as the first frame of a journal file."""
        with txlog.open(path) as own_client, txlog.open(path) as other:
            other.producer("t").send(b"1")
            consumer, peer = own_client.consumer("t", "s"), other.consumer("t", "s")
            message = peer.receive()
            thread = Thread(lambda: value(consumer.receive(timeout_ms=None)))
            assert rests.acquire(timeout=60)
            assert message is not None
            if is_new_file:
                other.checkpoint()
            peer.negative_acknowledge(message)
            assert thread.result() == b"1"

    @pytest.mark.parametrize("kind", ["shared", "failover"])
    def test_a_peer_that_dies(self, path: str, rests: threading.Semaphore, kind: str) -> None:
        """The kernel closes the peer's lock file and notifies us; a standby takes over."""
        with txlog.open(path) as own_client, txlog.open(path) as other:
            other.create_subscription("t", "f", type=kind)  # type: ignore[arg-type]
            peer = other.consumer("t", "f")
            consumer = own_client.consumer("t", "f")
            other.producer("t").send(b"1")
            assert value(peer.receive()) == b"1"
            thread = Thread(lambda: value(consumer.receive(timeout_ms=None)))
            assert rests.acquire(timeout=60)
            kill(peer)
            assert thread.result() == b"1"

    def test_a_consumer_that_is_closed(self, path: str, rests: threading.Semaphore) -> None:
        with txlog.open(path) as client:
            consumer = client.consumer("t", "s")
            thread = Thread(lambda: consumer.receive(timeout_ms=None))
            assert rests.acquire(timeout=60)
            consumer.close()
            assert isinstance(thread.result(), AlreadyClosed)

    def test_a_store_that_is_closed_or_removed(self, path: str, rests: threading.Semaphore) -> None:
        for act, error in ((Client.close, AlreadyClosed), (None, StoreNotFound)):
            client = txlog.open(path)
            thread = Thread(partial(client.wait_for_change, 1 << 40, None))
            assert rests.acquire(timeout=60)
            if act is None:
                os.remove(f"{path}/txlog.toml")  # a polling wait also works in any other order
                shutil.rmtree(path)
            else:
                act(client)
            assert isinstance(thread.result(), error)

    def test_several_topics_and_one_that_is_made_later(
        self, path: str, rests: threading.Semaphore
    ) -> None:
        with txlog.open(path) as own_client, txlog.open(path) as other:
            consumer = own_client.consumer(re.compile("t.*"), "p", create=True, type="shared")
            thread = Thread(lambda: value(consumer.receive(timeout_ms=None)))
            assert rests.acquire(timeout=60)
            other.create_topic("t2")
            other.producer("t2").send(b"2")
            assert thread.result() == b"2"

    def test_one_in_memory(self, path: str, rests: threading.Semaphore) -> None:
        with txlog.open(path) as own_client, txlog.open(path) as other:
            consumer = own_client.consumer("t", "glance", durable=False)
            thread = Thread(lambda: value(consumer.receive(timeout_ms=None)))
            assert rests.acquire(timeout=60)
            other.producer("t").send(b"1")
            assert thread.result() == b"1"

    def test_the_end_of_a_transaction(self, path: str, rests: threading.Semaphore) -> None:
        with txlog.open(path) as own_client, txlog.open(path) as other:
            txn = begin(other)
            thread = Thread(lambda: own_client.wait(txns={txn: "committed"})["met"])
            assert rests.acquire(timeout=60)
            other.commit(txn)
            assert thread.result() is True

    @pytest.mark.parametrize("kind", ["reader", "consumer", "in memory"])
    def test_messages_of_an_open_transaction(
        self, path: str, rests: threading.Semaphore, kind: str
    ) -> None:
        """They are appended and not flushed; the writes to the journal file wake the reader."""
        with txlog.open(path) as own_client, txlog.open(path) as other:
            other.create_subscription("t", "u", isolation="uncommitted")
            receive: Callable[..., Any]
            if kind == "reader":
                receive = own_client.reader("t", isolation="uncommitted").read_next
            elif kind == "consumer":
                receive = own_client.consumer("t", "u").receive
            else:
                consumer = own_client.consumer(
                    "t", "glance", durable=False, isolation="uncommitted"
                )
                receive = consumer.receive
            txn, producer = begin(other), other.producer("t")
            for sent in (b"1", b"2"):
                thread = Thread(lambda: value(receive(timeout_ms=None)))
                assert rests.acquire(timeout=60)
                producer.send(sent, txn=txn)
                assert thread.result() == sent

    def test_an_acknowledgement_of_a_peer_frees_its_keys(
        self, path: str, rests: threading.Semaphore
    ) -> None:
        """The slots of a key move to another consumer once the peer holds no message of it."""
        with txlog.open(path) as own_client, txlog.open(path) as other:
            other.create_subscription("t", "k", type="key-shared")
            peer = other.consumer("t", "k")
            keys = [b"%d" % number for number in range(40)]
            for key in keys:
                other.producer("t").send(key, key=key)
            first = peer.receive_batch(len(keys), 0)
            for key in keys:
                other.producer("t").send(key, key=key)
            consumer = own_client.consumer("t", "k")
            while consumer.receive_batch(timeout_ms=0).num_rows:
                pass  # no rows: the peer has an earlier message of each key
            thread = Thread(lambda: consumer.receive_batch(timeout_ms=10**6).num_rows)
            assert rests.acquire(timeout=60)
            peer.acknowledge(first)
            assert thread.result() > 0

    def test_room_in_hand(self, path: str, rests: threading.Semaphore) -> None:
        """unacked_max is reached; another thread of the application acknowledges."""
        with txlog.open(path) as own_client:
            own_client.admin.set_setting("unacked_max", 2)
            send(own_client, b"1", b"2", b"3")
            consumer = own_client.consumer("t", "s")
            batch = consumer.receive_batch(10, 0)
            assert consumer.receive() is None and consumer.blocked == "unacked_max"
            thread = Thread(lambda: value(consumer.receive(timeout_ms=None)))
            assert rests.acquire(timeout=60)
            consumer.acknowledge(batch)
            assert thread.result() == b"3"

    def test_a_backlog_that_shrinks(self, path: str, rests: threading.Semaphore) -> None:
        with txlog.open(path) as own_client, txlog.open(path) as other:
            other.producer("t").send(b"1")
            peer = other.consumer("t", "s")
            message = peer.receive()
            assert message is not None
            thread = Thread(lambda: own_client.wait(backlogs={"s": 0})["met"])
            assert rests.acquire(timeout=60)
            peer.acknowledge(message)
            assert thread.result() is True

    def test_a_watermark_that_a_peer_received(self, path: str, rests: threading.Semaphore) -> None:
        with txlog.open(path) as own_client, txlog.open(path) as other:
            producer = other.producer("t")
            producer.send(b"1", event_time=1000)
            producer.new_watermark().event_time(1000).send()
            thread = Thread(lambda: own_client.wait(["t"], watermark=1000, subscription="s")["met"])
            assert rests.acquire(timeout=60)
            peer = other.consumer("t", "s")
            message = peer.receive()
            assert message is not None
            peer.acknowledge(message)
            assert thread.result() is True

    def test_a_transaction_that_times_out(self, path: str, rests: threading.Semaphore) -> None:
        """No other process notices the time-out, so the wait has its own timer for it."""
        with txlog.open(path) as own_client, txlog.open(path) as other:
            txn = begin(other, timeout_ms=200)
            thread = Thread(lambda: own_client.wait(txns={txn: "aborted"})["met"])
            assert thread.result() is True

    def test_many_threads_share_one_watch(self, path: str, rests: threading.Semaphore) -> None:
        """Two descriptors serve all threads, and each thread wakes for each commit."""
        with txlog.open(path) as own_client, txlog.open(path) as other:
            count_before = len(os.listdir("/proc/self/fd"))
            lsn = own_client.wait_for_change(0)
            threads = [
                Thread(lambda: own_client.wait_for_change(lsn, None) > lsn) for _ in range(8)
            ]
            for _ in threads:
                assert rests.acquire(timeout=60)
            assert len(os.listdir("/proc/self/fd")) <= count_before + 2
            other.producer("t").send(b"1")
            assert all(thread.result() for thread in threads)
