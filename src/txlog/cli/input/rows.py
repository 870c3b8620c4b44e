"""Owns csv and tsv row by row: for inputs with bad rows or unusual spellings."""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from txlog.base.ranges import parse_duration, parse_instant
from txlog.base.startup import json as orjson
from txlog.base.text.records import Columns, bad_record, check_delivery
from txlog.cli.output.output import tsv_cell, tsv_text
from txlog.errors import BadRecord, InvalidArgument

_CSV_COLUMNS = ("key", "value", "event_time", "deliver_at", "deliver_after")
_FIELD_CHARS_MAX = 1 << 27


class Start(Protocol):
    """The position of the first row in an input, after the header if there is one.

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
    """The row as a line of its format."""
    if form == "tsv":
        return "\t".join(tsv_cell(cell) for cell in fields).encode()
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(fields)
    return text.getvalue().encode()


def csv_rows(
    source: Iterator[bytes | None],
    form: str,
    start: Start,
    now_ms: int,
    columns: Columns,
) -> Iterator[int | BadRow | None]:
    """Parse rows into columns; yield each row's line, or a BadRow; for tsv None for a pause."""
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
        raise bad_record(line, "not UTF-8") from error
    except csv.Error as error:
        raise bad_record(line, str(error)) from error


def _records(
    source: Iterator[bytes | None], form: str, line: int, encoding: str
) -> Iterator[tuple[list[str] | None, int]]:
    """Yield the fields of each record and the line it ends on; in tsv None for a pause."""
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
    partial = ""
    for block in source:
        if block is None:
            yield None
            continue
        *lines, partial = (partial + decoder.decode(block)).split("\n")
        yield from (f"{text}\n" for text in lines)
    partial += decoder.decode(b"", final=True)
    if partial:
        yield partial


def check_header(header: list[str], line: int) -> None:
    """Refuse a line that is not a header. Raises BadRecord (104)."""
    if len(set(header)) != len(header):
        raise bad_record(line, "a column appears twice in the header")
    if "value" in header:
        for name in header:
            if name not in _CSV_COLUMNS and not name.startswith("prop."):
                raise bad_record(line, f"unknown column {name[:40]}")


def _csv_row(header: list[str], fields: list[str], line: int, now_ms: int) -> dict[str, object]:
    if len(fields) != len(header):
        raise bad_record(line, f"{len(fields)} fields, the header has {len(header)}")
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
                raise bad_record(line, f"{name}: {error.message}") from error
    if cells.get("deliver_after"):
        try:
            row["deliver_after"] = parse_duration(cells["deliver_after"])
        except InvalidArgument as error:
            raise bad_record(line, f"deliver_after: {error.message}") from error
    check_delivery(row, line)
    properties = [
        (n[5:], text) for n, text in cells.items() if n.startswith("prop.") and text != ""
    ]
    row["properties"] = properties or None
    return row
