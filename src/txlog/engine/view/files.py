"""Owns Files: which files the ledgers of a view have, the open readers of them, and their rows.

A manifest names files; the frames after it name more and let some go. Files stay open after use, as
many as the disk allows (OpenFiles). One that was closed to make room and has been unlinked since is
MissingFile, like one that was never opened: the view follows, and tries again with the newest files
(R21). The rows are the same, or trimmed, and then the caller is told so.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from txlog.engine.model import ops
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
from txlog.engine.model.tally import Tally
from txlog.engine.storage import remote, segment_reader
from txlog.engine.storage.checked import HINT
from txlog.engine.storage.disk.protocol import Disk, File
from txlog.engine.storage.manifest import EMPTY, Manifest
from txlog.engine.storage.segment import FileRef
from txlog.errors import Corruption, NoResources

if TYPE_CHECKING:
    from txlog.engine.storage.segment_reader import SegmentReader, Span

# What the open files keep decoded together, unless their user wants less. Whoever reads several
# partitions in turn needs two files of each, and must not decode a row group of them for every
# batch.
KEPT_BYTES_MAX = 256 << 20
SCAN_ROWS = 64  # who reads fewer may want the same row group again
# Whoever takes one batch after another gets it cut from a table of so many, which is made at once:
# a table of twenty columns takes longer than a slice of it, however few rows it has.
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
    """Which files stay open: those that were used last. For one thread at a time.

    Its owner says by a key how it is closed, and opens it again when needed.
    """

    __slots__ = ("_closes", "_disk")

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._closes: OrderedDict[object, Callable[[], None]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._closes)

    def open(self, key: object, path: str, close: Callable[[], None]) -> File:
        """Open a file in the store or outside, and close the least recently used.

        raises: MissingFile, DiskFailed, ...; NoResources when closing all of them does not help
        """
        kept = self._disk.files_kept()
        while len(self._closes) >= kept:
            self._closes.popitem(last=False)[1]()
        try:
            file = remote.open_file(self._disk, path)
        except NoResources:  # the program has files of its own: make room for what is read now
            self.close()
            file = remote.open_file(self._disk, path)
        self._closes[key] = close
        return file

    def used(self, key: object) -> None:
        """A file that is open is used again."""
        self._closes.move_to_end(key)

    def closed(self, key: object) -> None:
        """A file was closed by its owner; harmless when repeated."""
        self._closes.pop(key, None)

    def close(self) -> None:
        """Close all."""
        while self._closes:
            self._closes.popitem()[1]()


class Cuts:
    """Tables of some rows of a ledger, for who reads on: the next rows are cut from them."""

    __slots__ = ("_bytes", "_known")

    def __init__(self) -> None:
        # what decides their shape -> first row, row after the last, the rows, their bytes
        self._known: OrderedDict[object, tuple[int, int, pa.Table | None, int]] = OrderedDict()
        self._bytes = 0

    def find(self, key: object, start: int, stop: int) -> pa.Table | None:
        """These rows, if they lie in the table that was made last; it goes with its last row."""
        known = self._known.get(key)
        if known is None or known[2] is None or start < known[0] or stop > known[1]:
            return None
        found = known[2].slice(start - known[0], stop - start)
        if stop == known[1]:
            self.keep(key, stop, stop, None)
        else:
            self._known.move_to_end(key)
        return found

    def ahead(self, key: object, start: int, stop: int) -> int:
        """How far to read: to `stop`, or beyond if it is near behind what was asked for last."""
        known, rows = self._known.get(key), stop - start
        far = min(BATCHES_AHEAD * rows, ROWS_AHEAD_MAX)
        if known is None or far < 2 * rows or not 0 <= start - known[1] <= far:
            return stop
        return start + far

    def keep(self, key: object, start: int, end: int, table: pa.Table | None) -> None:
        """Rows were made, up to the one before `end`; table: them, if some are not asked for yet.

        What a slice of them keeps in memory, and how many there are, is bounded.
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
        known = self._known.pop(key, None)
        if known is not None:
            self._bytes -= known[3]

    def clear(self) -> None:
        """Keep nothing."""
        self._known.clear()
        self._bytes = 0


class Files:
    """The live files of one view.

    opened: which of its files are open, and those of its timetables
    kept_bytes_max: what the open files keep decoded, if not KEPT_BYTES_MAX; who reads each row
                    group once needs little
    lost:  files that no manifest names, removed until this LSN
    tally: what was read through it
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
        self._gone: set[int] = set()  # ledgers that the manifest may still name
        self.lost: dict[str, int] = {}
        self._readers: dict[str, tuple[File, SegmentReader]] = {}
        self._kept: OrderedDict[str, int] = OrderedDict()  # bytes that a file keeps decoded
        self._kept_bytes = 0
        self.kept_bytes_max: int | None = None
        self._cuts = Cuts()
        self.tally = Tally()

    def adopt(self, newer: Manifest) -> None:
        """Take a newer manifest: what it names needs no frame any more."""
        self.manifest = newer
        self._cuts.clear()
        self._sealed = {
            ledger: ref
            for ledger, ref in self._sealed.items()
            if not any(known.path == ref.path for known in newer.files.get(ledger, []))
        }
        self._gone &= newer.files.keys()
        self.lost = {path: lsn for path, lsn in self.lost.items() if lsn > newer.cut_lsn}
        for path, (_, reader) in list(self._readers.items()):
            if all(ref.path != path for ref in newer.files.get(reader.ref.ledger, [])):
                self._close(path)

    def name(self, lsn: int, op: Op) -> None:
        """Which files the ledgers have from this op on; a ledger that is gone has none."""
        if isinstance(op, ops.BucketsMerged | ops.BucketDeleted):
            for path in op.paths:
                self.lost[path] = lsn
            return
        if isinstance(op, Offloaded):
            self._move(lsn, op.file)
            return
        if isinstance(op, Adopted):  # its rows have none of their own
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
        """The file of a ledger is at another place; the one before goes with the next manifest."""
        for old in self.of(ref.ledger):
            self._close(old.path)
        if (old_one := self._sealed.get(ref.ledger)) is not None:
            self.lost[old_one.path] = lsn
        self._sealed[ref.ledger] = ref

    def close(self) -> None:
        """Close every file."""
        self.opened.close()

    def close_of(self, partition: int, owners: dict[int, tuple[int, str]]) -> None:
        """Files of a partition may be replaced before it comes back: open them again."""
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
        """The open reader of a file, to be used before another one is asked for."""
        found = self._readers.get(ref.path)
        if found is None:
            file = self.opened.open(ref.path, ref.path, partial(self._close, ref.path))
            found = self._readers[ref.path] = (file, segment_reader.SegmentReader(file, ref))
        else:
            self.opened.used(ref.path)
        return found[1]

    def _close(self, path: str) -> None:
        found = self._readers.pop(path, None)
        self._kept_bytes -= self._kept.pop(path, 0)
        if found is not None:
            self.opened.closed(path)
            found[0].close()

    def rows(
        self, requests: Sequence[Request], names: Sequence[str], large: Large
    ) -> list[pa.Table]:
        """Rows of ledgers, in the order of the requests, as few tables as their places allow.

        What follows each other in one file, or in frames, is read together: a row group or frame
        once, however many requests lie in it, if they rise.
        requests: (ledger, first row, row after the last); a row that exists nowhere is Corruption
        names:    the columns of MESSAGE that are wanted
        large:    reads a large message; kept here, it and its view would hold each other
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
                found = self._tail.slices(ledger, at, stop)
                out.add_slices(found)
                at += sum(high - low for _, low, high in found)
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
        """Rows of a ledger as `make` shapes them; those of who reads on are made together.

        shape: what else than the ledger decides what `make` makes, row by row
        """
        key = (ledger, shape)
        found = self._cuts.find(key, start, stop)
        if found is not None:
            return found
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
        """What is decoded together with a row: the first, the one after the last, and the bytes of
        one, about.
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
        before = reader.groups_decoded
        table = reader.pick(spans, names)
        if table.num_rows >= SCAN_ROWS and spans[-1][1] == ref.rows:
            self._forget(ref.path)  # a scan has passed
        elif reader.groups_decoded != before:
            self._keep(ref.path, reader)
        self.tally.groups_decoded += reader.groups_decoded - before
        return self._noted(table)

    def _keep(self, path: str, reader: SegmentReader) -> None:
        """Note what a file keeps decoded, and let those go that were decoded longest ago."""
        self._kept_bytes += reader.cached_bytes - self._kept.pop(path, 0)
        self._kept[path] = reader.cached_bytes
        most = KEPT_BYTES_MAX if self.kept_bytes_max is None else self.kept_bytes_max
        while self._kept_bytes > most and len(self._kept) > 1:
            self._forget(next(iter(self._kept)))

    def forget_but(self, ledgers: Collection[int]) -> None:
        """Keep nothing decoded of the files of other ledgers."""
        for path in [*self._kept]:
            if self._readers[path][1].ref.ledger not in ledgers:
                self._forget(path)

    def _forget(self, path: str) -> None:
        self._kept_bytes -= self._kept.pop(path, 0)
        found = self._readers.get(path)
        if found is not None:
            found[1].forget()

    def in_frames(self, slices: list[Slice], names: Sequence[str]) -> pa.Table:
        """Rows that lie in frames, in the order of the slices."""
        return self._noted(self._tail.message_table(slices, names))

    def large(self, ref: FileRef, names: Sequence[str], read: Large) -> pa.Table:
        """The row of a large message."""
        return self._noted(read(ref, names))

    def _noted(self, table: pa.Table) -> pa.Table:
        self.tally.rows_read += table.num_rows
        return table


class _Gathering:
    """The tables of one call: what follows each other in one place is one read."""

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
        """Rows start to stop of a file are next."""
        if self._ref is not ref:
            self._drain()
            self._ref = ref
        self._spans.append((start, stop))

    def add_slices(self, slices: list[Slice]) -> None:
        """Rows in frames are next."""
        if self._ref is not None:
            self._drain()
        self._slices += slices

    def add_large(self, ref: FileRef) -> None:
        """A large message is next."""
        self._drain()
        self._out.append(self._files.large(ref, self._names, self._large))

    def finish(self) -> list[pa.Table]:
        """All of it."""
        self._drain()
        return self._out

    def _drain(self) -> None:
        if self._ref is not None:
            self._out.append(self._files.pick(self._ref, self._spans, self._names))
            self._ref, self._spans = None, []
        elif self._slices:
            self._out.append(self._files.in_frames(self._slices, self._names))
            self._slices = []
