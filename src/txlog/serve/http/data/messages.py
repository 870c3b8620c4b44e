"""Owns messages as JSON, the endpoints that send and read them, and ids as WebSocket writes them.

An id there is the base64 of Pulsar's MessageIdData; clients return it unchanged. The number of a
message in its transaction, from 1, is its batch index.

The endpoints follow Pulsar's REST producer. The messages of a request are one transaction: they
become visible together, or not at all.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Any, Final

from txlog.base.ids import MessageId, TopicName
from txlog.base.ranges import Bound, Range
from txlog.client.aio import Reader
from txlog.client.client import Client
from txlog.engine.door.reading import Message, messages
from txlog.engine.door.sending import SendReceipt
from txlog.errors import InvalidArgument, LimitExceeded
from txlog.serve.http.core.answers import SlicedAnswer, check_size, to_json
from txlog.serve.http.core.context import HttpContext
from txlog.serve.http.core.declared import CONSUME, PRODUCE, EndpointList, members
from txlog.serve.limits.budget import Reservation

_FIELDS: Final = (1, 2, 3, 4)  # ledgerId, entryId, partition, batch_index
_BITS: Final = 64
_INT64: Final = range(1 << 63)
_DIGITS_MAX: Final = 100
AHEAD_MAX, AHEAD_BYTES = 1_000, 1 << 20  # about how much a tail reads in one step


def as_json(message: Message) -> dict[str, object]:
    """A message for REST and events: the fields of `txlog consume`; bytes that are no text are in
    value_base64 and key_base64.
    """
    fields: dict[str, object] = {
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
        name: value for name, value in fields.items() if name in always or value not in (None, {})
    }


async def tail_of(
    serving: HttpContext, hold: Reservation, reader: Reader
) -> AsyncGenerator[Message, None]:
    """The messages of a reader, without end; messages that the client has not read count in the
    reservation.

    raises: LimitExceeded: a message is too large; ConnectionResetError: the client has disconnected
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


def encode_id(message_id: MessageId, partition: int) -> str:
    """An id as WebSocket clients get it."""
    values = (message_id.ledger, message_id.entry, partition, message_id.index)
    data = bytearray()
    for field, value in zip(_FIELDS, values, strict=True):
        if field <= 3 or value:
            data.append(field << 3)
            _put(data, value)
    return base64.b64encode(data).decode()


def decode_id(text: object) -> MessageId:
    """The id that a client returns. Raises InvalidArgument."""
    try:
        data = base64.b64decode(text, validate=True) if isinstance(text, str) else b""
    except (binascii.Error, ValueError):
        data = b""
    fields: dict[int, int] = {}
    at = 0
    while at < len(data) and data[at] & 7 == 0:
        field = data[at] >> 3
        value, at = _take(data, at + 1)
        fields[field] = value
    if at != len(data) or not {1, 2} <= fields.keys():
        raise InvalidArgument(f"not a message id: {str(text)[:80]!r}", code=203)
    if fields[1] not in _INT64 or fields[2] not in _INT64:
        raise InvalidArgument(f"not a message id: {str(text)[:80]!r}", code=203)
    index = fields.get(4, 0)
    return MessageId(fields[1], fields[2], index if index < 1 << 31 else 0)


def number_in(fields: Mapping[str, object], name: str) -> int | None:
    """A number of JSON or a query, 0 to 2^63 - 1, perhaps as text; None: it is missing.

    raises: InvalidArgument (203)
    """
    value = fields.get(name)
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


def value_of(fields: dict[str, Any], name: str = "payload") -> bytes | None:
    """The value of a message to send: text, or bytes as `{name}Base64`; null deletes its key.

    raises: InvalidArgument
    """
    encoded = fields.get(f"{name}Base64")
    if encoded is not None:
        return decode_base64(encoded)
    text = fields.get(name)
    if text is None or isinstance(text, str):
        return None if text is None else text.encode()
    raise InvalidArgument(f"{name} has to be text, or bytes in {name}Base64")


def decode_base64(text: object) -> bytes:
    """The bytes of base64. Raises InvalidArgument, which does not contain them."""
    try:
        return base64.b64decode(str(text), validate=True)
    except (binascii.Error, ValueError):
        raise InvalidArgument("the payload is not base64") from None


# --- REST -----------------------------------------------------------------------------------------


TOPICS: Final = "/topics/persistent/{tenant}/{namespace}/{topic}"
LIMIT_MAX: Final = 10_000
MESSAGES_MAX: Final = 10_000  # in one request
MESSAGES_PER_STEP: Final = 250  # stored or read in one step, while other clients wait
MESSAGE_BYTES: Final = 256  # the memory of a message besides its value
ANSWER_BYTES: Final = 8 << 20  # of messages; the message that exceeds it is the last one
endpoint = EndpointList()


@endpoint("POST", TOPICS, PRODUCE)
def produce(client: Client, topic: TopicName, body: object) -> dict[str, object]:
    """Send messages in one transaction: {producerName, messages: [{payload, key, ...}]}.

    A message has payload or payloadBase64, and may have key, properties, eventTime, sequenceId,
    deliverAt, deliverAfterMs.
    """
    fields = members(body)
    rows = fields.get("messages")
    if not isinstance(rows, list) or not rows:
        raise InvalidArgument('the body has to be {"messages": [{"payload": "..."}]}')
    if len(rows) > MESSAGES_MAX:
        raise LimitExceeded(
            f"a request with {len(rows)} messages, the most is {MESSAGES_MAX}",
            setting="messages",
            limit=MESSAGES_MAX,
            value=len(rows),
        )
    name = fields.get("producerName")
    options = [_options(members(row)) for row in rows]
    producer = client.producer(str(topic), name)
    receipts = list[SendReceipt]()
    with client.transaction() as txn:
        for at in range(0, len(options), MESSAGES_PER_STEP):
            few = options[at : at + MESSAGES_PER_STEP]
            sent = [producer.send_async(value, txn=txn, **send) for value, send in few]
            receipts += [send.result() for send in sent]
    ended = client.commit(txn.id)
    markers = {row["partition"]: row["marker"] for row in ended["marker_list"]}
    results: list[dict[str, object]] = []
    for receipt in receipts:
        marker = markers.get(receipt.partition)
        message_id = "" if marker is None else f"{marker.ledger}:{marker.entry}:{receipt.txn_index}"
        results.append(
            {
                "messageId": message_id,
                "errorCode": 0,
                "schemaVersion": 0,
                "partition": receipt.partition,
                "duplicate": receipt.duplicate,
            }
        )
    return {"messagePublishResults": results, "schemaVersion": 0, "txn": txn.id}


@endpoint("POST", f"{TOPICS}/partitions/{{partition}}", PRODUCE)
def produce_to_partition(
    client: Client, topic: TopicName, partition: int, body: object
) -> dict[str, object]:
    """Send messages to one partition, in one transaction."""
    return produce(client, TopicName(topic.tenant, topic.namespace, topic.name, partition), body)


def _options(row: dict[str, Any]) -> tuple[bytes | None, dict[str, Any]]:
    """The value of a message, and the other arguments of `send`."""
    options = {
        "key": row.get("key"),
        "properties": row.get("properties"),
        "event_time": number_in(row, "eventTime") or None,
        "sequence_id": number_in(row, "sequenceId"),
        "deliver_at": number_in(row, "deliverAt") or None,
        "deliver_after": number_in(row, "deliverAfterMs") or None,
    }
    return value_of(row), {name: value for name, value in options.items() if value is not None}


@endpoint("GET", TOPICS, CONSUME)
def read(
    client: Client, topic: TopicName, now_ms: int, start: str = "start", limit: int = 100
) -> SlicedAnswer:
    """Read messages from a position on: {messages, next}.

    start: start, end, -N, an id, after=ID, or @TIME
    next:  the start for the next request, for a topic with one partition or a single partition. An
           answer ends after 8 MiB of messages.
    """
    if not 0 < limit <= LIMIT_MAX:
        raise InvalidArgument(f"limit is {limit}, it must be between 1 and {LIMIT_MAX}", code=203)
    return SlicedAnswer(_pieces(client, topic, Bound.parse(start, now_ms), start, limit))


def _pieces(
    client: Client, topic: TopicName, bound: Bound, start: str, limit: int
) -> Iterator[Callable[[], bytes]]:
    """The functions that make the pieces of an answer; each step reads a few messages.

    raises: LimitExceeded
    """
    only = None if topic.partition is None else [topic.partition]
    is_one = only is not None or client.describe_topic(topic.full)["partitions"] == 1
    tables = client.read(
        topic.full,
        range=Range(start=bound),
        partitions=only,
        limit=limit,
        batch_messages=MESSAGES_PER_STEP,
    )
    prefix, size, follows = b'{"messages":[', 0, start if is_one else None
    for table in tables:
        check_size(table)
        few = list[Message]()
        for message in messages(table):
            if size > ANSWER_BYTES:
                break
            few.append(message)
            size += _size_of(message)
        if few:
            follows = f"after={few[-1].message_id}" if is_one else None
            yield partial(_rows, prefix, few)
            prefix = b","
        if len(few) < table.num_rows:
            if not is_one:
                raise LimitExceeded(
                    "the messages have more than 8 MiB",
                    hint="read one partition at a time, or with a smaller limit",
                    limit=ANSWER_BYTES,
                )
            break
    end = b'],"next":%s}' % to_json(follows)
    yield partial(bytes, end if prefix == b"," else prefix + end)


def _rows(prefix: bytes, few: list[Message]) -> bytes:
    return prefix + to_json([as_json(message) for message in few])[1:-1]


def _size_of(message: Message) -> int:
    """About the bytes of a message in an answer."""
    pairs = sum(map(len, chain.from_iterable(message.properties.items())))
    return len(message.value or b"") + pairs + MESSAGE_BYTES
