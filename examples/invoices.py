"""Functions over real invoice lines: the value of each line, and the revenue of each day.

    python examples/invoices.py 12000     the first lines of the demo's file, as envelopes

examples/README.md runs the functions.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import pyarrow.parquet as pq

from txlog import Message
from txlog.functions import Context, Output, tumbling

DATA = Path(__file__).resolve().parent.parent / "data" / "online-retail.parquet"
DAY_MS = 86_400_000


def revenue(message: Message) -> dict[str, str] | Output:
    """The value of a line; lines of cancelled invoices go to a topic of their own."""
    line = json.loads(message.value or b"")
    price = Decimal(line["UnitPrice"])
    if price <= 0:
        raise ValueError("a line without a price")
    worth = {"InvoiceNo": line["InvoiceNo"], "Value": str(price * int(line["Quantity"]))}
    return Output(worth, topic="returns") if line["InvoiceNo"].startswith("C") else worth


@tumbling(duration_ms=DAY_MS)
def per_day(messages: list[Message], context: Context) -> Output:
    """The lines and the value of a day, once the day is over."""
    assert context.window is not None
    assert context.window.start is not None
    day = datetime.fromtimestamp(context.window.start / 1000, UTC).date().isoformat()
    value = sum(Decimal(json.loads(message.value or b"")["Value"]) for message in messages)
    return Output({"day": day, "lines": len(messages), "value": str(value)}, key=day)


def envelopes(count: int) -> Iterable[str]:
    """The first lines of the file in the format `envelope`."""
    for line in pq.read_table(DATA).slice(0, count).to_pylist():
        at = datetime.fromisoformat(line["InvoiceDate"]).replace(tzinfo=UTC)
        yield json.dumps(
            {
                "key": line["CustomerID"],
                "key_encoding": None if line["CustomerID"] is None else "utf8",
                "value": json.dumps(line),
                "value_encoding": "utf8",
                "event_time": int(at.timestamp() * 1000),
            }
        )


if __name__ == "__main__":
    for text in envelopes(int(sys.argv[1])):
        sys.stdout.write(text + "\n")
