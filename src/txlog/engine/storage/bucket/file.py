"""The file of a bucket: delayed ids sorted by key, one Parquet row group a snapshot segment.

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
than two segments, the bitmaps and the file. The content is derived from the log:
a process that finds a file damaged drops it and builds it again. `reader` reads it.
Source: spec/delayed 5.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

import msgspec
import pyarrow as pa

from txlog.base.startup.crc32c import crc32c
from txlog.engine.storage.bucket.bitmaps import (
    MarkerCounts,
    PackedBitmaps,
    memory_of,
    one_array,
    pack_segments,
)
from txlog.engine.storage.segment import FileRef, Group, arrow_module
from txlog.errors import FormatMismatch

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
HINT: Final = "txlog delay rebuild rebuilds the index from the log"
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

BATCH_ROWS: Final = 1 << 16  # so many ids at once become bitmaps

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
