"""Owns Member: one consumer of the store, and the consumers of a client that it is.

A client has a consumer for each partition of a topic, over one or more connections; to the store
these are one, which leases and acknowledges for all of them. So an exclusive subscription has one
consumer, as the client meant it, and of a key-shared or failover one each partition gets its share.

    FLOW ─► permits ─► pump: lease, rows to frames ─► MESSAGE         in the thread of the store
    ACK  ─► queue ─► flusher: all that is queued, in one call ─► ACK_RESPONSE

What was delivered and not acknowledged is leased in the store. `held` says only which messages an
id of the wire stood for, so that a client may acknowledge a batch as a whole or in part.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Hashable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar

import pyarrow as pa

from txlog.base.ids import MessageId, TxnId
from txlog.base.startup import compute as pc
from txlog.client.aio.handles import Consumer as Handle
from txlog.clock import Instant
from txlog.engine.door.catalog import Topic, index_of, number_of
from txlog.engine.door.consuming import ConsumerSession, Session, active_consumer
from txlog.engine.door.facts import IdSet, Mark, Run, each
from txlog.engine.door.reading import is_newest
from txlog.engine.door.store import Decision, View
from txlog.engine.door.topics import SPLIT_BATCHES, set_policies
from txlog.errors import MessageNotFound, NotAllowed, NotFound, SubscriptionNotFound, TxlogError
from txlog.serve.core.census import Census
from txlog.serve.pulsar import ids
from txlog.serve.pulsar.connection import Connection
from txlog.serve.pulsar.deliveries import (
    Delivery,
    gaps,
    is_within,
    names_in_batch,
    planned,
    reads_empty,
)
from txlog.serve.pulsar.encrypted import ENCRYPTED, message_count
from txlog.serve.pulsar.ids import STEP, Span, wire_id
from txlog.serve.pulsar.messages import MessageIdData, Proto
from txlog.serve.pulsar.wire import made, message_frame

T = TypeVar("T")
TAKE_MAX: Final = 5_000  # messages that one turn leases, and about so many bytes
TAKE_BYTES: Final = 1 << 20
TAKE_BYTES_MIN: Final = 64 << 10  # while many clients do not read
MESSAGE_BYTES: Final = 16 << 10  # what a message is taken to have before one was seen
# Ids of a consumer that are not acknowledged: with more one of a shared type gets nothing (Pulsar's
# maxUnackedMessagesPerConsumer), of others only the messages are known, not their ids.
CLAIMED_MAX: Final = 10_000  # batches; of more than these an abort gives back the part alone
HELD_MAX: Final = 50_000
ACTIVE_SECONDS: Final = 1.0  # how often a failover consumer looks whether it is its turn
BACK_STEPS_MAX: Final = 1_000
_WHOLE: Final = 1 << 62  # an index behind all messages of a transaction
LOOKUPS_MAX: Final = 200  # ids that one act of the store's thread looks for: some 20 ms
REPEATED_MAX: Final = 10_000  # ids that it goes through, most of which came before
RETURNED_MAX: Final = 5_000  # messages that one act gives back


class Held(NamedTuple):
    """What an id stood for; left: a bit for each message that is not acknowledged.

    inner: messages of an encrypted batch, whose one row is acknowledged with the last; 0: of none
    """

    span: Span
    at: int
    left: int
    inner: int = 0

    @property
    def messages(self) -> int:
        """How many messages the batch has to its client."""
        return self.inner or self.span.size


class Wire:
    """One consumer of a client.

    shown:   the partition in ids; -1: the topic is not partitioned
    permits: messages that it takes; may be negative after a batch that was larger
    mark:    of a reader, the id up to which all was done when it began
    split:   a batch that it gets message by message
    """

    def __init__(
        self,
        connection: Connection,
        number: int,
        partition: int,
        shown: int,
        dismiss: Callable[[Wire], Coroutine[Any, Any, None]],
    ) -> None:
        """dismiss: closes it, and tells its client"""
        self.connection, self.number, self._dismiss = connection, number, dismiss
        self.partition, self.shown = partition, shown
        self.permits = 0
        self.epoch = 0
        self.mark: Proto | None = None
        self.split: Span | None = None
        self.held: dict[tuple[int, int], Held] = {}  # the oldest first
        self.older = IdSet()  # messages before those, by which ids they came is not known
        # Of batches that it has a part of: what it acknowledged in transactions, a bit a message.
        self.claimed: dict[tuple[int, int], int] = {}
        self.active: bool | None = None
        self.is_counted = False  # it has its place among the consumers of all clients
        self.name = ""
        self.metadata: dict[str, str] = {}  # that its client gave it
        self.since_ms = 0

    @property
    def unacked(self) -> int:
        """Messages that it has and has not acknowledged."""
        return sum(one.left.bit_count() for one in self.held.values())

    def dismiss(self) -> None:
        """Close it, and tell its client, which opens it again if it can."""
        self.connection.begin(self._dismiss(self))

    def forget(self) -> list[Run]:
        """Have nothing any more; what was not acknowledged."""
        runs = self.older.runs() + [run for one in self.held.values() for run in _left(one)]
        self.held.clear()
        self.claimed.clear()
        self.older = IdSet()
        return runs

    def claim(self, entry: int, held: Held, bits: int) -> None:
        """It acknowledges messages of a batch in a transaction, which may be aborted.

        entry: of the id under which it has them
        """
        key = held.span.ledger, held.span.wire_entry
        if held.left == bits and entry == held.span.wire_entry:  # it has no more of the batch
            self.claimed.pop(key, None)
            return
        self.claimed[key] = self.claimed.get(key, 0) | bits << held.at
        if len(self.claimed) > CLAIMED_MAX:
            spans = [one.span for one in self.held.values()]
            parts = {(span.ledger, span.wire_entry) for span in spans} & self.claimed.keys()
            self.claimed = {key: self.claimed[key] for key in islice(parts, CLAIMED_MAX // 2)}

    def unclaim(self, claim: Held) -> None:
        """The store refused to acknowledge these: no abort gives them back."""
        key = claim.span.ledger, claim.span.wire_entry
        if key in self.claimed:
            self.claimed[key] &= ~(claim.left << claim.at)

    def rest_of(self, delivery: Delivery) -> list[Run]:
        """Take from what it has the rest of a batch of which an aborted transaction had a part.

        Empty for any other delivery, and for a client that gets each message of a batch alone.
        """
        span = delivery.span
        if not names_in_batch(self.connection.version):
            return []
        bits = self.claimed.get((span.ledger, span.wire_entry), 0) >> delivery.at
        if not (delivery.redelivered and bits & ((1 << delivery.size) - 1)):
            return []
        del self.claimed[(span.ledger, span.wire_entry)]
        entries = range(span.wire_entry, span.wire_entry + span.size + 1)
        parts = [self.held.pop((span.ledger, entry), None) for entry in entries]
        return [run for part in parts if part is not None for run in _left(part)]

    def _pack(self) -> None:
        """Of the older half of what it has keep only which messages these are."""
        for key in list(islice(self.held, HELD_MAX // 2)):
            for run in _left(self.held.pop(key)):
                self.older.add(run)

    def send(self, delivery: Delivery) -> None:
        """Send messages, and remember what their id stands for."""
        if len(self.held) > HELD_MAX:
            self._pack()
        span, at, size = delivery.span, delivery.at, delivery.size
        whole = wire_id(span, at, self.shown, is_alone=delivery.is_alone)
        whole.ClearField("batch_index")
        whole.ClearField("batch_size")
        command = made(
            "message",
            consumer_id=self.number,
            message_id=whole,
            redelivery_count=delivery.redelivered or None,
            consumer_epoch=self.epoch or None,
        ).SerializeToString()
        count = delivery.inner or size
        held = Held(span, at, (1 << count) - 1, delivery.inner)
        self.held[(span.ledger, delivery.entry_id)] = held
        self.permits -= max(count, len(delivery.heads))  # clients count each chunk, too
        for head, payload in delivery.heads:
            self.connection.write(message_frame(command, head, payload))


class Ack(NamedTuple):
    """An acknowledgement to be made. Runs are known, or to be found by the ids.

    claims: by id, what the consumer had of it that is to be acknowledged
    error:  what is wrong with an id that was looked for
    """

    wire: Wire
    runs: list[Run]
    unknown: list[Proto]
    is_cumulative: bool
    txn: TxnId | None
    answer: Callable[[Exception | None], None]
    claims: list[tuple[tuple[int, int], Held]]
    error: TxlogError | None = None

    def end(self, error: Exception | None) -> None:
        """Tell the client. What was refused its consumer has as before, and may give back."""
        if error is not None:
            held = self.wire.held
            for key, claim in self.claims:
                left = held[key].left if key in held else 0
                held[key] = claim._replace(left=claim.left | left)
                self.wire.unclaim(claim)
        self.answer(error)


class Member:
    """A consumer of the store for consumers of one client, by partition.

    is_over: its delivery has failed; nobody joins it any more
    """

    def __init__(
        self,
        handle: Handle,
        topic: Topic,
        subscription: str,
        kind: str,
        ranges: Sequence[range] = (),
        *,
        reads_compacted: bool = False,
    ) -> None:
        """ranges: of slots of keys that a reader wants; none: all

        reads_compacted: of what was compacted it gets the newest message of each key
        """
        self.reads_compacted = reads_compacted
        self.key: Hashable = None  # what others that join it have in common
        self.handle, self.topic, self.ranges = handle, topic, ranges
        self.subscription, self.kind = subscription, kind
        self.wires: dict[int, Wire] = {}
        self.is_over = False
        self.is_shared = kind in ("shared", "key-shared")
        session = handle.sync.session
        self.session: Session = session
        self.durable = session if isinstance(session, ConsumerSession) else None
        self._changed = asyncio.Event()
        self._ready: list[int] = []
        self._acks: deque[Ack] = deque()
        self._flushing: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._message_bytes = MESSAGE_BYTES  # of one, on the average of the last turn

    def is_gone(self, census: Census) -> bool:
        """True if its topic or subscription is not there any more."""
        if census.lacks_topic(self.topic.number):
            return True
        durable = self.durable
        return durable is not None and census.lacks_subscription(durable.subscription_number)

    def serves(self, connection: Connection) -> bool:
        """Whether it has consumers of a connection."""
        return any(one.connection is connection for one in self.wires.values())

    # --- delivering --------------------------------------------------------------------------

    def begin(self, wire: Wire) -> None:
        """Deliver to one more consumer."""
        self.wires[wire.partition] = wire
        if not self._tasks:
            tasks = wire.connection.service.tasks
            self._tasks.append(tasks.begin(self._pump(), self._dismiss))
            if self.kind == "failover":
                self._tasks.append(tasks.begin(self._watch(), self._dismiss))
        self._changed.set()

    def flow(self, wire: Wire, permits: int) -> None:
        """A consumer takes more."""
        wire.permits += permits
        if wire.permits > 0 and wire.partition not in self._ready:
            self._changed.set()

    def _dismiss(self) -> None:
        """A task has failed: the clients subscribe again."""
        for wire in list(self.wires.values()):
            wire.dismiss()

    async def _pump(self) -> None:
        while True:
            self._changed.clear()
            takers = [
                one for one in self.wires.values() if one.permits > 0 and not self._is_laden(one)
            ]
            full = {one.connection for one in takers if one.connection.is_full}
            self._ready = [one.partition for one in takers if one.connection not in full]
            if not self._ready:
                await self._news(full)
                continue
            try:
                found = await self._taken(full)
            except TxlogError as error:  # its clients subscribe again, and are told why
                self.is_over = True
                for one in list(self.wires.values()):
                    if not isinstance(error, NotFound):
                        one.connection.service.failed(error)
                    one.dismiss()
                return
            found = await self._without_parts(found or [])
            for delivery in found:
                wire = self.wires.get(delivery.partition)
                if wire is not None:
                    wire.send(delivery)
            gone = [one for one in found if one.partition not in self.wires]
            if gone:
                runs = [one.span.run(one.at, one.at + one.size - 1) for one in gone]
                await self.give_back(runs)

    async def _news(self, full: set[Connection]) -> None:
        """Wait until who may take has changed: a consumer, or a connection that was full."""
        if not full:
            await self._changed.wait()
            return
        events = [self._changed, *(one.has_room for one in full)]
        waits = [asyncio.ensure_future(one.wait()) for one in events]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _without_parts(self, found: list[Delivery]) -> list[Delivery]:
        """What goes out now; the server gives batches back that an abort gave back in part.

        As in Pulsar, a message that an aborted transaction had acknowledged comes again together
        with what its consumer still has of the batch, and all of it counts as redelivered.
        """
        if not self.is_shared:  # there an abort rewinds
            return found
        now, parts, rests = list[Delivery](), list[Delivery](), list[Run]()
        split = set[tuple[int, Span]]()
        for delivery in found:
            wire, batch = self.wires.get(delivery.partition), (delivery.partition, delivery.span)
            rest = [] if wire is None or batch in split else wire.rest_of(delivery)
            if rest:
                split.add(batch)
                rests += rest
            (parts if batch in split else now).append(delivery)
        if parts:
            await self.acknowledged()
            await self.handle.worker.run(partial(self._put_back, parts))
            await self.give_back(rests)
        return now

    def _put_back(self, deliveries: list[Delivery]) -> None:
        """In the thread of the store: return what was leased and did not go out, uncounted."""
        by_partition: dict[int, list[Run]] = {}
        for one in deliveries:
            run = one.span.run(one.at, one.at + one.size - 1)
            by_partition.setdefault(number_of(self.topic, one.partition), []).append(run)
        if self.durable is not None:
            self.durable.give_back_runs(list(by_partition.items()))

    async def _taken(self, full: set[Connection]) -> list[Delivery] | None:
        """The next deliveries; None: who may take has changed."""
        permits = {at: self.wires[at].permits for at in self._ready}
        connections = {self.wires[at].connection for at in self._ready}
        look = partial(self._look, permits, connections)
        waiting = self.handle.waits.until(look, None, self.session.rest, lambda found: found[0]())
        take = asyncio.ensure_future(waiting)
        change = asyncio.ensure_future(self._news(full))
        try:
            await asyncio.wait({take, change}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            change.cancel()
            if not take.done():
                take.cancel()
        try:
            found = await take
        except asyncio.CancelledError:
            if asyncio.current_task().cancelling():  # type: ignore[union-attr]
                raise
            return None
        return None if found is None else found[1]

    def _look(
        self, permits: dict[int, int], connections: set[Connection], is_thorough: bool
    ) -> tuple[Callable[[], None], list[Delivery]] | None:
        """In the thread of the store: lease rows, and make what goes out of them.

        permits:     the messages that the consumer of each partition takes
        connections: those of these consumers, all of one client
        """
        if any(one.is_full for one in connections):  # by what others of its client got meanwhile
            return _nothing, []
        session = self.session
        connection = next(iter(connections))
        backlog = connection.service.backlog
        most = TAKE_BYTES_MIN if backlog.is_large else TAKE_BYTES
        limit = min(TAKE_MAX, most // self._message_bytes)
        table = self._leased(permits, limit, is_thorough)
        if table is None or not table.num_rows:
            return None
        if table.nbytes > 2 * most and (kept := _rows_within(table, most)) < table.num_rows:
            session.give_back(table.slice(kept))
            table = table.slice(0, kept)
        if (mask := _within_permits(table, permits)) is not None:
            session.give_back(table.filter(pc.invert(mask)))
            table = table.filter(mask)
        self._message_bytes = table.nbytes // table.num_rows + 1
        store, topic = session.store, self.topic
        is_split = self._is_split(connection.version)
        splits = {wire.split for wire in tuple(self.wires.values())} - {None}
        if not (is_split or splits):  # else it would get more messages than it has permits
            table = self._completed(table)
        if self.reads_compacted and self.durable is not None:
            table = self._kept(table, store.read(partial(newest, topic, table), fresh=False))
        if self.ranges:
            table = self._kept(table, is_within(table, self.ranges))
        if not table.num_rows:
            return _nothing, []
        bytes_max = store.settings.max_message_bytes
        plan = partial(
            planned,
            topic=topic,
            table=table,
            bytes_max=bytes_max,
            reads_empty=reads_empty(connection.version),
            is_split=is_split,
            splits=splits,
        )
        found = store.read(plan, fresh=False)
        return partial(session.give_back, table), found

    def _is_split(self, version: str) -> bool:
        """In the thread of the store: whether each message of a batch goes out alone.

        A client that cannot name a message in a batch needs that if it acknowledges in
        transactions. It asks for the coordinator before it makes its first consumer, and then the
        subscription gets a policy. After a restart of the server the consumer may come back before
        its client asks again, and the policy is there. Raises TxlogError.
        """
        if names_in_batch(version) or self.durable is None:
            return False
        store, number = self.session.store, self.durable.subscription_number
        if store.read(lambda view: _splits(view, number), fresh=False):
            return True
        connections = [wire.connection for wire in tuple(self.wires.values())]
        if not any(connection.has_coordinator for connection in connections):
            return False

        def decide(view: View, now: Instant) -> Decision[dict[str, int | str]]:
            subscription = view.catalog.subscriptions.get(number)
            if subscription is None:  # deleted since it was looked at
                raise SubscriptionNotFound(f"subscription {self.subscription} was deleted")
            topic = view.catalog.topics[subscription.topic]
            return set_policies(view, topic, subscription, {SPLIT_BATCHES: 1})

        store.write(decide)
        return True

    def _kept(self, table: pa.Table, mask: pa.BooleanArray) -> pa.Table:
        """The rows that the client gets; the others are acknowledged for it."""
        if not pc.all(mask).as_py():
            self.session.acknowledge(table.filter(pc.invert(mask)), None)
        return table.filter(mask)

    def _leased(self, limits: dict[int, int], most: int, is_thorough: bool) -> pa.Table | None:
        """Rows that are leased now: of each partition, and of all, at most so many."""
        if self.durable is not None:
            self.durable.limit_to(limits)
        limit = max(1, min(sum(limits.values()), most))
        return self.session.take(limit, is_thorough)

    def _completed(self, table: pa.Table) -> pa.Table:
        """Leased rows with what the last batch of each partition lacks, if that can be had."""
        store, topic, by_key = self.session.store, self.topic, self.kind == "key-shared"
        found = store.read(lambda view: gaps(view, topic, table, by_key=by_key), fresh=False)
        if not found:
            return table
        limits = {gap.partition: gap.rows for gap in found}
        more = self._leased(limits, sum(limits.values()), True)
        if more is None or not more.num_rows:
            return table
        mask = found[0].mask(more)
        for gap in found[1:]:
            mask = pc.or_(mask, gap.mask(more))
        others = more.filter(pc.invert(mask))
        if others.num_rows:  # nobody asked for these
            self.session.give_back(others)
        return pa.concat_tables([table, more.filter(mask)])

    def _is_laden(self, wire: Wire) -> bool:
        """True of a consumer that gets nothing more before it acknowledges."""
        return self.is_shared and len(wire.held) >= HELD_MAX

    def relieve(self, wire: Wire) -> None:
        """A consumer has less than it had: one that had too much may get more."""
        is_waiting = wire.permits > 0 and wire.partition not in self._ready
        if self.is_shared and is_waiting and not self._is_laden(wire):
            self._changed.set()

    async def _watch(self) -> None:
        """Tell failover consumers whether it is their turn."""
        while True:
            try:
                await self.tell_active()
            except TxlogError as error:
                if not error.retryable:  # the same ends the delivery, which tells its clients
                    return
            await asyncio.sleep(ACTIVE_SECONDS)

    async def tell_active(self) -> None:
        """Tell each consumer whether it is its turn, if that has changed."""
        wires = dict(self.wires)
        active = dict.fromkeys(wires, True)
        if self.kind == "failover" and self.durable is not None:
            store, me = self.session.store, self.durable.member.number
            number = self.durable.subscription_number

            def look(view: View) -> dict[int, bool]:
                return {at: active_consumer(view, number, at) == me for at in wires}

            active = await self.handle.worker.run(lambda: store.read(look))
        for at, wire in wires.items():
            if wire.active is not active[at]:
                wire.active = active[at]
                wire.connection.send(
                    "active_consumer_change", consumer_id=wire.number, is_active=active[at]
                )

    # --- giving back -------------------------------------------------------------------------

    async def give_back(self, runs: list[Run]) -> None:
        """Return leased messages, to come again at once, each counted as a redelivery."""
        ids_left = (MessageId(*one) for run in merged(runs) for one in each(run))
        while again := list(islice(ids_left, RETURNED_MAX)):
            await self.handle.worker.run(partial(self.session.negative_acknowledge, again, 0))
        if self.durable is None:  # the store has no news of it that wakes the pump
            self._changed.set()

    async def redeliver(self, wire: Wire, named: list[Proto]) -> None:
        """Deliver again what a consumer has not acknowledged; named: only these."""
        await self.acknowledged()
        if not named:
            await self.give_back(wire.forget())
            self.relieve(wire)
            return
        keys = [(one.ledgerId, one.entryId) for one in named]
        found = [wire.held.pop(key) for key in keys if key in wire.held]
        await self.give_back([run for one in found for run in _left(one)])
        self.relieve(wire)

    async def leave(self, wire: Wire) -> None:
        """A consumer closes; what it has goes back. The last one closes the store's."""
        self.wires.pop(wire.partition, None)
        self._changed.set()
        await self.acknowledged()
        if self.wires:
            await self.give_back(wire.forget())
            return
        await self.stop()
        await self.handle.close()

    async def stop(self) -> None:
        """Deliver nothing more."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- acknowledging -----------------------------------------------------------------------

    def acknowledge(self, ack: Ack) -> None:
        """Queue an acknowledgement; those that are queued are made together."""
        self._acks.append(ack)
        if self._flushing is None:
            tasks = ack.wire.connection.service.tasks
            self._flushing = tasks.begin(self._flush(), self._dismiss)

    async def acknowledged(self) -> None:
        """Wait until what was queued is made."""
        while self._flushing is not None:
            await asyncio.shield(self._flushing)

    async def _flush(self) -> None:
        try:
            while self._acks:
                acks = self._next_acks()
                try:
                    if len(acks[0].unknown) > LOOKUPS_MAX:
                        acks = [await self._looked_up(acks[0])]
                    await self.handle.worker.run(partial(self._make, acks))
                except Exception as error:  # refused, or a bug: those behind are made all the same
                    call = acks[0].wire.connection.service.tasks.call
                    for ack in acks:
                        call(partial(ack.end, error))
        finally:
            self._flushing = None

    def _next_acks(self) -> list[Ack]:
        """Take from the queue what one act of the store's thread makes; at least one."""
        acks = [self._acks.popleft()]
        lookups = len(acks[0].unknown) + 1
        while self._acks and lookups + len(self._acks[0].unknown) < LOOKUPS_MAX:
            acks.append(self._acks.popleft())
            lookups += len(acks[-1].unknown) + 1
        return acks

    async def _looked_up(self, ack: Ack) -> Ack:
        """An acknowledgement of which the store was asked for all ids, some at a time."""
        lookup, store = Lookup(ack, self.topic), self.session.store
        while not lookup.is_done:
            act = partial(resolved, lookup=lookup)
            await self.handle.worker.run(partial(store.read, act))
        return ack._replace(runs=ack.runs + lookup.runs, unknown=[], error=lookup.error)

    def _make(self, acks: list[Ack]) -> None:
        """In the thread of the store: acknowledge, neighbours of one kind together."""
        loop: list[Ack] = []
        for ack in acks:
            if loop and (ack.is_cumulative or ack.txn is not None or loop[0].is_cumulative):
                self._make_together(loop)
                loop = []
            loop.append(ack)
            if ack.txn is not None:
                self._make_together(loop)
                loop = []
        if loop:
            self._make_together(loop)

    def _make_together(self, acks: list[Ack]) -> None:
        """Make acknowledgements in one call; if that is refused, each for itself."""
        try:
            errors = self._made(acks)
        except TxlogError as failure:
            if len(acks) > 1:
                for ack in acks:
                    self._make_together([ack])
                return
            errors = [failure]
        for ack, error in zip(acks, errors, strict=True):
            ack.wire.connection.service.in_loop(partial(ack.end, error))

    def _made(self, acks: list[Ack]) -> list[TxlogError | None]:
        """Make what can be made of acknowledgements; what is wrong with each. Raises TxlogError."""
        runs: list[Run] = []
        errors: list[TxlogError | None] = []
        for ack in acks:
            more, error = list[Run](), ack.error
            if ack.unknown:
                lookup = Lookup(ack, self.topic)
                self.session.store.read(partial(resolved, lookup=lookup))
                more, error = lookup.runs, lookup.error
            if error is not None and ack.txn is not None:
                raise error  # in a transaction it is all or nothing
            runs += ack.runs + more
            errors.append(error)
        if runs:
            self._acknowledge(merged(runs), acks[0])
        return errors

    def _acknowledge(self, runs: list[Run], ack: Ack) -> None:
        if self.durable is not None:
            self.durable.acknowledge_runs(runs, ack.txn, cumulative=ack.is_cumulative)
            return
        named = [MessageId(*one) for run in runs for one in each(run)]
        if ack.is_cumulative:
            self.session.acknowledge_cumulative(named[-1], ack.txn)
        else:
            self.session.acknowledge(named, ack.txn)


def newest(topic: Topic, table: pa.Table, view: View) -> pa.BooleanArray:
    """For each leased row whether a consumer that reads compacted messages gets it."""
    column = table.column("partition")
    mask = pa.repeat(pa.scalar(True), table.num_rows)
    for partition in pc.unique(column).to_pylist():
        is_here = pc.equal(column, partition)
        rows = table.filter(is_here)
        order = pc.sort_indices(
            rows, [("ledger", "ascending"), ("entry", "ascending"), ("index", "ascending")]
        )
        is_kept = is_newest(view, number_of(topic, partition), rows.take(order))
        unsorted = is_kept.take(pc.sort_indices(order))
        mask = pc.replace_with_mask(mask, is_here.combine_chunks(), unsorted)
    return mask


def _splits(view: View, number: int) -> bool:
    """Whether a subscription splits batches for clients that acknowledge them as a whole."""
    subscription = view.catalog.subscriptions.get(number)
    return subscription is not None and bool(subscription.policies.get(SPLIT_BATCHES))


def _nothing() -> None:
    """Give back nothing."""


def _rows_within(table: pa.Table, bytes_max: int) -> int:
    """How many rows from the first on have so many bytes, at least one."""
    sizes = pc.fill_null(pc.binary_length(table.column("value")), 0)
    ends = pc.cumulative_sum(pc.cast(sizes, pa.int64()))
    within: int = pc.sum(pc.less_equal(ends, bytes_max)).as_py()
    return max(1, within)


def _within_permits(table: pa.Table, permits: Mapping[int, int]) -> pa.BooleanArray | None:
    """For each row whether its consumer takes it; None: all of them.

    A lease counts rows, and clients count messages. So an encrypted batch, which is one row, may be
    more than is left: it goes out, as a broker sends it, and permits become negative. The rows
    behind it wait. A broker of Pulsar keeps to this only in shared subscriptions, about, by the
    average of batches; in others it reads as many entries as there are permits.
    """
    properties = table.column("properties").combine_chunks()
    if properties.null_count == len(properties):
        return None
    kept = pc.map_lookup(properties, ENCRYPTED, "last")
    if kept.null_count == len(kept):
        return None
    left = dict(permits)
    flags = []
    for partition, text in zip(
        table.column("partition").to_pylist(), kept.to_pylist(), strict=True
    ):
        flags.append(left[partition] > 0)
        left[partition] -= 1 if text is None else message_count([(ENCRYPTED, text)])
    return None if all(flags) else pa.array(flags, pa.bool_())


def merged(runs: list[Run]) -> list[Run]:
    """Runs in order, each message once."""
    if len(runs) == 1:
        return runs
    known = IdSet()
    for run in runs:
        known.add(run)
    return known.runs()


def _left(held: Held) -> list[Run]:
    """What of it is not acknowledged."""
    if held.inner:
        return [held.span.run(held.at, held.at)]
    return runs_of(held.span, held.at, held.left)


def runs_of(span: Span, at: int, bits: int) -> list[Run]:
    """The messages of a batch whose bits are set, the first of which is `at`."""
    out = []
    place = 0
    while bits:
        skip = (bits & -bits).bit_length() - 1
        bits >>= skip
        place += skip
        size = (~bits & (bits + 1)).bit_length() - 1
        out.append(span.run(at + place, at + place + size - 1))
        bits >>= size
        place += size
    return out


def taken(ack: Ack, given: Proto) -> list[Run] | None:
    """The messages of an id that the consumer has, claimed; None: it has no such id."""
    wire, key = ack.wire, (given.ledgerId, given.entryId)
    held = wire.held.get(key)
    if held is None or ids.reach(given) > held.messages:
        return None
    done = held.left
    if given.ack_set:
        done &= ~ids.unacked(list(given.ack_set), held.messages)
    elif given.batch_index >= 0 and (held.at == 0 or held.inner):
        done &= 1 << given.batch_index
    if ack.txn is not None and not _is_certain(held, given, done):
        return None
    if ack.txn is not None and held.span.size > 1:
        wire.claim(given.entryId, held, done)
    left = held.left & ~done
    if left:
        wire.held[key] = held._replace(left=left)
    else:
        del wire.held[key]
    ack.claims.append((key, held._replace(left=done)))
    if held.inner:
        return [] if left else [held.span.run(held.at, held.at)]
    return runs_of(held.span, held.at, done)


def _is_certain(held: Held, given: Proto, done: int) -> bool:
    """Whether an id in a transaction can only stand for these messages.

    With each message Go names all that it ever acknowledged of the batch: also what another
    transaction acknowledged and then aborted, and what was refused. Were that taken, it would be
    acknowledged by a transaction that has no copy of it. So of a part one message is taken.
    """
    is_whole = not given.ack_set and done == (1 << held.messages) - 1
    return is_whole or done.bit_count() == 1 or held.inner > 0


def taken_up_to(wire: Wire, given: Proto) -> None:
    """Forget what a cumulative acknowledgement covers."""
    key = (given.ledgerId, given.entryId)
    if wire.older and wire.held and key >= next(iter(wire.held)):
        wire.older = IdSet()
    for one in [one for one in wire.held if one <= key]:
        if one == key and given.ack_set:
            held = wire.held[one]
            left = held.left & ids.unacked(list(given.ack_set), held.messages)
            if left:
                wire.held[one] = held._replace(left=left)
                continue
        del wire.held[one]


class Lookup:
    """Ids of an acknowledgement that the consumer does not have, and what the store knows of them.

    runs:  the messages so far
    error: set once an id is of another topic
    """

    def __init__(self, ack: Ack, topic: Topic) -> None:
        self.topic, self.is_cumulative = topic, ack.is_cumulative
        self.is_in_txn = ack.txn is not None
        self.error: TxlogError | None = None
        self.runs: list[Run] = []
        self.ids, self.at = ack.unknown, 0
        self.seen: set[tuple[int, ...]] = set()

    @property
    def is_done(self) -> bool:
        """True once all ids were looked for."""
        return self.at == len(self.ids)


def resolved(view: View, lookup: Lookup) -> None:
    """Look for the next LOOKUPS_MAX ids; one that came before is not looked for again."""
    last = len(lookup.seen) + LOOKUPS_MAX
    stop = min(lookup.at + REPEATED_MAX, len(lookup.ids))
    while lookup.at < stop and len(lookup.seen) < last:
        given = lookup.ids[lookup.at]
        lookup.at += 1
        key = (given.ledgerId, given.entryId, given.batch_index, *given.ack_set)
        if key not in lookup.seen:
            lookup.seen.add(key)
            lookup.runs += _runs_of_id(view, lookup, given)


def _runs_of_id(view: View, lookup: Lookup, given: Proto) -> list[Run]:
    """The messages that an id names, by what the store knows; none of what is gone."""
    number = ids.partition_of(view, given)
    if number is None:
        return []
    topic = lookup.topic
    if index_of(view.catalog.topics.get(topic.number, topic), number) < 0:
        name = f"{given.ledgerId}:{given.entryId}"
        lookup.error = MessageNotFound(f"message {name} does not exist in this topic")
        return []
    if lookup.is_cumulative:
        return _last_of(view, number, given)
    place = ids.place_of(view, number, given)
    if place is None:
        return []
    span, at, is_one, _ = place
    if ids.is_part(view, span, given):
        return []
    if given.ack_set:
        every = (1 << span.size) - 1
        done = every & ~ids.unacked(list(given.ack_set), span.size)
    else:
        done = 1 << at if is_one else (1 << span.size) - 1
    if lookup.is_in_txn and done.bit_count() > 1:
        name = f"{given.ledgerId}:{given.entryId}"
        text = f"the consumer does not have all that {name} stands for: it comes again"
        lookup.error = NotAllowed(text)
        return []
    return runs_of(span, 0, done)


def _last_of(view: View, number: int, given: Proto) -> list[Run]:
    """The last message that a cumulative acknowledgement covers; clients also name the one before.

    A client that acknowledged a batch in part names the entry before it, by subtracting one.
    """
    entry = given.entryId // STEP
    found = ids.place_of(view, number, given)
    if found is not None:
        span, at, is_one, _ = found
        if ids.is_part(view, span, given):
            at = -1
        elif given.ack_set and not is_one:
            left = ids.unacked(list(given.ack_set), span.size)
            at = (left & -left).bit_length() - 2 if left else span.size - 1
        if at >= 0 or span.inner > 1:
            return [span.run(at, at)]
        entry = span.entry
    return ids.last_before(view, number, given.ledgerId, entry, BACK_STEPS_MAX)


def last_id(view: View, topic: Topic, wire: Wire, found: MessageId | None) -> Proto:
    """The id of the last message of a partition, as consumers get it."""
    if found is None:
        return MessageIdData(ledgerId=ids.NOWHERE, entryId=ids.NOWHERE, partition=wire.shown)
    number = number_of(topic, wire.partition)
    span = ids.span_at(view, number, found.ledger, found.entry, found.index)
    if span is None:  # a compacted message whose ledger was trimmed
        span = Span(found.ledger, found.entry, 1)
        if found.index:
            span = ids.in_txn(found.ledger, found.entry, found.index, found.index)
        return wire_id(span, span.at(found), wire.shown, is_alone=span.inner > 0)
    is_alone = span == wire.split
    last = wire_id(span, span.at(found), wire.shown, is_alone=is_alone)
    if is_alone:
        return last
    inner = ids.inner_count(view, span)
    if inner > 1:
        last.batch_index, last.batch_size = inner - 1, inner
    elif ids.is_batch_of_one(view, span):
        last.batch_index, last.batch_size = 0, 1
    return last


def mark_id(view: View, topic: Topic, wire: Wire, mark: Mark) -> Proto:
    """A position as clients get it that ask whether there is more: all up to this id is done.

    They compare ledger and entry with those of the last message, so a batch of which a part is left
    counts as left, by an entry between its own and the one before.
    """
    ledger, entry, index = mark
    found = MessageIdData(ledgerId=ledger, entryId=ids.NOWHERE, partition=wire.shown)
    if entry < 0:
        return found
    span = ids.span_at(view, number_of(topic, wire.partition), ledger, entry, index or _WHOLE)
    if span is None:  # no message is there, or it is gone
        found.entryId = entry * STEP
        return found
    last = span.inner + span.size - 1 if span.inner else span.entry + span.size - 1
    is_done = (index in (0, last)) if span.inner else entry == last
    if span.wire_entry or is_done:
        found.entryId = span.wire_entry - (not is_done)
    return found


async def run(member: Member, act: Callable[[Session], T]) -> T:
    """Run a call on its consumer of the store, in the thread of that."""
    return await member.handle.worker.run(partial(act, member.session))
