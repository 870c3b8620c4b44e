"""Owns a client of Pulsar's protocol that behaves as stock clients do.

    connection  one for all producers and consumers; pings, and gives up after a silence
    producer    batches, also by key; delayed messages bypass the batch; every SEND without a
                receipt is sent again after a reconnect, in the same order, with the same numbers
    consumer    permits by FLOW, a queue that is dropped at a reconnect, acknowledgements of single
                messages of a batch by its bits
    client      lookups, requests with time-outs, transactions

Source: the Java client (ProducerImpl, ConsumerImpl, BatchMessageKeyBasedContainer).
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from tests.simulation.loop import SimulatedLoop
from txlog.clock import SystemClock
from txlog.serve.pulsar import wire
from txlog.serve.pulsar.ids import STEP
from txlog.serve.pulsar.messages import (
    FIELDS,
    MessageIdData,
    MessageMetadata,
    SingleMessageMetadata,
)

OPERATION_S, SEND_S, PING_S = 30.0, 30.0, 30.0
RETRY_S, RETRY_MAX_S = 0.1, 5.0
TRIES = 8  # of an operation that the server refuses
NOT_AGAIN = ("ProducerFenced", "TopicNotFound", "NotAllowedError", "IncompatibleSchema")
DOUBTFUL = ("PersistenceError", "UnknownError", "ServiceNotReady")  # it may have had an effect
SUB_TYPES = {"exclusive": 0, "shared": 1, "failover": 2, "key_shared": 3}
_SIZE = struct.Struct(">I")


class Refused(Exception):
    """The server answered with an error; nothing was done."""


class Lost(Exception):
    """The connection broke, or time ran out: nobody knows what was done."""


def _name_of(error: int) -> str:
    from txlog.serve.pulsar.messages import ERRORS

    return next((name for name, number in ERRORS.items() if number == error), str(error))


class Connection(asyncio.Protocol):
    """A connection to a server."""

    def __init__(self, client: PulsarClient) -> None:
        self.client = client
        self.transport: Any = None
        self.is_lost = False
        self._frames = wire.FrameDecoder(1 << 24)
        self.waiting: dict[int, asyncio.Future[Any]] = {}
        self.connected: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._heard = asyncio.get_running_loop().time()
        self._pinger: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.send("connect", client_version=self.client.version, protocol_version=19)
        self._pinger = asyncio.get_running_loop().call_later(PING_S, self._ping)

    def send(self, name: str, **fields: object) -> None:
        """Write a command."""
        if not self.is_lost:
            self.transport.write(wire.encode_command(name, **fields))

    def _ping(self) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() - self._heard > 2 * PING_S:
            self.close()
            return
        self.send("ping")
        self._pinger = loop.call_later(PING_S, self._ping)

    def data_received(self, data: bytes) -> None:
        self._heard = asyncio.get_running_loop().time()
        for frame in self._frames.feed(data):
            self._handle(FIELDS[frame.kind], frame.body, frame.trailer)

    def _handle(self, name: str, body: Any, trailer: memoryview) -> None:
        client = self.client
        if name == "connected":
            if not self.connected.done():
                self.connected.set_result(None)
        elif name == "ping":
            self.send("pong")
        elif name in ("send_receipt", "send_error", "close_producer"):
            producer = client.producers.get(body.producer_id)
            if producer is not None and producer.connection is self:
                getattr(producer, f"on_{name}")(body)
        elif name in ("message", "close_consumer", "active_consumer_change"):
            consumer = client.consumers.get(body.consumer_id)
            if consumer is not None and consumer.connection is self:
                getattr(consumer, f"on_{name}")(body, trailer)
        elif "request_id" in body.DESCRIPTOR.fields_by_name:
            self._answer(name, body)

    def _answer(self, name: str, body: Any) -> None:
        is_more = name == "producer_success" and not body.producer_ready
        future = self.waiting.get(body.request_id)
        if future is None or future.done() or is_more:
            return
        del self.waiting[body.request_id]
        has_error = "error" in body.DESCRIPTOR.fields_by_name and body.HasField("error")
        if has_error:
            error = _name_of(body.error)
            kind = Lost if error in DOUBTFUL else Refused
            future.set_exception(kind(error, body.message))
        else:
            future.set_result(body)

    async def ask(self, name: str, **fields: object) -> Any:
        """Send a request, and wait for its answer; raises Refused, Lost."""
        if self.is_lost:
            raise Lost("there is no connection")
        number = self.client.new_request()
        future = self.waiting[number] = asyncio.get_running_loop().create_future()
        self.send(name, request_id=number, **fields)
        try:
            async with asyncio.timeout(OPERATION_S):
                return await future
        except TimeoutError:
            raise Lost("no answer") from None
        finally:
            self.waiting.pop(number, None)

    def close(self) -> None:
        """End it; its producers and consumers reconnect."""
        if self.transport is not None:
            self.transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = True
        if self._pinger is not None:
            self._pinger.cancel()
        for future in [self.connected, *self.waiting.values()]:
            if not future.done():
                future.set_exception(Lost("the connection broke"))
                future.exception()
        self.waiting.clear()
        self.client.on_lost(self)


class PulsarClient:
    """A client: one connection at a time, to one of some servers.

    on_consumer_lost: called when the connection of a consumer is gone
    numbers_anew: as C++'s: a producer that has no receipt yet numbers from the server's answer on
    """

    numbers_anew = False

    def __init__(self, loop: SimulatedLoop, addresses: list[tuple[str, int]], version: str) -> None:
        self.loop, self.addresses, self.version = loop, addresses, version
        self.producers: dict[int, ClientProducer] = {}
        self.consumers: dict[int, ClientConsumer] = {}
        self.is_closed = False
        self._connection: Connection | None = None
        self._connecting = asyncio.Lock()
        self._requests = self._ids = self._tries = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self.failures: list[BaseException] = []

    def new_request(self) -> int:
        """The number of a request."""
        self._requests += 1
        return self._requests

    def new_id(self) -> int:
        """The number of a producer or consumer."""
        self._ids += 1
        return self._ids

    def begin(self, work: Any) -> asyncio.Task[Any]:
        """Run a coroutine in the background."""
        task: asyncio.Task[Any] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def connection(self) -> Connection:
        """The connection; raises Lost."""
        async with self._connecting:
            current = self._connection
            if current is not None and not current.is_lost:
                return current
            self._tries += 1
            host, port = self.addresses[self._tries % len(self.addresses)]
            try:
                async with asyncio.timeout(OPERATION_S):
                    _, made = await self.loop.create_connection(
                        partial(Connection, self), host, port
                    )
                    await made.connected
            except (OSError, TimeoutError):
                raise Lost("nobody answers") from None
            assert isinstance(made, Connection)
            self._connection = made
            return made

    def on_lost(self, connection: Connection) -> None:
        """A connection is gone."""
        users: list[Any] = [*self.producers.values(), *self.consumers.values()]
        for each in users:
            if each.connection is connection:
                each.on_lost()

    async def ask(self, name: str, **fields: object) -> Any:
        """A request on the current connection."""
        return await (await self.connection()).ask(name, **fields)

    async def retry(self, act: Callable[[], Any], tries: int = TRIES) -> Any:
        """Try until it succeeds; raises the last Refused or Lost."""
        pause = RETRY_S
        for number in range(tries):
            try:
                return await act()
            except (Refused, Lost) as error:
                is_final = isinstance(error, Refused) and error.args[0] in NOT_AGAIN
                if is_final or number == tries - 1 or self.is_closed:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, RETRY_MAX_S)
        raise AssertionError

    async def partitions(self, topic: str) -> int:
        """How many partitions a topic has; 0: it is not partitioned."""
        answer = await self.retry(lambda: self.ask("partitionMetadata", topic=topic))
        return int(answer.partitions)

    async def lookup(self, topic: str) -> None:
        """Ask for the server of a topic."""
        await self.ask("lookupTopic", topic=topic)

    def close(self) -> None:
        """Hang up, and stop reconnecting."""
        self.is_closed = True
        for task in list(self._tasks):
            task.cancel()
        if self._connection is not None:
            self._connection.close()


# --- producing ------------------------------------------------------------------------------------


class Message(NamedTuple):
    """A message to send, and who waits for its receipt."""

    sequence: int
    value: str
    key: str | None
    future: asyncio.Future[Any]


class PendingSend:
    """A SEND without a receipt."""

    def __init__(
        self, messages: list[Message], is_batch: bool, deliver_at: int | None, txn: Any
    ) -> None:
        self.messages, self.is_batch = messages, is_batch
        self.deliver_at, self.txn = deliver_at, txn
        self.lowest = messages[0].sequence
        self.highest = messages[-1].sequence
        self.since = asyncio.get_running_loop().time()

    def frame(self, producer: ClientProducer) -> bytes:
        """Its bytes."""
        head = MessageMetadata(producer_name=producer.name, sequence_id=self.lowest)
        head.publish_time = SystemClock().now().wall_ms
        if self.deliver_at is not None:
            head.deliver_at_time = self.deliver_at
        if self.txn is not None:
            head.txnid_most_bits, head.txnid_least_bits = self.txn
        first = self.messages[0]
        if first.key is not None and (not self.is_batch or producer.batching == "key"):
            head.partition_key = first.key
        payload = first.value.encode()
        if self.is_batch:
            head.num_messages_in_batch = len(self.messages)
            head.highest_sequence_id = self.highest
            payload = b"".join(map(_single, self.messages))
        command = wire.make_command(
            "send",
            producer_id=producer.number,
            sequence_id=self.lowest,
            num_messages=len(self.messages) if self.is_batch else None,
            highest_sequence_id=self.highest if len(self.messages) > 1 else None,
            txnid_most_bits=None if self.txn is None else self.txn[0],
            txnid_least_bits=None if self.txn is None else self.txn[1],
        )
        pieces = wire.message_frame(command.SerializeToString(), head.SerializeToString(), payload)
        return b"".join(map(bytes, pieces))

    def end(self, error: BaseException | None, answer: Callable[[int], Any]) -> None:
        """Answer everybody who waits."""
        for at, message in enumerate(self.messages):
            if message.future.done():
                continue
            if error is not None:
                message.future.set_exception(error)
                message.future.exception()
            else:
                message.future.set_result(answer(at))


def _single(message: Message) -> bytes:
    value = message.value.encode()
    head = SingleMessageMetadata(payload_size=len(value), sequence_id=message.sequence)
    if message.key is not None:
        head.partition_key = message.key
    data: bytes = head.SerializeToString()
    return _SIZE.pack(len(data)) + data + value


class ClientProducer:
    """A producer of one partition.

    batching: none, plain or key
    """

    def __init__(
        self, client: PulsarClient, topic: str, partition: int, name: str | None, batching: str
    ) -> None:
        self.client, self.topic, self.partition = client, topic, partition
        self.name, self.is_own_name, self.batching = name or "", name is not None, batching
        self.number = client.new_id()
        self.connection: Connection | None = None
        self.is_ready = False
        self.epoch = 0
        self.next_sequence: int | None = None
        self.pending: deque[PendingSend] = deque()
        self.batch: list[tuple[Message, Any]] = []
        self.is_over, self.looks_up, self.has_receipt = False, True, False
        client.producers[self.number] = self
        self._timer: asyncio.TimerHandle | None = None

    async def open(self) -> None:
        """Open it; raises Refused, Lost."""
        await self.client.retry(self._open)
        self._timer = asyncio.get_running_loop().call_later(SEND_S, self._expire)

    async def _open(self) -> None:
        connection = await self.client.connection()
        self.connection, self.is_ready = connection, False
        if self.looks_up:
            await connection.ask("lookupTopic", topic=self.topic)
        answer = await connection.ask(
            "producer",
            topic=self.topic,
            producer_id=self.number,
            producer_name=self.name or None,
            epoch=self.epoch,
            user_provided_producer_name=self.is_own_name,
            producer_access_mode=0,
        )
        if self.connection is not connection or connection.is_lost:
            raise Lost("the connection broke")
        self.name = answer.producer_name
        is_new = not (self.has_receipt or self.is_own_name) and self.client.numbers_anew
        if self.next_sequence is None or is_new:
            self.next_sequence = answer.last_sequence_id + 1
        self.is_ready = True
        for send in self.pending:
            connection.transport.write(send.frame(self))

    def on_lost(self) -> None:
        """Its connection is gone, or the server has closed it: open it again, and resend."""
        if not self.is_ready or self.client.is_closed:
            return
        self.is_ready = False
        self.client.begin(self._reopen())

    async def _reopen(self) -> None:
        self.epoch += 1
        try:
            await asyncio.sleep(RETRY_S)
            await self.client.retry(self._open, 1000)
        except Refused as error:
            self._fail(Lost(error.args[0]))

    def give_up(self) -> None:
        """Close it: messages without a receipt have an unknown outcome."""
        self._fail(Lost("the producer is closed"))

    def _fail(self, error: Exception) -> None:
        self.is_over = True
        while self.pending:
            self.pending.popleft().end(error, lambda at: None)
        for message, _ in self.batch:
            PendingSend([message], False, None, None).end(error, lambda at: None)
        self.batch.clear()

    def _expire(self) -> None:
        """After the time-out of the oldest SEND, all fail, as in the Java client."""
        if self.client.is_closed:
            return
        loop = asyncio.get_running_loop()
        if self.pending and loop.time() - self.pending[0].since > SEND_S:
            while self.pending:
                self.pending.popleft().end(Lost("no receipt in time"), lambda at: None)
        self._timer = loop.call_later(SEND_S / 2, self._expire)

    def send(
        self,
        value: str,
        key: str | None,
        deliver_at: int | None,
        txn: Any,
        sequence: int | None = None,
    ) -> asyncio.Future[Any]:
        """Queue a message; the future gets (ledger, entry) or None, or raises Refused, Lost.

        sequence: its number, by default the next one
        """
        assert self.next_sequence is not None
        future = asyncio.get_running_loop().create_future()
        number = self.next_sequence if sequence is None else sequence
        message = Message(number, value, key, future)
        self.next_sequence = max(self.next_sequence, number + 1)
        if self.is_over:
            future.set_exception(Refused("AlreadyClosed"))
            return future
        if self.batching == "none" or deliver_at is not None:
            self._put(PendingSend([message], False, deliver_at, txn))
        else:
            if self.batch and self.batch[0][1] != txn:
                self.flush()
            self.batch.append((message, txn))
        return future

    def flush(self) -> None:
        """Send the batch, or one for each key."""
        batches: dict[str | None, list[Message]] = {}
        for message, _ in self.batch:
            at = message.key if self.batching == "key" else None
            batches.setdefault(at, []).append(message)
        txn = self.batch[0][1] if self.batch else None
        self.batch.clear()
        for messages in batches.values():
            self._put(PendingSend(messages, True, None, txn))

    def _put(self, send: PendingSend) -> None:
        self.pending.append(send)
        if self.is_ready and self.connection is not None and not self.connection.is_lost:
            self.connection.transport.write(send.frame(self))

    def on_send_receipt(self, body: Any) -> None:
        if not self.pending:
            return
        send = self.pending[0]
        if body.sequence_id != send.lowest:
            if body.sequence_id > send.lowest and self.connection is not None:
                self.connection.close()  # a receipt is missing: everything is sent again
            return
        self.pending.popleft()
        self.has_receipt = True
        ledger, entry = body.message_id.ledgerId, body.message_id.entryId
        if ledger >= 1 << 63 or send.txn is not None:
            send.end(None, lambda at: None)
        else:
            send.end(None, lambda at: (ledger, entry // STEP + at))

    def on_send_error(self, body: Any) -> None:
        if self.pending and body.sequence_id in (self.pending[0].lowest, self.pending[0].highest):
            self.pending.popleft().end(Refused(_name_of(body.error)), lambda at: None)

    def on_close_producer(self, body: Any) -> None:
        self.on_lost()


# --- consuming ------------------------------------------------------------------------------------


class BatchBits:
    """The unacknowledged messages of a batch, a bit for each."""

    def __init__(self, size: int) -> None:
        self.left = (1 << size) - 1


@dataclass(eq=False)
class Received:
    """A message that a consumer got.

    at, size: its number in its batch, and the size of that; -1, 0: it came alone
    """

    value: str
    key: str | None
    ledger: int
    entry: int
    at: int
    size: int
    redelivered: int
    partition: int
    consumer: ClientConsumer = field(repr=False)
    batch: BatchBits


class ClientConsumer:
    """A consumer of one partition.

    on_detached: called when the server may give its messages to others
    """

    def __init__(
        self,
        client: PulsarClient,
        topic: str,
        partition: int,
        subscription: str,
        kind: str,
        name: str,
        window: int,
        queue: deque[Received],
        on_detached: Callable[[], None],
        notify: Callable[[list[Received]], None],
    ) -> None:
        self.client, self.topic, self.partition = client, topic, partition
        self.subscription, self.kind, self.name, self.window = subscription, kind, name, window
        self.queue, self.on_detached, self.notify = queue, on_detached, notify
        self.number = client.new_id()
        self.connection: Connection | None = None
        self.is_ready = False
        self.taken = 0
        self._chunks: dict[str, list[bytes]] = {}
        client.consumers[self.number] = self

    async def subscribe(self) -> None:
        """Subscribe, unless it still is; raises Refused, Lost."""
        if self.is_ready:
            return
        connection = await self.client.connection()
        self.connection, self.is_ready = connection, False
        await connection.ask("lookupTopic", topic=self.topic)
        self.drop_queue()
        await connection.ask(
            "subscribe",
            topic=self.topic,
            subscription=self.subscription,
            subType=SUB_TYPES[self.kind],
            consumer_id=self.number,
            consumer_name=self.name,
            initialPosition=1,
        )
        if self.connection is not connection or connection.is_lost:
            raise Lost("the connection broke")
        self.is_ready = True

    def drop_queue(self) -> None:
        """Forget the messages that the application has not taken: they come again."""
        kept = [message for message in self.queue if message.consumer is not self]
        self.queue.clear()
        self.queue.extend(kept)
        self.taken = 0

    def flow(self, permits: int) -> None:
        """Accept more messages."""
        assert self.connection is not None
        self.connection.send("flow", consumer_id=self.number, messagePermits=permits)

    def took(self) -> None:
        """The application has taken a message."""
        self.taken += 1
        if self.is_ready and self.taken >= max(1, self.window // 2):
            self.flow(self.taken)
            self.taken = 0

    def on_lost(self) -> None:
        """Its connection is gone."""
        if self.is_ready:
            self.is_ready = False
            self.on_detached()

    def on_close_consumer(self, body: Any, trailer: memoryview) -> None:
        self.on_lost()

    def on_active_consumer_change(self, body: Any, trailer: memoryview) -> None:
        """A failover consumer became active or not."""

    def on_message(self, body: Any, trailer: memoryview) -> None:
        """Messages came: alone, as a batch, or a chunk of one."""
        before = len(self.queue)
        head, payload = wire.split_message(trailer)
        where = body.message_id
        common = (where.ledgerId, where.entryId)
        if head.num_chunks_from_msg > 1:
            parts = self._chunks.setdefault(head.uuid, [])
            parts.append(bytes(payload))
            if head.chunk_id < head.num_chunks_from_msg - 1:
                self.took()
                return
            payload = memoryview(b"".join(self._chunks.pop(head.uuid)))
        if not head.HasField("num_messages_in_batch"):
            key = head.partition_key if head.HasField("partition_key") else None
            self._add(bytes(payload), key, common, (-1, 0), body.redelivery_count, BatchBits(0))
        else:
            data, count = bytes(payload), head.num_messages_in_batch
            at, batch = 0, BatchBits(count)
            for index in range(count):
                (size,) = _SIZE.unpack_from(data, at)
                single = SingleMessageMetadata.FromString(data[at + 4 : at + 4 + size])
                at += 4 + size
                value = data[at : at + single.payload_size]
                at += single.payload_size
                key = single.partition_key if single.HasField("partition_key") else None
                self._add(value, key, common, (index, count), body.redelivery_count, batch)
        self.notify([*self.queue][before:])

    def _add(
        self,
        value: bytes,
        key: str | None,
        where: tuple[int, int],
        place: tuple[int, int],
        redelivered: int,
        batch: BatchBits,
    ) -> None:
        text = value.decode().rstrip("-")
        self.queue.append(
            Received(text, key, *where, *place, redelivered, self.partition, self, batch)
        )

    async def acknowledge(self, messages: list[Received], txn: Any = None) -> None:
        """Acknowledge messages, and wait for the answer; raises Refused, Lost."""
        ids: dict[tuple[int, int], Any] = {}
        listed: list[Any] = []
        for message in messages:
            where = (message.ledger, message.entry)
            if txn is not None and message.size > 1:
                whole = (1 << message.size) - 1
                listed.append(self._id(message, whole & ~(1 << message.at)))
                continue
            if message.size:
                message.batch.left &= ~(1 << message.at)
            ids[where] = self._id(message, message.batch.left)
        await self._ack([*ids.values(), *listed], 0, txn)

    async def acknowledge_cumulative(self, message: Received, txn: Any = None) -> None:
        """Acknowledge everything up to a message."""
        whole = (1 << message.size) - 1
        bits = whole & ~((2 << max(message.at, 0)) - 1)
        await self._ack([self._id(message, bits)], 1, txn)

    def _id(self, message: Received, unacked: int) -> Any:
        named = MessageIdData(ledgerId=message.ledger, entryId=message.entry)
        named.partition = message.partition
        if unacked:
            words = -(-message.size // 64)
            data = unacked.to_bytes(8 * words, "little")
            named.ack_set.extend(struct.unpack(f"<{words}q", data))
            named.batch_size = message.size
        return named

    async def _ack(self, ids: list[Any], kind: int, txn: Any) -> None:
        if self.connection is None or not self.is_ready:
            raise Lost("there is no connection")
        await self.connection.ask(
            "ack",
            consumer_id=self.number,
            ack_type=kind,
            message_id=ids,
            txnid_most_bits=None if txn is None else txn[0],
            txnid_least_bits=None if txn is None else txn[1],
        )

    def redeliver(self, messages: list[Received]) -> None:
        """Ask for messages again; for all without any."""
        if self.connection is None or not self.is_ready:
            return
        ids = {(each.ledger, each.entry): self._id(each, 0) for each in messages}
        if not messages:
            self.drop_queue()
        self.connection.send(
            "redeliverUnacknowledgedMessages",
            consumer_id=self.number,
            message_ids=[*ids.values()],
        )
