"""Owns the endpoints of subscriptions: creating, skipping, expiring, seeking, peeking, deleting."""

from __future__ import annotations

from typing import Final

from txlog.base.ids import TopicName
from txlog.base.ranges import END, START, Bound, Range
from txlog.client.client import Client
from txlog.engine.door.reading import Where, messages
from txlog.errors import InvalidArgument, MessageNotFound
from txlog.serve.http.admin.places import message_of, wire_text
from txlog.serve.http.admin.topics import TOPIC
from txlog.serve.http.core.answers import Peeked, check_size
from txlog.serve.http.core.declared import CONSUME, LOOK, Declared, members

SUBSCRIPTION: Final = f"{TOPIC}/subscription/{{subscription}}"
_ENDS_OF_TIME: Final = (1 << 63) - 1  # what Pulsar's clients send for the latest message
endpoint = Declared()


@endpoint("GET", f"{TOPIC}/subscriptions", LOOK)
def subscriptions(client: Client, topic: TopicName) -> list[str]:
    """The subscriptions of a topic."""
    return [row["subscription"] for row in client.subscriptions(str(topic))]


@endpoint("PUT", SUBSCRIPTION, CONSUME)
def create_subscription(
    client: Client, topic: TopicName, subscription: str, body: object = None
) -> None:
    """Create a subscription; the body says where it starts, at the end if there is none."""
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
    """Acknowledge what is older."""
    client.subscription(str(topic), subscription).expire(seconds * 1000)


@endpoint("POST", f"{TOPIC}/all_subscription/expireMessages/{{seconds}}", CONSUME, is_aside=True)
def expire_all(client: Client, topic: TopicName, seconds: int) -> None:
    """Acknowledge what is older, for all subscriptions."""
    for name in subscriptions(client, topic):
        client.subscription(str(topic), name).expire(seconds * 1000)


@endpoint("POST", f"{SUBSCRIPTION}/resetcursor/{{timestamp}}", CONSUME)
def seek_to_time(client: Client, topic: TopicName, subscription: str, timestamp: int) -> None:
    """Move to the first message that became visible at an instant or later."""
    client.subscription(str(topic), subscription).seek(Bound("time", timestamp))


@endpoint("POST", f"{SUBSCRIPTION}/resetcursor", CONSUME)
def seek(client: Client, topic: TopicName, subscription: str, body: object) -> None:
    """Move to before a message, or with isExcluded behind it."""
    client.subscription(str(topic), subscription).seek(_position(client, body))


def _position(client: Client, body: object) -> Where:
    """The place that a body says, as Pulsar writes ids."""
    if body in ("latest", "earliest"):
        return END if body == "latest" else START
    given = members(body)
    ledger = given.get("ledgerId")
    if ledger is None or ledger == _ENDS_OF_TIME:
        return END
    if ledger == -1:
        return START
    is_behind = bool(given.get("isExcluded"))
    place = message_of(client, given, is_last=is_behind)
    return Bound("after" if is_behind else "id", place)


# --- peeking ---------------------------------------------------------------------------------


@endpoint("GET", f"{SUBSCRIPTION}/position/{{number}}", CONSUME, is_slow=True)
def peek(client: Client, topic: TopicName, subscription: str, number: int) -> Peeked:
    """The n-th message that is not acknowledged, from 1, with its metadata as headers."""
    client.subscription(str(topic), subscription)
    wanted = Range(kind="unacked", subscription=subscription)
    return _nth(client, topic, wanted, number)


@endpoint("GET", f"{TOPIC}/ledger/{{ledger}}/entry/{{entry}}", CONSUME, is_slow=True)
def message_at(client: Client, topic: TopicName, ledger: int, entry: int) -> Peeked:
    """A message by its id."""
    place = message_of(client, {"ledgerId": ledger, "entryId": entry}, is_last=False)
    found = _nth(client, topic, Range(start=Bound("id", place), stop=END), 1)
    if found.message.message_id != place:
        raise MessageNotFound(f"topic {topic} has no message {ledger}:{entry}")
    return found


@endpoint("GET", f"{TOPIC}/examinemessage", CONSUME, is_slow=True)
def examine(
    client: Client, topic: TopicName, initialPosition: str = "latest", messagePosition: int = 1
) -> Peeked:
    """The n-th message from the first, or from the last back."""
    if initialPosition == "earliest":
        return _nth(client, topic, Range(stop=END), messagePosition)
    bound = Bound("last", messagePosition)
    return _nth(client, topic, Range(start=bound, stop=END), 1)


def _nth(client: Client, topic: TopicName, wanted: Range, number: int) -> Peeked:
    if number < 1:
        raise InvalidArgument(f"{number} is not a place, they count from 1", code=203)
    only = None if topic.partition is None else [topic.partition]
    seen = 0
    for table in client.read(topic.full, range=wanted, partitions=only, limit=number):
        if seen + table.num_rows >= number:
            row = table.slice(number - seen - 1, 1)
            check_size(row)
            [found] = messages(row)
            assert found.message_id is not None
            return Peeked(found, wire_text(client, found.message_id))
        seen += table.num_rows
    raise MessageNotFound(f"topic {topic} has only {seen} such messages")


@endpoint("POST", f"{SUBSCRIPTION}/analyzeBacklog", LOOK)
def analyze_backlog(client: Client, topic: TopicName, subscription: str) -> dict[str, object]:
    """How much a subscription has before it; nothing is filtered here."""
    found = client.subscription(str(topic), subscription).describe()
    parts = [
        row
        for row in found["partition_list"]
        if topic.partition is None or row["partition"] == topic.partition
    ]
    count = sum(row["backlog"] for row in parts)
    zeros = [
        f"filter{what}{unit}"
        for what in ("Rejected", "Rescheduled")
        for unit in ("Entries", "Messages")
    ]
    return {
        **dict.fromkeys(zeros, 0),
        **dict.fromkeys(
            ("entries", "messages", "filterAcceptedEntries", "filterAcceptedMessages"), count
        ),
        "aborted": False,
    }
