"""Open windows of functions whose inputs are renamed between two runs: each message counts once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import txlog
from txlog import functions
from txlog.errors import NotAllowed
from txlog.functions import FunctionOptions, Hooks, Summary, tumbling

pytestmark = pytest.mark.usefixtures("quick_disk")
COUNT = tumbling(duration_ms=100, watermarks=True)(
    lambda messages: {"n": sorted(message.value.decode() for message in messages)}
)
OPEN, CLOSED = 50, 1000


@pytest.fixture
def client(tmp_path: Path) -> Iterator[txlog.Client]:
    """A store with the inputs b and m, the subscription s on each, and the topic totals."""
    txlog.init(str(tmp_path / "store"))
    with txlog.open(str(tmp_path / "store"), durability="os") as opened:
        for topic in ("b", "m", "totals"):
            opened.create_topic(topic)
        for topic in ("b", "m"):
            opened.create_subscription(topic, "s", type="shared")
        yield opened


def send(client: txlog.Client, topic: str, value: bytes, watermark: int) -> None:
    """Send a message of the first window, then a watermark."""
    with client.producer(topic, name="p") as producer:
        producer.send(value, event_time=10)
        producer.new_watermark().event_time(watermark).send()


def run(
    client: txlog.Client, *topics: str, instance: int = 0, hooks: Hooks | None = None
) -> Summary:
    options = FunctionOptions(instance=instance, take_over_ms=0)
    return functions.run(client, COUNT, list(topics), "totals", "s", options, hooks)


def totals(client: txlog.Client) -> list[list[str]]:
    return [json.loads(message.value or b"")["n"] for message in client.reader("totals")]


def states(client: txlog.Client) -> list[str]:
    return sorted(row["topic"] for row in client.topics() if "-WINDOWS" in row["topic"])


@pytest.mark.parametrize("instance", [0, 2])
def test_a_window_has_the_messages_from_before_a_rename(
    client: txlog.Client, instance: int
) -> None:
    """Found by review: the state was looked for by the input's name, and not renamed with it."""
    send(client, "b", b"1", OPEN)
    assert run(client, "b", instance=instance).consumed == 1
    client.admin.rename_topic("b", "sales")
    send(client, "sales", b"2", CLOSED)
    assert run(client, "sales", instance=instance).consumed == 1
    assert totals(client) == [["1", "2"]]
    assert states(client) == ["sales-s-WINDOWS" + (f"-{instance}" if instance else "")]


@pytest.mark.parametrize(
    ("before", "after"), [("b", "a"), ("b", "c"), ("b", "z"), ("m", "a"), ("m", "z")]
)
def test_a_function_of_several_inputs_keeps_its_windows(
    client: txlog.Client, before: str, after: str
) -> None:
    """Whichever input is the least afterwards; a second rename goes back."""
    for topic in ("b", "m"):
        send(client, topic, topic.encode(), OPEN)
    assert run(client, "b", "m").consumed == 2
    client.admin.rename_topic(before, after)
    now = [after if topic == before else topic for topic in ("b", "m")]
    for topic in now:
        send(client, topic, b"2", OPEN)
    assert run(client, *now).consumed == 2
    client.admin.rename_topic(after, before)
    for topic in ("b", "m"):
        send(client, topic, b"3", CLOSED)
    assert run(client, "b", "m").consumed == 2
    assert totals(client) == [["2", "2", "3", "3", "b", "m"]]
    assert states(client) == ["b-s-WINDOWS"]


def test_a_function_with_one_more_input_keeps_its_windows(client: txlog.Client) -> None:
    send(client, "m", b"1", OPEN)
    run(client, "m")
    send(client, "b", b"2", CLOSED)
    send(client, "m", b"3", CLOSED)
    run(client, "m", "b")
    assert totals(client) == [["1", "2", "3"]]


def test_windows_of_two_inputs_of_which_one_was_renamed_are_refused(client: txlog.Client) -> None:
    """Their names no longer show which of the two belongs to both inputs."""
    for topic in ("b", "m"):
        send(client, topic, topic.encode(), OPEN)
        run(client, topic)
    client.admin.rename_topic("b", "z")
    with pytest.raises(NotAllowed, match="one was renamed") as refused:
        run(client, "z", "m")
    assert refused.value.hint == (
        "delete the one not to count, as txlog topic delete z-s-WINDOWS --force"
    )
    for topic in ("m", "z"):  # each alone goes on
        send(client, topic, b"2", CLOSED)
        run(client, topic)
    assert totals(client) == [["2", "m"], ["2", "b"]]


def test_a_rename_during_a_run(client: txlog.Client) -> None:
    """The run goes on with its state, and reads it again, though others have the old names.

    Another client acknowledges a message of the state, so the run's commit fails once.
    """
    is_renamed = False

    def rename(_: Summary, produced: int) -> None:
        nonlocal is_renamed
        if produced and not is_renamed:
            is_renamed = True
            client.admin.rename_topic("b", "sales")
            for topic in ("b", "b-s-WINDOWS"):
                client.create_topic(topic)
                client.create_subscription(topic, "s", type="shared")
            first = next(iter(client.reader("sales-s-WINDOWS")))
            assert first.message_id is not None
            txn = client.transaction(write_through=True)
            client.acknowledge("sales-s-WINDOWS", "s", [first.message_id], txn=txn)
            txn.commit()

    send(client, "b", b"1", OPEN)
    send(client, "b", b"2", CLOSED)
    assert run(client, "b", hooks=Hooks(committing=rename)).consumed == 2
    assert (is_renamed, totals(client)) == (True, [["2"]])
    assert states(client) == ["b-s-WINDOWS", "sales-s-WINDOWS"]
