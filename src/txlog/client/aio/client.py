"""Owns the asynchronous client: `txlog.aio.open`, and what it opens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack, cast

from txlog.base.ids import MessageId, TxnId
from txlog.client.aio.handles import (
    Closable,
    Consumer,
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
from txlog.client.open import open_store
from txlog.clock import Clock
from txlog.engine.door.consuming import Topics
from txlog.engine.door.reading import Where, until_told
from txlog.engine.door.sending import Choose, ProducerOptions
from txlog.engine.door.transactions import has_ended

if TYPE_CHECKING:
    from txlog.base.rows.consuming import AcknowledgedIn
    from txlog.base.rows.store import Waited
    from txlog.base.rows.transactions import TransactionEnded

T = TypeVar("T")
H = TypeVar("H", bound=Closable[Any])


class Options(ConsumerOptions, total=False):
    """What `Client.consumer` takes besides topics and subscription; see txlog.Client.consumer."""

    durable: bool
    start: Where | None


class Conditions(TypedDict, total=False):
    """What `Client.wait` takes besides topics and time-out; see txlog.Client.wait."""

    messages: int | None
    watermark: int | None
    subscription: str | None
    backlogs: Mapping[str, int] | None
    txns: Mapping[TxnId, str] | None


class SendingOptions(ProducerOptions, total=False):
    """What `Client.producer` takes besides; see txlog.Client.producer."""

    message_router: Choose | None
    message_routing_mode: str
    access_mode: str
    schema: object


class SubscriptionOptions(TypedDict, total=False):
    """What `Client.create_subscription` takes besides topic and name."""

    type: str
    isolation: str
    position: Where | None
    if_not_exists: bool


class Client(Handle[Synchronous]):
    """An open store, for one event loop; see txlog.Client.

    What it does not have is reached by `run`: `await client.run(lambda client: client.overview())`.
    """

    __slots__ = ()

    topics = awaited(Synchronous.topics)
    describe_topic = awaited(Synchronous.describe_topic)
    subscriptions = awaited(Synchronous.subscriptions)
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
        schema_type: str = "json",
        **policies: int | None,
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

    async def commit(self, txn_id: TxnId, wait_ms: int = 0) -> TransactionEnded:
        """Commit by id; see txlog.Client.commit. It waits without holding up other calls."""
        answer = await self.worker.run(partial(self.sync.commit, txn_id))
        if answer["waiting_list"] and wait_ms > 0:
            store = self.sync.store
            await self.waits.until(lambda _: has_ended(store, txn_id), wait_ms, until_told)
            answer = await self.worker.run(partial(self.sync.commit, txn_id))
        return answer

    async def wait(
        self,
        topics: Sequence[str] = (),
        *,
        timeout_ms: int | None = None,
        **conditions: Unpack[Conditions],
    ) -> Waited:
        """Wait until all of these are true; see txlog.Client.wait."""
        waiting = await self.worker.run(partial(self.sync._wait, topics, **conditions))
        await self.waits.until(waiting.look, timeout_ms, waiting.rest)
        return waiting.answer()

    async def wait_for_change(self, seen_lsn: int, timeout_ms: int | None = 0) -> int:
        """Wait until something after an LSN is durable; see txlog.Client.wait_for_change."""

        def look(_: bool) -> int | None:
            newest = self.sync.wait_for_change(seen_lsn)
            return newest if newest > seen_lsn else None

        found = await self.waits.until(look, timeout_ms, until_told)
        return seen_lsn if found is None else found

    async def run(self, act: Callable[[Synchronous], T], *, blocking: bool = False) -> T:
        """Run any calls of the synchronous client, in the thread of this one.

        blocking: they may wait for something: then they run in another thread, beside the calls of
                  other tasks. If the task is cancelled, they end with what they wait for, or when
                  the client closes, with AlreadyClosed
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

        A message waits for no others, unless batching_max_publish_delay_ms says so. A task that
        finds the queue full waits, whatever block_if_queue_full says.
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
            if opening.waits:  # the thread is not held up
                made = await self.waits.until(opening.look, None, opening.rest, _close)
            else:
                made = await self.worker.run(opening.make, _close)
            assert made is not None
            return Producer(made, self.worker, self.waits)

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
        isolation: str = "committed",
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
        self, timeout_ms: int | None = None, *, key: str | None = None, epoch: int | None = None
    ) -> Opening[Transaction]:
        """A transaction: `async with` commits it; see txlog.Client.transaction."""
        make = partial(self.sync.transaction, timeout_ms, key=key, epoch=epoch)

        async def open() -> Transaction:
            made = await self.worker.run(make, lambda txn: txn.abort() if key else None)
            return Transaction(made, self.worker, self.waits)

        return Opening(open)

    def _opening(self, make: Callable[[], Any], kind: type[H]) -> Opening[H]:
        async def open() -> H:
            made = await self.worker.run(make, lambda handle: handle.close())
            return kind(made, self.worker, self.waits)

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
        """Close it, after the calls that are under way; a second close does nothing.

        A task that waits in one of its handles gets AlreadyClosed.
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


def open(
    path: str,
    *,
    read_only: bool = False,
    clock: Clock | None = None,
    lock_timeout_ms: int | None = None,
    durability: str | None = None,
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

    async def opened() -> Client:
        worker = Worker()
        try:
            return Client(await worker.run(make, lambda client: client.close()), worker)
        except BaseException:  # whoever it is, the thread must not stay
            worker.stop()
            raise

    return Opening(opened)
