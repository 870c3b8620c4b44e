"""Owns the screen of `txlog top`: subscriptions as a table that keys sort and scroll.

prompt_toolkit draws it on the alternate screen and gives the terminal back, also when a signal ends
the program. Text from the store is escaped, as everywhere on terminals.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from signal import SIGINT
from typing import TYPE_CHECKING, Final, NamedTuple

from prompt_toolkit.application import Application
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.layout import FormattedTextControl, Layout, Window
from prompt_toolkit.output.color_depth import ColorDepth

from txlog.cli.terminal import tables
from txlog.cli.terminal.signals import Interrupted
from txlog.errors import TxlogError, printable

if TYPE_CHECKING:
    from txlog.base.rows.consuming import LagRow

_UNKNOWN: Final = "-"
_NAME_MIN: Final = 10
_KEYS: Final = "b backlog  a age  i in  o out  c catch-up  n name  r reverse  q quit"


class _Column(NamedTuple):
    """A column of figures; the later it comes in _COLUMNS, the sooner a narrow screen loses it."""

    heading: str
    key: str
    value: Callable[[LagRow], float | None]
    text: Callable[[float], str]


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _duration(value: float) -> str:
    return tables.duration(round(value))


def _number(value: float) -> str:
    return f"{value:,.0f}"


def _size(value: float) -> str:
    return tables.size(round(value))


_COLUMNS: Final = (
    _Column("BACKLOG", "b", lambda row: row["backlog"], _number),
    _Column("OLDEST", "a", lambda row: row["oldest_age_ms"], _duration),
    _Column("IN/S", "i", lambda row: row["rate_in_1m"], _rate),
    _Column("OUT/S", "o", lambda row: row["rate_out_1m"], _rate),
    _Column("CATCH UP", "c", lambda row: row["catch_up_ms"], _duration),
    _Column("CONSUMERS", "", lambda row: row["consumers"], _number),
    _Column("SIZE", "", lambda row: row["backlog_bytes"], _size),
    _Column("DELAYED", "", lambda row: row["delayed"], _number),
    _Column("IN/S 15M", "", lambda row: row["rate_in_15m"], _rate),
    _Column("OUT/S 15M", "", lambda row: row["rate_out_15m"], _rate),
)


class Top:
    """The screen: the rows of the last look, the order, and the first row that is shown."""

    def __init__(
        self, look: Callable[[], Sequence[LagRow]], path: str, pause_ms: int, style: tables.Look
    ) -> None:
        self._look, self._path, self._pause_ms = look, printable(path), pause_ms
        self._rows: list[LagRow] = []
        self._failure = ""
        self._key, self._is_reversed, self._first = "b", False, 0
        self._application: Application[None] = Application(
            Layout(Window(FormattedTextControl(self._drawn), wrap_lines=False)),
            key_bindings=self._bindings(),
            full_screen=True,
            color_depth=None if style.color else ColorDepth.DEPTH_1_BIT,
        )

    def run(self) -> None:
        """Show the screen until a key or a signal ends it. Raises the error of the first look."""
        self._rows = [*self._look()]

        def begin() -> None:
            self._application.create_background_task(self._look_again())

        try:
            self._application.run(pre_run=begin)
        finally:  # a signal may come where prompt_toolkit does not give the screen back
            self._application.renderer.reset()

    async def _look_again(self) -> None:
        while True:
            await asyncio.sleep(self._pause_ms / 1000)
            try:
                self._rows, self._failure = [*self._look()], ""
            except TxlogError as error:  # the last rows stay, and the next look may succeed
                self._failure = printable(error.message)
            self._application.invalidate()

    # --- keys --------------------------------------------------------------------------------

    def _bindings(self) -> KeyBindings:
        bindings = KeyBindings()
        for key in ("q", "escape", "c-c"):
            bindings.add(key, eager=True)(lambda event: event.app.exit())
        bindings.add("<sigint>")(lambda event: event.app.exit(exception=Interrupted(SIGINT)))
        for key in ("n", *(column.key for column in _COLUMNS if column.key)):
            bindings.add(key)(lambda event, key=key: self._sort(key))
        bindings.add("r")(lambda event: self._reverse())
        for key, step in (("down", 1), ("up", -1), ("pagedown", 10), ("pageup", -10)):
            bindings.add(key)(lambda event, step=step: self._scroll(event, step))
        return bindings

    def _sort(self, key: str) -> None:
        self._key, self._is_reversed, self._first = key, False, 0

    def _reverse(self) -> None:
        self._is_reversed = not self._is_reversed

    def _scroll(self, event: KeyPressEvent, step: int) -> None:
        last = max(0, len(self._rows) - self._room(event.app.output.get_size().rows))
        self._first = max(0, min(last, self._first + step))

    # --- drawing -----------------------------------------------------------------------------

    @staticmethod
    def _room(lines: int) -> int:
        """How many rows fit between two lines and the headings above, and one line below."""
        return max(1, lines - 4)

    def _ordered(self) -> list[LagRow]:
        """By name from a on; by a figure from the largest on, and unknown figures at the end."""
        rows = sorted(self._rows, key=lambda row: (row["topic"], row["subscription"]))
        if self._key == "n":
            return rows[::-1] if self._is_reversed else rows
        value = next(column.value for column in _COLUMNS if column.key == self._key)
        with_value = [row for row in rows if value(row) is not None]
        with_value.sort(key=lambda row: value(row) or 0, reverse=not self._is_reversed)
        return with_value + [row for row in rows if value(row) is None]

    def _drawn(self) -> StyleAndTextTuples:
        size = self._application.output.get_size()
        rows = self._ordered()[self._first : self._first + self._room(size.rows)]
        lines: StyleAndTextTuples = [("bold", f"{self._head(size.columns)}\n")]
        lines.append(("", f"{tables.cut(self._failure, _of(size.columns))}\n"))
        headings, cells = self._table(rows, size.columns)
        lines.append(("reverse", f"{headings}\n"))
        lines += [("", f"{line}\n") for line in cells]
        lines += [("", "\n")] * (self._room(size.rows) - len(cells))
        lines.append(("", tables.cut(_KEYS, _of(size.columns))))
        return lines

    def _head(self, width: int) -> str:
        total = sum(row["backlog"] for row in self._rows)
        lagging = sum(row["backlog"] > 0 for row in self._rows)
        text = (
            f"{tables.counted(len(self._rows), 'subscription')}, {lagging} behind, "
            f"{tables.counted(total, 'message')}   {self._path}"
        )
        return tables.cut(text, _of(width))

    def _table(self, rows: Sequence[LagRow], width: int) -> tuple[str, list[str]]:
        names = [printable(f"{row['topic']}/{row['subscription']}") for row in rows]
        columns: list[tuple[str, list[str]]] = []
        used = max([_NAME_MIN, *(min(tables.width_of(name), 40) for name in names)])
        for column in _COLUMNS:
            values = [column.value(row) for row in rows]
            texts = [_UNKNOWN if value is None else column.text(value) for value in values]
            wide = max(len(text) for text in (column.heading, *texts))
            if used + 2 + wide > width:
                break
            used += 2 + wide
            columns.append((column.heading.rjust(wide), [text.rjust(wide) for text in texts]))
        room = max(_NAME_MIN, width - sum(2 + len(heading) for heading, _ in columns))
        headings = "  ".join(
            ["TOPIC/SUBSCRIPTION"[:room].ljust(room), *(heading for heading, _ in columns)]
        )
        lines = []
        for at, name in enumerate(names):
            name = tables.cut(name, _of(room))
            name += " " * (room - tables.width_of(name))
            lines.append("  ".join([name, *(texts[at] for _, texts in columns)]))
        return headings, lines


def _of(width: int) -> tables.Look:
    """The style of a line of this width."""
    return tables.Look(human=True, color=False, utc=False, width=width)
