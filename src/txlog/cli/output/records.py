"""Owns the output of messages: tables of RECEIVED in, bytes of the record format out (spec/cli 7).

Records are built from columns (`base/text`); only a line on a terminal is built message by message.
If a %-format uses facts that a message does not contain, they are looked up: file, row, ends, key.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from txlog.base.ids import MessageId, TxnId
from txlog.base.startup import json as orjson
from txlog.base.text.columns import data_of, pieces
from txlog.base.text.messages import Messages, flat
from txlog.base.times import format_time
from txlog.cli.output import output
from txlog.cli.output.percent import Format, beside
from txlog.cli.terminal.fields import RECORD_FIELDS
from txlog.cli.terminal.tables import Look, cut
from txlog.engine.door.segments import RECORD
from txlog.errors import NotFound, printable

if TYPE_CHECKING:
    from txlog.client.client import Client
    from txlog.client.reading.record_columns import RecordColumns

_JSON_FORMS: Final = ("json", "ndjson")
_LARGE_BYTES: Final = 1 << 20
_BESIDE: Final = {
    "file": pa.string(), "row": pa.int64(), "first_position": pa.string(),
    "last_position": pa.string(), "transaction_key": pa.string(),
}  # fmt: skip

_NUMBER: Final = pa.array([1], pa.int64())
# A message with a value in each column, to find the columns that a format reads.
_SAMPLE: Final = pa.table(
    {
        "topic": ["t"], "partition": pa.array([0], pa.int32()), "ledger": _NUMBER,
        "entry": _NUMBER, "index": pa.array([1], pa.int32()), "key": [b"k"], "value": [b"v"],
        "properties": pa.array([[("a", "b")]], pa.map_(pa.string(), pa.string())),
        **dict.fromkeys(
            ("publish_time", "event_time", "deliver_at", "visible_time"),
            _NUMBER.cast(pa.timestamp("ms", "UTC")),
        ),
        "producer": ["p"], "sequence_id": _NUMBER, "txn_most": _NUMBER, "txn_least": _NUMBER,
        "txn_state": ["committed"], "redelivery_count": pa.array([1], pa.int32()),
    }
)  # fmt: skip

# For a table: the facts that its messages do not contain, by column name.
Beside = Callable[[pa.Table], Mapping[str, Sequence[object]]]


# --- records ---------------------------------------------------------------------------------


class Records:
    """Encodes messages in one format, and counts them.

    watermarks: the consumer has watermarks, for %w
    typed:      makes the records of typed topics, for forms that show them
    topics:     in csv and tsv, `record` is a column for each field of these topics' schemas
    beside:     looks up facts that a %-format uses and a message does not contain
    watermark:  the consumer's last watermark, which its owner sets
    """

    def __init__(
        self,
        form: str,
        columns: list[str] | None,
        typed: RecordColumns | None = None,
        *,
        raw_strings: bool = False,
        look: Look,
        watermarks: bool = False,
        topics: Sequence[str] = (),
        beside: Beside | None = None,
    ) -> None:
        self.form = form
        self.count = 0
        self.watermark: int | None = None
        self._beside = beside
        self._columns = columns
        self._raw_strings = raw_strings
        shown = form in (*_JSON_FORMS, "tsv", "csv") and (columns is None or RECORD in columns)
        self._typed = typed if shown else None
        self._look = look
        self._headings: dict[str, str] | None = None
        if form in ("tsv", "csv"):
            self._headings = {name: name for name in columns or ()} or _flat(typed, topics)
        text = "%v\\n" if form == "lines" else form
        self._format = Format(text, watermarks=watermarks, stored=True) if "%" in text else None

    def columns(self) -> list[str] | None:
        """The columns of RECEIVED that the format reads; None: it may read any."""
        if self.form == "raw":
            return ["value"]
        if self._format is None or self._beside is not None:
            return None
        sample = Messages(_SAMPLE, {"watermark": _NUMBER, "number": _NUMBER})
        self._format.lines(sample)
        return sorted(sample.asked.intersection(_SAMPLE.column_names))

    def encode(self, table: pa.Table) -> bytes:
        """Return the messages of table, in order."""
        return b"".join(self.pieces(table))

    def pieces(self, table: pa.Table) -> Iterator[bytes | memoryview]:
        """Yield the parts of `encode`; raw values are not copied, as they may be large."""
        if self.form == "raw":
            for value in views(table["value"]):
                self.count += 1
                if value is not None:
                    yield value
            return
        rows = [table] if self._typed is None else self._typed.runs(table)
        for piece in chain.from_iterable(map(pieces, rows)):
            if self._format is not None:
                yield from self._formatted(piece, self._format)
            elif self.form == "line":
                yield self._terminal(piece)
            else:
                yield data_of(self._lines(Messages(piece)))
            self.count += len(piece)

    def begin(self) -> bytes:
        """Return the header, if the format has one."""
        if self._headings is None:
            return b""
        return output.delimited(self.form, [*self._headings], []).encode()

    def event(self, topic: str | None, subscription: str, status: str | None) -> bytes:
        """Return the record of a new watermark; only JSON formats have one, with all keys.

        topic: None for the lowest watermark of several topics
        """
        if self.form not in _JSON_FORMS:
            return b""
        record = {
            "kind": "watermark",
            "topic": topic,
            "subscription": subscription,
            "partition": None,
            "watermark": None if self.watermark is None else format_time(self.watermark),
            "status": status,
        }
        return orjson.dumps(record) + b"\n"

    def _lines(self, messages: Messages) -> pa.Array:
        if self.form == "envelope":
            return messages.envelopes()
        if self._headings is not None:
            return messages.delimited(self.form, [*self._headings.values()])
        return messages.json_lines(self._columns or RECORD_FIELDS, embed=not self._raw_strings)

    def _formatted(self, table: pa.Table, form: Format) -> Iterator[bytes | memoryview]:
        """Each message in a %-format; large values are not copied."""
        messages = Messages(table, self._columns_beside(table))
        if messages.count != 1 or table.nbytes < _LARGE_BYTES:
            yield data_of(form.lines(messages))
            return
        for part in form.parts(messages):
            yield part if isinstance(part, bytes) else data_of(part)

    def _columns_beside(self, table: pa.Table) -> dict[str, pa.Array]:
        """The columns that the format may use and the table lacks."""
        count = len(table)
        extra = {"watermark": pa.repeat(pa.scalar(self.watermark, pa.int64()), count)}
        if "%i" in self.form:
            extra["number"] = pa.arange(self.count, self.count + count)
        if self._beside is not None:
            looked_up = self._beside(table)
            extra |= {name: pa.array(values, _BESIDE[name]) for name, values in looked_up.items()}
        return extra

    def _terminal(self, table: pa.Table) -> bytes:
        """One line per message, cut to the width."""
        messages = Messages(table)
        ids = (messages.column(name) for name in ("message_id", "txn", "topic", "txn_state"))
        columns = (table[name] for name in ("partition", "index", "key", "value"))
        listed = (column.to_pylist() for column in (*ids, *columns))
        lines = []
        for message_id, txn, topic, state, partition, index, key, value in zip(
            *listed, strict=True
        ):
            where = message_id or f"{txn}#{index}"
            key_text = "" if key is None else f" {_shown(key)}"
            mark = f" [{state}]" if state not in (None, "committed") else ""
            text = f"{topic}/{partition} {where}{mark}{key_text}  {_shown(value)}"
            lines.append(cut(text, self._look).encode() + b"\n")
        return b"".join(lines)


def _flat(typed: RecordColumns | None, topics: Sequence[str]) -> dict[str, str]:
    """The columns of a table by their headings, `record` as those of its fields."""
    records = [] if typed is None else [typed.of(topic) for topic in topics]
    fields = dict.fromkeys(
        field.name for each in records if each is not None for field in each.kind
    )
    return flat(RECORD_FIELDS, [*fields])


def views(column: pa.ChunkedArray) -> Iterator[memoryview | None]:
    """Yield the bytes of each value without a copy, None for null; a scalar would be a copy."""
    for values in column.chunks:
        _, ends, data = values.buffers()
        offsets, whole = memoryview(ends).cast("i"), memoryview(data or b"").cast("B")
        for row, valid in enumerate(values.is_valid().to_pylist(), values.offset):
            yield whole[offsets[row] : offsets[row + 1]] if valid else None


def _shown(data: bytes | None) -> str:
    if data is None:
        return "(null)"
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = base64.b64encode(data).decode()
    return printable(text)


# --- facts that a message does not contain ------------------------------------------------------


def beside_of(client: Client, form: str) -> Beside | None:
    """The function that looks up extra columns for a table; None: the format uses none."""
    columns = beside(form) if "%" in form else set()
    if not columns:
        return None
    keys: dict[TxnId, str | None] = {}

    def look(table: pa.Table) -> dict[str, list[Any]]:
        looked_up: dict[str, list[Any]] = {}
        if columns & {"file", "row"}:
            places = _places(client, table)
            looked_up["file"], looked_up["row"] = (
                [location[at] for location in places] for at in (0, 1)
            )
        if columns & {"first_position", "last_position"}:
            looked_up["first_position"], looked_up["last_position"] = _ends(client, table)
        if "transaction_key" in columns:
            looked_up["transaction_key"] = _keys(client, table, keys)
        return looked_up

    return look


def _places(client: Client, table: pa.Table) -> list[tuple[str | None, int | None]]:
    columns = (table.column(name).to_pylist() for name in ("ledger", "entry", "index"))
    ids = [
        None if ledger is None else MessageId(ledger, entry, index or 0)
        for ledger, entry, index in zip(*columns, strict=True)
    ]
    locations = iter(client.locate([message_id for message_id in ids if message_id is not None]))
    return [(None, None) if message_id is None else next(locations) for message_id in ids]


def _ends(client: Client, table: pa.Table) -> tuple[list[str], list[str]]:
    """The first and last position of the partition of each message, as text."""
    topics = table.column("topic").to_pylist()
    rows = {name: client.describe_topic(name)["partition_list"] for name in {*topics}}
    pairs = list(zip(topics, table.column("partition").to_pylist(), strict=True))

    def said(field: str) -> list[str]:
        return [
            "" if (position := rows[topic][index][field]) is None else str(position)
            for topic, index in pairs
        ]

    return said("first"), said("last")


def _keys(client: Client, table: pa.Table, cache: dict[TxnId, str | None]) -> list[str | None]:
    """The transaction key of each message, while its transaction is remembered."""
    halves = (table.column(name).to_pylist() for name in ("txn_most", "txn_least"))
    out: list[str | None] = []
    for most, least in zip(*halves, strict=True):
        txn = None if most is None else TxnId.from_halves(most, least)
        if txn is not None and txn not in cache:
            try:
                cache[txn] = client.show_transaction(txn)["transaction_key"]
            except NotFound:
                cache[txn] = None
        out.append(None if txn is None else cache[txn])
    return out
