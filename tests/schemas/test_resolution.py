"""Versions: which version can read which, and old records as records of the newest version."""

from __future__ import annotations

import io
import json
from random import Random
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from tests.schemas.random_records import random_schema, random_successor, random_value
from tests.tiers import graded
from txlog.base.schemas import resolution, values
from txlog.base.schemas.resolution import can_read, check
from txlog.base.schemas.schema import Schema
from txlog.errors import InvalidMessage


def of(*fields: Any, type: str = "json", name: str = "R") -> Schema:
    return Schema.parse(type, json.dumps({"type": "record", "name": name, "fields": list(fields)}))


def field(type: Any, name: str = "a", **more: Any) -> dict[str, Any]:
    return {"name": name, "type": type} | more


def array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


def record(*fields: Any, name: str = "S") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": list(symbols)} | more


def decimal(precision: int, scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
MICROS = {"type": "long", "logicalType": "timestamp-micros"}
UUID = {"type": "string", "logicalType": "uuid"}
# The type of the writer, the type of the reader, and a value before and after.
READABLE: list[tuple[Any, Any, Any, Any]] = [
    ("int", "int", 7, 7),
    ("int", "long", 7, 7),
    ("int", "float", 7, 7.0),
    ("int", "double", 7, 7.0),
    ("long", "double", 7, 7.0),
    ("float", "double", 0.5, 0.5),
    ("int", ["null", "long"], 7, 7),
    (["null", "int"], ["long", "null"], None, None),
    ("string", "bytes", "\u20ac", "\u20ac".encode()),
    (UUID, "string", f"{0:08}-0000-0000-0000-{0:012}", f"{0:08}-0000-0000-0000-{0:012}"),
    (enum("A", "B"), enum("B", "A", "C"), "A", "A"),
    (enum("A", "B"), enum("B", "C", default="C"), "A", "C"),
    (enum("A", "B"), enum("B", "C", default="C"), "B", "B"),
    (array("int"), array(["null", "long"]), [1, 2], [1, 2]),
    ({"type": "map", "values": "int"}, {"type": "map", "values": "double"}, {"x": 1}, {"x": 1.0}),
    (record(field("int")), record(field("long"), name="T"), {"a": 1}, {"a": 1}),
    (
        array(record(field("int"), field("int", "gone"))),
        array(record(field("string", "new", default="x"), field("long"))),
        [{"a": 1, "gone": 2}],
        [{"new": "x", "a": 1}],
    ),
    (record(field("int")), record(field("int", "b", aliases=["a"])), {"a": 1}, {"b": 1}),
]
UNREADABLE: list[tuple[Any, Any, str]] = [
    ("long", "int", "a was long, which does not become int"),
    ("double", "float", "a was double, which does not become float"),
    ("bytes", "string", "a was bytes, which does not become string"),
    ("string", UUID, "a was string, which does not become uuid"),
    ("long", MILLIS, "a was long, which does not become timestamp-millis"),
    (MILLIS, MICROS, "a was timestamp-millis, which does not become timestamp-micros"),
    (MILLIS, "double", "a was timestamp-millis, which does not become double"),
    (["null", "int"], "int", "a may be null in older records"),
    (enum("A", "B"), enum("B"), "a has lost the symbol A"),
    (decimal(9, 2), decimal(9, 3), "a was decimal128(9, 2)"),
    (decimal(9, 2), decimal(8, 2), "a was decimal128(9, 2)"),
    (array("string"), array("int"), "a[] was string"),
    (array("int"), "int", "a was array"),
    (array(record(field("int"))), array(record(field("int", "b"))), "a[].b is new and has no"),
    ({"type": "map", "values": ["null", "int"]}, {"type": "map", "values": "int"}, "a{} may be"),
]


@pytest.mark.parametrize("type", ["json", "avro"])
@pytest.mark.parametrize(("old", "new", "before", "after"), READABLE, ids=range(len(READABLE)))
def test_an_older_record_becomes_one_of_the_newest(
    type: str, old: Any, new: Any, before: Any, after: Any
) -> None:
    written, newest = of(field(old), type=type), of(field(new), type=type)
    assert can_read(newest, written) is None
    data = values.encode_one(written, {"a": before})
    column = pa.array([data, None, data], pa.binary())
    decoded = values.decode(written, column, as_of=newest)
    assert decoded.type == newest.arrow
    decoded.validate(full=True)
    assert decoded.to_pylist(maps_as_pydicts="strict") == [{"a": after}, None, {"a": after}]
    assert values.decode_one(written, data, as_of=newest) == {"a": after}


# Changes that `resolution` can read, and other Avro readers cannot.
ONLY_HERE: list[tuple[Any, Any, str]] = [
    (record(field("int")), record(field("int"), field(["null", "int"], "b")), "a.b is new"),
    (record(field("int")), record(field("int"), field(["int", "null"], "b")), "a.b is new"),
    (
        array(record(field("int"))),
        array(record(field("int"), field(["null", "int"], "b"))),
        "a[].b",
    ),
    (record(field("int")), record(field("int"), name="T"), "a was record S"),
    (["null", record(field("int"))], ["null", record(field("int"), name="T")], "a was record S"),
    (enum("A", "B"), enum("A", "B") | {"name": "F"}, "a was enum"),
    (enum("A", "B"), "string", "a was enum, which does not become string in Avro"),
]


@pytest.mark.parametrize(("old", "new", "reason"), ONLY_HERE, ids=range(len(ONLY_HERE)))
def test_a_schema_that_other_readers_of_avro_cannot_use_is_incompatible(
    old: Any, new: Any, reason: str
) -> None:
    """JSON is read by the names of members, so there the change is compatible."""
    for strategy in ("BACKWARD", "FULL_TRANSITIVE"):
        why = check(strategy, of(field(new), type="avro"), [of(field(old), type="avro")])
        assert why is not None
        assert reason in why
    assert check("BACKWARD", of(field(new)), [of(field(old))]) is None


@pytest.mark.parametrize("renamed", [{"name": "other.S"}, {"name": "T", "aliases": ["S"]}])
def test_a_named_type_of_avro_may_have_another_namespace_or_an_alias(
    renamed: dict[str, Any],
) -> None:
    old, new = record(field("int")), record(field("int")) | renamed
    assert check("BACKWARD", of(field(new), type="avro"), [of(field(old), type="avro")]) is None


@pytest.mark.parametrize(
    ("old", "new"),
    [(old, new) for old, new, *_ in READABLE] + [(old, new) for old, new, _ in ONLY_HERE],
)
def test_fastavro_reads_values_of_compatible_older_schemas(old: Any, new: Any) -> None:
    written, newest = of(field(old), type="avro"), of(field(new), type="avro")
    if check("BACKWARD", newest, [written]) is not None:
        return
    value = random_value(Random(1), written.record)
    data = io.BytesIO(values.encode_one(written, value))
    fastavro.schemaless_reader(data, json.loads(written.definition), json.loads(newest.definition))


@pytest.mark.parametrize(("old", "new", "reason"), UNREADABLE, ids=range(len(UNREADABLE)))
def test_unreadable_value_is_null_and_reported_with_its_field(
    old: Any, new: Any, reason: str
) -> None:
    written, newest = of(field(old)), of(field(new))
    verdict = can_read(newest, written)
    assert verdict is not None
    assert verdict.startswith(reason)
    assert resolution.plan(written, newest) is None
    nulls = resolution.resolved(pa.nulls(3, written.arrow), written, newest)
    assert nulls.equals(pa.nulls(3, newest.arrow))
    with pytest.raises(InvalidMessage, match="of a version that the newest cannot read"):
        resolved_one(written, newest)


def resolved_one(written: Schema, newest: Schema) -> None:
    value = random_value(Random(1), written.record)
    values.decode_one(written, values.encode_one(written, value), as_of=newest)


def test_a_plan_is_in_the_order_of_the_newest() -> None:
    written = of(field("int"), field("string", "gone"), field("int", "old"))
    newest = of(
        field("string", "new", default="x"),
        field("long"),
        field(["null", "int"], "c", default=None),
        field("int", "renamed", aliases=["old"]),
    )
    plan = resolution.plan(written, newest)
    assert plan is not None
    assert [(step.name, step.source, step.default.as_py(), step.change) for step in plan] == [
        ("new", None, "x", None),
        ("a", "a", None, resolution.Cast(pa.int64())),
        ("c", None, None, None),
        ("renamed", "old", None, None),
    ]
    assert resolution.plan(written, of(field("int"), field("int", "fresh"))) is None


def test_new_field_takes_a_default_of_any_type() -> None:
    written = of(field("int"))
    newest = of(
        field(decimal(9, 2), "price", default="\u0001\u0000"),
        field(MILLIS, "at", default=1000),
        field(array("int"), "list", default=[1, 2]),
        field({"type": "map", "values": "int"}, "map", default={"x": 1}),
        field(record(field("string", "s", default="y"), field("bytes", "b")), "r",
              default={"b": "\u00ff"}),
    )  # fmt: skip
    data = values.encode_one(written, {"a": 1})
    decoded = values.decode(written, pa.array([data], pa.binary()), as_of=newest)
    assert decoded.to_pylist(maps_as_pydicts="strict") == [
        values.decode_one(written, data, as_of=newest)
    ]
    own_record = values.decode_one(newest, values.encode_one(newest, {}))
    assert values.decode_one(newest, b"{}") == own_record
    assert own_record == values.decode_one(written, data, as_of=newest)
    assert (str(own_record["price"]), own_record["at"].isoformat(), own_record["r"]) == (
        "2.56",
        "1970-01-01T00:00:01+00:00",
        {"s": "y", "b": b"\xff"},
    )


@pytest.mark.parametrize("seed", graded(range(300), 10))
def test_columns_and_single_records_are_resolved_alike(seed: int) -> None:
    """Random versions, each a change of the one before, and slices of their columns."""
    random = Random(seed)
    written = random_schema(random, "json")
    node = json.loads(written.definition)
    newest = Schema.parse("json", json.dumps(random_successor(random, node)))
    if can_read(newest, written) is not None:
        pytest.fail(f"{can_read(newest, written)}: {written.definition} {newest.definition}")
    records = [random_value(random, written.record) for _ in range(7)]
    data = [values.encode_one(written, each_record) for each_record in records]
    column = values.decode(written, pa.array([None, *data, None, *data], pa.binary())).slice(1, 12)
    resolved = resolution.resolved(column, written, newest)
    resolved.validate(full=True)
    alone = [values.decode_one(written, each_record, as_of=newest) for each_record in data]
    assert resolved.to_pylist(maps_as_pydicts="strict") == [*alone, None, *alone][:12]


V1 = of(field("int"))
MORE = of(field("int"), field("string", "b", default=""))
LESS = of(field("string", "b", default=""))
NEEDS = of(field("int"), field("string", "b"))
WIDER = of(field("long"))


@pytest.mark.parametrize(
    ("strategy", "allowed"),
    [
        ("NONE", [True, True, True, True]),
        ("BACKWARD", [True, True, False, True]),
        ("FORWARD", [True, False, True, False]),
        ("FULL", [True, False, False, False]),
        ("ALWAYS_INCOMPATIBLE", [False, False, False, False]),
    ],
)
def test_strategy_decides_which_version_may_follow(strategy: str, allowed: list[bool]) -> None:
    """BACKWARD: new readers first. FORWARD: new writers first."""
    checks = [check(strategy, each_check, [V1]) for each_check in (MORE, LESS, NEEDS, WIDER)]
    assert [each_check is None for each_check in checks] == allowed
    assert check(strategy, V1, []) is None


def test_transitive_looks_at_all_versions() -> None:
    """The field a was removed and comes back with another type: only the last version
    allows that.
    """
    other = of(field("string", "a", default=""), field("string", "b", default=""))
    assert check("BACKWARD", other, [V1, LESS]) is None
    assert check("FULL_TRANSITIVE", other, [V1, LESS]) == (
        "it cannot read existing records (FULL_TRANSITIVE): a was int, which does not become string"
    )
    assert check("FORWARD_TRANSITIVE", LESS, [V1]) == (
        "readers of an older version cannot read it (FORWARD_TRANSITIVE): "
        "a is new and has no default"
    )


def test_a_topic_keeps_its_type() -> None:
    avro = of(field("int"), type="avro")
    assert check("BACKWARD", avro, [V1]) == "its type is avro, before it was json"
    assert check("NONE", avro, [V1]) is None
