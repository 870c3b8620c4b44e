"""Owns the %-formats of records (spec/cli 7): compiled once, applied to rows of columns.

A row is a mapping with the names of RECEIVED plus `number`; values are bytes, ints and strings.
"""

from __future__ import annotations

import base64
import json
import re
import struct
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from txlog.errors import Usage
from txlog.ids import TxnId
from txlog.ranges import format_time

Row = Mapping[str, Any]
Part = Callable[[Row], bytes]

_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_MEANT: Final = {"s": "%v", "e": "%o{entry}", "y": "%q", "a": "%x{state}"}
_SIZES: Final = {"": "ascii", "ascii": "ascii"}
_INSTANTS: Final = {
    "": "publish_time",
    "publish": "publish_time",
    "event": "event_time",
    "deliver": "deliver_at",
    "visible": "visible_time",
}
_PLAIN: Final = {
    "t": "topic",
    "p": "partition",
    "i": "number",
    "P": "producer",
    "q": "sequence_id",
    "[": "first_position",
    "]": "last_position",
    "g": "file",
    "r": "row",
}
# What a message itself lacks: it is looked up when a format asks for it.
_BESIDE: Final = {
    "g": "file", "r": "row", "[": "first_position", "]": "last_position",
    "x{key}": "transaction_key",
}  # fmt: skip
_BESIDE_VERB: Final = re.compile(r"%(x\{key\}|.)", re.DOTALL)
_LITERAL: Final = re.compile(r"[^%\\]+")


class Format:
    """A compiled format.

    watermarks: rows have one, for %w
    stored:     rows have what `beside` names, for %g %r %[ %] %x{key}
    """

    def __init__(self, text: str, *, watermarks: bool = False, stored: bool = False) -> None:
        if not stored and beside(text):
            raise Usage("only consume, peek and transform have %g %r %[ %] %x{key}")
        self._parts = _compile(text, watermarks)

    def apply(self, row: Row) -> bytes:
        """Return the row in this format."""
        return b"".join([part(row) for part in self._parts])


def beside(text: str) -> set[str]:
    """The columns that a format asks for and a message lacks."""
    return {_BESIDE[one[1]] for one in _BESIDE_VERB.finditer(text) if one[1] in _BESIDE}


def _compile(text: str, watermarks: bool) -> list[Part]:
    parts: list[Part] = []
    at = 0
    while at < len(text):
        literal = _LITERAL.match(text, at)
        if literal is not None:
            parts.append(_constant(literal[0].encode("utf-8", "surrogateescape")))
            at = literal.end()
        elif text[at] == "\\":
            data, at = escape(text, at)
            parts.append(_constant(data))
        else:
            part, at = _verb(text, at, watermarks)
            parts.append(part)
    return parts


def escape(text: str, at: int) -> tuple[bytes, int]:
    """The byte of the escape at `at`, and what comes after it. Raises Usage."""
    letter = text[at + 1 : at + 2]
    if letter in _ESCAPES and letter:
        return _ESCAPES[letter], at + 2
    if letter == "x" and re.fullmatch("[0-9A-Fa-f]{2}", text[at + 2 : at + 4]):
        return bytes.fromhex(text[at + 2 : at + 4]), at + 4
    raise Usage(f"unknown escape \\{letter} in the format", hint="\\n \\t \\r \\0 \\\\ \\xNN")


def _verb(text: str, at: int, watermarks: bool) -> tuple[Part, int]:
    letter = text[at + 1 : at + 2]
    at += 2
    if letter in ("%", "{", "}") and letter:
        return _constant(letter.encode()), at
    options = []
    while letter not in ("h",) and text[at : at + 1] == "{":
        inner, at = braces(text, at)
        options.append(inner)
    if letter == "h":
        inner, at = braces(text, at) if text[at : at + 1] == "{" else ("%k=%v ", at)
        return _properties(Format(inner)), at
    if letter == "w" and not watermarks:
        raise Usage("%w, the watermark, needs consume -s SUB --watermarks")
    return _part(letter, options), at


def _part(letter: str, options: list[str]) -> Part:
    option = options[0] if options else ""
    if letter and letter in "vkt":
        name = {"v": "value", "k": "key", "t": "topic"}[letter]
        return _bytes(name, options)
    if letter == "d":
        return _instant(options)
    if len(options) > 1:
        raise Usage(f"%{letter} takes one option")
    if letter == "w":
        return _instant_as("watermark", _form(option, "{rfc3339}") if option else "ms")
    if letter and letter in "VKTH":
        return _length(letter, option)
    if letter == "o":
        return _message_id(option)
    if letter == "x":
        return _transaction(option)
    if letter in _PLAIN:
        if option:
            raise Usage(f"%{letter} takes no option")
        return _plain(_PLAIN[letter])
    if letter in _MEANT:
        raise Usage(f"no verb %{letter}; {_MEANT[letter]} is meant", hint=_MEANT[letter])
    raise Usage(f"no verb %{letter}" if letter else "the format ends with %", hint="%% is a %")


def braces(text: str, at: int) -> tuple[str, int]:
    """What is in the braces at `at`, and what comes after them. Raises Usage."""
    depth = 0
    for stop in range(at, len(text)):
        escaped = stop > 0 and text[stop - 1] == "%"
        if text[stop] == "{" and not (escaped and stop > at):
            depth += 1
        elif text[stop] == "}" and not escaped:
            depth -= 1
            if depth == 0:
                return text[at + 1 : stop], stop + 1
    raise Usage("a { of the format is not closed")


def _constant(data: bytes) -> Part:
    return lambda row: data


def _raw(value: object) -> bytes:
    if value is None:
        return b""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape")


def _plain(name: str) -> Part:
    return lambda row: _raw(row.get(name))


def _bytes(name: str, options: list[str]) -> Part:
    steps = [_encoder(option) for option in options]

    def part(row: Row) -> bytes:
        data = _raw(row.get(name))
        for step in steps:
            data = step(data)
        return data

    return part


def _encoder(option: str) -> Callable[[bytes], bytes]:
    if option == "hex":
        return lambda data: data.hex().encode()
    if option == "base64":
        return base64.b64encode
    if option == "json":
        return lambda data: json.dumps(data.decode("utf-8", "replace"), ensure_ascii=False).encode()
    unpack = re.fullmatch(r"unpack\[(.+)\]", option)
    if unpack is not None:
        try:
            layout = struct.Struct(unpack[1])
        except struct.error as error:
            raise Usage(f"{{unpack[…]}}: {error}") from error

        def unpacked(data: bytes) -> bytes:
            if len(data) < layout.size:
                return b""
            return " ".join(str(item) for item in layout.unpack_from(data)).encode()

        return unpacked
    raise Usage(f"no option {{{option[:40]}}}", hint="{hex} {base64} {json} {unpack[<I]}")


def _length(letter: str, option: str) -> Part:
    name = {"V": "value", "K": "key", "T": "topic", "H": "properties"}[letter]
    write = _number(option)

    def part(row: Row) -> bytes:
        value = row.get(name)
        if letter == "H":
            return write(len(value) if value is not None else 0)
        return write(len(_raw(value)))

    return part


def _number(option: str) -> Callable[[int], bytes]:
    """Return how a length is written: {ascii}, {big32}, {little64}; the default is ascii."""
    sized = re.fullmatch(r"(big|little)(8|16|32|64)", option)
    if sized is not None:
        count = int(sized[2]) // 8
        order: Any = sized[1]
        return lambda number: number.to_bytes(count, order)
    if option in _SIZES:
        return lambda number: str(number).encode()
    if option.isdecimal() and 0 < int(option) <= 64:
        width = int(option)
        return lambda number: str(number).zfill(width).encode()
    raise Usage(f"no option {{{option[:40]}}}", hint="{ascii} {big32} {little64} {N}")


def _message_id(option: str) -> Part:
    if option in ("ledger", "entry", "index"):
        return lambda row: b"" if row.get("ledger") is None else _raw(row.get(option))
    if option:
        raise Usage(f"no option {{{option[:40]}}}", hint="%o{ledger} %o{entry} %o{index}")
    return lambda row: _raw(message_id(row))


def message_id(row: Row) -> str | None:
    """Return the id of a row as text, None while it has none."""
    ledger = row.get("ledger")
    if ledger is None:
        return None
    index = row.get("index")
    return f"{ledger}:{row['entry']}:{index}" if index else f"{ledger}:{row['entry']}"


def transaction(row: Row) -> str | None:
    """Return the transaction of a row as text."""
    most = row.get("txn_most")
    return None if most is None else str(TxnId.from_halves(most, row["txn_least"]))


def _transaction(option: str) -> Part:
    if option == "":
        return lambda row: _raw(transaction(row))
    if option == "state":
        return lambda row: _raw(row.get("txn_state"))
    if option == "index":
        return lambda row: _raw(row.get("index"))
    if option == "key":
        return lambda row: _raw(row.get("transaction_key"))
    raise Usage(f"no option {{{option[:40]}}}", hint="%x{state} %x{index} %x{key}")


def _instant(options: list[str]) -> Part:
    which, form = "publish_time", "ms"
    for option in options:
        if option in _INSTANTS:
            which = _INSTANTS[option]
        else:
            form = _form(option, "{event} {deliver} {visible} {rfc3339}")
    return _instant_as(which, form)


def _form(option: str, hint: str) -> str:
    """How an instant is written; hint: the possible options."""
    if option == "rfc3339" or re.fullmatch(r"strftime\[.+\]", option):
        return option
    raise Usage(f"no option {{{option[:40]}}}", hint=hint)


def _instant_as(which: str, form: str) -> Part:
    def part(row: Row) -> bytes:
        value = row.get(which)
        if value is None:
            return b""
        if form == "ms":
            return str(value).encode()
        if form == "rfc3339":
            return format_time(value).encode()
        return time.strftime(form[9:-1], time.gmtime(value // 1000)).encode()

    return part


def _properties(inner: Format) -> Part:
    def part(row: Row) -> bytes:
        pairs = row.get("properties") or {}
        return b"".join(inner.apply({"key": k, "value": v}) for k, v in pairs.items())

    return part
