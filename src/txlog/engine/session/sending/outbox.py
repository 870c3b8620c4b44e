"""Owns Outbox: what the producers of a client send without waiting, and the thread that sends it.

    put      in the caller's thread: a message joins the queue of its producer, and has a future
    due      a producer has enough messages or bytes, or waited long enough, or somebody waits
    send     in the sender's thread: what all producers have queued becomes one frame and one flush
    answer   the futures are done, in the order of the messages, and their callbacks run

1. A producer's messages are stored in the order they were put. What it sends while it waits for the
   answer (`send`, a watermark) comes after all that it has put.
2. A message that is refused fails alone. When the store fails, everything that is queued fails with
   it: a later message that is stored would make a repetition of an earlier one look like a
   duplicate.
3. An answer is given when the flush is done, so a process that is killed loses only what had none.
4. The thread is begun by the first message, sleeps while there is none, and ends with the client,
   with the last handle on it, or with the interpreter, which waits for what is queued.
5. Joining a queue is one step of C after all that may fail or be interrupted, so an interrupted
   `put` has sent its message as a whole or not at all.
6. A forked child inherits neither thread nor locks; whatever it calls raises AlreadyClosed (R27).
"""

from __future__ import annotations

import atexit
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from operator import index
from threading import Condition, RLock, Thread, get_ident
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict
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
from txlog.engine.decide.draft import Decision
from txlog.engine.decide.sending import send as produce
from txlog.engine.plan.route import COLUMNS
from txlog.engine.session.sending import future as futures
from txlog.engine.session.sending.receipt import Stretch
from txlog.engine.store.appender import Call
from txlog.engine.upkeep.delayed.buckets import tend_due
from txlog.errors import (
    AlreadyClosed,
    InvalidArgument,
    InvalidMessage,
    NoResources,
    NotAllowed,
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
    from txlog.engine.session.sending.future import SendFuture
    from txlog.engine.store.store import Store
    from txlog.engine.view import View

_FIELDS = (
    "value",
    "key",
    "properties",
    "event_time",
    "deliver_at",
    "deliver_after",
    "sequence_id",
    "partition",
)
Item: TypeAlias = tuple[Any, ...]  # the future, then _FIELDS
INT64 = range(-(1 << 63), 1 << 63)
# Errors of which a producer keeps account until somebody asks for them.
FAILED_MAX = 1_000
OPEN, CLOSING, ENDED = range(3)
# What refuses all that a producer has queued, not one message of it.
_OF_ALL = (ProducerBusy, ProducerFenced, TopicNotFound)
# What says that rows cannot be encoded or routed.
_OF_ROWS = (*produce.REFUSALS, pa.ArrowException, TypeError, ValueError, OverflowError)


class ProducerOptions(TypedDict, total=False):
    """What `Client.producer` takes for `send_async`, by Pulsar's names."""

    batching_max_publish_delay_ms: int
    batching_max_messages: int
    batching_max_allowed_size_in_bytes: int
    max_pending_messages: int
    block_if_queue_full: bool


class Batching(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """When what a producer sends without waiting is sent, and how much of it may wait.

    max_pending_messages: 50 batches, so that a program fills the next ones while one is flushed
    """

    batching_max_publish_delay_ms: int = 1
    batching_max_messages: int = 1_000
    batching_max_allowed_size_in_bytes: int = 128 * KIB
    max_pending_messages: int = PENDING_MESSAGES_MAX
    block_if_queue_full: bool = False


# name -> (smallest, largest)
_BOUNDS = {
    "batching_max_publish_delay_ms": (0, DAY_MS),
    "batching_max_messages": (1, TXN_MESSAGES_MAX),
    "batching_max_allowed_size_in_bytes": (1, PENDING_BYTES_MAX),
    "max_pending_messages": (1, TXN_MESSAGES_MAX),
}


def batching_of(options: Mapping[str, object]) -> Batching:
    """The options of a producer as a value; raises InvalidArgument, LimitExceeded."""
    given: dict[str, int | bool] = {}
    for name, value in options.items():
        if name == "block_if_queue_full":
            if not isinstance(value, bool):
                raise InvalidArgument(f"{name} is {value!r}, it must be true or false")
            given[name] = value
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
        given[name] = value
    return Batching(**given)  # type: ignore[arg-type]  # every name and type was checked above


# What routes the rows of a producer before the lock, and says under it where they go.
Route: TypeAlias = Callable[[pa.RecordBatch], produce.Batch]


# --- the queue of a producer ---------------------------------------------------------------------

_NONE = (None, None, None)


def _bytes(name: str, given: object) -> bytes | None:
    """A value or a key as bytes of its own; raises TypeError."""
    if type(given) is bytes or given is None:
        return given
    if isinstance(given, str):
        return given.encode()
    if isinstance(given, bytes | bytearray | memoryview):
        return bytes(given)
    raise TypeError(f"{name} is {type(given).__name__}")


def too_many(properties: Mapping[str, str]) -> InvalidMessage:
    """The error of a message with more properties than it may have."""
    return InvalidMessage(
        f"a message has {len(properties)} properties, the most is {PROPERTIES_MAX}"
    )


def _integers(names: tuple[str, ...], given: tuple[int | None, ...]) -> tuple[int | None, ...]:
    """Integers, also of other libraries, as those of Python; raises InvalidArgument."""
    out: list[int | None] = []
    for name, value in zip(names, given, strict=True):
        if value is None:
            out.append(None)
            continue
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise InvalidArgument(f"{name} is {value!r}, it must be an integer")
        whole = index(value)
        if whole not in INT64:
            raise InvalidArgument(f"{name} does not fit into 64 bits", code=203)
        out.append(whole)
    return tuple(out)


class Lane:
    """The queue of one producer.

    deadline: when its first message must go, on the monotonic clock; None: it has none
    answered: messages that were stored or refused, since it was made
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
        "queue",
        "route",
    )

    def __init__(self, outbox: Outbox, sender: _Sender, batching: Batching, route: Route) -> None:
        self._outbox = outbox  # the thread ends when nobody holds it any more
        self._sender = sender
        self.batching = batching
        self.route = route
        self.queue: deque[Item] = deque()
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
                return sender.refused(self, too_many(properties))
            pairs = list(properties.items())
            for name, text in pairs:
                size += len(name.encode()) + len(text.encode())
        if times is not _NONE:
            times = _integers(("event_time", "deliver_at", "deliver_after"), times)
        if sequence_id is not None or partition is not None:
            both = (sequence_id, partition)
            sequence_id, partition = _integers(("sequence_id", "partition"), both)
        future = futures.SendFuture(sender.done, sender.check_may_wait)
        item: Item = (future, value, key, pairs, *times, sequence_id, partition)
        sender.check_alive()
        with sender.lock:
            if sender.stage != OPEN:
                raise _closed()
            if self.is_full(size):
                sender.make_room(self, size)
            if self.deadline is None:
                sender.expect(self)
            self.queue.append(item)
            self.bytes += size
            limits = self.batching
            if (
                len(self.queue) >= limits.batching_max_messages
                or self.bytes >= limits.batching_max_allowed_size_in_bytes
            ):
                sender.hurry()
        return future

    def is_full(self, size: int) -> bool:
        """True when a message of this size has to wait, or is refused."""
        pending = len(self.queue) + self.in_flight
        if pending >= self.batching.max_pending_messages:
            return True
        return bool(pending) and self.bytes + self.in_flight_bytes + size > PENDING_BYTES_MAX

    def settle(self) -> None:
        """Wait until everything that was put so far is stored or refused.

        raises: NotAllowed in the sender's thread, AlreadyClosed in a forked child
        """
        if self.queue or self.in_flight:
            self._sender.settle(self)

    def flush(self) -> None:
        """The same, and raise the first error that nobody was told of."""
        self.settle()
        self._sender.raise_untold(self)

    @property
    def has_pending(self) -> bool:
        """True when something that was put has no answer."""
        return bool(self.queue or self.in_flight)


# --- the thread that sends -----------------------------------------------------------------------


class _Part:
    """What one producer has in a frame.

    look:     says where its rows go; None: they are decided one by one
    outgoing: what that said last
    """

    __slots__ = ("items", "lane", "look", "outgoing")

    def __init__(self, lane: Lane, items: list[Item]) -> None:
        self.lane, self.items = lane, items
        self.look: produce.Batch | None = None
        self.outgoing: OutgoingBatch | None = None

    def __call__(self, view: View) -> OutgoingBatch:
        assert self.look is not None
        self.outgoing = self.look(view)
        return self.outgoing


def rows_of(items: list[Item]) -> pa.RecordBatch:
    """Messages as rows with the columns that one of them has; raises if pyarrow refuses them."""
    columns = list(zip(*items, strict=True))[1:]
    names, arrays = [], []
    for name, column in zip(_FIELDS, columns, strict=True):
        if name == "value" or column.count(None) < len(column):
            names.append(name)
            arrays.append(pa.array(column, COLUMNS.get(name, pa.int64())))
    return pa.RecordBatch.from_arrays(arrays, names)


class _Sender:
    """The state of an outbox, which its thread holds; the Outbox itself is held by its users.

    lanes:      those with something queued, in the order of their first messages
    is_due:     what is queued goes now
    done:       notified when messages were answered; `work` when there is something to do
    lost:       failed messages whose error perhaps nobody was told of, with the queue they were in
    """

    __slots__ = (
        "__weakref__",
        "_flying",
        "_later",
        "_owner",
        "_store",
        "_thread",
        "_work",
        "deadline",
        "done",
        "is_due",
        "lanes",
        "lock",
        "lost",
        "stage",
    )

    def __init__(self, store: Store) -> None:
        self._store = store
        self._owner = store.disk.pid()
        self.lock = RLock()  # its thread may enter again: `__del__` and signal handlers
        self.done = Condition(self.lock)
        self._work = Condition(self.lock)
        self.lanes: dict[Lane, None] = {}
        self.lost: deque[tuple[deque[Item], SendFuture]] = deque(maxlen=FAILED_MAX)
        self._flying: list[Lane] = []
        self.deadline = 0.0
        self.is_due = False
        self.stage = OPEN
        self._later: list[Callable[[], object]] = []
        self._thread: Thread | None = None

    # --- for those who put -----------------------------------------------------------------------

    @property
    def is_alive(self) -> bool:
        """False in a forked child, where nobody frees a lock that was held at the fork."""
        return self._store.disk.pid() == self._owner

    def check_alive(self) -> None:
        """Raise AlreadyClosed in a forked child; before any lock."""
        if not self.is_alive:
            raise AlreadyClosed(
                "the store was opened by another process, and this one is its child",
                hint="open it again, after the fork",
            )

    def is_own_thread(self) -> bool:
        """True in a callback, and in `__del__` that runs in this thread."""
        return self._thread is not None and self._thread.ident == get_ident()

    def check_may_wait(self) -> None:
        """Raise where an answer would never come."""
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

    def expect(self, lane: Lane) -> None:
        """Note that a lane gets its first message; under the lock."""
        if self._thread is None:
            self._start()
        deadline = monotonic() + lane.batching.batching_max_publish_delay_ms / 1000
        if not self.lanes or deadline < self.deadline:
            self.deadline = deadline
        self.lanes[lane] = None
        self._work.notify()
        lane.deadline = deadline  # last: an interrupted call is made good by the next one

    def hurry(self) -> None:
        """Send what is queued now; under the lock."""
        if not self.is_due:
            self.is_due = True
            self._work.notify()

    def make_room(self, lane: Lane, size: int) -> None:
        """Wait until a message fits into a queue, or refuse it; under the lock."""
        self.hurry()
        if not lane.batching.block_if_queue_full or self.is_own_thread():
            most = lane.batching.max_pending_messages
            raise ProducerQueueIsFull(
                f"{len(lane.queue) + lane.in_flight} messages wait to be stored, "
                f"max_pending_messages is {most}",
                hint="wait for an answer, or open the producer with block_if_queue_full=True",
                setting="max_pending_messages",
                limit=most,
            )
        self.check_may_wait()
        while lane.is_full(size):
            if self.stage != OPEN:
                raise _closed()
            self.hurry()
            self.done.wait()

    def refused(self, lane: Lane, error: TxlogError) -> SendFuture:
        """The future of a message that is refused before it is queued."""
        future = futures.SendFuture(self.done, self.check_may_wait)
        self.check_alive()
        with self.lock:
            future.settle(None, 0, error)
            self.lost.append((lane.queue, future))
        return future

    def settle(self, lane: Lane | None) -> None:
        """Send what is queued, and wait until all that was put so far is answered; None: by all."""
        self.check_may_wait()
        with self.lock:
            wanted = {*self.lanes, *self._flying} if lane is None else {lane}
            ends = [(one, one.answered + one.in_flight + len(one.queue)) for one in wanted]
            for one in wanted:
                if one.queue and one not in self.lanes:  # its `put` was interrupted
                    self.expect(one)
            if self.lanes:
                self.hurry()
            self.done.wait_for(lambda: all(one.answered >= end for one, end in ends))

    def raise_untold(self, lane: Lane | None) -> None:
        """Raise the first error of messages that nobody was told of; the others count as told."""
        self.check_alive()
        found = None
        with self.lock:
            for _ in range(len(self.lost)):
                queue, future = self.lost.popleft()
                if lane is None or queue is lane.queue:
                    found = found or futures.error_of(future)
                else:
                    self.lost.append((queue, future))
        if found is not None:
            raise found.with_traceback(None)

    # --- its end ---------------------------------------------------------------------------------

    def put_off(self, act: Callable[[], object]) -> bool:
        """In its own thread: run an act when all is sent and the thread ends; else False."""
        if self.stage == ENDED or not self.is_own_thread():
            return False
        self._later.append(act)
        self.stop()
        return True

    def stop(self) -> None:
        """Let the thread end when nothing is queued; nobody can put any more."""
        with self.lock:
            self.stage = max(self.stage, CLOSING)
            self._work.notify()

    def finish(self) -> None:
        """Stop, and wait until everything that was put is answered."""
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
                self._send(self._next())  # held by no name here while it waits
        finally:
            with self.lock:
                self.stage = ENDED
                self.done.notify_all()
            self._fail([], _closed())
            for act in self._later:
                try:
                    act()
                except Exception as error:  # the others still have to run
                    self._store.note(f"an act put off until all was sent failed: {error}")

    def _is_over(self) -> bool:
        with self.lock:
            return self.stage != OPEN and not self.lanes

    def _next(self) -> list[_Part]:
        """Wait until something is due, and take what is queued; empty: it is to end."""
        with self.lock:
            while not self.is_due and self.stage == OPEN:
                left = self.deadline - monotonic() if self.lanes else None
                if left is not None and left <= 0:
                    break
                self._work.wait(left)
            parts: list[_Part] = []
            size = 0
            for lane in list(self.lanes):
                if size >= PENDING_BYTES_MAX:
                    break  # a frame has an end; what is left is still due
                del self.lanes[lane]
                lane.deadline = None
                size += lane.bytes
                items = [lane.queue.popleft() for _ in range(len(lane.queue))]
                lane.in_flight, lane.in_flight_bytes, lane.bytes = len(items), lane.bytes, 0
                if items:  # there are none after an interrupted `put`
                    parts.append(_Part(lane, items))
            self.is_due = bool(self.lanes)
            self._flying = [part.lane for part in parts]
            return parts

    # --- sending ---------------------------------------------------------------------------------

    def _send(self, parts: list[_Part]) -> None:
        """Send what was taken, and answer all of it, whatever happens."""
        try:
            self._send_together([part for part in parts if self._is_routed(part)])
            for part in parts:
                if part.items and part.look is None:
                    self._send_singly(part)
        except BaseException as error:  # nobody else would tell who waits, and there is no other
            self._fail(parts, error)
        with self.lock:
            self._flying = []
        try:
            tend_due(self._store)
        except Exception as error:  # all was answered
            self._store.note(f"delayed messages could not be tended: {error}")

    def _is_routed(self, part: _Part) -> bool:
        """Route the rows of a producer; those that cannot be are refused alone."""
        try:
            part.look = part.lane.route(rows_of(part.items))
        except _OF_ROWS as error:
            good = self._sound(part.lane, part.items, error)
            part.items = good
            if good:
                with suppress(*_OF_ROWS):  # they may not go together: then one by one
                    part.look = part.lane.route(rows_of(good))
        return part.look is not None

    def _sound(self, lane: Lane, items: list[Item], error: BaseException) -> list[Item]:
        """The messages that can be encoded and routed by themselves; the others are answered."""
        if len(items) == 1:
            self._answer(lane, items, None, _ours(error))
            return []
        good: list[Item] = []
        middle = len(items) // 2
        for half in (items[:middle], items[middle:]):
            try:
                lane.route(rows_of(half))
                good += half
            except _OF_ROWS as refused:
                good += self._sound(lane, half, refused)
        return good

    def _send_together(self, parts: list[_Part]) -> None:
        """One frame of all producers; those that are refused as a whole are left to be split."""
        if not parts:
            return
        store = self._store

        def decide(view: View, now: Instant) -> Decision[list[list[SliceReceipt] | TxlogError]]:
            return produce.send_together(view, store.settings, now, parts)

        answers = store.write(decide)
        for part, answer in zip(parts, answers, strict=True):
            if isinstance(answer, list):
                self._store_answer(part, part.items, answer)
            elif len(part.items) == 1 or isinstance(answer, _OF_ALL):
                self._answer(part.lane, part.items, None, answer)
                part.items = []
            else:
                part.look = None
                continue
            part.items = []

    def _send_singly(self, part: _Part) -> None:
        """Frames of one message each, in order; one flush."""
        store, lane = self._store, part.lane
        calls: list[tuple[Call, _Part]] = []
        for item in part.items:
            one = _Part(lane, [item])
            one.look = lane.route(rows_of(one.items))

            def decide(
                view: View, now: Instant, one: _Part = one
            ) -> Decision[list[list[SliceReceipt] | TxlogError]]:
                return produce.send_together(view, store.settings, now, [one])

            calls.append((Call(decide), one))
        store.submit([call for call, _ in calls])
        for call, one in calls:
            if call.error is not None:
                raise call.error
            answer = call.answer[0]
            if isinstance(answer, TxlogError):
                self._answer(lane, one.items, None, answer)
            else:
                self._store_answer(one, one.items, answer)
            part.items = part.items[1:]

    def _store_answer(self, part: _Part, items: list[Item], stored: list[SliceReceipt]) -> None:
        assert part.outgoing is not None
        self._answer(
            part.lane, items, Stretch(stored, part.outgoing.routed.order, in_txn=False), None
        )

    def _answer(
        self, lane: Lane, items: list[Item], stretch: Stretch | None, error: TxlogError | None
    ) -> None:
        """End the futures of messages, and run their callbacks."""
        called: list[SendFuture] = []
        with self.lock:
            for row, item in enumerate(items):
                future: SendFuture = item[0]
                if future.settle(stretch, row, error):
                    called.append(future)
            if error is not None:
                self.lost.extend([(lane.queue, item[0]) for item in items])
            lane.in_flight -= len(items)
            lane.answered += len(items)
            if not lane.in_flight:
                lane.in_flight_bytes = 0
            self.done.notify_all()
        for future in called:
            future.call_back()

    def _fail(self, parts: list[_Part], error: BaseException) -> None:
        """The store has failed: what was tried gets its error, what is queued behind was not done.

        Rule 2.
        """
        queued: list[_Part] = []
        with self.lock:
            for lane in list(self.lanes):
                items = [lane.queue.popleft() for _ in range(len(lane.queue))]
                lane.in_flight += len(items)
                lane.bytes, lane.deadline = 0, None
                queued.append(_Part(lane, items))
            self.lanes.clear()
        for part in parts:
            self._answer(part.lane, part.items, None, _ours(error))
            part.items = []
        for part in queued:
            self._answer(part.lane, part.items, None, _not_tried(error))


def _ours(error: BaseException) -> TxlogError:
    """An error as one of ours, for a future."""
    if isinstance(error, TxlogError):
        return error
    if isinstance(error, pa.ArrowException | TypeError | ValueError):
        return InvalidArgument(f"the message cannot be encoded: {error}")
    return TryAgain(f"{type(error).__name__}: {error}")


def _not_tried(error: BaseException) -> TxlogError:
    failed = TryAgain(
        f"not sent, since what was sent before it failed: {error}",
        hint="repeat it, after what was sent before it",
    )
    failed.__cause__ = error
    return failed


def _nothing() -> None:
    """What is put off to learn whether this is inside a call."""


def _closed() -> AlreadyClosed:
    return AlreadyClosed("the store is closed", hint="open it again")


# --- what a client has ---------------------------------------------------------------------------


class Outbox:
    """The queues of a client, and its sender, which begins with the first queue."""

    __slots__ = ("__weakref__", "_is_closed", "_sender", "_store", "lock")

    def __init__(self, store: Store) -> None:
        self._store = store
        self.lock = RLock()  # while a producer gets its queue
        self._sender: _Sender | None = None
        self._is_closed = False

    def lane(self, batching: Batching, route: Route) -> Lane:
        """A queue for one producer. Raises ReadOnlyStore, AlreadyClosed."""
        self._store.need_writable()
        with self.lock:
            if self._is_closed:
                raise _closed()
            if self._sender is None:
                sender = _Sender(self._store)
                finalize(self, sender.stop).atexit = False
                _SENDERS.add(sender)
                self._sender = sender
            return Lane(self, self._sender, batching, route)

    def flush(self) -> None:
        """Wait until everything that was put is stored or refused.

        raises: the first error that nobody was told of
        """
        if self._sender is not None:
            self._sender.settle(None)
            self._sender.raise_untold(None)

    def put_off(self, act: Callable[[], object]) -> bool:
        """In the sender's thread: run an act once everything is sent, and return True."""
        return self._sender is not None and self._sender.put_off(act)

    def close(self) -> None:
        """Send everything that was put, and end the thread; raises as flush."""
        self._is_closed = True
        if self._sender is not None and self._sender.is_alive:
            self._sender.finish()
            self._sender.raise_untold(None)


_SENDERS: WeakSet[_Sender] = WeakSet()


@atexit.register
def _finish_all() -> None:
    """Before the interpreter ends: its daemon threads are stopped anywhere after this."""
    for sender in list(_SENDERS):
        sender.finish()
