"""Files of buckets: ids come back in order of key, bitmaps equal rows, damage is detected."""

from __future__ import annotations

import base64
from array import array
from collections.abc import Callable, Iterator
from itertools import pairwise

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.storage.test_bucket_cutting import cut_segments
from tests.storage.test_segment import Bytes
from tests.tiers import graded
from txlog.engine.storage import bucket
from txlog.engine.storage.bucket import (
    IDS,
    Bitmaps,
    BucketFile,
    BucketName,
    EncodedBucket,
    SegmentLimits,
)
from txlog.errors import Corruption, FormatMismatch

PATH = "topics/t/n/x/partition=0/_delayed/bucket-000000000001-000000000003-0000000004.parquet"
NAME = BucketName(5, 4, (1, 0, 0), (3, 9, 2), 77)
CUTTING = SegmentLimits(300_000, 5_000, 2_000)
Key = tuple[int, int, int, int]


def table_of(keys: list[Key]) -> pa.Table:
    columns = list(zip(*keys, strict=True)) or [(), (), (), ()]
    return pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, IDS, strict=True)],
        schema=IDS,
    )


def encode(
    keys: list[Key],
    counts: dict[tuple[int, int], int] | None = None,
    cutting: SegmentLimits = CUTTING,
    parts: list[int] | None = None,
) -> EncodedBucket:
    """A bucket of keys; parts: where the source breaks off and goes on."""
    keys = sorted(keys)

    def source() -> Iterator[pa.Table]:
        bounds = [0, *(parts or []), len(keys)]
        for start, end in pairwise(bounds):
            yield table_of(keys[start:end])

    def marker_counts(ledger: int) -> pa.Array | None:
        of = {entry: count for (at, entry), count in (counts or {}).items() if at == ledger}
        if not of:
            return None
        dense = array("i", [0] * (max(of) + 1))
        for entry, count in of.items():
            dense[entry] = count
        return pa.array(dense, pa.int32())

    encoded = bucket.encode_bucket(
        PATH, NAME, source, (keys[0][0], keys[-1][0]), cutting, marker_counts
    )
    assert encoded is not None
    return encoded


def opened(encoded: EncodedBucket) -> BucketFile:
    return BucketFile(Bytes(b"".join(encoded.buffers)), encoded.file)


def keys_of(file: BucketFile, number: int) -> list[Key]:
    columns = file.segment(number)
    return list(zip(columns.at, columns.ledger, columns.entry, columns.index, strict=True))


def ids_of(bitmaps: Bitmaps, counts: dict[tuple[int, int], int]) -> set[tuple[int, int, int]]:
    out = {(ledger, entry, 0) for ledger, numbers in bitmaps.plain.items() for entry in numbers}
    for ledger, numbers in bitmaps.whole.items():
        for entry in numbers:
            out |= {(ledger, entry, n + 1) for n in range(counts[(ledger, entry)])}
    return out | {(*key, index) for key, numbers in bitmaps.inner.items() for index in numbers}


@st.composite
def buckets(draw: st.DrawFn) -> tuple[list[Key], dict[tuple[int, int], int]]:
    """Keys of plain messages and of transactions, some of whose messages have no time."""
    at = st.integers(-2_000, 2_000)
    counts: dict[tuple[int, int], int] = {}
    keys: list[Key] = []
    positions = draw(st.sets(st.tuples(st.integers(1, 4), st.integers(0, 40)), min_size=1))
    for ledger, entry in sorted(positions):
        if draw(st.booleans()):
            keys.append((draw(at), ledger, entry, 0))
            continue
        counts[(ledger, entry)] = count = draw(st.integers(1, 5))
        keys += [
            (draw(at), ledger, entry, n + 1)
            for n in range(count)
            if n == 0 or draw(st.integers(0, 3))
        ]
    return keys, counts


@given(
    made=buckets(),
    step=st.integers(1, 900),
    ids_max=st.integers(-1, 9),
    parts=st.lists(st.integers(0, 40), max_size=4),
)
@settings(max_examples=150)
def test_a_bucket_comes_back_as_it_was(
    made: tuple[list[Key], dict[tuple[int, int], int]], step: int, ids_max: int, parts: list[int]
) -> None:
    """Rows by key, the footer and the bitmaps of each segment agree (invariant 5)."""
    keys, counts = made
    keys.sort()
    cutting = SegmentLimits(step, ids_max, 2_000)
    parts = sorted(min(part, len(keys)) for part in parts)
    encoded = encode(keys, counts, cutting, parts)
    file = opened(encoded)
    ends = cut_segments([key[0] for key in keys], cutting)
    cut = [keys[start:end] for start, end in pairwise([0, *ends])]
    assert [keys_of(file, number) for number in range(len(file.segments))] == cut
    assert [(s.first, s.min_at, s.max_at, s.count) for s in file.segments] == [
        (segment[0], segment[0][0], segment[-1][0], len(segment)) for segment in cut
    ]
    bitmaps = file.bitmaps()
    for segment, bitmap in zip(cut, bitmaps, strict=True):
        ids = {key[1:] for key in segment}
        assert ids_of(bitmap, counts) == ids
        whole = {(ledger, entry) for ledger, numbers in bitmap.whole.items() for entry in numbers}
        inside = {key[1:3] for key in segment if key[3]}
        here = {at: sum(key[1:3] == at for key in segment) for at in inside}
        assert whole == {at for at in inside if here[at] == counts[at]}
        assert all(bitmap.plain.values()) and all(bitmap.inner.values()), "empty ones are dropped"
    head = file.head
    assert (head.partition, head.gen, head.first, head.last) == (5, 4, (1, 0, 0), (3, 9, 2))
    assert (head.count, head.cutoff_ms, head.version) == (len(keys), 77, 1)
    assert (encoded.min_at, encoded.max_at) == (keys[0][0], keys[-1][0])
    assert encoded.half_at == keys[len(keys) // 2][0]
    file.verify()


@given(made=buckets(), ids_max=st.integers(1, 9), data=st.data())
def test_joined_bitmaps_match_the_segments(
    made: tuple[list[Key], dict[tuple[int, int], int]], ids_max: int, data: st.DataObject
) -> None:
    keys, counts = made
    file = opened(encode(keys, counts, SegmentLimits(500, ids_max, 2_000)))
    start = data.draw(st.integers(0, len(file.segments)))
    entries, inner = file.joined(start)
    whole_entries = {(ledger, entry) for ledger, numbers in entries.items() for entry in numbers}
    single = {(*key, index) for key, numbers in inner.items() for index in numbers}
    ids = {key[1:] for n in range(start, len(file.segments)) for key in keys_of(file, n)}
    assert single | {i for i in ids if i[:2] in whole_entries} == ids
    assert all(at in {i[:2] for i in ids} for at in whole_entries)


def test_marker_with_unknown_count_is_never_whole() -> None:
    keys = [(9, 1, 0, 1), (9, 1, 0, 2), (9, 2, 7, 1)]
    (bitmap,) = opened(encode(keys, {(2, 7): 1})).bitmaps()
    assert list(bitmap.inner) == [(1, 0)]
    assert [*bitmap.whole[2]] == [7]


def test_nothing_makes_no_file() -> None:
    none = bucket.encode_bucket(PATH, NAME, lambda: [], (0, 0), CUTTING, lambda ledger: None)
    assert none is None


def test_ids_beyond_one_number_are_sorted_all_the_same() -> None:
    """Ledger, entry and index need more than 62 bits together here."""
    keys = [(5, 2**40, 10**9 - 1, 0), (5, 1, 3, 10**6), (6, 1, 3, 1), (4, 7, 0, 0)]
    file = opened(encode(keys, {(1, 3): 2}))
    assert keys_of(file, 0) == sorted(keys)
    (bitmap,) = file.bitmaps()
    assert [*bitmap.whole[1]] == [3]
    assert {ledger: [*numbers] for ledger, numbers in bitmap.plain.items()} == {
        2**40: [10**9 - 1],
        7: [0],
    }


def test_extremes_of_time_are_kept() -> None:
    keys = [(-(2**63), 1, 0, 0), (2**63 - 1, 1, 1, 0)]
    file = opened(encode(keys))
    assert [keys_of(file, n) for n in range(len(file.segments))] == [keys[:1], keys[1:]]


def test_a_stock_reader_reads_it() -> None:
    """The file is plain Parquet: a row group a segment, bitmaps in the first row only."""
    encoded = encode(
        [(at * 1000, 1, at, 0) for at in range(30)], None, SegmentLimits(10_000, -1, 100)
    )
    data = b"".join(encoded.buffers)
    stock = pq.ParquetFile(pa.BufferReader(data))
    assert stock.metadata.num_row_groups == 3
    table = stock.read()
    assert table.select(IDS.names).schema.types == IDS.types
    assert table.column("bitmaps").null_count == 29 and table.column("bitmaps")[0].is_valid
    statistics = stock.metadata.row_group(1).column(0).statistics
    assert (statistics.min, statistics.max) == (10_000, 19_000)
    assert stock.metadata.row_group(1).column(1).statistics is None
    assert base64.b64decode(stock.metadata.metadata[b"txlog.delayed"])


def test_opening_reads_the_footer_only_and_a_segment_its_row_group() -> None:
    encoded = encode(
        [(at * 1000, 1, at, 0) for at in range(3000)], None, SegmentLimits(300_000, -1, 100)
    )
    file = opened(encoded)
    raw = file._file
    assert isinstance(raw, Bytes)
    assert len(file.segments) == 10
    assert raw.reads == [
        (encoded.file.bytes - encoded.file.footer_bytes, encoded.file.footer_bytes)
    ]
    raw.reads.clear()
    assert file.segment(4).at[0] == 1_200_000
    assert raw.reads == [encoded.file.groups[4][1:3]]
    raw.reads.clear()
    file.joined()
    file.joined(3)
    assert raw.reads == [encoded.file.groups[0][1:3]]


USES: list[Callable[[BucketFile], object]] = [
    lambda file: file.verify(),
    lambda file: [file.joined(), [file.segment(n) for n in range(len(file.ref.groups))]],
]


@pytest.mark.parametrize("use", graded(range(len(USES)), 2))
@given(data=st.data())
@settings(max_examples=200)
def test_every_damaged_byte_is_detected(use: int, data: st.DataObject) -> None:
    """R5: a checksum in the frame covers every byte."""
    encoded = encode(
        [(at * 1000, 1, at, 0) for at in range(40)], None, SegmentLimits(10_000, -1, 100)
    )
    raw = bytearray(b"".join(encoded.buffers))
    kind = data.draw(st.sampled_from(["flip", "cut", "longer", "zeros"]))
    at = data.draw(st.integers(0, len(raw) - 1))
    original = bytes(raw)
    if kind == "flip":
        raw[at] ^= 1 << data.draw(st.integers(0, 7))
    elif kind == "cut":
        del raw[at:]
    elif kind == "longer":
        raw += b"\0"
    else:
        raw[at : at + 16] = bytes(len(raw[at : at + 16]))
    file = BucketFile(Bytes(bytes(raw)), encoded.file)
    if bytes(raw) == original:
        USES[use](file)
        return
    with pytest.raises(Corruption) as caught:
        USES[use](file)
    assert caught.value.fields["path"] == PATH


def rewritten(encoded: EncodedBucket, head: bytes) -> BucketFile:
    """The file with another footer, and the checksums right."""
    table = pq.read_table(pa.BufferReader(b"".join(encoded.buffers)))
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, store_schema=False) as writer:
        writer.add_key_value_metadata({"txlog.delayed": base64.b64encode(head).decode()})
        writer.write_table(table)
        end = sink.tell()
    data = bytes(sink.getvalue())
    ref = msgspec.structs.replace(
        encoded.file,
        bytes=len(data),
        crc=crc32c(data),
        footer_bytes=len(data) - end,
        footer_crc=crc32c(data[end:]),
        groups=[(table.num_rows, 0, end, crc32c(data[:end]))],
    )
    return BucketFile(Bytes(data), ref)


def test_a_version_of_the_future_is_named() -> None:
    encoded = encode([(1, 1, 1, 0)])
    head = msgspec.structs.replace(encoded.head, version=2)
    with pytest.raises(FormatMismatch, match="version 2"):
        _ = rewritten(encoded, msgspec.msgpack.encode(head)).head


@pytest.mark.parametrize("head", [b"", b"\xc1", msgspec.msgpack.encode([1, "x"]), b"\x90", b"\x01"])
def test_a_footer_that_says_nonsense_is_damage(head: bytes) -> None:
    with pytest.raises(Corruption):
        _ = rewritten(encode([(1, 1, 1, 0)]), head).head


def test_a_footer_of_other_segments_is_damage() -> None:
    encoded = encode([(1, 1, 1, 0), (2, 1, 2, 0)])
    (segment,) = encoded.head.segments
    other = msgspec.structs.replace(segment, count=1)
    head = msgspec.structs.replace(encoded.head, segments=[other])
    with pytest.raises(Corruption):
        _ = rewritten(encoded, msgspec.msgpack.encode(head)).head


def test_verify_compares_bitmaps_with_rows() -> None:
    """A wrong bitmap with a right checksum would hide a message: only `verify` can tell."""
    encoded = encode([(1, 1, 1, 0), (2, 1, 2, 0)])
    other = encode([(1, 1, 1, 0), (2, 1, 3, 0)])
    table = pq.read_table(pa.BufferReader(b"".join(encoded.buffers)))
    wrong = pq.read_table(pa.BufferReader(b"".join(other.buffers))).column("bitmaps")
    table = table.set_column(4, "bitmaps", wrong)
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, store_schema=False) as writer:
        raw = base64.b64encode(msgspec.msgpack.encode(encoded.head)).decode()
        writer.add_key_value_metadata({"txlog.delayed": raw})
        writer.write_table(table)
        end = sink.tell()
    data = bytes(sink.getvalue())
    ref = msgspec.structs.replace(
        encoded.file,
        bytes=len(data),
        crc=crc32c(data),
        footer_bytes=len(data) - end,
        footer_crc=crc32c(data[end:]),
        groups=[(2, 0, end, crc32c(data[:end]))],
    )
    with pytest.raises(Corruption, match="bitmaps"):
        BucketFile(Bytes(data), ref).verify()


def test_ten_bytes_an_id_at_most() -> None:
    """spec/delayed 5: about 7 B an id on disk; in order of time and at random over a day."""
    count = 20_000
    keys = [(i * 7919 % 86_400_000, 1 + i * 5 // count, i % (count // 5), 0) for i in range(count)]
    encoded = encode(keys, None, SegmentLimits(300_000, 5_000, 2_000))
    assert encoded.file.bytes / count < 12, encoded.file.bytes / count
    keys = [(i * 10, 1 + i * 5 // count, i % (count // 5), 0) for i in range(count)]
    encoded = encode(keys, None, SegmentLimits(300_000, 5_000, 2_000))
    assert encoded.file.bytes / count < 4, encoded.file.bytes / count
