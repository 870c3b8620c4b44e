"""Hourly revenue of the invoices as a function: an hour is given when the watermark has passed it.

    txlog run examples/hourly.py:hourly --input lines --output revenue -s hourly --create

A message is a line as JSON with Quantity and UnitPrice, its event time that of the invoice. Lines
of an hour that was given go to the topic late-lines. The producers say how far they are:
`producer.new_watermark().event_time(t).send()`; examples/hourly_revenue.py has three of them.
"""

from __future__ import annotations

import json
from decimal import Decimal

from txlog import Message
from txlog.functions import Context, Output, tumbling

HOUR_MS = 3_600_000


@tumbling(duration_ms=HOUR_MS, watermarks=True, late_topic="late-lines")
def hourly(messages: list[Message], context: Context) -> Output:
    """The lines of an hour and what they are worth, in pounds."""
    window = context.window
    assert window is not None
    lines = [json.loads(message.value or b"") for message in messages]
    revenue = sum(
        (Decimal(line["UnitPrice"]) * int(line["Quantity"]) for line in lines), Decimal(0)
    )
    result = {"start": window.start, "end": window.end, "revenue": str(revenue)}
    return Output({**result, "lines": window.messages}, event_time=window.start)
