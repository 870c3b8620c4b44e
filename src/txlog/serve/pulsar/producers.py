"""Owns producers: PRODUCER, SEND, CLOSE_PRODUCER.

Every producer has a name, from its client or from the server, so each message is stored once. A
client that lost its connection, or whose server was killed, resends the messages without a receipt
under the same name and sequence. Producers of one client with the same name and topic (one for each
partition) share a producer of the store.

The chunks of a message are held in memory until the last one arrives. Only then the message is
stored and all chunks are answered together: before that no chunk has a receipt, so none can be
lost. Chunks count in a separate share of each connection. Without room the server reads nothing
more from the connection; the oldest message that waits proceeds as the guest of the budget. If no
chunk of a message arrives for `idle_timeout_ms`, the server drops it: its next chunk is then out of
order, and the client sends the message again.

A handler uses its connection to reserve memory, to count its work, and to answer, often after the
connection has handled a later command.

The server closes a producer when one of its messages is refused, or another producer has taken over
the topic. The client opens it again, and resends the messages without a receipt. A fenced producer
finds out then, because it sends its old epoch. Sending SEND_ERROR alone does not suffice: on that
error most clients reset the whole connection.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from txlog.base.choices import AccessMode
from txlog.base.ids import MessageId, TopicName, TxnId
from txlog.base.schemas.schema import Schema
from txlog.engine.door.catalog import Topic, number_of
from txlog.engine.door.sending import epoch_of
from txlog.engine.door.store import View
from txlog.errors import (
    AlreadyClosed,
    InvalidMessage,
    NotAllowed,
    ProducerBusy,
    ProducerFenced,
    TxlogError,
)
from txlog.serve.auth import CONSUME, PRODUCE
from txlog.serve.core.catalog import CatalogSnapshot
from txlog.serve.core.id_table import IdTable
from txlog.serve.core.producer_names import EXCLUSIVE, FENCING, SHARED, WAITING, NameHolder
from txlog.serve.core.service import ProducerStats
from txlog.serve.limits.limits import check_free_descriptors, too_many_error
from txlog.serve.pulsar import ids, schemas, topics
from txlog.serve.pulsar.batches import (
    ChunkedMessage,
    UnpackedSend,
    decompress,
    is_large,
    rows_of,
    unpack_send,
    unpacked_size,
)
from txlog.serve.pulsar.connection import Connection, Handler
from txlog.serve.pulsar.failure import refusal_of, text_of
from txlog.serve.pulsar.group_commit import OnStored, QueuedSend, SendQueue
from txlog.serve.pulsar.messages import ERRORS, Proto
from txlog.serve.pulsar.wire import (
    INT64_MAX,
    NO_REQUEST,
    ROOM_BYTES,
    MessageParts,
    check,
    receipt_frame,
    split_message,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from txlog.client.aio.handles import Producer as Handle
    from txlog.client.client import Client

ROOM: Final = "producers"
MODES: Final[tuple[AccessMode, ...]] = (SHARED, EXCLUSIVE, WAITING, FENCING)
ACCESS: Final = ("Shared", "Exclusive", "WaitForExclusive", "ExclusiveWithFencing")
NAME_MAX: Final = 128  # characters of a producer's name in the store
CHUNKED_BYTES_MAX: Final = 256 << 20  # of one chunked message, held in memory
WORK_MESSAGES: Final = 10  # messages of a batch that are as much work as a command
ITEM_BYTES: Final = 1 << 10  # the memory of a queued message besides its payload
# After a reconnect, the library of C++, Python and Node continues from the last sequence id that
# the server returns, and gives the messages that it resends new numbers from there. The messages
# after these would then count as duplicates: they would get a receipt and not be stored. So a
# producer whose name came from a server gets an id far beyond the last one; no other producer
# continues its sequence. A producer with a name of its own must get the real id; the server fences
# it when it reuses a number.
APART: Final = 1 << 32


class StoreProducer:
    """A producer of the store, and the client producers that share it.

    A client has one for each partition of a topic, all with one name, over one or more connections.

    users: by partition, the connection's producers and the number of the producer there
    """

    def __init__(
        self,
        handle: Handle,
        topic: Topic,
        holder: NameHolder,
        schema: Schema | None,
        version: int | None,
    ) -> None:
        """version: of its schema; None: it has none"""
        self.handle, self.topic, self.name, self.holder = handle, topic, holder.name, holder
        self.schema, self.version = schema, version
        self.queue = SendQueue(handle.sync.session)
        self.users: dict[int, tuple[ConnectionProducers, int]] = {}
        self.is_over = False  # the server is closing it: further messages are not stored

    async def dismiss(self) -> None:
        """Close its client producers; their clients open them again."""
        for producers, number in list(self.users.values()):
            await producers.dismiss(self, number)

    def close_connections(self) -> None:
        """End the connections of its client producers: their clients resend."""
        for producers, _ in list(self.users.values()):
            producers.connection.close()


class ClientProducer:
    """One producer of a client, and the destination of its messages.

    given:   its name, from its client or from the server
    last:    the highest stored sequence of its name when it was opened
    restart: the sequence from which its client may number again after a reconnect; see APART
    """

    def __init__(
        self,
        number: int,
        store_producer: StoreProducer,
        partition: int,
        shown_partition: int,
        mode: int,
        since_ms: int,
    ) -> None:
        self.mode, self.since_ms = mode, since_ms
        self.metadata: dict[str, str] = {}  # from its client
        self.messages = self.payload_bytes = 0  # sent so far
        self.number, self.store_producer, self.partition = number, store_producer, partition
        self.shown = shown_partition  # the partition in ids; -1: the topic is not partitioned
        self.given, self.last = "", -1
        self.chunks: ChunkedMessage | None = None
        self.restart: int | None = None
        self._highest = -1

    def reuses_number(self, body: Proto) -> bool:
        """Whether this SEND is a new message with a number that was used before."""
        if self.restart is None:
            return False
        is_repeated = bool(body.sequence_id == self.restart <= self._highest)
        self._highest = max(self._highest, body.sequence_id, body.highest_sequence_id)
        return is_repeated

    def end_chunks(self) -> None:
        """Drop the chunked message that is incomplete."""
        if self.chunks is not None:
            self.chunks.end()
            self.chunks = None


class StoreProducers:
    """The open producers of the store, by the number of the topic and name.

    opening: a lock for each producer that is opening: other partitions wait for it
    """

    def __init__(self) -> None:
        self.by_name: dict[tuple[int, str], StoreProducer] = {}
        self.opening: WeakValueDictionary[tuple[int, str], asyncio.Lock] = WeakValueDictionary()


class ConnectionProducers:
    """The producers of one connection.

    connection_limit: the producer of the store by the number of a producer, even if it is opening
    own: producers of the store that no other connection joins
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.table: IdTable[ClientProducer] = IdTable("producer", ProducerBusy)
        self.connection_limit: dict[int, StoreProducer] = {}
        self.own = StoreProducers()
        connection.on_close.append(self.close)
        connection.open_handles.append(self)

    @classmethod
    def of(cls, connection: Connection) -> ConnectionProducers:
        """The producers of a connection."""
        producers: ConnectionProducers | None = connection.state.get(ROOM)
        if producers is None:
            producers = connection.state[ROOM] = cls(connection)
        return producers

    def known(self, mode: str) -> StoreProducers:
        """The producers of the store that a producer with this access mode may join."""
        if mode != SHARED:
            return self.own
        store_producers: StoreProducers = self.connection.listener.shared_state.setdefault(
            ROOM, StoreProducers()
        )
        return store_producers

    async def leave(self, producer: ClientProducer) -> None:
        """Close a producer, once all its messages are stored."""
        producer.end_chunks()
        await self.leave_partition(producer.store_producer, producer.partition, producer.number)

    async def leave_partition(
        self, store_producer: StoreProducer, partition: int, number: int
    ) -> None:
        """Leave a partition of a store producer; the last one closes it."""
        if store_producer.users.get(partition) == (self, number):
            del store_producer.users[partition]
            del self.connection_limit[number]
        if store_producer.users:
            return
        store_producer.holder.is_leaving = True
        store_producers, key = (
            self.known(store_producer.holder.mode),
            (store_producer.topic.number, store_producer.name),
        )
        if store_producers.by_name.get(key) is store_producer:
            del store_producers.by_name[key]
        await store_producer.queue.settled()
        self.connection.service.names.free(store_producer.holder)
        await store_producer.handle.close()

    async def dismiss(self, store_producer: StoreProducer, number: int) -> None:
        """Close a producer on the server's side, and notify its client, which opens it again."""
        producer = self.table.get(number)
        if producer is not None and producer.store_producer is not store_producer:
            return
        # nothing is lost: the client resends the messages that are not stored
        with suppress(TxlogError):
            await self.table.close(number, self.leave, by_server=True)
        if producer is not None:
            self.tell_closed(number)

    async def follow(self, snapshot: CatalogSnapshot | None) -> None:
        """Dismiss producers whose topic was deleted or renamed; None: all."""
        if snapshot is None:
            self.table.refuse_opening(AlreadyClosed("the server stops"))
        for number, store_producer in list(self.connection_limit.items()):
            topic = store_producer.topic
            if snapshot is None or snapshot.lacks_topic(topic.number, topic.name):
                await self.dismiss(store_producer, number)

    def tell_closed(self, number: int) -> None:
        """Notify the client that the server has closed a producer."""
        self.connection.send("close_producer", producer_id=number, request_id=NO_REQUEST)

    async def close(self) -> None:
        """The connection ends: close its producers."""
        await self.table.close_all(self.leave, self.connection.service.failed)


def producer_stats(connection: Connection) -> list[ProducerStats]:
    """The figures of a client's producers."""
    producers: ConnectionProducers | None = connection.state.get(ROOM)
    return (
        []
        if producers is None
        else [
            ProducerStats(
                producer.store_producer.topic.name,
                producer.partition,
                producer.number,
                producer.store_producer.name,
                connection.peer,
                connection.version,
                ACCESS[producer.mode],
                producer.since_ms,
                producer.messages,
                producer.payload_bytes,
                producer.metadata,
            )
            for producer in producers.table.values()
        ]
    )


# --- opening -------------------------------------------------------------------------------------


async def open_producer(connection: Connection, body: Proto, trailer: memoryview) -> None:
    """PRODUCER: open one; the answer has its name and its last sequence id."""
    name = topics.name_of(body.topic)
    connection.may(PRODUCE, name.topic)
    connection.listener.check_open()
    producers, number = ConnectionProducers.of(connection), body.producer_id
    if _waits(body) and producers.table.is_opening(number):
        _tell_waiting(connection, body, body.producer_name)
    opening = partial(_open_client_producer, connection, producers, name, body)
    request = (str(name), body.producer_access_mode)
    try:
        producer, is_old = await producers.table.open(number, request, opening)
    except AlreadyClosed:
        if not _waits(body):
            raise
        _tell_stopped(connection, producers, number)  # the client knows that the producer waits
        return
    store_producer = producer.store_producer
    if is_old and body.producer_name and name_in_store(body.producer_name) != store_producer.name:
        raise ProducerBusy(f"producer {number} of this connection is {producer.given}")
    last = producer.last
    if is_old:
        look = partial(
            _last_sequence, store_producer.topic, producer.partition, store_producer.name
        )
        last = await connection.client.run(look)
    elif body.epoch and body.producer_name:
        if not body.user_provided_producer_name:
            last = min(last + APART, INT64_MAX)
        elif connection.version.startswith("Pulsar-CPP"):
            producer.restart = last + 1
    connection.send(
        "producer_success",
        request_id=body.request_id,
        producer_name=producer.given,
        last_sequence_id=last,
        schema_version=schemas.version_bytes(store_producer.version),
        topic_epoch=store_producer.handle.sync.access.epoch,
        producer_ready=True,
    )


async def _open_client_producer(
    connection: Connection, producers: ConnectionProducers, name: TopicName, body: Proto
) -> ClientProducer:
    """A new producer of a client."""
    service, limit = connection.service, connection.service.limits.producers
    if len(producers.table) > limit:
        raise too_many_error("producers on this connection", limit)
    creates = service.options.creates_topics
    topic = await connection.client.run(
        partial(topics.get_or_create_topic, name=name, creates=creates)
    )
    if name.partition is None and topic.partitions > 1:
        raise NotAllowed(f"{name} has {topic.partitions} partitions: name one")
    partition = topics.check_partition(topic, name)
    await _create_initial_subscription(connection, body, topic)
    client_name = body.producer_name or connection.listener.new_name()
    key = (topic.number, name_in_store(client_name), partition)
    if key in connection.listener.fenced:
        connection.listener.fenced.remove(key)
        raise ProducerFenced(f"producer {client_name} of {name} gave one number to two messages")
    store_producer = await _open_store_producer(connection, producers, body, topic, key)
    store_producer.users[partition] = (producers, body.producer_id)
    producers.connection_limit[body.producer_id] = store_producer
    try:
        # wait for messages of this partition from another connection
        await store_producer.queue.settled()
        last = await connection.client.run(
            partial(_last_sequence, topic, partition, store_producer.name)
        )
    except BaseException:  # also after a CLOSE
        await producers.leave_partition(store_producer, partition, body.producer_id)
        raise
    shown_partition = -1 if name.partition is None else partition
    now_ms = service.store.store.clock.now().wall_ms
    mode = body.producer_access_mode
    producer = ClientProducer(
        body.producer_id, store_producer, partition, shown_partition, mode, now_ms
    )
    producer.metadata = {pair.key: pair.value for pair in body.metadata}
    producer.given, producer.last = client_name, last
    return producer


async def _create_initial_subscription(connection: Connection, body: Proto, topic: Topic) -> None:
    """Create the subscription that a producer wants before its first message.

    Clients name one for a topic of dead letters without subscriptions. It begins at the end of the
    topic, where the producer has not sent anything yet.
    """
    subscription = body.initial_subscription_name
    if not subscription:
        return
    connection.may(CONSUME, TopicName.parse(topic.name))
    await connection.client.create_subscription(topic.name, subscription, if_not_exists=True)


def name_in_store(name: str) -> str:
    """A valid name in the store for a client's name; clients derive some from topics, with `/` in
    them.

    An invalid character becomes `~` and its hexadecimal digits; a long name ends in a hash.
    """
    plain = "".join(
        char if (char.isascii() and char.isalnum()) or char in "._-=:+@" else f"~{ord(char):02x}"
        for char in name
    )
    plain = f"~{plain}" if plain[0] in "-_." else plain
    if len(plain) <= NAME_MAX:
        return plain
    return f"{plain[: NAME_MAX - 33]}~{sha256(name.encode()).hexdigest()[:32]}"


async def _open_store_producer(
    connection: Connection,
    producers: ConnectionProducers,
    body: Proto,
    topic: Topic,
    key: tuple[int, str, int],
) -> StoreProducer:
    """The store producer for a name, opened by its first user; its other partitions wait meanwhile.

    key: the topic's number, the name in the store, the partition, which is free when this returns
    """
    *_, name, partition = key
    store_key, mode = (topic.number, name), MODES[body.producer_access_mode]
    schema, store_producers = schemas.schema_of(body), producers.known(mode)
    async with store_producers.opening.setdefault(store_key, asyncio.Lock()):
        while (
            store_producer := store_producers.by_name.get(store_key)
        ) is not None and not store_producer.is_over:
            is_here = any(each is producers for each, _ in store_producer.users.values())
            user = store_producer.users.get(partition)
            if user is None and (is_here or store_producer.schema == schema):
                return store_producer
            if user is not None and user[0] is not producers and body.epoch:
                await user[0].dismiss(
                    store_producer, user[1]
                )  # its client has reconnected by this connection
                if store_producer.users.get(partition) != user:
                    continue
            raise ProducerBusy(f"producer {name} of {topic.name} is connected")
        names = connection.service.names
        holder = NameHolder(
            topic.name, name, mode, partial(producers.table.refuse, body.producer_id)
        )
        previous = names.take(holder, comes_again=bool(body.epoch))
        try:
            if previous is not None:
                await names.replace(previous)
            connection.listener.check_open()  # it may have waited for another producer of its name
            if _waits(body):
                _tell_waiting(connection, body, name)
                await names.wait_until_alone(holder)
            handle = await _open_handle(connection, body, topic, name)
            version = await _add_schema(connection, handle, topic, schema)
        except BaseException:  # free the name after any error
            names.free(holder)
            raise
        store_producer = store_producers.by_name[store_key] = StoreProducer(
            handle, topic, holder, schema, version
        )
        holder.is_waiting = False
        tasks = connection.service.tasks
        holder.close = lambda _: tasks.begin(
            store_producer.dismiss(), store_producer.close_connections
        )
        if mode == FENCING:
            names.close_others(holder)
        return store_producer


def _waits(body: Proto) -> bool:
    mode: AccessMode = MODES[body.producer_access_mode]
    return mode == WAITING


def _tell_waiting(connection: Connection, body: Proto, name: str) -> None:
    """Answer a client whose producer waits to be exclusive, without a time limit."""
    connection.send(
        "producer_success",
        request_id=body.request_id,
        producer_name=name,
        last_sequence_id=-1,
        producer_ready=False,
    )


def _tell_stopped(connection: Connection, producers: ConnectionProducers, number: int) -> None:
    """Close a waiting producer if the server stops; otherwise its client closed it."""
    try:
        connection.listener.check_open()
    except AlreadyClosed:
        producers.tell_closed(number)


async def _open_handle(connection: Connection, body: Proto, topic: Topic, name: str) -> Handle:
    """Open the producer of the store. Raises ProducerBusy, ProducerFenced."""
    mode = MODES[body.producer_access_mode]
    if mode != SHARED:  # it holds a lock file
        check_free_descriptors()
    known_epoch = body.topic_epoch if mode != SHARED and body.HasField("topic_epoch") else 0
    if known_epoch and await connection.client.run(partial(_epoch, topic)) > known_epoch + 1:
        raise _fenced(topic, known_epoch)
    try:
        handle = await connection.client.producer(topic.name, name, access_mode=mode, chunking=True)
    except ProducerBusy as error:
        if mode == SHARED:
            raise
        raise (
            _fenced(topic, known_epoch) if known_epoch else ProducerFenced(error.message)
        ) from error
    if (
        known_epoch and handle.sync.access.epoch != known_epoch + 2
    ):  # another producer was faster, and has left
        await handle.close()
        raise _fenced(topic, known_epoch)
    return handle


async def _add_schema(
    connection: Connection, handle: Handle, topic: Topic, schema: Schema | None
) -> int | None:
    """Add the schema of a producer to its topic; returns its version. The handle then writes
    records by it.

    raises: IncompatibleSchema; the producer is closed then
    """
    if schema is None:
        return None

    def act(client: Client) -> int:
        version = schemas.add(client, topic.name, schema)
        if schema.is_record:
            handle.sync.session.write_by(version)
        return version

    try:
        return await connection.client.run(act)
    except BaseException:  # no other code can close it
        await handle.close()
        raise


def _epoch(topic: Topic, client: Client) -> int:
    """The newest epoch of exclusive producers of a topic."""
    return client.store.read(lambda view: epoch_of(view, topic))


def _fenced(topic: Topic, known_epoch: int) -> ProducerFenced:
    """The error for an exclusive producer that returns after another one had the topic."""
    short = TopicName.parse(topic.name).short
    return ProducerFenced(
        f"the exclusive producer of {short} is fenced: epoch {known_epoch} is over"
    )


def _last_sequence(topic: Topic, partition: int, name: str, client: Client) -> int:
    """The highest sequence that a name has stored in a partition; -1: none."""

    def look(view: View) -> int:
        stored = view.topic(number_of(topic, partition)).producers.get(name)
        return -1 if stored is None else int(stored.sequence)

    return client.store.read(look)


async def close_producer(connection: Connection, body: Proto, trailer: memoryview) -> None:
    """CLOSE_PRODUCER: answered once its messages are stored; also if the server had closed it."""
    producers, number = ConnectionProducers.of(connection), body.producer_id
    if not await producers.table.close(number, producers.leave) and not producers.table.dismissed(
        number
    ):
        raise producers.table.unknown(number)
    connection.send("success", request_id=body.request_id)


# --- sending -------------------------------------------------------------------------------------


def send(
    connection: Connection, body: Proto, trailer: memoryview
) -> Coroutine[Any, Any, None] | None:
    """SEND: queue its messages; the receipt follows when they are durable.

    Returns the work to do before the next command, if reading the messages takes long.
    """
    producer = ConnectionProducers.of(connection).table.get(body.producer_id)
    if producer is None and ConnectionProducers.of(connection).table.dismissed(body.producer_id):
        return None  # the client knows that it is closed, or will know soon
    if producer is None:
        _refuse(connection, body, ERRORS["ProducerFenced"], "there is no such producer")
        return None
    if producer.store_producer.is_over:
        return None
    try:
        check(body)
        message = split_message(trailer)
        if is_large(*message) and message.metadata.num_chunks_from_msg <= 1:
            return _send_large(connection, producer, body, message)
        connection.spend(message.metadata.num_messages_in_batch // WORK_MESSAGES)
        _send(connection, producer, body, message)
    except TxlogError as error:
        _queue_refusal(connection, producer, body, error)
    return None


def _queue_refusal(
    connection: Connection, producer: ClientProducer, body: Proto, error: TxlogError
) -> None:
    """Queue the refusal of a SEND: the client's earlier SENDs are answered first."""
    on_stored = partial(_answer_send, connection, producer, body)
    refusal = QueuedSend(None, producer.partition, ITEM_BYTES, on_stored, wrong=error)
    connection.listener.sends.put(producer.store_producer.queue, refusal)


async def _send_large(
    connection: Connection, producer: ClientProducer, body: Proto, message: MessageParts
) -> None:
    """Read messages in a thread, once there is room for them, and queue them."""
    bytes_max = connection.message_bytes_max + ROOM_BYTES
    reservation = await connection.room_for(unpacked_size(*message))
    is_queued = False
    try:
        messages = await connection.service.in_thread(partial(unpack_send, *message, bytes_max))
        is_open = ConnectionProducers.of(connection).table.get(producer.number) is producer
        if is_open and not producer.store_producer.is_over:
            _send(connection, producer, body, message, messages, reservation.close)
            is_queued = True
    except TxlogError as error:
        _queue_refusal(connection, producer, body, error)
    finally:
        if not is_queued:
            reservation.close()


def _send(
    connection: Connection,
    producer: ClientProducer,
    body: Proto,
    message: MessageParts,
    messages: UnpackedSend | None = None,
    on_answered: Callable[[], object] | None = None,
) -> None:
    """Queue the messages of a SEND.

    messages:    if they are unpacked already
    on_answered: called once they are stored or refused
    """
    head, payload = message
    txn = None
    if body.HasField("txnid_most_bits") or body.HasField("txnid_least_bits"):
        txn = TxnId.from_halves(body.txnid_most_bits, body.txnid_least_bits)
    bytes_max = connection.message_bytes_max + ROOM_BYTES
    if head.num_chunks_from_msg > 1:
        item = _chunk(connection, producer, body, message, txn)
        if item is None:
            return
        producer.messages += 1
        producer.payload_bytes += item.size - ITEM_BYTES
    else:
        if producer.reuses_number(body):
            key = (
                producer.store_producer.topic.number,
                producer.store_producer.name,
                producer.partition,
            )
            connection.listener.fenced.append(key)
            raise ProducerFenced("another message had this number")
        columns, size, payload_bytes = messages or unpack_send(head, payload, bytes_max)
        on_stored: OnStored = partial(_answer_send, connection, producer, body)
        if on_answered is not None:
            on_stored = partial(_answer_and_release, on_answered, on_stored)
        if messages is None:
            connection.spend(columns.pairs // WORK_MESSAGES)
        producer.messages += len(columns.values)
        producer.payload_bytes += payload_bytes
        item = QueuedSend(columns, producer.partition, size + ITEM_BYTES, on_stored, txn)
    connection.listener.sends.put(producer.store_producer.queue, item)


def _chunk(
    connection: Connection,
    producer: ClientProducer,
    body: Proto,
    message: MessageParts,
    txn: TxnId | None,
) -> QueuedSend | None:
    """Add a chunk; returns the message if it is the last. Raises InvalidMessage, LimitExceeded."""
    head, payload = message
    if head.encryption_keys:  # each chunk is encrypted alone, so only the client can join them
        raise NotAllowed("encrypted messages in chunks are not supported")
    store = connection.service.store
    bytes_max = min(CHUNKED_BYTES_MAX, store.settings.max_chunked_message_bytes)
    if head.chunk_id == 0:
        producer.end_chunks()
        idle_seconds = connection.service.limits.idle_timeout_ms / 1_000
        producer.chunks = ChunkedMessage(
            head, connection.hold_for_chunks(), bytes_max, idle_seconds
        )
    chunks = producer.chunks
    if chunks is None:
        raise InvalidMessage(f"chunk {head.chunk_id} of {head.uuid} is out of order")
    try:
        chunks.add(head, payload, (body.sequence_id, body.highest_sequence_id))
    except InvalidMessage:
        producer.end_chunks()
        raise
    connection.wait_for(chunks)
    if head.chunk_id < head.num_chunks_from_msg - 1:
        return None
    producer.chunks = None
    try:
        return _assembled(connection, producer, body, chunks, bytes_max, txn)
    except BaseException:  # no code will answer it
        chunks.end()
        raise


def _assembled(
    connection: Connection,
    producer: ClientProducer,
    body: Proto,
    chunks: ChunkedMessage,
    bytes_max: int,
    txn: TxnId | None,
) -> QueuedSend:
    """A message whose chunks have all arrived. Raises InvalidMessage, LimitExceeded."""
    head = chunks.head
    data = decompress(head.compression, head.uncompressed_size, chunks.whole(), bytes_max)
    first = chunks.head
    first.ClearField("num_messages_in_batch")
    columns = rows_of(first, data)
    large: dict[str, Any] = {
        "value": columns.values[0],
        "key": columns.keys[0],
        "properties": dict(columns.properties[0] or ()),
        "event_time": columns.event_times[0],
        "deliver_at": columns.deliver_at,
        "sequence_id": columns.sequences[0],
        "partition": producer.partition,
    }
    sequences = chunks.sequences

    def on_stored(message_id: MessageId | None, error: Exception | None) -> None:
        chunks.end()
        for sequence, highest in sequences:
            send_body = type(body)(producer_id=producer.number, sequence_id=sequence)
            send_body.highest_sequence_id = highest
            _answer_send(connection, producer, send_body, message_id, error)

    return QueuedSend(None, producer.partition, len(data) + ITEM_BYTES, on_stored, txn, large)


def _answer_and_release(
    release: Callable[[], object],
    on_stored: OnStored,
    message_id: MessageId | None,
    error: Exception | None,
) -> None:
    """Answer a SEND, and release its memory."""
    release()
    on_stored(message_id, error)


def _answer_send(
    connection: Connection,
    producer: ClientProducer,
    body: Proto,
    message_id: MessageId | None,
    error: Exception | None,
) -> None:
    """Answer a SEND with a receipt; after an error, close its producer."""
    if error is not None:
        if producer.store_producer.is_over:
            return
        producer.store_producer.is_over = True
        if not isinstance(error, TxlogError):
            producer.store_producer.close_connections()  # the outcome is unknown: clients repeat it
            return
        number = refusal_of(error, connection.version)
        if number is not None:
            _refuse(connection, body, number, text_of(error))
        close = producer.store_producer.close_connections
        connection.service.tasks.begin(producer.store_producer.dismiss(), close)
        return
    ledger, entry = (
        (-1, -1) if message_id is None else (message_id.ledger, message_id.entry * ids.STEP)
    )
    sequence, highest = body.sequence_id, body.highest_sequence_id
    receipt = receipt_frame(producer.number, sequence, highest, ledger, entry, producer.shown)
    connection.write([receipt])


def _refuse(connection: Connection, body: Proto, error: int, text: str) -> None:
    """Refuse a SEND. Java knows a batch by its highest number, other clients by its lowest."""
    number = body.sequence_id
    if connection.version.startswith("Pulsar-Java"):
        number = max(number, body.highest_sequence_id)
    connection.send(
        "send_error", producer_id=body.producer_id, sequence_id=number, error=error, message=text
    )


HANDLERS: Final[Mapping[str, Handler]] = {
    "PRODUCER": open_producer,
    "SEND": send,
    "CLOSE_PRODUCER": close_producer,
}
