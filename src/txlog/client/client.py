"""Owns Client: the Pulsar-like Python API of a store.

There is a method behind each command, with its name. Values in the answers are plain; ids are TxnId
and MessageId, instants are milliseconds since 1970 UTC.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, Unpack
from weakref import WeakSet

import pyarrow as pa

from txlog.base.arguments import checked, explained
from txlog.base.ids import MessageId, TopicName, TxnId
from txlog.base.ranges import END, Range
from txlog.base.schemas import classes
from txlog.base.settings import QUEUE_SIZE, Settings
from txlog.client import admin as administration
from txlog.client import copy as copying
from txlog.client import wait as conditions
from txlog.client.answers import inspect as inspecting
from txlog.client.answers import keys, overview, topics_and_txns
from txlog.client.consuming import listeners as listening
from txlog.client.consuming import open as subscribing
from txlog.client.reading import reader as readers
from txlog.client.reading import table_view as table_views
from txlog.client.sending import bulk as bulks
from txlog.client.sending import producer as producing
from txlog.client.sending.router import ROUND_ROBIN, Router, seed_of
from txlog.client.topics import subscription as subscription_handle
from txlog.client.topics import topic as topic_handle
from txlog.engine.door import consuming as acknowledging
from txlog.engine.door import consuming as message_runs
from txlog.engine.door import sending as outbox
from txlog.engine.door import staging as adopt
from txlog.engine.door import topics as admin
from txlog.engine.door import transactions as end
from txlog.engine.door import transactions as end_txn
from txlog.engine.door import transactions as enter
from txlog.engine.door import transactions as transaction
from txlog.engine.door import transactions as transaction_handle
from txlog.engine.door.catalog import Subscription, Topic
from txlog.engine.door.catalog import subscription as find_subscription
from txlog.engine.door.catalog import topic as find_topic
from txlog.engine.door.delayed import tend_due
from txlog.engine.door.disk import Disk
from txlog.engine.door.facts import NEW_HOLDER
from txlog.engine.door.reading import Quiet, Waiting, least, until
from txlog.engine.door.relation import RelationReader
from txlog.engine.door.sending import SHARED, Opening
from txlog.engine.door.store import CallScope, Checkpoints, Store, View, compact_due, run_checkpoint
from txlog.errors import AlreadyClosed, InvalidArgument, OutcomeUnknown, TxlogError

if TYPE_CHECKING:
    from txlog.base.rows.consuming import AcknowledgedIn, SubscriptionRow
    from txlog.base.rows.space import CheckpointWritten
    from txlog.base.rows.store import Overview, RowsRead, Status, StoreCopied, Waited
    from txlog.base.rows.topics import TopicDescription, TopicRow
    from txlog.base.rows.transactions import (
        Expired,
        KeyConnected,
        TransactionBegun,
        TransactionDescription,
        TransactionEnded,
        TransactionRow,
    )
    from txlog.client.admin import Admin
    from txlog.client.consuming.batches import BatchReceivePolicy
    from txlog.client.consuming.consumer import Consumer
    from txlog.client.consuming.listeners import Listeners
    from txlog.client.consuming.open import ConsumerOptions
    from txlog.client.reading.reader import Reader
    from txlog.client.reading.table_view import TableView
    from txlog.client.sending.bulk import Bulk
    from txlog.client.sending.producer import Producer
    from txlog.client.sending.router import Choose
    from txlog.client.topics.subscription import SubscriptionHandle
    from txlog.client.topics.topic import TopicHandle
    from txlog.engine.door.consuming import AckAnswer, Find, Topics
    from txlog.engine.door.reading import Message, Where
    from txlog.engine.door.sending import Access, Outbox, ProducerOptions
    from txlog.engine.door.staging import StagePlan
    from txlog.engine.door.transactions import (
        EndAnswer,
        Later,
        NewTxn,
        Transaction,
        TransactionBuilder,
    )
    from txlog.engine.door.watermarks import WatermarkListener


T = TypeVar("T")
READ_MESSAGES = 10_000


def _once(parts: dict[str, Any], name: str, make: Callable[[], T]) -> T:
    """A part of a client, made when it is first asked for; two threads get the same."""
    part: T | None = parts.get(name)
    return parts.setdefault(name, make()) if part is None else part


@checked
class Client(RelationReader):
    """An open store. Safe to call from many threads; a forked child must open its own.

    >>> import tempfile, txlog
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = txlog.init(folder)
    ...     with txlog.open(folder) as client:
    ...         created = client.create_topic("orders", partitions=2)
    ...         created, [topic["topic"] for topic in client.topics()]
    (True, ['orders'])
    """

    __slots__ = (
        "_checkpoints",
        "_handles",
        "_listeners",
        "_outbox",
        "_parts",
        "epoch",
        "transaction_key",
    )

    def __init__(self, store: Store, disk: Disk) -> None:
        super().__init__(store, disk)
        self._checkpoints = store.upkeep = Checkpoints(is_on=not store.dry_run)
        self.transaction_key: str | None = None
        self.epoch: int | None = None  # of the connection of transaction_key
        # Most clients need none of these. Producers hold what makes the outbox, not the client.
        self._parts: dict[str, Any] = {}
        self._outbox: Callable[[], Outbox] = partial(
            _once, self._parts, "outbox", lambda: outbox.Outbox(store)
        )
        self._listeners: Callable[[], Listeners] = partial(
            _once, self._parts, "listeners", lambda: listening.Listeners(store)
        )
        self._handles: WeakSet[Consumer | Access] = WeakSet()

    @property
    def settings(self) -> Settings:
        """The settings of the store."""
        return self.store.settings

    @property
    def checkpoint_automatically(self) -> bool:
        """Whether a write that finds the journal long begins a checkpoint; can be set."""
        return self._checkpoints.is_on

    @checkpoint_automatically.setter
    def checkpoint_automatically(self, is_on: bool) -> None:
        self._checkpoints.is_on = is_on

    @property
    def admin(self) -> Admin:
        """The operations of administration."""
        automatic = self.checkpoint_automatically
        return administration.Admin(self.store, checkpoint_automatically=automatic)

    def reading(self) -> RowsRead:
        """What this client read since it was opened: {rows_read, row_groups_decoded, handed_out}.

        rows_read divided by handed_out, the messages returned to callers, is the read
        amplification: 1 if no row was read in vain. A key-shared consumer also reads keys.
        """
        tally = self.store.tally
        return {
            "rows_read": tally.rows_read,
            "row_groups_decoded": tally.groups_decoded,
            "handed_out": tally.handed_out,
        }

    def close(self) -> None:
        """Close it with its consumers, once all that was sent without waiting is stored.

        Waits for a checkpoint under way, and writes one that is due after changes of this client
        unless another process does. If it fails, `reports` says so, and all that was answered
        stays. From `__del__` or a signal handler inside a call on the store: once that has ended.
        raises: the first error of a sent message whose future nobody has asked for it; it is
                closed all the same
        """
        sent: Outbox | None = self._parts.get("outbox")
        if self.store.put_off(self.close) or (sent is not None and sent.put_off(self.close)):
            return
        if "listeners" in self._parts:
            self._listeners().close()
        try:
            if sent is not None:
                sent.close()
        finally:
            for handle in list(self._handles):
                with suppress(TxlogError):  # its peers consider it dead
                    handle.close()
            with suppress(AlreadyClosed):  # closed by another thread, or the parent's
                self._checkpoints.close(self.store)
                if self.store.has_written:  # a reader changes nothing
                    tend_due(self.store, closing=True)
            super().close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
            return
        with suppress(TxlogError):  # the first error is the cause
            self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("an open store cannot be copied or pickled: open it again instead")

    # --- topics and subscriptions ------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        if_not_exists: bool = False,
        schema: object = None,
        schema_type: str = "json",
        **policies: int | None,
    ) -> bool:
        """Create a topic; returns whether it was created. Raises AlreadyExists, InvalidArgument.

        schema:   what its values are records of: a dataclass, msgspec.Struct or pydantic model, a
                  pyarrow.Schema, or a txlog.Schema; schema_type: json or avro, how they are written
        policies: as those of set_policies
        """
        topic = TopicName.parse(name)
        of_values = None if schema is None else classes.schema_of(schema, schema_type)
        created = self.store.write(
            lambda view, now: admin.create_topic(
                view,
                self.store.settings,
                now,
                topic,
                partitions,
                if_not_exists=if_not_exists,
                policies=policies,
                schema=of_values,
            )
        )
        return bool(created)

    def set_policies(self, topic: str, **policies: int | None) -> dict[str, int]:
        """Set what is kept of a topic, None to remove a policy; returns those it then has.

        retention_ms, retention_bytes: how long, how much; retention_acked: 1, what every
                                       subscription has acknowledged goes; ttl_ms: older messages
                                       are acknowledged. Whole ledgers go, after a checkpoint, and
                                       never automatically what a subscription has not acknowledged.
        compaction_threshold_bytes:    when it is compacted by key: see set_retention_policies
        raises: TopicNotFound, InvalidArgument
        """
        name = TopicName.parse(topic)
        answer = self.store.write(
            lambda view, now: admin.set_topic_policies(view, find_topic(view, name), policies)
        )
        return answer

    def topics(self) -> list[TopicRow]:
        """The topics, by name; the fields of `txlog topic list`."""
        return self._ask(lambda view: topics_and_txns.topics(view, self.store))

    def describe_topic(self, name: str) -> TopicDescription:
        """One topic with its partitions and subscriptions. Raises TopicNotFound."""
        topic = TopicName.parse(name, allow_partition=True)
        return self._ask(
            lambda view: topics_and_txns.topic(view, find_topic(view, topic), self.store)
        )

    def create_subscription(
        self,
        topic: str,
        name: str,
        *,
        type: str = "exclusive",
        isolation: str = "committed",
        position: Where | None = None,
        if_not_exists: bool = False,
        **policies: int | str | None,
    ) -> bool:
        """Create a durable subscription; returns whether it was created.

        policies: as those of SubscriptionHandle.set_policies
        position: where it starts; the first retained message when left out. A message id belongs to
                  one partition; the others begin at their first message
        raises:   AlreadyExists, TopicNotFound, InvalidArgument
        """
        return subscribing.create_subscription(
            self.store,
            topic,
            name,
            type=type,
            isolation=isolation,
            position=position,
            if_not_exists=if_not_exists,
            policies=policies,
        )

    def subscriptions(self, topic: str | None = None) -> list[SubscriptionRow]:
        """The subscriptions, of one topic or of all; the fields of `txlog sub list`."""
        name = None if topic is None else TopicName.parse(topic, allow_partition=True)
        return self._ask(
            lambda view: topics_and_txns.subscriptions(
                view, None if name is None else find_topic(view, name), self.store
            )
        )

    def subscription(self, topic: str, name: str) -> SubscriptionHandle:
        """A handle for seek, skip, backlog, policies and deletion; of `orders/2`, one partition.

        raises: TopicNotFound, SubscriptionNotFound
        """
        return subscription_handle.SubscriptionHandle(self.store, topic, name)

    def topic(self, name: str) -> TopicHandle:
        """A handle for delayed messages: list, promote, cancel; of `orders/2`, one partition.

        raises: TopicNotFound
        """
        return topic_handle.TopicHandle(self.store, name)

    def acknowledge(
        self,
        topic: str,
        subscription: str,
        ids: Sequence[MessageId],
        *,
        cumulative: bool = False,
        txn: Transaction | TxnId | None = None,
    ) -> AcknowledgedIn:
        """Acknowledge by id, without a consumer; {acked, already, dropped, txn}."""
        answer = acknowledging.acknowledge_runs(
            self.store,
            _finder(topic, subscription),
            message_runs.runs_of_ids(list(ids)),
            txn,
            cumulative=cumulative,
        )
        txn_id = txn.id if isinstance(txn, transaction.Transaction) else txn
        return {
            "acked": answer.acked,
            "already": answer.already,
            "dropped": answer.dropped,
            "txn": txn_id,
        }

    def acknowledge_async(
        self, topic: str, subscription: str, ids: Sequence[MessageId], *, txn: Transaction
    ) -> Later[AckAnswer]:
        """Acknowledge by id in a transaction, later: as `Consumer.acknowledge_async`."""
        find = _finder(topic, subscription)
        return acknowledging.acknowledge_later(
            self.store, find, message_runs.runs_of_ids(list(ids)), txn
        )

    # --- messages ----------------------------------------------------------------------------

    def bulk(self, topic: str, *, key: str, batch: int | str, producer: str | None = None) -> Bulk:
        """A batch of any size, stored exactly once: its files are staged first, in any process.

        key:      a transaction key, whose open transaction is aborted; use one per topic
        batch:    a number that rises, or a name
        producer: a name for its messages; their column sequence_id is refused then
        raises:   TopicNotFound, InvalidArgument, ReadOnlyStore
        """
        adopt.check_token(key, batch)
        return self.bulk_of(bulks.planned(self.store, topic, key, batch, producer=producer))

    def bulk_of(self, plan: StagePlan) -> Bulk:
        """The batch of a plan, to commit in one process what was planned in another."""
        return bulks.Bulk(self.store, plan, self._tend)

    def plan_stage(self, topic: str, tag: str = "") -> StagePlan:
        """Where tasks stage files of a batch whose key and name are not known yet (`plan.named`).

        tag: hex digits that the jobs of one stream share; when one ends, those before it are
             removed
        """
        return bulks.planned(self.store, topic, "", 0, tag)

    def producer(
        self,
        topic: str,
        name: str | None = None,
        *,
        chunking: bool = False,
        idle_on_close: bool = False,
        message_router: Choose | None = None,
        message_routing_mode: str = ROUND_ROBIN,
        access_mode: str = SHARED,
        schema: object = None,
        **options: Unpack[ProducerOptions],
    ) -> Producer:
        """A producer; a name makes sends idempotent, chunking lets messages be large.

        message_router: given a message and the number of partitions, says the partition of each
                       that names none; called in the thread that sends
        message_routing_mode: without a key "round-robin", or all to one: "single-partition"
        access_mode:   "exclusive": the only one of the topic, else ProducerBusy while there is one;
                       "exclusive-with-fencing" takes over, "wait-for-exclusive" waits for its turn
        idle_on_close: consumers stop waiting for its watermarks when it is closed
        schema:        what its values are records of, as create_topic takes it; added to the topic
                       if it lacks it. Without it the newest schema of the topic is meant. For
                       values of Avro: txlog.schema_of(Flight, "avro")
        For send_async, by Pulsar's names; what is queued is sent at the first of these:
        batching_max_publish_delay_ms:      its oldest message is this old (1)
        batching_max_messages:              there are this many (1,000)
        batching_max_allowed_size_in_bytes: they have this many bytes (128 KiB)
        max_pending_messages:               as many may wait for their answers (50,000), and
        block_if_queue_full:                then a call waits, else it raises ProducerQueueIsFull
        """
        return self._producer(
            topic,
            name,
            chunking=chunking,
            idle_on_close=idle_on_close,
            message_router=message_router,
            message_routing_mode=message_routing_mode,
            access_mode=access_mode,
            schema=schema,
            **options,
        ).wait()

    @explained
    def _producer(
        self,
        topic: str,
        name: str | None = None,
        *,
        chunking: bool = False,
        idle_on_close: bool = False,
        message_router: Choose | None = None,
        message_routing_mode: str = ROUND_ROBIN,
        access_mode: str = SHARED,
        schema: object = None,
        **options: Unpack[ProducerOptions],
    ) -> Opening[Producer]:
        """A producer in the making."""
        written = None if schema is None else classes.schema_of(schema)
        seed = seed_of(name, self.store.disk.pid())
        router = Router(message_router, message_routing_mode, topic, seed)
        sends = (self._outbox, outbox.batching_of(options))

        def make() -> Producer:
            made = producing.Producer(
                self.store,
                topic,
                name,
                sends=sends,
                chunking=chunking,
                idle_on_close=idle_on_close,
                router=router,
                access_mode=access_mode,
            )
            self._handles.add(made.access)
            try:
                if written is not None:
                    made._write(self.topic(topic).schemas.add(written))
            except BaseException:  # it would keep the topic, and nobody has it to close it
                made.close()
                raise
            return made

        return Opening(self.store, topic, make, access_mode)

    def consumer(
        self,
        topic: str | Topics,
        subscription: str,
        *,
        type: str | None = None,
        name: str | None = None,
        isolation: str | None = None,
        position: Where | None = None,
        create: bool = False,
        partitions: Sequence[int] | None = None,
        priority: int = 0,
        receiver_queue_size: int = QUEUE_SIZE,
        ack_timeout_ms: int | None = None,
        nack_delay_ms: int | None = None,
        durable: bool = True,
        start: Where | None = None,
        enable_watermarking: bool = False,
        listener: WatermarkListener[Consumer] | None = None,
        message_listener: Callable[[Consumer, Message], object] | None = None,
        batch_receive_policy: BatchReceivePolicy | None = None,
        read_compacted: bool = False,
    ) -> Consumer:
        """A consumer of a subscription on a topic, on several, or on a pattern (re.compile).

        type, isolation: those of the subscription; None: any
        create:          create the subscription if it is missing; it starts at `position`
        partitions:      of one topic; all when left out
        priority:        with failover the lowest is active
        name, receiver_queue_size, ack_timeout_ms, nack_delay_ms: as in Consumer
        enable_watermarking: deliver watermarks: see Consumer.receive; listener: called for each
        message_listener: called with the consumer and each message, on one thread of the client
        batch_receive_policy: what `receive_batch()` without arguments waits for
        durable:         False: a subscription in memory, from `start` on
        read_compacted:  with durable=False: as of a reader
        raises:          ConsumerBusy, SubscriptionNotFound, NotAllowed (another isolation)
        """
        options: ConsumerOptions = {
            "type": type,
            "name": name,
            "isolation": isolation,
            "position": position,
            "create": create,
            "partitions": partitions,
            "priority": priority,
            "receiver_queue_size": receiver_queue_size,
            "ack_timeout_ms": ack_timeout_ms,
            "nack_delay_ms": nack_delay_ms,
            "enable_watermarking": enable_watermarking,
            "batch_receive_policy": batch_receive_policy,
            "read_compacted": read_compacted,
        }
        opened = subscribing.open_consumer(
            self.store, topic, subscription, options, listener, durable=durable, start=start
        )
        self._handles.add(opened)
        if message_listener is not None:
            self._listeners().add(opened, message_listener)
        return opened

    def reader(
        self,
        topic: str,
        start: Where | None = None,
        *,
        partitions: list[int] | None = None,
        isolation: str = "committed",
        enable_watermarking: bool = False,
        listener: WatermarkListener[Reader] | None = None,
        read_compacted: bool = False,
    ) -> Reader:
        """A reader from a position on; by default from the first message. Raises TopicNotFound.

        partitions: all when left out
        isolation:  "uncommitted" adds the messages of open and aborted transactions, without ids,
                    after the committed ones
        enable_watermarking: deliver watermarks: see Reader.read_next; listener: called for each
        read_compacted: in place of what Admin.compact_topic has read, the newest message of each
                    key; the messages since as they are
        raises:     InvalidArgument: read_compacted goes neither with uncommitted messages nor with
                    watermarks, nor with a start that counts messages
        """
        return readers.Reader(
            self.store,
            topic,
            readers.range_from(start, read_compacted=read_compacted),
            partitions,
            isolation,
            enable_watermarking,
            listener,
        )

    def table_view(self, topic: str) -> TableView:
        """The newest value of each key of a topic, in memory; `refresh` takes what came since.

        topic:  or one partition of it
        raises: TopicNotFound, PartitionUnavailable, Corruption
        cost:   reads the compacted messages and the log since; see Admin.compact_topic
        """
        return table_views.TableView(self.store, topic)

    def read(
        self,
        topic: str | Sequence[str],
        *,
        range: Range | None = None,
        partitions: list[int] | None = None,
        limit: int | None = None,
        batch_messages: int = READ_MESSAGES,
        isolation: str = "committed",
        follow: bool = False,
        columns: Sequence[str] | None = None,
    ) -> Iterator[pa.Table]:
        """Messages of a range of one or more topics as RECEIVED tables, all as of one moment.

        It ends at the current end of the log: a transaction that commits later is in none of the
        topics.

        isolation: as in reader
        follow:    continue forever, from moment to moment: each transaction is whole in one of
                   them; a table without rows if there is nothing new
        columns:   read only these of what messages have stored (key, value, properties, times,
                   producer, …): the others may be null
        raises:    TopicNotFound, InvalidArgument; Corruption: after what can be read;
                   SnapshotExpired: messages of that moment were trimmed before they were read
        """
        if batch_messages <= 0 or (limit is not None and limit < 0):
            raise InvalidArgument("batch_messages must be positive, limit not below 0", code=203)
        wanted = range or Range()
        if wanted.is_endless and not follow:
            wanted = Range(start=wanted.start, stop=END, kind=wanted.kind)
        if follow and not wanted.is_endless:
            raise InvalidArgument("follow never ends, but the range has an end", code=203)
        topics = [topic] if isinstance(topic, str) else list(topic)
        reader = readers.Readers(self.store, topics, wanted, partitions, isolation, columns)
        left = limit
        while left is None or left > 0:
            table = reader.receive_batch(
                batch_messages if left is None else min(left, batch_messages)
            )
            if not table.num_rows and not follow:
                return
            if left is not None:
                left -= table.num_rows
            yield table
        reader.stop()

    def waiting(self, *consumers: Consumer) -> Waiting:
        """A wait for whatever comes, and for what falls due for these consumers."""

        def rest(pause: float) -> Quiet:
            return least(consumer.session.rest(pause) for consumer in consumers)

        return Waiting(self.store, rest)

    def wait_for_change(self, seen_lsn: int, timeout_ms: int | None = 0) -> int:
        """Wait until something after an LSN is durable; returns the newest durable LSN.

        timeout_ms: None: for ever; when time runs out, the LSN may be the one that was seen
        raises:     StoreNotFound if the store was removed meanwhile: nothing will come
        """
        store, newest = self.store, seen_lsn

        def look(_: bool) -> int | None:
            nonlocal newest
            store.need_there()
            newest = store.refresh()
            return newest if newest > seen_lsn else None

        until(store, look, timeout_ms)
        return newest

    def wait(
        self,
        topics: Sequence[str] = (),
        *,
        messages: int | None = None,
        watermark: int | None = None,
        subscription: str | None = None,
        backlogs: Mapping[str, int] | None = None,
        txns: Mapping[TxnId, str] | None = None,
        timeout_ms: int | None = None,
    ) -> Waited:
        """Wait until all of these are true; the fields of `txlog wait`.

        messages:  each topic has at least this many
        watermark: each has at least reached this event time (ms); with a subscription, at its place
        backlogs:  by subscription, how many messages may be left; on these topics, if any
        txns:      by transaction, its state: committed, aborted, ended, open, …
        returns:   {met, elapsed_ms, condition_list}; met is False when time runs out, or at once if
                   a transaction has ended the other way
        """
        waiting = self._wait(topics, messages, watermark, subscription, backlogs, txns)
        until(self.store, waiting.look, timeout_ms, waiting.rest)
        return waiting.answer()

    @explained
    def _wait(
        self,
        topics: Sequence[str] = (),
        messages: int | None = None,
        watermark: int | None = None,
        subscription: str | None = None,
        backlogs: Mapping[str, int] | None = None,
        txns: Mapping[TxnId, str] | None = None,
    ) -> conditions.Wait:
        wanted = conditions.conditions_of(
            topics, messages, watermark, subscription, backlogs or {}, txns or {}
        )
        return conditions.Wait(self.store, wanted)

    # --- transactions ------------------------------------------------------------------------

    def connect(
        self, key: str, epoch: int = NEW_HOLDER, *, owner: str | int | None = None
    ) -> KeyConnected:
        """Take a transaction key; its open transaction is aborted. The fields of `txn connect`.

        epoch:  the last one given to this holder; -1 always takes over, also after an
                OutcomeUnknown. The key that this client was opened with is renewed
        owner:  name or number of another user, for root
        raises: NotAllowed (an old epoch, another's key), InvalidArgument
        """
        answer = end.connect(self.store, key, epoch, owner)
        if owner is None and key == self.transaction_key:
            self.epoch = answer.epoch
        return keys.connected(answer)

    def transaction(
        self, timeout_ms: int | None = None, *, key: str | None = None, epoch: int | None = None
    ) -> Transaction:
        """Begin a transaction; its first send, ack or use of `id` assigns the id.

        key:    run it under this transaction key, by default the client's; then it begins now
        epoch:  of the connection of `key`; connects when left out
        raises: InvalidArgument, LimitExceeded (time-out), ProducerFenced; LimitExceeded (too many
                unfinished transactions) when the id is assigned
        """
        return self._transaction(timeout_ms, None, key, epoch)

    def new_transaction(self) -> TransactionBuilder:
        """A builder of a transaction, as in PIP-31: `.with_timeout(...).build()`."""
        return transaction_handle.TransactionBuilder(
            lambda timeout_ms, coordinator: self._transaction(timeout_ms, coordinator, None, None)
        )

    def _transaction(
        self, timeout_ms: int | None, coordinator: int | None, key: str | None, epoch: int | None
    ) -> Transaction:
        key, epoch = self._held(key, epoch, coordinator)
        if key is not None:
            opened = end.begin_with_key(self.store, timeout_ms, key, epoch, None)
            return transaction_handle.Transaction(self.store, opened.txn_id, self._tend)
        self.store.need_writable()
        return transaction_handle.Transaction(
            self.store, self.unopened(timeout_ms, coordinator), self._tend
        )

    def begin(
        self,
        timeout_ms: int | None = None,
        coordinator: int | None = None,
        *,
        key: str | None = None,
        epoch: int | None = None,
        owner: str | int | None = None,
    ) -> TransactionBegun:
        """Begin a transaction that any process may use by its id; the fields of `txn begin`.

        key, epoch: as for `transaction`; the key decides the coordinator
        owner:      of the key, for root
        raises:     InvalidArgument, LimitExceeded (time-out, unfinished transactions),
                    CoordinatorNotFound, ProducerFenced (the epoch), NotAllowed (another's key)
        """
        if owner is not None and key is None:
            raise InvalidArgument("an owner needs a transaction key: name the key")
        key, epoch = self._held(key, epoch, coordinator)
        if key is not None:
            opened = end.begin_with_key(self.store, timeout_ms, key, epoch, owner)
            return self._tell(opened.txn_id, lambda view: keys.opened(view, opened, self.store))
        txn_id = self._begin(self.unopened(timeout_ms, coordinator))
        return self._tell(txn_id, lambda view: topics_and_txns.begun(view, txn_id, self.store))

    def _held(
        self, key: str | None, epoch: int | None, coordinator: int | None
    ) -> tuple[str | None, int | None]:
        """The key to begin under: the one named, else the client's."""
        if key is None and epoch is not None:
            raise InvalidArgument("an epoch needs a transaction key: name the key")
        if key is None:
            key, epoch = self.transaction_key, self.epoch
        if key is not None and coordinator is not None:
            raise InvalidArgument("the transaction key decides the coordinator: leave it out")
        return key, epoch

    def unopened(self, timeout_ms: int | None, coordinator: int | None) -> NewTxn:
        """A transaction that is not yet in the store; raises InvalidArgument (the time-out)."""
        settings = self.store.settings
        return enter.NewTxn(
            self._disk.owner(),
            self.store.clock.now(),
            enter.check_timeout(settings, timeout_ms),
            coordinator,
        )

    def _begin(self, new: NewTxn) -> TxnId:
        txn_id = self.store.write(
            lambda view, now: end_txn.begin(view, self.store.settings, now, new),
            () if new.coordinator is None else (new.coordinator,),
        )
        return txn_id

    def commit(self, txn_id: TxnId, wait_ms: int = 0) -> TransactionEnded:
        """Commit by id; the fields of `txn commit`.

        wait_ms: how long to wait for unavailable partitions; if they do not come back, the state
                 stays `committing`, and the decision is final
        raises:  TransactionNotFound, NotAllowed (another's), TransactionTimedOut,
                 ExpiredTransaction (fenced), InvalidTxnStatus (ended the other way),
                 OutcomeUnknown: ask by the id
        """
        answer = self._end(txn_id, True)
        if answer.waiting and wait_ms > 0:
            end.await_end(self.store, txn_id, wait_ms)
            answer = self._end(txn_id, True)
        return self._tell(txn_id, lambda view: topics_and_txns.ended(view, answer))

    def abort(self, txn_id: TxnId) -> TransactionEnded:
        """Abort by id; the fields of `txn abort`. Raises as commit; a timed-out one is aborted."""
        answer = self._end(txn_id, False)
        return self._tell(txn_id, lambda view: topics_and_txns.ended(view, answer))

    def _end(self, txn_id: TxnId, commit: bool) -> EndAnswer:
        answer = end.end_by_id(self.store, txn_id, commit=commit)
        self._tend()
        return answer

    def transactions(
        self, all: bool = False, states: Sequence[str] | None = None
    ) -> list[TransactionRow]:
        """Unfinished transactions, or all that are remembered; the fields of `txn list`."""
        self.store.sweep_if_due()
        return self.store.ask(
            lambda view: topics_and_txns.transactions(view, self.store, all, states)
        )

    def show_transaction(self, txn_id: TxnId) -> TransactionDescription:
        """One transaction; the fields of `txn show`. Raises TransactionNotFound."""
        self.store.sweep_if_due(CallScope(txn=(txn_id.coordinator, txn_id.sequence)))
        return self.store.ask(lambda view: topics_and_txns.transaction(view, self.store, txn_id))

    def expire(self) -> Expired:
        """End everything that is overdue, in the whole store; the fields of `txn expire`.

        returns: {expired, rolled_forward, rolled_back, forgotten, waiting_list}
        """
        return topics_and_txns.expire(self.store)

    def _tend(self) -> None:
        tend_due(self.store)

    def _tell(self, txn_id: TxnId, question: Callable[[View], T]) -> T:
        """Describe what was just done; if it cannot be read, it was done all the same.

        Flushes nothing: this process's view shows its own writes.
        """
        try:
            return self.store.read(question)
        except TxlogError as error:
            raise OutcomeUnknown(
                f"transaction {txn_id} was changed, but cannot be shown: {error}",
                hint=f"txlog txn show {txn_id}",
                txn=txn_id,
            ) from error

    # --- the store ---------------------------------------------------------------------------

    def status(self) -> Status:
        """The store at a glance; the fields of `txlog status`."""
        return self._ask(lambda view: topics_and_txns.status(view, self.store))

    def overview(self) -> Overview:
        """All that `txlog report` draws except the throughput, as of one moment; see overview."""
        return self._ask(lambda view: overview.overview(view, self.store))

    def checkpoint(self, roll: Sequence[str] = (), roll_all: bool = False) -> CheckpointWritten:
        """Move the journal into files now; the fields of `txlog admin checkpoint`."""
        names = [TopicName.parse(name, allow_partition=True) for name in roll]
        if names or roll_all:
            self.store.write(
                lambda view, now: admin.roll(
                    view,
                    self.store.settings,
                    now,
                    None if roll_all else [find_topic(view, name) for name in names],
                )
            )
        answer = run_checkpoint(self.store, wait=True)
        compact_due(self.store, wait=True)
        return answer

    def inspect(self, what: str | None = None) -> dict[str, Any]:
        """What a word means in this store; {kind, ...}. Raises NotFound, InvalidArgument."""
        return self._ask(lambda view: inspecting.inspect(view, self.store, what))

    def locate(self, ids: Sequence[MessageId]) -> list[tuple[str | None, int | None]]:
        """The file in the store that has each message, and its row; none for journal frames."""
        return self._ask(lambda view: inspecting.located(view, ids))

    def copy(
        self, dest: str, *, verify: bool = False, tell: Callable[[int, int], None] | None = None
    ) -> StoreCopied:
        """Copy the store, as it is now, to a new directory, while others write to it; durable.

        The copy is the same store, with its uuid: a backup. Files outside the store are named but
        not copied; only the original may remove them.
        verify:  then read all of the copy, as txlog.verify(deep=True)
        tell:    called with the bytes copied so far, and the total
        returns: {path, uuid, lsn, files, size_bytes, offloaded, verified}
        raises:  AlreadyExists, InvalidArgument (a place in the store), StoreLocked, Corruption;
                 what was copied before an error is not a store; the next copy there removes it
        """
        return copying.copy_store(self.store, dest, verify=verify, tell=tell or copying.silent)

    def flush(self) -> None:
        """Make everything written so far durable, by any process.

        What its producers sent without waiting is stored before.
        raises: the first error of a sent message whose future nobody has asked for it
        """
        if "outbox" in self._parts:
            self._outbox().flush()
        self.store.flush()


def _finder(topic: str, subscription: str) -> Find:
    """What finds a subscription by name at the moment of the decision."""
    wanted = TopicName.parse(topic, allow_partition=True)

    def find(view: View) -> tuple[Topic, Subscription]:
        found = find_topic(view, wanted)
        return found, find_subscription(view, found, subscription)

    return find
