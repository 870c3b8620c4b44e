"""Owns the conversion of plain values to columns of Arrow, and back, a column at a time.

A plain value is the form that both types of schema share: integers for dates, times and instants,
bytes, str, lists, dicts for maps. `forms` decides how records and decimals look; it also splits
records into columns and joins them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, chain, pairwise
from typing import Any, Final, Protocol, TypeAlias

import pyarrow as pa

from txlog.base.schemas.schema import Field, Type
from txlog.base.startup import compute as pc

Plain: TypeAlias = Any
UUID_PATTERN: Final = r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"


class Parts(Protocol):
    """The differences between plain values of the two types of schema."""

    def columns_of(self, type: Type, records: list[Any]) -> Iterable[Sequence[Any]]:
        """The values of each field; there is at least one record."""
        ...

    def decimals(self, type: Type, values: Sequence[Any], path: str) -> pa.Array:
        """Convert decimals to a column; raises Misfit."""
        ...

    def plain_decimals(self, type: Type, column: pa.Array) -> list[Any]:
        """Convert a column of decimals back."""
        ...


class Misfit(Exception):
    """A value that does not fit its type; the text has its field and the problem.

    row: the row of the value, from 0; None: unknown
    """

    def __init__(self, path: str, problem: str, row: int | None = None) -> None:
        super().__init__(path, problem)
        self.path, self.what, self.row = path, problem, row

    def __str__(self) -> str:
        return f"{self.path or 'the value'} {self.what}"

    def below(self, name: str) -> Misfit:
        """Put the field or the item [n] that contains the value before its path; return self."""
        point = "." if self.path and self.path[0] not in "[{" else ""
        self.path = f"{name}{point}{self.path}"
        return self


def column(type: Type, values: Sequence[Any], parts: Parts, path: str = "") -> pa.Array:
    """Plain values as an array of `type.arrow`; None is null.

    raises: Misfit, without its row, OverflowError or pa.ArrowException for a value out of bounds
    """
    if type.kind == "record":
        return _records(type, values, parts, path)
    if type.items is not None:
        return _lists(type, values, parts, path)
    if type.logical == "decimal":
        return parts.decimals(type, values, path)
    if type.limits is None:
        array = pa.array(values, type.arrow)
        if type.logical == "uuid":
            is_one = pc.match_substring_regex(array, UUID_PATTERN)  # of null, null
            if pc.any(pc.invert(is_one)).as_py():
                raise Misfit(path, f"is not a UUID, it must be {type.words}")
        return array
    whole = pa.array(values, pa.int32() if type.kind == "int" else pa.int64())
    if type.logical:
        low, high = type.limits
        bounds = pc.min_max(whole)
        if (
            bounds["min"].is_valid
            and not low <= bounds["min"].as_py() <= bounds["max"].as_py() <= high
        ):
            raise Misfit(path, f"is out of bounds, it must be {type.words}")
        whole = whole.view(type.arrow)
    return whole


def _records(type: Type, values: Sequence[Any], parts: Parts, path: str) -> pa.Array:
    there = [value for value in values if value is not None]
    if not there:
        return pa.nulls(len(values), type.arrow)
    structs = pa.StructArray.from_arrays(
        [
            column(value.type, items, parts, f"{path}.{value.name}" if path else value.name)
            for value, items in zip(type.fields, parts.columns_of(type, there), strict=True)
        ],
        fields=list(type.arrow),
    )
    if len(there) == len(values):
        return structs
    rows = iter(range(len(there)))
    return structs.take(
        pa.array([None if value is None else next(rows) for value in values], pa.int64())
    )


def _lists(type: Type, values: Sequence[Any], parts: Parts, path: str) -> pa.Array:
    assert type.items is not None
    there = [value for value in values if value is not None]
    ends = accumulate((0 if value is None else len(value) for value in values), initial=0)
    offsets = pa.array(ends, pa.int32())
    if type.kind == "array":
        items = column(type.items, list(chain.from_iterable(there)), parts, f"{path}[]")
        array = pa.ListArray.from_arrays(offsets, items, mask=_mask(values, there))
    else:
        keys = pa.array(list(chain.from_iterable(there)), pa.string())
        flat = list(chain.from_iterable(value.values() for value in there))
        items = column(type.items, flat, parts, f"{path}{{}}")
        array = pa.MapArray.from_arrays(offsets, keys, items, mask=_mask(values, there))
    return array


def _mask(values: Sequence[Any], there: list[Any]) -> pa.Array | None:
    if len(there) == len(values):
        return None
    return pa.array([value is None for value in values], pa.bool_())


def plain_values(type: Type, array: pa.Array, parts: Parts) -> list[Any]:
    """The plain values of a column, as `column` takes them; a record is a dict."""
    if type.kind == "record":
        return _plain_records(type, array, parts)
    if type.items is not None:
        return _plain_lists(type, array, parts)
    if type.logical == "decimal":
        return parts.plain_decimals(type, array)
    if type.limits is not None and type.logical:
        array = array.view(pa.int32() if type.kind == "int" else pa.int64())
    plain: list[Any] = array.to_pylist()
    return plain


def _plain_records(type: Type, array: pa.Array, parts: Parts) -> list[Any]:
    names = [field.name for field in type.fields]
    columns = [
        plain_values(field.type, array.field(n), parts) for n, field in enumerate(type.fields)
    ]
    rows: list[Any] = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    return _without_nulls(array, rows)


def _plain_lists(type: Type, array: pa.Array, parts: Parts) -> list[Any]:
    assert type.items is not None
    ends = array.offsets.to_pylist()
    first = ends[0] if ends else 0
    count = (ends[-1] if ends else 0) - first
    if type.kind == "array":
        items = plain_values(type.items, array.values.slice(first, count), parts)
        rows: list[Any] = [items[start - first : stop - first] for start, stop in pairwise(ends)]
        return _without_nulls(array, rows)
    keys = array.keys.slice(first, count).to_pylist()
    items = plain_values(type.items, array.items.slice(first, count), parts)
    rows = [
        dict(
            zip(
                keys[start - first : stop - first], items[start - first : stop - first], strict=True
            )
        )
        for start, stop in pairwise(ends)
    ]
    return _without_nulls(array, rows)


def _without_nulls(array: pa.Array, rows: list[Any]) -> list[Any]:
    if not array.null_count:
        return rows
    is_there = array.is_valid().to_pylist()
    return [row if there else None for row, there in zip(rows, is_there, strict=True)]


def nulls_of(array: pa.Array, fields: tuple[Field, ...], path: str = "") -> Misfit | None:
    """The first null in place of a required value; None: there is none.

    array: of structs whose fields are in the order of `fields`
    """
    for n, field in enumerate(fields):
        here = f"{path}.{field.name}" if path else field.name
        misfit = _null_in(field.type, array.flatten()[n], pc.is_valid(array), here)
        if misfit is not None:
            return misfit
    return None


def _null_in(type: Type, array: pa.Array, is_there: pa.Array, path: str) -> Misfit | None:
    """The first null of a column, in rows whose parent is not null."""
    if not type.nullable and array.null_count:
        missing = pc.and_(is_there, pc.is_null(array))
        row = pc.index(missing, True).as_py()
        if row >= 0:
            return Misfit(path, f"is null, it must be {type.words}", row)
    if type.kind == "record":
        return nulls_of(array, type.fields, path)
    if type.items is not None and len(array):
        inner, sign = (array.flatten(), "[]") if type.kind == "array" else _values(array)
        misfit = _null_in(type.items, inner, pa.repeat(True, len(inner)), f"{path}{sign}")
        if misfit is not None and misfit.row is not None:
            row_of = pc.list_parent_indices(array if type.kind == "array" else _as_lists(array))
            misfit.row = row_of[misfit.row].as_py()
        return misfit
    return None


def _as_lists(array: pa.Array) -> pa.Array:
    """A map as a list of its values."""
    mask = array.is_null() if array.null_count else None
    return pa.ListArray.from_arrays(array.offsets, array.items, mask=mask)


def _values(array: pa.Array) -> tuple[pa.Array, str]:
    return _as_lists(array).flatten(), "{}"
