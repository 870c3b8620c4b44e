"""The beginning of a key or a value on one line, for errors, logs and listings.

Only this many characters, without control characters: a hostile value cannot fill a log or move a
cursor. Bytes that are no UTF-8 appear as \\xNN.
"""

from __future__ import annotations

from typing import Final

from txlog.errors import printable

PREVIEW_CHARS: Final = 80


def preview(data: bytes | None, chars: int = PREVIEW_CHARS) -> str | None:
    """The first characters of some bytes, escaped, with … after them if there are more."""
    if data is None:
        return None
    text = printable(data[: 4 * chars].decode("utf-8", "backslashreplace"))
    is_whole = len(data) <= 4 * chars and len(text) <= chars
    return text if is_whole else f"{text[: chars - 1]}…"
