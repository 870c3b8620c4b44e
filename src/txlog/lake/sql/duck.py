"""Owns DuckDB: the only module that imports it.

A session is an ephemeral connection in memory. Arrow tables go in by name, Arrow tables come out;
it may read only the Parquet files named when it is opened. Its settings are fixed and locked before
the first statement: DuckDB loads no extension by itself, SQL does not see the caller's variables,
nothing is spilled to the working directory, and instants are in UTC.

Foreign SQL first goes through `Session.tables_of`. That gate must stay: with only a list of allowed
paths, COPY could overwrite these files.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, TypeVar

import duckdb
import pyarrow as pa

from txlog.engine.door.disk import descriptor_limit
from txlog.engine.door.relation import bounded
from txlog.engine.door.segments import arrow_module
from txlog.errors import SqlError, TxlogError
from txlog.lake.sql import macros
from txlog.lake.sql.faults import explained

# The nodes of a read-only statement; a WITH can contain a DELETE or the like.
_READING = frozenset(
    ["SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE", "STATEMENT_NODE"]
)
_PARSE = "SELECT json_serialize_sql($query)"
_WRITE = "SELECT json_deserialize_sql($tree)"
# Expression classes that name all columns they use.
_EXPRESSIONS: Final = frozenset(
    "BETWEEN CASE CAST COLUMN_REF COMPARISON CONJUNCTION CONSTANT FUNCTION LAMBDA OPERATOR"
    " PARAMETER SUBQUERY TYPE WINDOW".split()
)
_TABLES: Final = frozenset(["BASE_TABLE", "SUBQUERY"])
_JOINS: Final = frozenset(["REGULAR", "CROSS"])
T = TypeVar("T")
_AGAIN_S: Final = 0.02  # repeat it: a statement that has just begun may miss an interrupt
_TOGETHER_S, _TOGETHER_BYTES = 0.02, 4 << 20
BATCH_ROWS = 10_240  # five of DuckDB's vectors: large messages must fit in memory
_AHEAD: Final = "1MB"  # rows computed ahead of the reader
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
    """The rows of a SELECT, computed on demand; raises SqlError if that fails."""

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
            # Arrow raises DuckDB's error as OSError
            raise self._session.failure(ended[0]) from ended[0]

    def _some(self, ended: list[Exception | None]) -> list[pa.RecordBatch]:
        """The next batches, small ones together: a thread per batch would cost more than its rows.

        ended: receives the exception that ended the rows, or None at their end
        """
        batches: list[pa.RecordBatch] = []
        rows = size_bytes = 0
        until_s = time.monotonic() + _TOGETHER_S
        try:
            while not batches or (
                rows < BATCH_ROWS and size_bytes < _TOGETHER_BYTES and time.monotonic() < until_s
            ):
                batches.append(self._reader.read_next_batch())
                rows, size_bytes = rows + len(batches[-1]), size_bytes + batches[-1].nbytes
        except StopIteration:
            ended.append(None)
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            ended.append(error)
        return batches

    def read_all(self) -> pa.Table:
        """All rows as one table."""
        return pa.Table.from_batches(list(self), self.schema)


class Session:
    """One DuckDB connection in memory; a context manager, for one thread.

    parquet: names of views and the path of the Parquet file behind each, with the number of the
             row in its file as the extra column file_row_number
    paths:   other files that statements may read
    is_open: statements may read all files until `lock`: they must be our own
    memory_bytes: memory for statements; None: most of the machine's
    is_lean: one thread reads files, without reading ahead: that at least halves a scan's memory
    failures: errors that ended the reading of a dataset; raised instead of DuckDB's own error
    messages: the relation of messages in which an error about JSON looks for its message
    raises: SqlError, as do all methods that run a statement
    """

    __slots__ = ("_connection", "failures", "messages", "statement")

    def __init__(
        self,
        parquet: Mapping[str, str] | None = None,
        paths: Sequence[str] = (),
        *,
        is_open: bool = False,
        memory_bytes: int | None = None,
        is_lean: bool = False,
    ) -> None:
        views = parquet or {}
        self.failures: list[TxlogError] = []
        self.messages: str | None = None
        self.statement = ""  # of the user, for hints
        self._connection = duckdb.connect(":memory:", config=_CONFIG)
        try:
            # By SET: as an option of connect, the zone would be looked up before it is loaded.
            self._connection.execute("SET TimeZone = 'UTC'")
            # After some seconds DuckDB would draw it on standard output, amid data for programs.
            # A notebook without ipywidgets has no bar, and DuckDB refuses to change the setting.
            with suppress(duckdb.InvalidInputException):
                self._connection.execute("SET enable_progress_bar = false")
            self._connection.execute(f"SET streaming_buffer_size = '{_AHEAD}'")
            _fit(self._connection, descriptor_limit() // 2)
            if memory_bytes is not None:
                self._connection.execute(f"SET memory_limit = '{memory_bytes}B'")
            if is_lean:
                self._connection.execute("SET threads = 1")
                self._connection.execute("SET disable_parquet_prefetching = true")
            if not is_open:
                self.lock([*views.values(), *paths])
            for name, path in views.items():
                relation = self._connection.read_parquet(path, file_row_number=True)
                relation.create_view(name)
        except duckdb.Error as error:
            self._connection.close()
            raise _sql_error(error) from error

    def lock(self, paths: Sequence[str]) -> None:
        """Let statements read only these files from now on; call it before foreign statements."""
        try:
            self._connection.execute("SET allowed_paths = $1", [list(paths)])
            self._connection.execute("SET enable_external_access = false")
            self._connection.execute("SET lock_configuration = true")
        except duckdb.Error as error:
            raise _sql_error(error) from error

    def tables_of(self, query: str) -> list[str]:
        """The tables that a query names, as written, without duplicates. The query does not run.

        raises: SqlError when it is not one SELECT, or does more than read
        """
        return _tables_of(self._tree_of(query))

    def _tree_of(self, query: str) -> Any:
        """The syntax tree of a query, or its error. Raises SqlError if it is no valid text."""
        try:
            [tree] = self._connection.execute(_PARSE, {"query": query}).fetchall()
        except duckdb.Error as error:
            raise _sql_error(error) from error
        return json.loads(tree[0])

    def check_syntax(self, query: str) -> None:
        """Raises SqlError for a query that cannot be parsed. The query does not run."""
        parsed = self._tree_of(query)
        if parsed["error"] and parsed.get("error_type") == "parser":
            raise SqlError(parsed["error_message"])

    def reading_json(self, query: str) -> str:
        """The query, with `value->>'id'` on the bytes of messages made to read JSON.

        raises: SqlError
        """
        if "->" not in query and "json_" not in query.casefold():
            return query
        tree = self._tree_of(query)
        if tree["error"] or not macros.as_json(tree):
            return query
        try:
            [written] = self._connection.execute(_WRITE, {"tree": json.dumps(tree)}).fetchall()
        except duckdb.Error as error:
            raise SqlError("value is bytes, not JSON", hint="write json(value)->>'id'") from error
        return str(written[0])

    def fields_of(self, queries: Sequence[str], column: str) -> set[str] | None:
        """Fields of a struct column that SELECTs name, in lower case; None: perhaps all fields.

        `tables_of` has accepted the queries. A field counts only in forms that are certain: a name
        without a star, a table without column aliases, an expression class that is listed here.
        """
        fields: set[str] = set()
        for query in queries:
            nodes = list(_nodes(_without_order_by_all(self._tree_of(query)["statements"])))
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
                if path and path[-1] in {column, *tables}:  # the whole column, or a whole table
                    return None
                if column in path:
                    fields.add(path[path.index(column) + 1])
        return fields

    @classmethod
    def in_file(cls, path: str) -> Session:
        """A session in its own database file, for our own statements only: nothing is locked.

        raises: SqlError
        """
        session = cls.__new__(cls)
        session.failures = []
        session.messages = None
        try:
            path.encode()  # DuckDB takes UTF-8 paths
            session._connection = duckdb.connect(path, config=_CONFIG)
            _fit(session._connection, descriptor_limit() // 2)
        except (duckdb.Error, UnicodeEncodeError) as error:
            raise _sql_error(error) from error
        return session

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
        """End the connection and free its memory."""
        self._connection.close()

    def interrupt(self) -> None:
        """Interrupt the statement that another thread runs, if it has begun."""
        self._connection.interrupt()

    def register(self, name: str, table: object, *, is_held: bool = False) -> None:
        """Make an Arrow table or dataset a view called name, replacing an older one.

        Instants of a table that DuckDB cannot hold become 'infinity' and '-infinity'.
        is_held: a join keeps the rows of this table in memory, and streams the other side
        """
        if isinstance(table, pa.Table):
            table = bounded(table)
            if is_held:  # DuckDB estimates one row for a dataset
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
        """Return the rows of a SELECT as one Arrow table."""
        try:
            return _interruptible(
                self._connection, lambda: self._connection.sql(query).to_arrow_table()
            )
        except duckdb.Error as error:
            raise self.failure(error) from error

    def stream(self, query: str, parameters: Mapping[str, object] | None = None) -> Rows:
        """Return the rows of a SELECT batch by batch; read them before using the session again."""

        def begun() -> pa.RecordBatchReader:
            relation = self._connection.sql(query, params=dict(parameters or {}) or None)
            return _headed(relation.to_arrow_reader(BATCH_ROWS))

        try:
            return Rows(_interruptible(self._connection, begun), self._connection, self)
        except duckdb.Error as error:
            raise self.failure(error) from error

    def scanned(
        self, query: str, parameters: Mapping[str, object] | None = None
    ) -> tuple[int, int]:
        """(files that a SELECT reads, files that it names), according to its plan."""
        try:
            planned = self._connection.execute(
                f"EXPLAIN (FORMAT json) {query}", dict(parameters or {}) or None
            ).fetchall()
        except duckdb.Error as error:
            raise _sql_error(error) from error
        files_read = files_named = 0
        for node in _nodes(json.loads(planned[0][1])):
            info = node.get("extra_info")
            if isinstance(info, dict) and "Scanning Files" in info:
                scanned, _, total = str(info["Scanning Files"]).partition("/")
                files_read, files_named = files_read + int(scanned), files_named + int(total)
        return files_read, files_named

    def plan(self, query: str, parameters: Mapping[str, object] | None = None) -> str:
        """The plan of a SELECT, as a drawing."""
        try:
            planned = self._connection.execute(
                f"EXPLAIN {query}", dict(parameters or {}) or None
            ).fetchall()
        except duckdb.Error as error:
            raise _sql_error(error) from error
        return "".join(str(text) for _, text in planned)

    def failure(self, error: Exception) -> TxlogError:
        """The exception to raise for an error of a statement: a dataset's own error comes first."""
        if self.failures:
            return self.failures[0]
        better = None
        if self.messages is not None and not isinstance(error, TxlogError):
            relation, self.messages = self.messages, None  # the search itself is not explained
            better = macros.no_json(error, self.arrow, relation, self.statement)
            self.messages = relation
        return better or _sql_error(error)

    def row(self, query: str) -> dict[str, object]:
        """The row of a SELECT, as Python values by column; SqlError unless there is exactly one."""
        rows: list[dict[str, object]] = self.arrow(query).to_pylist()
        if len(rows) != 1:
            raise SqlError(f"the query returned {len(rows)} rows where one was expected")
        return rows[0]


def _headed(reader: pa.RecordBatchReader) -> pa.RecordBatchReader:
    """The rows of a reader, under headings without txlog's internal functions."""
    fields = [field.with_name(macros.heading(field.name)) for field in reader.schema]
    if [field.name for field in fields] == reader.schema.names:
        return reader
    schema = pa.schema(fields)
    batches = (pa.RecordBatch.from_arrays(batch.columns, schema=schema) for batch in reader)
    return pa.RecordBatchReader.from_batches(schema, batches)


def _interruptible(connection: duckdb.DuckDBPyConnection, work: Callable[[], T]) -> T:
    """Run work on the connection so that an exception from a signal ends it at once.

    DuckDB rarely checks for signals, in some statements only after a minute, and then raises "Query
    interrupted" instead of the handler's exception. So the statement runs in its own thread. The
    calling thread waits in Python; if it is the main thread, signals reach it there.
    raises: the exceptions of work
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    done = threading.Event()
    outcome: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(work())
        except BaseException as error:  # the waiting thread raises it again
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
        raise SqlError("only a SELECT can be run here, and this statement changes something")
    tables = (node["table_name"] for node in nodes if node.get("type") == "BASE_TABLE")
    return list(dict.fromkeys(map(str, tables)))


def _is_plain(node: dict[str, Any], column: str) -> bool:
    """Whether a node of a parsed query uses only columns that it names, `column` not in USING."""
    if "class" in node:
        return node["class"] in _EXPRESSIONS
    if "column_name_alias" in node and (node["column_name_alias"] or node["type"] not in _TABLES):
        return False
    if node.get("type") != "JOIN":
        return True
    using = {str(word).casefold() for word in node["using_columns"]}
    return column not in using and node["ref_type"] in _JOINS


def _without_order_by_all(tree: object) -> object:
    """A parsed statement without ORDER BY ALL: that star is no use of a struct column."""
    if isinstance(tree, list):
        return [_without_order_by_all(item) for item in tree]
    if not isinstance(tree, dict):
        return tree
    others = {name: _without_order_by_all(item) for name, item in tree.items() if name != "orders"}
    orders = [
        item
        for item in tree.get("orders") or ()
        if item["expression"].get("class") != "STAR" or item["expression"]["expr"]
    ]
    return {**others, "orders": _without_order_by_all(orders)}


def _nodes(tree: object) -> Iterator[dict[str, Any]]:
    """Every JSON object in a parsed statement or plan."""
    waiting = [tree]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            yield item
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item


def _one_line(text: object) -> str:
    return " ".join(str(text).split())


def _fit(connection: duckdb.DuckDBPyConnection, room: int) -> None:
    """Limit the threads of a session, so that a scan of many files opens at most `room` files."""
    [(threads,)] = connection.execute("SELECT current_setting('threads')").fetchall()
    if AHEAD_FILES + THREAD_FILES * threads <= room:
        return
    setting_query = "SELECT name FROM duckdb_settings() WHERE name = 'async_threads'"
    # older versions do not read ahead
    for (ahead,) in connection.execute(setting_query).fetchall():
        connection.execute(f"SET {ahead} = 1")
    connection.execute(f"SET threads = {max(1, min(threads, room // THREAD_FILES))}")


def _sql_error(error: Exception) -> SqlError:
    """Convert DuckDB's error to ours, on one line."""
    return explained(_one_line(error))
