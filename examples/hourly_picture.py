"""The picture of examples/hourly_revenue.py: event time over the wall clock, as SVG."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Literal

import svg
from hourly_plan import HOUR_MS, TILLS
from hourly_story import Moment, Story

WIDTH, LEFT, RIGHT = 1200, 128, 24
TITLE_HEIGHT, LABEL_HEIGHT, AXIS_HEIGHT, LEGEND_HEIGHT = 66, 17, 56, 76
FONT = "Helvetica, Arial, sans-serif"
INK, FAINT, GRID, SHUT = "#222222", "#666666", "#e4e4e4", "#f3f1ea"
DAY_MS, SHUT_HOURS = 24 * HOUR_MS, 0.5
LINE, LATE, WINDOW, EMITTED = "#9aa5b1", "#d55e00", "#b6579a", "#000000"
COLOURS = dict(zip(TILLS, ("#0072b2", "#e69f00", "#009e73"), strict=True))
DOTS_MAX = 3_000
HEIGHT_MAX = 2_000
Anchor = Literal["start", "middle", "end"]
Weight = Literal["normal", "bold"]
LETTER_WIDTH = 6.4  # of the labels, on average


class Hours:
    """Event time in hours of business: an hour without any line takes no space.

    shut: the (height, height) at which the shop is closed
    """

    def __init__(self, opened: Iterable[int]) -> None:
        self.starts = sorted(set(opened))
        self.heights: list[float] = []
        self.shut: list[tuple[float, float]] = []
        height = 0.0
        for at, start in enumerate(self.starts):
            if at and start != self.starts[at - 1] + HOUR_MS:
                self.shut.append((height, height + SHUT_HOURS))
                height += SHUT_HOURS
            self.heights.append(height)
            height += 1

    def height(self, time: float) -> float:
        """The position of an event time, counted in hours of business."""
        at = bisect_right(self.starts, time) - 1
        if at < 0:
            return -1.0
        return self.heights[at] + min((time - self.starts[at]) / HOUR_MS, 1.0)

    def ticks(self, low: float, high: float, gap: float) -> Iterator[tuple[float, str]]:
        """Hours with their labels, at least a gap apart; the first hour of a day has priority."""
        names = [(self.heights[at], start) for at, start in enumerate(self.starts)]
        names = [one for one in names if low <= one[0] <= high]
        firsts = [
            one
            for at, one in enumerate(names)
            if not at or names[at - 1][1] // DAY_MS != one[1] // DAY_MS
        ]
        is_wide = len(firsts) * gap > high - low  # days, and not every day
        taken: list[float] = []
        for is_first, found in ((True, firsts), (False, [] if is_wide else names)):
            for height, start in found:
                if all(abs(height - other) >= gap for other in taken):
                    taken.append(height)
                    at = datetime.fromtimestamp(start / 1000, UTC)
                    day, hour = f"{at:%b} {at.day}", f"{at:%H:%M}"
                    yield height, day if is_wide else f"{day}, {hour}" if is_first else hour


@dataclass
class Panel:
    """A rectangle of the picture: a span of the wall clock across, a span of event time up."""

    name: str
    top: float
    height: float
    across: tuple[int, int]
    up: tuple[int, int]
    hours: Hours
    began_ms: int
    parts: list[svg.Element] = field(default_factory=list)

    def x(self, at: float) -> float:
        """The x coordinate of an instant of the wall clock."""
        low, high = self.across
        return round(LEFT + (at - low) / (high - low) * (WIDTH - LEFT - RIGHT), 1)

    def y(self, time: float) -> float:
        """The y coordinate of an event time; times beyond the panel are at its edge."""
        return self._level(self.hours.height(time))

    def _level(self, height: float) -> float:
        low, high = self._span
        part = min(max((height - low) / (high - low), -0.1), 1.1)
        return round(self.top + self.height * (1 - part), 1)

    @property
    def _span(self) -> tuple[float, float]:
        """The heights of its edges; times after the last hour of business are above."""
        low, high = (self.hours.height(time) for time in self.up)
        return low - 0.5, high + 0.5

    @property
    def bottom(self) -> float:
        """The lower edge."""
        return self.top + self.height

    def is_across(self, at: int) -> bool:
        """True within the span of the wall clock."""
        return self.across[0] <= at <= self.across[1]

    # --- contents ---------------------------------------------------------------------------

    def draw(self, story: Story) -> svg.Element:
        """Draw all layers from back to front, then the labels."""
        placed = [*self._placed(story.notes)]
        self.top += LABEL_HEIGHT * max([2, *(row + 1 for _, _, row, _ in placed)])
        self._axes()
        clip = svg.Rect(x=LEFT, y=self.top, width=WIDTH - LEFT - RIGHT, height=self.height)
        frame = svg.G(elements=self.parts)
        self.parts = []
        self._notes(placed)
        notes = svg.G(elements=self.parts)
        self.parts = []
        self._dots(story.lines, LINE, 1.8)
        for at in story.kills:
            if self.is_across(at):
                x = self.x(at)
                self._path([svg.M(x, self.top), svg.V(self.bottom)], "#cc0000", 1, dashes=[1, 4])
                cross = [
                    svg.M(x - 4, self.bottom - 11),
                    svg.L(x + 4, self.bottom - 3),
                    svg.M(x + 4, self.bottom - 11),
                    svg.L(x - 4, self.bottom - 3),
                ]
                self._path(cross, "#cc0000", 2)
        for at, start, end, lines in story.windows:
            if self.is_across(at):
                self._window(at, start, end, lines)
        for till, claims in story.claims.items():
            self._steps(claims, COLOURS[till], 1.6)
        self._steps([*story.emitted], EMITTED, 2.6)
        self._dots(story.late, LATE, 3.4)
        mask = svg.ClipPath(id=f"clip-{self.name}", elements=[clip])
        inside = svg.G(clip_path=f"url(#clip-{self.name})", elements=self.parts)
        border = svg.Rect(
            x=LEFT,
            y=self.top,
            width=WIDTH - LEFT - RIGHT,
            height=self.height,
            fill="none",
            stroke=FAINT,
            stroke_width=1,
        )
        return svg.G(elements=[mask, frame, inside, border, notes])

    def _window(self, at: int, start: int, end: int, lines: int) -> None:
        top, bottom = self.y(end), self.y(start)
        box = svg.Rect(
            x=self.x(at) - 2.5,
            y=top,
            width=5,
            height=round(max(1.0, bottom - top), 1),
            fill=WINDOW,
            fill_opacity=0.75,
            stroke="white",
            stroke_width=0.4 * (bottom - top > 3),
            elements=[svg.Title(text=f"{moment(start)}: {lines:,} lines")],
        )
        self.parts.append(box)

    def _steps(self, values: Sequence[tuple[int, int | None]], colour: str, width: float) -> None:
        """A line that keeps its value until the next one; None: the line ends."""
        path: list[svg.PathData] = []
        is_down = False
        for at, value in values:
            if value is None:
                if is_down:
                    path.append(svg.H(self.x(at)))
                is_down = False
                continue
            if is_down:
                path += [svg.H(self.x(at)), svg.V(self.y(value))]
            else:
                path.append(svg.M(self.x(at), self.y(value)))
            is_down = True
        if is_down:
            path.append(svg.H(WIDTH - RIGHT))
        self._path(path, colour, width)

    def _dots(self, moments: Sequence[Moment], colour: str, size: float) -> None:
        seen = [one for one in moments if self.is_across(one[0])]
        step = max(1, len(seen) // DOTS_MAX)
        path: list[svg.PathData] = []
        for at, time in seen[::step]:
            path += [svg.M(self.x(at), self.y(time)), svg.h(0.1)]
        self._path(path, colour, size, is_round=True)

    def _path(
        self,
        path: list[svg.PathData],
        colour: str,
        width: float,
        *,
        dashes: list[float | int | Decimal] | None = None,
        is_round: bool = False,
    ) -> None:
        if path:
            self.parts.append(
                svg.Path(
                    d=path,
                    fill="none",
                    stroke=colour,
                    stroke_width=width,
                    stroke_dasharray=dashes,
                    stroke_linecap="round" if is_round else "butt",
                    stroke_linejoin="round",
                )
            )

    def _placed(self, notes: Iterable[tuple[int, str]]) -> Iterator[tuple[float, float, int, str]]:
        """Events: position, position of the label, and a row so that no labels overlap."""
        ends: list[float] = []
        for at, said in notes:
            if self.is_across(at):
                x, width = self.x(at), label_width(said)
                left = min(x, WIDTH - RIGHT - width)
                row = next((row for row, end in enumerate(ends) if end < left), len(ends))
                ends[row:] = [left + width, *ends[row + 1 :]]
                yield x, left, row, said

    def _notes(self, placed: Iterable[tuple[float, float, int, str]]) -> None:
        """Lines with labels above the panel."""
        labels: list[svg.Element] = []
        for x, left, row, said in placed:
            y = self.top - 6 - row * LABEL_HEIGHT
            self._path([svg.M(x, y - 9), svg.V(self.bottom)], FAINT, 1, dashes=[5, 3])
            box = svg.Rect(
                x=round(left + 2, 1), y=y - 11, width=label_width(said) - 6, height=14, fill="white"
            )
            labels += [box, text(left + 4, y, said, size=12)]
        self.parts += labels

    def _axes(self) -> None:
        for at, said in seconds(self.across, self.began_ms):
            self._path([svg.M(self.x(at), self.top), svg.V(self.bottom)], GRID, 1)
            self.parts.append(text(self.x(at), self.bottom + 16, said, anchor="middle"))
        low, high = self._span
        for shut, opened in self.hours.shut:
            if low < shut and opened < high:
                y, bottom = self._level(opened), self._level(shut)
                self.parts.append(
                    svg.Rect(
                        x=LEFT,
                        y=y,
                        width=WIDTH - LEFT - RIGHT,
                        height=round(bottom - y, 1),
                        fill=SHUT,
                    )
                )
        for height, said in self.hours.ticks(low, high, 15 * (high - low) / self.height):
            y = self._level(height)
            self._path([svg.M(LEFT, y), svg.H(WIDTH - RIGHT)], GRID, 1)
            self.parts.append(text(LEFT - 7, y + 4, said, anchor="end"))
        middle = (LEFT + WIDTH - RIGHT) / 2
        self.parts.append(
            text(middle, self.bottom + 36, "seconds since the start (wall clock)", anchor="middle")
        )
        y = self.top + self.height / 2
        self.parts.append(
            text(
                18,
                y,
                "event time (UTC), hours of business",
                anchor="middle",
                turned=svg.Rotate(-90, 18, y),
            )
        )


def picture(story: Story) -> str:
    """The whole run and, below, the time without till-3, as one SVG document."""
    moments = [*story.lines, *story.emitted, *((at, end) for at, _, end, _ in story.windows)]
    times = [time for _, time in story.lines]
    whole = (story.began_ms, max(at for at, _ in moments) + 150)
    hours = Hours(time - time % HOUR_MS for time in times)
    upper = Panel("all", TITLE_HEIGHT, 520, whole, (min(times), max(times)), hours, story.began_ms)
    parts: list[svg.Element] = [
        svg.Rect(x=0, y=0, width=WIDTH, height=HEIGHT_MAX, fill="white"),
        text(LEFT, 30, "Revenue an hour, closed by watermarks", size=20, weight="bold"),
        text(LEFT, 50, _subtitle(story), size=13, colour=FAINT),
        upper.draw(story),
    ]
    bottom = upper.bottom
    if (near := _near(story)) is not None:
        top = bottom + AXIS_HEIGHT + 24
        parts.append(
            text(
                LEFT,
                bottom + AXIS_HEIGHT + 20,
                "The same while till-3 was away",
                size=15,
                weight="bold",
            )
        )
        lower = Panel("near", top, 400, *near, hours, story.began_ms)
        parts.append(lower.draw(story))
        bottom = lower.bottom
    parts += legend(bottom + AXIS_HEIGHT + 14)
    height = bottom + AXIS_HEIGHT + LEGEND_HEIGHT
    canvas = svg.SVG(
        width=WIDTH,
        height=height,
        viewBox=svg.ViewBoxSpec(0, 0, WIDTH, height),
        elements=[svg.Style(text=f"text {{ font-family: {FONT} }}"), *parts],
    )
    return canvas.as_str() + "\n"


def _subtitle(story: Story) -> str:
    return (
        f"{len(story.lines):,} lines over {moment(min(t for _, t in story.lines))} to "
        f"{moment(max(t for _, t in story.lines))}; {len(story.windows):,} windows of an hour, "
        f"{len(story.late):,} late lines; the function was killed {len(story.kills)} times"
    )


def _near(story: Story) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """The span from shortly before the death of till-3 until its successor has caught up."""
    when = {said: at for at, said in story.notes}
    if "till-3 killed" not in when or "till-2 idle" not in when:
        return None
    first, last = when["till-3 killed"], when["till-2 idle"]
    across = (first - (last - first) // 8, last + (last - first) // 8)
    times = [time for at, time in story.lines if across[0] <= at <= across[1]]
    return across, (min(times), max(times))


def legend(top: float) -> Iterator[svg.Element]:
    """The legend, in two rows."""
    entries = [
        ("dot", LINE, "line, when it was sent"),
        ("dot", LATE, "late line, when it was put aside"),
        ("box", WINDOW, "window of an hour, when it was given"),
        ("cross", "#cc0000", "the function is killed"),
        *(("line", COLOURS[till], f"watermark of {till}") for till in TILLS),
        ("thick", EMITTED, "watermark handed to the function"),
        ("shut", SHUT, "shop closed"),
    ]
    x, y = float(LEFT), top
    for at, (kind, colour, said) in enumerate(entries):
        if at == 4:
            x, y = float(LEFT), top + 26
        yield from _sign(kind, colour, x, y)
        yield text(x + 34, y + 4, said, size=13)
        x += 34 + 7.0 * len(said) + 26


def _sign(kind: str, colour: str, x: float, y: float) -> Iterator[svg.Element]:
    if kind == "dot":
        yield svg.Circle(cx=x + 14, cy=y, r=3, fill=colour)
    elif kind == "box":
        yield svg.Rect(x=x + 11.5, y=y - 8, width=5, height=16, fill=colour)
    elif kind == "shut":
        yield svg.Rect(x=x + 2, y=y - 5, width=24, height=10, fill=colour, stroke=GRID)
    elif kind == "cross":
        d: list[svg.PathData] = [
            svg.M(x + 10, y - 4),
            svg.l(8, 8),
            svg.M(x + 18, y - 4),
            svg.l(-8, 8),
        ]
        yield svg.Path(d=d, stroke=colour, stroke_width=2, fill="none")
    else:
        width = 2.6 if kind == "thick" else 1.6
        yield svg.Line(x1=x, y1=y, x2=x + 28, y2=y, stroke=colour, stroke_width=width)


def label_width(said: str) -> float:
    """The width of a label."""
    return LETTER_WIDTH * len(said) + 10


def text(
    x: float,
    y: float,
    said: str,
    *,
    size: int = 12,
    anchor: Anchor = "start",
    colour: str = INK,
    weight: Weight = "normal",
    turned: svg.Rotate | None = None,
) -> svg.Element:
    """A line of text."""
    return svg.Text(
        x=round(x, 1),
        y=round(y, 1),
        text=said,
        font_size=size,
        text_anchor=anchor,
        fill=colour,
        font_weight=weight,
        transform=None if turned is None else [turned],
    )


def moment(time: int) -> str:
    """An event time as text."""
    return f"{datetime.fromtimestamp(time / 1000, UTC):%Y-%m-%d %H:%M}"


def seconds(across: tuple[int, int], began_ms: int) -> Iterator[tuple[float, str]]:
    """Ticks of the wall clock, some ten at round seconds."""
    low, high = ((at - began_ms) / 1000 for at in across)
    step = next(
        (step for step in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100) if (high - low) / step <= 14),
        500,
    )
    at = -(-low // step) * step
    while at <= high:
        yield began_ms + at * 1000, f"{at:.1f}" if step < 1 else f"{at:.0f}"
        at += step
