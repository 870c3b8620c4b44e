"""Owns messages out: tables of RECEIVED in, bytes of the chosen record format out (spec/cli 7).

JSON never depends on bytes it cannot express: text is utf8, anything else base64. An embedded JSON
value is passed on as it is; only its line breaks, which can only be white space, become blanks.
What a %-format may ask for and a message lacks is looked up beside it: file, row, ends, key.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from txlog.cli.output import output
from txlog.cli.output.percent import Format, beside, message_id, transaction
from txlog.cli.terminal.fields import RECORD_FIELDS
from txlog.cli.terminal.tables import Look, cell, cut
from txlog.errors import NotFound, printable
from txlog.ids import MessageId, TxnId
from txlog.ranges import format_time
from txlog.startup import json as orjson

if TYPE_CHECKING:
    from txlog.api.client import Client

_INSTANT_COLUMNS: Final = ("publish_time", "event_time", "deliver_at", "visible_time")
_JSON_FORMS: Final = ("json", "ndjson")
_BREAKS: Final = bytes.maketrans(b"\n\r", b"  ")

Row = dict[str, Any]
# For a table what its messages themselves lack, by name.
Beside = Callable[[pa.Table], Mapping[str, Sequence[object]]]


# --- records ---------------------------------------------------------------------------------


class Records:
    """Writes messages in one format; counts them.

    watermarks: the consumer has some, for %w
    beside:     looks up what a %-format asks for and a message lacks
    watermark:  its last one
    """

    def __init__(
        self,
        form: str,
        columns: list[str] | None,
        *,
        raw_strings: bool = False,
        look: Look,
        watermarks: bool = False,
        beside: Beside | None = None,
    ) -> None:
        self.form = form
        self.count = 0
        self.watermark: int | None = None
        self._watermarks = watermarks
        self._beside = beside
        self._columns = columns
        self._raw_strings = raw_strings
        self._look = look
        self._header = form in ("tsv", "csv")
        self._line = self._writer()

    def encode(self, table: pa.Table) -> bytes:
        """Return the messages of table, in order."""
        if self.form == "raw":
            self.count += len(table)
            return b"".join(value for value in table["value"].to_pylist() if value is not None)
        if self.form == "lines":
            self.count += len(table)
            values = table["value"].to_pylist()
            return b"".join([b"\n" if value is None else value + b"\n" for value in values])
        return b"".join([self._line(row) for row in self._rows(table)])

    def pieces(self, table: pa.Table) -> Iterator[bytes | memoryview]:
        """Yield what `encode` returns; raw values as they lie in memory, as they may be large."""
        if self.form != "raw":
            yield self.encode(table)
            return
        for value in views(table["value"]):
            self.count += 1
            if value is not None:
                yield value

    def begin(self) -> bytes:
        """Return the header, if the format has one."""
        if not self._header:
            return b""
        return output.delimited(self.form, self._columns or RECORD_FIELDS, []).encode()

    def event(self, topic: str | None, subscription: str, status: str | None) -> bytes:
        """Return the record of a new watermark; only JSON has one, with all its keys.

        topic: None for the least of several
        """
        if self.form not in _JSON_FORMS:
            return b""
        record = {
            "kind": "watermark",
            "topic": topic,
            "subscription": subscription,
            "partition": None,
            "watermark": _time(self.watermark),
            "status": status,
        }
        return orjson.dumps(record) + b"\n"

    def _rows(self, table: pa.Table) -> Iterator[Row]:
        more = {} if self._beside is None else self._beside(table)
        for at, row in enumerate(rows_of(table)):
            for name, values in more.items():
                row[name] = values[at]
            row["number"] = self.count
            row["watermark"] = self.watermark
            self.count += 1
            yield row

    def _writer(self) -> Callable[[Row], bytes]:
        if self.form in _JSON_FORMS:
            return self._json
        if self.form == "envelope":
            return envelope
        if self.form in ("tsv", "csv"):
            return self._delimited
        if self.form == "line":
            return self._terminal
        if "%" in self.form:
            return Format(self.form, watermarks=self._watermarks, stored=True).apply
        return self._json

    def _json(self, row: Row) -> bytes:
        record = json_record(row, embed=not self._raw_strings)
        if self._columns is not None:
            record = {name: record[name] for name in self._columns}
        return orjson.dumps(record) + b"\n"

    def _delimited(self, row: Row) -> bytes:
        record = json_record(row, embed=False)
        names = self._columns or RECORD_FIELDS
        text = output.delimited(self.form, [], [[record[name] for name in names]])
        return text.partition("\n")[2].encode()

    def _terminal(self, row: Row) -> bytes:
        where = message_id(row) or f"{transaction(row)}#{row.get('index')}"
        key = "" if row["key"] is None else f" {_shown(row['key'])}"
        state = row.get("txn_state")
        mark = f" [{state}]" if state not in (None, "committed") else ""
        text = f"{row['topic']}/{row['partition']} {where}{mark}{key}  {_shown(row['value'])}"
        return cut(text, self._look).encode() + b"\n"


def views(column: pa.ChunkedArray) -> Iterator[memoryview | None]:
    """Yield the bytes of each value where they lie, None for null: a scalar would be a copy."""
    for values in column.chunks:
        _, ends, data = values.buffers()
        offsets, whole = memoryview(ends).cast("i"), memoryview(data or b"").cast("B")
        for row, valid in enumerate(values.is_valid().to_pylist(), values.offset):
            yield whole[offsets[row] : offsets[row + 1]] if valid else None


def rows_of(table: pa.Table) -> Iterator[Row]:
    """Yield the rows of table as mappings: bytes, ints (instants in ms), strings, properties dict.

    Cost: O(rows); the only place where a message becomes an object, on its way out.
    """
    names = table.column_names
    columns = []
    for name in names:
        column = table[name]
        if name in _INSTANT_COLUMNS:
            column = column.cast(pa.int64())
        columns.append(column.to_pylist())
    for values in zip(*columns, strict=True):
        row = dict(zip(names, values, strict=True))
        row["properties"] = dict(row.get("properties") or ())
        yield row


def json_record(row: Row, *, embed: bool = True) -> dict[str, object]:
    """Return the JSON record of a row, all keys, in order."""
    key, key_encoding = text_of(row.get("key"))
    value = row.get("value")
    body: object
    encoding: str | None
    if (
        embed
        and value is not None
        and value.lstrip(b" \t\r\n")[:1] in (b"{", b"[")
        and _is_json(value)
    ):
        body, encoding = orjson.Fragment(value.translate(_BREAKS)), "json"
    else:
        body, encoding = text_of(value)
    return {
        "kind": "message",
        "topic": row["topic"],
        "partition": row["partition"],
        "message_id": message_id(row),
        "key": key,
        "key_encoding": key_encoding,
        "value": body,
        "value_encoding": encoding,
        "properties": row["properties"],
        "publish_time": _time(row.get("publish_time")),
        "event_time": _time(row.get("event_time")),
        "deliver_at": _time(row.get("deliver_at")),
        "visible_time": _time(row.get("visible_time")),
        "txn": transaction(row),
        "txn_index": row.get("index"),
        "txn_state": row.get("txn_state"),
        "producer": row.get("producer"),
        "sequence_id": row.get("sequence_id"),
        "redelivery_count": row.get("redelivery_count"),
        "late": row.get("is_late"),
        "size_bytes": 0 if value is None else len(value),
    }


def envelope(row: Row) -> bytes:
    """Return the envelope of a row: key, value, properties and times byte for byte."""
    key, key_encoding = text_of(row.get("key"))
    value, value_encoding = text_of(row.get("value"))
    fields = {
        "key": key,
        "key_encoding": key_encoding,
        "value": value,
        "value_encoding": value_encoding,
        "properties": row["properties"],
        "event_time": row.get("event_time"),
        "deliver_at": row.get("deliver_at"),
        "topic": row["topic"],
        "partition": row["partition"],
        "message_id": message_id(row),
        "publish_time": row.get("publish_time"),
        "producer": row.get("producer"),
        "sequence_id": row.get("sequence_id"),
    }
    return orjson.dumps(fields) + b"\n"


def text_of(data: bytes | None) -> tuple[str | None, str | None]:
    """Return bytes as text and the encoding: utf8, base64, or None for no bytes."""
    if data is None:
        return None, None
    try:
        return data.decode(), "utf8"
    except UnicodeDecodeError:
        return base64.b64encode(data).decode(), "base64"


def _is_json(value: bytes) -> bool:
    try:
        orjson.loads(value)
    except orjson.JSONDecodeError:
        return False
    return True


@lru_cache(maxsize=4096)
def _instant(ms: int) -> str:
    return format_time(ms)


def _time(ms: int | None) -> str | None:
    return None if ms is None else _instant(ms)


def _shown(data: bytes | None) -> str:
    text, _ = text_of(data)
    return "(null)" if text is None else printable(cell(text))


# --- what a message itself lacks -------------------------------------------------------------


def beside_of(client: Client, form: str) -> Beside | None:
    """What looks it up for a table; None: the format asks for none of it."""
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
        return [
            "" if (one := rows[topic][index][field]) is None else str(one) for topic, index in pairs
        ]

    return said("first"), said("last")


def _keys(client: Client, table: pa.Table, known: dict[TxnId, str | None]) -> list[str | None]:
    """The transaction key of each message, while its transaction is remembered."""
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
