"""It writes in a transaction, and acknowledges outside of it."""

import txlog

with txlog.open("shop", transaction_key="billing") as client:
    bills = client.producer("bills")
    with client.consumer("orders", "billing") as consumer:
        while message := consumer.receive():
            with client.transaction() as txn:
                bills.send(b"bill for " + message.value, txn=txn)  # other
                consumer.acknowledge(message)  # cause
