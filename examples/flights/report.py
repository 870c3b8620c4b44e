"""The report on the flights: compare each window with the file, and draw all windows.

    python examples/flights/report.py STORE delays
    python examples/flights/report.py STORE spark-delays --picture delays.svg

The report covers the windows up to the last one in the topic. If a window differs from the file,
the exit code is 6.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq

import txlog

DATA = Path(__file__).resolve().parents[2] / "data"
WINDOW_MS = 6 * 3_600_000
CELL, LEFT, TOP = 22, 200, 64
COLOURS = ("#e8f1f2", "#fde3a7", "#f9b56d", "#ee7b4b", "#c8352b", "#6d0f24")
LIMITS = (5, 15, 30, 60, 120)  # minutes at which the next colour begins


class Total(NamedTuple):
    """The totals of an airline in a window."""

    flights: int = 0
    cancelled: int = 0
    late: int = 0
    minutes: int = 0


Totals = dict[tuple[int, str], Total]


def stored(store: str, topic: str) -> tuple[Totals, int]:
    """The windows in a topic, and their number of messages; messages of one window are added up."""
    found: dict[tuple[int, str], Counter[str]] = {}
    messages = 0
    with txlog.open(store, read_only=True) as client:
        for table in client.read(topic):
            for value in table["value"].to_pylist():
                row = json.loads(value)
                place = (row.pop("start"), row.pop("carrier"))
                found.setdefault(place, Counter()).update(row)
                messages += 1
    return {place: Total(**total) for place, total in found.items()}, messages


def wanted(last: int) -> Totals:
    """The same totals from the file, up to the window that begins at `last`."""
    found: dict[tuple[int, str], Total] = {}
    for row in pq.read_table(DATA / "flights.parquet").to_pylist():
        at = int(row["scheduled"].timestamp() * 1000)
        place, delay = (at - at % WINDOW_MS, row["carrier"]), row["dep_delay"]
        if place[0] <= last:
            one = Total(1, delay is None, delay is not None and delay >= 15, delay or 0)
            before = found.get(place, Total())
            found[place] = Total(*map(sum, zip(before, one, strict=True)))
    return found


def names() -> dict[str, str]:
    """The names of the airlines by their codes."""
    lines = (DATA / "airlines.csv").read_text(encoding="utf-8").splitlines()[1:]
    return dict(line.split(",", 1) for line in lines)


def picture(totals: Totals) -> str:
    """Draw SVG: a row per airline, a column per window; colour: delay, bar: cancelled share."""
    flights = Counter[str]()
    for (_, carrier), total in totals.items():
        flights[carrier] += total.flights
    rows = [carrier for carrier, _ in flights.most_common()]
    first, last = min(totals)[0], max(totals)[0]
    columns = (last - first) // WINDOW_MS + 1
    width, bottom = LEFT + columns * CELL + 24, TOP + len(rows) * CELL
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {bottom + 64}"'
        ' font-family="Helvetica, Arial, sans-serif" font-size="12">'
        f'<rect width="{width}" height="{bottom + 64}" fill="#fff"/>'
        '<text x="16" y="24" font-size="16">Departures from New York, February 2013</text>'
        '<text x="16" y="43" fill="#666">mean delay of six hours; the bar is the share that was'
        " cancelled</text>"
    ]
    airlines = names()
    for number, carrier in enumerate(rows):
        y = TOP + number * CELL
        out.append(
            f'<text x="{LEFT - 8}" y="{y + 15}" text-anchor="end">{airlines[carrier]}</text>'
        )
    for (start, carrier), total in sorted(totals.items()):
        x, y = LEFT + (start - first) // WINDOW_MS * CELL, TOP + rows.index(carrier) * CELL
        left = total.flights - total.cancelled
        if left:
            mean = total.minutes / left
            colour = COLOURS[sum(mean >= limit for limit in LIMITS)]
            out.append(f'<path d="M{x} {y}h21v21h-21z" fill="{colour}"/>')
        if total.cancelled:
            bar = round(21 * total.cancelled / total.flights)
            out.append(f'<path d="M{x} {y + 17}h{bar}v4h-{bar}z"/>')
    for start in range(first, last + 1, WINDOW_MS):
        at = datetime.fromtimestamp(start / 1000, UTC)
        if at.hour == 12:  # the morning of New York
            x = LEFT + (start - first) // WINDOW_MS * CELL
            out.append(f'<text x="{x}" y="{bottom + 16}">{at:%a} {at.day}</text>')
    for number, colour in enumerate(COLOURS):
        x, said = LEFT + number * 125, f"below {LIMITS[0]} min" if number == 0 else ""
        said = said or f"{LIMITS[number - 1]} min and more"
        out.append(
            f'<path d="M{x} {bottom + 32}h16v16h-16z" fill="{colour}"/>'
            f'<text x="{x + 22}" y="{bottom + 45}">{said}</text>'
        )
    return "\n".join([*out, "</svg>\n"])


def main() -> int:
    """Print the report; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("store")
    parser.add_argument("topic")
    parser.add_argument("--picture", type=Path, help="an SVG file to write")
    given = parser.parse_args()
    totals, messages = stored(given.store, given.topic)
    if not totals:
        sys.stdout.write("no window is complete yet\n")
        return 0
    airlines, by_airline = names(), dict[str, Total]()
    for (_, carrier), total in totals.items():
        before = by_airline.get(carrier, Total())
        by_airline[carrier] = Total(*map(sum, zip(before, total, strict=True)))
    sys.stdout.write(f"{'airline':27} flights cancelled   late  minutes\n")
    for carrier, total in sorted(by_airline.items(), key=lambda item: -item[1].flights):
        sys.stdout.write(
            f"{airlines[carrier]:27} {total.flights:7} {total.cancelled:9} {total.late:6}"
            f" {total.minutes:8}\n"
        )
    is_exact = totals == wanted(max(totals)[0])
    flights = sum(total.flights for total in totals.values())
    windows = len({start for start, _ in totals})
    sys.stdout.write(
        f"{flights} flights in {windows} windows, {messages} messages:"
        f" {'exact' if is_exact else 'wrong'}\n"
    )
    if given.picture is not None:
        given.picture.write_text(picture(totals), encoding="utf-8")
    return 0 if is_exact else 6


if __name__ == "__main__":
    sys.exit(main())
