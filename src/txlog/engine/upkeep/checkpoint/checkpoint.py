"""The checkpoint: moves the journal into files, so that opening a store costs the live state.

The docstring of the package has its time line. Its caller holds the maintenance lock. Another
process waits only for the cut; threads of this process also wait for the dumps of loaded folds.

It also removes files that no manifest names any more, in the store and outside it. It keeps files
from which repair can rebuild the newest checkpoint, and files pinned by a live reader. A file that
cannot be removed now is reported and left to `txlog admin gc`.
Source: spec/reliability 2.4.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain, pairwise
from threading import current_thread, main_thread
from typing import TYPE_CHECKING

import msgspec

from txlog.base.startup.crc32c import crc32c
from txlog.engine.folds import buffer as buffers
from txlog.engine.model.ops import Component, decode_ops
from txlog.engine.model.tail import Slice, Tail, TailRun
from txlog.engine.plan.clock_trust import trusted
from txlog.engine.storage import remote
from txlog.engine.storage.disk.protocol import Disk, Stream
from txlog.engine.storage.frame import list_journals
from txlog.engine.storage.manifest import (
    Changes,
    DumpRef,
    HistoryRef,
    Manifest,
    changes_of,
    encode_manifest,
    generations,
    manifest_path,
    raw_changes,
    read_manifest,
)
from txlog.engine.storage.remote import is_far
from txlog.engine.storage.segment import (
    FileRef,
    SegmentStream,
    encode_part,
    make_ref,
    piece_rows,
)
from txlog.engine.store.appender import RESERVE_PATH
from txlog.engine.store.confirmed import HINT, confirmed, place_in
from txlog.engine.store.identity import COPIED
from txlog.engine.store.liveness import pinned, unpinned
from txlog.engine.store.store import MAINTENANCE_PATH, Store
from txlog.engine.upkeep.changes import log as changelog
from txlog.engine.upkeep.changes import rows as changes
from txlog.engine.upkeep.checkpoint import history
from txlog.engine.view import (
    FOLDS,
    STATE_HEAD,
    STATE_MAGIC,
    FilePlace,
    StateSources,
    View,
    dump_bytes,
    made,
    part_path,
    place_dir,
    place_of,
)
from txlog.errors import Corruption, DiskFailed, IntegrityError, MissingFile, StoreFull, TxlogError

if TYPE_CHECKING:
    import pyarrow as pa

# --- files that no manifest names -----------------------------------------------------------------


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
    """(place, path) of the files outside the store that may be removed.

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
    """The files of the checkpoint before a manifest that repair may need; see `leading`.

    If that checkpoint cannot be read, all files dropped since the manifest was written.
    """
    older = [generation for generation in generations(disk) if generation < newest.generation]
    if not older:
        return set()
    try:
        return leading(read_manifest(disk, older[-1], salt), newest)
    except (IntegrityError, MissingFile):
        return {path for path, since in newest.dropped if since >= newest.time_ms}


def leading(previous: Manifest, newest: Manifest) -> set[str]:
    """The files of a checkpoint from which repair can rebuild the next checkpoint.

    These are its state, its history, and files whose rows are now in other files. Files of a
    trimmed or deleted ledger are not needed: a frame records that they are dropped (R18). In a
    partition these ledgers are known; in a sidecar, only once the whole partition is deleted.
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


# --- checkpoint -----------------------------------------------------------------------------------


# A state file is rewritten once less than this share of it is still named.
STATE_LIVE_SHARE_MIN = 0.5
FRAMES_READ = 1024
# Bytes of rows kept from reading the journal until they are in parts; rows of frames beyond this
# are read, and checked, a second time.
ROWS_KEPT_BYTES = 16 << 20
PARTS_BYTES = 16 << 20  # parts that are flushed together are in memory together
# A part with more bytes of messages is written in pieces: encoded whole, it takes five times as
# much.
WHOLE_BYTES = 4 << 20
# A file with a generation in its name: of a ledger, of a history, of the states.
_NUMBERED = re.compile(r"(?:.+\.)?(\d{10})\.(?:arrow|parquet|state)")
NOTHING = {kind: fold.dump(fold.new()) for kind, fold in FOLDS.items()}


class CheckpointReport(msgspec.Struct, gc=False):
    """The counts of a checkpoint; skipped: none was written."""

    generation: int = 0
    lsn: int = 0
    frames: int = 0
    rows: int = 0
    parts: int = 0
    sealed_ledgers: int = 0
    journals_deleted: int = 0
    freed_bytes: int = 0
    skipped: bool = False


class Cut(msgspec.Struct):
    """The state to write at a cut; after this the checkpoint does not need the live view.

    kept, changed: dumps that stay where they are, and dumps to write
    unmade:        changed folds that are not loaded; `make_dumps` moves them to `changed`
    runs:          the rows that are only in the journal; places: the directories of their ledgers
    sealed, gone:  by ledger the file that a frame sealed; ledgers that frames dropped
    lost:          files that frames named and dropped again before a manifest named them
    named:         the names of the cursors whose dumps are written
    """

    manifest: Manifest
    kept: list[DumpRef]
    changed: dict[Component, bytes]
    unmade: dict[Component, StateSources]
    runs: dict[int, list[TailRun]]
    places: dict[int, FilePlace]
    sealed: dict[int, FileRef]
    gone: set[int]
    lost: list[str]
    named: dict[changes.Cell, changes.CursorName]


def checkpoint(store: Store, report: CheckpointReport, *, far: bool = False) -> Manifest:
    """Write a checkpoint; the caller holds the maintenance lock.

    far:     also remove files outside the store that no manifest names: calls over a network
    returns: the new manifest, or the old one when there is no frame since
    raises:  StoreFull, DiskFailed: nothing changed; its number is not used again (R3)
             Corruption: dumps are missing, and the checkpoint would remove the files to rebuild
                 them from
    """
    disk = store.disk
    store.read(lambda view: need_states(disk, view.dumped().values()))
    _encode_ahead(store)
    cut_lsn, chain_crc, cut = store.cut(state_at_cut)
    if cut.manifest.generation < max(generations(disk), default=0):
        # its view is older than the newest manifest; a damaged manifest stays damaged
        store.reload()
        cut_lsn, chain_crc, cut = store.cut(state_at_cut)
    now = store.clock.now()
    sure_ms = store.read(lambda view: trusted(view, store.settings, now), fresh=False).wall_ms
    old = cut.manifest
    report.lsn = cut_lsn
    if old.cut_lsn >= cut_lsn:
        report.skipped = True
        report.generation = old.generation
        _, expired = _expired(old, store, sure_ms, far=far)
        report.freed_bytes += unlink_free(store, expired)
        return old
    report.frames = cut_lsn - old.cut_lsn
    view = View.open(disk, store.identity.salt, now.boot_id, generation=old.generation or None)
    try:
        with _uncollected():
            items, collected = _read_frames(view, cut, cut_lsn)
        make_dumps(disk, cut)
        generation = next_generation(disk, old, directories_of(cut))
        dumps = write_state(view, cut, generation)  # first: its name burns the number (R3, R16)
        files = write_parts(view, cut, generation, report)
        view.tail.drop_through(cut_lsn)  # sealing, at the end, takes as much again
        rows = history.table_of(items)
        log = history.publish(view, rows, generation, store.settings, sure_ms)
        change_logs = changelog.publish(
            disk,
            old,
            collected,
            cursors_of(cut),
            dumps,
            cut_lsn,
            generation,
            store.settings,
            sure_ms,
            store.note,
        )
        dropped = dropped_files(old, files, dumps, log, change_logs, cut.lost, now.wall_ms)
        manifest = Manifest(
            generation,
            crc_of(disk, old.generation),
            cut_lsn,
            chain_crc,
            now.wall_ms,
            files,
            dumps,
            dropped,
            log,
            raw_changes(change_logs),
        )
        keep, expired = _expired(manifest, store, sure_ms, far=far)
        manifest = msgspec.structs.replace(manifest, dropped=keep)
        disk.publish(manifest_path(generation), [encode_manifest(manifest, store.identity.salt)])
        report.generation = generation
        settle(store, old, expired, report)
        return manifest
    finally:
        view.close()


def _encode_ahead(store: Store) -> None:
    """Encode large folds before the cut, a block at a time: other calls run between the blocks."""
    for key in store.read(lambda view: view.changed()):
        if key[0] == "buffer":
            while store.read(partial(_encode_some, key), fresh=False):
                pass


def _encode_some(key: Component, view: View) -> bool:
    return view.origin(key) is None and buffers.encode_some(view.buffer(key[1]))


def state_at_cut(view: View) -> Cut:
    """The state that a checkpoint needs from the live view; threads of this process wait for it."""
    manifest, dumped = view.manifest, view.dumped()
    if manifest.cut_lsn >= view.lsn:
        return Cut(manifest, [], {}, {}, {}, {}, {}, set(), [], {})
    changed: dict[Component, bytes] = {}
    unmade: dict[Component, StateSources] = {}
    for key in view.changed():
        was = dumped.pop(key, None)
        if (origin := view.origin(key)) is not None:
            unmade[key] = origin
        elif (blob := view.dump(key)) != NOTHING[key[0]] or was is not None:
            changed[key] = blob  # a fold without a dump is as new
    sealed, catalog = view.files.sealed_since(), view.catalog
    runs = {ledger: list(runs) for ledger, runs in view.tail.runs.items() if ledger not in sealed}
    places = {ledger: place_of(catalog, *catalog.owners[ledger]) for ledger in runs}
    names = {
        key[1:]: name
        for key in (*changed, *unmade)
        if key[0] == "cursor" and (name := changes.name_of(catalog, key[1:])) is not None
    }
    return Cut(
        manifest,
        list(dumped.values()),
        changed,
        unmade,
        runs,
        places,
        sealed,
        view.files.gone_since(),
        [*view.files.lost],
        names,
    )


def make_dumps(disk: Disk, cut: Cut) -> None:
    """Encode the folds that were not loaded at the cut, from their dumps and ops (Law 1).

    The files that it reads stay as long as the maintenance lock is held.
    raises: Corruption
    """
    for key, origin in cut.unmade.items():
        blob = FOLDS[key[0]].dump(made(disk, key, origin))
        if origin.ref is not None or blob != NOTHING[key[0]]:
            cut.changed[key] = blob
    cut.unmade.clear()


def directories_of(cut: Cut) -> list[str]:
    """The directories of the ledgers that gained rows."""
    return [place_dir(location) for location in cut.places.values()]


def cursors_of(cut: Cut) -> Iterator[tuple[changes.Cell, changes.CursorName, bytes]]:
    """The cursors whose dumps are written, with their names."""
    return (
        (cell, name, blob)
        for cell, name in sorted(cut.named.items())
        if (blob := cut.changed.get(("cursor", *cell))) is not None
    )


def _read_frames(
    view: View, cut: Cut, cut_lsn: int
) -> tuple[list[history.Item], changes.CollectedChanges]:
    """Read the frames up to the cut into the view's tail; returns ops for history and changes."""
    items: list[history.Item] = []
    collected = changes.CollectedChanges()
    journal, tail = view.journal, view.tail
    journal.current.keep_rows(ROWS_KEPT_BYTES)
    tail.runs = cut.runs
    # in steps, so that the memory of a step is freed before the next
    while journal.last_lsn < cut_lsn:
        for raw in journal.read_until(min(journal.last_lsn + FRAMES_READ, cut_lsn)):
            tail.pack(raw)
            lsn, time_ms = raw.lsn, raw.time_ms
            for op in decode_ops(raw.ops, lsn=lsn):
                kind = type(op)
                if kind in history.KINDS:
                    items.append((lsn, time_ms, op))
                elif kind in changes.TAKES:
                    changes.TAKES[kind](collected, lsn, time_ms, op)
    return items, collected


@contextmanager
def _uncollected() -> Iterator[None]:
    """Pause the garbage collector: the rows read stay alive, and scanning them costs a quarter
    of the time.

    They contain no cycles, so the collector would free nothing. With other threads running it is
    not paused, because the pause would affect them.
    """
    if not (gc.isenabled() and current_thread() is main_thread()):
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def need_states(disk: Disk, dumps: Iterable[DumpRef]) -> None:
    """Raise Corruption unless the state files of dumps exist and are long enough.

    A manifest without them would push out the older manifest from which they can be rebuilt.
    """
    ends: dict[str, int] = {}
    for ref in dumps:
        ends[ref.path] = max(ends.get(ref.path, 0), ref.offset + ref.length)
    for path, end in sorted(ends.items()):
        try:
            size = disk.size(path)
        except MissingFile:
            size = -1
        if size < end:
            problem = "is missing" if size < 0 else f"has {size} bytes in place of {end}"
            raise Corruption(
                f"{path} {problem}, so no checkpoint is written",
                hint="txlog admin repair makes it again from the checkpoint before",
                path=path,
            )


def next_generation(disk: Disk, old: Manifest, directories: Iterable[str]) -> int:
    """1 + the highest number in any name, also of a checkpoint that died or a lost manifest.

    directories: of the ledgers that get a file. A checkpoint takes its number with its state file,
                 but a sweep may have removed that and not yet the parts with this number (R16)
    """
    highest = max([old.generation, *generations(disk)])
    fixed = ("state", history.HISTORY_DIR, *changelog.DIRECTORIES.values())
    for directory in {*fixed, *directories}:
        for name in disk.listdir(directory):
            if match := _NUMBERED.fullmatch(name):
                highest = max(highest, int(match[1]))
    return highest + 1


def write_parts(
    view: View, cut: Cut, generation: int, report: CheckpointReport
) -> dict[int, list[FileRef]]:
    """Publish the rows of the tail, one part per ledger; returns all live files by ledger."""
    files = {ledger: list(refs) for ledger, refs in cut.manifest.files.items()}
    for ledger, ref in cut.sealed.items():
        files[ledger] = [ref]
    for ledger in cut.gone:
        files.pop(ledger, None)

    waiting: list[tuple[str, list[memoryview]]] = []
    size = 0
    sizes = _sizes(cut.runs)
    for ledger, runs in sorted(cut.runs.items()):
        path = part_path(place_dir(cut.places[ledger]), ledger, generation)
        metadata = {"ledger": str(ledger), "generation": str(generation)}
        if sizes[ledger] > WHOLE_BYTES:
            ref = _publish_part(view, path, ledger, runs, sizes[ledger], metadata)
        else:
            table = view.tail.message_table([(run, 0, run.rows) for run in runs])
            data = encode_part(table, metadata)
            ref = make_ref(path, ledger, data, table, form="part")
            waiting.append((path, data))
            size += ref.bytes
            del table, data
        files.setdefault(ledger, []).append(ref)
        report.parts += 1
        report.rows += ref.rows
        if size >= PARTS_BYTES:
            view.disk.publish_all(waiting)
            waiting.clear()
            size = 0
    view.disk.publish_all(waiting)
    return files


def _sizes(runs: dict[int, list[TailRun]]) -> dict[int, int]:
    """By ledger, an estimate of the bytes of its rows; a frame may have rows of several."""
    rows: dict[int, int] = {}
    for run in chain.from_iterable(runs.values()):
        rows[run.frame.lsn] = rows.get(run.frame.lsn, 0) + run.rows
    return {
        ledger: sum(run.frame.rows_bytes * run.rows // rows[run.frame.lsn] for run in of)
        for ledger, of in runs.items()
    }


def _publish_part(
    view: View, path: str, ledger: int, runs: list[TailRun], size: int, metadata: dict[str, str]
) -> FileRef:
    """Publish a part that is too large for memory."""
    segment, rows = SegmentStream(), sum(run.rows for run in runs)
    pieces = _pieces(view.tail, runs, piece_rows(rows, size))
    stream = Stream(segment.part(pieces, view.tail.columns(runs), metadata))
    with view.disk.publishing(path, stream):
        pass
    return segment.ref(path, ledger)


def _pieces(tail: Tail, runs: list[TailRun], step: int) -> Iterator[pa.Table]:
    """The rows of runs, `step` at a time."""
    slices: list[Slice] = []
    total = 0
    for run in runs:
        start = 0
        while start < run.rows:
            end = min(run.rows, start + step - total)
            slices.append((run, start, end))
            total += end - start
            start = end
            if total == step:
                yield tail.message_table(slices)
                slices, total = [], 0
    if slices:
        yield tail.message_table(slices)


def write_state(view: View, cut: Cut, generation: int) -> list[DumpRef]:
    """Publish one file with changed dumps, and dumps from mostly dead files; returns all dumps."""
    path = f"state/{generation:010d}.state"
    blobs: list[bytes] = []
    kept_dumps = {(ref.kind, ref.a, ref.b): ref for ref in cut.kept}
    moved = {
        key: dump_bytes(view.disk, kept_dumps.pop(key))
        for key in _worth_moving(view.disk, kept_dumps)
    }
    out = list(kept_dumps.values())
    at = STATE_HEAD.size
    for (kind, a, b), blob in sorted({**moved, **cut.changed}.items()):
        blobs.append(blob)
        out.append(DumpRef(kind, a, b, path, at, len(blob), crc32c(blob)))
        at += len(blob)
    view.disk.publish(path, [STATE_HEAD.pack(STATE_MAGIC, view.salt), *blobs])
    return out


def _worth_moving(disk: Disk, kept_dumps: dict[Component, DumpRef]) -> list[Component]:
    """The dumps in state files with mostly dead bytes."""
    live: dict[str, int] = {}
    for ref in kept_dumps.values():
        live[ref.path] = live.get(ref.path, 0) + ref.length
    poor = {path for path, size in live.items() if size < STATE_LIVE_SHARE_MIN * disk.size(path)}
    return [key for key, ref in kept_dumps.items() if ref.path in poor]


def dropped_files(
    old: Manifest,
    files: dict[int, list[FileRef]],
    dumps: list[DumpRef],
    log: list[HistoryRef],
    change_logs: Changes,
    lost: list[str],
    now_ms: int,
) -> list[tuple[str, int]]:
    """(path, time) of files that only the old manifest names, and of files dropped earlier."""
    new_paths = {ref.path for refs in files.values() for ref in refs} | {ref.path for ref in dumps}
    new_paths |= {ref.path for ref in log} | {ref.path for ref in change_logs.refs}
    old_paths = {ref.path for refs in old.files.values() for ref in refs}
    old_paths |= {ref.path for ref in old.dumps} | {ref.path for ref in old.history} | {*lost}
    old_paths |= {ref.path for ref in changes_of(old).refs}
    return [*old.dropped, *((path, now_ms) for path in sorted(old_paths - new_paths))]


def _expired(
    manifest: Manifest, store: Store, now_ms: int, *, far: bool
) -> tuple[list[tuple[str, int]], list[str]]:
    """(dropped files to keep, files to unlink), by the grace of readers; none on a full disk (R18).

    A file that a reader has pinned stays even on a full disk, because the reader would fail. The
    files from which repair can rebuild the newest manifest (`leading`) stay for one generation. On
    a full disk only the previous state stays, because frames name the files with the rows.
    """
    full = store.disk.free_bytes() < store.settings.free_bytes_min
    grace = 0 if full else store.settings.reader_grace_ms
    dropped_far = [path for path, _ in manifest.dropped if is_far(path)]
    far = far and not store.disk.exists(COPIED)
    removed_far = {path for _, path in removable(store, dropped_far)} if far else set[str]()
    is_free = pinned(store.disk, store.identity.salt)
    spared = needed_before(store.disk, store.identity.salt, manifest)
    keep = [
        (path, since)
        for path, since in manifest.dropped
        if now_ms - since < grace
        or not is_free(path)
        or (is_far(path) and path not in removed_far)
        or (path in spared and (not full or path.startswith(STATE_DIR)))
    ]
    kept_paths = {path for path, _ in keep}
    return keep, [path for path, _ in manifest.dropped if path not in kept_paths]


def settle(store: Store, old: Manifest, expired: list[str], report: CheckpointReport) -> None:
    """Note the new manifest's generation, remove old files, refill the reserve; raises nothing."""
    generation = report.generation
    try:
        store.locked(lambda live: live.journal.note_generation(generation))
        _delete(store, old, expired, report)
        restore_reserve(store)
        store.refresh()
    except TxlogError as error:
        store.note(f"checkpoint {generation} is there, but not all that follows it: {error}")


def _delete(store: Store, old: Manifest, expired: list[str], report: CheckpointReport) -> None:
    """Unlink expired files, manifests before the old one, and journals that it does not need.

    It reports files that it cannot remove, and goes on.
    """
    disk = store.disk
    report.freed_bytes += unlink_free(store, expired)
    for generation in generations(disk):
        if generation < old.generation:
            _unlink(store, manifest_path(generation))
    names = list_journals(disk)
    for name, next_journal in pairwise(names):
        if next_journal.first_lsn <= old.cut_lsn + 1:
            size = _unlink(store, name.path)
            report.journals_deleted += size is not None
            report.freed_bytes += size or 0


def _unlink(store: Store, path: str) -> int | None:
    """Remove a file and return its bytes; None, with a note, when that fails."""
    try:
        size = store.disk.size(path)
        store.disk.unlink(path)
    except MissingFile:
        return 0
    except TxlogError as error:
        store.note(f"{error}; it is in nobody's way, remove it by hand")
        return None
    return size


def crc_of(disk: Disk, generation: int) -> int:
    """The CRC of a manifest's whole file, as the next one stores it; 0 if there is none."""
    return crc32c(disk.read(manifest_path(generation))) if generation else 0


def restore_reserve(store: Store) -> None:
    """Write the reserve file again if it is missing and the disk has room (R30)."""
    if store.disk.exists(RESERVE_PATH):
        return
    if store.disk.free_bytes() > 2 * store.settings.free_bytes_min:
        try:
            store.disk.publish(RESERVE_PATH, [bytes(4 << 20)])
        except StoreFull:
            return


@contextmanager
def maintenance(store: Store, *, wait: bool) -> Iterator[bool]:
    """Hold the maintenance lock; yields False if another process has it and wait is not set.

    An interrupt may stop the acquire or the release anywhere. So two nested blocks release the
    lock, both set up before it is acquired.
    raises: StoreLocked, if it waits too long
    """
    if wait and store.upkeep is not None:
        store.upkeep.finish()  # this process's own upkeep must not look like another process
    lock = store.disk.lock_file(MAINTENANCE_PATH)
    try:
        try:
            if wait:
                lock.acquire(store.lock_timeout_ms)
            yield wait or lock.try_acquire()
        finally:
            lock.close()  # unlike an unlock it cannot fail
    finally:
        lock.close()
