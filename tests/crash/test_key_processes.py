"""The scenario of the transaction-key proposal, with real processes.

Task 1 hangs with an open transaction. Task 2 starts with the same key and works at once. Task 1
wakes and can do no harm. A process hangs by SIGSTOP: its locks and handles stay, its time goes on.
The parent waits only for lines of the processes and for their states.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import txlog
from tests.harness import SEED, Child, Children, python
from txlog.engine.session.reading.message import messages

TIMEOUT_MS = 3_600_000  # far beyond the test: only fencing may end anything

CALLS = ["send", "named send", "ack", "ack all", "commit", "abort"]


def told(task: Child) -> dict[str, Any]:
    """The JSON object in the next line of a task."""
    line: dict[str, Any] = json.loads(task.line())
    return line


def go(task: Child) -> dict[str, str]:
    """Let a task make all its calls and end; returns the answer of each call."""
    task.tell()
    answers = {line["call"]: line["answer"] for line in map(json.loads, task)}
    assert task.end()[0] == 0
    return answers


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Three messages to work on, and a topic for the results."""
    path = tmp_path / "store"
    txlog.init(str(path))
    with txlog.open(str(path)) as client:
        client.create_topic("in")
        client.create_topic("out")
        client.create_subscription("in", "s")
        producer = client.producer("in")
        for value in (b"a", b"b", b"c"):
            producer.send(value)
    return path


@pytest.fixture
def task(store: Path) -> Iterator[Callable[[str], Child]]:
    """A function that starts a task by name; the task works in a transaction and then waits."""
    with Children() as children:
        yield lambda name: children.start(python("key_task", store, name, TIMEOUT_MS))


def values(store: Path) -> list[str]:
    """The values of the results that a reader gets."""
    with txlog.open(str(store), read_only=True) as client:
        return [
            message.value.decode()
            for table in client.read("out")
            for message in messages(table)
            if message.value is not None
        ]


def test_a_task_that_hangs_is_fenced_by_the_next(store: Path, task: Callable[[str], Child]) -> None:
    """spec/transactions 10: readers never see the result of task 1, and see task 2's at once."""
    first = task("task 1")
    hung = told(first)
    first.stop()
    assert hung["epoch"] == 0

    second = task("task 2")
    begun = told(second)  # it did not wait, and received what task 1 had acknowledged
    assert begun["epoch"] == 1
    assert begun["ids"] == hung["ids"]
    done = go(second)
    assert [done[call] for call in ("send", "commit")] == ["done", "done"]
    results = ["task 2: a", "task 2: b", "task 2: c", "late", "late"]
    assert values(store) == results

    first.wake()
    answers = go(first)
    assert {call: answers[call] for call in CALLS} == dict.fromkeys(CALLS, "ExpiredTransaction")
    assert answers["begin"] == "ProducerFenced"
    assert values(store) == results
    with txlog.open(str(store)) as client:
        described = client.show_transaction(txlog.TxnId.parse(hung["txn"]))
        assert (described["state"], described["reason"]) == ("aborted", "fenced")
        assert client.subscriptions("in")[0]["backlog"] == 0
        key = client.admin.transaction_key("nightly")
        assert key["epoch"] == 1
        assert [(row["state"], row["reason"]) for row in key["txn_list"]] == [
            ("open", None),
            ("committed", None),
            ("aborted", "fenced"),
        ]


@pytest.mark.deep
def test_a_task_that_was_killed_is_fenced_too(store: Path, task: Callable[[str], Child]) -> None:
    """K7: the next task does not wait for the time-out, which is an hour away."""
    first = task("task 1")
    hung = told(first)
    first.kill()
    second = task("task 2")
    assert told(second)["ids"] == hung["ids"]
    assert go(second)["commit"] == "done"
    assert values(store)[:3] == ["task 2: a", "task 2: b", "task 2: c"]


ENDS = ("finished", "ExpiredTransaction", "ProducerFenced")


@pytest.mark.deep
def test_tasks_that_overlap_do_the_work_once(store: Path) -> None:
    """The motive of the proposal: with cumulative acknowledgements alone, two tasks do the work
    twice.

    Which task takes the next step, starts or is killed follows from the seed.
    """
    rng = random.Random(SEED)
    print("seed", SEED)
    with txlog.open(str(store)) as client:
        producer = client.producer("in")
        for number in range(60):
            producer.send(b"%d" % number)
    living: list[Child] = []
    lines: list[str] = []
    starts = 0

    def permit(worker: Child) -> None:
        """Let a worker take its next step; it leaves after its last one."""
        lines.append(worker.ask())
        if lines[-1] in ENDS:
            living.remove(worker)

    with Children() as children:
        while "finished" not in lines:
            chance = rng.random()
            if not living or (chance < 0.12 and starts < 10):
                living.append(children.start(python("key_worker", store)))
                living[-1].until("connected")
                starts += 1
            elif chance < 0.15:
                living.pop(rng.randrange(len(living))).kill()
            else:
                # the newest more often: it alone gets anywhere
                permit(living[-1] if rng.random() < 0.5 else rng.choice(living))
        while living:
            permit(living[0])
    assert values(store) == ["a", "b", "c", *map(str, range(60))], f"seed {SEED}: {lines}"
    assert set(ENDS[1:]) & set(lines), f"seed {SEED}: {lines}"
    with txlog.open(str(store)) as client:
        assert client.admin.transaction_key("work")["epoch"] == starts - 1
        assert client.subscriptions("in")[0]["backlog"] == 0
