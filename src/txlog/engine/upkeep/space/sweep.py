"""The sweep of files that nothing names: leftovers of processes that died (R19, Law 5).

Only the holder of the maintenance lock publishes segment and state files. So a file that neither
the two newest manifests nor a later frame names will never be named. Exceptions:

    a temporary      another process may be writing it: it is removed only if its flock is free
    a large message  its frame may not be written yet; its sender holds the flock until it is. Once
                     that is free, a check under the write lock, which sees every frame, decides
    any other file   the frame that names it may be written and not flushed, because its process
                     died or is at its flush, so the same check decides; outside the store, too
    a pinned file    stays while its reader's process lives

The sweep also removes the lock file of a detached consumer, whose number is never used again. A
file in place of a directory of the store stays; verify reports it.

`write_notes` keeps a `_README` in the directory of each topic, about how to read its files. No code
needs it and no manifest names it. The first checkpoint after the directory is made writes it once;
a crash may leave a part of it, which is harmless. The first checkpoint that finds no file of a
deleted topic removes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from txlog.engine.decide.sending.producers import epoch_of
from txlog.engine.folds.catalog import directory_of, has_partition
from txlog.engine.storage.disk.protocol import TEMPORARY_PREFIX, Disk
from txlog.engine.storage.manifest import Manifest, changes_of, generations, read_manifest
from txlog.engine.storage.remote import is_far
from txlog.engine.store.identity import COPIED
from txlog.engine.store.liveness import CONSUMERS_DIR, PINS_DIR, is_held, pinned, pins, unpinned
from txlog.engine.store.store import Store
from txlog.engine.upkeep.changes.log import CURSORS_DIR, DIRECTORIES
from txlog.engine.upkeep.checkpoint.checkpoint import (
    SIDECAR_DIR,
    STATE_DIR,
    needed_before,
    removable,
    unlink_free,
)
from txlog.engine.upkeep.checkpoint.history import HISTORY_DIR
from txlog.engine.upkeep.delayed.buckets import delayed_partitions
from txlog.engine.view import (
    COMPACTED_DIR,
    DELAYED_DIR,
    NOTE,
    FilePlace,
    View,
    place_dir,
    place_of,
)
from txlog.errors import Corruption, IntegrityError, MissingFile, TxlogError

FIXED_DIRECTORIES = (
    "", "journal", "manifest", "state", "quarantine", CONSUMERS_DIR, HISTORY_DIR,
    *DIRECTORIES.values(),
)  # fmt: skip
SEGMENT_SUFFIXES = (".arrow", ".parquet", ".state")


def sweep_unnamed(store: Store, *, directories_max: int | None = None) -> int:
    """Unlink unnamed files; returns their bytes. The caller holds the maintenance lock.

    directories_max: with more partitions than this it searches only the fixed directories; None:
                     every directory, also of deleted topics
    """
    return sum(unlink_unnamed(store, path) for path, _ in [*unnamed(store, directories_max)])


def unlink_unnamed(store: Store, path: str) -> int:
    """Unlink an unnamed file; returns its bytes, 0 if something names it by now (R19)."""
    if path.startswith(f"{PINS_DIR}/"):
        return _unlink_pin(store, path)
    name, in_sidecar = path.rpartition("/")[2], SIDECAR_DIR in path
    if name.endswith(SEGMENT_SUFFIXES) and not name.startswith(TEMPORARY_PREFIX):
        if in_sidecar and not is_far(path) and is_held(store.disk, path):
            return 0
        paths = store.locked(lambda view: named_paths(store, view))
        if paths is None or path in paths:
            return 0
    return unlink_free(store, [path])


def unnamed(store: Store, directories_max: int | None = None) -> Iterator[tuple[str, str]]:
    """The unnamed files, each with the reason: unnamed, temporary, or pin."""
    is_free = pinned(store.disk, store.identity.salt)
    yield from _free_locks(store)
    disk = store.disk
    by_frames, places = store.read(
        lambda view: (_named_by_frames(view), _places(view, directories_max))
    )
    paths = _named_by_manifests(disk, store.identity.salt)
    if paths is not None:
        paths |= by_frames
    directories = [*every_directory(disk)] if places is None else _directories(disk, places)
    if directories_max is not None and len(directories) > directories_max:
        directories = []
    for directory in (*FIXED_DIRECTORIES, *directories):
        for name in names_in(store.disk, directory) or ():
            path = f"{directory}/{name}" if directory else name
            if name.startswith(TEMPORARY_PREFIX):
                if not is_held(store.disk, path):
                    yield path, "temporary"
            elif name.endswith(SEGMENT_SUFFIXES) and paths is not None and path not in paths:
                is_awaited = SIDECAR_DIR in path and is_held(store.disk, path)
                if not is_awaited and is_free(path):
                    yield path, "unnamed"


def _free_locks(store: Store) -> Iterator[tuple[str, str]]:
    """Pins of dead processes, and locks of consumers that have left."""
    detached_locks = store.read(lambda view: detached(store.disk, view))
    for path in (*pins(store.disk), *detached_locks):
        if not is_held(store.disk, path):
            yield path, "unnamed" if path in detached_locks else "pin"


def free_gone(store: Store) -> int:
    """On a full disk: unlink files that frames dropped, before any manifest; returns the bytes.

    The frame is enough (R18): opening the store replays it and never needs the files. Otherwise the
    checkpoint that frees space may itself lack the space.
    """
    if store.disk.free_bytes() >= store.settings.free_bytes_min:
        return 0
    return unlink_free(store, store.read(_gone_paths))


def _gone_paths(view: View) -> list[str]:
    dropped = view.files.gone_since()
    refs = [ref for ledger in sorted(dropped) for ref in view.manifest.files.get(ledger, [])]
    # files outside the store free no space here
    return [ref.path for ref in refs if not is_far(ref.path)]


def replaced(store: Store, keep_ms: int, now_ms: int) -> Iterator[tuple[str, str]]:
    """(path, "replaced") for files dropped at least keep_ms ago that nothing needs any more.

    Files that the previous checkpoint needs are left out; on a full disk only its state (R18).
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
    """Every path that a kept manifest or a frame names; None when a manifest cannot be read."""
    paths = _named_by_manifests(store.disk, store.identity.salt)
    return None if paths is None else paths | _named_by_frames(view)


def _named_by_frames(view: View) -> set[str]:
    out = {ref.path for ref in view.files.sealed_since().values()} | {*view.files.lost}
    for number in delayed_partitions(view):
        out |= {bucket.file.path for bucket in view.delayed(number).buckets}
    return out


def _named_by_manifests(disk: Disk, salt: bytes) -> set[str] | None:
    """Every path that a kept manifest names; None when one cannot be read: it may name any path.

    Call it after the frames are read. It needs no mutex, because only the holder of the maintenance
    lock writes manifests.
    """
    out: set[str] = set()
    for generation in generations(disk):
        try:
            out |= paths_of(read_manifest(disk, generation, salt))
        except (IntegrityError, MissingFile):
            return None
    return out


def paths_of(manifest: Manifest) -> set[str]:
    """Every path that a manifest names, including dropped files that are not unlinked yet."""
    files = {ref.path for refs in manifest.files.values() for ref in refs}
    files |= {ref.path for ref in manifest.history} | {r.path for r in changes_of(manifest).refs}
    return files | {ref.path for ref in manifest.dumps} | {path for path, _ in manifest.dropped}


def detached(disk: Disk, view: View) -> list[str]:
    """The lock files of detached consumers, and of earlier epochs of exclusive producers.

    Their numbers are never used again.
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
            topic_record = catalog.topics.get(int(topic))
            is_gone = topic_record is None or int(epoch) < epoch_of(view, topic_record)
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
    """The paths this many levels below `topics`: 3, topics; 4, partitions and their siblings.

    strays: a list to which it adds paths above that level that are not directories
    """
    paths = ["topics"]
    for _ in range(levels):
        listings = [(path, names_in(disk, path)) for path in paths]
        if strays is not None:
            strays += [path for path, names in listings if names is None]
        paths = [f"{path}/{name}" for path, names in listings for name in names or ()]
    return paths


def every_directory(disk: Disk, strays: list[str] | None = None) -> Iterator[str]:
    """Every directory with files of partitions, also of deleted topics."""
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
    """The directories of cursors of a partition, also of deleted subscriptions."""
    directory = f"{partition}/{CURSORS_DIR}"
    for path in (f"{directory}/{name}" for name in names_in(disk, directory) or ()):
        if names_in(disk, path) is not None:
            yield path
        elif strays is not None:
            strays.append(path)


def _places(view: View, places_max: int | None) -> list[FilePlace] | None:
    """The places where files may be: empty if there are too many, None without a bound."""
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
    paths = [place_dir(location) for location in places]
    partitions = [
        path for path, location in zip(paths, places, strict=True) if location.role == "p"
    ]
    return [*paths, *(path for partition in partitions for path in cursor_dirs(disk, partition))]


# --- `_README` ------------------------------------------------------------------------------------


TEXT: Final = b"""\
The files below belong to a txlog store. They are not the messages of the topic.

Reading them directly (spark.read.parquet(...), read_parquet('**/*.parquet')) gives wrong rows and
no error: they also hold aborted and open transactions and markers, and the newest messages are
still in the journal. Instead:

  txlog views                               SQL views for any DuckDB
  txlog query "SELECT ... FROM messages"    SQL
  txlog.spark.read(spark, store, topic)     Spark; or spark.read.format("txlog")
  txlog export TOPIC DIR --to delta|iceberg|hive
                                            a table that any engine reads right

Do not change, move or remove anything here, except this file.
"""


def write_notes(store: Store, *, topics_max: int | None = None) -> None:
    """Write the missing notes, and remove the notes of deleted topics.

    The caller holds the maintenance lock.

    topics_max: with more topics than this it does nothing
    """
    directories = topic_dirs(store)
    if topics_max is not None and len(directories) > topics_max:
        return
    disk = store.disk
    for path in set(below_topics(disk, 3)).difference(directories):
        _remove(disk, path)
    for directory in directories:
        path = f"{directory}/{NOTE}"
        if disk.exists(directory) and not disk.exists(path):
            with suppress(TxlogError):  # a full disk has no room for it
                disk.write_fresh(path, TEXT)


def topic_dirs(store: Store) -> list[str]:
    """The directories of the topics."""
    return store.read(lambda view: [*map(directory_of, view.catalog.topics.values())])


def _remove(disk: Disk, directory: str) -> None:
    """Remove the note of a deleted topic, unless the directory still has files."""
    names = names_in(disk, directory) or []
    others = [f"{directory}/{name}" for name in names if name != NOTE]
    if NOTE in names and not any(names_in(disk, path) for path in others):
        with suppress(TxlogError):
            disk.unlink(f"{directory}/{NOTE}")
