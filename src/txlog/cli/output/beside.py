"""Owns what %-formats ask for and a message does not have: file, row, ends, transaction key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from txlog.cli.output.percent import beside
from txlog.cli.output.records import Beside
from txlog.errors import NotFound
from txlog.ids import MessageId, TxnId

if TYPE_CHECKING:
    from txlog.api.client import Client


def beside_of(client: Client, form: str) -> Beside | None:
    """What looks it up for a table; None: the format asks for nothing of it."""
    wanted = beside(form) if "%" in form else set()
    if not wanted:
        return None
    keys: dict[TxnId, str | None] = {}

    def look(table: pa.Table) -> dict[str, list[Any]]:
        made: dict[str, list[Any]] = {}
        if wanted & {"file", "row"}:
            places = _places(client, table)
            made["file"], made["row"] = ([place[at] for place in places] for at in (0, 1))
        if wanted & {"first_position", "last_position"}:
            made["first_position"], made["last_position"] = _ends(client, table)
        if "transaction_key" in wanted:
            made["transaction_key"] = _keys(client, table, keys)
        return made

    return look


def _places(client: Client, table: pa.Table) -> list[tuple[str | None, int | None]]:
    columns = (table.column(name).to_pylist() for name in ("ledger", "entry", "index"))
    ids = [
        None if ledger is None else MessageId(ledger, entry, index or 0)
        for ledger, entry, index in zip(*columns, strict=True)
    ]
    found = iter(client._locate([one for one in ids if one is not None]))
    return [(None, None) if one is None else next(found) for one in ids]


def _ends(client: Client, table: pa.Table) -> tuple[list[str], list[str]]:
    """The first and last position of the partition of each message, as text."""
    topics = table.column("topic").to_pylist()
    rows = {name: client.describe_topic(name)["partition_list"] for name in {*topics}}
    pairs = list(zip(topics, table.column("partition").to_pylist(), strict=True))

    def said(field: str) -> list[str]:
        return ["" if (one := rows[topic][index][field]) is None else str(one)
                for topic, index in pairs]  # fmt: skip

    return said("first"), said("last")


def _keys(client: Client, table: pa.Table, known: dict[TxnId, str | None]) -> list[str | None]:
    """The transaction key of each message, as long as its transaction is remembered."""
    halves = (table.column(name).to_pylist() for name in ("txn_most", "txn_least"))
    out: list[str | None] = []
    for most, least in zip(*halves, strict=True):
        txn = None if most is None else TxnId.from_halves(most, least)
        if txn is not None and txn not in known:
            try:
                known[txn] = client.show_transaction(txn)["transaction_key"]
            except NotFound:
                known[txn] = None
        out.append(None if txn is None else known[txn])
    return out
