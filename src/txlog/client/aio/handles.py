"""Owns the handles of an asynchronous client: producer, consumer, reader, table view, transaction.

Each handle wraps the handle of `txlog` with the same name and has its calls as coroutines. See
there for the arguments, answers and errors of a call.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from abc import abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from concurrent.futures import Future
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, Final, Generic, NamedTuple, ParamSpec, TypeVar, Unpack, cast

import pyarrow as pa

from txlog.base.ids import TxnId
from txlog.base.times import DurationLike, duration_ms
from txlog.client.aio.waits import Waits
from txlog.client.aio.worker import Worker
from txlog.client.consuming.consumer import Consumer as Consuming
from txlog.client.reading.reader import Reader as Reading
from txlog.client.reading.table_view import News
from txlog.client.reading.table_view import TableView as Viewing
from txlog.client.sending.producer import Producer as Producing
from txlog.client.sending.producer import SendOptions
from txlog.engine.door.consuming import AckAnswer, Acknowledgeable
from txlog.engine.door.reading import Message, Where, messages, until_told
from txlog.engine.door.sending import BatchReceipt, SendReceipt, Value
from txlog.engine.door.transactions import EndAnswer, Later
from txlog.engine.door.transactions import Transaction as Transacting
from txlog.errors import (
    AlreadyClosed,
    NotAllowed,
    OutcomeUnknown,
    ProducerQueueIsFull,
    TxlogError,
)

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S")
H = TypeVar("H", bound="Handle[Any]")


class Handle(Generic[S]):
    """The base of all handles: runs the calls of a handle of `txlog` in the worker thread."""

    __slots__ = ("sync", "waits", "worker")

    def __init__(self, sync: S, worker: Worker, waits: Waits) -> None:
        self.sync, self.worker, self.waits = sync, worker, waits

    def __repr__(self) -> str:
        return f"<txlog.aio of {repr(self.sync)[1:-1]}>"

    async def __aenter__(self: H) -> H:
        return self

    @abstractmethod
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close or end the handle."""


def awaited(
    function: Callable[Concatenate[S, P], T],
) -> Callable[Concatenate[Handle[Any], P], Coroutine[Any, Any, T]]:
    """Make a coroutine of a call of the synchronous handle; it runs in the worker thread."""

    @wraps(function)
    async def call(self: Handle[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        act = getattr(self.sync, function.__name__, None)
        if act is None:
            kind = type(self.sync).__name__
            raise NotAllowed(f"a {kind} has no {function.__name__}")
        return cast(T, await self.worker.run(partial(act, *args, **kwargs)))

    return call


def direct(
    function: Callable[Concatenate[S, P], T],
) -> Callable[Concatenate[Handle[Any], P], T]:
    """Offer a call of the synchronous handle without `await`: it uses memory of the loop only."""

    @wraps(function)
    def call(self: Handle[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return cast(T, getattr(self.sync, function.__name__)(*args, **kwargs))

    return call


class Closable(Handle[S]):
    """A handle that `async with` closes."""

    __slots__ = ()

    async def close(self) -> None:
        """Close the handle, also if the task is cancelled; a second close does nothing."""
        await self.worker.run(cast(Any, self.sync).close, keeps=True)
        self.waits.end_of(self.sync)  # wakes the tasks that wait in it; they get AlreadyClosed

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


class Opening(Generic[H]):
    """A handle that is opened by `handle = await …` or `async with … as handle`."""

    __slots__ = ("_made", "_open")

    def __init__(self, open: Callable[[], Coroutine[Any, Any, H]]) -> None:
        self._open = open
        self._made: H | None = None

    def __await__(self) -> Generator[Any, None, H]:
        return self._open().__await__()

    async def __aenter__(self) -> H:
        self._made = await self._open()
        return self._made

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._made is not None
        await self._made.__aexit__(kind, error, trace)


# --- transactions ----------------------------------------------------------------------------


class Transaction(Handle[Transacting]):
    """A transaction: `async with client.transaction() as txn` commits at the end of its block.

    If the block raises, or the commit fails without an effect, the transaction is aborted; a
    cancellation counts. Once begun, a commit or
    abort at the end of the block runs to its end, even if the task is cancelled. Commits of several
    tasks share a lock and a flush, and take effect in the order in which they began.
    """

    __slots__ = ()

    _repr_html_ = direct(Transacting._repr_html_)
    abort = awaited(Transacting.abort)
    flush = awaited(Transacting.flush)

    async def commit(self) -> EndAnswer:
        """Write the deferred operations and commit; see txlog.Transaction.commit.

        A task that is cancelled before the commit begins commits nothing; later the commit runs to
        its end.
        """
        return await self._committed(keeps=False)

    async def _committed(self, *, keeps: bool) -> EndAnswer:
        future = await self.worker.run(self.sync.commit_async, keeps=keeps)
        return await asyncio.shield(asyncio.wrap_future(future))

    @property
    def state(self) -> str:
        """The status as this handle knows it; see txlog.Transaction.state."""
        return self.sync.state

    def has_room(self, value: object, options: SendOptions | None = None) -> bool:
        """True if a send keeps this message in memory, without a write."""
        return self.sync.has_room(_bytes_max(value, options or {}))

    async def get_id(self) -> TxnId:
        """Its id. Writes the deferred operations; a transaction without operations is opened."""
        return await self.worker.run(lambda: self.sync.id)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        leave = self.sync.__exit__
        if kind is not None or self.sync.state != "OPEN":
            await self.worker.run(partial(leave, kind, error, trace), keeps=True)
            return
        try:
            await self._committed(keeps=True)
        except TxlogError as failure:
            if not isinstance(failure, OutcomeUnknown):
                with contextlib.suppress(TxlogError):  # then it is open until its time-out
                    await self.worker.run(partial(leave, type(failure), failure, None), keeps=True)
            raise


class DatabaseTransaction(Transaction):
    """A transaction that commits together with a database of the user.

    Its calls that use the connection run in a thread of their own, as they may wait for another
    transaction of the same client in the database. Each comes back when it is over, also if the
    task is cancelled: the program may use the connection again at once.
    """

    __slots__ = ("_thread",)

    def __init__(self, sync: Transacting, worker: Worker, waits: Waits, thread: Worker) -> None:
        super().__init__(sync, worker, waits)
        self._thread = thread

    async def abort(self) -> EndAnswer:
        """Roll back both."""
        return await self._end(self.sync.abort)

    async def _committed(self, *, keeps: bool) -> EndAnswer:
        return await self._end(self.sync.commit)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._end(partial(self.sync.__exit__, kind, error, trace))

    async def _end(self, act: Callable[[], T]) -> T:
        if self.sync.state != "OPEN":  # the answer needs no database
            return await self.worker.run(act)
        try:
            return await self._thread.finish(act)
        finally:
            if self.sync.state != "OPEN":
                self._thread.stop()


CHARACTER_BYTES_MAX: Final = 4  # of UTF-8
ORDERING_KEY_BYTES: Final = 64  # of the name of its property, more than enough


def _bytes_max(value: object, options: SendOptions) -> int:
    """How many bytes a message has at most. Encoding it here would cost as much as its send."""
    texts = [value, options.get("key")]
    size = 0
    if (ordering_key := options.get("ordering_key")) is not None:
        texts += [ordering_key, ordering_key]  # it is stored as base64
        size = ORDERING_KEY_BYTES
    if properties := options.get("properties"):
        texts += [*properties, *properties.values()]
    for text in texts:
        if isinstance(text, bytes):
            size += len(text)
        elif isinstance(text, str):
            size += CHARACTER_BYTES_MAX * len(text)
    return size


Txn = Transaction | TxnId | None


def plain(txn: Txn) -> Transacting | TxnId | None:
    """The transaction as synchronous calls take it."""
    return txn.sync if isinstance(txn, Transaction) else txn


# --- sending ---------------------------------------------------------------------------------


class Producer(Closable[Producing]):
    """A producer; see txlog.Producer."""

    __slots__ = ("_last",)

    flush = awaited(Producing.flush)
    last_sequence_id = awaited(Producing.last_sequence_id)

    def __init__(self, sync: Producing, worker: Worker, waits: Waits) -> None:
        super().__init__(sync, worker, waits)
        self._last: Future[SendReceipt] | None = None

    async def send(
        self, value: Value | str | None, *, txn: Txn = None, **options: Unpack[SendOptions]
    ) -> SendReceipt:
        """Send one message, which is durable on return; with txn, it is durable after the commit.

        Messages that tasks send during a flush share the next frame and flush. While the queue of
        the producer is full, the task waits.
        In a transaction the message waits in the client. The first reader of a receipt writes what
        waits, in the thread of the loop: `await txn.flush()` before it, or read it after the
        commit.
        """
        may_wait = not self.sync.chunking and isinstance(value, bytes | str | None)
        if may_wait and isinstance(txn, Transaction) and txn.has_room(value, options):
            return self.sync.send(value, txn=txn.sync, **options)
        if txn is not None or self.sync.chunking or not isinstance(value, bytes | str | None):
            act = partial(self.sync.send, value, txn=plain(txn), **options)
            return await self.worker.run(act)
        while True:
            try:
                sent = self._last = self.sync.send_async(value, **options)
            except ProducerQueueIsFull:
                if self._last is None:
                    raise
                await asyncio.wait([asyncio.wrap_future(self._last)])
            else:
                return await asyncio.wrap_future(sent)

    async def send_batch(
        self, batch: pa.Table | pa.RecordBatch, *, txn: Txn = None
    ) -> BatchReceipt:
        """Send rows in one frame, durable on return; with txn, durable after the commit."""
        return await self.worker.run(partial(self.sync.send_batch, batch, txn=plain(txn)))

    async def send_later(
        self, value: bytes | str | None, *, txn: Transaction, **options: Unpack[SendOptions]
    ) -> Later[SendReceipt]:
        """Send one message in a transaction, in the frame of its commit (send_async of txlog)."""
        return await self.worker.run(lambda: self.sync.send_async(value, txn=txn.sync, **options))


# --- consuming and reading -------------------------------------------------------------------


class Consumer(Closable[Consuming]):
    """A consumer of one topic or several; see txlog.Consumer. `async for` ends when it closes."""

    __slots__ = ("_kept",)

    acknowledge_cumulative = awaited(Consuming.acknowledge_cumulative)
    negative_acknowledge = awaited(Consuming.negative_acknowledge)
    reconsume_later = awaited(Consuming.reconsume_later)
    redeliver_unacknowledged_messages = awaited(Consuming.redeliver_unacknowledged_messages)
    get_last_message_id = awaited(Consuming.get_last_message_id)
    has_message_available = awaited(Consuming.has_message_available)
    seek = awaited(Consuming.seek)
    unsubscribe = awaited(Consuming.unsubscribe)
    get_last_watermark = awaited(Consuming.get_last_watermark)

    def __init__(self, sync: Consuming, worker: Worker, waits: Waits) -> None:
        super().__init__(sync, worker, waits)
        # What cancelled tasks had received, for the next receive: messages without an id, which no
        # lease can return (previews of open transactions), and None for a new watermark.
        self._kept: deque[Message | None] = deque()

    async def acknowledge(self, what: Acknowledgeable, *, txn: Txn = None) -> AckAnswer:
        """Acknowledge messages; in a transaction, its commit does so."""
        act = partial(self.sync.acknowledge, what, txn=plain(txn))
        return await self.worker.run(act)

    async def receive(self, timeout_ms: DurationLike | None = None) -> Message | None:
        """The next message; None if none came within timeout_ms (None: wait for ever).

        If the task is cancelled, for example by `asyncio.wait_for`, the message goes back
        uncounted, and the next receive on the subscription gets it.
        """
        session = self.sync.session

        def look(is_thorough: bool) -> tuple[Message | None] | None:
            return (self._kept.popleft(),) if self._kept else session.next(is_thorough)

        received = await self.waits.until(
            look, duration_ms(timeout_ms), session.rest, self._give_back
        )
        return None if received is None else received[0]

    async def receive_batch(
        self, max_messages: int | None = None, timeout_ms: DurationLike | None = 0
    ) -> pa.Table:
        """The next messages, at most max_messages; no rows if none came within timeout_ms.

        Without max_messages, batch_receive_policy decides. If the task is cancelled, the next
        receive gets the messages.
        """
        session = self.sync.session
        batch = self.sync.batching.begin(session, max_messages, duration_ms(timeout_ms))
        try:
            table = await self.waits.until(batch.look, batch.timeout_ms, session.rest)
        except BaseException:  # above all a cancellation
            self.worker.leave(batch.give_back)
            raise
        return batch.table() if table is None else table

    def _give_back(self, received: tuple[Message | None]) -> None:
        """Return the message of a cancelled task. Runs in the worker, before any later look."""
        message = received[0]
        if message is None or message.message_id is None:
            self._kept.append(message)
        else:
            self.sync.session.give_back_message(message)

    async def __aiter__(self) -> AsyncIterator[Message]:
        self.sync.session.check_open()
        while True:
            try:
                message = await self.receive()
            except AlreadyClosed:
                return
            if message is not None:  # None: a new watermark
                yield message


class Received(NamedTuple):
    """A message with a function that returns its row; both None: a new watermark."""

    message: Message | None
    row: Callable[[], pa.Table] | None


class Reader(Closable[Reading]):
    """A reader; see txlog.Reader. `async for` ends where the log ends now, `follow` never."""

    __slots__ = ("_kept",)

    get_last_message_id = awaited(Reading.get_last_message_id)
    get_last_watermark = awaited(Reading.get_last_watermark)

    def __init__(self, sync: Reading, worker: Worker, waits: Waits) -> None:
        super().__init__(sync, worker, waits)
        self._kept: deque[pa.Table] = deque()  # rows of cancelled tasks, for the next call

    async def read_next(self, timeout_ms: DurationLike | None = 0) -> Message | None:
        """The next message; None if none came within timeout_ms (None: wait for ever).

        With watermarks it also returns None as soon as there is a new one. If the task is
        cancelled, the next call of any kind returns the message.
        """
        received = await self._received(duration_ms(timeout_ms))
        return None if received is None else received.message

    async def _received(self, limit_ms: int | None) -> Received | None:

        def give_back(received: Received) -> None:
            if received.row is not None:  # None: a new watermark, which the reader remembers
                self._kept.append(received.row())

        return await self.waits.until(self._next, limit_ms, self.sync._rest, give_back)

    async def receive_batch(
        self, max_messages: int = 1000, timeout_ms: DurationLike | None = 0
    ) -> pa.Table:
        """The next messages, at most max_messages; no rows if none came within timeout_ms.

        If the task is cancelled, the next call of any kind returns them.
        """
        empty: pa.Table | None = None

        def look(is_thorough: bool) -> pa.Table | None:
            nonlocal empty
            self.sync._settle(is_thorough)
            empty = self._some(max_messages)
            return empty if empty.num_rows else None

        rest = self.sync._rest
        table = await self.waits.until(look, duration_ms(timeout_ms), rest, self._kept.append)
        return empty if table is None else table

    async def has_message_available(self) -> bool:
        """True when a visible message follows."""
        return await self.worker.run(lambda: bool(self._kept) or self.sync.has_message_available())

    async def seek(self, position: Where) -> None:
        """Continue from another position; see txlog.Reader.seek."""

        def act() -> None:
            self.sync.seek(position)
            self._kept.clear()

        await self.worker.run(act)

    def _next(self, is_thorough: bool) -> Received | None:
        """The next message with its row, or a new watermark; None: there is neither."""
        sync = self.sync
        if self._kept:
            row = self._some(1)
            return Received(next(iter(messages(row, sync._decoder))), lambda: row)
        sync._settle(is_thorough)
        message, has_moved = sync._read_next()
        if message is not None:
            return Received(message, sync._unread.last_row())
        return Received(None, None) if has_moved else None

    def _some(self, limit: int) -> pa.Table:
        if not self._kept or limit <= 0:
            return self.sync.receive_batch(limit)
        table = self._kept.popleft()
        if len(table) > limit:
            self._kept.appendleft(table.slice(limit))
        return table.slice(0, limit)

    async def __aiter__(self) -> AsyncIterator[Message]:
        while (received := await self._received(0)) is not None:
            if received.message is not None:  # None: a new watermark
                yield received.message

    async def follow(self) -> AsyncIterator[Message]:
        """Iterate over messages in order, without end."""
        while True:
            message = await self.read_next(None)
            if message is not None:
                yield message


class TableView(Closable[Viewing]):
    """A table view; see txlog.TableView. Calls that only read its memory need no `await`.

    It changes only in the event loop, at the end of `refresh` or `wait`, which then call its
    actions. A cancelled task leaves it unchanged.
    """

    __slots__ = ()

    get = direct(Viewing.get)
    keys = direct(Viewing.keys)
    values = direct(Viewing.values)
    items = direct(Viewing.items)
    for_each = direct(Viewing.for_each)
    listen = direct(Viewing.listen)
    __getitem__ = direct(Viewing.__getitem__)
    __contains__ = direct(Viewing.__contains__)
    __len__ = direct(Viewing.__len__)
    _repr_html_ = direct(Viewing._repr_html_)
    __iter__ = direct(Viewing.__iter__)

    @property
    def lsn(self) -> int:
        """The view shows all messages that are durable up to this LSN."""
        return self.sync.lsn

    async def refresh(self) -> int:
        """Read the messages up to now; returns how many keys got another value."""
        return self.sync._take(await self.worker.run(self.sync._look))

    async def wait(self, timeout_ms: DurationLike | None = None) -> int:
        """Refresh until at least one key gets another value.

        returns: how many keys did; 0 when time ran out
        """
        left_ms = duration_ms(timeout_ms)
        deadline = None if left_ms is None else time.monotonic() + left_ms / 1000

        def look(_: bool) -> News | None:
            news = self.sync._look()
            return news if news.found or not news.is_since else None

        while (news := await self.waits.until(look, left_ms, until_told)) is not None:
            if changed := self.sync._take(news):
                return changed
            if deadline is not None:  # a producer sent the value that a key already has
                left_ms = max(0, int((deadline - time.monotonic()) * 1000))
        return 0

    async def close(self) -> None:
        """Free the memory. Tasks that wait in the view get AlreadyClosed."""
        self.sync.close()
        self.waits.end_all()
