"""A run whose commits are in flight: order, failures in the middle, and what comes again.

Source: docs/design/transactions, "Reads beside a flush".
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

import txlog
from tests.disk.faults import FaultyDisk
from tests.engine_kit import client_on
from tests.functions.kit import backlog, fill, run, values
from txlog import Message, Transaction, functions
from txlog.clock import SystemClock
from txlog.engine.decide.transactions.sweep import CallScope
from txlog.engine.storage.disk.posix import PosixDisk
from txlog.errors import (
    CommandFailed,
    DiskFailed,
    ExpiredTransaction,
    InvalidArgument,
    OutcomeUnknown,
    TransactionTimedOut,
)
from txlog.functions import Context, FunctionOptions, Hooks, Summary

pytestmark = pytest.mark.usefixtures("quick_disk")


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def windows_of_five() -> list[bytes]:
    return [b" ".join(numbered(40)[start : start + 5]) for start in range(0, 40, 5)]


@pytest.fixture
def in_flight(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many commits of the run were in flight at each commit that did not wait."""
    counts: list[int] = []
    futures: list[Any] = []
    commit = Transaction.commit_async

    def counted(txn: Transaction, after: Any = None) -> Any:
        future = commit(txn, after)
        futures.append(future)
        counts.append(sum(not future.done() for future in futures))
        return future

    monkeypatch.setattr(Transaction, "commit_async", counted)
    return counts


@pytest.fixture
def gated(client: txlog.Client) -> Iterator[tuple[txlog.Client, threading.Event]]:
    """A client whose flushes wait while an event is cleared."""
    disk = FaultyDisk(PosixDisk(client.store.disk.description))
    opened = threading.Event()
    opened.set()

    def hold() -> None:
        assert opened.wait(20)

    disk.before("datasync", hold, "journal/*", nth=0)
    with client_on(disk, SystemClock()) as slow:
        yield slow, opened
        opened.set()


def test_a_run_processes_while_its_commits_are_flushed(
    client: txlog.Client, gated: tuple[txlog.Client, threading.Event]
) -> None:
    """The flush of the first commit ends only when the function has seen four batches."""
    slow, opened = gated
    fill(client, 50)
    calls: list[bytes] = []

    def held(message: Message) -> bytes:
        calls.append(message.value or b"")
        if len(calls) == 9:  # the first transaction of the key, which reserves ids, is over
            opened.clear()
        if len(calls) == 40:
            opened.set()
        return message.value or b""

    done = run(slow, held, txn_size=8)
    assert (done.consumed, done.transactions, done.aborted) == (50, 7, 0)
    assert calls == values(client) == numbered(50)


def test_no_more_than_max_in_flight(client: txlog.Client, in_flight: list[int]) -> None:
    fill(client, 80)
    done = run(client, lambda message: message.value, txn_size=2, max_in_flight=3)
    assert (done.consumed, done.transactions) == (80, 40)
    assert 1 <= max(in_flight) <= 3
    assert values(client) == numbered(80)


@pytest.mark.parametrize("wrong", [0, 101])
def test_max_in_flight_has_bounds(wrong: int) -> None:
    with pytest.raises(InvalidArgument, match=f"max_in_flight is {wrong}"):
        FunctionOptions(max_in_flight=wrong)


@pytest.mark.parametrize("batch", [False, True])
def test_a_failing_function_in_the_middle(client: txlog.Client, batch: bool) -> None:
    """What was committed before it stays, nothing behind it is, and the rest comes again."""
    fill(client, 40)

    def fail(message: Message) -> bytes:
        if message.value == b"22":
            raise ValueError("no 22")
        return message.value or b""

    def fail_batch(rows: pa.Table) -> pa.Table:
        if b"22" in rows["value"].to_pylist():
            raise ValueError("no 22")
        return rows

    done: list[int] = []
    hooks = Hooks(committed=lambda summary: done.append(summary.consumed))
    options = FunctionOptions(txn_size=4, batch=batch)
    function: Callable[..., object] = fail_batch if batch else fail
    with pytest.raises(CommandFailed, match="no 22"):
        functions.run(client, function, "in", "out", "s", options, hooks)
    assert (values(client), backlog(client)) == (numbered(20), 20)
    assert done == [4, 8, 12, 16, 20]
    assert client.transactions() == []
    assert run(client, lambda message: message.value).consumed == 20
    assert values(client) == numbered(40)


def test_a_failing_function_is_retried_in_order(client: txlog.Client) -> None:
    fill(client, 40)
    failures = iter([ValueError("once"), ValueError("twice")])

    def fail(rows: pa.Table) -> pa.Table:
        if b"22" in rows["value"].to_pylist():
            for failure in failures:
                raise failure
        return rows

    done = run(client, fail, txn_size=4, batch=True, retries=2)
    assert done.consumed == 40
    assert values(client) == numbered(40)
    assert client.transactions() == []


class Refusing:
    """Refuses one commit of a run, when others are behind it, in the thread that commits.

    is_noticed: the run learns of it before it receives more
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        nth: int,
        error: Exception,
        *,
        is_noticed: bool = False,
    ) -> None:
        self.calls = 0
        for name in ("commit", "commit_async"):
            commit = getattr(Transaction, name)

            def commits(txn: Transaction, *after: Any, commit: Any = commit) -> Any:
                self.calls += 1
                if self.calls != nth:
                    return commit(txn, *after)

                def decide(view: Any, now: Any, use: Any) -> Any:
                    raise error

                txn.defer(decide, CallScope(), lambda answer: answer)
                ended = commit(txn, *after)
                if is_noticed:
                    ended.exception(20)
                return ended

            monkeypatch.setattr(Transaction, name, commits)


def test_a_commit_that_times_out_in_the_middle(
    client: txlog.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None behind it is committed; all are processed again, in order and once."""
    fill(client, 48)
    Refusing(monkeypatch, 3, TransactionTimedOut("too late"))
    seen: list[bytes] = []

    def function(message: Message, context: Context) -> bytes:
        seen.append(message.value or b"")
        context.publish("other", message.value)
        return message.value or b""

    done = run(client, function, txn_size=4, max_in_flight=4, retries=1)
    assert (done.consumed, done.produced) == (48, 96)
    assert values(client) == values(client, "other") == numbered(48)
    assert len(seen) > 48 and done.aborted >= 1
    assert (backlog(client), client.transactions()) == (0, [])


def test_messages_of_another_consumer_in_the_middle(client: txlog.Client) -> None:
    """A conflict in flight: the run goes on with what is left, in order."""
    fill(client, 48)
    [first] = [row for row in client.read("in")][:1]
    stolen = [
        txlog.MessageId(ledger, entry)
        for ledger, entry in zip(
            first["ledger"].to_pylist(), first["entry"].to_pylist(), strict=True
        )
    ][9:11]

    def function(message: Message) -> bytes:
        if message.value == b"13":
            client.acknowledge("in", "s", stolen)
        return message.value or b""

    done = run(client, function, txn_size=4, max_in_flight=4)
    kept = values(client)
    assert kept == sorted(kept, key=lambda value: int(value or b""))
    assert set(numbered(48)) - set(kept) <= {b"9", b"10"}
    assert (backlog(client), client.transactions()) == (0, [])
    assert done.consumed >= 46


def test_a_newer_instance_in_the_middle(client: txlog.Client) -> None:
    """It fences what is not decided; together both process each message once, in order."""
    fill(client, 48)
    key = "function:f:0"

    def function(message: Message) -> bytes:
        if message.value == b"21":
            client.connect(key)
        return message.value or b""

    with pytest.raises(ExpiredTransaction, match="a newer instance runs"):
        run(client, function, txn_size=4, name="f")
    assert values(client) == numbered(20)
    assert run(client, lambda message: message.value, name="f").consumed == 28
    assert values(client) == numbered(48)


def test_a_failed_flush_in_the_middle(
    client: txlog.Client, gated: tuple[txlog.Client, threading.Event]
) -> None:
    """The run ends with OutcomeUnknown; the next one continues from what is durable."""
    slow = gated[0]
    fill(client, 48)
    disk = slow.store.disk
    assert isinstance(disk, FaultyDisk)

    def function(message: Message) -> bytes:
        if message.value == b"21":
            disk.fail_at("datasync", DiskFailed("no", path="journal"), "journal/*")
        return message.value or b""

    summaries: list[Summary] = []
    hooks = Hooks(committed=summaries.append)
    options = FunctionOptions(txn_size=4, name="f")
    with pytest.raises(OutcomeUnknown):
        functions.run(slow, function, "in", "out", "s", options, hooks)
    slow.close()
    before = values(client)
    assert before == numbered(len(before)) and len(before) >= 16
    run(client, lambda message: message.value, name="f")
    assert values(client) == numbered(48)


@pytest.mark.parametrize("max_in_flight", [1, 4])
@pytest.mark.parametrize("size", [1, 5_000_000])
def test_a_run_goes_on_after_the_failed_flush_of_a_peer(
    client: txlog.Client,
    gated: tuple[txlog.Client, threading.Event],
    max_in_flight: int,
    size: int,
) -> None:
    """The recovery aborts the transactions of all processes, also those of a healthy run."""
    peer = gated[0]
    disk = peer.store.disk
    assert isinstance(disk, FaultyDisk)
    fill(client, 48)
    others = peer.producer("other")
    failures = iter([b"21"])

    def function(message: Message, context: Context) -> bytes:
        context.publish("other", b"x" * size)  # a large one is written before the commit
        if message.value == b"21" and next(failures, None):
            disk.fail_at("datasync", DiskFailed("no", path="journal"), "journal/*")
            with pytest.raises(OutcomeUnknown):
                others.send(b"of the peer")
        return message.value or b""

    events: list[str] = []
    hooks = Hooks(tell=lambda event, facts: events.append(event))
    options = FunctionOptions(txn_size=4, name="f", max_in_flight=max_in_flight)
    done = functions.run(client, function, "in", "out", "s", options, hooks)
    assert values(client) == numbered(48)
    assert values(client, "other").count(b"x" * size) == done.consumed == 48
    assert (backlog(client), client.transactions()) == (0, [])
    assert events.count("conflict") == 1


def test_held_back_rows_are_restored_after_a_failure(
    client: txlog.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows of five over transactions of four: a failure in flight shifts no window."""
    fill(client, 40)
    Refusing(monkeypatch, 4, TransactionTimedOut("too late"))

    @functions.tumbling(count=5)
    def window(messages: list[Message]) -> bytes:
        return b" ".join(message.value or b"" for message in messages)

    done = run(client, window, txn_size=4, max_in_flight=4, retries=1)
    assert done.consumed == 40
    assert values(client) == windows_of_five()


@pytest.mark.parametrize("max_in_flight", [1, 4])
@pytest.mark.parametrize("nth", [2, 3, 4, 5, 6])
def test_what_an_abort_returns_is_in_no_window_twice(
    client: txlog.Client, monkeypatch: pytest.MonkeyPatch, max_in_flight: int, nth: int
) -> None:
    """The abort sends the consumer back, below the rows that the run holds for the next window."""
    fill(client, 40)
    Refusing(monkeypatch, nth, TransactionTimedOut("too late"), is_noticed=max_in_flight > 1)

    @functions.tumbling(count=5)
    def window(messages: list[Message]) -> bytes:
        return b" ".join(message.value or b"" for message in messages)

    done = run(client, window, txn_size=4, max_in_flight=max_in_flight, retries=1, limit=40)
    assert (done.consumed, done.aborted) == (40, 1)
    assert values(client) == windows_of_five()
    assert (backlog(client), client.transactions()) == (0, [])


def test_held_messages_that_come_again_are_held_once(client: txlog.Client) -> None:
    """An operator returns them while the run holds them."""
    fill(client, 40)

    @functions.tumbling(count=5)
    def window(messages: list[Message]) -> bytes:
        if messages[0].value == b"10":
            client.subscription("in", "s").redeliver()
        return b" ".join(message.value or b"" for message in messages)

    assert run(client, window, txn_size=8, max_in_flight=1).consumed == 40
    assert values(client) == windows_of_five()


@pytest.mark.parametrize("txn_size", [1, 2, 3])
@pytest.mark.parametrize("nth", range(3, 7))
def test_held_messages_that_come_again_keep_their_order(
    client: txlog.Client, nth: int, txn_size: int
) -> None:
    """An operator returns them between two batches, when another partition has messages, too."""
    client.create_topic("two", partitions=2)
    client.create_subscription("two", "s")
    producer = client.producer("two")
    for number in range(3):
        producer.send(b"0 %d" % number, partition=0)
    looks: list[None] = []

    def stop() -> bool:
        looks.append(None)
        if len(looks) == nth:
            for number in range(5):
                producer.send(b"1 %d" % number, partition=1)
            client.subscription("two", "s").redeliver()
        return not client.subscriptions("two")[0]["backlog"]

    @functions.tumbling(count=4)
    def window(messages: list[Message]) -> bytes:
        return b",".join(message.value or b"" for message in messages)

    options = FunctionOptions(txn_size=txn_size, max_in_flight=1, follow=True)
    functions.run(client, window, "two", "out", "s", options, Hooks(stop=stop))
    used = b",".join(value or b"" for value in values(client)).split(b",")
    assert len(used) == 8
    for partition in (b"0", b"1"):
        numbers = [value for value in used if value.startswith(partition)]
        assert numbers == sorted(set(numbers))


def test_held_messages_are_behind_those_that_an_operator_goes_back_to(
    client: txlog.Client,
) -> None:
    """Windows hold consecutive messages, before and after a seek."""
    fill(client, 12)
    looks: list[None] = []

    def stop() -> bool:
        looks.append(None)
        if len(looks) == 7:  # ten messages are in windows, two are held
            client.subscription("in", "s").seek("earliest")
        return False

    @functions.tumbling(count=5)
    def window(messages: list[Message]) -> bytes:
        return b" ".join(message.value or b"" for message in messages)

    options = FunctionOptions(txn_size=4, max_in_flight=1)
    functions.run(client, window, "in", "out", "s", options, Hooks(stop=stop))
    assert values(client) == 2 * [b"0 1 2 3 4", b"5 6 7 8 9"]


def test_each_partition_keeps_its_order(client: txlog.Client, in_flight: list[int]) -> None:
    fill(client, 60, 0)
    fill(client, 60, 1)
    done = run(client, lambda message: message.value, txn_size=3)
    assert done.consumed == 120
    by_partition: dict[int, list[bytes | None]] = {0: [], 1: []}
    for message in client.reader("in"):
        by_partition[message.partition].append(message.value)
    assert all(part == numbered(60) for part in by_partition.values())
    assert sorted(values(client), key=lambda value: int(value or b"")) == sorted(
        numbered(60) * 2, key=int
    )


def test_a_limit_ends_after_all_commits(client: txlog.Client) -> None:
    fill(client, 40)
    done = run(client, lambda message: message.value, txn_size=4, limit=18)
    assert (done.consumed, done.transactions) == (18, 5)
    assert values(client) == numbered(18)


def test_an_interrupt_waits_for_the_commits_in_flight(client: txlog.Client) -> None:
    fill(client, 40)
    summaries: list[int] = []

    def function(message: Message) -> bytes:
        if message.value == b"22":
            raise KeyboardInterrupt
        return message.value or b""

    hooks = Hooks(committed=lambda summary: summaries.append(summary.consumed))
    with pytest.raises(KeyboardInterrupt):
        functions.run(client, function, "in", "out", "s", FunctionOptions(txn_size=4), hooks)
    assert summaries == [4, 8, 12, 16, 20]
    assert (values(client), client.transactions()) == (numbered(20), [])
