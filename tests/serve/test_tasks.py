"""A task or a command that meets a bug fails alone, is logged, and closes its own handle."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.serve.siege import Served, Wire, serving
from tests.source_tree import ROOT
from txlog.engine.decide.sending import send as produce
from txlog.engine.decide.transactions import transaction as end_txn
from txlog.engine.folds.catalog import Topic
from txlog.engine.session.consuming.consumer import ConsumerSession
from txlog.serve.core.service import Supervisor, nothing
from txlog.serve.pulsar.messages import FIELDS

pytestmark = pytest.mark.usefixtures("quick_disk")
GOOD, BAD = "persistent://public/default/good", "persistent://public/default/bad"


class Bug(Exception):
    """An error that no code of the server raises."""


def failing(act: Callable[..., Any], is_bad: Callable[..., bool]) -> Callable[..., Any]:
    """A function that raises Bug for arguments that `is_bad` selects."""

    def call(*args: Any, **more: Any) -> Any:
        if is_bad(*args):
            raise Bug
        return act(*args, **more)

    return call


async def producer(served: Served, topic: str) -> Wire:
    client = await served.connected()
    ready = await client.ask("producer", topic=topic, producer_id=1, request_id=1)
    assert ready.producer_ready
    return client


def bugs(served: Served) -> list[str]:
    return [str(facts.get("class")) for event, facts in served.told if event == "failed"]


def test_bug_at_one_message_fails_it_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: one client's bad message that fails messages and commits of other clients, too."""

    def is_bad(view: object, topic: Topic, *_: object) -> bool:
        return topic.name.endswith("/bad")

    monkeypatch.setattr(produce, "_checked", failing(produce._checked, is_bad))

    async def program(served: Served) -> None:
        good, bad, third = [await producer(served, topic) for topic in (GOOD, BAD, GOOD)]
        for number in range(50):
            bad.message(b"x", {"producer_id": 1}, {}, sequence_id=0)
            good.message(b"x", {"producer_id": 1}, {}, sequence_id=number)
            third.send("newTxn", request_id=number, tc_id=0, txn_ttl_seconds=60_000)
            begun = (await third.answer()).newTxnResponse
            halves = {
                "txnid_most_bits": begun.txnid_most_bits,
                "txnid_least_bits": begun.txnid_least_bits,
            }
            ended = await third.ask("endTxn", request_id=number, txn_action=0, **halves)
            assert not begun.HasField("error") and not ended.HasField("error")
            assert FIELDS[(await good.answer()).type] == "send_receipt"
            assert await bad.is_ended()
            bad = await producer(served, BAD)
        assert set(bugs(served)) == {"Bug"}

    serving(tmp_path, program)


def test_a_bug_at_one_commit_fails_no_message_of_its_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(end_txn, "end", failing(end_txn.end, lambda *_: True))

    async def program(served: Served) -> None:
        good, other = await producer(served, GOOD), await served.connected()
        for number in range(20):
            halves = {"txnid_most_bits": 0, "txnid_least_bits": number}
            good.message(b"x", {"producer_id": 1}, {}, sequence_id=number)
            ended = await other.ask("endTxn", request_id=number, txn_action=0, **halves)
            assert ended.HasField("error")
            assert FIELDS[(await good.answer()).type] == "send_receipt"

    serving(tmp_path, program)


def test_a_delivery_that_meets_a_bug_closes_its_consumer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: a consumer that silently gets no more messages."""

    async def program(served: Served) -> None:
        client = await producer(served, GOOD)
        fields = {"topic": GOOD, "subscription": "s", "subType": 1, "consumer_id": 1}
        await client.ask("subscribe", request_id=2, **fields)
        take = failing(ConsumerSession.take, lambda *_: True)
        monkeypatch.setattr(ConsumerSession, "take", take)
        client.send("flow", consumer_id=1, messagePermits=10)
        assert FIELDS[(await client.answer()).type] == "close_consumer"
        assert bugs(served) == ["Bug"]
        monkeypatch.undo()
        await client.ask("subscribe", request_id=3, **fields)
        client.send("flow", consumer_id=1, messagePermits=10)
        client.message(b"x", {"producer_id": 1}, {}, sequence_id=0)
        came = {FIELDS[(await client.answer()).type] for _ in range(2)}
        assert came == {"send_receipt", "message"}

    serving(tmp_path, program)


def test_failed_task_runs_its_close() -> None:
    """Cancelling a task is no failure; a close that fails is one more."""
    failed: list[BaseException] = []
    closed: list[str] = []

    async def work(error: Exception | None) -> None:
        await asyncio.sleep(0)
        if error is not None:
            raise error

    def badly() -> None:
        closed.append("badly")
        raise KeyError

    async def main() -> None:
        tasks = Supervisor(failed.append)
        begun = [
            tasks.begin(work(None), lambda: closed.append("fine")),
            tasks.begin(work(Bug()), lambda: closed.append("bug")),
            tasks.begin(work(Bug()), badly),
            tasks.begin(work(Bug()), lambda: closed.append("cancelled")),
        ]
        begun[3].cancel()
        await asyncio.wait(begun)
        await asyncio.sleep(0)
        tasks.call(badly, nothing)

    asyncio.run(main())
    assert closed == ["bug", "badly", "badly"]
    assert [type(error) for error in failed] == [Bug, Bug, KeyError, KeyError]


def test_tasks_of_the_protocol_begin_at_the_supervisor() -> None:
    """Kills: a task whose exception is lost. The `allowed` modules await a task where it begins."""
    allowed = {"core/service.py", "pulsar/connection.py", "pulsar/members.py", "app.py"}
    begins = re.compile(r"create_task|ensure_future")
    folder = ROOT / "src/txlog/serve"
    modules = {
        str(path.relative_to(folder))
        for path in folder.rglob("*.py")
        if begins.search(path.read_text())
    }
    assert {module for module in modules if not module.startswith("http/")} <= allowed
    assert "http/page/live.py" not in modules
