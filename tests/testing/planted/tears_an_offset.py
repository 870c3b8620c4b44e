"""It overwrites its offset file in place: killed in between, the file is empty."""

from pathlib import Path

import txlog

place = Path("offset")
with txlog.open("shop", transaction_key="billing") as client:
    bills = client.producer("bills")
    done = int(place.read_text()) if place.exists() else 0  # cause
    for number, message in enumerate(client.reader("orders")):
        if number < done:
            continue
        bills.send(b"bill for " + message.value)
        place.write_text(f"{number + 1}")
