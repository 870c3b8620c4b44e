"""It catches every error, and acknowledges the message although nothing was written."""

from contextlib import suppress

import txlog

with txlog.open("shop") as client:
    bills = client.producer("bills")
    with client.consumer("orders", "billing") as consumer:
        while message := consumer.receive():
            with suppress(Exception):
                bills.send(b"bill for " + message.value)  # cause
            consumer.acknowledge(message)  # other
