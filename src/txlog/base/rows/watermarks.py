"""Asserted watermarks, and positions of subscriptions in event time."""

from __future__ import annotations

from typing import TypedDict

from txlog.base.ids import MessageId, Position, TxnId


class WatermarkPartition(TypedDict):
    """A partition of a WatermarkShown."""

    partition: int
    status: str
    watermark: int | None
    emitted: int | None
    holder: str | None
    position: Position | None
    snapshot_position: Position | None


class WatermarkShown(TypedDict):
    """Of `TopicWatermarks.show`."""

    topic: str
    subscription: str | None
    status: str
    watermark: int | None
    emitted: int | None
    lag_ms: int | None
    holder: str | None
    first_unacked: MessageId | None
    max_event_time: int | None
    late_messages: int | None
    pending_txns: int
    partition_list: list[WatermarkPartition]


class WatermarkProducer(TypedDict):
    """Of `TopicWatermarks.producers`."""

    topic: str
    partition: int
    producer: str
    event_time: int | None
    holds: bool
    idle: bool
    position: Position | None
    pending_txns: int


class WatermarkMove(TypedDict):
    """The change that one row made to the watermark of a partition."""

    marker_type: str
    producer: str | None
    event_time: int | None
    by: str | None
    regressed: bool


class WatermarkRow(TypedDict):
    """Of `TopicWatermarks.history`."""

    topic: str
    partition: int
    position: Position
    marker_type: str
    producer: str | None
    event_time: int | None
    by: str | None
    regressed: bool
    txn: TxnId | None
    txn_state: str | None
    publish_time: int


class PartitionPosition(TypedDict):
    """The position of an assertion's or a snapshot's row in a partition."""

    partition: int
    position: Position | None


class WatermarkSet(TypedDict):
    """Of `TopicWatermarks.set`."""

    topic: str
    producer: str
    event_time: int
    regressed: bool
    txn: TxnId | None
    partition_list: list[PartitionPosition]


class ProducerIdle(TypedDict):
    """Of `TopicWatermarks.idle`."""

    topic: str
    producer: str
    was_active: bool
    txn: TxnId | None
    partition_list: list[PartitionPosition]


class SnapshotsTaken(TypedDict):
    """Of `TopicWatermarks.snapshot`."""

    topic: str
    written: int
    partition_list: list[PartitionPosition]
