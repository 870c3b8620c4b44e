"""Processes that work on one store at the same time: WORK STORE NAME COUNT, a line for each step.

NAME begins the values of its messages, COUNT is the number of its steps.
"""

from __future__ import annotations

import sys

import txlog
from txlog import Client, Message, TxnId
from txlog.base.ranges import Bound
from txlog.errors import MessageNotFound, Refused, SnapshotExpired


def produce(client: Client, name: str, count: int) -> None:
    """Send numbered messages under a name."""
    producer = client.producer("t", name=name)
    for number in range(1, count + 1):
        value = f"{name}:{number}".encode()
        producer.send(value, sequence_id=number, partition=number % 2)
        print(number, flush=True)


def transact(client: Client, name: str, count: int) -> None:
    """Commit transactions of four messages in two partitions."""
    for number in range(1, count + 1):
        txn = client.begin()["txn"]
        print("open", txn, number, flush=True)
        send_four(client, f"{name}:{number}", txn)
        client.commit(txn)
        print("done", txn, number, flush=True)


def half(client: Client, name: str, count: int) -> None:
    """Commit every second transaction, and abort the others."""
    for number in range(1, count + 1):
        txn = client.begin(600_000)["txn"]
        send_four(client, f"{name}:{number}", txn, b" " * 200)
        (client.commit if number % 2 else client.abort)(txn)
        print(number, flush=True)


def send_four(client: Client, name: str, txn: TxnId, more: bytes = b"") -> None:
    """Send four messages in a transaction."""
    producer = client.producer("t")
    for part in range(4):
        producer.send(f"{name}:{part}".encode() + more, partition=part % 2, txn=txn)


def consume(client: Client, name: str, count: int) -> None:
    """Move messages to another topic, in transactions."""
    producer = client.producer("out")
    with client.consumer("t", "s") as consumer:
        for number in range(count):
            table = consumer.receive_batch(7)
            with client.transaction() as txn:
                for message in txlog.messages(table):
                    producer.send(message.value, txn=txn)
                consumer.acknowledge(table, txn=txn)
            print(number, flush=True)


def take(client: Client, name: str, count: int) -> None:
    """Acknowledge messages in transactions; print the messages of each transaction."""
    with client.consumer("t", "s") as consumer:
        for _ in range(count):
            table = consumer.receive_batch(5, timeout_ms=200)
            with client.transaction(600_000) as txn:
                consumer.acknowledge(table, txn=txn)
            print(*map(pair, txlog.messages(table)), flush=True)


def read(client: Client, name: str, count: int) -> None:
    """Read the topic; print all messages of each time."""
    for _ in range(count):
        pairs: list[str] = []
        try:
            for table in client.read("t", batch_messages=7):
                pairs += map(pair, txlog.messages(table))
        except MessageNotFound as error:
            assert error.fields["last"] is not None
        except SnapshotExpired:
            pass  # a message was trimmed after the read had begun
        print(*pairs, flush=True)


def pair(message: Message) -> str:
    """Id and value of a message."""
    return f"{message.message_id}={(message.value or b'').decode().strip()}"


def checkpoint(client: Client, name: str, count: int) -> None:
    """Write checkpoints."""
    for number in range(count):
        client.checkpoint(roll_all=number % 2 == 0)
        print(number, flush=True)


def give_space_back(client: Client, name: str, count: int) -> None:
    """Compact, trim and collect."""
    for number in range(count):
        client.admin.compact("t")
        try:
            client.admin.trim("t", Bound("sub", "s"))
        except Refused:
            raise SystemExit("a trim behind mark-delete was refused") from None
        if number % 3 == 0:
            client.admin.gc(apply=True, keep_ms=0)
        print(number, flush=True)


work, path, own_name, steps = sys.argv[1:]
with txlog.open(path, read_only=work == "read") as opened:
    globals()[work](opened, own_name, int(steps))
