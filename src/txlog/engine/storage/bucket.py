"""A bucket: a file of delayed ids, sorted by time, one Parquet row group per snapshot segment.

    rows      deliver_at, ledger, entry int64; index int32, in the order of the key
              (deliver_at, ledger, entry, index)
    bitmaps   binary; the very first row has the bitmaps of all segments (msgpack), others null
    footer    key `txlog.delayed`: base64 of msgpack of `Head`

A segment is a window of time, anchored at the data, with a bound on its size: it opens at t0, the
time of its first id, and ends before the first deliver_at > t0 + step - 1, when it has ids_max ids,
or at the end. The step is the setting; where it would make more than segments_max segments, it
doubles until it does not. Times come sorted and in pieces, since a merge never has all times in
memory; the cost is one bisection per segment.

Every open parses the whole footer, so the bitmaps are a column, read only when needed. Encoding
goes over its source three times (the step, the bitmaps, the rows), so a merge needs no more memory
than two segments, the bitmaps and the file. The content is derived from the log: a process that
finds a file damaged drops it and builds it again.

The ids of a segment as bitmaps:

    plain   ledger -> entries of plain messages
    whole   ledger -> markers all of whose messages are in the segment
    inner   (ledger, entry) -> 1-based indexes of messages, for the other markers

A BitMap object per marker costs 186 B, so ten million transactions of one message would need 1.9
GB. `whole` avoids that. Entries are below 2^32, so 32 bits are written; in memory they are
BitMap64, as in every other set of ids (a 64-bit bitmap is its 32-bit ones after a small head).

BucketFile reads a bucket: its footer, some segments or the bitmaps at a time. Every range is
compared with the CRC32C of its `FileRef` before pyarrow sees it (R5).
Source: spec/delayed 5.
"""

from __future__ import annotations

import struct
from array import array
from base64 import b64decode, b64encode
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Final

import msgspec
import pyarrow as pa
from pyroaring import BitMap, BitMap64

from txlog.base.startup import compute as pc
from txlog.base.startup.crc32c import crc32c
from txlog.engine.storage.checked import Window, check_size, checked_bytes, damaged, said_by_arrow
from txlog.engine.storage.disk.protocol import File
from txlog.engine.storage.segment import FileRef, Group, arrow_module
from txlog.errors import Corruption, FormatMismatch

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

# --- bitmaps -------------------------------------------------------------------------------------


MarkerCounts = Callable[[int], "pa.Array | None"]
"""For a ledger: int32, at each entry the number of messages of that marker, 0 for none; may end
early.
"""

_HEAD64 = struct.pack("<QI", 1, 0)  # one 32-bit bitmap follows, of the numbers below 2^32


class PackedBitmaps(msgspec.Struct, array_like=True, gc=False):
    """The bitmaps of one segment as the file has them; without empty bitmaps."""

    plain: dict[int, bytes]
    whole: dict[int, bytes]
    inner: list[tuple[int, int, bytes]]


@dataclass(slots=True)
class Bitmaps:
    """Ids as bitmaps; entries: plain messages and whole markers, as an IdSet has them."""

    plain: dict[int, BitMap64] = field(default_factory=dict)
    whole: dict[int, BitMap64] = field(default_factory=dict)
    inner: dict[tuple[int, int], BitMap] = field(default_factory=dict)

    def entries(self) -> dict[int, BitMap64]:
        """Plain messages and whole markers by ledger, in new bitmaps."""
        out = {ledger: entries.copy() for ledger, entries in self.plain.items()}
        for ledger, entries in self.whole.items():
            if ledger in out:
                out[ledger] |= entries
            else:
                out[ledger] = entries.copy()
        return out


def pack_segments(ids: pa.Table, ends: Sequence[int], counts: MarkerCounts) -> list[PackedBitmaps]:
    """The bitmaps of neighbouring segments, which end at these rows.

    ids:  columns ledger, entry, index, in any order within a segment, none twice
    cost: one sort of all ids, an object for each segment and ledger, and one for each marker that
          is not whole
    """
    out = [PackedBitmaps({}, {}, []) for _ in ends]
    if not ids.num_rows:
        return out
    sizes = (end - start for start, end in zip((0, *ends), ends, strict=False))
    number = pa.concat_arrays(
        [pa.repeat(pa.scalar(n, pa.int32()), size) for n, size in enumerate(sizes)]
    )
    ledger, entry, index = (one_array(ids.column(n)) for n in ("ledger", "entry", "index"))
    order = _order(number, ledger, entry, index)
    number, ledger, entry, index = (c.take(order) for c in (number, ledger, entry, index))
    starts = _starts(number, ledger, entry)
    here = pc.subtract(pa.concat_arrays([starts[1:], pa.array([len(number)], starts.type)]), starts)
    heads = [column.take(starts) for column in (number, ledger, entry, index)]
    is_plain = pc.equal(heads[3], 0)
    _pack_runs(heads, is_plain, [packed.plain for packed in out])
    if pc.all(is_plain).as_py():
        return out
    is_whole = pc.and_(pc.equal(_counts(heads[1], heads[2], counts), here), pc.invert(is_plain))
    is_whole = pc.fill_null(is_whole, False)
    _pack_runs(heads, is_whole, [packed.whole for packed in out])
    is_part = pc.invert(pc.or_(is_plain, is_whole))
    indexes = memory_of(index)
    columns = (*heads[:3], starts, pc.add(starts, here))
    for n, of, at, start, end in zip(
        *(memory_of(column.filter(is_part)) for column in columns), strict=True
    ):
        bitmap = BitMap(array("I", indexes[start:end].tobytes()))
        out[n].inner.append((of, at, bitmap.serialize()))
    return out


def _order(number: pa.Array, ledger: pa.Array, entry: pa.Array, index: pa.Array) -> pa.Array:
    """The order by segment and position; one sort of an integer where all columns fit into it."""
    columns = (number, ledger, entry, index)
    key, bits = None, 0
    for column in columns:
        bounds = pc.min_max(column).as_py()
        width = (bounds["max"] - bounds["min"]).bit_length()
        bits += width
        if bits > 62:
            table = pa.Table.from_arrays(columns, list("abcd"))
            return pc.sort_indices(table, [(name, "ascending") for name in "abcd"])
        part = pc.subtract(column.cast(pa.int64()), bounds["min"])
        key = part if key is None else pc.bit_wise_or(pc.shift_left(key, width), part)
    return pc.array_sort_indices(key)


def _starts(*columns: pa.Array) -> pa.Array:
    """The rows where a column changes its value, and row 0."""
    changes = None
    for column in columns:
        change = pc.not_equal(column[1:], column[:-1])
        changes = change if changes is None else pc.or_(changes, change)
    starts = pc.add(pc.indices_nonzero(changes), 1).cast(pa.int64())
    return pa.concat_arrays([pa.array([0], pa.int64()), starts])


def _pack_runs(heads: list[pa.Array], mask: pa.Array, into: Sequence[dict[int, bytes]]) -> None:
    """Put the entries under the mask into one bitmap per segment and ledger."""
    number, ledger, entry = (column.filter(mask) for column in heads[:3])
    if not len(number):
        return
    starts = _starts(number, ledger)
    entries = memory_of(entry)
    ends = [*memory_of(starts)[1:], len(entries)]
    columns = (memory_of(number.take(starts)), memory_of(ledger.take(starts)), memory_of(starts))
    for n, of, start, end in zip(*columns, ends, strict=True):
        into[n][of] = _packed(entries[start:end])


def _counts(ledger: pa.Array, entry: pa.Array, counts: MarkerCounts) -> pa.Array:
    """How many messages each marker has, null where unknown."""
    order = pc.array_sort_indices(ledger)
    ledger, entry = ledger.take(order), entry.take(order)
    starts = memory_of(_starts(ledger))
    parts: list[pa.Array] = []
    for start, end in zip(starts, [*starts[1:], len(ledger)], strict=True):
        ledger_counts, entries = counts(ledger[start].as_py()), entry[start:end]
        if ledger_counts is None:
            parts.append(pa.nulls(end - start, pa.int32()))
        else:
            at = pc.if_else(pc.less(entries, len(ledger_counts)), entries, None)
            parts.append(ledger_counts.take(at))
    return pa.concat_arrays(parts).take(pc.inverse_permutation(order.cast(pa.int64())))


def _packed(entries: memoryview[int]) -> bytes:
    """Entries as a 32-bit bitmap, in as few bytes as possible."""
    bitmap = BitMap64(array("Q", entries.tobytes()))
    assert bitmap.max() < 1 << 32  # ledger_entries_max is at most 10^9
    bitmap.run_optimize()
    raw: bytes = bitmap.serialize()
    return raw[len(_HEAD64) :]


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """A column as one array, without a copy if it has one chunk."""
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def memory_of(values: pa.Array) -> memoryview[int]:
    """The memory of an int64 or int32 array without nulls, as q or i."""
    width = values.type.bit_width // 8
    raw = memoryview(values.buffers()[1] if len(values) else b"").cast("B")
    raw = raw[values.offset * width : (values.offset + len(values)) * width]
    return raw.cast("q") if width == 8 else raw.cast("i")


def unpack(packed: PackedBitmaps) -> Bitmaps:
    """The bitmaps of one segment."""
    return Bitmaps(
        {ledger: _wide(raw) for ledger, raw in packed.plain.items()},
        {ledger: _wide(raw) for ledger, raw in packed.whole.items()},
        {(ledger, entry): BitMap.deserialize(raw) for ledger, entry, raw in packed.inner},
    )


def joined(
    segments: Iterable[PackedBitmaps],
) -> tuple[dict[int, BitMap64], dict[tuple[int, int], BitMap]]:
    """(entries, inner) of all ids of some segments, as an IdSet has them."""
    entries: dict[int, list[bytes]] = {}
    inner: dict[tuple[int, int], list[bytes]] = {}
    for packed in segments:
        for part in (packed.plain, packed.whole):
            for ledger, raw in part.items():
                entries.setdefault(ledger, []).append(raw)
        for ledger, entry, raw in packed.inner:
            inner.setdefault((ledger, entry), []).append(raw)
    return (
        {ledger: _wide(_union(raws)) for ledger, raws in entries.items()},
        {key: BitMap.deserialize(_union(raws)) for key, raws in inner.items()},
    )


def _union(raws: list[bytes]) -> bytes:
    if len(raws) == 1:
        return raws[0]
    raw: bytes = BitMap.union(*map(BitMap.deserialize, raws)).serialize()
    return raw


def _wide(raw: bytes) -> BitMap64:
    """A 64-bit bitmap from the bytes of a 32-bit one."""
    return BitMap64.deserialize(_HEAD64 + raw)


# --- where segments end ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SegmentLimits:
    """The limits of segments; ids_max below 1: no limit on the ids of a segment."""

    step_ms: int
    ids_max: int
    segments_max: int


class StepFinder:
    """Finds the step: feed it all times in order, then read `step_ms`.

    span_ms: at least the greatest time minus the least; it bounds the steps that are tried
    """

    __slots__ = ("_ends", "_segments", "_segments_max", "_steps")

    def __init__(self, cutting: SegmentLimits, span_ms: int) -> None:
        assert cutting.step_ms > 0 and cutting.segments_max > 0
        self._segments_max = cutting.segments_max
        self._steps = [cutting.step_ms]
        while span_ms // self._steps[-1] >= cutting.segments_max:
            self._steps.append(2 * self._steps[-1])
        self._segments = [0] * len(self._steps)
        self._ends: list[int | None] = [None] * len(self._steps)

    def feed(self, times: Sequence[int]) -> None:
        """Count the segments that each step would make of the next times."""
        for number in range(len(self._steps) - 1):  # the widest step always fits
            if self._segments[number] <= self._segments_max:
                self._count(number, times)

    def _count(self, number: int, times: Sequence[int]) -> None:
        step, end, segments = self._steps[number], self._ends[number], self._segments[number]
        at = 0 if end is None else bisect_left(times, end)
        while at < len(times) and segments <= self._segments_max:
            end = times[at] + step
            segments += 1
            at = bisect_left(times, end, at)
        self._ends[number], self._segments[number] = end, segments

    @property
    def step_ms(self) -> int:
        """The smallest step that makes at most segments_max segments of the fed times."""
        counts = zip(self._steps, self._segments, strict=True)
        return next(step for step, segments in counts if segments <= self._segments_max)


class Cutter:
    """Cuts sorted times that come in pieces; remembers the open segment between them."""

    __slots__ = ("_end", "_ids", "_ids_max", "_step_ms")

    def __init__(self, step_ms: int, ids_max: int) -> None:
        self._step_ms = step_ms
        self._ids_max = ids_max
        self._ids = 0
        self._end = 0

    def feed(self, times: Sequence[int]) -> list[int]:
        """The offsets within the next times where segments end; the last stays open unless full."""
        ends: list[int] = []
        at = 0
        while at < len(times):
            if not self._ids:
                self._end = times[at] + self._step_ms
            stop = bisect_left(times, self._end, at)
            if self._ids_max > 0:
                stop = min(stop, at + self._ids_max - self._ids)
            self._ids += stop - at
            at = stop
            if at < len(times) or self._ids == self._ids_max:
                ends.append(at)
                self._ids = 0
        return ends


Id = tuple[int, int, int]
Key = tuple[int, int, int, int]

VERSION: Final = 1
FOOTER_KEY: Final = b"txlog.delayed"
HINT: Final = "txlog delay rebuild TOPIC rebuilds the index from the log"
IDS: Final = pa.schema(
    [
        ("deliver_at", pa.int64()),
        ("ledger", pa.int64()),
        ("entry", pa.int64()),
        ("index", pa.int32()),
    ]
)
"""The columns of delayed ids in Arrow tables."""
_STORED: Final = IDS.append(pa.field("bitmaps", pa.binary()))
_DELTA: Final = dict.fromkeys(IDS.names, "DELTA_BINARY_PACKED")

BATCH_ROWS: Final = 1 << 16  # ids that Arrow turns into bitmaps at once, or a few more

Source = Callable[[], Iterable[pa.Table]]
"""Returns tables of IDS in the order of the key, also from one table to the next; called
repeatedly.
"""


# --- the file --------------------------------------------------------------------------------


class Segment(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The footer's data for a segment; first: its whole first key."""

    first: Key
    min_at: int
    max_at: int
    count: int


class Head(msgspec.Struct, frozen=True, array_like=True):
    """The content of the footer; first, last: the range of positions that the bucket covers.

    cutoff_ms: the bucket may lack ids with deliver_at at or below it; step_ms: used in cutting
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
    """The identity of a bucket, before its file is written."""

    partition: int
    gen: int
    first: Id
    last: Id
    cutoff_ms: int


@dataclass(frozen=True, slots=True)
class EncodedBucket:
    """The bytes of a bucket, and its description; half_at: deliver_at of the id in the middle."""

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


def bucket_name(first_ledger: int, last_ledger: int, gen: int) -> str:
    """The name of a bucket's file in `_delayed/`."""
    return f"bucket-{first_ledger:012d}-{last_ledger:012d}-{gen:010d}.parquet"


def decode_head(encoded: bytes, path: str) -> Head:
    """Decode the footer key. Raises FormatMismatch, ValueError, TypeError, MsgspecError."""
    version, *_ = msgspec.msgpack.decode(raw := b64decode(encoded))
    if version != VERSION:
        raise FormatMismatch(f"{path} has version {version}, this txlog reads {VERSION}", path=path)
    return msgspec.msgpack.decode(raw, type=Head)


def encode_bucket(
    path: str,
    name: BucketName,
    source: Source,
    span: tuple[int, int],
    cutting: SegmentLimits,
    counts: MarkerCounts,
) -> EncodedBucket | None:
    """The file of a source's ids; None when the source has none.

    span: every deliver_at lies within it
    cost: O(n) with a constant number of Arrow calls per segment
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
    for tables in batches(_segments(source(), Cutter(step_ms, cutting.ids_max))):
        for table in tables:
            segments.append(describe(table))
            if 0 <= to_half < table.num_rows:
                half_at = times_of(table)[to_half]
            to_half -= table.num_rows
        ends = list(accumulate(table.num_rows for table in tables))
        bitmaps += pack_segments(pa.concat_tables(tables), ends, counts)
    head = Head(
        VERSION,
        name.partition,
        name.gen,
        name.first,
        name.last,
        total,
        name.cutoff_ms,
        step_ms,
        segments,
    )
    cut_tables = _segments(source(), Cutter(step_ms, cutting.ids_max))
    data, groups = _write(cut_tables, head, msgspec.msgpack.encode(bitmaps))
    tail = groups[-1][1] + groups[-1][2]
    ref = FileRef(
        path,
        name.first[0],
        total,
        0,
        -1,
        len(data),
        crc32c(data),
        len(data) - tail,
        crc32c(data[tail:]),
        groups,
        0,
        0,
        "bucket",
    )
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
        encoded_head = b64encode(msgspec.msgpack.encode(head)).decode()
        writer.add_key_value_metadata({FOOTER_KEY.decode(): encoded_head})
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
    """The ids, one table per segment."""
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


def batches(segments: Iterable[pa.Table]) -> Iterator[list[pa.Table]]:
    """Group segments, so that each group is worth a call of Arrow."""
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


def describe(table: pa.Table) -> Segment:
    """The footer's data for a segment with these ids."""
    first = [int(table.column(name)[0].as_py()) for name in IDS.names]
    last = int(table.column("deliver_at")[-1].as_py())
    return Segment((first[0], first[1], first[2], first[3]), first[0], last, table.num_rows)


def times_of(table: pa.Table) -> memoryview[int]:
    """The column deliver_at as memory."""
    return memory_of(one_array(table.column("deliver_at")))


# --- reading -------------------------------------------------------------------------------------


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
