"""Owns consumers: SUBSCRIBE, FLOW, ACK, SEEK and the other commands of consumers.

Durable subscriptions are subscriptions of the store. A subscription that is not durable (a stock
client's reader) exists in the memory of this server, on a reader of the store: it leases nothing,
and its acknowledgements stay in memory.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from weakref import WeakValueDictionary

from txlog.base.choices import SubscriptionType
from txlog.base.ids import MessageId, TopicName, TxnId
from txlog.base.ranges import END, START, Bound, Range
from txlog.client.client import Client
from txlog.engine.door.catalog import Topic, live_topic, number_of
from txlog.engine.door.catalog import subscription as find_subscription
from txlog.engine.door.consuming import Session
from txlog.engine.door.facts import Mark
from txlog.engine.door.reading import (
    compacted_range,
    last_compacted,
    last_message,
    resolve_bound,
)
from txlog.engine.door.store import View
from txlog.errors import (
    AlreadyClosed,
    ConsumerBusy,
    InvalidArgument,
    MessageNotFound,
    NotAllowed,
    NotFound,
    SubscriptionNotFound,
    TxlogError,
)
from txlog.serve.auth import CONSUME
from txlog.serve.core.catalog import CatalogSnapshot
from txlog.serve.core.id_table import IdTable
from txlog.serve.core.service import ConsumerStats
from txlog.serve.limits.limits import check_free_descriptors, too_many_error
from txlog.serve.pulsar import ids, schemas, topics
from txlog.serve.pulsar.connection import COMMAND_BYTES, TURN, Connection, Handler
from txlog.serve.pulsar.deliveries import SLOTS
from txlog.serve.pulsar.failure import error_of, text_of
from txlog.serve.pulsar.ids import BatchSpan
from txlog.serve.pulsar.members import (
    AckRequest,
    ClientConsumer,
    StoreConsumer,
    forget_up_to,
    last_id,
    mark_id,
    run,
    take_acknowledged,
)
from txlog.serve.pulsar.messages import Proto
from txlog.serve.pulsar.wire import INT64_MAX, NO_REQUEST

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterable, Mapping


ROOM: Final = "consumers"
STICKY: Final = 1  # a value of KeySharedMode
# Ids that are as much work as a command: to acknowledge, or to compare with a cumulative one.
IDS, IDS_LOOKED_AT = 3, 50
DECODED_FACTOR: Final = 10  # from the bytes of a command to its memory
KINDS: Final[tuple[SubscriptionType, ...]] = ("exclusive", "shared", "failover", "key-shared")


class StoreConsumers:
    """The consumers of the store, by the properties that all consumers of one client share.

    joining: a lock for each key: partitions that subscribe together share a consumer of the store
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, list[StoreConsumer]] = {}
        self.joining: WeakValueDictionary[Hashable, asyncio.Lock] = WeakValueDictionary()

    def add(self, store_consumer: StoreConsumer) -> None:
        """Allow consumers of other partitions to join a consumer."""
        self._known.setdefault(store_consumer.key, []).append(store_consumer)

    def forget(self, store_consumer: StoreConsumer) -> None:
        """Let no further consumer join a consumer."""
        members = self._known.get(store_consumer.key, [])
        if store_consumer in members:
            members.remove(store_consumer)
            if not members:
                del self._known[store_consumer.key]

    def free(self, key: Hashable, consumer: ClientConsumer) -> StoreConsumer | None:
        """One that a consumer may join, or None; first those that its connection uses already."""
        free = [
            each
            for each in self._known.get(key, [])
            if not each.is_over and consumer.partition not in each.consumers
        ]
        return max(free, key=lambda each: each.serves(consumer.connection), default=None)

    def leaver(self, key: Hashable, partition: int) -> ClientConsumer | None:
        """A consumer of the same client that leaves this partition, before another takes it."""
        leavers = (each.leaver(partition) for each in self._known.get(key, []))
        return next((consumer for consumer in leavers if consumer is not None), None)

    def rest(self, store_consumer: StoreConsumer) -> list[ClientConsumer]:
        """The consumers of a store consumer that can all move to another store consumer; empty:
        none can.

        Clients with the same name on one computer may have joined each other's store consumer. When
        one client closes, the other may have two store consumers, and each gets keys or partitions
        that its consumers do not serve.
        """
        partitions = set(store_consumer.consumers)
        others = [
            each for each in self._known.get(store_consumer.key, []) if each is not store_consumer
        ]
        if any(not each.is_over and partitions.isdisjoint(each.consumers) for each in others):
            return list(store_consumer.consumers.values())
        return []


LateCommand: TypeAlias = "tuple[Handler, Proto, memoryview]"


def _memory_of(body: Proto) -> int:
    """About how much memory a decoded command takes."""
    size: int = body.ByteSize()
    return COMMAND_BYTES + DECODED_FACTOR * size


class ConnectionConsumers:
    """The consumers of one connection.

    store_consumers: consumers of the store that the consumers of any connection may join
    sought: by the number of a reader, where SEEK moved it, until it subscribes again: its topic,
          subscription and partition, and the position
    splits: by the number of a consumer, the batch in which it starts, at a message inside
    late: by the number of a consumer that may close: the commands that came since
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.table: IdTable[tuple[ClientConsumer, StoreConsumer]] = IdTable(
            "consumer", ConsumerBusy
        )
        self.store_consumers: StoreConsumers = connection.listener.shared_state.setdefault(
            ROOM, StoreConsumers()
        )
        self.sought: dict[int, tuple[tuple[int, str, int], Bound]] = {}
        self.splits: dict[int, BatchSpan] = {}
        self.late: dict[int, list[LateCommand]] = {}
        connection.on_close.append(self.close)
        connection.open_handles.append(self)

    @classmethod
    def of(cls, connection: Connection) -> ConnectionConsumers:
        """The consumers of a connection."""
        consumers: ConnectionConsumers | None = connection.state.get(ROOM)
        if consumers is None:
            consumers = connection.state[ROOM] = cls(connection)
        return consumers

    async def try_close(
        self, number: int, act: Callable[[tuple[ClientConsumer, StoreConsumer]], Awaitable[None]]
    ) -> None:
        """Close a consumer, unless `act` is refused; then it gets the commands that came meanwhile.

        raises: NotFound, the error of `act`
        """
        if number in self.late:
            raise self.table.unknown(number)
        late = self.late[number] = []
        try:
            await self.table.try_close(number, act)
        finally:
            del self.late[number]
            for handler, body, trailer in late:
                self.connection.release(_memory_of(body))
                if not self.connection.is_over():
                    work = handler(self.connection, body, trailer)
                    if work is not None:
                        await work

    def is_late(self, handler: Handler, body: Proto, trailer: memoryview) -> bool:
        """Whether a consumer may be about to close; then its command waits for the outcome."""
        late = self.late.get(body.consumer_id)
        if late is None:
            return False
        self.connection.hold(_memory_of(body))
        late.append((handler, body, trailer))
        return True

    async def leave(self, pair: tuple[ClientConsumer, StoreConsumer]) -> None:
        """Close a consumer; its messages go back."""
        consumer, store_consumer = pair
        self.uncount(consumer)
        if set(store_consumer.consumers) <= {consumer.partition}:
            self.store_consumers.forget(store_consumer)
        await store_consumer.leave(consumer)
        others = self.store_consumers.rest(store_consumer)
        if others:  # so that they all move to another one
            self.store_consumers.forget(store_consumer)
        for other in others:
            if not other.connection.is_over():  # it closes its consumers anyway
                other.dismiss()

    def uncount(self, consumer: ClientConsumer) -> None:
        """Give back the place of a consumer in the quota; may be called repeatedly."""
        if consumer.is_counted:
            consumer.is_counted = False
            self.connection.service.consumers.give(self.connection.holder)

    async def dismiss(self, consumer: ClientConsumer) -> None:
        """Close a consumer on the server's side, and notify its client, which opens it again."""
        pair = self.table.get(consumer.number)
        if pair is None or pair[0] is not consumer:
            return
        with suppress(TxlogError):  # its messages are delivered again when their leases end
            await self.table.close(consumer.number, self.leave, by_server=True)
        self.connection.send("close_consumer", consumer_id=consumer.number, request_id=NO_REQUEST)

    async def follow(self, snapshot: CatalogSnapshot | None) -> None:
        """Dismiss consumers whose topic or subscription was deleted; None: all."""
        if snapshot is None:
            self.table.refuse_opening(AlreadyClosed("the server stops"))
        for consumer, store_consumer in self.table.values():
            if snapshot is None or store_consumer.is_gone(snapshot):
                await self.dismiss(consumer)

    async def close(self) -> None:
        """The connection ends: the messages of its consumers go back."""
        await self.table.close_all(self.leave, self.connection.service.failed)


def consumer_stats(connection: Connection) -> list[ConsumerStats]:
    """The figures of a client's consumers."""
    consumers: ConnectionConsumers | None = connection.state.get(ROOM)
    return [] if consumers is None else [_stats_of(*pair) for pair in consumers.table.values()]


def _stats_of(consumer: ClientConsumer, store_consumer: StoreConsumer) -> ConsumerStats:
    durable = store_consumer.durable
    return ConsumerStats(
        store_consumer.topic.name,
        consumer.partition,
        store_consumer.subscription,
        None if durable is None else durable.member.number,
        consumer.name,
        consumer.connection.peer,
        consumer.connection.version,
        consumer.since_ms,
        max(0, consumer.permits),
        consumer.unacked,
        consumer.metadata,
    )


# --- subscribing ---------------------------------------------------------------------------------


async def subscribe(connection: Connection, body: Proto, trailer: memoryview) -> None:
    """SUBSCRIBE: open a consumer; it gets no message before its first FLOW."""
    name = topics.name_of(body.topic)
    connection.may(CONSUME, name.topic)
    connection.listener.check_open()
    consumers = ConnectionConsumers.of(connection)
    request = (str(name), body.subscription, body.subType, body.durable)
    opening = partial(_open_consumer, connection, consumers, name, body)
    (_, store_consumer), _ = await consumers.table.open(body.consumer_id, request, opening)
    connection.send("success", request_id=body.request_id)
    if store_consumer.kind in ("exclusive", "failover"):
        await store_consumer.tell_active()


async def _open_consumer(
    connection: Connection, consumers: ConnectionConsumers, name: TopicName, body: Proto
) -> tuple[ClientConsumer, StoreConsumer]:
    """A new consumer, which delivers as soon as it has permits."""
    client, limit = connection.client, connection.service.limits.consumers
    if len(consumers.table) > limit:
        raise too_many_error("consumers on this connection", limit)
    creates = connection.service.options.creates_topics and body.force_topic_creation
    topic = await client.run(partial(topics.get_or_create_topic, name=name, creates=creates))
    await client.run(partial(schemas.check_reader, name=name.topic, body=body))
    if name.partition is None and topic.partitions > 1:
        raise NotAllowed(f"{name} has {topic.partitions} partitions: name one")
    partition = topics.check_partition(topic, name)
    shown_partition = -1 if name.partition is None else partition
    consumer = ClientConsumer(
        connection, body.consumer_id, partition, shown_partition, consumers.dismiss
    )
    consumer.name = body.consumer_name or f"c{body.consumer_id}"
    consumer.metadata = {pair.key: pair.value for pair in body.metadata}
    consumer.since_ms = connection.service.store.store.clock.now().wall_ms
    consumer.split = consumers.splits.get(consumer.number)
    pool, caller = connection.service.consumers, connection.caller
    key = _key(connection, topic, body)
    # a new one must not get messages before those that the old one gives back
    while (leaver := consumers.store_consumers.leaver(key, partition)) is not None:
        await leaver.gone.wait()
    async with consumers.store_consumers.joining.setdefault(key, asyncio.Lock()):
        check_free_descriptors()
        pool.take(connection.holder, is_bounded=caller is None or not caller.is_superuser)
        try:
            store_consumer = await _join_store_consumer(consumers, topic, consumer, body, key)
        except BaseException:  # also if cancelled: no other code gives it back
            pool.give(connection.holder)
            raise
        consumer.is_counted = True
        store_consumer.begin(consumer)
    return consumer, store_consumer


def _key(connection: Connection, topic: Topic, body: Proto) -> Hashable:
    """The properties that the consumers of one client share for all partitions of a topic."""
    return (
        topic.number,
        body.subscription,
        body.subType,
        body.consumer_name,
        body.priority_level,
        body.durable,
        body.read_compacted,
        connection.peer.rpartition(":")[0],
        connection.role,
        connection.version,
    )


async def _join_store_consumer(
    consumers: ConnectionConsumers,
    topic: Topic,
    consumer: ClientConsumer,
    body: Proto,
    key: Hashable,
) -> StoreConsumer:
    """The store consumer that a new consumer gets its messages from."""
    if body.read_compacted and KINDS[body.subType] not in ("exclusive", "failover"):
        raise NotAllowed("only exclusive and failover consumers read compacted messages")
    if not body.durable:
        return await _in_memory(consumers.connection, topic, consumer, body)
    kind = KINDS[body.subType]
    store_consumer = consumers.store_consumers.free(key, consumer)
    if store_consumer is None:
        store_consumer = await _durable(consumers.connection, topic, body, kind)
        store_consumer.key = key
        consumers.store_consumers.add(store_consumer)
    return store_consumer


async def _durable(
    connection: Connection, topic: Topic, body: Proto, kind: SubscriptionType
) -> StoreConsumer:
    if _ranges_of(body):
        raise NotAllowed(
            "durable subscriptions split the hashes of keys evenly: no consumer chooses ranges",
            hint="use AUTO_SPLIT, or a reader with ranges",
        )
    position: Bound = START if body.initialPosition == 1 else END
    if body.start_message_rollback_duration_sec:
        now_ms = connection.service.store.store.clock.now().wall_ms
        position = Bound("time", now_ms - 1000 * body.start_message_rollback_duration_sec)
    handle = await connection.client.consumer(
        topic.name,
        body.subscription,
        type=kind,
        create=True,
        position=position,
        name=f"{connection.peer} {body.consumer_name}"[:128].strip().replace(" ", "@"),
        priority=body.priority_level,
    )
    return StoreConsumer(
        handle, topic, body.subscription, kind, reads_compacted=body.read_compacted
    )


async def _in_memory(
    connection: Connection, topic: Topic, consumer: ClientConsumer, body: Proto
) -> StoreConsumer:
    """A subscription that is not durable: it starts where the client, or its last SEEK, says."""
    subscribed, consumers = (
        (topic.number, body.subscription, consumer.partition),
        ConnectionConsumers.of(connection),
    )
    is_compacted = body.read_compacted
    previous, sought = consumers.sought.get(consumer.number, (None, None))
    if previous != subscribed:
        sought = None

    def start(client: Client) -> tuple[Bound, Proto]:
        def look(view: View) -> tuple[Bound, Proto]:
            current = live_topic(view, topic.number, topic.name)
            if sought is not None:
                bound = sought
            elif body.HasField("start_message_id"):
                bound = start_of(view, current, consumer, body.start_message_id)
            else:
                bound = START if body.initialPosition == 1 else END
            try:
                mark = position_before(
                    view, current, consumer.partition, bound, compacted=is_compacted
                )
            except MessageNotFound:  # it was trimmed: start at the oldest message left
                bound = START
                mark = resolve_bound(view, current, consumer.partition, bound)
            return bound, mark_id(view, current, consumer, mark)

        return client.store.read(look)

    bound, consumer.mark = await connection.client.run(start)
    full = f"{topic.name}/{consumer.partition}"
    begin = partial(
        connection.client.consumer,
        full,
        body.subscription,
        durable=False,
        read_compacted=is_compacted,
    )
    try:
        handle = await begin(start=bound)
    except MessageNotFound:  # it was trimmed meanwhile
        handle = await begin(start=START)
    consumers.sought.pop(consumer.number, None)
    ranges = _ranges_of(body)
    return StoreConsumer(
        handle, topic, body.subscription, "exclusive", ranges, reads_compacted=is_compacted
    )


def position_before(
    view: View, topic: Topic, partition: int, bound: Bound, *, compacted: bool
) -> Mark:
    """The position before a bound, for a reader of the log or of the compacted messages.

    raises: MessageNotFound
    """
    if compacted:
        return compacted_range(view, topic, partition, Range(bound, kind="compacted")).after
    return resolve_bound(view, topic, partition, bound)


def _ranges_of(body: Proto) -> list[range]:
    """The hash slots of keys that a consumer chooses (STICKY); empty: it chooses none.

    raises: InvalidArgument
    """
    if body.keySharedMeta.keySharedMode != STICKY:
        return []
    ranges = [
        range(requested.start, requested.end + 1) for requested in body.keySharedMeta.hashRanges
    ]
    if not all(0 <= requested.start < requested.stop <= SLOTS for requested in ranges):
        raise InvalidArgument(f"a range of hashes is not within 0 to {SLOTS - 1}")
    return ranges


def start_of(view: View, topic: Topic, consumer: ClientConsumer, message_id: Proto) -> Bound:
    """Where a reader starts that names a message; clients may skip the message itself."""
    if ids.is_start(message_id):
        return START
    if ids.is_end(message_id):
        return END
    number = number_of(topic, consumer.partition)
    target = None
    if ids.partition_of(view, message_id) == number:
        target = ids.target_of(view, number, message_id)
    if target is None:
        entry, index = ids.parts_of(message_id)
        return Bound("id", MessageId(message_id.ledgerId, entry, index))
    if target.span.size > 1 and message_id.entryId != target.span.wire_entry:
        _split(consumer, target.span)
    return Bound("id", target.span.id(target.start))


def _split(consumer: ClientConsumer, span: BatchSpan) -> None:
    """Remember a batch that a consumer gets message by message, also after it subscribes again.

    The client starts at a message of the batch, by the id of this message alone. That id is greater
    than the batch's, so the client would skip the batch as already read.
    """
    splits = ConnectionConsumers.of(consumer.connection).splits
    while len(splits) >= consumer.connection.service.limits.consumers:
        del splits[next(iter(splits))]
    consumer.split = splits[consumer.number] = span


def flow(connection: Connection, body: Proto, trailer: memoryview) -> None:
    """FLOW: the consumer accepts more messages."""
    consumers = ConnectionConsumers.of(connection)
    if consumers.is_late(flow, body, trailer):
        return
    pair = consumers.table.get(body.consumer_id)
    if pair is not None:
        pair[1].flow(pair[0], body.messagePermits)


# --- acknowledging, seeking, unsubscribing -------------------------------------------------------


def acknowledge(
    connection: Connection, body: Proto, trailer: memoryview
) -> Coroutine[Any, Any, None] | None:
    """ACK: queue it; the answer, if the client wants one, follows when the store has it.

    Returns the work to do before the next command, if it names many ids.
    """
    if ConnectionConsumers.of(connection).is_late(acknowledge, body, trailer):
        return None
    number = body.request_id if body.HasField("request_id") else None
    txn = None
    if body.HasField("txnid_most_bits") or body.HasField("txnid_least_bits"):
        txn = TxnId.from_halves(body.txnid_most_bits, body.txnid_least_bits)

    def answer(error: Exception | None) -> None:
        if number is None:
            return
        connection.send(
            "ackResponse",
            consumer_id=body.consumer_id,
            request_id=number,
            txnid_least_bits=body.txnid_least_bits if txn is not None else None,
            txnid_most_bits=body.txnid_most_bits if txn is not None else None,
            error=None if error is None else error_of(error),
            message=None if error is None else text_of(error),
        )

    pair = ConnectionConsumers.of(connection).table.get(body.consumer_id)
    if pair is None:
        answer(ConnectionConsumers.of(connection).table.unknown(body.consumer_id))
        return None
    consumer, store_consumer = pair
    ack = AckRequest(consumer, [], [], body.ack_type == 1, txn, answer, [])
    work = len(consumer.held) // IDS_LOOKED_AT if ack.is_cumulative else len(body.message_id) // IDS
    if work > TURN:
        return _acknowledge_many(connection, body, store_consumer, ack)
    connection.spend(work)
    _resolve_held(ack, body.message_id)
    store_consumer.relieve(consumer)
    store_consumer.acknowledge(ack)
    return None


async def _acknowledge_many(
    connection: Connection, body: Proto, store_consumer: StoreConsumer, ack: AckRequest
) -> None:
    """Acknowledge many ids, with other work of the event loop in between."""
    number, ids_left, consumers = (
        body.consumer_id,
        iter(body.message_id),
        ConnectionConsumers.of(connection),
    )
    while chunk := list(islice(ids_left, 1 if ack.is_cumulative else TURN * IDS)):
        await asyncio.sleep(0)
        if consumers.table.get(number) != (ack.consumer, store_consumer):
            ack.end(consumers.table.unknown(number))
            return
        _resolve_held(ack, chunk)
    store_consumer.relieve(ack.consumer)
    store_consumer.acknowledge(ack)


def _resolve_held(ack: AckRequest, message_ids: Iterable[Proto]) -> None:
    """Remove the messages with these ids from the consumer's unacknowledged ones."""
    for message_id in message_ids:
        if ack.is_cumulative:
            forget_up_to(ack.consumer, message_id)
        runs = None if ack.is_cumulative else take_acknowledged(ack, message_id)
        if runs is None:
            ack.unknown.append(message_id)
        else:
            ack.runs.extend(runs)


async def redeliver(connection: Connection, body: Proto, trailer: memoryview) -> None:
    """REDELIVER_UNACKNOWLEDGED_MESSAGES: all messages that the consumer has, or the named ones."""
    consumers = ConnectionConsumers.of(connection)
    if consumers.is_late(redeliver, body, trailer):
        return
    pair = consumers.table.get(body.consumer_id)
    if pair is None:
        return
    consumer, store_consumer = pair
    if body.HasField("consumer_epoch"):
        consumer.epoch = max(consumer.epoch, body.consumer_epoch)
    await store_consumer.redeliver(consumer, list(body.message_ids))


async def seek(connection: Connection, body: Proto, trailer: memoryview) -> None:
    """SEEK: move the subscription. As in Pulsar the server then closes its consumer, which
    subscribes again.

    Clients delay acknowledgements, so one may arrive after SEEK for a message before it. It would
    move the subscription on again, so the server ignores it, unless it refuses the SEEK.
    """
    consumers = ConnectionConsumers.of(connection)
    await consumers.try_close(body.consumer_id, partial(_move_subscription, consumers, body))
    # in this order clients that subscribe again know that the seek is the reason
    connection.send("close_consumer", consumer_id=body.consumer_id, request_id=NO_REQUEST)
    connection.send("success", request_id=body.request_id)


async def _move_subscription(
    consumers: ConnectionConsumers, body: Proto, pair: tuple[ClientConsumer, StoreConsumer]
) -> None:
    """Move the subscription of a consumer, and close the consumer."""
    consumer, store_consumer = pair

    def where(view: View) -> Bound:
        if body.HasField("message_publish_time"):
            time_ms = body.message_publish_time
            return Bound("time", time_ms) if time_ms <= INT64_MAX else START  # before 1970
        return start_of(view, store_consumer.topic, consumer, body.message_id)

    def _act(session: Session) -> Bound:
        bound = session.store.read(where)
        if store_consumer.durable is not None:
            store_consumer.durable.seek_partition(bound, consumer.partition)
        return bound

    # this consumer gets nothing more; other partitions go on until `stop`, and again after the seek
    permits, consumer.permits = consumer.permits, 0
    await store_consumer.acknowledged()
    await store_consumer.stop()
    try:
        bound = await run(store_consumer, _act)
    except Exception:  # refused, or a bug: the consumer is still open, and continues
        consumer.permits += permits  # what was delivered meanwhile used some of them
        store_consumer.begin(consumer)
        raise
    if store_consumer.durable is None:
        while len(consumers.sought) >= consumers.connection.service.limits.consumers:
            del consumers.sought[next(iter(consumers.sought))]
        subscribed = (store_consumer.topic.number, store_consumer.subscription, consumer.partition)
        consumers.sought[consumer.number] = (subscribed, bound)
    consumer.forget()
    with suppress(TxlogError):  # its messages are delivered again when their leases end
        await consumers.leave((consumer, store_consumer))
    if store_consumer.consumers:
        store_consumer.begin(next(iter(store_consumer.consumers.values())))


async def unsubscribe(connection: Connection, body: Proto, trailer: memoryview) -> None:
    """UNSUBSCRIBE: delete the subscription, also for its other partitions.

    A client unsubscribes from each partition. Once the first command has deleted the subscription,
    the server closes the consumers of the others, perhaps before their UNSUBSCRIBE arrives; these
    then succeed.
    """
    consumers, number = ConnectionConsumers.of(connection), body.consumer_id
    try:
        await consumers.try_close(number, partial(_delete_subscription, consumers))
    except NotFound:
        request = consumers.table.wanted_by_client(number)
        if request is None or not await connection.client.run(partial(_is_deleted, request)):
            raise
    connection.send("success", request_id=body.request_id)


def _is_deleted(request: Any, client: Client) -> bool:
    """Whether a consumer's subscription was deleted; request: as in `subscribe`."""
    name, subscription, *_ = request
    try:
        topic = topics.get_topic(client, topics.name_of(name))
        client.store.read(lambda view: find_subscription(view, topic, subscription))
    except NotFound:
        return True
    return False


async def _delete_subscription(
    consumers: ConnectionConsumers, pair: tuple[ClientConsumer, StoreConsumer]
) -> None:
    """Delete the subscription of a consumer."""
    consumer, store_consumer = pair
    await store_consumer.acknowledged()
    await store_consumer.stop()
    try:
        await run(store_consumer, lambda session: session.unsubscribe())
    except SubscriptionNotFound:
        pass
    except TxlogError as error:
        if error.code != 402:  # 402: another consumer of the same client has deleted it
            store_consumer.begin(consumer)
            raise
    consumers.uncount(consumer)
    store_consumer.consumers.pop(consumer.partition, None)
    consumers.store_consumers.forget(store_consumer)


async def close_consumer(connection: Connection, body: Proto, trailer: memoryview) -> None:
    """CLOSE_CONSUMER: its messages go back; also succeeds if the server had closed it."""
    consumers, number = ConnectionConsumers.of(connection), body.consumer_id
    consumers.sought.pop(number, None)
    consumers.splits.pop(number, None)
    is_closed = await consumers.table.close(number, consumers.leave)
    if not is_closed and not consumers.table.dismissed(number):
        raise consumers.table.unknown(number)
    connection.send("success", request_id=body.request_id)


# --- questions -----------------------------------------------------------------------------------


async def last_id_of(connection: Connection, body: Proto, trailer: memoryview) -> None:
    """GET_LAST_MESSAGE_ID: the last message of the partition, -1:-1 if it has none.

    The answer includes the mark-delete position: after a seek to a time, clients cannot tell
    otherwise whether there are more messages.
    """
    consumer, store_consumer = ConnectionConsumers.of(connection).table.find(body.consumer_id)

    def _look(view: View) -> tuple[Proto, Proto | None]:
        of = store_consumer.topic
        topic, mark = live_topic(view, of.number, of.name), consumer.mark
        number = number_of(topic, consumer.partition)
        if store_consumer.durable is not None:
            cursor = view.cursor(store_consumer.durable.subscription_number, number)
            mark = mark_id(view, topic, consumer, cursor.mark_delete)
        last = (last_compacted if store_consumer.reads_compacted else last_message)(view, number)
        return last_id(view, topic, consumer, last), mark

    last, mark = await run(store_consumer, lambda session: session.store.read(_look))
    connection.send(
        "getLastMessageIdResponse",
        request_id=body.request_id,
        last_message_id=last,
        consumer_mark_delete_position=mark,
    )


async def stats(connection: Connection, body: Proto, trailer: memoryview) -> None:
    """CONSUMER_STATS: the figures of a consumer."""
    consumer, store_consumer = ConnectionConsumers.of(connection).table.find(body.consumer_id)

    def backlog(client: Client) -> int:
        rows = client.subscriptions(store_consumer.topic.name)
        return sum(
            row["backlog"] for row in rows if row["subscription"] == store_consumer.subscription
        )

    count = await connection.client.run(backlog)
    connection.send(
        "consumerStatsResponse",
        request_id=body.request_id,
        consumerName=consumer.name,
        availablePermits=max(0, consumer.permits),
        unackedMessages=consumer.unacked,
        address=connection.peer,
        type=store_consumer.kind.replace("-", "_").title(),
        msgBacklog=count,
    )


HANDLERS: Final[Mapping[str, Handler]] = {
    "SUBSCRIBE": subscribe,
    "FLOW": flow,
    "ACK": acknowledge,
    "REDELIVER_UNACKNOWLEDGED_MESSAGES": redeliver,
    "SEEK": seek,
    "UNSUBSCRIBE": unsubscribe,
    "CLOSE_CONSUMER": close_consumer,
    "GET_LAST_MESSAGE_ID": last_id_of,
    "CONSUMER_STATS": stats,
}
