"""Who holds a lock file now: by the kernel's word, never by age or process number.

A consumer writes into its own lock file how far its application has come in what was taken ahead
(Seen): in place, before each message is handed out, and never flushed. The page cache outlives the
process, and nobody else writes there. After a power cut it says that nothing was seen, or it passes
its checksum.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from txlog.base.startup.crc32c import crc32c
from txlog.engine.model.leases import NOTHING_SEEN, Seen
from txlog.engine.storage.disk.protocol import Disk, File
from txlog.errors import MissingFile

WRITE_LOCK = "lock"
CONSUMERS_DIR = "consumers"
_SEEN = struct.Struct("<Qqqqq")  # batch, ledger, entry, index, due_ms
_CHECKED = struct.Struct("<I")


def consumer_lock(number: int) -> str:
    """The lock file of a consumer; its number is used once, so free or missing means dead."""
    return f"{CONSUMERS_DIR}/{number}.lock"


def consumer_of(path: str) -> int:
    """The consumer whose lock file this is; 0: it is that of nobody."""
    name = path.removeprefix(f"{CONSUMERS_DIR}/").removesuffix(".lock")
    return int(name) if name.isascii() and name.isdigit() else 0


def seat_lock(topic: int, epoch: int) -> str:
    """The lock file of an exclusive producer of a topic; held by one process, once."""
    return f"{CONSUMERS_DIR}/{topic}-{epoch}.lock"


def dead_consumers(disk: Disk, numbers: Iterable[int]) -> list[int]:
    """Those whose lock nobody holds: they are dead, and stay so."""
    return [number for number in numbers if not is_held(disk, consumer_lock(number))]


def holds_seat(disk: Disk, topic: int, epoch: int) -> bool:
    """True while the exclusive producer of this epoch lives; asked under the write lock only.

    To ask takes the lock for a moment, so that two who ask at once would see each other.
    """
    return is_held(disk, seat_lock(topic, epoch))


def write_seen(file: File, seen: Seen) -> None:
    """Note in its lock file how far the application of a consumer has come."""
    body = _SEEN.pack(seen.batch, *seen.last, seen.due_ms)
    file.pwrite(0, _CHECKED.pack(crc32c(body)) + body)


def read_seen(disk: Disk, number: int) -> Seen:
    """What write_seen noted last; NOTHING_SEEN if unknown."""
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
        held = lock.holder()
    finally:
        lock.close()
    if held is None:
        return is_held(disk, path), None, None
    return True, *held


def writer(disk: Disk) -> dict[str, object] | None:
    """Who holds the write lock, or None."""
    lock = disk.lock_file(WRITE_LOCK, create=False)
    try:
        held = lock.holder()
    finally:
        lock.close()
    return None if held is None else {"pid": held[0], "command": held[1], "since_time": None}
