"""Owns frames: bytes of a connection as commands, commands as bytes, and the values they may have.

    command    total size (4)  command size (4)  BaseCommand
    message    the same, then  0x0e01  CRC32C (4)  metadata size (4)  MessageMetadata  payload

The checksum covers all bytes after it. Sizes are big-endian and do not count themselves. The server
trusts no byte of a client: it checks every size against the available bytes before it uses the
size. After decoding and before a handler runs, `check` tests every number for its range and every
text for UTF-8. So handlers, and the code behind them, never get a number beyond 63 bits, a
meaningless negative number, or bytes instead of a text. A number is 0 to 2^63 - 1, and within its
type, unless EXCEPTIONS has another range.

Source: https://pulsar.apache.org/docs/next/developing-binary-protocol, "Framing".
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, Final, NamedTuple, TypeAlias

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from txlog.base.ids import TxnId
from txlog.base.startup.crc32c import crc32c
from txlog.errors import InvalidMessage, LimitExceeded
from txlog.serve.pulsar.messages import COMMANDS, FIELDS, BaseCommand, MessageMetadata, Proto

# --- the values of fields ---------------------------------------------------------------------

INT32_MAX: Final = (1 << 31) - 1
INT64_MAX: Final = (1 << 63) - 1
UINT64_MAX: Final = (1 << 64) - 1  # the unsigned numbers of an id write -1 so
# Ids in one command; a consumer never has more unacknowledged ids (members.HELD_MAX).
IDS_MAX: Final = 50_000
ITEMS_MAX: Final = 1_000  # in any other list: topics of a transaction, properties

_TYPES_OF_INTEGERS: Final = {
    FieldDescriptor.TYPE_INT32: INT32_MAX,
    FieldDescriptor.TYPE_UINT32: INT32_MAX,
    FieldDescriptor.TYPE_INT64: INT64_MAX,
    FieldDescriptor.TYPE_UINT64: INT64_MAX,
}


class FieldRange(NamedTuple):
    """The numbers low..high; `in_thread` is one more valid number, or None."""

    low: int
    high: int
    in_thread: int | None = None

    def __contains__(self, number: object) -> bool:
        assert isinstance(number, int)
        return self.low <= number <= self.high or number == self.in_thread


# Fields with another range, each with the reason.
EXCEPTIONS: Final = {
    # All bits set (-1) is the first message of a topic, INT64_MAX the last one.
    "MessageIdData.ledgerId": FieldRange(0, INT64_MAX, UINT64_MAX),
    "MessageIdData.entryId": FieldRange(0, INT64_MAX, UINT64_MAX),
    # -1: no partition, no message of a batch
    "MessageIdData.partition": FieldRange(-1, INT32_MAX),
    "MessageIdData.batch_index": FieldRange(-1, INT32_MAX),
    "MessageIdData.batch_size": FieldRange(-1, INT32_MAX),
    # a time before 1970, in two's complement: clients may go back further than 1970
    "CommandSeek.message_publish_time": FieldRange(0, UINT64_MAX),
    # 64 messages of a batch, a bit each
    "MessageIdData.ack_set": FieldRange(-(1 << 63), INT64_MAX),
    # -1: the holder of a transaction key has no epoch yet
    "CommandTcClientConnectRequest.epoch": FieldRange(-1, INT64_MAX),
    # Its upper 16 bits are the number of a coordinator.
    **{
        f"{message}.txnid_most_bits": FieldRange(0, UINT64_MAX)
        for message in (
            "CommandAck",
            "CommandAddPartitionToTxn",
            "CommandAddSubscriptionToTxn",
            "CommandEndTxn",
            "CommandSend",
            "MessageMetadata",
        )
    },
    # Hashes of keys have 16 bits.
    "IntRange.start": FieldRange(0, (1 << 16) - 1),
    "IntRange.end": FieldRange(0, (1 << 16) - 1),
    # In milliseconds it is an instant.
    "CommandSubscribe.start_message_rollback_duration_sec": FieldRange(0, INT64_MAX // 1_000),
}

Check: TypeAlias = Callable[[Any], None]


def check(message: Proto) -> None:
    """Refuse a command, or the metadata of a message, if a field has an invalid value.

    raises: InvalidMessage; LimitExceeded for a list that is too long
    """
    for field, value in message.ListFields():
        judge = _judge(field)
        if judge is not None:
            judge(value)


def range_of(field: FieldDescriptor) -> FieldRange | None:
    """The valid numbers of a field; None: it is not a number."""
    most = _TYPES_OF_INTEGERS.get(field.type)
    if most is None:
        return None
    owner = field.containing_type
    assert owner is not None  # it is no extension
    return EXCEPTIONS.get(f"{owner.name}.{field.name}", FieldRange(0, most))


@cache
def _judge(field: FieldDescriptor) -> Check | None:
    """The check for the value of a field; None: any value is valid."""
    if not field.is_repeated:
        return _one(field)
    name, most = _name_of(field), IDS_MAX if _is_ids(field) else ITEMS_MAX
    if field.type == FieldDescriptor.TYPE_INT64:
        return None  # bits: `ids.unacked` reads only as many as it needs
    check_one = _one(field)

    def check_all(values: Sequence[Any]) -> None:
        if len(values) > most:
            raise LimitExceeded(
                f"{name} has {len(values)} items, the most is {most}",
                setting="items",
                limit=most,
                value=len(values),
            )
        if check_one is not None:
            for value in values:
                check_one(value)

    return check_all


def _one(field: FieldDescriptor) -> Check | None:
    """The check for one value of a field."""
    numbers = range_of(field)
    if numbers is not None:
        return _number(_name_of(field), numbers)
    if field.type == FieldDescriptor.TYPE_STRING:
        return _text(_name_of(field))
    if field.message_type is None:
        return None
    return _id if field.message_type.name == "MessageIdData" else check


def _number(name: str, numbers: FieldRange) -> Check:
    low, high, extra = numbers

    def check_number(value: int) -> None:
        if not low <= value <= high and value != extra:
            raise InvalidMessage(f"{name} is {value}, it must be {low} to {high}")

    return check_number


def _text(name: str) -> Check:
    def check_text(value: str | bytes) -> None:
        if isinstance(value, bytes):  # the runtime returns bytes if a text is not UTF-8
            raise InvalidMessage(f"{name} is not UTF-8")

    return check_text


def _id(message_id: Proto) -> None:
    """As `check`, for an id, but faster: a command may have many ids."""
    has_odd_place = message_id.ledgerId > INT64_MAX or message_id.entryId > INT64_MAX
    has_odd_part = (
        message_id.partition < -1 or message_id.batch_index < -1 or message_id.batch_size < -1
    )
    if has_odd_place or has_odd_part or message_id.HasField("first_chunk_message_id"):
        check(message_id)


def _is_ids(field: FieldDescriptor) -> bool:
    kind: Descriptor | None = field.message_type
    return kind is not None and kind.name == "MessageIdData"


def _name_of(field: FieldDescriptor) -> str:
    name: str = field.name
    return name


# --- frames ------------------------------------------------------------------------------------

MAGIC: Final = b"\x0e\x01"
# Besides the largest message a frame has room for its command and metadata, as in Pulsar.
ROOM_BYTES: Final = 10 * 1024
# An acknowledgement may be larger: in a transaction each message names the unacknowledged rest of
# its batch.
ACK_BYTES_MAX: Final = 16 << 20
# Of a command without ids, besides its payload: schemas are the largest ones of clients.
COMMAND_BYTES_MAX: Final = 320 << 10
_SMALL: Final = 64 << 10  # a command up to this size is decoded without estimating its memory
_ID_BYTES: Final = 200  # the memory of an id
_WORD_BYTES: Final = 8  # the memory that a byte of an ack_set may need
_SIZES = struct.Struct(">II")
_SIZE = struct.Struct(">I")
NO_REQUEST: Final = (1 << 64) - 1  # in a command that the server starts
_KINDS: Final = frozenset(COMMANDS.values())
_ACK: Final = b"\x08%c" % COMMANDS["ACK"]  # the beginning of its BaseCommand
# The commands that name ids, and the tag of an id in them.
_ID_TAGS: Final = {COMMANDS["ACK"]: 0x1A, COMMANDS["REDELIVER_UNACKNOWLEDGED_MESSAGES"]: 0x12}


class Frame(NamedTuple):
    """A command, and the bytes after it: checksum, metadata and payload of a message.

    kind: as of BaseCommand.Type
    body: the field of that kind
    """

    kind: int
    body: Proto
    trailer: memoryview


class MessageParts(NamedTuple):
    """The parts of a message whose checksum was correct."""

    metadata: Proto
    payload: memoryview


class ChecksumMismatch(InvalidMessage):
    """The bytes differ from those that the client sent."""


class FrameDecoder:
    """Splits the bytes of one connection into frames.

    >>> frames, ping = FrameDecoder(100), encode_command("ping")
    >>> list(frames.feed(ping[:5])), [one.kind for one in frames.feed(ping[5:])]
    ([], [18])
    """

    __slots__ = ("_ack_bytes_max", "_bytes_max", "_have")

    def __init__(self, bytes_max: int) -> None:
        """bytes_max: the largest size of a frame, without its first size"""
        self._bytes_max = self._ack_bytes_max = bytes_max
        self._have = bytearray()

    @property
    def pending(self) -> int:
        """The number of bytes of an incomplete frame."""
        return len(self._have)

    @property
    def wanted(self) -> int:
        """The size of the incomplete frame in bytes; 0 without one."""
        if len(self._have) < 4:
            return 4 if self._have else 0
        size: int = _SIZE.unpack_from(self._have)[0]
        return min(size, self._ack_bytes_max) + 4

    def allow(self, bytes_max: int) -> None:
        """Allow frames of another size from now on, and large acknowledgements."""
        self._bytes_max = bytes_max
        self._ack_bytes_max = max(bytes_max, ACK_BYTES_MAX)

    def feed(self, data: bytes) -> Iterator[Frame]:
        """The frames that are now complete. Raises InvalidMessage: the rest cannot be read."""
        return map(decode_frame, self.whole(data))

    def whole(self, data: bytes) -> Iterator[memoryview]:
        """The same as bytes, without sizes: `decoded_size` estimates the memory of one."""
        have = self._have
        if have:
            have += data
            if len(have) < 4 or len(have) < self._checked(have, 0) + 4:
                return
            data = bytes(have)
            have.clear()
        view, at, stop = memoryview(data), 0, len(data)
        try:
            while stop - at >= 4:
                size = self._checked(data, at)
                if stop - at - 4 < size:
                    break
                start, at = at + 4, at + 4 + size
                yield view[start:at]
        finally:
            have += view[at:]

    def _checked(self, data: bytes | bytearray, at: int) -> int:
        """The size of the frame at a position; raises InvalidMessage."""
        size: int = _SIZE.unpack_from(data, at)[0]
        # or may become an acknowledgement
        is_ack = _ACK.startswith(data[at + 8 : at + 8 + len(_ACK)])
        if not 4 <= size <= (self._ack_bytes_max if is_ack else self._bytes_max):
            raise InvalidMessage(f"a frame of {size} bytes, 4 to {self._bytes_max} are allowed")
        return size


def decoded_size(frame: memoryview) -> int:
    """The memory of a frame's command once it is decoded, in bytes; 0: little.

    A short command may need much memory: two bytes can be a text, six an id.

    raises: InvalidMessage, for a command that no client sends
    """
    size: int = _SIZE.unpack_from(frame)[0]
    # `decode_frame` refuses a command larger than its frame
    if not _SMALL < size <= len(frame) - 4:
        return 0
    kind = frame[5] if frame[4] == _ACK[0] else 0
    tag = _ID_TAGS.get(kind)
    if tag is None:
        if size > COMMAND_BYTES_MAX:
            raise InvalidMessage(f"a command of {size} bytes, the most is {COMMAND_BYTES_MAX}")
        return size * _ID_BYTES // 2
    return _count(bytes(frame[6 : 4 + size]), kind, tag) * _ID_BYTES + size * _WORD_BYTES


def _count(data: bytes, kind: int, tag: int) -> int:
    """How many ids a command names; data: its BaseCommand without the type.

    raises: InvalidMessage if there are too many, or no client would write the command so
    """
    at, length = _varint_at(data, _varint_at(data, 0)[0])
    is_usual = _varint_at(data, 0)[1] == kind << 3 | 2 and at + length == len(data)
    count = 0
    while is_usual and at < len(data) and count <= IDS_MAX:
        if data[at] == tag and at + 1 < len(data) and data[at + 1] < 128:  # the usual case
            at += 2 + data[at + 1]
            count += 1
            continue
        at, field = _varint_at(data, at)
        at, number = _varint_at(data, at)
        if field & 7 == 2:
            at += number
        is_usual = field & 7 in (0, 2)
        count += field == tag
    if count > IDS_MAX:
        raise InvalidMessage(f"a command that names more than {IDS_MAX} ids")
    if not is_usual:
        raise InvalidMessage("a large command that is not written as clients write it")
    return count


def _varint_at(data: bytes, at: int) -> tuple[int, int]:
    """The position after a number, and the number. Raises InvalidMessage."""
    number = shift = 0
    for position in range(at, min(at + 10, len(data))):
        number |= (data[position] & 127) << shift
        if data[position] < 128:
            return position + 1, number
        shift += 7
    raise InvalidMessage("a command that cannot be read")


def decode_frame(frame: memoryview) -> Frame:
    """Decode a frame without its first size. Raises InvalidMessage."""
    (size,) = _SIZE.unpack_from(frame)
    if size > len(frame) - 4:
        raise InvalidMessage(f"a command of {size} bytes in a frame of {len(frame)}")
    try:
        command = BaseCommand.FromString(frame[4 : 4 + size])
    except DecodeError as error:
        raise InvalidMessage("a command that cannot be read") from error
    kind = command.type
    name = FIELDS[kind]
    if not command.HasField(name):
        raise InvalidMessage(f"a command of type {kind} without its field {name}")
    return Frame(kind, getattr(command, name), frame[4 + size :])


def split_message(trailer: memoryview) -> MessageParts:
    """The metadata and payload of a message.

    raises: ChecksumMismatch, InvalidMessage, LimitExceeded; the connection can continue
    """
    if bytes(trailer[:2]) == MAGIC:
        if len(trailer) < 6:
            raise InvalidMessage("a message without its checksum")
        (checksum,) = _SIZE.unpack_from(trailer, 2)
        trailer = trailer[6:]
        if crc32c(trailer) != checksum:
            raise ChecksumMismatch("the checksum of a message is wrong")
    if len(trailer) < 4:
        raise InvalidMessage("a message without metadata")
    (size,) = _SIZE.unpack_from(trailer)
    if size > len(trailer) - 4:
        raise InvalidMessage(f"metadata of {size} bytes in {len(trailer)}")
    try:
        metadata = MessageMetadata.FromString(trailer[4 : 4 + size])
    except DecodeError as error:
        raise InvalidMessage("metadata that cannot be read") from error
    check(metadata)
    return MessageParts(metadata, trailer[4 + size :])


def encode_command(name: str, /, **fields: object) -> bytes:
    """The frame of a command: the name of its field in BaseCommand, and its fields.

    A field that is None is left out.
    """
    return frame_command(make_command(name, **fields))


def make_command(name: str, /, **fields: object) -> Proto:
    """A command; arguments as in `encode_command`."""
    command = BaseCommand()
    command.type = BY_FIELD[name]
    body = getattr(command, name)
    body.SetInParent()
    for field, value in fields.items():
        if value is None:
            continue
        if isinstance(value, list | tuple):
            getattr(body, field).extend(value)
        elif hasattr(value, "SerializeToString"):
            getattr(body, field).CopyFrom(value)
        else:
            setattr(body, field, value)
    return command


BY_FIELD: Final = {name: number for number, name in FIELDS.items()}


def frame_command(command: Proto) -> bytes:
    """The frame of a command without payload."""
    data: bytes = command.SerializeToString()
    return _SIZES.pack(len(data) + 4, len(data)) + data


def receipt_frame(
    producer: int, sequence: int, highest: int, ledger: int, entry: int, partition: int
) -> bytes:
    """The frame of a SEND_RECEIPT, as from `encode_command`, but several times as fast.

    highest:       0 is left out
    ledger, entry: -1 is written as the protocol's unsigned numbers write it
    """
    message_id = b"\x08%b\x10%b\x18%b" % (
        varint(ledger & NO_REQUEST),
        varint(entry & NO_REQUEST),
        varint(partition & NO_REQUEST),
    )
    body = b"\x08%b\x10%b\x1a%b%b" % (
        varint(producer),
        varint(sequence),
        varint(len(message_id)),
        message_id,
    )
    if highest:
        body += b"\x20" + varint(highest)
    data = b"\x08\x07\x3a%b%b" % (varint(len(body)), body)
    return _SIZES.pack(len(data) + 4, len(data)) + data


def txn_frame(name: str, request: int, txn_id: TxnId) -> bytes:
    """The frame of an answer that names a transaction, as from `encode_command`, but faster.

    name: newTxnResponse, addPartitionToTxnResponse, addSubscriptionToTxnResponse or endTxnResponse
    """
    kind = BY_FIELD[name]
    least, most = varint(txn_id.least), varint(txn_id.most)
    body = b"\x08%b\x10%b\x18%b" % (varint(request), least, most)
    data = b"\x08%b%b%b%b" % (varint(kind), varint(kind << 3 | 2), varint(len(body)), body)
    return _SIZES.pack(len(data) + 4, len(data)) + data


def varint(number: int) -> bytes:
    """A number as the runtime writes it; not negative."""
    if number < 128:
        return _SHORT[number]
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    out.append(number)
    return bytes(out)


_SHORT: Final[Sequence[bytes]] = [bytes([one]) for one in range(128)]


def message_frame(command: bytes, metadata: bytes, payload: bytes | memoryview) -> list[bytes]:
    """The frame of a command with a message, as pieces to write one after the other.

    command: a serialized BaseCommand
    """
    size = _SIZE.pack(len(metadata))
    crc = crc32c(payload, crc32c(metadata, crc32c(size)))
    total = 4 + len(command) + 2 + 4 + 4 + len(metadata) + len(payload)
    head = _SIZES.pack(total, len(command)) + command + MAGIC + _SIZE.pack(crc) + size + metadata
    return [head, bytes(payload)]


assert set(FIELDS) == _KINDS  # a command and its field have the same number
