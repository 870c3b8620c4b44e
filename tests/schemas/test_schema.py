"""Definitions: valid schemas, their canonical form, their columns, and the files that
define them.
"""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from txlog.base.schemas.schema import (
    DEFAULT_BYTES_MAX,
    DEFINITION_BYTES_MAX,
    NODES_MAX,
    Schema,
    of_arrow,
    read_schema,
)
from txlog.errors import InvalidArgument


def of(*fields: Any, **more: Any) -> str:
    return json.dumps({"type": "record", "name": "R", "fields": list(fields)} | more)


def field(type: Any, name: str = "a", **more: Any) -> dict[str, Any]:
    return {"name": name, "type": type} | more


def test_equal_definitions_have_one_form() -> None:
    """Spaces and the order of members do not matter; docs and the order of fields do."""
    definition = '{"name":"R","type":"record","fields":[{"type":"int","name":"a","doc":"x"}]}'
    other = '{"type": "record", "fields": [{"doc": "x", "name": "a", "type": "int"}], "name": "R"}'
    schema = Schema.parse("json", definition)
    assert schema == Schema.parse("json", other)
    assert schema == Schema.parse("json", schema.definition)
    assert schema == pickle.loads(pickle.dumps(schema))
    assert hash(schema) == hash(Schema.parse("json", other))
    form = '{"type":"record","name":"R","fields":[{"name":"a","type":"int","doc":"x"}]}'
    assert schema.definition == form
    assert schema.fields[0].doc == "x"


def test_fingerprints_differ_if_readers_get_different_values() -> None:
    """Guards against Avro's own fingerprint, for which a long and an instant are the same."""
    plain = Schema.parse("json", of(field("long"))).fingerprint
    instant = {"type": "long", "logicalType": "timestamp-millis"}
    others = [
        Schema.parse("avro", of(field("long"))),
        Schema.parse("json", of(field(instant))),
        Schema.parse("json", of(field("long", default=1))),
        Schema.parse("json", of(field(["null", "long"]))),
        Schema.parse("json", of(field(["long", "null"]))),
    ]
    assert len({plain, *(other.fingerprint for other in others)}) == 6
    assert Schema.parse("json", of(field("long", doc="x"), doc="y")).fingerprint == plain
    assert len(plain) == 64


COLUMNS = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "int date": pa.date32(),
    "int time-millis": pa.time32("ms"),
    "long time-micros": pa.time64("us"),
    "long timestamp-millis": pa.timestamp("ms", "UTC"),
    "long timestamp-micros": pa.timestamp("us", "UTC"),
    "long local-timestamp-millis": pa.timestamp("ms"),
    "long local-timestamp-micros": pa.timestamp("us"),
    "string uuid": pa.string(),
    "string date": pa.string(),  # Avro requires that an annotation that does not fit is ignored
    "long unknown": pa.int64(),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_each_type_has_its_column(name: str) -> None:
    kind, _, logical = name.partition(" ")
    node: Any = {"type": kind, "logicalType": logical} if logical else kind
    arrow_types = Schema.parse("avro", of(field(["null", node]), field(node, "b"))).arrow
    assert arrow_types == pa.struct([("a", COLUMNS[name]), ("b", COLUMNS[name])])
    nested = Schema.parse("avro", of(field({"type": "array", "items": node}))).arrow
    assert nested == pa.struct([("a", pa.list_(COLUMNS[name]))])


def test_types_with_names_are_used_again_by_name() -> None:
    point = {"type": "record", "name": "geo.Point", "fields": [field("double", "x")]}
    inner = pa.struct([("x", pa.float64())])
    text = of(field(point, "a"), field("geo.Point", "b"), field(["null", "geo.Point"], "c"))
    assert Schema.parse("json", text).arrow == pa.struct([("a", inner), ("b", inner), ("c", inner)])
    text = of(
        field({"type": "enum", "name": "E", "symbols": ["A"]}, "a"),
        field("E", "b"),
        field("space.E", "c"),
        namespace="space",
    )
    parsed = Schema.parse("json", text)
    assert [each_field.type.symbols for each_field in parsed.fields] == [("A",), ("A",), ("A",)]


WRONG = {
    "{": "the schema is not JSON",
    '"int"': "the schema is int, it must be a record",
    '["null", "int"]': "the schema is not a record at its top",
    of(): "the record is a record without fields",
    of(field(["int", "string"])): "field a is a union of int, string",
    of(field(["null"])): "field a is a union of null",
    of(field("null")): "field a is null alone",
    of(field(["null", "R"])): "field a contains its own record R",
    of(field("strin")): "field a has the unknown type strin",
    of(field("int"), field("int")): "field a appears twice",
    of(field("int"), field("int", "A")): "field A is a but for case",
    of(field("int", "a-b")): "field a-b has the name 'a-b'",
    of(field({"type": "array"})): "field a is array without items",
    of(field({"type": "fixed", "name": "F"})): "field a is fixed F without a size",
    of(field({"type": "enum", "name": "E", "symbols": ["A", "A"]})): "field a is enum E without",
    of(field("int", default="x")): "field a has the default x, it must be an integer of 32 bits",
    of(field("int", default=1 << 31)): "field a has the default 2147483648",
    of(field("int", default=None)): "field a has the default null",
    of(field(["null", "int"], default=1)): "field a has the default 1, and its union begins with",
    of(field("string", default="x" * DEFAULT_BYTES_MAX)): "field a has a default of more than",
    of(
        field({"type": "bytes", "logicalType": "decimal", "precision": 39})
    ): "field a is a decimal of precision 39",
    of(
        field({"type": "record", "name": "S", "fields": [field(["int", "int"], "b")]})
    ): "field a.b is a union of int, int",
    of(
        field({"type": "array", "items": {"type": "map", "values": 7}})
    ): "field a[]{} 7 is not a type",
}


@pytest.mark.parametrize("text", WRONG, ids=range(len(WRONG)))
def test_invalid_schema_is_refused_with_its_field(text: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        Schema.parse("json", text)
    assert WRONG[text] in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_record_without_fields_is_refused_with_the_reason() -> None:
    """At the top and inside: a column of records cannot hold it."""
    empty = {"type": "record", "name": "E", "fields": list[Any]()}
    for text in (of(), of(field(empty))):
        with pytest.raises(InvalidArgument) as raised:
            Schema.parse("json", text)
        assert "Parquet and DuckDB have no column without fields" in str(raised.value.hint)


def test_a_definition_is_bounded() -> None:
    """Guards against a text that names the same records again and again, and becomes a tree with
    billions of fields.
    """
    with pytest.raises(InvalidArgument, match="has more than 256 KiB"):
        Schema.parse("json", of(field("int", doc="x" * DEFINITION_BYTES_MAX)))
    nested: Any = "int"
    for _ in range(40):
        nested = {"type": "array", "items": nested}
    with pytest.raises(InvalidArgument, match="nests deeper than 32"):
        Schema.parse("json", of(field(nested)))
    fields = [field({"type": "record", "name": "N0", "fields": [field("int")]}, "n0")]
    for n in range(1, 25):
        twice = [field(f"N{n - 1}", "x"), field(f"N{n - 1}", "y")]
        fields.append(field({"type": "record", "name": f"N{n}", "fields": twice}, f"n{n}"))
    with pytest.raises(InvalidArgument, match=f"at most {NODES_MAX} fields|too many fields"):
        Schema.parse("json", of(*fields))
    with pytest.raises(InvalidArgument, match="not JSON"):
        Schema.parse("json", "[" * 100_000)


def test_the_type_of_a_schema_is_avro_or_json() -> None:
    with pytest.raises(InvalidArgument) as raised:
        Schema.parse("jsn", of(field("int")))
    assert (str(raised.value), raised.value.hint) == (
        "there is no type of schema jsn",
        "did you mean json?",
    )


ARROW = pa.schema(
    [
        pa.field("small", pa.uint8(), nullable=False),
        ("large", pa.uint64()),
        ("text", pa.large_string()),
        ("word", pa.dictionary(pa.int8(), pa.string())),
        ("hash", pa.binary(4)),
        ("price", pa.decimal128(9, 2)),
        ("seen", pa.timestamp("ns")),
        ("when", pa.timestamp("s", "Europe/Paris")),
        ("place", pa.struct([("x", pa.float32()), ("tags", pa.list_(pa.string()))])),
        ("seats", pa.map_(pa.string(), pa.int16())),
    ]
)


def test_a_schema_of_arrow_becomes_one_of_avro_and_stays_it() -> None:
    schema = of_arrow(ARROW)
    expected = {
        "small": pa.int32(),
        "large": pa.int64(),
        "text": pa.string(),
        "word": pa.string(),
        "hash": pa.binary(4),
        "price": pa.decimal128(9, 2),
        "seen": pa.timestamp("us"),
        "when": pa.timestamp("ms", "UTC"),
        "place": pa.struct([("x", pa.float32()), ("tags", pa.list_(pa.string()))]),
        "seats": pa.map_(pa.string(), pa.int32()),
    }
    assert schema.arrow == pa.struct(list(expected.items()))
    assert [each_field.type.nullable for each_field in schema.fields] == [False] + 9 * [True]
    assert of_arrow(pa.schema(list(schema.arrow))).arrow == schema.arrow


@pytest.mark.parametrize(
    "type", [pa.duration("s"), pa.null(), pa.decimal256(50, 2), pa.map_(pa.int8(), pa.int8())]
)
def test_a_column_that_avro_has_no_type_for_is_refused(type: pa.DataType) -> None:
    with pytest.raises(InvalidArgument, match=r"^schema: field a is "):
        of_arrow(pa.schema([("a", type)]))


def test_a_schema_is_read_from_a_file(tmp_path: Path) -> None:
    text = of(field("int"))
    (tmp_path / "r.avsc").write_text(text)
    (tmp_path / "r.json").write_text(text)
    pulsar = json.dumps({"type": "AVRO", "schema": text, "properties": {}})
    (tmp_path / "pulsar.json").write_text(pulsar)
    table = pa.schema([pa.field("a", pa.int32(), nullable=False)]).empty_table()
    pq.write_table(table, tmp_path / "r.parquet")
    with pa.OSFile(str(tmp_path / "r.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema):
        pass
    with pa.OSFile(str(tmp_path / "s.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema):
        pass
    expected = Schema.parse("json", of(field("int")))
    assert read_schema(f"{tmp_path}/r.json") == expected
    assert read_schema(f"{tmp_path}/r.avsc") == Schema.parse("avro", text)
    assert read_schema(f"{tmp_path}/r.avsc", "json") == expected
    assert read_schema(f"{tmp_path}/pulsar.json") == Schema.parse("avro", text)
    for name in ("r.parquet", "r.arrow", "s.arrow"):
        assert read_schema(f"arrow:{tmp_path}/{name}").arrow == expected.arrow


@pytest.mark.parametrize("name", ["none.avsc", "arrow:none.parquet", "bad.json", "arrow:bad.arrow"])
def test_invalid_file_is_reported_in_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.json").write_bytes(b"\xff")
    (tmp_path / "bad.arrow").write_bytes(b"\xff")
    with pytest.raises(InvalidArgument, match=name.removeprefix("arrow:")) as raised:
        read_schema(name)
    assert "\n" not in str(raised.value)
