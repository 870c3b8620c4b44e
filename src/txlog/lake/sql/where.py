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
from txlog.lake.sql import duck, faults, macros
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
# How a condition is computed; each way is tried if the previous fails on a message: (macros that
# give NULL for bytes that are not JSON, what surrounds it). TRY costs 0.1 ms for each message on
# which it fails, and DuckDB refuses it around a subquery and random().
_WAYS: Final = ((False, ""), (True, "TRY"), (True, ""))
_UNKNOWN: Final = re.compile(r'no column "([^"]+)"')


class Where:
    """A condition on messages, which may name fields of a typed topic's records.

    A field is `amount` or `record.amount`. Where a message has a column of that name, such as
    `key`, the short form means that column. key and value are BLOB: `text(value)` decodes them, and
    `value->>'id'` reads JSON.

    A message for which the condition is NULL, or fails, does not match: it lacks a field or is not
    JSON, or a text is no number. `undecided` counts these. So one message hides no other.

    topics: TOPIC or TOPIC/PARTITION
    raises: SqlError, before anything is read
    """

    __slots__ = ("_condition", "_queries", "_sessions", "_typed", "undecided")

    def __init__(self, condition: str, topics: Sequence[str], typed: RecordColumns) -> None:
        self._condition = condition
        self._typed = typed
        self.undecided = 0
        self._queries: dict[tuple[str, int, tuple[bool, str]], str] = {}
        self._sessions: dict[bool, duck.Session] = {}  # by whether they are tolerant
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
            rows_at = self._kept(rows, topic, records)
            if len(rows_at):
                pieces.append(rows.take(rows_at))
        if len(pieces) == 1:
            return pieces[0]
        return pa.concat_tables(
            [piece.select(table.column_names) for piece in pieces] or [table.slice(0, 0)]
        )

    def _kept(self, rows: pa.Table, topic: str, records: Records | None) -> pa.ChunkedArray:
        """The numbers of the rows of one topic for which the condition is true."""
        numbered = rows.append_column("row_at", pa.arange(0, rows.num_rows))
        # without rows an error is one of the condition, not of a message
        ways = _WAYS if len(rows) else _WAYS[:1]
        failure: SqlError | None = None
        for way in ways:
            try:
                answers = self._answers(numbered, topic, records, way)
            except SqlError as error:
                failure = error
                continue
            meets = answers.column("meets")
            self.undecided += meets.null_count
            return answers.column("row_at").filter(meets)
        assert failure is not None
        raise self._named(failure, topic, records) from failure

    def _named(self, error: SqlError, topic: str, records: Records | None) -> SqlError:
        """The error of the user's condition; an unknown column adds a hint at the right name."""
        column = _UNKNOWN.search(error.message)
        if column is None:
            error.hint = faults.meant(error, self._condition) or error.hint
            return error
        message = f'{topic} has no column or field "{column[1]}"'
        hint = _as_text(self._condition, column[1])
        if hint is None and records is None:
            hint = faults.as_member(self._condition, column[1])
        if hint is None and records is not None:
            fields = ", ".join(field.name for field in records.kind)
            hint = f"fields of {topic}: {fields[:200]}"
        return SqlError(message, hint=hint)

    def _answers(
        self, numbered: pa.Table, topic: str, records: Records | None, way: tuple[bool, str]
    ) -> pa.Table:
        """row_at and meets, the answer of the condition, for each row."""
        is_tolerant, function = way
        if is_tolerant not in self._sessions:  # few conditions need both: a session costs 30 ms
            statements = macros.TOLERANT if is_tolerant else macros.MACROS
            self._sessions[is_tolerant] = _session(statements)
        session = self._sessions[is_tolerant]
        session.register("received", numbered)
        key = (topic, 0 if records is None else records.version, way)
        if key not in self._queries:
            self._queries[key] = self._query(session, records, function)
        return session.arrow(self._queries[key])

    def _query(self, session: duck.Session, records: Records | None, function: str) -> str:
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
            session.check_syntax(f"SELECT 1 WHERE {self._condition}\n")
        except SqlError as error:
            raise SqlError(f"--where: {error.message}", hint="txlog help sql") from error
        rows = f"(SELECT {', '.join(columns)} FROM received)"  # noqa: S608  # quoted names
        session.messages = rows
        # the condition is the user's own SQL, in a session without files and settings
        meets = f"CAST({function}(\n{self._condition}\n) AS BOOLEAN)"
        return session.reading_json(
            f"SELECT row_at, {meets} AS meets FROM {rows} ORDER BY row_at"  # noqa: S608
        )


def without_answer(undecided: int) -> str:
    """The report of messages for which a condition is neither true nor false."""
    which = "1 message has" if undecided == 1 else f"{undecided:,} messages have"
    return (
        f"--where: {which} no answer and {'is' if undecided == 1 else 'are'} left out (no such "
        "field, no JSON, or NULL)"
    )


def _session(statements: Sequence[str]) -> duck.Session:
    session = duck.Session()
    for macro in statements:
        session.execute(macro)
    return session


def _as_text(condition: str, name: str) -> str | None:
    """The hint for a name that stands alone on the right of a comparison: it is meant as a text."""
    alone = re.compile(
        rf'\s*(<=|>=|<>|!=|==|=|<|>)\s*(?:"{re.escape(name)}"|{re.escape(name)}(?![\w"]))'
        r"(?=\s*(?:$|\)|(?:and|or)\b))",
        re.IGNORECASE,
    )
    typed = alone.search(condition)
    if typed is None:
        return None
    text = typed[0].strip().removeprefix(typed[1]).strip().strip('"').replace("'", "''")
    meant = alone.sub(lambda each: f" {each[1]} '{text}'", condition).strip()
    return f"a text stands in single quotes: {meant}"
