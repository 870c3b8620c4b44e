"""Transactions, their keys and coordinators, and the messages and acknowledgements they hold."""

from __future__ import annotations

from typing import TypedDict

from txlog.base.ids import MessageId, TxnId

# --- by id -----------------------------------------------------------------------------------


class TransactionBegun(TypedDict):
    """Of `Client.begin`."""

    txn: TxnId
    coordinator: int
    transaction_key: str | None
    owner: str
    owner_uid: int
    epoch: int | None
    timeout_ms: int
    begin_time: int
    timeout_at: int
    fenced_txn: TxnId | None


class CommitMarker(TypedDict):
    """The position at which messages of a TransactionEnded became visible."""

    topic: str
    partition: int
    marker: MessageId
    messages: int


class TransactionEnded(TypedDict):
    """Of `Client.commit` and `Client.abort`."""

    txn: TxnId
    state: str
    already: bool
    reason: str | None
    messages: int
    acks: int
    marker_list: list[CommitMarker]
    waiting_list: list[str]
    skipped_list: list[str]
    open_ms: int


class TransactionRow(TypedDict):
    """Of `Client.transactions` and `Admin.slow_transactions`."""

    txn: TxnId
    state: str
    transaction_key: str | None
    age_ms: int
    expires_in_ms: int | None
    topic_list: list[str]
    messages: int
    acks: int
    owner: str
    owner_uid: int
    epoch: int | None
    coordinator: int
    overdue: bool
    reason: str | None
    subscription_list: list[str]
    size_bytes: int
    begin_time: int
    timeout_at: int
    end_time: int | None
    waiting_list: list[str]


class TransactionPartition(TypedDict):
    """A partition that a TransactionDescription has sent to."""

    topic: str
    partition: int
    messages: int
    size_bytes: int
    marker: MessageId | None
    done: bool


class TransactionAcks(TypedDict):
    """A subscription with acknowledgements of a TransactionDescription, in one partition."""

    topic: str
    partition: int
    subscription: str
    acks: int
    cumulative: MessageId | None
    done: bool


class TransactionDescription(TransactionRow):
    """Of `Client.show_transaction`."""

    timeout_ms: int
    decision_lsn: int | None
    partition_list: list[TransactionPartition]
    ack_list: list[TransactionAcks]
    skipped_list: list[str]


class WaitingTransaction(TypedDict):
    """A decided transaction that waits for partitions."""

    txn: TxnId
    waiting_list: list[str]


class Expired(TypedDict):
    """Of `Client.expire`."""

    expired: int
    rolled_forward: int
    rolled_back: int
    forgotten: int
    waiting_list: list[WaitingTransaction]


class HangingTransaction(TypedDict):
    """Of `Admin.find_hanging`."""

    txn: TxnId
    state: str | None
    age_ms: int
    cause: str
    repair: str
    waiting_list: list[str]


class TransactionLogRow(TypedDict):
    """Of `Admin.transaction_log`."""

    lsn: int
    time: int
    op: str
    topic: str | None
    partition: int | None
    subscription: str | None
    count: int | None
    detail: str | None


class InBuffer(TypedDict):
    """Messages of a transaction, present or past, in the sidecar of a partition."""

    start_position: MessageId | None
    aborted: bool
    messages: int
    marker: MessageId | None


class InPendingAck(TypedDict):
    """Acknowledgements that a transaction holds on a subscription in a partition."""

    cumulative_ack_position: MessageId | None
    individual_acks: int


class TransactionMetadata(TypedDict):
    """Of `Admin.transaction_metadata`; partitions are topic/partition."""

    txn: TxnId
    status: str
    open_time: int
    timeout_at: int
    timeout_ms: int
    owner: str
    owner_uid: int
    transaction_key: str | None
    epoch: int | None
    reason: str | None
    overdue: bool
    end_time: int | None
    decision_lsn: int | None
    waiting_list: list[str]
    skipped_list: list[str]
    produced_partitions: dict[str, InBuffer]
    acked_partitions: dict[str, dict[str, InPendingAck]]


# --- by key ----------------------------------------------------------------------------------


class KeyConnected(TypedDict):
    """Of `Client.connect`."""

    transaction_key: str
    owner: str
    owner_uid: int
    epoch: int
    coordinator: int
    fenced_txn: TxnId | None


class KeyRow(TypedDict):
    """Of `Admin.transaction_keys`."""

    transaction_key: str
    owner: str
    epoch: int
    txn: TxnId | None
    txn_state: str | None
    coordinator: int
    last_used_time: int
    owner_uid: int
    age_ms: int
    connected_time: int
    deleted: bool
    topic_list: list[str]


class KeyTransaction(TypedDict):
    """A remembered transaction of a KeyDescription."""

    txn: TxnId
    state: str
    reason: str | None
    begin_time: int
    end_time: int | None


class KeyDescription(KeyRow):
    """Of `Admin.transaction_key`."""

    txn_list: list[KeyTransaction]


class KeyDeleted(TypedDict):
    """Of `Admin.delete_transaction_key`."""

    transaction_key: str
    owner: str
    owner_uid: int
    epoch: int
    deleted: bool
    aborted_list: list[TxnId]


# --- coordinators ----------------------------------------------------------------------------


class CoordinatorRow(TypedDict):
    """Of `Admin.coordinators`."""

    coordinator: int
    state: str
    ongoing_txn_size: int
    keys: int


class LedgerPiece(TypedDict):
    """A closed piece of a ledger of ops."""

    path: str
    entries: int
    size: int
    lsn_first: int
    lsn_last: int


class ManagedLedger(TypedDict):
    """Statistics that Pulsar calls the internal statistics of a managed ledger."""

    entries_added_counter: int
    number_of_entries: int
    total_size: int
    current_ledger_entries: int
    current_ledger_size: int
    last_ledger_created_time: int | None
    last_confirmed_entry: int | None
    state: str
    ledgers: list[LedgerPiece]
    cursors: dict[str, object]


class LogStats(TypedDict):
    """The ledger behind a coordinator or a subscription."""

    managed_ledger_name: str
    managed_ledger_internal_stats: ManagedLedger


class CoordinatorStats(TypedDict):
    """Of `Admin.coordinator_stats`."""

    coordinator: int
    state: str
    least_sig_bits: int
    low_water_mark: int
    ongoing_txn_size: int
    next_sequence: int
    committing_size: int
    aborting_size: int
    ended_size: int
    oldest_open_time: int | None
    recover_start_time: int
    recover_end_time: int
    log_stats: LogStats | None


class CoordinatorsScaled(TypedDict):
    """Of `Admin.scale_coordinators`."""

    before: int
    after: int


# --- held messages and acknowledgements --------------------------------------------------------


class BufferState(TypedDict):
    """The sidecar of a partition."""

    topic: str
    partition: int
    state: str
    ongoing_txn_size: int
    total_aborted_transactions: int
    sidecar_live_bytes: int
    sidecar_garbage_bytes: int
    max_read_position: MessageId | None
    low_water_marks: dict[str, int]
    last_snapshot_time: int | None
    recover_start_time: int
    recover_end_time: int


class BufferStats(BufferState, total=False):
    """Of `Admin.transaction_buffer_stats`; these keys only for the given transaction."""

    start_position: MessageId | None
    aborted: bool
    messages: int
    marker: MessageId | None


class PendingAckState(TypedDict):
    """Acknowledgements that transactions hold on a subscription in a partition."""

    topic: str
    partition: int
    subscription: str
    state: str
    ongoing_txn_size: int
    pending_messages: int
    low_water_marks: dict[str, int]
    recover_start_time: int
    recover_end_time: int
    log_stats: LogStats | None


class PendingAckStats(PendingAckState, total=False):
    """Of `Admin.pending_ack_stats`; these keys only for the given transaction."""

    cumulative_ack_position: MessageId | None
    individual_acks: int


class PendingPosition(TypedDict):
    """Of `Admin.position_in_pending_ack`."""

    topic: str
    subscription: str
    position: MessageId
    state: str
    txn: TxnId | None
