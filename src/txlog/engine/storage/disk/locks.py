"""How a lock is waited for, and who holds it.

flock belongs to the open file description (R24): the descriptor is the holder. A waiting caller has
a thread and a descriptor of its own, because nothing can call back a thread that is blocked in
flock. A lock file that was unlinked or replaced meanwhile is not a lock: after a first lock, and
after each wait, the name must still lead to the file that was locked (R26).

An interrupt may end any step here. `release` asks nobody what was taken: after it, no descriptor
that this handle ever had holds the lock.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from txlog.engine.storage.disk.protocol import IgnoringFailure
from txlog.errors import AlreadyClosed, NoResources, StoreLocked, TxlogError

Identity = tuple[str, int]
"""Device, as /proc/locks writes it, and inode."""


class Descriptor(Protocol):
    """What a lock needs of an open file."""

    def lock(self, wait: bool) -> bool:
        """Take the flock; False when it is held and wait is not set."""

    def unlock(self) -> None:
        """Give the flock back; nothing on a closed descriptor."""

    def identity(self) -> Identity:
        """Return the identity of the open file."""

    def close(self) -> None:
        """Let go of descriptor and lock."""


class LockSite(Protocol):
    """Where a lock lives: its name in the store, and the process that asks."""

    path: str

    def open(self) -> Descriptor:
        """Open the file the name leads to now, made if absent."""

    def identity(self) -> Identity | None:
        """Return the identity of the file the name leads to, None when there is none."""

    def holder(self, identity: Identity) -> tuple[int, str] | None:
        """Return pid and command line of the process that holds the file's lock."""


class _Waiter:
    """A thread blocked in flock (R25).

    A caller that gives up abandons it, and it lets go as soon as it has the lock; the next wait
    through the same handle takes it over instead of starting another. No lock guards it, as an
    interrupt could leave one held: each side first says what it wants, then looks at what the other
    said, and only one of them can take the descriptor out of `_kept`.
    """

    def __init__(self, descriptor: Descriptor) -> None:
        self.error: TxlogError | None = None
        self._kept = [descriptor]
        self._gate = threading.Lock()
        self._gate.acquire()  # free once the thread is done
        self._is_done = False
        self._is_abandoned = False

    def start(self) -> None:
        threading.Thread(target=self._run, name="txlog-lock-wait", daemon=True).start()

    def _run(self) -> None:
        try:
            for descriptor in self._kept[:]:
                descriptor.lock(wait=True)
        except TxlogError as error:
            self.error = error
        self._is_done = True
        self._gate.release()
        if self._is_abandoned:
            self.close()

    def wait(self, seconds: float) -> bool:
        """Whether the thread is done within this time."""
        return self._is_done or self._gate.acquire(timeout=seconds)

    @property
    def descriptor(self) -> Descriptor:
        """What holds the lock; the caller keeps it, and then abandons this."""
        [kept] = self._kept
        return kept

    def close(self) -> None:
        """Let go of the descriptor, unless another did so already or keeps it."""
        with suppress(IndexError):
            self._kept.pop().close()

    def abandon(self, kept: Descriptor) -> None:
        """Nobody wants it any more; kept: the caller's descriptor, which stays open."""
        if kept in self._kept:
            self._kept.clear()
        self._is_abandoned = True
        if self._is_done:
            self.close()

    def take_over(self) -> bool:
        """Whether the thread is still waiting, from now on for the caller."""
        self._is_abandoned = False
        if self._is_done:
            self.close()  # it may have let go already
            return False
        return True


class PosixLock:
    """`LockFile` by flock; one system call for a free lock that was taken before."""

    __slots__ = ("_descriptor", "_getpid", "_is_current", "_pid", "_site", "_waiter", "path")

    def __init__(self, descriptor: Descriptor, site: LockSite, getpid: Callable[[], int]) -> None:
        self.path = site.path
        self._descriptor = descriptor
        self._site = site
        self._getpid = getpid
        self._pid = getpid()
        self._waiter: _Waiter | None = None
        self._is_current = False

    def acquire(self, timeout_ms: int) -> None:
        if self._pid != self._getpid():
            self._need_own_process()
        while True:
            if not self._descriptor.lock(False):
                self._wait(timeout_ms)
            if self._is_current or self._check():
                return

    def try_acquire(self) -> bool:
        self._need_own_process()
        while self._descriptor.lock(False):
            if self._is_current or self._check():
                return True
        return False

    def release(self) -> None:
        if self._waiter is not None:
            self._waiter.abandon(self._descriptor)
        self._descriptor.unlock()

    def close(self) -> None:
        self._descriptor.close()
        if self._waiter is not None:
            self._waiter.abandon(self._descriptor)

    def holder(self) -> tuple[int, str] | None:
        return self._site.holder(self._descriptor.identity())

    def _need_own_process(self) -> None:
        if self._pid != self._getpid():
            raise AlreadyClosed(f"the lock {self.path} belongs to another process", path=self.path)

    def _wait(self, timeout_ms: int) -> None:
        """Wait for the lock; the descriptor that then holds it takes the place of ours."""
        waiter = self._waiter
        if timeout_ms > 0:
            if waiter is None or not waiter.take_over():
                waiter = self._start_waiter()
            try:
                if waiter.wait(min(timeout_ms / 1000, threading.TIMEOUT_MAX)):
                    self._take(waiter)
                    return
            finally:
                waiter.abandon(self._descriptor)
        raise locked(self.path, self.holder(), timeout_ms)

    def _take(self, waiter: _Waiter) -> None:
        """Put the descriptor of a waiter in the place of ours, from where `release` frees it."""
        if waiter.error is not None:
            raise waiter.error
        old, self._is_current = self._descriptor, False
        self._descriptor = waiter.descriptor
        waiter.abandon(self._descriptor)
        self._waiter = None
        old.close()

    def _start_waiter(self) -> _Waiter:
        """Start a thread that waits; it is known here before it begins, so it can be abandoned."""
        waiter = self._waiter = _Waiter(self._site.open())
        try:
            waiter.start()
        except RuntimeError as error:  # no thread available
            self._waiter = None
            waiter.close()
            raise NoResources(f"cannot wait for the lock {self.path}: {error}") from error
        return waiter

    def _check(self) -> bool:
        """Whether the name still leads to the locked file; if not, open the one it leads to now."""
        self._is_current = self._descriptor.identity() == self._site.identity()
        if not self._is_current:
            old, self._descriptor = self._descriptor, self._site.open()
            old.close()
        return self._is_current


def locked(path: str, holder: tuple[int, str] | None, timeout_ms: int) -> StoreLocked:
    """The error for a lock not acquired in time; it names the holder, if known."""
    pid, command = holder or (None, "")
    what = {"lock": "the store is locked", "maintenance.lock": "the store is being maintained"}.get(
        path, f"{path} is locked"
    )
    who = f"process {pid or 'unknown'}" + (f" ({command})" if command else "")
    return StoreLocked(
        f"{what} by {who}",
        hint="it ends with that process; --lock-timeout waits longer, txlog admin locks shows all",
        path=path,
        pid=pid,
        command=command,
        timeout_ms=timeout_ms,
    )


def find_holder(table: str, identity: Identity) -> int | None:
    """Return the pid that holds a file's flock according to /proc/locks, None when nobody does.

    A line is `1: FLOCK ADVISORY WRITE 4242 fe:00:1311 0 EOF`; `->` after the number is a waiter.
    Layered file systems show a different device there than fstat, so the inode alone may match.
    """
    device, inode = identity
    found: int | None = None
    for line in table.splitlines():
        field = line.split()
        if len(field) < 6 or field[1] != "FLOCK":
            continue
        where, _, number = field[5].rpartition(":")
        if number == str(inode):
            if where == device:
                return int(field[4])
            found = int(field[4])
    return found


def identity_of(at: os.stat_result) -> Identity:
    """Return device, as /proc/locks writes it, and inode."""
    return f"{os.major(at.st_dev):02x}:{os.minor(at.st_dev):02x}", at.st_ino


def read_proc(path: str) -> bytes:
    """Return the content of a file in /proc, empty if there is none."""
    with IgnoringFailure():
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return b"".join(iter(lambda: os.read(descriptor, 1 << 16), b""))
        finally:
            os.close(descriptor)
    return b""
