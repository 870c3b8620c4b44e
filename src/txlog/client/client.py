"""Owns Client: an open store, with an API modelled on Pulsar's.

Each command of the program has a method of the same name. Answers are plain values: ids are TxnId
and MessageId, instants are milliseconds since 1970 UTC.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol, TypeVar, Unpack, cast
from weakref import WeakKeyDictionary

import pyarrow as pa

from txlog.base.arguments import StrPath, checked, explained, path_text
from txlog.base.choices import (
    AccessMode,
    Isolation,
    RoutingMode,
    SchemaType,
    SubscriptionType,
    TransactionState,
)
from txlog.base.ids import MessageId, TopicName, TxnId
from txlog.base.ranges import END, Range
from txlog.base.schemas import classes
from txlog.base.settings import QUEUE_SIZE, Settings
from txlog.base.suggest import command_line
from txlog.base.times import (
    DurationLike,
    InstantLike,
    duration_ms,
    durations_ms,
    instant_ms,
    policies_ms,
)
from txlog.client import admin as administration
from txlog.client import copy as copying
from txlog.client import wait as conditions
from txlog.client.answers import dead_letters as letters
from txlog.client.answers import disk_usage, keys, lag, overview, status, topics_and_txns
from txlog.client.answers import inspect as inspecting
from txlog.client.consuming import listeners as listening
from txlog.client.consuming import open as subscribing
from txlog.client.databases import together
from txlog.client.reading import reader as readers
from txlog.client.reading import record_columns
from txlog.client.reading import sql_result as sql_results
from txlog.client.reading import table_view as table_views
from txlog.client.sending import bulk as bulks
from txlog.client.sending import producer as producing
from txlog.client.topics import subscription as subscription_handle
from txlog.client.topics import topic as topic_handle
from txlog.engine.door import consuming as acknowledging
from txlog.engine.door import consuming as message_runs
from txlog.engine.door import sending
from txlog.engine.door import staging as adopt
from txlog.engine.door import topics as admin
from txlog.engine.door import transactions as commits
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
from txlog.engine.door.segments import RECORD
from txlog.engine.door.sending import Opening
from txlog.engine.door.store import CallScope, Checkpoints, Store, View, compact_due, run_checkpoint
from txlog.errors import AlreadyClosed, InvalidArgument, OutcomeUnknown, TxlogError

if TYPE_CHECKING:
    from txlog.base.rows.consuming import (
        AcknowledgedIn,
        DeadLetterTopic,
        LagRow,
        SubscriptionRow,
    )
    from txlog.base.rows.space import CheckpointWritten, DiskUsage
    from txlog.base.rows.store import Overview, RowsRead, Status, StoreCopied, Waited
    from txlog.base.rows.topics import TopicDescription, TopicRow
    from txlog.base.rows.transactions import (
        Expired,
        KeyConnected,
        TransactionBegun,
        TransactionDescription,
        TransactionEnded,
        TransactionResolved,
        TransactionRow,
    )
    from txlog.client.admin import Admin
    from txlog.client.consuming.batches import BatchReceivePolicy
    from txlog.client.consuming.consumer import Consumer
    from txlog.client.consuming.listeners import Listeners
    from txlog.client.consuming.open import ConsumerOptions
    from txlog.client.databases.together import Outcomes
    from txlog.client.reading.reader import Reader
    from txlog.client.reading.sql_result import SqlResult
    from txlog.client.reading.table_view import TableView
    from txlog.client.sending.bulk import Bulk
    from txlog.client.sending.producer import Producer
    from txlog.client.topics.subscription import SubscriptionHandle
    from txlog.client.topics.topic import TopicHandle
    from txlog.engine.door.consuming import AckAnswer, Find, Topics
    from txlog.engine.door.reading import Message, Where
    from txlog.engine.door.sending import Access, Choose, Outbox, ProducerOptions
    from txlog.engine.door.staging import StagePlan
    from txlog.engine.door.transactions import (
        CommitFuture,
        EndAnswer,
        Later,
        NewTxn,
        Pipeline,
        Transaction,
        TransactionBuilder,
        Use,
    )
    from txlog.engine.door.watermarks import WatermarkListener


T = TypeVar("T")
READ_MESSAGES = 10_000
# The one way into a room above: DuckDB has its own room, and loads when the first SQL runs. It is
# named, not registered: nothing below would have loaded the room that registers itself.
_SQL_ENGINE = "txlog.lake.sql.client_query"


class Condition(Protocol):
    """A filter of messages."""

    def filtered(self, table: pa.Table) -> pa.Table:
        """The rows that match."""


def _once(parts: dict[str, Any], name: str, make: Callable[[], T]) -> T:
    """A part of a client, made on first use; threads that race for it get the same object."""
    part: T | None = parts.get(name)
    return parts.setdefault(name, make()) if part is None else part


def _bounds_of(wanted: Range | None, *, follow: bool) -> Range:
    """The range of a read, which ends at the end of the log unless it follows."""
    bounds = wanted or Range()
    if bounds.is_endless and not follow:
        return Range(start=bounds.start, stop=END, kind=bounds.kind)
    if follow and not bounds.is_endless:
        raise InvalidArgument("follow never ends, but the range has an end", code=203)
    return bounds


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
        "_commits",
        "_handles",
        "_listeners",
        "_outbox",
        "_outcomes",
        "_parts",
        "epoch",
        "transaction_key",
    )

    def __init__(self, store: Store, disk: Disk) -> None:
        super().__init__(store, disk)
        self._checkpoints = store.upkeep = Checkpoints(is_on=not store.dry_run)
        self.transaction_key: str | None = None
        self.epoch: int | None = None  # the epoch of the connected transaction_key
        # Made on first use, by name; most clients need none. Producers refer to the factories
        # below, not to the client.
        self._parts: dict[str, Any] = {}
        self._outbox: Callable[[], Outbox] = partial(
            _once, self._parts, "outbox", lambda: sending.Outbox(store)
        )
        self._commits = transaction_handle.Commits(store)
        self._outcomes: Callable[[], Outcomes] = partial(
            _once, self._parts, "outcomes", lambda: together.Outcomes(store)
        )
        self._listeners: Callable[[], Listeners] = partial(
            _once, self._parts, "listeners", lambda: listening.Listeners(store)
        )
        # in the order in which they were opened, so that `close` always does the same
        self._handles: WeakKeyDictionary[Consumer | Access | SqlResult, None] = WeakKeyDictionary()

    @property
    def settings(self) -> Settings:
        """The settings of the store."""
        return self.store.settings

    @property
    def checkpoint_automatically(self) -> bool:
        """Whether a write starts a checkpoint when the journal has grown long; settable."""
        return self._checkpoints.is_on

    @checkpoint_automatically.setter
    def checkpoint_automatically(self, is_on: bool) -> None:
        self._checkpoints.is_on = is_on

    @property
    def admin(self) -> Admin:
        """Administration of the store."""
        automatic = self.checkpoint_automatically
        return administration.Admin(self.store, checkpoint_automatically=automatic)

    def reading(self) -> RowsRead:
        """Rows read since the client was opened: {rows_read, row_groups_decoded, handed_out}.

        handed_out counts messages read for callers, including those read ahead. The read
        amplification is rows_read / handed_out, at best 1. A key-shared consumer also reads keys.
        """
        tally = self.store.tally
        return {
            "rows_read": tally.rows_read,
            "row_groups_decoded": tally.groups_decoded,
            "handed_out": tally.handed_out,
        }

    def close(self) -> None:
        """Store all sends and commits that no caller waited for, then close consumers and client.

        The call waits for a running checkpoint, and writes a due one if this client has changed the
        store. A failed checkpoint only adds a note to `reports`, and no data is lost. If `__del__`
        or a signal handler calls this inside another call on the store, it takes effect when that
        call has ended.
        raises: the first send error that no caller has taken from a future; the client is closed
                all the same
        """
        sent: Outbox | None = self._parts.get("outbox")
        ending = self._commits.queue
        if self.store.put_off(self.close) or any(
            part is not None and part.put_off(self.close) for part in (sent, ending)
        ):
            return
        if "listeners" in self._parts:
            self._listeners().close()
        if ending is not None:
            ending.close()
        try:
            if sent is not None:
                sent.close()
        finally:
            for handle in list(self._handles):
                with suppress(TxlogError):  # peers then treat it as a dead consumer
                    handle.close()
            with suppress(AlreadyClosed):  # another thread closed it, or it is the parent's
                self._checkpoints.close(self.store)
                if self.store.has_written:  # a client that only read leaves no work
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

    def __repr__(self) -> str:
        return f"<txlog.Client of {self.path}>"

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
        schema_type: SchemaType = "json",
        **policies: DurationLike | None,
    ) -> bool:
        """Create a topic; returns whether it was created. Raises AlreadyExists, InvalidArgument.

        schema:      of the values: a dataclass, msgspec.Struct or pydantic model, a pyarrow.Schema,
                     or a txlog.Schema
        schema_type: json or avro: the encoding of the values
        policies:    as in set_policies
        """
        topic, ms = TopicName.parse(name), policies_ms(policies)
        of_values = None if schema is None else classes.schema_of(schema, schema_type)
        created = self.store.write(
            lambda view, now: admin.create_topic(
                view,
                self.store.settings,
                now,
                topic,
                partitions,
                if_not_exists=if_not_exists,
                policies=ms,
                schema=of_values,
            )
        )
        return bool(created)

    def set_policies(self, topic: str, **policies: DurationLike | None) -> dict[str, int]:
        """Set the retention policies of a topic; None removes one. Returns its policies afterwards.

        retention_ms:    delete ledgers whose newest message is older than this
        retention_bytes: delete a ledger once the newer ones of its partition have this many bytes
        retention_acked: 1: delete ledgers that every subscription has acknowledged
        ttl_ms:          acknowledge messages older than this
        compaction_threshold_bytes: when to compact by key; see Admin.set_retention_policies
        raises: TopicNotFound, InvalidArgument

        Whole ledgers are deleted, after a checkpoint. A ledger with unacknowledged messages is
        never deleted automatically.
        """
        name, ms = TopicName.parse(topic), policies_ms(policies)
        answer = self.store.write(
            lambda view, now: admin.set_topic_policies(view, find_topic(view, name), ms)
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
        type: SubscriptionType = "exclusive",
        isolation: Isolation = "committed",
        position: Where | None = None,
        if_not_exists: bool = False,
        **policies: DurationLike | None,
    ) -> bool:
        """Create a durable subscription; returns whether it was created.

        policies: as in SubscriptionHandle.set_policies
        position: where it starts; by default at the first retained message. A message id applies
                  to its partition; other partitions start at their first message
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
            policies=cast(dict[str, int | str | None], durations_ms(policies)),
        )

    def subscriptions(self, topic: str | None = None) -> list[SubscriptionRow]:
        """The subscriptions, of one topic or of all; the fields of `txlog sub list`."""
        name = None if topic is None else TopicName.parse(topic, allow_partition=True)
        return self._ask(
            lambda view: topics_and_txns.subscriptions(
                view, None if name is None else find_topic(view, name), self.store
            )
        )

    def lag(self, topic: str | None = None) -> list[LagRow]:
        """How far each subscription is behind, of one topic or of all; the fields of `sub list`.

        Rates come from the journal, so they are None for time that it no longer has. A client that
        stays open remembers what it read at earlier calls, up to 15 minutes.
        """
        name = None if topic is None else TopicName.parse(topic, allow_partition=True)
        return self._ask(
            lambda view: lag.lag(view, self.store, None if name is None else find_topic(view, name))
        )

    def dead_letters(self) -> list[DeadLetterTopic]:
        """The dead-letter topics; the fields of `txlog dlq list`. `topic(name)` retries them."""
        return self._ask(letters.topics)

    def subscription(self, topic: str, name: str) -> SubscriptionHandle:
        """A handle for seek, skip, backlog, policies and deletion.

        topic:  `orders/2` means one partition
        raises: TopicNotFound, SubscriptionNotFound
        """
        return subscription_handle.SubscriptionHandle(self.store, topic, name)

    def topic(self, name: str) -> TopicHandle:
        """A handle for the delayed messages, dead letters, watermarks and schemas of a topic.

        name:   `orders/2` means one partition
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
        txn_id = txn.use if isinstance(txn, transaction.Transaction) else txn
        if isinstance(txn_id, end_txn.NewTxn):  # there was nothing to acknowledge
            assert isinstance(txn, transaction.Transaction)
            txn_id = txn.id
        return {
            "acked": answer.acked,
            "already": answer.already,
            "dropped": answer.dropped,
            "txn": txn_id,
        }

    def acknowledge_async(
        self, topic: str, subscription: str, ids: Sequence[MessageId], *, txn: Transaction
    ) -> Later[AckAnswer]:
        """Acknowledge by id in a transaction, deferred; see Consumer.acknowledge_async."""
        find = _finder(topic, subscription)
        return acknowledging.acknowledge_later(
            self.store, find, message_runs.runs_of_ids(list(ids)), txn
        )

    # --- messages ----------------------------------------------------------------------------

    def bulk(self, topic: str, *, key: str, batch: int | str, producer: str | None = None) -> Bulk:
        """A batch of any size, stored exactly once. Processes first stage its files.

        key:      a transaction key; its open transaction is aborted, so use one key per topic
        batch:    a rising number, or a name; repeating a batch has no effect
        producer: a producer name for the messages; then a column sequence_id is refused
        raises:   TopicNotFound, InvalidArgument, ReadOnlyStore
        """
        adopt.check_token(key, batch)
        return self.bulk_of(bulks.planned(self.store, topic, key, batch, producer=producer))

    def bulk_of(self, plan: StagePlan) -> Bulk:
        """The batch of a plan that another process may have made, to commit it here."""
        return bulks.Bulk(self.store, plan, self._tend)

    def plan_stage(self, topic: str, tag: str = "") -> StagePlan:
        """A place for staged files of a batch whose key and name come later (`plan.named`).

        tag: hex digits shared by the jobs of one stream; a job that ends removes the staged files
             of earlier ones
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
        message_routing_mode: RoutingMode = "round-robin",
        access_mode: AccessMode = "shared",
        schema: object = None,
        **options: Unpack[ProducerOptions],
    ) -> Producer:
        """A producer for a topic, or for one partition of it (`orders/2`).

        name:          makes sends idempotent: a repeated sequence id is stored once
        chunking:      allows messages above max_message_bytes
        message_router: function of a message and the number of partitions; returns the partition
                       for messages that name none. Runs in the sending thread
        message_routing_mode: for messages without a key: "round-robin" or "single-partition"
        access_mode:   "exclusive": be the only producer, or raise ProducerBusy;
                       "exclusive-with-fencing": fence the present one; "wait-for-exclusive": wait
                       until the present one ends
        idle_on_close: after close, its watermarks hold no consumer back
        schema:        of the values, as in create_topic; added to the topic if it is new. By
                       default the newest schema of the topic. For Avro: txlog.schema_of(Flight,
                       "avro")

        send_async queues messages; these options have Pulsar's names. It sends the queue as soon as
        one limit is reached:
        batching_max_publish_delay_ms:      age of the oldest message (1)
        batching_max_messages:              messages (1,000)
        batching_max_allowed_size_in_bytes: bytes (128 KiB)
        max_pending_messages: how many messages may wait for their answers (50,000)
        block_if_queue_full:  above that, True: the call waits; False: ProducerQueueIsFull
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
        message_routing_mode: RoutingMode = "round-robin",
        access_mode: AccessMode = "shared",
        schema: object = None,
        **options: Unpack[ProducerOptions],
    ) -> Opening[Producer]:
        """A producer that may have to wait for exclusive access; `producer` and aio finish it."""
        written = None if schema is None else classes.schema_of(schema)

        def make() -> Producer:
            session = sending.ProducerSession(
                self.store,
                topic,
                name,
                self._outbox,
                options,
                (message_router, message_routing_mode),
                access_mode,
                chunking=chunking,
            )
            session.idle_on_close = idle_on_close
            self._handles[session.access] = None
            try:
                if written is not None:
                    session.write_by(self.topic(topic).schemas.add(written))
            except BaseException:  # no caller has it, so none could close it and free the topic
                session.close()
                raise
            return producing.Producer(session)

        return Opening(self.store, topic, make, access_mode)

    def consumer(
        self,
        topic: str | Topics,
        subscription: str,
        *,
        type: SubscriptionType | None = None,
        name: str | None = None,
        isolation: Isolation | None = None,
        position: Where | None = None,
        create: bool = False,
        partitions: Sequence[int] | None = None,
        priority: int = 0,
        receiver_queue_size: int = QUEUE_SIZE,
        ack_timeout_ms: DurationLike | None = None,
        nack_delay_ms: DurationLike | None = None,
        durable: bool = True,
        start: Where | None = None,
        enable_watermarking: bool = False,
        listener: WatermarkListener[Consumer] | None = None,
        message_listener: Callable[[Consumer, Message], object] | None = None,
        batch_receive_policy: BatchReceivePolicy | None = None,
        read_compacted: bool = False,
    ) -> Consumer:
        """A consumer of a subscription on a topic, on several, or on a pattern (re.compile).

        type, isolation: must match the subscription; None: any
        create:          create it if missing, at `position`, by default exclusive and committed
        partitions:      of one topic; by default all
        priority:        with failover, the consumer with the lowest priority is active
        name:            of the consumer; by default the user's name and the process id
        receiver_queue_size: the most messages that `receive` leases ahead
        ack_timeout_ms, nack_delay_ms: instead of the subscription's policies
        enable_watermarking: deliver watermarks, see Consumer.receive; listener: called for each
        message_listener: called with the consumer and each message, on one thread of the client
        batch_receive_policy: the limits of `receive_batch()` without arguments
        durable:         False: in memory, from `start` on; then read_compacted as in `reader`
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
        self._handles[opened] = None
        if message_listener is not None:
            self._listeners().add(opened, message_listener)
        return opened

    def reader(
        self,
        topic: str,
        start: Where | None = None,
        *,
        partitions: list[int] | None = None,
        isolation: Isolation = "committed",
        enable_watermarking: bool = False,
        listener: WatermarkListener[Reader] | None = None,
        read_compacted: bool = False,
    ) -> Reader:
        """A reader from a position on; by default from the first message.

        partitions: by default all
        isolation:  "uncommitted" adds the messages of open and aborted transactions, without ids,
                    after the committed ones
        enable_watermarking: deliver watermarks, see Reader.read_next; listener: called for each
        read_compacted: of the messages before the last Admin.compact_topic, read only the newest of
                    each key; later messages are read as usual
        raises:     TopicNotFound; InvalidArgument: read_compacted excludes uncommitted messages,
                    watermarks, and a start that counts messages
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
        """The newest value of each key of a topic, in memory; `refresh` reads newer messages.

        topic:  `users/2` means one partition
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
        isolation: Isolation = "committed",
        follow: bool = False,
        columns: Sequence[str] | None = None,
        where: str | Condition | None = None,
    ) -> Iterator[pa.Table]:
        """The messages of a range of one or more topics, as of one LSN.

        The first `next` begins the read, which ends where the log ended then. A transaction that
        commits later is in none of the topics.

        isolation: as in `reader`
        follow:    do not end: continue up to a later LSN, and so on. All messages of a transaction
                   come with the same LSN. Yields a table without rows when there is nothing new
        columns:   read only these columns (key, value, properties, event_time, …, record); other
                   columns may be null
        where:     read only messages for which this SQL is true, as `consume --where`: `amount > 4`
                   or `record.amount > 4` on records, `value->>'id' = '7'`, `text(key) = 'a'`.
                   Without such a field, and if it is not JSON, a message does not match
        returns:   tables with the columns of RECEIVED, each of one topic. If that is typed, with
                   `record` as well: the values as structs, null for an unchecked value
        raises:    TopicNotFound, InvalidArgument, SqlError; Corruption, after everything readable;
                   SnapshotExpired: messages were trimmed before they were read
        """
        if batch_messages <= 0 or (limit is not None and limit < 0):
            raise InvalidArgument("batch_messages must be positive, limit not below 0", code=203)
        bounds = _bounds_of(range, follow=follow)
        topics = [topic] if isinstance(topic, str) else list(topic)
        typed = record_columns.RecordColumns(self.store)
        adds_records = columns is None or RECORD in columns
        condition = _condition_of(where, topics, typed)
        # a condition may name any column
        stored = record_columns.stored(columns) if condition is None else None
        reader = readers.Readers(self.store, topics, bounds, partitions, isolation, stored)
        room = limit
        while room is None or room > 0:
            most = batch_messages if room is None or condition else min(room, batch_messages)
            table = reader.receive_batch(most)
            if not table.num_rows and not follow:
                return
            if condition is not None and table.num_rows:
                table = condition.filtered(table).slice(0, room)
                if not table.num_rows:
                    continue  # without rows it would say that there is nothing new
                if not adds_records and RECORD in table.column_names:
                    table = table.drop_columns(RECORD)
            if room is not None:
                room -= table.num_rows
            yield typed.added(table) if adds_records else table
        reader.stop()

    def sql(
        self,
        query: str,
        parameters: Mapping[str, object] | None = None,
        *,
        isolation: Literal["committed", "uncommitted"] = "committed",
    ) -> SqlResult:
        """The rows of one SELECT over messages, topics by their names, and lists, as of now.

        It runs when its rows are first used: `.arrow()`, `.df()` (pandas), `.pl()` (polars),
        `.show()`, `.batches()`, or iteration, which gives tuples.

        query:      the relations and functions of `txlog query`: text(key), json(value),
                    try_json(value); a typed topic has the column `record`
        parameters: values of $name
        isolation:  uncommitted: messages of open transactions appear, too; all have a txn_state
        raises:     SqlError, TopicNotFound, PartitionUnavailable, Corruption
        """
        lake = importlib.import_module(_SQL_ENGINE)
        result = sql_results.SqlResult(lake.Query(self, query, parameters, isolation))
        self._handles[result] = None
        return result

    def waiting(self, *consumers: Consumer) -> Waiting:
        """A wait that ends at any commit, or when a message is due for one of the consumers."""

        def rest(pause: float) -> Quiet:
            return least(consumer.session.rest(pause) for consumer in consumers)

        return Waiting(self.store, rest)

    def wait_for_change(self, seen_lsn: int, timeout_ms: DurationLike | None = 0) -> int:
        """Wait until a frame after `seen_lsn` is durable; returns the newest durable LSN.

        timeout_ms: None: wait for ever. When time runs out, the answer may be `seen_lsn`
        raises:     StoreNotFound if the store was removed meanwhile
        """
        store, newest = self.store, seen_lsn

        def look(_: bool) -> int | None:
            nonlocal newest
            store.need_there()
            newest = store.refresh()
            return newest if newest > seen_lsn else None

        until(store, look, duration_ms(timeout_ms))
        return newest

    def wait(
        self,
        topics: Sequence[str] = (),
        *,
        messages: int | None = None,
        watermark: InstantLike | None = None,
        subscription: str | None = None,
        backlogs: Mapping[str, int] | None = None,
        txns: Mapping[TxnId, str] | None = None,
        timeout_ms: DurationLike | None = None,
    ) -> Waited:
        """Wait until all conditions are met; the fields of `txlog wait`.

        messages:  each topic has at least this many messages
        watermark: the watermark of each topic is at least this (ms since 1970 UTC); with
                   `subscription`, at its place
        backlogs:  {subscription: the most messages in its backlog}, on `topics` if there are any
        txns:      {transaction: its state}: committed, aborted, ended, open, …
        returns:   {met, elapsed_ms, condition_list}; met is False when time ran out, or when a
                   condition can no longer be met
        """
        waiting = self._wait(topics, messages, watermark, subscription, backlogs, txns)
        until(self.store, waiting.look, duration_ms(timeout_ms), waiting.rest)
        return waiting.answer()

    @explained
    def _wait(
        self,
        topics: Sequence[str] = (),
        messages: int | None = None,
        watermark: InstantLike | None = None,
        subscription: str | None = None,
        backlogs: Mapping[str, int] | None = None,
        txns: Mapping[TxnId, str] | None = None,
    ) -> conditions.Wait:
        all_conditions = conditions.conditions_of(
            topics, messages, instant_ms(watermark), subscription, backlogs or {}, txns or {}
        )
        return conditions.Wait(self.store, all_conditions)

    # --- transactions ------------------------------------------------------------------------

    def connect(
        self, key: str, epoch: int = NEW_HOLDER, *, owner: str | int | None = None
    ) -> KeyConnected:
        """Connect a transaction key and abort its open transaction; the fields of `txn connect`.

        If the client was opened with this key, it goes on with the new epoch.
        epoch:  the epoch of this holder's last connection; -1: take over in any case, also to
                repeat a call after OutcomeUnknown
        owner:  name or number of another user; only root may pass it
        raises: NotAllowed (an old epoch, or the key of another user), InvalidArgument
        """
        answer = end.connect(self.store, key, epoch, owner)
        if owner is None and key == self.transaction_key:
            self.epoch = answer.epoch
        return keys.connected(answer)

    def transaction(
        self,
        timeout_ms: DurationLike | None = None,
        *,
        key: str | None = None,
        epoch: int | None = None,
        write_through: bool = False,
        database: object = None,
    ) -> Transaction:
        """Begin a transaction; the first write in it, or a use of `id`, assigns the id.

        Messages that are sent in it wait in the client, and are written with the commit.
        database: a connection of sqlite3, psycopg or duckdb: the end of the block commits it
                together with the transaction, an exception rolls back both (docs/databases)
        key:    a transaction key, by default the client's; with a key it begins at once
        epoch:  of the connection of `key`; None: connect the key first
        write_through: write each message when `send` returns, so that other processes see it in
                previews, and a process that commits by the id has it
        raises: InvalidArgument, LimitExceeded (time-out), ProducerFenced; LimitExceeded (too many
                unfinished transactions) when the id is assigned; InvalidTxnStatus: the key has a
                prepared transaction of another database
        """
        limit_ms = duration_ms(timeout_ms)
        if database is None:
            return self._transaction(limit_ms, None, key, epoch, write_through=write_through)
        return together.begin(
            self.store,
            self._outcomes(),
            database,
            lambda: self._use(limit_ms, None, key, epoch),
            self._tend,
            self._commits,
            write_through=write_through,
        )

    def resolve(
        self, txn_id: TxnId, *, commit: bool | None = None, database: object = None
    ) -> TransactionEnded:
        """End a prepared transaction; the fields of `txn commit`.

        commit:   the outcome, as you know it: the database is not asked
        database: a connection to the database that decides it; if that still has a transaction
                  open that may decide otherwise, the state stays `prepared`
        raises:   TransactionNotFound, NotAllowed (of another user); InvalidTxnStatus (not prepared,
                  or ended the other way); InvalidArgument (another database decides it)
        """
        if (commit is None) == (database is None):
            raise InvalidArgument("give either the outcome or the database")
        if database is not None:
            together.resolve(self.store, self._outcomes(), database, txn_id)
            answer = end.recorded(self.store, txn_id)
        else:
            answer = end.resolve(self.store, txn_id, commit=bool(commit))
        self._tend()
        return self._tell(txn_id, lambda view: topics_and_txns.ended(view, answer))

    def resolve_prepared(
        self, *, database: object, txn_id: TxnId | None = None
    ) -> list[TransactionResolved]:
        """Ask a database for the outcomes of its prepared transactions, and end them so.

        txn_id: only this one
        A state `prepared` means that the database has a transaction open that may decide it.
        raises: InvalidArgument: no connection for this, never used for this, or another database
                decides `txn_id`; InvalidTxnStatus: it is not prepared
        """
        resolved = together.resolve(self.store, self._outcomes(), database, txn_id)
        self._tend()
        return [topics_and_txns.resolved(row.txn_id, row.prepared, row.status) for row in resolved]

    def pipeline(
        self,
        max_in_flight: int = 8,
        timeout_ms: DurationLike | None = None,
        *,
        key: str | None = None,
        epoch: int | None = None,
    ) -> Pipeline[Transaction]:
        """A loop of transactions whose commits overlap: each is computed while others are flushed.

        max_in_flight: how many commits may be without an outcome, 1 to 1,000
        timeout_ms, key, epoch: of each transaction, as in `transaction`
        raises: InvalidArgument, LimitExceeded; each `transaction()` of the loop also raises the
                error of an earlier commit
        """
        limit_ms = duration_ms(timeout_ms)
        begin = partial(self._transaction, limit_ms, None, key, epoch, write_through=False)
        return commits.Pipeline(begin, max_in_flight)

    def new_transaction(self) -> TransactionBuilder:
        """A builder of a transaction, as in PIP-31: `.with_timeout(...).build()`."""
        return transaction_handle.TransactionBuilder(
            lambda timeout_ms, coordinator, write_through: self._transaction(
                timeout_ms, coordinator, None, None, write_through=write_through
            )
        )

    def _transaction(
        self,
        timeout_ms: int | None,
        coordinator: int | None,
        key: str | None,
        epoch: int | None,
        *,
        write_through: bool,
    ) -> Transaction:
        use = self._use(timeout_ms, coordinator, key, epoch)
        return transaction_handle.Transaction(
            self.store, use, self._tend, write_through=write_through, flights=self._commits
        )

    def _use(
        self, timeout_ms: int | None, coordinator: int | None, key: str | None, epoch: int | None
    ) -> Use:
        """A transaction that is not in the store yet; with a key it is begun."""
        key, epoch = self._held(key, epoch, coordinator)
        if key is not None:
            previous = self._commits.last
            return end.begin_with_key(self.store, timeout_ms, key, epoch, None, previous).txn_id
        self.store.need_writable()
        return self.unopened(timeout_ms, coordinator)

    def begin(
        self,
        timeout_ms: DurationLike | None = None,
        coordinator: int | None = None,
        *,
        key: str | None = None,
        epoch: int | None = None,
        owner: str | int | None = None,
    ) -> TransactionBegun:
        """Begin a transaction that any process may use by its id; the fields of `txn begin`.

        key, epoch: as in `transaction`; a key also decides the coordinator
        owner:      of the key; only root may pass it
        raises:     InvalidArgument, LimitExceeded (time-out, unfinished transactions),
                    CoordinatorNotFound, ProducerFenced (an old epoch), NotAllowed (the key of
                    another user)
        """
        if owner is not None and key is None:
            raise InvalidArgument("an owner needs a transaction key: name the key")
        key, epoch = self._held(key, epoch, coordinator)
        limit_ms = duration_ms(timeout_ms)
        if key is not None:
            previous = self._commits.last
            opened = end.begin_with_key(self.store, limit_ms, key, epoch, owner, previous)
            return self._tell_begun(
                opened.txn_id, lambda view: keys.opened(view, opened, self.store)
            )
        txn_id = self._begin(self.unopened(limit_ms, coordinator))
        return self._tell_begun(
            txn_id, lambda view: topics_and_txns.begun(view, txn_id, self.store)
        )

    def _held(
        self, key: str | None, epoch: int | None, coordinator: int | None
    ) -> tuple[str | None, int | None]:
        """(key, epoch) to begin under: the arguments, else the client's own."""
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

    def commit(self, txn_id: TxnId, wait_ms: DurationLike = 0) -> TransactionEnded:
        """Commit by id; the fields of `txn commit`.

        wait_ms: how long to wait for unavailable partitions. If they do not come back in time, the
                 state is `committing`; the commit is final nevertheless
        raises:  TransactionNotFound, NotAllowed (of another user, or of a block of this client
                 with a database), TransactionTimedOut, ExpiredTransaction (fenced),
                 InvalidTxnStatus (aborted), OutcomeUnknown: look the transaction up by its id
        """
        self._check_commit(txn_id)
        answer, limit_ms = self._end(txn_id, True), duration_ms(wait_ms)
        if answer.waiting and limit_ms > 0:
            end.await_end(self.store, txn_id, limit_ms)
            answer = self._end(txn_id, True)
        return self._tell(txn_id, lambda view: topics_and_txns.ended(view, answer))

    def commit_async(self, txn_id: TxnId, after: CommitFuture | None = None) -> CommitFuture:
        """Commit by id without waiting, as `Transaction.commit_async`.

        raises: AlreadyClosed, ReadOnlyStore, NoResources, NotAllowed (as `commit`): nothing was
                done
        """
        self._check_commit(txn_id)
        txn = transaction_handle.Transaction(self.store, txn_id, self._tend, flights=self._commits)
        return txn.commit_async(after)

    def describe_end(self, answer: EndAnswer) -> TransactionEnded:
        """The answer of a future of `commit_async` as `commit` gives it."""
        assert answer.txn_id is not None, "it was committed by its id"
        return self._tell(
            answer.txn_id, lambda view: topics_and_txns.ended(view, answer), waits=False
        )

    def abort(self, txn_id: TxnId) -> TransactionEnded:
        """Abort by id; the fields of `txn abort`.

        raises: as commit, but a transaction that has timed out counts as aborted
        """
        answer = self._end(txn_id, False)
        return self._tell(txn_id, lambda view: topics_and_txns.ended(view, answer))

    def _check_commit(self, txn_id: TxnId) -> None:
        if "outcomes" in self._parts:  # there may be blocks
            self._outcomes().check_commit(txn_id)

    def _end(self, txn_id: TxnId, commit: bool) -> EndAnswer:
        answer = end.end_by_id(self.store, txn_id, commit=commit)
        self._tend()
        return answer

    def transactions(
        self, all: bool = False, states: Sequence[TransactionState] | None = None
    ) -> list[TransactionRow]:
        """Unfinished transactions; the fields of `txn list`.

        all:    also ended transactions that the store still has a record of
        states: only these states, also of ended transactions
        """
        self.store.sweep_if_due()
        return self.store.ask(
            lambda view: topics_and_txns.transactions(view, self.store, all, states)
        )

    def show_transaction(self, txn_id: TxnId) -> TransactionDescription:
        """One transaction; the fields of `txn show`. Raises TransactionNotFound."""
        self.store.sweep_if_due(CallScope(txn=(txn_id.coordinator, txn_id.sequence)))
        return self.store.ask(lambda view: topics_and_txns.transaction(view, self.store, txn_id))

    def expire(self) -> Expired:
        """Abort overdue transactions and finish decided ones in the whole store; as `txn expire`.

        returns: {expired, rolled_forward, rolled_back, forgotten, waiting_list}
        """
        return topics_and_txns.expire(self.store)

    def _tend(self) -> None:
        tend_due(self.store)

    def _tell_begun(self, txn_id: TxnId, question: Callable[[View], T]) -> T:
        """Describe a transaction that has just begun, without waiting for a flush under way."""
        return self._tell(txn_id, question, waits=False)

    def _tell(self, txn_id: TxnId, question: Callable[[View], T], *, waits: bool = True) -> T:
        """Describe a transaction after a write. If that cannot be read, the write still counts.

        It does not flush, as the view of this process has its own writes.
        waits: as in Store.read
        """
        try:
            return self.store.read(question, waits=waits)
        except TxlogError as error:
            raise OutcomeUnknown(
                f"transaction {txn_id} was changed, but cannot be shown: {error}",
                hint=command_line("txn show", txn_id),
                txn=txn_id,
            ) from error

    # --- the store ---------------------------------------------------------------------------

    def status(self) -> Status:
        """The store at a glance; the fields of `txlog status`."""
        return self._ask(lambda view: status.status(view, self.store))

    def disk_usage(self) -> DiskUsage:
        """The bytes of the store by topic and part; the fields of `txlog du`."""
        return self._ask(lambda view: disk_usage.disk_usage(view, self.store))

    def overview(self) -> Overview:
        """All figures of `txlog report` except the throughput, as of one LSN."""
        return self._ask(lambda view: overview.overview(view, self.store))

    def checkpoint(self, roll: Sequence[str] = (), roll_all: bool = False) -> CheckpointWritten:
        """Write a checkpoint now; the fields of `txlog admin checkpoint`.

        roll:     topics whose open ledgers are closed first, so that they can be sealed
        roll_all: do this for all topics
        """
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
        """Describe the topic, transaction, message or file that a word names: {kind, ...}.

        what:   None: the store itself
        raises: NotFound, InvalidArgument
        """
        return self._ask(lambda view: inspecting.inspect(view, self.store, what))

    def locate(self, ids: Sequence[MessageId]) -> list[tuple[str | None, int | None]]:
        """(file, row) of each message in the store; (None, None) if it is only in the journal."""
        return self._ask(lambda view: inspecting.located(view, ids))

    def copy(
        self, dest: StrPath, *, verify: bool = False, tell: Callable[[int, int], None] | None = None
    ) -> StoreCopied:
        """Copy the store as it is now to a new directory; other processes may write meanwhile.

        The copy is a backup: it is the same store with the same uuid, durable on return. It refers
        to offloaded files but does not copy them, and only the original may remove them.
        verify:  then read all of the copy, as txlog.verify(deep=True)
        tell:    called with (bytes copied so far, bytes in all)
        returns: {path, uuid, lsn, files, size_bytes, offloaded, verified}
        raises:  AlreadyExists, InvalidArgument (`dest` is in the store), StoreLocked, Corruption.
                 After an error before `verify`, the next copy to `dest` starts over
        """
        return copying.copy_store(
            self.store, path_text(dest), verify=verify, tell=tell or copying.silent
        )

    def flush(self) -> None:
        """Make everything durable that any process has written so far.

        Messages and commits that this client has not waited for are stored first.
        raises: the first error of such a message that no caller has taken from a future
        """
        if "outbox" in self._parts:
            self._outbox().flush()
        if self._commits.queue is not None:
            self._commits.queue.wait_for_all()
        self.store.flush()


def _condition_of(where: object, topics: list[str], typed: record_columns.RecordColumns) -> Any:
    """A condition on messages, from its text if it is one. Raises InvalidArgument, SqlError."""
    if isinstance(where, str):
        return importlib.import_module(_SQL_ENGINE).Where(where, topics, typed)
    if where is not None and not hasattr(where, "filtered"):
        raise InvalidArgument(f"where is {type(where).__name__}, it must be text")
    return where


def _finder(topic: str, subscription: str) -> Find:
    """A function that returns the topic and the subscription with these names in a view."""
    name = TopicName.parse(topic, allow_partition=True)

    def find(view: View) -> tuple[Topic, Subscription]:
        record = find_topic(view, name)
        return record, find_subscription(view, record, subscription)

    return find
