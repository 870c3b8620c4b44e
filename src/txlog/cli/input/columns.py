"""Owns clean blocks of input: all records of a block become the columns of messages at once.

What is asked of a block is None when one of its records is bad, or is written in a way that is not
understood here. Then it is read record by record (`rows`, `percent`), which says what is wrong
where; what is clean gives the same columns either way.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import chain
from operator import attrgetter
from typing import Any, Final, Literal

import msgspec
import pyarrow as pa

from txlog.cli.input import rows
from txlog.cli.output.output import tsv_text
from txlog.errors import InvalidArgument
from txlog.ranges import STORED_MAX, parse_duration, parse_instant
from txlog.startup import compute as pc
from txlog.text import columns as text

_INT64_MAX: Final = (1 << 63) - 1
_INT32_MAX: Final = (1 << 31) - 1
_BLOCK_BYTES_MAX: Final = 1 << 28  # of more, an offset of Arrow might not hold the text
_BOM: Final = b"\xef\xbb\xbf"
_LIMITS: Final = {
    "event_time": (-STORED_MAX - 1, STORED_MAX),
    "deliver_at": (-STORED_MAX - 1, STORED_MAX),
    "deliver_after": (0, _INT64_MAX),
    "sequence_id": (0, _INT64_MAX),
    "partition": (0, _INT32_MAX),
}
_UNESCAPED: Final = {"\\\\": "\0", "\\t": "\t", "\\n": "\n", "\\r": "\r", "\0": "\\"}
_NOTHING: Final[dict[str, str]] = {}
Encoding = Literal["utf8", "base64"]


class Envelope(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """One line, as `consume` writes it; any other is read by itself."""

    key: str | None = None
    key_encoding: Encoding | None = None
    value: str | None = None
    value_encoding: Encoding | None = None
    properties: msgspec.Raw = msgspec.Raw(b"null")
    event_time: int | float | None = None  # a float is told from an integer, and refused
    deliver_at: int | float | None = None
    deliver_after: int | float | None = None
    sequence_id: int | float | None = None
    partition: int | float | None = None
    producer: str | None = None
    topic: str | None = None
    message_id: str | None = None
    publish_time: int | None = None


_MEMBERS: Final = {
    name: attrgetter(name)
    for name in Envelope.__struct_fields__
    if name not in ("topic", "message_id", "publish_time")
}


@cache
def _decoder() -> Callable[[bytes], Envelope]:
    return msgspec.json.Decoder(Envelope).decode


@cache
def _properties_decoder() -> Callable[[bytes], dict[str, str] | None]:
    return msgspec.json.Decoder(dict[str, str] | None).decode


def envelopes(lines: pa.Array, records: pa.Array) -> pa.Table | None:
    """The messages of envelopes, a line each."""
    decode = _decoder()
    try:
        text.as_text(records)
        found = [decode(record) for record in records.to_pylist()]
    except (msgspec.DecodeError, pa.ArrowInvalid):
        return None
    members = {name: [*map(get, found)] for name, get in _MEMBERS.items()}
    made: dict[str, pa.Array | None] = {"line": lines}
    for name in ("value", "key"):
        made[name] = _decoded(members[name], members[f"{name}_encoding"])
    for name, (least, most) in _LIMITS.items():
        made[name] = _integers(members[name], least, most, rows.TYPES[name])
    made["properties"] = _objects(members["properties"])
    made["producer"] = pa.array(members["producer"], pa.string())
    return None if any(column is None for column in made.values()) else _table(made)


def _integers(
    said: Sequence[float | None], least: int, most: int, kind: pa.DataType
) -> pa.Array | None:
    """Integers in range; None: some are not."""
    if said.count(None) == len(said):
        return pa.nulls(len(said), kind)
    try:
        numbers = pa.array(said)
    except (pa.ArrowInvalid, OverflowError):
        return None
    if not pa.types.is_int64(numbers.type):  # a float among them makes all of them floats
        return None
    ends = pc.min_max(numbers).as_py()
    return numbers.cast(kind) if least <= ends["min"] and ends["max"] <= most else None


def _objects(said: Sequence[msgspec.Raw]) -> pa.Array | None:
    """Maps of objects, null where they are empty or none; None: some are no maps of strings.

    Those that are written alike are read once.
    """
    texts = pa.array([*map(bytes, said)], pa.binary()).dictionary_encode()
    decode = _properties_decoder()
    try:
        pairs = [decode(one) or _NOTHING for one in texts.dictionary.to_pylist()]
    except msgspec.DecodeError:
        return None
    names = pa.array(chain.from_iterable(pairs), pa.string())
    values = pa.array(chain.from_iterable(map(dict.values, pairs)), pa.string())
    ends = pc.cumulative_sum(pa.array(map(len, pairs), pa.int32()))
    return _maps(ends, names, values).take(texts.indices)


def _maps(ends: pa.Array, names: pa.Array, values: pa.Array) -> pa.Array:
    """The maps of pairs that lie behind each other, null where they are empty."""
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    maps = pa.MapArray.from_arrays(offsets, names, values)
    is_any = pc.greater(pc.pairwise_diff(offsets)[1:], 0)
    return pc.if_else(is_any, maps, pa.scalar(None, maps.type))


def _decoded(said: Sequence[str | None], encodings: Sequence[Encoding | None]) -> pa.Array | None:
    """Bytes that an encoding says; None: it does not."""
    column = pa.array(said, pa.string())
    if not column.null_count and {*encodings} == {"utf8"}:
        return column.cast(pa.binary())
    kinds = pa.array(encodings, pa.string())
    if not pc.all(pc.equal(column.is_null(), kinds.is_null())).as_py():
        return None
    if "base64" not in encodings:
        return column.cast(pa.binary())
    try:
        return pa.array(
            [
                one if one is None or kind == "utf8" else base64.b64decode(one, validate=True)
                for one, kind in zip(said, encodings, strict=True)
            ],
            pa.binary(),
        )
    except (binascii.Error, ValueError):
        return None


def _table(made: Mapping[str, pa.Array]) -> pa.Table | None:
    """The columns that are not all null; both a time and a delay are bad."""
    there = {
        name: column
        for name, column in made.items()
        if name in ("line", "value") or column.null_count < len(column)
    }
    if "deliver_at" in there and "deliver_after" in there:
        both = pc.and_(there["deliver_at"].is_valid(), there["deliver_after"].is_valid())
        if pc.any(both).as_py():
            return None
    return pa.table({name: there[name] for name in rows.TYPES if name in there})


# --- csv and tsv -----------------------------------------------------------------------------


class Delimited:
    """Blocks of whole lines of tsv, or of csv without quotes.

    header: the names of the columns, once they were read
    line:   of the next record
    first:  of the first one
    """

    def __init__(self, form: str, line: int, now_ms: int) -> None:
        self.header: list[str] | None = None
        self.line = self.first = line
        self._form = form
        self._now_ms = now_ms

    def messages(self, data: bytes) -> pa.Table | None:
        """The messages of the next lines; None: nothing of them was read.

        raises: BadRecord (104) for the header
        """
        if self.header is None:
            data = data.removeprefix(_BOM)
        if len(data) > _BLOCK_BYTES_MAX or (self._form == "csv" and _is_quoted(data)):
            return None
        records = pc.split_pattern(pa.array([data[:-1]], pa.binary()), b"\n").values
        try:
            records = text.as_text(records)
        except pa.ArrowInvalid:
            return None
        if self._form == "csv" and not pc.min(pc.binary_length(records)).as_py():
            return None
        pieces = pc.split_pattern(records, "\t" if self._form == "tsv" else ",")
        width = len(self.header or pieces[0])
        if not pc.all(pc.equal(pc.list_value_length(pieces), width)).as_py():
            return None
        cells = [pc.list_element(pieces, at) for at in range(width)]
        if self._form == "tsv":
            cells = [_unescaped(column) for column in cells]
        header = self.header
        if header is None:
            header = [column[0].as_py() for column in cells]
            rows.check_header(header, self.line)
            cells = [column[1:] for column in cells]
        first = self.line + (self.header is None)
        named = dict(zip(header, cells, strict=True))
        made = self._made(named, pa.array(range(first, self.line + len(records)), pa.int64()))
        if made is not None:
            self.header = header
            self.line += len(records)
        return made

    def _made(self, cells: dict[str, pa.Array], lines: pa.Array) -> pa.Table | None:
        made: dict[str, pa.Array] = {"line": lines}
        if "value" in cells:
            made["value"] = cells["value"].cast(pa.binary())
        else:
            members = [(name, text.json_text(column)) for name, column in cells.items()]
            made["value"] = text.joined(text.json_object(members), len(lines))
        if "key" in cells:
            made["key"] = _not_empty(cells["key"].cast(pa.binary()))
        parsers: dict[str, Callable[[str], int]] = {
            "event_time": lambda said: parse_instant(said, self._now_ms),
            "deliver_at": lambda said: parse_instant(said, self._now_ms),
            "deliver_after": parse_duration,
        }
        for name, parse in parsers.items():
            if name in cells:
                try:
                    made[name] = _parsed(_not_empty(cells[name]), parse, rows.TYPES[name])
                except InvalidArgument:
                    return None
        named = {name[5:]: one for name, one in cells.items() if name.startswith("prop.")}
        if named and len(lines):
            made["properties"] = _properties(list(named), list(named.values()))
        return _table(made)


def _is_quoted(data: bytes) -> bool:
    return b'"' in data or b"\r" in data


def _unescaped(column: pa.Array) -> pa.Array:
    """Cells of tsv as the text that they stand for."""
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
    made = text.from_instants(column) if pa.types.is_timestamp(kind) else None
    if made is None:
        made = text.by_distinct(column, lambda values: text.mapped(values, parse, pa.int64()))
    return made.cast(kind)


def _properties(names: Sequence[str], values: Sequence[pa.Array]) -> pa.Array:
    """Maps of the cells that are not empty, null where all are."""
    count, width = len(values[0]), len(names)
    turns = pa.array(range(count * width), pa.int64())  # row after row
    rows_of = pc.divide(turns, width)
    columns_of = pc.subtract(turns, pc.multiply(rows_of, width))
    items = pa.concat_arrays(list(values)).take(pc.add(pc.multiply(columns_of, count), rows_of))
    keys = pa.array(names, pa.string()).take(columns_of)
    there = pc.greater(pc.binary_length(items), 0)
    behind = pc.cumulative_sum(there.cast(pa.int32()))
    ends = behind.take(pa.array(range(width - 1, count * width, width), pa.int64()))
    return _maps(ends, keys.filter(there), items.filter(there))


# --- %-formats -------------------------------------------------------------------------------


def cut(data: bytes, fields: Sequence[tuple[str, bytes]], line: int) -> tuple[pa.Table, int] | None:
    """The whole records in data, and where the next one begins.

    fields: the column of each, and the text that ends it; that of the last one is a byte that the
            others do not have, so that it ends records as newlines end lines
    """
    stop = data.rfind(fields[-1][1])
    if not 0 <= stop < _BLOCK_BYTES_MAX:
        return None
    rest = pc.split_pattern(pa.array([data[:stop]], pa.binary()), fields[-1][1]).values
    made: dict[str, Any] = {"line": pa.array(range(line, line + len(rest)), pa.int64())}
    for name, ends in fields[:-1]:
        pieces = pc.split_pattern(rest, ends, max_splits=1)
        if not pc.all(pc.equal(pc.list_value_length(pieces), 2)).as_py():
            return None
        made[name], rest = pc.list_element(pieces, 0), pc.list_element(pieces, 1)
    made[fields[-1][0]] = rest
    return pa.table(
        {name: made[name] for name in ("line", "value", "key") if name in made}
    ), stop + 1
