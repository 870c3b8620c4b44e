"""Transactions, their keys and coordinators, and the messages and acknowledgements they hold."""

from typing import Annotated, TypedDict

from txlog.base.ids import MessageId, TxnId
from txlog.base.rows import fields

# --- by id -----------------------------------------------------------------------------------


class TransactionBegun(TypedDict):
    """Of `Client.begin`."""

    txn: fields.Txn
    coordinator: fields.Coordinator
    transaction_key: fields.TransactionKey | None
    owner: fields.Owner
    owner_uid: fields.OwnerUid
    epoch: fields.Epoch | None
    timeout_ms: fields.TimeoutMs
    begin_time: fields.BeginTime
    timeout_at: fields.TimeoutAt
    fenced_txn: fields.FencedTxn | None


class TransactionResolved(TypedDict):
    """Of `Client.resolve_prepared`."""

    txn: fields.Txn
    state: fields.TxnState
    database: Annotated[str, "kind and name of the database that was asked"]


class CommitMarker(TypedDict):
    """The commit marker of a TransactionEnded in one partition."""

    topic: fields.Topic
    partition: fields.Partition
    marker: MessageId
    messages: fields.Messages


class TransactionEnded(TypedDict):
    """Of `Client.commit` and `Client.abort`."""

    txn: fields.Txn
    state: fields.TxnState
    already: fields.Already
    reason: fields.Reason | None
    messages: fields.OwnMessages
    acks: fields.Acks
    marker_list: Annotated[list[CommitMarker], "the commit marker of each partition"]
    waiting_list: fields.WaitingList
    skipped_list: fields.SkippedList
    open_ms: int


class TransactionRow(TypedDict):
    """Of `Client.transactions` and `Admin.slow_transactions`."""

    txn: fields.Txn
    state: fields.TxnState
    transaction_key: fields.TransactionKey | None
    age_ms: fields.TxnAgeMs
    expires_in_ms: Annotated[int | None, "time until its time-out; null when it has ended"]
    topic_list: fields.TopicList
    messages: fields.OwnMessages
    acks: fields.Acks
    owner: fields.Owner
    owner_uid: fields.OwnerUid
    epoch: fields.Epoch | None
    coordinator: fields.Coordinator
    overdue: fields.Overdue
    reason: fields.Reason | None
    subscription_list: Annotated[list[str], "the subscriptions"]
    size_bytes: fields.SizeBytes
    begin_time: fields.BeginTime
    timeout_at: fields.TimeoutAt
    end_time: fields.EndTime | None
    waiting_list: fields.WaitingList
    prepared_ms: Annotated[int | None, "for how long it has been prepared; null: it is not"]
    database: Annotated[str | None, "kind and name of the database that decides it"]


class TransactionPartition(TypedDict):
    """A partition that a TransactionDescription has sent to."""

    topic: fields.Topic
    partition: fields.Partition
    messages: fields.Messages
    size_bytes: fields.SizeBytes
    marker: MessageId | None
    done: bool


class TransactionAcks(TypedDict):
    """A subscription with acknowledgements of a TransactionDescription, in one partition."""

    topic: fields.Topic
    partition: fields.Partition
    subscription: fields.Subscription
    acks: fields.Acks
    cumulative: MessageId | None
    done: bool


class TransactionDescription(TransactionRow):
    """Of `Client.show_transaction`."""

    timeout_ms: fields.TimeoutMs
    decision_lsn: fields.DecisionLsn | None
    partition_list: Annotated[list[TransactionPartition], "a row for each partition"]
    ack_list: Annotated[list[TransactionAcks], "a row for each subscription"]
    skipped_list: fields.SkippedList


class WaitingTransaction(TypedDict):
    """A decided transaction that waits for partitions."""

    txn: fields.Txn
    waiting_list: fields.WaitingList


class Expired(TypedDict):
    """Of `Client.expire`."""

    expired: Annotated[int, "aborted by their time-out"]
    rolled_forward: Annotated[int, "commits that were completed"]
    rolled_back: Annotated[int, "aborts that were completed"]
    forgotten: Annotated[int, "ended transactions that the store forgot"]
    waiting_list: Annotated[list[WaitingTransaction], "participants that are not available"]


class HangingTransaction(TypedDict):
    """Of `Admin.find_hanging`."""

    txn: fields.Txn
    state: fields.TxnState | None
    age_ms: fields.TxnAgeMs
    cause: Annotated[
        str,
        "unavailable, overdue, prepared or corrupt",
        ("unavailable", "overdue", "prepared", "corrupt"),
    ]
    repair: Annotated[str, "what helps"]
    waiting_list: fields.WaitingList


class TransactionLogRow(TypedDict):
    """Of `Admin.transaction_log`."""

    lsn: Annotated[int, "number of the frame"]
    time: Annotated[int, "when the frame was written"]
    op: Annotated[str, "the recorded operation"]
    topic: fields.Topic | None
    partition: fields.Partition | None
    subscription: fields.Subscription | None
    count: fields.Count | None
    detail: fields.Detail | None


class InBuffer(TypedDict):
    """The messages of a transaction in the sidecar of a partition, also after its end."""

    start_position: MessageId | None
    aborted: bool
    messages: fields.Messages
    marker: MessageId | None


class InPendingAck(TypedDict):
    """Acknowledgements that a transaction holds on a subscription in a partition."""

    cumulative_ack_position: MessageId | None
    individual_acks: int


class TransactionMetadata(TypedDict):
    """Of `Admin.transaction_metadata`; a partition is written TOPIC/P."""

    txn: fields.Txn
    status: Annotated[str, "OPEN, PREPARED, COMMITTING, COMMITTED, ABORTING or ABORTED"]
    open_time: Annotated[int, "when it began"]
    timeout_at: fields.TimeoutAt
    timeout_ms: fields.TimeoutMs
    owner: fields.Owner
    owner_uid: fields.OwnerUid
    transaction_key: fields.TransactionKey | None
    epoch: fields.Epoch | None
    reason: fields.Reason | None
    overdue: fields.Overdue
    end_time: fields.EndTime | None
    decision_lsn: fields.DecisionLsn | None
    waiting_list: fields.WaitingList
    skipped_list: fields.SkippedList
    produced_partitions: Annotated[
        dict[str, InBuffer], "its messages, by topic/partition", ("TOPIC/P",)
    ]
    acked_partitions: Annotated[
        dict[str, dict[str, InPendingAck]],
        "its acknowledgements, by topic/partition and subscription",
        ("TOPIC/P", "SUB"),
    ]


# --- by key ----------------------------------------------------------------------------------


class KeyConnected(TypedDict):
    """Of `Client.connect`."""

    transaction_key: fields.TransactionKey
    owner: fields.Owner
    owner_uid: fields.OwnerUid
    epoch: fields.Epoch
    coordinator: fields.Coordinator
    fenced_txn: fields.FencedTxn | None


class KeyRow(TypedDict):
    """Of `Admin.transaction_keys`."""

    transaction_key: fields.TransactionKey
    owner: fields.Owner
    epoch: fields.Epoch
    txn: fields.Txn | None
    txn_state: fields.TxnState | None
    coordinator: fields.Coordinator
    last_used_time: Annotated[int, "when it last connected or began a transaction"]
    owner_uid: fields.OwnerUid
    age_ms: Annotated[int, "time since its last use"]
    connected_time: Annotated[int, "when its holder connected"]
    deleted: Annotated[bool, "a tombstone, which keeps the epoch"]
    topic_list: fields.TopicList


class KeyTransaction(TypedDict):
    """A remembered transaction of a KeyDescription."""

    txn: fields.Txn
    state: str
    reason: fields.Reason | None
    begin_time: fields.BeginTime
    end_time: fields.EndTime | None


class KeyDescription(KeyRow):
    """Of `Admin.transaction_key`."""

    txn_list: Annotated[list[KeyTransaction], "the remembered transactions, newest first"]


class KeyDeleted(TypedDict):
    """Of `Admin.delete_transaction_key`."""

    transaction_key: fields.TransactionKey
    owner: fields.Owner
    owner_uid: fields.OwnerUid
    epoch: fields.Epoch
    deleted: Annotated[bool, "it is a tombstone now, which keeps the epoch"]
    aborted_list: Annotated[list[TxnId], "transactions that this call aborted"]


# --- coordinators ----------------------------------------------------------------------------


class CoordinatorRow(TypedDict):
    """Of `Admin.coordinators`."""

    coordinator: fields.Coordinator
    state: fields.CoordinatorState
    ongoing_txn_size: fields.OngoingTxnSize
    keys: Annotated[int, "living transaction keys"]


class LedgerPiece(TypedDict):
    """A closed piece of a ledger of ops."""

    path: fields.Path
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

    coordinator: fields.Coordinator
    state: fields.CoordinatorState
    least_sig_bits: Annotated[int, "highest sequence issued, 0 if none"]
    low_water_mark: Annotated[int, "lowest unfinished sequence less one, 0 if none"]
    ongoing_txn_size: fields.OngoingTxnSize
    next_sequence: Annotated[int, "sequence of the next transaction"]
    prepared_size: Annotated[int, "prepared: a database decides them"]
    committing_size: Annotated[int, "decided, waiting to be committed"]
    aborting_size: Annotated[int, "decided, waiting to be aborted"]
    ended_size: Annotated[int, "ended and remembered"]
    oldest_open_time: Annotated[int | None, "when the oldest open transaction began"]
    recover_start_time: fields.RecoverStartTime
    recover_end_time: fields.RecoverEndTime
    log_stats: Annotated[LogStats | None, "the ledger of its log, with --internal"]


class CoordinatorsScaled(TypedDict):
    """Of `Admin.scale_coordinators`."""

    before: Annotated[int, "old value"]
    after: Annotated[int, "new value"]


# --- held messages and acknowledgements --------------------------------------------------------


class BufferState(TypedDict):
    """The sidecar of a partition."""

    topic: fields.Topic
    partition: fields.Partition
    state: fields.HolderState
    ongoing_txn_size: fields.OngoingTxnSize
    total_aborted_transactions: Annotated[int, "aborted transactions that had messages here"]
    sidecar_live_bytes: Annotated[int, "bytes that are or may become visible"]
    sidecar_garbage_bytes: Annotated[int, "bytes of aborted messages"]
    max_read_position: Annotated[MessageId | None, "last visible message"]
    low_water_marks: fields.LowWaterMarks
    last_snapshot_time: Annotated[int | None, "last checkpoint"]
    recover_start_time: fields.RecoverStartTime
    recover_end_time: fields.RecoverEndTime


class BufferStats(BufferState, total=False):
    """Of `Admin.transaction_buffer_stats`; these keys only for the given transaction."""

    start_position: Annotated[MessageId | None, "its first row in the sidecar; null after an abort"]
    aborted: Annotated[bool, "whether it was aborted"]
    messages: fields.OwnMessages
    marker: Annotated[MessageId | None, "its commit marker"]


class PendingAckState(TypedDict):
    """Acknowledgements that transactions hold on a subscription in a partition."""

    topic: fields.Topic
    partition: fields.Partition
    subscription: fields.Subscription
    state: fields.HolderState
    ongoing_txn_size: fields.OngoingTxnSize
    pending_messages: Annotated[int, "messages that open transactions acknowledged"]
    low_water_marks: fields.LowWaterMarks
    recover_start_time: fields.RecoverStartTime
    recover_end_time: fields.RecoverEndTime
    log_stats: Annotated[LogStats | None, "the ledger of its log, with --internal"]


class PendingAckStats(PendingAckState, total=False):
    """Of `Admin.pending_ack_stats`; these keys only for the given transaction."""

    cumulative_ack_position: Annotated[
        MessageId | None, "last position that it acknowledged cumulatively"
    ]
    individual_acks: Annotated[int, "messages it acknowledged beyond that position"]


class PendingPosition(TypedDict):
    """Of `Admin.position_in_pending_ack`."""

    topic: fields.Topic
    subscription: fields.Subscription
    position: Annotated[MessageId, "its position"]
    state: Annotated[
        str,
        "what holds the message",
        ("PendingAck", "MarkDelete", "NotInPendingAck", "PendingAckNotReady", "InvalidPosition"),
    ]
    txn: fields.Txn | None


class TransactionWaited(TypedDict):
    """Of `txlog txn wait`."""

    txn: fields.Txn
    state: fields.TxnState


class TransactionShown(TransactionDescription):
    """Of `txlog txn show`."""

    key_list: Annotated[list[str] | None, "keys of its messages, with --keys"]
