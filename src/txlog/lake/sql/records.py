"""Owns records of typed topics as SQL: their type, and conversion from one version to another."""

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
    """The DuckDB type for a type of records."""
    if pa.types.is_struct(kind):
        return (
            f"STRUCT({', '.join(f'{_name(field.name)} {type_of(field.type)}' for field in kind)})"
        )
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
    """SQL that converts the records in a column to `version`; NULL where no conversion exists.

    written: FileRef.record, the version in the file, not 0; column: the column in SQL
    """
    of, newest = schema_in(schemas[written - 1]), schema_in(schemas[version - 1])
    steps = resolution.plan(of, newest)
    if steps is None:
        return f"NULL::{type_of(newest.arrow)}"
    return _record(steps, column, 0)


def is_by_name(written: int, schemas: tuple[SchemaVersion, ...], version: int) -> bool:
    """Whether DuckDB and Spark can read the records of a file as another version by field names.

    They can if the newer version keeps all fields and only widens numbers, and new fields are null.
    written: FileRef.record, the version in the file; 0: it has no records, and is read as nulls
    """
    if written in (0, version):
        return True
    of, newest = schema_in(schemas[written - 1]), schema_in(schemas[version - 1])
    steps = resolution.plan(of, newest)
    return steps is not None and _has_names(steps, of.arrow)


def _has_names(steps: Sequence[Step], kind: pa.DataType) -> bool:
    """Whether reading a struct by field names gives what the steps of the conversion would give."""
    same_names = {step.name for step in steps if step.source == step.name}
    if same_names != {field.name for field in kind}:
        return False
    return all(
        not step.default.is_valid
        if step.source is None
        else step.change is None or _is_widened(step.change, kind.field(step.name).type)
        for step in steps
    )


def _is_widened(change: Change, kind: pa.DataType) -> bool:
    if isinstance(change, Record):
        return _has_names(change.steps, kind)
    return isinstance(change, Cast) and pa.types.is_integer(kind) and change.type == pa.int64()


def _record(steps: list[Step] | tuple[Step, ...], value: str, depth: int) -> str:
    fields = ", ".join(f"{_name(step.name)} := {_field(step, value, depth)}" for step in steps)
    return f"CASE WHEN {value} IS NOT NULL THEN struct_pack({fields}) END"


def _field(step: Step, value: str, depth: int) -> str:
    if step.source is None:
        return _literal(step.default)
    extracted = f"struct_extract({value}, {_text(step.source)})"
    return extracted if step.change is None else _changed(step.change, extracted, depth)


def _changed(change: Change, value: str, depth: int) -> str:
    """SQL for a value after a change; depth: number of enclosing lambdas, for unique names."""
    if isinstance(change, Cast):
        if pa.types.is_binary(change.type):  # a cast would read \x41 as one byte
            return f"encode({value})"
        return f"{value}::{type_of(change.type)}"
    if isinstance(change, Symbols):
        symbols = ", ".join(map(_text, change.known))
        return (
            f"CASE WHEN {value} IN ({symbols}) THEN {value}"
            f" WHEN {value} IS NOT NULL THEN {_text(change.default)} END"
        )
    if isinstance(change, Record):
        return _record(change.steps, value, depth)
    item = f"x{depth}"
    if isinstance(change, Items):
        return f"list_transform({value}, lambda {item}: {_changed(change.change, item, depth + 1)})"
    inner = _changed(change.change, f"{item}.value", depth + 1)
    return (
        f"map_from_entries(list_transform(map_entries({value}),"
        f" lambda {item}: struct_pack(key := {item}.key, value := {inner})))"
    )


def _literal(value: pa.Scalar) -> str:
    """A default as an SQL literal."""
    kind = value.type
    if not value.is_valid:
        return f"NULL::{type_of(kind)}"
    if pa.types.is_struct(kind):
        fields = ", ".join(f"{_name(item.name)} := {_literal(value[item.name])}" for item in kind)
        return f"struct_pack({fields})"
    if pa.types.is_map(kind):
        keys = ", ".join(_literal(item["key"]) for item in value.values)
        items = ", ".join(_literal(item["value"]) for item in value.values)
        return f"MAP([{keys}], [{items}])::{type_of(kind)}"
    if pa.types.is_list(kind):
        return f"[{', '.join(map(_literal, value.values))}]::{type_of(kind)}"
    if pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return "'" + "".join(f"\\x{byte:02X}" for byte in value.as_py()) + "'::BLOB"
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return f"make_timestamptz({value.cast(pa.timestamp('us', 'UTC')).value})"
    text = repr(value.as_py()) if pa.types.is_floating(kind) else str(value.as_py())
    return f"{_text(text)}::{type_of(kind)}"


def _name(word: str) -> str:
    return '"' + word.replace('"', '""') + '"'


def _text(word: str) -> str:
    return "'" + word.replace("'", "''") + "'"
