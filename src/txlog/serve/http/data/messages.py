"""Owns a message as JSON, and ids as Pulsar's WebSocket protocol writes them.

An id there is the base64 of Pulsar's MessageIdData; clients hand it back as they got it. The number
of a message in its transaction, from 1, is its batch index.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import AsyncGenerator, Mapping
from functools import partial
from typing import Any, Final

from txlog.base.ids import MessageId
from txlog.client.aio import Reader
from txlog.engine.door.reading import Message, messages
from txlog.errors import InvalidArgument
from txlog.serve.core.budget import Hold
from txlog.serve.http.core.answers import check_size
from txlog.serve.http.core.gate import Serving

_FIELDS: Final = (1, 2, 3, 4)  # ledgerId, entryId, partition, batch_index
_BITS: Final = 64
_INT64: Final = range(1 << 63)
_DIGITS_MAX: Final = 100
AHEAD_MAX, AHEAD_BYTES = 1_000, 1 << 20  # what a tail reads at once, about


def as_json(message: Message) -> dict[str, object]:
    """A message for REST and events: the fields of `txlog consume`; bytes that are no text are in
    value_base64 and key_base64."""
    found: dict[str, object] = {
        "message_id": message.message_id,
        "partition": message.partition,
        **_text("key", message.key),
        **_text("value", message.value),
        "properties": message.properties,
        "publish_time": message.publish_time,
        "event_time": message.event_time,
        "deliver_at": message.deliver_at,
        "producer": message.producer,
        "sequence_id": message.sequence_id,
        "txn": message.txn,
        "schema_version": message.schema_version,
    }
    always = ("message_id", "partition", "value", "publish_time")
    return {
        name: value for name, value in found.items() if name in always or value not in (None, {})
    }


async def followed(serving: Serving, hold: Hold, reader: Reader) -> AsyncGenerator[Message, None]:
    """The messages of a reader for ever; those that nobody has taken count in the hold.

    raises: LimitExceeded: a message is too large; ConnectionResetError: the client has gone
    """
    count, waits = 1, reader.waits
    has_more = reader.sync.has_message_available
    while True:
        table = await serving.read(
            hold, partial(reader.receive_batch, count), lambda table: int(table.nbytes)
        )
        if not table.num_rows:
            hold.release(int(table.nbytes))
            count = 1
            await waits.until(lambda _: has_more() or None, None, reader.sync._rest)
            continue
        check_size(table)
        for message in messages(table):
            yield message
        size = int(table.nbytes)
        hold.release(size)
        count = max(1, min(2 * count, AHEAD_MAX, AHEAD_BYTES * table.num_rows // max(size, 1)))


def _text(name: str, value: bytes | None) -> dict[str, object]:
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {name: None, f"{name}_base64": base64.b64encode(value).decode()}


def packed(place: MessageId, partition: int) -> str:
    """An id as WebSocket clients get it."""
    values = (place.ledger, place.entry, partition, place.index)
    data = bytearray()
    for field, value in zip(_FIELDS, values, strict=True):
        if field <= 3 or value:
            data.append(field << 3)
            _put(data, value)
    return base64.b64encode(data).decode()


def unpacked(text: object) -> MessageId:
    """The id that a client hands back. Raises InvalidArgument."""
    try:
        data = base64.b64decode(text, validate=True) if isinstance(text, str) else b""
    except (binascii.Error, ValueError):
        data = b""
    found: dict[int, int] = {}
    at = 0
    while at < len(data) and data[at] & 7 == 0:
        field = data[at] >> 3
        value, at = _take(data, at + 1)
        found[field] = value
    if at != len(data) or not {1, 2} <= found.keys():
        raise InvalidArgument(f"not a message id: {str(text)[:80]!r}", code=203)
    if found[1] not in _INT64 or found[2] not in _INT64:
        raise InvalidArgument(f"not a message id: {str(text)[:80]!r}", code=203)
    index = found.get(4, 0)
    return MessageId(found[1], found[2], index if index < 1 << 31 else 0)


def number_in(given: Mapping[str, object], name: str) -> int | None:
    """A number of JSON or a query, 0 to 2^63 - 1, perhaps as text; None: there is none.

    raises: InvalidArgument (203)
    """
    value = given.get(name)
    if value is None or value == "":
        return None
    text = str(value)
    is_number = text.isascii() and text.isdecimal() and len(text) < _DIGITS_MAX
    if isinstance(value, bool) or not is_number or int(text) not in _INT64:
        raise InvalidArgument(
            f"{name} is {text[:80]!r}, it must be a number from 0 to 2^63 - 1", code=203
        )
    return int(text)


def _put(data: bytearray, value: int) -> None:
    while value > 127:
        data.append(value & 127 | 128)
        value >>= 7
    data.append(value)


def _take(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < _BITS:
        value |= (data[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if data[at - 1] < 128:
            return value, at
    raise InvalidArgument("not a message id: it ends too early", code=203)


def value_of(given: dict[str, Any], name: str = "payload") -> bytes | None:
    """The value of a message to send: text, or bytes as `{name}Base64`; null deletes its key.

    raises: InvalidArgument
    """
    encoded = given.get(f"{name}Base64")
    if encoded is not None:
        return decoded(encoded)
    text = given.get(name)
    if text is None or isinstance(text, str):
        return None if text is None else text.encode()
    raise InvalidArgument(f"{name} has to be text, or bytes in {name}Base64")


def decoded(text: object) -> bytes:
    """The bytes of base64. Raises InvalidArgument, which does not repeat them."""
    try:
        return base64.b64decode(str(text), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidArgument("the payload is not base64") from None
