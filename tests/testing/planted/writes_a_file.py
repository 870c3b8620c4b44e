"""It appends a line to a file, which no transaction takes back."""

import txlog

with txlog.open("shop", transaction_key="billing") as client:
    bills = client.producer("bills")
    with client.consumer("orders", "billing") as consumer:
        while message := consumer.receive():
            with client.transaction() as txn:  # other
                bills.send(b"bill for " + message.value, txn=txn)
                consumer.acknowledge(message, txn=txn)
                with open("printed.txt", "ab") as printer:
                    printer.write(b"bill for " + message.value + b"\n")
                    printer.flush()  # cause
