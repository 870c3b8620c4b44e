"""Owns the escaping of foreign text on a terminal, so that the terminal obeys none of it.

A message may contain any bytes: sequences that move the cursor, set the title or send input as if
the user had typed it; marks that reverse the direction of the following text. On a terminal these
are escaped. Off a terminal bytes stay unchanged, because a program reads them.

    \\x1b \\x07 \\r …      C0 except tab and newline
    \\u009b \\u007f …     C1 and DEL; in this form printed JSON stays valid
    \\u202e \\u2028 …     marks of direction, separators of lines
    \\x9b                a byte that is not UTF-8; a terminal without UTF-8 would read it as C1
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

_UNSAFE: Final = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069\\udc80-\\udc9f]"
)


def safe(text: str, allowed: Collection[str] = ()) -> str:
    """Text with control characters escaped, except in allowed sequences."""
    if _UNSAFE.search(text) is None:
        return text
    if not allowed:
        return _UNSAFE.sub(_written, text)
    allowed_sequence = re.compile(
        "|".join(re.escape(sequence) for sequence in sorted(allowed, key=len, reverse=True))
    )
    out, at = [], 0
    for match in allowed_sequence.finditer(text):
        out += [_UNSAFE.sub(_written, text[at : match.start()]), match[0]]
        at = match.end()
    return "".join([*out, _UNSAFE.sub(_written, text[at:])])


def safe_bytes(data: bytes, allowed: Collection[str] = ()) -> bytes:
    """The same for bytes, which need not be UTF-8."""
    text = data.decode("utf-8", "surrogateescape")
    return safe(text, allowed).encode("utf-8", "surrogateescape")


def _written(character: re.Match[str]) -> str:
    code = ord(character[0])
    if code >= 0xDC80 and code <= 0xDC9F:  # a byte that surrogateescape decoded
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x20 else f"\\u{code:04x}"
