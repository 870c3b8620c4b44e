"""Owns tables for people: the choice of values, their form, and the way they are drawn.

On a terminal rich draws them, see `screen`: sizes and ages readable, nothing wider than the
terminal. Off a terminal numbers stay as in JSON, nothing is cut, and rich is not imported. Names
from a store go through `printable`, so no stored byte moves a cursor.
"""

from __future__ import annotations

import importlib
import os
import unicodedata
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import ModuleType
from typing import Final

import msgspec

from txlog.base.text.amounts import duration as duration
from txlog.base.text.amounts import size as size
from txlog.base.times import is_instant, wall_text
from txlog.cli.terminal.say import as_json, is_colored
from txlog.errors import printable

_SHORT: Final = {"hidden_messages": "HIDDEN"}  # keeps the table of status within 100 columns
NOTHING: Final = "-"  # the value of a field without one, for people
_OBJECTS_MAX: Final = 8  # of a list that is drawn as one object after another
_NORMAL, _MAIN = 2, 3
_BOLD, _PLAIN = "\x1b[1m", "\x1b[0m"
# Last words of fields whose number is a name: users copy it, and do not count with it.
_IDS: Final = ("pid", "port", "id", "ledger", "lsn", "uid", "gid")


class Look(msgspec.Struct, frozen=True, gc=False):
    """The look of tables: readable values, colours, times in UTC, and the width to fit.

    width: columns of the terminal; 0: no terminal, or nothing may be cut
    """

    human: bool
    color: bool
    utc: bool
    width: int


def look(terminal: bool, color: str, utc: bool, environ: Mapping[str, str]) -> Look:
    """Return the look that flags, environment and terminal select (spec/cli 4)."""
    width = columns_of(1, environ) if terminal else 0
    return Look(human=terminal, color=is_colored(color, terminal, environ), utc=utc, width=width)


def columns_of(descriptor: int, environ: Mapping[str, str]) -> int:
    """The width of a descriptor's terminal in columns; the variables may set any, 0 too."""
    columns = environ.get("TERMINAL_WIDTH") or environ.get("COLUMNS") or ""
    if columns.isdecimal() and len(columns) < 10:
        return int(columns)
    try:
        return os.get_terminal_size(descriptor).columns or 80
    except OSError:
        return 80


def cell(value: object) -> str:
    """Return a JSON value as one field of a table: null empty, arrays joined, objects as JSON."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list) and all(isinstance(item, str | int) for item in value):
        return ",".join(str(item) for item in value)
    if isinstance(value, list | dict):
        return as_json(value)
    return str(value)


def table(
    names: Sequence[str],
    rows: Sequence[Mapping[str, object]],
    style: Look,
    *,
    markdown: bool = False,
    importance: Mapping[str, int] | None = None,
    of_query: bool = False,
) -> str:
    """Return rows aligned under their headings.

    importance: of columns, as their row declares it; zeros make a column the least important
    of_query:   the names are the user's own, and stay as they are
    """
    columns = list(names) if of_query else headings_of(names, style.human)
    headings = [printable(name) for name in columns]
    cells = [[readable(name, row[name], style) for name in names] for row in rows]
    numeric = [
        bool(rows) and all(isinstance(row[name], int | float | None) for row in rows)
        for name in names
    ]
    if markdown:
        return _markdown(headings, cells, numeric)
    if style.width:
        ranks = None if importance is None else [_rank(name, rows, importance) for name in names]
        drawn: str = _screen().table(headings, cells, numeric, style.width, style.color, ranks)
        return drawn
    widths = [
        max([width_of(headings[i]), *(width_of(line[i]) for line in cells)])
        for i in range(len(names))
    ]
    lines = [_line(headings, widths, numeric), *(_line(c, widths, numeric) for c in cells)]
    if style.color:
        lines[0] = f"{_BOLD}{lines[0]}{_PLAIN}"
    return "".join(f"{line}\n" for line in lines)


def _rank(name: str, rows: Sequence[Mapping[str, object]], importance: Mapping[str, int]) -> int:
    """The importance of a column here: none if it says nothing, unless it is a main one."""
    declared = _MAIN if name == "backlog" else importance.get(name, _NORMAL)
    if declared < _MAIN and all(not row[name] for row in rows):
        return 0
    return declared


def pairs(row: Mapping[str, object], style: Look, *, markdown: bool = False) -> str:
    """Return one object as a list of field and value."""
    if markdown:
        lines = [[name, readable(name, value, style)] for name, value in row.items()]
        return _markdown(["field", "value"], lines, [False, False])
    if style.human:
        return _readable_pairs(row, style)
    lines_of_text = [(name, readable(name, value, style)) for name, value in row.items()]
    if style.width:
        drawn: str = _screen().pairs(lines_of_text, style.width, style.color)
        return drawn
    width = max((len(name) for name in row), default=0)
    return "".join(f"{f'{name.ljust(width)}  {text}'.rstrip()}\n" for name, text in lines_of_text)


def _readable_pairs(row: Mapping[str, object], style: Look) -> str:
    """One object for people: an object in it as more lines, a list of objects as a table below."""
    lines: list[tuple[str, str]] = []
    below: list[str] = []
    labels = headings_of([*row], human=True)
    for (name, value), upper in zip(row.items(), labels, strict=True):
        label = printable(upper.lower())
        if isinstance(value, Mapping):
            lines += _inner(label, value, style)
        elif isinstance(value, list) and value and all(isinstance(each, dict) for each in value):
            names = [*dict.fromkeys(key for each in value for key in each)]
            rows = [{key: each.get(key) for key in names} for each in value]
            title = f"{_BOLD}{label}{_PLAIN}" if style.color else label
            below.append(f"\n{title}\n{_listed(names, rows, style)}")
        else:
            lines.append((label, readable(name, value, style) or NOTHING))
    if style.width:
        drawn: str = _screen().pairs(lines, style.width, style.color)
    else:
        width = max((len(label) for label, _ in lines), default=0)
        drawn = "".join(f"{label.ljust(width)}  {text}".rstrip() + "\n" for label, text in lines)
    return drawn + "".join(below)


def _listed(names: Sequence[str], rows: Sequence[Mapping[str, object]], style: Look) -> str:
    """A list of objects in an object: a table, or each by itself if the table cuts a long text.

    Such a text, as the command of a consumer, is often what the reader looks for.
    """
    labels = headings_of(names, style.human)
    cells = [[readable(name, row[name], style) for name in names] for row in rows]
    widths = [max(map(width_of, column)) for column in zip(labels, *cells, strict=True)]
    is_long = max(widths) > style.width // 3 and sum(widths) + 2 * len(widths) > style.width
    if not style.width or not is_long or len(rows) > _OBJECTS_MAX:
        return table(names, rows, style, importance={})
    fields = [printable(label.lower()) for label in labels]
    return "\n".join(
        _screen().pairs(
            [(field, text or NOTHING) for field, text in zip(fields, line, strict=True)],
            style.width,
            style.color,
        )
        for line in cells
    )


def _inner(label: str, row: Mapping[str, object], style: Look) -> list[tuple[str, str]]:
    """The lines of an object in an object, each with the path to its value."""
    lines: list[tuple[str, str]] = []
    for (name, value), upper in zip(row.items(), headings_of([*row], human=True), strict=True):
        path = f"{label} {printable(upper.lower())}"
        if isinstance(value, Mapping):
            lines += _inner(path, value, style)
        else:
            lines.append((path, readable(name, value, style) or NOTHING))
    return lines or [(label, NOTHING)]


def cut(line: str, style: Look) -> str:
    """Return a line cut to fit one line of a terminal; off a terminal it is unchanged."""
    if not style.width or (len(line) <= style.width and line.isascii()):
        return line
    shorter: str = _screen().cut(line, style.width)
    return shorter


def headings_of(names: Sequence[str], human: bool) -> list[str]:
    """The headings of fields; if `backlog` is shown too, `backlog_bytes` is BACKLOG SIZE."""
    headings = [heading(name, human) for name in names]
    return [
        f"{text} {'SIZE' if name.endswith('_bytes') else 'TIME'}"
        if headings.count(text) > 1 and name.endswith(("_bytes", "_ms"))
        else text
        for name, text in zip(names, headings, strict=True)
    ]


def heading(name: str, human: bool) -> str:
    """Return the heading of a field."""
    if human and name in _SHORT:
        return _SHORT[name]
    if human:
        for unit in ("_ms", "_bytes", "_list"):
            if name.endswith(unit) and name != unit:
                name = name.removesuffix(unit)
                name += "s" if unit == "_list" and not name.endswith("ed") else ""
                break
    return name.replace("_", " ").upper()


def readable(name: str, value: object, style: Look) -> str:
    """Return a value in readable form; off a terminal as in JSON."""
    if style.human and isinstance(value, int) and not isinstance(value, bool):
        if name.endswith("_ms"):
            return duration(value)
        if name.endswith("_bytes"):
            return size(value)
        return str(value) if name.rpartition("_")[2] in _IDS else f"{value:,}"
    if style.human and isinstance(value, float) and name.startswith("rate_"):
        return f"{value:,.1f}"
    if style.human and isinstance(value, str) and is_instant(name):
        return local_time(value, style.utc)
    if style.human and isinstance(value, dict):
        return " ".join(
            f"{printable(str(key))}={readable(key, each, style)}" for key, each in value.items()
        )
    if style.human and isinstance(value, list) and value and isinstance(value[0], dict):
        return f"{len(value)}"
    return printable(cell(value))


def counted(count: int, noun: str) -> str:
    """Return `1 message`, `1,204 messages`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def local_time(text: str, utc: bool) -> str:
    """Return an RFC 3339 instant for a terminal; any other text, or one out of range, unchanged.

    A column of a query can have any name, and any value.
    """
    try:
        return wall_text(datetime.fromisoformat(text), utc=utc)
    except (ValueError, OverflowError):
        return printable(text)


def width_of(text: str) -> int:
    """Return the columns that text takes."""
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return len(text) + wide - sum(bool(unicodedata.combining(char)) for char in text)


def _line(cells: Sequence[str], widths: Sequence[int], numeric: Sequence[bool]) -> str:
    parts = []
    for text, width, right in zip(cells, widths, numeric, strict=True):
        space = " " * (width - width_of(text))
        parts.append(space + text if right else text + space)
    return "  ".join(parts).rstrip()


def _screen() -> ModuleType:
    return importlib.import_module("txlog.cli.terminal.screen")  # rich, on terminals only


def _markdown(
    headings: Sequence[str], cells: Sequence[Sequence[str]], numeric: Sequence[bool]
) -> str:
    lines = [list(headings), ["--:" if right else "---" for right in numeric]]
    lines += [[text.replace("|", "\\|") for text in row] for row in cells]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
