"""Removing files that have lost their names, in the store and outside it.

Files that lead from the checkpoint before the newest to the newest are spared, because repair uses
them; so are files pinned by a live reader. What cannot be removed now is reported, does not stop
the rest, and is left to `txlog admin gc`, since nothing names it any more.
"""

from __future__ import annotations

from collections.abc import Iterable

from txlog.engine.storage import remote
from txlog.engine.storage.disk.protocol import Disk
from txlog.engine.storage.manifest import Manifest, generations, read_manifest
from txlog.engine.store.confirmed import HINT, confirmed, place_in
from txlog.engine.store.pins import unpinned
from txlog.engine.store.store import Store
from txlog.errors import Corruption, DiskFailed, IntegrityError, MissingFile, TxlogError

SIDECAR_DIR = "/_txnlog/"
STATE_DIR = "state/"


def unlink_free(store: Store, paths: Iterable[str]) -> int:
    """Remove what no reader has pinned; returns the bytes.

    Files outside the store go only from places that this user has confirmed (store/confirmed).
    """
    disk, salt, timeout_ms = store.disk, store.identity.salt, store.lock_timeout_ms
    near, far = list[str](), list[str]()
    for path in paths:
        if remote.is_far(path):
            far.append(path)
        elif disk.exists(path):
            near.append(path)
    freed = sum(_remove_far(store, place, path) for place, path in removable(store, far))
    if near:
        with unpinned(disk, salt, timeout_ms) as is_free:
            for path in filter(is_free, near):
                try:
                    size = disk.size(path)
                    disk.unlink(path)
                    freed += size
                except MissingFile:
                    pass
                except TxlogError as error:  # it has no name: the next sweep finds it again
                    store.note(f"{error}; txlog admin gc --apply tries again")
    return freed


def removable(store: Store, far: list[str]) -> list[tuple[str, str]]:
    """Of files outside the store those that may be removed, each with its place.

    The others are reported: the store names them, and this user has confirmed no such place.
    """
    if not far:
        return []
    places, uuid = confirmed(store), store.identity.uuid
    found = [(place_in(places, uuid, path), path) for path in far]
    left = [path for place, path in found if place is None]
    if left:
        more = "" if len(left) == 1 else f" and {len(left) - 1} more"
        store.reports.append(
            f"{remote.without_options(left[0])}{more} stay: this user has not offloaded from this"
            f" store to there; {HINT}"
        )
    return [(place, path) for place, path in found if place is not None]


def _remove_far(store: Store, place: str, path: str) -> int:
    try:
        size = remote.size_of(path)
        with unpinned(store.disk, store.identity.salt, store.lock_timeout_ms) as is_free:
            if is_free(path):
                remote.delete(place, path)
                return size
    except MissingFile:
        pass
    except (DiskFailed, Corruption) as error:
        store.reports.append(f"{error}; txlog admin gc --apply removes it later")
    return 0


def needed_before(disk: Disk, salt: bytes, newest: Manifest) -> set[str]:
    """What leads from the checkpoint before a manifest to it, and only that one still names.

    If the one before is unknown, everything that lost its name: it may be under repair.
    """
    older = [one for one in generations(disk) if one < newest.generation]
    if not older:
        return set()
    try:
        return leading(read_manifest(disk, older[-1], salt), newest)
    except (IntegrityError, MissingFile):
        return {path for path, since in newest.dropped if since >= newest.time_ms}


def leading(before: Manifest, newest: Manifest) -> set[str]:
    """The files of a checkpoint from which the next one's can be made again.

    Its state, its history, and rows that are now in other files. Rows of a trimmed or deleted
    ledger lead nowhere: frames say that they are gone, and that is when they go (R18). For a
    partition these are known; for a sidecar, only once nothing of the partition is left.
    """
    out = {ref.path for ref in before.dumps} | {ref.path for ref in before.history}
    live = {_partition_dir(ref.path) for refs in newest.files.values() for ref in refs}
    for ledger, refs in before.files.items():
        for ref in refs:
            in_sidecar = SIDECAR_DIR in ref.path and _partition_dir(ref.path) in live
            if ledger in newest.files or in_sidecar:
                out.add(ref.path)
    return out


def _partition_dir(path: str) -> str:
    return path.partition(SIDECAR_DIR)[0] if SIDECAR_DIR in path else path.rpartition("/")[0]
