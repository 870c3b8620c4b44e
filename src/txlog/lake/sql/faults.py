"""Owns the text of DuckDB's errors: it has names of this store, and no internals of txlog.

DuckDB suggests the nearest of all names that it knows, also its own tables (`pragma_database_list`)
and the relations that we register (`txlog_tail`), and quotes the statement with our EXPLAIN.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from txlog.base.suggest import nearest, suggestion
from txlog.errors import SqlError

_TABLE: Final = re.compile(r"Table with name (.+?) does not exist!")
_ALIAS: Final = re.compile(r'Referenced table "(.+?)" not found!')
_COLUMN: Final = re.compile(r'(?:Referenced column|column named) "(.+?)"')
_FUNCTION: Final = re.compile(r"Function with name (.+?) does not exist!")
_CANDIDATES: Final = re.compile(r"Candidate (?:bindings|tables|Entries): ((?:\"[^\"]*\",? ?)+)")
_MEANT: Final = re.compile(r'\s*Did you mean "(.*?)"\??')
_EXCERPT: Final = re.compile(r"\s*LINE \d+: .*$")
_INTERNAL: Final = re.compile(r"(.*\.)?(txlog_|duckdb_|pragma_|sqlite_|pg_|information_schema)")


_COMPARED: Final = re.compile(r"Cannot compare values of type (\w+)\S* and type (\w+)")
_HINT_CHARS: Final = 200
_AS_TYPE: Final = {"INTEGER_LITERAL": "int", "DECIMAL": "double"}


def explained(text: str) -> SqlError:
    """The error for DuckDB's message, which is on one line."""
    offered = _MEANT.search(text)
    near = [offered[1]] if offered and not _INTERNAL.match(offered[1]) else []
    listed = _CANDIDATES.search(text)
    names = re.findall(r'"([^"]*)"', listed[1]) if listed else []
    names = sorted(each for each in names if not _INTERNAL.match(each))  # DuckDB varies the order
    if table := _TABLE.search(text):
        return SqlError(f'no topic or relation "{table[1]}"', table=table[1])
    if alias := _ALIAS.search(text):
        return SqlError(
            f'no table "{alias[1]}" in this FROM', hint=suggestion(alias[1], names, _listed(names))
        )
    if column := _COLUMN.search(text):
        hint = suggestion(column[1], names, _listed(names)) or None
        return SqlError(f'no column "{column[1]}"', hint=hint, column=column[1])
    if function := _FUNCTION.search(text):
        hint = f"did you mean {near[0]}?" if near else None
        return SqlError(f'no function "{function[1]}"', hint=hint)
    if compared := _COMPARED.search(text):
        others = [word for word in compared.groups() if word != "VARCHAR"]
        if len(others) == 1:
            kind = _AS_TYPE.get(others[0], others[0].lower())
            return SqlError(
                f"a text is compared with a value of type {kind}",
                hint=f"a member of JSON is text: write (value->>'n')::{kind}",
            )
    return SqlError(_EXCERPT.sub("", _MEANT.sub("", text)))


@contextmanager
def suggesting(
    names: Callable[[], Iterable[str]], fields: Callable[[], Iterable[str]]
) -> Iterator[None]:
    """Add a hint to the error of an unknown relation or column: the nearest name or field.

    names: topics and relations; fields: of the records of the topics in the SQL
    """
    try:
        yield
    except SqlError as error:
        if column := str(error.fields.get("column") or ""):
            names_of_fields = [*fields()]
            near = nearest(column, names_of_fields)
            if near is not None and (near == column or not _is_near(error)):
                error.hint = f"did you mean record.{near}?"
            elif names_of_fields and not _is_near(error):
                error.hint = _listed([f"record.{name}" for name in names_of_fields])[:_HINT_CHARS]
        if error.hint is None and (table := error.fields.get("table")):
            near = nearest(str(table), names())
            error.hint = f"did you mean {near}?" if near else "txlog topic list, txlog help sql"
        raise


def _is_near(error: SqlError) -> bool:
    return str(error.hint).startswith("did you mean ")


def _listed(names: list[str]) -> str:
    return f"there are {', '.join(names)}" if names else ""
