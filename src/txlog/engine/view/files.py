"""Owns Files: which files the ledgers of a view have, the open readers of them, and their rows.

A manifest names files; the frames after it add some and remove others. Files stay open after use,
as many as the disk allows (OpenFiles). If a file was closed to make room and unlinked since,
opening it raises MissingFile, as for a file that was never open: the view follows, and tries again
with the newest files (R21). The rows are then the same, or trimmed; trimmed rows raise an error.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from txlog.engine.model import ops
from txlog.engine.model.counters import ReadCounters
from txlog.engine.model.ops import (
    Adopted,
    ChunksAppended,
    Compacted,
    LedgerSealed,
    LedgerTrimmed,
    Offloaded,
    Op,
    PartitionCompacted,
    TopicDeleted,
)
from txlog.engine.model.tail import Slice, Tail
from txlog.engine.storage import remote, segment_reader
from txlog.engine.storage.checked import HINT
from txlog.engine.storage.disk.protocol import Disk, File
from txlog.engine.storage.manifest import EMPTY, Manifest
from txlog.engine.storage.segment import FileRef
from txlog.errors import Corruption, NoResources

if TYPE_CHECKING:
    from txlog.engine.storage.segment_reader import SegmentReader, Span

# The limit of decoded bytes over all open files, unless their user sets a lower one. A consumer
# that reads several partitions in turn needs two files of each, and must not decode a row group
# anew for every batch.
KEPT_BYTES_MAX = 256 << 20
SCAN_ROWS = 64  # a caller that reads fewer may need the same row group again
# For a caller that takes one batch after another, one table is built for so many batches, and each
# batch is a slice: building a table of twenty columns takes longer than slicing one, however few
# rows it has.
BATCHES_AHEAD, ROWS_AHEAD_MAX = 16, 16_384
CUTS_MAX, CUT_BYTES_MAX = 8, 32 << 20
Request = tuple[int, int, int]  # ledger, first row, row after the last
# The row of a large message, which no cache keeps: (its file, columns) -> a table of one row.
Large = Callable[[FileRef, Sequence[str]], pa.Table]


_Naming = (
    LedgerSealed | LedgerTrimmed | Compacted | PartitionCompacted | TopicDeleted | ChunksAppended
)


def _going(op: LedgerTrimmed | Compacted | PartitionCompacted | TopicDeleted) -> list[int]:
    """The ledgers that an op removes."""
    if isinstance(op, LedgerTrimmed):
        return [op.ledger]
    return op.ledgers if isinstance(op, TopicDeleted) else op.old


class OpenFiles:
    """The open files: those used last stay open. For one thread at a time.

    The owner of a file gives a key and a function that closes it, and opens it again when needed.
    """

    __slots__ = ("_closes", "_disk")

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._closes: OrderedDict[object, Callable[[], None]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._closes)

    def open(self, key: object, path: str, close: Callable[[], None]) -> File:
        """Open a file in the store or outside, and close the least recently used.

        raises: MissingFile, DiskFailed, ...; NoResources when closing all files does not help
        """
        limit = self._disk.files_kept()
        while len(self._closes) >= limit:
            self._closes.popitem(last=False)[1]()
        try:
            file = remote.open_file(self._disk, path)
        except NoResources:  # the program has other files open: make room for this file
            self.close()
            file = remote.open_file(self._disk, path)
        self._closes[key] = close
        return file

    def used(self, key: object) -> None:
        """Note that an open file is used again."""
        self._closes.move_to_end(key)

    def closed(self, key: object) -> None:
        """Note that its owner has closed a file; harmless when repeated."""
        self._closes.pop(key, None)

    def close(self) -> None:
        """Close all files."""
        while self._closes:
            self._closes.popitem()[1]()


class SliceCache:
    """Tables of some rows of a ledger, for callers that read on: their next rows are slices."""

    __slots__ = ("_bytes", "_known")

    def __init__(self) -> None:
        # ledger and shape -> first row, row after the last, the rows, their bytes
        self._known: OrderedDict[object, tuple[int, int, pa.Table | None, int]] = OrderedDict()
        self._bytes = 0

    def find(self, key: object, start: int, stop: int) -> pa.Table | None:
        """These rows, if the newest table of the key has them; it is dropped with its last row."""
        cut = self._known.get(key)
        if cut is None or cut[2] is None or start < cut[0] or stop > cut[1]:
            return None
        rows = cut[2].slice(start - cut[0], stop - start)
        if stop == cut[1]:
            self.keep(key, stop, stop, None)
        else:
            self._known.move_to_end(key)
        return rows

    def ahead(self, key: object, start: int, stop: int) -> int:
        """How far to read: to `stop`, or further if `start` is at or soon after the last end."""
        cut, rows = self._known.get(key), stop - start
        far = min(BATCHES_AHEAD * rows, ROWS_AHEAD_MAX)
        if cut is None or far < 2 * rows or not 0 <= start - cut[1] <= far:
            return stop
        return start + far

    def keep(self, key: object, start: int, end: int, table: pa.Table | None) -> None:
        """Note that rows were built, up to the one before `end`.

        The number of tables and the memory that their slices keep are bounded.
        table: the rows, if callers have not got all of them yet
        """
        size = 0 if table is None else table.get_total_buffer_size()
        if size > CUT_BYTES_MAX:
            size, table = 0, None
        self._drop(key)
        self._known[key] = (start, end, table, size)
        self._bytes += size
        while len(self._known) > CUTS_MAX or self._bytes > CUT_BYTES_MAX:
            self._drop(next(iter(self._known)))

    def _drop(self, key: object) -> None:
        cut = self._known.pop(key, None)
        if cut is not None:
            self._bytes -= cut[3]

    def clear(self) -> None:
        """Drop all tables."""
        self._known.clear()
        self._bytes = 0


class Files:
    """The live files of one view.

    opened: the open files of the view, and of its timetables
    kept_bytes_max: limit of the decoded bytes of the open files, if not KEPT_BYTES_MAX; a caller
                    that reads each row group once needs little
    lost:  files that no manifest names -> the LSN that removed them
    tally: counts of the rows and row groups read
    """

    __slots__ = (
        "_cuts",
        "_gone",
        "_kept",
        "_kept_bytes",
        "_readers",
        "_sealed",
        "_tail",
        "kept_bytes_max",
        "lost",
        "manifest",
        "opened",
        "tally",
    )

    def __init__(self, disk: Disk, tail: Tail) -> None:
        self.opened = OpenFiles(disk)
        self._tail = tail
        self.manifest: Manifest = EMPTY
        self._sealed: dict[int, FileRef] = {}
        self._gone: set[int] = set()  # removed ledgers; the manifest may still name them
        self.lost: dict[str, int] = {}
        self._readers: dict[str, tuple[File, SegmentReader]] = {}
        self._kept: OrderedDict[str, int] = OrderedDict()  # decoded bytes of each file
        self._kept_bytes = 0
        self.kept_bytes_max: int | None = None
        self._cuts = SliceCache()
        self.tally = ReadCounters()

    def adopt(self, newer: Manifest) -> None:
        """Take a newer manifest: ledgers that it names need no frame any more."""
        self.manifest = newer
        self._cuts.clear()
        self._sealed = {
            ledger: ref
            for ledger, ref in self._sealed.items()
            if not any(named_ref.path == ref.path for named_ref in newer.files.get(ledger, []))
        }
        self._gone &= newer.files.keys()
        self.lost = {path: lsn for path, lsn in self.lost.items() if lsn > newer.cut_lsn}
        for path, (_, reader) in list(self._readers.items()):
            if all(ref.path != path for ref in newer.files.get(reader.ref.ledger, [])):
                self._close(path)

    def name(self, lsn: int, op: Op) -> None:
        """Note which files the ledgers have from this op on; a removed ledger has none."""
        if isinstance(op, ops.BucketsMerged | ops.BucketDeleted):
            for path in op.paths:
                self.lost[path] = lsn
            return
        if isinstance(op, Offloaded):
            self._move(lsn, op.file)
            return
        if isinstance(op, Adopted):  # its rows have no LSN of their own
            ref = msgspec.structs.replace(op.file, lsn_first=lsn, lsn_last=lsn)
            self._sealed[ref.ledger] = ref
            return
        if isinstance(op, PartitionCompacted):
            self._sealed.update((ref.ledger, ref) for ref in op.files)
        assert isinstance(op, _Naming)
        if isinstance(op, LedgerSealed | Compacted | ChunksAppended):
            self._sealed[op.file.ledger] = op.file
        if not isinstance(op, LedgerSealed | ChunksAppended):
            for ledger in _going(op):
                for ref in self.of(ledger):
                    self._close(ref.path)  # an open descriptor would hold its space
                self._gone.add(ledger)
                if (lost := self._sealed.pop(ledger, None)) is not None:
                    self.lost[lost.path] = lsn
                self._tail.runs.pop(ledger, None)

    def _move(self, lsn: int, ref: FileRef) -> None:
        """The file of a ledger is at another place; the old file goes with the next manifest."""
        for old in self.of(ref.ledger):
            self._close(old.path)
        if (replaced := self._sealed.get(ref.ledger)) is not None:
            self.lost[replaced.path] = lsn
        self._sealed[ref.ledger] = ref

    def close(self) -> None:
        """Close every file."""
        self.opened.close()

    def close_of(self, partition: int, owners: dict[int, tuple[int, str]]) -> None:
        """Close the files of a partition: they may be replaced before it is available again."""
        self._cuts.clear()
        for path, (_, reader) in list(self._readers.items()):
            owner = owners.get(reader.ref.ledger)
            if owner is None or owner[0] == partition:
                self._close(path)

    @property
    def is_reading(self) -> bool:
        """True when a reader is open."""
        return bool(self._readers)

    def of(self, ledger: int) -> list[FileRef]:
        """The live files of a ledger, in order: its sealed file, or the parts so far."""
        if ledger in self._gone:
            return []
        sealed = self._sealed.get(ledger)
        return [sealed] if sealed is not None else self.manifest.files.get(ledger, [])

    def sealed_since(self) -> dict[int, FileRef]:
        """Ledgers sealed by frames above the manifest's cut."""
        return dict(self._sealed)

    def gone_since(self) -> set[int]:
        """Ledgers trimmed or compacted by frames above the manifest's cut."""
        return set(self._gone)

    def reader(self, ref: FileRef) -> SegmentReader:
        """The open reader of a file; use it before you ask for another reader."""
        entry = self._readers.get(ref.path)
        if entry is None:
            file = self.opened.open(ref.path, ref.path, partial(self._close, ref.path))
            entry = self._readers[ref.path] = (file, segment_reader.SegmentReader(file, ref))
        else:
            self.opened.used(ref.path)
        return entry[1]

    def _close(self, path: str) -> None:
        entry = self._readers.pop(path, None)
        self._kept_bytes -= self._kept.pop(path, 0)
        if entry is not None:
            self.opened.closed(path)
            entry[0].close()

    def rows(
        self, requests: Sequence[Request], names: Sequence[str], large: Large
    ) -> list[pa.Table]:
        """Rows of ledgers, in the order of the requests, in as few tables as their places allow.

        Adjacent requests in one file, or in frames, are read together. If they rise, each row group
        or frame is read once, however many requests need it.
        requests: (ledger, first row, row after the last); a row that exists nowhere is Corruption
        names:    the columns of MESSAGE to return
        large:    reads a large message; not stored here, since it and its view would hold each
                  other
        """
        out = _Gathering(self, names, large)
        for ledger, start, stop in requests:
            at = start
            for ref in self.of(ledger):
                if ref.form == "chunks":
                    if (at, stop) == (0, 1):
                        out.add_large(ref)
                        at = stop
                    continue
                first = 0 if ref.form == "sealed" else ref.first
                low, high = max(at, first), min(stop, first + ref.rows)
                if low < high:
                    out.add_rows(ref, low - first, high - first)
                    at = high
                    if at == stop:
                        break
            if at < stop:
                slices = self._tail.slices(ledger, at, stop)
                out.add_slices(slices)
                at += sum(high - low for _, low, high in slices)
            if at != stop:
                raise Corruption(
                    f"ledger {ledger}: rows {at} to {stop} are in no file and no frame",
                    hint=HINT,
                    ledger=ledger,
                    code=604,
                )
        return out.finish()

    def cut(
        self,
        ledger: int,
        start: int,
        stop: int,
        shape: object,
        make: Callable[[int, int], pa.Table],
    ) -> pa.Table:
        """Rows of a ledger as `make` shapes them; built for several batches at once.

        The next rows come from the same table, if the caller reads on.
        shape: everything besides the ledger that determines, row by row, the result of `make`
        """
        key = (ledger, shape)
        rows = self._cuts.find(key, start, stop)
        if rows is not None:
            return rows
        end = self._cuts.ahead(key, start, stop)
        if end > stop:
            end = max(stop, min(end, self._end_beside(ledger, start)))
        table = make(start, end)
        self._cuts.keep(key, start, end, table if end > stop else None)
        return table if end == stop else table.slice(0, stop - start)

    def _end_beside(self, ledger: int, row: int) -> int:
        """The row after the last that is decoded together with a row."""
        for ref in self.of(ledger):
            first = 0 if ref.form == "sealed" else ref.first
            if ref.form != "chunks" and first <= row < first + ref.rows:
                return first + self.reader(ref).end_beside(row - first)
        return self._tail.end_beside(ledger, row)

    def beside(self, ledger: int, row: int) -> tuple[int, int, int]:
        """The rows decoded together with a row.

        returns: the first, the one after the last, and the approximate bytes of one
        """
        for ref in self.of(ledger):
            if ref.form == "chunks":
                return 0, 1, ref.bytes
            first = 0 if ref.form == "sealed" else ref.first
            if first <= row < first + ref.rows:
                start, stop, size = self.reader(ref).beside(row - first)
                return first + start, first + stop, size
        return self._tail.beside(ledger, row)

    def pick(self, ref: FileRef, spans: Sequence[Span], names: Sequence[str]) -> pa.Table:
        """Rows of one file, in the order of the spans."""
        reader = self.reader(ref)
        decoded_before = reader.groups_decoded
        table = reader.pick(spans, names)
        if table.num_rows >= SCAN_ROWS and spans[-1][1] == ref.rows:
            self._forget(ref.path)  # a scan has reached the end of the file
        elif reader.groups_decoded != decoded_before:
            self._keep(ref.path, reader)
        self.tally.groups_decoded += reader.groups_decoded - decoded_before
        return self._noted(table)

    def _keep(self, path: str, reader: SegmentReader) -> None:
        """Note the decoded bytes of a file; above the limit, drop those decoded longest ago."""
        self._kept_bytes += reader.cached_bytes - self._kept.pop(path, 0)
        self._kept[path] = reader.cached_bytes
        limit = KEPT_BYTES_MAX if self.kept_bytes_max is None else self.kept_bytes_max
        while self._kept_bytes > limit and len(self._kept) > 1:
            self._forget(next(iter(self._kept)))

    def forget_but(self, ledgers: Collection[int]) -> None:
        """Drop the decoded rows of the files of all other ledgers."""
        for path in [*self._kept]:
            if self._readers[path][1].ref.ledger not in ledgers:
                self._forget(path)

    def _forget(self, path: str) -> None:
        self._kept_bytes -= self._kept.pop(path, 0)
        entry = self._readers.get(path)
        if entry is not None:
            entry[1].forget()

    def in_frames(self, slices: list[Slice], names: Sequence[str]) -> pa.Table:
        """Rows that frames hold, in the order of the slices."""
        return self._noted(self._tail.message_table(slices, names))

    def large(self, ref: FileRef, names: Sequence[str], read: Large) -> pa.Table:
        """The row of a large message."""
        return self._noted(read(ref, names))

    def _noted(self, table: pa.Table) -> pa.Table:
        self.tally.rows_read += table.num_rows
        return table


class _Gathering:
    """The tables of one call: adjacent rows in one place are one read."""

    __slots__ = ("_files", "_large", "_names", "_out", "_ref", "_slices", "_spans")

    def __init__(self, files: Files, names: Sequence[str], large: Large) -> None:
        self._files = files
        self._names = names
        self._large = large
        self._out: list[pa.Table] = []
        self._slices: list[Slice] = []
        self._ref: FileRef | None = None
        self._spans: list[Span] = []

    def add_rows(self, ref: FileRef, start: int, stop: int) -> None:
        """Add rows start to stop of a file."""
        if self._ref is not ref:
            self._drain()
            self._ref = ref
        self._spans.append((start, stop))

    def add_slices(self, slices: list[Slice]) -> None:
        """Add rows in frames."""
        if self._ref is not None:
            self._drain()
        self._slices += slices

    def add_large(self, ref: FileRef) -> None:
        """Add a large message."""
        self._drain()
        self._out.append(self._files.large(ref, self._names, self._large))

    def finish(self) -> list[pa.Table]:
        """Return all tables."""
        self._drain()
        return self._out

    def _drain(self) -> None:
        if self._ref is not None:
            self._out.append(self._files.pick(self._ref, self._spans, self._names))
            self._ref, self._spans = None, []
        elif self._slices:
            self._out.append(self._files.in_frames(self._slices, self._names))
            self._slices = []
