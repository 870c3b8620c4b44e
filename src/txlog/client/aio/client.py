"""Owns `txlog.aio.open` and the asynchronous Client."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack, cast

from txlog.base.arguments import StrPath
from txlog.base.choices import (
    AccessMode,
    Durability,
    Isolation,
    RoutingMode,
    SchemaType,
    SubscriptionType,
)
from txlog.base.ids import MessageId, TxnId
from txlog.base.times import DurationLike, InstantLike, duration_ms
from txlog.client.aio.handles import (
    Closable,
    Consumer,
    DatabaseTransaction,
    Handle,
    Opening,
    Producer,
    Reader,
    TableView,
    Transaction,
    Txn,
    awaited,
    plain,
)
from txlog.client.aio.waits import Waits
from txlog.client.aio.worker import Worker
from txlog.client.client import Client as Synchronous
from txlog.client.consuming.open import ConsumerOptions
from txlog.client.databases import kinds
from txlog.client.open import open_store
from txlog.clock import Clock
from txlog.engine.door.consuming import Topics
from txlog.engine.door.reading import Where, until_told
from txlog.engine.door.sending import Choose, ProducerOptions
from txlog.engine.door.transactions import Transaction as Transacting
from txlog.engine.door.transactions import has_ended

if TYPE_CHECKING:
    from txlog.base.rows.consuming import AcknowledgedIn
    from txlog.base.rows.store import Waited
    from txlog.base.rows.transactions import TransactionEnded, TransactionResolved

T = TypeVar("T")
H = TypeVar("H", bound=Closable[Any])


class Options(ConsumerOptions, total=False):
    """The options of `Client.consumer`: as for txlog.Client.consumer, without the listeners."""

    durable: bool
    start: Where | None


class Conditions(TypedDict, total=False):
    """The conditions of `Client.wait`; see txlog.Client.wait."""

    messages: int | None
    watermark: InstantLike | None
    subscription: str | None
    backlogs: Mapping[str, int] | None
    txns: Mapping[TxnId, str] | None


class SendingOptions(ProducerOptions, total=False):
    """The options of `Client.producer`; see txlog.Client.producer."""

    message_router: Choose | None
    message_routing_mode: RoutingMode
    access_mode: AccessMode
    schema: object


class SubscriptionOptions(TypedDict, total=False):
    """The options of `Client.create_subscription`."""

    type: SubscriptionType
    isolation: Isolation
    position: Where | None
    if_not_exists: bool


class Client(Handle[Synchronous]):
    """An open store, for one event loop; see txlog.Client.

    Calls of txlog.Client that it lacks go through `run`:
    `await client.run(lambda client: client.overview())`.
    """

    __slots__ = ()

    topics = awaited(Synchronous.topics)
    describe_topic = awaited(Synchronous.describe_topic)
    subscriptions = awaited(Synchronous.subscriptions)
    lag = awaited(Synchronous.lag)
    disk_usage = awaited(Synchronous.disk_usage)
    status = awaited(Synchronous.status)
    checkpoint = awaited(Synchronous.checkpoint)
    abort = awaited(Synchronous.abort)
    flush = awaited(Synchronous.flush)

    def __init__(self, sync: Synchronous, worker: Worker) -> None:
        worker.belong_to(sync.store.disk.pid, sync.store.note)
        super().__init__(sync, worker, Waits(sync.store, worker))

    async def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        if_not_exists: bool = False,
        schema: object = None,
        schema_type: SchemaType = "json",
        **policies: DurationLike | None,
    ) -> bool:
        """Create a topic; see txlog.Client.create_topic."""
        act = partial(
            self.sync.create_topic,
            name,
            partitions,
            if_not_exists=if_not_exists,
            schema=schema,
            schema_type=schema_type,
        )
        return await self.worker.run(partial(act, **policies))

    async def create_subscription(
        self, topic: str, name: str, **options: Unpack[SubscriptionOptions]
    ) -> bool:
        """Create a subscription; see txlog.Client.create_subscription."""
        return await self.worker.run(partial(self.sync.create_subscription, topic, name, **options))

    async def commit(self, txn_id: TxnId, wait_ms: DurationLike = 0) -> TransactionEnded:
        """Commit by id; see txlog.Client.commit. Other calls can run while it waits."""
        answer = await self.worker.run(partial(self.sync.commit, txn_id))
        limit_ms = duration_ms(wait_ms)
        if answer["waiting_list"] and limit_ms > 0:
            store = self.sync.store
            await self.waits.until(lambda _: has_ended(store, txn_id), limit_ms, until_told)
            answer = await self.worker.run(partial(self.sync.commit, txn_id))
        return answer

    async def wait(
        self,
        topics: Sequence[str] = (),
        *,
        timeout_ms: DurationLike | None = None,
        **conditions: Unpack[Conditions],
    ) -> Waited:
        """Wait until all conditions are met; see txlog.Client.wait."""
        waiting = await self.worker.run(partial(self.sync._wait, topics, **conditions))
        await self.waits.until(waiting.look, duration_ms(timeout_ms), waiting.rest)
        return waiting.answer()

    async def wait_for_change(self, seen_lsn: int, timeout_ms: DurationLike | None = 0) -> int:
        """Wait until a frame after an LSN is durable; see txlog.Client.wait_for_change."""

        def look(_: bool) -> int | None:
            newest = self.sync.wait_for_change(seen_lsn)
            return newest if newest > seen_lsn else None

        newest = await self.waits.until(look, duration_ms(timeout_ms), until_told)
        return seen_lsn if newest is None else newest

    async def run(self, act: Callable[[Synchronous], T], *, blocking: bool = False) -> T:
        """Run a function of the synchronous client in the worker thread; returns its answer.

        blocking: the function may wait for something, so run it in a thread of its own. If the
                  task is cancelled, the function still runs until its wait ends, or until the
                  client closes, which raises AlreadyClosed in it
        """
        return await self.worker.run(lambda: act(self.sync), aside=blocking)

    def producer(
        self,
        topic: str,
        name: str | None = None,
        *,
        chunking: bool = False,
        idle_on_close: bool = False,
        **options: Unpack[SendingOptions],
    ) -> Opening[Producer]:
        """A producer, by `await` or `async with`; see txlog.Client.producer.

        By default batching_max_publish_delay_ms is 0: a message does not wait for others to batch
        with. While the queue is full, a sending task waits, whatever block_if_queue_full says.
        """
        options.setdefault("batching_max_publish_delay_ms", 0)
        if options.get("block_if_queue_full") is True:
            options["block_if_queue_full"] = False  # it would block the loop
        begin = partial(
            self.sync._producer,
            topic,
            name,
            chunking=chunking,
            idle_on_close=idle_on_close,
            **options,
        )

        async def open() -> Producer:
            opening = await self.worker.run(begin)
            if opening.waits:  # for exclusive access: wait in the loop, not in the worker thread
                producer = await self.waits.until(opening.look, None, opening.rest, _close)
            else:
                producer = await self.worker.run(opening.make, _close)
            assert producer is not None
            return Producer(producer, self.worker, self.waits)

        return Opening(open)

    def consumer(
        self, topic: str | Topics, subscription: str, **options: Unpack[Options]
    ) -> Opening[Consumer]:
        """A consumer, by `await` or `async with`; see txlog.Client.consumer."""
        make = partial(cast(Any, self.sync.consumer), topic, subscription, **options)
        return self._opening(make, Consumer)

    def reader(
        self,
        topic: str,
        start: Where | None = None,
        *,
        partitions: list[int] | None = None,
        isolation: Isolation = "committed",
        enable_watermarking: bool = False,
        read_compacted: bool = False,
    ) -> Opening[Reader]:
        """A reader, by `await` or `async with`; see txlog.Client.reader."""
        make = partial(
            self.sync.reader,
            topic,
            start,
            partitions=partitions,
            isolation=isolation,
            enable_watermarking=enable_watermarking,
            read_compacted=read_compacted,
        )
        return self._opening(make, Reader)

    def table_view(self, topic: str) -> Opening[TableView]:
        """A table view, by `await` or `async with`; see txlog.Client.table_view."""
        return self._opening(partial(self.sync.table_view, topic), TableView)

    def transaction(
        self,
        timeout_ms: DurationLike | None = None,
        *,
        key: str | None = None,
        epoch: int | None = None,
        write_through: bool = False,
        database: object = None,
    ) -> Opening[Transaction]:
        """A transaction: `async with` commits it; see txlog.Client.transaction.

        database: also an AsyncConnection of psycopg; of sqlite3 one with check_same_thread=False
        """
        options = {"key": key, "epoch": epoch, "write_through": write_through}
        make = partial(cast(Any, self.sync.transaction), timeout_ms, **options)

        async def open() -> Transaction:
            if database is not None:
                return await self._together(partial(make, database=kinds.in_loop(database)))
            txn = await self.worker.run(make, _abort_begun)
            return Transaction(txn, self.worker, self.waits)

        return Opening(open)

    async def _together(self, make: Callable[[], Transacting]) -> Transaction:
        thread = self._thread()
        try:
            txn = await thread.finish(make, lambda txn: txn.abort())
        except BaseException:  # above all a cancellation
            thread.stop()
            raise
        return DatabaseTransaction(txn, self.worker, self.waits, thread)

    def _thread(self) -> Worker:
        """A thread for calls that use a database, so that no other call waits for it."""
        thread = Worker()
        thread.belong_to(self.sync.store.disk.pid, self.sync.store.note)
        return thread

    async def resolve_prepared(
        self, *, database: object, txn_id: TxnId | None = None
    ) -> list[TransactionResolved]:
        """Ask a database for the outcomes of its prepared transactions; see txlog.Client."""
        act = partial(self.sync.resolve_prepared, database=kinds.in_loop(database), txn_id=txn_id)
        thread = self._thread()
        try:
            return await thread.finish(act)
        finally:
            thread.stop()

    def _opening(self, make: Callable[[], Any], kind: type[H]) -> Opening[H]:
        async def open() -> H:
            handle = await self.worker.run(make, lambda handle: handle.close())
            return kind(handle, self.worker, self.waits)

        return Opening(open)

    async def acknowledge(
        self,
        topic: str,
        subscription: str,
        ids: Sequence[MessageId],
        *,
        cumulative: bool = False,
        txn: Txn = None,
    ) -> AcknowledgedIn:
        """Acknowledge by id, without a consumer; see txlog.Client.acknowledge."""
        act = partial(self.sync.acknowledge, topic, subscription, ids, cumulative=cumulative)
        return await self.worker.run(partial(act, txn=plain(txn)))

    async def close(self) -> None:
        """Close the client after its running and queued calls; a second close does nothing.

        Tasks that wait for messages in one of its handles get AlreadyClosed.
        """
        self.waits.close()
        await self.worker.close(self.sync.close)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


def _close(handle: Any) -> None:
    handle.close()


def _abort_begun(txn: Transacting) -> None:
    """Abort a transaction if it has begun; it begins at once under a key, also the client's."""
    if isinstance(txn.use, TxnId):
        txn.abort()


def open(
    path: StrPath,
    *,
    read_only: bool = False,
    clock: Clock | None = None,
    lock_timeout_ms: DurationLike | None = None,
    durability: Durability | None = None,
    transaction_key: str | None = None,
) -> Opening[Client]:
    """Open a store, by `await` or `async with`; see txlog.open."""
    make = partial(
        open_store,
        path,
        read_only=read_only,
        clock=clock,
        lock_timeout_ms=lock_timeout_ms,
        durability=durability,
        transaction_key=transaction_key,
    )

    return opening(make)


def opening(make: Callable[[], Synchronous]) -> Opening[Client]:
    """Open a store with a function that opens a blocking client."""

    async def opened() -> Client:
        worker = Worker()
        try:
            return Client(await worker.run(make, lambda client: client.close()), worker)
        except BaseException:  # also a cancellation: no thread must stay behind
            worker.stop()
            raise

    return Opening(opened)
