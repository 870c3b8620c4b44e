"""The price of a message that comes alone: counted, not timed."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.serve.siege import Served, Wire, serving
from txlog.client.aio.worker import Worker
from txlog.engine.session.reading import pause
from txlog.engine.store.store import Store
from txlog.serve.pulsar.messages import FIELDS

pytestmark = pytest.mark.usefixtures("quick_disk")
TOPIC = "persistent://public/default/lone"
MESSAGES = 10
EXCLUSIVE, SHARED = 0, 1
COUNTED = (
    (pause.Waiting, "look", "looks"),
    (Worker, "run", "calls of the worker"),
    (Store, "read", "reads"),
    (Store, "submit", "submits"),
)


async def acknowledge_all(client: Wire, acknowledged: asyncio.Queue[int]) -> None:
    """Acknowledge each message that a client receives, and note each answer."""
    while True:
        answer = await client.answer()
        name = FIELDS[answer.type]
        if name == "message":
            message_id = answer.message.message_id
            client.send("ack", consumer_id=1, ack_type=0, message_id=[message_id], request_id=9)
        elif name == "ackResponse":
            acknowledged.put_nowait(1)


async def subscribed(
    served: Served, subscription: str, kind: int, name: str, permits: int = 1000
) -> Wire:
    """A client with a consumer that has permits."""
    client = await served.connected()
    fields = {"topic": TOPIC, "subscription": subscription, "subType": kind}
    await client.ask("subscribe", consumer_id=1, request_id=1, consumer_name=name, **fields)
    client.send("flow", consumer_id=1, messagePermits=permits)
    return client


async def delivered(client: Wire) -> None:
    """Read the answers of a client up to its next message."""
    while FIELDS[(await client.answer()).type] != "message":
        pass


async def sent_one_by_one(served: Served, clients: list[Wire], times: int, first: int) -> None:
    """Send messages; each has been delivered and acknowledged before the next is sent.

    times: how many consumers get each message
    """
    producer = await served.connected()
    await producer.ask("producer", topic=TOPIC, producer_id=1, request_id=2)
    acknowledged = asyncio.Queue[int]()
    tasks = [asyncio.create_task(acknowledge_all(client, acknowledged)) for client in clients]
    for sequence in range(first, first + MESSAGES):
        producer.message(b"x" * 100, {"producer_id": 1}, {}, sequence_id=sequence)
        assert FIELDS[(await producer.answer()).type] == "send_receipt"
        for _ in range(times):
            await acknowledged.get()
        waits = served.service.client.waits
        while sum(not resting.done() for resting in waits._resting) < len(clients):
            await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize(
    ("subscriptions", "consumers", "kind"), [(1, 1, EXCLUSIVE), (1, 10, SHARED), (10, 1, EXCLUSIVE)]
)
def test_a_lone_message_has_a_price(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    subscriptions: int,
    consumers: int,
    kind: int,
) -> None:
    """A delivery takes one look, and the consumers that get nothing do not look.

    The server made 2 looks, 13 reads and 7 calls of its thread for a message to one consumer; with
    ten Shared consumers, 11 looks, 49 reads and 16 calls.
    """
    counts = Counter[str]()

    def counted(owner: type, method: str, name: str) -> None:
        original = getattr(owner, method)

        def call(*args: Any, **named: Any) -> Any:
            counts[name] += 1
            return original(*args, **named)

        monkeypatch.setattr(owner, method, call)

    async def program(served: Served) -> None:
        clients = [
            await subscribed(served, f"s{subscription}", kind, f"c{number}")
            for subscription in range(subscriptions)
            for number in range(consumers)
        ]
        await sent_one_by_one(served, clients, subscriptions, 0)
        for owner, method, name in COUNTED:
            counted(owner, method, name)
        await sent_one_by_one(served, clients, subscriptions, MESSAGES)

    serving(tmp_path, program)
    deliveries = MESSAGES * subscriptions
    assert counts["looks"] <= deliveries + 2
    assert counts["reads"] <= 8 * deliveries + 3 * MESSAGES
    assert counts["submits"] <= 2 * deliveries + 3 * MESSAGES
    assert counts["calls of the worker"] <= 2 * deliveries + 4 * MESSAGES


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED])
def test_a_consumer_that_took_less_than_there_is_looks_again(tmp_path: Path, kind: int) -> None:
    """Kills: a turn that counts as the last one although it left messages."""

    async def program(served: Served) -> None:
        client = await subscribed(served, "s", kind, "c", permits=1)
        others = [await subscribed(served, "s", kind, "d", permits=2)] if kind == SHARED else []
        producer = await served.connected()
        await producer.ask("producer", topic=TOPIC, producer_id=1, request_id=2)
        for sequence in range(3):
            producer.message(b"x", {"producer_id": 1}, {}, sequence_id=sequence)
        for other in others:
            for _ in range(2):
                await delivered(other)
        for _ in range(3 - 2 * len(others)):
            await delivered(client)
            client.send("flow", consumer_id=1, messagePermits=1)

    serving(tmp_path, program, seconds=30)
