"""Owns Worker: the thread in which the calls of one asynchronous client run, one after another.

A call of the engine blocks, for a lock or a flush, so it cannot run in the event loop; and the
calls of one store handle run one at a time anyway, so one thread is enough for any number of tasks.

    task      ──run──▶ queue ──▶ worker thread: act ──▶ outcome ──▶ task
    cancelled          dropped                     undone

An act that waits by itself would hold up all others, so it is told to run aside, in a thread of
its own.

An act runs in a copy of its task's context: whom the task acts for, the act does too.

A task may be cancelled while it waits. If its call has not begun, it never does. If it has,
nothing can stop it half way: it runs to its end, and what it took for the task (a message, a
handle) is given back in the same thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from threading import Lock
from typing import Generic, TypeVar

from txlog.errors import AlreadyClosed, TxlogError

T = TypeVar("T")
Undo = Callable[[T], object]
ASIDE_MAX = 32  # acts that wait by themselves at once, each in a thread; the next wait for one


class Worker:
    """One thread, which begins with the first call and ends with `close`."""

    __slots__ = ("_aside", "_is_closed", "_is_ours", "_pool", "_report")

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, "txlog-aio")
        self._aside: ThreadPoolExecutor | None = None  # of acts that wait by themselves
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
        """Run an act in the thread, and return or raise what it does.

        undo:   gives back what the act returned, if the task is cancelled meanwhile
        keeps:  the act ends something: it runs even if the task is cancelled before it begins
        aside:  it may wait for something: it runs in another thread, beside the other calls
        raises: AlreadyClosed, after close or in a forked child; CancelledError
        """
        self._check()
        job = _Job(act, self._given_back(undo))
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
        """Run an act after the calls so far, for nobody; what fails is reported."""
        if not self._is_closed:
            left = self._given_back(lambda _: act())
            self._pool.submit(copy_context().run, left, None)

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
        """Take no more calls; the thread ends with those it has."""
        self._is_closed = True
        self._pool.shutdown(wait=False)
        if self._aside is not None:
            self._aside.shutdown(wait=False, cancel_futures=True)

    def belong_to(self, pid: Callable[[], int], report: Callable[[str], object]) -> None:
        """Refuse calls in a forked child, which has no such thread.

        report: is told of what could not be given back
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

    def _given_back(self, undo: Undo[T] | None) -> Undo[T]:
        def give_back(made: T) -> None:
            try:
                if undo is not None:
                    undo(made)
            except TxlogError as error:
                self._report(f"what a cancelled call had taken was not given back: {error}")

        return give_back


class _Job(Generic[T]):
    """A call, and whether anybody still waits for it."""

    def __init__(self, act: Callable[[], T], undo: Undo[T]) -> None:
        self._act, self._undo = act, undo
        self._lock = Lock()
        self._made: tuple[T] | None = None
        self._is_abandoned = False

    def run(self) -> T:
        made = self._act()
        with self._lock:
            self._made = (made,)
            if not self._is_abandoned:
                return made
        self._undo(made)
        return made

    def abandon(self) -> bool:
        """Nobody waits any more; True: it had ended by then, and `give_back` is to be run."""
        with self._lock:
            self._is_abandoned = True
            return self._made is not None

    def give_back(self) -> None:
        assert self._made is not None
        self._undo(self._made[0])
