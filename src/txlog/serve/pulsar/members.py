"""Owns StoreConsumer: a consumer of the store, and the consumers of a client that share it.

A client has a consumer for each partition of a topic, over one or more connections. To the store
they are one consumer, which leases and acknowledges for each of its partitions. So an exclusive
subscription has one consumer, as the client meant it, and in a key-shared or failover subscription
each partition gets its share.

    FLOW ─► permits ─► pump: lease, rows to frames ─► MESSAGE         in the thread of the store
    ACK  ─► queue ─► flusher: all queued ones, in one call ─► ACK_RESPONSE

Delivered and unacknowledged messages are leased in the store. `held` only records the messages
behind each id of the wire, so that a client may acknowledge a batch as a whole or in part.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Hashable, Sequence
from functools import partial
from itertools import islice
from typing import Any, Final, NamedTuple, TypeVar

import pyarrow as pa

from txlog.base.ids import MessageId, TxnId
from txlog.base.startup import compute as pc
from txlog.client.aio.handles import Consumer as Handle
from txlog.clock import Instant
from txlog.engine.door.catalog import Topic, number_of
from txlog.engine.door.consuming import ConsumerSession, Session, active_consumer
from txlog.engine.door.facts import IdSet, Mark, Run, each
from txlog.engine.door.store import Call, Decision, View
from txlog.engine.door.topics import SPLIT_BATCHES, set_policies
from txlog.errors import NotFound, SubscriptionNotFound, TxlogError
from txlog.serve.core.catalog import CatalogSnapshot
from txlog.serve.pulsar import ids
from txlog.serve.pulsar.connection import Connection
from txlog.serve.pulsar.deliveries import (
    BatchGap,
    Delivery,
    gaps,
    is_within,
    names_in_batch,
    newest_by_key,
    plan_deliveries,
    reads_empty,
    rows_within,
    within_permits,
)
from txlog.serve.pulsar.ids import (
    LOOKUPS_MAX,
    STEP,
    AckLookup,
    BatchSpan,
    resolve_ids,
    runs_of,
    wire_id,
)
from txlog.serve.pulsar.messages import MessageIdData, Proto
from txlog.serve.pulsar.wire import make_command, message_frame

T = TypeVar("T")
TAKE_MAX: Final = 5_000  # messages that one turn leases, of about TAKE_BYTES together
TAKE_BYTES: Final = 1 << 20
TAKE_BYTES_MIN: Final = 64 << 10  # while many clients do not read
MESSAGE_BYTES: Final = 16 << 10  # the assumed size of a message before the first one was seen
# batches; beyond them an abort redelivers only the aborted part of a batch
CLAIMED_MAX: Final = 10_000
# Unacknowledged ids of a consumer. Beyond the limit a consumer of a shared type gets nothing more
# (Pulsar's maxUnackedMessagesPerConsumer). For other types the server then remembers only the
# messages, not their ids.
HELD_MAX: Final = 50_000
ACTIVE_SECONDS: Final = 1.0  # how often a failover consumer checks whether it is active
_WHOLE: Final = 1 << 62  # an index after all messages of a transaction
RETURNED_MAX: Final = 5_000  # messages to give back in one call


class PendingAck(NamedTuple):
    """The unacknowledged messages of an id.

    left:  a bit for each message that is not acknowledged; bit 0 is message `at` of the span
    inner: messages of an encrypted batch, whose one row is acknowledged with the last; 0: not
           encrypted
    """

    span: BatchSpan
    at: int
    left: int
    inner: int = 0

    @property
    def messages(self) -> int:
        """How many messages the batch has for its client."""
        return self.inner or self.span.size


class ClientConsumer:
    """One consumer of a client.

    shown:   the partition in ids; -1: the topic is not partitioned
    permits: messages that it accepts; may be negative after a batch that was larger
    mark:    of a reader, its mark-delete position when it began
    split:   a batch that it gets message by message
    """

    def __init__(
        self,
        connection: Connection,
        number: int,
        partition: int,
        shown_partition: int,
        dismiss: Callable[[ClientConsumer], Coroutine[Any, Any, None]],
    ) -> None:
        """dismiss: closes it, and notifies its client"""
        self.connection, self.number, self._dismiss = connection, number, dismiss
        self.partition, self.shown = partition, shown_partition
        self.permits = 0
        self.epoch = 0
        self.mark: Proto | None = None
        self.split: BatchSpan | None = None
        self.held: dict[tuple[int, int], PendingAck] = {}  # oldest first
        self.older = IdSet()  # messages before those, whose ids are no longer known
        # Messages of its batches that it acknowledged in transactions, a bit for each.
        self.claimed: dict[tuple[int, int], int] = {}
        self.active: bool | None = None
        self.is_counted = False  # it counts in the quota of consumers
        self.gone = asyncio.Event()  # it has left, and its messages are back
        self.name = ""
        self.metadata: dict[str, str] = {}  # from its client
        self.since_ms = 0

    @property
    def unacked(self) -> int:
        """How many messages it has not acknowledged."""
        return sum(pending.left.bit_count() for pending in self.held.values())

    def dismiss(self) -> None:
        """Close it, and notify its client, which opens it again if it can."""
        self.connection.begin(self._dismiss(self))

    def forget(self) -> list[Run]:
        """Drop all messages that it has; returns them."""
        runs = self.older.runs() + [
            run for pending in self.held.values() for run in _unacked_runs(pending)
        ]
        self.held.clear()
        self.claimed.clear()
        self.older = IdSet()
        return runs

    def claim(self, entry: int, pending: PendingAck, bits: int) -> None:
        """Record messages of a batch that it acknowledges in a transaction, which may be aborted.

        entry: of the id under which it has them
        """
        key = pending.span.ledger, pending.span.wire_entry
        # it has no other message of the batch
        if pending.left == bits and entry == pending.span.wire_entry:
            self.claimed.pop(key, None)
            return
        self.claimed[key] = self.claimed.get(key, 0) | bits << pending.at
        if len(self.claimed) > CLAIMED_MAX:
            spans = [other.span for other in self.held.values()]
            parts = {(span.ledger, span.wire_entry) for span in spans} & self.claimed.keys()
            self.claimed = {key: self.claimed[key] for key in islice(parts, CLAIMED_MAX // 2)}

    def unclaim(self, claim: PendingAck) -> None:
        """The store refused to acknowledge these: no abort will give them back."""
        key = claim.span.ledger, claim.span.wire_entry
        if key in self.claimed:
            self.claimed[key] &= ~(claim.left << claim.at)

    def rest_of(self, delivery: Delivery) -> list[Run]:
        """Forget the messages that it has of a batch, if a part comes again after an abort.

        Returns these messages: the caller gives them back, too. Empty for any other delivery, and
        for a client that gets each message of a batch alone.
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
        return [run for part in parts if part is not None for run in _unacked_runs(part)]

    def _pack(self) -> None:
        """For the older half of its ids, remember only the messages."""
        for key in list(islice(self.held, HELD_MAX // 2)):
            for run in _unacked_runs(self.held.pop(key)):
                self.older.add(run)

    def send(self, delivery: Delivery) -> None:
        """Send messages, and remember them under their id."""
        if len(self.held) > HELD_MAX:
            self._pack()
        span, at, size = delivery.span, delivery.at, delivery.size
        whole = wire_id(span, at, self.shown, is_alone=delivery.is_alone)
        whole.ClearField("batch_index")
        whole.ClearField("batch_size")
        command = make_command(
            "message",
            consumer_id=self.number,
            message_id=whole,
            redelivery_count=delivery.redelivered or None,
            consumer_epoch=self.epoch or None,
        ).SerializeToString()
        count = delivery.inner or size
        pending = PendingAck(span, at, (1 << count) - 1, delivery.inner)
        self.held[(span.ledger, delivery.entry_id)] = pending
        self.permits -= max(count, len(delivery.heads))  # clients count each chunk, too
        for head, payload in delivery.heads:
            self.connection.write(message_frame(command, head, payload))


class AckRequest(NamedTuple):
    """An acknowledgement to make. Its runs are known, or the ids have to be looked up.

    claims: each id that the consumer has, and the messages that it acknowledges of it
    error:  the error of an id that was looked up
    """

    consumer: ClientConsumer
    runs: list[Run]
    unknown: list[Proto]
    is_cumulative: bool
    txn: TxnId | None
    answer: Callable[[Exception | None], None]
    claims: list[tuple[tuple[int, int], PendingAck]]
    error: TxlogError | None = None

    def end(self, error: Exception | None) -> None:
        """Answer the client. If it was refused, the consumer has its messages as before."""
        if error is not None:
            pending = self.consumer.held
            for key, claim in self.claims:
                unacked = pending[key].left if key in pending else 0
                pending[key] = claim._replace(left=claim.left | unacked)
                self.consumer.unclaim(claim)
        self.answer(error)


class StoreConsumer:
    """A consumer of the store that serves the consumers of one client, by partition.

    is_over: its delivery has failed; no other consumer joins it
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
        """ranges: the slots of keys that a reader wants; empty: all

        reads_compacted: from the compacted part it gets the newest message of each key
        """
        self.reads_compacted = reads_compacted
        self.key: Hashable = None  # the properties that its consumers share
        self.handle, self.topic, self.ranges = handle, topic, ranges
        self.subscription, self.kind = subscription, kind
        self.consumers: dict[int, ClientConsumer] = {}
        self._leaving = set[ClientConsumer]()
        self.is_over = False
        self.is_shared = kind in ("shared", "key-shared")
        session = handle.sync.session
        self.session: Session = session
        self.durable = session if isinstance(session, ConsumerSession) else None
        self._changed = asyncio.Event()
        self._ready: list[int] = []
        self._acks: deque[AckRequest] = deque()
        self._flushing: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._message_bytes = MESSAGE_BYTES  # the average size of a message in the last turn
        self._waiting = handle.waits.begin(session.rest)
        self._searched: list[int] | None = None  # the partitions of the last turn, if it took all

    def is_gone(self, snapshot: CatalogSnapshot) -> bool:
        """Whether its topic or subscription was deleted."""
        if snapshot.lacks_topic(self.topic.number, self.topic.name):
            return True
        durable = self.durable
        return durable is not None and snapshot.lacks_subscription(durable.subscription_number)

    def serves(self, connection: Connection) -> bool:
        """Whether it has consumers of a connection."""
        return any(consumer.connection is connection for consumer in self.consumers.values())

    # --- delivering --------------------------------------------------------------------------

    def begin(self, consumer: ClientConsumer) -> None:
        """Deliver to one more consumer."""
        self.consumers[consumer.partition] = consumer
        if not self._tasks:
            tasks = consumer.connection.service.tasks
            self._tasks.append(tasks.begin(self._pump(), self._dismiss))
            if self.kind == "failover":
                self._tasks.append(tasks.begin(self._watch(), self._dismiss))
        self._wake()

    def _wake(self) -> None:
        """Have the pump look who accepts messages now."""
        self._changed.set()
        self._waiting.stop()

    def flow(self, consumer: ClientConsumer, permits: int) -> None:
        """A consumer accepts more messages."""
        consumer.permits += permits
        if consumer.permits > 0 and consumer.partition not in self._ready:
            self._wake()

    def _dismiss(self) -> None:
        """A task has failed: the clients subscribe again."""
        for consumer in list(self.consumers.values()):
            consumer.dismiss()

    async def _pump(self) -> None:
        while True:
            self._changed.clear()
            self._waiting.is_stopped = False
            takers = [
                consumer
                for consumer in self.consumers.values()
                if consumer.permits > 0 and not self._is_over_limit(consumer)
            ]
            full = {consumer.connection for consumer in takers if consumer.connection.is_full}
            self._ready = [
                consumer.partition for consumer in takers if consumer.connection not in full
            ]
            if not self._ready:
                await self._news(full)
                continue
            try:
                deliveries = await self._taken(full)
            except TxlogError as error:  # its clients subscribe again, and get the reason
                self.is_over = True
                for consumer in list(self.consumers.values()):
                    if not isinstance(error, NotFound):
                        consumer.connection.service.failed(error)
                    consumer.dismiss()
                return
            deliveries = await self._without_parts(deliveries or [])
            orphans = list[Delivery]()
            receivers = {consumer.partition: consumer for consumer in takers}
            for delivery in deliveries:
                receiver = receivers.get(delivery.partition)
                if receiver is not None and receiver is self.consumers.get(receiver.partition):
                    receiver.send(delivery)
                else:  # it has closed meanwhile, and another may have begun, without permits
                    orphans.append(delivery)
            if orphans:
                await self.handle.worker.run(partial(self._put_back, orphans))

    async def _news(self, full: set[Connection]) -> None:
        """Wait until a consumer accepts more, or a full connection has room."""
        if not full:
            await self._changed.wait()
            return
        events = [self._changed, *(event.has_room for event in full)]
        waits = [asyncio.ensure_future(event.wait()) for event in events]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _room(self, full: set[Connection]) -> None:
        """Wake the pump once a full connection has room."""
        await self._news(full)
        self._wake()

    async def _without_parts(self, deliveries: list[Delivery]) -> list[Delivery]:
        """The deliveries to send now; batches whose part was aborted go back to the store as a
        whole.

        As in Pulsar, a message that an aborted transaction had acknowledged is delivered again
        together with the rest of the batch that its consumer has. Each counts as redelivered.
        """
        if not self.is_shared:  # in other types an abort rewinds the cursor
            return deliveries
        now, parts, rests = list[Delivery](), list[Delivery](), list[Run]()
        split = set[tuple[int, BatchSpan]]()
        for delivery in deliveries:
            consumer, batch = (
                self.consumers.get(delivery.partition),
                (delivery.partition, delivery.span),
            )
            runs = [] if consumer is None or batch in split else consumer.rest_of(delivery)
            if runs:
                split.add(batch)
                rests += runs
            (parts if batch in split else now).append(delivery)
        if parts:
            await self.acknowledged()
            await self.handle.worker.run(partial(self._put_back, parts))
            await self.give_back(rests)
        return now

    def _put_back(self, deliveries: list[Delivery]) -> None:
        """In the store's thread: return unsent leased messages; this is no redelivery of them."""
        self._searched = None
        by_partition: dict[int, list[Run]] = {}
        for delivery in deliveries:
            run = delivery.span.run(delivery.at, delivery.at + delivery.size - 1)
            by_partition.setdefault(number_of(self.topic, delivery.partition), []).append(run)
        if self.durable is not None:
            self.durable.give_back_runs(list(by_partition.items()))

    async def _taken(self, full: set[Connection]) -> list[Delivery] | None:
        """The next deliveries; None: other consumers accept messages now."""
        permits = {at: self.consumers[at].permits for at in self._ready}
        connections = {self.consumers[at].connection for at in self._ready}
        if self._searched != self._ready:
            self._waiting.seconds = 0.0
        room = asyncio.create_task(self._room(full)) if full else None
        try:
            taken = await self.handle.waits.until(
                partial(self._look, permits, connections),
                None,
                self.session.rest,
                _give_back,
                self._waiting,
                lambda _: self._searched is not None,
                None if self.durable is None else partial(self._prepare, permits, connections),
            )
        finally:
            if room is not None:
                room.cancel()
        return None if taken is None else taken[1]

    def _prepare(
        self, permits: dict[int, int], connections: set[Connection], view: View
    ) -> Call | None:
        """In the store's thread: the call that leases messages for `_look`, if it needs one."""
        assert self.durable is not None
        if any(each_connection.is_full for each_connection in connections):
            return None
        self.durable.limit_to(permits)
        limit = max(1, min(sum(permits.values()), self._turn_max(connections)[1]))
        return self.durable.prepare(limit, view)

    def _turn_max(self, connections: set[Connection]) -> tuple[int, int]:
        """How many bytes, and so about how many messages, one turn takes."""
        backlog = next(iter(connections)).service.backlog
        most = TAKE_BYTES_MIN if backlog.is_large else TAKE_BYTES
        return most, min(TAKE_MAX, most // self._message_bytes)

    def _look(
        self, permits: dict[int, int], connections: set[Connection], is_thorough: bool
    ) -> tuple[Callable[[], None], list[Delivery]] | None:
        """In the store's thread: lease rows, and plan their deliveries.

        permits:     the messages that the consumer of each partition accepts
        connections: the connections of these consumers; they belong to one client
        """
        self._searched = None
        is_prepared = self.durable is not None and self.durable.is_prepared
        if not is_prepared and any(each_connection.is_full for each_connection in connections):
            return _nothing, []  # by other consumers
        session = self.session
        connection = next(iter(connections))
        most, limit = self._turn_max(connections)
        table = self._leased(permits, limit, is_thorough)
        still = None if self.durable is None else self.durable.idle
        if table is None or not table.num_rows:
            return None
        if table.nbytes > 2 * most and (row_count := rows_within(table, most)) < table.num_rows:
            session.give_back(table.slice(row_count))
            table = table.slice(0, row_count)
        if (mask := within_permits(table, permits)) is not None:
            session.give_back(table.filter(pc.invert(mask)))
            table = table.filter(mask)
        self._message_bytes = table.nbytes // table.num_rows + 1
        rows, deliveries = self._planned(table, connection.version)
        if not rows.num_rows:
            return _nothing, []
        # a second turn, for the rest of a batch, has searched one partition only
        if rows is table and still is not None and self.durable.idle is still:  # type: ignore[union-attr]
            self._searched = list(permits)
        return partial(session.give_back, rows), deliveries

    def _planned(self, table: pa.Table, version: str) -> tuple[pa.Table, list[Delivery]]:
        """In the store's thread: which of leased rows the client gets, and their deliveries.

        Consumers that look together and get the same single message share its frames.
        """
        store, topic, by_key = self.session.store, self.topic, self.kind == "key-shared"
        is_split, shared = self._is_split(version), self.handle.waits.together.shared
        splits = {consumer.split for consumer in tuple(self.consumers.values())} - {None}
        key: Hashable = None
        if not (is_split or splits):  # otherwise it would get more messages than it has permits
            if self.durable is not None and table.num_rows == 1 and not self.reads_compacted:
                times = table.column("redelivery_count")[0].as_py()
                runs = self.durable.receiving.known_runs(table) or ()
                key = (*runs, times, by_key, reads_empty(version)) if runs else None
                if key in shared:
                    return table, shared[key]
            missing = store.read(lambda view: gaps(view, topic, table, by_key=by_key), fresh=False)
            if missing:
                key, table = None, self._completed(table, missing)
        if self.reads_compacted and self.durable is not None:
            table = self._kept(table, store.read(partial(newest_by_key, topic, table), fresh=False))
        if self.ranges:
            table = self._kept(table, is_within(table, self.ranges))
        plan = partial(
            plan_deliveries,
            topic=topic,
            table=table,
            bytes_max=store.settings.max_message_bytes,
            reads_empty=reads_empty(version),
            is_split=is_split,
            splits=splits,
        )
        deliveries = store.read(plan, fresh=False)
        if key is not None:
            shared[key] = deliveries
        return table, deliveries

    def _is_split(self, version: str) -> bool:
        """In the store's thread: whether each message of a batch goes out alone. Raises TxlogError.

        A client that cannot name a message in a batch needs this if it acknowledges in
        transactions. It asks for the coordinator before it makes its first consumer, and then the
        subscription gets a policy. After a restart of the server the consumer may return before its
        client asks again, and the policy still applies.
        """
        if names_in_batch(version) or self.durable is None:
            return False
        store, number = self.session.store, self.durable.subscription_number
        if store.read(lambda view: _splits(view, number), fresh=False):
            return True
        connections = [consumer.connection for consumer in tuple(self.consumers.values())]
        if not any(connection.has_coordinator for connection in connections):
            return False

        def decide(view: View, now: Instant) -> Decision[dict[str, int | str]]:
            subscription = view.catalog.subscriptions.get(number)
            if subscription is None:  # deleted since the last read
                raise SubscriptionNotFound(f"subscription {self.subscription} was deleted")
            topic = view.catalog.topics[subscription.topic]
            return set_policies(view, topic, subscription, {SPLIT_BATCHES: 1})

        store.write(decide)
        return True

    def _kept(self, table: pa.Table, mask: pa.BooleanArray) -> pa.Table:
        """The rows that the client gets; the others are acknowledged on its behalf."""
        if not pc.all(mask).as_py():
            self.session.acknowledge(table.filter(pc.invert(mask)), None)
        return table.filter(mask)

    def _leased(self, limits: dict[int, int], most: int, is_thorough: bool) -> pa.Table | None:
        """Newly leased rows, at most the limit of each partition, and `most` in all."""
        if self.durable is not None:
            self.durable.limit_to(limits)
        limit = max(1, min(sum(limits.values()), most))
        return self.session.take(limit, is_thorough)

    def _completed(self, table: pa.Table, missing: list[BatchGap]) -> pa.Table:
        """Leased rows, with the missing end of each partition's last batch if it can be leased."""
        limits = {gap.partition: gap.rows for gap in missing}
        more = self._leased(limits, sum(limits.values()), True)
        if more is None or not more.num_rows:
            return table
        mask = missing[0].mask(more)
        for gap in missing[1:]:
            mask = pc.or_(mask, gap.mask(more))
        others = more.filter(pc.invert(mask))
        if others.num_rows:  # rows that no gap needs
            self.session.give_back(others)
        return pa.concat_tables([table, more.filter(mask)])

    def _is_over_limit(self, consumer: ClientConsumer) -> bool:
        """Whether a consumer must acknowledge before it gets more."""
        return self.is_shared and len(consumer.held) >= HELD_MAX

    def relieve(self, consumer: ClientConsumer) -> None:
        """A consumer has fewer messages: if it had too many, it may get more."""
        is_waiting = consumer.permits > 0 and consumer.partition not in self._ready
        if self.is_shared and is_waiting and not self._is_over_limit(consumer):
            self._wake()

    async def _watch(self) -> None:
        """Notify failover consumers whether they are active."""
        while True:
            try:
                await self.tell_active()
            except TxlogError as error:
                # the delivery fails with the same error, and notifies its clients
                if not error.retryable:
                    return
            await asyncio.sleep(ACTIVE_SECONDS)

    async def tell_active(self) -> None:
        """Notify each consumer whether it is active, if that has changed."""
        consumers = dict(self.consumers)
        active = dict.fromkeys(consumers, True)
        if self.kind == "failover" and self.durable is not None:
            store, me = self.session.store, self.durable.member.number
            number = self.durable.subscription_number

            def look(view: View) -> dict[int, bool]:
                return {at: active_consumer(view, number, at) == me for at in consumers}

            active = await self.handle.worker.run(lambda: store.read(look))
        for at, consumer in consumers.items():
            if consumer.active is not active[at]:
                consumer.active = active[at]
                consumer.connection.send(
                    "active_consumer_change", consumer_id=consumer.number, is_active=active[at]
                )

    # --- giving back -------------------------------------------------------------------------

    async def give_back(self, runs: list[Run]) -> None:
        """Return leased messages for immediate redelivery; each counts as redelivered."""
        self._searched = None
        ids_left = (MessageId(*message_id) for run in merge_runs(runs) for message_id in each(run))
        while message_ids := list(islice(ids_left, RETURNED_MAX)):
            await self.handle.worker.run(partial(self.session.negative_acknowledge, message_ids, 0))
        if self.durable is None:  # a reader gets no event that wakes the pump
            self._wake()

    async def redeliver(self, consumer: ClientConsumer, message_ids: list[Proto]) -> None:
        """Redeliver messages of a consumer; message_ids: only these, empty: all it has."""
        await self.acknowledged()
        if not message_ids:
            await self.give_back(consumer.forget())
            self.relieve(consumer)
            return
        keys = [(pending.ledgerId, pending.entryId) for pending in message_ids]
        returned = [consumer.held.pop(key) for key in keys if key in consumer.held]
        await self.give_back([run for pending in returned for run in _unacked_runs(pending)])
        self.relieve(consumer)

    def leaver(self, partition: int) -> ClientConsumer | None:
        """The consumer of a partition that is leaving, or will as its connection ends."""
        consumer = self.consumers.get(partition)
        if consumer is not None and consumer.connection.is_over():
            return consumer
        return next((each for each in self._leaving if each.partition == partition), None)

    async def leave(self, consumer: ClientConsumer) -> None:
        """A consumer closes; its messages go back. The last one closes the store's consumer.

        It may be cancelled: the end of the connection calls it again.
        """
        if self.consumers.get(consumer.partition) is consumer:
            del self.consumers[consumer.partition]
        self._leaving.add(consumer)
        self._wake()
        try:
            await self.acknowledged()
            if self.consumers:
                await self.give_back(consumer.forget())
            else:
                await self.stop()
                await self.handle.close()
        except Exception:  # of the store: the leases end by themselves
            self._gone(consumer)
            raise
        self._gone(consumer)

    def _gone(self, consumer: ClientConsumer) -> None:
        self._leaving.discard(consumer)
        consumer.gone.set()

    async def stop(self) -> None:
        """Deliver nothing more."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # --- acknowledging -----------------------------------------------------------------------

    def acknowledge(self, ack: AckRequest) -> None:
        """Queue an acknowledgement; all queued ones are made together."""
        self._acks.append(ack)
        if self._flushing is None:
            tasks = ack.consumer.connection.service.tasks
            self._flushing = tasks.begin(self._flush(), self._dismiss)

    async def acknowledged(self) -> None:
        """Wait until the queued acknowledgements are made."""
        while self._flushing is not None:
            await asyncio.shield(self._flushing)

    async def _flush(self) -> None:
        try:
            while self._acks:
                acks = self._next_acks()
                try:
                    if len(acks[0].unknown) > LOOKUPS_MAX:
                        acks = [await self._looked_up(acks[0])]
                    errors = await self._made_together(acks)
                except Exception as failure:  # or a bug: the next ones are made all the same
                    errors = [failure] * len(acks)
                call = acks[0].consumer.connection.service.tasks.call
                for ack, error in zip(acks, errors, strict=True):
                    call(partial(ack.end, error))
        finally:
            self._flushing = None

    def _next_acks(self) -> list[AckRequest]:
        """Take as many from the queue as one call in the store's thread makes; at least one."""
        acks = [self._acks.popleft()]
        lookups = len(acks[0].unknown) + 1
        while self._acks and lookups + len(self._acks[0].unknown) < LOOKUPS_MAX:
            acks.append(self._acks.popleft())
            lookups += len(acks[-1].unknown) + 1
        return acks

    async def _looked_up(self, ack: AckRequest) -> AckRequest:
        """An acknowledgement whose ids were all looked up in the store, some in each call."""
        lookup, store = self._lookup(ack), self.session.store
        while not lookup.is_done:
            act = partial(resolve_ids, lookup=lookup)
            await self.handle.worker.run(partial(store.read, act))
        return ack._replace(runs=ack.runs + lookup.runs, unknown=[], error=lookup.error)

    def _lookup(self, ack: AckRequest) -> AckLookup:
        is_in_txn = ack.txn is not None
        return AckLookup(
            self.topic, ack.unknown, is_cumulative=ack.is_cumulative, is_in_txn=is_in_txn
        )

    async def _made_together(self, acks: list[AckRequest]) -> Sequence[Exception | None]:
        """Make acknowledgements, in one frame with those of other consumers; returns the error of
        each, if any.
        """
        call: Call | None = None

        def begin() -> Call | None:
            nonlocal call
            is_plain = all(
                not (ack.unknown or ack.is_cumulative or ack.error) and ack.txn is None
                for ack in acks
            )
            runs = [run for ack in acks for run in ack.runs]
            if self.durable is not None and is_plain and runs:
                call = self.durable.acknowledging(merge_runs(runs))
            return call

        def act() -> Sequence[Exception | None]:
            if call is None or not call.done or call.error is not None or call.answer is None:
                return self._make(acks)
            return [None] * len(acks)

        return await self.handle.waits.together.run(act, None, begin)

    def _make(self, acks: list[AckRequest]) -> list[TxlogError | None]:
        """In the store's thread: acknowledge, neighbours of one kind together; returns the error of
        each, if any.
        """
        batch, errors = list[AckRequest](), list[TxlogError | None]()
        for ack in acks:
            if batch and (ack.is_cumulative or ack.txn is not None or batch[0].is_cumulative):
                errors += self._make_together(batch)
                batch = []
            batch.append(ack)
            if ack.txn is not None:
                errors += self._make_together(batch)
                batch = []
        return errors + self._make_together(batch)

    def _make_together(self, acks: list[AckRequest]) -> list[TxlogError | None]:
        """Make acknowledgements in one call; if that is refused, each alone."""
        try:
            return self._made(acks)
        except TxlogError as failure:
            if len(acks) == 1:
                return [failure]
            return [error for ack in acks for error in self._make_together([ack])]

    def _made(self, acks: list[AckRequest]) -> list[TxlogError | None]:
        """Make acknowledgements; returns the error of each, if any. Raises TxlogError."""
        runs: list[Run] = []
        errors: list[TxlogError | None] = []
        for ack in acks:
            more, error = list[Run](), ack.error
            if ack.unknown:
                lookup = self._lookup(ack)
                self.session.store.read(partial(resolve_ids, lookup=lookup))
                more, error = lookup.runs, lookup.error
            if error is not None and ack.txn is not None:
                raise error  # in a transaction it is all or nothing
            runs += ack.runs + more
            errors.append(error)
        if runs:
            self._acknowledge(merge_runs(runs), acks[0])
        return errors

    def _acknowledge(self, runs: list[Run], ack: AckRequest) -> None:
        if self.durable is not None:
            self.durable.acknowledge_runs(runs, ack.txn, cumulative=ack.is_cumulative)
            return
        message_ids = [MessageId(*message_id) for run in runs for message_id in each(run)]
        if ack.is_cumulative:
            self.session.acknowledge_cumulative(message_ids[-1], ack.txn)
        else:
            self.session.acknowledge(message_ids, ack.txn)


def _splits(view: View, number: int) -> bool:
    """Whether a subscription splits batches for clients that acknowledge whole batches."""
    subscription = view.catalog.subscriptions.get(number)
    return subscription is not None and bool(subscription.policies.get(SPLIT_BATCHES))


def _nothing() -> None:
    """Give back nothing."""


def _give_back(result: tuple[Callable[[], None], list[Delivery]]) -> None:
    result[0]()


def merge_runs(runs: list[Run]) -> list[Run]:
    """Runs in order, each message once."""
    if len(runs) == 1:
        return runs
    messages = IdSet()
    for run in runs:
        messages.add(run)
    return messages.runs()


def _unacked_runs(pending: PendingAck) -> list[Run]:
    """The messages of an id that are not acknowledged."""
    if pending.inner:
        return [pending.span.run(pending.at, pending.at)]
    return runs_of(pending.span, pending.at, pending.left)


def take_acknowledged(ack: AckRequest, message_id: Proto) -> list[Run] | None:
    """The messages that an id acknowledges, claimed; None: the consumer has no such id."""
    consumer, key = ack.consumer, (message_id.ledgerId, message_id.entryId)
    pending = consumer.held.get(key)
    if pending is None or ids.reach(message_id) > pending.messages:
        return None
    done = pending.left
    if message_id.ack_set:
        done &= ~ids.unacked(list(message_id.ack_set), pending.messages)
    elif message_id.batch_index >= 0 and (pending.at == 0 or pending.inner):
        done &= 1 << message_id.batch_index
    if ack.txn is not None and not _is_certain(pending, message_id, done):
        return None
    if ack.txn is not None and pending.span.size > 1:
        consumer.claim(message_id.entryId, pending, done)
    remaining = pending.left & ~done
    if remaining:
        consumer.held[key] = pending._replace(left=remaining)
    else:
        del consumer.held[key]
    ack.claims.append((key, pending._replace(left=done)))
    if pending.inner:
        return [] if remaining else [pending.span.run(pending.at, pending.at)]
    return runs_of(pending.span, pending.at, done)


def _is_certain(pending: PendingAck, message_id: Proto, done: int) -> bool:
    """Whether an id in a transaction can stand only for these messages.

    With each message Go's client names all messages of the batch that it ever acknowledged,
    including aborted and refused ones. If the server accepted the whole list, a transaction would
    acknowledge messages that it has no copy of. So of a part of a batch it accepts one message.
    """
    is_whole = not message_id.ack_set and done == (1 << pending.messages) - 1
    return is_whole or done.bit_count() == 1 or pending.inner > 0


def forget_up_to(consumer: ClientConsumer, message_id: Proto) -> None:
    """Drop the messages that a cumulative acknowledgement covers."""
    key = (message_id.ledgerId, message_id.entryId)
    if consumer.older and consumer.held and key >= next(iter(consumer.held)):
        consumer.older = IdSet()
    for held_key in [held_key for held_key in consumer.held if held_key <= key]:
        if held_key == key and message_id.ack_set:
            pending = consumer.held[held_key]
            remaining = pending.left & ids.unacked(list(message_id.ack_set), pending.messages)
            if remaining:
                consumer.held[held_key] = pending._replace(left=remaining)
                continue
        del consumer.held[held_key]


def last_id(view: View, topic: Topic, consumer: ClientConsumer, newest: MessageId | None) -> Proto:
    """The id of the last message of a partition, as consumers get it."""
    if newest is None:
        return MessageIdData(ledgerId=ids.NOWHERE, entryId=ids.NOWHERE, partition=consumer.shown)
    number = number_of(topic, consumer.partition)
    span = ids.span_at(view, number, newest.ledger, newest.entry, newest.index)
    if span is None:  # a compacted message whose ledger was trimmed
        span = BatchSpan(newest.ledger, newest.entry, 1)
        if newest.index:
            span = ids.in_txn(newest.ledger, newest.entry, newest.index, newest.index)
        return wire_id(span, span.at(newest), consumer.shown, is_alone=span.inner > 0)
    is_alone = span == consumer.split
    wire_message_id = wire_id(span, span.at(newest), consumer.shown, is_alone=is_alone)
    if is_alone:
        return wire_message_id
    inner = ids.inner_count(view, span)
    if inner > 1:
        wire_message_id.batch_index, wire_message_id.batch_size = inner - 1, inner
    elif ids.is_batch_of_one(view, span):
        wire_message_id.batch_index, wire_message_id.batch_size = 0, 1
    return wire_message_id


def mark_id(view: View, topic: Topic, consumer: ClientConsumer, mark: Mark) -> Proto:
    """A mark-delete position for clients that ask whether there is more: everything up to this id
    is done.

    They compare its ledger and entry with the last message's. A batch that is acknowledged in part
    must count as not done, so it gets an entry between its own and the one before.
    """
    ledger, entry, index = mark
    position = MessageIdData(ledgerId=ledger, entryId=ids.NOWHERE, partition=consumer.shown)
    if entry < 0:
        return position
    span = ids.span_at(view, number_of(topic, consumer.partition), ledger, entry, index or _WHOLE)
    if span is None:  # the position has no message, or it was trimmed
        position.entryId = entry * STEP
        return position
    last = span.inner + span.size - 1 if span.inner else span.entry + span.size - 1
    is_done = (index in (0, last)) if span.inner else entry == last
    if span.wire_entry or is_done:
        position.entryId = span.wire_entry - (not is_done)
    return position


async def run(store_consumer: StoreConsumer, call: Callable[[Session], T]) -> T:
    """Call a function with the consumer of the store, in the store's thread."""
    return await store_consumer.handle.worker.run(partial(call, store_consumer.session))
