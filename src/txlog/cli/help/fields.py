"""Owns the part of `-f help` beyond a command's fields: %-verbs, relations, objects of inspect."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Final

from txlog.base import message_columns
from txlog.base.message_columns import MESSAGES, TYPES
from txlog.cli.help import topics
from txlog.cli.line import dispatch
from txlog.cli.terminal import fields

_ALL: Final = ("kind", "txn", "txn_state", "stored_ledger", "stored_entry")
# Object kinds of inspect, and the commands whose fields describe them.
_KINDS: Final = (
    "status",
    "topic describe",
    "sub describe",
    "txn show",
    "admin get-transaction-key",
    "consume",
    "segment show",
)


def verbs() -> str:
    """The %-verbs and their meanings, read from the help topic."""
    out = topics.source("formatting").partition("# OUT\n")[2].partition("\n#")[0]
    rows = (line.partition(" :: ") for line in out.splitlines() if " :: " in line)
    return "".join(f"{verbs}\tverb\t{meaning.replace('`', '')}\n" for verbs, _, meaning in rows)


def relations() -> str:
    """Columns of `messages`, `compacted` and the topics; the other relations with their names."""
    listings = importlib.import_module("txlog.lake.sql.lists")
    text = _messages("", MESSAGES) + _messages("messages_all.", _ALL)
    for name in sorted(listings.LISTS):
        text += _lines(f"{name}.", listings.columns(name), _meanings(listings.row_of(name)))
    return text


def views() -> str:
    """Columns of the views that the script of `txlog views` creates."""
    columns = importlib.import_module("txlog.lake.sql.views_script").SEGMENTS
    return _messages("messages.", MESSAGES) + _lines(
        "segments.", columns, _meanings("files.LedgerRows")
    )


def _messages(prefix: str, names: Iterable[str]) -> str:
    types = {name: TYPES[name].duckdb for name in names}
    if "kind" in types:
        types["kind"] = "VARCHAR"  # SQL shows its name
    return _lines(prefix, types, message_columns.MEANINGS)


def _meanings(row: str) -> dict[str, str]:
    rows = importlib.import_module("txlog.base.rows.fields")
    return {field.name: field.meaning for field in rows.fields_of(rows.row_of(row))}


def _lines(prefix: str, columns: dict[str, str], meanings: dict[str, str]) -> str:
    return "".join(f"{prefix}{name}\t{kind}\t{meanings[name]}\n" for name, kind in columns.items())


def inspected() -> str:
    """Fields of each kind of object that inspect prints."""
    rows = importlib.import_module("txlog.base.rows.fields")
    declared = rows.fields_of(rows.row_of("files.Found"))
    for path in reversed(_KINDS):
        declared = [*dispatch.load(path).row_fields, *declared]
    by_name = {field.name: field for field in reversed(declared)}
    names = dict.fromkeys(["kind", *(field.name for field in declared)])
    return fields.help_lines(by_name[name] for name in names)
