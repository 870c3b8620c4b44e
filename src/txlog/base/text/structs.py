"""Owns columns of records as JSON: structs, lists and maps of any depth, built by Arrow.

Bytes are text, or base64 if they are not UTF-8. Dates, times and instants are ISO 8601 texts,
decimals texts with every digit; a number that JSON lacks is a text, too.
"""

from __future__ import annotations

import pyarrow as pa

from txlog.base.startup import compute as pc
from txlog.base.text import columns
from txlog.base.text.columns import Column, Part


def json_of(column: pa.Array) -> pa.Array:
    """Each value as JSON text; null where the value is null."""
    if column.null_count == len(column):
        return pa.nulls(len(column), pa.string())
    text = columns.joined(_parts(column), len(column))
    text = text.cast(pa.large_string() if columns.is_large(text) else pa.string())
    if not column.null_count:
        return text
    return pc.if_else(column.is_valid(), text, pa.scalar(None, text.type))


def text_of(column: pa.Array) -> Column:
    """Each value as the text of a cell: nested values as JSON, others as in JSON without quotes."""
    kind = column.type
    if pa.types.is_nested(kind):
        return json_of(column)
    if is_number(kind):
        return columns.numbers(column)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return columns.strings(column)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return columns.text_of(column)[0]
    if pa.types.is_fixed_size_binary(kind):
        return columns.text_of(column.cast(pa.binary()))[0]
    return columns.strings(_plain(column))


def is_number(kind: pa.DataType) -> bool:
    """Whether the text of a value needs no quotes."""
    tests = (pa.types.is_boolean, pa.types.is_integer, pa.types.is_floating)
    return any(test(kind) for test in tests)


def _parts(column: pa.Array) -> list[Part]:
    kind = column.type
    if column.null_count == len(column):
        return [b"null"]
    if pa.types.is_struct(kind):
        members = [
            (kind.field(at).name, _parts(field)) for at, field in enumerate(column.flatten())
        ]
        return _if_valid(column, columns.json_object(members) if members else [b"{}"])
    if pa.types.is_map(kind):
        flat = _entries(column)
        keys, items = flat.flatten()
        pairs = [b'"', columns.json_escaped(keys), b'":', *_parts(items)]
        return _if_valid(column, [b"{", _within(column, pairs, len(keys)), b"}"])
    if pa.types.is_list(kind):
        return _if_valid(column, [b"[", _items(column), b"]"])
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return columns.json_bare(columns.numbers(column))
    if pa.types.is_floating(kind):
        text = column.cast(pa.string())
        is_number = pc.is_finite(column)
        if not columns.are_all(is_number):
            quoted = pc.binary_join_element_wise('"', text, '"', "")
            text = pc.if_else(is_number, text, quoted)
        return columns.json_bare(text)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return columns.json_text(columns.strings(column))
    if pa.types.is_fixed_size_binary(kind):
        return columns.json_text(columns.text_of(column.cast(pa.binary()))[0])
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return columns.json_text(columns.text_of(column)[0])
    return columns.json_safe(columns.strings(_plain(column)))


def _plain(column: pa.Array) -> pa.Array:
    """Dates, times, instants and decimals as text; outside the years 1 to 9999 as numbers."""
    kind = column.type
    if not pa.types.is_timestamp(kind):
        return column.cast(pa.string())
    try:
        text = pc.cast(column.cast(pa.timestamp(kind.unit)), pa.string())
    except pa.ArrowInvalid:
        return column.cast(pa.int64()).cast(pa.string())
    text = pc.binary_replace_slice(text, 10, 11, "T")
    return pc.binary_join_element_wise(text, "Z", "") if kind.tz else text


def _as_lists(column: pa.MapArray) -> pa.Array:
    pair = pa.struct([("key", column.type.key_type), ("value", column.type.item_type)])
    return column.cast(pa.list_(pair))


def _entries(column: pa.MapArray) -> pa.StructArray:
    """The pairs of the maps in a column, without pairs outside its slice."""
    return _as_lists(column).flatten()


def _items(column: pa.Array) -> pa.Array:
    values = column.flatten()  # without what null rows may hold
    return _within(column, _parts(values), len(values))


def _within(column: pa.Array, parts: list[Part], count: int) -> pa.Array:
    """The items of lists, or pairs of maps, joined by commas."""
    texts = columns.joined(parts, count).cast(pa.string())
    lengths = _lengths(column)
    ends = pc.cumulative_sum(lengths)
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends.cast(pa.int32())])
    return pc.binary_join(pa.ListArray.from_arrays(offsets, texts), ",")


def _lengths(column: pa.Array) -> pa.Array:
    lists = _as_lists(column) if pa.types.is_map(column.type) else column
    return pc.fill_null(pc.list_value_length(lists), 0).cast(pa.int32())


def _if_valid(column: pa.Array, parts: list[Part]) -> list[Part]:
    """The parts, with null in the rows that are null."""
    if not column.null_count:
        return parts
    text = columns.joined(parts, len(column))
    text = text.cast(pa.large_string() if columns.is_large(text) else pa.string())
    return [pc.if_else(column.is_valid(), text, pa.scalar("null", text.type))]
