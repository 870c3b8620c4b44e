"""Owns the text of DuckDB's errors: it has names of this store, and no internals of txlog.

DuckDB suggests the nearest of all names that it knows, also its own tables (`pragma_database_list`)
and the relations that we register (`txlog_tail`), and quotes the statement with our EXPLAIN.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from txlog.base.suggest import nearest, suggestion
from txlog.errors import SqlError

_TABLE: Final = re.compile(r"Table with name (.+?) does not exist!")
_ALIAS: Final = re.compile(r'Referenced table "(.+?)" not found!')
_COLUMN: Final = re.compile(
    r'(?:Referenced column|column named|Column(?= ".+?" referenced that exists)) "(.+?)"'
)
_FUNCTION: Final = re.compile(r"Function with name (.+?) does not exist!")
_CANDIDATES: Final = re.compile(r"Candidate (?:bindings|tables|Entries): ((?:\"[^\"]*\",? ?)+)")
_MEANT: Final = re.compile(r'\s*Did you mean "(.*?)"\??')
_EXCERPT: Final = re.compile(r"\s*LINE \d+: .*$")
_INTERNAL: Final = re.compile(r"(.*\.)?(txlog_|duckdb_|pragma_|sqlite_|pg_|information_schema)")


_COMPARED: Final = re.compile(r"Cannot compare values of type (\w+)\S* and type (\w+)")
_OF_TABLE: Final = re.compile(r'(?:Values list|Table) "(.+?)" does not have a column named')
_EXTRACTED: Final = re.compile(r"Cannot extract field '(.+?)' from expression \"(key|value)\"")
_LITERAL: Final = re.compile(r"('(?:[^']|'')*')")
_UNFIT: Final = re.compile(r"No function matches .*? argument types '(\w+)\(VARCHAR\)'")
_MEMBER: Final = r"(?:\w+\.)?\w+(?:\([^()]*\))?\s*->>\s*'(?:[^']|'')*'"
# A member of JSON that a number follows: (bracket, member, bracket, integer, fraction).
_WITH_NUMBER: Final = re.compile(
    rf"(\(?)({_MEMBER})(\)?)"
    r"(?=\s*(?:<=|>=|<>|!=|=|<|>)\s*-?(\d+)(\.\d+)?)"
)
_HINT_CHARS: Final = 200
_INT_DIGITS: Final = 10
_FROM: Final = re.compile(
    r'(?:\bfrom|\bjoin|,)(?=\s+("[^"]+"|[\w./-]+)(?:\s+(?:as\s+)?(\w+))?)', re.IGNORECASE
)
_NO_ALIAS: Final = frozenset(
    "where join on using left right inner full cross group order limit having union".split()
)
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
        of = _OF_TABLE.search(text)
        where = f" in {of[1]}" if of else ""
        return SqlError(f'no column "{column[1]}"{where}', hint=hint, column=column[1])
    if unfit := _UNFIT.search(text):
        return SqlError(f"{unfit[1]} takes no text")
    if extracted := _EXTRACTED.search(text):
        return SqlError(f"{extracted[2]} is bytes, so it has no field {extracted[1]!r}")
    if function := _FUNCTION.search(text):
        hint = f"did you mean {near[0]}?" if near else None
        return SqlError(f'no function "{function[1]}"', hint=hint)
    if compared := _COMPARED.search(text):
        others = [word for word in compared.groups() if word != "VARCHAR"]
        if len(others) == 1:
            kind = _AS_TYPE.get(others[0], others[0].lower())
            return SqlError(
                f"a text is compared with a value of type {kind}",
                hint=f"convert the text, as in (value->>'id')::{kind}",
            )
    return SqlError(_EXCERPT.sub("", _MEANT.sub("", text)))


@contextmanager
def suggesting(
    names: Callable[[], Iterable[str]], fields: Callable[[], Mapping[str, list[str]]], sql: str
) -> Iterator[None]:
    """Add a hint to an error: the nearest name or field, or the SQL as it was meant.

    names: topics and relations; fields: of the records of each topic in the SQL
    """
    try:
        yield
    except SqlError as error:
        if column := str(error.fields.get("column") or ""):
            _suggest_field(error, column, fields(), sql)
        elif (line := meant(error, sql)) is not None:
            error.hint = line
        if error.hint is None and (table := error.fields.get("table")):
            near = nearest(str(table), names())
            error.hint = f"did you mean {near}?" if near else "txlog topic list, txlog help sql"
        raise


def _suggest_field(error: SqlError, column: str, fields: Mapping[str, list[str]], sql: str) -> None:
    """Suggest a field of a record, or a member of the JSON of a topic without a schema."""
    named = {(alias or name): name for name, alias in _tables(sql, fields)}
    tables = named or {name: name for name in fields}  # FROM messages has all topics
    table = error.message.partition('" in ')[2]
    if table:
        tables = {table: tables[table]} if table in tables else {}
    choices = {
        (f"{alias}." if table else "") + f"record.{field}": field
        for alias, name in tables.items()
        for field in fields[name]
    }
    near = nearest(column, [*choices.values()]) if choices else None
    if near is not None and (near == column or not _is_near(error)):
        error.hint = f"did you mean {next(key for key in choices if choices[key] == near)}?"
    elif not _is_near(error):
        untyped = [alias for alias, name in tables.items() if not fields[name]]
        if untyped or not choices:
            inner = untyped[0] if untyped and (table or len(named) > 1) else ""
            error.hint = as_member(sql, column, table, inner) or error.hint
        else:
            error.hint = _listed([*choices])[:_HINT_CHARS]


def _tables(sql: str, fields: Mapping[str, list[str]]) -> Iterator[tuple[str, str]]:
    """(topic, alias or "") of each topic in the SQL."""
    words = {name.casefold(): name for name in fields}
    for match in _FROM.finditer(sql):
        name = words.get(match[1].strip('"').casefold())
        if name is not None:
            alias = match[2] or ""
            yield name, "" if alias.casefold() in _NO_ALIAS else alias


def as_member(sql: str, column: str, table: str = "", inner: str = "") -> str | None:
    """The hint with the SQL in which a column is a member of the JSON of values.

    table: it stands before the column, as in o.n; inner: the table of the values, if it needs one
    """
    written = rf'(?:"{re.escape(column)}"|{re.escape(column)}(?![\w"(.]))'
    before = rf"{re.escape(table)}\." if table else ""
    alone = re.compile(rf'(?<![\w."])(?<!\bas\s){before}{written}', re.IGNORECASE)
    value = f"{inner}.value" if inner else "value"
    member = f"({value}->>'{column.replace(chr(39), chr(39) * 2)}')"
    line = "".join(
        piece if piece.startswith("'") else alone.sub(lambda match: member, piece)
        for piece in _LITERAL.split(sql)
    )
    if line == sql:
        return None
    return f"for a member of JSON write: {_with_types(line)}"


def meant(error: SqlError, sql: str) -> str | None:
    """The hint with the SQL as it was meant, for a text compared with a number or `value.field`."""
    if error.message.startswith("a text is compared with"):
        line = _with_types(sql)
        return None if line == sql else f"a member of JSON is text; write: {line}"
    if takes_none := re.search(r"^(\w+) takes no text$", error.message):
        of_text = re.compile(
            rf"(\b{takes_none[1]}\(\s*)(\(?)({_MEMBER})(\)?)(\s*\))", re.IGNORECASE
        )
        line = of_text.sub(r"\1(\3)::double\5", sql)
        return None if line == sql else f"a member of JSON is text; write: {line}"
    field = re.search(r"^(key|value) is bytes, so it has no field '(.+)'$", error.message)
    if field is None:
        return None
    path = re.compile(rf'((?:\w+\.)?{field[1]})\.("?){re.escape(field[2])}\2(?!\w)', re.IGNORECASE)
    line = path.sub(lambda match: f"({match[1]}->>'{field[2]}')", sql)
    return None if line == sql else f"for a member of JSON write: {_with_types(line)}"


def _with_types(sql: str) -> str:
    """The SQL on one line, with a type for each member of JSON that is compared with a number."""

    def typed(match: re.Match[str]) -> str:
        kind = "double" if match[5] else "int" if len(match[4]) < _INT_DIGITS else "bigint"
        is_bracketed = match[1] and match[3]
        member = f"({match[2]})::{kind}"
        return member if is_bracketed else f"{match[1]}{member}{match[3]}"

    return " ".join(_WITH_NUMBER.sub(typed, sql).split("\n")).strip()


def _is_near(error: SqlError) -> bool:
    return str(error.hint).startswith("did you mean ")


def _listed(names: list[str]) -> str:
    return f"there are {', '.join(names)}" if names else ""
