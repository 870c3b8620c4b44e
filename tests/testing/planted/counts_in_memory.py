"""It numbers its messages by a counter that begins at 1 with each start."""

import txlog

with txlog.open("shop", transaction_key="billing") as client:
    bills = client.producer("bills", name="billing")
    number = 0
    with client.consumer("orders", "billing") as consumer:
        while message := consumer.receive():
            number += 1
            bills.send(b"bill for " + message.value, sequence_id=number)  # cause
            consumer.acknowledge(message)
