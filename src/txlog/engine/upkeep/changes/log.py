"""The logs of changes: Arrow and Parquet files with the changes of keys, cursors and the catalog.

They are below system/ in `__transaction_key`, `cursors` and `catalog`, and for a subscription in
`_cursors/<subscription>` in the directory of a partition. A checkpoint adds an Arrow file to each
log that gained rows. All cursors share one file, because a file each for a thousand cursors would
take a thousand flushes. The checkpoint merges many files into one. If that has many bytes, it seals
it as Parquet, and cursors with many rows get their own files. Past the retention only the newest
row of each key is kept, so a log by itself always has the whole state. No state is ever recovered
from them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import pyarrow as pa

from txlog.base.ids import encode_component
from txlog.base.settings import Settings
from txlog.base.startup import compute as pc
from txlog.base.startup.crc32c import crc32c
from txlog.engine.folds.catalog import Catalog, has_partition
from txlog.engine.storage.checked import damaged, said_by_arrow
from txlog.engine.storage.disk.protocol import Disk
from txlog.engine.storage.manifest import ChangeRef, Changes, DumpRef, Manifest, changes_of
from txlog.engine.storage.segment import GROUP_ROWS, arrow_module
from txlog.engine.upkeep.changes.rows import (
    KEYS,
    SCHEMAS,
    Cell,
    CollectedChanges,
    CursorName,
    catalog_in,
    snapshot,
    tables,
)
from txlog.engine.view import ledger_dir
from txlog.errors import IntegrityError

DIRECTORIES: Final = {
    "key": "system/__transaction_key",
    "cursor": "system/cursors",
    "catalog": "system/catalog",
}
CURSORS_DIR: Final = "_cursors"
# The SQL relations that show them.
RELATIONS: Final = {"key": "transaction_key_log", "cursor": "cursor_log", "catalog": "catalog_log"}
# More Arrow files or bytes than this are merged into one; from this many bytes on it is sealed.
PARTS_MAX: Final = 16
SEALED_BYTES: Final = 8 << 20
# A cursor with this many rows gets its own file when they are sealed.
OWN_ROWS: Final = 2_000
HINT: Final = "txlog admin repair makes it again from the state as it is now"
Group = tuple[str, int, int]  # kind, and the cursor that has its own files
_SHARED: Final[Cell] = (0, 0)


# --- at a checkpoint -------------------------------------------------------------------------


def publish(
    disk: Disk,
    manifest: Manifest,
    collected: CollectedChanges,
    cursors: Iterable[tuple[Cell, CursorName, bytes]],
    dumps: Sequence[DumpRef],
    cut_lsn: int,
    generation: int,
    settings: Settings,
    now_ms: int,
    note: Callable[[str], None],
) -> Changes:
    """Write the changes after a manifest, and drop changes past the retention.

    A file or an older dump that cannot be read does not stop the checkpoint: the logs continue
    without that file, from rows of the state as it is now.
    cursors: those with changes, with their dumps at the cut
    dumps:   all dumps of the new checkpoint
    note:    called with a message when the logs start anew
    returns: the files that the manifest must name
    """
    if settings.change_retention_ms == 0 or settings.change_retention_bytes == 0:
        return Changes()
    old = changes_of(manifest)
    work = _NewFiles(disk, generation, dumps)
    try:
        changes = _told(work, manifest, collected, cursors, dumps, cut_lsn, settings, now_ms)
        return work.publish(changes)
    except IntegrityError as error:
        note(f"the logs of changes start anew: {error}")
    readable = [ref for ref in old.refs if _is_readable(disk, ref)]
    try:
        rows = snapshot(disk, dumps, cut_lsn, now_ms)
    except IntegrityError:
        return Changes(False, readable)  # the next checkpoint tries again
    fresh = [work.write(table, (kind, *_SHARED)) for kind, table in rows.items() if len(table)]
    return work.publish(Changes(True, readable + fresh))


def _is_readable(disk: Disk, ref: ChangeRef) -> bool:
    try:
        read(disk, ref)
    except IntegrityError:
        return False
    return True


def _told(
    work: _NewFiles,
    manifest: Manifest,
    collected: CollectedChanges,
    cursors: Iterable[tuple[Cell, CursorName, bytes]],
    dumps: Sequence[DumpRef],
    cut_lsn: int,
    settings: Settings,
    now_ms: int,
) -> Changes:
    old, disk = changes_of(manifest), work.disk
    if old.begun:
        rows = tables(disk, manifest, collected, cursors)
    else:
        rows = snapshot(disk, dumps, cut_lsn, now_ms)
    live = {(ref.a, ref.b) for ref in dumps if ref.kind == "cursor"}
    out: list[ChangeRef] = []
    for group, refs in _groups(old.refs, rows).items():
        kind, *cell = group
        if tuple(cell) != _SHARED:
            if tuple(cell) in live:
                out += _retained(work, group, refs, settings, now_ms)
            continue
        if kind == "cursor" and collected.deleted:
            refs = [live_ref for ref in refs for live_ref in work.without(ref, live)]
        refs = _retained(work, group, refs, settings, now_ms)
        out += work.append(kind, refs, rows[kind])
    return Changes(True, out)


def again(
    disk: Disk,
    old: Changes,
    bad: Sequence[ChangeRef],
    dumps: Sequence[DumpRef],
    cut_lsn: int,
    generation: int,
    now_ms: int,
) -> Changes:
    """The logs with rows of the state at the cut in place of damaged files; writes these rows.

    bad:    among old; if all are bad, every log starts anew
    raises: Corruption (a dump), MissingFile
    """
    lost = {ref.path for ref in bad}
    intact = [ref for ref in old.refs if ref.path not in lost]
    if not old.begun:
        return Changes(False, intact)
    kinds = {ref.kind for ref in bad} if intact else {*SCHEMAS}
    bad_cells = {(ref.subscription, ref.partition) for ref in bad if ref.kind == "cursor"}
    cells = None if not intact or _SHARED in bad_cells else bad_cells
    rows = snapshot(disk, dumps, cut_lsn, now_ms, kinds, cells)
    work = _NewFiles(disk, generation, dumps)
    return work.publish(
        Changes(
            True,
            intact
            + [
                work.write(table, (kind, *_SHARED))
                for kind, table in rows.items()
                if table.num_rows
            ],
        )
    )


def compacted(disk: Disk, manifest: Manifest, generation: int) -> Changes:
    """Write every log again with only the newest row of each key; each cursor in its own file."""
    old, work = changes_of(manifest), _NewFiles(disk, generation, manifest.dumps)
    out: list[ChangeRef] = []
    for kind in SCHEMAS:
        refs = [ref for ref in old.refs if ref.kind == kind]
        if not refs:
            continue
        table = newest(kind, _joined(kind, [read(disk, ref) for ref in refs]))
        if kind == "cursor":
            out += [
                work.write(rows_of_cell, ("cursor", *cell), sealed=True, newest=True)
                for cell, rows_of_cell in _by_cursor(table)
            ]
        elif table.num_rows:
            out.append(work.write(table, (kind, *_SHARED), sealed=True, newest=True))
    return work.publish(Changes(old.begun, out))


def is_compact(old: Changes) -> bool:
    """True when a compaction would change nothing."""
    groups = _groups(old.refs, {})
    return all(
        len(refs) == 1 and refs[0].newest and (group[0] != "cursor" or group[1:] != _SHARED)
        for group, refs in groups.items()
        if refs
    )


def _groups(
    refs: Iterable[ChangeRef], rows: Mapping[str, pa.Table]
) -> dict[Group, list[ChangeRef]]:
    """The files of each log, and of each cursor with its own files, oldest first."""
    out: dict[Group, list[ChangeRef]] = {(kind, *_SHARED): [] for kind in rows}
    for ref in refs:
        out.setdefault((ref.kind, ref.subscription, ref.partition), []).append(ref)
    return out


class _NewFiles:
    """The new files of one generation; they are on disk once `publish` returns."""

    __slots__ = ("_catalog", "_dumps", "_generation", "_made", "disk")

    def __init__(self, disk: Disk, generation: int, dumps: Sequence[DumpRef]) -> None:
        self.disk = disk
        self._generation = generation
        self._dumps = dumps
        self._catalog: Catalog | None = None
        self._made: dict[str, memoryview] = {}

    def publish(self, changes: Changes) -> Changes:
        """Write the new files that `changes` names, with few flushes; returns `changes`.

        A new file that was merged into another file is never written.
        """
        paths = {ref.path for ref in changes.refs}
        self.disk.publish_all((path, [data]) for path, data in self._made.items() if path in paths)
        self._made.clear()
        return changes

    def read(self, ref: ChangeRef) -> pa.Table:
        """The rows of a file, also of a new one; raises Corruption, MissingFile."""
        data = self._made.get(ref.path)
        return read(self.disk, ref) if data is None else decoded(ref, data)

    def append(self, kind: str, refs: list[ChangeRef], rows: pa.Table) -> list[ChangeRef]:
        """The files of a log after these rows are added: to a new file, or merged with others."""
        sealed = [ref for ref in refs if ref.path.endswith(".parquet")]
        parts = [ref for ref in refs if not ref.path.endswith(".parquet")]
        size = sum(ref.bytes for ref in parts) + rows.nbytes
        if not rows.num_rows and size < SEALED_BYTES:
            return refs
        if len(parts) < PARTS_MAX and size < SEALED_BYTES:
            return [*refs, self.write(rows, (kind, *_SHARED))]
        table = _joined(kind, [*map(self.read, parts), rows])
        if size < SEALED_BYTES:
            return [*sealed, self.write(table, (kind, *_SHARED))]
        out = sealed
        if kind == "cursor":
            table, owned = _split(table)
            out = sealed + [
                self.write(rows_of_cell, ("cursor", *cell), sealed=True)
                for cell, rows_of_cell in owned
            ]
        if table.num_rows:
            out.append(self.write(table, (kind, *_SHARED), sealed=True))
        return out

    def without(self, ref: ChangeRef, live: set[Cell]) -> list[ChangeRef]:
        """The file without rows of deleted cursors; nothing if no row is left."""
        table = self.read(ref)
        living = of_living(table, live.__contains__)
        if living.num_rows == table.num_rows:
            return [ref]
        if not living.num_rows:
            return []
        is_sealed = ref.path.endswith(".parquet")
        return [self.write(living, ("cursor", *_SHARED), sealed=is_sealed, newest=ref.newest)]

    def write(
        self, rows: pa.Table, group: Group, *, sealed: bool = False, newest: bool = False
    ) -> ChangeRef:
        """Make a file of a log, under a free name of this generation."""
        kind, subscription, partition = group
        is_shared = (subscription, partition) == _SHARED
        directory = DIRECTORIES[kind] if is_shared else self._own_dir(subscription, partition)
        # Spark skips files whose names begin with _, as it skips the parts of a ledger
        head, suffix = ("", "parquet") if sealed else ("_part.", "arrow")
        path, number = f"{directory}/{head}{self._generation:010d}.{suffix}", 0
        while path in self._made or self.disk.exists(path):
            number += 1
            path = f"{directory}/{head}{number}.{self._generation:010d}.{suffix}"
        data = _as_parquet(rows) if sealed else _as_arrow(rows)
        self._made[path] = data
        lsn = pc.min_max(rows.column("lsn")).as_py()
        time = pc.min_max(rows.column("time").cast(pa.int64())).as_py()
        return ChangeRef(
            kind,
            path,
            rows.num_rows,
            lsn["min"],
            lsn["max"],
            time["min"],
            time["max"],
            len(data),
            crc32c(data),
            subscription,
            partition,
            newest,
        )

    def _own_dir(self, subscription: int, partition: int) -> str:
        """The directory of a cursor; the shared one when it was deleted since its last change."""
        if self._catalog is None:
            self._catalog = catalog_in(self.disk, self._dumps)
        record = self._catalog.subscriptions.get(subscription)
        if record is None or not has_partition(self._catalog, partition):
            return DIRECTORIES["cursor"]
        parent = ledger_dir(self._catalog, partition, "p")
        return f"{parent}/{CURSORS_DIR}/{encode_component(record.name)}"


def _retained(
    work: _NewFiles, group: Group, refs: list[ChangeRef], settings: Settings, now_ms: int
) -> list[ChangeRef]:
    """The files of a log; those past the retention hold the newest row of each of their keys."""
    age, size = settings.change_retention_ms, settings.change_retention_bytes
    total = sum(ref.bytes for ref in refs)
    past: list[ChangeRef] = []
    for ref in refs:
        is_old = age > 0 and now_ms - ref.time_last > age
        if not (ref.newest or is_old or 0 < size < total):
            break
        if not ref.newest:
            total -= ref.bytes
        past.append(ref)
    if all(ref.newest for ref in past):
        return refs
    kind = group[0]
    table = newest(kind, _joined(kind, [work.read(ref) for ref in past]))
    merged = [work.write(table, group, sealed=True, newest=True)] if table.num_rows else []
    return merged + refs[len(past) :]


# --- rows ------------------------------------------------------------------------------------


def newest(kind: str, rows: pa.Table) -> pa.Table:
    """The newest row of each key, by LSN: of cursors, of `complete` rows; without deleted things of
    the catalog.

    rows: of files in any order; rows of one frame and key are in order
    """
    if kind == "cursor":
        rows = rows.filter(rows.column("complete"))
    rows = rows.take(pc.sort_indices(rows.column("lsn")))  # stable
    at = pa.arange(0, rows.num_rows)
    last = (
        rows.select(KEYS[kind])
        .append_column("at", at)
        .group_by(KEYS[kind])
        .aggregate([("at", "max")])
    )
    positions = last.column("at_max").combine_chunks()
    latest = rows.take(positions.take(pc.sort_indices(positions)))
    if kind == "catalog":
        latest = latest.filter(pc.invert(latest.column("deleted")))
    return latest


def _joined(kind: str, parts: Sequence[pa.Table]) -> pa.Table:
    """Tables of a log as one, oldest first for each key."""
    return pa.concat_tables([SCHEMAS[kind].empty_table(), *parts])


def _cells(rows: pa.Table) -> list[Cell]:
    """The cursor of each row."""
    subscription, partition = (rows.column(name).to_pylist() for name in KEYS["cursor"])
    return list(zip(subscription, partition, strict=True))


def of_living(rows: pa.Table, is_living: Callable[[Cell], bool]) -> pa.Table:
    """The rows of cursors that still exist."""
    cells = _cells(rows)
    living = {cell for cell in set(cells) if is_living(cell)}
    return rows.filter(pa.array([cell in living for cell in cells], pa.bool_()))


def _by_cursor(rows: pa.Table) -> list[tuple[Cell, pa.Table]]:
    """The rows of each cursor."""
    places: dict[Cell, list[int]] = {}
    for at, cell in enumerate(_cells(rows)):
        places.setdefault(cell, []).append(at)
    return [(cell, rows.take(pa.array(at, pa.int64()))) for cell, at in sorted(places.items())]


def _split(rows: pa.Table) -> tuple[pa.Table, list[tuple[Cell, pa.Table]]]:
    """(rows of cursors with few, rows of each cursor with many)."""
    counted: dict[Cell, int] = {}
    for cell in (cells := _cells(rows)):
        counted[cell] = counted.get(cell, 0) + 1
    many = {cell for cell, count in counted.items() if count >= OWN_ROWS}
    is_own = pa.array([cell in many for cell in cells], pa.bool_())
    return rows.filter(pc.invert(is_own)), _by_cursor(rows.filter(is_own))


# --- bytes -----------------------------------------------------------------------------------


def _as_arrow(rows: pa.Table) -> memoryview:
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_file(sink, rows.schema, options=options) as writer:
        writer.write_table(rows.combine_chunks())
    return memoryview(sink.getvalue()).cast("B")


def _as_parquet(rows: pa.Table) -> memoryview:
    sink = pa.BufferOutputStream()
    with arrow_module("pyarrow.parquet").ParquetWriter(
        sink,
        rows.schema,
        version="2.6",
        compression="zstd",
        compression_level=1,
        write_page_checksum=True,
        store_schema=False,
    ) as writer:
        writer.write_table(rows, row_group_size=GROUP_ROWS)
    return memoryview(sink.getvalue()).cast("B")


def read(disk: Disk, ref: ChangeRef) -> pa.Table:
    """The rows of a file, its bytes checked first (R5); raises Corruption, MissingFile."""
    return decoded(ref, disk.read(ref.path))


def decoded(ref: ChangeRef, data: bytes | memoryview) -> pa.Table:
    """The rows in the bytes of a file; raises Corruption."""
    crc = crc32c(data)
    if len(data) != ref.bytes or crc != ref.crc:
        raise damaged(ref.path, 0, ref.bytes, f"{ref.crc:08x}", f"{crc:08x}", HINT)
    try:
        if ref.path.endswith(".parquet"):
            table = arrow_module("pyarrow.parquet").read_table(pa.BufferReader(data))
        else:
            with pa.ipc.open_file(pa.py_buffer(data)) as reader:
                table = reader.read_all()
    except (pa.ArrowException, OSError) as error:
        reason = said_by_arrow(error)
        raise damaged(ref.path, 0, ref.bytes, "a file that decodes", reason, HINT) from error
    if table.num_rows != ref.rows or table.schema != SCHEMAS[ref.kind]:
        raise damaged(
            ref.path,
            0,
            ref.bytes,
            f"{ref.rows} rows of the log of {ref.kind}",
            f"{table.num_rows} rows",
            HINT,
        )
    return table
