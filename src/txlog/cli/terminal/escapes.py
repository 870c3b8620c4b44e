"""Owns what a terminal gets of text that came from elsewhere: nothing that it would obey.

A message may hold anything: sequences that move the cursor, set the title or answer as if somebody
typed; marks that turn the direction of what follows. On a terminal these are written out. Off a
terminal bytes leave as they are, because a program reads them.

    \\x1b \\x07 \\r …      C0 but tab and newline
    \\u009b \\u007f …     C1 and DEL; JSON that was printed stays JSON
    \\u202e \\u2028 …     marks of direction, separators of lines
    \\x9b                a byte that is no UTF-8 and that a terminal without UTF-8 takes for C1
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

_UNSAFE: Final = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069\\udc80-\\udc9f]"
)


def safe(text: str, allowed: Collection[str] = ()) -> str:
    """Text with its control characters written out, except in the sequences that are allowed."""
    if _UNSAFE.search(text) is None:
        return text
    if not allowed:
        return _UNSAFE.sub(_written, text)
    known = re.compile("|".join(re.escape(one) for one in sorted(allowed, key=len, reverse=True)))
    out, at = [], 0
    for match in known.finditer(text):
        out += [_UNSAFE.sub(_written, text[at : match.start()]), match[0]]
        at = match.end()
    return "".join([*out, _UNSAFE.sub(_written, text[at:])])


def safe_bytes(data: bytes, allowed: Collection[str] = ()) -> bytes:
    """The same of bytes, which need not be UTF-8."""
    text = data.decode("utf-8", "surrogateescape")
    return safe(text, allowed).encode("utf-8", "surrogateescape")


def _written(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code >= 0xDC80 and code <= 0xDC9F:  # a byte, as surrogateescape decodes it
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x20 else f"\\u{code:04x}"
