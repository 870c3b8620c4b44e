"""Removing files that no manifest names, in the store and outside it.

Files that lead from the checkpoint before the newest to the newest are spared, because repair uses
them; so are files pinned by a live reader. A file that cannot be removed now is reported and left
to `txlog admin gc`; the others are removed.
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
    """Remove the files that no reader has pinned; returns their bytes.

    Files outside the store are removed only from places that this user has confirmed
    (store/confirmed).
    """
    disk, salt, timeout_ms = store.disk, store.identity.salt, store.lock_timeout_ms
    near, far = list[str](), list[str]()
    for path in paths:
        if remote.is_far(path):
            far.append(path)
        elif disk.exists(path):
            near.append(path)
    freed = sum(_remove_far(store, location, path) for location, path in removable(store, far))
    if near:
        with unpinned(disk, salt, timeout_ms) as is_free:
            for path in filter(is_free, near):
                try:
                    size = disk.size(path)
                    disk.unlink(path)
                    freed += size
                except MissingFile:
                    pass
                # no manifest names it, so the next sweep finds it again
                except TxlogError as error:
                    store.note(f"{error}; txlog admin gc --apply tries again")
    return freed


def removable(store: Store, far: list[str]) -> list[tuple[str, str]]:
    """The files outside the store that may be removed, each with its place.

    The others are reported, because this user has not confirmed their place.
    """
    if not far:
        return []
    places, uuid = confirmed(store), store.identity.uuid
    located = [(place_in(places, uuid, path), path) for path in far]
    stranded = [path for place, path in located if place is None]
    if stranded:
        more = "" if len(stranded) == 1 else f" and {len(stranded) - 1} more"
        store.reports.append(
            f"{remote.without_options(stranded[0])}{more} stay: this user has not offloaded from "
            f"this store to there; {HINT}"
        )
    return [(location, path) for location, path in located if location is not None]


def _remove_far(store: Store, location: str, path: str) -> int:
    try:
        size = remote.size_of(path)
        with unpinned(store.disk, store.identity.salt, store.lock_timeout_ms) as is_free:
            if is_free(path):
                remote.delete(location, path)
                return size
    except MissingFile:
        pass
    except (DiskFailed, Corruption) as error:
        store.reports.append(f"{error}; txlog admin gc --apply removes it later")
    return 0


def needed_before(disk: Disk, salt: bytes, newest: Manifest) -> set[str]:
    """The files that lead from the checkpoint before a manifest to it, and that only the
    earlier one names.

    If that checkpoint is unknown, all dropped files, because a repair may need them.
    """
    older = [generation for generation in generations(disk) if generation < newest.generation]
    if not older:
        return set()
    try:
        return leading(read_manifest(disk, older[-1], salt), newest)
    except (IntegrityError, MissingFile):
        return {path for path, since in newest.dropped if since >= newest.time_ms}


def leading(previous: Manifest, newest: Manifest) -> set[str]:
    """The files of a checkpoint from which repair can rebuild those of the next checkpoint.

    Its state, its history, and rows that are now in other files. Rows of a trimmed or deleted
    ledger are not needed, because frames record that they are dropped, and R18 deletes them then.
    For a partition these ledgers are known; for a sidecar, only once the whole partition is
    deleted.
    """
    out = {ref.path for ref in previous.dumps} | {ref.path for ref in previous.history}
    live = {_partition_dir(ref.path) for refs in newest.files.values() for ref in refs}
    for ledger, refs in previous.files.items():
        for ref in refs:
            in_sidecar = SIDECAR_DIR in ref.path and _partition_dir(ref.path) in live
            if ledger in newest.files or in_sidecar:
                out.add(ref.path)
    return out


def _partition_dir(path: str) -> str:
    return path.partition(SIDECAR_DIR)[0] if SIDECAR_DIR in path else path.rpartition("/")[0]
