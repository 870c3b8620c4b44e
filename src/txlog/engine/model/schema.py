"""The Arrow schemas of messages: stored rows, and the rows a frame carries.

A frame has one record batch of user columns for all its ledgers; its ops assign slices of the batch
to ledgers. The frame stores only the batch, not its schema: a bit mask names the optional columns,
and the schema follows from it.

OneRow is the row of a single message, which becomes the bytes of a frame without Arrow.
Arrow takes 25 us to make and serialize a record batch of one row, with properties 90: a third of a
send. All rows with the same columns have the same bytes, except for lengths and contents. So Arrow
serializes one row of each shape, and this module uses its bytes as a form for all others (`_Form`),
after comparing a second row made with the form.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Final

import pyarrow as pa

from txlog.engine.storage.columns import INSTANT, KIND_DATA, MESSAGE, PROPERTY_MAP, conform
from txlog.errors import InvalidArgument

# --- rows of frames ------------------------------------------------------------------------------


__all__ = [
    "ALL_COLUMNS",
    "DELIVER_AT",
    "EVENT_TIME",
    "INSTANT",
    "KEY",
    "KIND_DATA",
    "MESSAGE",
    "PROPERTIES",
    "PROPERTY_MAP",
    "SCHEMA",
    "SEQUENCE",
    "TXN_ABORT",
    "TXN_COMMIT",
    "W_IDLE",
    "W_SET",
    "W_SNAPSHOT",
    "conform",
    "decode_rows",
    "encode_rows",
    "frame_schema",
]

TXN_COMMIT: Final = 1
TXN_ABORT: Final = 2
W_SET: Final = 3
W_IDLE: Final = 4
W_SNAPSHOT: Final = 5

KEY: Final = 1
PROPERTIES: Final = 2
EVENT_TIME: Final = 4
DELIVER_AT: Final = 8
SEQUENCE: Final = 16
SCHEMA: Final = 32

# A new column takes a new bit and goes last: masks are in the frames of old journals.
_OPTIONAL: Final = (
    (KEY, "key"),
    (PROPERTIES, "properties"),
    (EVENT_TIME, "event_time"),
    (DELIVER_AT, "deliver_at"),
    (SEQUENCE, "sequence_id"),
    (SCHEMA, "schema_version"),
)
ALL_COLUMNS: Final = KEY | PROPERTIES | EVENT_TIME | DELIVER_AT | SEQUENCE | SCHEMA
_NAMES: Final = frozenset(["value", *(name for _, name in _OPTIONAL)])
_SCHEMAS: Final[list[pa.Schema]] = [
    pa.schema(
        [MESSAGE.field("value"), *(MESSAGE.field(name) for bit, name in _OPTIONAL if mask & bit)]
    )
    for mask in range(ALL_COLUMNS + 1)
]
_VALUE_ONLY: Final = _SCHEMAS[0]
_MASKS: Final = {frozenset(schema.names): mask for mask, schema in enumerate(_SCHEMAS)}


def frame_schema(mask: int) -> pa.Schema:
    """The schema of a frame's batch: value, then the columns of the mask in the order of bits.

    A mask this version does not know raises IndexError: the caller can name the frame.
    """
    if mask < 0:
        raise IndexError(mask)
    return _SCHEMAS[mask]


def encode_rows(rows: pa.RecordBatch | pa.Table) -> tuple[int, pa.Buffer]:
    """The mask and bytes of a batch of user columns, without columns that are all null.

    cost:   2 us for a batch with only values, 8 us for other columns in a frame's form
    raises: InvalidArgument: unknown columns or types
    """
    if not isinstance(rows, pa.RecordBatch):
        rows = _one_batch(rows)
    schema = rows.schema
    if schema.equals(_VALUE_ONLY):
        return 0, rows.serialize()
    stored_mask, order = _as_stored(schema)
    if stored_mask >= 0 and not _some_is_null(rows, _SCHEMAS[stored_mask].names):
        return stored_mask, (rows if order is None else rows.select(order)).serialize()
    unknown = set(schema.names) - _NAMES
    if unknown or len(schema.names) != len(set(schema.names)) or "value" not in schema.names:
        raise InvalidArgument(
            f"rows have the columns {', '.join(schema.names) or 'none'}",
            hint="value, and optionally key, properties, event_time, deliver_at, sequence_id",
        )
    mask = 0
    columns = [rows.column("value")]
    for bit, name in _OPTIONAL:
        at = schema.get_field_index(name)
        if at < 0:
            continue
        column = rows.column(at)
        if column.null_count != len(column):
            mask |= bit
            columns.append(column)
    stored_schema = _SCHEMAS[mask]
    try:
        columns = [
            column if column.type.equals(kind) else column.cast(kind)
            for column, kind in zip(columns, stored_schema.types, strict=True)
        ]
    except pa.ArrowException as error:
        raise InvalidArgument(f"rows do not fit their columns: {error}") from error
    return mask, pa.RecordBatch.from_arrays(columns, schema=stored_schema).serialize()


def _as_stored(schema: pa.Schema) -> tuple[int, list[int] | None]:
    """The mask of rows that have a frame's columns, and the order of these columns if it differs.

    -1: the rows must be converted, or refused. The rows of a program have few schemas; comparing
    with the last one costs a hundredth of a look.
    """
    newest = _newest[0]
    if not newest[0].equals(schema):
        newest = _newest[0] = (schema, *_look_at(schema))
    return newest[1:]


def _look_at(schema: pa.Schema) -> tuple[int, list[int] | None]:
    names = schema.names
    mask = _MASKS.get(frozenset(names))
    if mask is None or len(names) != len(_SCHEMAS[mask].names):
        return -1, None
    order = [names.index(name) for name in _SCHEMAS[mask].names]
    if not pa.schema([schema.field(at) for at in order]).equals(_SCHEMAS[mask]):
        return -1, None
    return mask, None if order == sorted(order) else order


_newest: list[tuple[pa.Schema, int, list[int] | None]] = [(_VALUE_ONLY, 0, None)]


def _some_is_null(rows: pa.RecordBatch, names: list[str]) -> bool:
    """True when a column other than the values has only nulls, or there are no rows."""
    count = rows.num_rows
    return any(name != "value" and rows.column(name).null_count == count for name in names)


def decode_rows(mask: int, data: pa.Buffer | bytes | memoryview) -> pa.RecordBatch:
    """The batch that `encode_rows` encoded, over the same memory.

    The caller must have checked the bytes: pyarrow silently accepts flipped bits.
    """
    return pa.ipc.read_record_batch(data, frame_schema(mask))


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    """A table's rows in one batch, which a frame requires."""
    if not isinstance(table, pa.Table):
        raise InvalidArgument(f"rows are a {type(table).__name__}, not an Arrow batch or table")
    batches = table.combine_chunks().to_batches()
    if not batches:
        return pa.RecordBatch.from_arrays(
            [pa.array([], type=kind) for kind in table.schema.types], schema=table.schema
        )
    if len(batches) > 1:  # beyond 2 GiB of values pyarrow makes several batches
        raise InvalidArgument("rows of more than 2 GiB do not fit one frame")
    return batches[0]


# --- the row of a single message -----------------------------------------------------------------


_TWO: Final = struct.Struct("<2i")
_LONG: Final = struct.Struct("<q")
_PADDING: Final = [bytes(-size % 8) for size in range(8)]


class OneRow:
    """A message that is stored unchanged: value and key are bytes, other columns have their types.

    It has the attributes of a batch that most callers need; other callers use `batch`.
    """

    __slots__ = (
        "_batch",
        "_texts",
        "event_time",
        "key",
        "payload_bytes",
        "property_bytes",
        "value",
    )

    num_rows = 1

    def __init__(
        self,
        value: bytes,
        key: bytes | None,
        properties: Mapping[str, str] | None,
        event_time: int | None,
    ) -> None:
        """raises: TypeError, AttributeError, UnicodeEncodeError for properties that are no text"""
        self._batch: pa.RecordBatch | None = None
        self.value, self.key, self.event_time = value, key, event_time
        self.payload_bytes = len(value) if key is None else len(value) + len(key)
        self._texts: tuple[list[bytes], list[bytes]] | None = None
        self.property_bytes = 0
        if properties:
            names, texts = map(str.encode, properties), map(str.encode, properties.values())
            self._texts = [*names], [*texts]
            self.property_bytes = sum([len(text) for half in self._texts for text in half])

    def batch(self) -> pa.RecordBatch:
        """The same row as a batch; built once."""
        if self._batch is None:
            self._batch = _batch(self.value, self.key, self._texts, self.event_time)
        return self._batch

    def encoded(self) -> tuple[int, bytes]:
        """The mask and bytes, as `encode_rows` of the batch."""
        texts, key, time = self._texts, self.key, self.event_time
        shape = (key is not None, 0 if texts is None else len(texts[0]), time is not None)
        form = None
        if shape in _SEEN:
            form = _form(shape)
        else:  # a form costs as much as ten rows, and a program may send one
            _SEEN.add(shape)
        if form is None:
            mask, rows = encode_rows(self.batch())
            return mask, rows.to_pybytes()
        return form.mask, form.filled(_buffers(self.value, key, texts, time))


_Texts = tuple[list[bytes], list[bytes]]
_Shape = tuple[bool, int, bool]  # has a key, number of properties, has an event time
_SEEN: Final[set[_Shape]] = set()


def _batch(
    value: bytes, key: bytes | None, texts: _Texts | None, event_time: int | None
) -> pa.RecordBatch:
    """The row, built by Arrow."""
    mask, columns = 0, [pa.array([value], pa.binary())]
    if key is not None:
        mask |= KEY
        columns.append(pa.array([key], pa.binary()))
    if texts is not None:
        mask |= PROPERTIES
        pairs = [(name.decode(), text.decode()) for name, text in zip(*texts, strict=True)]
        columns.append(pa.array([pairs], frame_schema(PROPERTIES).field("properties").type))
    if event_time is not None:
        mask |= EVENT_TIME
        columns.append(pa.array([event_time], frame_schema(EVENT_TIME).field("event_time").type))
    return pa.RecordBatch.from_arrays(columns, schema=frame_schema(mask))


def _buffers(
    value: bytes, key: bytes | None, texts: _Texts | None, event_time: int | None
) -> list[bytes]:
    """The buffers of the row in Arrow's order; without bitmaps, as no column has nulls."""
    out = [b"", _TWO.pack(0, len(value)), value]
    if key is not None:
        out += (b"", _TWO.pack(0, len(key)), key)
    if texts is not None:
        out += (b"", _TWO.pack(0, len(texts[0])), b"")
        for half in texts:
            out += (b"", _ends(half), b"".join(half))
    if event_time is not None:
        out += (b"", _LONG.pack(event_time))
    return out


def _ends(texts: Sequence[bytes]) -> bytes:
    return struct.pack(f"<{len(texts) + 1}i", 0, *accumulate(map(len, texts)))


class _Form:
    """The leading bytes of all rows of one shape, and the offsets of lengths in them."""

    __slots__ = ("_body_at", "_head", "_places", "_places_at", "mask")

    def __init__(self, shape: _Shape) -> None:
        self.mask, batch, buffers = _sample(shape, 1000)
        whole = batch.serialize().to_pybytes()
        self._places = struct.Struct(f"<{2 * len(buffers)}q")
        places, body = self._laid_out(buffers)
        self._head = bytearray(whole[: len(whole) - len(body)])
        self._places_at = _only_place(self._head, self._places.pack(*places))
        self._places.pack_into(self._head, self._places_at, *[0] * len(places))
        self._body_at = _only_place(self._head, _LONG.pack(len(body)))

    def filled(self, buffers: list[bytes]) -> bytes:
        """The row with these buffers."""
        places, body = self._laid_out(buffers)
        head = self._head.copy()
        self._places.pack_into(head, self._places_at, *places)
        _LONG.pack_into(head, self._body_at, len(body))
        return bytes(head) + body

    @staticmethod
    def _laid_out(buffers: list[bytes]) -> tuple[list[int], bytes]:
        """(offset and length of each buffer, the buffers padded to multiples of eight bytes)."""
        places: list[int] = []
        parts: list[bytes] = []
        at = 0
        for buffer in buffers:
            size = len(buffer)
            places += (at, size)
            if size:
                parts += (buffer, _PADDING[size % 8])
                at += (size + 7) & ~7
        return places, b"".join(parts)


@lru_cache(maxsize=4096)  # all that there are
def _form(shape: _Shape) -> _Form | None:
    """The form of a shape; None if this version of Arrow uses an unknown layout.

    Then Arrow goes on serializing each row, and a test that counts fails.
    """
    try:
        form = _Form(shape)
    except LookupError:
        return None
    _, other, buffers = _sample(shape, 0)
    return form if form.filled(buffers) == other.serialize().to_pybytes() else None


def _sample(shape: _Shape, size: int) -> tuple[int, pa.RecordBatch, list[bytes]]:
    """The mask of a shape, and a row with a value of this size."""
    has_key, properties, has_time = shape
    key = b"k" * (size + 101) if has_key else None
    names = [b"%d" % at for at in range(properties)]
    texts = (names, [b"t" * (size + at) for at in range(properties)]) if properties else None
    time = size if has_time else None
    batch = _batch(b"v" * size, key, texts, time)
    mask = (KEY if has_key else 0) | (PROPERTIES if properties else 0)
    mask |= EVENT_TIME if has_time else 0
    return mask, batch, _buffers(b"v" * size, key, texts, time)


def _only_place(data: bytearray, pattern: bytes) -> int:
    offsets = [at for at in range(0, len(data), 8) if data.startswith(pattern, at)]
    if len(offsets) != 1:
        raise LookupError(pattern)
    return offsets[0]
