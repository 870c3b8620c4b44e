"""Owns the errors for files that DuckDB rejects: which line, and what is wrong with it.

DuckDB's own message names options that nobody can set here, and quotes the line. A csv file is
read once more, by Python's csv module, up to the first line that is not a row.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO, Final, cast

from txlog.base.text.grammar import json_failure
from txlog.errors import BadRecord, SqlError
from txlog.lake.jobs.sources.loads import BASE64, Files, encoded, unpacked

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_FIELD_BYTES_MAX: Final = 1 << 24  # as DuckDB is told: a line
# Where the unhelpful part of a message begins: our statements, options, lines of the file.
_ENDS: Final = ("LINE 1:", "Original Line:", "Possible ", "The search space")


@contextmanager
def telling(source: Files) -> Iterator[None]:
    """Turn DuckDB's complaint about the files into an error that names file and line.

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
    """What to say about lines that are not JSON objects: where the first is, and how many more."""
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
    whose text is not what its encoding says."""
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
                    said = f"{fields} where the header has {len(header)}"
                    raise _bad(path, rows.line_num, said) from error
                elif row:
                    cells = dict(zip(header, row, strict=True))
                    for name, column, encoding in pairs:
                        reason = _misencoded(name, cells[column], cells[encoding])
                        if reason is not None:
                            raise _bad(path, rows.line_num, reason) from error
        except csv.Error as found:
            said = str(found)
            if "end of data" in said:
                said = "a quote is open at the end of the file"
            raise _bad(path, rows.line_num, said) from error
        except (EOFError, OSError) as found:
            raise BadRecord(f"{path}: {found}", path=path) from error


def _misencoded(name: str, text: str, encoding: str) -> str | None:
    """What is wrong with a text and its encoding; whether an empty cell has quotes is not known."""
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
        wanted = memoryview(buffer)
        size = min(len(wanted), len(self._left))
        wanted[:size], self._left = self._left[:size], self._left[size:]
        return size


def _lines(path: str, file: BinaryIO) -> Iterator[str]:
    for number, line in enumerate(file, start=1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise _bad(path, number, "not UTF-8") from None


def _bad(path: str, line: int, said: str) -> BadRecord:
    return BadRecord(f"{path}: line {line}: {said}", path=path, line=line)
