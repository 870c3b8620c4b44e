"""Asserted watermarks, and positions of subscriptions in event time."""

from typing import Annotated, TypedDict

from txlog.base.ids import MessageId, Position
from txlog.base.rows import fields


class WatermarkPartition(TypedDict):
    """A partition of a WatermarkShown."""

    partition: fields.Partition
    status: fields.WatermarkStatus
    watermark: int | None
    emitted: int | None
    holder: str | None
    position: Position | None
    snapshot_position: Position | None


class WatermarkShown(TypedDict):
    """Of `TopicWatermarks.show`."""

    topic: fields.Topic
    subscription: fields.Subscription | None
    status: fields.WatermarkStatus
    watermark: Annotated[int | None, "the lowest time of an active producer"]
    emitted: Annotated[int | None, "the highest watermark that a consumer has received"]
    lag_ms: Annotated[int | None, "how far the watermark is behind the clock"]
    holder: Annotated[str | None, "the producer with the lowest time"]
    first_unacked: Annotated[MessageId | None, "the message that the watermark waits for"]
    max_event_time: Annotated[int | None, "the greatest event time of the messages"]
    late_messages: fields.LateMessages | None
    pending_txns: fields.PendingTxns
    partition_list: Annotated[list[WatermarkPartition], "a row for each partition"]


class WatermarkProducer(TypedDict):
    """Of `TopicWatermarks.producers`."""

    topic: fields.Topic
    partition: fields.Partition
    producer: fields.Producer
    event_time: fields.EventTime | None
    holds: Annotated[bool, "it has the lowest time"]
    idle: Annotated[bool, "the watermark does not wait for it"]
    position: Annotated[Position | None, "its position"]
    pending_txns: fields.PendingTxns


class WatermarkMove(TypedDict):
    """The change that one row made to the watermark of a partition."""

    marker_type: str
    producer: fields.Producer | None
    event_time: fields.EventTime | None
    by: str | None
    regressed: bool


class WatermarkRow(TypedDict):
    """Of `TopicWatermarks.history`."""

    topic: fields.Topic
    partition: fields.Partition
    position: Annotated[Position, "its position"]
    marker_type: Annotated[str, "set, idle or snapshot", ("set", "idle", "snapshot")]
    producer: fields.Producer | None
    event_time: fields.EventTime | None
    txn: fields.Txn | None
    txn_state: fields.TxnState | None
    regressed: fields.Regressed
    publish_time: fields.PublishTime
    by: Annotated[str | None, "cause of its idleness: producer, admin or timeout"]


class PartitionPosition(TypedDict):
    """The position of an assertion's or a snapshot's row in a partition."""

    partition: fields.Partition
    position: Position | None


class WatermarkSet(TypedDict):
    """Of `TopicWatermarks.set`."""

    topic: fields.Topic
    producer: fields.Producer
    event_time: fields.EventTime
    regressed: fields.Regressed
    txn: fields.Txn | None
    partition_list: Annotated[list[PartitionPosition], "a row for each partition"]


class ProducerIdle(TypedDict):
    """Of `TopicWatermarks.idle`."""

    topic: fields.Topic
    producer: fields.Producer
    was_active: Annotated[bool, "the watermark waited for it until now"]
    txn: fields.Txn | None
    partition_list: Annotated[list[PartitionPosition], "a row for each partition"]


class SnapshotsTaken(TypedDict):
    """Of `TopicWatermarks.snapshot`."""

    topic: fields.Topic
    written: Annotated[int, "snapshots written"]
    partition_list: Annotated[list[PartitionPosition], "a row for each partition"]
