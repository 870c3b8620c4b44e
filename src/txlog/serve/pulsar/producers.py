"""Owns producers: PRODUCER, SEND, CLOSE_PRODUCER.

Every producer has a name, its own or one that the server makes, so what it sends is stored once: a
client that lost its connection, or whose server was killed, sends again what it has no receipt for,
under the same name and sequence. Producers of one client, name and topic (one for each partition)
are one producer of the store.

Messages that come in chunks are held until the last one is there, and only then stored and
answered, all chunks at once: before that none of them has a receipt, so none can be lost. The
chunks that came count in a share of their own for each connection. Without room the server reads
nothing more from the connection; the eldest message that waits goes on as the guest of the budget.
A message of which nothing comes for `idle_timeout_ms` is given up: its next chunk is out of order
then, and the client sends the message again.

A producer is closed when one of its messages is refused, or another one has taken over its topic:
its client opens it again, and repeats what has no receipt. Who is fenced learns that there, by the
epoch that it had. For SEND_ERROR alone most clients begin again all they have on the connection.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

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
from txlog.serve.core.authority import CONSUME, PRODUCE
from txlog.serve.core.census import Census
from txlog.serve.core.descriptors import check_room
from txlog.serve.core.id_table import IdTable
from txlog.serve.core.limits import too_many
from txlog.serve.core.producer_names import EXCLUSIVE, FENCING, SHARED, WAITING, Holder
from txlog.serve.core.service import Publisher
from txlog.serve.pulsar import ids, schemas, topics
from txlog.serve.pulsar.batches import (
    Unpacked,
    decompressed,
    is_large,
    price,
    rows_of,
    unpacked,
)
from txlog.serve.pulsar.chunks import Chunks
from txlog.serve.pulsar.connection import Connection, Handler
from txlog.serve.pulsar.failure import refusal_of, text_of
from txlog.serve.pulsar.fields import INT64_MAX, check
from txlog.serve.pulsar.messages import ERRORS, Proto
from txlog.serve.pulsar.sends import Item, Lane, Told
from txlog.serve.pulsar.wire import NO_REQUEST, ROOM_BYTES, Checked, checked, receipt_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from txlog.client.aio.handles import Producer as Handle
    from txlog.client.client import Client

ROOM: Final = "producers"
MODES: Final = (SHARED, EXCLUSIVE, WAITING, FENCING)
ACCESS: Final = ("Shared", "Exclusive", "WaitForExclusive", "ExclusiveWithFencing")
NAME_MAX: Final = 128  # characters of a producer's name in the store
CHUNKED_BYTES_MAX: Final = 256 << 20  # of one message in chunks, held in memory
WORK_MESSAGES: Final = 10  # of a batch, which are as much work as a command
ITEM_BYTES: Final = 1 << 10  # what a message that waits costs beside its payload
# The library of C++, Python and Node numbers on from the last sequence that it is told, also when
# it comes again without a receipt so far, and what it then repeats has numbers from there on, too:
# the next messages would count as repeated ones, with a receipt and stored nowhere. So a producer
# that has its name from a server, which nobody continues by sequences, is told one far beyond. One
# that was named has to be told the truth; it is fenced when it does that.
APART: Final = 1 << 32


class Shared:
    """A producer of the store, and the producers of clients that are it.

    A client has one for each partition of a topic, all of one name, over one or more connections.

    users: by partition, the room of a producer and its number there
    """

    def __init__(
        self,
        handle: Handle,
        topic: Topic,
        holder: Holder,
        schema: Schema | None,
        version: int | None,
    ) -> None:
        """version: of its schema; None: it has none"""
        self.handle, self.topic, self.name, self.holder = handle, topic, holder.name, holder
        self.schema, self.version = schema, version
        self.lane = Lane(handle.sync)
        self.users: dict[int, tuple[Room, int]] = {}
        self.is_over = False  # it is being closed here: what still comes is not stored

    async def dismiss(self) -> None:
        """Close its producers; their clients open them again."""
        for room, number in list(self.users.values()):
            await room.dismiss(self, number)

    def close_connections(self) -> None:
        """End the connections of its producers: their clients ask what became of what they sent."""
        for room, _ in list(self.users.values()):
            room.connection.close()


class WireProducer:
    """One producer of a client: where what it sends goes.

    given:   its name, as its client or the server gave it
    last:    the highest sequence of its name that was stored when it was opened
    restart: the sequence at which its client may begin anew behind what it repeats; see APART
    """

    def __init__(
        self, number: int, shared: Shared, partition: int, shown: int, mode: int, since_ms: int
    ) -> None:
        self.mode, self.since_ms = mode, since_ms
        self.metadata: dict[str, str] = {}  # that its client gave it
        self.messages = self.payload_bytes = 0  # that it sent
        self.number, self.shared, self.partition = number, shared, partition
        self.shown = shown  # the partition in ids; -1: the topic is not partitioned
        self.given, self.last = "", -1
        self.chunks: Chunks | None = None
        self.restart: int | None = None
        self._highest = -1

    def has_begun_anew(self, body: Proto) -> bool:
        """Whether this SEND is another message under a number that came before."""
        if self.restart is None:
            return False
        found = bool(body.sequence_id == self.restart <= self._highest)
        self._highest = max(self._highest, body.sequence_id, body.highest_sequence_id)
        return found

    def end_chunks(self) -> None:
        """Forget the message that comes in chunks."""
        if self.chunks is not None:
            self.chunks.end()
            self.chunks = None


class Known:
    """Producers of the store that are open, by topic and name.

    opening: a lock for each that is opening: other partitions wait for it
    """

    def __init__(self) -> None:
        self.shared: dict[tuple[str, str], Shared] = {}
        self.opening: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()


class Room:
    """The producers of one connection.

    seats:     by the number of a producer, even of one that is opening, the store's that it is
    exclusive: those of the store that no other connection joins
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.producers: IdTable[WireProducer] = IdTable("producer", ProducerBusy)
        self.seats: dict[int, Shared] = {}
        self.exclusive = Known()
        connection.farewells.append(self.close)
        connection.occupied.append(self)

    @classmethod
    def of(cls, connection: Connection) -> Room:
        """The room of a connection."""
        found: Room | None = connection.rooms.get(ROOM)
        if found is None:
            found = connection.rooms[ROOM] = cls(connection)
        return found

    def known(self, mode: str) -> Known:
        """The producers of the store that one of this mode may join."""
        if mode != SHARED:
            return self.exclusive
        known: Known = self.connection.listener.halls.setdefault(ROOM, Known())
        return known

    async def leave(self, producer: WireProducer) -> None:
        """Close a producer, once all it sent is stored."""
        producer.end_chunks()
        await self.vacate(producer.shared, producer.partition, producer.number)

    async def vacate(self, shared: Shared, partition: int, number: int) -> None:
        """A partition of a producer of the store is left; with the last one it closes."""
        if shared.users.get(partition) == (self, number):
            del shared.users[partition]
            del self.seats[number]
        if shared.users:
            return
        shared.holder.is_leaving = True
        known, key = self.known(shared.holder.mode), (shared.topic.name, shared.name)
        if known.shared.get(key) is shared:
            del known.shared[key]
        await shared.lane.settled()
        self.connection.service.names.free(shared.holder)
        await shared.handle.close()

    async def dismiss(self, shared: Shared, number: int) -> None:
        """Close a producer whose client shall open it again, and tell it."""
        producer = self.producers.get(number)
        if producer is not None and producer.shared is not shared:
            return
        with suppress(TxlogError):  # nothing is lost with it: what is not stored comes again
            await self.producers.close(number, self.leave, by_server=True)
        if producer is not None:
            self.tell_closed(number)

    async def follow(self, census: Census | None) -> None:
        """Dismiss those whose topic is gone; None: all."""
        if census is None:
            self.producers.refuse_opening(AlreadyClosed("the server stops"))
        for number, shared in list(self.seats.items()):
            if census is None or census.lacks_topic(shared.topic.number):
                await self.dismiss(shared, number)

    def tell_closed(self, number: int) -> None:
        """Tell the client that a producer is closed here."""
        self.connection.send("close_producer", producer_id=number, request_id=NO_REQUEST)

    async def close(self) -> None:
        """The connection ends."""
        await self.producers.close_all(self.leave, self.connection.service.failed)


def publishers(connection: Connection) -> list[Publisher]:
    """The producers of a client."""
    room: Room | None = connection.rooms.get(ROOM)
    return (
        []
        if room is None
        else [
            Publisher(
                one.shared.topic.name,
                one.partition,
                one.number,
                one.shared.name,
                connection.peer,
                connection.version,
                ACCESS[one.mode],
                one.since_ms,
                one.messages,
                one.payload_bytes,
                one.metadata,
            )
            for one in room.producers.values()
        ]
    )


# --- opening -------------------------------------------------------------------------------------


async def open_producer(connection: Connection, body: Proto, rest: memoryview) -> None:
    """PRODUCER: open one; the answer names it, and says what it sent last."""
    name = topics.name_of(body.topic)
    connection.may(PRODUCE, name.topic)
    connection.listener.check_open()
    room, number = Room.of(connection), body.producer_id
    if _waits(body) and room.producers.is_opening(number):
        _tell_waiting(connection, body, body.producer_name)
    opening = partial(_producer, connection, room, name, body)
    wanted = (str(name), body.producer_access_mode)
    try:
        producer, is_old = await room.producers.open(number, wanted, opening)
    except AlreadyClosed:
        if not _waits(body):
            raise
        _tell_stopped(connection, room, number)  # it was told that it waits
        return
    shared = producer.shared
    if is_old and body.producer_name and name_in_store(body.producer_name) != shared.name:
        raise ProducerBusy(f"producer {number} of this connection is {producer.given}")
    last = producer.last
    if is_old:
        look = partial(_last_sequence, shared.topic, producer.partition, shared.name)
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
        schema_version=schemas.version_bytes(shared.version),
        topic_epoch=shared.handle.sync.access.epoch,
        producer_ready=True,
    )


async def _producer(
    connection: Connection, room: Room, name: TopicName, body: Proto
) -> WireProducer:
    """A new producer of a client."""
    service, most = connection.service, connection.service.limits.producers
    if len(room.producers) > most:
        raise too_many("producers on this connection", most)
    creates = service.options.creates_topics
    topic = await connection.client.run(partial(topics.in_use, name=name, creates=creates))
    if name.partition is None and topic.partitions > 1:
        raise NotAllowed(f"{name} has {topic.partitions} partitions, name one of them")
    partition = topics.check_partition(topic, name)
    await _subscribed(connection, body, topic)
    given = body.producer_name or connection.listener.new_name()
    seat = (topic.name, name_in_store(given), partition)
    if seat in connection.listener.fenced:
        connection.listener.fenced.remove(seat)
        raise ProducerFenced(f"producer {given} of {name} gave one number to two messages")
    shared = await _shared(connection, room, body, topic, seat)
    shared.users[partition] = (room, body.producer_id)
    room.seats[body.producer_id] = shared
    try:
        await shared.lane.settled()  # what this partition had by another connection
        last = await connection.client.run(partial(_last_sequence, topic, partition, shared.name))
    except BaseException:  # a CLOSE came, too
        await room.vacate(shared, partition, body.producer_id)
        raise
    shown = -1 if name.partition is None else partition
    now_ms = service.store.store.clock.now().wall_ms
    mode = body.producer_access_mode
    producer = WireProducer(body.producer_id, shared, partition, shown, mode, now_ms)
    producer.metadata = {pair.key: pair.value for pair in body.metadata}
    producer.given, producer.last = given, last
    return producer


async def _subscribed(connection: Connection, body: Proto, topic: Topic) -> None:
    """Create the subscription that a producer wants to be there before its first message.

    Clients name one for a topic of dead letters, which nobody has subscribed to yet. It begins at
    the first message, so a race with another producer loses none.
    """
    subscription = body.initial_subscription_name
    if not subscription:
        return
    connection.may(CONSUME, TopicName.parse(topic.name))
    await connection.client.create_subscription(topic.name, subscription, if_not_exists=True)


def name_in_store(name: str) -> str:
    """A name that the store takes; clients make some of topics, with `/` in them.

    What it does not take becomes its hexadecimal digits behind a `~`; a long one ends in a hash.
    """
    plain = "".join(
        one if (one.isascii() and one.isalnum()) or one in "._-=:+@" else f"~{ord(one):02x}"
        for one in name
    )
    plain = f"~{plain}" if plain[0] in "-_." else plain
    if len(plain) <= NAME_MAX:
        return plain
    return f"{plain[: NAME_MAX - 33]}~{sha256(name.encode()).hexdigest()[:32]}"


async def _shared(
    connection: Connection, room: Room, body: Proto, topic: Topic, seat: tuple[str, str, int]
) -> Shared:
    """The producer of the store for a name, opened by its first user; others wait for that one.

    seat: the topic, the name in the store and the partition, which is free when this returns
    """
    *_, name, partition = seat
    key, mode = (topic.name, name), MODES[body.producer_access_mode]
    schema, known = schemas.schema_of(body), room.known(mode)
    async with known.opening.setdefault(key, asyncio.Lock()):
        while (shared := known.shared.get(key)) is not None and not shared.is_over:
            is_here = any(each is room for each, _ in shared.users.values())
            user = shared.users.get(partition)
            if user is None and (is_here or shared.schema == schema):
                return shared
            if user is not None and user[0] is not room and body.epoch:
                await user[0].dismiss(shared, user[1])  # its client comes by this connection now
                if shared.users.get(partition) != user:
                    continue
            raise ProducerBusy(f"producer {name} of {topic.name} is connected")
        names = connection.service.names
        holder = Holder(topic.name, name, mode, partial(room.producers.refuse, body.producer_id))
        before = names.take(holder, comes_again=bool(body.epoch))
        try:
            if before is not None:
                await names.succeed(before)
            connection.listener.check_open()  # it may have waited for another one of its name
            if _waits(body):
                _tell_waiting(connection, body, name)
                await names.alone(holder)
            handle = await _opened(connection, body, topic, name)
            version = await _typed(connection, handle, topic, schema)
        except BaseException:  # the name is free again, whatever came
            names.free(holder)
            raise
        shared = known.shared[key] = Shared(handle, topic, holder, schema, version)
        holder.is_waiting = False
        tasks = connection.service.tasks
        holder.close = lambda _: tasks.begin(shared.dismiss(), shared.close_connections)
        if mode == FENCING:
            names.close_others(holder)
        return shared


def _waits(body: Proto) -> bool:
    return MODES[body.producer_access_mode] == WAITING


def _tell_waiting(connection: Connection, body: Proto, name: str) -> None:
    """Tell a client that its producer has to wait to be exclusive, however long."""
    connection.send(
        "producer_success",
        request_id=body.request_id,
        producer_name=name,
        last_sequence_id=-1,
        producer_ready=False,
    )


def _tell_stopped(connection: Connection, room: Room, number: int) -> None:
    """Close a producer that waits if the server stops; the client itself closed it otherwise."""
    try:
        connection.listener.check_open()
    except AlreadyClosed:
        room.tell_closed(number)


async def _opened(connection: Connection, body: Proto, topic: Topic, name: str) -> Handle:
    """Open the producer of the store. Raises ProducerBusy, ProducerFenced."""
    mode = MODES[body.producer_access_mode]
    if mode != SHARED:  # it holds a lock file
        check_room()
    had = body.topic_epoch if mode != SHARED and body.HasField("topic_epoch") else 0
    if had and await connection.client.run(partial(_epoch, topic)) > had + 1:
        raise _fenced(topic, had)
    try:
        handle = await connection.client.producer(topic.name, name, access_mode=mode, chunking=True)
    except ProducerBusy as error:
        if mode == SHARED:
            raise
        raise (_fenced(topic, had) if had else ProducerFenced(error.message)) from error
    if had and handle.sync.access.epoch != had + 2:  # somebody was faster, and has left
        await handle.close()
        raise _fenced(topic, had)
    return handle


async def _typed(
    connection: Connection, handle: Handle, topic: Topic, schema: Schema | None
) -> int | None:
    """Add the schema of a producer to its topic, which writes records by it; its version.

    raises: IncompatibleSchema; the producer is closed then
    """
    if schema is None:
        return None

    def act(client: Client) -> int:
        version = schemas.add(client, topic.name, schema)
        if schema.is_record:
            handle.sync._write(version)
        return version

    try:
        return await connection.client.run(act)
    except BaseException:  # nobody else has it
        await handle.close()
        raise


def _epoch(topic: Topic, client: Client) -> int:
    """The newest epoch of exclusive producers of a topic."""
    return client.store.read(lambda view: epoch_of(view, topic))


def _fenced(topic: Topic, had: int) -> ProducerFenced:
    """Tell an exclusive producer that comes again that another one was there since."""
    short = TopicName.parse(topic.name).short
    return ProducerFenced(f"the exclusive producer of {short} is fenced: epoch {had} is over")


def _last_sequence(topic: Topic, partition: int, name: str, client: Client) -> int:
    """The highest sequence that a name has stored in a partition; -1: none."""

    def look(view: View) -> int:
        known = view.topic(number_of(topic, partition)).producers.get(name)
        return -1 if known is None else int(known.sequence)

    return client.store.read(look)


async def close_producer(connection: Connection, body: Proto, rest: memoryview) -> None:
    """CLOSE_PRODUCER: answered once all it sent is stored; one that was closed here is closed."""
    room, number = Room.of(connection), body.producer_id
    if not await room.producers.close(number, room.leave) and not room.producers.dismissed(number):
        raise room.producers.unknown(number)
    connection.send("success", request_id=body.request_id)


# --- sending -------------------------------------------------------------------------------------


def send(connection: Connection, body: Proto, rest: memoryview) -> Coroutine[Any, Any, None] | None:
    """SEND: queue its messages; the receipt comes when they are durable.

    Returns what is to be done before the next command, if reading the messages takes long.
    """
    one = Room.of(connection).producers.get(body.producer_id)
    if one is None and Room.of(connection).producers.dismissed(body.producer_id):
        return None  # the client knows by now, or will soon
    if one is None:
        _refuse(connection, body, ERRORS["ProducerFenced"], "there is no such producer")
        return None
    if one.shared.is_over:
        return None
    try:
        check(body)
        message = checked(rest)
        if is_large(*message) and message.metadata.num_chunks_from_msg <= 1:
            return _send_large(connection, one, body, message)
        connection.spend(message.metadata.num_messages_in_batch // WORK_MESSAGES)
        _send(connection, one, body, message)
    except TxlogError as error:
        _send_wrong(connection, one, body, error)
    return None


def _send_wrong(connection: Connection, one: WireProducer, body: Proto, error: TxlogError) -> None:
    """Refuse a SEND in its turn: what came before it is answered first."""
    told = partial(_told, connection, one, body)
    wrong = Item(None, one.partition, ITEM_BYTES, told, wrong=error)
    connection.listener.sends.put(one.shared.lane, wrong)


async def _send_large(
    connection: Connection, one: WireProducer, body: Proto, message: Checked
) -> None:
    """Read messages beside the event loop, once there is room for them, and queue them."""
    most = connection.message_bytes_max + ROOM_BYTES
    room = await connection.room_for(price(*message))
    is_queued = False
    try:
        read = await connection.service.beside(partial(unpacked, *message, most))
        is_open = Room.of(connection).producers.get(one.number) is one
        if is_open and not one.shared.is_over:
            _send(connection, one, body, message, read, room.close)
            is_queued = True
    except TxlogError as error:
        _send_wrong(connection, one, body, error)
    finally:
        if not is_queued:
            room.close()


def _send(
    connection: Connection,
    one: WireProducer,
    body: Proto,
    message: Checked,
    read: Unpacked | None = None,
    answered: Callable[[], object] | None = None,
) -> None:
    """Queue the messages of a SEND.

    read: they are unpacked already; answered: called once they are stored or refused
    """
    head, payload = message
    txn = None
    if body.HasField("txnid_most_bits") or body.HasField("txnid_least_bits"):
        txn = TxnId.from_halves(body.txnid_most_bits, body.txnid_least_bits)
    most = connection.message_bytes_max + ROOM_BYTES
    if head.num_chunks_from_msg > 1:
        item = _chunk(connection, one, body, message, txn)
        if item is None:
            return
        one.messages += 1
        one.payload_bytes += item.size - ITEM_BYTES
    else:
        if one.has_begun_anew(body):
            seat = (one.shared.topic.name, one.shared.name, one.partition)
            connection.listener.fenced.append(seat)
            raise ProducerFenced("another message had this number")
        columns, size, payload_bytes = read or unpacked(head, payload, most)
        told: Told = partial(_told, connection, one, body)
        if answered is not None:
            told = partial(_told_then, answered, told)
        if read is None:
            connection.spend(columns.pairs // WORK_MESSAGES)
        one.messages += len(columns.values)
        one.payload_bytes += payload_bytes
        item = Item(columns, one.partition, size + ITEM_BYTES, told, txn)
    connection.listener.sends.put(one.shared.lane, item)


def _chunk(
    connection: Connection, one: WireProducer, body: Proto, message: Checked, txn: TxnId | None
) -> Item | None:
    """One chunk; the message when it is the last. Raises InvalidMessage, LimitExceeded."""
    head, payload = message
    if head.encryption_keys:  # each by itself: nobody but their client can put them together
        raise NotAllowed("encrypted messages in chunks are not known here")
    store = connection.service.store
    most = min(CHUNKED_BYTES_MAX, store.settings.max_chunked_message_bytes)
    if head.chunk_id == 0:
        one.end_chunks()
        idle_seconds = connection.service.limits.idle_timeout_ms / 1_000
        one.chunks = Chunks(head, connection.hold_for_chunks(), most, idle_seconds)
    have = one.chunks
    if have is None:
        raise InvalidMessage(f"chunk {head.chunk_id} of {head.uuid} is out of order")
    try:
        have.add(head, payload, (body.sequence_id, body.highest_sequence_id))
    except InvalidMessage:
        one.end_chunks()
        raise
    connection.wait_for(have)
    if head.chunk_id < head.num_chunks_from_msg - 1:
        return None
    one.chunks = None
    try:
        return _chunked(connection, one, body, have, most, txn)
    except BaseException:  # nobody will answer it
        have.end()
        raise


def _chunked(
    connection: Connection,
    one: WireProducer,
    body: Proto,
    have: Chunks,
    most: int,
    txn: TxnId | None,
) -> Item:
    """A message of which all chunks are here. Raises InvalidMessage, LimitExceeded."""
    head = have.head
    data = decompressed(head.compression, head.uncompressed_size, have.whole(), most)
    first = have.head
    first.ClearField("num_messages_in_batch")
    columns = rows_of(first, data)
    large: dict[str, Any] = {
        "value": columns.values[0],
        "key": columns.keys[0],
        "properties": dict(columns.properties[0] or ()),
        "event_time": columns.event_times[0],
        "deliver_at": columns.deliver_at,
        "sequence_id": columns.sequences[0],
        "partition": one.partition,
    }
    sequences = have.sequences

    def told(found: MessageId | None, error: Exception | None) -> None:
        have.end()
        for sequence, highest in sequences:
            made = type(body)(producer_id=one.number, sequence_id=sequence)
            made.highest_sequence_id = highest
            _told(connection, one, made, found, error)

    return Item(None, one.partition, len(data) + ITEM_BYTES, told, txn, large)


def _told_then(
    answered: Callable[[], object], told: Told, found: MessageId | None, error: Exception | None
) -> None:
    """Answer a SEND, and give back its room."""
    answered()
    told(found, error)


def _told(
    connection: Connection,
    one: WireProducer,
    body: Proto,
    found: MessageId | None,
    error: Exception | None,
) -> None:
    """Answer a SEND."""
    if error is not None:
        if one.shared.is_over:
            return
        one.shared.is_over = True
        if not isinstance(error, TxlogError):
            one.shared.close_connections()  # nobody knows what became of it: clients repeat it
            return
        number = refusal_of(error, connection.version)
        if number is not None:
            _refuse(connection, body, number, text_of(error))
        close = one.shared.close_connections
        connection.service.tasks.begin(one.shared.dismiss(), close)
        return
    ledger, entry = (-1, -1) if found is None else (found.ledger, found.entry * ids.STEP)
    sequence, highest = body.sequence_id, body.highest_sequence_id
    receipt = receipt_frame(one.number, sequence, highest, ledger, entry, one.shown)
    connection.write([receipt])


def _refuse(connection: Connection, body: Proto, error: int, text: str) -> None:
    """Refuse a SEND. Java knows a batch by its highest number, the others by its lowest."""
    number = body.sequence_id
    if connection.version.startswith("Pulsar-Java"):
        number = max(number, body.highest_sequence_id)
    connection.send(
        "send_error",
        producer_id=body.producer_id,
        sequence_id=number,
        error=error,
        message=text,
    )


HANDLERS: Final[Mapping[str, Handler]] = {
    "PRODUCER": open_producer,
    "SEND": send,
    "CLOSE_PRODUCER": close_producer,
}
