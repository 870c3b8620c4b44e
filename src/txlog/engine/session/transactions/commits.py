"""Owns CommitQueue: the commits that a client has begun and not waited for, and their thread.

    commit_async   the caller's thread: the calls of the transaction join the queue of the store
    finish         the thread: it leads a group of the store until the oldest commit has its outcome
    answer         the future is done; its callbacks run in the thread

1. Commits take effect in the order of the calls. The queue of the store keeps that order, except
   when a call must be repeated after a sweep: then a commit waits until its predecessor is decided.
2. Each transaction has a frame of its own, and is refused alone. All frames that a leader finds in
   the queue share a lock and a flush.
3. When the store fails and the outcome of a commit is unknown, the commits after it are unknown,
   too, if their frames may be written. The others get TryAgain: they are not tried, since they came
   after one that may be lost, and their transactions are open again.
4. A commit starts the thread, which ends when it has had nothing to do for IDLE_S. The client and
   the interpreter end only when every commit has its outcome.
5. A forked child inherits neither the thread nor a lock that it could release, so each of its calls
   raises AlreadyClosed (R27).
6. An interrupt may end a call between any two steps, and leave a lock of Python code, such as the
   lock of a Condition, taken for ever. So `with` takes plain locks only, callers wait at gates, and
   the thread waits for no lock of a future. A caller that finds the thread dead starts a new one.

Pipeline bounds the transactions of a loop whose commits are in flight.
"""

from __future__ import annotations

import atexit
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures._base import FINISHED, RUNNING
from contextlib import AbstractContextManager, suppress
from threading import Lock, RLock, Thread, current_thread, get_ident
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar
from weakref import WeakSet

from txlog.errors import (
    AlreadyClosed,
    InvalidArgument,
    NoResources,
    NotAllowed,
    OutcomeUnknown,
    TryAgain,
    TxlogError,
)

if TYPE_CHECKING:
    from txlog.engine.decide.transactions.transaction import EndAnswer
    from txlog.engine.store.store import Store

IN_FLIGHT_MAX: Final = 1_000
IDLE_S: Final = 1.0
LOOK_AGAIN_S: Final = (
    0.1  # a caller that waits looks again, in case a wake-up or the thread is lost
)
HELD_S: Final = 1.0
CLOSE_S: Final = 10.0  # for a thread that has nothing left to do


class Open(Protocol):
    """A transaction, as far as a pipeline uses it."""

    @property
    def state(self) -> str: ...
    def commit_async(self) -> CommitFuture: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


T = TypeVar("T", bound=Open)


class Ending(Protocol):
    """A commit in the queue."""

    future: CommitFuture

    @property
    def is_decided(self) -> bool:
        """Whether the commit is decided, so that a later one comes after it."""

    @property
    def failure(self) -> BaseException | None:
        """The error of the commit, as soon as any thread knows it."""

    def finish(self) -> EndAnswer:
        """Wait for the outcome of the calls, leading groups meanwhile; raises its error."""

    def give_up(self, error: TxlogError) -> bool:
        """Fail with an error if no thread decides the calls yet; returns whether that is so."""


class CommitFuture(Future["EndAnswer"]):
    """The answer of `Transaction.commit_async`, or the error that `commit` would raise.

    As a `concurrent.futures.Future` it works with `wait`, `as_completed` and `asyncio.wrap_future`.
    `cancel` returns False: a commit that was asked for cannot be recalled.
    """

    def __init__(self, queue: CommitQueue, ending: Ending) -> None:
        """ending: the commit, as long as it is in flight"""
        super().__init__()
        self._state = RUNNING  # as set_running_or_notify_cancel, but no thread knows it yet
        self._queue = queue
        self._ending: Ending | None = ending
        self._failure: BaseException | None = None
        self._gate: Any = Lock()
        self._gate.acquire()
        self.is_over = False

    def is_of(self, queue: CommitQueue) -> bool:
        """Whether the commit is one of this queue, whose commits end in order."""
        return self._queue is queue

    @property
    def failure(self) -> BaseException | None:
        """The error of the commit, perhaps before the future is done."""
        ending = self._ending
        error = None if ending is None else ending.failure
        return self._failure if error is None else error

    def over(self, error: BaseException | None) -> None:
        """Note the outcome, and let go of the commit."""
        self._failure, self._ending = error, None

    def result(self, timeout: float | None = None) -> EndAnswer:
        """The answer of the commit; waits for it, at most `timeout` seconds.

        raises: the error of the commit; TimeoutError; NotAllowed in a callback, which runs in the
                thread that commits; AlreadyClosed in a forked child
        """
        error = self.exception(timeout)
        if error is not None:
            raise error
        assert self._result is not None
        return self._result

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error of the commit, None if it succeeded; waits as `result`."""
        self.wait(timeout)
        return self._exception

    def wait(self, timeout: float | None = None) -> None:
        """Wait for the outcome, at most `timeout` seconds. Raises TimeoutError, NotAllowed."""
        if self.is_over:
            return
        self._queue.check_may_wait()
        limit = None if timeout is None else monotonic() + timeout
        while not self.is_over:
            seconds = LOOK_AGAIN_S if limit is None else min(LOOK_AGAIN_S, limit - monotonic())
            if seconds <= 0:
                raise TimeoutError
            if self._gate.acquire(True, seconds):
                self._gate.release()
            else:
                self._queue.look_after()

    def settle(self, answer: EndAnswer | None, error: BaseException | None) -> None:
        """Take the outcome; in the thread of the queue."""
        condition: Any = self._condition
        is_held = condition.acquire(timeout=HELD_S)  # an interrupt may have left it taken
        try:
            self._result, self._exception = answer, error
            self._state = FINISHED
            for waiter in self._waiters:
                if error is None:
                    waiter.add_result(self)
                else:
                    waiter.add_exception(self)
            if is_held:
                condition.notify_all()
        finally:
            if is_held:
                condition.release()
        self.is_over = True
        self._gate.release()

    def call_back(self) -> None:
        """Run the callbacks; Future logs the errors that they raise."""
        self._invoke_callbacks()  # type: ignore[attr-defined]


class CommitQueue:
    """The commits in flight of one client, in the order of their calls."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pid = store.disk.pid()
        self._endings: deque[Ending] = deque()
        self._lock = RLock()  # a signal handler may commit, too
        self._work: Any = Lock()  # a gate: open while there may be work for the thread
        self._work.acquire()
        self._gone: Any = Lock()  # a gate: open when a thread has ended
        self._gone.acquire()
        self._thread: Thread | None = None
        self._is_closed = False
        _QUEUES.add(self)

    def __len__(self) -> int:
        return len(self._endings)

    @property
    def last(self) -> Ending | None:
        """The newest commit without an outcome."""
        try:
            return self._endings[-1]
        except IndexError:
            return None

    def has(self, ending: Ending) -> bool:
        """Whether a commit is in the queue."""
        return any(other is ending for other in list(self._endings))

    def new_future(self, ending: Ending) -> CommitFuture:
        """The future of a commit."""
        return CommitFuture(self, ending)

    def held(self) -> AbstractContextManager[object]:
        """The lock under which a commit joins this queue and the queue of the store."""
        self.check_alive()
        return self._lock

    def put(self, ending: Ending) -> None:
        """Add a commit; under the lock. Raises AlreadyClosed, NoResources."""
        if self._is_closed:
            raise AlreadyClosed("the store is closed", hint="open it again")
        self._need_thread()
        self._endings.append(ending)
        self._ring()

    def wait_for_all(self) -> None:
        """Wait until the commits that are in flight now have their outcomes."""
        self.check_may_wait()
        for ending in list(self._endings):
            ending.future.wait()

    def check_alive(self) -> None:
        """Raises AlreadyClosed in a forked child."""
        self._store.check_process()

    def check_may_wait(self) -> None:
        """Raises NotAllowed in the thread of this queue, or inside `commit_async`, where a signal
        handler may call; AlreadyClosed in a forked child.
        """
        self.check_alive()
        if self.is_own_thread():
            raise NotAllowed(
                "a callback of a commit waits for a commit, which only its own thread can finish",
                hint="wait in another thread",
            )
        if self._is_inside():
            raise NotAllowed(
                "a signal handler inside commit_async waits for a commit",
                hint="commit after that call has returned",
            )

    def put_off(self, act: Callable[[], object]) -> bool:
        """In a callback of a commit, or inside commit_async: run an act in another thread; else
        return False.
        """
        if not self.is_own_thread() and not self._is_inside():
            return False
        Thread(target=act, name="txlog-close").start()
        return True

    def close(self) -> None:
        """Wait until every commit has its outcome; the thread ends. Raises no error of a commit."""
        if self._store.disk.pid() != self._pid or self.is_own_thread():
            return
        self._is_closed = True
        for ending in list(self._endings):
            ending.future.wait()
        self._ring()
        limit = monotonic() + CLOSE_S
        while (thread := self._thread) is not None and thread.is_alive() and monotonic() < limit:
            if self._gone.acquire(True, LOOK_AGAIN_S):
                self._gone.release()

    def look_after(self) -> None:
        """Start a thread if an interrupt or a callback has ended it, while commits wait."""
        if self._endings:
            with self._lock:
                self._need_thread()

    def is_own_thread(self) -> bool:
        """Whether this is the thread that commits."""
        return self._thread is not None and self._thread.ident == get_ident()

    def _is_inside(self) -> bool:
        """True in `commit_async` of this thread: we are in a signal handler."""
        lock: Any = self._lock  # typeshed lacks `_is_owned`
        return bool(lock._is_owned())

    def _ring(self) -> None:
        with suppress(RuntimeError):  # the gate is open
            self._work.release()

    def _need_thread(self) -> None:
        thread = self._thread
        if thread is not None and thread.is_alive():
            return
        self._gone.acquire(False)  # an earlier thread may have opened it
        self._thread = thread = Thread(target=self._run, name="txlog-commit", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            self._thread = None
            raise NoResources(
                "no thread can be started to commit", hint="use commit, which needs none"
            ) from error

    def _run(self) -> None:
        while (ending := self._next()) is not None:
            self._finish(ending)
            del ending  # a thread that waits keeps no transaction

    def _next(self) -> Ending | None:
        """The oldest commit; waits for one. None: the thread must end."""
        has_waited = False
        while True:
            with self._lock:
                if self._thread is not current_thread():  # another one has been started
                    return None
                if self._endings:
                    return self._endings[0]
                if self._is_closed or has_waited:
                    self._thread = None  # under the lock: the next commit starts another one
                    with suppress(RuntimeError):
                        self._gone.release()
                    return None
            has_waited = not self._work.acquire(True, IDLE_S)

    def _finish(self, ending: Ending) -> None:
        """Give a commit its outcome. It leaves the queue when its callbacks have run: `close` waits
        for them.
        """
        answer: EndAnswer | None = None
        error: BaseException | None = None
        try:
            answer = ending.finish()
        except BaseException as failure:  # its callers wait for this thread alone
            error = failure
        if isinstance(error, OutcomeUnknown):
            for later in list(self._endings)[1:]:
                later.give_up(not_tried(error))
        ending.future.settle(answer, error)
        try:
            ending.future.call_back()
        except BaseException as failure:  # the other commits need this thread
            self._store.note(f"a callback of a commit failed: {failure!r}")
        finally:
            self._endings.popleft()


def not_tried(error: BaseException) -> TryAgain:
    """The error of a commit that comes after a failed one."""
    if isinstance(error, OutcomeUnknown):
        failed = TryAgain(
            f"not committed, since the outcome of a commit before it is unknown: {error}",
            hint="ask for that outcome, then commit again, or abort",
        )
    else:
        failed = TryAgain(
            f"not committed, since a commit on which it depends failed: {error}",
            hint="repeat that transaction first, or abort",
        )
    failed.__cause__ = error
    return failed


_QUEUES: WeakSet[CommitQueue] = WeakSet()


@atexit.register
def _finish_all() -> None:
    """Commit before the interpreter ends: after this it stops its daemon threads at any point."""
    for queue in list(_QUEUES):
        queue.close()


# --- a loop of transactions ----------------------------------------------------------------------


class Pipeline(Generic[T]):
    """Transactions whose commits overlap: the next one is computed while others are flushed.

    Each commits at the end of its block without waiting, in the order of the blocks. A new one
    waits while `max_in_flight` commits have no outcome. The error of a commit is raised by the next
    `transaction`, by `wait`, or at the end of the pipeline; later transactions are not affected,
    except as in `commit_async`.

    >>> import tempfile, txlog
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = txlog.init(folder)
    ...     with txlog.open(folder) as client:
    ...         _ = client.create_topic("orders")
    ...         producer = client.producer("orders")
    ...         with client.pipeline(max_in_flight=8) as pipeline:
    ...             for number in range(20):
    ...                 with pipeline.transaction() as txn:
    ...                     _ = producer.send_async(b"%d" % number, txn=txn)
    ...         pipeline.committed
    20
    """

    def __init__(self, begin: Callable[[], T], max_in_flight: int) -> None:
        """begin: opens a transaction. Raises InvalidArgument."""
        if isinstance(max_in_flight, bool) or not isinstance(max_in_flight, int):
            raise InvalidArgument(f"max_in_flight is {max_in_flight!r}, it must be an integer")
        if not 1 <= max_in_flight <= IN_FLIGHT_MAX:
            raise InvalidArgument(
                f"max_in_flight is {max_in_flight}, it must be 1 to {IN_FLIGHT_MAX}", code=203
            )
        self._begin, self._max = begin, max_in_flight
        self._futures: deque[CommitFuture] = deque()
        self.committed = 0

    def __repr__(self) -> str:
        return f"<txlog.Pipeline, {self.in_flight} commits in flight>"

    @property
    def in_flight(self) -> int:
        """How many commits have no outcome yet."""
        return sum(not future.is_over for future in self._futures)

    def transaction(self) -> PipelinedTransaction[T]:
        """The next transaction, for a `with` block. Waits while too many commits are in flight.

        raises: the error of an earlier commit, once
        """
        futures, most = self._futures, self._max
        while futures and (len(futures) >= most or futures[0].is_over):
            self._take_oldest()
        return PipelinedTransaction(self, self._begin())

    def put(self, future: CommitFuture) -> None:
        """Take a commit that has begun."""
        self._futures.append(future)

    def wait(self) -> None:
        """Wait until every commit has its outcome; raises the first error, once."""
        error: BaseException | None = None
        while self._futures:
            try:
                self._take_oldest()
            except TxlogError as failure:
                error = error or failure
        if error is not None:
            raise error

    def _take_oldest(self) -> None:
        future = self._futures[0]
        try:
            future.result()
        finally:
            if future.is_over:  # an interrupt of the wait leaves it in flight
                self._futures.popleft()
        self.committed += 1

    def __enter__(self) -> Pipeline[T]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.wait()
            return
        try:
            self.wait()
        except TxlogError as failure:  # the block's error is the cause
            if error is not None:
                error.add_note(f"a commit in flight failed: {failure}")


class PipelinedTransaction(Generic[T]):
    """A block in a pipeline: commits without waiting at its end, aborts when the block raises."""

    def __init__(self, pipeline: Pipeline[T], txn: T) -> None:
        self._pipeline, self._txn = pipeline, txn

    def __enter__(self) -> T:
        return self._txn

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        txn = self._txn
        if kind is None and txn.state == "OPEN":
            self._pipeline.put(txn.commit_async())
            return
        txn.__exit__(kind, error, trace)
