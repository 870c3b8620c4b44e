"""Owns pins: files that a running reader needs stay, even when no manifest names them any more.

A long query or a Spark job opens a file when it gets there, which may be after `reader_grace_ms`. A
pin is a file `pins/<id>.lock` with the paths. It counts while its process holds the flock on it,
and ends with the process. It need not survive a power cut, so it is never flushed.

    reader    under pins.lock: the pin;  then check that every file exists, else start over
    upkeep    under pins.lock: read the pins, unlink files that no pin names

So an unlink after a pin sees the pin, and a reader that pins after an unlink finds the file
missing. An unreadable pin keeps every file.
Source: spec/analytics 2, R18, R21, R24.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import msgspec

from txlog.base.startup.crc32c import crc32c
from txlog.engine.storage.disk.protocol import Disk, LockFile
from txlog.engine.store.liveness import is_held
from txlog.errors import MissingFile

PINS_DIR = "pins"
PINS_LOCK = "pins.lock"
_MAGIC = b"TXLOGPIN"
_HEAD = struct.Struct("<8s8sII")  # magic, salt, CRC32C of bytes 0 to 15 and of the body, its length
_SUFFIX = ".lock"

assert _HEAD.size == 24

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
    head = _MAGIC + salt
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
    """Return a function that tells whether no living process has pinned a path; pins may change."""
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
    if len(data) < _HEAD.size:
        return None
    magic, found_salt, crc, length = _HEAD.unpack_from(data)
    body = data[_HEAD.size :]
    if (magic, found_salt, length) != (_MAGIC, salt, len(body)) or crc != crc32c(
        body, crc32c(data[:16])
    ):
        return None
    return msgspec.msgpack.decode(body, type=list[str])
