"""It acknowledges a message before it writes the result."""

import txlog

with txlog.open("shop") as client:
    bills = client.producer("bills")
    with client.consumer("orders", "billing") as consumer:
        while message := consumer.receive():
            consumer.acknowledge(message)  # cause
            bills.send(b"bill for " + message.value)  # other
