"""Owns SqlResult, the answer of `client.sql`: rows as Arrow, data frames, tuples or text."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from html import escape
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol
from weakref import finalize

import pyarrow as pa

from txlog.errors import AlreadyClosed, InvalidArgument, MissingExtra, printable

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]
    import polars as pl

_SHOWN_ROWS: Final = 10
_SHOWN_COLUMNS: Final = 20
_CELL_CHARS: Final = 40


class Rows(Protocol):
    """The rows of a query, computed on demand."""

    schema: pa.Schema

    def __iter__(self) -> Iterator[pa.RecordBatch]: ...


class Query(Protocol):
    """A SELECT over a store that has not run yet."""

    def rows(self) -> Rows:
        """The rows; works once. Raises SqlError."""

    def close(self) -> None:
        """Release its files."""


class SqlResult:
    """The rows of one SELECT, as of the moment of the call; a context manager.

    The SELECT runs when its rows are first used. Reading the last row, or `close`, releases
    the files that it needs. A caller can read a result again, because its rows stay in memory; rows
    of `batches` do not. One thread at a time may use it.
    """

    def __init__(self, query: Query) -> None:
        """query: open; the result closes it."""
        self._close = finalize(self, query.close)
        try:
            self._rows = query.rows()
        except BaseException:  # also on Ctrl-C: no caller owns the query yet
            self._close()
            raise
        self._pieces: Iterator[pa.RecordBatch] | None = iter(self._rows)
        self._head: list[pa.RecordBatch] = []
        self._table: pa.Table | None = None

    @property
    def schema(self) -> pa.Schema:
        """The columns with their types."""
        return self._rows.schema

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self.schema.names)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows in batches, as they are computed; larger results than memory are possible.

        raises: SqlError; AlreadyClosed if earlier batches were given away
        """
        if self._table is not None:
            yield from self._table.to_batches()
            return
        pieces = self._taken()
        yield from self._head
        self._head = []
        yield from pieces
        self._close()

    def arrow(self) -> pa.Table:
        """All rows as an Arrow table. Raises SqlError."""
        if self._table is None:
            self._table = pa.Table.from_batches([*self._head, *self._taken()], self.schema)
            self._head = []
            self._close()
        return self._table

    def df(self) -> pd.DataFrame:
        """All rows as a DataFrame of pandas. Raises MissingExtra without pandas.

        Integers with nulls are pandas' Int64 and the like; as floats they would lose digits.
        """
        pandas, table = _library("pandas"), self.arrow()
        frame: pd.DataFrame = table.to_pandas()
        for at, column in enumerate(table.columns):
            if pa.types.is_integer(column.type) and column.null_count:
                name = str(column.type).replace("uint", "UInt").replace("int", "Int")
                kind = getattr(pandas, f"{name}Dtype")()
                frame.isetitem(at, column.to_pandas(types_mapper=lambda _, kind=kind: kind))
        return frame

    def pl(self) -> pl.DataFrame:
        """All rows as a DataFrame of polars. Raises MissingExtra without polars."""
        polars = _library("polars")
        frame: pl.DataFrame = polars.from_arrow(self.arrow())
        return frame

    def fetchall(self) -> list[tuple[Any, ...]]:
        """All rows as tuples of Python values."""
        return list(self)

    def fetchone(self) -> tuple[Any, ...] | None:
        """The first row; None if there is none."""
        return next(iter(self._first(1)), None)

    def show(self, rows: int = _SHOWN_ROWS) -> None:
        """Print the first rows as a table."""
        if rows < 0:
            raise InvalidArgument("rows must not be negative", code=203)
        sys.stdout.write(f"{self._drawn(rows)}\n")

    def close(self) -> None:
        """Release the files. Rows that are in memory stay readable."""
        self._pieces = None if self._table is None else self._pieces
        self._close()

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        names = range(len(self.schema))
        for batch in self.arrow().to_batches(1024):
            yield from zip(*(batch.column(at).to_pylist() for at in names), strict=True)

    def __len__(self) -> int:
        count: int = self.arrow().num_rows
        return count

    def __enter__(self) -> SqlResult:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._is_gone:
            return f"<SqlResult of {', '.join(map(printable, self.columns))}: closed>"
        return self._drawn(_SHOWN_ROWS)

    def _repr_html_(self) -> str:
        if self._is_gone:
            return f"<pre>{escape(repr(self))}</pre>"
        names, rows, more = self._cells(_SHOWN_ROWS)
        head = "".join(f"<th>{escape(name)}</th>" for name in names)
        body = "".join(
            f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{more}</p>"

    @property
    def _is_gone(self) -> bool:
        return self._table is None and self._pieces is None

    def _taken(self) -> Iterator[pa.RecordBatch]:
        pieces, self._pieces = self._pieces, None
        if pieces is None:
            raise AlreadyClosed(
                "the result is closed, or its batches were read", hint="run the SQL again"
            )
        return pieces

    def _first(self, rows: int) -> list[tuple[Any, ...]]:
        """The first rows, which are computed only once; later rows are not computed."""
        batches = [] if self._table is None else self._table.slice(0, rows).to_batches()
        if self._table is None:
            if self._pieces is None:
                self._taken()
            while sum(map(len, self._head)) < rows:
                batch = next(self._pieces, None) if self._pieces is not None else None
                if batch is None:
                    break
                self._head.append(batch)
            batches = self._head
        rows_read: list[tuple[Any, ...]] = []
        for batch in batches:
            piece = batch.slice(0, rows - len(rows_read))
            rows_read += zip(*(column.to_pylist() for column in piece.columns), strict=True)
        return rows_read

    def _cells(self, rows: int) -> tuple[list[str], list[list[str]], str]:
        """Headings and cells for a drawing, and a line about left out rows and columns."""
        first = self._first(rows + 1)
        names = self.columns[:_SHOWN_COLUMNS]
        cells = [[_cell(value) for value in row[:_SHOWN_COLUMNS]] for row in first[:rows]]
        left_out = len(self.columns) - len(names)
        count = f"{len(cells)} row{'' if len(cells) == 1 else 's'}"
        more = f"the first {count}; there are more" if len(first) > rows else count
        more += f"; {left_out} columns are not shown" if left_out else ""
        return [_cut(printable(name)) for name in names], cells, more

    def _drawn(self, rows: int) -> str:
        names, cells, more = self._cells(rows)
        widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
        lines = [names, ["-" * width for width in widths], *cells]
        drawn = (
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        )
        return "\n".join([*drawn, f"({more})"])


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bytes):
        start = value[: 4 * _CELL_CHARS]
        try:
            value = start.decode(errors="strict" if start == value else "replace")
        except UnicodeDecodeError:
            value = start.hex()
    return _cut(printable(str(value)))


def _cut(text: str) -> str:
    return text if len(text) <= _CELL_CHARS else f"{text[: _CELL_CHARS - 1]}…"


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtra(f"{name} is not installed", hint=f"pip install {name}") from error
