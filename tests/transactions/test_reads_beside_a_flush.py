"""A client reads while its commits are flushed; commits depend on one another.

Source: docs/design/transactions, "Reads beside a flush".
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.engine_kit import Bench, send, values
from txlog import Client, Consumer, Producer, Transaction
from txlog.clock import Instant
from txlog.engine.decide.draft import Decision
from txlog.engine.decide.transactions.sweep import CallScope
from txlog.engine.decide.transactions.transaction import Use
from txlog.engine.session.transactions.commits import CommitFuture
from txlog.engine.view import View
from txlog.errors import DiskFailed, OutcomeUnknown, TransactionConflict, TryAgain

pytestmark = [
    pytest.mark.usefixtures("quick_disk"),
    pytest.mark.store({"t": 1, "u": 1}, [("t", "s")], durability="sync"),
]


@contextmanager
def held_flush(bench: Bench) -> Iterator[threading.Event]:
    """Hold each flush of `bench.client` from now on, until the block ends; the event: one waits."""
    reached, opened = threading.Event(), threading.Event()

    def hold() -> None:
        reached.set()
        assert opened.wait(20)

    bench.disk.before("datasync", hold, "journal/*", nth=0)  # type: ignore[attr-defined]
    try:
        yield reached
    finally:
        opened.set()


class Later:
    """A call in a thread of its own."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._answer: list[Any] = []
        self._thread = threading.Thread(target=lambda: self._answer.append(call()))
        self._thread.start()

    def ends_within(self, seconds: float) -> bool:
        """Whether it has returned, after waiting so long."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def answer(self) -> Any:
        """Its answer."""
        self._thread.join(60)
        return self._answer[0]


@pytest.fixture
def consumer(bench: Bench) -> Iterator[Consumer]:
    """A consumer of eight messages, with a client whose flushes can be held."""
    bench.disk = bench.faulty()  # type: ignore[attr-defined]
    send(bench.client, *(b"%d" % number for number in range(8)))
    bench.client.transaction().abort()
    with bench.client.consumer("t", "s") as opened:
        yield opened


def taken(consumer: Consumer, count: int) -> list[bytes]:
    """The values of the next messages."""
    got: list[bytes] = consumer.receive_batch(count)["value"].to_pylist()
    return got


def acknowledged(client: Client, consumer: Consumer, producer: Producer, count: int) -> Transaction:
    """A transaction that acknowledges the next messages, and sends their values."""
    rows = consumer.receive_batch(count)
    txn = client.transaction()
    producer.send_batch_async(rows.select(["value"]), txn=txn)
    consumer.acknowledge_async(rows, txn=txn)
    return txn


# --- reads ---------------------------------------------------------------------------------------


def test_durable_messages_are_handed_out_beside_a_flush(bench: Bench, consumer: Consumer) -> None:
    """The program goes on: it receives, begins and commits while the first commit is flushed."""
    client = bench.client
    producer = client.producer("u")
    with held_flush(bench) as reached:
        futures = []
        for _ in range(4):
            futures.append(acknowledged(client, consumer, producer, 2).commit_async())
            assert reached.wait(20)
        assert not any(future.done() for future in futures)
    assert [future.result(60).status for future in futures] == ["COMMITTED"] * 4
    assert values(client, "u") == [b"%d" % number for number in range(8)]
    assert taken(consumer, 8) == []


def test_a_single_message_is_received_beside_a_flush(bench: Bench, consumer: Consumer) -> None:
    client = bench.client
    first = consumer.receive()
    assert first is not None
    with held_flush(bench) as reached:
        txn = client.transaction()
        consumer.acknowledge_async(first, txn=txn)
        future = txn.commit_async()
        assert reached.wait(20)
        second = consumer.receive()
        assert second is not None and second.value == b"1"
        assert not future.done()


def test_a_message_of_a_commit_in_flight_waits_for_its_flush(bench: Bench) -> None:
    bench.disk = bench.faulty()  # type: ignore[attr-defined]
    client = bench.client
    producer = client.producer("t")
    client.transaction().abort()
    with client.consumer("t", "s") as consumer:
        with held_flush(bench) as reached:
            txn = client.transaction()
            producer.send_async(b"new", txn=txn)
            future = txn.commit_async()
            assert reached.wait(20)
            receiving = Later(lambda: taken(consumer, 1))
            assert not receiving.ends_within(0.2)
            assert not future.done()
        assert receiving.answer() == [b"new"]
        assert future.done()


def test_messages_of_a_seek_in_flight_wait_for_its_flush(bench: Bench) -> None:
    """Another consumer seeks; a message that comes again may not be handed out before that."""
    bench.disk = bench.faulty()  # type: ignore[attr-defined]
    client = bench.client
    send(client, b"0", b"1")
    client.create_subscription("t", "shared", type="shared")
    mover = client.consumer("t", "shared")
    with mover, client.consumer("t", "shared") as consumer:
        consumer.acknowledge(consumer.receive_batch(8))
        client.flush()
        with held_flush(bench) as reached:
            seeking = Later(lambda: mover.seek("earliest"))
            assert reached.wait(20)
            receiving = Later(lambda: taken(consumer, 1))
            assert not receiving.ends_within(0.2)
        seeking.answer()
        assert receiving.answer() == [b"0"]


def test_a_lease_that_led_a_commit_leaves_its_flush_to_it(bench: Bench, consumer: Consumer) -> None:
    """The thread that decides a queued commit with its own lease does not wait for the flush."""
    client = bench.client
    producer = client.producer("u")
    with held_flush(bench) as reached:
        first = acknowledged(client, consumer, producer, 1).commit_async()
        assert reached.wait(20)  # the thread of the commits flies
        behind = acknowledged(client, consumer, producer, 1).commit_async()
        assert taken(consumer, 1) == [b"2"]  # its lease is decided behind that commit
        assert not first.done() and not behind.done()
    assert [future.result(60).status for future in (first, behind)] == ["COMMITTED"] * 2


def test_after_a_failed_flush_messages_come_from_what_is_durable(
    bench: Bench, consumer: Consumer
) -> None:
    client = bench.client
    first = acknowledged(client, consumer, client.producer("u"), 2)
    bench.disk.fail_at(  # type: ignore[attr-defined]
        "datasync", DiskFailed("the flush failed", path="journal"), "journal/*"
    )
    assert isinstance(first.commit_async().exception(60), OutcomeUnknown)
    reopened = bench.reopen()
    done = values(reopened, "u")
    with reopened.consumer("t", "s") as again:
        rest = taken(again, 8)
    assert done + rest == [b"%d" % number for number in range(8)]


# --- commits that depend on one another ----------------------------------------------------------


def test_a_commit_after_a_refused_one_is_not_made(bench: Bench) -> None:
    client = bench.client
    ids = send(client, b"in")
    holder = client.transaction()
    client.acknowledge("t", "s", ids, txn=holder)
    transactions = [client.transaction() for _ in range(4)]
    for number, txn in enumerate(transactions):
        client.producer("u").send_async(b"%d" % number, txn=txn)
    client.acknowledge_async("t", "s", ids, txn=transactions[1])
    futures = [transactions[0].commit_async()]
    for txn in transactions[1:]:
        futures.append(txn.commit_async(futures[-1]))
    assert futures[0].result(60).status == "COMMITTED"
    assert isinstance(futures[1].exception(60), TransactionConflict)
    for future in futures[2:]:
        assert isinstance(future.exception(60), TryAgain)
    assert [txn.state for txn in transactions] == ["COMMITTED", "ABORTED", "OPEN", "OPEN"]
    assert values(client, "u") == [b"0"]
    for txn in transactions[2:]:
        assert txn.commit().status == "COMMITTED"
    assert values(client, "u") == [b"0", b"2", b"3"]


def test_a_commit_after_one_that_has_ended_long_ago(bench: Bench) -> None:
    client = bench.client
    futures: list[CommitFuture] = []
    for number in range(3):
        txn = client.transaction()
        client.producer("u").send_async(b"%d" % number, txn=txn)
        futures.append(txn.commit_async(futures[-1] if futures else None))
        futures[-1].result(60)
    assert values(client, "u") == [b"0", b"1", b"2"]


def test_a_keyed_transaction_begins_after_a_commit_that_is_repeated(bench: Bench) -> None:
    """A begin aborts what its key has left open, but not the client's own commit in flight."""
    bench.disk = bench.faulty()  # type: ignore[attr-defined]
    client = bench.client
    epoch = client.connect("k")["epoch"]
    client.transaction(key="k", epoch=epoch).abort()  # reserves ids
    producer = client.producer("u")
    with held_flush(bench) as reached:
        zero = client.transaction()
        producer.send_async(b"0", txn=zero)
        zero.commit_async()
        assert reached.wait(20)
        first = client.transaction(key="k", epoch=epoch)
        tries: list[Use] = []

        def decide(view: View, now: Instant, use: Use) -> Decision[Any]:
            tries.append(use)
            return Decision([], answer=None if len(tries) == 1 else (use, 1))

        first.defer(decide, CallScope(), lambda answer: answer)
        future = first.commit_async()
        begin = Later(lambda: client.transaction(key="k", epoch=epoch))
    assert future.result(60).status == "COMMITTED"
    assert len(tries) == 2
    assert begin.answer().commit().status == "COMMITTED"
