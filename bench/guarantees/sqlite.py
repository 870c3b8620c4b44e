"""SQLite by hand: three tables; a transaction takes the oldest rows."""

from __future__ import annotations

import sqlite3
from typing import ClassVar

from bench.guarantees import peer

INSERT = "INSERT INTO {} (value) VALUES (?)"
Rows = list[tuple[int, bytes]]


class SQLiteSession(peer.Session):
    """A connection."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db

    def move(self) -> int:
        self._db.execute("BEGIN IMMEDIATE")
        rows = self._db.execute(
            "SELECT id, value FROM input ORDER BY id LIMIT ?", (peer.BATCH,)
        ).fetchall()
        halves = [self._write, self._acknowledge]
        if self.fault == "ack-first":
            halves.reverse()
        halves[0](rows)
        if self.fault and rows:
            self._db.execute("COMMIT")
            self.halfway()
            self._db.execute("BEGIN IMMEDIATE")
        halves[1](rows)
        self._db.execute("COMMIT")
        return len(rows)

    def _write(self, rows: Rows) -> None:
        for topic in ("a", "b"):
            self._db.executemany(INSERT.format(topic), [(value,) for _, value in rows])

    def _acknowledge(self, rows: Rows) -> None:
        self._db.executemany("DELETE FROM input WHERE id = ?", [(row,) for row, _ in rows])

    def close(self) -> None:
        self._db.close()


class SQLite(peer.Peer):
    """A database in WAL mode; a connection for each transaction in flight."""

    title = "SQLite by hand"
    setup = (
        f"{sqlite3.sqlite_version}, in the client's process; WAL, `synchronous=FULL`; one table "
        "each; a thread and a connection for each transaction in flight"
    )
    guarantees: ClassVar = {
        "topics together": ("yes", "one transaction"),
        "with acknowledgements": ("yes", "`DELETE` in the same transaction"),
        "fencing": ("no", "no such notion; by hand"),
        "duplicates dropped": ("no", "by hand, with a unique key"),
        "readers not held up": ("yes", "WAL: readers see the last commit; writers wait"),
        "survives power loss": ("yes", "`synchronous=FULL` flushes the WAL at each commit"),
    }

    def _open(self) -> sqlite3.Connection:
        db = sqlite3.connect(
            self.folder / "queue.db", timeout=60, isolation_level=None, check_same_thread=False
        )
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        return db

    def produce(self, count: int, depth: int) -> None:
        db = self._open()
        db.execute("BEGIN")
        for topic in ("input", "a", "b"):
            db.execute(f"CREATE TABLE {topic} (id INTEGER PRIMARY KEY, value BLOB)")
        db.executemany(INSERT.format("input"), ((peer.payload(number),) for number in range(count)))
        db.execute("COMMIT")
        db.close()

    def session(self, number: int, depth: int) -> peer.Session:
        return SQLiteSession(self._open())

    def stored(self) -> list[list[int]]:
        db = self._open()
        found = [
            [peer.number_of(value) for (value,) in db.execute(f"SELECT value FROM {topic}")]
            for topic in ("a", "b")
        ]
        db.close()
        return found
