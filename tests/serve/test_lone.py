"""The price of a message that comes alone: counted, not timed."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import txlog
from tests.serve.siege import Served, Wire, serving
from txlog.client.aio import waits
from txlog.client.aio.worker import Worker
from txlog.engine.decide.consuming import lease
from txlog.engine.session.reading import pause
from txlog.engine.store.store import Store
from txlog.errors import TryAgain
from txlog.serve.pulsar import connection, group_commit
from txlog.serve.pulsar.members import StoreConsumer
from txlog.serve.pulsar.messages import FIELDS, MessageIdData

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


async def delivered(client: Wire) -> Any:
    """Read the answers of a client up to its next message; returns the message."""
    while FIELDS[(answer := await client.answer()).type] != "message":
        pass
    return answer.message


async def first_of(*clients: Wire) -> Wire:
    """Read the answers of clients up to the next message of one; returns that client."""
    tasks = {asyncio.create_task(delivered(client)): client for client in clients}
    done, others = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in others:
        task.cancel()
    await asyncio.wait(tasks)
    (task,) = done
    return tasks[task]


async def at_rest(served: Served, count: int) -> None:
    """Wait until so many consumers wait for messages."""
    waits = served.service.client.waits
    while sum(not resting.done() for resting in waits._resting) < count:
        await asyncio.sleep(0)


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
        await at_rest(served, len(clients))
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
    ten Shared consumers, 11 looks, 49 reads and 16 calls. Consumers of several subscriptions look
    together, in one call and with one frame; each took two of both, and 8 reads.
    """
    counts, at_end = Counter[str](), Counter[str]()
    monkeypatch.setattr(waits, "OWN_SECONDS", 60)  # no look for changes, however slow the machine

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
        at_end.update(counts)  # before the clients close

    serving(tmp_path, program)
    deliveries = MESSAGES * subscriptions
    assert at_end["looks"] <= deliveries + 2
    assert at_end["reads"] <= 2 * deliveries + 5 * MESSAGES
    # acknowledgements share a frame if they come in the same turn of the loop; 4 open a producer
    assert at_end["submits"] <= deliveries + 2 * MESSAGES + 1
    # a few events come when nothing is known of their cause yet; before, each message cost one more
    assert at_end["calls of the worker"] <= deliveries + 2 * MESSAGES + 4 + MESSAGES // 2


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

    serving(tmp_path, program, seconds=5)


@pytest.mark.parametrize("delay_ms", [0, 500])
def test_messages_of_one_flush_reach_as_many_consumers(tmp_path: Path, delay_ms: int) -> None:
    """Each consumer has one permit. Kills: a consumer that took one, or learnt when the messages
    are due, and wakes no other.
    """

    def send() -> None:
        with txlog.open(str(tmp_path / "store")) as client:
            producers = [client.producer("lone", name=f"p{number}") for number in range(3)]
            # one time for all, so that they are due together
            due_ms = client.store.clock.now().wall_ms + delay_ms if delay_ms else None
            for future in [producer.send_async(b"x", deliver_at=due_ms) for producer in producers]:
                future.result()

    async def program(served: Served) -> None:
        clients = [await subscribed(served, "s", SHARED, f"c{number}", 1) for number in range(3)]
        receiving = [asyncio.create_task(delivered(client)) for client in clients]
        await at_rest(served, len(clients))
        await asyncio.to_thread(send)
        await asyncio.gather(*receiving)

    serving(tmp_path, program, seconds=5)


def test_a_look_for_the_rest_of_a_batch_is_not_for_all_partitions(tmp_path: Path) -> None:
    """The client has acknowledged a part of a batch, so a second turn looks for its neighbours."""

    def send(partition: int, *values: bytes) -> None:
        with txlog.open(str(tmp_path / "store")) as client:
            partitions = pa.array([partition] * len(values), pa.int32())
            rows = pa.table({"value": list(values), "partition": partitions})
            client.producer("two").send_batch(rows)

    def create() -> None:
        with txlog.open(str(tmp_path / "store")) as client:
            client.create_topic("two", partitions=2)

    async def program(served: Served) -> None:
        await asyncio.to_thread(create)
        client = await served.connected()
        for partition in (0, 1):
            topic = f"persistent://public/default/two-partition-{partition}"
            fields = {"topic": topic, "subscription": "s", "subType": SHARED}
            number = partition + 1
            await client.ask(
                "subscribe", consumer_id=number, request_id=1, consumer_name="c", **fields
            )
            client.send("flow", consumer_id=number, messagePermits=100)
        await asyncio.to_thread(send, 0, b"a", b"b", b"c")
        whole = (await delivered(client)).message_id
        ids = {name: getattr(whole, name) for name in ("ledgerId", "entryId", "partition")}
        part = MessageIdData(**ids, ack_set=[0b001])  # a set bit is not acknowledged
        client.send("ack", consumer_id=1, ack_type=0, message_id=[part], request_id=9)
        while FIELDS[(await client.answer()).type] != "ackResponse":
            pass
        client.send("redeliverUnacknowledgedMessages", consumer_id=1)
        assert (await delivered(client)).redelivery_count == 1
        await at_rest(served, 1)
        await asyncio.to_thread(send, 1, b"other")
        assert (await delivered(client)).consumer_id == 2

    serving(tmp_path, program, seconds=5)


def test_a_consumer_of_a_full_connection_lets_another_look(tmp_path: Path) -> None:
    """The consumer that has rested longest is on a connection whose client does not read.

    Kills: its turn, which takes nothing, counts as a look for all consumers of the subscription.
    """

    def send(topic: str, *values: bytes) -> None:
        with txlog.open(str(tmp_path / "store")) as client:
            client.create_topic(topic, if_not_exists=True)
            for value in values:
                client.producer(topic).send(value)

    async def program(served: Served) -> None:
        await asyncio.to_thread(send, "large")
        deaf = await subscribed(served, "s", SHARED, "deaf")
        await at_rest(served, 1)
        peer = await subscribed(served, "s", SHARED, "peer")
        await at_rest(served, 2)
        for last in (deaf, peer):  # until each has taken the last message, in this order
            taken = None
            while taken is not last:
                await asyncio.to_thread(send, "lone", b"x")
                taken = await first_of(deaf, peer)
                await at_rest(served, 2)
        fields = {"topic": "persistent://public/default/large", "subscription": "s"}
        await deaf.ask("subscribe", consumer_id=2, request_id=2, subType=EXCLUSIVE, **fields)
        deaf.send("flow", consumer_id=2, messagePermits=100)
        await asyncio.to_thread(send, "large", *[bytes(4 << 20)] * 5)
        while served.service.backlog.used <= connection.UNSENT_BYTES_MAX:
            await asyncio.sleep(0)
        await asyncio.to_thread(send, "lone", b"y")
        await delivered(peer)

    serving(tmp_path, program)


def test_a_message_of_another_process_waits_for_no_send_of_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server waits a moment for its own send, which may have caused the event of a flush.

    Kills: it waits until the send has ended.
    """
    begun, goes_on = threading.Event(), threading.Event()
    store_group = group_commit.store_group

    def held(*args: Any) -> Any:
        begun.set()
        goes_on.wait(60)
        return store_group(*args)

    async def program(served: Served) -> None:
        client, producer = await subscribed(served, "s", EXCLUSIVE, "c"), await served.connected()
        await producer.ask("producer", topic=TOPIC, producer_id=1, request_id=2)
        with txlog.open(str(tmp_path / "store")) as other:
            sender = other.producer("lone")
            await asyncio.to_thread(sender.send, b"so that it changes nothing but the topic later")
            await delivered(client)
            await at_rest(served, 2)  # with the watch of the catalog
            monkeypatch.setattr(group_commit, "store_group", held)
            producer.message(b"of the server", {"producer_id": 1}, {}, sequence_id=0)
            try:
                assert await asyncio.to_thread(begun.wait, 20)
                await asyncio.to_thread(sender.send, b"of another process")
                await asyncio.wait_for(delivered(client), 20)
            finally:
                goes_on.set()
            await delivered(client)

    serving(tmp_path, program, seconds=60)


def test_a_lease_that_is_refused_fails_alone(tmp_path: Path) -> None:
    """Ten subscriptions look together, and the store refuses the lease of one."""

    async def program(served: Served) -> None:
        clients = [await subscribed(served, f"s{n}", EXCLUSIVE, "c") for n in range(10)]
        await sent_one_by_one(served, clients, 10, 0)
        refused = 0

        def decided(view: Any, settings: Any, now: Any, wants: Any) -> Any:
            nonlocal refused
            if wants.subscription == first and refused < 1:
                refused += 1
                raise TryAgain("for a test")
            return lease.receive(view, settings, now, wants)

        with pytest.MonkeyPatch.context() as patch:
            store = served.service.store.store
            first = store.read(lambda view: min(view.catalog.subscriptions))
            patch.setattr("txlog.engine.session.consuming.receive.receive", decided)
            producer = await served.connected()
            await producer.ask("producer", topic=TOPIC, producer_id=1, request_id=2)
            producer.message(b"x", {"producer_id": 1}, {}, sequence_id=MESSAGES)
            for client in clients:
                assert (await delivered(client)).redelivery_count == 0
        assert refused == 1

    serving(tmp_path, program, seconds=60)


def test_a_consumer_without_permits_gets_nothing_of_the_one_before(tmp_path: Path) -> None:
    """A consumer closes while its look waits for the store's thread, and another takes its place.

    Kills: the other one, which has no permits, gets the messages of that look.
    """
    begun, goes_on = threading.Event(), threading.Event()

    def create() -> None:
        with txlog.open(str(tmp_path / "store")) as client:
            client.create_topic("two", partitions=2)

    async def program(served: Served) -> None:
        await asyncio.to_thread(create)
        client, producer = await served.connected(), await served.connected()
        names = [f"persistent://public/default/two-partition-{partition}" for partition in (0, 1)]
        fields = {"subscription": "s", "subType": SHARED, "consumer_name": "c"}
        for number, topic in enumerate(names, 1):
            await client.ask("subscribe", consumer_id=number, request_id=1, topic=topic, **fields)
            client.send("flow", consumer_id=number, messagePermits=10)
        await producer.ask("producer", topic=names[0], producer_id=1, request_id=2)
        await at_rest(served, 1)
        together = served.service.client.waits.together
        held = asyncio.create_task(together.run(lambda: goes_on.wait(60), None, begun.set))
        try:
            assert await asyncio.to_thread(begun.wait, 20)
            producer.message(b"x", {"producer_id": 1}, {}, sequence_id=0)
            while not together._jobs:  # the look
                await asyncio.sleep(0)
            assert (await client.ask("close_consumer", consumer_id=1, request_id=7)).request_id == 7
            client.send("subscribe", consumer_id=3, request_id=8, topic=names[0], **fields)
            while not served.service.client.worker._pool._work_queue.qsize():
                await asyncio.sleep(0)
        finally:
            goes_on.set()
        await held
        assert FIELDS[(await client.answer()).type] == "success"
        await at_rest(served, 1)
        client.send("ping")
        assert FIELDS[(await client.answer()).type] == "pong"
        client.send("flow", consumer_id=3, messagePermits=1)
        message = await delivered(client)
        assert (message.consumer_id, message.redelivery_count) == (3, 0)

    serving(tmp_path, program, seconds=60)


def test_a_new_consumer_gets_what_the_one_before_gives_back_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection of a client ends, and its next one subscribes before the messages are back.

    Kills: it takes the partition at once, and gets later messages before those that come back.
    """
    give_back = StoreConsumer.give_back

    def create() -> None:
        with txlog.open(str(tmp_path / "store")) as client:
            client.create_topic("two", partitions=2)

    async def program(served: Served) -> None:
        goes_on = asyncio.Event()

        async def held(consumer: StoreConsumer, runs: Any) -> None:
            await goes_on.wait()
            await give_back(consumer, runs)

        monkeypatch.setattr(StoreConsumer, "give_back", held)
        await asyncio.to_thread(create)
        client, producer = await served.connected(), await served.connected()
        names = [f"persistent://public/default/two-partition-{partition}" for partition in (0, 1)]
        fields = {"subscription": "s", "subType": EXCLUSIVE, "consumer_name": "c"}
        for number, topic in enumerate(names, 1):
            await client.ask("subscribe", consumer_id=number, request_id=1, topic=topic, **fields)
            client.send("flow", consumer_id=number, messagePermits=10)
        await producer.ask("producer", topic=names[0], producer_id=1, request_id=2)
        producer.message(b"x", {"producer_id": 1}, {}, sequence_id=0)
        first, other = await delivered(client), await served.connected()

        async def joined() -> Any:
            await other.ask("subscribe", consumer_id=3, request_id=8, topic=names[0], **fields)
            other.send("flow", consumer_id=3, messagePermits=10)
            return await delivered(other)

        client.send("close_consumer", consumer_id=1, request_id=7)
        joining = asyncio.create_task(joined())
        producer.message(b"y", {"producer_id": 1}, {}, sequence_id=1)
        for _ in range(50):  # the calls of the store that the subscription and a look need
            await served.service.client.worker.run(int)
        goes_on.set()
        assert (await joining).message_id.entryId == first.message_id.entryId

    serving(tmp_path, program, seconds=60)
