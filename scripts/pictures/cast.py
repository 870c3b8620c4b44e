"""Owns terminals that are recorded, and their recording as one animated SVG.

A `Pane` is a real shell on a pseudo-terminal; pyte keeps its screen. `record` types into panes and
notes every change of a line. `animated` draws the lines: CSS shows each while it was on its screen.
The file loads nothing and has no script. A viewer that does not animate, or a reader who asked for
less motion, sees the last moment.

    panes = [Pane("worker", folder, environment), Pane("totals", folder, environment)]
    cast = record(panes, steps)     # steps yields (pane, text to type, condition to wait for)
    animated(cast, {"Killed": "red"})
"""

from __future__ import annotations

import fcntl
import html
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pyte

COLUMNS, ROWS = 60, 22
_KEY_S = 0.03  # between two keys
_PAUSE_MAX_S = 0.8  # longer pauses of the recording are cut to this
_FRAME_S = 0.06  # changes that are closer than this share a frame
_LAST_S = 6.0  # how long the last moment stays
_WAIT_MAX_S = 120.0
_LETTER, _LINE, _EDGE, _BAR = 7.83, 18, 14, 34
_COLORS = {
    "green": "#7ee787",
    "red": "#ff7b72",
    "brown": "#e3b341",
    "blue": "#79c0ff",
    "cyan": "#76e3ea",
}
_FONTS = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"
Run = tuple[str, str, bool]  # text, colour, bold
Condition = Callable[[str], bool]


class Pane:
    """A shell on a terminal of its own."""

    def __init__(self, title: str, folder: Path, environment: dict[str, str]) -> None:
        self.title = title
        self.screen = pyte.Screen(COLUMNS, ROWS)
        self._stream = pyte.ByteStream(self.screen)
        self.process, self.terminal = pty.fork()
        if self.process == 0:
            os.chdir(folder)
            os.execvpe("bash", ["bash", "--noprofile", "--norc", "-i"], environment)
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))

    def read(self) -> None:
        """Bring the screen up to date."""
        try:
            self._stream.feed(os.read(self.terminal, 65536))
        except OSError:  # Linux raises EIO once the other side is closed
            raise RuntimeError(f"the shell of {self.title} has ended") from None

    def text(self) -> str:
        """The lines on the screen."""
        return "\n".join(line.rstrip() for line in self.screen.display)

    def rows(self) -> list[tuple[Run, ...]]:
        """Each line as runs of one style."""
        out = []
        for row in range(ROWS):
            runs: list[Run] = []
            for column in range(COLUMNS):
                letter = self.screen.buffer[row][column]
                style = (letter.fg, letter.bold)
                if runs and runs[-1][1:] == style:
                    runs[-1] = (runs[-1][0] + letter.data, *style)
                else:
                    runs.append((letter.data, *style))
            if runs:
                runs[-1] = (runs[-1][0].rstrip(), *runs[-1][1:])
            out.append(tuple(run for run in runs if run[0]))
        return out

    def close(self) -> None:
        """End the shell and what it started."""
        os.killpg(self.process, signal.SIGKILL)
        os.close(self.terminal)
        os.waitpid(self.process, 0)


@dataclass
class Cast:
    """What was on the lines of each pane: (pane, row, runs, from, to) in seconds."""

    titles: list[str]
    lines: list[tuple[int, int, tuple[Run, ...], float, float]] = field(default_factory=list)
    seconds: float = 0.0


def record(panes: list[Pane], steps: Iterable[tuple[Pane, str, Condition]]) -> Cast:
    """Type the steps, each once the condition of the one before holds on the screen of its pane."""
    moments: list[tuple[float, list[list[tuple[Run, ...]]]]] = []

    def look(seconds: float) -> None:
        until = time.monotonic() + seconds
        while True:
            ready = select.select(
                [pane.terminal for pane in panes], [], [], max(0.0, until - time.monotonic())
            )[0]
            for pane in panes:
                if pane.terminal in ready:
                    pane.read()
            if ready:
                moments.append((time.monotonic(), [pane.rows() for pane in panes]))
            if time.monotonic() >= until:
                return

    moments.append((time.monotonic(), [pane.rows() for pane in panes]))
    for pane, text, condition in steps:
        for key in text:
            os.write(pane.terminal, key.encode())
            look(_KEY_S)
        deadline = time.monotonic() + _WAIT_MAX_S
        while not condition(pane.text()):
            if time.monotonic() > deadline:
                raise RuntimeError(f"nothing came after {text!r} in {pane.title}:\n{pane.text()}")
            look(0.05)
    return _joined([pane.title for pane in panes], moments)


def _joined(titles: list[str], moments: list[tuple[float, list[list[tuple[Run, ...]]]]]) -> Cast:
    """The moments as lines that stay for a while, on a clock without long pauses."""
    cast = Cast(titles)
    shown: dict[tuple[int, int], tuple[tuple[Run, ...], float]] = {}
    clock, before, drawn = 0.0, moments[0][0], -1.0
    for number, (at, screens) in enumerate(moments):
        clock, before = clock + min(at - before, _PAUSE_MAX_S), at
        if clock - drawn < _FRAME_S and number + 1 < len(moments):
            continue
        drawn = clock
        for pane, rows in enumerate(screens):
            for row, runs in enumerate(rows):
                earlier, since = shown.get((pane, row), ((), clock))
                if earlier != runs:
                    if earlier:
                        cast.lines.append((pane, row, earlier, since, clock))
                    shown[pane, row] = (runs, clock)
    cast.seconds = clock + _LAST_S
    cast.lines += [
        (pane, row, runs, since, cast.seconds)
        for (pane, row), (runs, since) in shown.items()
        if runs
    ]
    return cast


def animated(cast: Cast, marks: dict[str, str]) -> str:
    """The recording as SVG.

    marks: patterns of text, and the colour that they get in lines without colours of their own
    """
    width = round(COLUMNS * _LETTER + 2 * _EDGE)
    height = _BAR + ROWS * _LINE + _EDGE
    whole = len(cast.titles) * width + (len(cast.titles) - 1) * _EDGE
    styles: dict[tuple[str, str], str] = {}
    body, still = [], []
    for pane, title in enumerate(cast.titles):
        left = pane * (width + _EDGE)
        body.append(
            f'<rect x="{left + 0.5}" y="0.5" width="{width - 1}" height="{height - 1}" rx="8"'
            ' fill="#0d1117" stroke="#6e7681"/>'
            f'<text x="{left + width / 2:.0f}" y="22" text-anchor="middle" fill="#9da7b3">'
            f"{html.escape(title)}</text>"
        )
    for pane, row, runs, since, until in sorted(cast.lines, key=lambda line: line[:2] + line[3:]):
        start, end = (f"{100 * at / cast.seconds:.2f}" for at in (since, until))
        name = styles.setdefault((start, end), f"t{len(styles)}")
        last = " z" if until == cast.seconds else ""
        left = pane * (width + _EDGE) + _EDGE
        spans = "".join(_span(*run) for run in _marked(runs, marks))
        body.append(
            f'<text x="{left}" y="{_BAR + (row + 1) * _LINE}" class="l {name}{last}">{spans}</text>'
        )
    for (start, end), name in styles.items():
        hidden = "" if end == "100.00" else f"{end}%{{visibility:hidden}}"
        still.append(
            f"@keyframes {name}{{0%{{visibility:hidden}}{start}%{{visibility:visible}}{hidden}}}"
            f".{name}{{animation-name:{name}}}"
        )
    label = html.escape("; ".join(cast.titles))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {whole} {height}" width="{whole}"'
        f' height="{height}" role="img" aria-label="{label}">\n<style>\n'
        f"text{{font:13px {_FONTS};white-space:pre}}\n"
        f".l{{fill:#e6edf3;visibility:hidden;animation:{cast.seconds:.1f}s step-end infinite}}\n"
        ".z{visibility:visible}\n"
        + "\n".join(still)
        + "\n@media (prefers-reduced-motion:reduce){.l{animation:none}}\n</style>\n"
        + "\n".join(body)
        + "\n</svg>\n"
    )


def _marked(runs: tuple[Run, ...], marks: dict[str, str]) -> list[Run]:
    if any(color != "default" or bold for _, color, bold in runs):
        return list(runs)
    text = "".join(run[0] for run in runs)
    spans = sorted(
        (*match.span(), color) for mark, color in marks.items() for match in re.finditer(mark, text)
    )
    out: list[Run] = []
    at = 0
    for start, end, color in spans:
        out += [(text[at:start], "default", False), (text[start:end], color, True)]
        at = end
    return [run for run in (*out, (text[at:], "default", False)) if run[0]]


def _span(text: str, color: str, bold: bool) -> str:
    plain = html.escape(text, quote=False)
    style = f' fill="{_COLORS[color]}"' if color in _COLORS else ""
    weight = ' font-weight="bold"' if bold else ""
    return f"<tspan{style}{weight}>{plain}</tspan>" if style or weight else plain
