"""Owns the process of a client of the server, on another machine: it never touches the disk."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

from tests.simulation.agent import Agent
from tests.simulation.client_moves import renew, seek_behind
from tests.simulation.loop import SimulatedLoop, run_in_loop
from tests.simulation.network import Link
from tests.simulation.pulsar_client import (
    ClientConsumer,
    ClientProducer,
    Lost,
    PulsarClient,
    Received,
    Refused,
)
from tests.simulation.scenario import MESSAGE_KEYS
from tests.simulation.server_agent import PORT
from txlog.base.ids import TxnId
from txlog.clock import SystemClock
from txlog.serve.pulsar.ids import STEP

COORDINATOR_TOPIC = "persistent://pulsar/system/transaction_coordinator_assign-partition-0"
VERSION = "Pulsar-Java-v4.0.0"


def url_of(topic: str, partition: int, count: int) -> str:
    """A partition as clients name it."""
    name = f"persistent://public/default/{topic}"
    return f"{name}-partition-{partition}" if count else name


class Group:
    """The consumers of all partitions of a topic that a client has on a subscription.

    name: in the history; another one after each time that it was detached
    """

    def __init__(self, agent: ClientAgent, topic: str, subscription: str) -> None:
        self.agent, self.topic, self.subscription = agent, topic, subscription
        self.kind: str = agent.topics[topic].kinds[subscription]
        self.queue: deque[Received] = deque()
        self.parts: list[ClientConsumer] = []
        self.came = asyncio.Event()
        self.name = ""
        self.is_attached = False
        self._link: Any = None
        self._closing: int | None = None

    def closes(self) -> None:
        """The server may give the messages of the consumers to others from now on."""
        if self.is_attached and self._closing is None and self.agent.process.is_alive:
            recorder, facts = self.agent.recorder, {"subscription": self.subscription}
            self._closing = recorder.invoke(
                self.agent.process.name, "close", consumer=self.name, topic=self.topic, **facts
            )

    def has_closed(self) -> None:
        """The server has given them back."""
        self.closes()
        if self._closing is not None and self.agent.process.is_alive:
            self.agent.recorder.ok(self._closing)
            self._closing = None

    def detached(self) -> None:
        """A consumer has no connection any more, or the server has closed it."""
        if self.is_attached and self.agent.process.is_alive:
            self.closes()
            self.is_attached = False
            if not self.agent.client_of.is_closed:
                self.agent.client_of.begin(self._attach_again())

    def received(self, messages: list[Received]) -> None:
        """Messages came: in the history they are received now, whenever somebody takes them."""
        recorder, process = self.agent.recorder, self.agent.process.name
        facts = {"topic": self.topic, "subscription": self.subscription}
        call = recorder.invoke(process, "receive", consumer=self.name, **facts)
        rows = [row_of(self.topic, message) for message in messages]
        part = messages[0].consumer if messages else self.parts[0]
        assert part.connection is not None
        recorder.ok(call, messages=rows, mark=part.connection.transport.mark)
        self.came.set()

    async def attached(self) -> None:
        """Wait for the end of a reconnect; raises Lost."""
        for _ in range(50):
            if self.is_attached:
                return
            await asyncio.sleep(0.1)
        raise Lost("not attached")

    async def _attach_again(self) -> None:
        await asyncio.sleep(0.1)
        try:
            await self.attach()
        except (Refused, Lost):
            self.agent.groups.pop((self.topic, self.subscription), None)

    async def attach(self) -> None:
        """Subscribe with all partitions; raises Refused, Lost."""
        agent = self.agent
        agent.memory.count += 1
        place = f"{agent.memory.incarnation}.{agent.memory.count}.{self.topic}"
        self.name = f"{agent.process.name}.{place}.{self.subscription}"
        fresh = [part for part in self.parts if not part.is_ready]
        facts = {"topic": self.topic, "subscription": self.subscription}
        await agent.recorded(
            "subscribe", self._attach, lambda _: {}, consumer=self.name, kind=self.kind, **facts
        )
        self.is_attached = True
        for part in self.parts:
            if part in fresh and part.is_ready:
                part.flow(part.window)

    async def _attach(self) -> None:
        for part in self.parts:
            await self.agent.client_of.retry(part.subscribe)
        connection = self.parts[0].connection
        assert connection is not None
        link = connection.transport.link
        if link is self._link:  # only the server had closed some
            self.has_closed()
        elif self._closing is not None:
            self._end_later(self._link, self._closing)
            self._closing = None
        if link is not self._link:
            link.on_broken.append(self.closes)
            self._link = link

    def _end_later(self, link: Link, call: int) -> None:
        """A close ends when the server has closed its end of the connection."""

        def end() -> None:
            if self.agent.process.is_alive:
                self.agent.recorder.ok(call)

        if link.server.is_gone():
            end()
        else:
            link.server.on_lost.append(end)


class ClientAgent(Agent):
    """One life of a client process."""

    client_of: PulsarClient
    last_value = ""  # of the message that was sent last

    def live(self) -> None:
        """Perform the operations that are left."""
        run_in_loop(self.process, self._main)

    def begin(self) -> bool:
        """Make the client; False: there is no server."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        servers = [plan.name for plan in self.scenario.processes if plan.kind == "server"]
        self.client_of = PulsarClient(loop, [(name, PORT) for name in servers], VERSION)
        self.groups: dict[tuple[str, str], Group] = {}
        self.outgoing: dict[tuple[str, int, str, str | None], ClientProducer] = {}
        self.receipts: list[asyncio.Task[None]] = []
        self.has_coordinator = False
        return bool(servers)

    async def _main(self) -> None:
        operations = self.plan.operations if self.begin() else []
        while self.memory.next < len(operations):
            operation = operations[self.memory.next]
            self.memory.next += 1
            try:
                await getattr(self, f"do_{operation['op']}")(operation)
            except (Refused, Lost):
                continue
        for producer in self.outgoing.values():
            producer.flush()
        await asyncio.gather(*self.receipts)
        self.client_of.close()

    async def recorded(
        self,
        op: str,
        act: Callable[[], Awaitable[Any]],
        answer: Callable[[Any], dict[str, Any]],
        **args: Any,
    ) -> Any:
        """Make a call and record it with its outcome."""
        call = self.recorder.invoke(self.process.name, op, **args)
        return await self._outcome(call, act, answer)

    async def _outcome(
        self, call: int, act: Callable[[], Awaitable[Any]], answer: Callable[[Any], dict[str, Any]]
    ) -> Any:
        try:
            result = await act()
        except Lost as error:
            if self.process.is_alive:
                self.recorder.unknown(call, error)
            raise
        except Refused as error:
            if self.process.is_alive:
                self.recorder.fail(call, str(error.args[0]))
            raise
        if self.process.is_alive:
            self.recorder.ok(call, **answer(result))
        return result

    # --- producing ----------------------------------------------------------------------------

    async def _client_producer(
        self, topic: str, key: str | None, batching: str, name: str | None
    ) -> ClientProducer:
        count = await self.client_of.partitions(topic_url(topic))
        partition = 0
        if count:
            partition = sum(map(ord, key)) % count if key else self.memory.count % count
        at = topic, partition, batching, name
        producer = self.outgoing.get(at)
        if producer is not None and not producer.is_over:
            return producer
        own_name = None if name is None else f"{self.process.name}-{name}-{batching}"
        producer = ClientProducer(
            self.client_of, url_of(topic, partition, count), partition, own_name, batching
        )
        await producer.open()
        self.outgoing[at] = producer
        for sequence, (value, old_key, due) in sorted(self._pending_of(producer).items()):
            self._send_plain(producer, topic, value, old_key, due, sequence)
        producer.flush()
        return producer

    def _pending_of(
        self, producer: ClientProducer
    ) -> dict[int, tuple[str, str | None, int | None]]:
        """What this producer, in an earlier life, had sent and got no receipt for."""
        if not producer.is_own_name:
            return {}
        return self.memory.pending.setdefault(f"{producer.topic} {producer.name}", {})

    def _send_plain(
        self,
        producer: ClientProducer,
        topic: str,
        value: str,
        key: str | None,
        due: int | None,
        sequence: int | None = None,
    ) -> None:
        """Send a message outside of a transaction; a producer with a name repeats it if need be."""
        facts = self._facts(producer, topic, value, key, due)
        number = producer.next_sequence if sequence is None else sequence
        assert number is not None
        pending = self._pending_of(producer)
        if producer.is_own_name:
            facts |= {"producer": producer.name, "sequence": number}
            pending[number] = value, key, due
        call = self.recorder.invoke(self.process.name, "send", **facts)
        future = producer.send(value, key, due, None, sequence)

        async def settle() -> None:
            await self._receipt(call, future, producer.partition)
            pending.pop(number, None)

        self.receipts.append(asyncio.ensure_future(settle()))

    def _facts(
        self, producer: ClientProducer, topic: str, value: str, key: str | None, due: int | None
    ) -> dict[str, Any]:
        facts: dict[str, Any] = {"topic": topic, "value": value, "partition": producer.partition}
        facts["session"] = f"{self.process.name}.{self.memory.incarnation}.{producer.number}"
        if key:
            facts["key"] = key
        if due is not None:
            facts["deliver_at_ms"] = due
            facts["session"] += f".{value}"
        elif producer.batching == "key":
            facts["session"] += f".{key}"
        return facts

    async def do_produce(self, op: dict[str, Any]) -> None:
        """Send some messages."""
        await self.send_all(op, op["topic"], None, None)
        if op["wait"]:
            await asyncio.gather(*self.receipts)
            self.receipts.clear()

    async def send_all(
        self, op: dict[str, Any], topic: str, txn: Any, txn_id: str | None
    ) -> list[asyncio.Task[None]]:
        """Send the messages of an operation; the tasks end with their receipts."""
        tasks, used = list[asyncio.Task[None]](), list[ClientProducer]()
        for key, after_ms in op["messages"]:
            batching = op["batching"]
            producer = await self._client_producer(topic, key, batching, op["producer"])
            value = self.last_value = self._value()
            due = None if after_ms is None else SystemClock().now().wall_ms + after_ms
            used.append(producer)
            if txn is None:
                self._send_plain(producer, topic, value, key, due)
                tasks.append(self.receipts[-1])
                continue
            facts = self._facts(producer, topic, value, key, due) | {"txn": txn_id}
            facts["session"] += f".{txn_id}"
            call = self.recorder.invoke(self.process.name, "send", **facts)
            future = producer.send(value, key, due, txn)
            tasks.append(asyncio.ensure_future(self._receipt(call, future, producer.partition)))
        for producer in used:
            producer.flush()
        return tasks

    async def _receipt(self, call: int, future: asyncio.Future[Any], partition: int) -> None:
        def answer(place: tuple[int, int] | None) -> dict[str, Any]:
            facts: dict[str, Any] = {"partition": partition}
            if place is not None:
                facts["id"] = f"{place[0]}:{place[1]}"
            return facts

        async def wait() -> Any:
            return await future

        try:
            await self._outcome(call, wait, answer)
        except (Refused, Lost):
            return

    # --- consuming ----------------------------------------------------------------------------

    async def group(self, topic: str, subscription: str, window: int) -> Group:
        """The consumers of a subscription, opened if need be; raises Refused, Lost."""
        at = topic, subscription
        group = self.groups.get(at)
        if group is not None:
            await group.attached()
            return group
        group = Group(self, topic, subscription)
        count = await self.client_of.partitions(topic_url(topic))
        self.memory.count += 1
        name = f"{self.process.name}-{self.memory.count}"
        for partition in range(max(1, count)):
            group.parts.append(
                ClientConsumer(
                    self.client_of,
                    url_of(topic, partition, count),
                    partition,
                    subscription,
                    group.kind,
                    name,
                    window,
                    group.queue,
                    group.detached,
                    group.received,
                )
            )
        try:
            await group.attach()
        except (Refused, Lost):
            for part in group.parts:
                del self.client_of.consumers[part.number]
            raise
        self.groups[at] = group
        return group

    async def _taken(self, op: dict[str, Any]) -> tuple[list[Received], Group]:
        group = await self.group(op["topic"], op["subscription"], op["window"])
        messages: list[Received] = []
        try:
            async with asyncio.timeout(op["timeout_s"]):
                while len(messages) < op["take"]:
                    group.came.clear()
                    if group.queue:
                        message = group.queue.popleft()
                        message.consumer.took()
                        messages.append(message)
                    else:
                        await group.came.wait()
        except TimeoutError:
            pass
        return messages, group

    async def do_take(self, op: dict[str, Any]) -> None:
        """Receive, and do something with it."""
        received, group = await self._taken(op)
        then = op["then"]
        if not received or then == "nothing":
            return
        facts = acked_of(op, group, received)
        if then == "redeliver":
            await self._redeliver(group, received, facts, whole=False)
        elif then == "redeliver_all":
            await self._redeliver(group, received, facts, whole=True)
        elif then == "cumulative" and group.kind in ("exclusive", "failover"):
            last = received[-1]
            await self.recorded(
                "acknowledge",
                partial(last.consumer.acknowledge_cumulative, last),
                lambda _: {},
                **acked_of(op, group, [last]),
                partition=last.partition,
                cumulative=True,
            )
        else:
            await self.acknowledge(op, group, received, None, None)

    async def _redeliver(
        self, group: Group, received: list[Received], facts: dict[str, Any], *, whole: bool
    ) -> None:
        if whole:
            facts = {key: facts[key] for key in ("topic", "subscription", "consumer")}
        call = self.recorder.invoke(self.process.name, "redeliver" if whole else "nack", **facts)
        for part in group.parts:
            own = [message for message in received if message.consumer is part]
            if whole or own:
                part.redeliver([] if whole else own)
        self.recorder.unknown(call, "NoAnswer")

    async def acknowledge(
        self,
        op: dict[str, Any],
        group: Group,
        received: list[Received],
        txn: Any,
        txn_id: str | None,
    ) -> None:
        """Acknowledge messages; raises Refused, Lost."""
        for part in group.parts:
            own = [message for message in received if message.consumer is part]
            if not own:
                continue
            facts = acked_of(op, group, own)
            if txn_id is not None:
                facts["txn"] = txn_id
            await self.recorded(
                "acknowledge", partial(part.acknowledge, own, txn), lambda _: {}, **facts
            )

    async def do_seek(self, op: dict[str, Any]) -> None:
        """Move the subscription to its beginning or end; the server closes the consumers."""
        group = await self.group(op["topic"], op["subscription"], op["window"])
        facts = {"topic": op["topic"], "subscription": op["subscription"], "to": op["to"]}

        async def seek() -> None:
            from txlog.serve.pulsar.messages import MessageIdData

            end = (1 << 63) - 1
            place = end if op["to"] == "latest" else (1 << 64) - 1
            for part in group.parts:
                if part.connection is None or not part.is_ready:
                    raise Lost("there is no connection")
                named = MessageIdData(ledgerId=place, entryId=place)
                await part.connection.ask("seek", consumer_id=part.number, message_id=named)

        group.closes()  # the server closes the consumers before their client hears of it
        await self.recorded("seek", seek, lambda _: {}, **facts)

    async def do_seek_behind(self, op: dict[str, Any]) -> None:
        """Receive, acknowledge, and move to the beginning before the answers come."""
        received, group = await self._taken(op)
        if received:
            facts = acked_of(op, group, received)
            await seek_behind(self, group, received, facts, op["pause_s"])

    async def do_renew(self, op: dict[str, Any]) -> None:
        """Send, close the producer and open it again at once, and send more."""
        topic, key = op["topic"], op["messages"][0][0]
        producers = [
            await self._client_producer(topic, each, "plain", "n1") for each in (*MESSAGE_KEYS, key)
        ]  # those of other partitions keep the producer of the store open
        producer = producers[-1]
        for old_key, _ in op["messages"]:
            self._send_plain(producer, topic, self._value(), old_key, None)
            producer.flush()  # each is a frame of the store of its own
        self._pending_of(producer).clear()
        fresh = await renew(self, producer)
        self.outgoing[topic, producer.partition, "plain", "n1"] = fresh
        for old_key, _ in op["messages"]:
            self._send_plain(fresh, topic, self._value(), old_key, None)
        fresh.flush()

    # --- transactions -------------------------------------------------------------------------

    async def do_transact(self, op: dict[str, Any]) -> None:
        """Receive, send and acknowledge in a transaction."""
        if not self.has_coordinator:
            await self.client_of.lookup(COORDINATOR_TOPIC)
            await self.client_of.ask("tcClientConnectRequest", tc_id=0)
            self.has_coordinator = True
        received, group = await self._taken(op) if op["take"] else ([], None)
        copies = {message.value: message for message in received}
        received = [*copies.values()]
        begun = await self.recorded("begin", partial(self._begin, op), named)
        txn = begun.txnid_most_bits, begun.txnid_least_bits
        txn_id = str(TxnId.from_halves(*txn))
        halves = {"txnid_most_bits": txn[0], "txnid_least_bits": txn[1]}
        end = op["end"]
        returning = self._may_return(op, group, received)
        try:
            await self._fill_txn(op, txn, txn_id, halves, received, group)
        except (Refused, Lost):
            end = "abort"
        await self.recorded(
            end,
            lambda: self.client_of.ask("endTxn", txn_action=int(end == "abort"), **halves),
            lambda _: {},
            txn=txn_id,
        )
        if returning is not None and end == "commit" and self.process.is_alive:
            self.recorder.fail(returning, "Committed")

    def _may_return(
        self, op: dict[str, Any], group: Group | None, received: list[Received]
    ) -> int | None:
        """An abort also returns the rest of the batches in which messages were acknowledged."""
        if group is None or not any(message.size for message in received):
            return None
        facts = {"topic": op["topic"], "subscription": op["subscription"]}
        return self.recorder.invoke(self.process.name, "redeliver", consumer=group.name, **facts)

    async def _begin(self, op: dict[str, Any]) -> Any:
        return await self.client_of.ask("newTxn", txn_ttl_seconds=op["ttl_ms"], tc_id=0)

    async def _fill_txn(
        self,
        op: dict[str, Any],
        txn: Any,
        txn_id: str,
        halves: dict[str, int],
        received: list[Received],
        group: Group | None,
    ) -> None:
        from txlog.serve.pulsar.messages import message_class

        tasks: list[asyncio.Task[None]] = []
        for topic in op["to"]:
            await self.client_of.ask("addPartitionToTxn", partitions=[topic_url(topic)], **halves)
            tasks += await self.send_all(op, topic, txn, txn_id)
        if received and group is not None:
            place = message_class("Subscription")(
                topic=topic_url(op["topic"]), subscription=op["subscription"]
            )
            await self.client_of.ask("addSubscriptionToTxn", subscription=[place], **halves)
            await self.acknowledge(op, group, received, txn, txn_id)
        await asyncio.gather(*tasks)

    # --- the rest -----------------------------------------------------------------------------

    async def do_rest(self, op: dict[str, Any]) -> None:
        """Do nothing for a while."""
        await asyncio.sleep(op["seconds"])

    async def do_hang_up(self, op: dict[str, Any]) -> None:
        """Break its own connection."""
        (await self.client_of.connection()).close()


def topic_url(topic: str) -> str:
    """A topic as clients name it."""
    return f"persistent://public/default/{topic}"


def named(begun: Any) -> dict[str, Any]:
    """The transaction of an answer."""
    return {"txn": str(TxnId.from_halves(begun.txnid_most_bits, begun.txnid_least_bits))}


def row_of(topic: str, message: Received) -> dict[str, Any]:
    """A received message; `resolve` turns its place into an id."""
    entry, part = divmod(message.entry, STEP)
    return {
        "topic": topic,
        "partition": message.partition,
        "id": f"{message.ledger}:{entry}",
        "at": part - 1 if part else max(message.at, 0),
        "value": message.value,
        "key": message.key,
        "redelivered": message.redelivered,
    }


def acked_of(op: dict[str, Any], group: Group, messages: list[Received]) -> dict[str, Any]:
    """The arguments of an acknowledgement."""
    return {
        "topic": op["topic"],
        "subscription": op["subscription"],
        "consumer": group.name,
        "values": [message.value for message in messages],
    }


def resolve(events: list[Any]) -> None:
    """Give received messages their ids of the store, and let a delivery begin where it was sent.

    A place in a batch is an entry of its own, or of a transaction an index in one. Reads by others
    say which, else the send does.
    """
    seen = set(_seen(events))
    in_txn = {
        event.args["value"]
        for event in events
        if event.op == "send" and event.type == "invoke" and "txn" in event.args
    }
    known: dict[tuple[str, str], str] = {}
    for event in events:
        if event.args.get("cumulative") and "ids" not in event.args:
            topic = event.args["topic"]
            event.args["ids"] = [known[topic, value] for value in event.args.pop("values")]
        for message in event.answer.get("messages", ()):
            at = message.pop("at", None)
            if at is None:
                continue
            topic, value = message["topic"], message["value"]
            ledger, _, entry = message["id"].partition(":")
            plain, inner = f"{ledger}:{int(entry) + at}", f"{ledger}:{entry}:{at + 1}"
            is_inner = (topic, value, inner) in seen
            is_plain = (topic, value, plain) in seen
            message["id"] = inner if is_inner or (value in in_txn and not is_plain) else plain
            known[topic, value] = message["id"]
    _move_deliveries(events)


def _move_deliveries(events: list[Any]) -> None:
    """Let messages be received when the server wrote them to the network.

    While they travel, their server may die, and others receive them.
    """
    marks = {event.call: event.answer.pop("mark") for event in events if "mark" in event.answer}

    def place(event: Any) -> float:
        if event.call not in marks:
            return float(event.n)
        return float(marks[event.call]) - (0.6 if event.type == "invoke" else 0.5)

    events.sort(key=place)
    for number, event in enumerate(events):
        event.n = number


def _seen(events: list[Any]) -> Iterator[tuple[str, str, str]]:
    """Topic, value and id of what processes with the store at hand saw."""
    for event in events:
        for topic, partitions in event.answer.get("topics", {}).items():
            for rows in partitions.values():
                yield from ((topic, value, place) for place, value in rows)
        for message in event.answer.get("messages", ()):
            if "at" not in message:
                yield message.get("topic", ""), message["value"], message["id"]
