"""Owns records of typed topics as SQL: their type, and those of one version as those of another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from txlog.base.schemas import resolution
from txlog.base.schemas.resolution import Cast, Change, Items, Record, Step, Symbols
from txlog.engine.door.catalog import SchemaVersion
from txlog.engine.door.topics import schema_in

_TYPES: Final = {
    pa.bool_(): "BOOLEAN",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.binary(): "BLOB",
    pa.string(): "VARCHAR",
    pa.date32(): "DATE",
    pa.time32("ms"): "TIME",
    pa.time64("us"): "TIME",
    pa.timestamp("ms", "UTC"): "TIMESTAMPTZ",
    pa.timestamp("us", "UTC"): "TIMESTAMPTZ",
    pa.timestamp("ms"): "TIMESTAMP",
    pa.timestamp("us"): "TIMESTAMP",
}


def type_of(kind: pa.DataType) -> str:
    """The type of DuckDB of a type of records."""
    if pa.types.is_struct(kind):
        return f"STRUCT({', '.join(f'{_name(one.name)} {type_of(one.type)}' for one in kind)})"
    if pa.types.is_map(kind):
        return f"MAP({type_of(kind.key_type)}, {type_of(kind.item_type)})"
    if pa.types.is_list(kind):
        return f"{type_of(kind.value_type)}[]"
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    if pa.types.is_fixed_size_binary(kind):
        return "BLOB"
    return _TYPES[kind]


def record_of(written: int, schemas: tuple[SchemaVersion, ...], version: int, column: str) -> str:
    """The records in a column of a file as those of a version.

    written: FileRef.record, not 0; column: how SQL names it
    """
    of, newest = schema_in(schemas[written - 1]), schema_in(schemas[version - 1])
    steps = resolution.plan(of, newest)
    if steps is None:
        return f"NULL::{type_of(newest.arrow)}"
    return _record(steps, column, 0)


def is_by_name(written: int, schemas: tuple[SchemaVersion, ...], version: int) -> bool:
    """Whether DuckDB and Spark read the records of a file as those of a version, by their fields.

    They do if each has the fields of the older and only null for new ones, and numbers got wider.
    written: FileRef.record; 0: the file has none, and is read as nulls
    """
    if written in (0, version):
        return True
    of, newest = schema_in(schemas[written - 1]), schema_in(schemas[version - 1])
    steps = resolution.plan(of, newest)
    return steps is not None and _has_names(steps, of.arrow)


def _has_names(steps: Sequence[Step], kind: pa.DataType) -> bool:
    """By its names DuckDB reads a struct with the fields of both versions."""
    kept = {one.name for one in steps if one.source == one.name}
    if kept != {field.name for field in kind}:
        return False
    return all(
        not one.default.is_valid
        if one.source is None
        else one.change is None or _is_widened(one.change, kind.field(one.name).type)
        for one in steps
    )


def _is_widened(change: Change, kind: pa.DataType) -> bool:
    if isinstance(change, Record):
        return _has_names(change.steps, kind)
    return isinstance(change, Cast) and pa.types.is_integer(kind) and change.type == pa.int64()


def _record(steps: list[Step] | tuple[Step, ...], value: str, depth: int) -> str:
    fields = ", ".join(f"{_name(one.name)} := {_field(one, value, depth)}" for one in steps)
    return f"CASE WHEN {value} IS NOT NULL THEN struct_pack({fields}) END"


def _field(step: Step, value: str, depth: int) -> str:
    if step.source is None:
        return _literal(step.default)
    found = f"struct_extract({value}, {_text(step.source)})"
    return found if step.change is None else _changed(step.change, found, depth)


def _changed(change: Change, value: str, depth: int) -> str:
    """A value after a change; depth: how many lambdas it is in, which need names of their own."""
    if isinstance(change, Cast):
        if pa.types.is_binary(change.type):  # a cast takes \x41 for one byte
            return f"encode({value})"
        return f"{value}::{type_of(change.type)}"
    if isinstance(change, Symbols):
        known = ", ".join(map(_text, change.known))
        return (
            f"CASE WHEN {value} IN ({known}) THEN {value}"
            f" WHEN {value} IS NOT NULL THEN {_text(change.default)} END"
        )
    if isinstance(change, Record):
        return _record(change.steps, value, depth)
    one = f"x{depth}"
    if isinstance(change, Items):
        return f"list_transform({value}, lambda {one}: {_changed(change.change, one, depth + 1)})"
    inner = _changed(change.change, f"{one}.value", depth + 1)
    return (
        f"map_from_entries(list_transform(map_entries({value}),"
        f" lambda {one}: struct_pack(key := {one}.key, value := {inner})))"
    )


def _literal(value: pa.Scalar) -> str:
    """A default as SQL writes it."""
    kind = value.type
    if not value.is_valid:
        return f"NULL::{type_of(kind)}"
    if pa.types.is_struct(kind):
        fields = ", ".join(f"{_name(one.name)} := {_literal(value[one.name])}" for one in kind)
        return f"struct_pack({fields})"
    if pa.types.is_map(kind):
        keys = ", ".join(_literal(one["key"]) for one in value.values)
        items = ", ".join(_literal(one["value"]) for one in value.values)
        return f"MAP([{keys}], [{items}])::{type_of(kind)}"
    if pa.types.is_list(kind):
        return f"[{', '.join(map(_literal, value.values))}]::{type_of(kind)}"
    if pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return "'" + "".join(f"\\x{byte:02X}" for byte in value.as_py()) + "'::BLOB"
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return f"make_timestamptz({value.cast(pa.timestamp('us', 'UTC')).value})"
    said = repr(value.as_py()) if pa.types.is_floating(kind) else str(value.as_py())
    return f"{_text(said)}::{type_of(kind)}"


def _name(word: str) -> str:
    return '"' + word.replace('"', '""') + '"'


def _text(word: str) -> str:
    return "'" + word.replace("'", "''") + "'"
