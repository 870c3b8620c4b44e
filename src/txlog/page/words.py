"""Owns the text of values on a page: counts, sizes, durations, instants, and escaped text.

Text from a store goes through `safe`: no name can become markup or reverse a line's direction.
"""

from __future__ import annotations

import html
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple
from urllib.parse import urlencode

from txlog.base.settings import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS
from txlog.errors import printable

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SHORT: Final = ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k"))
_YEAR_MAX_MS: Final = 253_402_300_799_000  # the last second of the year 9999


def safe(text: object) -> str:
    """Text as HTML, also for attributes; control and direction marks are spelled out."""
    return html.escape(printable(str(text)))


class Link(NamedTuple):
    """A text that leads to a view of the live page; where: the object of the view."""

    text: str
    view: str
    where: Mapping[str, object]


def address(view: str, where: Mapping[str, object]) -> str:
    """The address of a view within the live page, `#/topic?topic=orders`; not escaped for HTML."""
    return f"#/{view}?{urlencode({name: str(value) for name, value in where.items()})}"


def linked(text: str | Link) -> str:
    """Text, or a link, as HTML."""
    if not isinstance(text, Link):
        return safe(text)
    return f'<a class="link" href="{safe(address(text.view, text.where))}">{safe(text.text)}</a>'


def block(text: str) -> str:
    """Text of several lines as HTML; line breaks and tabs stay."""
    return "\n".join(
        "\t".join(safe(part) for part in line.split("\t")) for line in text.split("\n")
    )


def count(value: int) -> str:
    """`1,204`."""
    return f"{value:,}"


def counted(value: int, noun: str) -> str:
    """`1 message`, `1,204 messages`."""
    return f"{value:,} {noun}{'' if value == 1 else 's'}"


def brief(value: float) -> str:
    """`1.2M`, with three digits, for the scale of an axis."""
    for step, unit in _SHORT:
        if value >= step:
            return f"{value / step:.3g}{unit}"
    return f"{value:.3g}"


def size(value: int) -> str:
    """`82.4 MiB`."""
    step = min((max(value, 1).bit_length() - 1) // 10, len(_UNITS) - 1)
    return f"{value} B" if not step else f"{value / 1024**step:.1f} {_UNITS[step]}"


def duration(ms: int) -> str:
    """`250 ms`, `8 s`, `25 min`, `2 h`, `3 d`: the largest whole unit, at most one decimal."""
    sign, ms = ("−" if ms < 0 else ""), abs(ms)
    for unit_ms, unit in ((DAY_MS, "d"), (HOUR_MS, "h"), (MINUTE_MS, "min"), (1000, "s")):
        if ms >= unit_ms:
            return f"{sign}{_tenths(ms / unit_ms)} {unit}"
    return f"{sign}{ms} ms"


def _tenths(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def instant(ms: int | None) -> str:
    """`2026-11-20 09:12:04`, in UTC; empty for None."""
    moment = _moment(ms)
    return "" if moment is None else moment.strftime("%Y-%m-%d %H:%M:%S")


def tick(ms: int, step_ms: int) -> str:
    """An instant below an axis, as precise as its step: `09:12:04`, `20 Nov 09:00`, `20 Nov`."""
    moment = _moment(ms)
    if moment is None:
        return "later"
    if step_ms < MINUTE_MS:
        return moment.strftime("%H:%M:%S")
    if step_ms < DAY_MS:
        return moment.strftime("%-d %b %H:%M")
    return moment.strftime("%-d %b %Y" if step_ms >= 28 * DAY_MS else "%-d %b")


def spans(step_ms: int) -> str:
    """The name of a span of a chart: `hour`, `10 seconds`."""
    for unit_ms, unit in (
        (DAY_MS, "day"),
        (HOUR_MS, "hour"),
        (MINUTE_MS, "minute"),
        (1000, "second"),
    ):
        if step_ms >= unit_ms and step_ms % unit_ms == 0:
            number = step_ms // unit_ms
            return unit if number == 1 else f"{number} {unit}s"
    return f"{step_ms} ms"


def rate(value: float) -> str:
    """A number per second: `0.4`, `12`, `14.2k`."""
    if value >= 10_000:
        return brief(value)
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.1f}"


def ago(now_ms: int, then_ms: int | None) -> str:
    """`8 s ago`, or `now` within a second; the time is cut to whole seconds. Empty for None."""
    if then_ms is None:
        return ""
    past = max(0, now_ms - then_ms)
    return "now" if past < SECOND_MS else f"{duration(past - past % SECOND_MS)} ago"


def _moment(ms: int | None) -> datetime | None:
    if ms is None or not 0 <= ms <= _YEAR_MAX_MS:
        return None
    return datetime.fromtimestamp(ms / 1000, UTC)
