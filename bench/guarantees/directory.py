"""txlog as a directory, by its Python library; commits in flight are those of one client."""

from __future__ import annotations

import time
from collections import deque
from concurrent.futures import Future
from functools import partial
from typing import Any, ClassVar

import pyarrow as pa

import txlog
from bench.guarantees import peer

SEND = 10_000


class DirectorySession(peer.Session):
    """A client with a Shared consumer and two producers."""

    def __init__(self, store: str, depth: int) -> None:
        self._client, self._depth = txlog.open(store), depth
        self._consumer = self._client.consumer("input", "s")
        self._producers = [self._client.producer(topic) for topic in ("a", "b")]
        self._flying: deque[Any] = deque()

    def step(self, ended: peer.Ended) -> int:
        """Receive and begin; with one in flight also wait, else for the oldest of too many."""
        if self._depth == 1 or self.fault:
            return super().step(ended)
        began = time.perf_counter()
        rows = self._receive()
        if rows.num_rows:
            txn = self._client.transaction()
            self._write(rows, txn)
            self._consumer.acknowledge_async(rows, txn=txn)
            future = txn.commit_async()
            future.add_done_callback(partial(_tell, ended, began, rows.num_rows))
            self._flying.append(future)
        while self._flying and (len(self._flying) >= self._depth or not rows.num_rows):
            self._flying.popleft().result()
        return int(rows.num_rows)

    def move(self) -> int:
        rows = self._receive()
        if not rows.num_rows:
            return 0
        if self.fault:
            halves = [self._write, self._acknowledge]
            if self.fault == "ack-first":
                halves.reverse()
            for half in halves:
                with self._client.transaction() as txn:
                    half(rows, txn)
                if half is halves[0]:
                    self.halfway()
            return int(rows.num_rows)
        with self._client.transaction() as txn:
            self._write(rows, txn)
            self._acknowledge(rows, txn)
        return int(rows.num_rows)

    def _receive(self) -> pa.Table:
        return self._consumer.receive_batch(peer.BATCH, timeout_ms=int(peer.RECEIVE_S * 1000))

    def _write(self, rows: pa.Table, txn: txlog.Transaction) -> None:
        for producer in self._producers:
            producer.send_batch_async(rows.select(["value"]), txn=txn)

    def _acknowledge(self, rows: pa.Table, txn: txlog.Transaction) -> None:
        self._consumer.acknowledge_async(rows, txn=txn)

    def close(self) -> None:
        while self._flying:
            self._flying.popleft().result()
        self._client.close()


class Directory(peer.Peer):
    """A store of its own, without a service."""

    title = "txlog, directory"
    setup = (
        f"{txlog.__version__}, in the client's process; `durability = sync`; Arrow batches; one "
        "client, `commit_async` when several are in flight"
    )
    guarantees: ClassVar = {
        "topics together": ("yes", "docs/guarantees.md, atomic"),
        "with acknowledgements": ("yes", "docs/guarantees.md, atomic"),
        "fencing": ("yes", "`transaction_key`; not used in this run"),
        "duplicates dropped": ("yes", "named producers with sequence ids; not used in this run"),
        "readers not held up": ("yes", "docs/guarantees.md, no waiting"),
        "survives power loss": ("yes", "`durability = sync`, the default; tests/powercut"),
    }

    @property
    def store(self) -> str:
        return str(self.folder / "store")

    def produce(self, count: int, depth: int) -> None:
        txlog.init(self.store, if_not_exists=True)
        with txlog.open(self.store) as client:
            for topic in ("input", "a", "b"):
                client.create_topic(topic)
            client.create_subscription("input", "s", type="shared")
            producer = client.producer("input")
            for first in range(0, count, SEND):
                numbers = range(first, min(count, first + SEND))
                column = pa.array([peer.payload(number) for number in numbers], pa.binary())
                producer.send_batch(pa.table({"value": column}))

    def threads(self, depth: int) -> int:
        return 1

    def session(self, number: int, depth: int) -> peer.Session:
        return DirectorySession(self.store, depth)

    def stored(self) -> list[list[int]]:
        with txlog.open(self.store) as client:
            return [
                [peer.number_of(value) for table in client.read(topic) for value in values(table)]
                for topic in ("a", "b")
            ]


def _tell(ended: peer.Ended, began: float, count: int, future: Future[Any]) -> None:
    if future.exception() is None:
        ended(began, count)


def values(table: pa.Table) -> list[bytes]:
    """The values of a batch."""
    return [bytes(value) for value in table["value"].to_pylist()]
