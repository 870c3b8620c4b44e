"""Segment files: the rows of a ledger as bytes, and back, with every byte checked first.

Two forms, one schema (columns.py). A *part* is an Arrow IPC file, written at a checkpoint and read
whole. A *sealed* file is Parquet, written once and read by row groups; DuckDB and Spark read it
too. Neither format protects its bytes (RELIABILITY R5): stock readers take flipped bits in
silence. So a `FileRef`, kept in the manifest, holds the CRC32C of the whole file, of each row
group and of the tail behind the last one, and nothing reaches pyarrow unchecked.

This module makes no file call: it turns tables into buffers that `disk` publishes, and reads by
`File.pread`. pyarrow never sees a path or a descriptor (R1).
"""

from __future__ import annotations

import importlib
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import accumulate
from types import ModuleType
from typing import TYPE_CHECKING, Final, Literal

import msgspec
import pyarrow as pa
from crc32c import crc32c

from txlog.engine.storage.checked import (
    Window,
    check_size,
    checked_bytes,
    damaged,
    group_bounds,
)
from txlog.engine.storage.columns import INSTANT, MESSAGE, conform
from txlog.engine.storage.disk_protocol import File
from txlog.errors import Corruption

if TYPE_CHECKING:
    from pyarrow.parquet import FileMetaData

GROUP_ROWS: Final = 50_000
GROUP_BYTES: Final = 8 << 20
# What an Arrow IPC file has around its batches: their blocks in the footer, magics and lengths.
IPC_BATCH_BYTES, IPC_FILE_BYTES = 64, 4096
CACHED_GROUPS: Final = 2  # a scan needs one, a scan that begins inside a group two
VERIFY_BYTES: Final = 1 << 20

# Parquet encodings, by ANALYTICS.md 8; payload and properties are PLAIN.
_DICTIONARY: Final = ["kind", "key", "producer"]
_DELTA: Final = [field.name for field in MESSAGE if field.type in (pa.int64(), pa.int32(), INSTANT)]
_PLAIN: Final = ["value", "properties.key_value.key", "properties.key_value.value"]
# An absent column reads as null; these two every file stores, so that any scan can rely on them.
_ALWAYS: Final = ("kind", "entry")

Form = Literal["part", "sealed", "chunks", "bucket"]
Group = tuple[int, int, int, int]  # rows, offset, length, CRC32C


class FileRef(msgspec.Struct, frozen=True, array_like=True):
    """What the manifest knows of a segment file; the groups and the footer cover all its bytes.

    first, last: the least and greatest entry; lsn_first, lsn_last: of the LSN, 0 when the rows
    have none. An empty file has 0, -1. A part is one group and no footer.
    """

    path: str
    ledger: int
    rows: int
    first: int
    last: int
    bytes: int
    crc: int
    footer_bytes: int
    footer_crc: int
    groups: list[Group]
    lsn_first: int
    lsn_last: int
    form: Form
    clean: bool = False


def encode_part(table: pa.Table, identity: Mapping[str, str] | None = None) -> list[memoryview]:
    """The buffers of an Arrow IPC file; columns without any value are left out.

    A null column costs its full width in Arrow, and most rows use a third of the columns.
    identity: what the file says of itself (store, ledger, ...), for inspection.
    """
    table = conform(table)
    kept = [
        field.name
        for field in MESSAGE
        if field.name in _ALWAYS or table.column(field.name).null_count < table.num_rows
    ]
    table = table.select(kept).replace_schema_metadata(dict(identity or {}))
    # a batch for each chunk would be one for each small frame
    pool = pa.system_memory_pool()
    batches = [b for piece in _cut(table) for b in piece.combine_chunks(pool).to_batches()]
    # memory that grows while it is written costs twenty times as much as a buffer of its size
    size = sum(map(pa.ipc.get_record_batch_size, batches)) + 2 * table.schema.serialize().size
    buffer = pa.allocate_buffer(
        size + IPC_BATCH_BYTES * len(batches) + IPC_FILE_BYTES, memory_pool=pool
    )
    sink = pa.FixedSizeBufferWriter(buffer)
    with pa.ipc.new_file(sink, table.schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return [memoryview(buffer)[: sink.tell()].cast("B")]


def encode_sealed(
    table: pa.Table, has_keys: bool, identity: Mapping[str, str] | None = None
) -> list[memoryview]:
    """The buffers of a Parquet file in log order, with every column of the schema.

    DuckDB refuses a scan over files of unequal columns, and a null column costs a few bytes.
    """
    table = conform(table)
    bloom = None
    if has_keys:
        distinct = int(_module("pyarrow.compute").count_distinct(table.column("key")).as_py())
        bloom = {"key": {"ndv": max(1, min(distinct, GROUP_ROWS)), "fpp": 0.01}}
    sink = pa.BufferOutputStream()
    with _module("pyarrow.parquet").ParquetWriter(
        sink,
        MESSAGE,
        version="2.6",
        compression="zstd",
        compression_level=1,
        use_dictionary=_DICTIONARY,
        column_encoding={
            **dict.fromkeys(_DELTA, "DELTA_BINARY_PACKED"),
            **dict.fromkeys(_PLAIN, "PLAIN"),
        },
        write_statistics=[*_DICTIONARY, *_DELTA],
        write_page_index=True,
        write_page_checksum=True,
        bloom_filter_options=bloom,
        store_schema=False,  # types survive without it, and adopted files do not have it either
    ) as writer:
        writer.add_key_value_metadata(dict(identity or {}))
        for group in _cut(table):
            writer.write_table(group, row_group_size=GROUP_ROWS)
    return [memoryview(sink.getvalue()).cast("B")]


def make_ref(
    path: str,
    ledger: int,
    buffers: Sequence[bytes | memoryview],
    table: pa.Table,
    *,
    form: Form,
    clean: bool = False,
) -> FileRef:
    """Describe a file about to be published: the bytes of `buffers`, which encode `table`."""
    data = buffers[0] if len(buffers) == 1 else b"".join(buffers)
    size = len(data)
    groups: list[Group] = [(table.num_rows, 0, size, crc32c(data))]
    tail = size
    if form == "sealed":
        bounds = group_bounds(_module("pyarrow.parquet").read_metadata(pa.BufferReader(data)))
        groups = [
            (rows, start, end - start, crc32c(data[start:end])) for rows, start, end in bounds
        ]
        tail = bounds[-1][2] if bounds else 0
    first, last = _bounds(table, "entry")
    lsn_first, lsn_last = _bounds(table, "lsn")
    if lsn_last < 0:
        lsn_first = lsn_last = 0
    return FileRef(
        path=path,
        ledger=ledger,
        rows=table.num_rows,
        first=first,
        last=last,
        bytes=size,
        crc=crc32c(data),
        footer_bytes=size - tail,
        footer_crc=crc32c(data[tail:]),
        groups=groups,
        lsn_first=lsn_first,
        lsn_last=lsn_last,
        form=form,
        clean=clean,
    )


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
                with _module("pyarrow.parquet").ParquetFile(
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
            footer = _module("pyarrow.parquet").read_metadata(pa.BufferReader(tail))
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


@cache
def _module(name: str) -> ModuleType:
    """A part of pyarrow when first needed: parquet and compute cost a short command 50 ms."""
    return importlib.import_module(name)


def _cut(table: pa.Table) -> Iterator[pa.Table]:
    """The table in row groups of at most GROUP_ROWS rows and, beyond one row, GROUP_BYTES."""
    for start in range(0, table.num_rows, GROUP_ROWS):
        waiting = [table.slice(start, GROUP_ROWS)]
        while waiting:
            piece = waiting.pop()
            if piece.num_rows > 1 and piece.nbytes > GROUP_BYTES:
                half = piece.num_rows // 2
                waiting += [piece.slice(half), piece.slice(0, half)]
            else:
                yield piece


def _bounds(table: pa.Table, name: str) -> tuple[int, int]:
    """The least and greatest value of a column, (0, -1) when it has none."""
    at = table.schema.get_field_index(name)
    if at < 0 or table.column(at).null_count == table.num_rows:
        return 0, -1
    found = _module("pyarrow.compute").min_max(table.column(at)).as_py()
    return int(found["min"]), int(found["max"])
