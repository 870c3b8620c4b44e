"""Failures of a function: retries, dead letters, halves of a batch, interrupts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import txlog
from tests.functions.kit import MS, backlog, fill, messages, poisoned, run, values
from txlog import functions
from txlog.clock import ManualClock
from txlog.engine.session.reading.message import Message
from txlog.errors import (
    CommandFailed,
)
from txlog.functions import Context, FunctionOptions, Hooks

pytestmark = pytest.mark.usefixtures("quick_disk")


def test_a_failure_aborts_the_batch_and_the_input_comes_again(client: txlog.Client) -> None:
    """spec/cli 8.3: no output is visible; the error names the line of the function."""
    fill(client, 4)

    def fail(message: Message) -> bytes | None:
        if message.value == b"2":
            raise ValueError("no two")
        return message.value

    with pytest.raises(CommandFailed, match="fail@in/s failed: ValueError: no two") as caught:
        run(client, fail)
    assert caught.value.exit == 1
    assert caught.value.hint is not None and "test_failures.py" in caught.value.hint
    assert isinstance(caught.value.__cause__, ValueError)
    assert (values(client), backlog(client), client.transactions()) == ([], 4, [])
    assert run(client, lambda message: message.value).consumed == 4
    assert values(client) == [b"0", b"1", b"2", b"3"]


def test_a_failure_names_the_message_on_one_bounded_line(client: txlog.Client) -> None:
    """Its value and key are cut and escaped, in the error and in the log."""
    value = b"\x1b[2J\xff" + b"x" * 1000
    receipt = client.producer("in").send(value, key="k\n1")
    facts: list[dict[str, Any]] = []
    hooks = Hooks(tell=lambda event, told: facts.append({"event": event, **told}))
    with pytest.raises(CommandFailed) as caught:
        functions.run(client, lambda m: 1 / 0, "in", "out", "s", FunctionOptions(retries=1), hooks)
    error = caught.value
    assert error.message.isprintable() and len(error.message) < 300
    assert f"(message {receipt.message_id} of in, key k\\n1, value \\x1b[2J" in error.message
    assert error.message.endswith("xxx…)")
    assert error.fields["message_id"] == str(receipt.message_id)
    [retry] = [row for row in facts if row["event"] == "retry"]
    assert (retry["message_id"], retry["topic"]) == (str(receipt.message_id), "in")


def test_a_batch_that_fails_is_named_by_its_first_message(client: txlog.Client) -> None:
    fill(client, 3)
    with pytest.raises(CommandFailed, match=r"no batch \(3 messages from \S+ of in\)$"):
        run(client, poisoned_batch, batch=True)


def poisoned_batch(rows: pa.Table) -> pa.Table:
    raise ValueError("no batch")


def test_batches_before_a_failure_stay(client: txlog.Client) -> None:
    fill(client, 4)
    with pytest.raises(CommandFailed):
        run(client, lambda m: m.value if m.value != b"3" else 1 / 0, txn_size=2)
    assert (values(client), backlog(client)) == ([b"0", b"1"], 2)


def test_retries_count_attempts_and_take_back_what_was_published(client: txlog.Client) -> None:
    fill(client, 3)
    attempts: list[int] = []

    def third_time(message: Message, context: Context) -> bytes | None:
        context.publish("other", message.value)
        if message.value != b"0":
            attempts.append(context.attempt)
        if message.value == b"1" and context.attempt < 3:
            raise RuntimeError("again")
        return message.value

    done = run(client, third_time, retries=2)
    assert (attempts, done.transactions, done.aborted) == ([1, 2, 3, 1], 1, 0)
    assert values(client) == values(client, "other") == [b"0", b"1", b"2"]


def test_a_poison_message_goes_to_the_dead_letter_topic(client: txlog.Client) -> None:
    """It moves in the transaction that acknowledges it, with the properties that Pulsar's client
    writes.
    """
    client.producer("in").send(b"bad", key=b"k", properties={"a": "b"}, event_time=MS)
    fill(client, 1)
    rows: list[tuple[str, Any]] = []

    def fail(message: Message) -> bytes | None:
        if message.value == b"bad":
            raise ValueError("poison")
        return message.value

    options = FunctionOptions(on_error="dead-letter", dead_letter_topic="bad", retries=1)
    hooks = Hooks(tell=lambda event, facts: rows.append((event, facts)))
    done = functions.run(client, fail, "in", "out", "s", options, hooks)
    assert (done.consumed, done.produced, done.dead_lettered, done.aborted) == (2, 1, 1, 0)
    [letter], [good] = messages(client, "bad"), messages(client)
    assert (letter.value, letter.key, letter.event_time) == (b"bad", b"k", MS)
    assert letter.properties == {
        "a": "b",
        "REAL_TOPIC": "in",
        "REAL_SUBSCRIPTION": "s",
        "RECONSUMETIMES": "2",
        "ORIGIN_MESSAGE_ID": letter.properties["ORIGIN_MESSAGE_ID"],
        "EXCEPTION": "ValueError: poison",
    }
    assert letter.txn == good.txn
    assert [event for event, _ in rows] == ["started", "retry", "dead-lettered"]
    assert backlog(client) == 0
    listed = [(row["topic"], row["origin_list"], row["messages"]) for row in client.dead_letters()]
    assert listed == [("bad", ["in/s"], 1)], "also before the first retry, and not the others"


def test_skip_acknowledges_failed_messages(client: txlog.Client) -> None:
    fill(client, 3)
    done = run(client, lambda m: m.value if m.value != b"1" else 1 / 0, on_error="skip")
    assert (done.skipped, values(client), backlog(client)) == (1, [b"0", b"2"], 0)


def test_a_batch_is_halved_until_the_poison_is_alone(client: txlog.Client) -> None:
    """The other messages of the batch are processed, each once and in order."""
    fill(client, 50)
    done = run(
        client,
        poisoned(b"7", b"8", b"33"),
        batch=True,
        on_error="dead-letter",
        dead_letter_topic="bad",
        retries=1,
        txn_size=20,
    )
    assert values(client, "bad") == [b"7", b"8", b"33"]
    good = [str(n).encode() for n in range(50) if n not in (7, 8, 33)]
    assert values(client) == good
    assert (done.consumed, done.produced, done.dead_lettered, backlog(client)) == (50, 47, 3, 0)
    assert done.aborted > 3


def test_stop_with_retries_lets_the_neighbours_before_the_poison_through(
    client: txlog.Client,
) -> None:
    fill(client, 8)
    with pytest.raises(CommandFailed, match="somewhere"):
        run(client, poisoned(b"5"), batch=True, retries=1)
    assert values(client) == [b"0", b"1", b"2", b"3", b"4"]
    assert backlog(client) == 3


def test_a_batch_of_one_is_tried_as_often_as_allowed(client: txlog.Client) -> None:
    fill(client, 1)
    attempts: list[int] = []

    def function(rows: pa.Table, context: Context) -> None:
        attempts.append(context.attempt)
        raise ValueError("never")

    done = run(client, function, batch=True, retries=2, on_error="skip")
    assert (attempts, done.aborted, done.transactions, done.skipped) == ([1, 2, 3], 3, 1, 1)


def test_held_messages_are_dead_lettered_with_their_batch(client: txlog.Client) -> None:
    """Guards against held messages that are dead-lettered and processed once more."""
    fill(client, 3)
    events: list[str] = []

    def function(rows: pa.Table, context: Context) -> pa.Table | None:
        if rows["value"].to_pylist() == [b"0", b"1"]:
            raise ValueError("together")
        if rows["value"].to_pylist() == [b"0"]:
            context.hold_back(pa.array([True]))
            return None
        return rows

    options = FunctionOptions(
        batch=True, txn_size=1, on_error="dead-letter", dead_letter_topic="bad"
    )
    hooks = Hooks(tell=lambda event, facts: events.append(event))
    done = functions.run(client, function, "in", "out", "s", options, hooks)
    assert (values(client, "bad"), values(client)) == ([b"0", b"1"], [b"2"])
    assert (done.dead_lettered, events, backlog(client)) == (2, ["started", "dead-lettered"], 0)


def test_sys_exit_and_deep_recursion_are_failures(client: txlog.Client) -> None:
    """Guards against a function that ends the program."""
    fill(client, 1)

    def deep(message: object) -> object:
        return deep(message)

    with pytest.raises(CommandFailed, match="SystemExit"):
        run(client, lambda m: exit(3))
    with pytest.raises(CommandFailed, match="RecursionError"):
        run(client, deep)


def test_an_interrupt_aborts_and_goes_through(client: txlog.Client) -> None:
    fill(client, 3)

    def interrupted(message: Message) -> bytes | None:
        if message.value == b"1":
            raise KeyboardInterrupt
        return message.value

    with pytest.raises(KeyboardInterrupt):
        run(client, interrupted, on_error="skip")
    assert (values(client), backlog(client), client.transactions()) == ([], 3, [])


def test_a_batch_that_takes_too_long_is_tried_in_halves(tmp_path: Path) -> None:
    """--txn-timeout: the store has aborted the batch; smaller ones end in time."""
    path, clock = str(tmp_path / "store"), ManualClock(MS, "boot", 1000)
    txlog.init(path, clock=clock)
    with txlog.open(path, clock=clock) as client:
        client.create_topic("in")
        client.create_topic("out")
        client.create_subscription("in", "s")
        fill(client, 8)

        def slow(rows: pa.Table) -> pa.Table:
            clock.advance(rows.num_rows * 1000)
            return rows

        with pytest.raises(CommandFailed, match="timed out"):
            run(client, slow, batch=True, txn_timeout_ms=3000)
        done = run(client, slow, batch=True, txn_timeout_ms=3000, on_error="skip")
        assert (done.skipped, done.consumed, backlog(client)) == (0, 8, 0)
        assert values(client) == [str(n).encode() for n in range(8)]
