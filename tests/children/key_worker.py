"""A worker with a transaction key, which does a step for each line of stdin."""

from __future__ import annotations

import sys

import txlog
from txlog import Range
from txlog.errors import ExpiredTransaction, ProducerFenced


def step(name: str) -> None:
    """Print the name of the step that is done; wait for a line."""
    print(name, flush=True)
    sys.stdin.readline()


with txlog.open(sys.argv[1], transaction_key="work") as client:
    producer = client.producer("out")
    unacked = Range(kind="unacked", subscription="s")
    try:
        step("connected")
        while True:
            tables = client.read("in", range=unacked, limit=3)
            batch = [message for table in tables for message in txlog.messages(table)]
            if not batch:
                break
            step("read")
            with client.transaction() as txn:
                for message in batch:
                    producer.send(message.value, txn=txn)
                last = batch[-1].message_id
                assert last is not None
                client.acknowledge("in", "s", [last], cumulative=True, txn=txn)
                step("sent")
            step("committed")
        print("finished", flush=True)
    except (ExpiredTransaction, ProducerFenced) as error:
        print(type(error).__name__, flush=True)
