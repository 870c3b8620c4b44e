"""It reads without a subscription, and keeps its position in a file."""

import os
from pathlib import Path

import txlog

place = Path("offset")
with txlog.open("shop") as client:
    bills = client.producer("bills")
    done = int(place.read_text()) if place.exists() else 0
    for number, message in enumerate(client.reader("orders")):
        if number < done:
            continue
        bills.send(b"bill for " + message.value)  # cause
        Path("offset.new").write_text(f"{number + 1}")  # other
        os.replace("offset.new", place)
