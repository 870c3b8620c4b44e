"""Owns the agent that waits: two clients of the server that must get each new message soon.

It runs when all other processes have ended and no fault happens any more. First it receives what
they left behind. Then somebody sends a message, and a waiting consumer of each subscription must
get it, also after the consumer that had it has hung up. At last a producer numbers anew.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

from tests.simulation.agent import Agent, snapshot
from tests.simulation.client_agent import ClientAgent, Group, topic_url, url_of
from tests.simulation.client_moves import close_part
from tests.simulation.loop import run_in_loop
from tests.simulation.machine import SharedDisk
from tests.simulation.pulsar_client import ClientProducer, Lost, Received, Refused
from tests.simulation.scenario import MESSAGE_KEYS
from txlog.client.aio.client import opening
from txlog.client.open import open_on
from txlog.clock import SystemClock

QUIET_S = 70.0  # longer than the time-outs of transactions
SOON_S = 10.0
ROUNDS = 6
ANEW = "anew"


class NotWoken(Exception):
    """A waiting consumer did not get a message."""


class NotStored(Exception):
    """A message has a receipt, and is not in its topic once."""


class WakeAgent(Agent):
    """The two clients, and a process that uses the directory."""

    def live(self) -> None:
        """Receive what is left, then wait for new messages."""
        run_in_loop(self.process, self._main)

    async def _main(self) -> None:
        self.random = Random(f"{self.scenario.seed} wake")
        facts = self.scenario, self.plan, self.process, self.recorder, self.memory
        self.clients = [ClientAgent(*facts) for _ in range(2)]
        for client in self.clients:
            client.begin()
        for topic in self.scenario.topics:
            for subscription in topic.kinds:
                await self._attach(topic.name, subscription)
        await self._drain()
        for _ in range(ROUNDS):
            await self._round()
        await self._number_anew()
        for client in self.clients:
            client.client_of.close()

    async def _number_anew(self) -> None:
        """A producer without a receipt loses its connection, and numbers its next message anew."""
        client, process = self.clients[1].client_of, self.process
        pause_s = Random(f"{self.scenario.seed} anew").choice((0, 0, 0.00005, 0.0002))
        client.numbers_anew = True
        async with opening(lambda: open_on(SharedDisk(process), SystemClock())) as directory:
            await directory.run(lambda each: each.create_topic(ANEW))
            count = await client.partitions(topic_url(ANEW))
            producer = ClientProducer(client, url_of(ANEW, 0, count), 0, None, "none")
            await producer.open()
            sends = [producer.send("a", None, None, None)]
            await asyncio.sleep(pause_s)
            (await client.connection()).close()
            sends.append(producer.send("b", None, None, None))  # waits for the next connection
            await asyncio.sleep(SOON_S)
            await asyncio.gather(*sends, producer.send("c", None, None, None))
            values = await directory.run(lambda each: snapshot(each, [ANEW])[ANEW]["0"])
        if [value for _, value in values] != ["a", "b", "c"]:
            raise NotStored(f"a, b and c have receipts, and {values} are stored")

    async def _attach(self, topic: str, subscription: str) -> None:
        """One consumer, or two if the subscription allows them."""
        count = 1 if self.topics[topic].kinds[subscription] == "exclusive" else 2
        for client in self.clients[:count]:
            window = self.random.choice((1, 2, 1000))
            for attempt in range(20):
                try:
                    await client.group(topic, subscription, window)
                    break
                except (Refused, Lost):
                    if attempt == 19:
                        raise
                    await asyncio.sleep(5)

    def _groups(self, topic: str | None = None) -> list[tuple[ClientAgent, Group]]:
        return [
            (client, group)
            for client in self.clients
            for at, group in client.groups.items()
            if topic in (None, at[0])
        ]

    async def _taken_by_all(self, topic: str | None) -> list[tuple[ClientAgent, Group, Received]]:
        """All messages that are there, of one topic."""
        messages = []
        for client, group in self._groups(topic):
            while group.queue:
                message = group.queue.popleft()
                message.consumer.took()
                messages.append((client, group, message))
        return messages

    async def _drain(self) -> None:
        """Receive and acknowledge until nothing has come for long."""
        loop = asyncio.get_running_loop()
        last = loop.time()
        while loop.time() - last < QUIET_S:
            messages = await self._taken_by_all(None)
            for client, group, message in messages:
                await self._acknowledge(client, group, message)
                last = loop.time()
            await asyncio.sleep(0.2)

    async def _acknowledge(self, client: ClientAgent, group: Group, message: Received) -> None:
        op = {"topic": group.topic, "subscription": group.subscription}
        try:
            await client.acknowledge(op, group, [message], None, None)
        except (Refused, Lost):
            return

    async def _round(self) -> None:
        topic = self.random.choice(self.scenario.topics)
        await asyncio.sleep(self.random.choice((0, 0.001, 0.3, 2)))
        value = await self._send(topic.name)
        waiting = set(topic.kinds)
        hangs_up = self.random.random() < 0.4
        closes_part = self.scenario.closes_parts and not hangs_up
        loop = asyncio.get_running_loop()
        deadline = loop.time() + SOON_S
        while waiting:
            for client, group, message in await self._taken_by_all(topic.name):
                if message.value == value and hangs_up and len(self._of(group)) > 1:
                    hangs_up = False
                    (await client.client_of.connection()).close()
                    deadline = loop.time() + SOON_S
                    continue
                if message.value == value and closes_part:
                    closes_part = False
                    await close_part(client, group, message)
                    deadline = loop.time() + SOON_S
                    continue
                if message.value == value:
                    waiting.discard(group.subscription)
                await self._acknowledge(client, group, message)
            if loop.time() > deadline:
                names = ", ".join(sorted(waiting))
                raise NotWoken(f"{value!r} of {topic.name} did not reach {names}")
            await asyncio.sleep(0.01)

    def _of(self, group: Group) -> list[Group]:
        return [
            other
            for _, other in self._groups(group.topic)
            if other.subscription == group.subscription and other.is_attached
        ]

    async def _send(self, topic: str) -> str:
        """Send a message by the server or by the directory; returns its value."""
        sender, key = self.clients[0], self.random.choice((None, *MESSAGE_KEYS))
        if self.random.random() < 0.5:
            operation: dict[str, Any] = {"messages": [[key, None]], "producer": None}
            operation["batching"] = self.random.choice(("none", "plain"))
            await asyncio.gather(*await sender.send_all(operation, topic, None, None))
            return sender.last_value
        value = self._value()
        call = self.recorder.invoke(self.process.name, "send", topic=topic, value=value)
        disk = SharedDisk(self.process)
        opens = opening(lambda: open_on(disk, SystemClock()))
        async with opens as client, client.producer(topic) as producer:
            receipt = await producer.send(value, key=key)
        self.recorder.ok(call, partition=receipt.partition)
        return value
