"""Owns the agent that waits in the directory: threads and coroutines must get each message soon.

It runs when all other processes have ended and no fault happens any more. In each round some wait,
and a process of its own sends to them, or gives up a message that they wait for: it returns the
message, aborts its acknowledgement, closes its consumer, or dies. Nobody else gets it before. A
rest lasts longer than the bound of a round, so a wait that nobody wakes ends too late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from random import Random
from threading import Thread
from typing import Any

from tests.disk.memory import Killed
from tests.simulation.agent import Agent
from tests.simulation.answers import value_of
from tests.simulation.loop import run_in_loop
from tests.simulation.machine import SharedDisk, SimulatedProcess
from tests.simulation.wake_agent import NotWoken
from txlog import Client
from txlog.client.aio.client import opening
from txlog.client.open import open_on
from txlog.clock import SystemClock

TOPIC, PEERS = "rest", "peers"
SOON_S, PATIENCE_MS = 10.0, 50_000
ROUNDS = 4
GIVING_UP = ("close", "close", "die", "die")
RETURNING = ("nack", "abort")  # another consumer gets the message only if it is shared

Wait = tuple[bool, float]  # whether it got a message, and when


class NotHeld(Exception):
    """A consumer got a message that another one had."""


class RestAgent(Agent):
    """A process with tasks and threads that wait, and its peers."""

    def live(self) -> None:
        """Wait for what peers do, in several rounds."""
        run_in_loop(self.process, self._main)

    async def _main(self) -> None:
        self.random = Random(f"{self.scenario.seed} rest")
        self.loop = asyncio.get_running_loop()
        self.process.late_events_s = self.random.choice((0, 0.001))
        async with opening(self._opened) as self.aio:
            self.client = self.aio.sync
            kind: Any = self.random.choice(("shared", "shared", "failover"))
            self.client.create_topic(TOPIC)
            self.client.create_subscription(TOPIC, PEERS, type=kind)
            for _ in range(ROUNDS):
                acts = ("send", "commit", *GIVING_UP, *(RETURNING if kind == "shared" else ()))
                await self._round(self.random.choice(acts))

    def _opened(self, process: SimulatedProcess | None = None) -> Client:
        return open_on(SharedDisk(process or self.process), SystemClock())

    async def _round(self, act: str) -> None:
        """Let some wait, then let a peer act; the loop is free meanwhile."""
        peer = self.process.world.new_process("peer")
        client = await self._by(peer, partial(self._opened, peer))
        go = await self._by(peer, partial(getattr(self, f"_to_{act}"), peer, client))
        is_for_all = act in ("send", "commit")
        waits = [await self._waiting(is_for_all) for _ in range(self.random.randint(2, 4))]
        await asyncio.sleep(self.random.choice((0, 0.001, 0.3, 2)))
        began = self.loop.time()
        await self._by(peer, go)
        answers = await asyncio.gather(*waits)
        soon = [has_come and ended < began + SOON_S for has_come, ended in answers]
        if any(has_come and ended < began for has_come, ended in answers):
            raise NotHeld(f"what a peer held came to another before its {act}")
        if not (all(soon) if is_for_all else any(soon)):
            late = [(has_come, round(ended - began, 3)) for has_come, ended in answers]
            raise NotWoken(f"a peer did {act}; messages came to those who waited: {late}")
        if peer.is_alive:
            await self._by(peer, client.close)

    # --- those that wait ---------------------------------------------------------------------

    async def _waiting(self, is_for_all: bool) -> asyncio.Future[Wait]:
        """Open a reader, else a consumer, and begin to wait in a task or a thread."""
        if self.random.random() < 0.5:
            opened = await (
                self.aio.reader(TOPIC, "latest") if is_for_all else self.aio.consumer(TOPIC, PEERS)
            )
            return asyncio.ensure_future(self._as_task(opened))
        handle = await self.aio.run(
            lambda client: (
                client.reader(TOPIC, "latest") if is_for_all else client.consumer(TOPIC, PEERS)
            )
        )
        future: asyncio.Future[Wait] = self.loop.create_future()
        Thread(target=self._as_thread, args=(handle, future)).start()
        return future

    async def _as_task(self, handle: Any) -> Wait:
        async with handle:
            is_reader = hasattr(handle, "read_next")
            message = await (handle.read_next if is_reader else handle.receive)(PATIENCE_MS)
            ended = self.loop.time()
            if message is not None and not is_reader:
                await handle.acknowledge(message)
        return message is not None, ended

    def _as_thread(self, handle: Any, future: asyncio.Future[Wait]) -> None:
        with handle:
            is_reader = hasattr(handle, "read_next")
            message = (handle.read_next if is_reader else handle.receive)(PATIENCE_MS)
            ended = self.loop.time()
            if message is not None and not is_reader:
                handle.acknowledge(message)
        self.loop.call_soon_threadsafe(future.set_result, (message is not None, ended))

    # --- the peer ----------------------------------------------------------------------------

    async def _by(self, peer: SimulatedProcess, act: Callable[[], Any]) -> Any:
        """What an act of a peer returns; nothing after its death."""
        future: asyncio.Future[Any] = self.loop.create_future()

        def done() -> None:
            try:
                answer = act()
            except Killed:
                self.loop.call_soon_threadsafe(future.set_result, None)
                raise
            self.loop.call_soon_threadsafe(future.set_result, answer)

        self.process.world.scheduler.spawn("main", peer, done)
        return await future

    def _to_send(self, peer: SimulatedProcess, client: Client) -> Callable[[], object]:
        return partial(client.producer(TOPIC).send, "sent")

    def _to_commit(self, peer: SimulatedProcess, client: Client) -> Callable[[], object]:
        txn = client.transaction(timeout_ms=PATIENCE_MS)
        client.producer(TOPIC).send("committed", txn=txn)
        return txn.commit

    def _held(self, client: Client) -> tuple[Any, Any]:
        """A consumer, and a message that it has."""
        consumer = client.consumer(TOPIC, PEERS)
        client.producer(TOPIC).send("held")
        message = consumer.receive(PATIENCE_MS)
        while message is not None and value_of(message.value) != "held":  # of earlier rounds
            consumer.acknowledge(message)
            message = consumer.receive(PATIENCE_MS)
        return consumer, message

    def _to_nack(self, peer: SimulatedProcess, client: Client) -> Callable[[], object]:
        consumer, message = self._held(client)
        return partial(consumer.negative_acknowledge, message)

    def _to_abort(self, peer: SimulatedProcess, client: Client) -> Callable[[], object]:
        consumer, message = self._held(client)
        txn = client.transaction(timeout_ms=PATIENCE_MS, write_through=True)
        consumer.acknowledge(message, txn=txn)
        return txn.abort

    def _to_close(self, peer: SimulatedProcess, client: Client) -> Callable[[], object]:
        consumer, _ = self._held(client)
        return partial(consumer.close)

    def _to_die(self, peer: SimulatedProcess, client: Client) -> Callable[[], object]:
        self._held(client)

        def die() -> None:
            death = Killed(0)
            peer.end(death)
            raise death

        return die
