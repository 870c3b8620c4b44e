"""Owns Waits: the waiting calls of one asynchronous client, which cost nothing while they wait.

A call that waits looks in the worker's thread, rests in the event loop, and looks again. What ends
a rest is what ends it for threads (store/wakeups): the kernel makes one descriptor readable when
something has become durable, and the loop watches that descriptor for all waiting tasks together,
as long as there are any; or a timer of the loop, when the next message falls due. No thread waits.

Where the kernel tells nothing, or the loop cannot watch descriptors, tasks look again after short
pauses.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from txlog.aio.worker import Undo, Worker
from txlog.api.reading.pause import POLL_SECONDS_MAX, Rest, Waiting
from txlog.engine.store.store import Store
from txlog.engine.store.wakeups import STALL_SECONDS

T = TypeVar("T")


class Waits:
    """The rests of the tasks of one client."""

    __slots__ = ("_descriptor", "_loop", "_resting", "_stall", "_store", "_worker")

    def __init__(self, store: Store, worker: Worker) -> None:
        self._store, self._worker = store, worker
        self._resting: dict[asyncio.Future[None], int] = {}  # with the count that each has seen
        self._loop: asyncio.AbstractEventLoop | None = None
        self._descriptor = -1
        self._stall: asyncio.TimerHandle | None = None

    async def until(
        self,
        look: Callable[[bool], T | None],
        timeout_ms: int | None,
        rest: Rest,
        undo: Undo[T] | None = None,
    ) -> T | None:
        """What `look` returns once it is not None; None when time runs out (None: wait for ever).

        look:   given whether to be thorough; see api/reading/pause
        undo:   as of Worker.run
        raises: StoreNotFound if the store was removed meanwhile; what look raises
        """
        deadline = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        waiting = Waiting(self._store, rest)

        def give_back(made: tuple[T | None, float]) -> None:
            if undo is not None and made[0] is not None:
                undo(made[0])

        while True:
            is_over = deadline is not None and time.monotonic() >= deadline

            def turn(is_over: bool = is_over) -> tuple[T | None, float]:
                found = look(waiting.look() or is_over)
                over = found is not None or is_over
                return found, 0.0 if over else waiting.rest(deadline)

            found, seconds = await self._worker.run(turn, give_back)
            if found is not None or is_over:
                return found
            while seconds > 0:
                await self._rest(waiting.seen, seconds)
                seconds = waiting.rest_on()

    async def _rest(self, seen: int, seconds: float) -> None:
        """Rest until something is told after a count, at most so many seconds."""
        wakeups, loop = self._store.wakeups, asyncio.get_running_loop()
        if wakeups.count != seen:
            return
        if not self._listen(loop):
            await asyncio.sleep(min(seconds, POLL_SECONDS_MAX))
            return
        resting = loop.create_future()
        timer = loop.call_later(seconds, _end, resting)
        self._resting[resting] = seen
        try:
            if wakeups.count == seen:  # else a thread was told before it could pass that on
                await resting
        finally:
            timer.cancel()
            del self._resting[resting]
            if not self._resting:
                self.stop()

    def _listen(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Have the loop watch the descriptor; False if it cannot, or nobody tells."""
        descriptor = self._store.wakeups.fileno()
        if descriptor is None:
            return False
        if (descriptor, loop) == (self._descriptor, self._loop):
            return True
        self.stop()
        try:
            loop.add_reader(descriptor, self._told)
        except NotImplementedError:  # a loop that cannot watch descriptors
            return False
        self._descriptor, self._loop = descriptor, loop
        self._store.wakeups.pass_on = partial(_call_soon, loop, self._told)
        return True

    def _told(self) -> None:
        """The descriptor can be read: if it is news, every resting task looks."""
        wakeups = self._store.wakeups
        wakeups.drain()
        count = wakeups.count
        behind = [resting for resting, seen in self._resting.items() if seen != count]
        for resting in behind:
            _end(resting)
        if not behind and self._stall is None and self._loop is not None:
            # a flush has begun: if its process dies in it, nothing more is told
            self._stall = self._loop.call_later(STALL_SECONDS, self._look_after)

    def _look_after(self) -> None:
        self._stall = None
        if self._loop is not None:
            self._told()

    def stop(self) -> None:
        """Have the loop watch nothing any more."""
        loop, self._loop = self._loop, None
        self._store.wakeups.pass_on = None
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None
        if loop is not None and not loop.is_closed():
            loop.remove_reader(self._descriptor)
        self._descriptor = -1


def _call_soon(loop: asyncio.AbstractEventLoop, act: Callable[[], object]) -> None:
    with suppress(RuntimeError):  # it has ended meanwhile
        loop.call_soon_threadsafe(act)


def _end(resting: asyncio.Future[None]) -> None:
    if not resting.done():
        resting.set_result(None)
