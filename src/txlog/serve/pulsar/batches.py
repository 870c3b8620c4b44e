"""Owns payloads: messages of a SEND as rows of Arrow, rows as messages to a consumer, and chunks.

A batch has for each message: size (4), SingleMessageMetadata, value. This module reads and writes
these by hand: an object of the protobuf runtime for each message would cost more than all other
work.
"""

from __future__ import annotations

import asyncio
import zlib
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
from google.protobuf.message import DecodeError

from txlog.engine.door.sending import COLUMNS, ORDERING_KEY, ordering_key_in
from txlog.errors import InvalidMessage, LimitExceeded
from txlog.serve.pulsar import ids
from txlog.serve.pulsar.encrypted import ENCRYPTED, kept_in, property_of
from txlog.serve.pulsar.messages import MessageMetadata, Proto, SingleMessageMetadata
from txlog.serve.pulsar.wire import INT64_MAX, check, varint

if TYPE_CHECKING:
    from txlog.serve.limits.budget import Reservation
    from txlog.serve.pulsar.messages import Proto

CHUNK_BYTES: Final = 256  # the memory of a chunk besides its payload


class ChunkedMessage:
    """The chunks of a message that have arrived, and the memory that they take.

    head:      the metadata of the first chunk
    sequences: first and highest sequence of each chunk
    """

    def __init__(self, head: Proto, hold: Reservation, bytes_max: int, idle_seconds: float) -> None:
        """Raises LimitExceeded: the message is larger than bytes_max."""
        size = head.total_chunk_msg_size
        if size > bytes_max:
            raise LimitExceeded(
                f"a message of {size} bytes in chunks, the most is {bytes_max}",
                setting="max_chunked_message_bytes",
                limit=bytes_max,
                value=size,
            )
        self.head = head
        self.sequences: list[tuple[int, int]] = []
        self._data = bytearray()
        self._hold = hold
        self._idle_seconds = idle_seconds
        self._timer: asyncio.TimerHandle | None = None
        self._waits = self._has_ended = False

    def add(self, head: Proto, payload: memoryview, sequences: tuple[int, int]) -> None:
        """Add the next chunk. Raises InvalidMessage: it is not the next one."""
        if self._has_ended or self.head.uuid != head.uuid or head.chunk_id != len(self.sequences):
            raise InvalidMessage(f"chunk {head.chunk_id} of {head.uuid} is out of order")
        if not payload:
            raise InvalidMessage(f"chunk {head.chunk_id} of {head.uuid} has no bytes")
        if len(self._data) + len(payload) > self.head.total_chunk_msg_size:
            raise InvalidMessage(f"chunks of {head.uuid} are larger than it says")
        self._data += payload
        self.sequences.append(sequences)
        self._watch()

    def whole(self) -> memoryview:
        """All bytes, once the last chunk has arrived; the memory counts until `end`."""
        self._stop()
        return memoryview(self._data)

    async def room(self) -> None:
        """Wait until there is room for the chunks; the connection reads nothing meanwhile."""
        if self.has_ended():
            return
        size = len(self._data) + CHUNK_BYTES * len(self.sequences)
        self._waits = True
        try:
            await self._hold.reserve(size - self._hold.held, size)
        finally:
            self._waits = False
        if self.has_ended():
            self._hold.close()

    def has_ended(self) -> bool:
        """Whether the message has ended, so that it takes no more chunks and no memory."""
        return self._has_ended

    def end(self) -> None:
        """The message was stored or refused, or its producer has closed."""
        self._has_ended = True
        self._stop()
        self._data = bytearray()
        self._hold.close()

    def _watch(self) -> None:
        self._stop()
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._idle_seconds, self._late)

    def _late(self) -> None:
        if self._waits:  # it waits for memory: that time does not count
            self._watch()
        else:
            self.end()

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


_SIZE = Struct(">I")
VERSION: Final = Struct(">q")  # a schema version, as clients write it
_NONE, _LZ4, _ZLIB, _ZSTD, _SNAPPY = range(5)
MESSAGES_MAX: Final = ids.UNCUT_MAX  # in a batch
PAIRS_MAX: Final = 100_000  # properties of all messages of a batch
ROW_BYTES: Final = 120  # of a message in memory, besides its value
PAIR_BYTES: Final = 200  # of a property
# A larger SEND is read in a thread: in the event loop it would block other clients.
COUNT_SMALL, BYTES_SMALL = 1_000, 192 << 10
_CODECS: Final = {_LZ4: "lz4_raw", _ZSTD: "zstd", _SNAPPY: "snappy"}


def is_large(head: Proto, payload: memoryview) -> bool:
    """Whether a thread should read the messages of a SEND.

    raises: InvalidMessage: more messages in a batch than ids can name
    """
    if head.encryption_keys:  # it is stored as it came
        return False
    size, count = len(payload), 0
    if head.compression != _NONE:
        size = max(size, head.uncompressed_size)
    if head.HasField("num_messages_in_batch"):
        count = head.num_messages_in_batch
    if count > MESSAGES_MAX:
        raise InvalidMessage(f"a batch of {count} messages, the most is {MESSAGES_MAX}")
    is_work = head.compression != _NONE or count > 0
    return count > COUNT_SMALL or (is_work and size > BYTES_SMALL)


def unpacked_size(head: Proto, payload: memoryview) -> int:
    """The most memory that the messages of a SEND take once they are read, in bytes."""
    size: int = len(payload)
    if head.compression != _NONE:
        size += 2 * head.uncompressed_size
    if not head.HasField("num_messages_in_batch"):
        return size
    count: int = head.num_messages_in_batch
    # a few bytes may be a property without name and text
    return size + count * ROW_BYTES + min(PAIRS_MAX, size // 2) * PAIR_BYTES


class UnpackedSend(NamedTuple):
    """The messages of a SEND.

    size:          the memory that they take, in bytes
    payload_bytes: the size of the payload, uncompressed
    """

    columns: SendColumns
    size: int
    payload_bytes: int


def unpack_send(head: Proto, payload: memoryview, most: int) -> UnpackedSend:
    """Decompress a SEND, and read its messages.

    most:   the largest allowed size when uncompressed, in bytes
    raises: InvalidMessage, LimitExceeded
    """
    data = payload
    if not head.encryption_keys:
        data = decompress(head.compression, head.uncompressed_size, payload, most)
    columns = rows_of(head, data)
    overhead = (len(columns.values) - 1) * ROW_BYTES + columns.pairs * PAIR_BYTES
    return UnpackedSend(columns, len(data) + overhead, len(data))


def decompress(kind: int, size: int, payload: memoryview, most: int) -> memoryview:
    """The uncompressed payload; this never makes more than `most` bytes.

    size:   the uncompressed size, as the client declares it
    raises: InvalidMessage
    """
    if kind == _NONE:
        return payload
    if size > most:
        raise InvalidMessage(f"{size} bytes uncompressed, the most is {most}")
    try:
        if kind == _ZLIB:
            stream = zlib.decompressobj()
            data = stream.decompress(payload, size + 1)
        else:
            data = pa.Codec(_CODECS[kind]).decompress(pa.py_buffer(payload), size, asbytes=True)
    except (zlib.error, pa.ArrowException, OSError, KeyError) as error:
        raise InvalidMessage("a payload that cannot be decompressed") from error
    if len(data) != size:
        raise InvalidMessage(f"{len(data)} bytes uncompressed, not {size} as it says")
    return memoryview(data)


class SendColumns:
    """Messages of one SEND, by column.

    is_alone:  the SEND is one message without a batch, and without a delivery time
    is_single: the SEND is one message without a batch
    pairs:     the number of properties of all messages
    """

    __slots__ = (
        "deliver_at",
        "event_times",
        "is_alone",
        "is_single",
        "keys",
        "pairs",
        "properties",
        "sequences",
        "values",
    )

    def __init__(self) -> None:
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] = []
        self.properties: list[list[tuple[str, str]] | None] = []
        self.event_times: list[int | None] = []
        self.sequences: list[int] = []
        self.deliver_at: int | None = None
        self.is_alone = self.is_single = False
        self.pairs = 0

    def add(self, head: Proto, value: bytes, sequence: int) -> None:
        """Add a message by its metadata, of either kind."""
        self.values.append(None if head.null_value else value)
        self.keys.append(_key_of(head))
        pairs = [(pair.key, pair.value) for pair in head.properties]
        self.pairs += len(pairs)
        if self.pairs > PAIRS_MAX:
            raise InvalidMessage(f"a batch of more than {PAIRS_MAX} properties")
        if head.HasField("ordering_key"):
            pairs.append((ORDERING_KEY, b64encode(head.ordering_key).decode()))
        self.properties.append(pairs or None)
        self.event_times.append(head.event_time or None)
        self.sequences.append(sequence)


def rows_of_all(sent: list[SendColumns], partitions: list[int]) -> pa.RecordBatch:
    """The rows of a SEND, or of many SENDs of one message each; columns without values are left
    out.

    Of many SENDs only the first may have properties. An empty map of properties, instead of none,
    marks a message that came without a batch (`ids`).
    """
    first = sent[0]
    properties = first.properties
    if first.is_single:
        properties = [properties[0] or []]
    if len(sent) == 1:
        values, keys = first.values, first.keys
        times, sequences, deliver = first.event_times, first.sequences, first.deliver_at
        count = len(values)
        partitions = partitions * count
    else:
        count = len(sent)
        values, keys = (
            [columns_of.values[0] for columns_of in sent],
            [columns_of.keys[0] for columns_of in sent],
        )
        properties = [properties[0], *([] for _ in range(count - 1))]
        times, sequences = (
            [columns_of.event_times[0] for columns_of in sent],
            [columns_of.sequences[0] for columns_of in sent],
        )
        deliver = None
    columns: dict[str, pa.Array] = {"value": pa.array(values, pa.binary())}
    optional = (("key", keys), ("properties", properties), ("event_time", times))
    for name, column in optional:
        if column.count(None) < count:
            columns[name] = pa.array(column, COLUMNS[name])
    if deliver is not None:
        columns["deliver_at"] = pa.array([deliver] * count, COLUMNS["deliver_at"])
    columns["sequence_id"] = pa.array(sequences, pa.int64())
    columns["partition"] = pa.array(partitions, pa.int64())
    return pa.RecordBatch.from_arrays([*columns.values()], [*columns])


def _key_of(head: Proto) -> bytes | None:
    if head.null_partition_key or not head.HasField("partition_key"):
        return None
    if not head.partition_key_b64_encoded:
        key: bytes = head.partition_key.encode()
        return key
    try:
        return b64decode(head.partition_key, validate=True)
    except (NotBase64, ValueError) as error:
        raise InvalidMessage("a key that is not base64") from error


def rows_of(metadata: Proto, payload: memoryview) -> SendColumns:
    """The messages of a SEND; payload: uncompressed. Raises InvalidMessage."""
    columns = SendColumns()
    if metadata.HasField("deliver_at_time") and metadata.deliver_at_time > 0:
        columns.deliver_at = metadata.deliver_at_time
    if metadata.encryption_keys:  # an encrypted batch is one row, with its last sequence
        last = max(metadata.sequence_id, metadata.highest_sequence_id)
        columns.add(metadata, bytes(payload), last)
        columns.properties[0] = [*(columns.properties[0] or ()), property_of(metadata)]
    elif not metadata.HasField("num_messages_in_batch"):
        columns.add(metadata, bytes(payload), metadata.sequence_id)
        columns.is_alone, columns.is_single = columns.deliver_at is None, True
    else:
        _read_batch(columns, metadata.sequence_id, metadata.num_messages_in_batch, payload)
    if max(columns.sequences) > INT64_MAX:  # sequences of a batch count up from the SEND's
        raise InvalidMessage("a sequence id does not fit into 63 bits")
    return columns


def _read_batch(columns: SendColumns, first: int, count: int, payload: memoryview) -> None:
    data = bytes(payload)
    end, at = len(data), 0
    if not 1 <= count <= end // 5:
        raise InvalidMessage(f"a batch of {count} messages in {end} bytes")
    values, sequences = columns.values, columns.sequences
    unpack = _SIZE.unpack_from
    for number in range(count):
        if at + 4 > end:
            raise InvalidMessage(f"a batch of {count} messages ends after {number}")
        (size,) = unpack(data, at)
        start = at + 4
        at = start + size
        if at > end:
            raise InvalidMessage(f"metadata of {size} bytes at the end of a batch")
        plain = _plain(data, start, at)
        if plain is None:
            head = SingleMessageMetadata()
            try:
                head.ParseFromString(data[start:at])
            except DecodeError as error:
                raise InvalidMessage("metadata of a batch that cannot be read") from error
            check(head)
            length, sequence = head.payload_size, head.sequence_id
            if not head.HasField("sequence_id"):
                sequence = first + number
            if length < 0 or at + length > end:
                raise InvalidMessage(f"a value of {length} bytes at the end of a batch")
            if len(columns.keys) < number:
                _fill(columns, number)
            columns.add(head, data[at : at + length], sequence)
            at += length
            continue
        length, sequence = plain
        if at + length > end:
            raise InvalidMessage(f"a value of {length} bytes at the end of a batch")
        values.append(data[at : at + length])
        sequences.append(first + number if sequence < 0 else sequence)
        at += length
    if at != end:
        raise InvalidMessage(f"{end - at} bytes after a batch")
    _fill(columns, count)


def _fill(columns: SendColumns, count: int) -> None:
    """Append None for messages without a key, properties and time."""
    for column in (columns.keys, columns.properties, columns.event_times):
        column.extend([None] * (count - len(column)))


def _plain(data: bytes, at: int, end: int) -> tuple[int, int] | None:
    """Size and sequence (-1: none) of metadata without other fields; None: it has others."""
    length, sequence = -1, -1
    while at < end:
        tag = data[at]
        number = shift = 0
        at += 1
        if tag == 24 or tag == 64 or tag == 40:  # payload_size, sequence_id, event_time
            while True:
                if at >= end or shift > 63:
                    return None
                byte = data[at]
                at += 1
                number |= (byte & 127) << shift
                if byte < 128:
                    break
                shift += 7
            if number > INT64_MAX:  # `check` refuses it
                return None
            if tag == 24:
                length = number
            elif tag == 64:
                sequence = number
            elif number:
                return None
        else:
            return None
    return (length, sequence) if length >= 0 else None


# --- rows as messages to a consumer --------------------------------------------------------------


class ReceivedRows:
    """Received rows of one partition, by column, as lists.

    version: of the client-declared schema, which rows do not name; None: there is no such schema
    """

    def __init__(self, table: pa.Table, version: int | None = None) -> None:
        self._version = version
        self.count = table.num_rows
        self.values: list[bytes | None] = table.column("value").to_pylist()
        self.keys = _listed(table, "key")
        self.properties = _listed(table, "properties")
        self.event_times = _listed(table, "event_time", pa.int64())
        self.publish_times: list[int | None] = (
            table.column("publish_time").cast(pa.int64()).to_pylist()
        )
        self.producers: list[str | None] = table.column("producer").to_pylist()
        self.sequences = _unsigned(table.column("sequence_id").to_pylist())
        self.entries: list[int] = table.column("entry").to_pylist()
        self.ledgers: list[int] = table.column("ledger").to_pylist()
        self.indexes = _listed(table, "index")
        self.redelivered = _listed(table, "redelivery_count")
        self.versions = _listed(table, "schema_version")

    def is_batch_of_one(self, at: int) -> bool:
        """Whether a row that is alone in its batch nevertheless came in a batch.

        A message with properties does not show it, and counts as one without a batch.
        """
        has_none = self.properties is None or self.properties[at] is None
        return has_none and self.producers[at] is not None

    def metadata(self, at: int) -> Proto:
        """The MessageMetadata of a frame that begins with this row."""
        head = MessageMetadata(
            producer_name=self.producers[at] or "",
            sequence_id=self.sequences[at] or 0,
            publish_time=max(0, self.publish_times[at] or 0),
        )
        version = None if self.versions is None else self.versions[at]
        version = self._version if version is None else version
        if version is not None:
            head.schema_version = VERSION.pack(version)
        return head

    def alone(self, at: int) -> tuple[Proto, bytes]:
        """A row as a message without a batch: its metadata and value."""
        head = self.metadata(at)
        value = self.values[at]
        if value is None:
            head.null_value = True
        self._describe(head, at)
        encrypted = None if self.properties is None else kept_in(self.properties[at])
        if encrypted is not None:
            pairs = [pair for pair in head.properties if pair.key != ENCRYPTED]
            del head.properties[:]
            head.properties.extend(pairs)
            head.MergeFrom(encrypted)
        return head, value or b""

    def has_encrypted(self, at: int, count: int) -> bool:
        """Whether one of these rows is encrypted, and so cannot be part of a batch."""
        listed = () if self.properties is None else self.properties[at : at + count]
        return any(kept_in(pairs) is not None for pairs in listed)

    def batch(self, at: int, count: int) -> tuple[Proto, bytes]:
        """Rows as a batch: its metadata and payload."""
        head = self.metadata(at)
        head.num_messages_in_batch = count
        stop = at + count
        pieces: list[bytes] = []
        is_plain = not any(
            column is not None and any(encoded is not None for encoded in column[at:stop])
            for column in (self.keys, self.properties, self.event_times)
        )
        last = -1
        for value, sequence, row in zip(
            self.values[at:stop], self.sequences[at:stop], range(at, stop), strict=True
        ):
            if is_plain and value is not None:
                encoded = b"\x18" + varint(len(value))
                if sequence is not None:
                    encoded += b"\x40" + varint(sequence)
            else:
                single = SingleMessageMetadata(payload_size=len(value or b""))
                if value is None:
                    single.null_value = True
                if sequence is not None:
                    single.sequence_id = sequence
                self._describe(single, row)
                encoded = single.SerializeToString()
            last = sequence if sequence is not None else last
            pieces += (_SIZE.pack(len(encoded)), encoded, value or b"")
        if last >= 0:
            head.highest_sequence_id = last
        return head, b"".join(pieces)

    def _describe(self, head: Proto, at: int) -> None:
        """Copy the key, properties and event time of a row into metadata."""
        if self.keys is not None and (key := self.keys[at]) is not None:
            try:
                head.partition_key = key.decode()
            except UnicodeDecodeError:
                head.partition_key = b64encode(key).decode()
                head.partition_key_b64_encoded = True
        if self.properties is not None:
            for name, text in self.properties[at] or ():
                ordering = ordering_key_in(text) if name == ORDERING_KEY else None
                if ordering is None:
                    head.properties.add(key=name, value=text)
                else:
                    head.ordering_key = ordering
        if self.event_times is not None and (time := self.event_times[at]) is not None and time > 0:
            head.event_time = time


def _unsigned(numbers: list[int | None]) -> list[int | None]:
    """Sequences of messages, without those that the protocol's unsigned field cannot hold.

    Programs could store negative ones before the library refused them.
    """
    return [None if number is None or number < 0 else number for number in numbers]


def _listed(table: pa.Table, name: str, kind: pa.DataType | None = None) -> list[Any] | None:
    """A column as a list; None if all of its values are null."""
    column = table.column(name)
    if column.null_count == table.num_rows:
        return None
    listed: list[Any] = (column if kind is None else column.cast(kind)).to_pylist()
    return listed
