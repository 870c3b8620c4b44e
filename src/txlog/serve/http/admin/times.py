"""Owns the endpoints of delayed messages and watermarks, which Pulsar's API does not have.

Answers have the fields of the commands `txlog delay` and `txlog watermark`.
"""

from __future__ import annotations

from typing import Any

from txlog.base.ids import MessageId, TopicName
from txlog.client.client import Client
from txlog.errors import InvalidArgument
from txlog.serve.http.admin.topics import TOPIC
from txlog.serve.http.core.declared import (
    ADMIN,
    CONSUME,
    LOOK,
    PRODUCE,
    EndpointList,
    integer,
    members,
)

LISTED_MAX = 1000
endpoint = EndpointList()


@endpoint("GET", f"{TOPIC}/delayed", LOOK)
def delayed(
    client: Client, topic: TopicName, subscription: str | None = None, limit: int = 100
) -> list[dict[str, object]]:
    """The next messages that wait for their time."""
    table = client.topic(str(topic)).delayed(subscription, limit=min(limit, LISTED_MAX))
    out: list[dict[str, object]] = []
    for row in table.drop_columns(["txn_most", "txn_least", "key"]).to_pylist():
        message_id = MessageId(row.pop("ledger"), row.pop("entry"), row.pop("index") or 0)
        out.append({"message_id": message_id, **row})
    return out


@endpoint("GET", f"{TOPIC}/delayed/histogram", LOOK)
def delayed_histogram(client: Client, topic: TopicName, subscription: str | None = None) -> object:
    """How many messages are due within a minute, ten, an hour, a day, and later."""
    return client.topic(str(topic)).histogram(subscription)


@endpoint("GET", f"{TOPIC}/delayed/buckets", LOOK)
def delayed_buckets(client: Client, topic: TopicName) -> object:
    """The buckets of the index of delayed messages."""
    return client.topic(str(topic)).buckets()


@endpoint("POST", f"{TOPIC}/delayed/promote", CONSUME)
def promote(client: Client, topic: TopicName, body: object) -> object:
    """Deliver delayed messages now: {ids, before or all, subscription}."""
    return client.topic(str(topic)).promote(**_which(body))


@endpoint("POST", f"{TOPIC}/delayed/cancel", CONSUME)
def cancel(client: Client, topic: TopicName, body: object) -> object:
    """Acknowledge delayed messages before they are due: {ids, before or all, subscription}."""
    return client.topic(str(topic)).cancel(**_which(body))


def _which(body: object) -> dict[str, Any]:
    fields = members(body)
    unknown = fields.keys() - {"ids", "before", "all", "subscription"}
    if unknown:
        raise InvalidArgument(f"the body has an unknown member: {min(unknown)}")
    if fields.get("ids") is not None:
        fields["ids"] = [MessageId.parse(str(text)) for text in fields["ids"]]
    return fields


@endpoint("GET", f"{TOPIC}/watermark", LOOK)
def watermark(client: Client, topic: TopicName, subscription: str | None = None) -> object:
    """The watermark at the end of a topic, or at a subscription's position."""
    return client.topic(str(topic)).watermarks.show(subscription, lateness=False)


@endpoint("GET", f"{TOPIC}/watermark/producers", LOOK)
def watermark_producers(
    client: Client, topic: TopicName, subscription: str | None = None
) -> object:
    """The producers that hold the watermark back."""
    return client.topic(str(topic)).watermarks.producers(subscription)


@endpoint("GET", f"{TOPIC}/watermark/history", LOOK)
def watermark_history(client: Client, topic: TopicName, limit: int = 100) -> object:
    """The changes of the watermark, oldest first."""
    return client.topic(str(topic)).watermarks.history(limit=min(limit, LISTED_MAX))


@endpoint("POST", f"{TOPIC}/watermark/{{producer}}", PRODUCE)
def set_watermark(client: Client, topic: TopicName, producer: str, body: object) -> object:
    """Assert an event time on behalf of a producer; the body is the instant in ms."""
    return client.topic(topic.full).watermarks.set(integer(body), producer)


@endpoint("DELETE", f"{TOPIC}/watermark/{{producer}}", ADMIN)
def set_idle(client: Client, topic: TopicName, producer: str) -> object:
    """Declare a producer idle: it no longer holds the watermark back."""
    return client.topic(topic.full).watermarks.idle(producer)
