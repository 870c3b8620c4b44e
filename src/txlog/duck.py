"""Owns DuckDB: the only module that imports it.

A session is an ephemeral connection in memory. Arrow tables go in by name, Arrow tables come out;
the only files it may read are the Parquet files named when it is opened. Its settings are fixed
before the first statement and locked: no extension is fetched or loaded by itself, SQL does not
see the caller's variables, nothing is spilled beside the program, and instants are in UTC.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType

import duckdb
import pyarrow as pa

from txlog.errors import SqlError

VERSION: str = duckdb.__version__

_CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
    "temp_directory": "",
}


class Session:
    """One DuckDB connection in memory; a context manager, for one thread.

    parquet: names of views and the path of the Parquet file that each one shows, with the number
             of the row in its file as the extra column file_row_number
    """

    __slots__ = ("_connection",)

    def __init__(self, parquet: Mapping[str, str] | None = None) -> None:
        named = parquet or {}
        self._connection = duckdb.connect(":memory:", config=_CONFIG)
        try:
            # By SET: as a connect option the zone would be looked up before it can be known.
            self._connection.execute("SET TimeZone = 'UTC'")
            # A query of some seconds would draw it on standard output, among what programs read.
            self._connection.execute("SET enable_progress_bar = false")
            self._connection.execute("SET allowed_paths = $1", [list(named.values())])
            self._connection.execute("SET enable_external_access = false")
            self._connection.execute("SET lock_configuration = true")
            for name, path in named.items():
                relation = self._connection.read_parquet(path, file_row_number=True)
                relation.create_view(name)
        except duckdb.Error as error:
            self._connection.close()
            raise _sql_error(error) from error

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
        """End the connection; what it held in memory is gone."""
        self._connection.close()

    def register(self, name: str, table: pa.Table) -> None:
        """Make an Arrow table readable as a view called name, in place of an older one."""
        try:
            self._connection.register(name, table)
        except duckdb.Error as error:
            raise _sql_error(error) from error

    def execute(self, statement: str, parameters: list[object] | None = None) -> None:
        """Run a statement that has no rows to give."""
        try:
            self._connection.execute(statement, parameters)
        except duckdb.Error as error:
            raise _sql_error(error) from error

    def arrow(self, query: str) -> pa.Table:
        """Return the rows of a SELECT as one Arrow table, in the order of the query."""
        try:
            relation = self._connection.sql(query)
            return relation.to_arrow_table()
        except duckdb.Error as error:
            raise _sql_error(error) from error

    def row(self, query: str) -> dict[str, object]:
        """Return the single row of a SELECT as a mapping from column to Python value."""
        rows: list[dict[str, object]] = self.arrow(query).to_pylist()
        if len(rows) != 1:
            raise SqlError(f"the query gave {len(rows)} rows where one was asked for")
        return rows[0]


def _sql_error(error: duckdb.Error) -> SqlError:
    """Return DuckDB's complaint as ours, on one line."""
    return SqlError(" ".join(str(error).split()))
