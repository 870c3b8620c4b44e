"""Admin answers about coordinators and transactions, as plain values.

Fields that Pulsar has, too, have its names in snake_case. Instants are ms since 1970 UTC,
transactions are TxnId. Source: spec/transactions 15, Pulsar's Transactions admin API.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from txlog.base.ids import MessageId, TxnId
from txlog.client.answers import topics_and_txns
from txlog.client.answers.keys import living_counts
from txlog.engine.door import catalog as catalogs
from txlog.engine.door import catalog as lookup
from txlog.engine.door import reading as buffers
from txlog.engine.door.consuming import covers, messages_in
from txlog.engine.door.facts import Component
from txlog.engine.door.history import component_log
from txlog.engine.door.store import Store, View
from txlog.engine.door.transactions import (
    ABORTED,
    ABORTING,
    COMMITTING,
    OPEN,
    PREPARED,
    Coordinator,
    Txn,
)
from txlog.errors import Corruption

if TYPE_CHECKING:
    from txlog.base.rows.transactions import (
        CoordinatorRow,
        CoordinatorStats,
        InBuffer,
        InPendingAck,
        LedgerPiece,
        LogStats,
        TransactionLogRow,
        TransactionMetadata,
        TransactionRow,
    )


READY, READ_ONLY, CORRUPT = "Ready", "ReadOnly", "Corrupt"


def coordinators(view: View, store: Store) -> list[CoordinatorRow]:
    """Every coordinator of the store: {coordinator, state, ongoing_txn_size, keys}."""
    components, keys = view.known(), living_counts(view)
    out: list[CoordinatorRow] = []
    for number in range(store.settings.coordinators):
        state, fold = coordinator_state(view, store, number, components)
        out.append(
            {
                "coordinator": number,
                "state": state,
                "ongoing_txn_size": len(fold.unfinished),
                "keys": keys[number],
            }
        )
    return out


def coordinator_state(
    view: View, store: Store, number: int, components: set[Component]
) -> tuple[str, Coordinator]:
    """(Ready, ReadOnly or Corrupt; the fold, empty when it was never used or cannot be read)."""
    fold = Coordinator()
    try:
        if (
            "coordinator",
            number,
            0,
        ) in components:  # do not load others: a sweep visits loaded ones
            fold = view.coordinator(number)
    except Corruption:
        return CORRUPT, fold
    return READ_ONLY if store.disk.read_only else READY, fold


def coordinator_stats(
    view: View, store: Store, coordinator: int | None, *, internal: bool
) -> list[CoordinatorStats]:
    """The figures of one coordinator, or of all; internal: with log_stats.

    raises: CoordinatorNotFound
    """
    count = store.settings.coordinators
    if coordinator is not None:
        lookup.check_coordinator(coordinator, count)
    components = view.known()
    return [
        _coordinator_row(view, store, number, components, internal)
        for number in (range(count) if coordinator is None else [coordinator])
    ]


def _coordinator_row(
    view: View, store: Store, number: int, components: set[Component], internal: bool
) -> CoordinatorStats:
    state, fold = coordinator_state(view, store, number, components)
    by_status = {status: 0 for status in (OPEN, PREPARED, COMMITTING, ABORTING)}
    for txn in fold.unfinished.values():
        by_status[txn.status] += 1
    opened = [txn.wall_ms for txn in fold.unfinished.values() if txn.status == OPEN]
    began_ms, ended_ms = store.recovered_ms
    log = None
    if internal:
        log = ledger_stats(
            store, f"system/transaction_log/{number}", ("coordinator", number, 0), fold.log_ops
        )
    return {
        "coordinator": number,
        "state": state,
        "least_sig_bits": max(0, fold.next_sequence - 1),
        "low_water_mark": low_water_mark(fold),
        "ongoing_txn_size": len(fold.unfinished),
        "next_sequence": fold.next_sequence,
        "prepared_size": by_status[PREPARED],
        "committing_size": by_status[COMMITTING],
        "aborting_size": by_status[ABORTING],
        "ended_size": len(fold.ended),
        "oldest_open_time": min(opened, default=None),
        "recover_start_time": began_ms,
        "recover_end_time": ended_ms,
        "log_stats": log,
    }


def low_water_mark(fold: Coordinator) -> int:
    """The lowest unfinished sequence minus one; -1 while sequence 0 is unfinished; 0: none."""
    return min(fold.unfinished) - 1 if fold.unfinished else 0


def ledger_stats(store: Store, name: str, key: Component, added: int) -> LogStats:
    """What Pulsar calls managed-ledger statistics, for a ledger that holds only ops.

    An entry is an op. Closed pieces are history files. All coordinators share these files, so each
    piece has the size of the whole file. The open piece is the journal after the checkpoint.
    cost: reads the journal after the checkpoint once
    """
    log = component_log(store, key)
    closed: list[LedgerPiece] = [
        {
            "path": ref.path,
            "entries": rows,
            "size": ref.bytes,
            "lsn_first": ref.lsn_first,
            "lsn_last": ref.lsn_last,
        }
        for ref, rows in log.parts
    ]
    entries = sum(piece["entries"] for piece in closed) + log.tail_ops
    return {
        "managed_ledger_name": name,
        "managed_ledger_internal_stats": {
            "entries_added_counter": added,
            "number_of_entries": entries,
            "total_size": sum(piece["size"] for piece in closed) + log.tail_bytes,
            "current_ledger_entries": log.tail_ops,
            "current_ledger_size": log.tail_bytes,
            "last_ledger_created_time": log.cut_ms or None,
            "last_confirmed_entry": log.last_lsn or None,
            "state": "LedgerOpened",
            "ledgers": closed,
            "cursors": {},
        },
    }


# --- transactions ----------------------------------------------------------------------------


def transaction_metadata(view: View, store: Store, txn_id: TxnId) -> TransactionMetadata:
    """All recorded facts about one transaction. Raises TransactionNotFound."""
    txn = lookup.transaction(view, txn_id, store.settings.coordinators)
    row = topics_and_txns.transaction(view, store, txn_id)
    acked: dict[str, dict[str, InPendingAck]] = {}
    for subscription, number in sorted(txn.subscriptions):
        place = acked.setdefault(topics_and_txns.partition_name(view, number), {})
        name = topics_and_txns.subscription_name(view, subscription)
        place[name] = in_pending_ack(view, txn, subscription, number)
    produced = {
        topics_and_txns.partition_name(view, number): in_buffer(view, txn, number)
        for number in topics_and_txns.there(view, txn.partitions)
    }
    return {
        "txn": txn_id,
        "status": txn.status,
        "open_time": txn.wall_ms,
        "timeout_at": row["timeout_at"],
        "timeout_ms": row["timeout_ms"],
        "owner": row["owner"],
        "owner_uid": row["owner_uid"],
        "transaction_key": row["transaction_key"],
        "epoch": row["epoch"],
        "reason": row["reason"],
        "overdue": row["overdue"],
        "end_time": row["end_time"],
        "decision_lsn": row["decision_lsn"],
        "waiting_list": row["waiting_list"],
        "skipped_list": row["skipped_list"],
        "produced_partitions": produced,
        "acked_partitions": acked,
    }


def in_buffer(view: View, txn: Txn, partition: int) -> InBuffer:
    """The messages of a transaction in the sidecar of a partition; also after its end.

    start_position: its first row in the sidecar, null after an abort
    """
    buffered = buffers.find_held(view.buffer(partition), txn.coordinator, txn.sequence)
    marker = next((place for place in txn.markers if place[0] == partition), None)
    ranges = [] if buffered is None else buffered.ranges
    count = 0 if buffered is None else buffered.count
    if marker is not None:
        record = buffers.find_marker(view.buffer(partition), marker[1], marker[2])
        ranges, count = ([], marker[3]) if record is None else (list(record.ranges), marker[3])
    aborted = txn.status in (ABORTING, ABORTED)
    start = None if aborted or not ranges else MessageId(ranges[0][0], ranges[0][1])
    return {
        "start_position": start,
        "aborted": aborted,
        "messages": count,
        "marker": None if marker is None else MessageId(marker[1], marker[2]),
    }


def in_pending_ack(view: View, txn: Txn, subscription: int, partition: int) -> InPendingAck:
    """The acknowledgements of an open transaction on a subscription, in one partition.

    individual_acks: messages that its cumulative acknowledgement does not cover
    """
    cursor = view.cursor(subscription, partition)
    pending = cursor.pending.get((txn.coordinator, txn.sequence))
    mark = None if pending is None else pending.cumulative
    runs = [] if pending is None else pending.runs
    single = [run for run in runs if mark is None or not covers(mark, (run[0], run[2], run[4]))]
    return {
        "cumulative_ack_position": None if mark is None else MessageId(*mark),
        "individual_acks": messages_in(view, partition, single),
    }


def log_row(view: View, row: Mapping[str, Any]) -> TransactionLogRow:
    """A row of the history with names for numbers: the fields of `txn log`."""
    number, subscription = row["partition"], row["subscription"]
    is_there = number is not None and catalogs.has_partition(view.catalog, number)
    topic = catalogs.topic_of(view.catalog, number) if is_there else None
    return {
        "lsn": row["lsn"],
        "time": row["time"],
        "op": row["op"],
        "topic": None if topic is None else topics_and_txns.short(topic),
        "partition": None if topic is None else catalogs.index_of(topic, number),
        "subscription": None
        if subscription is None
        else topics_and_txns.subscription_name(view, subscription),
        "count": row["count"],
        "detail": row["detail"],
    }


def slow_transactions(
    view: View, store: Store, older_than_ms: int, coordinator: int | None
) -> list[TransactionRow]:
    """Unfinished transactions older than this, oldest first; rows of `txn list`.

    raises: CoordinatorNotFound
    """
    if coordinator is not None:
        lookup.check_coordinator(coordinator, store.settings.coordinators)
    return [
        row
        for row in topics_and_txns.transactions(view, store, False, None)
        if row["age_ms"] > older_than_ms and coordinator in (None, row["coordinator"])
    ]


def message_keys(view: View, store: Store, txn_id: TxnId) -> list[str]:
    """The distinct keys of a transaction's messages, as text, in byte order.

    A key that is not UTF-8 has `\\xNN` for its bytes. An aborted transaction has no messages left.
    """
    txn = lookup.transaction(view, txn_id, store.settings.coordinators)
    keys: set[bytes] = set()
    for partition in txn.partitions:
        state = view.buffer(partition)
        buffered = buffers.find_held(state, txn.coordinator, txn.sequence)
        ranges = [] if buffered is None else buffered.ranges
        for number, ledger, entry, _ in txn.markers:
            marker = buffers.find_marker(state, ledger, entry) if number == partition else None
            ranges = ranges if marker is None else list(marker.ranges)
        spans = [(ledger, row, row + rows) for ledger, row, rows, _ in ranges]
        for table in view.rows(spans, ("key",)):
            keys.update(key for key in table.column("key").unique().to_pylist() if key is not None)
    return [key.decode("utf-8", "backslashreplace") for key in sorted(keys)]
