"""The sweep of files that nobody names: what passes that died left behind (R19, Law 5).

Only the holder of the maintenance lock publishes segment and state files, so what lies there and is
named neither by the two newest manifests nor by a frame since will never be. A temporary may be
another process's, writing right now: it goes only if its flock is free.
"""

from __future__ import annotations

from txlog.engine.storage.disk import TEMPORARY_PREFIX
from txlog.engine.storage.manifest import Manifest, generations, read_manifest
from txlog.engine.store import Store
from txlog.engine.upkeep.history import HISTORY_DIR
from txlog.engine.upkeep.paths import ledger_dir
from txlog.engine.view import View
from txlog.errors import IntegrityError, MissingFile

FIXED_DIRECTORIES = ("", "journal", "manifest", "state", "quarantine", "consumers", HISTORY_DIR)
SEGMENT_SUFFIXES = (".arrow", ".parquet", ".state")


def sweep_unnamed(store: Store) -> int:
    """Unlink unnamed files; returns their bytes. The caller holds the maintenance lock."""
    named, directories = store.read(lambda view: (_named(store, view), _directories(view)))
    freed = 0
    for directory in (*FIXED_DIRECTORIES, *directories):
        for name in store.disk.listdir(directory):
            path = f"{directory}/{name}" if directory else name
            if name.startswith(TEMPORARY_PREFIX):
                if not store.holds_lock(path):
                    freed += _unlink(store, path)
            elif name.endswith(SEGMENT_SUFFIXES) and named is not None and path not in named:
                freed += _unlink(store, path)
    return freed


def _unlink(store: Store, path: str) -> int:
    try:
        size = store.disk.size(path)
    except MissingFile:
        return 0
    store.disk.unlink(path)
    return size


def _named(store: Store, view: View) -> set[str] | None:
    """Every path a kept manifest or a frame names; None when a manifest cannot be read."""
    out = {ref.path for ref in view.sealed_since().values()}
    for generation in generations(store.disk):
        try:
            manifest = read_manifest(store.disk, generation, store.identity.salt)
        except (IntegrityError, MissingFile):
            return None  # it might name any of them
        out |= _paths(manifest)
    return out


def _paths(manifest: Manifest) -> set[str]:
    files = {ref.path for refs in manifest.files.values() for ref in refs}
    files |= {ref.path for ref in manifest.history}
    return files | {ref.path for ref in manifest.dumps} | {path for path, _ in manifest.dropped}


def _directories(view: View) -> list[str]:
    owners = sorted(set(view.catalog.owners.values()))
    return [ledger_dir(view.catalog, partition, role) for partition, role in owners]
