"""Which process holds a lock file now: the kernel decides, never an age or a process number.

A consumer writes into its own lock file how far its application has got in the messages that it
took ahead (Seen). It writes in place, before it hands out each message, and never flushes. The page
cache outlives the process, and no other process writes there. After a power cut the record says
that nothing was seen, or it passes its checksum.

A running reader pins the files that it needs, and they stay even when no manifest names them any
more: a long query or a Spark job opens a file when it gets there, which may be after
`reader_grace_ms`. A pin is a file `pins/<id>.lock` with the paths. It counts while its process
holds the flock on it, and ends with the process. It need not survive a power cut, so it is never
flushed.

    reader    under pins.lock: the pin;  then check that every file exists, else start over
    upkeep    under pins.lock: read the pins, unlink files that no pin names

So an unlink after a pin sees the pin, and a reader that pins after an unlink sees that the file is
missing. A pin that cannot be read keeps every file.
Source: spec/analytics 2, R18, R21, R24.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import msgspec

from txlog.base.startup.crc32c import crc32c
from txlog.engine.model.leases import NOTHING_SEEN, Seen
from txlog.engine.storage.disk.protocol import Disk, File, LockFile
from txlog.errors import MissingFile

WRITE_LOCK = "lock"
CONSUMERS_DIR = "consumers"
_SEEN = struct.Struct("<Qqqqq")  # batch, ledger, entry, index, due_ms
_CHECKED = struct.Struct("<I")


def consumer_lock(number: int) -> str:
    """The lock file of a consumer; its number is used once, so free or missing means dead."""
    return f"{CONSUMERS_DIR}/{number}.lock"


def consumer_of(path: str) -> int:
    """The consumer that this lock file belongs to; 0 if it is no consumer's."""
    name = path.removeprefix(f"{CONSUMERS_DIR}/").removesuffix(".lock")
    return int(name) if name.isascii() and name.isdigit() else 0


def seat_lock(topic: int, epoch: int) -> str:
    """The lock file of an exclusive producer of a topic; held by one process, once."""
    return f"{CONSUMERS_DIR}/{topic}-{epoch}.lock"


def dead_consumers(disk: Disk, numbers: Iterable[int]) -> list[int]:
    """The consumers whose lock no process holds: they are dead, and stay dead."""
    return [number for number in numbers if not is_held(disk, consumer_lock(number))]


def holds_seat(disk: Disk, topic: int, epoch: int) -> bool:
    """True while the exclusive producer of this epoch lives; called under the write lock only.

    The test takes the lock for a moment, so two processes that test at once would see each other.
    """
    return is_held(disk, seat_lock(topic, epoch))


def write_seen(file: File, seen: Seen) -> None:
    """Record in a consumer's lock file how far its application has got."""
    body = _SEEN.pack(seen.batch, *seen.last, seen.due_ms)
    file.pwrite(0, _CHECKED.pack(crc32c(body)) + body)


def read_seen(disk: Disk, number: int) -> Seen:
    """The newest record of write_seen; NOTHING_SEEN if there is none that is whole."""
    try:
        data = disk.read(consumer_lock(number))
    except MissingFile:
        return NOTHING_SEEN
    body = data[_CHECKED.size : _CHECKED.size + _SEEN.size]
    if len(body) != _SEEN.size or _CHECKED.unpack_from(data)[0] != crc32c(body):
        return NOTHING_SEEN
    batch, ledger, entry, index, due_ms = _SEEN.unpack(body)
    return Seen(batch, (ledger, entry, index), due_ms)


def read_all_seen(disk: Disk, numbers: Iterable[int]) -> dict[int, Seen]:
    """read_seen of some consumers."""
    return {number: read_seen(disk, number) for number in numbers}


def is_held(disk: Disk, path: str) -> bool:
    """True while some process holds the lock file; False when there is none."""
    try:
        lock = disk.lock_file(path, create=False)
    except MissingFile:
        return False
    try:
        if lock.try_acquire():
            lock.release()
            return False
        return True
    finally:
        lock.close()


def holder_of(disk: Disk, path: str) -> tuple[bool, int | None, str | None]:
    """(whether the lock is held, pid and command of the holder if known)."""
    try:
        lock = disk.lock_file(path, create=False)
    except MissingFile:
        return False, None, None
    try:
        holder = lock.holder()
    finally:
        lock.close()
    if holder is None:
        return is_held(disk, path), None, None
    return True, *holder


def writer(disk: Disk) -> dict[str, object] | None:
    """pid and command of the process that holds the write lock, since_time always None; or None."""
    lock = disk.lock_file(WRITE_LOCK, create=False)
    try:
        holder = lock.holder()
    finally:
        lock.close()
    return None if holder is None else {"pid": holder[0], "command": holder[1], "since_time": None}


# --- pins -----------------------------------------------------------------------------------------

PINS_DIR = "pins"
PINS_LOCK = "pins.lock"
PIN_MAGIC = b"TXLOGPIN"
# magic, salt, CRC32C of bytes 0 to 15 and of the body, length of the body
PIN_HEAD = struct.Struct("<8s8sII")
_SUFFIX = ".lock"

assert PIN_HEAD.size == 24

IsFree = Callable[[str], bool]


class Pin:
    """Files that stay until this is closed or its process ends; closing also closes its disk."""

    __slots__ = ("_disk", "_is_open", "_lock", "_pid", "path")

    def __init__(self, disk: Disk, path: str, lock: LockFile) -> None:
        self.path = path
        self._disk = disk
        self._lock = lock
        self._pid = disk.pid()
        self._is_open = True

    def close(self) -> None:
        """Let the files go; harmless when repeated. A forked child only closes (R27)."""
        if not self._is_open:
            return
        self._is_open = False
        if self._pid == self._disk.pid():
            self._disk.unlink(self.path)
        self._lock.close()
        self._disk.close()


def pin(disk: Disk, salt: bytes, paths: Iterable[str], timeout_ms: int) -> Pin:
    """Keep files from being unlinked; the caller checks afterwards whether they exist.

    disk: the pin's own; no other code closes it
    raises: ReadOnlyStore, StoreLocked, StoreFull
    """
    body = msgspec.msgpack.encode(sorted(set(paths)))
    head = PIN_MAGIC + salt
    data = head + struct.pack("<II", crc32c(body, crc32c(head)), len(body)) + body
    path = f"{PINS_DIR}/{disk.random_bytes(8).hex()}{_SUFFIX}"
    with _shut(disk, timeout_ms):
        lock = disk.lock_file(path)
        try:
            lock.acquire(timeout_ms)  # another process may hold it for a moment, to test it
            file = disk.open(path, write=True)
            try:
                file.pwrite(0, data)
            finally:
                file.close()
        except BaseException:  # no process would hold this pin
            disk.unlink(path)
            lock.close()
            raise
    return Pin(disk, path, lock)


def pins(disk: Disk) -> list[str]:
    """All pins, whether their processes are alive or not."""
    return [f"{PINS_DIR}/{name}" for name in disk.listdir(PINS_DIR) if name.endswith(_SUFFIX)]


def pinned(disk: Disk, salt: bytes) -> IsFree:
    """Return a function: True for a path that no living process had pinned when this was called."""
    pinned_paths: set[str] = set()
    for path in pins(disk):
        if not is_held(disk, path):
            continue
        try:
            paths = _read(disk, path, salt)
        except MissingFile:
            continue
        if paths is None:
            return lambda path: False
        pinned_paths.update(paths)
    return lambda path: path not in pinned_paths


@contextmanager
def unpinned(disk: Disk, salt: bytes, timeout_ms: int) -> Iterator[IsFree]:
    """As `pinned`, and no process can pin anything until the block ends: the time to unlink.

    Pins of dead processes are removed.
    """
    with _shut(disk, timeout_ms):
        for path in pins(disk):
            if not is_held(disk, path):
                disk.unlink(path)
        yield pinned(disk, salt)


@contextmanager
def _shut(disk: Disk, timeout_ms: int) -> Iterator[None]:
    lock = disk.lock_file(PINS_LOCK)
    try:
        lock.acquire(timeout_ms)
        yield
    finally:
        lock.close()


def _read(disk: Disk, path: str, salt: bytes) -> list[str] | None:
    """The paths of a pin; None when its bytes are damaged."""
    data = disk.read(path)
    if len(data) < PIN_HEAD.size:
        return None
    magic, found_salt, crc, length = PIN_HEAD.unpack_from(data)
    body = data[PIN_HEAD.size :]
    if (magic, found_salt, length) != (PIN_MAGIC, salt, len(body)) or crc != crc32c(
        body, crc32c(data[:16])
    ):
        return None
    try:
        return msgspec.msgpack.decode(body, type=list[str])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
