"""The columns of a stored row, and the one way to bring a table into their shape.

Partition and sidecar files, parts, sealed and adopted files share one schema, so that one scan can
read them all. A file may lack columns: an absent column reads as null.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final

import pyarrow as pa

from txlog.base.message_columns import STORED, TYPES

KIND_DATA: Final = 0
INSTANT = pa.timestamp("ms", "UTC")
PROPERTY_MAP = pa.map_(pa.string(), pa.string())

_ARROW: Final = {"instant": INSTANT, "properties": PROPERTY_MAP}


# Nullability is not declared: a table built elsewhere from the same columns must concatenate with
# one read from a file, and pyarrow compares the flag.
@lru_cache(maxsize=64)
def schema_of(names: tuple[str, ...]) -> pa.Schema:
    """The schema of the named columns, in the given order; the same object each time."""
    words = ((name, TYPES[name].arrow) for name in names)
    return pa.schema([(name, _ARROW.get(word) or pa.type_for_alias(word)) for name, word in words])


MESSAGE: Final = schema_of(STORED)
_VARIABLE: Final = frozenset([pa.string(), pa.binary()])
_FIXED: Final = frozenset([pa.int8(), pa.int32(), pa.int64(), INSTANT])
FEW_ROWS: Final = 1024  # below this, sharing costs more than it saves
SHARED_ROWS: Final = 1 << 16  # null columns up to here share one memory; a row group has fewer


def constant(value: object, kind: pa.DataType, total: int) -> pa.Array:
    """A column with one value in every row; short columns of the same value share their memory."""
    if total > FEW_ROWS:
        return pa.nulls(total, kind) if value is None else _repeated(value, kind, total)
    return _few(value, kind).slice(0, total)


@lru_cache(maxsize=32)
def _few(value: object, kind: pa.DataType) -> pa.Array:
    return pa.nulls(FEW_ROWS, kind) if value is None else _repeated(value, kind, FEW_ROWS)


def _repeated(value: object, kind: pa.DataType, total: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), total)


def nulls_of(total: int) -> Callable[[pa.DataType], pa.Array]:
    """A function that makes null columns with this many rows, which share their memory.

    Most rows have no value in most columns, and otherwise each null column takes its full width.
    """
    shared: list[pa.Buffer] = []

    def nulls(kind: pa.DataType) -> pa.Array:
        if total < FEW_ROWS:
            return constant(None, kind, total)
        if not (kind in _FIXED or kind in _VARIABLE):
            return pa.nulls(total, kind)
        if not shared:
            shared.append(_zeros() if total < SHARED_ROWS else _zeros_of(total))
        [zeros] = shared
        buffers = [zeros, zeros, zeros] if kind in _VARIABLE else [zeros, zeros]
        return pa.Array.from_buffers(kind, total, buffers, total)

    return nulls


@lru_cache(maxsize=1)
def _zeros() -> pa.Buffer:
    return _zeros_of(SHARED_ROWS)


def _zeros_of(rows: int) -> pa.Buffer:
    return pa.nulls(rows + 1, pa.int64()).buffers()[1]


def conform(table: pa.Table, schema: pa.Schema = MESSAGE) -> pa.Table:
    """The table with exactly the columns of `schema`, in order; absent columns are null.

    Columns that `schema` does not name are dropped: a later version may have written them.
    """
    if table.schema.equals(schema, check_metadata=True):
        return table
    columns = []
    nulls = nulls_of(table.num_rows)
    for field in schema:
        at = table.schema.get_field_index(field.name)
        if at < 0:
            columns.append(nulls(field.type))
            continue
        column = table.column(at)
        columns.append(column if column.type.equals(field.type) else column.cast(field.type))
    return pa.Table.from_arrays(columns, schema=schema)
