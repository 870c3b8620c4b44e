"""Windows that close on watermarks: which windows come, when, and where all other messages go."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import txlog
from txlog import Message, functions
from txlog.base.choices import SubscriptionType
from txlog.base.ranges import START
from txlog.errors import (
    CommandFailed,
    ConsumerBusy,
    InvalidArgument,
    NotAllowed,
    PartitionUnavailable,
    TopicNotFound,
)
from txlog.functions import Context, FunctionOptions, Hooks, Summary, tumbling
from txlog.functions.window_state import left_open

pytestmark = pytest.mark.usefixtures("quick_disk")
END = (1 << 63) - 1
STATE = "in-s-WINDOWS"


@pytest.fixture
def client(tmp_path: Path) -> Iterator[txlog.Client]:
    """A store with topics in (two partitions), other, out, late and bad; s on the first two."""
    txlog.init(str(tmp_path / "store"), coordinators=2, unacked_max=50)
    with txlog.open(str(tmp_path / "store"), durability="os") as opened:
        made(opened)
        yield opened


def made(client: txlog.Client, type: SubscriptionType = "exclusive") -> None:
    """Create the topics and subscriptions."""
    for topic, partitions in (("in", 2), ("other", 1), ("out", 1), ("late", 1), ("bad", 1)):
        client.create_topic(topic, partitions)
    for topic in ("in", "other"):
        client.create_subscription(topic, "s", type=type)


def send(client: txlog.Client, *times: int, topic: str = "in", partition: int = 0) -> None:
    """Send messages with these event times, whose payloads are the times."""
    client.producer(topic).send_batch(
        pa.table(
            {
                "value": pa.array([str(at).encode() for at in times], pa.binary()),
                "event_time": pa.array(times, pa.timestamp("ms", "UTC")),
                "partition": pa.repeat(pa.scalar(partition, pa.int32()), len(times)),
            }
        )
    )


def say(client: txlog.Client, event_time: int | None, who: str = "A", topic: str = "in") -> None:
    """Assert a watermark of a producer; None: it is idle."""
    builder = client.producer(topic, who).new_watermark()
    (builder.mark_idle() if event_time is None else builder.event_time(event_time)).send()


def summed(messages: list[Message], context: Context) -> dict[str, object]:
    """The window, the watermark and the values in it."""
    window = context.window
    assert window is not None
    assert window.messages == len(messages)
    return {
        "start": window.start,
        "end": window.end,
        "late": window.is_late,
        "watermark": context.watermark,
        "values": [(m.value or b"").decode() for m in messages],
    }


WINDOWS = tumbling(duration_ms=100, watermarks=True, late_topic="late")(summed)
AGAIN = tumbling(duration_ms=100, watermarks=True)(summed)


def run(
    client: txlog.Client,
    function: Any = WINDOWS,
    hooks: Hooks | None = None,
    inputs: list[str] | None = None,
    **options: Any,
) -> Summary:
    """Run a function from in to out."""
    function_options = FunctionOptions(take_over_ms=0, **options)
    return functions.run(client, function, inputs or ["in"], "out", "s", function_options, hooks)


def results(client: txlog.Client) -> list[dict[str, Any]]:
    """The outputs, in order."""
    return [json.loads(message.value or b"") for message in client.reader("out")]


def windows(client: txlog.Client) -> list[tuple[int, list[str]]]:
    """The starts of windows and their payloads, in the order they were produced."""
    return [(result["start"], result["values"]) for result in results(client)]


def late(client: txlog.Client) -> list[str]:
    """The payloads in the late topic."""
    return [(message.value or b"").decode() for message in client.reader("late")]


def backlog(client: txlog.Client, topic: str = "in") -> int:
    """The backlog of subscription s."""
    [row] = client.subscriptions(topic)
    return int(row["backlog"])


def test_a_window_closes_when_the_watermark_reaches_its_end(client: txlog.Client) -> None:
    """Guards against windows closed by the newest message, and a comparison that is off by one."""
    say(client, 1)
    send(client, 5, 199, 99, 100, 3000)
    done = run(client)
    assert (results(client), done.consumed, done.produced) == ([], 5, 0)
    say(client, 99)
    assert run(client).produced == 0
    say(client, 100)
    assert run(client).consumed == 0
    assert windows(client) == [(0, ["5", "99"])]
    assert results(client)[0]["watermark"] == 100
    say(client, END)
    assert run(client).produced == 2
    assert windows(client)[1:] == [(100, ["199", "100"]), (3000, ["3000"])]
    assert (backlog(client), run(client).transactions) == (0, 0)
    assert backlog(client, STATE) == 1  # the watermark up to which windows are closed


def test_allowed_lateness_keeps_a_window_open(client: txlog.Client) -> None:
    function = tumbling(duration_ms=100, lateness_ms=50, watermarks=True, late_topic="late")(summed)
    say(client, 149)
    run(client, function)
    send(client, 5)
    assert run(client, function).late == 0
    say(client, 150)
    run(client, function)
    send(client, 6)
    assert run(client, function).late == 1
    assert (windows(client), late(client)) == ([(0, ["5"])], ["6"])


def test_a_late_message_goes_to_its_topic_as_it_was(client: txlog.Client) -> None:
    """With value, key, properties and event time; counted, and acknowledged in the transaction."""
    say(client, 200)
    run(client)
    client.producer("in").send(b"x", key=b"k", properties={"a": "b", "c": "d"}, event_time=7)
    send(client, 150, 250)
    done = run(client)
    assert (done.late, done.consumed, done.produced, backlog(client)) == (2, 3, 0, 0)
    first, second = client.reader("late")
    assert (first.value, first.key, first.properties, first.event_time) == (
        b"x",
        b"k",
        {"a": "b", "c": "d"},
        7,
    )
    assert (second.value, second.event_time) == (b"150", 150)


def test_without_a_late_topic_the_function_is_called_again(client: txlog.Client) -> None:
    """It gets only the late messages, and the window is marked as late."""
    say(client, 1)
    send(client, 5, 105)
    say(client, 200)
    run(client, AGAIN)
    send(client, 130, 6, 7, 110, 210)
    done = run(client, AGAIN)
    assert (done.late, done.produced) == (4, 2)
    assert [(row["start"], row["values"], row["late"]) for row in results(client)] == [
        (0, ["5"], False),
        (100, ["105"], False),
        (0, ["6", "7"], True),
        (100, ["130", "110"], True),
    ]


def test_open_windows_survive_a_restart(client: txlog.Client) -> None:
    """A message is the same from memory and from the state topic; a hook reports the open
    windows.
    """
    seen: list[list[Message]] = []

    def look(messages: list[Message]) -> None:
        seen.append(messages)

    function = tumbling(duration_ms=100, watermarks=True)(look)
    rows: list[tuple[str, Any]] = []
    hooks = Hooks(tell=lambda *arguments: rows.append(arguments))
    producer = client.producer("in")
    for round in range(2):
        say(client, 100 * round + 1)
        base = 100 * round
        producer.send(b"a", event_time=base + 5, key=b"k", properties={"a": "b", "c": ""})
        with client.transaction() as txn:
            producer.send(None, event_time=base + 6, txn=txn)
            producer.send(b"", event_time=base + 7, key=b"", txn=txn)
        if round:
            assert run(client, function, hooks).consumed == 3
            assert rows[1:] == [
                ("open-windows", {"windows": 1, "messages": 3, "watermark": 101, "topic": STATE})
            ]
        say(client, 100 * round + 100)
        run(client, function)
    assert [len(messages) for messages in seen] == [3, 3]
    wanted = {m.event_time: m for m in client.reader("in")}
    for messages in seen:
        for message in messages:
            there = wanted[message.event_time]
            for name in (
                "topic",
                "partition",
                "message_id",
                "value",
                "key",
                "properties",
                "publish_time",
            ):
                assert getattr(message, name) == getattr(there, name), name
            assert (message.producer, message.txn, message.visible_time) == (None, None, None)


def test_a_window_that_was_given_never_opens_again(client: txlog.Client) -> None:
    """Even when the next watermark is lower, as after a seek.

    Guards against a value that is not stored.
    """
    say(client, 1)
    send(client, 5, 105)
    say(client, 100)
    run(client)
    client.subscription("in", "s").seek(START)
    say(client, None)
    say(client, 2, "B")
    done = run(client)
    assert (done.consumed, done.late) == (2, 1)
    assert (windows(client), late(client)) == ([(0, ["5"])], ["5"])
    say(client, END, "B")
    run(client)
    assert windows(client)[1:] == [(100, ["105", "105"])]


def test_acknowledged_messages_of_the_state_are_trimmed(client: txlog.Client) -> None:
    """The state needs space only from its oldest open message on."""
    say(client, 1)
    for round in range(4):
        send(client, *(100 * round + at for at in range(50)), 100 * round + 150)
        say(client, 100 * round + 100)
        run(client)
        client.checkpoint(roll_all=True)
    client.checkpoint(roll_all=True)
    assert len([*client.reader(STATE)]) < 2 * 52
    say(client, END)
    run(client)
    assert windows(client)[-1] == (400, ["450"])
    assert sorted(value for _, values in windows(client) for value in values) == sorted(
        (message.value or b"").decode() for message in client.reader("in")
    )


def test_messages_without_event_time_count_by_publish_time(client: txlog.Client) -> None:
    client.producer("in").send(b"now")
    [message] = client.reader("in")
    say(client, message.publish_time // 100 * 100 + 100)
    run(client)
    assert windows(client) == [(message.publish_time // 100 * 100, ["now"])]


def test_a_window_may_be_a_table_of_received_rows(client: txlog.Client) -> None:
    def function(rows: pa.Table, context: Context) -> pa.Table:
        assert rows.schema.names == client.reader("in").receive_batch().schema.names
        assert context.window is not None
        assert context.window.messages == rows.num_rows
        return rows

    say(client, 1)
    send(client, 5, 6)
    say(client, 100)
    expected_function = tumbling(duration_ms=100, watermarks=True)(function)
    assert run(client, expected_function, batch=True).produced == 2
    assert [message.value for message in client.reader("out")] == [b"5", b"6"]


def test_several_topics_wait_for_the_least_and_not_for_idle_ones(client: txlog.Client) -> None:
    """spec/watermarks 8: an unknown topic holds the value, an idle one does not; if all are idle,
    it stays.
    """
    both = ["in", "other"]
    say(client, 300)
    send(client, 5)
    send(client, 6, 150, topic="other")
    assert run(client, inputs=both).produced == 0
    say(client, 120, topic="other")
    run(client, inputs=both)
    assert windows(client) == [(0, ["5", "6"])] or windows(client) == [(0, ["6", "5"])]
    say(client, None, topic="other")
    run(client, inputs=both)
    assert windows(client)[1:] == [(100, ["150"])]
    say(client, None)
    send(client, 5000)
    assert run(client, inputs=both).produced == 0
    say(client, 5100)
    say(client, 5099, topic="other")
    assert run(client, inputs=both).produced == 0
    say(client, 5100, topic="other")
    assert run(client, inputs=both).produced == 1


def test_the_state_may_be_larger_than_unacked_max(client: txlog.Client) -> None:
    """Guards against receiving the state (unacked_max is 50), also when it is read again."""
    say(client, 1)
    for part in range(10):
        send(client, *range(part * 20, part * 20 + 20), partition=part % 2)
    assert run(client).consumed == 200
    assert run(client).consumed == 0
    say(client, 200)
    assert run(client).produced == 2
    assert [sorted(map(int, values)) for _, values in windows(client)] == [
        [*range(100)],
        [*range(100, 200)],
    ]


@pytest.mark.parametrize("on_error", ["stop", "skip", "dead-letter"])
def test_a_window_that_fails_is_given_up_as_a_whole(client: txlog.Client, on_error: str) -> None:
    """Its messages stay together; after a stop, the next run still has the window."""
    attempts: list[int] = []

    def fail(messages: list[Message], context: Context) -> dict[str, object]:
        if context.window is not None and context.window.start == 100:
            context.publish("out", b"{}")
            attempts.append(context.attempt)
            raise ValueError("the second")
        return summed(messages, context)

    function = tumbling(duration_ms=100, watermarks=True)(fail)
    say(client, 1)
    send(client, 5, 105, 106, 205)
    say(client, 300)
    fields: dict[str, Any] = {"retries": 1, "on_error": on_error}
    if on_error == "stop":
        with pytest.raises(CommandFailed, match="the second"):
            run(client, function, **fields)
        assert (results(client), attempts) == ([], [1, 2])
        assert run(client, WINDOWS).produced == 3
        return
    bad: dict[str, Any] = {"dead_letter_topic": "bad"} if on_error == "dead-letter" else {}
    done = run(client, function, **fields, **bad)
    assert attempts == [1, 2]
    assert windows(client) == [(0, ["5"]), (200, ["205"])]
    assert (done.skipped, done.dead_lettered) == ((2, 0) if on_error == "skip" else (0, 2))
    letters = [*client.reader("bad")]
    assert [m.value for m in letters] == ([b"105", b"106"] if bad else [])
    for letter in letters:
        assert letter.properties["REAL_TOPIC"] == "in"
        there = next(m for m in client.reader("in") if m.value == letter.value)
        assert letter.properties["ORIGIN_MESSAGE_ID"] == str(there.message_id)
    say(client, END)
    assert (run(client).transactions, backlog(client, STATE)) == (0, 1)  # the stored watermark


def test_an_output_that_the_store_refuses_blames_its_window_alone(client: txlog.Client) -> None:
    """The windows of a failed transaction are tried again one by one."""

    def refused(messages: list[Message], context: Context) -> Any:
        assert context.window is not None
        if context.window.start == 100:
            instant = pa.array([1], pa.timestamp("ms", "UTC"))
            return pa.table(
                {"value": [b"x"], "deliver_at": instant, "deliver_after": pa.array([1], pa.int64())}
            )
        return summed(messages, context)

    say(client, 1)
    send(client, 5, 105, 205)
    say(client, 300)
    function = tumbling(duration_ms=100, watermarks=True)(refused)
    done = run(client, function, on_error="skip")
    assert windows(client) == [(0, ["5"]), (200, ["205"])]
    assert done.skipped == 1


def test_a_message_that_the_state_cannot_hold_fails_as_in_a_function(tmp_path: Path) -> None:
    """The state also stores the origin of a message; an oversized dead letter is reported."""
    txlog.init(str(tmp_path / "store"), coordinators=1, max_message_bytes=1000)
    with txlog.open(str(tmp_path / "store"), durability="os") as client:
        made(client)
        client.producer("in").send(b"x" * 1000, event_time=5)
        send(client, 6)
        say(client, 100)
        rows: list[dict[str, Any]] = [{}, {"on_error": "dead-letter", "dead_letter_topic": "bad"}]
        for options in rows:
            with pytest.raises(CommandFailed, match="max_message_bytes is 1000"):
                run(client, **options)
        assert run(client, on_error="skip").skipped == 1
        assert windows(client) == [(0, ["6"])]


def test_each_instance_has_a_state_of_its_own(tmp_path: Path) -> None:
    """On a shared subscription; a failover subscription is refused."""
    txlog.init(str(tmp_path / "store"), coordinators=1)
    with txlog.open(str(tmp_path / "store"), durability="os") as client:
        made(client, "shared")
        say(client, 1)
        send(client, 5, 6, 7)
        assert run(client, instance=1, limit=2).consumed == 2
        assert run(client, instance=0).consumed == 1
        say(client, 100)
        assert run(client, instance=0).produced == 1
        assert run(client, instance=1).produced == 1
        assert windows(client) == [(0, ["7"]), (0, ["5", "6"])]
        send(client, 150)
        assert run(client, instance=1).consumed == 1
        for instances, expected_states in ((1, {f"{STATE}-1": 1}), (2, {})):
            assert left_open(client, ["other", "in"], "s", instances) == expected_states
        assert left_open(client, ["in", "a"], "s", 2) == {}  # a run of both uses it
        send(client, 5, topic="other")
        assert run(client, inputs=["other"], instance=1).consumed == 1
        assert left_open(client, ["other", "in"], "s", 2) == {"other-s-WINDOWS-1": 1}
        client.create_subscription("in", "f", type="failover")
        with pytest.raises(NotAllowed, match="shared"):
            functions.run(client, WINDOWS, "in", "out", "f", FunctionOptions(instance=1))


def test_one_state_has_one_run(client: txlog.Client) -> None:
    """A run with another name on the same subscription is refused at once."""
    stopped = False

    def stop() -> bool:
        nonlocal stopped
        if not stopped:
            stopped = True
            with pytest.raises(ConsumerBusy):
                run(client, name="other")
        return True

    say(client, 1)
    run(client, hooks=Hooks(stop=stop))
    assert stopped


def test_messages_acknowledged_elsewhere_are_not_in_a_window(client: txlog.Client) -> None:
    """A window has the messages of the state at its commit, not those in memory."""
    say(client, 1)
    send(client, 5, 6, 150)
    meddled = False

    def meddle(done: Summary, produced: int) -> None:
        nonlocal meddled
        if produced and not meddled:
            meddled = True
            first = next(iter(client.reader(STATE)))
            assert first.message_id is not None
            txn = client.transaction(write_through=True)
            client.acknowledge(STATE, "s", [first.message_id], txn=txn)
            txn.commit()

    run(client)
    say(client, 100)
    done = run(client, hooks=Hooks(committing=meddle))
    assert meddled
    assert (windows(client), done.produced) == ([(0, ["6"])], 1)


def test_foreign_messages_in_the_state_are_refused(client: txlog.Client) -> None:
    say(client, 1)
    run(client)
    client.producer(STATE).send(b"x", properties={"a": "b"})
    with pytest.raises(NotAllowed, match="foreign messages"):
        run(client)


def test_a_state_that_goes_away_is_said_and_taken_up_again(client: txlog.Client) -> None:
    """A commit waits for the state's partition; no message is lost or doubled."""
    say(client, 1)
    run(client)
    send(client, 5, 150)

    def away(done: Summary, produced: int) -> None:
        client.admin.set_offline(f"{STATE}/0")

    with pytest.raises(PartitionUnavailable):
        run(client, hooks=Hooks(committing=away))
    with pytest.raises(PartitionUnavailable):
        run(client)
    client.admin.set_online(f"{STATE}/0")
    say(client, END)
    run(client)
    assert windows(client) == [(0, ["5"]), (100, ["150"])]


@pytest.mark.parametrize(
    "given",
    [{"watermarks": True}, {"count": 1, "watermarks": True}, {"duration_ms": 1, "late_topic": "x"},
     {"duration_ms": 1, "watermarks": True, "late_topic": "a b/c"}],
)  # fmt: skip
def test_senseless_windows_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        tumbling(**given)


def test_a_missing_late_topic_is_refused_at_the_start(client: txlog.Client) -> None:
    with pytest.raises(TopicNotFound):
        run(client, tumbling(duration_ms=100, watermarks=True, late_topic="nowhere")(summed))


def test_windows_come_in_the_order_of_their_starts(client: txlog.Client) -> None:
    """Also over transactions of few messages."""
    say(client, 1)
    send(client, 950, 250, 50, 350, 251)
    say(client, END)
    run(client, txn_size=1)
    assert [start for start, _ in windows(client)] == [0, 200, 300, 900]
