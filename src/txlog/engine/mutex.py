"""Owns Mutex: one thread at a time, in the process that made it.

A child of a fork inherits the lock as it was at that moment. If another thread of its parent held
it, nobody ever frees it there: a plain lock would let the child wait for ever where its descriptors
are closed and it is to be told so (R27).
"""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from types import TracebackType

from txlog.errors import AlreadyClosed


class Mutex:
    """A lock that its thread may take again; in a forked child AlreadyClosed at once."""

    __slots__ = ("_lock", "_owner", "_pid")

    def __init__(self, pid: Callable[[], int]) -> None:
        self._lock = RLock()
        self._pid = pid
        self._owner = pid()

    def __enter__(self) -> None:
        if self._pid() != self._owner:
            raise AlreadyClosed(
                "the store was opened by another process, and this one is its child",
                hint="open it again, after the fork",
            )  # fmt: skip
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._lock.release()
