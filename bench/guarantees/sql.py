"""Databases: three tables; SQLite takes the oldest rows, PostgreSQL those that nothing locks."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from bench.guarantees import peer

SOURCE = "Debian's postgresql"
OLDEST = "SELECT id, value FROM input ORDER BY id LIMIT ?"
INSERT = "INSERT INTO {} (value) VALUES (?)"
DELETE = "DELETE FROM input WHERE id = ?"
TAKE = """DELETE FROM input WHERE id IN
    (SELECT id FROM input ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED) RETURNING value"""


class Database(peer.Peer):
    """A table each for the input and outputs; a connection for each transaction in flight.

    columns: of each table
    """

    columns: ClassVar[str]
    chunk = 1_000_000  # one transaction

    def make(self, connection: Any, depth: int) -> None:
        for topic in peer.TOPICS:
            connection.execute(f"CREATE TABLE {topic} ({self.columns})")

    def read(self, connection: Any, topic: str) -> Iterable[bytes]:
        return (value for (value,) in connection.execute(f"SELECT value FROM {topic}"))


class SQLite(Database):
    """A database in WAL mode."""

    title = "SQLite by hand"
    setup = (
        f"{sqlite3.sqlite_version}, in the client's process; WAL, `synchronous=FULL`; one table "
        "each; a thread and a connection for each transaction in flight"
    )
    claims = (
        "yes: one transaction",
        "yes: `DELETE` in the same transaction",
        "no: no such notion; by hand",
        "no: by hand, with a unique key",
        "yes: WAL: readers see the last commit; writers wait",
        "yes: `synchronous=FULL` flushes the WAL at each commit",
    )
    columns = "id INTEGER PRIMARY KEY, value BLOB"

    def connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(self.folder / "queue.db", timeout=60, isolation_level=None)
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        return db

    def fill(self, connection: Any, values: Sequence[bytes]) -> None:
        connection.execute("BEGIN")
        connection.executemany(INSERT.format("input"), [(value,) for value in values])
        connection.execute("COMMIT")

    def move(self, connection: Any) -> int:
        connection.execute("BEGIN IMMEDIATE")
        rows = connection.execute(OLDEST, [peer.BATCH]).fetchall()
        for topic in peer.OUTPUTS:
            connection.executemany(INSERT.format(topic), [(value,) for _, value in rows])
        connection.executemany(DELETE, [(row,) for row, _ in rows])
        connection.execute("COMMIT")
        return len(rows)


class Postgres(Database):
    """A cluster of its own, with a Unix socket only."""

    title = "PostgreSQL"
    setup = (
        "15, Debian's package, psycopg 3; `fsync=on`, `synchronous_commit=on`, "
        "`full_page_writes=on`; `DELETE … FOR UPDATE SKIP LOCKED`; a connection for each "
        "transaction in flight"
    )
    claims = (
        "yes: one transaction",
        "yes: `DELETE` in the same transaction",
        "no: by hand; the row locks of a lost connection are released",
        "no: by hand, with a unique key and `ON CONFLICT`",
        "yes: MVCC",
        "yes: `fsync` and `synchronous_commit` are on, the defaults",
    )
    user = "postgres"
    columns = "id bigserial PRIMARY KEY, value bytea"

    def command(self) -> Sequence[object]:
        initdb, server = (peer.program(name, SOURCE) for name in ("initdb", "postgres"))
        script = '[ -e data ] || "$0" -D data -A trust -U bench && exec "$@"'
        where = ("-D", "data", "-h", "", "-k", self.folder, "-p", self.port())
        return ["sh", "-c", script, initdb, server, *where]

    def connect(self) -> Any:
        options = {"dbname": "postgres", "user": "bench", "autocommit": True}
        psycopg = peer.package("psycopg", "psycopg[binary]")
        return psycopg.connect(host=str(self.folder), port=self.port(), **options)

    def fill(self, connection: Any, values: Sequence[bytes]) -> None:
        with connection.cursor().copy("COPY input (value) FROM STDIN") as copy:
            for value in values:
                copy.write_row((value,))
        connection.execute("CHECKPOINT")

    def move(self, connection: Any) -> int:
        with connection.transaction(), connection.cursor() as cursor:
            rows = cursor.execute(TAKE, (peer.BATCH,)).fetchall()
            for topic in peer.OUTPUTS:
                if rows:
                    cursor.executemany(f"INSERT INTO {topic} (value) VALUES (%s)", rows)
        return len(rows)
