"""Owns drawings by rich on a terminal: tables, fields with their values, the line of a bar.

It is imported only to draw on a terminal; importing rich costs 45 ms. It returns drawings as text,
so that all output leaves through one writer. rich never reads data as markup: it gets Text, with
markup, emoji names and highlighting off.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Final

from rich.cells import cell_len
from rich.console import Console, JustifyMethod, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

_GAP: Final = 2
_TEXT_MIN: Final = 12  # a text column never becomes narrower
_STATES: Final = {
    **dict.fromkeys("ok active committed Ready online".split(), "green"),
    **dict.fromkeys("open committing aborting warning idle overdue".split(), "yellow"),
    **dict.fromkeys("aborted critical failed Corrupt Error offline damaged".split(), "red"),
}
_VALUE_LINES: Final = 10
MAIN: Final = 3  # the importance of the columns that leave last
_BAR_MAX, _BAR_MIN, _WORDS_MIN = 40, 8, 46


def rendered(drawing: RenderableType, columns: int, color: bool) -> str:
    """Return the drawing as text, with a newline at the end, no wider than columns."""
    file = io.StringIO()
    console = Console(
        file=file,
        width=max(columns, 1),
        height=25,
        force_jupyter=False,
        color_system="standard" if color else None,
        no_color=False,  # the caller has checked the environment
        markup=False,
        emoji=False,
        highlight=False,
    )
    console.print(drawing)
    return "".join(f"{line.rstrip()}\n" for line in file.getvalue().split("\n")[:-1])


def cell(text: str) -> Text:
    """Return text whose lines are cut with … to fit their column."""
    return Text(text, no_wrap=True, overflow="ellipsis")


def cut(text: str, columns: int) -> str:
    """Return a line cut to `columns`."""
    # bound on characters, as a line can be a whole message; some have no width
    most = 4 * max(columns, 1)
    line = cell(text if len(text) <= most else f"{text[:most]}…")
    line.truncate(max(columns, 1), overflow="ellipsis")
    return line.plain


def table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    numeric: Sequence[bool],
    columns: int,
    color: bool,
    importance: Sequence[int] | None = None,
) -> str:
    """Return rows under their headings; it cuts text to fit, and then leaves out columns.

    numeric:    for each column, whether it holds numbers, which are right-aligned
    importance: of each column: the least important leave first; None: the last ones do.
                A main one is not cut either
    """
    lists = [[row[number] for row in rows] for number in range(len(headings))]
    widths = [
        max(map(cell_len, [heading, *values]))
        for heading, values in zip(headings, lists, strict=True)
    ]
    # Numbers are never cut, nor are the first column and names, up to half of the width.
    ranks = importance or [0] * len(widths)
    whole = [
        numeric[number] or (widths[number] <= columns // 2 and (not number or rank >= MAIN))
        for number, rank in enumerate(ranks)
    ]
    least = [
        width if stays else min(width, _TEXT_MIN)
        for width, stays in zip(widths, whole, strict=True)
    ]
    chosen = _kept(least, columns, ranks)
    drawn = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for number in chosen:
        justify: JustifyMethod = "right" if numeric[number] else "left"
        drawn.add_column(cell(headings[number]), justify=justify, no_wrap=whole[number])
    # A column is one cell of many lines: a cell per value takes three times as long.
    column_cells = [_column(lists[number]) for number in chosen]
    if len(chosen) < len(headings):
        drawn.add_column("…", no_wrap=True)
        column_cells.append(cell("\n".join("…" for _ in rows)))
    if rows:
        drawn.add_row(*column_cells)
    return rendered(drawn, columns, color)


def _kept(least: Sequence[int], columns: int, importance: Sequence[int]) -> list[int]:
    """The columns that fit, with a column of … if some do not; the first one always stays."""
    chosen = list(range(len(least)))
    if sum(least) + _GAP * (len(least) - 1) <= columns:
        return chosen
    while len(chosen) > 1 and sum(least[number] + _GAP for number in chosen) >= columns:
        chosen.remove(min(chosen[1:], key=lambda number: (importance[number], -number)))
    return chosen


def _column(values: Sequence[str]) -> Text:
    """The cell of a column; words for states are in colour."""
    column = cell("\n".join(values))
    at = 0
    for value in values:
        if style := _STATES.get(value):
            column.stylize(style, at, at + len(value))
        at += len(value) + 1
    return column


def pairs(rows: Sequence[tuple[str, str]], columns: int, color: bool) -> str:
    """Return names and their values; a long value takes up to _VALUE_LINES lines."""
    drawn = Table.grid(padding=(0, _GAP, 0, 0))
    drawn.add_column(no_wrap=True, style="bold")
    drawn.add_column()
    widest = max((cell_len(name) for name, _ in rows), default=0)
    most = _VALUE_LINES * max(columns - widest - _GAP, 1)
    for name, value in rows:
        drawn.add_row(cell(name), Text(cut(value, most), overflow="fold"))
    return rendered(drawn, columns, color)


def progress(name: str, caption: str, share: float | None, columns: int, color: bool) -> str:
    """Return a line without its end: a name, words, and a bar between them if there is room.

    share: 0 to 1; None: unknown
    """
    drawn = Table.grid(padding=(0, 1, 0, 0))
    drawn.add_column()
    parts: list[RenderableType] = [cell(name)]
    if share is not None:
        # The words have a fixed width, so that the bar does not change its length.
        room = columns - cell_len(name) - max(cell_len(caption), _WORDS_MIN) - 2
        if room >= _BAR_MIN:
            drawn.add_column(no_wrap=True)
            width = min(room, _BAR_MAX)
            parts.append(ProgressBar(1.0, share, width, complete_style="cyan", style="dim"))
    if caption:
        drawn.add_column(no_wrap=True)
        parts.append(cell(caption))
    drawn.add_row(*parts)
    return rendered(drawn, columns, color).removesuffix("\n")
