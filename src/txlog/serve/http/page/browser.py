"""Owns the SQL of the live page: one SELECT, with bounds on rows, bytes, memory and time.

It is the SQL of `txlog query`: files other than the store's cannot be read, nothing can be written.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from datetime import date, datetime, timedelta
from datetime import time as clock_time
from decimal import Decimal
from typing import Any, Final

from txlog.api.client import Client
from txlog.errors import InvalidArgument, SqlError
from txlog.serve.http.core.gate import Serving
from txlog.sql.client_query import Query
from txlog.sql.query import SqlQuery

ROWS_MAX: Final = 500
CELL_MAX: Final = 2_000  # characters
SQL_MAX: Final = 20_000
SECONDS_MAX: Final = 10.0
MEMORY_BYTES: Final = 512 << 20
AT_ONCE: Final = 2
_AGAIN_SECONDS: Final = 0.05  # a statement that has just begun may miss an interrupt


class Browser:
    """Runs queries, a few at once; the others wait."""

    def __init__(self, serving: Serving, seconds: float = SECONDS_MAX) -> None:
        self._serving = serving
        self._seconds = seconds
        self._places = asyncio.Semaphore(AT_ONCE)

    async def run(self, sql: object) -> dict[str, object]:
        """The first rows of a SELECT as text: {columns, rows, is_cut, elapsed_ms}.

        raises: SqlError, also when it takes too long; InvalidArgument; what Query raises
        """
        if not isinstance(sql, str) or not sql.strip():
            raise InvalidArgument('the body has to be {"sql": "SELECT ..."}')
        if len(sql) > SQL_MAX:
            raise InvalidArgument(f"the SQL has {len(sql)} characters, at most {SQL_MAX} are run")
        async with self._places:
            running = _Running(sql)
            task = asyncio.ensure_future(self._serving.client.run(running.act, blocking=True))
            try:
                return await asyncio.wait_for(asyncio.shield(task), self._seconds)
            except TimeoutError:
                raise SqlError(f"it took longer than {self._seconds:g} s") from None
            finally:
                while not task.done():
                    running.stop()
                    await asyncio.wait([task], timeout=_AGAIN_SECONDS)
                if not task.cancelled():
                    task.exception()  # it is known here


class _Running:
    """A query in its thread, and how to end it from another."""

    def __init__(self, sql: str) -> None:
        self._sql = sql
        self._query: SqlQuery | None = None
        self._is_over = False

    def stop(self) -> None:
        """End it as soon as it can."""
        self._is_over = True
        query = self._query
        if query is not None:
            query.interrupt()

    def act(self, client: Client) -> dict[str, object]:
        begun = time.perf_counter()
        with Query(client, self._sql, memory_bytes=MEMORY_BYTES) as query:
            self._query = query
            try:
                found = query.rows()
                rows: list[list[object]] = []
                for batch in found:
                    if self._is_over:
                        raise SqlError("it was ended")
                    left = ROWS_MAX + 1 - len(rows)
                    names = batch.schema.names
                    unique = batch.slice(0, left).rename_columns(
                        [str(at) for at in range(len(names))]
                    )
                    rows += [[cell(value) for value in row.values()] for row in unique.to_pylist()]
                    if len(rows) > ROWS_MAX:
                        break
            finally:
                self._query = None
        return {
            "columns": [{"name": one.name, "type": str(one.type)} for one in found.schema],
            "rows": rows[:ROWS_MAX],
            "is_cut": len(rows) > ROWS_MAX,
            "elapsed_ms": round((time.perf_counter() - begun) * 1000),
        }


def cell(value: object) -> object:
    """A value for the page: numbers as they are where a browser can hold them, else text."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) < 1 << 53:
        return value
    return _cut(_text(value))


def _text(value: object) -> str:
    if isinstance(value, bytes):
        try:
            return value[: 4 * CELL_MAX].decode()
        except UnicodeDecodeError:
            return "0x" + value[:CELL_MAX].hex()
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S.") + f"{value.microsecond // 1000:03d}"
    if isinstance(value, str | int | float | Decimal | date | clock_time | timedelta):
        return str(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{name}: {_inner(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list):
        pairs = [one for one in value if isinstance(one, tuple) and len(one) == 2]
        if pairs and len(pairs) == len(value):  # a map, as Arrow gives it
            return "{" + ", ".join(f"{_inner(k)}: {_inner(v)}" for k, v in pairs) + "}"
        return "[" + ", ".join(map(_inner, value)) + "]"
    return str(value)


def _inner(value: Any) -> str:
    return "null" if value is None else _text(value)


def _cut(text: str) -> str:
    return text if len(text) <= CELL_MAX else f"{text[: CELL_MAX - 1]}…"
