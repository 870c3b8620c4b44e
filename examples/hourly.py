"""Hourly revenue of the invoices as a function, which emits an hour once the watermark passed it.

    txlog run examples/hourly.py:hourly --input lines --output revenue -s hourly --create

A message is a line as JSON with Quantity and UnitPrice, and the event time of its invoice. Lines
that come after their hour was emitted go to the topic late-lines. The producers report how far they
are: `producer.new_watermark().event_time(t).send()`; examples/hourly_revenue.py has three.
"""

from __future__ import annotations

import json
from decimal import Decimal

from txlog import Message
from txlog.functions import Context, Output, tumbling

HOUR_MS = 3_600_000


@tumbling(duration_ms=HOUR_MS, watermarks=True, late_topic="late-lines")
def hourly(messages: list[Message], context: Context) -> Output:
    """Count the lines of an hour and add up their value, in pounds."""
    window = context.window
    assert window is not None
    lines = [json.loads(message.value or b"") for message in messages]
    revenue = sum(
        (Decimal(line["UnitPrice"]) * int(line["Quantity"]) for line in lines), Decimal(0)
    )
    result = {"start": window.start, "end": window.end, "revenue": str(revenue)}
    return Output({**result, "lines": window.messages}, event_time=window.start)
