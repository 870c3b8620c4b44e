"""Topics, their partitions, policies and throughput."""

from __future__ import annotations

from typing import TypedDict

from txlog.base.ids import MessageId, TxnId


class TopicRow(TypedDict):
    """Of `Client.topics`."""

    topic: str
    partitions: int
    messages: int
    size_bytes: int
    open_txns: int
    delayed: int
    subscriptions: int
    backlog: int
    created_time: int
    last_publish_time: int | None


class TopicPartition(TypedDict):
    """A partition of a TopicDescription."""

    partition: int
    online: bool
    first: MessageId | None
    last: MessageId | None
    messages: int
    size_bytes: int
    ledgers: int
    open_ledger: int
    open_txns: int
    sidecar_bytes: int
    delayed: int
    watermark: int | None
    compacted_through: MessageId | None


class TopicSubscription(TypedDict):
    """A subscription of a TopicDescription."""

    subscription: str
    type: str
    backlog: int
    consumers: int


class TopicDescription(TopicRow):
    """Of `Client.describe_topic`."""

    policies: dict[str, int | str | None]
    schema_version: int | None
    mismatched: int
    subscription_list: list[TopicSubscription]
    partition_list: list[TopicPartition]


class Throughput(TypedDict):
    """A span of time of `TopicHandle.stats`."""

    topic: str
    from_time: int
    messages: int
    size_bytes: int
    transactions: int


class SchemaRow(TypedDict):
    """Of `TopicSchemas.list`; definition: an Avro record as JSON."""

    topic: str
    version: int
    type: str
    fields: list[str]
    fingerprint: str
    created_time: int
    deleted: bool
    definition: str


class TopicUpdated(TypedDict):
    """Of `Admin.update_topic`."""

    topic: str
    partitions: int
    policies: dict[str, int]
    changed: bool


class TopicDeleted(TypedDict):
    """Of `Admin.delete_topic`."""

    topic: str
    partitions: int
    messages: int
    size_bytes: int
    subscriptions: int
    deleted: bool


class PartitionSwitched(TypedDict):
    """Of `Admin.set_offline` and `Admin.set_online`."""

    topic: str
    partition: int
    online: bool
    changed: bool
    finished_list: list[TxnId]


class Policies(TypedDict):
    """The policies of a scope, of `Admin.get_…_policies`."""

    topic: str | None
    namespace: str | None
    policies: dict[str, int | str | None]
    origins: dict[str, str]


class PoliciesChanged(Policies):
    """Of `Admin.set_…_policies` and `Admin.remove_…_policies`."""

    changed: bool
