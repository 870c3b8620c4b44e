"""Owns how records of one version become records of another: Avro's resolution, as steps.

`plan` returns steps that Arrow, SQL and Spark can all execute; `resolved` executes them in Arrow,
`resolved_one` for one record. Fields match by name, then by the aliases of the newer schema. A
field that only the newer schema has gets its default, or null; one that only the older has is left
out. An int may become a long, float or double, a long a float or double, a float a double, a string
bytes. A UUID or an enum may become any string. A decimal may get more digits before its point.
Names of records do not matter.

No step can fail for any value. So bytes do not become strings, which Avro allows, for they may not
be UTF-8. Nor does a number become an instant, or one kind of instant another, for the meaning would
change.

Compatibility is Pulsar's strategies, applied to which schema can read which records. BACKWARD: the
new schema reads records of the last one, so readers change first. FORWARD: the last one reads
records of the new one, so writers change first. FULL: both. With _TRANSITIVE, this holds for all
older schemas, not only the last one. Reading follows the rules above. For values of Avro it also
follows Avro's own rules, which stock clients and other programs use.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec
import pyarrow as pa

from txlog.base.schemas.columns import Misfit
from txlog.base.schemas.schema import DECLARED, TYPES, Field, Schema, Type
from txlog.base.startup import compute as pc

_WIDER: Final = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
}


class Cast(msgspec.Struct, frozen=True):
    """Convert the value to another Arrow type; every value fits, a large long as a near double."""

    type: pa.DataType


class Symbols(msgspec.Struct, frozen=True):
    """Keep the value if it is one of `known`; otherwise use `default`."""

    known: tuple[str, ...]
    default: str


class Record(msgspec.Struct, frozen=True):
    """Build a struct of these fields from a struct; null stays null."""

    steps: tuple[Step, ...]


class Items(msgspec.Struct, frozen=True):
    """Change each item of a list."""

    change: Change


class Values(msgspec.Struct, frozen=True):
    """Change each value of a map."""

    change: Change


Change = Cast | Symbols | Record | Items | Values


class Step(msgspec.Struct, frozen=True):
    """One field of the newer record.

    source:  the field of the older record to use; None: every record gets `default`
    type:    the Arrow type of the result
    default: a value of `type`
    change:  the conversion of `source`; None: none, its type is the same
    """

    name: str
    source: str | None
    type: pa.DataType
    default: pa.Scalar
    change: Change | None = None


class Unreadable(Exception):
    """One schema cannot read records of another; the message names the field."""


def plan(written: Schema, newest: Schema) -> list[Step] | None:
    """The steps that turn a record of one version into a record of another; None: impossible.

    The steps are in the order of newest.fields.
    """
    try:
        return list(steps(written, newest))
    except Unreadable:
        return None


@lru_cache(maxsize=256)
def steps(written: Schema, newest: Schema) -> tuple[Step, ...]:
    """The steps of `plan`; raises Unreadable with the reason instead of returning None."""
    return _steps(written.record, newest.record, "")


def resolved(array: pa.StructArray, written: Schema, newest: Schema) -> pa.StructArray:
    """Records of `written` as records of `newest`; all null if it cannot read them."""
    if written.arrow == newest.arrow and written.record == newest.record:
        return array
    steps_found = plan(written, newest)
    if steps_found is None:
        return pa.nulls(len(array), newest.arrow)
    return _record(tuple(steps_found), array)


def resolved_one(record: dict[str, Any], written: Schema, newest: Schema) -> dict[str, Any]:
    """One record of `written` as a record of `newest`; raises Misfit if it cannot be read."""
    try:
        newest_record: dict[str, Any] = _changed(Record(steps(written, newest)), record)
        return newest_record
    except Unreadable as error:
        raise Misfit("", f"is of a version that the newest cannot read: {error}") from error


def _steps(written: Type, newest: Type, path: str) -> tuple[Step, ...]:
    steps_made = []
    for field in newest.fields:
        here = f"{path}.{field.name}" if path else field.name
        source = source_of(written, field)
        if source is None:
            if field.is_needed:
                raise Unreadable(f"{here} is new and has no default")
            default = pa.scalar(field.default, field.type.arrow)
            steps_made.append(Step(field.name, None, field.type.arrow, default))
        else:
            change = _change(source.type, field.type, here)
            steps_made.append(
                Step(
                    field.name,
                    source.name,
                    field.type.arrow,
                    pa.scalar(None, field.type.arrow),
                    change,
                )
            )
    return tuple(steps_made)


def source_of(written: Type, field: Field) -> Field | None:
    """The older record's field with a field's name or one of its aliases; None: no such field."""
    for name in (field.name, *field.aliases):
        field_found = written.field(name)
        if field_found is not None:
            return field_found
    return None


def _change(old: Type, new: Type, path: str) -> Change | None:
    """The conversion of a value from the older to the newer type; raises Unreadable."""
    if old.nullable and not new.nullable:
        raise Unreadable(f"{path} may be null in older records")
    if new.kind == old.kind == "record":
        inner = _steps(old, new, path)
        is_same = old.arrow == new.arrow and all(
            step.source == step.name and step.change is None for step in inner
        )
        return None if is_same else Record(inner)
    if new.items is not None and old.items is not None and new.kind == old.kind:
        is_list = new.kind == "array"
        change = _change(old.items, new.items, f"{path}{'[]' if is_list else '{}'}")
        if change is None:
            return None
        return Items(change) if is_list else Values(change)
    if new.kind == old.kind == "enum":
        unknown = [symbol for symbol in old.symbols if symbol not in new.symbols]
        if not unknown:
            return None
        if new.symbol is None:
            raise Unreadable(f"{path} has lost the symbol {unknown[0]}, and has no default symbol")
        return Symbols(new.symbols, new.symbol)
    return _leaf_change(old, new, path)


def _leaf_change(old: Type, new: Type, path: str) -> Change | None:
    was, now = old.logical or old.kind, new.logical or new.kind
    if was == now == "decimal":
        if old.scale == new.scale and old.precision <= new.precision:
            return None if old.arrow == new.arrow else Cast(new.arrow)
        was, now = str(old.arrow), str(new.arrow)
    elif was == now == "fixed":
        if old.size == new.size:
            return None
        was, now = f"fixed of {old.size} bytes", f"of {new.size}"
    elif was == now or (now == "string" and was in ("uuid", "enum")):
        return None
    elif now in _WIDER.get(was, ()) or (now == "bytes" and was in ("string", "uuid")):
        return Cast(new.arrow)
    raise Unreadable(f"{path} was {was}, which does not become {now}")


def _record(steps_given: tuple[Step, ...], array: pa.StructArray) -> pa.StructArray:
    children = [
        pa.repeat(step.default, len(array))
        if step.source is None
        else _apply(step.change, array.field(step.source))
        for step in steps_given
    ]
    return pa.StructArray.from_arrays(
        children,
        fields=[pa.field(step.name, step.type) for step in steps_given],
        mask=array.is_null() if array.null_count else None,
    )


def _apply(change: Change | None, array: pa.Array) -> pa.Array:
    if change is None:
        return array
    if isinstance(change, Record):
        return _record(change.steps, array)
    if isinstance(change, Cast):
        return array.cast(change.type, safe=False)  # a large long is the nearest double
    if isinstance(change, Symbols):
        is_known = pc.is_in(array, pa.array(change.known))
        array_known = pc.if_else(is_known, array, change.default)
        return pc.if_else(pc.is_valid(array), array_known, pa.scalar(None, array.type))
    if array.offset:
        array = pa.concat_arrays([array])  # a slice has no mask of its own
    mask = array.is_null() if array.null_count else None
    if isinstance(change, Items):
        items = _apply(change.change, array.values)
        return pa.ListArray.from_arrays(array.offsets, items, mask=mask)
    items = _apply(change.change, array.items)
    return pa.MapArray.from_arrays(array.offsets, array.keys, items, mask=mask)


def _changed(change: Change | None, value: Any) -> Any:
    """The result of `_apply` for one value."""
    if change is None or value is None:
        return value
    if isinstance(change, Record):
        return {
            item.name: _natural(item.default)
            if item.source is None
            else _changed(item.change, value[item.source])
            for item in change.steps
        }
    if isinstance(change, Cast):
        return pa.scalar(value).cast(change.type, safe=False).as_py()
    if isinstance(change, Symbols):
        return value if value in change.known else change.default
    if isinstance(change, Items):
        return [_changed(change.change, item) for item in value]
    return {name: _changed(change.change, item) for name, item in value.items()}


def _natural(default: pa.Scalar) -> Any:
    return default.as_py(maps_as_pydicts="strict")


# --- compatibility --------------------------------------------------------------------------------

NONE: Final = "NONE"
BACKWARD: Final = "BACKWARD"
BACKWARD_TRANSITIVE: Final = "BACKWARD_TRANSITIVE"
FORWARD: Final = "FORWARD"
FORWARD_TRANSITIVE: Final = "FORWARD_TRANSITIVE"
FULL: Final = "FULL"
FULL_TRANSITIVE: Final = "FULL_TRANSITIVE"
ALWAYS_INCOMPATIBLE: Final = "ALWAYS_INCOMPATIBLE"
STRATEGIES: Final = (
    *(NONE, BACKWARD, BACKWARD_TRANSITIVE, FORWARD, FORWARD_TRANSITIVE, FULL, FULL_TRANSITIVE),
    ALWAYS_INCOMPATIBLE,
)
_NAMED: Final = ("record", "enum", "fixed")


def can_read(reader: Schema, writer: Schema) -> str | None:
    """None if `reader` can read all records of `writer`; otherwise the reason, with the field."""
    try:
        steps(writer, reader)
    except Unreadable as error:
        return str(error)
    return None


def can_read_anywhere(reader: Schema, writer: Schema) -> str | None:
    """As can_read, and for avro also by Avro's rules, which programs without this library use."""
    reason = can_read(reader, writer)
    if reason is not None or reader.type != "avro":
        return reason
    try:
        _check_avro(writer.record, reader.record, "")
    except Unreadable as error:
        return str(error)
    return None


def _shown(schema: Schema) -> str:
    """The type of a schema, for messages."""
    kind = schema.type.removeprefix(DECLARED)
    return kind if schema.is_record or kind not in TYPES else f"{kind} that is no record"


def _check_avro(old: Type, new: Type, path: str) -> None:
    """Raise Unreadable if Avro's rules refuse a change that `resolution` allows.

    A new field needs a default, even if it may be null. Records, enums and fixed need the same
    name, without namespace, or an alias. The outermost record is exempt: clients of Java name it
    after a class, and Pulsar lets another class follow. An enum is not a string.
    """
    if path and new.kind in _NAMED and new.kind == old.kind:
        names = {_short(new.name), *map(_short, new.aliases)}
        if _short(old.name) not in names:
            raise Unreadable(
                f"{path} was {new.kind} {_short(old.name)}, which Avro does not read as"
                f" {_short(new.name)}: name it the same, or give it an alias"
            )
    if old.kind == "enum" and new.kind == "string":
        raise Unreadable(f"{path} was enum, which does not become string in Avro")
    if new.items is not None and old.items is not None:
        _check_avro(old.items, new.items, f"{path}{'[]' if new.kind == 'array' else '{}'}")
    for field in new.fields:
        here = f"{path}.{field.name}" if path else field.name
        source = source_of(old, field)
        if source is not None:
            _check_avro(source.type, field.type, here)
        elif not field.has_default:
            raise Unreadable(f"{here} is new and has no default")


def _short(name: str) -> str:
    """A name without its namespace."""
    return name.rpartition(".")[2]


def check(strategy: str, new: Schema, older: Sequence[Schema]) -> str | None:
    """None if a schema may follow the older schemas, oldest first; otherwise the reason.

    A topic's type, avro or json, never changes: consumers of bytes know only one.
    """
    if strategy == NONE or not older:
        return None
    if strategy == ALWAYS_INCOMPATIBLE:
        return "the topic takes no other schema (ALWAYS_INCOMPATIBLE)"
    for older_schema in reversed(older if strategy.endswith("_TRANSITIVE") else older[-1:]):
        if older_schema.type != new.type:
            return f"its type is {_shown(new)}, before it was {_shown(older_schema)}"
        if not new.is_record:
            return f"definitions of type {_shown(new)} cannot be compared"
        if not strategy.startswith(FORWARD):
            reason = can_read_anywhere(new, older_schema)
            if reason is not None:
                return f"it cannot read existing records ({strategy}): {reason}"
        if not strategy.startswith(BACKWARD):
            reason = can_read_anywhere(older_schema, new)
            if reason is not None:
                return f"readers of an older version cannot read it ({strategy}): {reason}"
    return None
