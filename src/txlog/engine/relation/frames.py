"""Owns Frames: rows of a topic that lie in journal frames, read a piece at a time.

They are those of one view for good: the journal files are open, and what a frame says never
changes. So a query holds a piece of them, however far the last checkpoint is behind.
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
from txlog.engine.storage.journal.file import JournalFile, JournalName

PIECE_ROWS = 10_240
# Rows of a partition lie in frames with those of others: what is read at a time is of so many
# frames, which a tail keeps until then.
WINDOW_FRAMES = 256
WINDOW_BYTES = 8 << 20
_DATA = pa.scalar(KIND_DATA, pa.int8())


class Marked(NamedTuple):
    """Rows of a sidecar, where a marker in a ledger of the partition places them."""

    ledger: int
    marker: Marker


class Run(NamedTuple):
    """Rows that follow each other in a ledger; marked: in a sidecar."""

    partition: int
    ledger: int
    slice: Slice
    marked: Marked | None

    @property
    def rows(self) -> int:
        """How many they are."""
        _, start, stop = self.slice
        return stop - start


Piece: TypeAlias = list[Run]


class Journals:
    """The journal files of some frames, open until they are closed."""

    __slots__ = ("_disk", "_files", "salt")

    def __init__(self, disk: Disk, salt: bytes) -> None:
        self._disk, self.salt = disk, salt
        self._files: dict[JournalName, JournalFile] = {}

    def file(self, name: JournalName) -> JournalFile:
        """A file by its name; raises MissingFile: a checkpoint removed it before it was open."""
        found = self._files.get(name)
        if found is None:
            found = self._files[name] = JournalFile(self._disk, name, self.salt)
        return found

    def close(self) -> None:
        """Close all."""
        for opened in self._files.values():
            opened.close()
        self._files.clear()


def windows(frames: Sequence[FrameRef]) -> Iterator[tuple[int, list[int]]]:
    """What to read at a time so that each frame is read once.

    frames: where each of some slices lies
    yields: the LSN of the first frame, and the places of slices in these and the next ones
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


class Frames:
    """Committed rows in frames, as those of a table with these columns.

    schema:  COMMITTED; with `everything` also how rows are stored, and rows of all kinds
    rows:    how many rows there are at most: of all kinds
    """

    __slots__ = ("_everything", "_journals", "_runs", "rows", "schema")

    def __init__(self, journals: Journals, schema: pa.Schema, *, everything: bool) -> None:
        self._journals, self.schema, self._everything = journals, schema, everything
        self._runs: list[Run] = []
        self.rows = 0

    def add(self, partition: int, ledger: int, slices: Sequence[Slice], at: Marked | None) -> None:
        """These are next; their journal files are open from now on."""
        for one in slices:
            self._journals.file(one[0].frame.journal)
            run = Run(partition, ledger, one, at)
            self._runs.append(run)
            self.rows += run.rows

    def tables(self, names: Sequence[str]) -> Iterator[pa.Table]:
        """The rows with these columns, in pieces; each frame is checked as it is read.

        raises: Corruption, FormatMismatch
        """
        # What it keeps decoded is of this scan: there may be others in other threads.
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
        asked = {"kind", *names} & set(MESSAGE.names)
        if "visible_time" in names and not is_marked:
            asked.add("publish_time")
        if "stored_entry" in names:
            asked.add("entry")
        asked -= {"visible_time", *({"entry", "lsn"} if is_marked else ())}
        stored = [name for name in MESSAGE.names if name in asked]
        if is_marked and "stored_entry" in names:
            stored.append("entry")
        rows = tail.message_table([run.slice for run in piece], stored)
        place = _place(piece, rows, is_marked=is_marked)
        columns = [
            (place[name] if name in place else rows.column(name)).cast(self.schema.field(name).type)
            if name in place or name in rows.column_names
            else pa.nulls(rows.num_rows, self.schema.field(name).type)
            for name in names
        ]
        made = pa.table(columns, schema=pa.schema([self.schema.field(name) for name in names]))
        if not self._everything:
            is_data = pc.equal(rows.column("kind"), _DATA)
            made = made if pc.all(is_data).as_py() else made.filter(is_data)
        return made


def _pieces(runs: Iterable[Run]) -> Iterator[Piece]:
    """Runs by so many rows: a piece is of one partition, and marked or not."""
    piece: Piece = []
    rows = 0
    for partition, ledger, (run, start, stop), marked in runs:
        for begin in range(start, stop, PIECE_ROWS):
            some = (run, begin, min(begin + PIECE_ROWS, stop))
            one = Run(partition, ledger, some, marked)
            if piece and (
                rows + one.rows > PIECE_ROWS
                or piece[0].partition != partition
                or (piece[0].marked is None) != (marked is None)
            ):
                yield piece
                piece, rows = [], 0
            piece.append(one)
            rows += one.rows
    if piece:
        yield piece


def _place(piece: Piece, rows: pa.Table, *, is_marked: bool) -> dict[str, pa.Array]:
    """What follows from where rows lie, and from their markers."""
    ends: list[int] = []
    for run in piece:
        ends.append((ends[-1] if ends else 0) + run.rows)
    ledgers = repeat_runs([run.ledger for run in piece], ends, pa.int64())
    place = {
        "partition": pa.repeat(pa.scalar(piece[0].partition, pa.int32()), rows.num_rows),
        "ledger": ledgers,
        "stored_ledger": ledgers,
    }
    if "entry" in rows.column_names:
        place["stored_entry"] = rows.column("entry")
    if not is_marked:
        if "publish_time" in rows.column_names:
            place["visible_time"] = rows.column("publish_time")
        return place
    marked = [run.marked for run in piece if run.marked is not None]
    markers = [one.marker for one in marked]
    return {
        **place,
        "ledger": repeat_runs([one.ledger for one in marked], ends, pa.int64()),
        "entry": repeat_runs([marker.entry for marker in markers], ends, pa.int64()),
        "visible_time": repeat_runs([marker.time_ms for marker in markers], ends, INSTANT),
        "lsn": repeat_runs([marker.lsn for marker in markers], ends, pa.int64()),
    }
