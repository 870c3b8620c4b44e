"""It writes a bill once for each order, and remembers the orders in memory."""

import txlog

with txlog.open("shop", transaction_key="billing") as client:
    bills = client.producer("bills")
    seen = set()
    with client.consumer("orders", "billing") as consumer:
        while message := consumer.receive():
            with client.transaction() as txn:
                if message.value not in seen:
                    seen.add(message.value)
                    bills.send(b"bill for " + message.value, txn=txn)  # cause
                consumer.acknowledge(message, txn=txn)
