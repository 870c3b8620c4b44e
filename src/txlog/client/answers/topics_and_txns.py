"""Topics, subscriptions, transactions and the status of a store, as plain values.

Ids are TxnId and MessageId, instants are ms since 1970 UTC. The keys are the fields that the
commands print.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from txlog.base.ids import MessageId, TopicName, TxnId
from txlog.client.answers import delayed as delays
from txlog.engine.door import catalog as catalogs
from txlog.engine.door import catalog as lookup
from txlog.engine.door import reading as buffers
from txlog.engine.door.catalog import (
    Subscription,
    Topic,
    TopicState,
    directory_of,
    numbers,
    schema_of,
)
from txlog.engine.door.consuming import backlog, first_entry
from txlog.engine.door.liveness import dead_consumers
from txlog.engine.door.store import Store, View
from txlog.engine.door.topics import own_policies
from txlog.engine.door.transactions import (
    ABORTING,
    COMMITTING,
    OPEN,
    PREPARED,
    UNDECIDED,
    EndAnswer,
    Prepared,
    Txn,
    participant_name,
    participants,
    skipped_by,
    unrecorded_markers,
)

if TYPE_CHECKING:
    from txlog.base.rows.consuming import SubscriptionRow
    from txlog.base.rows.topics import TopicDescription, TopicPartition, TopicRow
    from txlog.base.rows.transactions import (
        CommitMarker,
        Expired,
        TransactionAcks,
        TransactionBegun,
        TransactionDescription,
        TransactionEnded,
        TransactionPartition,
        TransactionResolved,
        TransactionRow,
        WaitingTransaction,
    )
    from txlog.client.answers.delayed import DelayCounts


def short(topic: Topic) -> str:
    """The name of a topic without public/default."""
    return TopicName.parse(topic.name).short


def partition_name(view: View, number: int) -> str:
    """`topic/partition` of a store-wide partition number; the number if it was deleted."""
    return participant_name(view.catalog, (number, 0))


def subscription_name(view: View, number: int) -> str:
    """The name of a subscription; its number if it was deleted."""
    subscription = view.catalog.subscriptions.get(number)
    return f"subscription {number}" if subscription is None else subscription.name


def there(view: View, partitions: Iterable[int]) -> list[int]:
    """The partitions that still exist, in order."""
    return sorted(number for number in partitions if catalogs.has_partition(view.catalog, number))


def file_bytes(view: View, ledgers: Sequence[int]) -> int:
    """Bytes of the segment files of ledgers; rows that are only in the journal count 0."""
    return sum(ref.bytes for ledger in ledgers for ref in view.files.of(ledger))


# --- topics and subscriptions ----------------------------------------------------------------


def topics(view: View, store: Store) -> list[TopicRow]:
    """Every topic, by name."""
    records = sorted(view.catalog.topics.values(), key=lambda topic: topic.name)
    counts = delays.DelayCounts(view, store)
    return [_topic_row(view, topic, counts) for topic in records]


def _topic_row(view: View, topic: Topic, counts: DelayCounts) -> TopicRow:
    states = [view.topic(number) for number in numbers(topic)]
    last = max((state.last_publish_ms for state in states), default=0)
    open_txns = {
        (coordinator, sequence)
        for number in numbers(topic)
        for coordinator, by_sequence in view.buffer(number).held.items()
        for sequence in by_sequence
    }
    return {
        "topic": short(topic),
        "partitions": topic.partitions,
        "messages": sum(state.messages for state in states),
        "size_bytes": sum(state.payload_bytes for state in states),
        "open_txns": len(open_txns),
        "delayed": counts.of_topic(topic),
        "subscriptions": len(topic.subscriptions),
        "backlog": sum(
            backlog(view, subscription, number)
            for subscription in topic.subscriptions
            for number in numbers(topic)
        ),
        "created_time": topic.created_ms,
        "last_publish_time": last or None,
    }


def topic(view: View, record: Topic, store: Store) -> TopicDescription:
    """One topic with its partitions."""
    rows: list[TopicPartition] = []
    counts = delays.DelayCounts(view, store)
    for index, number in enumerate(numbers(record)):
        state, side = view.topic(number), view.buffer(number)
        rows.append(
            {
                "partition": index,
                "online": number not in view.catalog.unavailable,
                "first": None
                if (first := first_entry(view, number)) is None
                else MessageId(*first),
                "last": None if state.last_message is None else MessageId(*state.last_message),
                "messages": state.messages,
                "size_bytes": state.payload_bytes,
                "ledgers": len(state.ledgers),
                "open_ledger": state.ledgers[-1].ledger,
                "open_txns": sum(map(len, side.held.values())),
                "sidecar_bytes": sum(end.payload_bytes for end in side.ledgers),
                "delayed": counts.of_partition(record, number),
                "watermark": view.watermark(number).state.value,
                "compacted_through": _horizon(state),
            }
        )
    entries = [view.catalog.subscriptions[number] for number in record.subscriptions]
    return {
        **_topic_row(view, record, counts),
        "policies": own_policies(view, record),
        "schema_version": None if (newest := schema_of(record)) is None else newest.version,
        "mismatched": sum(view.topic(number).mismatched for number in numbers(record)),
        "directory": directory_of(record),
        "subscription_list": [
            {
                "subscription": entry.name,
                "type": entry.type,
                "backlog": _backlog(view, entry),
                "consumers": live_count(view, store, entry),
            }
            for entry in entries
        ],
        "partition_list": rows,
    }


def _horizon(state: TopicState) -> MessageId | None:
    """The last entry that the newest compaction by key has read; None: it read none."""
    compaction = state.compaction
    return (
        None if compaction is None or compaction.horizon[1] < 0 else MessageId(*compaction.horizon)
    )


def _backlog(view: View, entry: Subscription) -> int:
    return sum(
        backlog(view, entry.number, number) for number in numbers(view.catalog.topics[entry.topic])
    )


def live_count(view: View, store: Store, entry: Subscription) -> int:
    """How many consumers of a subscription are alive."""
    attached = [consumer.number for consumer in catalogs.consumers_of(view.catalog, entry.number)]
    return len(attached) - len(dead_consumers(store.disk, attached))


def subscriptions(view: View, topic: Topic | None, store: Store) -> list[SubscriptionRow]:
    """The subscriptions of one topic, or of all; `lag` has more about each."""
    counts = delays.DelayCounts(view, store)
    rows = [
        subscription(
            view,
            entry,
            store,
            _backlog(view, entry),
            counts.of_subscription(view.catalog.topics[entry.topic], entry),
        )
        for entry in view.catalog.subscriptions.values()
        if topic is None or entry.topic == topic.number
    ]
    return sorted(rows, key=lambda row: (row["topic"], row["subscription"]))


def subscription(
    view: View, entry: Subscription, store: Store, messages: int, delayed: int
) -> SubscriptionRow:
    """One subscription; messages, delayed: of its backlog."""
    record = view.catalog.topics[entry.topic]
    cursors = [view.cursor(entry.number, number) for number in numbers(record)]
    mark = cursors[0].mark_delete
    return {
        "topic": short(record),
        "subscription": entry.name,
        "type": entry.type,
        "backlog": messages,
        "delayed": delayed,
        "pending_acks": sum(p.count for cursor in cursors for p in cursor.pending.values()),
        "consumers": live_count(view, store, entry),
        "isolation": entry.isolation,
        "mark_delete": MessageId(*mark) if len(cursors) == 1 and mark[1] >= 0 else None,
        "last_ack_time": max(cursor.last_ack_ms for cursor in cursors) or None,
        "created_time": entry.created_ms,
        "backlog_no_delayed": messages - delayed,
    }


# --- transactions ----------------------------------------------------------------------------


def begun(view: View, txn_id: TxnId, store: Store) -> TransactionBegun:
    """The answer of begin."""
    txn = lookup.transaction(view, txn_id, store.settings.coordinators)
    return {
        "txn": txn_id,
        "coordinator": txn.coordinator,
        "transaction_key": txn.key,
        "owner": txn.owner,
        "owner_uid": txn.owner_uid,
        "epoch": txn.epoch if txn.key is not None else None,
        "timeout_ms": txn.timeout_ms,
        "begin_time": txn.wall_ms,
        "timeout_at": txn.wall_ms + txn.timeout_ms,
        "fenced_txn": None,
    }


def ended(view: View, answer: EndAnswer) -> TransactionEnded:
    """The answer of commit and abort."""
    assert answer.txn_id is not None, "it was ended by its id"
    return {
        "txn": answer.txn_id,
        "state": answer.status.lower(),
        "already": answer.already,
        "reason": answer.reason,
        "messages": answer.messages,
        "acks": answer.acks,
        "marker_list": [
            _marker_row(view, marker)
            for marker in answer.markers
            if catalogs.has_partition(view.catalog, marker[0])
        ],
        "waiting_list": [participant_name(view.catalog, place) for place in answer.waiting],
        "skipped_list": [participant_name(view.catalog, place) for place in answer.skipped],
        "open_ms": answer.open_ms,
    }


def _marker_row(view: View, marker: tuple[int, int, int, int]) -> CommitMarker:
    number, ledger, entry, count = marker
    topic = catalogs.topic_of(view.catalog, number)
    return {
        "topic": short(topic),
        "partition": catalogs.index_of(topic, number),
        "marker": MessageId(ledger, entry),
        "messages": count,
    }


def waiting(view: View) -> list[WaitingTransaction]:
    """Decided, unfinished transactions, each with the participants that it waits for."""
    view.load_coordinators()
    return [
        {"txn": TxnId(*_pair(txn)), "waiting_list": waiting_list(view, txn)}
        for _, state in view.loaded_coordinators()
        for txn in state.unfinished.values()
        if txn.decision_lsn
    ]


def expire(store: Store) -> Expired:
    """Sweep the whole store: abort overdue transactions, finish decided ones, forget old ones."""
    swept = store.expire()
    return {
        "expired": swept.expired,
        "rolled_forward": swept.rolled_forward,
        "rolled_back": swept.rolled_back,
        "forgotten": swept.forgotten,
        "waiting_list": store.read(waiting),
    }


def waiting_list(view: View, txn: Txn) -> list[str]:
    """The participants that a decided transaction waits for, as topic/partition[:subscription]."""
    if txn.status not in (COMMITTING, ABORTING):
        return []
    return [participant_name(view.catalog, place) for place in participants(view, txn).waiting]


def transactions(
    view: View, store: Store, every: bool, states: Sequence[str] | None
) -> list[TransactionRow]:
    """Unfinished transactions, oldest first; every, or any states: ended ones on record, too."""
    out: list[TransactionRow] = []
    lowered = None if states is None else {state.lower() for state in states}
    for number in view.known_coordinators():
        state = view.coordinator(number)
        ended = state.ended.values() if every or lowered else ()
        out += [_txn_row(view, store, txn) for txn in (*state.unfinished.values(), *ended)]
    out = [row for row in out if lowered is None or row["state"] in lowered]
    return sorted(out, key=lambda row: (row["begin_time"], row["txn"]))


def _txn_row(view: View, store: Store, txn: Txn) -> TransactionRow:
    now = store.clock.now()
    txn_id = TxnId(txn.coordinator, txn.sequence)
    messages, acks, size = txn.messages, txn.acks, None
    if txn.status in UNDECIDED:
        buffered = [buffers.find_held(view.buffer(n), *_pair(txn)) for n in txn.partitions]
        messages = sum(entry.count for entry in buffered if entry is not None)
        size = sum(entry.payload_bytes for entry in buffered if entry is not None)
        pending = [view.cursor(s, p).pending.get(_pair(txn)) for s, p in txn.subscriptions]
        acks = sum(entry.count for entry in pending if entry is not None)
    unfinished = not txn.ended_ms
    left_ms = lookup.left_ms(txn, now)
    return {
        "txn": txn_id,
        "state": txn.status.lower(),
        "transaction_key": txn.key,
        "age_ms": (txn.ended_ms or now.wall_ms) - txn.wall_ms,
        "expires_in_ms": left_ms if txn.status == OPEN else None,
        "topic_list": topics_of(view, txn),
        "messages": messages,
        "acks": acks,
        "owner": txn.owner,
        "owner_uid": txn.owner_uid,
        "epoch": txn.epoch if txn.key is not None else None,
        "coordinator": txn.coordinator,
        "overdue": lookup.is_overdue(txn, now),
        "reason": txn.reason,
        "subscription_list": sorted(
            {subscription_name(view, subscription) for subscription, _ in txn.subscriptions}
        ),
        "size_bytes": size or 0,
        "begin_time": txn.wall_ms,
        "timeout_at": txn.wall_ms + txn.timeout_ms,
        "end_time": None if unfinished else txn.ended_ms,
        "waiting_list": waiting_list(view, txn),
        "prepared_ms": prepared_ms(txn, now.wall_ms),
        "database": None if txn.prepared is None else database_of(txn.prepared),
    }


def resolved(txn_id: TxnId, prepared: Prepared, status: str) -> TransactionResolved:
    """A prepared transaction whose database was asked."""
    return {"txn": txn_id, "state": status.lower(), "database": database_of(prepared)}


def prepared_ms(txn: Txn, now_ms: int) -> int | None:
    """How long a transaction has been prepared; None: it is not."""
    if txn.status != PREPARED or txn.prepared is None:
        return None
    return max(0, now_ms - txn.prepared.since_ms)


def database_of(prepared: Prepared) -> str:
    """The database that decides a prepared transaction, for people."""
    return f"{prepared.kind}:{prepared.label}"


def topics_of(view: View, txn: Txn) -> list[str]:
    """The topics to which a transaction has sent."""
    return sorted({short(catalogs.topic_of(view.catalog, n)) for n in there(view, txn.partitions)})


def _pair(txn: Txn) -> tuple[int, int]:
    return (txn.coordinator, txn.sequence)


def transaction(view: View, store: Store, txn_id: TxnId) -> TransactionDescription:
    """One transaction, with the partitions and subscriptions that it touches."""
    txn = lookup.transaction(view, txn_id, store.settings.coordinators)
    decided = txn.decision_lsn > 0
    found_markers = [*txn.markers, *(unrecorded_markers(view, txn) if decided else ())]
    markers = {marker[0]: marker for marker in found_markers}
    partitions: list[TransactionPartition] = []
    for number in there(view, txn.partitions):
        buffered = buffers.find_held(view.buffer(number), *_pair(txn))
        marker = markers.get(number)
        record = catalogs.topic_of(view.catalog, number)
        partitions.append(
            {
                "topic": short(record),
                "partition": catalogs.index_of(record, number),
                "messages": buffered.count if buffered else marker[3] if marker else 0,
                "size_bytes": buffered.payload_bytes if buffered else 0,
                "marker": MessageId(marker[1], marker[2]) if marker else None,
                "done": decided and buffered is None,
            }
        )
    acks: list[TransactionAcks] = []
    for subscription, number in sorted(txn.subscriptions):
        if subscription not in view.catalog.subscriptions:
            continue  # the subscription was deleted; the list of skipped ones has it
        pending = view.cursor(subscription, number).pending.get(_pair(txn))
        record = catalogs.topic_of(view.catalog, number)
        cumulative = pending.cumulative if pending else None
        acks.append(
            {
                "topic": short(record),
                "partition": catalogs.index_of(record, number),
                "subscription": view.catalog.subscriptions[subscription].name,
                "acks": pending.count if pending else 0,
                "cumulative": MessageId(*cumulative) if cumulative else None,
                "done": decided and pending is None,
            }
        )
    return {
        **_txn_row(view, store, txn),
        "timeout_ms": txn.timeout_ms,
        "decision_lsn": txn.decision_lsn or None,
        "partition_list": partitions,
        "ack_list": acks,
        "skipped_list": [participant_name(view.catalog, place) for place in skipped_by(view, txn)],
    }
