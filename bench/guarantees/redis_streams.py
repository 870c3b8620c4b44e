"""Redis: streams with a consumer group; MULTI and EXEC around writes and acknowledgement."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from typing import Any

from bench.guarantees import peer

IDLE_MS = 3_000  # then another consumer may claim a message


class Redis(peer.Peer):
    """A server with an append-only file."""

    title = "Redis Streams"
    setup = (
        '7.0, Debian\'s package, redis-py; `appendonly yes`, `appendfsync always`, `save ""`; '
        "`XREADGROUP`, `MULTI` with `XADD` and `XACK`, `XAUTOCLAIM` after 3 s; a connection for "
        "each transaction in flight"
    )
    claims = (
        "yes: `MULTI`, keys of one node; no rollback of a failed command",
        "yes: `XACK` in the `MULTI`",
        "no: after `XAUTOCLAIM` the old consumer's `MULTI` still writes",
        "no: Redis 8.6 adds ids of producers to `XADD`; not in 7.0",
        "yes: no open transactions: `EXEC` runs all at once",
        "yes: `appendfsync always`: flushed before the answer",
    )

    def command(self) -> Sequence[object]:
        return (
            *(peer.program("redis-server", "Debian's redis-server"), "--port", self.port()),
            *("--bind", "127.0.0.1", "--dir", self.folder, "--appendonly", "yes"),
            *("--appendfsync", "always", "--save", "", "--no-appendfsync-on-rewrite", "no"),
        )

    def connect(self) -> Any:
        db = peer.package("redis", "redis").Redis(port=self.port(), retry=None)
        db.ping()
        return db

    def make(self, connection: Any, depth: int) -> None:
        connection.xgroup_create("input", "group", "0", mkstream=True)

    def fill(self, connection: Any, values: Sequence[bytes]) -> None:
        pipe = connection.pipeline(transaction=False)
        for value in values:
            pipe.xadd("input", {"value": value})
        pipe.execute()

    def read(self, connection: Any, topic: str) -> Iterable[bytes]:
        return (fields[b"value"] for _, fields in connection.xrange(topic))

    def move(self, connection: Any) -> int:
        group = ("group", f"{os.getpid()}-{threading.get_ident()}-{id(connection)}")
        wait_ms = int(peer.RECEIVE_S * 1000)
        read = connection.xreadgroup(*group, {"input": ">"}, peer.BATCH, wait_ms)
        claim = {"min_idle_time": IDLE_MS, "count": peer.BATCH}
        rows = read[0][1] if read else connection.xautoclaim("input", *group, **claim)[1]
        if rows:
            pipe = connection.pipeline(transaction=True)
            for topic in peer.OUTPUTS:
                for _, fields in rows:
                    pipe.xadd(topic, fields)
            pipe.xack("input", "group", *(row for row, _ in rows))
            pipe.execute()
        return len(rows)
