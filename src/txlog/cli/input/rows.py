"""Owns the formats that must be parsed record by record: envelopes, csv and tsv, into columns."""

from __future__ import annotations

import base64
import binascii
import codecs
import csv
import io
from collections.abc import Iterator
from typing import NamedTuple, Protocol

import pyarrow as pa

from txlog.cli.output.output import tsv_cell, tsv_text
from txlog.errors import BadRecord, InvalidArgument
from txlog.ranges import STORED_MAX, parse_duration, parse_instant
from txlog.startup import json as orjson

_INSTANT = pa.timestamp("ms", "UTC")
TYPES = {
    "line": pa.int64(),
    "value": pa.binary(),
    "key": pa.binary(),
    "properties": pa.map_(pa.string(), pa.string()),
    "event_time": _INSTANT,
    "deliver_at": _INSTANT,
    "deliver_after": pa.int64(),
    "producer": pa.string(),
    "sequence_id": pa.int64(),
    "partition": pa.int32(),
}
_CSV_COLUMNS = ("key", "value", "event_time", "deliver_at", "deliver_after")
_FIELD_CHARS_MAX = 1 << 27


class Columns:
    """The columns of parsed records, before they become a table."""

    def __init__(self) -> None:
        self._lists: dict[str, list[object]] = {name: [] for name in TYPES}

    def __len__(self) -> int:
        return len(self._lists["line"])

    def add(self, row: dict[str, object]) -> None:
        """Add a record; a name it lacks is null."""
        for name, column in self._lists.items():
            column.append(row.get(name))

    def table(self) -> pa.Table:
        """Return the columns that are not all null."""
        kept = {
            name: pa.array(column, TYPES[name])
            for name, column in self._lists.items()
            if name in ("line", "value") or any(item is not None for item in column)
        }
        return pa.table(kept)

    def clear(self) -> None:
        """Begin again."""
        for column in self._lists.values():
            column.clear()


class Start(Protocol):
    """Where the rows begin: behind the header, if there is one, on a line of an input.

    first: the first line of the input
    """

    header: list[str] | None
    line: int
    first: int


class BadRow(NamedTuple):
    """A row that is not a record, and its bytes."""

    error: BadRecord
    record: bytes


def _joined(form: str, fields: list[str]) -> bytes:
    """The row as a line in its format."""
    if form == "tsv":
        return "\t".join(tsv_cell(cell) for cell in fields).encode()
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(fields)
    return text.getvalue().encode()


def envelope_row(columns: Columns, line: int, record: bytes) -> None:
    """Parse one envelope into columns.

    raises: BadRecord (104)
    """
    try:
        fields = orjson.loads(record)
    except orjson.JSONDecodeError as error:
        raise _bad(line, "not a JSON object") from error
    if not isinstance(fields, dict):
        raise _bad(line, "not a JSON object")
    properties = fields.get("properties")
    if properties is None:
        properties = {}
    if not isinstance(properties, dict) or not all(isinstance(v, str) for v in properties.values()):
        raise _bad(line, "properties must map strings to strings")
    row: dict[str, object] = {
        "line": line,
        "value": _decoded(fields, "value", line),
        "key": _decoded(fields, "key", line),
        "properties": list(properties.items()) if properties else None,
        "event_time": _integer(fields, "event_time", line, -STORED_MAX - 1, STORED_MAX),
        "deliver_at": _integer(fields, "deliver_at", line, -STORED_MAX - 1, STORED_MAX),
        "deliver_after": _integer(fields, "deliver_after", line, 0, (1 << 63) - 1),
        "sequence_id": _integer(fields, "sequence_id", line, 0, (1 << 63) - 1),
        "partition": _integer(fields, "partition", line, 0, (1 << 31) - 1),
    }
    producer = fields.get("producer")
    row["producer"] = producer if isinstance(producer, str) else None
    _check_delivery(row, line)
    columns.add(row)


def csv_rows(
    source: Iterator[bytes | None],
    form: str,
    start: Start,
    now_ms: int,
    columns: Columns,
) -> Iterator[int | BadRow | None]:
    """Parse csv or tsv into columns; yield the line of each row, a bad row, or None for a pause."""
    header, line = start.header, start.first
    encoding = "utf-8-sig" if header is None else "utf-8"
    try:
        for fields, at in _records(source, form, start.line, encoding):
            if fields is None:
                yield None
                continue
            if header is None:
                header = fields
                check_header(header, at)
                start.header = header
                continue
            try:
                columns.add(_csv_row(header, fields, at, now_ms))
                yield at
            except BadRecord as error:
                yield BadRow(error, _joined(form, fields))
    except UnicodeDecodeError as error:
        raise _bad(line, "not UTF-8") from error
    except csv.Error as error:
        raise _bad(line, str(error)) from error


def _records(
    source: Iterator[bytes | None], form: str, line: int, encoding: str
) -> Iterator[tuple[list[str] | None, int]]:
    """Yield the fields of each record and the line it ends on; None for a pause."""
    if form == "tsv":
        for text in _lines(source, encoding):
            if text is None:
                yield None, line
                continue
            cells = text.rstrip("\n").split("\t")
            yield [tsv_text(cell) for cell in cells], line
            line += 1
        return
    csv.field_size_limit(_FIELD_CHARS_MAX)
    reader = csv.reader(
        (text for text in _lines(source, encoding) if text is not None), strict=True
    )
    for fields in reader:
        if fields:
            yield fields, line + reader.line_num - 1


def _lines(source: Iterator[bytes | None], encoding: str) -> Iterator[str | None]:
    """Yield lines with their line ends, None for a pause."""
    decoder = codecs.getincrementaldecoder(encoding)()
    held = ""
    for block in source:
        if block is None:
            yield None
            continue
        *lines, held = (held + decoder.decode(block)).split("\n")
        yield from (f"{text}\n" for text in lines)
    held += decoder.decode(b"", final=True)
    if held:
        yield held


def check_header(header: list[str], line: int) -> None:
    """Refuse a header that is none. Raises BadRecord (104)."""
    if len(set(header)) != len(header):
        raise _bad(line, "a column appears twice in the header")
    if "value" in header:
        for name in header:
            if name not in _CSV_COLUMNS and not name.startswith("prop."):
                raise _bad(line, f"unknown column {name[:40]}")


def _csv_row(header: list[str], fields: list[str], line: int, now_ms: int) -> dict[str, object]:
    if len(fields) != len(header):
        raise _bad(line, f"{len(fields)} fields, the header has {len(header)}")
    cells = dict(zip(header, fields, strict=True))
    row: dict[str, object] = {"line": line}
    if "value" in cells:
        row["value"] = cells["value"].encode()
    else:
        row["value"] = orjson.dumps(cells)
    if "key" in cells and cells["key"] != "":
        row["key"] = cells["key"].encode()
    for name in ("event_time", "deliver_at"):
        if cells.get(name):
            try:
                row[name] = parse_instant(cells[name], now_ms)
            except InvalidArgument as error:
                raise _bad(line, f"{name}: {error.message}") from error
    if cells.get("deliver_after"):
        try:
            row["deliver_after"] = parse_duration(cells["deliver_after"])
        except InvalidArgument as error:
            raise _bad(line, f"deliver_after: {error.message}") from error
    _check_delivery(row, line)
    named = [(n[5:], text) for n, text in cells.items() if n.startswith("prop.") and text != ""]
    row["properties"] = named or None
    return row


def _check_delivery(row: dict[str, object], line: int) -> None:
    if row.get("deliver_at") is not None and row.get("deliver_after") is not None:
        raise _bad(line, "both deliver_at and deliver_after")


def _decoded(fields: dict[str, object], name: str, line: int) -> bytes | None:
    encoding, value = fields.get(f"{name}_encoding"), fields.get(name)
    if encoding is None:
        if value is not None:
            raise _bad(line, f"{name} without {name}_encoding")
        return None
    if not isinstance(value, str):
        raise _bad(line, f"{name} is not a string")
    if encoding == "utf8":
        return value.encode()
    if encoding == "base64":
        try:
            return base64.b64decode(value, validate=True)
        except (binascii.Error, ValueError) as error:
            raise _bad(line, f"{name} is not base64") from error
    raise _bad(line, f"{name}_encoding is utf8, base64 or null")


def _integer(fields: dict[str, object], name: str, line: int, least: int, most: int) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise _bad(line, f"{name} is not an integer in range")
    return value


def _bad(line: int, reason: str) -> BadRecord:
    return BadRecord(f"line {line}: {reason}", line=line)
