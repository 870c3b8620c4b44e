"""Owns the %-formats of records (spec/cli 7): compiled once, applied to columns of messages.

The input columns are the columns of RECEIVED, `number`, `watermark` and the columns that `beside`
returns. A verb becomes a column of text. No message becomes an object, except for options without a
kernel: base64, unpack and strftime.
"""

from __future__ import annotations

import base64
import re
import struct
import time
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from txlog.base.startup import compute as pc
from txlog.base.text.columns import (
    Column,
    Part,
    as_text,
    by_distinct,
    data_of,
    is_large,
    joined,
    json_text,
    mapped,
    with_data,
)
from txlog.base.text.messages import Messages
from txlog.cli.terminal.say import safe
from txlog.errors import Usage

Verb = Callable[[Messages], list[Part]]

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
# Facts that a message does not contain; they are looked up when a format uses them.
_BESIDE: Final = {
    "g": "file", "r": "row", "[": "first_position", "]": "last_position",
    "x{key}": "transaction_key",
}  # fmt: skip
_NUMBERS: Final = ("partition", "number", "sequence_id", "row")
_BESIDE_VERB: Final = re.compile(r"%(x\{key\}|.)", re.DOTALL)
_LITERAL: Final = re.compile(r"[^%\\]+")


class Format:
    """A compiled format.

    watermarks: rows have a watermark, for %w
    stored:     rows have the columns that `beside` returns, for %g %r %[ %] %x{key}
    """

    def __init__(self, text: str, *, watermarks: bool = False, stored: bool = False) -> None:
        if not stored and beside(text):
            raise Usage("only consume, peek and transform have %g %r %[ %] %x{key}")
        self._verbs = _compile(text, watermarks)

    def lines(self, messages: Messages) -> pa.Array:
        """The messages in this format, as one binary array."""
        return joined(self.parts(messages), messages.count)

    def parts(self, messages: Messages) -> list[Part]:
        """The parts of each message in this format, for `joined`."""
        return [part for verb in self._verbs for part in verb(messages)]


def beside(text: str) -> set[str]:
    """The columns that a format uses and a message does not contain."""
    return {_BESIDE[match[1]] for match in _BESIDE_VERB.finditer(text) if match[1] in _BESIDE}


def _compile(text: str, watermarks: bool) -> list[Verb]:
    parts: list[Verb] = []
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


def controls(text: str) -> list[str]:
    """The literal pieces of a format that contain control characters."""
    pieces, at = [b""], 0
    while at < len(text):
        literal = _LITERAL.match(text, at)
        if literal is not None:
            pieces[-1] += literal[0].encode("utf-8", "surrogateescape")
            at = literal.end()
        elif text[at] == "\\":
            data, at = escape(text, at)
            pieces[-1] += data
        else:
            _, at = _verb(text, at, True)
            pieces.append(b"")
    literals = [piece.decode("utf-8", "surrogateescape") for piece in pieces]
    return [piece for piece in literals if safe(piece) != piece]


def escape(text: str, at: int) -> tuple[bytes, int]:
    """The byte of the escape at `at`, and the index after it. Raises Usage."""
    letter = text[at + 1 : at + 2]
    if letter in _ESCAPES and letter:
        return _ESCAPES[letter], at + 2
    if letter == "x" and re.fullmatch("[0-9A-Fa-f]{2}", text[at + 2 : at + 4]):
        return bytes.fromhex(text[at + 2 : at + 4]), at + 4
    raise Usage(f"unknown escape \\{letter} in the format", hint="\\n \\t \\r \\0 \\\\ \\xNN")


def _verb(text: str, at: int, watermarks: bool) -> tuple[Verb, int]:
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


def _part(letter: str, options: list[str]) -> Verb:
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
        raise Usage(f"no verb %{letter}; did you mean {_MEANT[letter]}?", hint=_MEANT[letter])
    raise Usage(f"no verb %{letter}" if letter else "the format ends with %", hint="%% is a %")


def braces(text: str, at: int) -> tuple[str, int]:
    """The text in the braces at `at`, and the index after them. Raises Usage."""
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


def _constant(data: bytes) -> Verb:
    return lambda messages: [data]


def _column(text_of: Callable[[Messages], Column]) -> Verb:
    """A verb for a column of text that needs no escaping; null is written as nothing."""

    def verb(messages: Messages) -> list[Part]:
        column = text_of(messages)
        if column is None:
            return []
        return [column.encode() if isinstance(column, str) else column]

    return verb


def _plain(name: str) -> Verb:
    if name in _NUMBERS:
        return _column(lambda messages: messages.number(name))
    return _column(lambda messages: messages.field(name))


def _bytes(name: str, options: list[str]) -> Verb:
    steps = [_encoder(option) for option in options]

    def verb(messages: Messages) -> list[Part]:
        data = messages.stored(name)
        if data is None or data.null_count == len(data):
            data = pa.repeat(pa.scalar(b""), messages.count)
        if not steps:
            return [data]
        data = pc.fill_null(data.cast(pa.large_binary() if is_large(data) else pa.binary()), b"")
        for step in steps:
            data = step(data)
        return [data]

    return verb


def _encoder(option: str) -> Callable[[pa.Array], pa.Array]:
    if option == "hex":
        return lambda data: with_data(data, data_of(data).hex().encode())
    if option == "base64":
        return lambda data: mapped(data, base64.b64encode)
    if option == "json":
        return _json
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

        return lambda data: mapped(data, unpacked)
    raise Usage(f"no option {{{option[:40]}}}", hint="{hex} {base64} {json} {unpack[<I]}")


def _json(data: pa.Array) -> pa.Array:
    """Bytes as a JSON string; bytes that are not UTF-8 become U+FFFD."""
    try:
        text = as_text(data)
    except pa.ArrowInvalid:
        text = as_text(mapped(data, lambda value: value.decode("utf-8", "replace").encode()))
    return joined(json_text(text), len(text))


def _length(letter: str, option: str) -> Verb:
    name = {"V": "value", "K": "key", "T": "topic", "H": "properties"}[letter]
    write = _number(option)

    def verb(messages: Messages) -> list[Part]:
        if letter == "H":
            pairs = messages.pairs
            lengths = None if pairs is None else pairs.counts()
        else:
            data = messages.stored(name)
            lengths = None if data is None else pc.fill_null(pc.binary_length(data), 0)
        if lengths is None:
            return [write(0)]
        return [by_distinct(lengths, lambda counts: mapped(counts, write, pa.binary()))]

    return verb


def _number(option: str) -> Callable[[int], bytes]:
    """Return the writer of a length: {ascii}, {big32}, {little64}; the default is ascii."""
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


def _message_id(option: str) -> Verb:
    if option == "ledger":
        return _column(lambda messages: messages.number("ledger"))
    if option in ("entry", "index"):

        def part_of(messages: Messages) -> Column:
            ledger, number = messages.stored("ledger"), messages.number(option)
            if ledger is None or number is None or ledger.null_count == len(ledger):
                return None
            if not ledger.null_count:
                return number
            return pc.if_else(ledger.is_valid(), number, pa.scalar(None, pa.string()))

        return _column(part_of)
    if option:
        raise Usage(f"no option {{{option[:40]}}}", hint="%o{ledger} %o{entry} %o{index}")
    return _plain("message_id")


def _transaction(option: str) -> Verb:
    names = {"": "txn", "state": "txn_state", "index": "txn_index", "key": "transaction_key"}
    if option not in names:
        raise Usage(f"no option {{{option[:40]}}}", hint="%x{state} %x{index} %x{key}")
    return _plain(names[option])


def _instant(options: list[str]) -> Verb:
    which, form = "publish_time", "ms"
    for option in options:
        if option in _INSTANTS:
            which = _INSTANTS[option]
        else:
            form = _form(option, "{event} {deliver} {visible} {rfc3339}")
    return _instant_as(which, form)


def _form(option: str, hint: str) -> str:
    """Return the form of an instant; hint: the possible options."""
    if option == "rfc3339" or re.fullmatch(r"strftime\[.+\]", option):
        return option
    raise Usage(f"no option {{{option[:40]}}}", hint=hint)


def _instant_as(which: str, form: str) -> Verb:
    if form == "ms":
        return _column(lambda messages: messages.number(which))
    if form == "rfc3339":
        return _column(lambda messages: messages.field(which))

    def said(ms: int) -> bytes:
        return time.strftime(form[9:-1], time.gmtime(ms // 1000)).encode()

    def verb(messages: Messages) -> list[Part]:
        column = messages.stored(which)
        if column is None:
            return []
        ms = column.cast(pa.int64())
        return [by_distinct(ms, lambda values: mapped(values, said, pa.binary()))]

    return verb


def _properties(inner: Format) -> Verb:
    def verb(messages: Messages) -> list[Part]:
        pairs = messages.pairs
        if pairs is None:
            return []
        columns = {"key": pairs.names.cast(pa.binary()), "value": pairs.values.cast(pa.binary())}
        return [pairs.each(inner.parts(Messages(pa.table(columns))), "")]

    return verb
