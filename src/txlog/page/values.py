"""Owns how a page shows keys and values: a short preview, pretty JSON, text, or bytes in hex."""

from __future__ import annotations

import codecs
import json
import re
from typing import Final

from txlog.page.words import block, safe, size

JSON_BYTES_MAX: Final = 256 << 10  # longer JSON is shown as the text that it is
TEXT_BYTES_MAX: Final = 64 << 10  # of a value without form
HEX_BYTES_MAX: Final = 4 << 10
_TOKEN: Final = re.compile(r'("(?:[^"\\]|\\.)*")|([{}\[\],:])|([^\s{}\[\],:"]+)')
_WORDS: Final = frozenset({"true", "false", "null"})


def text_of(value: bytes, most: int) -> str | None:
    """The first bytes of a value as text; None if they are no UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        return decoder.decode(value[:most], final=len(value) <= most)
    except UnicodeDecodeError:
        return None


def preview(value: bytes | None, most: int) -> str:
    """A value on a line, of so many characters; bytes that are no text in hex."""
    if value is None:
        return ""
    text = text_of(value, 4 * most)
    if text is None:
        text = "0x" + value[:most].hex()
    return text if len(text) <= most and len(value) <= 4 * most else f"{text[: most - 1]}…"


def value_block(value: bytes | None, record: object = None) -> str:
    """A value as HTML: a record or JSON in lines, other text as it is, bytes in hex.

    record: the value as a record, if its topic has a schema
    """
    if value is None:
        return '<p class="note">null: it deletes its key</p>'
    if not value and record is None:
        return '<p class="note">empty</p>'
    note = f"{size(len(value))}"
    if record is not None:
        value = json.dumps(record, ensure_ascii=False, default=_plain).encode()
        note += ", by its schema"
    if len(value) <= JSON_BYTES_MAX and value.lstrip()[:1] in (b"{", b"["):
        text = text_of(value, JSON_BYTES_MAX)
        pretty = None if text is None else pretty_json(text)
        if pretty is not None:
            return f'<p class="note">{note}, JSON</p><pre class="json">{pretty}</pre>'
    text = text_of(value, TEXT_BYTES_MAX)
    if text is None:
        length = min(len(value), HEX_BYTES_MAX)
        cut = f", the first {size(length)}" if length < len(value) else ""
        return f'<p class="note">{note}, bytes{cut}</p><pre>{_hex(value[:length])}</pre>'
    cut = f", the first {size(TEXT_BYTES_MAX)}" if len(value) > TEXT_BYTES_MAX else ""
    return f'<p class="note">{note}, text{cut}</p><pre class="text">{block(text)}</pre>'


def pretty_json(text: str) -> str | None:
    """JSON as HTML, a member on a line; None if it is no JSON.

    Numbers, repeated names and the order stay as they are written.
    """
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return None
    out: list[str] = []
    depth, is_open = 0, False  # is_open: directly behind an opening bracket
    tokens = _TOKEN.findall(text)
    for at, (string, mark, word) in enumerate(tokens):
        if mark and mark in "]}":
            depth -= 1
            if not is_open:
                out.append("\n" + "  " * depth)
        elif is_open:
            out.append("\n" + "  " * depth)
        is_open = False
        if string:
            is_name = at + 1 < len(tokens) and tokens[at + 1][1] == ":"
            out.append(f'<span class="{"name" if is_name else "string"}">{safe(string)}</span>')
        elif word:
            kind = "word" if word in _WORDS else "number"
            out.append(f'<span class="{kind}">{safe(word)}</span>')
        elif mark == ",":
            out.append(",\n" + "  " * depth)
        elif mark == ":":
            out.append(": ")
        else:
            out.append(mark)
            if mark in "[{":
                depth, is_open = depth + 1, True
    return "".join(out)


def _hex(value: bytes) -> str:
    """Bytes as lines of offset, hex and ASCII."""
    lines = []
    for at in range(0, len(value), 16):
        row = value[at : at + 16]
        plain = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{at:06x}  {row.hex(' '):<47}  {safe(plain)}")
    return "\n".join(lines)


def _plain(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
