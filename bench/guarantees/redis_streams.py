"""Redis: streams with a consumer group; MULTI and EXEC around writes and acknowledgement."""

from __future__ import annotations

import os
import threading
from typing import Any, ClassVar

from bench.guarantees import peer

IDLE_MS = 3_000  # then another consumer may claim a message


class RedisSession(peer.Session):
    """A connection, and a consumer of its own name."""

    def __init__(self, db: Any) -> None:
        self._db = db
        self._name = f"{os.getpid()}-{threading.get_ident()}-{id(self)}"

    def move(self) -> int:
        group = ("group", self._name)
        read = self._db.xreadgroup(*group, {"input": ">"}, peer.BATCH, int(peer.RECEIVE_S * 1000))
        rows = read[0][1] if read else self._db.xautoclaim(
            "input", *group, IDLE_MS, count=peer.BATCH
        )[1]  # fmt: skip
        if not rows:
            return 0
        pipe = self._db.pipeline(transaction=True)
        for topic in ("a", "b"):
            for _, fields in rows:
                pipe.xadd(topic, fields)
        pipe.xack("input", "group", *(row for row, _ in rows))
        pipe.execute()
        return len(rows)

    def close(self) -> None:
        self._db.close()


class Redis(peer.Peer):
    """A server with an append-only file."""

    title = "Redis Streams"
    setup = (
        '7.0, Debian\'s package, redis-py; `appendonly yes`, `appendfsync always`, `save ""`; '
        "`XREADGROUP`, `MULTI` with `XADD` and `XACK`, `XAUTOCLAIM` after 3 s; a connection for "
        "each transaction in flight"
    )
    guarantees: ClassVar = {
        "topics together": ("yes", "`MULTI`, keys of one node; no rollback of a failed command"),
        "with acknowledgements": ("yes", "`XACK` in the `MULTI`"),
        "fencing": ("no", "after `XAUTOCLAIM` the old consumer's `MULTI` still writes"),
        "duplicates dropped": ("no", "Redis 8.6 adds ids of producers to `XADD`; not in 7.0"),
        "readers not held up": ("yes", "no open transactions: `EXEC` runs all at once"),
        "survives power loss": ("yes", "`appendfsync always`: flushed before the answer"),
    }

    def start(self) -> None:
        self.launch(
            [
                *(peer.program("redis-server", "Debian's redis-server"), "--port", self.port()),
                *("--bind", "127.0.0.1", "--dir", self.folder, "--appendonly", "yes"),
                *("--appendfsync", "always", "--save", "", "--no-appendfsync-on-rewrite", "no"),
            ]
        )
        errors = peer.package("redis", "redis").exceptions
        peer.eventually(
            lambda: self._open().ping(), (errors.ConnectionError, errors.BusyLoadingError)
        )

    def _open(self) -> Any:
        return peer.package("redis", "redis").Redis(port=self.port(), retry=None)

    def produce(self, count: int, depth: int) -> None:
        db = self._open()
        db.xgroup_create("input", "group", "0", mkstream=True)
        for first in range(0, count, 1_000):
            pipe = db.pipeline(transaction=False)
            for number in range(first, min(count, first + 1_000)):
                pipe.xadd("input", {"value": peer.payload(number)})
            pipe.execute()

    def session(self, number: int, depth: int) -> peer.Session:
        return RedisSession(self._open())

    def stored(self) -> list[list[int]]:
        db = self._open()
        return [
            [peer.number_of(fields[b"value"]) for _, fields in db.xrange(topic)]
            for topic in ("a", "b")
        ]
