"""Owns the endpoints that send and read messages, beside Pulsar's REST producer.

What a request sends is one transaction: all of it is visible at once, or nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from typing import Any, Final

from txlog.base.ids import TopicName
from txlog.base.ranges import Bound, Range
from txlog.client.client import Client
from txlog.engine.door.reading import Message, messages
from txlog.engine.door.sending import SendReceipt
from txlog.errors import InvalidArgument, LimitExceeded
from txlog.serve.http.core.answers import Sliced, check_size, dumped
from txlog.serve.http.core.declared import CONSUME, PRODUCE, Declared, members
from txlog.serve.http.data.messages import as_json, number_in, value_of

TOPICS: Final = "/topics/persistent/{tenant}/{namespace}/{topic}"
LIMIT_MAX: Final = 10_000
MESSAGES_MAX: Final = 10_000  # of a request
TOGETHER: Final = 250  # that are stored or read at once, while others wait
MESSAGE_BYTES: Final = 256  # what a message costs beside its value
ANSWER_BYTES: Final = 8 << 20  # of messages; the message that passes it is the last one
endpoint = Declared()


@endpoint("POST", TOPICS, PRODUCE)
def produce(client: Client, topic: TopicName, body: object) -> dict[str, object]:
    """Send messages in one transaction: {producerName, messages: [{payload, key, ...}]}.

    A message has payload or payloadBase64, and may have key, properties, eventTime, sequenceId,
    deliverAt, deliverAfterMs.
    """
    given = members(body)
    rows = given.get("messages")
    if not isinstance(rows, list) or not rows:
        raise InvalidArgument('the body has to be {"messages": [{"payload": "..."}]}')
    if len(rows) > MESSAGES_MAX:
        raise LimitExceeded(
            f"a request with {len(rows)} messages, the most is {MESSAGES_MAX}",
            setting="messages",
            limit=MESSAGES_MAX,
            value=len(rows),
        )
    name = given.get("producerName")
    options = [_options(members(row)) for row in rows]
    producer = client.producer(str(topic), name)
    receipts = list[SendReceipt]()
    with client.transaction() as txn:
        for at in range(0, len(options), TOGETHER):
            few = options[at : at + TOGETHER]
            sent = [producer.send_async(value, txn=txn, **one) for value, one in few]
            receipts += [one.result() for one in sent]
    ended = client.commit(txn.id)
    markers = {row["partition"]: row["marker"] for row in ended["marker_list"]}
    results: list[dict[str, object]] = []
    for receipt in receipts:
        marker = markers.get(receipt.partition)
        place = "" if marker is None else f"{marker.ledger}:{marker.entry}:{receipt.txn_index}"
        results.append(
            {
                "messageId": place,
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
    """The value of a message and what `send` takes beside it."""
    found = {
        "key": row.get("key"),
        "properties": row.get("properties"),
        "event_time": number_in(row, "eventTime") or None,
        "sequence_id": number_in(row, "sequenceId"),
        "deliver_at": number_in(row, "deliverAt") or None,
        "deliver_after": number_in(row, "deliverAfterMs") or None,
    }
    return value_of(row), {name: value for name, value in found.items() if value is not None}


@endpoint("GET", TOPICS, CONSUME)
def read(
    client: Client, topic: TopicName, now_ms: int, start: str = "start", limit: int = 100
) -> Sliced:
    """Read messages from a place on: {messages, next}.

    start: start, end, -N, an id, after=ID, or @TIME; next: the start of what follows, of a topic
    with one partition, or of one partition. An answer ends after 8 MiB of messages.
    """
    if not 0 < limit <= LIMIT_MAX:
        raise InvalidArgument(f"limit is {limit}, it must be between 1 and {LIMIT_MAX}", code=203)
    return Sliced(_pieces(client, topic, Bound.parse(start, now_ms), start, limit))


def _pieces(
    client: Client, topic: TopicName, bound: Bound, start: str, limit: int
) -> Iterator[Callable[[], bytes]]:
    """What makes the pieces of an answer; each step reads a few messages.

    raises: LimitExceeded
    """
    only = None if topic.partition is None else [topic.partition]
    is_one = only is not None or client.describe_topic(topic.full)["partitions"] == 1
    tables = client.read(
        topic.full, range=Range(start=bound), partitions=only, limit=limit, batch_messages=TOGETHER
    )
    before, size, follows = b'{"messages":[', 0, start if is_one else None
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
            yield partial(_rows, before, few)
            before = b","
        if len(few) < table.num_rows:
            if not is_one:
                raise LimitExceeded(
                    "the messages have more than 8 MiB",
                    hint="read one partition at a time, or with a smaller limit",
                    limit=ANSWER_BYTES,
                )
            break
    end = b'],"next":%s}' % dumped(follows)
    yield partial(bytes, end if before == b"," else before + end)


def _rows(before: bytes, few: list[Message]) -> bytes:
    return before + dumped([as_json(one) for one in few])[1:-1]


def _size_of(message: Message) -> int:
    """About the bytes of a message in an answer."""
    pairs = sum(map(len, chain.from_iterable(message.properties.items())))
    return len(message.value or b"") + pairs + MESSAGE_BYTES
