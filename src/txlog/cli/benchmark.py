"""Owns `txlog bench`: the speed of a store on a disk, in one process, one call after another.

produce   an operation is one message, durable when it returns
    consume   a batch of messages received and acknowledged
    txn       a batch of messages sent in a transaction, and its commit
    mixed     a transaction that receives a batch, acknowledges it, sends a batch, and commits

It makes its own store in a temporary directory. It measures only the calls of the API, without the
start of a process.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from txlog.client.client import Client
from txlog.client.open import init, open_store
from txlog.errors import InvalidArgument

if TYPE_CHECKING:
    from txlog.base.rows.jobs import Measured


Operation = Callable[[], int]
MODES: Final = ("produce", "consume", "txn", "mixed")
MESSAGE_BYTES_MAX: Final = 1 << 20
BATCH_MAX: Final = 100_000
_AHEAD: Final = 50  # the source is filled for this many operations at once


def bench(
    folder: str,
    mode: str = "mixed",
    *,
    message_bytes: int = 100,
    duration_ms: int = 10_000,
    txn_size: int = 100,
    durability: str = "sync",
    operations_max: int | None = None,
) -> Measured:
    """Measure one mode in a new store below `folder`, and delete the store; return the figures.

    message_bytes:  payload of a message
    duration_ms:    length of the run
    txn_size:       messages in an operation, except for produce
    operations_max: end earlier, after this many operations
    """
    if mode not in MODES:
        raise InvalidArgument(f"mode is {', '.join(MODES)}, not {mode}")
    for name, value, most in (
        ("size", message_bytes, MESSAGE_BYTES_MAX),
        ("txn-size", txn_size, BATCH_MAX),
    ):
        if not 1 <= value <= most:
            raise InvalidArgument(f"{name} is {value}, it must be from 1 to {most}", code=203)
    folder_of_run = tempfile.mkdtemp(prefix=".txlog-bench-", dir=folder)
    try:
        init(f"{folder_of_run}/store", durability=durability)
        with open_store(f"{folder_of_run}/store") as client:
            bench_ = _Bench(client, mode, message_bytes, 1 if mode == "produce" else txn_size)
            return _measured(mode, bench_, duration_ms, operations_max)
    finally:
        shutil.rmtree(folder_of_run, ignore_errors=True)


def _measured(mode: str, bench_: _Bench, duration_ms: int, most: int | None) -> Measured:
    operation: Operation = getattr(bench_, mode)
    bench_.fill()
    operation()  # the first call loads and opens things; do not measure it
    took: list[int] = []
    messages, spent, limit = 0, 0, duration_ms * 1_000_000
    while spent < limit and (most is None or len(took) < most):
        bench_.fill()
        began = time.perf_counter_ns()
        messages += operation()
        took.append(time.perf_counter_ns() - began)
        spent += took[-1]
    took.sort()
    return {
        "mode": mode,
        "operations": len(took),
        "per_second": round(len(took) * 1e9 / spent, 1) if spent else 0.0,
        "p50_us": took[len(took) // 2] // 1000,
        "p99_us": took[len(took) * 99 // 100] // 1000,
        "max_us": took[-1] // 1000,
        "size_bytes": messages * bench_.message_bytes,
        "messages": messages,
    }


class _Bench:
    """The operations of the modes; each returns the number of messages it sent or received."""

    def __init__(self, client: Client, mode: str, message_bytes: int, count: int) -> None:
        self.message_bytes = message_bytes
        self._count = count
        self._client = client
        for topic in ("source", "target"):
            client.create_topic(topic)
        client.create_subscription("source", "bench")
        self._source = client.producer("source")
        self._target = client.producer("target")
        self._consumer = client.consumer("source", "bench")
        self._value = b"x" * message_bytes
        self._rows = pa.table({"value": pa.array([self._value] * count, pa.binary())})
        self._receives = mode in ("consume", "mixed")
        self._ready = 0

    def fill(self) -> None:
        """Store messages for the operations to receive, before the measurement."""
        if self._receives and self._ready < self._count:
            for _ in range(_AHEAD):
                self._source.send_batch(self._rows)
            self._ready += _AHEAD * self._count

    def produce(self) -> int:
        """Send one durable message."""
        self._target.send(self._value)
        return 1

    def consume(self) -> int:
        """Receive messages and acknowledge them."""
        table = self._take()
        self._consumer.acknowledge(table)
        return int(table.num_rows)

    def txn(self) -> int:
        """Send messages in a transaction."""
        with self._client.transaction() as txn:
            self._target.send_batch(self._rows, txn=txn)
        return self._count

    def mixed(self) -> int:
        """Receive and send messages in a transaction."""
        table = self._take()
        with self._client.transaction() as txn:
            self._consumer.acknowledge(table, txn=txn)
            self._target.send_batch(table.select(["value"]), txn=txn)
        return int(table.num_rows)

    def _take(self) -> pa.Table:
        table = self._consumer.receive_batch(self._count)
        self._ready -= table.num_rows
        return table
