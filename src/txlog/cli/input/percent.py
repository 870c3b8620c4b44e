"""Owns the %-formats of input (spec/cli 7): they describe a record byte for byte.

    %k:%v\\n                a field ends where the text after it begins
    %V{big32}%v            the size of a field comes before it
    %H{big32}%h{…}         that many properties, each in the inner format
    %p %q %d{event}        partition, sequence id, instants
    %t %P                  a topic and a producer are read and ignored

If a record lacks bytes, more are read; at the end of the input such a record is bad. Only the text
after the last field may be missing there, like the newline of a last line.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from txlog.base.settings import PROPERTIES_MAX
from txlog.base.times import STORED_MAX, parse_stored
from txlog.cli.input import columns
from txlog.cli.output.percent import braces, escape
from txlog.errors import BadRecord, InvalidArgument, Usage

if TYPE_CHECKING:
    import pyarrow as pa

_FIELDS: Final = {"v": "value", "k": "key", "t": "topic", "P": "producer"}
_SIZES: Final = {"V": "v", "K": "k", "T": "t", "H": "h"}
_TIMES: Final = {"event": "event_time", "deliver": "deliver_at"}
_LITERAL: Final = re.compile(r"[^%\\]+")
_DIGITS_MAX: Final = 20
Row = dict[str, Any]


class More(Exception):
    """The record continues past the bytes that are in memory."""


class Cursor:
    """A position in the bytes of records; is_last: no more bytes follow."""

    __slots__ = ("at", "cut_short", "data", "is_last")

    def __init__(self, data: bytes, at: int, is_last: bool) -> None:
        self.data = data
        self.at = at
        self.is_last = is_last
        self.cut_short = False

    def take(self, count: int) -> bytes:
        """The next `count` bytes."""
        piece = self.data[self.at : self.at + count]
        if len(piece) < count:
            self.lack(f"{count} bytes are needed, {len(piece)} are left")
        self.at += count
        return piece

    def until(self, stop: bytes) -> bytes:
        """The bytes before `stop`; at the end of the input, all that are left. Raises More."""
        end = self.data.find(stop, self.at) if stop else -1
        if end < 0:
            if not self.is_last:
                raise More
            end = len(self.data)
        piece = self.data[self.at : end]
        self.at = end
        return piece

    def lack(self, reason: str) -> None:
        """Raise More; at the end of the input, raise ValueError with the reason."""
        if not self.is_last:
            raise More
        raise ValueError(f"cut short: {reason}")


Step = Callable[[Cursor, Row], None]


class InputFormat:
    """A compiled format of records.

    raises: Usage (201) for a format that cannot be read back
    """

    def __init__(self, text: str) -> None:
        self.has_partition = self.has_sequence = False
        self._steps = self._compiled(text)
        if not self._steps:
            raise Usage("the format of the input is empty")
        self.fields = _fields(list(_parts(text)))

    def read(self, data: bytes, at: int, is_last: bool, line: int) -> tuple[Row, int, bool]:
        """The record at `at`, the offset of the next one, and whether its end text was missing.

        raises: More; BadRecord (104)
        """
        cursor, row = Cursor(data, at, is_last), {}
        row = {"line": line}
        try:
            for step in self._steps:
                step(cursor, row)
        except (ValueError, InvalidArgument, binascii.Error) as error:
            raise BadRecord(f"record {line}: {error}", line=line) from error
        row.pop("topic", None)
        row.pop("producer", None)
        if cursor.at == at:
            raise BadRecord(f"record {line}: it has no bytes", line=line)
        return row, cursor.at, cursor.cut_short

    def _compiled(self, text: str) -> list[Step]:
        parts = list(_parts(text))
        steps: list[Step] = []
        sized: dict[str, Callable[[Cursor], int]] = {}
        for number, (kind, options) in enumerate(parts):
            following = parts[number + 1] if number + 1 < len(parts) else None
            stop = following[1][0] if following is not None and following[0] == "" else b""
            if kind == "":
                steps.append(_literal(options[0], number + 1 == len(parts)))
            elif kind in _SIZES:
                steps.append(_size(_SIZES[kind], options, stop))
                sized[_SIZES[kind]] = lambda cursor: 0
            elif kind == "h":
                if "h" not in sized:
                    raise Usage("%h of an input needs %H before it: how many properties")
                inner = InputFormat(str(options[0]) if options else "%k=%v ")
                steps.append(_properties(inner))
            else:
                if kind not in sized and following is not None and not stop:
                    raise Usage(
                        f"the end of %{kind} is unknown: put text or a size between the fields"
                    )
                self.has_partition |= kind == "p"
                self.has_sequence |= kind == "q"
                steps.append(_field(kind, options, stop, is_sized=kind in sized))
        return steps


def _fields(parts: list[tuple[str, list[Any]]]) -> list[columns.Field] | None:
    """The fields for `columns.cut`; None if the format has other verbs."""
    verbs, ends = parts[::2], parts[1::2]
    if len(verbs) != len(ends) or any(kind for kind, _ in ends):
        return None
    fields = []
    for (kind, options), (_, [between]) in zip(verbs, ends, strict=True):
        if kind in _SIZES or kind == "h" or (options and kind != "d"):
            return None
        fields.append(columns.Field(_meaning(kind, options)[0], between, "rfc3339" in options))
    names, last = [field.column for field in fields], fields[-1].ends
    if "value" not in names or len({*names}) < len(names):
        return None
    if len({*last}) < len(last) or any(last in field.ends for field in fields[:-1]):
        return None
    return fields


def _parts(text: str) -> Iterator[tuple[str, list[Any]]]:
    """The verbs with their options, and literals ("", [bytes])."""
    at, pending = 0, b""
    while at < len(text):
        literal = _LITERAL.match(text, at)
        letter = text[at + 1 : at + 2]
        if literal is not None:
            pending += literal[0].encode("utf-8", "surrogateescape")
            at = literal.end()
        elif text[at] == "\\":
            data, at = escape(text, at)
            pending += data
        elif letter and letter in "%{}":
            pending += letter.encode()
            at += 2
        else:
            if pending:
                yield "", [pending]
                pending = b""
            options: list[Any] = []
            at += 2
            while text[at : at + 1] == "{" and not (letter == "h" and options):
                inner, at = braces(text, at)
                options.append(inner)
            if letter not in {*_FIELDS, *_SIZES, "h", "p", "q", "d"}:
                raise Usage(
                    f"%{letter} is not an input verb", hint="%v %k %t %V %K %T %H %h %p %d %P %q"
                )
            yield letter, options
    if pending:
        yield "", [pending]


def _literal(data: bytes, is_end: bool) -> Step:
    def step(cursor: Cursor, row: Row) -> None:
        piece = cursor.data[cursor.at : cursor.at + len(data)]
        if piece == data:
            cursor.at += len(data)
        elif not data.startswith(piece):
            raise ValueError(f"{data!r} is missing")
        elif is_end and cursor.is_last and not piece and row:
            cursor.cut_short = True
        else:
            cursor.lack(f"{data!r} is missing")

    return step


def _size(letter: str, options: list[Any], stop: bytes) -> Step:
    if len(options) > 1:
        raise Usage(f"%{letter.upper()} takes one option")
    option = str(options[0]) if options else "ascii"
    binary = re.fullmatch(r"(big|little)(8|16|32|64)", option)
    if binary is None and option != "ascii" and not (option.isdecimal() and 0 < int(option) <= 64):
        raise Usage(f"no option {{{option[:40]}}}", hint="{ascii} {big32} {little64} {N}")
    if option == "ascii" and not stop:
        raise Usage(
            f"the end of %{letter.upper()} is unknown: put text after it, or give its length"
        )

    def step(cursor: Cursor, row: Row) -> None:
        if binary is not None:
            order: Any = binary[1]
            row[f"size {letter}"] = int.from_bytes(cursor.take(int(binary[2]) // 8), order)
            return
        text = cursor.until(stop) if option == "ascii" else cursor.take(int(option))
        if not text.isdigit() or len(text) > max(_DIGITS_MAX, 64):
            raise ValueError("a size is not a number")
        row[f"size {letter}"] = int(text)

    return step


def _field(letter: str, options: list[Any], stop: bytes, *, is_sized: bool) -> Step:
    name, take = _meaning(letter, [str(option) for option in options])

    def step(cursor: Cursor, row: Row) -> None:
        data = cursor.take(row.pop(f"size {letter}")) if is_sized else cursor.until(stop)
        value = take(data)
        if value is not None:
            row[name] = value

    return step


def _meaning(letter: str, options: list[str]) -> tuple[str, Callable[[bytes], Any]]:
    """The column of a verb, and the function that converts bytes into its value."""
    if letter in "pq":
        if options:
            raise Usage(f"%{letter} takes no option")
        if letter == "p":
            return "partition", lambda data: _number(data, 0, (1 << 31) - 1)
        return "sequence_id", lambda data: _number(data, 0, (1 << 63) - 1)
    if letter == "d":
        which = [_TIMES[option] for option in options if option in _TIMES]
        if len(which) != 1 or set(options) - {*_TIMES, "rfc3339"}:
            raise Usage("%d of an input is %d{event} or %d{deliver}, in ms or with {rfc3339}")
        if "rfc3339" in options:
            return which[0], lambda data: parse_stored(data.decode(), 0) if data else None
        return which[0], lambda data: _number(data, -STORED_MAX - 1, STORED_MAX)
    steps: list[Callable[[bytes], bytes]] = []
    for option in options:
        if option == "hex":
            steps.insert(0, lambda data: bytes.fromhex(data.decode("ascii")))
        elif option == "base64":
            steps.insert(0, lambda data: base64.b64decode(data, validate=True))
        else:
            raise Usage(f"no option {{{option[:40]}}} of an input", hint="{hex} {base64}")

    def decoded(data: bytes) -> bytes:
        for decode in steps:
            data = decode(data)
        return data

    return _FIELDS[letter], decoded


def _number(data: bytes, least: int, most: int) -> int | None:
    if not data:
        return None
    if re.fullmatch(rb"-?[0-9]{1,20}", data) is None or not least <= int(data) <= most:
        raise ValueError("a number is not one, or is out of range")
    return int(data)


def _properties(inner: InputFormat) -> Step:
    def step(cursor: Cursor, row: Row) -> None:
        count = row.pop("size h")
        if count > PROPERTIES_MAX:
            raise ValueError(f"{count} properties, at most {PROPERTIES_MAX}")
        pairs: list[tuple[str, str]] = []
        for _ in range(count):
            property_row: Row = {}
            for part in inner._steps:
                part(cursor, property_row)
            key, value = (property_row.get(name, b"").decode() for name in ("key", "value"))
            pairs.append((key, value))
        row["properties"] = pairs or None

    return step


def percent_rows(
    source: Iterator[bytes | None], form: InputFormat, line: int, record_bytes_max: int
) -> Iterator[Row | pa.Table | BadRecord | str | None]:
    """Yield rows as records arrive, None for a pause, text for a warning, an error at the end.

    A block of plain records comes as a table.

    After a bad record, the start of the next one is unknown.
    """
    data, at, is_last = b"", 0, False
    while True:
        if at == len(data):
            data, at = b"", 0
            if is_last:
                return
        elif len(data) - at > 0:
            try:
                row, at, cut_short = form.read(data, at, is_last, line)
            except More:
                if len(data) - at > record_bytes_max:
                    yield BadRecord(
                        f"record {line}: longer than {record_bytes_max} bytes", line=line
                    )
                    return
            except BadRecord as error:
                yield error
                return
            else:
                if cut_short:
                    yield "the last record has no end"
                yield row
                line += 1
                continue
        block = next(source, b"")
        if block is None:
            yield None
            continue
        is_last = not block
        data, at = data[at:] + block, 0
        if form.fields is not None and (cut := columns.cut(data, form.fields, line)) is not None:
            table, at = cut
            line += len(table)
            yield table
