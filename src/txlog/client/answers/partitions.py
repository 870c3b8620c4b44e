"""Admin answers about partitions: sidecars, pending acknowledgements, one position.

The sidecar of a partition is its ledgers with messages sent in transactions (Pulsar's buffer).
Source: spec/transactions 15; Pulsar's transactionBufferStats, pendingAckStats and
positionInPendingAck.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from txlog.base.ids import MessageId, TopicName, TxnId
from txlog.client.answers import transactions
from txlog.engine.door import catalog as lookup
from txlog.engine.door import reading as buffers
from txlog.engine.door.catalog import Subscription, Topic, index_of, number_of
from txlog.engine.door.consuming import Cursor, checked_run, covers
from txlog.engine.door.facts import Run
from txlog.engine.door.store import Store, View
from txlog.errors import Corruption, MessageNotFound

if TYPE_CHECKING:
    from txlog.base.rows.transactions import BufferStats, PendingAckStats, PendingPosition


NONE, READY, ERROR = "None", "Ready", "Error"


def buffer_stats(
    view: View, store: Store, topic: TopicName, partition: int | None, txn_id: TxnId | None
) -> list[BufferStats]:
    """The figures of the sidecar of each partition, or of one.

    txn_id: also the messages of this transaction there
    raises: TopicNotFound, TransactionNotFound
    """
    record = lookup.topic(view, topic)
    return [
        _buffer_row(view, store, record, index, txn_id)
        for index in _indexes(record, topic, partition)
    ]


def _indexes(record: Topic, name: TopicName, partition: int | None) -> list[int]:
    index = name.partition if partition is None else partition
    if index is None:
        return list(range(record.partitions))
    lookup.check_partition(name.topic.short, record, index)
    return [index]


def _buffer_row(
    view: View, store: Store, topic: Topic, index: int, txn_id: TxnId | None
) -> BufferStats:
    number = number_of(topic, index)
    side, state = buffers.Buffer(), NONE
    last: tuple[int, int, int] | None = None
    try:
        last = view.topic(number).last_message
        side = view.buffer(number)
        state = READY if side.ledgers else NONE
        if number in view.catalog.unavailable:
            state = ERROR
    except Corruption:
        state = ERROR
    ongoing = sum(map(len, side.held.values()))
    live, garbage = sidecar_bytes(side)
    began_ms, ended_ms = store.recovered_ms
    row: BufferStats = {
        "topic": TopicName.parse(topic.name).short,
        "partition": index,
        "state": state,
        "ongoing_txn_size": ongoing,
        "total_aborted_transactions": side.aborted_count,
        "sidecar_live_bytes": live,
        "sidecar_garbage_bytes": garbage,
        "max_read_position": None if last is None else MessageId(*last),
        "low_water_marks": _low_water_marks(view, [c for c, txns in side.held.items() if txns]),
        "last_snapshot_time": view.manifest.time_ms or None,
        "recover_start_time": began_ms,
        "recover_end_time": ended_ms,
    }
    if txn_id is not None:
        txn = lookup.transaction(view, txn_id, store.settings.coordinators)
        return {**row, **transactions.in_buffer(view, txn, number)}
    return row


def sidecar_bytes(side: buffers.Buffer) -> tuple[int, int]:
    """Payload bytes (of rows that are or may become visible, of aborted rows)."""
    total = sum(end.payload_bytes for end in side.ledgers)
    garbage = min(side.dead_bytes, total)
    return total - garbage, garbage


def _low_water_marks(view: View, coordinators: list[int]) -> dict[str, int]:
    return {
        str(number): transactions.low_water_mark(view.coordinator(number))
        for number in sorted(coordinators)
    }


# --- subscriptions ---------------------------------------------------------------------------


def pending_ack_stats(
    view: View,
    store: Store,
    topic: TopicName,
    subscription: str,
    partition: int | None,
    txn_id: TxnId | None,
    *,
    internal: bool,
) -> list[PendingAckStats]:
    """The acknowledgements of open transactions on a subscription, in each partition or in one.

    raises: TopicNotFound, SubscriptionNotFound, TransactionNotFound
    """
    record = lookup.topic(view, topic)
    entry = lookup.subscription(view, record, subscription)
    return [
        _pending_row(view, store, record, entry, index, txn_id, internal)
        for index in _indexes(record, topic, partition)
    ]


def _pending_row(
    view: View,
    store: Store,
    topic: Topic,
    subscription: Subscription,
    index: int,
    txn_id: TxnId | None,
    internal: bool,
) -> PendingAckStats:
    number = number_of(topic, index)
    cursor, state = Cursor(), NONE
    try:
        cursor = view.cursor(subscription.number, number)
        used = cursor.pending or cursor.figures.committed or cursor.figures.aborted
        state = READY if used else NONE
        if number in view.catalog.unavailable:
            state = ERROR
    except Corruption:
        state = ERROR
    began_ms, ended_ms = store.recovered_ms
    row: PendingAckStats = {
        "topic": TopicName.parse(topic.name).short,
        "partition": index,
        "subscription": subscription.name,
        "state": state,
        "ongoing_txn_size": len(cursor.pending),
        "pending_messages": sum(pending.count for pending in cursor.pending.values()),
        "low_water_marks": _low_water_marks(view, sorted({pair[0] for pair in cursor.pending})),
        "recover_start_time": began_ms,
        "recover_end_time": ended_ms,
        "log_stats": None,
    }
    if internal:
        row["log_stats"] = transactions.ledger_stats(
            store,
            f"_cursors/{subscription.number}",
            ("cursor", subscription.number, number),
            cursor.figures.ops,
        )
    if txn_id is not None:
        txn = lookup.transaction(view, txn_id, store.settings.coordinators)
        return {**row, **transactions.in_pending_ack(view, txn, subscription.number, number)}
    return row


def position_in_pending_ack(
    view: View, topic: TopicName, subscription: str, position: MessageId
) -> PendingPosition:
    """The state of a message on a subscription; {topic, subscription, position, state, txn}.

    state: PendingAck (`txn` has acknowledged it and is open), MarkDelete (acknowledged),
    NotInPendingAck, PendingAckNotReady (its partition is unavailable) or InvalidPosition.
    A marker's own id is PendingAck when a transaction holds any of its messages.
    raises: TopicNotFound, SubscriptionNotFound
    """
    record = lookup.topic(view, topic)
    entry = lookup.subscription(view, record, subscription)
    state, txn = _position_state(view, record, entry, position)
    return {
        "topic": TopicName.parse(record.name).short,
        "subscription": entry.name,
        "position": position,
        "state": state,
        "txn": txn,
    }


def _position_state(
    view: View, topic: Topic, subscription: Subscription, position: MessageId
) -> tuple[str, TxnId | None]:
    owner = view.catalog.owners.get(position.ledger)
    if owner is None or owner[1] != "p" or index_of(topic, owner[0]) < 0:
        return "InvalidPosition", None
    if owner[0] in view.catalog.unavailable:
        return "PendingAckNotReady", None
    run: Run = (position.ledger, position.entry, position.entry, position.index, position.index)
    try:
        run = checked_run(view, owner[0], run)
    except MessageNotFound:
        return "InvalidPosition", None
    cursor = view.cursor(subscription.number, owner[0])
    for pair, pending in cursor.pending.items():
        if any(_overlap(run, held_run) for held_run in pending.runs):
            return "PendingAck", TxnId(*pair)
    if covers(cursor.mark_delete, (run[0], run[1], run[4])) or _deleted(cursor, run):
        return "MarkDelete", None
    return "NotInPendingAck", None


def _overlap(left: Run, right: Run) -> bool:
    if left[0] != right[0] or left[1] > right[2] or right[1] > left[2]:
        return False
    return not (left[3] and right[3]) or (left[3] <= right[4] and right[3] <= left[4])


def _deleted(cursor: Cursor, run: Run) -> bool:
    whole = cursor.acked.entries.get(run[0])
    if whole is not None and run[1] in whole:
        return True
    inner = cursor.acked.inner.get((run[0], run[1]))
    return bool(run[3]) and inner is not None and run[3] in inner
