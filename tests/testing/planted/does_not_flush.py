"""It sends without waiting, and acknowledges before the message is stored."""

import txlog

with txlog.open("shop") as client:
    bills = client.producer("bills")
    with client.consumer("orders", "billing") as consumer:
        while message := consumer.receive():
            bills.send_async(b"bill for " + message.value)  # other
            consumer.acknowledge(message)  # cause
    bills.flush()
