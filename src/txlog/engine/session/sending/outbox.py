"""Owns Outbox: messages that the producers of a client send without waiting, and their thread.

    put      the caller's thread: the message joins the queue of its producer, and gets a future
    due      a producer has enough messages or bytes, its oldest message is old enough, or a caller
             waits for an answer
    send     the sender's thread: the queued messages of all producers become one frame, one flush
    answer   the futures are done, in the order of their messages, then their callbacks run

1. The messages of a producer are stored in the order of its `put` calls. A call that waits (`send`,
   a watermark) comes after all earlier ones.
2. A refused message fails alone, unless the error concerns its producer (_REFUSE_ALL). When the
   store fails, every queued message fails: if a later one were stored, a repetition of an earlier
   one would look like a duplicate.
3. A future is done once the flush is done, so a process that is killed loses only messages without
   an answer.
4. The first message starts the thread. It sleeps while nothing is queued. It ends with the client,
   with the last reference to the outbox, or with the interpreter, which waits for the queues.
5. `put` appends to its queue in one step of C, after every step that may fail or be interrupted. So
   an interrupted call has sent its message as a whole or not at all.
6. A forked child inherits neither the thread nor a lock that it could release, so each of its calls
   raises AlreadyClosed (R27).
"""

from __future__ import annotations

import atexit
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures._base import FINISHED, RUNNING
from contextlib import suppress
from operator import index
from threading import Condition, RLock, Thread, get_ident
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypedDict
from weakref import WeakSet, finalize

import msgspec
import pyarrow as pa

from txlog.base.settings import (
    DAY_MS,
    KIB,
    PENDING_BYTES_MAX,
    PENDING_MESSAGES_MAX,
    PROPERTIES_MAX,
    TXN_MESSAGES_MAX,
)
from txlog.base.times import DurationLike
from txlog.engine.decide.draft import Decision
from txlog.engine.decide.sending import send as storing
from txlog.engine.session.sending.message import (
    INT64,
    SendReceipt,
    SharedReceipts,
    rows_of,
    too_many_properties,
)
from txlog.engine.store.appender import Call
from txlog.engine.upkeep.delayed.buckets import tend_due
from txlog.errors import (
    AlreadyClosed,
    InvalidArgument,
    NoResources,
    NotAllowed,
    OutcomeUnknown,
    ProducerBusy,
    ProducerFenced,
    ProducerQueueIsFull,
    TopicNotFound,
    TryAgain,
    TxlogError,
)

if TYPE_CHECKING:
    from txlog.clock import Instant
    from txlog.engine.decide.sending.send import OutgoingBatch, SliceReceipt
    from txlog.engine.session.sending.message import Item
    from txlog.engine.store.store import Store
    from txlog.engine.view import View

# Failed messages whose errors an outbox keeps until a flush raises one.
FAILED_MAX: Final = 1_000
OPEN, CLOSING, ENDED = range(3)
# Errors that refuse all messages that a producer has in the frame.
_REFUSE_ALL: Final = (ProducerBusy, ProducerFenced, TopicNotFound)
# Errors of rows that cannot be encoded or routed.
_REFUSE_ROWS: Final = (*storing.REFUSALS, pa.ArrowException, TypeError, ValueError, OverflowError)


# --- options -------------------------------------------------------------------------------------


class ProducerOptions(TypedDict, total=False):
    """The options of `Client.producer` for `send_async`, by Pulsar's names."""

    batching_max_publish_delay_ms: DurationLike
    batching_max_messages: int
    batching_max_allowed_size_in_bytes: int
    max_pending_messages: int
    block_if_queue_full: bool


class Batching(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """When the queue of a producer is due, and how many of its messages may be unanswered.

    max_pending_messages: 50 batches, so that a program fills the next ones while one is flushed
    """

    batching_max_publish_delay_ms: int = 1
    batching_max_messages: int = 1_000
    batching_max_allowed_size_in_bytes: int = 128 * KIB
    max_pending_messages: int = PENDING_MESSAGES_MAX
    block_if_queue_full: bool = False


# name -> (smallest, largest)
_BOUNDS: Final = {
    "batching_max_publish_delay_ms": (0, DAY_MS),
    "batching_max_messages": (1, TXN_MESSAGES_MAX),
    "batching_max_allowed_size_in_bytes": (1, PENDING_BYTES_MAX),
    "max_pending_messages": (1, TXN_MESSAGES_MAX),
}


def batching_of(options: Mapping[str, object]) -> Batching:
    """The options of a producer as a value; raises InvalidArgument, LimitExceeded."""
    checked: dict[str, int | bool] = {}
    for name, value in options.items():
        if name == "block_if_queue_full":
            if not isinstance(value, bool):
                raise InvalidArgument(f"{name} is {value!r}, it must be true or false")
            checked[name] = value
            continue
        if name not in _BOUNDS:
            raise InvalidArgument(
                f"unknown option {name}", hint=f"known are {', '.join(Batching.__struct_fields__)}"
            )
        low, high = _BOUNDS[name]
        if not isinstance(value, int) or isinstance(value, bool):
            raise InvalidArgument(f"{name} is {value!r}, it must be an integer")
        if not low <= value <= high:
            raise InvalidArgument(f"{name} is {value}, it must be {low} to {high}", code=203)
        checked[name] = value
    return Batching(**checked)  # type: ignore[arg-type]  # every name and type was checked above


# --- futures -------------------------------------------------------------------------------------


class SendFuture(Future[SendReceipt]):
    """The answer of `Producer.send_async`: `result()` returns the receipt that `send` would return.

    As a `concurrent.futures.Future` it works with `wait`, `as_completed` and `asyncio.wrap_future`.
    All futures of a client share one condition, and a receipt is made when a caller asks for it, so
    a message costs no more than its future. `cancel` returns False, since a queued message cannot
    be recalled.

    is_seen: a caller has got the error of the message; else a flush or close raises it
    """

    def __init__(self, done: Condition, check_may_wait: Callable[[], None]) -> None:
        # Future's own __init__ makes a lock and a condition for each message: 0.8 us.
        self._condition = done
        self._state = RUNNING
        self._waiters: list[Any] = []
        self._done_callbacks: list[Callable[[Future[SendReceipt]], object]] = []
        self._result: SendReceipt | None = None
        self._exception: BaseException | None = None
        self._check_may_wait = check_may_wait
        self._receipts: SharedReceipts | None = None
        self._row = 0
        self.is_seen = False

    def done(self) -> bool:
        """True once the message was stored or refused."""
        return self._state == FINISHED

    def result(self, timeout: float | None = None) -> SendReceipt:
        """The receipt; waits for it, at most `timeout` seconds.

        raises: the error that refused the message; TimeoutError; NotAllowed in a callback, which
                runs in the thread that sends; AlreadyClosed in a forked child
        """
        self._wait(timeout)
        self.is_seen = True
        if self._exception is not None:
            try:
                # The futures of a batch share an error, which would collect every caller's frames.
                raise self._exception.with_traceback(None)
            finally:
                self = None  # type: ignore[assignment]  # as Future: no circle through the frame
        return self._receipt()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error that refused the message, None if it is stored; waits as `result`."""
        self._wait(timeout)
        self.is_seen = True
        return self._exception

    def add_done_callback(self, fn: Callable[[Future[SendReceipt]], object]) -> None:
        """Call a function with this future when it is done, in the thread that sends.

        The function must not wait for messages to be stored; it may send more without waiting.
        """
        if self._state == FINISHED:
            self._fill()
        super().add_done_callback(fn)

    def settle(
        self, receipts: SharedReceipts | None, row: int, error: BaseException | None
    ) -> bool:
        """Take the outcome, under the condition; returns whether it has callbacks to run."""
        self._receipts, self._row, self._exception = receipts, row, error
        self._state = FINISHED
        if self._waiters:
            self._fill()
            for waiter in self._waiters:
                if error is None:
                    waiter.add_result(self)
                else:
                    waiter.add_exception(self)
        return bool(self._done_callbacks)

    def call_back(self) -> None:
        """Run the callbacks; Future logs the errors that they raise."""
        self._fill()
        self._invoke_callbacks()  # type: ignore[attr-defined]  # typeshed does not know it

    def unseen_error(self) -> TxlogError | None:
        """The error of a failed message that no caller has seen; then it counts as seen."""
        error = self._exception
        if error is None or self.is_seen:
            return None
        self.is_seen = True
        return error if isinstance(error, TxlogError) else TxlogError(str(error))

    def _wait(self, timeout: float | None) -> None:
        if self._state == FINISHED:
            return
        self._check_may_wait()
        with self._condition:
            if not self._condition.wait_for(self.done, timeout):
                raise TimeoutError

    def _fill(self) -> None:
        """Make the receipt: asyncio and others read the fields of a Future."""
        if self._exception is None:
            self._receipt()

    def _receipt(self) -> SendReceipt:
        receipts = self._receipts  # a local: other threads may be here
        if receipts is not None:
            self._result = receipts.receipt(self._row)
            self._receipts = None
        assert self._result is not None
        return self._result


# Routes rows of a producer, and returns the function that places them under the lock.
Route: TypeAlias = Callable[[pa.RecordBatch], storing.Batch]


# --- the queue of a producer ---------------------------------------------------------------------

_NO_TIMES = (None, None, None)


def _bytes(name: str, item: object) -> bytes | None:
    """A value or a key as immutable bytes; raises TypeError."""
    if type(item) is bytes or item is None:
        return item
    if isinstance(item, str):
        return item.encode()
    if isinstance(item, bytes | bytearray | memoryview):
        return bytes(item)
    raise TypeError(f"{name} is {type(item).__name__}")


def _integers(names: tuple[str, ...], values: tuple[int | None, ...]) -> tuple[int | None, ...]:
    """Integers of any library as integers of Python; raises InvalidArgument."""
    integers: list[int | None] = []
    for name, value in zip(names, values, strict=True):
        if value is None:
            integers.append(None)
            continue
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise InvalidArgument(f"{name} is {value!r}, it must be an integer")
        whole = index(value)
        if whole not in INT64:
            raise InvalidArgument(f"{name} does not fit into 64 bits", code=203)
        integers.append(whole)
    return tuple(integers)


class ProducerQueue:
    """The queued messages of one producer.

    deadline: when the first message is due, on the monotonic clock; None: the queue is empty
    answered: messages that were stored or refused so far
    """

    __slots__ = (
        "_outbox",
        "_sender",
        "answered",
        "batching",
        "bytes",
        "deadline",
        "in_flight",
        "in_flight_bytes",
        "items",
        "route",
    )

    def __init__(self, outbox: Outbox, sender: _Sender, batching: Batching, route: Route) -> None:
        self._outbox = outbox  # the thread ends with the last reference to the outbox
        self._sender = sender
        self.batching = batching
        self.route = route
        self.items: deque[Item] = deque()
        self.bytes = 0
        self.deadline: float | None = None
        self.in_flight = self.in_flight_bytes = self.answered = 0

    def put(
        self,
        value: bytes | str | None,
        key: bytes | str | None,
        properties: Mapping[str, str] | None,
        times: tuple[int | None, ...],
        sequence_id: int | None,
        partition: int | None,
    ) -> SendFuture:
        """Queue a message; times: event_time, deliver_at, deliver_after.

        raises: InvalidArgument, TypeError (a type), ProducerQueueIsFull, AlreadyClosed
        """
        sender = self._sender
        value = _bytes("value", value)
        size = 0 if value is None else len(value)
        pairs: list[tuple[str, str]] | None = None
        if key is not None:
            key = _bytes("key", key)
            assert key is not None
            size += len(key)
        if properties:
            if len(properties) > PROPERTIES_MAX:
                return sender.refused(self, too_many_properties(properties))
            pairs = list(properties.items())
            for name, text in pairs:
                size += len(name.encode()) + len(text.encode())
        if times is not _NO_TIMES:
            times = _integers(("event_time", "deliver_at", "deliver_after"), times)
        if sequence_id is not None or partition is not None:
            both = (sequence_id, partition)
            sequence_id, partition = _integers(("sequence_id", "partition"), both)
        future = SendFuture(sender.done, sender.check_may_wait)
        item: Item = (future, value, key, pairs, *times, sequence_id, partition)
        sender.check_alive()
        with sender.lock:
            if sender.stage != OPEN:
                raise _closed()
            if self.is_full(size):
                sender.make_room(self, size)
            if self.deadline is None:
                sender.expect(self)
            self.items.append(item)
            self.bytes += size
            limits = self.batching
            if (
                len(self.items) >= limits.batching_max_messages
                or self.bytes >= limits.batching_max_allowed_size_in_bytes
            ):
                sender.hurry()
        return future

    def is_full(self, size: int) -> bool:
        """True when a message of this size must wait, or be refused."""
        pending = len(self.items) + self.in_flight
        if pending >= self.batching.max_pending_messages:
            return True
        return bool(pending) and self.bytes + self.in_flight_bytes + size > PENDING_BYTES_MAX

    def settle(self) -> None:
        """Wait until every message so far is stored or refused.

        raises: NotAllowed in the sender's thread, AlreadyClosed in a forked child
        """
        if self.items or self.in_flight:
            self._sender.settle(self)

    def flush(self) -> None:
        """Settle, and raise the first error that no caller has seen."""
        self.settle()
        self._sender.raise_unseen(self)

    @property
    def has_pending(self) -> bool:
        """True when a message has no answer yet."""
        return bool(self.items or self.in_flight)


# --- the thread that sends -----------------------------------------------------------------------


class _Part:
    """The messages of one producer in a frame.

    place:    places their rows under the lock; None: they are decided one by one
    outgoing: the last answer of `place`
    """

    __slots__ = ("items", "outgoing", "place", "queue")

    def __init__(self, queue: ProducerQueue, items: list[Item]) -> None:
        self.queue, self.items = queue, items
        self.place: storing.Batch | None = None
        self.outgoing: OutgoingBatch | None = None

    def __call__(self, view: View) -> OutgoingBatch:
        assert self.place is not None
        self.outgoing = self.place(view)
        return self.outgoing


class _Sender:
    """The state of an outbox that its thread refers to. Only the clients refer to the Outbox.

    queues: the queues with messages, in the order of their first messages
    is_due: everything that is queued is due
    done:   notified when messages are answered; `_work` when the thread has something to do
    failed: failed messages whose error perhaps no caller has seen, with the items of their queue:
            the queue itself would keep the Outbox alive
    """

    __slots__ = (
        "__weakref__",
        "_at_end",
        "_flying",
        "_owner",
        "_store",
        "_thread",
        "_work",
        "deadline",
        "done",
        "failed",
        "is_due",
        "lock",
        "queues",
        "stage",
    )

    def __init__(self, store: Store) -> None:
        self._store = store
        self._owner = store.disk.pid()
        # reentrant: `__del__` and signal handlers may run in the thread that holds it
        self.lock = RLock()
        self.done = Condition(self.lock)
        self._work = Condition(self.lock)
        self.queues: dict[ProducerQueue, None] = {}
        self.failed: deque[tuple[deque[Item], SendFuture]] = deque(maxlen=FAILED_MAX)
        self._flying: list[ProducerQueue] = []
        self.deadline = 0.0
        self.is_due = False
        self.stage = OPEN
        self._at_end: list[Callable[[], object]] = []
        self._thread: Thread | None = None

    # --- for the threads that put -----------------------------------------------------------------

    @property
    def is_alive(self) -> bool:
        """False in a forked child, where no thread releases a lock that was held at the fork."""
        return self._store.disk.pid() == self._owner

    def check_alive(self) -> None:
        """Raise AlreadyClosed in a forked child; called before any lock is taken."""
        if not self.is_alive:
            raise AlreadyClosed(
                "the store was opened by another process, and this one is its child",
                hint="open it again, after the fork",
            )

    def is_own_thread(self) -> bool:
        """True in a callback, and in a `__del__` that runs in the sender's thread."""
        return self._thread is not None and self._thread.ident == get_ident()

    def check_may_wait(self) -> None:
        """Raise NotAllowed in a thread that the answer depends on."""
        self.check_alive()
        if self.is_own_thread() and self.stage != ENDED:
            raise NotAllowed(
                "called in the thread that sends, which cannot wait for itself",
                hint="in a callback, send without waiting, or leave it to another thread",
            )
        if self._store.put_off(_nothing):
            raise NotAllowed(
                "called from within another call on this store, from __del__ or a signal handler",
                hint="call it after that call has returned",
            )

    def expect(self, queue: ProducerQueue) -> None:
        """Schedule a queue that gets its first message; under the lock."""
        if self._thread is None:
            self._start()
        deadline = monotonic() + queue.batching.batching_max_publish_delay_ms / 1000
        if not self.queues or deadline < self.deadline:
            self.deadline = deadline
        self.queues[queue] = None
        self._work.notify()
        queue.deadline = deadline  # last: if this call is interrupted, the next message repeats it

    def hurry(self) -> None:
        """Send the queued messages now; under the lock."""
        if not self.is_due:
            self.is_due = True
            self._work.notify()

    def make_room(self, queue: ProducerQueue, size: int) -> None:
        """Wait until a message fits into a queue, or refuse it; under the lock."""
        self.hurry()
        if not queue.batching.block_if_queue_full or self.is_own_thread():
            most = queue.batching.max_pending_messages
            raise ProducerQueueIsFull(
                f"{len(queue.items) + queue.in_flight} messages wait to be stored, "
                f"max_pending_messages is {most}",
                hint="wait for an answer, or open the producer with block_if_queue_full=True",
                setting="max_pending_messages",
                limit=most,
            )
        self.check_may_wait()
        while queue.is_full(size):
            if self.stage != OPEN:
                raise _closed()
            self.hurry()
            self.done.wait()

    def refused(self, queue: ProducerQueue, error: TxlogError) -> SendFuture:
        """The future of a message that is refused before it is queued."""
        future = SendFuture(self.done, self.check_may_wait)
        self.check_alive()
        with self.lock:
            future.settle(None, 0, error)
            self.failed.append((queue.items, future))
        return future

    def settle(self, queue: ProducerQueue | None) -> None:
        """Send what is queued so far, and wait for the answers, of one queue or of all (None)."""
        self.check_may_wait()
        with self.lock:
            queues = {*self.queues, *self._flying} if queue is None else {queue}
            goals = [(each, each.answered + each.in_flight + len(each.items)) for each in queues]
            for each in queues:
                if each.items and each not in self.queues:  # its `put` was interrupted
                    self.expect(each)
            if self.queues:
                self.hurry()
            self.done.wait_for(lambda: all(each.answered >= goal for each, goal in goals))

    def raise_unseen(self, queue: ProducerQueue | None) -> None:
        """Raise the first error that no caller has seen; the later ones count as seen."""
        self.check_alive()
        error = None
        with self.lock:
            for _ in range(len(self.failed)):
                items, future = self.failed.popleft()
                if queue is None or items is queue.items:
                    error = error or future.unseen_error()
                else:
                    self.failed.append((items, future))
        if error is not None:
            raise error.with_traceback(None)

    # --- its end ---------------------------------------------------------------------------------

    def put_off(self, function: Callable[[], object]) -> bool:
        """In the sender's thread: call a function when the thread ends; else return False."""
        if self.stage == ENDED or not self.is_own_thread():
            return False
        self._at_end.append(function)
        self.stop()
        return True

    def stop(self) -> None:
        """Let the thread end once the queues are empty; no thread can put from now on."""
        with self.lock:
            self.stage = max(self.stage, CLOSING)
            self._work.notify()

    def finish(self) -> None:
        """Stop, and wait until every message is answered."""
        if not self.is_alive or self.is_own_thread():
            return
        with self.lock:
            self.stop()
            if self._thread is not None:
                self.done.wait_for(lambda: self.stage == ENDED)

    def _start(self) -> None:
        thread = Thread(target=self._run, name="txlog-send", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise NoResources(
                "no thread can be started to send", hint="use send, which needs none"
            ) from error
        self._thread = thread

    def _run(self) -> None:
        try:
            while not self._is_over():
                self._send(self._next())  # no name here keeps the parts alive while it waits
        finally:
            with self.lock:
                self.stage = ENDED
                self.done.notify_all()
            self._fail([], _closed())
            for function in self._at_end:
                try:
                    function()
                except Exception as error:  # the other functions must run all the same
                    self._store.note(f"a call put off until all was sent failed: {error}")

    def _is_over(self) -> bool:
        with self.lock:
            return self.stage != OPEN and not self.queues

    def _next(self) -> list[_Part]:
        """Wait until messages are due, and take them; empty: the thread must end."""
        with self.lock:
            while not self.is_due and self.stage == OPEN:
                seconds = self.deadline - monotonic() if self.queues else None
                if seconds is not None and seconds <= 0:
                    break
                self._work.wait(seconds)
            parts: list[_Part] = []
            size = 0
            for queue in list(self.queues):
                if size >= PENDING_BYTES_MAX:
                    break  # the rest stays due, for the next frame
                del self.queues[queue]
                queue.deadline = None
                size += queue.bytes
                items = [queue.items.popleft() for _ in range(len(queue.items))]
                queue.in_flight, queue.in_flight_bytes, queue.bytes = len(items), queue.bytes, 0
                if items:  # an interrupted `put` may leave an empty queue
                    parts.append(_Part(queue, items))
            self.is_due = bool(self.queues)
            self._flying = [part.queue for part in parts]
            return parts

    # --- sending ---------------------------------------------------------------------------------

    def _send(self, parts: list[_Part]) -> None:
        """Send messages, and answer every one, also when the store fails."""
        try:
            self._send_together([part for part in parts if self._is_routed(part)])
            for part in parts:
                if part.items and part.place is None:
                    self._send_singly(part)
        except BaseException as error:  # the callers wait for this thread alone
            self._fail(parts, error)
        with self.lock:
            self._flying = []
        try:
            tend_due(self._store)
        except Exception as error:  # every message has its answer
            self._store.note(f"delayed messages could not be tended: {error}")

    def _is_routed(self, part: _Part) -> bool:
        """Route the rows of a producer; messages that cannot be routed are refused alone."""
        try:
            part.place = part.queue.route(rows_of(part.items))
        except _REFUSE_ROWS as error:
            routable = self._routable(part.queue, part.items, error)
            part.items = routable
            if routable:
                with suppress(*_REFUSE_ROWS):  # together they are refused: send them one by one
                    part.place = part.queue.route(rows_of(routable))
        return part.place is not None

    def _routable(
        self, queue: ProducerQueue, items: list[Item], error: BaseException
    ) -> list[Item]:
        """The messages that can be encoded and routed alone; the others get their error."""
        if len(items) == 1:
            self._answer(queue, items, None, _as_ours(error))
            return []
        routable: list[Item] = []
        middle = len(items) // 2
        for half in (items[:middle], items[middle:]):
            try:
                queue.route(rows_of(half))
                routable += half
            except _REFUSE_ROWS as refused:
                routable += self._routable(queue, half, refused)
        return routable

    def _send_together(self, parts: list[_Part]) -> None:
        """One frame for all producers. A part that is refused loses its place, to be split."""
        if not parts:
            return
        store = self._store

        def decide(view: View, now: Instant) -> Decision[list[list[SliceReceipt] | TxlogError]]:
            return storing.send_together(view, store.settings, now, parts)

        answers = store.write(decide)
        for part, answer in zip(parts, answers, strict=True):
            if isinstance(answer, list):
                self._store_answer(part, answer)
            elif len(part.items) == 1 or isinstance(answer, _REFUSE_ALL):
                self._answer(part.queue, part.items, None, answer)
                part.items = []
            else:
                part.place = None
                continue
            part.items = []

    def _send_singly(self, part: _Part) -> None:
        """Send messages in a frame each, in their order, with one flush."""
        store, queue = self._store, part.queue
        calls: list[tuple[Call, _Part]] = []
        for item in part.items:
            single = _Part(queue, [item])
            single.place = queue.route(rows_of(single.items))

            def decide(
                view: View, now: Instant, single: _Part = single
            ) -> Decision[list[list[SliceReceipt] | TxlogError]]:
                return storing.send_together(view, store.settings, now, [single])

            calls.append((Call(decide), single))
        store.submit([call for call, _ in calls])
        for call, single in calls:
            if call.error is not None:
                raise call.error
            answer = call.answer[0]
            if isinstance(answer, TxlogError):
                self._answer(queue, single.items, None, answer)
            else:
                self._store_answer(single, answer)
            part.items = part.items[1:]

    def _store_answer(self, part: _Part, stored: list[SliceReceipt]) -> None:
        assert part.outgoing is not None
        receipts = SharedReceipts(stored, part.outgoing.routed.order, in_txn=False)
        self._answer(part.queue, part.items, receipts, None)

    def _answer(
        self,
        queue: ProducerQueue,
        items: list[Item],
        receipts: SharedReceipts | None,
        error: TxlogError | None,
    ) -> None:
        """Complete the futures of messages, and run their callbacks."""
        with_callbacks: list[SendFuture] = []
        with self.lock:
            for row, item in enumerate(items):
                future: SendFuture = item[0]
                if future.settle(receipts, row, error):
                    with_callbacks.append(future)
            if error is not None:
                self.failed.extend([(queue.items, item[0]) for item in items])
            queue.in_flight -= len(items)
            queue.answered += len(items)
            if not queue.in_flight:
                queue.in_flight_bytes = 0
            self.done.notify_all()
        for future in with_callbacks:
            future.call_back()

    def _fail(self, parts: list[_Part], error: BaseException) -> None:
        """The store has failed: refuse the messages of the frame and all queued ones (rule 2)."""
        queued: list[_Part] = []
        with self.lock:
            for queue in list(self.queues):
                items = [queue.items.popleft() for _ in range(len(queue.items))]
                queue.in_flight += len(items)
                queue.bytes, queue.deadline = 0, None
                queued.append(_Part(queue, items))
            self.queues.clear()
        for part in parts:
            self._answer(part.queue, part.items, None, _after_trying(error))
            part.items = []
        for part in queued:
            self._answer(part.queue, part.items, None, _not_tried(error))


def _as_ours(error: BaseException) -> TxlogError:
    """The error of a message that could not be routed, for its future."""
    if isinstance(error, TxlogError):
        return error
    return InvalidArgument(f"the message cannot be encoded: {error}")


def _after_trying(error: BaseException) -> TxlogError:
    """The error of messages that were handed to the store, for their futures.

    The store reports what it did by errors of txlog. Any other error, such as MemoryError, may have
    come after the append.
    """
    if isinstance(error, TxlogError):
        return error
    unknown = OutcomeUnknown(
        f"{type(error).__name__} while sending: {error}",
        hint="the messages may be stored; a named producer may repeat them",
    )
    unknown.__cause__ = error
    return unknown


def _not_tried(error: BaseException) -> TxlogError:
    failed = TryAgain(
        f"not sent, since what was sent before it failed: {error}",
        hint="repeat it, after what was sent before it",
    )
    failed.__cause__ = error
    return failed


def _nothing() -> None:
    """Put off only to learn whether this thread is inside a call on the store."""


def _closed() -> AlreadyClosed:
    return AlreadyClosed("the store is closed", hint="open it again")


# --- the outbox of a client ----------------------------------------------------------------------


class Outbox:
    """The queues of a client's producers, and their sender, which the first queue makes."""

    __slots__ = ("__weakref__", "_is_closed", "_sender", "_store", "lock")

    def __init__(self, store: Store) -> None:
        self._store = store
        self.lock = RLock()  # held while a producer gets its queue
        self._sender: _Sender | None = None
        self._is_closed = False

    def queue(self, batching: Batching, route: Route) -> ProducerQueue:
        """A new queue for one producer. Raises ReadOnlyStore, AlreadyClosed."""
        self._store.need_writable()
        with self.lock:
            if self._is_closed:
                raise _closed()
            if self._sender is None:
                sender = _Sender(self._store)
                finalize(self, sender.stop).atexit = False
                _SENDERS.add(sender)
                self._sender = sender
            return ProducerQueue(self, self._sender, batching, route)

    def flush(self) -> None:
        """Wait until every message is stored or refused.

        raises: the first error that no caller has seen
        """
        if self._sender is not None:
            self._sender.settle(None)
            self._sender.raise_unseen(None)

    def put_off(self, function: Callable[[], object]) -> bool:
        """In the sender's thread: call a function when the thread ends; else return False."""
        return self._sender is not None and self._sender.put_off(function)

    def close(self) -> None:
        """Send every queued message, and end the thread; raises as `flush`."""
        self._is_closed = True
        if self._sender is not None and self._sender.is_alive:
            self._sender.finish()
            self._sender.raise_unseen(None)


_SENDERS: WeakSet[_Sender] = WeakSet()


@atexit.register
def _finish_all() -> None:
    """Send before the interpreter ends: after this it stops its daemon threads at any point."""
    for sender in list(_SENDERS):
        sender.finish()
