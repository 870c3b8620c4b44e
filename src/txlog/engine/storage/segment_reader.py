"""Owns reading segment files: row groups checked, decoded, and the rows cut out.

Nothing reaches pyarrow unchecked (RELIABILITY R5), and pyarrow never sees a path or a descriptor:
bytes come by `File.pread` (R1). The smallest piece with a checksum is a row group, so it is read
as a whole.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from crc32c import crc32c

from txlog.engine.storage.checked import (
    Window,
    check_size,
    checked_bytes,
    damaged,
    group_bounds,
)
from txlog.engine.storage.columns import MESSAGE, conform
from txlog.engine.storage.disk_protocol import File
from txlog.engine.storage.segment import FileRef, arrow_module
from txlog.errors import Corruption

if TYPE_CHECKING:
    from pyarrow.parquet import FileMetaData

CACHED_GROUPS: Final = 2  # a scan needs one, a scan that begins inside a group two
VERIFY_BYTES: Final = 1 << 20


class SegmentReader:
    """Rows of one published file. Safe to share between threads; `file` stays the caller's.

    raises: Corruption (path, offset, length, expected, found) when bytes are not what the
    manifest says, and whatever `file` raises.
    """

    __slots__ = ("_cache", "_ends", "_file", "_footer", "_sized", "ref")

    def __init__(self, file: File, ref: FileRef) -> None:
        self.ref = ref
        self._file = file
        self._ends = list(accumulate(group[0] for group in ref.groups))
        self._cache: OrderedDict[int, pa.Table] = OrderedDict()
        self._footer: FileMetaData | None = None  # once the tail was checked
        self._sized = False

    def rows(self, start: int, stop: int) -> pa.Table:
        """The rows start..stop-1 of the file, with the columns of MESSAGE.

        Reads, checks and decodes the row groups they lie in, and no others.
        """
        if not 0 <= start <= stop <= self.ref.rows:
            raise IndexError(f"rows {start}..{stop} of {self.ref.rows} in {self.ref.path}")
        if start == stop:
            return MESSAGE.empty_table()
        pieces = []
        number = bisect_right(self._ends, start)
        while start < stop:
            end = self._ends[number]
            begin = end - self.ref.groups[number][0]
            pieces.append(self._group(number).slice(start - begin, min(stop, end) - start))
            start = end
            number += 1
        return pieces[0] if len(pieces) == 1 else pa.concat_tables(pieces)

    def verify(self) -> None:
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
        for number in range(len(ref.groups)):
            self._group(number)

    def _group(self, number: int) -> pa.Table:
        """One decoded row group, from the cache or from checked bytes."""
        table = self._cache.get(number)
        if table is not None:
            return table
        self._check_size()
        rows, offset, length, crc = self.ref.groups[number]
        try:
            if self.ref.form == "part":
                with pa.ipc.open_file(pa.py_buffer(self._checked(offset, length, crc))) as reader:
                    table = reader.read_all()
            else:
                footer = self._checked_footer()  # before the group: it is small, and may be bad
                window = Window(
                    self.ref.path, self.ref.bytes, offset, self._checked(offset, length, crc)
                )
                with arrow_module("pyarrow.parquet").ParquetFile(
                    pa.PythonFile(window, "r"), metadata=footer
                ) as parquet:
                    table = parquet.read_row_group(number, use_threads=False)
            table = conform(table)
        except (pa.ArrowException, OSError) as error:
            raise self._corrupt(offset, length, "a file that decodes", str(error)) from error
        if table.num_rows != rows:
            raise self._corrupt(offset, length, f"{rows} rows", f"{table.num_rows} rows")
        self._cache[number] = table
        if len(self._cache) > CACHED_GROUPS:
            self._cache.popitem(last=False)
        return table

    def _checked_footer(self) -> FileMetaData:
        """The Parquet metadata, parsed from the tail alone: its offsets are those of the file."""
        if self._footer is None:
            ref = self.ref
            tail = self._checked(ref.bytes - ref.footer_bytes, ref.footer_bytes, ref.footer_crc)
            footer = arrow_module("pyarrow.parquet").read_metadata(pa.BufferReader(tail))
            if [rows for rows, _, _ in group_bounds(footer)] != [g[0] for g in ref.groups]:
                start = ref.bytes - ref.footer_bytes
                raise self._corrupt(start, ref.footer_bytes, "the row groups named", "others")
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
        """The offset, length and checksum of everything that can be read alone, in order."""
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
