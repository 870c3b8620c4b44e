"""Who holds a lock file now: by the kernel's word, never by age or process number."""

from __future__ import annotations

from txlog.engine.storage.disk_protocol import Disk
from txlog.errors import MissingFile

WRITE_LOCK = "lock"


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


def writer(disk: Disk) -> dict[str, object] | None:
    """Who holds the write lock, or None."""
    lock = disk.lock_file(WRITE_LOCK, create=False)
    try:
        held = lock.holder()
    finally:
        lock.close()
    return None if held is None else {"pid": held[0], "command": held[1], "since_time": None}
