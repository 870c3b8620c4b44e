"""Owns the HTML of handles in notebooks: a caption and a few rows, with every value escaped."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Final

ROWS_SHOWN: Final = 10
_CHARS_SHOWN: Final = 80


def html_table(
    caption: str, columns: Sequence[str] = (), rows: Iterable[Sequence[object]] = ()
) -> str:
    """A table; the caller bounds the number of rows, and this module the length of each value."""
    head = "".join(f"<th>{_escaped(name)}</th>" for name in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{_escaped(shown(value))}</td>" for value in row) + "</tr>"
        for row in rows
    )
    top = f"<thead><tr>{head}</tr></thead>" if head else ""
    return f"<table><caption>{_escaped(caption)}</caption>{top}<tbody>{body}</tbody></table>"


def shown(value: object) -> str:
    """The text of a value: UTF-8 as it is, other bytes as Python writes them; empty for None."""
    if value is None:
        return ""
    if isinstance(value, bytes):
        value = value[: 4 * _CHARS_SHOWN + 4]
        try:
            text = value.decode()
        except UnicodeDecodeError:
            text = repr(value)
    else:
        text = str(value)
    return text if len(text) <= _CHARS_SHOWN else f"{text[: _CHARS_SHOWN - 1]}…"


def _escaped(text: str) -> str:
    parts: ModuleType = importlib.import_module("html")
    escaped: str = parts.escape(text)
    return escaped
