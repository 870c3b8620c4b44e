"""Owns Mutex: one call at a time in the process that made it, however the call ends.

The mutex asks the lock itself whether this thread holds it, in one step of C. A flag would not do:
an interrupt may come between any two steps of Python, before the call sets the flag. The stack
shows whether that call is still running. So the mutex can tell a running call from a hold that an
interrupt left behind.

1. A call from within a call of the same thread would find everything half done, so it is refused.
   Such calls come from `__del__`, which the collector may run anywhere, or from a signal handler.
   Clean-up is put off until the outer call has ended.
2. A forked child inherits the lock as it was at that moment. If another thread of the parent held
   it, no thread of the child ever frees it. With a plain lock the child would wait for ever. But
   its descriptors are closed anyway, so the child gets an error (R27).
3. While a thread waits for its turn, another thread may do its work. The waiter must learn this
   without getting the lock, which the next thread may already have. So it waits at a gate of its
   own, and not for the lock. On release, the thread opens the gate of every waiter whose work is
   done, and of one more waiter, which takes the lock. If another thread was faster, that thread
   will release it again. A waiter enters the row of waiters before it tries the lock once more, so
   the holder then sees it there. An interrupt may swallow an opening, so no thread waits at a gate
   longer than LOOK_AGAIN_S. Threads that are always faster may not do its work: from the second
   opening on, the waiter waits for the lock itself, as they do.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, suppress
from threading import Lock, RLock
from types import CodeType, FrameType
from typing import Any, TypeVar, overload

from txlog.errors import AlreadyClosed, NotAllowed, may_be_of_handler

T = TypeVar("T")
LOOK_AGAIN_S = 0.1
TRIES = 2  # at a gate


class Mutex:
    """A lock that is free again once the call that took it has ended.

    has_refused: during the running call, another call was refused inside it, whose error may have
                 cut short any step of the running call
    """

    __slots__ = ("_later", "_lock", "_owner", "_pid", "_report", "_waiting", "has_refused")

    def __init__(self, pid: Callable[[], int], report: Callable[[str], None] | None = None) -> None:
        self._lock: Any = RLock()  # typeshed lacks `_is_owned`, which Condition uses, too
        self._pid = pid
        self._owner = pid()
        self._report = report
        self._later: deque[Callable[[], object]] = deque()
        self._waiting: dict[Any, Callable[[], bool]] = {}  # by gate, in order of arrival
        self.has_refused = False

    @overload
    def run(self, act: Callable[[], T]) -> T: ...

    @overload
    def run(self, act: Callable[[], T], is_done: Callable[[], bool]) -> T | None: ...

    def run(self, act: Callable[[], T], is_done: Callable[[], bool] | None = None) -> T | None:
        """Run an act while no other thread runs one.

        The lock is released twice: an interrupt may cut short the first attempt anywhere.
        is_done: called while this thread waits, by any thread: whether another thread has done the
                 work; raises nothing
        returns: the result of the act; None if the work was done meanwhile and the act did not run
        raises:  NotAllowed, inside another call of this thread; AlreadyClosed in a forked child
        """
        if self._pid() != self._owner:
            self._refuse_child()
        lock = self._lock
        if lock._is_owned():
            self._refuse_or_free()
        has_turn = is_done is None
        try:
            try:
                if is_done is None:
                    lock.acquire()
                else:
                    has_turn = lock.acquire(False) or self._wait(is_done)
                    if not has_turn:
                        return None
                self.has_refused = False
                return act()
            finally:
                if lock._is_owned():
                    lock.release()
                    if self._waiting:
                        self._wake()
        finally:
            if lock._is_owned():
                lock.release()
                self._wake()
            if has_turn and self._later:
                self._tidy()

    def _wait(self, is_done: Callable[[], bool]) -> bool:
        """Wait for the lock; True when this thread has it, False when its work is done."""
        gate: Any = Lock()
        gate.acquire()
        is_held, opened = False, 0
        try:
            try:
                self._waiting[gate] = is_done  # before the next try
                while not is_held:
                    if opened >= TRIES:
                        is_held = self._lock.acquire(True, LOOK_AGAIN_S)
                    else:
                        is_held = self._lock.acquire(False)
                        if not is_held:
                            opened += gate.acquire(True, LOOK_AGAIN_S)
                    if not is_held:
                        if self._pid() != self._owner:
                            self._refuse_child()
                        if is_done():
                            break
            finally:
                self._waiting.pop(gate, None)
        finally:
            self._waiting.pop(gate, None)
        return is_held

    def _wake(self) -> None:
        """Open the gate of each waiter whose work is done, and of the first other waiter."""
        has_next = False
        # list() allocates before it copies, so no finalizer can change the row meanwhile
        for gate in list(self._waiting):
            is_done = self._waiting.get(gate)
            if is_done is None or not gate.locked() or (has_next and not is_done()):
                continue
            has_next = has_next or not is_done()
            with suppress(RuntimeError):  # another thread was faster
                gate.release()

    def held(self) -> AbstractContextManager[object]:
        """Return the lock for `with`; its thread may enter again: for turns whose steps are calls.

        Python takes and frees it in one C step each, which no signal can interrupt.
        """
        if self._pid() != self._owner:
            self._refuse_child()
        lock: AbstractContextManager[object] = self._lock
        return lock

    def is_inside(self) -> bool:
        """True inside a call of this thread: we are in `__del__` or a signal handler."""
        return self._lock._is_owned() and is_called(_RUN, self, sys._getframe(1))

    def put_off(self, act: Callable[[], object]) -> bool:
        """Inside a call: run an act when that call has ended, and return True; otherwise return
        False.

        An error of the act goes to the report, as no caller waits for it.
        """
        if not self.is_inside():
            return False
        self._later.append(act)
        return True

    def _refuse_child(self) -> None:
        raise AlreadyClosed(
            "the store was opened by another process, and this one is its child",
            hint="open it again, after the fork",
        )

    def _refuse_or_free(self) -> None:
        if self.is_inside():
            self.has_refused = True
            raise NotAllowed(
                "called from within another call on this store, from __del__ or a signal handler",
                hint="call it after that call has returned",
            )
        while self._lock._is_owned():  # left by two interrupts in a row
            self._lock.release()

    def _tidy(self) -> None:
        while self._later:
            try:
                act = self._later.popleft()
            except IndexError:  # another thread was faster
                return
            try:
                act()
            except Exception as error:  # the call that put it off is over
                if may_be_of_handler(error):
                    raise
                if self._report is not None:
                    self._report(f"an act put off until another call ended failed: {error}")


_RUN = frozenset([Mutex.run.__code__])


def is_called(functions: Collection[CodeType], of: object, frame: FrameType | None) -> bool:
    """True if a frame or one of its callers runs such a method of this object."""
    while frame is not None:
        if frame.f_code in functions and frame.f_locals.get("self") is of:
            return True
        frame = frame.f_back
    return False
