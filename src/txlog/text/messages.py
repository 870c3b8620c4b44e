"""Owns the fields of messages as columns of text, and the records that are made of them.

JSON never depends on bytes it cannot express: text is utf8, anything else base64. An embedded JSON
value is passed on as it is; only its line breaks, which can only be white space, become blanks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import pyarrow as pa

from txlog.ids import TxnId
from txlog.startup import compute as pc
from txlog.startup import json as orjson
from txlog.text import columns
from txlog.text.columns import Column, Part

BREAKS: Final = bytes.maketrans(b"\n\r", b"  ")
_BEFORE_JSON: Final = b"{[ \t\r\n"
_PIECE_BYTES: Final = 32 << 20
_LARGE_BYTES: Final = 128 << 20  # escaped it may be six times as long
_COUNTER_HIGH: Final = (1 << 48) - 1
_INSTANTS: Final = ("publish_time", "event_time", "deliver_at", "visible_time", "watermark")
_SAFE: Final = (*_INSTANTS, "message_id", "txn", "key_encoding", "value_encoding")
_BARE: Final = (
    "partition", "txn_index", "sequence_id", "redelivery_count", "late", "size_bytes", "properties",
)  # fmt: skip
_STORED_AS: Final = {"txn_index": "index", "late": "is_late"}
_ENVELOPE: Final = (
    "key", "key_encoding", "value", "value_encoding", "properties", "event_time", "deliver_at",
    "topic", "partition", "message_id", "publish_time", "producer", "sequence_id",
)  # fmt: skip


def pieces(table: pa.Table) -> Iterator[pa.Table]:
    """The table in pieces whose text has room in memory; a message is never cut."""
    if len(table) < 2 or table.nbytes <= _PIECE_BYTES:
        yield table
        return
    half = len(table) // 2
    yield from pieces(table.slice(0, half))
    yield from pieces(table.slice(half))


class Messages:
    """The fields of a table of RECEIVED, each made text when it is asked for.

    The table may lack columns: their fields are null.

    beside: columns that messages do not have themselves
    """

    def __init__(self, table: pa.Table, beside: Mapping[str, pa.Array] | None = None) -> None:
        self.count = len(table)
        self._table = table
        self._beside = beside or {}
        self._is_large = table.nbytes > _LARGE_BYTES
        self._made: dict[str, Column] = {}

    def stored(self, name: str) -> pa.Array | None:
        """A column as it is, None if there is none; of properties each name once."""
        if name in self._beside:
            return self._beside[name]
        if name not in self._table.column_names:
            return None
        column = self._table.column(name)
        found = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        if self._is_large and pa.types.is_binary(found.type):
            found = found.cast(pa.large_binary())
        return found

    def field(self, name: str) -> Column:
        """A field of a record as text; instants in RFC 3339."""
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
        if name == "message_id":
            return self._ids()
        if name == "txn":
            return self._transactions()
        if name == "size_bytes":
            return self._sizes()
        if name == "properties":
            return self._properties()
        column = self.stored(_STORED_AS.get(name, name))
        if column is None:
            return None
        if name in _INSTANTS:
            return columns.instants(column)
        return columns.numbers(column) if name in _BARE else columns.strings(column)

    def listed(self, name: str) -> list[str | None]:
        """A field of each message, for a line on a terminal."""
        column = self.field(name)
        if isinstance(column, pa.Array):
            found: list[str | None] = column.to_pylist()
            return found
        return [column] * self.count

    def number(self, name: str) -> Column:
        """A column of integers or instants as numbers."""
        column = self.stored(name)
        return None if column is None else columns.numbers(column.cast(pa.int64()))

    def _ids(self) -> Column:
        ledger = self.number("ledger")
        if ledger is None:
            return None
        parts = [_filled(ledger, self.count), ":", _filled(self.number("entry"), self.count)]
        index = self.stored("index")
        if index is not None and index.null_count < len(index):
            index = pc.if_else(pc.equal(index, 0), pa.scalar(None, index.type), index)
            behind = pc.binary_join_element_wise(":", index.cast(pa.string()), "")
            parts.append(pc.fill_null(behind, ""))
        return pc.binary_join_element_wise(*parts, "")

    def _transactions(self) -> Column:
        most, least = self.stored("txn_most"), self.stored("txn_least")
        if most is None or least is None or most.null_count == len(most):
            return None
        first, other = columns.same(most), columns.same(least)
        if first is not None and other is not None:
            return str(TxnId.from_halves(first.as_py(), other.as_py()))
        if first is not None and not first.as_py() & _COUNTER_HIGH and not least.null_count:
            coordinator = str(TxnId.from_halves(first.as_py(), 0)).partition(":")[0]

            def said(values: pa.Array) -> pa.Array:
                counters = values.view(pa.uint64()).cast(pa.string())
                return pc.binary_join_element_wise(coordinator, counters, ":")

            return columns.by_distinct(least, said)
        pairs = zip(most.to_pylist(), least.to_pylist(), strict=True)  # of several coordinators
        known: dict[Any, str | None] = {(None, None): None}
        for pair in (texts := list(pairs)):
            if pair not in known:
                known[pair] = None if pair[0] is None else str(TxnId.from_halves(*pair))
        return pa.array([known[pair] for pair in texts], pa.string())

    def _sizes(self) -> Column:
        value = self.stored("value")
        if value is None:
            return "0"
        return columns.numbers(pc.fill_null(pc.binary_length(value), 0))

    # --- properties ----------------------------------------------------------------------------

    @cached_property
    def pairs(self) -> tuple[pa.Array, pa.Array, pa.Array] | None:
        """Where the properties of each row begin (and end), their names and their values.

        A name stands once: where it came first, with the value that came last.
        """
        found = self.stored("properties")
        if found is None or found.null_count == len(found):
            return None
        if found.null_count:  # a null may have a length
            found = found.take(pa.array(range(len(found))))
        offsets, names, values = _pairs(found)
        if not len(names):
            return None
        lists = pa.ListArray.from_arrays(offsets, names)
        rows = pc.list_parent_indices(lists).cast(pa.int64())
        codes = names.dictionary_encode()
        width = pa.scalar(len(codes.dictionary), pa.int64())
        places = pc.add(pc.multiply(rows, width), codes.indices.cast(pa.int64()))
        if pc.count_distinct(places).as_py() < len(places):
            once = [None if one is None else list(dict(one).items()) for one in found.to_pylist()]
            return _pairs(pa.array(once, found.type))
        return offsets, names, values

    def each_property(self, said: list[Part], between: str) -> pa.Array | None:
        """The parts of the pairs of each row as one text of it; None: no row has any."""
        if self.pairs is None:
            return None
        offsets, names, _ = self.pairs
        texts = columns.joined(said, len(names))
        lists = pa.ListArray.from_arrays(offsets, texts)
        return pc.binary_join(lists, pa.scalar(between.encode(), texts.type))

    def _properties(self) -> Column:
        if self.pairs is None:
            return "{}"
        _, names, values = self.pairs
        said = [*columns.json_text(names), b":", *columns.json_text(values)]
        text = self.each_property(said, ",")
        return columns.as_text(columns.joined([b"{", text, b"}"], self.count))

    # --- records -------------------------------------------------------------------------------

    def json_lines(self, names: Sequence[str], *, embed: bool) -> pa.Array:
        """JSON records with these fields, a line each; embed: JSON values as they are."""
        made = {}
        if embed and ("value" in names or "value_encoding" in names):
            made = self._embedded()
        members = [(name, made.get(name) or self._json(name)) for name in names]
        return columns.joined(columns.json_object(members), self.count)

    def _json(self, name: str) -> list[Part]:
        if name in _BARE:
            return columns.json_bare(self.field(name))
        said = columns.json_safe if name in _SAFE else columns.json_text
        return said(self.field(name))

    def _embedded(self) -> dict[str, list[Part]]:
        """Value and encoding, where some values are JSON objects or arrays."""
        value = self.stored("value")
        if value is None or value.null_count == len(value):
            return {}
        first = columns.data_of(pc.binary_slice(value, 0, 1))
        if not any(byte in first.tobytes() for byte in _BEFORE_JSON):
            return {}
        mask = pa.array([_is_embedded(one) for one in value.to_pylist()], pa.bool_())
        if not pc.any(mask).as_py():
            return {}
        nothing = pa.scalar(None, value.type)
        bodies = pc.if_else(mask, value, nothing)
        data = columns.data_of(bodies).tobytes()
        if b"\n" in data or b"\r" in data:
            bodies = columns.with_data(bodies, data.translate(BREAKS))
        text, encoding = columns.text_of(pc.if_else(mask, nothing, value))
        [rest] = [columns.joined(columns.json_text(text), self.count)]
        whole = pc.if_else(mask, bodies, rest.cast(bodies.type))
        said = _filled(encoding, self.count)
        kinds = pc.if_else(mask, pa.scalar("json", said.type), said)
        return {"value": [whole], "value_encoding": columns.json_safe(kinds)}

    def envelopes(self) -> pa.Array:
        """Envelopes, a line each: key, value, properties and times byte for byte."""
        members = []
        for name in _ENVELOPE:
            said = columns.json_bare(self.number(name)) if name in _INSTANTS else self._json(name)
            members.append((name, said))
        return columns.joined(columns.json_object(members), self.count)

    def delimited(self, form: str, names: Sequence[str]) -> pa.Array:
        """Lines of tsv or csv with these fields."""
        cells = []
        for name in names:
            is_safe = name in _SAFE or (name in _BARE and name != "properties")
            cells.append(columns.cell(form, self.field(name), is_safe=is_safe))
        return columns.joined(columns.delimited(form, cells), self.count)


def _filled(column: Column, count: int) -> pa.Array:
    if isinstance(column, pa.Array):
        return column
    return pa.repeat(pa.scalar(column, pa.string()), count)


def _pairs(found: pa.Array) -> tuple[pa.Array, pa.Array, pa.Array]:
    offsets = found.offsets
    start, stop = offsets[0].as_py(), offsets[-1].as_py()
    moved = pc.subtract(offsets, offsets[0]) if start else offsets
    return moved, found.keys[start:stop], found.items[start:stop]


def _is_embedded(value: bytes | None) -> bool:
    """An object or array of JSON."""
    if value is None or value.lstrip(b" \t\r\n")[:1] not in (b"{", b"["):
        return False
    try:
        orjson.loads(value)
    except orjson.JSONDecodeError:
        return False
    return True
