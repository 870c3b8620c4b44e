"""Delayed messages and the buckets of their index."""

from __future__ import annotations

from typing import TypedDict

from txlog.base.ids import MessageId


class NextDelayed(TypedDict):
    """Of `TopicHandle.next_delayed`."""

    message_id: MessageId
    deliver_at: int


class DueWithin(TypedDict):
    """Of `TopicHandle.histogram`."""

    due_within_ms: int | None
    messages: int


class BucketRow(TypedDict):
    """Of `TopicHandle.buckets`."""

    topic: str
    partition: int
    generation: int | None
    first: MessageId | None
    last: MessageId | None
    messages: int | None
    not_due: int | None
    min_deliver_at: int | None
    max_deliver_at: int | None
    file: str | None
    segments: int
    loaded_segments: int
    size_bytes: int
    state: str


class Promoted(TypedDict):
    """Of `TopicHandle.promote`."""

    topic: str
    subscription: str | None
    promoted: int
    not_delayed: int
    first_at: int | None
    last_at: int | None


class Cancelled(TypedDict):
    """Of `TopicHandle.cancel`."""

    topic: str
    subscription: str | None
    cancelled: int
    not_delayed: int
    first_at: int | None
    last_at: int | None


class BucketsMerged(TypedDict):
    """Of `TopicHandle.merge`."""

    topic: str
    buckets_before: int
    buckets_after: int
    messages: int


class IndexRebuilt(TypedDict):
    """Of `TopicHandle.rebuild`."""

    topic: str
    partitions: int
    messages_read: int
    indexed: int
    missing: int
    surplus: int
    buckets: int
