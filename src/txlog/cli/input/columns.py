"""Owns the fast path of input: it turns a whole block of records into columns of messages.

A function here returns None when a record of its block is bad, or written in a form that this
module does not parse. Then the block is read record by record (`rows`, `percent`), with an error
for each bad record; clean records give the same columns either way.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.csv as pacsv

from txlog.base.startup import compute as pc
from txlog.base.text import columns as text
from txlog.base.text.records import TYPES, maps, whole_table
from txlog.base.times import parse_duration, parse_stored
from txlog.cli.input import rows
from txlog.cli.output.output import tsv_text
from txlog.errors import BadRecord, InvalidArgument

_BLOCK_BYTES_MAX: Final = 1 << 28  # an offset of Arrow may not hold a longer text
_BOM: Final = b"\xef\xbb\xbf"
_UNESCAPED: Final = {"\\\\": "\0", "\\t": "\t", "\\n": "\n", "\\r": "\r", "\0": "\\"}
_ROW_BYTES_MAX: Final = 16 << 20  # longer rows are read one by one, not block by block
_CELL: Final = r'(?:"(?:[^"]|"")*"|[^",\r\n]*)'
_NUMBER: Final = "^-?[0-9]{1,18}$"  # more digits may exceed 64 bits
_ROW: Final = rf"^{_CELL}(?:,{_CELL})*\r?\n$"
# --- csv and tsv -----------------------------------------------------------------------------


class _Cells(NamedTuple):
    """The cells of whole records, column by column.

    lines:  the line on which each record ends; the first line of the block is 0
    passed: number of lines read
    taken:  number of bytes read
    """

    columns: list[pa.Array]
    lines: pa.Array
    passed: int
    taken: int


class Delimited:
    """Blocks of tsv or csv.

    header: the names of the columns, once they are read
    line:   line of the next record
    """

    def __init__(self, form: str, line: int, now_ms: int) -> None:
        self.header: list[str] | None = None
        self.line = line
        self._form = form
        self._now_ms = now_ms

    def messages(self, data: bytes) -> tuple[pa.Table, int] | None:
        """The messages of the complete records in data, and the offset of the next one.

        returns: an empty table and 0: no record is complete yet; None: read them row by row
        """
        begin = len(_BOM) if self.header is None and data.startswith(_BOM) else 0
        stop = data.rfind(b"\n") + 1
        if stop - begin > _BLOCK_BYTES_MAX:
            return None
        read = _tsv if self._form == "tsv" else _csv
        try:
            block_cells = read(data[begin:stop], len(self.header or ()))
        except (pa.ArrowInvalid, csv.Error):
            return None
        if block_cells is None or not (block_cells.taken or len(data) < _ROW_BYTES_MAX):
            return None
        if not block_cells.taken:
            return pa.table({}), 0
        cells, lines, passed, bytes_taken = block_cells
        header = self.header
        if header is None:
            header = [column[0].as_py() for column in cells]
            try:
                rows.check_header(header, self.line)
            except BadRecord:
                return None
            cells, lines = [column[1:] for column in cells], lines[1:]
        by_name = dict(zip(header, cells, strict=True))
        table = self._made(by_name, pc.add(lines, self.line))
        if table is None:
            return None
        self.header = header
        self.line += passed
        return table, begin + bytes_taken

    def _made(self, cells: dict[str, pa.Array], lines: pa.Array) -> pa.Table | None:
        columns: dict[str, pa.Array] = {"line": lines}
        if "value" in cells:
            columns["value"] = cells["value"].cast(pa.binary())
        else:
            members = [(name, text.json_text(column)) for name, column in cells.items()]
            columns["value"] = text.joined(text.json_object(members), len(lines))
        if "key" in cells:
            columns["key"] = _not_empty(cells["key"].cast(pa.binary()))
        parsers: dict[str, Callable[[str], int]] = {
            "event_time": lambda text_of_time: parse_stored(text_of_time, self._now_ms),
            "deliver_at": lambda text_of_time: parse_stored(text_of_time, self._now_ms),
            "deliver_after": parse_duration,
        }
        for name, parse in parsers.items():
            if name in cells:
                try:
                    columns[name] = _parsed(_not_empty(cells[name]), parse, TYPES[name])
                except InvalidArgument:
                    return None
        properties = {
            name[5:]: cells_of_name
            for name, cells_of_name in cells.items()
            if name.startswith("prop.")
        }
        if properties and len(lines):
            columns["properties"] = _properties(list(properties), list(properties.values()))
        return whole_table(columns)


def _split(data: bytes, stop: int, ends: bytes) -> pa.Array:
    """The records before stop, without their ends; data is split without a copy."""
    buffers = [None, pa.array([0, stop], pa.int32()).buffers()[1], pa.py_buffer(data)]
    return pc.split_pattern(pa.BinaryArray.from_buffers(pa.binary(), 1, buffers), ends).values


def _tsv(data: bytes, width: int) -> _Cells | None:
    """Lines of tsv."""
    cells = _plain(_lines(data), width, "\t", len(data))
    if cells is None:
        return None
    return cells._replace(columns=[_unescaped(column) for column in cells.columns])


def _lines(data: bytes) -> pa.Array:
    return text.as_text(_split(data, len(data) - 1, b"\n"))


def _plain(lines: pa.Array, width: int, between: str, bytes_taken: int) -> _Cells | None:
    """Lines of unquoted cells; None: their numbers of cells differ."""
    pieces = pc.split_pattern(lines, between)
    width = width or len(pieces[0])
    if not pc.all(pc.equal(pc.list_value_length(pieces), width)).as_py():
        return None
    cells = [pc.list_element(pieces, at) for at in range(width)]
    return _Cells(cells, pa.arange(0, len(lines)), len(lines), bytes_taken)


def _csv(data: bytes, width: int) -> _Cells | None:
    """Rows of csv, also with quotes and with cells of several lines; empty lines are skipped.

    raises: pa.ArrowInvalid, csv.Error: the numbers of cells differ, or it is not text
    """
    if data.startswith(_BOM):  # Arrow would drop it
        return None
    lines = _lines(data)
    sizes = pc.binary_length(lines)
    if not (b'"' in data or b"\r" in data) and pc.min(sizes).as_py():
        return _plain(lines, width, ",", len(data))
    ends = pc.cumulative_sum(pc.add(sizes, pa.scalar(1, sizes.type)))
    marks = pc.cumulative_sum(pc.count_substring(_cut(data, ends), '"'))
    is_end = pc.equal(pc.bit_wise_and(marks, 1), 0)
    ends, numbers = ends.filter(is_end), pa.arange(0, len(sizes)).filter(is_end)
    if not len(ends):
        return _Cells([], numbers, 0, 0)
    passed, stop = numbers[-1].as_py() + 1, ends[-1].as_py()
    records = text.as_text(_cut(data, ends))
    if not text.are_all(pc.match_substring_regex(records, _ROW)):
        return None
    is_row = pc.greater(pc.binary_length(pc.utf8_rtrim(records, "\r\n")), 0)
    numbers, records = numbers.filter(is_row), records.filter(is_row)
    if not len(records):
        return None
    first = records[0].as_py()
    width = width or len(next(csv.reader(io.StringIO(first), strict=True)))
    names = [str(at) for at in range(width)]
    table = pacsv.read_csv(
        pa.BufferReader(pa.py_buffer(data).slice(0, stop)),
        pacsv.ReadOptions(use_threads=False, block_size=stop + 1, column_names=names),
        pacsv.ParseOptions(newlines_in_values=True),
        pacsv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=False
        ),
    )
    cells = [column.combine_chunks() for column in table.columns]
    return _Cells(cells, numbers, passed, stop) if len(table) == len(numbers) else None


def _cut(data: bytes, ends: pa.Array) -> pa.Array:
    """The bytes between consecutive ends."""
    offsets = pa.concat_arrays([pa.array([0], ends.type), ends])
    buffers = [None, offsets.buffers()[1], pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(ends), buffers)


def _unescaped(column: pa.Array) -> pa.Array:
    """Cells of tsv with their escapes decoded."""
    data = text.data_of(column).tobytes()
    if b"\\" not in data:
        return column
    if b"\0" in data:
        return text.mapped(column, tsv_text, pa.string())
    for written, char in _UNESCAPED.items():
        column = pc.replace_substring(column, written, char)
    return column


def _not_empty(column: pa.Array) -> pa.Array:
    empty = pc.equal(pc.binary_length(column), 0)
    return pc.if_else(empty, pa.scalar(None, column.type), column)


def _parsed(column: pa.Array, parse: Callable[[str], int], kind: pa.DataType) -> pa.Array:
    instants = text.from_instants(column) if pa.types.is_timestamp(kind) else None
    if instants is None:
        instants = text.by_distinct(column, lambda values: text.mapped(values, parse, pa.int64()))
    return instants.cast(kind)


def _properties(names: Sequence[str], values: Sequence[pa.Array]) -> pa.Array:
    """A map of the nonempty cells of each row; null if all are empty."""
    count, width = len(values[0]), len(names)
    turns = pa.arange(0, count * width)  # in row order
    rows_of = pc.divide(turns, width)
    columns_of = pc.subtract(turns, pc.multiply(rows_of, width))
    items = pa.concat_arrays(list(values)).take(pc.add(pc.multiply(columns_of, count), rows_of))
    keys = pa.array(names, pa.string()).take(columns_of)
    there = pc.greater(pc.binary_length(items), 0)
    cumulative = pc.cumulative_sum(there.cast(pa.int32()))
    ends = cumulative.take(pa.arange(width - 1, count * width, width))
    return maps(ends, keys.filter(there), items.filter(there))


# --- %-formats -------------------------------------------------------------------------------


class Field(NamedTuple):
    """A field of a record: its column, the text after it, and whether it is a time as text."""

    column: str
    ends: bytes
    is_text: bool = False


def cut(data: bytes, fields: Sequence[Field], line: int) -> tuple[pa.Table, int] | None:
    """The complete records in data, and the offset of the next one.

    fields: no byte occurs twice in the text after the last one, so it ends records as newlines
            end lines
    """
    ends = fields[-1].ends
    stop = data.rfind(ends)
    if not 0 <= stop < _BLOCK_BYTES_MAX:
        return None
    remaining = _split(data, stop, ends)
    columns: dict[str, Any] = {"line": pa.arange(line, line + len(remaining))}
    for field in fields:
        values = remaining
        if field is not fields[-1]:
            pieces = pc.split_pattern(remaining, field.ends, max_splits=1)
            if not pc.all(pc.equal(pc.list_value_length(pieces), 2)).as_py():
                return None
            values, remaining = pc.list_element(pieces, 0), pc.list_element(pieces, 1)
        kind = TYPES.get(field.column)
        if kind is None or pa.types.is_string(kind):  # a topic or producer is read and ignored
            continue
        if not pa.types.is_binary(kind):
            values = _numbers(field, _not_empty(values), kind)
            if values is None:
                return None
        columns[field.column] = values
    table = whole_table(columns)
    return None if table is None else (table, stop + len(ends))


def _numbers(field: Field, written: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """Integers or instants; None: some are neither, or must be read one by one."""
    try:
        if field.is_text:
            numbers = text.from_instants(text.as_text(written))
        elif text.are_all(pc.match_substring_regex(written, _NUMBER)):
            numbers = text.as_text(written).cast(pa.int64())
        else:
            return None
        if numbers is None or not (
            pa.types.is_timestamp(kind) or text.are_all(pc.greater(numbers, -1))
        ):
            return None
        return numbers.cast(kind)
    except pa.ArrowInvalid:
        return None
