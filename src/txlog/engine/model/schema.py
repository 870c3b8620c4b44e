"""The Arrow schemas of messages: stored rows, and the rows a frame carries.

A frame has one record batch of user columns for all its ledgers; its ops assign slices of the batch
to ledgers. The frame stores only the batch, not its schema: a bit mask names the optional columns,
and the schema follows from it.

OneRow is the row of a single message, which becomes the bytes of a frame without Arrow: msgpack,
with the bit ONE_ROW in the mask. Arrow takes 170 bytes more for a row of one value, and 560 more
with a key, a time and two properties. Rows of many such frames become columns together
(`batch_of`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Final, TypeAlias

import msgspec
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
    "ONE_ROW",
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
# The rows are a single one, as a msgpack array of its values in the order of the schema.
ONE_ROW: Final = 64
ALL_COLUMNS: Final = KEY | PROPERTIES | EVENT_TIME | DELIVER_AT | SEQUENCE | SCHEMA
_NAMES: Final = frozenset(["value", *(name for _, name in _OPTIONAL)])
_SCHEMAS: Final[list[pa.Schema]] = [
    pa.schema(
        [MESSAGE.field("value"), *(MESSAGE.field(name) for bit, name in _OPTIONAL if mask & bit)]
    )
    for mask in range(ALL_COLUMNS + 1)
] * 2  # with ONE_ROW as without
_VALUE_ONLY: Final = _SCHEMAS[0]
_MASKS: Final = {frozenset(_SCHEMAS[mask].names): mask for mask in range(ALL_COLUMNS + 1)}


def frame_schema(mask: int) -> pa.Schema:
    """The schema of a frame's rows: value, then the columns of the mask in the order of bits."""
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
    """The mask of rows that have a frame's columns; the order of the columns, if it differs.

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
    """The rows of a frame as a batch; a batch of several rows uses the memory of `data`.

    The caller must have checked the bytes: pyarrow silently accepts flipped bits.
    """
    if mask & ONE_ROW:
        return batch_of(mask, [decode_row(mask, data)])
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


Row: TypeAlias = tuple[Any, ...]  # the values of a single row, in the order of its schema


class OneRow:
    """A message that is stored unchanged: value and key are bytes, other columns have their types.

    It has the attributes of a batch that most callers need; other callers use `batch`.
    """

    __slots__ = (
        "_batch",
        "_properties",
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
        self._properties: dict[str, str] | None = None
        self.property_bytes = 0
        if properties:
            names, texts = [*map(str.encode, properties)], [*map(str.encode, properties.values())]
            self.property_bytes = sum(map(len, names)) + sum(map(len, texts))
            # the types of texts may be subclasses, which msgspec does not encode
            self._properties = dict(
                zip(map(bytes.decode, names), map(bytes.decode, texts), strict=True)
            )

    def batch(self) -> pa.RecordBatch:
        """The same row as a batch; built once."""
        if self._batch is None:
            self._batch = decode_rows(*self.encoded())
        return self._batch

    def encoded(self) -> tuple[int, bytes]:
        """The mask and bytes for a frame."""
        mask, row = ONE_ROW, [self.value]
        key, properties, time = self.key, self._properties, self.event_time
        if key is not None:
            mask |= KEY
            row.append(key)
        if properties is not None:
            mask |= PROPERTIES
            row.append(properties)  # type: ignore[arg-type]
        if time is not None:
            mask |= EVENT_TIME
            row.append(time)  # type: ignore[arg-type]
        return mask, _encode(row)


def decode_row(mask: int, data: pa.Buffer | bytes | memoryview) -> Row:
    """The values of a row with this mask, which has ONE_ROW; raises one of UNREADABLE."""
    row: Row = _decoder(mask)(data)
    return row


def batch_of(mask: int, rows: Sequence[Row]) -> pa.RecordBatch:
    """Rows of one or more frames with this mask as a batch."""
    schema = _SCHEMAS[mask]
    arrays = [
        pa.array(map(_pairs, column) if field.name == "properties" else column, field.type)
        for column, field in zip(zip(*rows, strict=True), schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _pairs(properties: dict[str, str]) -> list[tuple[str, str]]:
    return [*properties.items()]


def _integer(bits: int) -> Any:
    return Annotated[int, msgspec.Meta(ge=-(1 << bits), le=(1 << bits) - 1)]


_KINDS: Final[dict[str, Any]] = {
    "value": bytes,
    "key": bytes,
    "properties": dict[str, str],
    "schema_version": _integer(31),
}
_encode: Final = msgspec.msgpack.Encoder().encode


@cache  # at most one for each mask
def _decoder(mask: int) -> Any:
    kinds = [_KINDS.get(name, _integer(63)) for name in _SCHEMAS[mask].names]
    return msgspec.msgpack.Decoder(tuple[tuple(kinds)]).decode  # type: ignore[misc]
