"""Owns the charts of a page: columns, bars, lines, events on a line. Axes and legends are HTML.

An SVG contains only marks and stretches to the available width. Its text is HTML next to it, so it
keeps its size on a phone. Every mark has a tooltip. A tone is a colour, t1 to t8 in the style.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from txlog.page.words import Link, brief, linked, safe

TONES: Final = 8
_WIDE: Final = 1000.0
_HIGH: Final = 100.0


class Series(NamedTuple):
    """One row of values in one tone; titles: the tooltip of each value."""

    name: str
    tone: int
    values: Sequence[float]
    titles: Sequence[str]


class Bar(NamedTuple):
    """A bar of a bar chart: its parts as (tone, value, tooltip), and the label after it."""

    name: str | Link
    parts: Sequence[tuple[int, float, str]]
    label: str


class Line(NamedTuple):
    """A step line: points (x, y) in order; a y of None ends it until the next point."""

    name: str
    tone: int
    points: Sequence[tuple[float, float | None]]
    title: str


def columns(
    series: Sequence[Series],
    ticks: Sequence[str],
    aria: str,
    *,
    small: bool = False,
    ordinal: bool = False,
) -> str:
    """A column chart as HTML: columns side by side, with the series stacked in each.

    ticks:   labels below the axis; ordinal: one for each column, else first, middle and last
    """
    number = max((len(row.values) for row in series), default=0)
    heights = [sum(row.values[at] for row in series) for at in range(number)]
    top = nice(max(heights, default=0))
    step = _WIDE / max(number, 1)
    gap = step * (0.12 if number > 60 else 0.2)
    marks: list[str] = []
    for at in range(number):
        base = _HIGH
        for row in series:
            height = row.values[at] / top * _HIGH
            if height <= 0:
                continue
            base -= height
            marks.append(
                f'<rect class="t{row.tone}" x="{_number(at * step + gap / 2)}"'
                f' y="{_number(base)}" width="{_number(step - gap)}" height="{_number(height)}">'
                f"<title>{safe(row.titles[at])}</title></rect>"
            )
    half = top / 2
    scale = [brief(top), brief(half) if half == int(half) else "", "0"]
    kind = "ordinal" if ordinal else "spread"
    return _plot(marks, scale, ticks, aria, kind, small=small) + legend(series)


def lines(
    drawn: Sequence[Line],
    y_range: tuple[float, float],
    bottom: tuple[float, float],
    scale: Sequence[str],
    ticks: Sequence[str],
    aria: str,
) -> str:
    """A chart of step lines as HTML; y_range, bottom: lowest and highest y, and x."""
    marks = []
    for line in drawn:
        path = _steps(line.points, y_range, bottom)
        marks.append(
            f'<path class="line s{line.tone}" d="{path}"><title>{safe(line.title)}</title></path>'
        )
    return _plot(marks, scale, ticks, aria, "spread", wide=True) + legend(
        [Series(line.name, line.tone, (), ()) for line in drawn], always=True
    )


def bars(rows: Sequence[Bar], aria: str) -> str:
    """A bar chart as HTML; bars begin on the left, and the longest takes the full width."""
    top = max((sum(value for _, value, _ in row.parts) for row in rows), default=0) or 1
    out: list[str] = []
    for row in rows:
        at = 0.0
        marks: list[str] = []
        for tone, value, title in row.parts:
            width = value / top * _WIDE
            if width <= 0:
                continue
            marks.append(
                f'<rect class="t{tone}" x="{_number(at)}" y="0"'
                f' width="{_number(max(width, 2.0))}" height="10">'
                f"<title>{safe(title)}</title></rect>"
            )
            at += width
        text = row.name.text if isinstance(row.name, Link) else row.name
        out.append(
            f'<li><span class="name">{linked(row.name)}</span>'
            f'<svg viewBox="0 0 {_WIDE:.0f} 10" preserveAspectRatio="none" role="img"'
            f' aria-label="{safe(text)}: {safe(row.label)}">{"".join(marks)}</svg>'
            f'<span class="value">{safe(row.label)}</span></li>'
        )
    return f'<ul class="bars" aria-label="{safe(aria)}">{"".join(out)}</ul>'


def life(marks: Sequence[tuple[int, float, str]], end: float, ticks: Sequence[str]) -> str:
    """A line with its events, as HTML.

    marks: (tone, position from 0 to 1, tooltip) of each event
    end:   how far the line is drawn in full; it goes on pale, up to 1
    """
    width = 7.0
    drawn = "".join(
        f'<rect class="t{shade}" x="{_number(min(max(at, 0.0), 1.0) * (_WIDE - width))}" y="2"'
        f' width="{width:.0f}" height="20"><title>{safe(title)}</title></rect>'
        for shade, at, title in marks
    )
    below = "".join(f"<span>{safe(text)}</span>" for text in ticks)
    return (
        f'<div class="life"><svg viewBox="0 0 {_WIDE:.0f} 24" preserveAspectRatio="none"'
        f' role="img" aria-label="{safe("; ".join(title for _, _, title in marks))}">'
        f'<path class="grid" d="M0 12H{_WIDE:.0f}"/>'
        f'<rect class="past" x="0" y="10" width="{_number(end * _WIDE)}" height="4"/>'
        f'{drawn}</svg><div class="ticks spread" aria-hidden="true">{below}</div></div>'
    )


def legend(series: Sequence[Series], *, always: bool = False) -> str:
    """The name of each series next to its colour, as HTML; empty for fewer than two."""
    if len(series) < 2 and not always:
        return ""
    items = "".join(
        f'<li><svg class="chip" viewBox="0 0 10 10" aria-hidden="true"><rect class="t{entry.tone}"'
        f' width="10" height="10" rx="2"/></svg>{safe(entry.name)}</li>'
        for entry in series
    )
    return f'<ul class="legend">{items}</ul>'


def nice(value: float) -> float:
    """The value rounded up to 1, 2 or 5 times a power of ten; at least 1."""
    step = 1.0
    while True:
        for factor in (1, 2, 5):
            if value <= factor * step:
                return factor * step
        step *= 10


def tone(at: int) -> int:
    """The tone of the series with this number, from 0; it repeats after t8."""
    return at % TONES + 1


def _plot(
    marks: Sequence[str],
    scale: Sequence[str],
    ticks: Sequence[str],
    aria: str,
    kind: str,
    *,
    small: bool = False,
    wide: bool = False,
) -> str:
    grid = "".join(f"M0 {_number(_HIGH * share)}H{_WIDE:.0f}" for share in (0, 0.5, 1))
    classes = " ".join(["plot", *["small"] * small, *["wide"] * wide])
    labels = "".join(f"<span>{safe(text)}</span>" for text in scale)
    below = "".join(f"<span>{safe(text)}</span>" for text in ticks)
    return (
        f'<div class="{classes}"><div class="scale" aria-hidden="true">{labels}</div>'
        f'<svg viewBox="0 0 {_WIDE:.0f} {_HIGH:.0f}" preserveAspectRatio="none" role="img"'
        f' aria-label="{safe(aria)}"><path class="grid" d="{grid}"/>{"".join(marks)}</svg>'
        f'<div class="ticks {kind}" aria-hidden="true">{below}</div></div>'
    )


def _steps(
    points: Sequence[tuple[float, float | None]],
    y_range: tuple[float, float],
    bottom: tuple[float, float],
) -> str:
    """A path that runs level to the next point, then straight up or down."""
    path: list[str] = []
    is_drawn = False
    for x, y in points:
        across = _number((x - bottom[0]) / (bottom[1] - bottom[0]) * _WIDE)
        if is_drawn:
            path.append(f"H{across}")
        if y is not None:
            up = _number(_HIGH - (y - y_range[0]) / (y_range[1] - y_range[0]) * _HIGH)
            path.append(f"V{up}" if is_drawn else f"M{across} {up}")
        is_drawn = y is not None
    return "".join(path)


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")
