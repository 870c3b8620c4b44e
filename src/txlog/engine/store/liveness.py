"""Which process holds a lock file now: the kernel decides, never an age or a process number.

A consumer writes into its own lock file how far its application has got in the messages that it
took ahead (Seen). It writes in place, before it hands out each message, and never flushes. The page
cache outlives the process, and no other process writes there. After a power cut the record says
that nothing was seen, or it passes its checksum.
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
    """The process that holds the write lock, or None."""
    lock = disk.lock_file(WRITE_LOCK, create=False)
    try:
        holder = lock.holder()
    finally:
        lock.close()
    return None if holder is None else {"pid": holder[0], "command": holder[1], "since_time": None}
