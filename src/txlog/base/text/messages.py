"""Owns the fields of messages as columns of text, and the records made from them.

JSON never contains bytes it cannot express: text is utf8, anything else base64. An embedded JSON
value is passed on unchanged, except that its line breaks, which can only be white space, become
blanks.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Final

import pyarrow as pa

from txlog.base.ids import TxnId
from txlog.base.startup import compute as pc
from txlog.base.startup import json as orjson
from txlog.base.text import columns, structs
from txlog.base.text.columns import Column, Part

BREAKS: Final = bytes.maketrans(b"\n\r", b"  ")
_BEFORE_JSON: Final = b"{[ \t\r\n"
_COUNTER_HIGH: Final = (1 << 48) - 1
_INSTANTS: Final = ("publish_time", "event_time", "deliver_at", "visible_time", "watermark")
_SAFE: Final = (*_INSTANTS, "message_id", "txn", "key_encoding", "value_encoding")
_BARE: Final = (
    "partition", "txn_index", "sequence_id", "redelivery_count", "late", "size_bytes", "properties",
    "record",
)  # fmt: skip
_OBJECTS: Final = ("properties", "record")
_OF_RECORD: Final = "record."
_NUMBERS: Final = tuple(name for name in _BARE if name not in _OBJECTS)
_MADE: Final = ("message_id", "txn", "txn_index")
_STORED_AS: Final = {"txn_index": "index", "late": "is_late"}
_ENVELOPE: Final = (
    "key", "key_encoding", "value", "value_encoding", "properties", "event_time", "deliver_at",
    "topic", "partition", "message_id", "publish_time", "producer", "sequence_id",
)  # fmt: skip


class Messages:
    """The fields of a table of RECEIVED; each becomes text when it is used.

    The table may lack columns: their fields are null.

    extra: columns that messages do not have themselves
    """

    def __init__(self, table: pa.Table, extra: Mapping[str, pa.Array] | None = None) -> None:
        self.count = len(table)
        self._table = table
        self._beside = extra or {}
        self._widen = columns.widened(table)
        self._made: dict[str, Column] = {}
        self.asked: set[str] = set()  # columns that were used

    def stored(self, name: str) -> pa.Array | None:
        """A column as Arrow stores it; None if it is missing."""
        self.asked.add(name)
        if name in self._beside:
            return self._beside[name]
        if name.startswith(_OF_RECORD):
            return self._member(name[len(_OF_RECORD) :])
        if name not in self._table.column_names:
            return None
        column = self._table.column(name)
        column_whole = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        return self._widen(column_whole)

    def _member(self, name: str) -> pa.Array | None:
        """A field of the values of a typed topic; None if they have no such field."""
        record = self.stored("record")
        if record is None or record.type.get_field_index(name) < 0:
            return None
        return pc.struct_field(record, [name])

    def field(self, name: str) -> Column:
        """A field of a record as text; instants in RFC 3339. `record.NAME`: of a typed value."""
        if name not in self._made:
            if name.partition("_")[0] in ("key", "value"):
                self._texts(name.partition("_")[0])
            else:
                self._made[name] = self._field(name)
        return self._made[name]

    def _texts(self, name: str) -> None:
        data = self.stored(name)
        both = (None, None) if data is None else columns.text_of(data)
        self._made[name], self._made[f"{name}_encoding"] = both

    def _field(self, name: str) -> Column:
        if name == "kind":
            return "message"
        if name in self._table.column_names and name in _MADE:
            return self._as_made(name)
        if name == "message_id":
            return self._ids()
        if name == "txn":
            return self._transactions()
        if name == "size_bytes":
            return self._sizes()
        if name.startswith(_OF_RECORD):
            member = self.stored(name)
            return None if member is None else structs.text_of(member)
        if name == "properties":
            return "{}" if self.pairs is None else self.pairs.objects()
        column = self.stored(_STORED_AS.get(name, name))
        if column is None:
            return None
        if name == "record":
            return structs.json_of(column)
        if name in _INSTANTS:
            return columns.instants(column)
        return columns.numbers(column) if name in _BARE else columns.strings(column)

    def _as_made(self, name: str) -> Column:
        """A column that the table already has in the form of exported files."""
        column = self.stored(name)
        return columns.numbers(column) if name in _BARE else columns.strings(column)

    def column(self, name: str) -> pa.Array:
        """A field as a string array with a row for each message."""
        return _filled(self.field(name), self.count)

    def number(self, name: str) -> Column:
        """A column of integers or instants as numbers."""
        column = self.stored(name)
        return None if column is None else columns.numbers(column.cast(pa.int64()))

    def _ids(self) -> Column:
        ledger = self.number("ledger")
        if ledger is None:
            return None
        parts = [f"{ledger}:"] if isinstance(ledger, str) else [ledger, ":"]
        parts.append(_filled(self.number("entry"), self.count))
        index = self.stored("index")
        if index is not None and index.null_count < len(index):
            if index.null_count or not pc.min(index).as_py():
                index = pc.if_else(pc.equal(index, 0), pa.scalar(None, index.type), index)
                suffix = pc.binary_join_element_wise(":", index.cast(pa.string()), "")
                parts.append(pc.fill_null(suffix, ""))
            else:
                parts += [":", index.cast(pa.string())]
        return pc.binary_join_element_wise(*parts, "")

    def _transactions(self) -> Column:
        most, least = self.stored("txn_most"), self.stored("txn_least")
        if most is None or least is None or most.null_count == len(most):
            return None
        distinct = most.drop_null().unique().to_pylist()
        if len(distinct) == 1 and not distinct[0] & _COUNTER_HIGH:
            coordinator = str(TxnId.from_halves(distinct[0], 0)).partition(":")[0]

            def text_of(values: pa.Array) -> pa.Array:
                counters = values.view(pa.uint64()).cast(pa.string())
                return pc.binary_join_element_wise(coordinator, counters, ":")

            return columns.by_distinct(least, text_of)
        # ids of several coordinators
        highs, lows = most.dictionary_encode(), least.dictionary_encode()
        width = len(lows.dictionary)
        rows = columns.both(highs.indices.cast(pa.int64()), lows.indices, width)
        rows = rows.dictionary_encode()
        high, low = highs.dictionary.to_pylist(), lows.dictionary.to_pylist()
        texts = [
            str(TxnId.from_halves(high[code // width], low[code % width]))
            for code in rows.dictionary.to_pylist()
        ]
        return pa.array(texts, pa.string()).take(rows.indices)

    def _sizes(self) -> Column:
        value = self.stored("value")
        if value is None:
            return "0"
        return columns.numbers(pc.fill_null(pc.binary_length(value), 0))

    @cached_property
    def pairs(self) -> columns.Pairs | None:
        """The properties; None: no message has any."""
        properties = self.stored("properties")
        return None if properties is None else columns.pairs_of(properties)

    # --- records -------------------------------------------------------------------------------

    def json_lines(self, names: Sequence[str], *, embed: bool) -> pa.Array:
        """JSON records with these fields, one per line; embed: values that are JSON stay JSON."""
        embedded = {}
        if embed and ("value" in names or "value_encoding" in names):
            embedded = self._embedded()
        members = [(name, embedded.get(name) or self._json(name)) for name in names]
        end: list[Part] = [b"}\n"]
        if "value" in embedded and {"value", "value_encoding"} <= {*names}:
            end = [*self._exact_bytes(embedded["value_encoding"]), *end]
        return columns.joined([*columns.json_object(members)[:-1], *end], self.count)

    def _exact_bytes(self, encodings: list[Part]) -> list[Part]:
        """A member `value_bytes` where an embedded value is not exactly the bytes: line breaks in
        it are blanks, and white space around it means nothing to a reader of JSON."""
        value = self.stored("value")
        assert value is not None
        [kinds] = [columns.joined(encodings, self.count).cast(pa.string())]
        is_changed = pc.and_(
            pc.equal(kinds, '"json"'),
            pc.fill_null(pc.match_substring_regex(value, r"[\r\n]|\A[ \t]|[ \t]\z"), False),
        )
        if not pc.any(is_changed).as_py():
            return []
        changed = pc.if_else(is_changed, value, pa.scalar(None, value.type))
        member = b',"value_bytes":"%b"'
        return [columns.mapped(changed, lambda data: member % base64.b64encode(data))]

    def _json(self, name: str) -> list[Part]:
        if name in _BARE:
            return columns.json_bare(self.field(name))
        encode = columns.json_safe if name in _SAFE else columns.json_text
        return encode(self.field(name))

    def _embedded(self) -> dict[str, list[Part]]:
        """Value and encoding, if some values are JSON objects or arrays."""
        value = self.stored("value")
        if value is None or value.null_count == len(value):
            return {}
        first = columns.data_of(pc.binary_slice(value, 0, 1))
        if not any(byte in first.tobytes() for byte in _BEFORE_JSON):
            return {}
        mask = pa.array([_is_embedded(each) for each in value.to_pylist()], pa.bool_())
        if not pc.any(mask).as_py():
            return {}
        nothing = pa.scalar(None, value.type)
        bodies = pc.if_else(mask, value, nothing)
        data = columns.data_of(bodies).tobytes()
        if b"\n" in data or b"\r" in data:
            bodies = columns.with_data(bodies, data.translate(BREAKS))
        text, encoding = columns.text_of(pc.if_else(mask, nothing, value))
        [plain_texts] = [columns.joined(columns.json_text(text), self.count)]
        whole = pc.if_else(mask, bodies, plain_texts.cast(bodies.type))
        encodings = _filled(encoding, self.count)
        kinds = pc.if_else(mask, pa.scalar("json", encodings.type), encodings)
        return {"value": [whole], "value_encoding": columns.json_safe(kinds)}

    def envelopes(self) -> pa.Array:
        """Envelopes, one per line: key, value, properties and times byte for byte."""
        members = []
        for name in _ENVELOPE:
            parts = columns.json_bare(self.number(name)) if name in _INSTANTS else self._json(name)
            members.append((name, parts))
        if self.stored("record") is not None:  # of a typed topic, for other programs
            members.append(("record", self._json("record")))
        return columns.joined([*columns.json_object(members), b"\n"], self.count)

    def delimited(self, form: str, names: Sequence[str]) -> pa.Array:
        """Lines of tsv or csv with these fields."""
        cells = []
        for name in names:
            is_safe = name in _SAFE or (name in _BARE and name not in _OBJECTS)
            recurs = name == "properties"
            cells.append(columns.cell(form, self.field(name), is_safe=is_safe, recurs=recurs))
        return columns.joined(columns.delimited(form, cells), self.count)

    def quoted(self, names: Sequence[str]) -> pa.Array:
        """Lines of csv in which everything but numbers has quotes, and null has none."""
        cells = []
        for name in names:
            column = self.field(name)
            stored = self.stored(name)
            if name == "properties" and stored is not None:
                text = self.column(name)
                column = pc.if_else(stored.is_valid(), text, pa.scalar(None, text.type))
            is_number, recurs = name in _NUMBERS, name == "properties"
            if name.startswith(_OF_RECORD):
                is_number = stored is not None and structs.is_number(stored.type)
            cells.append(columns.quoted_cell(column, is_number=is_number, recurs=recurs))
        return columns.joined(columns.delimited("csv", cells), self.count)


def flat(names: Sequence[str], fields: Sequence[str], others: Sequence[str] = ()) -> dict[str, str]:
    """The columns of a table with `record` as a column for each of its fields, by their headings.

    A field is called as it is, or `record.NAME` if the table, or others, have a column NAME.
    """
    taken = {*names, *others}
    headings: dict[str, str] = {}
    for name in names:
        if name != "record":
            headings[name] = name
            continue
        for field in fields:
            heading = field
            while heading in taken or heading in headings:
                heading = f"{_OF_RECORD}{heading}"
            headings[heading] = f"{_OF_RECORD}{field}"
    return headings


def _filled(column: Column, count: int) -> pa.Array:
    if isinstance(column, pa.Array):
        return column
    return pa.repeat(pa.scalar(column, pa.string()), count)


def _is_embedded(value: bytes | None) -> bool:
    """Whether a value is an object or array of JSON."""
    if value is None or value.lstrip(b" \t\r\n")[:1] not in (b"{", b"["):
        return False
    try:
        orjson.loads(value)
    except orjson.JSONDecodeError:
        return False
    return True
