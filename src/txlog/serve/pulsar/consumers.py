"""Owns consumers: SUBSCRIBE, FLOW, ACK, REDELIVER, SEEK, UNSUBSCRIBE, and questions of theirs.

Durable subscriptions are those of the store. One that is not (a reader of a stock client) is one in
the memory of this server, on a reader of the store: it leases nothing and acknowledges for itself.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakValueDictionary

from txlog.base.ids import MessageId, TopicName, TxnId
from txlog.base.ranges import END, START, Bound, Range
from txlog.client.client import Client
from txlog.engine.door.catalog import Topic, number_of
from txlog.engine.door.catalog import subscription as find_subscription
from txlog.engine.door.catalog import topic as find_topic
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
from txlog.serve.core.authority import CONSUME
from txlog.serve.core.census import Census
from txlog.serve.core.descriptors import check_room
from txlog.serve.core.id_table import IdTable
from txlog.serve.core.limits import too_many
from txlog.serve.core.service import Subscriber
from txlog.serve.pulsar import ids, schemas, topics
from txlog.serve.pulsar.connection import TURN, Connection, Handler
from txlog.serve.pulsar.deliveries import SLOTS
from txlog.serve.pulsar.failure import error_of, text_of
from txlog.serve.pulsar.fields import INT64_MAX
from txlog.serve.pulsar.ids import Span
from txlog.serve.pulsar.members import (
    Ack,
    Member,
    Wire,
    last_id,
    mark_id,
    run,
    taken,
    taken_up_to,
)
from txlog.serve.pulsar.messages import Proto
from txlog.serve.pulsar.wire import NO_REQUEST

if TYPE_CHECKING:
    from collections.abc import Coroutine, Hashable, Iterable, Mapping


ROOM: Final = "consumers"
STICKY: Final = 1  # of KeySharedMode
# As much work as a command: ids that are acknowledged, or that a cumulative one is compared with.
IDS, IDS_LOOKED_AT = 3, 50
KINDS: Final = ("exclusive", "shared", "failover", "key-shared")


class Members:
    """Consumers of the store, by all that the consumers of one client have in common.

    joining: a lock for each key: partitions that come at once share a consumer of the store
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, list[Member]] = {}
        self.joining: WeakValueDictionary[Hashable, asyncio.Lock] = WeakValueDictionary()

    def add(self, member: Member) -> None:
        """Consumers of other partitions may join this one from now on."""
        self._known.setdefault(member.key, []).append(member)

    def forget(self, member: Member) -> None:
        """No other consumer joins it."""
        known = self._known.get(member.key, [])
        if member in known:
            known.remove(member)
            if not known:
                del self._known[member.key]

    def free(self, key: Hashable, wire: Wire) -> Member | None:
        """The one that a consumer may join, best one that has others of its connection."""
        free = [
            each
            for each in self._known.get(key, [])
            if not each.is_over and wire.partition not in each.wires
        ]
        return max(free, key=lambda each: each.serves(wire.connection), default=None)

    def rest(self, member: Member) -> list[Wire]:
        """The consumers of a member that another one has room for, all of them.

        Clients of one name on one computer may have joined each other's member. When one of them
        goes, the other has two, and each gets a share of the keys or partitions that it has not.
        """
        mine = set(member.wires)
        others = [each for each in self._known.get(member.key, []) if each is not member]
        if any(not each.is_over and mine.isdisjoint(each.wires) for each in others):
            return list(member.wires.values())
        return []


class Room:
    """The consumers of one connection.

    members: consumers of the store that those of any connection may join
    sought:  where a reader was sent by SEEK, until it comes again: its topic, subscription and
             partition, and the place
    splits:  by the number of a consumer, the batch in which it begins, at a message alone
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.consumers: IdTable[tuple[Wire, Member]] = IdTable("consumer", ConsumerBusy)
        self.members: Members = connection.listener.halls.setdefault(ROOM, Members())
        self.sought: dict[int, tuple[tuple[str, str, int], Bound]] = {}
        self.splits: dict[int, Span] = {}
        connection.farewells.append(self.close)
        connection.occupied.append(self)

    @classmethod
    def of(cls, connection: Connection) -> Room:
        """The room of a connection."""
        found: Room | None = connection.rooms.get(ROOM)
        if found is None:
            found = connection.rooms[ROOM] = cls(connection)
        return found

    async def leave(self, consumer: tuple[Wire, Member]) -> None:
        """Close a consumer; what it has goes back."""
        wire, member = consumer
        self.uncount(wire)
        if set(member.wires) <= {wire.partition}:
            self.members.forget(member)
        await member.leave(wire)
        for other in self.members.rest(member):
            if not other.connection.is_over():  # it leaves by itself
                other.dismiss()

    def uncount(self, wire: Wire) -> None:
        """A consumer leaves; it may be told to again."""
        if wire.is_counted:
            wire.is_counted = False
            self.connection.service.consumers.give(self.connection.holder)

    async def dismiss(self, wire: Wire) -> None:
        """Close a consumer whose client shall open it again, and tell it."""
        consumer = self.consumers.get(wire.number)
        if consumer is None or consumer[0] is not wire:
            return
        with suppress(TxlogError):  # what it has comes again when its leases end
            await self.consumers.close(wire.number, self.leave, by_server=True)
        self.connection.send("close_consumer", consumer_id=wire.number, request_id=NO_REQUEST)

    async def follow(self, census: Census | None) -> None:
        """Dismiss those whose topic or subscription is gone; None: all."""
        if census is None:
            self.consumers.refuse_opening(AlreadyClosed("the server stops"))
        for wire, member in self.consumers.values():
            if census is None or member.is_gone(census):
                await self.dismiss(wire)

    async def close(self) -> None:
        """The connection ends: what its consumers have goes back."""
        await self.consumers.close_all(self.leave, self.connection.service.failed)


def subscribers(connection: Connection) -> list[Subscriber]:
    """The consumers of a client."""
    room: Room | None = connection.rooms.get(ROOM)
    return [] if room is None else [_subscriber(*one) for one in room.consumers.values()]


def _subscriber(wire: Wire, member: Member) -> Subscriber:
    durable = member.durable
    return Subscriber(
        member.topic.name,
        wire.partition,
        member.subscription,
        None if durable is None else durable.member.number,
        wire.name,
        wire.connection.peer,
        wire.connection.version,
        wire.since_ms,
        max(0, wire.permits),
        wire.unacked,
        wire.metadata,
    )


# --- subscribing ---------------------------------------------------------------------------------


async def subscribe(connection: Connection, body: Proto, rest: memoryview) -> None:
    """SUBSCRIBE: open a consumer; it gets nothing before its first FLOW."""
    name = topics.name_of(body.topic)
    connection.may(CONSUME, name.topic)
    connection.listener.check_open()
    room = Room.of(connection)
    wanted = (str(name), body.subscription, body.subType, body.durable)
    opening = partial(_opened, connection, room, name, body)
    (_, member), _ = await room.consumers.open(body.consumer_id, wanted, opening)
    connection.send("success", request_id=body.request_id)
    if member.kind in ("exclusive", "failover"):
        await member.tell_active()


async def _opened(
    connection: Connection, room: Room, name: TopicName, body: Proto
) -> tuple[Wire, Member]:
    """A new consumer, which delivers as soon as it has permits."""
    client, most = connection.client, connection.service.limits.consumers
    if len(room.consumers) > most:
        raise too_many("consumers on this connection", most)
    creates = connection.service.options.creates_topics and body.force_topic_creation
    topic = await client.run(partial(topics.in_use, name=name, creates=creates))
    await client.run(partial(schemas.check_reader, name=name.topic, body=body))
    if name.partition is None and topic.partitions > 1:
        raise NotAllowed(f"{name} has {topic.partitions} partitions, name one of them")
    partition = topics.check_partition(topic, name)
    shown = -1 if name.partition is None else partition
    wire = Wire(connection, body.consumer_id, partition, shown, room.dismiss)
    wire.name = body.consumer_name or f"c{body.consumer_id}"
    wire.metadata = {pair.key: pair.value for pair in body.metadata}
    wire.since_ms = connection.service.store.store.clock.now().wall_ms
    wire.split = room.splits.get(wire.number)
    pool, caller = connection.service.consumers, connection.caller
    key = _key(connection, topic, body)
    async with room.members.joining.setdefault(key, asyncio.Lock()):
        check_room()
        pool.take(connection.holder, is_bounded=caller is None or not caller.is_superuser)
        try:
            member = await _joined(room, topic, wire, body, key)
        except BaseException:  # cancelled, too: nobody else gives it back
            pool.give(connection.holder)
            raise
        wire.is_counted = True
        member.begin(wire)
    return wire, member


def _key(connection: Connection, topic: Topic, body: Proto) -> Hashable:
    """What the consumers of one client for the partitions of a topic have in common."""
    return (
        topic.name,
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


async def _joined(room: Room, topic: Topic, wire: Wire, body: Proto, key: Hashable) -> Member:
    """The member that a new consumer gets its messages from."""
    if body.read_compacted and KINDS[body.subType] not in ("exclusive", "failover"):
        raise NotAllowed("only exclusive and failover consumers read compacted messages")
    if not body.durable:
        return await _in_memory(room.connection, topic, wire, body)
    kind = KINDS[body.subType]
    member = room.members.free(key, wire)
    if member is None:
        member = await _durable(room.connection, topic, body, kind)
        member.key = key
        room.members.add(member)
    return member


async def _durable(connection: Connection, topic: Topic, body: Proto, kind: str) -> Member:
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
    return Member(handle, topic, body.subscription, kind, reads_compacted=body.read_compacted)


async def _in_memory(connection: Connection, topic: Topic, wire: Wire, body: Proto) -> Member:
    """A subscription that is not durable: it starts where the client says, or was sent to."""
    place, room = (topic.name, body.subscription, wire.partition), Room.of(connection)
    is_compacted = body.read_compacted
    before, sought = room.sought.get(wire.number, (None, None))
    if before != place:
        sought = None

    def start(client: Client) -> tuple[Bound, Proto]:
        def look(view: View) -> tuple[Bound, Proto]:
            found = find_topic(view, TopicName.parse(topic.name))
            if sought is not None:
                bound = sought
            elif body.HasField("start_message_id"):
                bound = start_of(view, found, wire, body.start_message_id)
            else:
                bound = START if body.initialPosition == 1 else END
            try:
                mark = place_in(view, found, wire.partition, bound, compacted=is_compacted)
            except MessageNotFound:  # it was trimmed: what is left of the topic is what it can have
                bound = START
                mark = resolve_bound(view, found, wire.partition, bound)
            return bound, mark_id(view, found, wire, mark)

        return client.store.read(look)

    bound, wire.mark = await connection.client.run(start)
    full = f"{topic.name}/{wire.partition}"
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
    room.sought.pop(wire.number, None)
    ranges = _ranges_of(body)
    return Member(
        handle, topic, body.subscription, "exclusive", ranges, reads_compacted=is_compacted
    )


def place_in(view: View, topic: Topic, partition: int, bound: Bound, *, compacted: bool) -> Mark:
    """The position before a bound, for a reader of the log or of the compacted messages.

    raises: MessageNotFound
    """
    if compacted:
        return compacted_range(view, topic, partition, Range(bound, kind="compacted")).after
    return resolve_bound(view, topic, partition, bound)


def _ranges_of(body: Proto) -> list[range]:
    """The slots of keys that a consumer wants for itself; none: it takes what it gets.

    raises: InvalidArgument
    """
    if body.keySharedMeta.keySharedMode != STICKY:
        return []
    found = [range(one.start, one.end + 1) for one in body.keySharedMeta.hashRanges]
    if not all(0 <= one.start < one.stop <= SLOTS for one in found):
        raise InvalidArgument(f"a range of hashes is not within 0 to {SLOTS - 1}")
    return found


def start_of(view: View, topic: Topic, wire: Wire, given: Proto) -> Bound:
    """Where a reader starts that names a message; clients may not want the message itself."""
    if ids.is_start(given):
        return START
    if ids.is_end(given):
        return END
    number = number_of(topic, wire.partition)
    found = None
    if ids.partition_of(view, given) == number:
        found = ids.place_of(view, number, given)
    if found is None:
        entry, index = ids.parts_of(given)
        return Bound("id", MessageId(given.ledgerId, entry, index))
    if found.span.size > 1 and given.entryId != found.span.wire_entry:
        _split(wire, found.span)
    return Bound("id", found.span.id(found.start))


def _split(wire: Wire, span: Span) -> None:
    """Remember a batch that a consumer gets message by message, also after it subscribes again.

    The client begins at a message of the batch, by the id that this message has alone. That id is
    greater than the batch's, so the client would leave out the batch, and take it for read.
    """
    splits = Room.of(wire.connection).splits
    while len(splits) >= wire.connection.service.limits.consumers:
        del splits[next(iter(splits))]
    wire.split = splits[wire.number] = span


def flow(connection: Connection, body: Proto, rest: memoryview) -> None:
    """FLOW: the consumer takes more messages."""
    found = Room.of(connection).consumers.get(body.consumer_id)
    if found is not None:
        found[1].flow(found[0], body.messagePermits)


# --- what becomes of messages --------------------------------------------------------------------


def acknowledge(
    connection: Connection, body: Proto, rest: memoryview
) -> Coroutine[Any, Any, None] | None:
    """ACK: queue it; it is answered, if the client wants that, when the store has it.

    Returns what is to be done before the next command, if it names many ids.
    """
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

    found = Room.of(connection).consumers.get(body.consumer_id)
    if found is None:
        answer(Room.of(connection).consumers.unknown(body.consumer_id))
        return None
    wire, member = found
    ack = Ack(wire, [], [], body.ack_type == 1, txn, answer, [])
    work = len(wire.held) // IDS_LOOKED_AT if ack.is_cumulative else len(body.message_id) // IDS
    if work > TURN:
        return _acknowledge_many(connection, body, member, ack)
    connection.spend(work)
    _take(ack, body.message_id)
    member.relieve(wire)
    member.acknowledge(ack)
    return None


async def _acknowledge_many(connection: Connection, body: Proto, member: Member, ack: Ack) -> None:
    """Acknowledge many ids, a turn of the event loop for some of them each."""
    number, ids_left, room = body.consumer_id, iter(body.message_id), Room.of(connection)
    while some := list(islice(ids_left, 1 if ack.is_cumulative else TURN * IDS)):
        await asyncio.sleep(0)
        if room.consumers.get(number) != (ack.wire, member):
            ack.end(room.consumers.unknown(number))
            return
        _take(ack, some)
    member.relieve(ack.wire)
    member.acknowledge(ack)


def _take(ack: Ack, given: Iterable[Proto]) -> None:
    """Take what ids stand for from what the consumer has."""
    for one in given:
        if ack.is_cumulative:
            taken_up_to(ack.wire, one)
        mine = None if ack.is_cumulative else taken(ack, one)
        if mine is None:
            ack.unknown.append(one)
        else:
            ack.runs.extend(mine)


async def redeliver(connection: Connection, body: Proto, rest: memoryview) -> None:
    """REDELIVER_UNACKNOWLEDGED_MESSAGES: all that the consumer has, or what is named."""
    found = Room.of(connection).consumers.get(body.consumer_id)
    if found is None:
        return
    wire, member = found
    if body.HasField("consumer_epoch"):
        wire.epoch = max(wire.epoch, body.consumer_epoch)
    await member.redeliver(wire, list(body.message_ids))


async def seek(connection: Connection, body: Proto, rest: memoryview) -> None:
    """SEEK: move the subscription; as in Pulsar its consumer is closed then, and comes again.

    Clients send acknowledgements some time later, so one may come behind SEEK that is of before it:
    it would move the subscription on again, and is not made.
    """
    room = Room.of(connection)
    await room.consumers.try_close(body.consumer_id, partial(_sought, room, body))
    # in this order clients know, when they come again, that it is because of the seek
    connection.send("close_consumer", consumer_id=body.consumer_id, request_id=NO_REQUEST)
    connection.send("success", request_id=body.request_id)


async def _sought(room: Room, body: Proto, consumer: tuple[Wire, Member]) -> None:
    """Move the subscription of a consumer, and close the consumer."""
    wire, member = consumer

    def where(view: View) -> Bound:
        if body.HasField("message_publish_time"):
            time_ms = body.message_publish_time
            return Bound("time", time_ms) if time_ms <= INT64_MAX else START  # before 1970
        return start_of(view, member.topic, wire, body.message_id)

    def _act(session: Session) -> Bound:
        bound = session.store.read(where)
        if member.durable is not None:
            member.durable.seek_partition(bound, wire.partition)
        return bound

    permits, wire.permits = wire.permits, 0  # it gets nothing, though others of it go on
    await member.acknowledged()
    await member.stop()
    try:
        bound = await run(member, _act)
    except Exception:  # refused, or a bug: the consumer is still open, and goes on
        wire.permits = permits
        member.begin(wire)
        raise
    if member.durable is None:
        while len(room.sought) >= room.connection.service.limits.consumers:
            del room.sought[next(iter(room.sought))]
        place = (member.topic.name, member.subscription, wire.partition)
        room.sought[wire.number] = (place, bound)
    wire.forget()
    with suppress(TxlogError):  # what it has comes again when its leases end
        await room.leave((wire, member))
    if member.wires:
        member.begin(next(iter(member.wires.values())))


async def unsubscribe(connection: Connection, body: Proto, rest: memoryview) -> None:
    """UNSUBSCRIBE: delete the subscription; its other partitions are consumed by nobody then.

    A client unsubscribes from each partition. Once the first has deleted the subscription, the
    server closes the consumers of the others, perhaps before their UNSUBSCRIBE comes: that is done.
    """
    room, number = Room.of(connection), body.consumer_id
    try:
        await room.consumers.try_close(number, partial(_unsubscribed, room))
    except NotFound:
        wanted = room.consumers.wanted_before(number)
        if wanted is None or not await connection.client.run(partial(_is_deleted, wanted)):
            raise
    connection.send("success", request_id=body.request_id)


def _is_deleted(wanted: Any, client: Client) -> bool:
    """Whether the subscription is gone that a consumer had; wanted: as in `subscribe`."""
    name, subscription, *_ = wanted
    try:
        topic = topics.found(client, topics.name_of(name))
        client.store.read(lambda view: find_subscription(view, topic, subscription))
    except NotFound:
        return True
    return False


async def _unsubscribed(room: Room, consumer: tuple[Wire, Member]) -> None:
    """Delete the subscription of a consumer."""
    wire, member = consumer
    await member.acknowledged()
    await member.stop()
    try:
        await run(member, lambda session: session.unsubscribe())
    except SubscriptionNotFound:
        pass
    except TxlogError as error:
        if error.code != 402:  # another consumer of the same client did it
            member.begin(wire)
            raise
    room.uncount(wire)
    member.wires.pop(wire.partition, None)
    room.members.forget(member)


async def close_consumer(connection: Connection, body: Proto, rest: memoryview) -> None:
    """CLOSE_CONSUMER: what it has goes back; one that was closed here is closed."""
    room, number = Room.of(connection), body.consumer_id
    room.sought.pop(number, None)
    room.splits.pop(number, None)
    is_closed = await room.consumers.close(number, room.leave)
    if not is_closed and not room.consumers.dismissed(number):
        raise room.consumers.unknown(number)
    connection.send("success", request_id=body.request_id)


# --- questions -----------------------------------------------------------------------------------


async def last_id_of(connection: Connection, body: Proto, rest: memoryview) -> None:
    """GET_LAST_MESSAGE_ID: the last message of the partition, -1:-1 if there is none.

    The position up to which all is done comes with it: after a seek to a time clients have nothing
    else to know by whether there is more.
    """
    wire, member = Room.of(connection).consumers.find(body.consumer_id)

    def _look(view: View) -> tuple[Proto, Proto | None]:
        topic, mark = find_topic(view, TopicName.parse(member.topic.name)), wire.mark
        number = number_of(topic, wire.partition)
        if member.durable is not None:
            cursor = view.cursor(member.durable.subscription_number, number)
            mark = mark_id(view, topic, wire, cursor.mark_delete)
        last = (last_compacted if member.reads_compacted else last_message)(view, number)
        return last_id(view, topic, wire, last), mark

    last, mark = await run(member, lambda session: session.store.read(_look))
    connection.send(
        "getLastMessageIdResponse",
        request_id=body.request_id,
        last_message_id=last,
        consumer_mark_delete_position=mark,
    )


async def stats(connection: Connection, body: Proto, rest: memoryview) -> None:
    """CONSUMER_STATS: what is known of a consumer."""
    wire, member = Room.of(connection).consumers.find(body.consumer_id)

    def backlog(client: Client) -> int:
        rows = client.subscriptions(member.topic.name)
        return sum(row["backlog"] for row in rows if row["subscription"] == member.subscription)

    count = await connection.client.run(backlog)
    connection.send(
        "consumerStatsResponse",
        request_id=body.request_id,
        consumerName=wire.name,
        availablePermits=max(0, wire.permits),
        unackedMessages=wire.unacked,
        address=connection.peer,
        type=member.kind.replace("-", "_").title(),
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
