"""Owns the conversion of Arrow columns to text, and of columns of text to bytes of records.

No value becomes a Python object, except where no kernel exists: base64, and bytes that are not
UTF-8. A column of text is a string array with null for no value; a single str if all rows have the
same text; None if no row has any. A record is a list of parts, which are columns and the bytes
between them; `joined` joins the parts of all rows in one buffer.

Characters that a JSON string or a cell cannot contain are searched in the bytes of the whole column
at once, and replaced only if there are any: most columns have none.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import pyarrow as pa

from txlog.base.settings import INSTANT_MS_MAX, SECOND_MS
from txlog.base.startup import compute as pc
from txlog.base.startup import json as orjson
from txlog.base.times import INSTANT_MS_MIN, format_time

Column: TypeAlias = pa.Array | str | None
Part: TypeAlias = pa.Array | bytes

_PIECE_BYTES: Final = 32 << 20
_INSTANT: Final = "2026-11-20T09:12:04.117Z"
# The subset of `parse_time` that Arrow can read, too; numbers have at most the digits of an
# instant.
_RFC3339: Final = (
    r"^[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?"
    r"(Z|[+-][0-9]{2}:[0-9]{2})$"
)
_DIGITS: Final = "^[0-9]{1,15}$"
_INSTANT_CHARS: Final = len(_INSTANT) - 1  # length of an instant in Arrow's text
_CODE_BYTES: Final = 8
_LARGE_BYTES: Final = 128 << 20  # escaped text can be six times as long
_WIDE: Final = {pa.binary(): pa.large_binary(), pa.string(): pa.large_string()}
_TEXT: Final = (pa.types.is_string, pa.types.is_large_string)
_LARGE: Final = (pa.types.is_large_string, pa.types.is_large_binary)
_OFTEN: Final = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_SELDOM: Final = {"\b": "\\b", "\f": "\\f"} | {
    chr(n): f"\\u{n:04x}" for n in range(32) if chr(n) not in "\n\r\t\b\f"
}
_SELDOM_BYTES: Final = "".join(_SELDOM).encode()
_TSV: Final = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}
_CSV_MARKS: Final = (",", '"', "\n", "\r")


# --- rows that fit in memory -----------------------------------------------------------------


def pieces(table: pa.Table | pa.RecordBatch) -> Iterator[pa.Table]:
    """A table or batch in pieces whose text fits in memory; a row is never cut."""
    if len(table) < 2 or not _is_heavy(table, _PIECE_BYTES):
        yield table
        return
    half = len(table) // 2
    yield from pieces(table.slice(0, half))
    yield from pieces(table.slice(half))


def _is_heavy(table: pa.Table | pa.RecordBatch, limit_bytes: int) -> bool:
    # `nbytes` of a table of many chunks takes a millisecond, the size of its buffers no time.
    heavy: bool = table.get_total_buffer_size() > limit_bytes and table.nbytes > limit_bytes
    return heavy


def widened(table: pa.Table | pa.RecordBatch) -> Callable[[pa.Array], pa.Array]:
    """Return a function that gives columns offsets of 64 bits if their text may exceed 2 GiB."""
    if not _is_heavy(table, _LARGE_BYTES):
        return lambda column: column
    return lambda column: column.cast(_WIDE.get(column.type, column.type))


# --- columns ---------------------------------------------------------------------------------


def is_large(column: pa.Array) -> bool:
    """Whether its offsets have 64 bits."""
    return any(is_kind(column.type) for is_kind in _LARGE)


def as_text(column: pa.Array) -> pa.Array:
    """UTF-8 bytes as text, without a copy. Raises pa.ArrowInvalid."""
    return column.cast(pa.large_string() if is_large(column) else pa.string())


def data_of(column: pa.Array) -> memoryview:
    """The bytes of all rows of a binary or string array, without a copy."""
    if not len(column):
        return memoryview(b"")
    _, ends, data = column.buffers()
    offsets = memoryview(ends).cast("q" if is_large(column) else "i")
    first, last = offsets[column.offset], offsets[column.offset + len(column)]
    return memoryview(data or b"").cast("B")[first:last]


def with_data(column: pa.Array, data: bytes) -> pa.Array:
    """The column with other bytes; each row keeps its length, or all grow by one factor."""
    bytes_before = len(data_of(column))
    kind = pa.int64() if is_large(column) else pa.int32()
    ends = pa.Array.from_buffers(
        kind, len(column) + 1, [None, column.buffers()[1]], 0, column.offset
    )
    moved = pc.subtract(ends, ends[0])
    if bytes_before and len(data) != bytes_before:
        moved = pc.multiply_checked(moved, pa.scalar(len(data) // bytes_before, kind))
    buffers = [None, moved.buffers()[1], pa.py_buffer(data)]
    moved_column = pa.Array.from_buffers(column.type, len(column), buffers)
    return pc.if_else(column.is_valid(), moved_column, pa.scalar(None, column.type))


def same(column: pa.Array) -> pa.Scalar | None:
    """The value that all rows share, or None: they differ, or there are no rows."""
    if column.null_count or not len(column):
        return None
    first = column[0]
    return first if pc.all(pc.equal(column, first)).as_py() else None


def by_distinct(column: pa.Array, convert: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """The column that `convert` returns, null for null; recurring values are converted once."""
    encoded = column.dictionary_encode()
    if len(encoded.dictionary) * 2 > len(column) - column.null_count:
        return convert(column)
    return convert(encoded.dictionary).take(encoded.indices)


def mapped(
    column: pa.Array, convert: Callable[[Any], Any], kind: pa.DataType | None = None
) -> pa.Array:
    """Convert each value that is not null in Python: for conversions without a kernel."""
    values = [None if value is None else convert(value) for value in column.to_pylist()]
    return pa.array(values, kind or (pa.large_binary() if is_large(column) else pa.binary()))


def strings(column: pa.Array) -> Column:
    """A string array as a column of text: None if all rows are null, one str if all are equal."""
    if column.null_count == len(column):
        return None
    common = same(column)
    return column if common is None else common.as_py()


def numbers(column: pa.Array) -> Column:
    """Integers in decimal, or booleans as true and false."""
    if column.null_count == len(column):
        return None
    common = same(column)
    if common is not None:
        return str(common.as_py()).lower()
    return column.cast(pa.string())


def instants(column: pa.Array) -> Column:
    """Milliseconds, or timestamps in ms, as RFC 3339; years out of range stay numbers."""
    if column.null_count == len(column):
        return None
    ms = column.cast(pa.int64())
    common = same(ms)
    return by_distinct(ms, _instants) if common is None else format_time(common.as_py())


def _within(ms: pa.Array) -> pa.Array:
    return pc.and_(pc.greater_equal(ms, INSTANT_MS_MIN), pc.less_equal(ms, INSTANT_MS_MAX))


def _instants(ms: pa.Array) -> pa.Array:
    within = _within(ms)
    is_near = are_all(within)
    near_ms = ms if is_near else pc.if_else(within, ms, pa.scalar(0, pa.int64()))
    text = near_ms.cast(pa.timestamp("ms")).cast(pa.string())
    text = pc.binary_join_element_wise(_with_t(text), "Z", "")
    return text if is_near else pc.if_else(within, text, ms.cast(pa.string()))


def _with_t(text: pa.Array) -> pa.Array:
    """Days and times, joined by a T."""
    data = data_of(text)
    if text.offset or text.null_count or len(data) != len(text) * _INSTANT_CHARS:
        return pc.binary_replace_slice(text, 10, 11, "T")
    written = bytearray(data)
    written[10::_INSTANT_CHARS] = b"T" * len(text)
    return pa.StringArray.from_buffers(len(text), text.buffers()[1], pa.py_buffer(written))


def from_instants(column: pa.Array) -> pa.Array | None:
    """The milliseconds of text, as `parse_time` reads it; None: some rows need `parse_time`.

    All rows are instants with an offset, or all are numbers: the forms that programs write.
    """
    try:
        if _are_instants(column):
            read = column.cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
        elif are_all(pc.match_substring_regex(column, _DIGITS)):
            read = _from_digits(column)
        elif are_all(pc.match_substring_regex(column, _RFC3339)):
            cut = pc.floor_temporal(column.cast(pa.timestamp("us", "UTC")), unit="millisecond")
            read = cut.cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
        else:
            return None
    except pa.ArrowInvalid:
        return None
    return read if are_all(_within(read)) else None


def are_all(are_so: pa.Array) -> bool:
    """Whether no row is false; null does not count as false."""
    return pc.all(are_so).as_py() in (True, None)


def _from_digits(column: pa.Array) -> pa.Array:
    numbers = column.cast(pa.int64())
    sizes = pc.binary_length(column)
    are_seconds = pc.and_(pc.greater(sizes, 8), pc.less(sizes, 11))
    return pc.if_else(are_seconds, pc.multiply(numbers, pa.scalar(SECOND_MS)), numbers)


def _are_instants(text: pa.Array) -> bool:
    """Whether all rows have the form of an instant in our own output."""
    sizes = pc.min_max(pc.binary_length(text)).as_py()
    if sizes["min"] != sizes["max"] or sizes["min"] != len(_INSTANT):
        return False
    data = bytes(data_of(text))
    if text.null_count and len(data) != len(_INSTANT) * (len(text) - text.null_count):
        return False
    marks = [(at, char) for at, char in enumerate(_INSTANT) if not char.isdigit()]
    count = len(data) // len(_INSTANT)
    return all(data[at :: len(_INSTANT)] == char.encode() * count for at, char in marks)


def text_of(column: pa.Array) -> tuple[Column, Column]:
    """Bytes as text, and their encoding: utf8, base64, or none for null."""
    if column.null_count == len(column):
        return None, None
    try:
        text = as_text(column)
    except pa.ArrowInvalid:
        pairs = [(None, None) if data is None else _text(data) for data in column.to_pylist()]
        kind = pa.large_string() if is_large(column) else pa.string()
        return tuple(pa.array(half, kind) for half in zip(*pairs, strict=True))
    return text, only_where(column.is_valid(), "utf8") if column.null_count else "utf8"


def _text(data: bytes) -> tuple[str, str]:
    try:
        return data.decode(), "utf8"
    except UnicodeDecodeError:
        return base64.b64encode(data).decode(), "base64"


def only_where(mask: pa.Array, text: str) -> pa.Array:
    """The text in the rows where the mask is true, null in the others."""
    return pc.if_else(mask, pa.scalar(text), pa.scalar(None, pa.string()))


# --- maps ------------------------------------------------------------------------------------


class Pairs(NamedTuple):
    """The pairs of maps of strings: the offsets of each map's pairs, their names and values.

    A name occurs once: at its first position, with its last value.
    rows: for each row the number of its map, if maps recur; None: each row has its own map
    """

    offsets: pa.Array
    names: pa.Array
    values: pa.Array
    rows: pa.Array | None = None

    def each(self, parts: Sequence[Part], between: str) -> pa.Array:
        """The parts of all pairs of a row, joined into one text per row."""
        return self._of_rows(self._joined(parts, between))

    def objects(self) -> pa.Array:
        """Each row as an object of JSON; an empty object for a row without pairs."""
        pair_parts = [*json_text(self.names), b":", *json_text(self.values)]
        parts = [b"{", self._joined(pair_parts, ","), b"}"]
        return self._of_rows(as_text(joined(parts, len(self.offsets) - 1)))

    def counts(self) -> pa.Array:
        """The number of pairs of each row."""
        return self._of_rows(pc.pairwise_diff(self.offsets)[1:])

    def _joined(self, parts: Sequence[Part], between: str) -> pa.Array:
        texts = joined(parts, len(self.names))
        lists = pa.ListArray.from_arrays(self.offsets, texts)
        return pc.binary_join(lists, pa.scalar(between.encode(), texts.type))

    def _of_rows(self, texts: pa.Array) -> pa.Array:
        return texts if self.rows is None else texts.take(self.rows)


def pairs_of(maps: pa.Array) -> Pairs | None:
    """The pairs of maps of strings, null as empty; None: no row has any."""
    if maps.null_count == len(maps):
        return None
    if maps.null_count:  # a null map may have a length
        sizes = pc.pairwise_diff(maps.offsets)[1:]
        if pc.any(pc.and_(maps.is_null(), pc.greater(sizes, 0))).as_py():
            maps = maps.take(pa.arange(0, len(maps)))
    pairs = _recurring(_pairs(maps))
    if not len(pairs.names):
        return None
    lists = pa.ListArray.from_arrays(pairs.offsets, pairs.names)
    rows = pc.list_parent_indices(lists).cast(pa.int64())
    codes = pairs.names.dictionary_encode()
    places = both(rows, codes.indices, len(codes.dictionary))
    if pc.count_distinct(places).as_py() == len(places):
        return pairs
    once = [
        None if row_map is None else list(dict(row_map).items()) for row_map in maps.to_pylist()
    ]
    return _pairs(pa.array(once, maps.type))


def _pairs(maps: pa.Array) -> Pairs:
    offsets = maps.offsets
    start, stop = offsets[0].as_py(), offsets[-1].as_py()
    moved = pc.subtract(offsets, offsets[0]) if start else offsets
    return Pairs(moved, maps.keys[start:stop], maps.items[start:stop])


def _recurring(pairs: Pairs) -> Pairs:
    """The pairs with recurring maps stored once, if most recur: properties often do."""
    names = pairs.names.dictionary_encode("encode")
    values = pairs.values.dictionary_encode("encode")
    width = len(values.dictionary)
    if width * 2 > len(pairs.values):
        return pairs
    codes = both(names.indices.cast(pa.int64()), values.indices, width)
    # The codes of a row's pairs are adjacent: as bytes they identify the row's map.
    ends = pc.multiply(pairs.offsets.cast(pa.int64()), _CODE_BYTES)
    buffers = [None, ends.buffers()[1], codes.buffers()[1]]
    rows = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(ends) - 1, buffers)
    rows = rows.dictionary_encode()
    if len(rows.dictionary) * 2 > len(rows):
        return pairs
    data = data_of(rows.dictionary)
    once = pa.Array.from_buffers(pa.int64(), len(data) // _CODE_BYTES, [None, pa.py_buffer(data)])
    name = pc.divide(once, pa.scalar(width, pa.int64()))
    value = pc.subtract(once, pc.multiply(name, pa.scalar(width, pa.int64())))
    sizes = pc.divide(pc.binary_length(rows.dictionary), _CODE_BYTES)
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(sizes)])
    return Pairs(
        offsets.cast(pa.int32()),
        names.dictionary.take(name),
        values.dictionary.take(value),
        rows.indices,
    )


def both(high: pa.Array, low: pa.Array, width: int) -> pa.Array:
    """Combine two columns of numbers into one: high * width + low; low is less than width."""
    return pc.add(pc.multiply(high, pa.scalar(width, pa.int64())), low.cast(pa.int64()))


# --- escapes of each format ------------------------------------------------------------------


def _replaced(text: pa.Array, written: dict[str, str]) -> pa.Array:
    data = bytes(data_of(text))
    # the backslash comes first, as the escapes contain backslashes
    for char, escape in written.items():
        if char.encode() in data:
            text = pc.replace_substring(text, char, escape)
    return text


def json_escaped(text: pa.Array) -> pa.Array:
    """Text in its form between the quotes of a JSON string."""
    data = data_of(text)
    if len(orjson.dumps(str(data, "utf-8"))) == len(data) + 2:
        return text
    text = _replaced(text, _OFTEN)
    if len(bytes(data).translate(None, _SELDOM_BYTES)) == len(data):
        return text
    return _replaced(text, _SELDOM)


def tsv_escaped(text: pa.Array) -> pa.Array:
    """Text as a cell of TSV: tab, newline, carriage return and backslash are escaped."""
    return _replaced(text, _TSV)


def csv_quoted(text: pa.Array) -> pa.Array:
    """Text as a cell of CSV, in quotes if needed."""
    data = bytes(data_of(text))
    marks = [mark for mark in _CSV_MARKS if mark.encode() in data]
    if not marks:
        return text
    must: pa.Array = None
    # removing a mark is faster than searching it: text that gets shorter had some
    for mark in marks:
        without = pc.replace_substring(text, mark, "")
        has = pc.not_equal(pc.binary_length(without), pc.binary_length(text))
        must = has if must is None else pc.or_(must, has)
    return pc.if_else(must, in_quotes(text), text)


def in_quotes(text: pa.Array) -> pa.Array:
    """Text in the quotes of CSV."""
    return pc.binary_join_element_wise(*like(text, '"', _replaced(text, {'"': '""'}), '"', ""))


def like(column: pa.Array, *parts: pa.Array | str) -> list[pa.Array | pa.Scalar]:
    """Parts of a join with the offset width of a column, which the kernel needs."""
    return [pa.scalar(part, column.type) if isinstance(part, str) else part for part in parts]


def json_text(column: Column) -> list[Part]:
    """The parts of a JSON string, or null."""
    return json_safe(json_escaped(column) if isinstance(column, pa.Array) else column)


def json_safe(column: Column) -> list[Part]:
    """The parts of a JSON string, or null, for text in which nothing needs escaping."""
    if column is None:
        return [b"null"]
    if isinstance(column, str):
        return [orjson.dumps(column)]
    if not column.null_count:
        return [b'"', column, b'"']
    quoted = pc.binary_join_element_wise(*like(column, '"', column, '"', ""))
    return [pc.fill_null(quoted, "null")]


def json_bare(column: Column) -> list[Part]:
    """The parts of numbers, or of JSON itself, or null."""
    if isinstance(column, pa.Array):
        return [pc.fill_null(column, "null") if column.null_count else column]
    return [b"null" if column is None else column.encode()]


def cell(form: str, column: Column, *, is_safe: bool = False, recurs: bool = False) -> list[Part]:
    """The parts of a cell of tsv or csv, where null is empty.

    is_safe: nothing in it needs escaping, as in a number
    recurs:  many rows may share few texts
    """
    if column is None:
        return []
    escaped = tsv_escaped if form == "tsv" else csv_quoted
    if isinstance(column, str):
        escaped_text: str = escaped(pa.array([column]))[0].as_py()
        return [escaped_text.encode()]
    if recurs:
        return [by_distinct(column, escaped)]
    return [column if is_safe else escaped(column)]


def quoted_cell(column: Column, *, is_number: bool, recurs: bool = False) -> list[Part]:
    """The parts of a cell of csv in which all text has quotes and null is empty."""
    if column is None:
        return []
    if isinstance(column, str):
        return [(column if is_number else in_quotes(pa.array([column]))[0].as_py()).encode()]
    if recurs:
        return [by_distinct(column, in_quotes)]
    return [column if is_number else in_quotes(column)]


def delimited(form: str, cells: Sequence[list[Part]]) -> list[Part]:
    """The parts of a line of tsv or csv."""
    parts: list[Part] = []
    for number, cell_parts in enumerate(cells):
        parts += [b"\t" if form == "tsv" else b","] if number else []
        parts += cell_parts
    if form == "csv" and len(cells) == 1:  # otherwise an empty cell would be an empty line
        parts = [_not_empty(cells[0])]
    return [*parts, b"\n"]


def _not_empty(parts: list[Part]) -> Part:
    if not parts or isinstance(parts[0], bytes):
        return b"".join(part for part in parts if isinstance(part, bytes)) or b'""'
    text = pc.fill_null(parts[0], "")
    empty = pc.equal(pc.binary_length(text), 0)
    return pc.if_else(empty, pa.scalar('""', text.type), text)


def json_object(members: Sequence[tuple[str, list[Part]]]) -> list[Part]:
    """The parts of an object."""
    parts: list[Part] = []
    for number, (name, value) in enumerate(members):
        parts += [b"," if number else b"{", orjson.dumps(name), b":", *value]
    return [*parts, b"}"]


# --- parts into bytes ------------------------------------------------------------------------


def joined(parts: Sequence[Part], count: int) -> pa.Array:
    """The parts of each of `count` rows, joined into binary rows; null is empty."""
    whole = _merged(parts)
    columns = [part for part in whole if not isinstance(part, bytes)]
    large = any(is_large(column) for column in columns)
    kind = pa.large_binary() if large else pa.binary()
    if not columns:
        return pa.repeat(pa.scalar(b"".join(map(bytes, whole)), kind), count)
    if len(whole) == 1 and not columns[0].null_count:
        return columns[0].cast(kind)
    arrays = [
        pa.scalar(piece, kind) if isinstance(piece, bytes) else piece.cast(kind) for piece in whole
    ]
    return pc.binary_join_element_wise(
        *arrays, pa.scalar(b"", kind), null_handling="replace", null_replacement=b""
    )


def _merged(parts: Sequence[Part]) -> list[Part]:
    """The parts, with adjacent bytes merged."""
    merged: list[Part] = []
    for part in parts:
        previous = merged[-1] if merged else None
        if isinstance(part, bytes) and isinstance(previous, bytes):
            merged[-1] = previous + part
        else:
            merged.append(part)
    return merged
