"""Who holds a lock file now: by the kernel's word, never by age or process number."""

from __future__ import annotations

from collections.abc import Iterable

from txlog.engine.storage.disk_protocol import Disk
from txlog.errors import MissingFile

WRITE_LOCK = "lock"


def consumer_lock(number: int) -> str:
    """The lock file of a consumer; its number is used once, so free or missing means dead."""
    return f"consumers/{number}.lock"


def dead_consumers(disk: Disk, numbers: Iterable[int]) -> list[int]:
    """Those whose lock nobody holds: they are dead for good."""
    return [number for number in numbers if not is_held(disk, consumer_lock(number))]


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
    """(whether the lock is held, pid and command of the holder where they can be told)."""
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
