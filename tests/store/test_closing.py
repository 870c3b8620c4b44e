"""Closing: a closed handle, a closed client, a copy and a forked child may do nothing any more.

R27 and spec/transactions 14: a closed handle, and one inherited by fork, is AlreadyClosed.
"""

from __future__ import annotations

import copy
import inspect
import os
import pickle
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.engine_kit import Bench, rows, send, values
from txlog import MessageId
from txlog.engine.store.store import Store
from txlog.errors import AlreadyClosed, ConsumerBusy, StoreLocked

pytestmark = pytest.mark.usefixtures("quick_disk")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    opened = Bench(tmp_path / "store")
    opened.client.create_topic("t")
    opened.client.create_subscription("t", "s")
    send(opened.client, b"a", b"b", b"c")
    yield opened
    opened.close()


@pytest.mark.parametrize("topics", ["t", ["t"]])
def test_a_client_closes_its_consumers(bench: Bench, topics: str | list[str]) -> None:
    """9.1: closing returns undelivered messages uncounted, and frees the subscription at once."""
    client = bench.another()
    consumer: Any = client.consumer(topics, "s")
    assert consumer.receive().value == b"a"  # b and c are in its receive queue
    with pytest.raises(ConsumerBusy):
        bench.client.consumer("t", "s")
    client.close()
    with bench.client.consumer("t", "s") as other:
        messages = rows([other.receive_batch()])
    assert [(message.value, message.redelivery_count) for message in messages] == [
        (b"a", 1),
        (b"b", 0),
        (b"c", 0),
    ]
    consumer.close()  # a second close does nothing
    client.close()


def test_a_consumer_that_cannot_leave_is_taken_for_dead(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """9.1: closing always frees its lock; peers return its messages, and count delivered ones."""
    consumer = bench.client.consumer("t", "s")
    assert consumer.receive() is not None

    def locked(*arguments: object, **options: object) -> object:
        raise StoreLocked("the store is locked")

    with monkeypatch.context() as patched:
        patched.setattr(Store, "write", locked)
        with pytest.raises(StoreLocked):
            consumer.close()
    consumer.close()
    with bench.another().consumer("t", "s") as other:
        messages = rows([other.receive_batch()])
    assert [(message.value, message.redelivery_count) for message in messages] == [
        (b"a", 1),
        (b"b", 0),
        (b"c", 0),
    ]


CONSUMER: dict[str, Callable[[Any, Any], object]] = {
    "receive": lambda consumer, one: consumer.receive(),
    "receive_batch": lambda consumer, one: consumer.receive_batch(),
    "acknowledge": lambda consumer, one: consumer.acknowledge(one),
    "acknowledge_cumulative": lambda consumer, one: consumer.acknowledge_cumulative(one),
    "negative_acknowledge": lambda consumer, one: consumer.negative_acknowledge(one),
    "reconsume_later": lambda consumer, one: consumer.reconsume_later(one),
    "redeliver": lambda consumer, one: consumer.redeliver_unacknowledged_messages(),
    "seek": lambda consumer, one: consumer.seek(MessageId(1, 0)),
    "unsubscribe": lambda consumer, one: consumer.unsubscribe(),
}


@pytest.mark.parametrize("name", CONSUMER)
def test_a_closed_consumer_does_nothing(bench: Bench, name: str) -> None:
    """Its messages went back, and another consumer may have them."""
    consumer = bench.client.consumer("t", "s")
    message = consumer.receive()
    consumer.close()
    with pytest.raises(AlreadyClosed):
        CONSUMER[name](consumer, message)
    with bench.client.consumer("t", "s") as other:
        assert [m.value for m in rows([other.receive_batch()])] == [b"a", b"b", b"c"]


def test_a_closed_producer_sends_nothing(bench: Bench) -> None:
    """spec/watermarks 12: a closed producer cannot send a watermark either."""
    with bench.client.producer("t", chunking=True) as producer:
        txn = bench.client.transaction()
        producer.send(b"d", txn=txn)
    for call in (
        lambda: producer.send(b"e"),
        lambda: producer.send(b"e" * 100, txn=txn),
        lambda: producer.send_async(b"e", txn=txn),
        lambda: producer.new_message().value(b"e").send(),
        producer.new_watermark,
    ):
        with pytest.raises(AlreadyClosed):
            call()
    txn.commit()  # messages sent before the close are not lost
    assert values(bench.client) == [b"a", b"b", b"c", b"d"]


def test_closed_client_raises_already_closed(bench: Bench) -> None:
    """Every call raises AlreadyClosed, and not an error about a file that cannot be read."""
    client = bench.another()
    reader, producer, txn = client.reader("t"), client.producer("t"), client.transaction()
    client.close()
    for call in (
        client.status,
        client.topics,
        lambda: client.producer("t"),
        lambda: [*client.read("t")],
        client.transaction,
        client.checkpoint,
        client.expire,
        reader.read_next,
        txn.commit,
        lambda: producer.send(b"x"),
        lambda: client.consumer("t", "s"),
        client.flush,
    ):
        with pytest.raises(AlreadyClosed, match="the store is closed"):
            call()


def test_open_handles_are_neither_copied_nor_pickled(bench: Bench) -> None:
    """A copied handle would close its descriptor twice, when another file may have the number."""
    client = bench.another()
    with client.consumer("t", "s") as consumer, client.transaction() as txn:
        producer, reader = client.producer("t"), client.reader("t")
        producer.send(b"d", txn=txn)
        for handle in (client, consumer, txn, producer, reader):
            for act in (copy.deepcopy, pickle.dumps):
                with pytest.raises(TypeError, match="open it again"):
                    act(handle)
    assert values(client) == [b"a", b"b", b"c", b"d"]
    assert client.checkpoint()["generation"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Python 3.12 warns of such forks
def test_forked_child_is_refused_while_its_parent_holds_the_mutex(bench: Bench) -> None:
    """R27: no thread of the child frees the mutex that it inherits, so the child must not wait."""
    client = bench.client
    consumer = client.consumer("t", "s")
    is_held, is_over = threading.Event(), threading.Event()

    def work(view: object) -> None:
        is_held.set()
        is_over.wait()

    thread = threading.Thread(target=client.store.read, args=(work,))
    thread.start()
    is_held.wait()
    child = os.fork()
    if child == 0:  # the alarm ends a child that hangs
        signal.alarm(20)
        failed = 0
        for call in (
            client.status,
            consumer.receive,
            client.topics,
            lambda: consumer.acknowledge(MessageId(1, 0)),
        ):
            try:
                call()
                failed += 1
            except AlreadyClosed as error:
                failed += "fork" not in str(error.hint)
            except BaseException:
                failed += 10
        client.close()
        os._exit(failed)
    is_over.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0
    message = consumer.receive()
    assert message is not None and message.value == b"a"  # the parent goes on
    consumer.close()


# Attributes that a closed handle still answers from memory.
REMEMBERED = {"close", "get_last_watermark", "is_refused"}
INSIDE = {"view", "places", "routing"}  # parameters of methods that only txlog's modules call
OPENED: dict[str, Callable[[Any], Any]] = {
    "consumer": lambda client: client.consumer("t", "s"),
    "watermarks": lambda client: client.consumer("t", "s", enable_watermarking=True),
    "several": lambda client: client.consumer(["t", "u"], "s", create=True),
    "in memory": lambda client: client.consumer("t", "m", durable=False),
    "reader": lambda client: client.reader("t"),
    "reader with watermarks": lambda client: client.reader("t", enable_watermarking=True),
    "producer": lambda client: client.producer("t", name="p"),
}


@pytest.mark.parametrize("kind", OPENED)
def test_close_is_final(bench: Bench, kind: str) -> None:
    """Each public method of each handle, also of one that had messages in its queue."""
    bench.client.create_topic("u")
    handle = OPENED[kind](bench.client)
    message = MessageId(1, 0)
    if hasattr(handle, "receive"):
        message = handle.receive()
    elif hasattr(handle, "read_next"):
        handle.read_next()
    handle.close()
    arguments = {
        "what": message,
        "message": message,
        "to": MessageId(1, 0),
        "position": "earliest",
        "value": b"x",
        "limit": 1,
        "max_messages": 1,
        "values": [b"x"],
        "txn": None,
        "data": pa.table({"value": [b"x"]}),
    }
    for name in [name for name in dir(type(handle)) if not name.startswith("_")]:
        if name in REMEMBERED or isinstance(getattr(type(handle), name), property):
            continue
        call = getattr(handle, name)
        if not callable(call):
            continue
        names = [
            parameter.name
            for parameter in inspect.signature(call).parameters.values()
            if parameter.default is inspect.Parameter.empty
        ]
        if set(names) - set(arguments):
            assert set(names) & INSIDE, f"{name} {names}: say with what it is called here"
            continue
        with pytest.raises(AlreadyClosed):
            result = call(**{parameter: arguments[parameter] for parameter in names})
            if isinstance(result, Iterator):
                next(result)
            pytest.fail(name)
    if hasattr(handle, "__iter__"):
        with pytest.raises(AlreadyClosed):
            next(iter(handle))
    handle.close()
