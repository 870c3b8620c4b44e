"""Locks of processes: how a caller waits for one, which process holds it, and acts under it.

flock belongs to the open file description (R24): the descriptor is the holder. A waiting caller
tries, naps and tries again. A thread blocked in flock would wake a little sooner. But it has to be
started, cannot be cancelled, and costs more than the work it waits for: processes hold these locks
for a tenth of a millisecond. The naps are of uneven length, so that no waiter always comes just too
late, and they grow with the time waited. A caller that has waited clearly longer than usual for
this lock naps briefly for a while, and so gets the lock before other waiters. A lock file that was
unlinked or replaced is not a lock: after a first lock, and after each wait, the name must still
lead to the locked file (R26).

An interrupt may end any step here. `release` does not trust bookkeeping: after it, no descriptor
that this handle has ever opened holds the lock.

FileLock runs acts under a lock file of the store, one process at a time. It sets `may_hold` before
it tries the lock, since an interrupt can come right after, and then frees the lock in any case:
`release` does no harm if nothing is held. It frees twice: an interrupt may end the first attempt.

PidFile is a file outside any store with the id of the server that holds its flock. The lock shows
whether that server runs; the number does not: in two containers that share a volume, both servers
are process 1. A killed server leaves an unlocked file.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Protocol, TypeVar, overload

from txlog.engine.storage.disk.protocol import Disk, IgnoringFailure, LockFile, number_of
from txlog.errors import AlreadyClosed, AlreadyExists, InvalidArgument, StoreLocked, TxlogError

# --- waiting for a lock --------------------------------------------------------------------------


Identity = tuple[str, int]
"""Device, as /proc/locks writes it, and inode."""


class Descriptor(Protocol):
    """The operations of an open file that a lock needs."""

    def lock(self) -> bool:
        """Take the flock; False when it is held."""

    def unlock(self) -> None:
        """Give the flock back; nothing on a closed descriptor."""

    def identity(self) -> Identity:
        """Return the identity of the open file."""

    def close(self) -> None:
        """Let go of descriptor and lock."""


class LockSite(Protocol):
    """Where a lock lives: its name in the store, and the process that uses it."""

    path: str

    def open(self) -> Descriptor:
        """Open the file the name leads to now, made if absent."""

    def identity(self) -> Identity | None:
        """Return the identity of the file the name leads to, None when there is none."""

    def holder(self, identity: Identity) -> tuple[int, str] | None:
        """Return pid and command line of the process that holds the file's lock."""


NAP_S = 50e-6  # the first; Linux sleeps at least this long
NAP_MAX_S, NAP_LONG_S = 1e-3, 20e-3
NAP_SHARE = 50  # after a long wait a nap is this part of it
# A caller that has waited this many usual waits, and at least so long, naps like this until twice
# that time.
NAP_NEXT_S, USUAL_WAITS, USUAL_MIN_S = 150e-6, 2.0, 3e-3
USUAL_OF = 8  # about this many waits are averaged


def naps(timeout_ms: int, usual_s: float = 0.0) -> Iterator[float]:
    """Nap between two tries, until the time is over; yields the seconds since the first.

    usual_s: how long waits for this lock have taken
    """
    next_s = max(USUAL_MIN_S, USUAL_WAITS * usual_s)
    began = time.monotonic()
    nap, waited, longest = NAP_S, 0.0, timeout_ms / 1000
    while waited < longest:
        uneven = 0.5 + (time.perf_counter_ns() & 1023) / 1023
        time.sleep(min(nap * uneven, longest - waited))
        waited = time.monotonic() - began
        if next_s <= waited < 2 * next_s:
            nap = NAP_NEXT_S
        else:
            nap = min(max(min(1.5 * nap, NAP_MAX_S), waited / NAP_SHARE), NAP_LONG_S)
        yield waited


class PosixLock:
    """`LockFile` by flock; a free lock that this handle took before costs one system call."""

    __slots__ = (
        "_descriptor",
        "_getpid",
        "_is_current",
        "_pid",
        "_site",
        "_usual_s",
        "is_open",
        "path",
    )

    def __init__(self, descriptor: Descriptor, site: LockSite, getpid: Callable[[], int]) -> None:
        self.path = site.path
        self._descriptor = descriptor
        self._site = site
        self._getpid = getpid
        self._pid = getpid()
        self._is_current = False
        self.is_open = True
        self._usual_s = 0.0  # how long waits have taken

    def acquire(self, timeout_ms: int, meanwhile: Callable[[], bool] | None = None) -> bool:
        if self.try_acquire():
            return True
        for waited in naps(timeout_ms, self._usual_s):
            self._is_current = False
            if meanwhile is not None and meanwhile():
                return False
            if self.try_acquire():
                self._usual_s += (waited - self._usual_s) / USUAL_OF
                return True
        raise locked(self.path, self.holder(), timeout_ms)

    def try_acquire(self) -> bool:
        if self._pid != self._getpid():
            raise AlreadyClosed(f"the lock {self.path} belongs to another process", path=self.path)
        while self._descriptor.lock():
            if self._is_current or self._check():
                return True
        return False

    def release(self) -> None:
        self._descriptor.unlock()

    def close(self) -> None:
        self.is_open = False
        self._descriptor.close()

    def holder(self) -> tuple[int, str] | None:
        return self._site.holder(self._descriptor.identity())

    def _check(self) -> bool:
        """Whether the name still leads to the locked file; if not, open the one it leads to now."""
        self._is_current = self._descriptor.identity() == self._site.identity()
        if not self._is_current:
            old, self._descriptor = self._descriptor, self._site.open()
            old.close()
        return self._is_current


_WHAT = {
    "lock": "the store is locked",
    "maintenance.lock": "the store is being maintained",
    "flush.lock": "the journal is being flushed",
}


def locked(path: str, holder: tuple[int, str] | None, timeout_ms: int) -> StoreLocked:
    """The error for a lock not acquired in time; it names the holder, if known."""
    pid, command = holder or (None, "")
    problem = _WHAT.get(path, f"{path} is locked")
    who = f"process {pid or 'unknown'}" + (f" ({command})" if command else "")
    return StoreLocked(
        f"{problem} by {who}",
        hint="it ends with that process; --lock-timeout waits longer, txlog admin locks shows all",
        path=path,
        pid=pid,
        command=command,
        timeout_ms=timeout_ms,
    )


def find_holder(table: str, identity: Identity) -> int | None:
    """Return the pid that holds a file's flock according to /proc/locks, None without a holder.

    A line is `1: FLOCK ADVISORY WRITE 4242 fe:00:1311 0 EOF`; `->` after the number is a waiter.
    Layered file systems show a different device there than fstat, so the inode alone may match.
    """
    device, inode = identity
    pid: int | None = None
    for line in table.splitlines():
        field = line.split()
        if len(field) < 6 or field[1] != "FLOCK":
            continue
        where, _, number = field[5].rpartition(":")
        if number == str(inode):
            if where == device:
                return int(field[4])
            pid = int(field[4])
    return pid


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


# --- acts under a lock file ----------------------------------------------------------------------


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
        """Run the caller's act under the lock, and free the lock however the act ends.

        timeout_ms: how long to wait for the lock; None: not at all
        meanwhile:  called before each further try; True: the act is no longer needed
        returns:    the result of the act; `otherwise` if it did not run
        raises:     StoreLocked; errors of the act
        """
        try:
            try:
                if not self.take(timeout_ms, meanwhile):
                    return otherwise
                return act()
            finally:
                self.free()
        finally:
            self.free()

    def take(self, timeout_ms: int | None, meanwhile: Callable[[], bool] | None = None) -> bool:
        """Take the lock and keep it until `free`, which the caller reaches however it ends.

        returns: whether this handle holds it; timeout_ms, meanwhile, raises: as in `run`
        """
        if self._lock is None:
            self._lock = self._disk.lock_file(self._name)
        lock = self._lock
        self.may_hold = True
        is_free = lock.try_acquire() if timeout_ms is None else lock.acquire(timeout_ms, meanwhile)
        if not is_free:
            self.may_hold = False
        return is_free

    def free(self) -> None:
        """Free the lock, if this handle may hold it.

        The act is done by now, so a failure here must not become its outcome.
        """
        if not self.may_hold or self._lock is None:
            return
        try:
            self._lock.release()
        except TxlogError as error:
            self._note(f"{self._name} was freed by closing it: {error}")
            self._lock.close()
            self._lock = None
        self.may_hold = False

    def close(self) -> None:
        """Let go of the descriptor, and with it of the lock."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None


# --- the file of a server ------------------------------------------------------------------------


_DIGITS_MAX = 10


class PidFile:
    """The file of one server: `begin` before it opens anything, `write` once it serves, `end`."""

    __slots__ = ("_descriptor", "_path", "_shown")

    def __init__(self, path: str) -> None:
        self._path = os.path.realpath(path)
        self._shown = path
        self._descriptor = -1

    def begin(self) -> None:
        """Take the lock of an existing file.

        raises: AlreadyExists: a server holds it, or it has no process id; InvalidArgument: it
                cannot be read
        """
        while self._descriptor < 0:
            try:
                descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return
            except OSError as error:
                number_of(error)
                raise InvalidArgument(
                    f"--pidfile {self._shown} cannot be read: {error.strerror}"
                ) from error
            try:
                self._take(descriptor)
            finally:
                if self._descriptor != descriptor:
                    os.close(descriptor)

    def _take(self, descriptor: int) -> None:
        """Keep the descriptor if it holds the lock of the file that the path leads to."""
        text = os.read(descriptor, 32).strip()
        if not text.isdigit() or len(text) > _DIGITS_MAX:
            raise AlreadyExists(f"{self._shown} is there, and has no process id", path=self._shown)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadyExists(
                f"{self._shown} is of process {int(text)}, which serves",
                hint="stop it, or name another file",
            ) from None
        if self._is_at_path(descriptor):  # else its owner has just removed or replaced it
            self._descriptor = descriptor

    def write(self) -> None:
        """Put a locked file with our process id at the path.

        raises: as begin: another server was faster; OSError
        """
        temporary = f"{self._path}.{os.getpid()}.{id(self):x}.tmp"
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        ours = os.open(temporary, flags, 0o644)
        try:
            fcntl.flock(ours, fcntl.LOCK_EX)
            os.write(ours, f"{os.getpid()}\n".encode())
            while True:
                if self._descriptor >= 0:  # another server finds one of our two locks at the path
                    os.replace(temporary, self._path)
                    os.close(self._descriptor)
                    break
                try:
                    os.link(temporary, self._path)
                    break
                except FileExistsError:
                    self.begin()
            self._descriptor = ours
        except BaseException:  # no other code can close it
            os.close(ours)
            raise
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary)

    def end(self) -> None:
        """Remove the file if this process still owns it, and free the lock."""
        if self._descriptor < 0:
            return
        try:
            with suppress(OSError):
                if self._is_at_path(self._descriptor) and self._says() == os.getpid():
                    os.unlink(self._path)
        finally:
            os.close(self._descriptor)
            self._descriptor = -1

    def _says(self) -> int:
        text = os.pread(self._descriptor, 32, 0).strip()
        return int(text) if text.isdigit() else -1

    def _is_at_path(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(descriptor))
        except FileNotFoundError:
            return False
