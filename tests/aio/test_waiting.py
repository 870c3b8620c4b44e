"""Calls that wait hold up no other call of their client."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

import txlog
import txlog.aio
from txlog.errors import AlreadyClosed, InvalidArgument, NotAllowed

pytestmark = pytest.mark.usefixtures("quick_disk")


@pytest.fixture
def path(tmp_path: Path) -> str:
    made = str(tmp_path / "store")
    txlog.init(made, free_bytes_min=0)
    with txlog.open(made) as client:
        client.create_topic("t", 2)
    return made


def run(path: str, main: Callable[[txlog.aio.Client], Coroutine[Any, Any, None]]) -> None:
    async def opened() -> None:
        async with txlog.aio.open(path) as client:
            await main(client)

    asyncio.run(opened())


async def resting(client: txlog.aio.Client, act: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """A task that waits, in the event loop."""
    task = asyncio.ensure_future(act)
    while not client._waits._resting:
        assert not task.done()
        await asyncio.sleep(0)
    return task


def test_a_commit_waits_for_a_partition_as_a_task(path: str) -> None:
    async def main(client: txlog.aio.Client) -> None:
        producer = await client.producer("t")
        begun = await client.run(lambda sync: sync.begin())
        await producer.send(b"a", partition=0, txn=begun["txn"])
        await client.run(lambda sync: sync.admin.set_offline("t", 0))
        task = await resting(client, client.commit(begun["txn"], 600_000))
        assert len(await client.topics()) == 1  # the thread is free
        await client.run(lambda sync: sync.admin.set_online("t", 0))
        await client.run(lambda sync: sync.expire())
        assert (await task)["state"] == "committed"

    run(path, main)


def test_waits_for_conditions_and_changes_are_tasks(path: str) -> None:
    async def main(client: txlog.aio.Client) -> None:
        producer = await client.producer("t")
        task = await resting(client, client.wait(["t"], messages=1))
        await producer.send(b"a")
        assert (await task)["met"]
        assert not (await client.wait(["t"], messages=2, timeout_ms=0))["met"]
        with pytest.raises(InvalidArgument):
            await client.wait()
        seen = await client.wait_for_change(0)
        assert seen == await client.wait_for_change(seen)
        task = await resting(client, client.wait_for_change(seen, None))
        await producer.send(b"b")
        assert await task > seen

    run(path, main)


def test_what_blocks_runs_beside_the_others(path: str) -> None:
    """Also if it is cancelled; a client that is closed ends it."""
    ended = threading.Event()
    begun = threading.Event()

    def block(sync: txlog.Client) -> None:
        begun.set()
        try:
            sync.wait(["t"], messages=5)
        except (AlreadyClosed, NotAllowed):
            ended.set()
            raise

    async def main(client: txlog.aio.Client) -> None:
        release = threading.Event()
        task = asyncio.ensure_future(
            client.run(lambda sync: (release.wait(60), sync.topics())[1], blocking=True)
        )
        assert len(await client.topics()) == 1
        release.set()
        assert len(await task) == 1
        blocked = asyncio.ensure_future(client.run(block, blocking=True))
        while not begun.is_set():
            await asyncio.sleep(0)
        blocked.cancel()
        await asyncio.wait([blocked])
        assert len(await client.topics()) == 1 and not ended.is_set()

    run(path, main)
    assert ended.wait(60)
