"""Owns the errors for files that DuckDB rejects: the line, and its fault.

DuckDB's own message names options that users cannot set here, and quotes the line. So Python's csv
module reads a csv file once more, up to the first line that is not a row.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO, Final, cast

from txlog.base.text.records import json_failure
from txlog.errors import BadRecord, SqlError
from txlog.lake.jobs.sources.loads import BASE64, Files, encoded, unpacked

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_FIELD_BYTES_MAX: Final = 1 << 24  # DuckDB's limit for a line
# Starts of the unhelpful part of a message: our statements, options, lines of the file.
_ENDS: Final = ("LINE 1:", "Original Line:", "Possible ", "The search space")


@contextmanager
def telling(source: Files) -> Iterator[None]:
    """Turn DuckDB's error about the files into an error that names file and line.

    raises: BadRecord for a SqlError
    """
    try:
        yield
    except SqlError as error:
        for path in source.paths:
            if source.form == "csv":
                _check_rows(source, path, error)
            elif source.form == "ndjson":
                _check_text(path, error)
        text = str(error)
        for end in _ENDS:
            text = text.partition(end)[0].strip()
        raise BadRecord(text) from error


def no_objects(source: Files, count: int) -> BadRecord:
    """The error for lines that are not JSON objects: the place of the first, and their number."""
    more = f", and {count - 1} more" if count > 1 else ""
    for path in source.paths:
        with _opened(path) as file:
            for number, line in enumerate(_lines(path, file), start=1):
                if not _is_object(line):
                    return _bad(path, number, f"not a JSON object{more}")
    return BadRecord(
        f"{count} line{'s are not JSON objects' if count > 1 else ' is not a JSON object'}"
    )


def _is_object(line: str) -> bool:
    return json_failure(line.encode()) is None and line.lstrip(" \t\r\n").startswith("{")


def _check_rows(source: Files, path: str, error: SqlError) -> None:
    """Raises BadRecord at the first line of a csv file that is not a row of its header's length, or
    whose text does not match its encoding."""
    csv.field_size_limit(_FIELD_BYTES_MAX)
    with _opened(path) as file:
        rows = csv.reader(_lines(path, file), strict=True)
        header: list[str] = []
        try:
            for row in rows:
                if not header:
                    header = row
                    pairs = encoded(source, header)
                elif row and len(row) != len(header):
                    fields = f"{len(row)} field{'s' * (len(row) != 1)}"
                    fault = f"{fields} where the header has {len(header)}"
                    raise _bad(path, rows.line_num, fault) from error
                elif row:
                    cells = dict(zip(header, row, strict=True))
                    for name, column, encoding in pairs:
                        reason = _misencoded(name, cells[column], cells[encoding])
                        if reason is not None:
                            raise _bad(path, rows.line_num, reason) from error
        except csv.Error as found:
            fault = str(found)
            if "end of data" in fault:
                fault = "a quote is open at the end of the file"
            raise _bad(path, rows.line_num, fault) from error
        except (EOFError, OSError) as found:
            raise BadRecord(f"{path}: {found}", path=path) from error


def _misencoded(name: str, text: str, encoding: str) -> str | None:
    """The fault of a text and its encoding; whether an empty cell has quotes is unknown."""
    if not encoding:
        return f"{name} without {name}_encoding" if text else None
    if encoding not in ("utf8", "base64"):
        return f"{name}_encoding is utf8, base64 or nothing"
    if encoding == "base64" and not re.fullmatch(BASE64, text):
        return f"{name} is not base64"
    return None


def _check_text(path: str, error: SqlError) -> None:
    """Raises BadRecord at the first line of a file that is not UTF-8."""
    with _opened(path) as file:
        try:
            for _ in _lines(path, file):
                pass
        except (EOFError, OSError) as found:
            raise BadRecord(f"{path}: {found}", path=path) from error


def _opened(path: str) -> BinaryIO:
    return cast(BinaryIO, io.BufferedReader(_Unpacked(path)))


class _Unpacked(io.RawIOBase):
    """The bytes of a file, unpacked; raises as `unpacked`."""

    def __init__(self, path: str) -> None:
        self._blocks = unpacked(path)
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        if not self._left:
            self._left = memoryview(next(self._blocks, b""))
        view = memoryview(buffer)
        size = min(len(view), len(self._left))
        view[:size], self._left = self._left[:size], self._left[size:]
        return size


def _lines(path: str, file: BinaryIO) -> Iterator[str]:
    for number, line in enumerate(file, start=1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise _bad(path, number, "not UTF-8") from None


def _bad(path: str, line: int, reason: str) -> BadRecord:
    return BadRecord(f"{path}: line {line}: {reason}", path=path, line=line)
