"""txlog.testing: crashes, power cuts, a clock to move, and the proof that a pipeline is exact."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from tests.source_tree import ROOT
from txlog import Client, Consumer, Message
from txlog.errors import TxlogError
from txlog.testing import Crashed, TemporaryStore, assert_exactly_once
from txlog.testing.platter import Platter, Write

INPUT = [b"%d" % number for number in range(6)]


def values(client: Client, topic: str = "out") -> list[bytes | None]:
    return [message.value for message in client.reader(topic)]


def prepare(client: Client) -> None:
    """A topic with input, a subscription of it, and a topic for output."""
    client.create_topic("in")
    client.create_topic("out")
    client.create_subscription("in", "work")
    for value in INPUT:
        client.producer("in").send(value)


def billed(message: Message) -> bytes:
    """The output for an input."""
    return b"out of " + (message.value or b"")


def received(consumer: Consumer) -> bytes | None:
    """The value of the next message, without waiting; None if there is no message."""
    message = consumer.receive(timeout_ms=0)
    return None if message is None else message.value


def exact(client: Client) -> None:
    """Two messages a transaction: their acknowledgement and the output commit together."""
    producer = client.producer("out")
    with client.consumer("in", "work") as consumer:
        while True:
            with client.transaction() as txn:
                for _ in range(2):
                    message = consumer.receive(timeout_ms=0)
                    if message is None:
                        return
                    producer.send(billed(message), txn=txn)
                    consumer.acknowledge(message, txn=txn)


def acknowledges_first(client: Client) -> None:
    """A mistake: a message is lost if the program dies between the two calls."""
    with client.consumer("in", "work") as consumer:
        while message := consumer.receive(timeout_ms=0):
            consumer.acknowledge(message)
            client.producer("out").send(billed(message))


def acknowledges_last(client: Client) -> None:
    """A mistake: a message is doubled if the program dies between the two calls."""
    with client.consumer("in", "work") as consumer:
        while message := consumer.receive(timeout_ms=0):
            client.producer("out").send(billed(message))
            consumer.acknowledge(message)


def outside(client: Client) -> None:
    """A mistake: the transaction has the acknowledgement, and not the message."""
    with client.consumer("in", "work") as consumer:
        while message := consumer.receive(timeout_ms=0):
            with client.transaction() as txn:
                consumer.acknowledge(message, txn=txn)
                client.producer("out").send(billed(message))


def test_a_pipeline_in_transactions_is_exactly_once() -> None:
    """It dies before every call of the disk, also with a power cut, and nothing differs."""
    died = assert_exactly_once(prepare, exact, ["out"], places=60, seed=7)
    assert died > 20


@pytest.mark.parametrize(
    ("pipeline", "word"),
    [(acknowledges_first, "lost"), (acknowledges_last, "doubled"), (outside, "doubled")],
)
def test_mistakes_are_named_with_the_line_and_the_message(pipeline: object, word: str) -> None:
    """The assertion names the call, the line of the program, and a message."""
    assert callable(pipeline)
    with pytest.raises(AssertionError) as failure:
        assert_exactly_once(prepare, pipeline, ["out"], places=10_000)
    text = str(failure.value)
    assert f"out {word}" in text and "b'out of " in text
    assert "test_testing.py:" in text and "killed before call " in text


def forgets_to_commit(client: Client) -> None:
    """A mistake: the output is never committed, so it is empty wherever the program dies."""
    txn = client.transaction()
    with client.consumer("in", "work") as consumer:
        while message := consumer.receive(timeout_ms=0):
            client.producer("out").send(billed(message), txn=txn)
            consumer.acknowledge(message, txn=txn)


def test_a_pipeline_without_output_proves_nothing() -> None:
    """Also if there was output before it."""

    def with_old_output(client: Client) -> None:
        prepare(client)
        client.producer("out").send(b"old")

    for first in (prepare, with_old_output):
        with pytest.raises(AssertionError, match="writes no message to out"):
            assert_exactly_once(first, forgets_to_commit, ["out"], places=1)


def test_a_flush_covers_only_what_was_written_before_it() -> None:
    """What another thread writes while a flush runs is lost with the power."""
    platter = Platter()
    first, second = (Write(at, b"x", b"", at) for at in (0, 1))
    platter.note("journal", first)
    covered = platter.unflushed("journal")
    platter.note("journal", second)
    platter.flushed("journal", covered)
    platter.flushed("journal", covered)
    assert platter.unflushed("journal") == [second]


def test_a_crash_frees_locks_and_keeps_what_was_written() -> None:
    """A peer receives the messages of the dead consumer; the dead one's calls raise Crashed."""
    with TemporaryStore() as store:
        dead, peer = store.open(), store.open()
        prepare(dead)
        lost = dead.consumer("in", "work")
        assert received(lost) == INPUT[0]
        store.crash(dead)
        with pytest.raises(Crashed):
            lost.receive(timeout_ms=0)
        with peer.consumer("in", "work") as consumer:
            assert received(consumer) == INPUT[0]


def test_returned_messages_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The logger txlog.redelivery reports that a dead consumer's messages are redelivered."""
    caplog.set_level(logging.INFO, "txlog.redelivery")
    with TemporaryStore() as store:
        dead, peer = store.open(), store.open()
        prepare(dead)
        dead.create_subscription("in", "many", type="shared")
        lost = dead.consumer("in", "many")
        assert lost.receive(timeout_ms=0) is not None
        with peer.consumer("in", "many") as consumer:
            store.crash(dead)
            while consumer.receive(timeout_ms=0):
                pass
    assert any("1 dead" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_a_power_cut_takes_back_what_was_not_flushed(seed: int | None) -> None:
    """A plain send survives, an open transaction is aborted, and the store goes on."""
    with TemporaryStore() as store:
        client = store.open()
        prepare(client)
        client.producer("out").send(b"kept")
        txn = client.transaction()
        client.producer("out").send(b"gone", txn=txn)
        number = txn.id
        store.power_cut(seed)
        with pytest.raises(Crashed):
            client.topics()
        client = store.open()
        with pytest.raises(TxlogError):
            client.commit(number)
        client.producer("out").send(b"new")
        assert values(client) == [b"kept", b"new"]


def test_unflushed_sends_are_lost_without_a_flush() -> None:
    """A control: with durability of the system, a power cut takes what a send has written."""
    with TemporaryStore(durability="os") as store:
        client = store.open()
        client.create_topic("out")
        client.producer("out").send(b"gone")
        assert values(client) == [b"gone"]
        store.crash()
        assert values(store.open()) == [b"gone"]
        store.power_cut()
        with store.open() as after, pytest.raises(TxlogError):
            values(after)


def test_the_clock_moves_when_told() -> None:
    """A delayed message comes once the clock has passed its time."""
    with TemporaryStore() as store:
        client = store.open()
        prepare(client)
        client.create_subscription("out", "late", type="shared")
        client.producer("out").send(b"later", deliver_after=3_600_000)
        with client.consumer("out", "late") as consumer:
            assert consumer.receive(timeout_ms=0) is None
            store.clock.advance(timedelta(hours=1))
            assert received(consumer) == b"later"


def test_a_client_of_an_event_loop_crashes_too() -> None:
    """The await in which it dies ends with Crashed, and nothing of the transaction stays."""
    with TemporaryStore() as store:
        prepare(store.open())

        async def work() -> None:
            async with store.open_async() as client, client.transaction() as txn:
                producer = await client.producer("out")
                await producer.send(b"gone", txn=txn)
                store.crash()

        with pytest.raises(Crashed):
            asyncio.run(work())
        assert values(store.open()) == []


PROGRAM = """
from datetime import timedelta

def test_fixtures(txlog_store, txlog_client, txlog_clock):
    txlog_client.create_topic("t")
    before = txlog_clock.now().wall_ms
    txlog_clock.advance(timedelta(seconds=1))
    txlog_client.producer("t").send(b"x")
    txlog_store.power_cut()
    [message] = txlog_store.open().reader("t")
    assert message.publish_time == before + 1000
"""


def test_fixtures_come_with_the_distribution(tmp_path: Path) -> None:
    """Pytest finds the plugin by its entry point, in a project of a user."""
    (tmp_path / "test_program.py").write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", tmp_path],
        cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert "1 passed" in done.stdout, done.stdout + done.stderr
    assert 'txlog = "txlog.testing.plugin"' in (ROOT / "pyproject.toml").read_text()
