"""It commits a row to a database of its own, before it acknowledges the message."""

import sqlite3

import txlog

with txlog.open("shop") as client:
    database = sqlite3.connect("bills.db")
    database.execute("CREATE TABLE IF NOT EXISTS bill (text)")
    with client.consumer("orders", "billing") as consumer:
        while message := consumer.receive():
            database.execute("INSERT INTO bill VALUES (?)", (message.value.decode(),))
            database.commit()  # cause
            consumer.acknowledge(message)  # other
    database.close()
