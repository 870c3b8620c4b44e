"""Owns the part of `-f help` beyond a command's fields: %-verbs, relations, objects of inspect."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Final

from txlog.base import message_columns
from txlog.base.message_columns import MESSAGES, TYPES
from txlog.cli.help import topics
from txlog.cli.line import catalogue
from txlog.cli.terminal import fields
from txlog.cli.terminal.fields import MEANINGS

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
_FOUND: Final = "file row acknowledged_list lsn written_time durable op_list rows".split()


def verbs() -> str:
    """The %-verbs and their meanings, read from the help topic."""
    out = topics.source("formatting").partition("# OUT\n")[2].partition("\n#")[0]
    rows = (line.partition(" :: ") for line in out.splitlines() if " :: " in line)
    return "".join(f"{verbs}\tverb\t{meaning.replace('`', '')}\n" for verbs, _, meaning in rows)


def relations() -> str:
    """Columns of `messages`, `compacted` and the topics; the other relations with their names."""
    listings = importlib.import_module("txlog.lake.sql.client_query")
    more = {**_types(_ALL), "kind": "VARCHAR"}
    text = _lines("", _types(MESSAGES)) + _lines("messages_all.", more)
    for name in sorted(listings.LISTS):
        text += _lines(f"{name}.", listings.columns(name))
    return text


def views() -> str:
    """Columns of the views that the script of `txlog views` creates."""
    return _lines("messages.", _types(MESSAGES)) + _lines("segments.", _segments())


def _segments() -> dict[str, str]:
    columns: dict[str, str] = importlib.import_module("txlog.lake.sql.views_script").SEGMENTS
    return columns


def _types(names: Iterable[str]) -> dict[str, str]:
    return {name: TYPES[name].duckdb for name in names}


def _lines(prefix: str, columns: dict[str, str]) -> str:
    meant = {**MEANINGS, **message_columns.MEANINGS}
    return "".join(
        f"{prefix}{name}\t{kind}\t{meant.get(name, name.replace('_', ' '))}\n"
        for name, kind in columns.items()
    )


def inspected() -> str:
    """Fields of each kind of object that inspect prints."""
    names: dict[str, None] = {"kind": None}
    for path in _KINDS:
        names |= dict.fromkeys(_fields(path))
    return fields.help_lines([*names, *(name for name in _FOUND if name not in names)])


def _fields(path: str) -> Iterable[str]:
    entry = catalogue.COMMANDS[path]
    module = importlib.import_module(f"txlog.cli.{entry.module}")
    names: list[str] = getattr(module, entry.name).fields
    return names
