"""SQLite, PostgreSQL and DuckDB, as far as a commit together with the log needs them.

    txlog_database   only_one, id
    txlog_commits    token, store, outcome, written_ms

`txlog_database` is the identity that a prepared transaction names. `txlog_commits` has a row for
each transaction: `commit` in the user's own commit, or `abort` from a resolver that found none. The
primary key lets only one of both in, so whoever reads a row knows that it is final.

Each kind ends a transaction durably, also where the connection was told not to. Errors of the
driver pass to the caller unchanged.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, Protocol, TypeVar

from txlog.errors import InvalidArgument, InvalidTxnStatus, NotAllowed

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from concurrent.futures import Future

T = TypeVar("T")
COMMIT, ABORT = "commit", "abort"
SAVEPOINT: Final = "txlog_block"
_BLOCKS: Final = count(1)
FENCE_WAIT_MS: Final = 500
_TABLES: Final = (
    "CREATE TABLE IF NOT EXISTS txlog_database "
    "(only_one INTEGER PRIMARY KEY CHECK (only_one = 1), id TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS txlog_commits (token TEXT PRIMARY KEY, store TEXT NOT NULL, "
    "outcome TEXT NOT NULL CHECK (outcome IN ('commit', 'abort')), written_ms BIGINT NOT NULL)",
)


class Cursor(Protocol):
    """A cursor of the Python database API."""

    description: Any

    def execute(self, statement: str, values: tuple[object, ...], /) -> object: ...
    def fetchall(self) -> list[tuple[Any, ...]]: ...


class Database:
    """A connection to a database.

    driver:   the module of the connection
    identity: as the database stores it; label: a text for people, without a password
    """

    kind: ClassVar[str]
    placeholder: ClassVar[str] = "?"
    # The row `abort` gets in only when no other transaction can still write `commit`. Otherwise it
    # has to stay for a while.
    fence_waits: ClassVar[bool] = True

    def __init__(self, connection: Any, driver: Any) -> None:
        self.connection, self.driver = connection, driver
        # Of this block alone: a later block of the connection must not end with an earlier one.
        self.savepoint = f"{SAVEPOINT}_{next(_BLOCKS)}"
        self.check_thread()
        self.check()
        self.label = self.find_label()
        self.identity = ""

    # --- of each kind ------------------------------------------------------------------------

    def check(self) -> None:
        """Raises InvalidArgument for a connection whose transactions cannot be controlled."""
        raise NotImplementedError

    def find_label(self) -> str:
        """The text by which people recognise it; raises InvalidArgument for one in memory."""
        raise NotImplementedError

    def is_copy_of(self, label: str) -> bool:
        """Whether the file with this label still exists, and is another one: it is in use.

        A copy has the same identity, and lacks the rows that its original has written since.
        """
        with suppress(OSError):  # not a path, or moved
            return Path(label).is_absolute() and not Path(label).samefile(self.label)
        return False

    def has_tables(self) -> bool:
        """True if both tables exist."""
        raise NotImplementedError

    def begin(self, *, writes: bool = False) -> None:
        """Begin a transaction; writes: and be the only one that writes outcomes, if need be."""
        raise NotImplementedError

    def begin_block(self) -> None:
        """Begin the transaction of a block, whose end can be told from another's."""
        raise NotImplementedError

    def end_block(self) -> None:
        """Raises InvalidTxnStatus if the block has ended its transaction by itself."""
        raise NotImplementedError

    def is_conflict(self, error: Exception) -> bool:
        """True for the error of a write that another open transaction keeps from being made."""
        raise NotImplementedError

    @property
    def is_gone(self) -> bool:
        """True if the connection is closed: the database rolls back what was not committed.

        An error that a living connection raises, too, is no sign of it.
        """
        raise NotImplementedError

    def check_thread(self) -> None:
        """Raises NotAllowed if the connection cannot be used in this thread."""

    # --- of all kinds ------------------------------------------------------------------------

    def run(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """The rows of a statement, written with a question mark for each value."""
        cursor = self.cursor()
        cursor.execute(statement.replace("?", self.placeholder), values)
        return [*cursor.fetchall()] if cursor.description else []

    def cursor(self) -> Cursor:
        """A cursor whose rows are tuples."""
        raise NotImplementedError

    def commit(self) -> None:
        """Commit; durable when it returns."""
        self._end(self.connection.commit)

    def rollback(self) -> None:
        """Roll back; without a transaction nothing."""
        self._end(self.connection.rollback)

    def _end(self, act: Callable[[], Any]) -> None:
        act()

    @contextmanager
    def own(self, *, writes: bool = False) -> Iterator[None]:
        """A transaction of the protocol itself."""
        try:
            self.begin(writes=writes)
            yield
            self.commit()
        except BaseException:  # an interrupt, too
            with suppress(Exception):  # the first error counts
                self.rollback()
            raise

    def open(self, new: str | None = None) -> None:
        """Find its identity; new: the one that it gets, with the tables, if it has none.

        raises: InvalidArgument if it has none, and gets none
        """
        with self.own():
            rows = self.run("SELECT id FROM txlog_database") if self.has_tables() else []
        if not rows and new is not None:
            with self.own(writes=True):
                for statement in _TABLES:
                    self.run(statement)
                self.run(
                    "INSERT INTO txlog_database VALUES (1, ?) ON CONFLICT DO NOTHING",
                    new,
                )
                rows = self.run("SELECT id FROM txlog_database")
        if not rows:
            raise InvalidArgument(
                f"{self.kind} {self.label} has no outcomes of transactions",
                hint="give the database that the transactions were committed with",
            )
        self.identity = _text(rows[0][0])

    def record(self, token: str, store: str, now_ms: int, finished: Sequence[str]) -> None:
        """Write the outcome of a block into its transaction, and delete finished ones.

        raises: InvalidTxnStatus if the block has ended its transaction by itself
        """
        self.end_block()
        self._insert(token, store, COMMIT, now_ms)
        if self._look(token) is None:
            raise InvalidTxnStatus(
                f"{self.kind} {self.label} is another database than when the block began",
                hint="change no search path inside the block",
            )
        self.delete(finished)

    def _insert(self, token: str, store: str, outcome: str, now_ms: int) -> None:
        """Write an outcome, if there is none, and this is the database with the identity."""
        self.run(
            "INSERT INTO txlog_commits SELECT ?, ?, ?, ? FROM txlog_database WHERE id = ? "
            "ON CONFLICT DO NOTHING",
            token,
            store,
            outcome,
            now_ms,
            self.identity,
        )

    def delete(self, tokens: Sequence[str]) -> None:
        """Delete rows, in one order: two blocks that delete the same rows must not deadlock."""
        for token in sorted(set(tokens)):
            self.run("DELETE FROM txlog_commits WHERE token = ?", token)

    def rows_before(self, store: str, ms: int) -> list[str]:
        """The tokens of a store's rows that were written before an instant."""
        with self.own():
            rows = self.run(
                "SELECT token FROM txlog_commits WHERE store = ? AND written_ms < ?", store, ms
            )
        return [_text(row[0]) for row in rows]

    def outcome(self, token: str, store: str, now_ms: int) -> bool | None:
        """True: commit; False: abort, now certain; None: its transaction may still be open."""
        outcome = self._read(token)
        if outcome is None:
            try:
                with self.own(writes=True):
                    self._insert(token, store, ABORT, now_ms)
                    outcome = self._look(token)
            except Exception as error:  # of the driver
                if not self.is_conflict(error):
                    raise
                outcome = self._read(token)  # the other one may have committed
        return None if outcome is None else outcome == COMMIT

    def _read(self, token: str) -> str | None:
        with self.own():
            return self._look(token)

    def _look(self, token: str) -> str | None:
        rows = self.run("SELECT outcome FROM txlog_commits WHERE token = ?", token)
        return _text(rows[0][0]) if rows else None

    def _refuse(self, why: str, hint: str) -> InvalidArgument:
        return InvalidArgument(f"database: the {self.kind} connection {why}", hint=hint)

    def _ended_early(self) -> InvalidTxnStatus:
        return InvalidTxnStatus(
            f"the block has committed or rolled back {self.kind} {self.label} by itself",
            hint="leave both to the end of the block",
        )


def _text(value: Any) -> str:
    """A text of the database; `text_factory` of SQLite may make it bytes."""
    return value.decode() if isinstance(value, bytes) else str(value)


class Sqlite(Database):
    """SQLite, by the standard library.

    A commit survives a power cut with synchronous=FULL in WAL mode and with EXTRA else: a rollback
    journal is deleted, and only EXTRA flushes its directory then.
    """

    kind = "sqlite"
    _FULL, _EXTRA = 2, 3
    _BUSY = (5, 6)  # SQLITE_BUSY, SQLITE_LOCKED

    def __init__(self, connection: Any, driver: Any) -> None:
        self._before: int | None = None  # synchronous, as the user has it
        super().__init__(connection, driver)

    def check(self) -> None:
        """Raises InvalidArgument."""
        if getattr(self.connection, "autocommit", -1) is False:  # its transaction is always open
            raise self._refuse(
                "has autocommit=False, so what was written before is unknown",
                "connect without it, or with autocommit=True",
            )
        if self.connection.in_transaction:
            raise self._refuse("is in a transaction", "commit it or roll it back before")

    def find_label(self) -> str:
        """The path."""
        for _, name, path in self.run("PRAGMA database_list"):
            if _text(name) == "main" and path:
                mode = _text(self.run("PRAGMA journal_mode")[0][0])
                if mode in ("memory", "off"):
                    raise self._refuse(
                        f"has journal_mode {mode}", "PRAGMA journal_mode = WAL keeps a commit"
                    )
                return _text(path)
        raise self._refuse("is to a database in memory", "use a file")

    def has_tables(self) -> bool:
        """True if both tables exist."""
        rows = self.run(
            "SELECT name FROM sqlite_master WHERE name IN ('txlog_database', 'txlog_commits')"
        )
        return len(rows) == len(_TABLES)

    def cursor(self) -> Cursor:
        """A cursor whose rows are tuples."""
        cursor: Cursor = self.connection.cursor()
        cursor.row_factory = None  # type: ignore[attr-defined]
        return cursor

    def begin(self, *, writes: bool = False) -> None:
        """Begin a transaction; one that writes takes the lock at once."""
        self._be_durable()
        self.run("BEGIN IMMEDIATE" if writes else f"BEGIN {self.connection.isolation_level or ''}")

    def begin_block(self) -> None:
        """Begin the transaction of a block."""
        self.begin()
        self.run(f"SAVEPOINT {self.savepoint}")

    def end_block(self) -> None:
        """Raises InvalidTxnStatus."""
        try:
            self.run(f"RELEASE SAVEPOINT {self.savepoint}")
        except self.driver.OperationalError as error:
            if "no such savepoint" in str(error):
                raise self._ended_early() from error
            raise

    def is_conflict(self, error: Exception) -> bool:
        """True if the database is locked."""
        if not isinstance(error, self.driver.OperationalError):
            return False
        return error.sqlite_errorcode & 0xFF in self._BUSY

    @property
    def is_gone(self) -> bool:
        """True if the connection is closed."""
        try:
            _ = self.connection.in_transaction  # any thread may ask this
        except self.driver.ProgrammingError:
            return True
        return False

    def check_thread(self) -> None:
        """Raises NotAllowed."""
        try:
            self.connection.cursor()
        except self.driver.ProgrammingError as error:
            if not self.is_gone:
                raise NotAllowed(
                    f"only the thread that made the {self.kind} connection may use it",
                    hint="call this in that thread, or connect with check_same_thread=False",
                ) from error

    def commit(self) -> None:
        """Commit, also in autocommit mode, where `connection.commit()` may do nothing."""
        self.run("COMMIT")
        self._be_as_before()

    def rollback(self) -> None:
        """Roll back."""
        if self.connection.in_transaction:
            self.run("ROLLBACK")
        self._be_as_before()

    def _be_durable(self) -> None:
        is_wal = _text(self.run("PRAGMA journal_mode")[0][0]) == "wal"
        needed = self._FULL if is_wal else self._EXTRA
        (level,) = self.run("PRAGMA synchronous")[0]
        if level < needed:
            self._before = level
            self.run(f"PRAGMA synchronous = {needed}")

    def _be_as_before(self) -> None:
        if self._before is not None:
            level, self._before = self._before, None
            self.run(f"PRAGMA synchronous = {level}")


class Postgresql(Database):
    """PostgreSQL, by psycopg 3."""

    kind = "postgresql"
    placeholder = "%s"

    def check(self) -> None:
        """Raises InvalidArgument."""
        if self.connection.info.transaction_status.name != "IDLE":
            raise self._refuse(
                "is closed" if self.connection.closed else "is in a transaction",
                "commit it or roll it back before",
            )

    def find_label(self) -> str:
        """Host, port and name of the database."""
        info = self.connection.info
        return f"{info.host}:{info.port}/{info.dbname}"

    def has_tables(self) -> bool:
        """True if both tables exist."""
        rows = self.run(
            "SELECT 1 WHERE to_regclass('txlog_database') IS NOT NULL "
            "AND to_regclass('txlog_commits') IS NOT NULL"
        )
        return bool(rows)

    def cursor(self) -> Cursor:
        """A cursor whose rows are tuples."""
        cursor: Cursor = self.connection.cursor(row_factory=self.driver.rows.tuple_row)
        return cursor

    def begin(self, *, writes: bool = False) -> None:
        """Begin a transaction; one that writes waits for others, but not for long."""
        self._begin()
        self.run("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        if writes:
            self.run(f"SET LOCAL lock_timeout = {FENCE_WAIT_MS}")
            self.run("SELECT pg_advisory_xact_lock(hashtext('txlog_database'))")
            self._be_durable()

    def begin_block(self) -> None:
        """Begin the transaction of a block."""
        self._begin()
        self.run(f"SAVEPOINT {self.savepoint}")

    def _begin(self) -> None:
        if self.connection.autocommit:  # else the driver does it
            self.run("BEGIN")

    def commit(self) -> None:
        """Commit. Raises InvalidTxnStatus where the driver or the server would do nothing."""
        if self.connection.info.transaction_status.name != "INTRANS":
            raise self._ended_early()
        super().commit()

    def end_block(self) -> None:
        """Raises InvalidTxnStatus."""
        errors = self.driver.errors
        try:
            self.run(f"RELEASE SAVEPOINT {self.savepoint}")
        except (errors.InvalidSavepointSpecification, errors.NoActiveSqlTransaction) as error:
            raise self._ended_early() from error
        self._be_durable()

    def _be_durable(self) -> None:
        self.run(
            "SELECT set_config('synchronous_commit', 'on', true) "
            "WHERE current_setting('synchronous_commit') = 'off'"
        )

    def is_conflict(self, error: Exception) -> bool:
        """True if a lock was waited for too long."""
        errors = self.driver.errors
        return isinstance(error, errors.LockNotAvailable | errors.DeadlockDetected)

    @property
    def is_gone(self) -> bool:
        """True if the connection is closed."""
        return bool(self.connection.closed)


class InLoop(NamedTuple):
    """An AsyncConnection of psycopg, for a thread beside the event loop that it belongs to."""

    connection: Any
    loop: AbstractEventLoop


class AsyncPostgresql(Postgresql):
    """PostgreSQL by an AsyncConnection; the thread of the call waits for the event loop."""

    def __init__(self, connection: InLoop, driver: Any) -> None:
        self._loop = connection.loop
        super().__init__(connection.connection, driver)

    def run(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """The rows of a statement."""

        async def rows() -> list[tuple[Any, ...]]:
            cursor: Any = self.cursor()
            await cursor.execute(statement.replace("?", self.placeholder), values)
            return [*await cursor.fetchall()] if cursor.description else []

        return self._wait(rows())

    def _end(self, act: Callable[[], Any]) -> None:
        self._wait(act())

    def _wait(self, steps: Coroutine[Any, Any, T]) -> T:
        asyncio: ModuleType = import_module("asyncio")
        done: Future[T] = asyncio.run_coroutine_threadsafe(steps, self._loop)
        return done.result()


class Duckdb(Database):
    """DuckDB. A connection commits each statement unless a transaction was begun."""

    kind = "duckdb"
    fence_waits = False  # the later of two commits of a row fails

    def __init__(self, connection: Any, driver: Any) -> None:
        self._block = -1  # the number of the block's transaction
        super().__init__(connection, driver)

    def check(self) -> None:
        """Raises InvalidArgument."""
        if self._number() == self._number():  # else each statement is a transaction
            raise self._refuse("is in a transaction", "commit it or roll it back before")

    def find_label(self) -> str:
        """The path."""
        ((path,),) = self.run(
            "SELECT path FROM duckdb_databases() WHERE database_name = current_database()"
        )
        if not path:
            raise self._refuse("is to a database in memory", "use a file")
        return str(Path(str(path)).absolute())

    def cursor(self) -> Cursor:
        """The connection itself: a cursor of DuckDB is a connection of its own."""
        cursor: Cursor = self.connection
        return cursor

    def has_tables(self) -> bool:
        """True if both tables exist."""
        rows = self.run(
            "SELECT table_name FROM duckdb_tables() WHERE database_name = current_database() "
            "AND table_name IN ('txlog_database', 'txlog_commits')"
        )
        return len(rows) == len(_TABLES)

    def begin(self, *, writes: bool = False) -> None:
        """Begin a transaction; the commit of one of two that write the same row fails."""
        self.connection.begin()

    def begin_block(self) -> None:
        """Begin the transaction of a block."""
        self.begin()
        self._block = self._number()

    def end_block(self) -> None:
        """Raises InvalidTxnStatus."""
        if self._number() != self._block:
            raise self._ended_early()

    @property
    def is_gone(self) -> bool:
        """True if the connection is closed."""
        try:
            self.connection.execute("SELECT 1")
        except self.driver.ConnectionException:
            return True
        return False

    def _number(self) -> int:
        ((number,),) = self.run("SELECT txid_current()")
        return int(number)

    def rollback(self) -> None:
        """Roll back; a failed commit has left no transaction."""
        with suppress(self.driver.TransactionException):
            self.connection.rollback()

    def is_conflict(self, error: Exception) -> bool:
        """True if another transaction has written the row."""
        return isinstance(error, self.driver.TransactionException | self.driver.ConstraintException)


KINDS: Final[tuple[tuple[str, str, Callable[[Any, Any], Database]], ...]] = (
    ("sqlite3", "Connection", Sqlite),
    ("psycopg", "Connection", Postgresql),
    (__name__, "InLoop", AsyncPostgresql),
    ("duckdb", "DuckDBPyConnection", Duckdb),
)


def database_of(connection: object) -> Database:
    """The database behind a connection.

    raises: InvalidArgument: of another type, in a transaction, in memory; NotAllowed: of another
            thread
    """
    for module, name, kind in KINDS:
        if _is_a(connection, module, name):
            driver = sys.modules["psycopg" if kind is AsyncPostgresql else module]
            return kind(connection, driver)
    given = f"{type(connection).__module__}.{type(connection).__qualname__}"
    hint = "of SQLAlchemy, connection.connection.dbapi_connection"
    if _is_a(connection, "psycopg", "AsyncConnection"):
        hint = "txlog.aio takes it"
    raise InvalidArgument(
        f"database is a {given}, it must be a connection of sqlite3, psycopg or duckdb", hint=hint
    )


def in_loop(connection: object) -> object:
    """What `database_of` takes for a connection of the running event loop."""
    if _is_a(connection, "psycopg", "AsyncConnection"):
        asyncio: ModuleType = import_module("asyncio")
        return InLoop(connection, asyncio.get_running_loop())
    return connection


def _is_a(connection: object, module: str, name: str) -> bool:
    """True for a connection of a driver; without its module there is none."""
    driver = sys.modules.get(module)
    return driver is not None and isinstance(connection, getattr(driver, name))
