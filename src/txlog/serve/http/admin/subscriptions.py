"""Owns the endpoints of subscriptions: creating, skipping, expiring, seeking, peeking, deleting."""

from __future__ import annotations

from typing import Final

from txlog.base.ids import TopicName
from txlog.base.ranges import END, START, Bound, Range
from txlog.client.client import Client
from txlog.engine.door.reading import Where, messages
from txlog.errors import InvalidArgument, MessageNotFound
from txlog.serve.http.admin.topics import TOPIC, pulsar_id_text, store_id
from txlog.serve.http.core.answers import MessageAnswer, check_size
from txlog.serve.http.core.declared import CONSUME, LOOK, EndpointList, members

SUBSCRIPTION: Final = f"{TOPIC}/subscription/{{subscription}}"
_ENDS_OF_TIME: Final = (1 << 63) - 1  # what Pulsar's clients send for the latest message
endpoint = EndpointList()


@endpoint("GET", f"{TOPIC}/subscriptions", LOOK)
def subscriptions(client: Client, topic: TopicName) -> list[str]:
    """The subscriptions of a topic."""
    return [row["subscription"] for row in client.subscriptions(str(topic))]


@endpoint("PUT", SUBSCRIPTION, CONSUME)
def create_subscription(
    client: Client, topic: TopicName, subscription: str, body: object = None
) -> None:
    """Create a subscription; the body is its start position, the end of the topic by default."""
    client.create_subscription(
        topic.full, subscription, type="shared", position=_position(client, body)
    )


@endpoint("DELETE", SUBSCRIPTION, CONSUME)
def delete_subscription(
    client: Client, topic: TopicName, subscription: str, force: bool = False
) -> None:
    """Delete a subscription; force: even with consumers."""
    client.subscription(topic.full, subscription).delete(force=force)


@endpoint("POST", f"{SUBSCRIPTION}/skip_all", CONSUME)
def skip_all(client: Client, topic: TopicName, subscription: str) -> None:
    """Acknowledge everything."""
    client.subscription(str(topic), subscription).clear_backlog()


@endpoint("POST", f"{SUBSCRIPTION}/skip/{{messages}}", CONSUME)
def skip(client: Client, topic: TopicName, subscription: str, messages: int) -> None:
    """Acknowledge the next messages of each partition."""
    client.subscription(str(topic), subscription).skip(messages)


@endpoint("POST", f"{SUBSCRIPTION}/expireMessages/{{seconds}}", CONSUME)
def expire(client: Client, topic: TopicName, subscription: str, seconds: int) -> None:
    """Acknowledge all messages older than this."""
    client.subscription(str(topic), subscription).expire(seconds * 1000)


@endpoint("POST", f"{TOPIC}/all_subscription/expireMessages/{{seconds}}", CONSUME, is_aside=True)
def expire_all(client: Client, topic: TopicName, seconds: int) -> None:
    """Acknowledge all messages older than this, for all subscriptions."""
    for name in subscriptions(client, topic):
        client.subscription(str(topic), name).expire(seconds * 1000)


@endpoint("POST", f"{SUBSCRIPTION}/resetcursor/{{timestamp}}", CONSUME)
def seek_to_time(client: Client, topic: TopicName, subscription: str, timestamp: int) -> None:
    """Move to the first message that became visible at an instant or later."""
    client.subscription(str(topic), subscription).seek(Bound("time", timestamp))


@endpoint("POST", f"{SUBSCRIPTION}/resetcursor", CONSUME)
def seek(client: Client, topic: TopicName, subscription: str, body: object) -> None:
    """Move to before a message, or with isExcluded after it."""
    client.subscription(str(topic), subscription).seek(_position(client, body))


def _position(client: Client, body: object) -> Where:
    """The position in a body: latest, earliest, or an id as Pulsar writes it; none is latest."""
    if body in ("latest", "earliest"):
        return END if body == "latest" else START
    fields = members(body)
    ledger = fields.get("ledgerId")
    if ledger is None or ledger == _ENDS_OF_TIME:
        return END
    if ledger == -1:
        return START
    is_behind = bool(fields.get("isExcluded"))
    message_id = store_id(client, fields, is_last=is_behind)
    return Bound("after" if is_behind else "id", message_id)


# --- peeking ---------------------------------------------------------------------------------


@endpoint("GET", f"{SUBSCRIPTION}/position/{{number}}", CONSUME, is_slow=True)
def peek(client: Client, topic: TopicName, subscription: str, number: int) -> MessageAnswer:
    """The n-th message that is not acknowledged, from 1, with its metadata as headers."""
    client.subscription(str(topic), subscription)
    unacked = Range(kind="unacked", subscription=subscription)
    return _nth(client, topic, unacked, number)


@endpoint("GET", f"{TOPIC}/ledger/{{ledger}}/entry/{{entry}}", CONSUME, is_slow=True)
def message_at(client: Client, topic: TopicName, ledger: int, entry: int) -> MessageAnswer:
    """A message by its id."""
    message_id = store_id(client, {"ledgerId": ledger, "entryId": entry}, is_last=False)
    answer = _nth(client, topic, Range(start=Bound("id", message_id), stop=END), 1)
    if answer.message.message_id != message_id:
        raise MessageNotFound(f"topic {topic} has no message {ledger}:{entry}")
    return answer


@endpoint("GET", f"{TOPIC}/examinemessage", CONSUME, is_slow=True)
def examine(
    client: Client, topic: TopicName, initialPosition: str = "latest", messagePosition: int = 1
) -> MessageAnswer:
    """The n-th message, counted from the first, or back from the last."""
    if initialPosition == "earliest":
        return _nth(client, topic, Range(stop=END), messagePosition)
    bound = Bound("last", messagePosition)
    return _nth(client, topic, Range(start=bound, stop=END), 1)


def _nth(client: Client, topic: TopicName, bounds: Range, number: int) -> MessageAnswer:
    if number < 1:
        raise InvalidArgument(f"{number} is not a place, they count from 1", code=203)
    only = None if topic.partition is None else [topic.partition]
    seen = 0
    for table in client.read(topic.full, range=bounds, partitions=only, limit=number):
        if seen + table.num_rows >= number:
            row = table.slice(number - seen - 1, 1)
            check_size(row)
            [message] = messages(row)
            assert message.message_id is not None
            return MessageAnswer(message, pulsar_id_text(client, message.message_id))
        seen += table.num_rows
    raise MessageNotFound(f"topic {topic} has only {seen} such messages")


@endpoint("POST", f"{SUBSCRIPTION}/analyzeBacklog", LOOK)
def analyze_backlog(client: Client, topic: TopicName, subscription: str) -> dict[str, object]:
    """The backlog of a subscription; a store filters nothing."""
    described = client.subscription(str(topic), subscription).describe()
    parts = [
        row
        for row in described["partition_list"]
        if topic.partition is None or row["partition"] == topic.partition
    ]
    count = sum(row["backlog"] for row in parts)
    zeros = [
        f"filter{outcome}{unit}"
        for outcome in ("Rejected", "Rescheduled")
        for unit in ("Entries", "Messages")
    ]
    return {
        **dict.fromkeys(zeros, 0),
        **dict.fromkeys(
            ("entries", "messages", "filterAcceptedEntries", "filterAcceptedMessages"), count
        ),
        "aborted": False,
    }
