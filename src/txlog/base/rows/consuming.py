"""Subscriptions, their consumers, and changes to a backlog."""

from __future__ import annotations

from typing import TypedDict

from txlog.base.ids import MessageId, TxnId


class SubscriptionRow(TypedDict):
    """Of `Client.subscriptions`."""

    topic: str
    subscription: str
    type: str
    backlog: int
    delayed: int
    backlog_no_delayed: int
    pending_acks: int
    consumers: int
    isolation: str
    mark_delete: MessageId | None
    last_ack_time: int | None
    created_time: int


class ConsumerRow(TypedDict):
    """A consumer of a SubscriptionDescription."""

    consumer: int
    name: str
    pid: int | None
    command: str | None
    alive: bool
    priority: int
    leased: int
    active_list: list[int]
    since_time: int


class SubscriptionPartition(TypedDict):
    """A partition of a SubscriptionDescription."""

    partition: int
    mark_delete: MessageId | None
    backlog: int
    acked_beyond: int
    delayed: int
    backlog_no_delayed: int
    pending_acks: int
    leased: int
    watermark: int | None


class SubscriptionDescription(SubscriptionRow):
    """Of `SubscriptionHandle.describe`."""

    policies: dict[str, int | str]
    consumer_list: list[ConsumerRow]
    partition_list: list[SubscriptionPartition]


class BacklogGroup(TypedDict):
    """Of `SubscriptionHandle.backlog`."""

    group: str
    messages: int
    size_bytes: int
    oldest_time: int


class Acknowledged(TypedDict):
    """Of `SubscriptionHandle.acknowledge`."""

    acked: int
    already: int
    dropped: int


class AcknowledgedIn(Acknowledged):
    """Of `Client.acknowledge`; txn: the transaction, if any."""

    txn: TxnId | None


SeekPartition = TypedDict(  # a class attribute cannot be called `from`
    "SeekPartition",
    {"partition": int, "from": MessageId, "to": MessageId, "redeliver": int, "skip": int},
)


class Sought(TypedDict):
    """Of `SubscriptionHandle.seek`."""

    topic: str
    subscription: str
    redeliver: int
    skip: int
    partition_list: list[SeekPartition]
    aborted_list: list[TxnId]


class Skipped(TypedDict):
    """Of `SubscriptionHandle.skip`, `clear_backlog` and `expire`."""

    topic: str
    subscription: str
    skipped: int


class NegativelyAcknowledged(TypedDict):
    """Of `SubscriptionHandle.negative_acknowledge`."""

    topic: str
    subscription: str
    nacked: int
    ignored: int


class Redelivered(TypedDict):
    """Of `SubscriptionHandle.redeliver`."""

    topic: str
    subscription: str
    redelivered: int


class SubscriptionDeleted(TypedDict):
    """Of `SubscriptionHandle.delete`."""

    topic: str
    subscription: str
    backlog: int
    deleted: bool
