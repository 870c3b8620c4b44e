"""PostgreSQL: tables as queues, with FOR UPDATE SKIP LOCKED."""

from __future__ import annotations

import os
import shutil
from typing import Any, ClassVar

from bench.guarantees import peer

SOURCE = "Debian's postgresql"
TAKE = """DELETE FROM input WHERE id IN
    (SELECT id FROM input ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED) RETURNING value"""


class PostgresSession(peer.Session):
    """A connection."""

    def __init__(self, db: Any) -> None:
        self._db = db

    def move(self) -> int:
        with self._db.transaction(), self._db.cursor() as cursor:
            rows = cursor.execute(TAKE, (peer.BATCH,)).fetchall()
            for topic in ("a", "b"):
                if rows:
                    cursor.executemany(f"INSERT INTO {topic} (value) VALUES (%s)", rows)
        return len(rows)

    def close(self) -> None:
        self._db.close()


class Postgres(peer.Peer):
    """A cluster of its own, with a Unix socket only."""

    title = "PostgreSQL"
    setup = (
        "15, Debian's package, psycopg 3; `fsync=on`, `synchronous_commit=on`, "
        "`full_page_writes=on`; `DELETE … FOR UPDATE SKIP LOCKED`; a connection for each "
        "transaction in flight"
    )
    guarantees: ClassVar = {
        "topics together": ("yes", "one transaction"),
        "with acknowledgements": ("yes", "`DELETE` in the same transaction"),
        "fencing": ("no", "by hand; the row locks of a lost connection are released"),
        "duplicates dropped": ("no", "by hand, with a unique key and `ON CONFLICT`"),
        "readers not held up": ("yes", "MVCC"),
        "survives power loss": ("yes", "`fsync` and `synchronous_commit` are on, the defaults"),
    }
    user = "postgres"

    def start(self) -> None:
        server = peer.program("postgres", SOURCE)
        data = self.folder / "data"
        if not data.exists():
            data.mkdir(0o700)
            if os.geteuid() == 0:
                shutil.chown(data, self.user)
            self.launch([peer.program("initdb", SOURCE), "-D", data, "-A", "trust", "-U", "bench"])
            assert self.service is not None
            if self.service.wait() != 0:
                raise RuntimeError((self.folder / "service.log").read_text()[-300:])
        self.launch([server, "-D", data, "-h", "", "-k", self.folder, "-p", self.port()])
        peer.eventually(
            self._open, (peer.package("psycopg", "psycopg[binary]").OperationalError,)
        ).close()

    def _open(self) -> Any:
        return peer.package("psycopg", "psycopg[binary]").connect(
            host=str(self.folder), port=self.port(), dbname="postgres", user="bench",
            autocommit=True,
        )  # fmt: skip

    def produce(self, count: int, depth: int) -> None:
        with self._open() as db:
            for topic in ("input", "a", "b"):
                db.execute(f"CREATE TABLE {topic} (id bigserial PRIMARY KEY, value bytea)")
            with db.cursor().copy("COPY input (value) FROM STDIN") as copy:
                for number in range(count):
                    copy.write_row((peer.payload(number),))
            db.execute("CHECKPOINT")

    def session(self, number: int, depth: int) -> peer.Session:
        return PostgresSession(self._open())

    def stored(self) -> list[list[int]]:
        with self._open() as db:
            return [
                [peer.number_of(value) for (value,) in db.execute(f"SELECT value FROM {topic}")]
                for topic in ("a", "b")
            ]
