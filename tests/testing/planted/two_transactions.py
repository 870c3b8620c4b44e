"""It writes in one transaction, and acknowledges in the next."""

import txlog

with txlog.open("shop", transaction_key="billing") as client:
    bills = client.producer("bills")
    with client.consumer("orders", "billing") as consumer:
        while message := consumer.receive():
            with client.transaction() as txn:  # cause
                bills.send(b"bill for " + message.value, txn=txn)
            with client.transaction() as txn:  # other
                consumer.acknowledge(message, txn=txn)
