"""Dead-letter topics and their messages as rows.

A topic is a dead-letter topic if one of these is true: a subscription sends its dead letters there,
its name ends in -DLQ, its messages were retried before, or it has no subscription and its oldest
message is a dead letter of a function (`run --on-error dead-letter:NAME`). Its dead letters are the
messages that its subscription `dlq` has not acknowledged; before the first retry, all messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from txlog.base.ids import MessageId, TopicName
from txlog.base.text.previews import preview
from txlog.engine.door import catalog
from txlog.engine.door.catalog import Subscription, Topic, index_of, numbers
from txlog.engine.door.consuming import (
    DEAD,
    EXCEPTION,
    ORIGIN_MESSAGE_ID,
    REAL_SUBSCRIPTION,
    REAL_TOPIC,
    RECONSUMETIMES,
    REDELIVERY_COUNT,
    RETRIED,
    home,
    messages_in,
    origin_topic,
    retries_of,
    target_name,
    unsettled,
)
from txlog.engine.door.reading import Message, fetch, first_of, messages
from txlog.errors import InvalidArgument, SubscriptionNotFound, TxlogError

if TYPE_CHECKING:
    from txlog.base.rows.consuming import DeadLetter, DeadLetterTopic
    from txlog.engine.door.facts import Run
    from txlog.engine.door.store import View

READ_AT_ONCE = 256


def topics(view: View) -> list[DeadLetterTopic]:
    """The dead-letter topics, by name.

    Reads the oldest message of each, and of each topic that has no subscription.
    """
    origins: dict[int, list[str]] = {}
    for topic in view.catalog.topics.values():
        if (
            topic.name.endswith(f"-{DEAD}")
            or _retried(view, topic) is not None
            or (not topic.subscriptions and _begins_with_a_letter(view, topic))
        ):
            origins.setdefault(topic.number, [])
    for subscription in view.catalog.subscriptions.values():
        topic = view.catalog.topics[subscription.topic]
        if home(view, topic, subscription) != (topic, subscription):
            continue  # of a retry topic: its home gives them up
        try:
            name = target_name((topic, subscription), DEAD)
        except InvalidArgument:  # the derived name would be too long
            continue
        number = view.catalog.by_name.get(name.full.casefold())
        if number is not None:
            origin = f"{TopicName.parse(topic.name).short}/{subscription.name}"
            origins.setdefault(number, []).append(origin)
    rows = [_topic(view, view.catalog.topics[number], of) for number, of in origins.items()]
    return sorted(rows, key=lambda row: row["topic"])


def _retried(view: View, topic: Topic) -> Subscription | None:
    try:
        return catalog.subscription(view, topic, RETRIED)
    except SubscriptionNotFound:
        return None


def _begins_with_a_letter(view: View, topic: Topic) -> bool:
    """Whether the oldest message of a topic is a function's dead letter that was never retried."""
    for number in numbers(topic):
        try:
            oldest = first_of(unsettled(view, None, number), 1)
            for message in _messages(view, topic, number, oldest):
                is_letter = {REAL_TOPIC, ORIGIN_MESSAGE_ID, EXCEPTION} <= message.properties.keys()
                return is_letter and not retries_of(message.properties)
        except TxlogError:  # damaged or offline, which other answers report
            return False
    return False


def _topic(view: View, topic: Topic, origins: list[str]) -> DeadLetterTopic:
    retried = _retried(view, topic)
    count = 0
    oldest: int | None = None
    givers = set(origins)  # letters name more: deleted subscriptions, functions
    for number in numbers(topic):
        runs = unsettled(view, retried, number)
        count += messages_in(view, number, runs)
        for message in _messages(view, topic, number, first_of(runs, 1)):
            came = _dead_time(message)
            oldest = came if oldest is None else min(oldest, came)
            letter = _row(view, message)
            if letter["origin_topic"] and letter["subscription"]:
                givers.add(f"{letter['origin_topic']}/{letter['subscription']}")
    settled = 0
    if retried is not None:
        cursors = [view.cursor(retried.number, number) for number in numbers(topic)]
        settled = sum(cursor.acked_count for cursor in cursors)
    return {
        "topic": TopicName.parse(topic.name).short,
        "origin_list": sorted(givers),
        "messages": count,
        "retried": settled,
        "oldest_time": oldest,
    }


def _origin(view: View, name: str, properties: Mapping[str, str]) -> str:
    """The short name of the topic in a property, as it is now; unchanged if it is invalid.

    Any sender can write the property.
    """
    try:
        topic = origin_topic(view, name, properties)
        return TopicName.parse(name if topic is None else topic.name, allow_partition=True).short
    except InvalidArgument:
        return name


def letters(view: View, topic: Topic, indexes: list[int], limit: int | None) -> list[DeadLetter]:
    """The dead letters of a topic, the oldest of each partition first, at most limit."""
    retried = _retried(view, topic)
    rows: list[DeadLetter] = []
    for number in (numbers(topic)[index] for index in indexes):
        room = None if limit is None else limit - len(rows)
        runs = unsettled(view, retried, number)
        if room is not None:
            runs = first_of(runs, room)
        rows += [_row(view, message) for message in _messages(view, topic, number, runs)]
    return rows


def _messages(view: View, topic: Topic, number: int, runs: list[Run]) -> Iterator[Message]:
    short, index = TopicName.parse(topic.name).short, index_of(topic, number)
    for run in runs:
        ledger, first, last, index_first, index_last = run
        size = index_last - index_first + 1 if index_first else last - first + 1
        for start in range(0, size, READ_AT_ONCE):
            stop = min(start + READ_AT_ONCE, size) - 1
            part: Run = (
                (ledger, first, first, index_first + start, index_first + stop)
                if index_first
                else (ledger, first + start, first + stop, 0, 0)
            )
            yield from messages(fetch(view, short, index, number, [part]))


def _dead_time(message: Message) -> int:
    return message.publish_time if message.visible_time is None else message.visible_time


def _row(view: View, message: Message) -> DeadLetter:
    properties = message.properties
    name = properties.get(REAL_TOPIC)
    message_id = message.message_id
    assert isinstance(message_id, MessageId)  # it is committed
    return {
        "topic": message.topic,
        "partition": message.partition,
        "message_id": message_id,
        "origin_topic": None if name is None else _origin(view, name, properties),
        "subscription": properties.get(REAL_SUBSCRIPTION),
        "origin_id": properties.get(ORIGIN_MESSAGE_ID),
        "reason": _reason(properties),
        "redeliveries": _count(properties, REDELIVERY_COUNT) or _count(properties, RECONSUMETIMES),
        "retries": retries_of(properties),
        "dead_time": _dead_time(message),
        "key": preview(message.key),
        "preview": preview(message.value),
        "size_bytes": len(message.value or b""),
    }


def _count(properties: dict[str, str], name: str) -> int | None:
    text = properties.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None


def _reason(properties: dict[str, str]) -> str | None:
    """The exception of a function, else how often the message was postponed or redelivered."""
    raised = properties.get(EXCEPTION)
    if raised is not None:
        return raised
    postponed = _count(properties, RECONSUMETIMES)
    if postponed is not None:
        return _counted("postponed", postponed)
    redelivered = _count(properties, REDELIVERY_COUNT)
    return None if redelivered is None else _counted("redelivered", redelivered)


def _counted(what: str, times: int) -> str:
    return f"{what} {times} time{'s' * (times != 1)}"
