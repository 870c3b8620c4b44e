"""Owns BucketFile: reading one bucket, its footer, some segments or the bitmaps at a time.

Every range is compared with the CRC32C of its `FileRef` before pyarrow sees it (R5).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
from pyroaring import BitMap, BitMap64

from txlog.base.startup.crc32c import crc32c
from txlog.engine.storage.bucket.bitmaps import (
    Bitmaps,
    PackedBitmaps,
    joined,
    memory_of,
    one_array,
    pack_segments,
    unpack,
)
from txlog.engine.storage.bucket.file import (
    FOOTER_KEY,
    HINT,
    IDS,
    Head,
    Segment,
    batches,
    decode_head,
    describe,
)
from txlog.engine.storage.checked import Window, check_size, checked_bytes, damaged, said_by_arrow
from txlog.engine.storage.disk.protocol import File
from txlog.engine.storage.segment import FileRef, Group, arrow_module
from txlog.errors import Corruption

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile


@dataclass(frozen=True, slots=True)
class Columns:
    """Ids of a segment in the order of the key; q, q, q and i."""

    at: memoryview[int]
    ledger: memoryview[int]
    entry: memoryview[int]
    index: memoryview[int]

    def __len__(self) -> int:
        return len(self.at)


class BucketFile:
    """One bucket's file, for one thread at a time; the caller owns `file`.

    raises: Corruption when bytes differ from the frame's checksums, FormatMismatch for an unknown
            version, and errors of `file`
    """

    __slots__ = ("_file", "_head", "_packed", "_parquet", "_window", "ref")

    def __init__(self, file: File, ref: FileRef) -> None:
        self.ref = ref
        self._file = file
        self._window = Window(ref.path, ref.bytes)
        self._parquet: ParquetFile | None = None
        self._head: Head | None = None
        self._packed: list[PackedBitmaps] | None = None

    @property
    def head(self) -> Head:
        """The content of the footer; read once."""
        if self._head is None:
            self._head = self._read_head()
        return self._head

    @property
    def segments(self) -> list[Segment]:
        """First key, times and count of each segment, in order of key."""
        return self.head.segments

    def bitmaps(self, start: int = 0) -> list[Bitmaps]:
        """The bitmaps of each segment from a number on."""
        return [unpack(packed) for packed in self._read_bitmaps()[start:]]

    def joined(
        self, start: int = 0, stop: int | None = None
    ) -> tuple[dict[int, BitMap64], dict[tuple[int, int], BitMap]]:
        """(entries, inner) of all ids of some segments, as an IdSet has them; new objects."""
        return joined(self._read_bitmaps()[start:stop])

    def forget_bitmaps(self) -> None:
        """Drop the bytes of the bitmaps; they are read again when needed."""
        self._packed = None

    def segment(self, number: int) -> Columns:
        """The ids of one segment, as memory."""
        table = self.table(number)
        return Columns(*(memory_of(one_array(column)) for column in table.columns))

    def table(self, number: int, stop: int | None = None) -> pa.Table:
        """The ids of one segment, or of the segments up to another, as IDS in one chunk."""
        stop = number + 1 if stop is None else stop
        return self._read(range(number, stop), IDS.names).combine_chunks()

    def verify(self) -> None:
        """Check every byte, and that bitmaps and rows agree."""
        head = self.head
        whole = 0
        for _, offset, length, crc in self.ref.groups:
            whole = crc32c(self._checked(offset, length, crc), whole)
        start = self.ref.bytes - self.ref.footer_bytes
        whole = crc32c(self._checked(start, self.ref.footer_bytes, self.ref.footer_crc), whole)
        if whole != self.ref.crc:
            raise self._damaged(0, self.ref.bytes, f"{self.ref.crc:08x}", f"{whole:08x}")
        stored_segments = zip(head.segments, self._read_bitmaps(), strict=True)
        for tables in batches(self.table(number) for number in range(len(head.segments))):
            ends = list(accumulate(table.num_rows for table in tables))
            bitmaps_of_rows = pack_segments(pa.concat_tables(tables), ends, lambda _: None)
            for table, rows, (described, packed) in zip(
                tables, bitmaps_of_rows, stored_segments, strict=False
            ):
                if describe(table) != described or not _is_same(unpack(packed), unpack(rows)):
                    raise self._damaged(0, start, "rows as footer and bitmaps say", "others")

    def _read_head(self) -> Head:
        ref = self.ref
        check_size(self._file, ref.path, ref.bytes, HINT)
        start = ref.bytes - ref.footer_bytes
        tail = self._checked(start, ref.footer_bytes, ref.footer_crc)
        try:
            footer = arrow_module("pyarrow.parquet").read_metadata(pa.BufferReader(tail))
            head = decode_head((footer.metadata or {}).get(FOOTER_KEY, b""), ref.path)
        except (pa.ArrowException, OSError, ValueError, TypeError, msgspec.MsgspecError) as error:
            reason = said_by_arrow(error)
            raise self._damaged(start, ref.footer_bytes, "a footer of a bucket", reason) from error
        rows = [group[0] for group in ref.groups]
        described = (len(rows), sum(rows), rows)
        if described != (footer.num_row_groups, head.count, [s.count for s in head.segments]):
            raise self._damaged(start, ref.footer_bytes, "the segments named", "others")
        self._parquet = arrow_module("pyarrow.parquet").ParquetFile(
            pa.PythonFile(self._window, "r"), metadata=footer
        )
        return head

    def _read_bitmaps(self) -> list[PackedBitmaps]:
        packed = self._packed
        if packed is None:
            raw = self._read(range(1), ["bitmaps"]).column(0)[0].as_py()
            try:
                packed = msgspec.msgpack.decode(raw or b"", type=list[PackedBitmaps])
            except msgspec.MsgspecError as error:
                raise self._damaged(0, self.ref.bytes, "bitmaps", str(error)) from error
            if len(packed) != len(self.segments):
                raise self._damaged(0, self.ref.bytes, "bitmaps of each segment", "others")
            self._packed = packed
        return packed

    def _read(self, numbers: range, names: list[str]) -> pa.Table:
        """Columns of neighbouring row groups, decoded from checked bytes."""
        assert self.head is not None  # the footer before the group: it is small, and may be bad
        assert self._parquet is not None
        groups = self.ref.groups[numbers.start : numbers.stop]
        rows, offset = sum(group[0] for group in groups), groups[0][1]
        length = sum(group[2] for group in groups)
        self._window.show(offset, self._checked_groups(groups, offset, length))
        try:
            table = self._parquet.read_row_groups(list(numbers), columns=names, use_threads=False)
        except (pa.ArrowException, OSError) as error:
            reason = said_by_arrow(error)
            raise self._damaged(offset, length, "a segment that decodes", reason) from error
        finally:
            self._window.show(0, b"")
        if table.num_rows != rows or table.column_names != names:
            raise self._damaged(offset, length, f"{rows} rows", f"{table.num_rows} rows")
        return table

    def _checked(self, offset: int, length: int, crc: int) -> bytes:
        return checked_bytes(self._file, self.ref.path, offset, length, crc, HINT)

    def _checked_groups(self, groups: list[Group], offset: int, length: int) -> bytes:
        """The bytes of neighbouring row groups, each compared with its own checksum."""
        if len(groups) == 1:
            return self._checked(offset, length, groups[0][3])
        data = self._file.pread(offset, length)
        view, at = memoryview(data), 0
        for _, start, size, crc in groups:
            if start != offset + at or crc32c(view[at : at + size]) != crc:
                self._checked(start, size, crc)  # raises the exact error
                raise self._damaged(start, size, f"{crc:08x}", "others")
            at += size
        return data

    def _damaged(self, offset: int, length: int, expected: str, found: str) -> Corruption:
        return damaged(self.ref.path, offset, length, expected, found, HINT)


def _is_same(stored: Bitmaps, rows: Bitmaps) -> bool:
    """True when bitmaps have the ids of rows; a whole marker may have any number of messages."""
    if stored.plain != rows.plain:
        return False
    inner = dict(stored.inner)
    for ledger, entries in stored.whole.items():
        for entry in entries:
            indexes = rows.inner.get((ledger, entry))
            if indexes is None or (ledger, entry) in inner or indexes.max() != len(indexes):
                return False
            inner[(ledger, entry)] = indexes
    return inner == rows.inner
