"""Owns Worker: the thread in which the calls of one asynchronous client run, one after another.

A call of the engine blocks, for a lock or a flush, so it cannot run in the event loop; and the
calls of one store handle run one at a time anyway, so one thread is enough for any number of tasks.

    task      ──run──▶ queue ──▶ worker thread: act ──▶ outcome ──▶ task
    cancelled          dropped                     undone

A call that waits by itself would block all others, so it runs *aside*, in a thread of its own.
Every call runs in a copy of its task's context, so it acts for the same user as the task.

A task may be cancelled while it waits for its call. If the call has not begun, it never runs. If it
has, nothing can stop it half way: it runs to its end, and then the same thread undoes it, which
returns a message or closes a handle.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from threading import Lock
from time import monotonic
from typing import Any, Generic, TypeVar

from txlog.engine.door.store import Call, Store, View
from txlog.errors import AlreadyClosed, TxlogError

T = TypeVar("T")
Undo = Callable[[T], object]
Prepare = Callable[[View], Call | None]
Begin = Callable[[], Prepare | Call | None]
ASIDE_MAX = 32  # how many calls run aside at once; more calls queue for one of these threads
FRAME_MAX = 100  # calls that are decided under one lock, and share a frame
TOGETHER_SECONDS = 0.01  # after that, calls that run together get the answers so far


class Worker:
    """One thread, which begins with the first call and ends with `close`."""

    __slots__ = ("_aside", "_is_closed", "_is_ours", "_pool", "_report")

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "txlog-aio")
        self._aside: ThreadPoolExecutor | None = None  # for calls that wait by themselves
        self._is_ours: Callable[[], bool] = lambda: True
        self._is_closed = False
        self._report: Callable[[str], object] = str

    async def run(
        self,
        act: Callable[[], T],
        undo: Undo[T] | None = None,
        *,
        keeps: bool = False,
        aside: bool = False,
    ) -> T:
        """Run a call in the worker thread; returns its answer, or raises its error.

        undo:   called with the answer if the task was cancelled after the call had begun
        keeps:  run the call even if the task is cancelled before it begins, as for closing a handle
        aside:  the call may wait for something, so run it in a thread of its own
        raises: AlreadyClosed, after close or in a forked child; CancelledError
        """
        self._check()
        job = _Job(act, self.given_back(undo))
        act_as = copy_context().run
        future = (self._beside() if aside else self._pool).submit(act_as, job.run)
        if keeps:
            return await asyncio.shield(asyncio.wrap_future(future))
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if not future.cancel() and job.abandon() and not self._is_closed:
                self._pool.submit(copy_context().run, job.give_back)
            raise

    def leave(self, act: Callable[[], object]) -> None:
        """Run a call after all calls so far, without waiting for it; its error becomes a note."""
        if not self._is_closed:
            reported = self.given_back(lambda _: act())
            self._pool.submit(copy_context().run, reported, None)

    async def finish(self, act: Callable[[], T], undo: Undo[T] | None = None) -> T:
        """Run a call, and return no earlier than its end, also if the task is cancelled meanwhile.

        For calls with an object of the user, which he may use again as soon as this returns.
        undo:   called with the answer, in the same way, if the task was cancelled
        raises: as `run`
        """
        self._check()
        done = asyncio.wrap_future(self._pool.submit(copy_context().run, act))
        cancelled: asyncio.CancelledError | None = None
        while not done.done():
            try:
                await asyncio.wait([done])
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is None:
            return done.result()
        failure = done.exception()
        if undo is not None and failure is None:
            await self.finish(partial(self.given_back(undo), done.result()))
        raise cancelled from failure

    def _beside(self) -> ThreadPoolExecutor:
        if self._aside is None:
            self._aside = ThreadPoolExecutor(ASIDE_MAX, "txlog-aio-aside")
        return self._aside

    async def close(self, last: Callable[[], object]) -> None:
        """Run a last call after all others; then the thread ends. A second close does nothing."""
        if self._is_closed:
            return
        self._check()
        future = self._pool.submit(last)
        self.stop()
        await asyncio.shield(asyncio.wrap_future(future))

    def stop(self) -> None:
        """Refuse further calls; the thread ends after the calls it has."""
        self._is_closed = True
        self._pool.shutdown(wait=False)
        if self._aside is not None:
            self._aside.shutdown(wait=False, cancel_futures=True)

    def belong_to(self, pid: Callable[[], int], report: Callable[[str], object]) -> None:
        """Refuse calls in a forked child, which has no worker thread.

        report: called with a message if undoing a cancelled call fails
        """
        self._report = report
        owner = pid()
        self._is_ours = lambda: pid() == owner

    def _check(self) -> None:
        if self._is_closed:
            raise AlreadyClosed("the client is closed")
        if not self._is_ours():
            raise AlreadyClosed(
                "the store was opened by another process, and this one is its child",
                hint="open it again, after the fork",
            )

    def given_back(self, undo: Undo[T] | None) -> Undo[T]:
        """An undo that reports its error instead of raising it."""

        def give_back(answer: T) -> None:
            try:
                if undo is not None:
                    undo(answer)
            except TxlogError as error:
                self._report(f"what a cancelled call had taken was not given back: {error}")

        return give_back


class _Job(Generic[T]):
    """A call, and whether its task still waits for it."""

    def __init__(self, act: Callable[[], T], undo: Undo[T]) -> None:
        self._act, self._undo = act, undo
        self._lock = Lock()
        self._made: tuple[T] | None = None
        self._is_abandoned = False

    def run(self) -> T:
        answer = self._act()
        with self._lock:
            self._made = (answer,)
            if not self._is_abandoned:
                return answer
        self._undo(answer)
        return answer

    def abandon(self) -> bool:
        """Note that the task was cancelled; True: the call has ended, so run `give_back`."""
        with self._lock:
            self._is_abandoned = True
            return self._made is not None

    def give_back(self) -> None:
        assert self._made is not None
        self._undo(self._made[0])


class _Joined(_Job[T]):
    """A call that runs together with others. The loop takes its outcome to its task.

    begin, answered: as in `Together.run`
    """

    def __init__(
        self,
        act: Callable[[], T],
        undo: Undo[T],
        begin: Begin,
        answered: asyncio.Future[T],
    ) -> None:
        super().__init__(act, undo)
        self._begin, self.answered = begin, answered
        self._act_as = copy_context().run
        self.error: BaseException | None = None

    def begin(self) -> Prepare | Call | None:
        try:
            return self._act_as(self._begin)
        except Exception as error:  # of this call alone
            self.error = error
            return None

    def act(self) -> None:
        if self.error is None:
            try:
                self._act_as(self.run)
            except Exception as error:  # of this call alone
                self.error = error

    def tell(self) -> None:
        """In the loop: give the task its outcome."""
        if self.answered.done():
            return
        if self._made is not None:
            self.answered.set_result(self._made[0])
        elif self.error is None or isinstance(self.error, asyncio.CancelledError):
            self.answered.cancel()
        else:
            self.answered.set_exception(self.error)


class Together:
    """Runs the calls of one turn of the loop, and those that come meanwhile, as one of the worker.

    Many tasks wake in the same turn, and each looks for messages or acknowledges some. The store
    decides their calls under one lock, in one frame. Then each task goes on, with an outcome of its
    own. A call that the store refuses decides alone, and keeps no other from its answer.

    shared: a cache for the calls of one run, which the worker empties after them
    """

    __slots__ = ("_jobs", "_store", "_task", "_worker", "shared")

    def __init__(self, store: Store, worker: Worker) -> None:
        self._store, self._worker = store, worker
        self._jobs: list[_Joined[Any]] = []
        self._task: asyncio.Task[None] | None = None
        self.shared: dict[Hashable, Any] = {}

    async def run(self, act: Callable[[], T], undo: Undo[T] | None, begin: Begin) -> T:
        """Run a call in the worker thread; returns its answer, or raises its error.

        undo:   as in `Worker.run`
        begin:  runs before `act`, in the worker; returns the call of the store whose answer `act`
                takes, or a function that makes it from a view, or None
        raises: as `Worker.run`
        """
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[T] = loop.create_future()
        job = _Joined(act, self._worker.given_back(undo), begin, answered)
        self._jobs.append(job)
        if self._task is None:
            self._task = loop.create_task(self._run_all())
        try:
            return await answered
        except asyncio.CancelledError:
            if job in self._jobs:
                self._jobs.remove(job)
            elif job.abandon():
                self._worker.leave(job.give_back)
            raise

    async def _run_all(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._jobs:
                jobs, self._jobs = self._jobs, []
                try:
                    await self._worker.run(partial(self._act, jobs, loop))
                except BaseException as error:  # the client is closed
                    for job in jobs:
                        job.error = job.error or error
                    if not isinstance(error, Exception):
                        raise
                finally:
                    _tell(jobs)
        finally:
            self._task = None

    def _act(self, jobs: list[_Joined[Any]], loop: asyncio.AbstractEventLoop) -> None:
        needs = [need for job in jobs if (need := job.begin()) is not None]
        calls = [need for need in needs if isinstance(need, Call)]
        with suppress(TxlogError):  # each decides alone, and gets its own error
            if len(calls) < len(needs):
                calls += self._store.read(partial(_prepared, needs), waits=False)
            for at in range(0, len(calls), FRAME_MAX):
                self._store.submit(calls[at : at + FRAME_MAX])
        passed_on, moment = 0, monotonic()
        for count, job in enumerate(jobs):
            if monotonic() - moment > TOGETHER_SECONDS:
                with suppress(RuntimeError):  # the loop has been closed
                    loop.call_soon_threadsafe(_tell, jobs[passed_on:count])
                passed_on, moment = count, monotonic()
            job.act()
        self.shared.clear()


def _tell(jobs: list[_Joined[Any]]) -> None:
    for job in jobs:
        job.tell()


def _prepared(needs: list[Prepare | Call], view: View) -> list[Call]:
    calls = list[Call]()
    for need in needs:
        if not isinstance(need, Call):
            with suppress(TxlogError):  # its own turn decides, and raises the error
                if (call := need(view)) is not None:
                    calls.append(call)
    return calls
