"""The rows of a frame: written rows come back, and a frame holds nothing else."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from txlog.engine.model import schema
from txlog.errors import InvalidArgument

COLUMNS: dict[str, Any] = {
    "value": pa.binary(),
    "key": pa.binary(),
    "properties": schema.PROPERTY_MAP,
    "event_time": schema.INSTANT,
    "deliver_at": schema.INSTANT,
    "sequence_id": pa.int64(),
}
BITS = {
    "key": schema.KEY,
    "properties": schema.PROPERTIES,
    "event_time": schema.EVENT_TIME,
    "deliver_at": schema.DELIVER_AT,
    "sequence_id": schema.SEQUENCE,
}
INSTANTS = st.integers(min_value=-(2**45), max_value=2**45)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "value": st.binary(max_size=40),
    "key": st.binary(max_size=10),
    "properties": st.lists(st.tuples(st.text(max_size=5), st.text(max_size=5)), max_size=3),
    "event_time": INSTANTS,
    "deliver_at": INSTANTS,
    "sequence_id": st.integers(min_value=0, max_value=2**63 - 1),
}


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    """A batch of user columns: any subset, any order, nulls and all-null columns included."""
    count = draw(st.integers(min_value=0, max_value=12))
    names = draw(st.lists(st.sampled_from(list(BITS)), unique=True))
    names = draw(st.permutations(["value", *names]))
    arrays = []
    for name in names:
        cell = st.none() | VALUES[name]
        cells = draw(st.lists(cell, min_size=count, max_size=count))
        arrays.append(pa.array(cells, type=COLUMNS[name]))
    batch = pa.RecordBatch.from_arrays(arrays, names=names)
    start = draw(st.integers(min_value=0, max_value=count))
    return batch.slice(start)


@given(batches())
def test_rows_come_back_as_they_were_written(batch: pa.RecordBatch) -> None:
    """Law 1: the rows of a frame are the same on replay. Kills: reading in the writer's order."""
    mask, data = schema.encode_rows(batch)
    back = schema.decode_rows(mask, data.to_pybytes())
    back.validate(full=True)
    assert back.num_rows == batch.num_rows
    for name in COLUMNS:
        if back.schema.get_field_index(name) >= 0:
            assert back.column(name).to_pylist() == batch.column(name).to_pylist()
        elif batch.schema.get_field_index(name) >= 0:
            assert batch.column(name).null_count == batch.num_rows


@given(batches())
def test_columns_without_values_are_left_out(batch: pa.RecordBatch) -> None:
    """A column that is all null costs a frame nothing. Kills: keeping it, or losing value."""
    mask, data = schema.encode_rows(batch)
    wanted = 0
    for name, bit in BITS.items():
        at = batch.schema.get_field_index(name)
        if at >= 0 and batch.column(at).null_count < batch.num_rows:
            wanted |= bit
    assert mask == wanted
    assert schema.decode_rows(mask, data).schema.equals(schema.frame_schema(mask))


def test_a_slice_carries_only_its_own_rows() -> None:
    """A small slice of a large batch is a small frame. Kills: serializing the parent's buffers."""
    large = pa.record_batch([pa.array([b"x" * 1000] * 1000, pa.binary())], names=["value"])
    _, data = schema.encode_rows(large.slice(500, 1))
    assert data.size < 2000


def test_a_table_in_chunks_becomes_one_batch() -> None:
    chunk = pa.table({"value": pa.array([b"a", None, b""], pa.binary())})
    mask, data = schema.encode_rows(pa.concat_tables([chunk, chunk]))
    assert mask == 0
    assert schema.decode_rows(mask, data).column(0).to_pylist() == [b"a", None, b""] * 2
    mask, data = schema.encode_rows(chunk.slice(0, 0))
    assert schema.decode_rows(mask, data).num_rows == 0


def test_columns_of_a_near_type_are_cast() -> None:
    batch = pa.record_batch(
        [pa.array(["é"], pa.large_string()), pa.array([7], pa.int32())],
        names=["value", "sequence_id"],
    )
    mask, data = schema.encode_rows(batch)
    assert mask == schema.SEQUENCE
    assert schema.decode_rows(mask, data).to_pylist() == [{"value": "é".encode(), "sequence_id": 7}]


@pytest.mark.parametrize(
    "rows",
    [
        pa.table({"key": pa.array([b"k"])}),
        pa.table({"value": pa.array([b"v"]), "colour": pa.array([1])}),
        pa.Table.from_arrays([pa.array([b"v"]), pa.array([b"w"])], names=["value", "value"]),
        pa.table({"value": pa.array([b"v"]), "sequence_id": pa.array([b"x"])}),
        pa.table({}),
        pa.array([b"v"]),
    ],
)
def test_foreign_rows_are_refused(rows: pa.Table) -> None:
    with pytest.raises(InvalidArgument):
        schema.encode_rows(rows)


def test_the_awaited_bit_is_no_column() -> None:
    """Bits 0 to 6 are known; bit 7 is not of the rows. Kills: masking the high bits."""
    for mask in (2 * schema.ONE_ROW, 255):
        with pytest.raises(IndexError):
            schema.frame_schema(mask)


def test_conform_fills_orders_and_drops() -> None:
    """One scan, one schema: an absent column is null, an unknown one is not seen."""
    table = pa.table(
        {
            "later": pa.array([1, 2]),
            "entry": pa.array([4, 5], pa.int32()),
            "kind": pa.array([0, 0], pa.int8()),
        }
    ).replace_schema_metadata({"a": "b"})
    out = schema.conform(table)
    assert out.schema.equals(schema.MESSAGE, check_metadata=True)
    assert out.column("entry").to_pylist() == [4, 5]
    assert out.column("value").null_count == 2
    conformed = schema.conform(out.replace_schema_metadata({"a": "b"}))
    assert conformed.schema.equals(schema.MESSAGE, check_metadata=True)
    assert schema.conform(out) is out
