"""Owns the removal of files that have lost their names, in the store and outside of it.

What a living reader has pinned is left. What cannot be removed now is reported and left to
`txlog admin gc`, for nothing names it any more; it does not keep what comes behind it.
"""

from __future__ import annotations

from collections.abc import Iterable

from txlog.engine.pins import unpinned
from txlog.engine.storage import far
from txlog.engine.store import Store
from txlog.errors import DiskFailed, MissingFile, TxlogError


def unlink_free(store: Store, paths: Iterable[str]) -> int:
    """Remove what nobody has pinned; returns the bytes."""
    disk, salt, timeout_ms = store.disk, store.identity.salt, store.lock_timeout_ms
    freed = 0
    near: list[str] = []
    for path in paths:
        if far.is_far(path):
            freed += _remove_far(store, path)
        elif disk.exists(path):
            near.append(path)
    if near:
        with unpinned(disk, salt, timeout_ms) as is_free:
            for path in filter(is_free, near):
                try:
                    size = disk.size(path)
                    disk.unlink(path)
                    freed += size
                except MissingFile:
                    pass
                except TxlogError as error:  # it has no name: the next sweep meets it again
                    store.note(f"{error}; txlog admin gc --apply tries again")
    return freed


def _remove_far(store: Store, path: str) -> int:
    try:
        size = far.size_of(path)
        with unpinned(store.disk, store.identity.salt, store.lock_timeout_ms) as is_free:
            if is_free(path):
                far.delete(path)
                return size
    except MissingFile:
        pass
    except DiskFailed as error:
        store.reports.append(f"{error}; txlog admin gc --apply removes it later")
    return 0
