"""The file of a bucket: delayed ids sorted by key, one Parquet row group a snapshot segment.

    rows      deliver_at, ledger, entry int64; index int32, in the order of the key
              (deliver_at, ledger, entry, index)
    bitmaps   binary; in the very first row those of all segments (msgpack), else null
    footer    key `txlog.delayed`: base64 of msgpack of `Head`

The footer is parsed whole at every open, so the bitmaps are a column: read when a look needs them.
What is published is derived from the log: whoever finds it damaged drops it and builds it again.

Encoding runs over its source three times (the step, the bitmaps, the rows), so that a merge needs
no more memory than two segments, the bitmaps and the file. Reading checks every range by the
CRC32C of its `FileRef` before pyarrow sees it (R5). Source: spec/delayed-delivery 5.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa
from pyroaring import BitMap, BitMap64

from txlog.engine.storage.bucket_bitmaps import (
    Bitmaps,
    MarkerCounts,
    PackedBitmaps,
    joined,
    memory_of,
    one_array,
    pack_segments,
    unpack,
)
from txlog.engine.storage.checked import (
    Window,
    check_size,
    checked_bytes,
    damaged,
)
from txlog.engine.storage.crc import crc32c
from txlog.engine.storage.cutting import Cutter, Cutting, StepFinder
from txlog.engine.storage.disk_protocol import File
from txlog.engine.storage.segment import FileRef, Group, arrow_module
from txlog.errors import Corruption, FormatMismatch

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

Id = tuple[int, int, int]
Key = tuple[int, int, int, int]

VERSION: Final = 1
FOOTER_KEY: Final = b"txlog.delayed"
HINT: Final = "txlog delay rebuild makes the index anew from the log"
IDS: Final = pa.schema(
    [
        ("deliver_at", pa.int64()),
        ("ledger", pa.int64()),
        ("entry", pa.int64()),
        ("index", pa.int32()),
    ]
)
"""The columns of delayed ids, wherever they are Arrow."""
_STORED: Final = IDS.append(pa.field("bitmaps", pa.binary()))
_DELTA: Final = dict.fromkeys(IDS.names, "DELTA_BINARY_PACKED")

BATCH_ROWS: Final = 1 << 16  # ids of which bitmaps are made at once

Source = Callable[[], Iterable[pa.Table]]
"""Gives tables of IDS, each in the order of the key and one behind the other; asked repeatedly."""


class Segment(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the footer says of a segment; first: its whole first key."""

    first: Key
    min_at: int
    max_at: int
    count: int


class Head(msgspec.Struct, frozen=True, array_like=True):
    """What the footer says; first, last: the range of positions that the bucket stands for.

    cutoff_ms: ids with deliver_at at or below it may have been left out; step_ms: used in cutting
    """

    version: int
    partition: int
    gen: int
    first: Id
    last: Id
    count: int
    cutoff_ms: int
    step_ms: int
    segments: list[Segment]


@dataclass(frozen=True, slots=True)
class BucketName:
    """Which bucket a file is to be."""

    partition: int
    gen: int
    first: Id
    last: Id
    cutoff_ms: int


@dataclass(frozen=True, slots=True)
class EncodedBucket:
    """The bytes of a bucket, and what is to be known of it; half_at: of the id in the middle."""

    buffers: list[memoryview]
    file: FileRef
    head: Head
    half_at: int

    @property
    def min_at(self) -> int:
        """The least deliver_at."""
        return self.head.segments[0].min_at

    @property
    def max_at(self) -> int:
        """The greatest deliver_at."""
        return self.head.segments[-1].max_at


@dataclass(frozen=True, slots=True)
class Columns:
    """Ids of a segment in the order of the key; q, q, q and i."""

    at: memoryview[int]
    ledger: memoryview[int]
    entry: memoryview[int]
    index: memoryview[int]

    def __len__(self) -> int:
        return len(self.at)


def bucket_name(first_ledger: int, last_ledger: int, gen: int) -> str:
    """The name of a bucket's file in `_delayed/`."""
    return f"bucket-{first_ledger:012d}-{last_ledger:012d}-{gen:010d}.parquet"


# --- writing ---------------------------------------------------------------------------------


def encode_bucket(
    path: str, name: BucketName, source: Source, span: tuple[int, int], cutting: Cutting,
    counts: MarkerCounts,
) -> EncodedBucket | None:  # fmt: skip
    """The file of the ids that a source gives; None when it gives none.

    span: no deliver_at lies outside
    cost: O(n) with a constant number of Arrow calls a segment
    """
    finder = StepFinder(cutting, span[1] - span[0])
    total = 0
    for table in source():
        finder.feed(times_of(table))
        total += table.num_rows
    if not total:
        return None
    step_ms = finder.step_ms
    half_at, to_half = span[1], total // 2
    segments: list[Segment] = []
    bitmaps: list[PackedBitmaps] = []
    for tables in _batches(_segments(source(), Cutter(step_ms, cutting.ids_max))):
        for table in tables:
            segments.append(_describe(table))
            if 0 <= to_half < table.num_rows:
                half_at = times_of(table)[to_half]
            to_half -= table.num_rows
        ends = list(accumulate(table.num_rows for table in tables))
        bitmaps += pack_segments(pa.concat_tables(tables), ends, counts)
    head = Head(
        VERSION, name.partition, name.gen, name.first, name.last, total, name.cutoff_ms, step_ms,
        segments,
    )  # fmt: skip
    again = _segments(source(), Cutter(step_ms, cutting.ids_max))
    data, groups = _write(again, head, msgspec.msgpack.encode(bitmaps))
    tail = groups[-1][1] + groups[-1][2]
    ref = FileRef(
        path, name.first[0], total, 0, -1, len(data), crc32c(data), len(data) - tail,
        crc32c(data[tail:]), groups, 0, 0, "bucket",
    )  # fmt: skip
    return EncodedBucket([data], ref, head, half_at)


def _write(
    tables: Iterable[pa.Table], head: Head, bitmaps: bytes
) -> tuple[memoryview, list[Group]]:
    """The bytes of the file, and its row groups."""
    sink = pa.BufferOutputStream()
    ends: list[tuple[int, int]] = []
    with arrow_module("pyarrow.parquet").ParquetWriter(
        sink,
        _STORED,
        version="2.6",
        compression="zstd",
        compression_level=1,
        use_dictionary=False,
        column_encoding={**_DELTA, "bitmaps": "PLAIN"},
        write_statistics=["deliver_at"],
        write_page_checksum=True,
        store_schema=False,
    ) as writer:
        said = b64encode(msgspec.msgpack.encode(head)).decode()
        writer.add_key_value_metadata({FOOTER_KEY.decode(): said})
        for table in tables:
            rows = table.num_rows
            first = [] if ends else [pa.array([bitmaps], pa.binary())]
            column = pa.chunked_array([*first, pa.nulls(rows - len(first), pa.binary())])
            writer.write_table(table.append_column("bitmaps", column), row_group_size=rows)
            ends.append((rows, sink.tell()))
    data = memoryview(sink.getvalue()).cast("B")
    groups: list[Group] = []
    start = 0
    for rows, end in ends:
        groups.append((rows, start, end - start, crc32c(data[start:end])))
        start = end
    return data, groups


def _segments(tables: Iterable[pa.Table], cutter: Cutter) -> Iterator[pa.Table]:
    """The ids, one table a segment."""
    waiting: list[pa.Table] = []
    for table in tables:
        start = 0
        for end in cutter.feed(times_of(table)):
            waiting.append(table.slice(start, end - start))
            yield _one(waiting)
            waiting, start = [], end
        if start < table.num_rows:
            waiting.append(table.slice(start))
    if waiting:
        yield _one(waiting)


def _batches(segments: Iterable[pa.Table]) -> Iterator[list[pa.Table]]:
    """Segments together, so that a call of Arrow is worth its price."""
    waiting: list[pa.Table] = []
    rows = 0
    for table in segments:
        waiting.append(table)
        rows += table.num_rows
        if rows >= BATCH_ROWS:
            yield waiting
            waiting, rows = [], 0
    if waiting:
        yield waiting


def _one(tables: list[pa.Table]) -> pa.Table:
    return tables[0] if len(tables) == 1 else pa.concat_tables(tables).combine_chunks()


def _describe(table: pa.Table) -> Segment:
    first = [int(table.column(name)[0].as_py()) for name in IDS.names]
    last = int(table.column("deliver_at")[-1].as_py())
    return Segment((first[0], first[1], first[2], first[3]), first[0], last, table.num_rows)


def times_of(table: pa.Table) -> memoryview[int]:
    """The column deliver_at as memory."""
    return memory_of(one_array(table.column("deliver_at")))


# --- reading ---------------------------------------------------------------------------------


def decode_head(said: bytes, path: str) -> Head:
    """What the footer key says. Raises FormatMismatch, ValueError, TypeError, MsgspecError."""
    version, *_ = msgspec.msgpack.decode(raw := b64decode(said))
    if version != VERSION:
        raise FormatMismatch(f"{path} has version {version}, this txlog reads {VERSION}", path=path)
    return msgspec.msgpack.decode(raw, type=Head)


class BucketFile:
    """One bucket's file, for one thread at a time; `file` stays the caller's.

    raises: Corruption when bytes are not what the frame said of them, FormatMismatch for a version
    that is not known, and whatever `file` raises
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
        """What the footer says; read once."""
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
        """Let go of the bytes of the bitmaps; they are read again when asked for."""
        self._packed = None

    def segment(self, number: int) -> Columns:
        """The ids of one segment, as memory."""
        table = self.table(number)
        return Columns(*(memory_of(one_array(column)) for column in table.columns))

    def table(self, number: int, stop: int | None = None) -> pa.Table:
        """The ids of one segment, or of those up to another, as IDS in one chunk."""
        stop = number + 1 if stop is None else stop
        return self._read(range(number, stop), IDS.names).combine_chunks()

    def verify(self) -> None:
        """Read and check every byte, and that bitmaps and rows say the same."""
        head = self.head
        whole = 0
        for _, offset, length, crc in self.ref.groups:
            whole = crc32c(self._checked(offset, length, crc), whole)
        start = self.ref.bytes - self.ref.footer_bytes
        whole = crc32c(self._checked(start, self.ref.footer_bytes, self.ref.footer_crc), whole)
        if whole != self.ref.crc:
            raise self._damaged(0, self.ref.bytes, f"{self.ref.crc:08x}", f"{whole:08x}")
        rest = zip(head.segments, self._read_bitmaps(), strict=True)
        for tables in _batches(self.table(number) for number in range(len(head.segments))):
            ends = list(accumulate(table.num_rows for table in tables))
            found = pack_segments(pa.concat_tables(tables), ends, lambda _: None)
            for table, rows, (said, packed) in zip(tables, found, rest, strict=False):
                if _describe(table) != said or not _is_same(unpack(packed), unpack(rows)):
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
            raise self._damaged(start, ref.footer_bytes, "a footer of a bucket", str(error)) from (
                error
            )
        rows = [group[0] for group in ref.groups]
        named = (len(rows), sum(rows), rows)
        if named != (footer.num_row_groups, head.count, [s.count for s in head.segments]):
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
            raise self._damaged(offset, length, "a segment that decodes", str(error)) from error
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
                self._checked(start, size, crc)  # says what is wrong with it
                raise self._damaged(start, size, f"{crc:08x}", "others")
            at += size
        return data

    def _damaged(self, offset: int, length: int, expected: str, found: str) -> Corruption:
        return damaged(self.ref.path, offset, length, expected, found, HINT)


def _is_same(stored: Bitmaps, rows: Bitmaps) -> bool:
    """True when bitmaps have the ids of rows; how many messages a whole marker has is not known."""
    if stored.plain != rows.plain:
        return False
    inner = dict(stored.inner)
    for ledger, entries in stored.whole.items():
        for entry in entries:
            found = rows.inner.get((ledger, entry))
            if found is None or (ledger, entry) in inner or found.max() != len(found):
                return False
            inner[(ledger, entry)] = found
    return inner == rows.inner
