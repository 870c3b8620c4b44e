"""The scenario of the transaction-key proposal, with real processes.

Task 1 hangs with an open transaction. Task 2 starts with the same key and works at once. Task 1
wakes and can do no harm. A process hangs by SIGSTOP: its locks and handles stay, its time goes on.
The parent waits only for lines of the processes and for their states.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import txlog
from txlog.engine.session.reading.message import messages

SOURCE = Path(txlog.__file__).resolve().parents[1]
SEED = int(os.environ.get("TXLOG_SEED", "20260101"))
TIMEOUT_MS = 3_600_000  # far beyond the test: only fencing may end anything

TASK = """
import json, sys, txlog
from txlog import MessageId
from txlog.errors import TxlogError

def tell(**said):
    print(json.dumps(said), flush=True)

def attempt(name, call):
    try:
        call()
        tell(call=name, answer="done")
    except TxlogError as error:
        tell(call=name, answer=type(error).__name__)

path, name, timeout_ms = sys.argv[1], sys.argv[2], int(sys.argv[3])
with txlog.open(path, transaction_key="nightly") as client:
    producer, named = client.producer("out"), client.producer("out", name="till")
    txn = client.transaction(timeout_ms)
    with client.consumer("in", "s") if name == "task 2" else client.reader("in") as source:
        batch = source.receive_batch(100)
    ids = [message.message_id for message in txlog.messages(batch)]
    client.acknowledge("in", "s", ids[:2], txn=txn)
    for value in txlog.messages(batch):
        producer.send(f"{name}: {value.value.decode()}".encode(), txn=txn)
    tell(txn=str(txn.id), epoch=client.epoch, ids=[str(one) for one in ids])
    sys.stdin.readline()
    last = MessageId.parse("1:2")
    attempt("send", lambda: producer.send(b"late", txn=txn))
    attempt("named send", lambda: named.send(b"late", sequence_id=1, txn=txn))
    attempt("ack", lambda: client.acknowledge("in", "s", ids[2:3], txn=txn))
    attempt("ack all", lambda: client.acknowledge("in", "s", [last], cumulative=True, txn=txn))
    attempt("commit", txn.commit)
    attempt("abort", txn.abort)
    attempt("begin", client.transaction)
"""
WORK = """
import sys, txlog
from txlog import Range
from txlog.errors import ExpiredTransaction, ProducerFenced

def step(said):
    print(said, flush=True)
    sys.stdin.readline()

with txlog.open(sys.argv[1], transaction_key="work") as client:
    producer = client.producer("out")
    unacked = Range(kind="unacked", subscription="s")
    try:
        step("connected")
        while True:
            batch = [
                message for table in client.read("in", range=unacked, limit=3)
                for message in txlog.messages(table)
            ]
            if not batch:
                break
            step("read")
            with client.transaction() as txn:
                for message in batch:
                    producer.send(message.value, txn=txn)
                last = [batch[-1].message_id]
                client.acknowledge("in", "s", last, cumulative=True, txn=txn)
                step("sent")
            step("committed")
        print("finished", flush=True)
    except (ExpiredTransaction, ProducerFenced) as error:
        print(type(error).__name__, flush=True)
"""
CALLS = ["send", "named send", "ack", "ack all", "commit", "abort"]


class Task:
    """A process that runs TASK, whose lines the parent reads one by one."""

    def __init__(self, store: Path, name: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", TASK, str(store), name, str(TIMEOUT_MS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
        )

    def line(self) -> dict[str, Any]:
        """The next line that it prints."""
        assert self.process.stdout is not None
        line: dict[str, Any] = json.loads(self.process.stdout.readline())
        return line

    def stop(self) -> None:
        """Stop it; returns when the kernel reports that it is stopped."""
        self.process.send_signal(signal.SIGSTOP)
        _, status = os.waitpid(self.process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)

    def wake(self) -> None:
        """Let it go on."""
        self.process.send_signal(signal.SIGCONT)

    def go(self) -> dict[str, str]:
        """Let it make all its calls; returns their answers."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        answers = {line["call"]: line["answer"] for line in map(json.loads, self.process.stdout)}
        assert self.process.wait() == 0
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
def tasks(store: Path) -> Iterator[dict[str, Task]]:
    """Task 1, which has sent and acknowledged in an open transaction and hangs; task 2, begun."""
    first = Task(store, "task 1")
    tasks_by_name = {"task 1": first}
    try:
        yield tasks_by_name
    finally:
        for task in tasks_by_name.values():
            task.process.kill()
            task.process.wait()
            for stream in (task.process.stdin, task.process.stdout):
                assert stream is not None
                stream.close()


def values(store: Path) -> list[str]:
    """The values of the results that a reader gets."""
    with txlog.open(str(store), read_only=True) as client:
        return [
            message.value.decode()
            for table in client.read("out")
            for message in messages(table)
            if message.value is not None
        ]


def test_a_task_that_hangs_is_fenced_by_the_next(store: Path, tasks: dict[str, Task]) -> None:
    """spec/transactions 10: readers never see the result of task 1, and see task 2's at once."""
    first = tasks["task 1"]
    hung = first.line()
    first.stop()
    assert hung["epoch"] == 0

    second = tasks["task 2"] = Task(store, "task 2")
    begun = second.line()  # it did not wait, and received what task 1 had acknowledged
    assert begun["epoch"] == 1
    assert begun["ids"] == hung["ids"]
    done = second.go()
    assert [done[call] for call in ("send", "commit")] == ["done", "done"]
    results = ["task 2: a", "task 2: b", "task 2: c", "late", "late"]
    assert values(store) == results

    first.wake()
    answers = first.go()
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


def test_a_task_that_was_killed_is_fenced_too(store: Path, tasks: dict[str, Task]) -> None:
    """K7: the next task does not wait for the time-out, which is an hour away."""
    first = tasks["task 1"]
    hung = first.line()
    first.process.kill()
    first.process.wait()
    second = tasks["task 2"] = Task(store, "task 2")
    assert second.line()["ids"] == hung["ids"]
    assert second.go()["commit"] == "done"
    assert values(store)[:3] == ["task 2: a", "task 2: b", "task 2: c"]


ENDS = ("finished", "ExpiredTransaction", "ProducerFenced")


class Worker:
    """A process that runs WORK, one step for each permit."""

    def __init__(self, store: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORK, str(store)],
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
        )
        self.said = self._hear()

    def _hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def permit(self) -> str:
        """Let it take its next step; returns the line that it prints."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        self.said = self._hear()
        return self.said

    def end(self) -> None:
        """Kill it, if it still lives."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()


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
    living: list[Worker] = []
    lines: list[str] = []
    starts = 0
    try:
        while "finished" not in lines:
            chance = rng.random()
            if not living or (chance < 0.12 and starts < 10):
                living.append(Worker(store))
                starts += 1
            elif chance < 0.15:
                living.pop(rng.randrange(len(living))).end()
            else:
                # the newest more often: it alone gets anywhere
                worker = living[-1] if rng.random() < 0.5 else rng.choice(living)
                lines.append(worker.permit())
                if lines[-1] in ENDS:
                    living.remove(worker)
                    worker.end()
        while living:
            lines.append(living[0].permit())
            if lines[-1] in ENDS:
                living.pop(0).end()
    finally:
        for worker in living:
            worker.end()
    assert values(store) == ["a", "b", "c", *map(str, range(60))], f"seed {SEED}: {lines}"
    assert set(ENDS[1:]) & set(lines), f"seed {SEED}: {lines}"
    with txlog.open(str(store)) as client:
        assert client.admin.transaction_key("work")["epoch"] == starts - 1
        assert client.subscriptions("in")[0]["backlog"] == 0
