"""Segment files: rows come back exactly, and every damaged byte is detected."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from txlog.engine.storage import checked, segment, segment_reader
from txlog.engine.storage.columns import INSTANT, MESSAGE, PROPERTY_MAP, conform
from txlog.engine.storage.segment import FileRef
from txlog.engine.storage.segment_reader import SegmentReader
from txlog.errors import Corruption

PATH = "topics/t/n/x/partition=0/ledger-7.1.parquet"
FORMS: list[segment.Form] = ["part", "sealed"]


class Bytes:
    """A file in memory that notes what was read."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.reads: list[tuple[int, int]] = []

    def pread(self, offset: int, length: int) -> bytes:
        self.reads.append((offset, length))
        return self.data[offset : offset + length]

    def size(self) -> int:
        return len(self.data)

    def pwrite(self, offset: int, data: object) -> None:
        raise AssertionError("a reader writes nothing")

    def datasync(self) -> None:
        raise AssertionError("a reader flushes nothing")

    def close(self) -> None:
        raise AssertionError("the file is the caller's")


def encode(table: pa.Table, form: segment.Form) -> tuple[bytes, FileRef]:
    buffers = (
        segment.encode_part(table)
        if form == "part"
        else segment.encode_sealed(table, has_keys=True)
    )
    return b"".join(buffers), segment.make_ref(PATH, 7, buffers, table, form=form)


def messages(count: int, width: int = 20) -> pa.Table:
    """A plain ledger: `count` rows with a key in every third and a value in all."""
    return conform(
        pa.table(
            {
                "kind": pa.array([0] * count, pa.int8()),
                "entry": pa.array(range(100, 100 + count), pa.int64()),
                "lsn": pa.array([5 + i // 10 for i in range(count)], pa.int64()),
                "publish_time": pa.array([1_700_000_000_000 + i for i in range(count)], INSTANT),
                "key": pa.array([b"k%d" % i if i % 3 == 0 else None for i in range(count)]),
                "value": pa.array([b"%0*d" % (width, i) for i in range(count)], pa.binary()),
            }
        )
    )


@cache
def small(form: segment.Form) -> tuple[bytes, FileRef]:
    return encode(messages(30), form)


USES: list[Callable[[SegmentReader], object]] = [
    lambda reader: reader.verify(),
    lambda reader: reader.rows(0, 1),
]
CELLS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int8(): st.integers(0, 6),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.binary(): st.binary(max_size=60),
    pa.string(): st.text(max_size=10),
    INSTANT: st.integers(-(2**45), 2**45),
    PROPERTY_MAP: st.lists(st.tuples(st.text(max_size=4), st.text(max_size=4)), max_size=3),
}


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """Any rows: every column with values, with nulls, or absent; in one chunk or several."""
    count = draw(st.integers(0, 25))
    columns = {}
    for field in MESSAGE:
        if field.name == "schema_version":
            continue  # sealed files have it together with records
        if field.name in ("kind", "entry"):
            cell = CELLS[field.type]
        elif draw(st.booleans()):
            cell = st.none() | CELLS[field.type]
        else:
            continue
        columns[field.name] = pa.array(
            draw(st.lists(cell, min_size=count, max_size=count)), type=field.type
        )
    table = pa.table(columns)
    cut = draw(st.integers(0, count))
    return pa.concat_tables([table.slice(0, cut), table.slice(cut)])


@pytest.mark.parametrize("form", FORMS)
@given(table=tables(), data=st.data())
@settings(deadline=None)
def test_rows_come_back_as_they_were_written(
    form: segment.Form, table: pa.Table, data: st.DataObject
) -> None:
    """Law 1, R17: nulls, empty values, map order and instants survive both forms."""
    stored, ref = encode(table, form)
    reader = SegmentReader(Bytes(stored), ref)
    start = data.draw(st.integers(0, table.num_rows))
    stop = data.draw(st.integers(start, table.num_rows))
    rows = reader.rows(start, stop)
    rows.validate(full=True)
    assert rows.schema.equals(MESSAGE, check_metadata=True)
    assert rows.to_pylist() == conform(table).slice(start, stop - start).to_pylist()
    reader.verify()


@pytest.mark.parametrize("form", FORMS)
def test_the_reference_describes_the_file(form: segment.Form) -> None:
    """R5: every byte is under a checksum; the manifest knows rows and bounds."""
    stored, ref = small(form)
    assert (ref.path, ref.ledger, ref.form, ref.clean) == (PATH, 7, form, False)
    assert (ref.rows, ref.first, ref.last, ref.lsn_first, ref.lsn_last) == (30, 100, 129, 5, 7)
    assert ref.bytes == len(stored)
    position = 0
    for _, offset, length, _ in ref.groups:
        assert offset == position
        position += length
    assert position + ref.footer_bytes == ref.bytes
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(ref), type=FileRef) == ref


def test_rows_without_lsn_have_no_lsn_bounds() -> None:
    table = messages(3).drop_columns(["lsn"])
    _, ref = encode(table, "sealed")
    assert (ref.lsn_first, ref.lsn_last) == (0, 0)


@pytest.mark.parametrize("form", FORMS)
def test_an_empty_file_is_a_file(form: segment.Form) -> None:
    stored, ref = encode(messages(0), form)
    assert (ref.rows, ref.first, ref.last) == (0, 0, -1)
    reader = SegmentReader(Bytes(stored), ref)
    reader.verify()
    assert reader.rows(0, 0).schema.equals(MESSAGE)


@pytest.mark.parametrize("form", FORMS)
@given(data=st.data())
@settings(deadline=None, max_examples=100)
def test_one_flipped_byte_is_corruption(form: segment.Form, data: st.DataObject) -> None:
    """R5: Arrow and Parquet read damage silently, the store never. Kills: a missing check."""
    stored, ref = small(form)
    at = data.draw(st.integers(0, len(stored) - 1))
    flip = data.draw(st.integers(1, 255))
    damaged = bytearray(stored)
    damaged[at] ^= flip
    for use in USES:
        with pytest.raises(Corruption) as caught:
            use(SegmentReader(Bytes(bytes(damaged)), ref))
        fields = caught.value.fields
        assert fields["path"] == PATH
        offset, length = fields["offset"], fields["length"]
        assert isinstance(offset, int)
        assert isinstance(length, int)
        assert offset <= at < offset + length
        assert fields["expected"] != fields["found"]
        assert PATH in caught.value.message


def test_every_byte_of_a_large_part_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads by batch also detect a change between the whole file's checksum and a later read."""
    monkeypatch.setattr(segment_reader, "PART_BYTES", 0)
    monkeypatch.setattr(checked, "BLOCK_BYTES", 256)
    stored, ref = small("part")
    whole = SegmentReader(Bytes(stored), ref).rows(0, ref.rows)
    for at in range(len(stored)):
        damaged = bytearray(stored)
        damaged[at] ^= 1 << (at % 8)
        with pytest.raises(Corruption):
            SegmentReader(Bytes(bytes(damaged)), ref).rows(0, 1)
        file = Bytes(stored)
        reader = SegmentReader(file, ref)
        reader.rows(0, 0)
        file.data = bytes(damaged)
        try:
            assert reader.rows(0, ref.rows).equals(whole)  # of a byte that is not read again
        except Corruption:
            continue


@pytest.mark.parametrize("form", FORMS)
def test_every_byte_of_a_file_is_checked(form: segment.Form) -> None:
    """The same, for each byte in turn: magic, padding, page headers, indexes, footer."""
    stored, ref = small(form)
    for at in range(len(stored)):
        damaged = bytearray(stored)
        damaged[at] ^= 1 << (at % 8)
        with pytest.raises(Corruption):
            SegmentReader(Bytes(bytes(damaged)), ref).rows(0, 1)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cut", [-1, -9, -2000, 1, 4096])
def test_a_wrong_length_is_corruption(form: segment.Form, cut: int) -> None:
    stored, ref = small(form)
    changed = stored[:cut] if cut < 0 else stored + bytes(cut)
    for use in USES:
        with pytest.raises(Corruption, match="bytes") as caught:
            use(SegmentReader(Bytes(changed), ref))
        assert caught.value.fields["found"] == f"{len(changed)} bytes"


def test_a_file_cut_while_open_is_corruption() -> None:
    """A short read is damage, never an end of file (R31)."""
    stored, ref = small("sealed")

    class Shrinking(Bytes):
        def size(self) -> int:
            return ref.bytes

    for use in USES:
        with pytest.raises(Corruption):
            use(SegmentReader(Shrinking(stored[:100]), ref))


@pytest.mark.parametrize(
    "change",
    [
        {"rows": 29, "groups": "rows"},
        {"crc": 1},
        {"footer_bytes": 10},
        {"groups": "hole"},
    ],
)
def test_a_reference_that_does_not_fit_is_corruption(change: dict[str, Any]) -> None:
    """A manifest that names other groups than the footer has. Kills: trusting either alone."""
    stored, ref = small("sealed")
    rows, offset, length, crc = ref.groups[0]
    if change.get("groups") == "rows":
        change = {**change, "groups": [(rows - 1, offset, length, crc)]}
    elif change.get("groups") == "hole":
        change = {"groups": []}
    with pytest.raises(Corruption):
        SegmentReader(Bytes(stored), msgspec.structs.replace(ref, **change)).verify()


@pytest.fixture(scope="module")
def grouped() -> tuple[pa.Table, bytes, FileRef]:
    table = messages(120_000, width=30)
    return table, *encode(table, "sealed")


def test_range_reads_only_its_groups(grouped: tuple[pa.Table, bytes, FileRef]) -> None:
    """A partial read checks what it reads, and reads no more. Kills: reading the whole file."""
    table, stored, ref = grouped
    assert [group[0] for group in ref.groups] == [50_000, 50_000, 20_000]
    file = Bytes(stored)
    reader = SegmentReader(file, ref)
    tail = (ref.bytes - ref.footer_bytes, ref.footer_bytes)
    assert reader.rows(60_000, 60_010).equals(table.slice(60_000, 10))
    assert file.reads == [tail, ref.groups[1][1:3]]
    assert reader.rows(49_999, 50_001).equals(table.slice(49_999, 2))
    assert file.reads == [tail, ref.groups[1][1:3], ref.groups[0][1:3]]
    reader.rows(0, 100_000)
    assert len(file.reads) == 3
    assert reader.rows(119_999, 120_000).equals(table.slice(119_999))
    assert file.reads[3:] == [ref.groups[2][1:3]]
    assert reader.rows(0, 120_000).equals(table)


@pytest.mark.parametrize("form", FORMS)
@given(table=tables(), data=st.data())
@settings(deadline=None)
def test_spans_come_in_order_with_the_requested_columns(
    form: segment.Form, table: pa.Table, data: st.DataObject
) -> None:
    """Any spans, rising or not, empty, touching or again; any columns, in several calls."""
    stored, ref = encode(table, form)
    reader, whole = SegmentReader(Bytes(stored), ref), conform(table)
    for _ in range(data.draw(st.integers(1, 3))):
        row = st.integers(0, table.num_rows)
        pairs = data.draw(st.lists(st.tuples(row, row), max_size=8))
        spans = [(min(pair), max(pair)) for pair in pairs]
        names = data.draw(st.lists(st.sampled_from(MESSAGE.names), min_size=1, unique=True))
        picked = reader.pick(spans, names)
        picked.validate(full=True)
        expected = [row for a, b in spans for row in whole.slice(a, b - a).to_pylist()]
        assert picked.column_names == names
        assert picked.to_pylist() == [{name: row[name] for name in names} for row in expected]


def test_few_rows_decode_each_group_once_and_only_their_columns(
    grouped: tuple[pa.Table, bytes, FileRef],
) -> None:
    """A pass over single rows far apart. Kills: a decoding per span, and of unneeded columns."""
    table, stored, ref = grouped
    file = Bytes(stored)
    reader = SegmentReader(file, ref)
    places = list(range(7, 120_000, 1_000))
    picked = reader.pick([(at, at + 1) for at in places], ["value", "key"])
    assert picked.equals(table.select(["value", "key"]).take(places))
    assert (reader.groups_decoded, len(file.reads)) == (3, 4)  # the tail, once
    assert reader.rows(119_000, 119_001, ["key"]).column_names == ["key"]
    assert reader.groups_decoded == 3  # the decoded column is cached
    assert reader.rows(119_000, 119_001).equals(table.slice(119_000, 1))
    assert reader.groups_decoded == 4  # the other columns of one group


def test_long_spans_are_not_copied(grouped: tuple[pa.Table, bytes, FileRef]) -> None:
    _, stored, ref = grouped
    reader = SegmentReader(Bytes(stored), ref)
    group = reader.rows(0, 50_000, ["value"]).column("value").chunk(0)
    spans = [(100, 300), (400, 600)]
    for chunk in reader.pick(spans, ["value"]).column("value").chunks:
        assert chunk.buffers()[2].address == group.buffers()[2].address


def test_damage_in_one_group_leaves_the_others_readable(
    grouped: tuple[pa.Table, bytes, FileRef],
) -> None:
    """spec/reliability 2.3: every good entry, then an error at the bad one."""
    table, stored, ref = grouped
    _, offset, length, _ = ref.groups[1]
    damaged = bytearray(stored)
    damaged[offset + length // 2] ^= 4
    reader = SegmentReader(Bytes(bytes(damaged)), ref)
    assert reader.rows(0, 50_000).equals(table.slice(0, 50_000))
    assert reader.rows(100_000, 120_000).equals(table.slice(100_000))
    for use in (lambda: reader.rows(49_990, 50_001), reader.verify):
        with pytest.raises(Corruption) as caught:
            use()
        assert (caught.value.fields["offset"], caught.value.fields["length"]) == (offset, length)


def test_large_messages_make_smaller_groups() -> None:
    """A group is decoded as a whole: its bytes are bounded, down to one message."""
    values = [bytes([i]) * (3 << 20) for i in range(7)] + [b"z" * (9 << 20)]
    table = messages(len(values))
    at = MESSAGE.get_field_index("value")
    table = table.set_column(at, MESSAGE.field(at), pa.array(values, pa.binary()))
    stored, ref = encode(table, "sealed")
    assert sum(group[0] for group in ref.groups) == 8
    assert max(group[0] for group in ref.groups) <= 2
    assert SegmentReader(Bytes(stored), ref).rows(0, 8).equals(table)


def test_rows_outside_of_the_file_are_a_bug_of_the_caller() -> None:
    stored, ref = small("part")
    reader = SegmentReader(Bytes(stored), ref)
    for start, stop in ((-1, 2), (0, 31), (5, 4)):
        with pytest.raises(IndexError):
            reader.rows(start, stop)


def test_part_leaves_out_empty_columns() -> None:
    stored, _ = small("part")
    table = pa.ipc.open_file(pa.py_buffer(stored)).read_all()
    assert table.column_names == ["kind", "entry", "lsn", "publish_time", "key", "value"]


def test_a_sealed_file_is_written_as_the_readers_want_it() -> None:
    """spec/analytics 8: encodings, statistics, page checks, one schema for every scan."""
    buffers = segment.encode_sealed(messages(30), has_keys=True, identity={"txlog.store": "s1"})
    footer = pq.read_metadata(pa.BufferReader(b"".join(buffers)))
    assert footer.metadata == {b"txlog.store": b"s1"}
    assert footer.schema.to_arrow_schema().names == segment.SEALED.names
    group = footer.row_group(0)
    columns = {group.column(i).path_in_schema: group.column(i) for i in range(group.num_columns)}
    value = columns["value"]
    assert (value.compression, value.statistics) == ("ZSTD", None)
    assert "RLE_DICTIONARY" not in value.encodings
    for name in ("entry", "lsn", "publish_time", "txn_least"):
        assert "DELTA_BINARY_PACKED" in columns[name].encodings
        assert columns[name].statistics is not None
        assert columns[name].has_offset_index
    for name in ("kind", "key"):
        assert "RLE_DICTIONARY" in columns[name].encodings
    assert (columns["entry"].statistics.min, columns["entry"].statistics.max) == (100, 129)


def test_a_file_of_another_writer_is_read() -> None:
    """A bulk loader writes its own Parquet: fewer columns, another timestamp unit, no order."""
    table = pa.table(
        {
            "value": pa.array([b"a", b"b"], pa.binary()),
            "event_time": pa.array([1_000_000, None], pa.timestamp("us", "UTC")),
            "entry": pa.array([0, 1], pa.int64()),
            "kind": pa.array([0, 0], pa.int8()),
        }
    )
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=1)
    data = sink.getvalue().to_pybytes()
    ref = segment.make_ref(PATH, 7, [data], table, form="sealed", clean=True)
    reader = SegmentReader(Bytes(data), ref)
    reader.verify()
    assert (len(ref.groups), ref.clean, ref.lsn_last) == (2, True, 0)
    assert reader.rows(0, 2).equals(conform(table))


def test_buffers_may_come_in_pieces() -> None:
    stored, ref = small("sealed")
    second_ref = segment.make_ref(
        PATH, 7, [stored[:11], memoryview(stored)[11:]], messages(30), form="sealed"
    )
    assert second_ref == ref
