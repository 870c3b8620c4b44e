"""Routing: which partition each message of a batch goes to, before any lock is taken.

A key always goes to `crc32(key) mod partitions`; the messages of a batch without a key go to one
partition, round robin by batch. `route` reorders the batch so that each partition is one slice of
it, in the order given. It makes no Python object per message: each distinct key is hashed once. A
row may have a delay instead of a time; decide/sending makes it an instant.
"""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from bisect import bisect_right
from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa

from txlog.base.settings import KEY_BYTES_MAX, TXN_MESSAGES_MAX
from txlog.base.startup import compute as pc
from txlog.engine.model.schema import INSTANT, PROPERTY_MAP, OneRow
from txlog.errors import InvalidArgument, InvalidMessage, LimitExceeded

COLUMNS: dict[str, pa.DataType] = {
    "value": pa.binary(),
    "key": pa.binary(),
    "properties": PROPERTY_MAP,
    "event_time": INSTANT,
    "deliver_at": INSTANT,
    "sequence_id": pa.int64(),
    "deliver_after": pa.int64(),
}
# An ordering key has no column: it is this property, in base64.
ORDERING_KEY: Final = "pulsar.ordering_key"
FEW_ROWS = 64
_NONE = pa.scalar(0, pa.int32())  # typed: guessing the type of a number costs 40 us


class PartitionSlice(msgspec.Struct, frozen=True, gc=False):
    """Rows row_start..row_start+rows of the routed batch, for one partition (from 0)."""

    partition: int
    row_start: int
    rows: int
    payload_bytes: int


class Routed(msgspec.Struct, frozen=True, gc=False):
    """A batch in the order of its partitions; order: the input row of each routed row, or None.

    rows:      the batch, or a single message outside a batch
    has_times: it has a column of times of delivery, or of delays
    is_spread: each row was routed by its own key or the turn, not by a partition column
    """

    rows: pa.RecordBatch | OneRow
    slices: list[PartitionSlice]
    order: pa.Array | None
    payload_bytes: int
    has_times: bool = False
    is_spread: bool = False

    @property
    def batch(self) -> pa.RecordBatch:
        """The rows as a batch."""
        return as_batch(self.rows)


def as_batch(rows: pa.RecordBatch | OneRow) -> pa.RecordBatch:
    """Rows as a batch."""
    return rows.batch() if isinstance(rows, OneRow) else rows


def partition_of_key(key: bytes, partitions: int) -> int:
    """The partition of a key; the same in every release and in Spark's crc32."""
    return zlib.crc32(key) % partitions


def with_ordering_key(properties: Mapping[str, str] | None, key: bytes) -> dict[str, str]:
    """The properties of a message, with its ordering key added."""
    return {**(properties or {}), ORDERING_KEY: b64encode(key).decode()}


def ordering_key_in(text: str | None) -> bytes | None:
    """The ordering key in the property ORDERING_KEY; None if it is missing or not base64."""
    if text is None:
        return None
    try:
        return b64decode(text, validate=True)
    except ValueError:
        return None


def user_batch(data: pa.Table | pa.RecordBatch) -> tuple[pa.RecordBatch, pa.Array | None]:
    """The user columns as one batch, and the partition column if there is one.

    raises: InvalidArgument for a missing value column or a column of the wrong type
    """
    batch, partition, _ = _shaped(data)
    return batch, partition


def _shaped(
    data: pa.Table | pa.RecordBatch,
) -> tuple[pa.RecordBatch, pa.Array | None, _Shape]:
    """As user_batch, and the shape."""
    if isinstance(data, pa.Table):
        batches = data.combine_chunks().to_batches()
        if len(batches) > 1:
            raise InvalidArgument("a batch of more than 2 GiB cannot be sent at once")
        data = batches[0] if batches else pa.RecordBatch.from_pylist([], schema=data.schema)
    shape = _shape_of(data.schema)
    if shape is None:
        data = _conformed(data)
        shape = _shape_of(data.schema)
        assert shape is not None
    if shape.partition < 0:
        return data, None, shape
    partition = data.column(shape.partition)
    if not shape.is_integer:
        partition = _cast("partition", partition, pa.int64())
    return data.remove_column(shape.partition), partition, shape


class _Shape(NamedTuple):
    """The properties of rows that follow from their schema.

    partition:  the index of the partition column, -1: none; is_integer: whether it has integers
    places:     the indexes of the values and keys in the rows without that column
    deliver_at: the index of the times of delivery, -1: none
    has_times:  rows may have a time of delivery, or a delay (has_delays)
    """

    partition: int
    is_integer: bool
    places: tuple[int, ...]
    deliver_at: int
    has_properties: bool
    has_delays: bool
    has_times: bool


def _shape_of(schema: pa.Schema) -> _Shape | None:
    """The shape of rows; None: they must be converted, or refused.

    Programs send rows of few shapes, most programs of only one. Comparing a schema costs a tenth of
    analysing it, and analysing it costs as much as a send.
    """
    cached = _newest[0]
    if cached is not None and cached[0].equals(schema):
        return cached[1]
    shape = _shape(schema)
    if shape is not None:
        _newest[0] = (schema, shape)
    return shape


_newest: list[tuple[pa.Schema, _Shape] | None] = [None]


@lru_cache(maxsize=64)
def _shape(schema: pa.Schema) -> _Shape | None:
    names = schema.names
    kinds = [COLUMNS.get(name) for name in names]
    fits = all(
        name == "partition" if expected is None else expected == kind
        for name, expected, kind in zip(names, kinds, schema.types, strict=True)
    )
    if not fits or "value" not in names or len(set(names)) != len(names):
        return None
    at = names.index("partition") if "partition" in names else -1
    is_integer = at >= 0 and pa.types.is_integer(schema.types[at])
    others = [name for name in names if name != "partition"]
    has_delays = "deliver_after" in others
    return _Shape(
        at,
        is_integer,
        tuple(others.index(name) for name in ("value", "key") if name in others),
        others.index("deliver_at") if "deliver_at" in others else -1,
        "properties" in others,
        has_delays,
        has_delays or "deliver_at" in others,
    )


def _conformed(data: pa.RecordBatch) -> pa.RecordBatch:
    """The rows with the types of COLUMNS; raises InvalidArgument."""
    names = data.schema.names
    if "value" not in names:
        raise InvalidArgument("the batch has no column named value", hint="value is binary")
    if len(set(names)) != len(names):
        raise InvalidArgument("the batch has two columns of one name")
    for at, name in enumerate(names):
        expected = COLUMNS.get(name)
        if expected is None and name != "partition":
            raise InvalidArgument(
                f"the batch has an unknown column {name}",
                hint=f"known are {', '.join(COLUMNS)}, partition",
            )
        if expected is not None and data.column(at).type != expected:
            data = data.set_column(at, name, _cast(name, data.column(at), expected))
    return data


def _cast(name: str, column: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as exc:
        raise InvalidArgument(
            f"column {name} is {column.type}, it must be {kind}", hint="cast it before sending"
        ) from exc


def route(
    data: pa.Table | pa.RecordBatch | OneRow, partitions: int, turn: int, message_bytes_max: int
) -> Routed:
    """Route a batch over the partitions; turn: the partition for messages without a key.

    raises: InvalidArgument (columns, partition out of range, delays), LimitExceeded (more messages
            than a transaction may hold), InvalidMessage (too large, a negative number)
    """
    if isinstance(data, OneRow):
        size = data.payload_bytes
        if size + data.property_bytes <= min(message_bytes_max, KEY_BYTES_MAX):
            target = (
                turn % partitions if data.key is None else partition_of_key(data.key, partitions)
            )
            return Routed(data, [PartitionSlice(target, 0, 1, size)], None, size)
        data = data.batch()  # it may be too large, so check it
    batch, explicit, shape = _shaped(data)
    rows = batch.num_rows
    if rows > TXN_MESSAGES_MAX:
        raise LimitExceeded(
            f"a batch of {rows} messages exceeds {TXN_MESSAGES_MAX}",
            setting="txn_messages_max",
            limit=TXN_MESSAGES_MAX,
            value=rows,
        )
    offsets = _offsets(batch, shape.places)
    total = _payload_bytes(offsets, 0, rows)
    if _is_above(batch, shape, total, min(message_bytes_max, KEY_BYTES_MAX)):
        _check_sizes(batch, message_bytes_max)  # else no message can be too large
    if shape.deliver_at >= 0:
        check_numbers("deliver_at", batch.column(shape.deliver_at))
    if shape.has_delays:
        check_delays(batch)
    if not rows:
        return Routed(batch, [], None, 0)
    target = _targets(batch, partitions, turn, explicit)
    if isinstance(target, int):
        slices = [PartitionSlice(target, 0, rows, total)]
        return Routed(batch, slices, None, total, shape.has_times)
    grouped = _groups(target, partitions)
    if explicit is not None:
        _check_partitions(target, grouped, partitions)
    order = None
    if grouped is None:
        order = pc.sort_indices(target)  # stable: ties keep their order
        batch = batch.take(order)
        offsets = _offsets(batch, shape.places)
        grouped = _groups(target.take(order), partitions)
        assert grouped is not None
    slices = []
    at = 0
    for partition, end in grouped:
        size = _payload_bytes(offsets, at, end)
        slices.append(PartitionSlice(partition, at, end - at, size))
        at = end
    return Routed(batch, slices, order, total, shape.has_times, explicit is None)


def _groups(target: pa.Array, partitions: int) -> list[tuple[int, int]] | None:
    """(partition, row after its last) if the rows are in order of partition already; else None."""
    if len(target) <= FEW_ROWS:  # a kernel takes 17 us whatever its size
        return _few_groups(target.to_pylist())
    encoded = pc.run_end_encode(target)
    if len(encoded.values) > partitions or target.null_count:
        return None
    values = encoded.values.to_pylist()
    if any(low >= high for low, high in pairwise(values)):
        return None
    return list(zip(values, encoded.run_ends.to_pylist(), strict=True))


def _few_groups(targets: list[int | None]) -> list[tuple[int, int]] | None:
    if None in targets:
        return None
    numbers: list[int] = targets  # type: ignore[assignment]  # none is None
    if sorted(numbers) != numbers:
        return None
    return [(target, bisect_right(numbers, target)) for target in dict.fromkeys(numbers)]


def _check_partitions(
    explicit: pa.Array, grouped: list[tuple[int, int]] | None, partitions: int
) -> None:
    """Refuse a partition that does not exist; rows in order need no check of each."""
    if explicit.null_count:
        raise InvalidArgument("a row names no partition, others do", code=203)
    if grouped is not None:
        low, high = grouped[0][0], grouped[-1][0]
    else:
        bounds = pc.min_max(explicit).as_py()
        low, high = bounds["min"], bounds["max"]
    if low < 0 or high >= partitions:
        wrong = low if low < 0 else high
        raise InvalidArgument(f"partition {wrong} is not one of 0 to {partitions - 1}", code=203)


def _offsets(batch: pa.RecordBatch, places: tuple[int, ...]) -> list[tuple[memoryview, int]]:
    """The ends of all values and keys, each with the number of its first row."""
    if not batch.num_rows:
        return []
    out: list[tuple[memoryview, int]] = []
    for at in places:
        column = batch.column(at)
        out.append((memoryview(column.buffers()[1]).cast("i"), column.offset))
    return out


def bytes_between(routed: Routed, start: int, stop: int) -> int:
    """Bytes of the keys and values of some routed rows: O(1)."""
    names = routed.batch.schema.names  # of a typed topic also schema_version, which no shape has
    places = tuple(at for at, name in enumerate(names) if name in ("key", "value"))
    return _payload_bytes(_offsets(routed.batch, places), start, stop)


def _payload_bytes(offsets: list[tuple[memoryview, int]], start: int, stop: int) -> int:
    """Bytes of the keys and values of rows start..stop: O(1)."""
    total = 0
    for ends, first in offsets:
        total += ends[first + stop] - ends[first + start]
    return total


def _is_above(batch: pa.RecordBatch, shape: _Shape, total: int, most: int) -> bool:
    """Whether keys, values and properties have more bytes than `most`; total: keys and values."""
    if not shape.has_properties:
        return total > most
    column = batch.column("properties")
    # including rows around these; names and texts may share buffers, counted once
    if total + 2 * column.get_total_buffer_size() <= most:
        return False
    return total + _property_total(column) > most


def _check_sizes(batch: pa.RecordBatch, message_bytes_max: int) -> None:
    """Refuse a message or key above the limits; raises InvalidMessage."""
    if "key" in batch.schema.names:
        longest = pc.max(pc.binary_length(batch.column("key"))).as_py() or 0
        if longest > KEY_BYTES_MAX:
            raise InvalidMessage(f"a key has {longest} bytes, the largest is {KEY_BYTES_MAX}")
    largest = pc.max(message_bytes(batch)).as_py() or 0
    if largest > message_bytes_max:
        raise InvalidMessage(
            f"a message has {largest} bytes, max_message_bytes is {message_bytes_max}: "
            "turn chunking on",
            hint="producer(..., chunking=True), and send() for the large message alone",
            setting="max_message_bytes",
            limit=message_bytes_max,
            value=largest,
        )


def check_number(name: str, number: object) -> None:
    """Refuse a negative number. Raises InvalidMessage."""
    if isinstance(number, int) and number < 0:
        raise InvalidMessage(f"{name} is {number}, it must not be negative", value=number)


def check_numbers(name: str, column: pa.Array) -> None:
    """Refuse a negative number in a column of integers or instants. Raises InvalidMessage."""
    numbers = column.view(pa.int64())
    if len(numbers) <= FEW_ROWS:
        least = min((number for number in numbers.to_pylist() if number is not None), default=None)
    else:
        least = pc.min(numbers).as_py()
    check_number(name, least)


def check_delays(batch: pa.RecordBatch | pa.Table) -> None:
    """Refuse a negative delay, and a row with both a time and a delay; raises InvalidArgument."""
    delays = batch.column("deliver_after")
    if len(delays) <= FEW_ROWS:
        least = min((delay for delay in delays.to_pylist() if delay is not None), default=None)
    else:
        least = pc.min(delays).as_py()
    if least is not None and least < 0:
        raise InvalidArgument(
            f"deliver_after is {least}, it must not be negative",
            code=203,
            hint="deliver_at may lie in the past",
            value=least,
        )
    if least is None or batch.schema.get_field_index("deliver_at") < 0:
        return
    if pc.any(pc.and_(delays.is_valid(), batch.column("deliver_at").is_valid())).as_py():
        raise InvalidArgument("a message has both deliver_at and deliver_after", hint="give one")


def message_bytes(batch: pa.RecordBatch) -> pa.Array:
    """Bytes of key, value and properties of each row."""
    sizes = pc.fill_null(pc.binary_length(batch.column("value")), _NONE)
    if "key" in batch.schema.names:
        sizes = pc.add(sizes, pc.fill_null(pc.binary_length(batch.column("key")), _NONE))
    if "properties" in batch.schema.names:
        sizes = pc.add(sizes, _property_bytes(batch.column("properties")))
    return sizes


def _property_total(column: pa.Array) -> int:
    """Bytes of all names and values, null rows included: O(1), and no kernel."""
    if not len(column):
        return 0
    ends = memoryview(column.buffers()[1]).cast("i")
    first, last = ends[column.offset], ends[column.offset + len(column)]
    total = 0
    for texts in (column.keys, column.items):
        if len(texts):
            of = memoryview(texts.buffers()[1]).cast("i")
            total += of[texts.offset + last] - of[texts.offset + first]
    return total


def _property_bytes(column: pa.Array) -> pa.Array:
    """Bytes of the names and values of each row's properties."""
    names = pc.binary_length(column.keys)
    items = pc.fill_null(pc.binary_length(column.items), _NONE)
    each = pc.cumulative_sum(pc.add(names, items).cast(pa.int64()))
    totals = pa.concat_arrays([pa.array([0], pa.int64()), each])
    ends = totals.take(column.offsets)
    return pc.subtract(ends.slice(1), ends.slice(0, len(column)))


def _targets(
    batch: pa.RecordBatch, partitions: int, turn: int, explicit: pa.Array | None
) -> pa.Array | int:
    """The partition of each row, or one number when it is the same for all."""
    if explicit is not None:
        return explicit
    if partitions == 1:
        return 0
    if "key" not in batch.schema.names:
        return turn % partitions
    keys = pc.dictionary_encode(batch.column("key"))
    of_key = [partition_of_key(key, partitions) for key in keys.dictionary.to_pylist()]
    if not of_key:
        return turn % partitions
    if len(of_key) == 1 and not keys.null_count:
        return of_key[0]
    targets = pa.array(of_key, pa.int64()).take(keys.indices)
    return pc.fill_null(targets, pa.scalar(turn % partitions, pa.int64()))
