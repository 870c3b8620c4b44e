"""Owns a topic's values as records: bytes to columns and back, and single values.

    invalid(schema, values)     the values that are not records, and why
    decode(schema, values)      records of valid values
    encode(schema, records)     values of columns; `written` returns the records as well
    decode_one, encode_one      the same for one message

`decode` takes every value that `invalid` accepts, at any time and in any process: a writer checks,
and files, queries and readers rely on it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, Final, TypeVar, overload

import pyarrow as pa

from txlog.base.schemas.casts import fitted
from txlog.base.schemas.classes import instance, natural, plain
from txlog.base.schemas.columns import Misfit, column, nulls_of
from txlog.base.schemas.forms import Form, form_of
from txlog.base.schemas.resolution import resolved, resolved_one
from txlog.base.schemas.schema import Schema
from txlog.errors import InvalidMessage

T = TypeVar("T")
# Rows that are Python objects at a time: as many as fit in a processor's cache.
_ROWS_MAX: Final = 1_024
_BYTES_MAX: Final = 32 << 20
_WRITTEN_MAX: Final = 16_384


def invalid(schema: Schema, values: pa.Array | pa.ChunkedArray) -> list[tuple[int, str]]:
    """The rows whose values are not records, each with the problem in one line.

    values: binary; a null has no record, and is not checked
    """
    form = form_of(schema)
    rows_invalid: list[tuple[int, str]] = []
    for start, block in _blocks(values):
        there = [value for value in block if value is not None]
        if not _all_valid(schema, form, there):
            rows_invalid += _invalid_rows(schema, form, start, block)
    return rows_invalid


def decode(
    schema: Schema, values: pa.Array | pa.ChunkedArray, *, as_of: Schema | None = None
) -> pa.StructArray | pa.ChunkedArray:
    """The records of values that `invalid` has accepted, as structs; null for null.

    values: binary; chunks give chunks
    as_of:  return records of this schema; all null if it cannot read them
    raises: InvalidMessage: a value that is not a record after all, with its row
    """
    if isinstance(values, pa.ChunkedArray):
        target = (as_of or schema).arrow
        return pa.chunked_array(
            [decode(schema, chunk, as_of=as_of) for chunk in values.chunks], target
        )
    form = form_of(schema)
    pieces = []
    for start, block in _blocks(values):
        try:
            pieces.append(_column(schema, form, block))
        except Exception:  # an error of msgspec, fastavro or Arrow: find the bad row
            for row, reason in _invalid_rows(schema, form, start, block):
                raise InvalidMessage(f"row {row}: {reason}") from None
            raise
    array = pa.concat_arrays(pieces) if pieces else pa.array([], schema.arrow)
    return array if as_of is None else resolved(array, schema, as_of)


def encode(schema: Schema, records: pa.StructArray) -> pa.Array:
    """The values of records, binary; a null struct is a null value.

    records: its fields by name; a missing field gets its default, or null. Numbers and times may
             have another type if every value fits; text may stand for any type, as in a CSV file
    raises:  InvalidMessage with the row, the field, its value and its type
    """
    return written(schema, records)[0]


def written(schema: Schema, records: pa.StructArray) -> tuple[pa.Array, pa.StructArray]:
    """The same values, and the records that `decode` would return for them, without decoding.

    raises: as encode
    """
    form = form_of(schema)
    pieces = []
    try:
        array = fitted(schema, records)
        try:
            array.validate(full=True)  # foreign text may not be UTF-8
        except pa.ArrowInvalid as error:
            raise Misfit("", f"cannot be written: {error}") from error
        wrong = nulls_of(array, schema.fields)
        if wrong is not None:
            raise wrong
        for start in range(0, len(array), _WRITTEN_MAX):
            pieces.append(form.write_all(array.slice(start, _WRITTEN_MAX)))
    except Misfit as error:
        prefix = "" if error.row is None else f"row {error.row}: "
        raise InvalidMessage(f"{prefix}{error}") from error
    return pa.concat_arrays(pieces) if pieces else pa.array([], pa.binary()), array


def encode_one(schema: Schema, obj: object) -> bytes:
    """The value of one record: a dict, or an instance of the schema's class.

    raises: InvalidMessage with the field, its value and its type
    """
    form = form_of(schema)
    try:
        return form.write(plain(schema.record, obj, form))
    except Misfit as error:
        raise InvalidMessage(str(error)) from error


@overload
def decode_one(
    schema: Schema, data: bytes, as_type: None = None, as_of: Schema | None = None
) -> dict[str, Any]: ...
@overload
def decode_one(schema: Schema, data: bytes, as_type: type[T], as_of: Schema | None = None) -> T: ...
def decode_one(
    schema: Schema, data: bytes, as_type: type[T] | None = None, as_of: Schema | None = None
) -> T | dict[str, Any]:
    """The record of one value: a dict in the form of Arrow's structs, or an instance of a class.

    as_of:  return a record of this schema
    raises: InvalidMessage: it is not a record of the schema, or `as_of` cannot read it;
            InvalidArgument: the class does not fit
    """
    form = form_of(schema)
    try:
        record = natural(schema.record, form.read(data), form)
        if as_of is not None and as_of != schema:
            record = resolved_one(record, schema, as_of)
        return record if as_type is None else instance(record, as_type)
    except Misfit as error:
        raise InvalidMessage(str(error)) from error


def _blocks(values: pa.Array | pa.ChunkedArray) -> Iterator[tuple[int, list[bytes | None]]]:
    """Values a block at a time, with the row of the first; a block has few large values."""
    row = 0
    for chunk in values.chunks if isinstance(values, pa.ChunkedArray) else [values]:
        for start in range(0, len(chunk), _ROWS_MAX):
            block = chunk.slice(start, _ROWS_MAX)
            step = _ROWS_MAX if block.nbytes <= _BYTES_MAX else 1
            for first in range(0, len(block), step):
                yield row + first, block.slice(first, step).to_pylist()
            row += len(block)


def _column(schema: Schema, form: Form, block: list[bytes | None]) -> pa.StructArray:
    records = form.read_valid([value for value in block if value is not None])
    if len(records) < len(block):
        rows = iter(records)
        records = [None if value is None else next(rows) for value in block]
    return column(schema.record, records, form)


def _all_valid(schema: Schema, form: Form, values: list[bytes]) -> bool:
    try:
        if schema.type == "json":
            deque(map(form.read, values), maxlen=0)
        else:
            column(schema.record, list(map(form.read, values)), form)
    except (Misfit, OverflowError, pa.ArrowException):
        return False
    return True


def _invalid_rows(
    schema: Schema, form: Form, start: int, block: list[bytes | None]
) -> list[tuple[int, str]]:
    rows_invalid = []
    for n, value in enumerate(block):
        if value is None:
            continue
        try:
            natural(schema.record, form.read(value), form)
        except Misfit as error:
            rows_invalid.append((start + n, str(error)))
    return rows_invalid
