"""Owns `this`: the relation for an inspected object, a SELECT over a store or a file's rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Final

from txlog.client.answers.inspect import is_parquet, rows_of
from txlog.errors import SqlError, Usage
from txlog.lake.sql.duck import Rows, Session
from txlog.lake.sql.macros import MACROS
from txlog.lake.sql.messages import name, text

_BACKLOG: Final = """SELECT m.* FROM {topic} AS m LEFT JOIN (
SELECT partition, ledger AS l, entry AS e, coalesce(txn_index, 2147483647) AS i FROM acks
WHERE topic = {short} AND subscription = {subscription} AND cumulative) AS d USING (partition)
WHERE (d.l IS NULL OR (m.ledger, m.entry, coalesce(m.txn_index, 0)) > (d.l, d.e, d.i))
AND NOT EXISTS (SELECT 1 FROM acks AS a WHERE a.topic = {short}
AND a.subscription = {subscription} AND NOT a.cumulative AND a.ledger = m.ledger
AND a.entry = m.entry AND (a.txn_index IS NULL OR a.txn_index = m.txn_index))"""


def select_of(answer: Mapping[str, Any], starts: Iterable[tuple[int, int, int, int]] = ()) -> str:
    """The rows of an object in a store, as a SELECT over its relations.

    answer: the answer of Client.inspect
    starts: for a topic or partition, only messages at or after these (partition, ledger, entry,
            index); none: all
    raises: Usage for an object without rows
    """
    kind = answer["kind"]
    if kind == "store":
        return "FROM messages"
    if kind in ("topic", "partition"):
        conditions = [
            f"(partition = {at[0]} AND (ledger, entry, coalesce(txn_index, 0)) >= {at[1:]})"
            for at in starts
        ]
        if kind == "partition":
            conditions = [
                f"(partition = {answer['partition']}) AND ({' OR '.join(conditions) or 'true'})"
            ]
        return f"FROM {_topic(answer)} WHERE {' OR '.join(conditions) or 'true'}"
    if kind == "subscription":
        short, subscription = text(str(answer["topic"])), text(str(answer["subscription"]))
        return _BACKLOG.format(topic=_topic(answer), short=short, subscription=subscription)
    if kind == "transaction":
        return f"FROM messages_all WHERE txn = {text(str(answer['txn']))}"
    if kind == "transaction_key":
        return f"FROM transactions WHERE transaction_key = {text(answer['transaction_key'])}"
    if kind == "message":
        [row] = answer["record"].slice(0, 1).to_pylist()
        index = row["index"] or "NULL"
        is_one = "messages" not in answer  # the id of a marker selects all its messages
        only = f" AND txn_index IS NOT DISTINCT FROM {index}" if is_one else ""
        position = f"ledger = {row['ledger']} AND entry = {row['entry']}"
        return f"FROM {_topic(row)} WHERE {position}{only}"
    if kind == "ledger":
        return f"FROM messages_all WHERE stored_ledger = {answer['ledger']}"
    if kind == "frame":
        return f"FROM frames WHERE lsn = {answer['lsn']}"
    raise Usage(f"a {kind} has no rows")


def _topic(answer: Mapping[str, Any]) -> str:
    """The topic's view, by its full name: its short name may equal the name of a list."""
    topic = str(answer["topic"])
    return name(topic if topic.count("/") == 2 else f"public/default/{topic}")


class FileQuery:
    """One SELECT over the rows of a file, which the SQL calls `this`; a context manager.

    raises: SqlError; as rows_of
    """

    def __init__(self, path: str, sql: str) -> None:
        self._sql = sql
        if is_parquet(path):
            self._session = Session({"this": path})
        else:
            table = rows_of(path)
            self._session = Session()
            self._session.register("this", table)
        try:
            self._session.tables_of(sql)  # the gate
            self._sql = self._session.reading_json(sql)
            for macro in MACROS:
                self._session.execute(macro)
        except SqlError:
            self._session.close()
            raise

    def rows(self) -> Rows:
        """The rows, batch by batch; works once."""
        return self._session.stream(self._sql)

    def plan(self) -> str:
        """DuckDB's drawing of the plan of the SQL."""
        return self._session.plan(self._sql)

    def __enter__(self) -> FileQuery:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._session.close()
