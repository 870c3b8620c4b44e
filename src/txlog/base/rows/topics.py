"""Topics, their partitions, policies and throughput."""

from typing import Annotated, TypedDict

from txlog.base.ids import MessageId, TxnId
from txlog.base.rows import fields


class TopicRow(TypedDict):
    """Of `Client.topics`."""

    topic: fields.Topic
    partitions: fields.Partitions
    messages: fields.Messages
    size_bytes: fields.SizeBytes
    open_txns: Annotated[int, "unfinished transactions"]
    delayed: fields.Delayed
    subscriptions: fields.Subscriptions
    backlog: fields.Backlog
    created_time: fields.CreatedTime
    last_publish_time: Annotated[
        int | None, "when the newest message was written; null: it has none"
    ]


class TopicPartition(TypedDict):
    """A partition of a TopicDescription."""

    partition: fields.Partition
    online: bool
    first: fields.First | None
    last: fields.Last | None
    messages: fields.Messages
    size_bytes: fields.SizeBytes
    ledgers: int
    open_ledger: int
    open_txns: int
    sidecar_bytes: int
    delayed: fields.Delayed
    watermark: int | None
    compacted_through: MessageId | None


class TopicSubscription(TypedDict):
    """A subscription of a TopicDescription."""

    subscription: fields.Subscription
    type: str
    backlog: fields.Backlog
    consumers: int


class TopicDescription(TopicRow):
    """Of `Client.describe_topic`."""

    policies: Annotated[dict[str, int | str | None], "its details, by name"]
    schema_version: fields.SchemaVersion | None
    mismatched: Annotated[
        int, "values without a record: stored before the first schema, or although they do not fit"
    ]
    directory: Annotated[
        str, "where its files are, below the store: of its name, or of one that it had before"
    ]
    subscription_list: Annotated[list[TopicSubscription], "the subscriptions"]
    partition_list: Annotated[list[TopicPartition], "a row for each partition"]


class Throughput(TypedDict):
    """A span of time of `TopicHandle.stats`."""

    topic: fields.Topic
    from_time: Annotated[int, "start of the time span"]
    messages: fields.Messages
    size_bytes: fields.SizeBytes
    transactions: fields.Transactions


class SchemaRow(TypedDict):
    """Of `TopicSchemas.list`; definition: an Avro record as JSON."""

    topic: fields.Topic
    version: int
    type: str
    fields: list[str]
    fingerprint: str
    created_time: fields.CreatedTime
    deleted: bool
    definition: str


class TopicUpdated(TypedDict):
    """Of `Admin.update_topic`."""

    topic: fields.Topic
    partitions: fields.Partitions
    policies: Annotated[dict[str, int], "its details, by name"]
    changed: fields.Changed


class RenamedAlong(TypedDict):
    """A topic of a TopicRenamed that was renamed with it."""

    topic: fields.Topic
    before: Annotated[str, "its name until now"]


class TopicRenamed(TypedDict):
    """Of `Admin.rename_topic`."""

    topic: fields.Topic
    before: Annotated[str, "its name until now"]
    directory: Annotated[str, "where its files are, below the store; they do not move"]
    renamed_list: Annotated[
        list[RenamedAlong],
        "topics of dead letters, retries and open windows renamed with it",
    ]
    subscription_list: Annotated[
        list[str], "TOPIC/SUBSCRIPTION whose policies name another topic now"
    ]
    still_named: Annotated[
        list[str],
        "keys of functions that may get another key by the new name; see `run --name`",
    ]
    changed: fields.Changed


class TopicDeleted(TypedDict):
    """Of `Admin.delete_topic`."""

    topic: fields.Topic
    partitions: fields.Partitions
    messages: Annotated[int, "messages deleted with it"]
    size_bytes: fields.SizeBytes
    subscriptions: fields.Subscriptions
    deleted: Annotated[bool, "it is gone; in a rehearsal, it would be"]


class PartitionSwitched(TypedDict):
    """Of `Admin.set_offline` and `Admin.set_online`."""

    topic: fields.Topic
    partition: fields.Partition
    online: Annotated[bool, "false while it is offline or quarantined"]
    changed: fields.Changed
    finished_list: Annotated[list[TxnId], "transactions that its return completed"]


class Policies(TypedDict):
    """The policies of a scope, of `Admin.get_…_policies`."""

    topic: fields.Topic | None
    namespace: Annotated[str | None, "TENANT/NAMESPACE"]
    policies: Annotated[dict[str, int | str | None], "its details, by name"]
    origins: Annotated[dict[str, str], "topic, namespace or store, by name of the policy"]


class PoliciesChanged(Policies):
    """Of `Admin.set_…_policies` and `Admin.remove_…_policies`."""

    changed: fields.Changed


class AlertPolicies(Policies):
    """The thresholds of a scope, of `Admin.get_alert_policies`; null: no alert."""

    subscription: fields.Subscription | None


class AlertPoliciesChanged(AlertPolicies):
    """Of `Admin.set_alert_policies` and `Admin.remove_alert_policies`."""

    changed: fields.Changed


class TopicCreated(TypedDict):
    """Of `txlog topic create`."""

    topic: fields.Topic
    partitions: fields.Partitions
    created: fields.Created


class SchemaShown(TypedDict):
    """Of `txlog schema get`."""

    topic: fields.Topic
    version: fields.Version
    type: fields.SchemaType
    field_list: fields.FieldList
    fingerprint: fields.Fingerprint
    created_time: fields.CreatedTime
    deleted: Annotated[bool, "it was deleted"]
    definition: fields.Definition


class SchemaVersion(TypedDict):
    """Of `txlog schema versions`."""

    version: fields.Version
    type: fields.SchemaType
    field_list: fields.FieldList
    created_time: fields.CreatedTime
    deleted: Annotated[bool, "it was deleted; only --deleted lists it"]
    topic: fields.Topic
    fingerprint: fields.Fingerprint
    definition: fields.Definition


class SchemaUploaded(TypedDict):
    """Of `txlog schema upload`."""

    topic: fields.Topic
    version: fields.Version
    type: fields.SchemaType
    field_list: fields.FieldList
    changed: fields.Changed


class SchemaTested(TypedDict):
    """Of `txlog schema test`."""

    topic: fields.Topic
    type: fields.SchemaType
    field_list: fields.FieldList


class SchemasDeleted(TypedDict):
    """Of `txlog schema delete`."""

    topic: fields.Topic
    versions: Annotated[int, "number of schemas it had"]
    deleted: Annotated[bool, "false: it had none"]


class TopicCopied(TypedDict):
    """Of `txlog topic copy`."""

    topic: fields.Topic
    to: Annotated[str, "the topic in the other store"]
    messages: Annotated[int, "messages that this call copied"]
    continued: Annotated[bool, "an earlier call had copied some"]
