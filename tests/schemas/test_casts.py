"""Columns of files and queries as values: cast if every value fits, otherwise refused with
the row.
"""

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


def of(type: Any, kind: str = "json", **more: Any) -> Schema:
    fields = [{"name": "a", "type": type} | more]
    return Schema.parse(kind, json.dumps({"type": "record", "name": "R", "fields": fields}))


def structs(column: pa.Array, name: str = "a") -> pa.StructArray:
    return pa.StructArray.from_arrays([column], [name])


def logical(type: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": type, "logicalType": name} | more


DATE = logical("int", "date")
MILLIS = logical("long", "timestamp-millis")
MICROS = logical("long", "timestamp-micros")
LOCAL = logical("long", "local-timestamp-micros")
PRICE = logical("bytes", "decimal", precision=6, scale=2)
ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
FIXED = {"type": "fixed", "name": "F", "size": 2}
UTC = dt.datetime(2013, 1, 1, 5, 15, tzinfo=dt.UTC)
NAIVE = UTC.replace(tzinfo=None)

FITTING: list[tuple[Any, pa.Array, Any]] = [
    ("int", pa.array([7], pa.int64()), 7),
    ("int", pa.array([7], pa.uint8()), 7),
    ("int", pa.array([7.0]), 7),
    ("long", pa.array([7], pa.uint64()), 7),
    ("long", pa.array(["7"]), 7),
    ("double", pa.array([7], pa.int32()), 7.0),
    ("float", pa.array([0.1]), 0.10000000149011612),
    ("float", pa.array([1], pa.int8()), 1.0),
    ("double", pa.array(["1.5"], pa.large_string()), 1.5),
    ("double", pa.array([Decimal("1.5")]), 1.5),
    ("boolean", pa.array(["true"]), True),
    ("string", pa.array(["x"]).dictionary_encode(), "x"),
    ("string", pa.array(["x"], pa.string_view()), "x"),
    ("bytes", pa.array([b"x"], pa.large_binary()), b"x"),
    (FIXED, pa.array([b"xy"]), b"xy"),
    (ENUM, pa.array(["B"]), "B"),
    (DATE, pa.array([UTC.date()], pa.date64()), UTC.date()),
    (DATE, pa.array([15706]), dt.date(2013, 1, 1)),
    (MILLIS, pa.array([UTC], pa.timestamp("ns", "Europe/Paris")), UTC),
    (MICROS, pa.array([NAIVE], pa.timestamp("s")), UTC),
    (MICROS, pa.array([UTC.date()]), UTC.replace(hour=0, minute=0)),
    (LOCAL, pa.array([NAIVE], pa.timestamp("ms")), NAIVE),
    (MILLIS, pa.array([1357017300000]), UTC),
    *[
        (MICROS, pa.array([text]), UTC)
        for text in ("2013-01-01T05:15:00", "2013-01-01 06:15+01:00", "2013-01-01T05:15:00.000000Z")
    ],
    (MILLIS, pa.array(["2013-01-01"], pa.string_view()), UTC.replace(hour=0, minute=0)),
    (DATE, pa.array(["2013-01-01"]), UTC.date()),
    (logical("int", "time-millis"), pa.array(["05:15:00.250"]), dt.time(5, 15, 0, 250_000)),
    (logical("long", "time-micros"), pa.array(["05:15"]), dt.time(5, 15)),
    (PRICE, pa.array([12]), Decimal("12.00")),
    (PRICE, pa.array(["-12.5"]), Decimal("-12.50")),
    (PRICE, pa.array([Decimal("1.500")]), Decimal("1.50")),
    ({"type": "array", "items": "int"}, pa.array([[1, 2]], pa.large_list(pa.int8())), [1, 2]),
    ({"type": "array", "items": "int"}, pa.array([[1, 2]], pa.list_(pa.int8(), 2)), [1, 2]),
    ({"type": "map", "values": "double"}, pa.array([[("x", 1)]],
        pa.map_(pa.string(), pa.int32())), {"x": 1.0}),
    (["null", "int"], pa.nulls(1), None),
]  # fmt: skip


@pytest.mark.parametrize("kind", ["json", "avro"])
@pytest.mark.parametrize(("type", "column", "wanted"), FITTING, ids=range(len(FITTING)))
def test_a_value_that_fits_is_cast(kind: str, type: Any, column: pa.Array, wanted: Any) -> None:
    schema = of(["null", type] if isinstance(type, str | dict) else type, kind)
    around = pa.concat_arrays([pa.nulls(2, column.type), column, pa.nulls(1, column.type)]).slice(1)
    encoded = values.encode(schema, structs(around))
    assert values.invalid(schema, encoded) == []
    rows = values.decode(schema, encoded).to_pylist(maps_as_pydicts="strict")
    assert rows == [{"a": None}, {"a": wanted}, {"a": None}]


UNFIT: list[tuple[Any, pa.Array, str]] = [
    ("int", pa.array([1, 1 << 31]), "row 1: a is 2147483648, it must be an integer of 32 bits"),
    ("long", pa.array([1, 1 << 63], pa.uint64()), "row 1: a is 9223372036854775808, it must be"),
    ("int", pa.array([1.0, 13.5]), "row 1: a is 13.5, it must be an integer of 32 bits"),
    ("int", pa.array([1, None]), "row 1: a is null, it must be an integer of 32 bits"),
    ("int", pa.array(["1", "x"]), "row 1: a is 'x', it must be an integer of 32 bits"),
    ("double", pa.array([1, (1 << 53) + 1]), "row 1: a is 9007199254740993, it must be a number"),
    ("double", pa.array([1.0, float("nan")]), "row 1: a is nan, it must be a number"),
    ("float", pa.array([1.0, 1e39]), "row 1: a is 1e+39, it must be a number of 32 bits"),
    ("string", pa.array([1]), "a is int64, it must be a string"),
    ("bytes", pa.array(["x"]), "a is string, it must be bytes"),
    ("boolean", pa.array([1]), "a is int64, it must be true or false"),
    (FIXED, pa.array([b"xy", b"x"]), "row 1: a is b'x', it must be 2 bytes"),
    (ENUM, pa.array(["A", "C"]), "row 1: a is 'C', it must be one of A, B"),
    (logical("string", "uuid"), pa.array(["x"]), "row 0: a is 'x', it must be a UUID such as"),
    (PRICE, pa.array(["1", "1.234"]), "row 1: a is '1.234', it must be a decimal number"),
    (PRICE, pa.array([1, 10000]), "row 1: a is 10000, it must be a decimal number with up to 4"),
    (PRICE, pa.array([0.5]), "a is double, it must be a decimal number"),
    (LOCAL, pa.array([UTC]), "a is timestamp[us, tz=UTC], it must be a timestamp without"),
    (MILLIS, pa.array([0, 1], pa.timestamp("us")), "row 1: a is datetime.datetime(1970, 1, 1, 0"),
    (MILLIS, pa.array([0, 1 << 60], pa.timestamp("ms")), "row 1: a is "),
    (DATE, pa.array([0, 1 << 30]), "row 1: a is "),
    ({"type": "array", "items": "int"}, pa.array([[1], [1, 1 << 40]]), "row 1: a[] is 1099511"),
    ({"type": "array", "items": "int"}, pa.array([[1], [], [2, None]]), "row 2: a[] is null, it"),
    ({"type": "map", "values": "int"}, pa.array([[("x", 1)], [("y", None)]],
        pa.map_(pa.string(), pa.int32())), "row 1: a{} is null, it must be an integer"),
    ({"type": "record", "name": "S", "fields": [{"name": "b", "type": "int"}]},
        pa.array([{"b": 1}, {"b": None}]), "row 1: a.b is null, it must be an integer"),
]  # fmt: skip


@pytest.mark.parametrize(("type", "column", "reason"), UNFIT, ids=range(len(UNFIT)))
def test_value_that_does_not_fit_is_refused_with_row_and_field(
    type: Any, column: pa.Array, reason: str
) -> None:
    with pytest.raises(InvalidMessage) as raised:
        values.encode(of(type), structs(column))
    assert str(raised.value).startswith(reason), str(raised.value)


def test_columns_go_by_name() -> None:
    text = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "a", "type": "int"},
            {"name": "b", "type": ["null", "string"]},
            {"name": "c", "type": "int", "default": 7},
        ],
    }
    schema = Schema.parse("json", json.dumps(text))
    table = pa.StructArray.from_arrays([pa.array(["x"]), pa.array([1])], ["b", "a"])
    assert values.encode(schema, table).to_pylist() == [b'{"a":1,"b":"x","c":7}']
    assert values.encode(schema, structs(pa.array([1]))).to_pylist() == [b'{"a":1,"b":null,"c":7}']
    with pytest.raises(InvalidMessage, match=r"^d is no field of the schema"):
        values.encode(schema, structs(pa.array([1]), "d"))
    with pytest.raises(InvalidMessage, match=r"^a is missing and has no default"):
        values.encode(schema, structs(pa.array(["x"]), "b"))


def test_a_null_struct_is_a_null_value() -> None:
    column = pa.array([{"a": 1}, None, {"a": 2}], pa.struct([("a", pa.int32())]))
    encoded = values.encode(of("int"), column)
    assert encoded.to_pylist() == [b'{"a":1}', None, b'{"a":2}']
    assert values.encode(of("int"), column.slice(1, 1)).to_pylist() == [None]
    assert values.encode(of("int"), column.slice(0, 0)).to_pylist() == []
