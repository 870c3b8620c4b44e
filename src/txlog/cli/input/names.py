"""Owns `-` as an argument: names and ids from stdin, as another command prints them.

Stdin has the rows of a listing (`--json` or `-f ndjson`), where each row has the field, or plain
names, one a line. An empty input means that there is nothing to do.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from txlog.base.startup import json as orjson
from txlog.cli.call.call import Call
from txlog.errors import InvalidArgument

_SHOWN: Final = 40
Row = Mapping[str, Any]


def rows_named(call: Call, words: Sequence[str], field: str, noun: str) -> list[Row]:
    """The named things, each once: {field: word} for a word, and for `-` the rows of stdin.

    noun:   for the note when stdin is empty
    raises: InvalidArgument (203) with the line that is neither a name nor a row with the field
    """
    rows: list[Row] = []
    for word in words:
        if word != "-":
            rows.append({field: word})
            continue
        read = [*_rows(_stdin(), field)]
        if not read:
            call.summary(f"no {noun} on standard input: nothing to do")
        rows += read
    keys = [(row[field], row.get("topic")) for row in rows]
    return [row for at, row in enumerate(rows) if keys.index(keys[at]) == at]


def names(call: Call, words: Sequence[str], field: str, noun: str) -> list[str]:
    """As rows_named, only the names."""
    return list(dict.fromkeys(str(row[field]) for row in rows_named(call, words, field, noun)))


def stdin_row(*fields: str) -> Row:
    """The one row of stdin, as `--json` prints it; raises InvalidArgument (203)."""
    row = _parsed(_text(_stdin()), 1)
    if not isinstance(row, dict) or not set(fields) <= row.keys():
        raise InvalidArgument(f"standard input is no row with {', '.join(fields)}", code=203)
    return row


def _stdin() -> bytes:
    if sys.stdin is None:
        return b""
    buffer = getattr(sys.stdin, "buffer", None)  # a test may have replaced it by text
    data: bytes = sys.stdin.read().encode() if buffer is None else buffer.read()
    return data


def _rows(data: bytes, field: str) -> Iterable[Row]:
    text = _text(data)
    if text.lstrip().startswith("["):
        listing = _parsed(text, 1)
        for number, row in enumerate(listing, start=1):
            yield _checked(row, field, f"row {number} of standard input")
        return
    for number, line in enumerate(text.split("\n"), start=1):
        word, where = line.strip(), f"line {number} of standard input"
        if word.startswith("{"):
            yield _checked(_parsed(word, number), field, where)
        elif word:
            yield {field: word}


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidArgument("standard input is not UTF-8", code=203) from error


def _parsed(text: str, number: int) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidArgument(
            f"line {number} of standard input is not JSON: {error}", code=203
        ) from error


def _checked(row: object, field: str, where: str) -> Row:
    if isinstance(row, str):
        return {field: row}
    if not isinstance(row, dict) or not isinstance(row.get(field), str):
        names_there = ", ".join(map(str, row))[:_SHOWN] if isinstance(row, dict) else "no object"
        raise InvalidArgument(
            f"{where} has no text {field}", code=203, hint=f"it has: {names_there}"
        )
    return row
