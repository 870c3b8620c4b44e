"""Databases for tests of transactions that commit together with one: a fresh one of each kind."""

from __future__ import annotations

import functools
import os
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import duckdb
import pytest

from txlog import Client, TxnId
from txlog.client.databases import kinds, together

psycopg: Any
try:
    import psycopg
except ImportError:
    psycopg = None

_names = count(1)
SERVER_USER = "postgres"  # a server refuses to run as root


class Kind:
    """One database; each `connect` is a connection as a user has it.

    is_autocommit: each statement outside of a transaction commits by itself
    has_threads:   other threads may use a connection
    is_async:      its connections are for coroutines
    """

    name: str
    is_autocommit = False
    has_threads = False
    is_async = False
    error: type[Exception]

    def connect(self) -> Any:
        raise NotImplementedError

    def url(self) -> str:
        """As `txlog txn resolve --database` takes it."""
        raise NotImplementedError

    def rows(self, query: str = "SELECT value FROM orders ORDER BY value") -> list[Any]:
        """The first column of a query, in a connection of its own."""
        connection = self.connect()
        cursor = connection.cursor()
        cursor.execute(query)
        values = [row[0] for row in cursor.fetchall()]
        connection.close()
        return values

    def outcomes(self) -> list[str]:
        """The outcome rows."""
        return self.rows("SELECT outcome FROM txlog_commits ORDER BY outcome")


class Sqlite(Kind):
    name, error = "sqlite", sqlite3.OperationalError

    def __init__(self, folder: Path, mode: str = "WAL") -> None:
        self.path = folder / f"orders-{next(_names)}.db"
        connection = self.connect()
        connection.execute(f"PRAGMA journal_mode = {mode}")
        connection.execute("CREATE TABLE orders (value TEXT)")
        connection.close()

    def connect(self) -> sqlite3.Connection:
        level: Any = None if self.is_autocommit else "DEFERRED"
        return sqlite3.connect(
            self.path,
            timeout=0.2,
            isolation_level=level,
            check_same_thread=not self.has_threads,
        )

    def url(self) -> str:
        return f"sqlite:{self.path}"


class Duckdb(Kind):
    name, error = "duckdb", duckdb.Error

    def __init__(self, folder: Path) -> None:
        self.path = folder / f"orders-{next(_names)}.duckdb"
        connection = self.connect()
        connection.execute("CREATE TABLE orders (value TEXT)")
        connection.close()

    def connect(self) -> Any:
        return duckdb.connect(str(self.path))

    def url(self) -> str:
        return f"duckdb:{self.path}"


class Postgresql(Kind):
    name = "postgresql"

    def __init__(self, server: str) -> None:
        self.error = psycopg.Error
        self.server, self.schema = server, f"orders_{os.getpid()}_{next(_names)}"
        with self.connect() as connection:
            connection.execute(f"CREATE SCHEMA {self.schema}")
            connection.execute("CREATE TABLE orders (value TEXT)")

    def connect(self) -> Any:
        return psycopg.connect(self.url(), autocommit=self.is_autocommit)

    def url(self) -> str:
        return f"{self.server}&options=-csearch_path%3D{self.schema}"


@functools.cache
def program(name: str) -> str | None:
    """A program of PostgreSQL; Debian keeps the server's programs outside of PATH."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return shutil.which(name) or next(
        (found for folder in folders if (found := shutil.which(name, path=str(folder)))), None
    )


def has_postgresql() -> bool:
    """True if tests with a server of PostgreSQL can run here."""
    return psycopg is not None and program("initdb") is not None


@contextmanager
def postgresql_server() -> Iterator[str]:
    """The address of a server of its own, on a socket in a new folder."""
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir=os.environ.get("TXLOG_TESTS_IN")))
    user = SERVER_USER if os.geteuid() == 0 else None
    if user is not None:
        shutil.chown(folder, user)
    data, initdb, pg_ctl = folder / "data", program("initdb"), program("pg_ctl")
    assert initdb is not None
    assert pg_ctl is not None

    def run(*command: str) -> None:
        subprocess.run(
            command, check=True, user=user, cwd=folder, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, env={**os.environ, "LC_ALL": "C.UTF-8"},
        )  # fmt: skip

    run(initdb, "-D", str(data), "-U", "txlog", "-A", "trust", "--no-sync")
    options = f"-k {folder} -c listen_addresses='' -c max_connections=30"
    run(pg_ctl, "-D", str(data), "-w", "-o", options, "-l", str(folder / "log"), "start")
    try:
        yield f"postgresql://txlog@/postgres?host={folder}"
    finally:
        run(pg_ctl, "-D", str(data), "-m", "immediate", "stop")
        shutil.rmtree(folder, ignore_errors=True)


# --- transactions that commit together with one ---


def insert(connection: Any, value: str) -> None:
    connection.execute(f"INSERT INTO orders VALUES ('{value}')")


def both(client: Client, connection: Any, value: str, **options: Any) -> None:
    """A row and a message that commit together."""
    with client.transaction(database=connection, **options) as txn:
        insert(connection, value)
        client.producer("t").send(value.encode(), txn=txn)


def column(connection: Any, query: str) -> list[str]:
    """The first column of a query; no transaction stays open."""
    cursor = connection.cursor()
    cursor.execute(query)
    found = [row[0] for row in cursor.fetchall()]
    if not isinstance(connection, duckdb.DuckDBPyConnection):
        connection.rollback()
    return found


def rows_of(connection: Any) -> list[str]:
    return column(connection, "SELECT value FROM orders ORDER BY value")


def outcomes_of(connection: Any) -> list[str]:
    return column(connection, "SELECT outcome FROM txlog_commits ORDER BY outcome")


class Died(BaseException):
    """The process ends here: nothing of it runs any more, no clean-up either."""


@contextmanager
def commit_of_a_block(act: Callable[[Any], None]) -> Iterator[pytest.MonkeyPatch]:
    """Let `act(database)` happen instead of the commit of a block."""
    blocks: list[kinds.Database] = []
    record = kinds.Database.record

    def note(database: kinds.Database, *args: Any) -> None:
        blocks.append(database)
        record(database, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kinds.Database, "record", note)
        for kind in (kinds.Database, kinds.Sqlite):

            def commit(database: Any, real: Callable[[Any], None] = kind.commit) -> None:
                act(database) if database in blocks else real(database)

            patch.setattr(kind, "commit", commit)
        yield patch


def prepared_only(
    client: Client, connection: Any, value: str, *, kills: bool = True, **options: Any
) -> TxnId:
    """A block whose process dies after the log has prepared, before the database commits.

    kills: False: it only hangs
    """

    def die(database: Any) -> None:
        raise Died

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Died), commit_of_a_block(die):
        patch.setattr(together.DatabaseTransaction, "_find_out", lambda txn, error: None)
        both(client, connection, value, **options)
    if kills:
        together._ENDING.clear()
    (txn,) = [row["txn"] for row in client.transactions(states=["prepared"])]
    assert isinstance(txn, TxnId)
    return txn
