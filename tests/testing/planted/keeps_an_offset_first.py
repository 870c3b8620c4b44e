"""It keeps its position in a file, before it writes the result."""

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
        Path("offset.new").write_text(f"{number + 1}")
        os.replace("offset.new", place)  # cause
        bills.send(b"bill for " + message.value)  # other
