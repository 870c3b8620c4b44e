"""Owns random schemas, their random records, and an independent decoder as an oracle.

The oracle uses Python's json, with the digits of each number kept, and fastavro with the unchanged
definition.
"""

from __future__ import annotations

import base64
import datetime as dt
import io
import json
import struct
from decimal import Decimal
from random import Random
from typing import Any
from uuid import UUID

import fastavro

from txlog.base.schemas.schema import Field, Schema, Type

LEAVES: list[Any] = [
    *("boolean", "int", "long", "float", "double", "bytes", "string"),
    {"type": "int", "logicalType": "date"},
    {"type": "int", "logicalType": "time-millis"},
    {"type": "long", "logicalType": "time-micros"},
    {"type": "long", "logicalType": "timestamp-millis"},
    {"type": "long", "logicalType": "timestamp-micros"},
    {"type": "long", "logicalType": "local-timestamp-millis"},
    {"type": "long", "logicalType": "local-timestamp-micros"},
    {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 10},
    {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 4},
    {"type": "bytes", "logicalType": "decimal", "precision": 9},
    {"type": "string", "logicalType": "uuid"},
]
TEXTS = [
    "",
    "a",
    "\x00",
    "\u20ac",
    "\U0001f6eb",
    '"\\/\b\f\n\r\t',
    "\x7f\x80",
    "null",
    "{}",
    "[" * 120,
]
_NEW = [1000]  # names for types that only successors have
WORD = ["a", "b", "from", "__init__", "f0", "x_1", "Class", "None"]


def random_schema(random: Random, type: str) -> Schema:
    """A schema of some fields of any kind."""
    return Schema.parse(type, json.dumps(_record(random, 3, [0])))


def _record(random: Random, depth: int, count: list[int]) -> dict[str, Any]:
    count[0] += 1
    name = f"R{count[0]}"
    fields = []
    for word in random.sample(WORD, random.randint(1, 5)):
        type = _type(random, depth, count)
        if random.random() < 0.4:
            type = ["null", type] if random.random() < 0.7 else [type, "null"]
        field = {"name": word, "type": type}
        if isinstance(type, list) and type[0] == "null" and random.random() < 0.5:
            field["default"] = None
        elif type in ("int", "long", ["int", "null"]):
            field["default"] = random.randint(-5, 5)
        elif type == "string" and random.random() < 0.5:
            field["default"] = random.choice(TEXTS)
        fields.append(field)
    return {"type": "record", "name": name, "fields": fields}


def _type(random: Random, depth: int, count: list[int]) -> Any:
    pick = random.random()
    if depth and pick < 0.45:
        inner = _type(random, depth - 1, count)
        inner = ["null", inner] if random.random() < 0.3 else inner
        if pick < 0.15:
            return {"type": "array", "items": inner}
        if pick < 0.3:
            return {"type": "map", "values": inner}
        return _record(random, depth - 1, count)
    count[0] += 1
    if pick < 0.5:
        return {"type": "enum", "name": f"E{count[0]}", "symbols": ["A", "B", "C"]}
    if pick < 0.55:
        return {"type": "fixed", "name": f"F{count[0]}", "size": 3}
    return random.choice(LEAVES)


def random_successor(random: Random, node: Any) -> Any:
    """A definition that can read the values that the given one wrote."""
    if isinstance(node, list):
        return [random_successor(random, field) for field in node]
    if isinstance(node, str):
        wider = {"int": ["long", "float", "double"], "long": ["double"], "float": ["double"]}
        return random.choice([node, *wider.get(node, []), *(["bytes"] * (node == "string"))])
    if node["type"] == "record":
        fields = [dict(field) for field in node["fields"] if random.random() < 0.8]
        for field in fields:
            field["type"] = random_successor(random, field["type"])
            field.pop("default", None)
            if not isinstance(field["type"], list) and random.random() < 0.3:
                field["type"] = ["null", field["type"]]
            if random.random() < 0.2:
                field["aliases"] = [field["name"]]
                field["name"] = f"{field['name']}_renamed"
        for number in range(random.randint(1, 2)):
            added = _type(random, 1, _NEW)
            field = {"name": f"added{number}", "type": added, "default": _default(random, added)}
            fields.insert(random.randint(0, len(fields)), field)
        return node | {"fields": fields}
    if node["type"] == "enum" and random.random() < 0.5:
        return node | {"symbols": ["X", "B"], "default": "X"}
    if node.get("logicalType") == "decimal" and node["precision"] < 38:
        return node | {"precision": random.randint(node["precision"], 38)}
    member = {"array": "items", "map": "values"}.get(node["type"])
    return node | {member: random_successor(random, node[member])} if member else node


def _default(random: Random, node: Any) -> Any:
    """A default in the form of a definition."""
    if isinstance(node, list):
        return None if node[0] == "null" else _default(random, node[0])
    kind = node if isinstance(node, str) else node["type"]
    if kind == "record":
        return {field["name"]: _default(random, field["type"]) for field in node["fields"]}
    if kind == "array":
        return [_default(random, node["items"]) for _ in range(random.randint(0, 2))]
    if kind == "map":
        return {f"'{n}\"": _default(random, node["values"]) for n in range(random.randint(0, 2))}
    if kind == "string" and node != "string":
        return str(UUID(int=random.getrandbits(128)))
    return {
        "boolean": random.random() < 0.5,
        "int": random.randint(0, 9999),
        "long": random.randint(0, 9999),
        "float": random.choice([0.1, -0.0, 1e30]),
        "double": random.choice([0.1, 5e-324, -1e300]),
        "bytes": random.choice(["\x01", "\x00'", "\x7f\xff"][: 1 if node != "bytes" else None]),
        "string": random.choice(["", "it's", '"\\x41"', "\u20ac"]),
        "enum": "A",
        "fixed": "\xffa'",
    }[kind]


def random_value(random: Random, type: Type) -> Any:
    """A value in the form that `decode_one` returns."""
    if type.nullable and random.random() < 0.3:
        return None
    if type.kind == "record":
        return {field.name: random_value(random, field.type) for field in type.fields}
    if type.items is not None:
        items = type.items
        random_values = [random_value(random, items) for _ in range(random.randint(0, 3))]
        if type.kind == "array":
            return random_values
        return {random.choice(TEXTS) + str(n): field for n, field in enumerate(random_values)}
    if type.logical == "decimal":
        whole = random.choice([0, 1, -1, 10**type.precision - 1, -(10**type.precision) + 1])
        return Decimal(f"{whole}e-{type.scale}")
    if type.limits is not None:
        low, high = type.limits
        near = [low, high, 0 if low <= 0 <= high else low, random.randint(low, high)]
        return as_natural(type, random.choice(near))
    return random_leaf(random, type)


def random_leaf(random: Random, type: Type) -> Any:
    """A value of a type other than integer."""
    if type.kind in ("float", "double"):
        digits = [0.0, -0.0, 0.1, 1.0, 5e-324, 2.2250738585072014e-308, 1.7976931348623157e308]
        code = "<f" if type.kind == "float" else "<d"
        choice: float = random.choice(
            [*digits[: 4 if code == "<f" else None], random.gauss(0, 1e6)]
        )
        return struct.unpack(code, struct.pack(code, choice))[0]
    if type.kind in ("bytes", "fixed"):
        return random.randbytes(type.size or random.randint(0, 9))
    if type.kind == "boolean":
        return random.random() < 0.5
    if type.kind == "enum":
        return random.choice(type.symbols)
    if type.logical == "uuid":
        return str(UUID(int=random.getrandbits(128)))
    return random.choice(TEXTS)


def as_natural(type: Type, whole: int) -> Any:
    """The date, time or instant of an integer."""
    if not type.logical:
        return whole
    if type.logical == "date":
        return dt.date.fromordinal(719163 + whole)
    start = dt.datetime(1970, 1, 1)  # noqa: DTZ001
    micros = whole if type.logical.endswith("micros") else whole * 1000
    moment = start + dt.timedelta(microseconds=micros)
    if type.logical.startswith("time-"):
        return moment.time()
    return moment if type.logical.startswith("local-") else moment.replace(tzinfo=dt.UTC)


class Wrong(Exception):
    """The oracle finds no record in a value."""


def by_other_means(schema: Schema, data: bytes) -> Any:
    """The record in a value, decoded without txlog; raises Wrong."""
    if schema.type == "avro":
        file = io.BytesIO(data)
        record = fastavro.schemaless_reader(file, json.loads(schema.definition), None)
        return _shown(schema.record, record)
    try:
        text = data.decode()
        parsed = json.loads(
            text, parse_float=_Point, parse_constant=_no_constant, object_pairs_hook=dict
        )
    except (ValueError, RecursionError) as error:
        raise Wrong(str(error)) from error
    return _from_json(schema.record, parsed)


class _Point(str):
    """A number with a point or an exponent."""


def _no_constant(word: str) -> Any:
    raise ValueError(word)


def _need(holds: bool) -> None:
    if not holds:
        raise Wrong


def _shown(type: Type, value: Any) -> Any:
    if type.kind == "record" and value is not None:
        return {field.name: _shown(field.type, value[field.name]) for field in type.fields}
    if type.items is not None and value is not None:
        if type.kind == "array":
            return [_shown(type.items, field) for field in value]
        return {name: _shown(type.items, field) for name, field in value.items()}
    return str(value) if isinstance(value, UUID) else value


def _from_json(type: Type, value: Any) -> Any:
    if value is None and type.nullable:
        return None
    if type.kind == "record":
        _need(isinstance(value, dict))
        return {field.name: _member(field, value) for field in type.fields}
    if type.items is not None:
        _need(isinstance(value, list if type.kind == "array" else dict))
        if type.kind == "array":
            return [_from_json(type.items, field) for field in value]
        return {name: _from_json(type.items, field) for name, field in value.items()}
    if type.limits is not None:
        low, high = type.limits
        _need(isinstance(value, int) and not isinstance(value, bool))
        _need(low <= value <= high)
        return as_natural(type, value)
    return _leaf_from_json(type, value)


def _leaf_from_json(type: Type, value: Any) -> Any:
    if type.kind == "boolean":
        _need(isinstance(value, bool))
        return value
    if type.kind in ("float", "double"):
        _need(isinstance(value, int | _Point) and not isinstance(value, bool))
        return _float(type, float(value))
    _need(isinstance(value, str) and not isinstance(value, _Point))
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise Wrong from error
    if type.logical == "decimal":
        digits = value.removeprefix("-")
        whole, point, fraction = digits.partition(".")
        _need(whole.isascii() and whole.isdigit() and (not point or fraction.isdigit()))
        _need(fraction.isascii() and len(fraction) <= type.scale)
        room = type.precision - type.scale
        _need(len(whole) <= room if room else whole == "0")
        return Decimal(
            f"{value}{'' if fraction or point else '.'}{'0' * (type.scale - len(fraction))}"
        )
    if type.kind in ("bytes", "fixed"):
        try:
            data = base64.b64decode(value, validate=True)
        except ValueError as error:
            raise Wrong from error
        _need(type.kind == "bytes" or len(data) == type.size)
        return data
    if type.kind == "enum":
        _need(value in type.symbols)
    if type.logical == "uuid":
        parts = [len(part) for part in value.split("-")]
        _need(parts == [8, 4, 4, 4, 12])
        _need(all(part in "0123456789abcdefABCDEF-" for part in value))
    return value


def _float(type: Type, value: float) -> float:
    if type.kind == "double":
        _need(abs(value) <= 1.7976931348623157e308)
        return value
    try:
        seconds: float = struct.unpack("<f", struct.pack("<f", value))[0]
        return seconds
    except OverflowError as error:
        raise Wrong from error


def _member(field: Field, fields: dict[str, Any]) -> Any:
    if field.name in fields:
        return _from_json(field.type, fields[field.name])
    _need(field.has_default or field.type.nullable)
    return field.default


def spoiled(random: Random, value: Any) -> Any:
    """JSON with one random change."""
    if isinstance(value, dict) and value and random.random() < 0.8:
        name = random.choice(list(value))
        if random.random() < 0.2:
            return {key: member for key, member in value.items() if key != name}
        return value | {name: spoiled(random, value[name])}
    if isinstance(value, list) and value and random.random() < 0.8:
        n = random.randrange(len(value))
        return [*value[:n], spoiled(random, value[n]), *value[n + 1 :]]
    numbers = [0, -1, 1 << 31, -(1 << 31), (1 << 63) - 1, 1 << 63, 1 << 70, 1.5, 1e39, 1e300]
    texts = ["", "x", "A", "aGk=", "aGk", "YWJj", "1.5", "-0.00010", "123456789", "1e5", "0"]
    return random.choice([*numbers, *texts, None, True, [], {}, [None], {"a": 1}])
