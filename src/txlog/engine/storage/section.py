"""Owns FileLock: acts that one process at a time runs, under a lock file of the store.

The lock is freed twice, as an interrupt may end the first attempt anywhere. It is freed whenever it
may be held: an interrupt can come between taking it and setting a flag. `LockFile.release` does no
harm where the handle holds nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, overload

from txlog.engine.storage.disk.protocol import Disk, LockFile
from txlog.errors import TxlogError

T = TypeVar("T")
U = TypeVar("U")


class FileLock:
    """Acts under one lock of the store, for one thread at a time.

    may_hold: set before the lock is taken, cleared when it is certainly free
    """

    __slots__ = ("_disk", "_lock", "_name", "_note", "may_hold")

    def __init__(self, disk: Disk, name: str, note: Callable[[str], object]) -> None:
        """note: takes a report that concerns no caller."""
        self._disk = disk
        self._name = name
        self._note = note
        self._lock: LockFile | None = None
        self.may_hold = False

    @overload
    def run(
        self, act: Callable[[], T], timeout_ms: int, meanwhile: Callable[[], bool] | None = None
    ) -> T: ...

    @overload
    def run(
        self,
        act: Callable[[], T],
        timeout_ms: int | None,
        meanwhile: Callable[[], bool] | None = None,
        *,
        otherwise: U,
    ) -> T | U: ...

    def run(
        self,
        act: Callable[[], T],
        timeout_ms: int | None,
        meanwhile: Callable[[], bool] | None = None,
        *,
        otherwise: object = None,
    ) -> object:
        """Run an act under the lock.

        timeout_ms: how long to wait for the lock; None: not at all
        meanwhile:  called before each further try; True: the act is no longer needed
        returns:    the result of the act; `otherwise` if it did not run
        raises:     StoreLocked; errors of the act
        """
        if self._lock is None:
            self._lock = self._disk.lock_file(self._name)
        lock = self._lock
        try:
            try:
                self.may_hold = True
                if timeout_ms is None:
                    is_held = lock.try_acquire()
                else:
                    is_held = lock.acquire(timeout_ms, meanwhile)
                if not is_held:
                    self.may_hold = False
                    return otherwise
                return act()
            finally:
                if self.may_hold:
                    self._free(lock)
        finally:
            if self.may_hold:
                self._free(lock)

    def _free(self, lock: LockFile) -> None:
        """Free the lock; the act is done by now, so a failure here must not become its outcome."""
        try:
            lock.release()
        except TxlogError as error:
            self._note(f"{self._name} was freed by closing it: {error}")
            lock.close()
            self._lock = None
        self.may_hold = False

    def close(self) -> None:
        """Let go of the descriptor, and with it of the lock."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None
