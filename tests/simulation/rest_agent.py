"""Owns the agent that waits in the directory: threads and coroutines must get each message soon.

It runs when all other processes have ended and no fault happens any more. In each round some wait,
and a process of its own sends to them, or gives up a message that they wait for: it returns the
message, aborts its acknowledgement, closes its consumer, or dies. Nobody else gets it before. A
rest lasts longer than the bound of a round, so a wait that nobody wakes ends too late.

More rounds look at what such waits do not show: a message that its sender left unflushed, a
cancelled wait, times that must not follow a wall clock that is set ahead, a topic that got the old
name of another one, and messages that a consumer holds when a policy gives them up.
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
from tests.simulation.aio_agent import watched
from tests.simulation.answers import value_of
from tests.simulation.loop import run_in_loop
from tests.simulation.machine import SharedDisk, SimulatedProcess
from tests.simulation.scheduler import SECOND
from tests.simulation.wake_agent import NotWoken
from txlog import Client, messages
from txlog.client.aio.client import opening
from txlog.client.open import open_on
from txlog.clock import SystemClock

TOPIC, PEERS = "rest", "peers"
SOON_S, PATIENCE_MS = 10.0, 50_000
ROUNDS = 4
GIVING_UP = ("close", "close", "die", "die")
RETURNING = ("nack", "abort")  # another consumer gets the message only if it is shared
LOOKS = (
    "left_unflushed",
    "cancelled",
    "returned_later",
    "left_open",
    "renamed",
    "held",
    "overdue",
)
LOOK_ROUNDS, CANCELLED = 3, 6
AHEAD_MS, DELAY_MS = 3_600_000, 5_000

Wait = tuple[bool, float]  # whether it got a message, and when


class NotHeld(Exception):
    """A consumer got a message that another one had."""


class Hidden(Exception):
    """What a dead process had sent is in the journal, and a read does not show it."""


class TooEarly(Exception):
    """A delay ended before its time, or much later."""


class Misplaced(Exception):
    """A message is in a place where it does not belong."""


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
            self.random = Random(f"{self.scenario.seed} looks")
            for number, look in enumerate(self.random.sample(LOOKS, LOOK_ROUNDS)):
                topic = f"{TOPIC}{number}"
                self.client.create_topic(topic)
                self.client.create_subscription(topic, PEERS, type="shared")
                await getattr(self, f"_look_{look}")(topic)

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

    # --- looks -------------------------------------------------------------------------------

    async def _look_left_unflushed(self, topic: str) -> None:
        """A process that was open all the time reads what another one left when it died."""
        world, peer = self.process.world, self.process.world.new_process("peer")

        def send() -> None:
            producer = self._opened(peer).producer(topic)
            producer.send("flushed")
            flush = {"on": ["datasync", "journal/"], "nth": 1, "same": True}
            world.arrange({"kind": "kill", **flush}, peer)
            producer.send("left")

        await self._by(peer, send)

        values = await self.aio.run(partial(_read, topic=topic))
        if peer.is_alive or values != ["flushed", "left"]:
            raise Hidden(f"a process died while it flushed 'left'; a read shows {values}")

    async def _look_cancelled(self, topic: str) -> None:
        """A task that waits is cancelled while a message comes; its consumer gets that later."""
        peer = self.process.world.new_process("peer")
        client = await self._by(peer, partial(self._opened, peer))
        consumer = await self.aio.consumer(topic, PEERS)
        for number in range(CANCELLED):
            value = f"message {number}"
            send = partial(client.producer(topic).send, value)
            message = await self._cancelled(consumer, send, peer)
            if message is None:
                message = await consumer.receive(round(SOON_S * 1000))
            if message is None or value_of(message.value) != value:
                raise NotWoken(f"{value!r} came to a cancelled task, and then to nobody")
            await consumer.acknowledge(message)
        await consumer.close()
        await self._by(peer, client.close)

    async def _cancelled(
        self, consumer: Any, send: Callable[[], object], peer: SimulatedProcess
    ) -> Any:
        """What a task receives that is cancelled at one of its waits; None: nothing."""
        received: list[Any] = []
        waits, at = 0, self.random.randrange(1, 6)
        after_s = self.random.choice((0, 0, 0.00001, 0.0001))

        async def take() -> None:
            received.append(await consumer.receive(PATIENCE_MS))

        def on_wait() -> None:
            nonlocal waits
            waits += 1
            if waits == at:
                self.loop.call_later(after_s, task.cancel)

        task = asyncio.ensure_future(watched(take(), on_wait))
        await self._by(peer, send)
        await asyncio.wait([task])
        return received[0] if received else None

    async def _look_returned_later(self, topic: str) -> None:
        """A message that was returned with a delay comes after it, whatever the wall clock says."""
        scheduler, peer = self.process.world.scheduler, self.process.world.new_process("peer")

        def wait() -> None:
            client = self._opened(peer)
            consumer = client.consumer(topic, PEERS)
            client.producer(topic).send("returned")
            message = consumer.receive(PATIENCE_MS)
            consumer.negative_acknowledge(message, delay_ms=DELAY_MS)
            began = scheduler.now_ns
            self._set_ahead()
            again = consumer.receive(PATIENCE_MS)
            seconds = (scheduler.now_ns - began) / SECOND
            if again is None or not DELAY_MS / 1000 <= seconds + 0.002 <= DELAY_MS / 1000 + SOON_S:
                raise TooEarly(f"a return with a delay of {DELAY_MS} ms ended after {seconds} s")
            consumer.acknowledge(again)
            client.close()

        await self._by(peer, wait)

    async def _look_left_open(self, topic: str) -> None:
        """A transaction has its time, whatever the wall clock says."""

        def wait(client: Client) -> None:
            txn = client.transaction(timeout_ms=PATIENCE_MS, write_through=True)
            client.producer(topic).send("in time", txn=txn)
            self._set_ahead()
            client.flush()
            txn.commit()

        await self.aio.run(wait)

    async def _look_renamed(self, topic: str) -> None:
        """A new topic has the old name of another one; a dead letter goes back to that one."""
        other, does_roll = f"{topic}-renamed", self.random.random() < 0.5

        def work(client: Client) -> None:
            client.create_subscription(topic, "g", type="shared", max_redeliver_count=0)
            client.producer(topic).send("given up")
            with client.consumer(topic, "g") as consumer:
                while (message := consumer.receive(0)) is not None:
                    consumer.negative_acknowledge(message)
            client.admin.rename_topic(topic, other)
            client.create_topic(topic)
            client.create_subscription(topic, "g", type="shared")
            client.producer(topic).send("new")
            if does_roll:
                client.checkpoint(roll_all=True)
            client.topic(f"{other}-g-DLQ").retry_dead_letters(all=True)
            values = {name: _read(client, name) for name in (other, topic)}
            if values != {other: ["given up", "given up"], topic: ["new"]}:
                raise Misplaced(f"after a rename and a retry the topics have {values}")
            places = [client.describe_topic(name)["directory"] for name in (other, topic)]
            if places[0] == places[1]:
                raise Misplaced(f"{other} and {topic} both have their files in {places[0]}")

        await self.aio.run(work)

    async def _look_held(self, topic: str) -> None:
        """A policy gives up what was returned too often, but not what a consumer holds."""
        taken = self.random.randint(1, 2)

        def work(client: Client) -> None:
            for value in "abc":
                client.producer(topic).send(value)
            with client.consumer(topic, PEERS) as consumer:
                rows = [*messages(consumer.receive_batch(3))]
                consumer.negative_acknowledge(rows)
                held = [*messages(consumer.receive_batch(taken))]
                client.subscription(topic, PEERS).set_policies(max_redeliver_count=0)
                with client.consumer(topic, PEERS) as late:
                    if (message := late.receive(0)) is not None:
                        raise Misplaced(f"{value_of(message.value)!r} was not given up")
                consumer.acknowledge(held)
            values = {value_of(message.value) for message in held}
            if values & {*_read(client, f"{topic}-{PEERS}-DLQ")}:
                raise Misplaced(f"a consumer holds {values}, and they were given up")

        await self.aio.run(work)

    async def _look_overdue(self, topic: str) -> None:
        """Commits in flight keep their order, though one of them must first end what is overdue."""
        holder = self.process.world.new_process("peer")
        ids: list[Any] = []

        def hold() -> None:
            client = self._opened(holder)
            receipt = client.producer(topic).send("held")
            ids.append(receipt.message_id)
            txn = client.transaction(timeout_ms=1_000, write_through=True)
            client.acknowledge(topic, PEERS, ids, txn=txn)
            death = Killed(0)
            holder.end(death)
            raise death

        await self._by(holder, hold)
        await asyncio.sleep(2)
        peer = self.process.world.new_process("peer")
        holder_at = self.random.randrange(3)

        def commit() -> None:
            client = self._opened(peer)
            producer = client.producer(topic)
            for number in range(3):
                txn = client.transaction()
                producer.send_async(f"{number}", txn=txn)
                if number == holder_at:
                    client.acknowledge_async(topic, PEERS, ids, txn=txn)
                txn.commit_async()
            client.flush()
            values = _read(client, topic)
            if values != ["held", "0", "1", "2"]:
                raise Misplaced(f"commits in flight were made in the order {values}")
            client.close()

        await self._by(peer, commit)

    def _set_ahead(self) -> None:
        """Set the wall clock of the machine ahead."""
        self.process.world.wall_offset_ns += AHEAD_MS * 1_000_000
        self.recorder.event("clock_jump", by_ms=AHEAD_MS)


def _read(client: Client, topic: str) -> list[str]:
    return [value_of(m.value) for table in client.read(topic) for m in messages(table)]
