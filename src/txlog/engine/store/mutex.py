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
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from threading import RLock
from types import FrameType
from typing import Any, TypeVar

from txlog.errors import AlreadyClosed, NotAllowed

T = TypeVar("T")


class Mutex:
    """A lock that is free again once the call that took it has ended.

    has_refused: since the running call began, another was refused inside it, whose error may have
                 cut short any step of the running one
    """

    __slots__ = ("_later", "_lock", "_owner", "_pid", "_report", "has_refused")

    def __init__(self, pid: Callable[[], int], report: Callable[[str], None] | None = None) -> None:
        self._lock: Any = RLock()  # typeshed does not know `_is_owned`, which Condition uses too
        self._pid = pid
        self._owner = pid()
        self._report = report
        self._later: deque[Callable[[], object]] = deque()
        self.has_refused = False

    def run(self, act: Callable[[], T]) -> T:
        """Run an act while no other thread runs one.

        Freed twice: an interrupt may cut short the first attempt anywhere.
        raises: NotAllowed, inside another call of this thread; AlreadyClosed in a forked child
        """
        if self._pid() != self._owner:
            self._refuse_child()
        lock = self._lock
        if lock._is_owned():
            self._refuse_or_free()
        try:
            try:
                with lock:
                    self.has_refused = False
                    return act()
            finally:
                if lock._is_owned():
                    lock.release()
        finally:
            if self._later:
                self._tidy()

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
        if not self._lock._is_owned():
            return False
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_code is _RUN and frame.f_locals.get("self") is self:
                return True
            frame = frame.f_back
        return False

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
            except Exception as error:
                if self._report is not None:
                    self._report(f"an act put off until another call ended failed: {error}")


_RUN = Mutex.run.__code__
