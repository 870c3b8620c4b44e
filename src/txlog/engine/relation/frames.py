"""Owns RowsInFrames: rows of a topic in journal frames, read a piece at a time.

They stay the rows of one view: the journal files are open, and frames never change. A query keeps
only a piece of the rows in memory, however long the journal since the last checkpoint is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

import pyarrow as pa

from txlog.base.startup import compute as pc
from txlog.engine.folds.buffer import Marker
from txlog.engine.model.schema import INSTANT, KIND_DATA, MESSAGE
from txlog.engine.model.tail import FrameRef, Slice, Tail, repeat_runs
from txlog.engine.storage.disk.protocol import Disk
from txlog.engine.storage.frame import JournalFile, JournalName

PIECE_ROWS = 10_240
# Frames mix rows of several partitions, so a scan decodes so many frames together.
WINDOW_FRAMES = 256
WINDOW_BYTES = 8 << 20
_DATA = pa.scalar(KIND_DATA, pa.int8())


class MarkedRows(NamedTuple):
    """The marker of rows of a sidecar, and the ledger of the partition that has the marker."""

    ledger: int
    marker: Marker


class FrameRun(NamedTuple):
    """Consecutive rows of a ledger; marked: their marker, for rows of a sidecar."""

    partition: int
    ledger: int
    slice: Slice
    marked: MarkedRows | None

    @property
    def rows(self) -> int:
        """How many rows."""
        _, start, stop = self.slice
        return stop - start


Piece: TypeAlias = list[FrameRun]


class Journals:
    """The journal files of some frames, open until they are closed."""

    __slots__ = ("_disk", "_files", "salt")

    def __init__(self, disk: Disk, salt: bytes) -> None:
        self._disk, self.salt = disk, salt
        self._files: dict[JournalName, JournalFile] = {}

    def file(self, name: JournalName) -> JournalFile:
        """A file by its name; raises MissingFile: a checkpoint removed it before this opened it."""
        journal_file = self._files.get(name)
        if journal_file is None:
            journal_file = self._files[name] = JournalFile(self._disk, name, self.salt)
        return journal_file

    def close(self) -> None:
        """Close all files."""
        for opened in self._files.values():
            opened.close()
        self._files.clear()


def windows(frames: Sequence[FrameRef]) -> Iterator[tuple[int, list[int]]]:
    """Groups of slices to read together, so that each frame is read once.

    frames: the frame of each slice
    yields: the LSN of the first frame, and the indexes of the slices in its group
    """
    window: list[int] = []
    first = last = count = size = 0
    for at in sorted(range(len(frames)), key=lambda at: frames[at].lsn):
        frame = frames[at]
        if not window or frame.lsn != last:
            if window and (count == WINDOW_FRAMES or size + frame.rows_bytes > WINDOW_BYTES):
                yield first, sorted(window)
                window, count, size = [], 0, 0
            first, last = (first if window else frame.lsn), frame.lsn
            count += 1
            size += frame.rows_bytes
        window.append(at)
    if window:
        yield first, sorted(window)


class RowsInFrames:
    """Committed rows in frames, with the columns of a table.

    schema:  COMMITTED; with `everything` also the storage columns, and rows of all kinds
    rows:    an upper bound: rows of all kinds
    """

    __slots__ = ("_everything", "_journals", "_runs", "rows", "schema")

    def __init__(self, journals: Journals, schema: pa.Schema, *, everything: bool) -> None:
        self._journals, self.schema, self._everything = journals, schema, everything
        self._runs: list[FrameRun] = []
        self.rows = 0

    def add(
        self, partition: int, ledger: int, slices: Sequence[Slice], at: MarkedRows | None
    ) -> None:
        """Add the next slices, and open their journal files; at: the marker of sidecar rows."""
        for slice_ in slices:
            self._journals.file(slice_[0].frame.journal)
            run = FrameRun(partition, ledger, slice_, at)
            self._runs.append(run)
            self.rows += run.rows

    def tables(self, names: Sequence[str]) -> Iterator[pa.Table]:
        """The rows with these columns, in pieces; each frame is checked as it is read.

        raises: Corruption, FormatMismatch
        """
        # The decoded rows are only for this scan; other threads may have other scans.
        tail = Tail(self._journals)
        for first, window in windows([run.slice[0].frame for run in self._runs]):
            tail.drop_through(first - 1)
            for piece in _pieces(self._runs[at] for at in window):
                yield self._made(tail, piece, names)

    def close(self) -> None:
        """Close the journal files, also for those that share them; no row can be read any more."""
        self._journals.close()

    def _made(self, tail: Tail, piece: Piece, names: Sequence[str]) -> pa.Table:
        is_marked = piece[0].marked is not None
        columns_needed = {"kind", *names} & set(MESSAGE.names)
        if "visible_time" in names and not is_marked:
            columns_needed.add("publish_time")
        if "stored_entry" in names:
            columns_needed.add("entry")
        columns_needed -= {"visible_time", *({"entry", "lsn"} if is_marked else ())}
        stored = [name for name in MESSAGE.names if name in columns_needed]
        if is_marked and "stored_entry" in names:
            stored.append("entry")
        rows = tail.message_table([run.slice for run in piece], stored)
        placement = _place(piece, rows, is_marked=is_marked)
        columns = [
            (placement[name] if name in placement else rows.column(name)).cast(
                self.schema.field(name).type
            )
            if name in placement or name in rows.column_names
            else pa.nulls(rows.num_rows, self.schema.field(name).type)
            for name in names
        ]
        table = pa.table(columns, schema=pa.schema([self.schema.field(name) for name in names]))
        if not self._everything:
            is_data = pc.equal(rows.column("kind"), _DATA)
            table = table if pc.all(is_data).as_py() else table.filter(is_data)
        return table


def _pieces(runs: Iterable[FrameRun]) -> Iterator[Piece]:
    """Runs in pieces of PIECE_ROWS; a piece has one partition, and is marked or not."""
    piece: Piece = []
    rows = 0
    for partition, ledger, (run, start, stop), marked in runs:
        for begin in range(start, stop, PIECE_ROWS):
            slice_ = (run, begin, min(begin + PIECE_ROWS, stop))
            next_run = FrameRun(partition, ledger, slice_, marked)
            if piece and (
                rows + next_run.rows > PIECE_ROWS
                or piece[0].partition != partition
                or (piece[0].marked is None) != (marked is None)
            ):
                yield piece
                piece, rows = [], 0
            piece.append(next_run)
            rows += next_run.rows
    if piece:
        yield piece


def _place(piece: Piece, rows: pa.Table, *, is_marked: bool) -> dict[str, pa.Array]:
    """The columns that follow from the locations of rows, and from their markers."""
    ends: list[int] = []
    for run in piece:
        ends.append((ends[-1] if ends else 0) + run.rows)
    ledgers = repeat_runs([run.ledger for run in piece], ends, pa.int64())
    placement = {
        "partition": pa.repeat(pa.scalar(piece[0].partition, pa.int32()), rows.num_rows),
        "ledger": ledgers,
        "stored_ledger": ledgers,
    }
    if "entry" in rows.column_names:
        placement["stored_entry"] = rows.column("entry")
    if not is_marked:
        if "publish_time" in rows.column_names:
            placement["visible_time"] = rows.column("publish_time")
        return placement
    marked = [run.marked for run in piece if run.marked is not None]
    markers = [mark.marker for mark in marked]
    return {
        **placement,
        "ledger": repeat_runs([mark.ledger for mark in marked], ends, pa.int64()),
        "entry": repeat_runs([marker.entry for marker in markers], ends, pa.int64()),
        "visible_time": repeat_runs([marker.time_ms for marker in markers], ends, INSTANT),
        "lsn": repeat_runs([marker.lsn for marker in markers], ends, pa.int64()),
    }
