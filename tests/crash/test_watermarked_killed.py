"""Windows on watermarks, killed by SIGKILL: each window comes once and whole, each late message
once.

A process dies at a step of its run, or at any call of the disk. The next one continues from the
store, until one reaches the end. Then stragglers are sent, and it begins again.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import txlog
from tests.harness import KILLED, ready, run
from txlog.errors import TopicNotFound

SEED = 20261122
COUNT, SPAN, BOUND, WINDOW = 240, 3000, 400, 100
STRAGGLERS = [5, 1500, 17, 2999, 300]
STEPS = (
    "called", "begun", "produced", "acknowledged", "committing", "committed", "received", "closing",
)  # fmt: skip
QUICK = {"committing"}


def work(path: str, step: str, nth: int) -> bool:
    """Run a process; returns whether it was killed."""
    done = run(ready("function", path, "timed", step, nth), code=None)
    assert done.returncode in (0, KILLED), done.stderr
    return done.returncode != 0


def fill(path: str, chance: random.Random) -> dict[int, int]:
    """Send messages of two producers in random order, none late; returns the event times."""
    txlog.init(path)
    times = {number: chance.randrange(SPAN) for number in range(COUNT)}
    order = sorted(times, key=lambda number: times[number] + chance.randrange(BOUND))
    with txlog.open(path) as client:
        client.create_topic("in", 4)
        for topic in ("out", "late"):
            client.create_topic(topic)
        client.create_subscription("in", "s")
        producers = [client.producer("in", name) for name in "AB"]
        for producer in producers:
            producer.new_watermark().event_time(1).send()
        for at in range(0, COUNT, 20):
            for which, producer in enumerate(producers):
                batch = order[at : at + 20][which::2]
                low = min([times[number] for number in order[at + 20 :]], default=SPAN)
                with client.transaction() as txn:
                    producer.send_batch(table(batch, [times[number] for number in batch]), txn=txn)
                    producer.new_watermark(txn).event_time(max(1, low)).send()
    return times


def table(numbers: list[int], times: list[int]) -> pa.Table:
    """Numbers as messages."""
    return pa.table(
        {
            "value": pa.array([b"%d" % number for number in numbers], pa.binary()),
            "key": pa.array([b"%d" % (number % 7) for number in numbers], pa.binary()),
            "event_time": pa.array(times, pa.timestamp("ms", "UTC")),
        }
    )


def found(client: txlog.Client) -> dict[int, set[int]]:
    """The windows that the function emitted, each once."""
    rows = [json.loads(message.value or b"") for message in client.reader("out")]
    assert len({row["start"] for row in rows}) == len(rows)
    assert all(len(set(row["values"])) == len(row["values"]) for row in rows)
    return {row["start"]: set(row["values"]) for row in rows}


def live(path: str, times: dict[int, int], kills: Iterator[tuple[str, int]]) -> int:
    """Two lives of the function, with kills in both; returns how many kills there were."""
    died = 0
    expected: dict[int, set[int]] = {}
    for number, at in times.items():
        expected.setdefault(at // WINDOW * WINDOW, set()).add(number)
    for part in range(2):
        with txlog.open(path) as client:
            if part:
                late = table([*range(COUNT, COUNT + len(STRAGGLERS))], STRAGGLERS)
                client.producer("in").send_batch(late)
            else:
                for name in "AB":
                    client.producer("in", name).new_watermark().event_time(SPAN).send()
        for step, nth in kills:
            if not work(path, step, nth):
                break
            died += 1
        assert not work(path, "", 0)
        with txlog.open(path) as client:
            assert found(client) == expected
            late_ones = sorted(int(message.value or b"") for message in client.reader("late"))
            assert late_ones == [*range(COUNT, COUNT + len(STRAGGLERS) * part)]
            assert client.transactions() == []
            backlogs = {row["topic"]: row["backlog"] for row in client.subscriptions()}
            assert backlogs == {"in": 0, "in-s-WINDOWS": 1}
    return died


@pytest.mark.parametrize(
    "step",
    [pytest.param(one, marks=() if one in QUICK else pytest.mark.slow) for one in STEPS],
)
def test_a_death_at_any_step_repeats_and_loses_nothing(tmp_path: Path, step: str) -> None:
    """Windows, late messages, state and inputs agree."""
    path = str(tmp_path / "store")
    times = fill(path, random.Random(SEED))
    nths = iter([1] if step == "closing" else [3, 1, 1])
    assert live(path, times, ((step, nth) for nth in nths)) >= 1


@pytest.mark.parametrize(
    ("history", "kills"),
    [(0, 4), *(pytest.param(one, 25, marks=pytest.mark.slow) for one in range(1, 5))],
)
def test_a_death_at_any_call_of_the_disk(tmp_path: Path, history: int, kills: int) -> None:
    """The same at random calls; the test prints the seed."""
    print("seed", SEED, history)
    chance = random.Random(f"{SEED} {history}")
    path = str(tmp_path / "store")
    times = fill(path, chance)
    drawn = (("disk", chance.randrange(1, 60)) for _ in range(kills))
    assert live(path, times, drawn) >= kills // 2


def test_the_first_thing_a_run_makes_is_its_state(tmp_path: Path) -> None:
    """A run that is killed before it has stored its state leaves the inputs untouched."""
    path = str(tmp_path / "store")
    fill(path, random.Random(SEED))
    assert work(path, "disk", 1)
    with txlog.open(path) as client:
        [row] = client.subscriptions("in")
        assert row["backlog"] == COUNT
        with pytest.raises(TopicNotFound):
            client.describe_topic("in-s-WINDOWS")
