"""Owns Mutex: one call at a time in the process that made it, whatever ends the call.

Who holds it is asked of the lock itself, in one step of C, and never of what a call got round to
noting: an interrupt may come between any two steps of Python. Whether that call is still running is
asked of the stack. So a hold that an interrupt left behind can be told from a call that is under
way.

1. A call from within a call of the same thread (from `__del__`, which the collector may run
   anywhere, or from a signal handler) would find everything half done: it is refused. What only
   cleans up is put off until the outer call has ended.
2. A child of a fork inherits the lock as it was at that moment. If another thread of its parent
   held it, nobody ever frees it there. With a plain lock the child would wait for ever; but its
   descriptors are closed, and it has to be told so (R27).
3. Whoever waits for its turn may learn without it that another thread has done what it came for.
   So it does not wait for the lock, which the next one may already have, but at a gate of its own.
   Whoever frees the lock opens the gates of those whose acts are done, and of one other, who then
   takes the lock, or finds that somebody was faster, who will free it again. As a thread enters the
   row of the waiting before it tries the lock once more, whoever has the lock then sees it there.
   An interrupt may swallow an opening; so nobody stands at a gate longer than LOOK_AGAIN_S. Those
   who are always faster may be others than do its act: from the second time on it waits for the
   lock itself, as they do.
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

    has_refused: since the running call began, another was refused inside it, whose error may have
                 cut short any step of the running one
    """

    __slots__ = ("_later", "_lock", "_owner", "_pid", "_report", "_waiting", "has_refused")

    def __init__(self, pid: Callable[[], int], report: Callable[[str], None] | None = None) -> None:
        self._lock: Any = RLock()  # typeshed does not know `_is_owned`, which Condition uses too
        self._pid = pid
        self._owner = pid()
        self._report = report
        self._later: deque[Callable[[], object]] = deque()
        self._waiting: dict[Any, Callable[[], bool]] = {}  # by gate, in the order they came
        self.has_refused = False

    @overload
    def run(self, act: Callable[[], T]) -> T: ...

    @overload
    def run(self, act: Callable[[], T], is_done: Callable[[], bool]) -> T | None: ...

    def run(self, act: Callable[[], T], is_done: Callable[[], bool] | None = None) -> T | None:
        """Run an act while no other thread runs one.

        Freed twice: an interrupt may cut short the first attempt anywhere.
        is_done: asked while it waits, by any thread: whether another has done what the act is for;
                 raises nothing
        returns: what the act does; None if it was done meanwhile, so that it was not run
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
        """Wait for the lock; True when this thread has it, False when the act is done."""
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
        """Open the gates of all whose acts are done, and of the first other that is closed."""
        has_next = False
        # a list is there before it is filled: no finalizer may change the row meanwhile
        for gate in list(self._waiting):
            is_done = self._waiting.get(gate)
            if is_done is None or not gate.locked() or (has_next and not is_done()):
                continue
            has_next = has_next or not is_done()
            with suppress(RuntimeError):  # another thread was faster
                gate.release()

    def held(self) -> AbstractContextManager[object]:
        """For `with`; its thread may enter again: for turns whose steps are calls themselves.

        It is taken and freed in one C step each, which no signal can interrupt.
        """
        if self._pid() != self._owner:
            self._refuse_child()
        lock: AbstractContextManager[object] = self._lock
        return lock

    def is_inside(self) -> bool:
        """True inside a call of this thread: we are in `__del__` or a signal handler."""
        return self._lock._is_owned() and is_called(_RUN, self, sys._getframe(1))

    def put_off(self, act: Callable[[], object]) -> bool:
        """Inside a call: have an act run when it has ended, and return True; else False.

        Its error is reported, as nobody waits for it.
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
            except Exception as error:  # its caller has gone, and this one asked for nothing
                if may_be_of_handler(error):
                    raise
                if self._report is not None:
                    self._report(f"an act put off until another call ended failed: {error}")


_RUN = frozenset([Mutex.run.__code__])


def is_called(functions: Collection[CodeType], of: object, frame: FrameType | None) -> bool:
    """True if a frame, or one that called it, is of one of these methods of an object."""
    while frame is not None:
        if frame.f_code in functions and frame.f_locals.get("self") is of:
            return True
        frame = frame.f_back
    return False
