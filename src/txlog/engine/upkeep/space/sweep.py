"""The sweep of files that nothing names: what earlier passes left when they died (R19, Law 5).

Segment and state files are published by the holder of the maintenance lock, so one that is named
neither by the two newest manifests nor by a frame since will never be named. Exceptions:

    a temporary      another process may be writing it right now: it goes only if its flock is free
    a large message  its frame may not be written yet; its sender holds the flock until it is. Once
                     that is free, a look under the write lock, which sees every frame, decides
    a ledger         in a partition: the frame that adopted it may be written and not flushed, so
                     the same look decides
    a pinned file    stays while its reader lives

The lock file of a consumer that is no longer attached belongs to nobody, since its number is used
once. What stands in place of one of the store's directories is left alone; verify names it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from txlog.engine.decide.sending.exclusive import epoch_of
from txlog.engine.folds.catalog import has_partition
from txlog.engine.storage.disk.protocol import TEMPORARY_PREFIX, Disk
from txlog.engine.storage.manifest import Manifest, changes_of, generations, read_manifest
from txlog.engine.storage.remote import is_far
from txlog.engine.store.identity import COPIED
from txlog.engine.store.liveness import CONSUMERS_DIR, is_held
from txlog.engine.store.pins import PINS_DIR, pinned, pins, unpinned
from txlog.engine.store.store import Store
from txlog.engine.upkeep.changes.log import CURSORS_DIR, DIRECTORIES
from txlog.engine.upkeep.checkpoint.history import HISTORY_DIR
from txlog.engine.upkeep.checkpoint.unlinking import (
    SIDECAR_DIR,
    STATE_DIR,
    needed_before,
    removable,
    unlink_free,
)
from txlog.engine.upkeep.delayed.buckets import delayed_partitions
from txlog.engine.view.paths import COMPACTED_DIR, DELAYED_DIR, NOTE, FilePlace, place_dir, place_of
from txlog.engine.view.view import View
from txlog.errors import Corruption, IntegrityError, MissingFile

FIXED_DIRECTORIES = (
    "", "journal", "manifest", "state", "quarantine", CONSUMERS_DIR, HISTORY_DIR,
    *DIRECTORIES.values(),
)  # fmt: skip
SEGMENT_SUFFIXES = (".arrow", ".parquet", ".state")


def sweep_unnamed(store: Store, *, directories_max: int | None = None) -> int:
    """Unlink unnamed files; returns their bytes. The caller holds the maintenance lock.

    directories_max: with more partitions than this only the fixed directories are searched; None:
                     every directory, those of deleted topics too
    """
    return sum(unlink_unnamed(store, path) for path, _ in [*unnamed(store, directories_max)])


def unlink_unnamed(store: Store, path: str) -> int:
    """Unlink an unnamed file; returns its bytes, 0 if it is wanted by now (R19)."""
    if path.startswith(f"{PINS_DIR}/"):
        return _unlink_pin(store, path)
    name, in_sidecar = path.rpartition("/")[2], SIDECAR_DIR in path
    if name.startswith("ledger-") or (in_sidecar and not name.startswith(TEMPORARY_PREFIX)):
        if in_sidecar and is_held(store.disk, path):
            return 0
        named = store.locked(lambda view: named_paths(store, view))
        if named is None or path in named:
            return 0
    return unlink_free(store, [path])


def unnamed(store: Store, directories_max: int | None = None) -> Iterator[tuple[str, str]]:
    """The files that nobody names, each with the reason: unnamed, temporary, or pin."""
    is_free = pinned(store.disk, store.identity.salt)
    yield from _free_locks(store)
    disk = store.disk
    by_frames, places = store.read(
        lambda view: (_named_by_frames(view), _places(view, directories_max))
    )
    named = _named_by_manifests(disk, store.identity.salt)
    if named is not None:
        named |= by_frames
    directories = [*every_directory(disk)] if places is None else _directories(disk, places)
    if directories_max is not None and len(directories) > directories_max:
        directories = []
    for directory in (*FIXED_DIRECTORIES, *directories):
        for name in names_in(store.disk, directory) or ():
            path = f"{directory}/{name}" if directory else name
            if name.startswith(TEMPORARY_PREFIX):
                if not is_held(store.disk, path):
                    yield path, "temporary"
            elif name.endswith(SEGMENT_SUFFIXES) and named is not None and path not in named:
                is_awaited = SIDECAR_DIR in path and is_held(store.disk, path)
                if not is_awaited and is_free(path):
                    yield path, "unnamed"


def _free_locks(store: Store) -> Iterator[tuple[str, str]]:
    """Pins of dead processes, and locks of consumers that have left."""
    left = store.read(lambda view: detached(store.disk, view))
    for path in (*pins(store.disk), *left):
        if not is_held(store.disk, path):
            yield path, "unnamed" if path in left else "pin"


def free_gone(store: Store) -> int:
    """On a full disk: unlink what frames have dropped, before any manifest; returns the bytes.

    The frame decides (R18): opening the store replays it and never needs the files.
    Otherwise there may be no room for the checkpoint that would make room.
    """
    if store.disk.free_bytes() >= store.settings.free_bytes_min:
        return 0
    return unlink_free(store, store.read(_gone_paths))


def _gone_paths(view: View) -> list[str]:
    gone = view.files.gone_since()
    refs = [ref for ledger in sorted(gone) for ref in view.manifest.files.get(ledger, [])]
    return [ref.path for ref in refs if not is_far(ref.path)]  # files outside make no room


def replaced(store: Store, keep_ms: int, now_ms: int) -> Iterator[tuple[str, str]]:
    """Files that lost their name at least this long ago, except what the checkpoint before needs.

    On a full disk only its state is (R18).
    """
    manifest = store.read(lambda view: view.manifest)
    is_free = pinned(store.disk, store.identity.salt)
    is_full = store.disk.free_bytes() < store.settings.free_bytes_min
    is_copy = store.disk.exists(COPIED)
    spared = needed_before(store.disk, store.identity.salt, manifest)
    far = [] if is_copy else [path for path, _ in manifest.dropped if is_far(path)]
    may_go = {path for _, path in removable(store, far)}
    for path, since in manifest.dropped:
        is_needed = path in spared and not (is_full and not path.startswith(STATE_DIR))
        is_due = now_ms - since >= keep_ms and not is_needed and is_free(path)
        if is_due and (path in may_go if is_far(path) else store.disk.exists(path)):
            yield path, "replaced"


def _unlink_pin(store: Store, path: str) -> int:
    with suppress(MissingFile):
        size = store.disk.size(path)
        with unpinned(store.disk, store.identity.salt, store.lock_timeout_ms):
            return 0 if store.disk.exists(path) else size
    return 0


def named_paths(store: Store, view: View) -> set[str] | None:
    """Every path a kept manifest or a frame names; None when a manifest cannot be read."""
    named = _named_by_manifests(store.disk, store.identity.salt)
    return None if named is None else named | _named_by_frames(view)


def _named_by_frames(view: View) -> set[str]:
    out = {ref.path for ref in view.files.sealed_since().values()} | {*view.files.lost}
    for number in delayed_partitions(view):
        out |= {bucket.file.path for bucket in view.delayed(number).buckets}
    return out


def _named_by_manifests(disk: Disk, salt: bytes) -> set[str] | None:
    """After the frames; without the mutex, as only the maintenance lock's holder makes one.

    returns: None when one cannot be read, as it might name any path
    """
    out: set[str] = set()
    for generation in generations(disk):
        try:
            out |= paths_of(read_manifest(disk, generation, salt))
        except (IntegrityError, MissingFile):
            return None
    return out


def paths_of(manifest: Manifest) -> set[str]:
    """Every path that a manifest names, those it has dropped and not yet unlinked too."""
    files = {ref.path for refs in manifest.files.values() for ref in refs}
    files |= {ref.path for ref in manifest.history} | {r.path for r in changes_of(manifest).refs}
    return files | {ref.path for ref in manifest.dumps} | {path for path, _ in manifest.dropped}


def detached(disk: Disk, view: View) -> list[str]:
    """The locks of consumers no longer attached, and of seats that were left.

    Neither gets its number again.
    """
    catalog = view.catalog
    out: list[str] = []
    for name in disk.listdir(CONSUMERS_DIR):
        stem = name.removesuffix(".lock")
        topic, dash, epoch = stem.partition("-")
        if stem.isdecimal():
            number = int(stem)
            is_gone = number < catalog.next_consumer and number not in catalog.consumers
        elif dash and topic.isdecimal() and epoch.isdecimal():
            found = catalog.topics.get(int(topic))
            is_gone = found is None or int(epoch) < epoch_of(view, found)
        else:
            continue
        if is_gone:
            out.append(f"{CONSUMERS_DIR}/{name}")
    return out


def names_in(disk: Disk, path: str) -> list[str] | None:
    """The names in a directory; None: it is not a directory (links are not followed)."""
    try:
        return disk.listdir(path)
    except Corruption:
        return None


def below_topics(disk: Disk, levels: int, strays: list[str] | None = None) -> list[str]:
    """What lies this many levels below `topics`: 3, topics; 4, partitions and their like.

    strays: takes what is not a directory above that
    """
    paths = ["topics"]
    for _ in range(levels):
        found = [(path, names_in(disk, path)) for path in paths]
        if strays is not None:
            strays += [path for path, names in found if names is None]
        paths = [f"{path}/{name}" for path, names in found for name in names or ()]
    return paths


def every_directory(disk: Disk, strays: list[str] | None = None) -> Iterator[str]:
    """Every directory of partitions and sidecars, those of deleted topics too."""
    for path in below_topics(disk, 4, strays):
        if path.endswith(f"/{NOTE}"):
            continue
        names = names_in(disk, path)
        if names is None and strays is not None:
            strays.append(path)
        if names is not None:
            yield path
        below = ("_txnlog", DELAYED_DIR, COMPACTED_DIR)
        yield from (f"{path}/{name}" for name in below if name in (names or ()))
        if CURSORS_DIR in (names or ()):
            yield from cursor_dirs(disk, path, strays)


def cursor_dirs(disk: Disk, partition: str, strays: list[str] | None = None) -> Iterator[str]:
    """The directories of cursors in that of a partition, those of deleted subscriptions too."""
    directory = f"{partition}/{CURSORS_DIR}"
    for path in (f"{directory}/{name}" for name in names_in(disk, directory) or ()):
        if names_in(disk, path) is not None:
            yield path
        elif strays is not None:
            strays.append(path)


def _places(view: View, places_max: int | None) -> list[FilePlace] | None:
    """Where files may lie; none of them when they are too many, None when nobody asks."""
    if places_max is None:
        return None
    catalog = view.catalog
    owners = sorted(set(catalog.owners.values()))
    delayed = [
        (number, "d") for number in delayed_partitions(view) if has_partition(catalog, number)
    ]
    if len(owners) + len(delayed) > places_max:
        return []
    return [place_of(catalog, number, role) for number, role in (*owners, *delayed)]


def _directories(disk: Disk, places: list[FilePlace]) -> list[str]:
    paths = [place_dir(place) for place in places]
    partitions = [path for path, place in zip(paths, places, strict=True) if place.role == "p"]
    return [*paths, *(path for one in partitions for path in cursor_dirs(disk, one))]
