"""The bench of functions: a pass-through by message, by batch and by command, and a plain loop.

    PYTHONPATH=src python bench/functions.py [MESSAGES [ROUNDS]]

Each round makes one store with one input topic; the ways take turns, each on a subscription and
with an output topic of its own, 1,000 messages a transaction. Medians over the rounds, messages of
100 bytes a second.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import pyarrow as pa
from run import workplace

import txlog
from txlog import functions
from txlog.client.client import Client
from txlog.functions import FunctionOptions

BATCH = 1000


def plain(client: Client, name: str) -> None:
    """What a program does that uses no functions."""
    producer = client.producer(f"out-{name}")
    with client.consumer("in", name) as consumer:
        while (rows := consumer.receive_batch(BATCH)).num_rows:
            with client.transaction() as txn:
                producer.send_batch(rows.select(["key", "value"]), txn=txn)
                consumer.acknowledge(rows, txn=txn)


def plain_messages(client: Client, name: str) -> None:
    """The same, a message at a time from Python and back."""
    producer = client.producer(f"out-{name}")
    with client.consumer("in", name) as consumer:
        while (rows := consumer.receive_batch(BATCH)).num_rows:
            outputs = [(message.key, message.value) for message in txlog.messages(rows)]
            table = pa.table(
                {
                    "key": pa.array([key for key, _ in outputs], pa.binary()),
                    "value": pa.array([value for _, value in outputs], pa.binary()),
                }
            )
            with client.transaction() as txn:
                producer.send_batch(table, txn=txn)
                consumer.acknowledge(rows, txn=txn)


def by_batch(client: Client, name: str) -> None:
    """A function of tables."""
    options = FunctionOptions(batch=True)
    functions.run(client, lambda rows: rows, "in", f"out-{name}", name, options)


def by_message(client: Client, name: str) -> None:
    """A function of messages."""
    functions.run(client, lambda message: message.value, "in", f"out-{name}", name)


def by_command(client: Client, name: str) -> None:
    """`txlog transform` with cat; the start of its process is in it."""
    subprocess.run(
        [
            sys.executable,
            "-m",
            "txlog",
            "-S",
            client.path,
            "transform",
            "in",
            f"out-{name}",
            "-s",
            name,
            "-q",
            "--",
            "cat",
        ],
        check=True,
    )


WAYS: dict[str, Callable[[Client, str], None]] = {
    "plain": plain, "batch": by_batch, "plain-messages": plain_messages, "message": by_message,
    "transform": by_command,
}  # fmt: skip


def main() -> None:
    """Measure and print."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    rates: dict[str, list[float]] = {name: [] for name in WAYS}
    for turn in range(rounds):
        with workplace() as work:
            store = str(work / "store")
            txlog.init(store)
            with txlog.open(store) as client:
                client.create_topic("in")
                values = pa.array([b"x" * 92 + b"%08d" % n for n in range(count)], pa.binary())
                keys = pa.array([b"%d" % (n % 97) for n in range(count)], pa.binary())
                client.producer("in").send_batch(pa.table({"value": values, "key": keys}))
                names = list(WAYS)
                for name in names[turn % len(names) :] + names[: turn % len(names)]:
                    client.create_topic(f"out-{name}")
                    client.create_subscription("in", name)
                    began = time.perf_counter()
                    WAYS[name](client, name)
                    rates[name].append(count / (time.perf_counter() - began))
                    got = sum(rows.num_rows for rows in client.read(f"out-{name}"))
                    assert got == count, f"{name}: {got} of {count}"
    base = statistics.median(rates["plain"])
    for name, found in rates.items():
        middle = statistics.median(found)
        print(f"{name:15} {middle:12,.0f} /s   {middle / base:6.2f} of plain")


if __name__ == "__main__":
    main()
