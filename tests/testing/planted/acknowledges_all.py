"""It acknowledges up to the last message of a batch, then works on the first."""

import txlog

with txlog.open("shop", transaction_key="billing") as client:
    bills = client.producer("bills")
    with client.consumer("orders", "billing") as consumer:
        while batch := [message for _ in range(2) if (message := consumer.receive())]:
            consumer.acknowledge_cumulative(batch[-1])  # cause
            for message in batch:
                bills.send(b"bill for " + message.value)  # other
