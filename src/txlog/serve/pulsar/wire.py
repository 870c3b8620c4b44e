"""Owns frames: bytes of a connection as commands, and commands as bytes.

    command    total size (4)  command size (4)  BaseCommand
    message    the same, then  0x0e01  CRC32C (4)  metadata size (4)  MessageMetadata  payload

The checksum covers all bytes after it. Sizes are big-endian and do not count themselves. The server
trusts no byte of a client: it checks every size against the available bytes before it uses the
size.

Source: https://pulsar.apache.org/docs/next/developing-binary-protocol, "Framing".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from txlog.base.ids import TxnId
from txlog.base.startup.crc32c import crc32c
from txlog.errors import InvalidMessage
from txlog.serve.pulsar.messages import (
    COMMANDS,
    FIELDS,
    IDS_MAX,
    BaseCommand,
    MessageMetadata,
    Proto,
    check,
)

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

    >>> frames, ping = Frames(100), encoded("ping")
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
