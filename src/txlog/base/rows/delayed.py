"""Delayed messages and the buckets of their index."""

from typing import Annotated, TypedDict

from txlog.base.ids import MessageId
from txlog.base.rows import fields


class NextDelayed(TypedDict):
    """Of `TopicHandle.next_delayed`."""

    message_id: MessageId
    deliver_at: int


class DueWithin(TypedDict):
    """Of `TopicHandle.histogram`."""

    due_within_ms: Annotated[int | None, "due within this time; null: later"]
    messages: Annotated[int, "messages that are due then"]


class BucketRow(TypedDict):
    """Of `TopicHandle.buckets`."""

    topic: fields.Topic
    partition: fields.Partition
    state: Annotated[
        str, "sealed, mutable, pending or unindexed", ("sealed", "mutable", "pending", "unindexed")
    ]
    generation: Annotated[int | None, "number of the bucket"]
    first: fields.First | None
    last: fields.Last | None
    messages: Annotated[int | None, "messages in it"]
    not_due: Annotated[int | None, "messages that are not due yet"]
    segments: Annotated[int, "slices of the bucket, loaded when they are due"]
    loaded_segments: Annotated[int, "segments that this process has loaded"]
    size_bytes: fields.SizeBytes
    min_deliver_at: Annotated[int | None, "the earliest time in it"]
    max_deliver_at: Annotated[int | None, "the latest time in it"]
    file: fields.File | None


class Promoted(TypedDict):
    """Of `TopicHandle.promote`."""

    topic: fields.Topic
    subscription: fields.Subscription | None
    promoted: Annotated[int, "messages delivered before their time"]
    not_delayed: fields.NotDelayed
    first_at: int | None
    last_at: int | None


class Cancelled(TypedDict):
    """Of `TopicHandle.cancel`."""

    topic: fields.Topic
    subscription: fields.Subscription | None
    cancelled: Annotated[int, "messages acknowledged before their time"]
    not_delayed: fields.NotDelayed
    first_at: int | None
    last_at: int | None


class BucketsMerged(TypedDict):
    """Of `TopicHandle.merge`."""

    topic: fields.Topic
    buckets_before: Annotated[int, "sealed buckets before"]
    buckets_after: Annotated[int, "sealed buckets after"]
    messages: Annotated[int, "messages in the buckets"]


class IndexRebuilt(TypedDict):
    """Of `TopicHandle.rebuild`."""

    topic: fields.Topic
    partitions: fields.Partitions
    messages_read: Annotated[int, "messages whose time was read"]
    indexed: Annotated[int, "messages in the log that are not due"]
    missing: Annotated[int, "messages not due that the index lacked"]
    surplus: Annotated[int, "messages that only the index had"]
    buckets: Annotated[int, "buckets made"]


class DelayedRow(TypedDict):
    """Of `txlog delay list` and `txlog delay next`."""

    topic: fields.Topic
    partition: fields.Partition
    message_id: Annotated[MessageId, "L:E, or L:E:I in a transaction; null before the commit"]
    deliver_at: fields.DeliverAt
    due_in_ms: Annotated[int, "time until it is due"]
    key: Annotated[str | None, "message key"]
    size_bytes: fields.SizeBytes
    txn: fields.Txn | None
