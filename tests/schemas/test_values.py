"""Values of typed topics: which values are records, and that bytes and columns agree."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from txlog.base.schemas import values
from txlog.base.schemas.schema import Schema
from txlog.errors import InvalidMessage

WIDE = {
    "type": "record",
    "name": "Flight",
    "fields": [
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "left", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "carrier", "type": "string"},
        {"name": "delay", "type": ["null", "float"], "default": None},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {"name": "stops", "type": {"type": "array", "items": ["null", "string"]}, "default": []},
        {"name": "seats", "type": {"type": "map", "values": "int"}},
        {
            "name": "plane",
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "Plane",
                    "fields": [{"name": "tail", "type": "string", "default": "?"}],
                },
            ],
        },
        {"name": "raw", "type": "bytes", "default": "\u00ff"},
    ],
}
RECORD: dict[str, Any] = {
    "day": dt.date(2013, 1, 1),
    "left": dt.datetime(2013, 1, 1, 5, 15, tzinfo=dt.UTC),
    "carrier": "UA \U0001f6eb",
    "delay": 2.5,
    "price": Decimal("-129.90"),
    "stops": ["EWR", None],
    "seats": {"economy": 120, "first": -1},
    "plane": {"tail": "N14228"},
    "raw": b"\x00\xfe",
}


@pytest.fixture(params=["json", "avro"])
def wide(request: pytest.FixtureRequest) -> Schema:
    return Schema.parse(request.param, json.dumps(WIDE))


def test_a_record_is_the_same_as_bytes_as_a_dict_and_as_columns(wide: Schema) -> None:
    value = values.encode_one(wide, RECORD)
    assert values.decode_one(wide, value) == RECORD
    column = pa.array([value, None, value], pa.binary())
    records = values.decode(wide, column)
    assert records.type == wide.arrow
    assert records.to_pylist(maps_as_pydicts="strict") == [RECORD, None, RECORD]
    assert values.encode(wide, records).equals(column)
    assert values.invalid(wide, column) == []


def test_missing_field_has_its_default_or_is_null(wide: Schema) -> None:
    given_values = {name: RECORD[name] for name in ("day", "left", "carrier", "price", "seats")}
    value = values.encode_one(wide, {**given_values, "plane": {}})
    record = values.decode_one(wide, value)
    assert record == RECORD | {"delay": None, "stops": [], "plane": {"tail": "?"}, "raw": b"\xff"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"day": "x"}, "day is a string, it must be a date, as days since 1970 in the years"),
        ({"left": 1.0}, "left is a number with a point, it must be a timestamp, as milliseconds"),
        ({"left": 1 << 62}, "left is out of bounds, it must be a timestamp, as milliseconds"),
        ({"carrier": None}, "carrier is null, it must be a string"),
        ({"carrier": ...}, "carrier is missing and has no default"),
        ({"delay": 1e39}, "delay is out of bounds, it must be a number of 32 bits"),
        ({"price": 1}, "price is an integer, it must be text with a decimal number with up to 7"),
        ({"price": "1.234"}, "price has another form, it must be text with a decimal number"),
        ({"stops": [1]}, "stops[0] is an integer, it must be a string"),
        ({"seats": {"a": 1 << 31}}, "seats{} is out of bounds, it must be an integer of 32 bits"),
        ({"plane": {"tail": 1}}, "plane.tail is an integer, it must be a string"),
        ({"raw": "\u00ff"}, "raw has another form, it must be bytes in base64"),
    ],
)
def test_invalid_json_record_is_refused_with_its_field(change: dict[str, Any], reason: str) -> None:
    schema = Schema.parse("json", json.dumps(WIDE))
    good = json.loads(values.encode_one(schema, RECORD)) | {"unknown": [{}]}
    bad = {name: value for name, value in (good | change).items() if value is not ...}
    column = pa.array([json.dumps(value).encode() for value in (good, bad, good)], pa.binary())
    [(row, faults)] = values.invalid(schema, column)
    assert row == 1
    assert faults.startswith(reason)
    with pytest.raises(InvalidMessage) as raised:
        values.decode_one(schema, column[1].as_py())
    assert str(raised.value) == faults


@pytest.mark.parametrize("bytes_max", [1 << 20, 40])
def test_rows_are_counted_over_blocks_and_chunks(
    bytes_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(values, "_ROWS_MAX", 3)
    monkeypatch.setattr(values, "_BYTES_MAX", bytes_max)
    text = '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}'
    schema = Schema.parse("json", text)
    data = [None if n % 5 == 4 else b'{"a": %d}' % n for n in range(11)]
    column = pa.array(data, pa.binary())
    expected = [None if n % 5 == 4 else {"a": n} for n in range(11)]
    assert values.decode(schema, column).to_pylist() == expected
    encoded = values.encode(schema, values.decode(schema, column))
    assert values.decode(schema, encoded).to_pylist() == expected
    bad = [b"x" if n in (3, 10) else item for n, item in enumerate(data)]
    chunked = pa.chunked_array([bad[:4], bad[4:4], bad[4:]], pa.binary())
    assert [row for row, _ in values.invalid(schema, chunked)] == [3, 10]


@pytest.mark.parametrize("kind", ["json", "avro"])
def test_invalid_record_in_unchecked_rows_is_reported_with_its_row(kind: str) -> None:
    """A damaged value raises an error of txlog in every reader."""
    schema = Schema.parse(kind, json.dumps(WIDE))
    good = values.encode_one(schema, RECORD)
    with pytest.raises(InvalidMessage, match=r"^row 2: "):
        values.decode(schema, pa.array([good, None, b"\xff", good], pa.binary()))


@pytest.mark.parametrize(
    ("type", "written", "value", "reason"),
    [
        ("int", "long", 1 << 31, "a is 2147483648, it must be an integer of 32 bits"),
        (
            {"type": "int", "logicalType": "date"},
            "int",
            1 << 30,
            "a is 1073741824, it must be a date, as days",
        ),
        ({"type": "int", "logicalType": "time-millis"}, "int", -1, "a is -1, it must be a time"),
        (
            {"type": "long", "logicalType": "timestamp-micros"},
            "long",
            1 << 62,
            "a is 4611686018427",
        ),
        (
            {"type": "string", "logicalType": "uuid"},
            "string",
            "x",
            "a is not a UUID, it must be a UUID",
        ),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 2},
            "bytes",
            b"\x64",
            "a has too many digits, it must be a decimal number with up to 2 digits",
        ),
    ],
)
def test_avro_value_out_of_bounds_is_reported(
    type: Any, written: str, value: Any, reason: str
) -> None:
    """Avro's binary form can hold any integer, bytes or text, even if the type allows fewer."""
    schema, twin = (
        Schema.parse(
            "avro",
            json.dumps(
                {"type": "record", "name": "R", "fields": [{"name": "a", "type": schema_type}]}
            ),
        )
        for schema_type in (type, written)
    )
    data = values.encode_one(twin, {"a": value})
    [(row, faults)] = values.invalid(schema, pa.array([None, data], pa.binary()))
    assert (row, faults.startswith(reason)) == (1, True), faults
    with pytest.raises(InvalidMessage) as raised:
        values.decode_one(schema, data)
    assert str(raised.value) == faults
    with pytest.raises(InvalidMessage, match=r"^row 1: a "):
        values.decode(schema, pa.array([None, data], pa.binary()))


@pytest.mark.parametrize("kind", ["json", "avro"])
def test_text_that_is_not_utf8_is_not_written(kind: str) -> None:
    """Arrow does not check it. Guards against a stored value that no reader can decode."""
    text = '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "string"}]}'
    schema = Schema.parse(kind, text)
    data = pa.py_buffer(b"a\xff")
    offsets = pa.py_buffer(pa.array([0, 1, 2], pa.int32()).buffers()[1])
    bad = pa.StringArray.from_buffers(2, offsets, data)
    with pytest.raises(InvalidMessage, match="UTF"):
        values.encode(schema, pa.StructArray.from_arrays([bad], ["a"]))
