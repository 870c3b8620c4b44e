"""Owns how records of one version become records of another: Avro's resolution, as steps.

`plan` says it in steps that Arrow, SQL and Spark can all take; `resolved` takes them in Arrow,
`resolved_one` for one record. Fields go by name, then by the aliases of the newer schema; what only
the newer has gets its default, or null; what only the older has is left out. An int may become a
long, float or double, a long a float or double, a float a double, a string bytes or, from a UUID or
an enum, any string; a decimal may get more digits before its point. Names of records do not matter.

No step can fail for any value. So bytes do not become strings, as Avro lets them, for they may not
be UTF-8; nor does a number become an instant, or one kind of instant another, for it would mean
something else.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import msgspec
import pyarrow as pa

from txlog.base.schemas.columns import Misfit
from txlog.base.schemas.schema import Field, Schema, Type
from txlog.base.startup import compute as pc

_WIDER: Final = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
}


class Cast(msgspec.Struct, frozen=True):
    """The value as another type of Arrow; every value fits, a large long as the nearest double."""

    type: pa.DataType


class Symbols(msgspec.Struct, frozen=True):
    """The value if it is one of `known`, otherwise `default`."""

    known: tuple[str, ...]
    default: str


class Record(msgspec.Struct, frozen=True):
    """A struct of these fields, from a struct; null stays null."""

    steps: tuple[Step, ...]


class Items(msgspec.Struct, frozen=True):
    """Each item of a list changed."""

    change: Change


class Values(msgspec.Struct, frozen=True):
    """Each value of a map changed."""

    change: Change


Change = Cast | Symbols | Record | Items | Values


class Step(msgspec.Struct, frozen=True):
    """One field of the newer record.

    source:  the field of the older one it is made of; None: it is `default` in every record
    type:    what it becomes
    default: of `type`
    change:  what happens to the value of `source`; None: nothing, its type is the same
    """

    name: str
    source: str | None
    type: pa.DataType
    default: pa.Scalar
    change: Change | None = None


class Unreadable(Exception):
    """Why one schema cannot read what another wrote, as words about a field."""


def plan(written: Schema, newest: Schema) -> list[Step] | None:
    """How the records of one version become those of another; None: they cannot.

    The steps are in the order of newest.fields.
    """
    try:
        return list(steps(written, newest))
    except Unreadable:
        return None


@lru_cache(maxsize=256)
def steps(written: Schema, newest: Schema) -> tuple[Step, ...]:
    """The same; raises Unreadable with the reason."""
    return _steps(written.record, newest.record, "")


def resolved(array: pa.StructArray, written: Schema, newest: Schema) -> pa.StructArray:
    """Records of `written` as records of `newest`; all null if it cannot read them."""
    if written.arrow == newest.arrow and written.record == newest.record:
        return array
    found = plan(written, newest)
    if found is None:
        return pa.nulls(len(array), newest.arrow)
    return _record(tuple(found), array)


def resolved_one(record: dict[str, Any], written: Schema, newest: Schema) -> dict[str, Any]:
    """The same for one record; raises Misfit if it cannot be read."""
    try:
        found: dict[str, Any] = _changed(Record(steps(written, newest)), record)
        return found
    except Unreadable as error:
        raise Misfit("", f"is of a version that the newest cannot read: {error}") from error


def _steps(written: Type, newest: Type, path: str) -> tuple[Step, ...]:
    made = []
    for one in newest.fields:
        here = f"{path}.{one.name}" if path else one.name
        source = source_of(written, one)
        if source is None:
            if one.is_needed:
                raise Unreadable(f"{here} is new and has no default")
            default = pa.scalar(one.default, one.type.arrow)
            made.append(Step(one.name, None, one.type.arrow, default))
        else:
            change = _change(source.type, one.type, here)
            made.append(
                Step(one.name, source.name, one.type.arrow, pa.scalar(None, one.type.arrow), change)
            )
    return tuple(made)


def source_of(written: Type, field: Field) -> Field | None:
    """The field of an older record that a field is made of, by its name or an alias; None: none."""
    for name in (field.name, *field.aliases):
        found = written.field(name)
        if found is not None:
            return found
    return None


def _change(old: Type, new: Type, path: str) -> Change | None:
    """What makes a value of the newer type of one of the older; raises Unreadable."""
    if old.nullable and not new.nullable:
        raise Unreadable(f"{path} may be null in what was written")
    if new.kind == old.kind == "record":
        inner = _steps(old, new, path)
        is_same = old.arrow == new.arrow and all(
            one.source == one.name and one.change is None for one in inner
        )
        return None if is_same else Record(inner)
    if new.items is not None and old.items is not None and new.kind == old.kind:
        is_list = new.kind == "array"
        change = _change(old.items, new.items, f"{path}{'[]' if is_list else '{}'}")
        if change is None:
            return None
        return Items(change) if is_list else Values(change)
    if new.kind == old.kind == "enum":
        unknown = [one for one in old.symbols if one not in new.symbols]
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


def _record(given: tuple[Step, ...], array: pa.StructArray) -> pa.StructArray:
    children = [
        pa.repeat(one.default, len(array))
        if one.source is None
        else _apply(one.change, array.field(one.source))
        for one in given
    ]
    return pa.StructArray.from_arrays(
        children,
        fields=[pa.field(one.name, one.type) for one in given],
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
        known = pc.if_else(is_known, array, change.default)
        return pc.if_else(pc.is_valid(array), known, pa.scalar(None, array.type))
    if array.offset:
        array = pa.concat_arrays([array])  # a slice has no mask of its own
    mask = array.is_null() if array.null_count else None
    if isinstance(change, Items):
        items = _apply(change.change, array.values)
        return pa.ListArray.from_arrays(array.offsets, items, mask=mask)
    items = _apply(change.change, array.items)
    return pa.MapArray.from_arrays(array.offsets, array.keys, items, mask=mask)


def _changed(change: Change | None, value: Any) -> Any:
    """One value as `_apply` makes it."""
    if change is None or value is None:
        return value
    if isinstance(change, Record):
        return {
            one.name: _natural(one.default)
            if one.source is None
            else _changed(one.change, value[one.source])
            for one in change.steps
        }
    if isinstance(change, Cast):
        return pa.scalar(value).cast(change.type, safe=False).as_py()
    if isinstance(change, Symbols):
        return value if value in change.known else change.default
    if isinstance(change, Items):
        return [_changed(change.change, one) for one in value]
    return {name: _changed(change.change, one) for name, one in value.items()}


def _natural(default: pa.Scalar) -> Any:
    return default.as_py(maps_as_pydicts="strict")
