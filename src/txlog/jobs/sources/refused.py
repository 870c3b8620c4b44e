"""Owns the errors for files that DuckDB rejects: which line, and what is wrong with it.

DuckDB's own message names options that nobody can set here, and quotes the line. A csv file is
read once more, by Python's csv module, up to the first line that is not a row.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final, cast

from txlog.errors import BadRecord, SqlError
from txlog.jobs.sources.loads import Files

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
        check = {"csv": _check_rows, "ndjson": _check_text, "envelope": _check_text}
        if source.form in check:
            for path in source.paths:
                check[source.form](path, error)
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
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def _check_rows(path: str, error: SqlError) -> None:
    """Raises BadRecord at the first line of a csv file that is not a row of its header's length."""
    csv.field_size_limit(_FIELD_BYTES_MAX)
    with _opened(path) as file:
        rows = csv.reader(_lines(path, file), strict=True)
        wanted = 0
        try:
            for row in rows:
                wanted = wanted or len(row)
                if row and len(row) != wanted:
                    said = f"{len(row)} field{'s' * (len(row) != 1)} where the header has {wanted}"
                    raise _bad(path, rows.line_num, said) from error
        except csv.Error as found:
            said = str(found)
            if "end of data" in said:
                said = "a quote is open at the end of the file"
            raise _bad(path, rows.line_num, said) from error
        except (EOFError, OSError) as found:
            raise BadRecord(f"{path}: {found}", path=path) from error


def _check_text(path: str, error: SqlError) -> None:
    """Raises BadRecord at the first line of a file that is not UTF-8."""
    with _opened(path) as file:
        try:
            for _ in _lines(path, file):
                pass
        except (EOFError, OSError) as found:
            raise BadRecord(f"{path}: {found}", path=path) from error


def _opened(path: str) -> BinaryIO:
    if path.endswith(".zst"):
        return io.BytesIO()  # nothing here can decompress it
    if path.endswith(".gz"):
        return cast(BinaryIO, gzip.open(path, "rb"))
    return Path(path).open("rb")


def _lines(path: str, file: BinaryIO) -> Iterator[str]:
    for number, line in enumerate(file, start=1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise _bad(path, number, "not UTF-8") from None


def _bad(path: str, line: int, said: str) -> BadRecord:
    return BadRecord(f"{path}: line {line}: {said}", path=path, line=line)
