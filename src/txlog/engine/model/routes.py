"""Which folds take which op: the routing table of a frame."""

from __future__ import annotations

from collections.abc import Callable

from txlog.engine.model.ops import (
    AckConflicted,
    Acked,
    Adopted,
    Appended,
    BatchRecorded,
    BucketDeleted,
    BucketSealed,
    BucketsMerged,
    BufferAborted,
    BufferAppended,
    BufferCommitted,
    BufferWatermark,
    ChunksAppended,
    ClockNoted,
    CommitMarker,
    Compacted,
    ConsumerAttached,
    ConsumerDetached,
    CounterRaised,
    CursorOpened,
    CursorTrimmed,
    DeadLettered,
    Deduplicated,
    DelaysCounted,
    IdsReserved,
    IsolationSet,
    KeyBound,
    KeyConnected,
    KeyDeleted,
    KeyReleased,
    Leased,
    LedgerReserved,
    LedgerRolled,
    LedgerSealed,
    LedgerTrimmed,
    LossAccepted,
    NamespacePolicySet,
    Offloaded,
    Op,
    PartitionAdded,
    PartitionAvailable,
    PartitionOffline,
    PartitionsAdded,
    PendingAborted,
    PendingAcked,
    PendingCommitted,
    PlaceAdded,
    PolicySet,
    ProducerOpened,
    ProducersForgotten,
    Promoted,
    Returned,
    SettingSet,
    Sought,
    StatusUpdated,
    SubscriptionAdded,
    SubscriptionCreated,
    SubscriptionDeleted,
    SubscriptionPolicySet,
    SubscriptionTypeSet,
    TopicCreated,
    TopicDeleted,
    TxnOpened,
    TxnsForgotten,
    WatermarkEmitted,
    WatermarkIdled,
    WatermarkSet,
    WatermarkSnapshot,
)

Component = tuple[str, int, int]

CATALOG: Component = ("catalog", 0, 0)
FILES: Component = ("files", 0, 0)


def _catalog(_: Op) -> tuple[Component, ...]:
    return (CATALOG,)


def _coordinator(op: Op) -> tuple[Component, ...]:
    return (("coordinator", op.coordinator, 0),)  # type: ignore[union-attr]


def _key(op: Op) -> tuple[Component, ...]:
    return (("key", op.coordinator, 0),)  # type: ignore[union-attr]


def _topic(op: Op) -> tuple[Component, ...]:
    return (("topic", op.partition, 0),)  # type: ignore[union-attr]


def _buffer(op: Op) -> tuple[Component, ...]:
    return (("buffer", op.partition, 0),)  # type: ignore[union-attr]


def _cursor(op: Op) -> tuple[Component, ...]:
    return (("cursor", op.subscription, op.partition),)  # type: ignore[union-attr]


def _files(op: Op) -> tuple[Component, ...]:
    assert isinstance(op, Offloaded)
    return (FILES,)


def _rolled(op: Op) -> tuple[Component, ...]:
    assert isinstance(op, LedgerRolled)
    return (CATALOG, ("topic" if op.role == "p" else "buffer", op.partition, 0))


def _sealed(op: Op) -> tuple[Component, ...]:
    assert isinstance(op, LedgerSealed)
    return (FILES, ("topic" if op.role == "p" else "buffer", op.partition, 0))


def _trimmed(op: Op) -> tuple[Component, ...]:
    assert isinstance(op, LedgerTrimmed)
    number = op.partition
    if op.role != "p":
        return (FILES, CATALOG, ("buffer", number, 0))
    return (
        FILES,
        ("topic", number, 0),
        ("buffer", number, 0),
        ("delayed", number, 0),
        ("watermark", number, 0),
    )


def _deleted(op: Op) -> tuple[Component, ...]:
    assert isinstance(op, TopicDeleted)
    return (FILES, CATALOG)


def _unsubscribed(op: Op) -> tuple[Component, ...]:
    assert isinstance(op, SubscriptionDeleted)
    return (CATALOG, *(("watermark", number, 0) for number in op.clamped))


def _compacted(op: Op) -> tuple[Component, ...]:
    assert isinstance(op, Compacted)
    return (FILES, CATALOG, ("buffer", op.partition, 0))


def _chunks(op: Op) -> tuple[Component, ...]:
    assert isinstance(op, ChunksAppended)
    buffer: Component = ("buffer", op.partition, 0)
    if op.deliver_at is None:
        return (FILES, buffer)
    return (FILES, buffer, ("delayed", op.partition, 0))


def _appended(op: Op) -> tuple[Component, ...]:
    if op.times:  # type: ignore[union-attr]
        return (("topic", op.partition, 0), ("delayed", op.partition, 0))  # type: ignore[union-attr]
    return (("topic", op.partition, 0),)  # type: ignore[union-attr]


def _adopted(op: Op) -> tuple[Component, ...]:
    assert isinstance(op, Adopted)
    topic: Component = ("topic", op.partition, 0)
    return (FILES, topic) if op.times is None else (FILES, topic, ("delayed", op.partition, 0))


def _marked(op: Op) -> tuple[Component, ...]:
    assert isinstance(op, CommitMarker)
    topic: Component = ("topic", op.partition, 0)
    return (topic, *_beside(op.partition, op.delayed, op.watermarks))


def _beside(partition: int, delayed: int, watermarks: object) -> tuple[Component, ...]:
    """The folds that care for what a transaction has beside messages, which most have not."""
    if not delayed and not watermarks:
        return ()
    found: tuple[Component, ...] = (("delayed", partition, 0),) if delayed else ()
    return (*found, ("watermark", partition, 0)) if watermarks else found


def _buffer_appended(op: Op) -> tuple[Component, ...]:
    if op.times:  # type: ignore[union-attr]
        return (("buffer", op.partition, 0), ("delayed", op.partition, 0))  # type: ignore[union-attr]
    return (("buffer", op.partition, 0),)  # type: ignore[union-attr]


def _buffer_aborted(op: Op) -> tuple[Component, ...]:
    assert isinstance(op, BufferAborted)
    buffer: Component = ("buffer", op.partition, 0)
    return (buffer, *_beside(op.partition, op.delayed, op.watermarks))


def _watermark(op: Op) -> tuple[Component, ...]:
    partition: int = op.partition  # type: ignore[union-attr]
    return (("topic", partition, 0), ("watermark", partition, 0))


def _buffer_watermark(op: Op) -> tuple[Component, ...]:
    assert isinstance(op, BufferWatermark)
    return (("buffer", op.partition, 0), ("watermark", op.partition, 0))


def _emitted(op: Op) -> tuple[Component, ...]:
    assert isinstance(op, WatermarkEmitted)
    return (("watermark", op.partition, 0),)


def _delayed(op: Op) -> tuple[Component, ...]:
    return (("delayed", op.partition, 0),)  # type: ignore[union-attr]


def _buckets(op: Op) -> tuple[Component, ...]:
    return (FILES, ("delayed", op.partition, 0))  # type: ignore[union-attr]


def _opened(op: Op) -> tuple[Component, ...]:
    assert isinstance(op, TxnOpened)
    return (CATALOG, ("coordinator", op.coordinator, 0))


ROUTES: dict[type, Callable[[Op], tuple[Component, ...]]] = {
    SettingSet: _catalog, TopicCreated: _catalog, SubscriptionCreated: _catalog, ConsumerAttached:
    _catalog, ConsumerDetached: _catalog, LedgerRolled: _rolled, LedgerSealed: _sealed,
    IdsReserved: _coordinator, CounterRaised: _coordinator, TxnOpened: _opened,
    PartitionAdded: _coordinator, SubscriptionAdded: _coordinator, StatusUpdated: _coordinator,
    TxnsForgotten: _coordinator, KeyConnected: _key, KeyBound: _key, KeyReleased: _key,
    KeyDeleted: _key, Appended: _appended, CommitMarker: _marked,
    BufferAppended: _buffer_appended, BufferCommitted: _buffer,
    BufferAborted: _buffer_aborted,
    CursorOpened: _cursor, Acked: _cursor, PendingAcked: _cursor, PendingCommitted: _cursor,
    PendingAborted: _cursor, ProducerOpened: _topic, ProducersForgotten: _topic,
    AckConflicted: _cursor, DeadLettered: _cursor, Deduplicated: _topic,
    PartitionOffline: _catalog, PartitionAvailable: _catalog,
    LedgerReserved: _catalog, LedgerTrimmed: _trimmed, Compacted:
    _compacted, PolicySet: _catalog, CursorTrimmed: _cursor,
    IsolationSet: _catalog, SubscriptionTypeSet: _catalog, Leased: _cursor, Returned: _cursor,
    PartitionsAdded: _catalog, TopicDeleted: _deleted,
    SubscriptionPolicySet: _catalog, SubscriptionDeleted: _unsubscribed, Sought: _cursor,
    ChunksAppended: _chunks, BucketSealed: _delayed, BucketsMerged: _buckets,
    WatermarkSet: _watermark, WatermarkIdled: _watermark, WatermarkSnapshot: _watermark,
    BufferWatermark: _buffer_watermark, WatermarkEmitted: _emitted,
    BucketDeleted: _buckets, Promoted: _cursor, NamespacePolicySet: _catalog,
    DelaysCounted: _topic, Adopted: _adopted, BatchRecorded: _key, PlaceAdded: _catalog,
    Offloaded: _files, LossAccepted: _catalog, ClockNoted: _catalog,
}  # fmt: skip


def components(op: Op) -> tuple[Component, ...]:
    """The folds that take this op, as (kind, number, number)."""
    return ROUTES[type(op)](op)
