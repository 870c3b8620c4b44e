"""Owns Where, a condition in SQL on the columns of messages and fields of records (`--where`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from txlog.base.ids import TopicName
from txlog.client.reading.record_columns import RecordColumns
from txlog.engine.door import reading
from txlog.engine.door.segments import RECORD, Records
from txlog.errors import SqlError
from txlog.lake.sql import duck, macros
from txlog.lake.sql.messages import name as quoted

_COLUMNS: Final = {
    "row_at": "row_at", "topic": "topic", "partition": "partition",
    "message_id": "ledger || ':' || entry || coalesce(':' || \"index\", '')",
    "key": "key", "value": "value", "properties": "properties", "publish_time": "publish_time",
    "event_time": "event_time", "deliver_at": "deliver_at", "visible_time": "visible_time",
    "txn": "(txn_most >> 48) || ':' || txn_least", "txn_index": "\"index\"",
    "txn_state": "txn_state", "producer": "producer", "sequence_id": "sequence_id",
    "redelivery_count": "redelivery_count", "size_bytes": "coalesce(octet_length(value), 0)",
}  # fmt: skip
_UNKNOWN: Final = re.compile(r'no column "([^"]+)"')


class Where:
    """A condition on messages, which may name fields of a typed topic's records.

    A field is `amount` or `record.amount`. Where a message has a column of that name, such as
    `key`, the short form means that column. key and value are BLOB: `text(value)` decodes them, and
    `value->>'id'` reads JSON.

    topics: TOPIC or TOPIC/PARTITION
    raises: SqlError, before anything is read
    """

    __slots__ = ("_condition", "_queries", "_session", "_typed")

    def __init__(self, condition: str, topics: Sequence[str], typed: RecordColumns) -> None:
        self._condition = condition
        self._typed = typed
        self._queries: dict[tuple[str, int], str] = {}
        self._session = duck.Session()
        for macro in macros.MACROS:
            self._session.execute(macro)
        for name in topics:
            topic = TopicName.parse(name, allow_partition=True).topic.short
            records = typed.of(topic)
            empty = reading.RECEIVED.empty_table()
            if records is not None:
                empty = empty.append_column(RECORD, pa.array([], records.kind))
            self._kept(empty, topic, records)

    def filtered(self, table: pa.Table) -> pa.Table:
        """The rows of RECEIVED for which the condition is true, perhaps with their records."""
        pieces = []
        for rows in self._typed.runs(table):
            topic = rows.column("topic")[0].as_py()
            records = self._typed.of(topic) if RECORD in rows.column_names else None
            kept = self._kept(rows, topic, records)
            if len(kept):
                pieces.append(rows.take(kept))
        if len(pieces) == 1:
            return pieces[0]
        return pa.concat_tables(
            [piece.select(table.column_names) for piece in pieces] or [table.slice(0, 0)]
        )

    def _kept(self, rows: pa.Table, topic: str, records: Records | None) -> pa.ChunkedArray:
        """The numbers of the rows of one topic for which the condition is true."""
        self._session.register(
            "received", rows.append_column("row_at", pa.arange(0, rows.num_rows))
        )
        known = (topic, 0 if records is None else records.version)
        try:
            if known not in self._queries:
                self._queries[known] = self._query(records)
            return self._session.arrow(self._queries[known]).column("row_at")
        except SqlError as error:
            column = _UNKNOWN.search(error.message)
            if column is None:
                raise
            message = f'{topic} has no column or field "{column[1]}"'
            raise SqlError(message, hint=_hint(topic, records, column[1])) from error

    def _query(self, records: Records | None) -> str:
        columns = [f"{how} AS {quoted(name)}" for name, how in _COLUMNS.items()]
        if records is not None:
            columns.append(RECORD)
            columns += [
                f"{RECORD}.{quoted(field.name)} AS {quoted(field.name)}"
                for field in records.kind
                if field.name.casefold() not in (*_COLUMNS, RECORD)
            ]
        if not self._condition.strip():
            raise SqlError("--where is empty", hint="a condition such as size_bytes > 100")
        try:  # without the brackets below, which the user has not written
            self._session.check_syntax(f"SELECT 1 WHERE {self._condition}\n")
        except SqlError as error:
            raise SqlError(f"--where: {error.message}", hint="txlog help sql") from error
        rows = f"(SELECT {', '.join(columns)} FROM received)"  # noqa: S608  # quoted names
        self._session.messages = rows
        # the condition is the user's own SQL, in a session without files and settings
        return self._session.reading_json(
            f"SELECT row_at FROM {rows} WHERE (\n{self._condition}\n) ORDER BY row_at"  # noqa: S608
        )


def _hint(topic: str, records: Records | None, column: str) -> str:
    if records is None:
        return f"{topic} has no schema: write value->>'{column}' for a member of its JSON"
    fields = ", ".join(field.name for field in records.kind)
    return f"fields of {topic}: {fields[:200]}"
