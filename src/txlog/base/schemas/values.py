"""Owns a topic's values as records: bytes to columns and back, and single values.

    invalid(schema, values)     the rows whose values are not records, and why
    decode(schema, values)      records of valid values
    encode(schema, records)     values of columns; `written` returns the records as well
    decode_one, encode_one      one value

`decode` reads every value that `invalid` does not report, now and later, in any process: a writer
checks, and files, queries and readers rely on it.

`fitted` converts columns of a file or a query without loss. A number, an instant or a text that a
field cannot hold exactly is refused, with its row; only a double may lose digits as a float.
Texts of instants without a zone are local, columns of instants without one UTC.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar, overload

import msgspec
import pyarrow as pa

from txlog.base.schemas.classes import instance, natural, plain
from txlog.base.schemas.columns import UUID_PATTERN, Misfit, column, nulls_of
from txlog.base.schemas.forms import Form, form_of
from txlog.base.schemas.resolution import resolved, resolved_one
from txlog.base.schemas.schema import FLOAT_MAX, Schema, Type
from txlog.base.startup import compute as pc
from txlog.base.suggest import nearest
from txlog.base.times import local_zone_name
from txlog.errors import InvalidMessage

# --- casts ----------------------------------------------------------------------------------------

_INSTANT: Final = "2026-11-20T10:15:00"
_TEXTS: Final = {  # a column of text may write them so
    "date": "2026-11-20",
    "time-millis": "10:15:00",
    "time-micros": "10:15:00",
    "timestamp-millis": f"{_INSTANT}Z",
    "timestamp-micros": f"{_INSTANT}Z",
    "local-timestamp-millis": _INSTANT,
    "local-timestamp-micros": _INSTANT,
}


def fitted(schema: Schema, records: pa.StructArray) -> pa.StructArray:
    """Structs as structs of schema.arrow, fields by name; raises Misfit."""
    return _Fitting(schema.type == "json").record(schema.record, records, "")


class _Fitting:
    __slots__ = ("_is_json",)

    def __init__(self, is_json: bool) -> None:
        self._is_json = is_json

    def record(self, type: Type, array: pa.Array, path: str) -> pa.Array:
        """A struct, field after field."""
        source_names = [array.type.field(n).name for n in range(array.type.num_fields)]
        names = [field.name for field in type.fields]
        for name in source_names:
            if name not in names:
                near = nearest(name, names)
                like = f"; did you mean {near}?" if near else ""
                raise Misfit(_below(path, name), f"is no field of the schema{like}")
        columns = array.flatten()  # nulls of structs are nulls of their fields
        columns_made = []
        for field in type.fields:
            here = _below(path, field.name)
            if field.name in source_names:
                columns_made.append(
                    self.column(field.type, columns[source_names.index(field.name)], here)
                )
            elif field.is_needed and array.null_count < len(array):
                raise Misfit(here, "is missing and has no default")
            else:
                columns_made.append(
                    pa.repeat(pa.scalar(field.default, field.type.arrow), len(array))
                )
        mask = array.is_null() if array.null_count else None
        return pa.StructArray.from_arrays(columns_made, fields=list(type.arrow), mask=mask)

    def column(self, type: Type, array: pa.Array, path: str) -> pa.Array:
        """A column of any type, converted to `type.arrow`."""
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if isinstance(array.type, pa.BaseExtensionType):
            array = array.storage
        if pa.types.is_null(array.type):
            return pa.nulls(len(array), type.arrow)
        if type.kind == "record":
            if not pa.types.is_struct(array.type):
                raise _refused(type, array.type, path)
            return self.record(type, array, path)
        if type.items is not None:
            return self._items(type, array, path)
        if not _may_become(array.type, type):
            raise _refused(type, array.type, path)
        casted = _cast(type, array, path)
        wrong = self._wrong(type, casted)
        row = -1 if wrong is None else pc.index(wrong, True).as_py()
        if row >= 0:
            raise Misfit(path, f"is {_text(casted[row])}, it must be {type.words}", row)
        return casted

    def _items(self, type: Type, array: pa.Array, path: str) -> pa.Array:
        """A list or a map, with its items."""
        assert type.items is not None
        is_map = type.kind == "map"
        if pa.types.is_map(array.type) != is_map or not pa.types.is_nested(array.type):
            raise _refused(type, array.type, path)
        if pa.types.is_struct(array.type) or pa.types.is_union(array.type):
            raise _refused(type, array.type, path)
        mask = array.is_null() if array.null_count else None
        if is_map:
            items = pa.ListArray.from_arrays(_owned(array).offsets, _owned(array).items, mask=mask)
            keys = pa.ListArray.from_arrays(_owned(array).offsets, _owned(array).keys, mask=mask)
        else:
            items = array
        lengths = pc.fill_null(pc.list_value_length(items), 0)
        offsets = pa.concat_arrays(
            [pa.array([0], pa.int64()), pc.cumulative_sum(lengths.cast(pa.int64()))]
        ).cast(pa.int32())
        flat = items.flatten()
        try:
            converted = self.column(type.items, flat, f"{path}{'{}' if is_map else '[]'}")
        except Misfit as error:
            if error.row is not None:
                error.row = pc.list_parent_indices(items)[error.row].as_py()
            raise
        if is_map:
            names = self.column(Type(kind="string"), keys.flatten(), f"{path}{{}}")
            return pa.MapArray.from_arrays(offsets, names, converted, mask=mask)
        return pa.ListArray.from_arrays(offsets, converted, mask=mask)

    def _wrong(self, type: Type, array: pa.Array) -> pa.Array | None:
        """A mask of values of the right type that the schema does not allow; None: no check."""
        if type.logical == "uuid":
            return pc.invert(pc.match_substring_regex(array, UUID_PATTERN))
        if type.kind == "enum":
            is_symbol = pc.is_in(array, pa.array(type.symbols))
            return pc.and_(pc.is_valid(array), pc.invert(is_symbol))
        if type.kind in ("float", "double") and self._is_json:
            return pc.invert(pc.is_finite(array))  # JSON cannot express them
        if type.limits is not None and type.logical:
            low, high = type.limits
            whole = array.view(pa.int32() if type.kind == "int" else pa.int64())
            return pc.or_(pc.less(whole, low), pc.greater(whole, high))
        return None


def _owned(array: pa.Array) -> pa.Array:
    return pa.concat_arrays([array]) if array.offset else array


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _refused(type: Type, source_type: pa.DataType, path: str) -> Misfit:
    return Misfit(path, f"is {source_type}, it must be {type.words}")


def _text(value: pa.Scalar) -> str:
    try:
        text = repr(value.as_py())
    except (ValueError, OverflowError):  # an instant that Python cannot show
        text = str(value.value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _is_text(type: pa.DataType) -> bool:
    return bool(
        pa.types.is_string(type) or pa.types.is_large_string(type) or pa.types.is_string_view(type)
    )


def _is_bytes(type: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(type)
        or pa.types.is_large_binary(type)
        or pa.types.is_binary_view(type)
        or pa.types.is_fixed_size_binary(type)
    )


def _may_become(source_type: pa.DataType, type: Type) -> bool:
    """Whether the schema can take values of an Arrow type."""
    is_number = pa.types.is_integer(source_type) or pa.types.is_floating(source_type)
    target = type.arrow
    if _is_text(source_type):
        return type.kind not in ("bytes", "fixed") or type.logical == "decimal"
    if type.logical == "decimal":
        return bool(pa.types.is_integer(source_type) or pa.types.is_decimal(source_type))
    if type.kind in ("bytes", "fixed"):
        return _is_bytes(source_type)
    if pa.types.is_timestamp(target):
        if pa.types.is_timestamp(source_type):
            return source_type.tz is None or target.tz is not None
        return bool(pa.types.is_integer(source_type) or pa.types.is_date(source_type))
    if pa.types.is_date(target):
        return bool(pa.types.is_date(source_type) or pa.types.is_integer(source_type))
    if pa.types.is_time(target):
        return bool(pa.types.is_time(source_type) or pa.types.is_integer(source_type))
    if type.kind in ("int", "long", "float", "double"):
        return bool(is_number or pa.types.is_decimal(source_type))
    return bool(type.kind == "boolean" and pa.types.is_boolean(source_type))


def _cast(type: Type, array: pa.Array, path: str) -> pa.Array:
    """The converted column; raises Misfit with the first row that cannot be converted."""
    cast = _way(type, array.type)
    try:
        return cast(array)
    except (pa.ArrowException, OverflowError):
        low, high = 0, len(array)  # the first `low` rows convert, the first `high` do not
        while high - low > 1:
            middle = (low + high) // 2
            try:
                cast(array.slice(low, middle - low))
                low = middle
            except (pa.ArrowException, OverflowError):
                high = middle
        wanted = type.words
        if _is_text(array.type) and type.logical in _TEXTS:
            wanted += f", or text such as {_TEXTS[type.logical]}"
        raise Misfit(path, f"is {_text(array[low])}, it must be {wanted}", low) from None


def _way(type: Type, source_type: pa.DataType) -> Callable[[pa.Array], pa.Array]:
    target = type.arrow

    def as_is(array: pa.Array) -> pa.Array:
        return array.cast(target)

    if source_type == target:
        return lambda array: array
    if pa.types.is_timestamp(target) and target.tz is not None and _is_text(source_type):
        return lambda array: _as_instants(array.cast(pa.string()), target)
    if pa.types.is_time(target) and _is_text(source_type):
        return lambda array: _on_first_day(array.cast(pa.string())).cast(target)
    if type.kind == "fixed":
        return lambda array: pa.array(array.to_pylist(), target)
    if type.logical == "decimal" and pa.types.is_integer(source_type):
        return lambda array: array.cast(pa.decimal128(38, type.scale)).cast(target)
    if type.limits is not None and type.logical and pa.types.is_integer(source_type):
        whole = pa.int32() if type.kind == "int" else pa.int64()
        return lambda array: array.cast(whole).view(target)
    if type.kind == "float" and source_type != pa.float32():
        return _to_float
    return as_is


def _as_instants(texts: pa.Array, target: pa.DataType) -> pa.Array:
    """Texts of instants, in the local zone where they have none, as options read them.

    raises: pa.ArrowInvalid, also for a local time that a change of the clocks skips or repeats
    """
    has_zone = pc.match_substring_regex(texts, r"[ T].*(Z|[-+][0-9]{2}(:?[0-9]{2})?)$")
    if pc.all(has_zone).as_py() is not False:
        return texts.cast(target)
    zone = local_zone_name()
    if zone is None:
        raise pa.ArrowInvalid("the local zone has no name: give each instant a zone")
    nothing = pa.scalar(None, pa.string())
    local = pc.if_else(has_zone, nothing, texts).cast(pa.timestamp("us"))
    moments = pc.assume_timezone(local, zone).cast(target)
    return pc.coalesce(pc.if_else(has_zone, texts, nothing).cast(target), moments)


def _on_first_day(array: pa.Array) -> pa.Array:
    """Texts of times as instants of 1970-01-01."""
    texts = pc.binary_join_element_wise(pa.scalar("1970-01-01"), array, "T")
    return texts.cast(pa.timestamp("us"))


def with_numbers(schema: Schema, value: bytes) -> bytes:
    """A JSON object whose fields of dates and times are numbers, also where it has texts.

    Other members stay as they are written.
    raises: InvalidMessage for a text that is no such time
    """
    try:
        members = msgspec.json.decode(value, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return value  # the check of the value says why
    is_changed = False
    for field in schema.fields:
        member = bytes(members.get(field.name, b"")).strip()
        if field.type.limits is None or not field.type.logical or member[:1] != b'"':
            continue
        try:
            texts = pa.array([msgspec.json.decode(member)], pa.string())
            array = _Fitting(True).column(field.type, texts, field.name)
        except Misfit as error:
            raise InvalidMessage(str(error)) from error
        whole = array.view(pa.int32() if field.type.kind == "int" else pa.int64())
        members[field.name] = msgspec.Raw(str(whole[0].as_py()).encode())
        is_changed = True
    return msgspec.json.encode(members) if is_changed else value


def _to_float(array: pa.Array) -> pa.Array:
    double = array.cast(pa.float64())
    large = pc.and_(pc.greater(pc.abs(double), FLOAT_MAX["float"]), pc.is_finite(double))
    if pc.any(large).as_py():
        raise pa.ArrowInvalid("beyond the numbers of 32 bits")
    return double.cast(pa.float32())


# --- columns of values ----------------------------------------------------------------------------

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
    """The records of values that `invalid` does not report, as structs; null for null.

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
             have another type if every value fits; text may replace any type, as in a CSV file
    raises:  InvalidMessage with the row, the field, its value and its type
    """
    return written(schema, records)[0]


def written(schema: Schema, records: pa.StructArray) -> tuple[pa.Array, pa.StructArray]:
    """The values of `encode`, and the records that `decode` would return for them.

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
