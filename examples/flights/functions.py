"""Functions over real flights: what each departure was, and the delays of each airline.

A message of `flights` is a flight as JSON, its key the carrier, its event time the scheduled
departure. It comes when the flight left, so that the order of the log is not that of event time.
docs/flights.md runs them.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path

from txlog import Message
from txlog.functions import Context, Output, tumbling

DATA = Path(__file__).resolve().parents[2] / "data"
HOUR_MS = 3_600_000
LATE_MINUTES = 15  # what airlines call late
with (DATA / "airlines.csv").open(encoding="utf-8", newline="") as lines:
    AIRLINES = {row["carrier"]: row["name"] for row in csv.DictReader(lines)}


def enrich(message: Message) -> dict[str, object]:
    """A flight with the name of its airline, and what became of it."""
    flight = json.loads(message.value or b"")
    delay = flight.get("dep_delay")
    left = "late" if delay is not None and delay >= LATE_MINUTES else "on time"
    return {
        "carrier": flight["carrier"],
        "airline": AIRLINES[flight["carrier"]],
        "flight": flight["flight"],
        "route": f"{flight['origin']}-{flight['dest']}",
        "delay": delay,
        "status": "cancelled" if delay is None else left,
    }


@tumbling(duration_ms=6 * HOUR_MS, lateness_ms=6 * HOUR_MS)
def delays(messages: list[Message], context: Context) -> list[Output]:
    """The flights of six hours, one message an airline; what is later still gives more of them."""
    assert context.window is not None
    start = context.window.start
    totals: dict[str, dict[str, int]] = {}
    for message in messages:
        flight = json.loads(message.value or b"")
        total = totals.setdefault(
            flight["carrier"], {"flights": 0, "cancelled": 0, "late": 0, "minutes": 0}
        )
        total["flights"] += 1
        total["cancelled"] += flight["status"] == "cancelled"
        total["late"] += flight["status"] == "late"
        total["minutes"] += flight["delay"] or 0
    return [
        Output({"start": start, "carrier": carrier, **total}, key=carrier, event_time=start)
        for carrier, total in sorted(totals.items())
    ]
