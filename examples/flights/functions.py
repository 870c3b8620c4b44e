"""Functions over real flights: the status of each departure, and the delays of each airline.

A message of `flights` is a flight as JSON, its key the carrier, its event time the scheduled
departure. It arrives when the flight departs, so the log is not in the order of event time.
docs/flights.md runs the functions.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path

from txlog import Message
from txlog.functions import Context, Output, tumbling

DATA = Path(__file__).resolve().parents[2] / "data"
HOUR_MS = 3_600_000
LATE_MINUTES = 15  # airlines call a flight late from here on
with (DATA / "airlines.csv").open(encoding="utf-8", newline="") as lines:
    AIRLINES = {row["carrier"]: row["name"] for row in csv.DictReader(lines)}


def enrich(message: Message) -> dict[str, object]:
    """Add the name of the airline and the status of the flight."""
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
    """Sum up six hours, one message per airline; later flights produce further messages."""
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
