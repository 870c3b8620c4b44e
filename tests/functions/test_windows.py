"""Tests of txlog.functions.windows: a window is produced only when it is full, and is rebuilt from
the unacknowledged messages.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import txlog
from txlog import functions
from txlog.engine.session.reading.message import Message
from txlog.errors import CommandFailed, InvalidArgument, LimitExceeded
from txlog.functions import Context, FunctionOptions, Hooks, Summary, tumbling

pytestmark = pytest.mark.usefixtures("quick_disk")


@pytest.fixture
def client(tmp_path: Path) -> Iterator[txlog.Client]:
    """Return a store with topics in (two partitions), out and bad, and subscription s on in."""
    txlog.init(str(tmp_path / "store"), coordinators=2)
    with txlog.open(str(tmp_path / "store")) as opened:
        opened.create_topic("in", 2)
        opened.create_topic("out")
        opened.create_topic("bad")
        opened.create_subscription("in", "s")
        yield opened


def send(client: txlog.Client, times: list[int], partition: int = 0) -> None:
    """Send messages with these event times, whose payloads are the times."""
    client.producer("in").send_batch(
        pa.table(
            {
                "value": pa.array([str(at).encode() for at in times], pa.binary()),
                "event_time": pa.array(times, pa.timestamp("ms", "UTC")),
                "partition": pa.repeat(pa.scalar(partition, pa.int32()), len(times)),
            }
        )
    )


def summed(messages: list[Message], context: Context) -> dict[str, object]:
    """The window and its content."""
    window = context.window
    assert window is not None
    assert window.messages == len(messages)
    return {
        "start": window.start,
        "end": window.end,
        "values": [m.value.decode() for m in messages if m.value is not None],
    }


def run(client: txlog.Client, function: Any, hooks: Hooks | None = None, **options: Any) -> Summary:
    """Run a function from in to out."""
    return functions.run(client, function, "in", "out", "s", FunctionOptions(**options), hooks)


def results(client: txlog.Client) -> list[tuple[int | None, list[str]]]:
    """The starts of windows and their payloads, in the order of their production."""
    out = []
    for message in client.reader("out"):
        assert message.value is not None
        parsed = __import__("json").loads(message.value)
        assert parsed["end"] is None or parsed["end"] - parsed["start"] == 100
        out.append((parsed["start"], parsed["values"]))
    return out


def backlog(client: txlog.Client) -> int:
    """The messages that subscription s has not acknowledged."""
    [row] = client.subscriptions("in")
    return int(row["backlog"])


def test_windows_by_count_hold_the_remaining_messages(client: txlog.Client) -> None:
    """Messages that do not fill a window stay unacknowledged, and a later run begins with them."""
    send(client, list(range(10)))
    done = run(client, tumbling(count=4)(summed), txn_size=3)
    assert (done.consumed, done.produced, backlog(client)) == (8, 2, 2)
    send(client, [10, 11])
    assert run(client, tumbling(count=4)(summed)).consumed == 4
    assert results(client) == [
        (None, ["0", "1", "2", "3"]),
        (None, ["4", "5", "6", "7"]),
        (None, ["8", "9", "10", "11"]),
    ]


def test_a_window_of_time_closes_when_a_message_is_behind_its_end(client: txlog.Client) -> None:
    send(client, [5, 99, 100, 50, 199])
    done = run(client, tumbling(duration_ms=100)(summed))
    assert (results(client), done.consumed) == ([(0, ["5", "99", "50"])], 3)
    send(client, [200])
    run(client, tumbling(duration_ms=100)(summed))
    assert results(client)[1:] == [(100, ["100", "199"])]
    assert backlog(client) == 1


def test_allowed_lateness_keeps_a_window_open(client: txlog.Client) -> None:
    send(client, [5, 149])
    function = tumbling(duration_ms=100, lateness_ms=50)(summed)
    assert run(client, function).transactions == 0
    send(client, [20, 150])
    run(client, function)
    assert results(client) == [(0, ["5", "20"])]


def test_late_message_makes_a_new_window(client: txlog.Client) -> None:
    """No message is lost, and the window that was produced is not produced again."""
    send(client, [5, 120])
    hooks = Hooks(committed=lambda done: send(client, [7]) if done.transactions == 1 else None)
    run(client, tumbling(duration_ms=100)(summed), hooks)
    assert results(client) == [(0, ["5"]), (0, ["7"])]
    assert backlog(client) == 1


def test_times_before_1970_and_no_time_at_all(client: txlog.Client) -> None:
    """Guards against a window that rounds towards zero, and against a window that ignores the
    publish time.
    """
    send(client, [-100, -1, -101, -250, 0, 100])
    run(client, tumbling(duration_ms=100)(summed))
    assert results(client) == [
        (-300, ["-250"]),
        (-200, ["-101"]),
        (-100, ["-100", "-1"]),
        (0, ["0"]),
    ]
    client.producer("in").send(b"now")
    run(client, tumbling(duration_ms=100)(summed))
    assert results(client)[4:] == [(100, ["100"])]


def test_a_partition_read_ahead_closes_nothing_while_more_is_waiting(client: txlog.Client) -> None:
    """Guards against windows that are split because one partition is read before the other."""
    send(client, [1, 101, 201, 301], 0)
    send(client, [2, 102, 202, 302], 1)
    run(client, tumbling(duration_ms=100)(summed), txn_size=2)
    assert [(start, sorted(values)) for start, values in results(client)] == [
        (0, ["1", "2"]),
        (100, ["101", "102"]),
        (200, ["201", "202"]),
    ]


def test_windows_of_one_partition_do_not_wait_for_the_others(client: txlog.Client) -> None:
    """They close as its messages come, not only when no message waits."""
    send(client, [0, 150, 300, 450, 600, 750])
    options = FunctionOptions(txn_size=2)
    function = tumbling(duration_ms=100)(summed)
    done = functions.run(client, function, "in/0", "out", "s", options)
    assert done.transactions == 3
    assert [json.loads(m.value or b"")["values"] for m in client.reader("out")] == [
        ["0"], ["150"], ["300"], ["450"], ["600"],
    ]  # fmt: skip


def test_complete_window_is_produced_when_no_message_waits(client: txlog.Client) -> None:
    """Guards against a last full batch that is held for ever because no message follows."""
    send(client, [1, 101])
    assert run(client, tumbling(duration_ms=100)(summed), txn_size=2).consumed == 1
    assert results(client) == [(0, ["1"])]


def test_a_window_may_be_a_table(client: txlog.Client) -> None:
    send(client, [1, 2, 3])

    def function(rows: pa.Table, context: Context) -> pa.Table:
        assert context.window is not None
        return rows.slice(0, context.window.messages - 1)

    done = run(client, tumbling(count=3)(function), batch=True)
    assert (done.consumed, done.produced) == (3, 2)


def test_a_window_that_fails_is_given_up_as_a_whole(client: txlog.Client) -> None:
    """Its messages go to the dead-letter topic, and the other windows are produced."""
    send(client, list(range(9)))
    attempts: list[int] = []

    def fail(messages: list[Message], context: Context) -> dict[str, object]:
        if messages[0].value == b"3":
            context.publish("out", b"never")
            attempts.append(context.attempt)
            raise ValueError("the second")
        return summed(messages, context)

    with pytest.raises(CommandFailed, match="the second"):
        run(client, tumbling(count=3)(fail))
    assert results(client) == []
    done = run(
        client, tumbling(count=3)(fail), retries=1, on_error="dead-letter", dead_letter_topic="bad"
    )
    assert attempts == [1, 1, 2]
    assert (done.dead_lettered, done.transactions) == (3, 1)
    assert [m.value for m in client.reader("bad")] == [b"3", b"4", b"5"]
    assert results(client) == [(None, ["0", "1", "2"]), (None, ["6", "7", "8"])]


def test_a_window_that_can_never_be_full_is_an_error(tmp_path: Path) -> None:
    """Guards against a function that waits for ever because it holds too many messages."""
    path = str(tmp_path / "small")
    txlog.init(path, unacked_max=10)
    with txlog.open(path) as client:
        for topic in ("in", "out"):
            client.create_topic(topic)
        client.create_subscription("in", "s")
        send(client, list(range(30)))
        with pytest.raises(LimitExceeded, match="holds back 10 messages"):
            run(client, tumbling(count=11)(summed), follow=True)
        assert run(client, tumbling(count=10)(summed)).consumed == 30


@pytest.mark.parametrize(
    "given",
    [{}, {"count": 1, "duration_ms": 1}, {"count": 0}, {"duration_ms": 0},
     {"count": 1, "lateness_ms": 1}, {"duration_ms": 1, "lateness_ms": -1}],
)  # fmt: skip
def test_senseless_windows_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        tumbling(**given)


def test_a_function_of_windows_can_be_called_and_has_a_name() -> None:
    @tumbling(count=2)
    def joined(messages: list[bytes]) -> bytes:
        return b"".join(messages)

    assert (joined([b"a", b"b"]), joined.__name__) == (b"ab", "joined")
    with pytest.raises(InvalidArgument):
        tumbling(count=2)(lambda: None)


@pytest.mark.deep
@settings(max_examples=40)
@given(
    times=st.lists(st.tuples(st.integers(0, 999), st.integers(0, 1)), max_size=40),
    size=st.integers(1, 12),
    by_count=st.booleans(),
    deaths=st.lists(st.integers(1, 3), max_size=3),
    lateness=st.sampled_from([0, 30, 2000]),
)
def test_every_message_is_in_one_window_also_over_restarts(
    times: list[tuple[int, int]],
    size: int,
    by_count: bool,
    deaths: list[int],
    lateness: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """The acknowledged messages equal the produced ones, each once and in its window."""
    path = str(tmp_path_factory.mktemp("w") / "store")
    txlog.init(path, coordinators=1)
    with txlog.open(path, durability="os") as client:
        client.create_topic("in", 2)
        client.create_topic("out")
        client.create_subscription("in", "s")
        for at, partition in times:
            send(client, [at], partition)
        function = tumbling(count=3)(summed)
        if not by_count:
            function = tumbling(duration_ms=100, lateness_ms=lateness)(summed)
        for death in [*deaths, 0]:

            def committed(done: Summary, death: int = death) -> None:
                if done.transactions == death:
                    raise KeyboardInterrupt

            try:
                run(client, function, Hooks(committed=committed), txn_size=size, name="w")
            except KeyboardInterrupt:
                continue
        found_results = results(client)
        seen = Counter(value for _, values in found_results for value in values)
        assert not seen - Counter(str(at) for at, _ in times)
        assert sum(seen.values()) == len(times) - backlog(client)
        if by_count:
            assert {len(values) for _, values in found_results} <= {3}
            assert backlog(client) == len(times) % 3
        else:
            for start, values in found_results:
                assert {int(value) // 100 * 100 for value in values} <= {start}
