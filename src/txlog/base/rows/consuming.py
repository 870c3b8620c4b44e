"""Messages as records; subscriptions, their consumers, changes to a backlog; dead letters."""

from typing import Annotated, Any, TypedDict

from txlog.base.ids import MessageId, TxnId
from txlog.base.rows import fields


class Record(TypedDict):
    """Of `txlog consume` and `txlog peek`."""

    kind: fields.Kind
    topic: fields.Topic
    partition: fields.Partition
    message_id: Annotated[
        MessageId | None, "L:E, or L:E:I in a transaction; null before the commit"
    ]
    key: Annotated[str | None, "message key, encoded as in key_encoding"]
    key_encoding: Annotated[str | None, "utf8, base64, or null: no key"]
    value: Annotated[str | None, "payload, encoded as in value_encoding"]
    value_encoding: Annotated[str | None, "json, utf8, base64, or null: no payload"]
    properties: fields.Properties
    publish_time: fields.PublishTime
    event_time: fields.EventTime | None
    deliver_at: fields.DeliverAt | None
    visible_time: fields.VisibleTime | None
    txn: fields.Txn | None
    txn_index: fields.TxnIndex | None
    txn_state: fields.TxnState | None
    producer: fields.Producer | None
    sequence_id: fields.SequenceId | None
    redelivery_count: Annotated[int | None, "number of earlier deliveries"]
    late: Annotated[bool | None, "event time below the watermark; null without --watermarks"]
    size_bytes: Annotated[int, "bytes of payload"]
    record: Annotated[
        dict[str, Any] | None, "the fields of the value, of a typed topic; instants as text"
    ]


class _SubscriptionCounts(TypedDict):
    """The first fields of a SubscriptionRow."""

    topic: fields.Topic
    subscription: fields.Subscription
    type: fields.SubscriptionType
    backlog: fields.Backlog
    delayed: fields.Delayed
    pending_acks: Annotated[int, "acknowledgements of open transactions"]
    consumers: Annotated[int, "live consumers"]


class _SubscriptionState(TypedDict):
    """The last fields of a SubscriptionRow."""

    isolation: Annotated[str, "committed or uncommitted"]
    mark_delete: Annotated[MessageId | None, "all messages up to this one are acknowledged"]
    last_ack_time: Annotated[int | None, "time of the last acknowledgement"]
    created_time: fields.CreatedTime
    backlog_no_delayed: Annotated[int, "messages of the backlog that are due"]


class SubscriptionRow(_SubscriptionCounts, _SubscriptionState):
    """Of `Client.subscriptions`."""


class Lag(TypedDict):
    """How far a subscription, or its cursor in a partition, is behind; null: unknown."""

    backlog_bytes: Annotated[
        int, "payload bytes of the backlog; in a ledger that is partly acknowledged, an estimate"
    ]
    oldest_age_ms: Annotated[
        int | None, "time since the oldest unacknowledged message could be read; null: none can"
    ]
    rate_in_1m: Annotated[float | None, "messages a second that became visible, last minute"]
    rate_out_1m: Annotated[float | None, "messages a second acknowledged, last minute"]
    catch_up_ms: Annotated[
        int | None, "time until the backlog is empty at these rates; null: never, or unknown"
    ]
    rate_in_15m: Annotated[float | None, "as rate_in_1m, last 15 minutes"]
    rate_out_15m: Annotated[float | None, "as rate_out_1m, last 15 minutes"]
    oldest_time: Annotated[int | None, "when that message could first be read"]
    oldest_estimated: Annotated[bool, "that time is an estimate, between those of its ledger"]


class LagRow(_SubscriptionCounts, Lag, _SubscriptionState):
    """Of `Client.lag`."""

    no_consumer_ms: Annotated[
        int | None, "time since the last sign of a consumer; null: one is connected"
    ]


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
    host: Annotated[str | None, "machine of its process"]
    address: Annotated[str | None, "HOST:PORT of a client of `txlog serve`"]


class _CursorCounts(TypedDict):
    """The first fields of a SubscriptionPartition."""

    partition: fields.Partition
    mark_delete: MessageId | None
    backlog: fields.Backlog
    acked_beyond: int
    delayed: fields.Delayed
    backlog_no_delayed: int
    pending_acks: int
    leased: int
    watermark: int | None


class SubscriptionPartition(_CursorCounts, Lag):
    """A partition of a SubscriptionDescription."""


class SubscriptionDescription(LagRow):
    """Of `SubscriptionHandle.describe`."""

    policies: Annotated[dict[str, int | str], "its details, by name"]
    consumer_list: Annotated[
        list[ConsumerRow],
        "its consumers: name, pid, command, host, address, alive, leased, since_time",
    ]
    partition_list: Annotated[list[SubscriptionPartition], "a row for each partition"]


class BacklogGroup(TypedDict):
    """Of `SubscriptionHandle.backlog`."""

    group: Annotated[str, "the key, age or ledger"]
    messages: Annotated[int, "messages in it"]
    size_bytes: fields.SizeBytes
    oldest_time: Annotated[int, "when the oldest became visible"]


class Acknowledged(TypedDict):
    """Of `SubscriptionHandle.acknowledge`."""

    acked: Annotated[int, "acknowledged now"]
    already: Annotated[int, "acknowledged before"]
    dropped: Annotated[int, "not acknowledged, as a transaction holds them"]


class AcknowledgedIn(Acknowledged):
    """Of `Client.acknowledge`; txn: the transaction, if any."""

    txn: fields.Txn | None


SeekPartition = TypedDict(  # a class attribute cannot be called `from`
    "SeekPartition",
    {
        "partition": int,
        "from": MessageId,
        "to": MessageId,
        "redeliver": int,
        "skip": int,
        "acked": list[str],
        "left_out": int,
        "forgotten": int,
    },
)


class Sought(TypedDict):
    """Of `SubscriptionHandle.seek`."""

    topic: fields.Topic
    subscription: fields.Subscription
    redeliver: Annotated[int, "messages to be delivered again"]
    skip: Annotated[int, "messages that will never be delivered"]
    partition_list: Annotated[
        list[SeekPartition],
        "a row for each partition; acked: ranges acknowledged after `from` before, left_out: "
        "messages in more ranges, forgotten: messages that lose a redelivery count, lease or delay",
    ]
    aborted_list: Annotated[list[TxnId], "transactions that this call aborted"]


class Skipped(TypedDict):
    """Of `SubscriptionHandle.skip`, `clear_backlog` and `expire`."""

    topic: fields.Topic
    subscription: fields.Subscription
    skipped: fields.Skipped


class NegativelyAcknowledged(TypedDict):
    """Of `SubscriptionHandle.negative_acknowledge`."""

    topic: fields.Topic
    subscription: fields.Subscription
    nacked: Annotated[int, "messages to be delivered again"]
    ignored: Annotated[int, "messages that no consumer has in hand"]


class Redelivered(TypedDict):
    """Of `SubscriptionHandle.redeliver`."""

    topic: fields.Topic
    subscription: fields.Subscription
    redelivered: Annotated[int, "messages to be delivered again"]


class SubscriptionDeleted(TypedDict):
    """Of `SubscriptionHandle.delete`."""

    topic: fields.Topic
    subscription: fields.Subscription
    backlog: fields.Backlog
    deleted: Annotated[bool, "it is gone; in a rehearsal, it would be"]


class SubscriptionCreated(TypedDict):
    """Of `txlog sub create`."""

    topic: fields.Topic
    subscription: fields.Subscription
    type: fields.SubscriptionType
    position: Annotated[MessageId | None, "its position"]
    created: fields.Created


class SubscriptionNamed(TypedDict):
    """The subscription of an answer."""

    topic: fields.Topic
    subscription: fields.Subscription


class AcknowledgedHere(SubscriptionNamed, AcknowledgedIn):
    """Of `txlog sub ack`."""


# --- dead letters ------------------------------------------------------------------------------


class DeadLetterTopic(TypedDict):
    """Of `Client.dead_letters`."""

    topic: Annotated[str, "the dead-letter topic"]
    origin_list: Annotated[list[str], "the subscriptions that give messages up to it"]
    messages: Annotated[int, "dead letters that nobody has retried"]
    retried: Annotated[int, "dead letters that went back to their topics"]
    oldest_time: Annotated[int | None, "when the oldest dead letter came"]


class DeadLetter(TypedDict):
    """Of `TopicHandle.dead_letters`."""

    topic: Annotated[str, "the dead-letter topic"]
    partition: fields.Partition
    message_id: Annotated[MessageId, "its id in the dead-letter topic"]
    origin_topic: Annotated[str | None, "the topic that it came from"]
    subscription: Annotated[str | None, "the subscription that gave it up"]
    origin_id: Annotated[str | None, "its id there"]
    reason: Annotated[str | None, "why: what a function raised, or how often it was delivered"]
    redeliveries: Annotated[int | None, "how often it was redelivered, or attempted again"]
    retries: Annotated[int, "how often it was moved back before"]
    dead_time: Annotated[int, "when it became a dead letter"]
    key: Annotated[str | None, "message key, escaped"]
    preview: Annotated[str | None, "the beginning of its value, escaped"]
    size_bytes: Annotated[int, "bytes of payload"]


class StayingLetters(TypedDict):
    """Of DeadLettersRetried: dead letters that stay, for one reason."""

    reason: str
    messages: int
    first: MessageId


class DeadLettersRetried(TypedDict):
    """Of `TopicHandle.retry_dead_letters`."""

    topic: Annotated[str, "the dead-letter topic"]
    retried: Annotated[int, "messages that went back to their topics"]
    left: Annotated[int, "messages that stay"]
    left_list: Annotated[list[StayingLetters], "the reasons, each with a count and the first id"]
