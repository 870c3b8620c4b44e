"""Owns the part of `-f help` beyond a command's fields: %-verbs, relations, objects of inspect."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Final

from txlog.cli.help import topics
from txlog.cli.line import catalogue
from txlog.cli.terminal import fields
from txlog.cli.terminal.fields import MEANINGS

_MESSAGES: Final = {  # the types have DuckDB's names
    "topic": "VARCHAR", "partition": "INTEGER", "message_id": "VARCHAR", "ledger": "BIGINT",
    "entry": "BIGINT", "txn_index": "INTEGER", "key": "BLOB", "value": "BLOB",
    "properties": "MAP(VARCHAR, VARCHAR)", "publish_time": "TIMESTAMP WITH TIME ZONE",
    "event_time": "TIMESTAMP WITH TIME ZONE", "deliver_at": "TIMESTAMP WITH TIME ZONE",
    "visible_time": "TIMESTAMP WITH TIME ZONE", "producer": "VARCHAR", "sequence_id": "BIGINT",
    "lsn": "BIGINT", "size_bytes": "BIGINT",
}  # fmt: skip
_ALL: Final = {"kind": "VARCHAR", "txn": "VARCHAR", "txn_state": "VARCHAR",
               "stored_ledger": "BIGINT", "stored_entry": "BIGINT"}  # fmt: skip
_MEANT: Final = {
    "ledger": "of the message id", "entry": "of the message id",
    "txn_index": "its number in the transaction, from 1; null outside transactions",
    "lsn": "LSN of the frame that made it visible", "kind": "message, or another kind of row",
    "stored_ledger": "ledger of the stored row", "stored_entry": "entry of the stored row",
}  # fmt: skip
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
    listings = importlib.import_module("txlog.lake.sql.lists")
    text = _lines("", _MESSAGES) + _lines("messages_all.", _ALL)
    for name in sorted(listings.LISTS):
        text += _lines(f"{name}.", listings.columns(name))
    return text


def views() -> str:
    """Columns of the views that the script of `txlog views` creates."""
    return _lines("messages.", _MESSAGES) + _lines("segments.", _segments())


def _segments() -> dict[str, str]:
    columns: dict[str, str] = importlib.import_module("txlog.lake.sql.views_script").SEGMENTS
    return columns


def _lines(prefix: str, columns: dict[str, str]) -> str:
    meant = {**MEANINGS, **_MEANT}
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
