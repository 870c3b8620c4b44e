"""txlog as a directory, by its Python library; commits in flight are those of one client."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import pyarrow as pa

import txlog
from bench.guarantees import peer


class DirectorySession(peer.Session):
    """A client with a Shared consumer and two producers."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._consumer = self.connection.consumer("input", "s")
        self._producers = [self.connection.producer(topic) for topic in peer.OUTPUTS]
        self._flying: deque[Any] = deque()

    def step(self, ended: peer.Ended) -> int:
        """Receive and begin; then wait for the oldest transaction of too many."""
        began = time.perf_counter()
        wait_ms = int(peer.RECEIVE_S * 1000)
        rows: pa.Table = self._consumer.receive_batch(peer.BATCH, timeout_ms=wait_ms)
        if rows:
            txn = self.connection.transaction()
            for producer in self._producers:
                producer.send_batch_async(rows.select(["value"]), txn=txn)
            self._consumer.acknowledge_async(rows, txn=txn)
            if self.depth == 1:
                txn.commit()
                ended(began, len(rows))
            else:
                future = txn.commit_async()
                future.add_done_callback(partial(_tell, ended, began, len(rows)))
                self._flying.append(future)
        while self._flying and (len(self._flying) >= self.depth or not rows):
            self._flying.popleft().result()
        return len(rows)

    def close(self) -> None:
        while self._flying:
            self._flying.popleft().result()
        super().close()


class Directory(peer.Peer):
    """A store of its own, without a service."""

    title = "txlog, directory"
    setup = (
        f"{txlog.__version__}, in the client's process; `durability = sync`; Arrow batches; one "
        "client, `commit_async` when several are in flight"
    )
    claims = (
        "yes: docs/guarantees.md, atomic",
        "yes: docs/guarantees.md, atomic",
        "yes: `transaction_key`; not used in this run",
        "yes: named producers with sequence ids; not used in this run",
        "yes: docs/guarantees.md, no waiting",
        "yes: `durability = sync`, the default; tests/powercut",
    )
    kind = DirectorySession
    is_single = True

    @property
    def store(self) -> str:
        return str(self.folder / "store")

    def connect(self) -> Any:
        txlog.init(self.store, if_not_exists=True)
        return txlog.open(self.store)

    def make(self, connection: Any, depth: int) -> None:
        for topic in peer.TOPICS:
            connection.create_topic(topic)
        connection.create_subscription("input", "s", type="shared")

    def fill(self, connection: Any, values: Sequence[bytes]) -> None:
        column = pa.array(values, pa.binary())
        connection.producer("input").send_batch(pa.table({"value": column}))

    def read(self, connection: Any, topic: str) -> Iterable[bytes]:
        for table in connection.read(topic):
            yield from table["value"].to_pylist()


def _tell(ended: peer.Ended, began: float, count: int, future: Future[Any]) -> None:
    if future.exception() is None:
        ended(began, count)
