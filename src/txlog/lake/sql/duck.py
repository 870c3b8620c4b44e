"""Owns DuckDB: the only module that imports it.

A session is an ephemeral connection in memory. Arrow tables go in by name, Arrow tables come out;
the only files it may read are the Parquet files named when it is opened. Its settings are fixed and
locked before the first statement: no extension is fetched or loaded on its own, SQL does not see
the caller's variables, nothing is spilled beside the program, and instants are in UTC.

SQL from outside first goes through `Session.tables_of`. That gate must stay: a list of allowed
paths alone lets COPY overwrite what is on it.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, TypeVar

import duckdb
import pyarrow as pa

from txlog.engine.door.disk import descriptor_limit
from txlog.engine.door.relation import bounded
from txlog.engine.door.segments import arrow_module
from txlog.errors import SqlError, TxlogError

# The nodes of a statement that only reads; a WITH may hold a DELETE or the like.
_READING = frozenset(
    ["SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE", "STATEMENT_NODE"]
)
_PARSE = "SELECT json_serialize_sql($query)"
# What names all columns that it uses.
_EXPRESSIONS: Final = frozenset(
    "BETWEEN CASE CAST COLUMN_REF COMPARISON CONJUNCTION CONSTANT FUNCTION LAMBDA OPERATOR"
    " PARAMETER SUBQUERY TYPE WINDOW".split()
)
_TABLES: Final = frozenset(["BASE_TABLE", "SUBQUERY"])
_JOINS: Final = frozenset(["REGULAR", "CROSS"])
T = TypeVar("T")
_AGAIN_S: Final = 0.02  # a statement that has just begun may miss an interrupt
_TOGETHER_S, _TOGETHER_BYTES = 0.02, 4 << 20
BATCH_ROWS = 10_240  # five of DuckDB's vectors: large messages must fit in memory
_AHEAD: Final = "1MB"  # of rows that wait for who reads them
VERSION: str = duckdb.__version__
# Open files of a scan of many, measured with DuckDB 2.0: 92, 132, 267 and 461 with 1, 2, 8 and 32
# threads; without threads for reading ahead 18, 30 and 102 with 1, 2 and 8.
AHEAD_FILES, THREAD_FILES = 128, 14

_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
    "temp_directory": "",
}


class Rows:
    """The rows of a SELECT, computed on demand; raises SqlError when that fails."""

    __slots__ = ("_connection", "_reader", "_session", "schema")

    def __init__(
        self,
        reader: pa.RecordBatchReader,
        connection: duckdb.DuckDBPyConnection,
        session: Session,
    ) -> None:
        self._reader, self._connection, self._session = reader, connection, session
        self.schema: pa.Schema = reader.schema

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        ended: list[Exception | None] = []
        while not ended:
            yield from _interruptible(self._connection, lambda: self._some(ended))
        if ended[0] is not None:
            # Arrow passes on DuckDB's error as OSError
            raise self._session.failure(ended[0]) from ended[0]

    def _some(self, ended: list[Exception | None]) -> list[pa.RecordBatch]:
        """The next batches, small ones together: a thread for each would cost more than they do.

        ended: is told of the end, and of what ended the rows before it
        """
        found: list[pa.RecordBatch] = []
        rows = size_bytes = 0
        until_s = time.monotonic() + _TOGETHER_S
        try:
            while not found or (
                rows < BATCH_ROWS and size_bytes < _TOGETHER_BYTES and time.monotonic() < until_s
            ):
                found.append(self._reader.read_next_batch())
                rows, size_bytes = rows + len(found[-1]), size_bytes + found[-1].nbytes
        except StopIteration:
            ended.append(None)
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            ended.append(error)
        return found

    def read_all(self) -> pa.Table:
        """All rows as one table."""
        return pa.Table.from_batches(list(self), self.schema)


class Session:
    """One DuckDB connection in memory; a context manager, for one thread.

    parquet: names of views and the path of the Parquet file that each one shows, with the number
             of the row in its file as the extra column file_row_number
    paths:   other files that statements may read
    is_open: statements may read everything until `lock`: they must be our own
    memory_bytes: what statements may use; None: most of the machine's
    is_lean: files are read by one thread, and not ahead: what a scan holds is half of it or less
    failures: what ended the reading of a dataset; it is raised instead of DuckDB's words for it
    """

    __slots__ = ("_connection", "failures")

    def __init__(
        self,
        parquet: Mapping[str, str] | None = None,
        paths: Sequence[str] = (),
        *,
        is_open: bool = False,
        memory_bytes: int | None = None,
        is_lean: bool = False,
    ) -> None:
        named = parquet or {}
        self.failures: list[TxlogError] = []
        self._connection = duckdb.connect(":memory:", config=_CONFIG)
        try:
            # By SET: as an option of connect, the zone would be looked up before it is known.
            self._connection.execute("SET TimeZone = 'UTC'")
            # A query of some seconds would draw it on standard output, amid what programs read.
            self._connection.execute("SET enable_progress_bar = false")
            self._connection.execute(f"SET streaming_buffer_size = '{_AHEAD}'")
            _fit(self._connection, descriptor_limit() // 2)
            if memory_bytes is not None:
                self._connection.execute(f"SET memory_limit = '{memory_bytes}B'")
            if is_lean:
                self._connection.execute("SET threads = 1")
                self._connection.execute("SET disable_parquet_prefetching = true")
            if not is_open:
                self.lock([*named.values(), *paths])
            for name, path in named.items():
                relation = self._connection.read_parquet(path, file_row_number=True)
                relation.create_view(name)
        except duckdb.Error as error:
            self._connection.close()
            raise _sql_error(error) from error

    def lock(self, paths: Sequence[str]) -> None:
        """Let statements read only these files from now on; call it before the first foreign one.

        raises: SqlError
        """
        try:
            self._connection.execute("SET allowed_paths = $1", [list(paths)])
            self._connection.execute("SET enable_external_access = false")
            self._connection.execute("SET lock_configuration = true")
        except duckdb.Error as error:
            raise _sql_error(error) from error

    def tables_of(self, query: str) -> list[str]:
        """The tables that a query names, as written, without duplicates; nothing is bound or run.

        raises: SqlError when it is not one SELECT, or does more than read
        """
        try:
            [tree] = self._connection.execute(_PARSE, {"query": query}).fetchall()
        except duckdb.Error as error:
            raise _sql_error(error) from error
        return _tables_of(json.loads(tree[0]))

    def fields_of(self, queries: Sequence[str], column: str) -> set[str] | None:
        """Which fields of a struct column SELECTs name, in lower case; None: perhaps all of them.

        For `tables_of` has taken them. Only what is surely understood is: a name without a star,
        a table without other names for its columns, an expression of a kind that is listed here.
        """
        found: set[str] = set()
        for query in queries:
            [tree] = self._connection.execute(_PARSE, {"query": query}).fetchall()
            nodes = list(_nodes(_without_order_by_all(json.loads(tree[0])["statements"])))
            if not all(_is_plain(node, column) for node in nodes):
                return None
            tables = {
                str(word).casefold()
                for node in nodes
                if "class" not in node
                for word in (node.get("alias"), node.get("table_name"))
                if word
            }
            if column in tables:
                return None
            for node in nodes:
                path = [str(word).casefold() for word in node.get("column_names", ())]
                if path and path[-1] in {column, *tables}:  # all of it, or of a table
                    return None
                if column in path:
                    found.add(path[path.index(column) + 1])
        return found

    @classmethod
    def in_file(cls, path: str) -> Session:
        """A session in its own database file, only for our own statements: nothing is locked.

        raises: SqlError
        """
        made = cls.__new__(cls)
        made.failures = []
        try:
            path.encode()  # DuckDB takes UTF-8 paths
            made._connection = duckdb.connect(path, config=_CONFIG)
            _fit(made._connection, descriptor_limit() // 2)
        except (duckdb.Error, UnicodeEncodeError) as error:
            raise _sql_error(error) from error
        return made

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the connection; what it held in memory is freed."""
        self._connection.close()

    def interrupt(self) -> None:
        """End the statement that another thread runs, if it has begun."""
        self._connection.interrupt()

    def register(self, name: str, table: object, *, is_held: bool = False) -> None:
        """Make an Arrow table or dataset a view called name, replacing an older one.

        Instants of a table that DuckDB cannot hold become 'infinity' and '-infinity'.
        is_held: a join keeps its rows in memory, and those of others go by
        """
        if isinstance(table, pa.Table):
            table = bounded(table)
            if is_held:  # of datasets DuckDB believes that they have one row
                table = arrow_module("pyarrow.dataset").dataset(table)
        try:
            self._connection.register(name, table)
        except duckdb.Error as error:
            raise _sql_error(error) from error

    def execute(self, statement: str, parameters: list[object] | None = None) -> None:
        """Run a statement that returns no rows."""
        try:
            _interruptible(
                self._connection, lambda: self._connection.execute(statement, parameters)
            )
        except duckdb.Error as error:
            raise _sql_error(error) from error

    def arrow(self, query: str) -> pa.Table:
        """Return the rows of a SELECT as one Arrow table, in the order of the query."""
        try:
            return _interruptible(
                self._connection, lambda: self._connection.sql(query).to_arrow_table()
            )
        except duckdb.Error as error:
            raise self.failure(error) from error

    def stream(self, query: str, parameters: Mapping[str, str] | None = None) -> Rows:
        """Return the rows of a SELECT batch by batch; read it before the session is used again."""

        def begun() -> pa.RecordBatchReader:
            relation = self._connection.sql(query, params=dict(parameters or {}) or None)
            return relation.to_arrow_reader(BATCH_ROWS)

        try:
            return Rows(_interruptible(self._connection, begun), self._connection, self)
        except duckdb.Error as error:
            raise self.failure(error) from error

    def scanned(self, query: str, parameters: Mapping[str, str] | None = None) -> tuple[int, int]:
        """(files that a SELECT reads, files that it names), as of its planning."""
        try:
            planned = self._connection.execute(
                f"EXPLAIN (FORMAT json) {query}", dict(parameters or {}) or None
            ).fetchall()
        except duckdb.Error as error:
            raise _sql_error(error) from error
        read = named = 0
        for node in _nodes(json.loads(planned[0][1])):
            info = node.get("extra_info")
            if isinstance(info, dict) and "Scanning Files" in info:
                some, _, every = str(info["Scanning Files"]).partition("/")
                read, named = read + int(some), named + int(every)
        return read, named

    def plan(self, query: str, parameters: Mapping[str, str] | None = None) -> str:
        """How a SELECT would be run, drawn."""
        try:
            planned = self._connection.execute(
                f"EXPLAIN {query}", dict(parameters or {}) or None
            ).fetchall()
        except duckdb.Error as error:
            raise _sql_error(error) from error
        return "".join(str(text) for _, text in planned)

    def failure(self, error: Exception) -> TxlogError:
        """What to raise for an error of a statement."""
        return self.failures[0] if self.failures else _sql_error(error)

    def row(self, query: str) -> dict[str, object]:
        """Return the single row of a SELECT as a mapping from column to Python value."""
        rows: list[dict[str, object]] = self.arrow(query).to_pylist()
        if len(rows) != 1:
            raise SqlError(f"the query returned {len(rows)} rows where one was expected")
        return rows[0]


def _interruptible(connection: duckdb.DuckDBPyConnection, work: Callable[[], T]) -> T:
    """Do work on the connection so that an exception from a signal ends it at once.

    DuckDB rarely checks for signals, in some statements only after a minute, and then says "Query
    interrupted" instead of raising the handler's exception. So the statement gets its own thread,
    and this one, if it is the main thread, where signals arrive, waits as Python does.
    raises: what work raises
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    done = threading.Event()
    outcome: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(work())
        except BaseException as error:  # raised again in the thread that waits
            failed.append(error)
        finally:
            done.set()

    worker = threading.Thread(target=run, daemon=True)
    try:
        worker.start()
        done.wait()
    except BaseException:  # Ctrl-C while waiting: DuckDB must end first
        while worker.is_alive() and not done.is_set():
            connection.interrupt()
            done.wait(_AGAIN_S)
        raise
    worker.join()
    if failed:
        raise failed[0]
    return outcome[0]


def _tables_of(parsed: dict[str, Any]) -> list[str]:
    """The tables of a parsed query. Raises SqlError."""
    if parsed["error"]:
        if parsed["error_type"] == "not implemented":
            raise SqlError("only a SELECT can be run here")
        raise SqlError(_one_line(parsed["error_message"]))
    if len(parsed["statements"]) != 1:
        raise SqlError(f"expected one SELECT, found {len(parsed['statements'])} statements")
    nodes = list(_nodes(parsed["statements"][0]))
    if not all(node["type"] in _READING for node in nodes if "cte_map" in node):
        raise SqlError("only a SELECT can be run here, and this one changes something")
    named = (node["table_name"] for node in nodes if node.get("type") == "BASE_TABLE")
    return list(dict.fromkeys(map(str, named)))


def _is_plain(node: dict[str, Any], column: str) -> bool:
    """Whether a node of a statement means no more columns than those that it names."""
    if "class" in node:
        return node["class"] in _EXPRESSIONS
    if "column_name_alias" in node and (node["column_name_alias"] or node["type"] not in _TABLES):
        return False
    if node.get("type") != "JOIN":
        return True
    using = {str(word).casefold() for word in node["using_columns"]}
    return column not in using and node["ref_type"] in _JOINS


def _without_order_by_all(tree: object) -> object:
    """A statement without ORDER BY ALL: its star is of what is selected."""
    if isinstance(tree, list):
        return [_without_order_by_all(one) for one in tree]
    if not isinstance(tree, dict):
        return tree
    kept = {name: _without_order_by_all(one) for name, one in tree.items() if name != "orders"}
    orders = [
        one
        for one in tree.get("orders") or ()
        if one["expression"].get("class") != "STAR" or one["expression"]["expr"]
    ]
    return {**kept, "orders": _without_order_by_all(orders)}


def _nodes(tree: object) -> Iterator[dict[str, Any]]:
    """Every object in a statement."""
    waiting = [tree]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            yield one
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one


def _one_line(text: object) -> str:
    return " ".join(str(text).split())


def _fit(connection: duckdb.DuckDBPyConnection, room: int) -> None:
    """Limit the open files of a scan of many, as far as the number of threads decides it."""
    [(threads,)] = connection.execute("SELECT current_setting('threads')").fetchall()
    if AHEAD_FILES + THREAD_FILES * threads <= room:
        return
    named = "SELECT name FROM duckdb_settings() WHERE name = 'async_threads'"
    for (ahead,) in connection.execute(named).fetchall():  # older versions do not read ahead
        connection.execute(f"SET {ahead} = 1")
    connection.execute(f"SET threads = {max(1, min(threads, room // THREAD_FILES))}")


def _sql_error(error: Exception) -> SqlError:
    """DuckDB's error as ours, on one line."""
    return SqlError(_one_line(error))
