"""Owns csv and tsv row by row: for bad rows and unusual spellings."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from typing import NamedTuple, Protocol

from txlog.base.startup import json as orjson
from txlog.base.text.records import Columns, bad_record, check_delivery
from txlog.base.times import parse_duration, parse_stored
from txlog.cli.output.output import tsv_text
from txlog.errors import BadRecord, InvalidArgument

_CSV_COLUMNS = ("key", "value", "event_time", "deliver_at", "deliver_after")
_FIELD_CHARS_MAX = 1 << 27


class Start(Protocol):
    """The position of the first row in an input, after the header if there is one."""

    header: list[str] | None
    line: int


class BadRow(NamedTuple):
    """A row that is not a record, and its bytes."""

    error: BadRecord
    record: bytes


class _Lines:
    """The lines of an input as text, for a reader of rows; it can be resumed after its end.

    It ends between two rows when a block ends, as the next may come late, and at a pause.

    first:   line on which the row begins
    line:    line after those that the row has taken
    is_text: the row is UTF-8; other bytes are surrogates in its text
    paused:  it ended at a pause
    ended:   the input has ended
    """

    def __init__(self, source: Iterator[bytes | None], line: int, encoding: str) -> None:
        self._lines = _cut(source)
        self._taken: list[bytes] = []
        self._encoding = encoding
        self.first = self.line = line
        self.is_text = True
        self.paused = self.ended = False

    def begin(self) -> None:
        """Begin a row."""
        self._taken.clear()
        self.first, self.is_text = self.line, True

    @property
    def record(self) -> bytes:
        """The bytes of the row, with its line end."""
        return b"".join(self._taken)

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        for line in self._lines:
            if line:
                self._taken.append(line)
                self.line += 1
                encoding, self._encoding = self._encoding, "utf-8"
                try:
                    return line.decode(encoding)
                except UnicodeDecodeError:
                    self.is_text = False
                    return line.decode(encoding, "surrogateescape")
            if not self._taken:
                self.paused = line is None
                raise StopIteration
        self.ended = True
        raise StopIteration


def csv_rows(
    source: Iterator[bytes | None],
    form: str,
    start: Start,
    now_ms: int,
    columns: Columns,
) -> Iterator[int | BadRow | None]:
    """Parse csv or tsv into columns; yield the line of each row, or a bad row.

    It yields 0 when the rows of a block have been read, None for a pause.
    raises: BadRecord for a bad header
    """
    lines = _Lines(source, start.line, "utf-8-sig" if start.header is None else "utf-8")
    csv.field_size_limit(_FIELD_CHARS_MAX)
    rows = csv.reader(lines, strict=True) if form == "csv" else map(_tsv_cells, lines)
    while not lines.ended:
        lines.begin()
        try:
            fields = next(rows, None)
            line = lines.line - 1
            if fields and not lines.is_text:
                raise bad_record(line, "not UTF-8")
            if fields and start.header is not None:
                columns.add(_csv_row(start.header, fields, line, now_ms))
        except csv.Error as error:
            failure = bad_record(lines.first, str(error))
        except BadRecord as error:
            failure = error
        else:
            if fields is None and not lines.ended:
                yield None if lines.paused else 0
            elif fields and start.header is not None:
                yield line
            elif fields:
                check_header(fields, line)
                start.header = fields
            continue
        if start.header is None:
            raise failure
        yield BadRow(failure, lines.record.rstrip(b"\r\n" if form == "csv" else b"\n"))


def _tsv_cells(line: str) -> list[str]:
    return [tsv_text(cell) for cell in line.rstrip("\n").split("\t")]


def _cut(source: Iterator[bytes | None]) -> Iterator[bytes | None]:
    """Yield lines with their line ends, b"" after each block, None for a pause."""
    partial = b""
    for block in source:
        if block is None:
            yield None
            continue
        *lines, partial = (partial + block).split(b"\n")
        for line in lines:
            yield line + b"\n"
        yield b""
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
                row[name] = parse_stored(cells[name], now_ms)
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
