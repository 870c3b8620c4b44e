"""It writes the result, then acknowledges, without a transaction."""

import txlog

with txlog.open("shop") as client:
    bills = client.producer("bills")
    with client.consumer("orders", "billing") as consumer:
        while message := consumer.receive():
            bills.send(b"bill for " + message.value)  # cause
            consumer.acknowledge(message)  # other
