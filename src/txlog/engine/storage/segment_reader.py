"""Reading segment files: row groups checked, decoded once, and the requested rows cut out.

Nothing reaches pyarrow unchecked (spec/reliability R5), and it never sees a path or a descriptor:
bytes come by `File.pread` (R1). A row group is the smallest piece with a checksum, so its bytes are
read as a whole; only the requested columns are decoded. A part has one checksum for all its rows: a
large one is compared once, and then its record batches are its row groups.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from txlog.base.startup.crc32c import crc32c
from txlog.engine.storage.checked import (
    CheckedFile,
    Window,
    check_size,
    checked_bytes,
    damaged,
    group_bounds,
    said_by_arrow,
)
from txlog.engine.storage.columns import MESSAGE, conform, schema_of
from txlog.engine.storage.disk.protocol import File
from txlog.engine.storage.segment import RECORD, FileRef, arrow_module
from txlog.errors import Corruption

if TYPE_CHECKING:
    from pyarrow.parquet import FileMetaData

CACHED_GROUPS: Final = 2  # a scan needs one, a scan that begins inside a group two
# A part beyond this many bytes is never in memory as a whole.
PART_BYTES: Final = 16 << 20
VERIFY_BYTES: Final = 1 << 20
# Spans shorter than this on average are copied, not sliced; a few spans are always sliced, as a
# copy visits every chunk of the group.
SHORT_ROWS: Final = 64
FEW_SPANS: Final = 8

Span = tuple[int, int]  # first row, row after the last
# A row group in the shape requested last: its number, the shape, its rows.
_NO_GROUP: Final[tuple[int, pa.Schema, pa.Table]] = (-1, MESSAGE, MESSAGE.empty_table())


class SegmentReader:
    """Rows of one published file. Safe to share between threads; the caller owns `file`.

    raises: Corruption (path, offset, length, expected, found) when bytes differ from the manifest's
            checksums, and errors of `file`.
    """

    __slots__ = (
        "_cache",
        "_columns",
        "_ends",
        "_file",
        "_footer",
        "_kept",
        "_part",
        "_sized",
        "groups_decoded",
        "ref",
    )

    def __init__(self, file: File, ref: FileRef) -> None:
        self.ref = ref
        self.groups_decoded = 0
        self._file = file
        self._ends = list(accumulate(group[0] for group in ref.groups))
        self._cache: OrderedDict[int, pa.Table] = OrderedDict()  # the columns requested so far
        self._kept = _NO_GROUP
        self._footer: FileMetaData | None = None  # once the tail was checked
        self._columns: frozenset[str] = frozenset()  # of a Parquet file, known with its footer
        self._sized = False
        # The record batches of a large part; the rows of each are known with it.
        self._part: pa.ipc.RecordBatchFileReader | None = None
        if ref.form == "part" and ref.bytes > PART_BYTES:
            self._ends = []

    def rows(self, start: int, stop: int, names: Sequence[str] | None = None) -> pa.Table:
        """The rows start..stop-1 of the file, with these columns of MESSAGE."""
        return self.pick([(start, stop)], names)

    def pick(self, spans: Sequence[Span], names: Sequence[str] | None = None) -> pa.Table:
        """The rows of several spans, in their order, with these columns of MESSAGE; None: all.

        Reads, checks and decodes only the row groups of the spans; each once if the spans rise,
        however many spans it has.
        """
        schema = MESSAGE if names is None else schema_of(tuple(names))
        ends = self._group_ends()
        pieces: list[pa.Table] = []
        inside: list[Span] = []  # counted from the first row of the group
        current = -1
        for start, stop in spans:
            if not 0 <= start <= stop <= self.ref.rows:
                raise IndexError(f"rows {start}..{stop} of {self.ref.rows} in {self.ref.path}")
            while start < stop:
                number = bisect_right(ends, start)
                if number != current:
                    if inside:
                        pieces.append(self._cut_out(current, inside, schema))
                    current, inside = number, []
                end, begin = ends[number], ends[number - 1] if number else 0
                inside.append((start - begin, min(stop, end) - begin))
                start = end
        if inside:
            pieces.append(self._cut_out(current, inside, schema))
        if not pieces:
            return schema.empty_table()
        return pieces[0] if len(pieces) == 1 else pa.concat_tables(pieces)

    def _cut_out(self, number: int, inside: list[Span], schema: pa.Schema) -> pa.Table:
        """The rows of spans of one group, with this schema."""
        if are_long(inside):
            return take_spans(self._whole(number, schema), inside)
        group = self._group(number, schema.names)
        return self._shaped(number, take_spans(_of(group, schema), inside), schema)

    def _whole(self, number: int, schema: pa.Schema) -> pa.Table:
        """A whole group with this schema; the last one is kept, to be sliced again."""
        cached = self._kept  # another thread may replace it
        if (number, schema) != cached[:2]:
            group = self._group(number, schema.names)
            cached = (number, schema, self._shaped(number, _of(group, schema), schema))
            self._kept = cached
        return cached[2]

    def _shaped(self, number: int, rows: pa.Table, schema: pa.Schema) -> pa.Table:
        """Rows of a group with exactly these columns; columns that the file lacks are null."""
        try:
            table = conform(rows, schema)
            if self.ref.form == "adopted" and "lsn" in schema.names:
                lsn = pa.repeat(pa.scalar(self.ref.lsn_first, pa.int64()), table.num_rows)
                table = table.set_column(schema.get_field_index("lsn"), "lsn", lsn)
            return table
        except pa.ArrowException as error:
            offset, length = self._place(number)
            raise self._corrupt(offset, length, "columns of MESSAGE", str(error)) from error

    def end_beside(self, row: int) -> int:
        """The row after the last of a row's group."""
        ends = self._group_ends()
        return ends[bisect_right(ends, row)]

    def beside(self, row: int) -> tuple[int, int, int]:
        """A row's group: its first row, the one after its last, and about the bytes of one row."""
        ends, ref = self._group_ends(), self.ref
        number = bisect_right(ends, row)
        start, stop = ends[number - 1] if number else 0, ends[number]
        if ref.form == "part":
            return start, stop, ref.bytes // ref.rows
        size = self._checked_footer().row_group(number).total_byte_size
        return start, stop, size // (stop - start)

    def records(self, start: int, stop: int) -> pa.ChunkedArray:
        """The records of the rows start..stop-1; the file must have them (`ref.record`)."""
        pieces: list[pa.ChunkedArray] = []
        for number, end in enumerate(self._ends):
            begin = end - self.ref.groups[number][0]
            low, high = max(start, begin), min(stop, end)
            if low < high:
                group = self._group(number, [RECORD]).column(RECORD)
                pieces.append(group.slice(low - begin, high - low))
        if not pieces:
            kind = self._checked_footer().schema.to_arrow_schema().field(RECORD).type
            return pa.chunked_array([], kind)
        return pa.chunked_array([chunk for piece in pieces for chunk in piece.chunks])

    @property
    def cached_bytes(self) -> int:
        """The bytes of the decoded row groups in the cache."""
        return sum(table.nbytes for table in self._cache.values())

    def forget(self) -> None:
        """Drop cached row groups and the footer; the next read gets them again."""
        self._cache.clear()
        self._kept = _NO_GROUP
        self._footer = None  # decoded, it takes ten times its bytes

    def statistics(self, number: int, name: str) -> tuple[Any, Any] | None:
        """The least and greatest value of a column in a row group; None: the file does not have
        them.

        They ignore nulls; a group with only nulls has none. Instants are in ms.
        """
        if self.ref.form == "part":
            return None
        group = self._checked_footer().row_group(number)
        for at in range(group.num_columns):
            column = group.column(at)
            if column.path_in_schema == name:
                statistics = column.statistics
                if statistics is None or not statistics.has_min_max:
                    return None
                return statistics.min_raw, statistics.max_raw
        return None

    def verify(self) -> None:
        """Check every byte, and that every row decodes."""
        self.check()
        start = 0
        for number, end in enumerate(self._group_ends()):
            self._cut_out(number, [(0, end - start)], MESSAGE)
            start = end

    def check_footer(self) -> None:
        """Check the length, and every byte after the last row group."""
        self._check_size()
        self._checked_footer()

    def check(self) -> None:
        """Read and check every byte, the parts first so that the error names the damaged one."""
        ref = self.ref
        self._check_size()
        whole = position = 0
        for offset, length, expected in self._ranges():
            if offset != position:
                raise self._corrupt(position, offset - position, "a covered range", "a hole")
            crc = 0
            for piece in self._pieces(offset, length):
                crc = crc32c(piece, crc)
                whole = crc32c(piece, whole)
            if crc != expected:
                raise self._corrupt(offset, length, f"{expected:08x}", f"{crc:08x}")
            position += length
        if position != ref.bytes:
            raise self._corrupt(position, ref.bytes - position, "a covered range", "a hole")
        if whole != ref.crc:
            raise self._corrupt(0, ref.bytes, f"{ref.crc:08x}", f"{whole:08x}")

    def _group(self, number: int, names: Sequence[str]) -> pa.Table:
        """A row group with the file's columns among these names, and maybe more columns."""
        cached = self._cache.get(number)
        if cached is not None:
            # a part always has all its columns: they cost nothing once its bytes are read
            lacking = self._columns.intersection(names).difference(cached.column_names)
            if not lacking:
                return cached
        table = self._decoded(number, names, cached)
        self._cache[number], self._kept = table, _NO_GROUP
        if len(self._cache) > CACHED_GROUPS:
            self._cache.popitem(last=False)
        return table

    def _decoded(self, number: int, names: Sequence[str], cached: pa.Table | None) -> pa.Table:
        """Decode one row group from checked bytes: the missing columns, followed by the cached
        ones.
        """
        self._check_size()
        rows, offset, length, crc = self.ref.groups[0 if self._part is not None else number]
        try:
            if self._part is not None:
                table = pa.Table.from_batches([self._part.get_batch(number)])
                rows = table.num_rows  # counted when the part was opened
            elif self.ref.form == "part":
                with pa.ipc.open_file(pa.py_buffer(self._checked(offset, length, crc))) as reader:
                    table = reader.read_all()
            else:
                footer = self._checked_footer()  # before the group: it is small, and may be bad
                window = Window(
                    self.ref.path, self.ref.bytes, offset, self._checked(offset, length, crc)
                )
                have = [] if cached is None else cached.column_names
                missing = [name for name in names if name in self._columns and name not in have]
                with arrow_module("pyarrow.parquet").ParquetFile(
                    pa.PythonFile(window, "r"), metadata=footer
                ) as parquet:
                    table = parquet.read_row_group(
                        number, columns=missing or ["entry"], use_threads=False
                    )
        except (pa.ArrowException, OSError) as error:
            reason = said_by_arrow(error)
            raise self._corrupt(offset, length, "a file that decodes", reason) from error
        self.groups_decoded += 1
        if table.num_rows != rows:
            raise self._corrupt(offset, length, f"{rows} rows", f"{table.num_rows} rows")
        if cached is not None:
            for name in cached.column_names:
                table = table.append_column(name, cached.column(name))
        return table

    def _group_ends(self) -> list[int]:
        """For each row group the row after its last; this opens a large part."""
        if not self.ref.rows:
            return self._ends
        if self._ends:
            if self._ends[-1] < self.ref.rows:
                raise self._corrupt(
                    0, self.ref.bytes, f"{self.ref.rows} rows", f"{self._ends[-1]} rows"
                )
            return self._ends
        self._check_size()
        ref = self.ref
        if not ref.groups:
            raise self._corrupt(0, ref.bytes, f"{ref.rows} rows", "no row group")
        try:
            file = CheckedFile(self._file, ref.path, ref.bytes, ref.groups[0][3])
            # with one column, only the bytes of that column are read
            options = pa.ipc.IpcReadOptions(included_fields=[0])
            with pa.ipc.open_file(pa.PythonFile(file, "r"), options=options) as counting:
                numbers = range(counting.num_record_batches)
                counts = [counting.get_batch(number).num_rows for number in numbers]
            file.closed = False
            part = pa.ipc.open_file(pa.PythonFile(file, "r"))
        except (pa.ArrowException, OSError) as error:
            reason = said_by_arrow(error)
            raise self._corrupt(0, ref.bytes, "a file that decodes", reason) from error
        ends = list(accumulate(counts))
        if not ends or ends[-1] != ref.rows:
            raise self._corrupt(0, ref.bytes, f"{ref.rows} rows", f"{sum(counts)} rows")
        self._part, self._ends = part, ends
        return ends

    def _place(self, number: int) -> tuple[int, int]:
        """The offset and length of a row group."""
        _, offset, length, _ = self.ref.groups[0 if self._part is not None else number]
        return offset, length

    def _checked_footer(self) -> FileMetaData:
        """The Parquet metadata, parsed from the tail alone: its offsets are offsets of the file."""
        if self._footer is None:
            ref = self.ref
            tail = self._checked(ref.bytes - ref.footer_bytes, ref.footer_bytes, ref.footer_crc)
            footer = arrow_module("pyarrow.parquet").read_metadata(pa.BufferReader(tail))
            if [rows for rows, _, _ in group_bounds(footer)] != [g[0] for g in ref.groups]:
                start = ref.bytes - ref.footer_bytes
                raise self._corrupt(start, ref.footer_bytes, "the row groups named", "others")
            self._columns = _columns_of(footer)
            self._footer = footer
        return self._footer

    def _checked(self, offset: int, length: int, expected: int) -> bytes:
        """The bytes of a range, after comparing their checksum."""
        return checked_bytes(self._file, self.ref.path, offset, length, expected)

    def _check_size(self) -> None:
        """Compare the length once."""
        if not self._sized:
            check_size(self._file, self.ref.path, self.ref.bytes)
            self._sized = True

    def _ranges(self) -> Iterator[tuple[int, int, int]]:
        """The offset, length and checksum of each separately readable range, in order."""
        for _, offset, length, crc in self.ref.groups:
            yield offset, length, crc
        if self.ref.footer_bytes:
            start = self.ref.bytes - self.ref.footer_bytes
            yield start, self.ref.footer_bytes, self.ref.footer_crc

    def _pieces(self, offset: int, length: int) -> Iterator[bytes]:
        """A range in pieces that fit any memory."""
        end = offset + length
        while offset < end:
            piece = self._file.pread(offset, min(VERIFY_BYTES, end - offset))
            if not piece:
                raise self._corrupt(offset, end - offset, f"{end - offset} bytes", "0 bytes")
            yield piece
            offset += len(piece)

    def _corrupt(self, offset: int, length: int, expected: str, found: str) -> Corruption:
        return damaged(self.ref.path, offset, length, expected, found)


def _columns_of(footer: FileMetaData) -> frozenset[str]:
    """The names of a file's columns; empty for a file without rows, whose columns no caller needs.

    `footer.schema` would tell, too. But then pyarrow makes both hold each other until the next
    garbage collection, and a process that reads one file after another has few objects to trigger
    one.
    """
    if not footer.num_row_groups:
        return frozenset()
    group = footer.row_group(0)
    paths = (group.column(at).path_in_schema for at in range(group.num_columns))
    return frozenset(path.partition(".")[0] for path in paths)


def _of(group: pa.Table, schema: pa.Schema) -> pa.Table:
    """The columns of a group that the schema has, or one column, for the number of rows."""
    names = set(schema.names)
    present = [name for name in group.column_names if name in names]
    return group.select(present or group.column_names[:1])


def take_spans(table: pa.Table, spans: Sequence[Span]) -> pa.Table:
    """The rows of spans, in their order: long ones as slices, without a copy."""
    if are_long(spans):
        pieces = [table.slice(start, stop - start) for start, stop in spans]
        return pieces[0] if len(pieces) == 1 else pa.concat_tables(pieces)
    return table.take(rows_of(spans))


def are_long(spans: Sequence[Span]) -> bool:
    """True when slices of the spans cost less than a copy of their rows."""
    if len(spans) <= FEW_SPANS:
        return True
    return sum(stop - start for start, stop in spans) >= SHORT_ROWS * len(spans)


def rows_of(spans: Sequence[Span]) -> pa.Array:
    """The numbers of the rows of spans, in their order."""
    rows = array("q")
    for start, stop in spans:
        rows.extend(range(start, stop))
    return pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(rows)])
