"""It writes running totals, whose sum begins at 0 with each start."""

import txlog

with txlog.open("shop", transaction_key="billing") as client:
    bills = client.producer("bills")
    total = 0
    with client.consumer("orders", "billing") as consumer:
        while message := consumer.receive():
            total += len(message.value)
            with client.transaction() as txn:
                bills.send(b"total %d" % total, txn=txn)  # cause
                consumer.acknowledge(message, txn=txn)
