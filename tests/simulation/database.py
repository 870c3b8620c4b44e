"""Owns the simulated database, whose transactions commit together with those of the log.

It is SQLite in memory, whose contents the machine keeps from commit to commit: a commit is durable,
and what was not committed ends with its process. Each statement is a step, at which a process may
die or the power may fail, and the commit is one before and one after it takes effect. A transaction
that writes holds the lock of the database from its beginning, as BEGIN IMMEDIATE does.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from sqlite3 import OperationalError, ProgrammingError
from typing import Any

from tests.simulation.answers import nothing
from tests.simulation.machine import Interrupted, SimulatedProcess
from tests.simulation.memory import Memory
from txlog import Client
from txlog.client.databases import kinds
from txlog.errors import InvalidArgument, StoreLocked, TxlogError

__all__ = ["OperationalError", "ProgrammingError"]  # of the driver, for its kind

LOCK_ROUNDS, ROUND_S = 10, 0.05


class Busy(StoreLocked):
    """Another transaction holds the lock of the database."""


class Connection:
    """A connection of a simulated process, and the only cursor of it."""

    isolation_level = ""
    row_factory: Any = None

    def __init__(self, process: SimulatedProcess) -> None:
        self.process, self.world = process, process.world
        self._sql = self._loaded()
        self._cursor = self._sql.cursor()

    def _loaded(self) -> sqlite3.Connection:
        sql = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        if self.world.database:
            sql.deserialize(self.world.database)
        else:
            sql.execute("CREATE TABLE orders (block TEXT)")
        return sql

    @property
    def in_transaction(self) -> bool:
        return self._sql.in_transaction

    @property
    def description(self) -> Any:
        return self._cursor.description

    def cursor(self) -> Connection:
        return self

    def fetchall(self) -> list[Any]:
        return self._cursor.fetchall()

    def execute(self, statement: str, values: tuple[Any, ...] = ()) -> Connection:
        word = statement.split()[0].lower()
        self._step(word)
        if word == "begin":
            if "IMMEDIATE" in statement:
                self._lock()
            self._sql = self._loaded()
        self._cursor = self._sql.execute(statement, values)
        if word in ("commit", "rollback"):
            is_writer = self.world.database_writer is self
            if is_writer and word == "commit":
                self.world.database = self._sql.serialize()
            self._unlock()
            if is_writer:
                self._step("ended")
        return self

    def close(self) -> None:
        self._sql.close()
        self._unlock()

    def _step(self, word: str) -> None:
        self.world.meet(self.process, f"db_{word}", "database", {})

    def _lock(self) -> None:
        for _ in range(LOCK_ROUNDS):
            writer = self.world.database_writer
            if writer is None or not writer.process.is_alive:
                self.world.database_writer = self
                return
            self.world.scheduler.sleep(ROUND_S)
        raise Busy("the database is locked")

    def _unlock(self) -> None:
        if self.world.database_writer is self:
            self.world.database_writer = None


class Simulated(kinds.Sqlite):
    """The kind of the simulated database."""

    def find_label(self) -> str:
        return "simulated"

    def begin(self, *, writes: bool = False) -> None:
        self.run("BEGIN IMMEDIATE" if writes else "BEGIN")

    def begin_block(self) -> None:
        self.begin(writes=True)
        self.run(f"SAVEPOINT {self.savepoint}")

    def is_conflict(self, error: Exception) -> bool:
        return isinstance(error, Busy)


@contextmanager
def simulated_databases() -> Iterator[None]:
    """Meanwhile, txlog takes connections to the simulated database."""
    usual = kinds.KINDS
    kinds.KINDS = (*usual, (__name__, "Connection", Simulated))  # type: ignore[misc]
    try:
        yield
    finally:
        kinds.KINDS = usual  # type: ignore[misc]


class Together:
    """What a process does with the database."""

    client: Client
    memory: Memory
    process: SimulatedProcess
    _call: Any
    _end: Any
    _fill: Any
    _guarded: Any
    _take: Any
    rows: Connection | None = None

    def _connected(self) -> Connection:
        if self.rows is None or self.rows.in_transaction:  # an error left it so
            if self.rows is not None:
                self.rows.close()
            self.rows = Connection(self.process)
        return self.rows

    def with_database(self, op: dict[str, Any]) -> None:
        """A row, messages and acknowledgements that commit together."""
        received, consumer = self._take(op, op["take"])
        rows = self._connected()

        def begun() -> Any:
            txn = self.client.transaction(database=rows)
            _ = txn.id
            return txn

        txn = self._call("begin", begun, lambda txn: {"txn": str(txn.id)})
        txn_id, count = str(txn.id), self.memory.count
        try:
            self._fill(op, txn, received, consumer)
            names = [f"{self.process.name}-{n + 1}" for n in range(count, self.memory.count)]
            self.memory.blocks.append(names)
            rows.execute("INSERT INTO orders VALUES (?)", (json.dumps(names),))
        except (TxlogError, Interrupted):
            self._guarded(lambda: self._end(txn, txn_id, "abort", {}))
            raise
        if op["rest_s"]:
            self.process.world.scheduler.sleep(op["rest_s"])
        self._call(op["end"], getattr(txn, op["end"]), nothing, txn=txn_id)
        if op["end"] == "commit":
            self.memory.committed.append(names)

    def resolve_rows(self, op: dict[str, Any]) -> None:
        """Ask the database for what is prepared."""
        self.client.resolve_prepared(database=self._connected())


def rows_apart(
    client: Client, process: SimulatedProcess, memories: list[Memory], seen: set[str]
) -> Iterator[str]:
    """What one side has and the other has not, after the database was asked.

    seen: the values of all messages
    """
    rows = Connection(process)
    orders = [json.loads(row[0]) for row in rows.execute("SELECT block FROM orders").fetchall()]
    for names in orders:
        if orders.count(names) > 1:
            yield f"the row of {names} is there twice"
    for memory in memories:
        for names in memory.blocks:
            shown = [name for name in names if name in seen]
            if names in orders and shown != names:
                yield f"the row of {names} is there, and of its messages only {shown}"
            if names not in orders and shown:
                yield f"messages {shown} are there, and not their row"
        for names in memory.committed:
            if names not in orders:
                yield f"the commit of {names} was answered, and its row is lost"


def resolve_all(client: Client, process: SimulatedProcess) -> list[str]:
    """Ask the database; returns the transactions that are prepared nevertheless."""
    with suppress(InvalidArgument):  # no block has come so far
        client.resolve_prepared(database=Connection(process))
    return [str(row["txn"]) for row in client.transactions(states=["prepared"])]
