"""A whole store: status, checks, settings, locks, reports."""

from __future__ import annotations

from typing import TypedDict

from txlog.base.ids import MessageId
from txlog.base.rows.consuming import SubscriptionRow
from txlog.base.rows.files import LedgerRows
from txlog.base.rows.transactions import HangingTransaction, TransactionRow

# --- created and copied ----------------------------------------------------------------------


class StoreMade(TypedDict):
    """Of `txlog.init`."""

    path: str
    uuid: str
    format: int
    created: bool


class StoreImage(TypedDict):
    """The size of a store's copy."""

    lsn: int
    files: int
    size_bytes: int
    offloaded: int


class StoreCopied(TypedDict):
    """Of `Client.copy`."""

    path: str
    uuid: str
    lsn: int
    files: int
    size_bytes: int
    offloaded: int
    verified: bool


class RowsRead(TypedDict):
    """Of `Client.reading`."""

    rows_read: int
    row_groups_decoded: int
    handed_out: int


class SettingRow(TypedDict):
    """Of `Admin.settings`."""

    name: str
    value: int | str | float
    origin: str


class SettingChanged(TypedDict):
    """Of `Admin.set_setting`."""

    name: str
    value: int | str | float
    before: int | str | float
    changed: bool


class LockRow(TypedDict):
    """Of `Admin.locks`."""

    name: str
    path: str
    held: bool
    pid: int | None
    command: str | None
    since_time: int | None
    subscription: str | None


class MetricRow(TypedDict):
    """A sample of a metric, as `txlog metrics` prints it."""

    name: str
    type: str
    labels: dict[str, str]
    value: float


class ClockAccepted(TypedDict):
    """Of `Admin.accept_clock`."""

    ahead_ms: int
    was_believed: bool


# --- at a glance -----------------------------------------------------------------------------


class Problem(TypedDict):
    """A problem of the store, and its remedy."""

    code: str
    message: str
    hint: str | None


class StoreStatus(TypedDict):
    """The store of a Status."""

    path: str
    uuid: str
    format: int
    size_bytes: int
    durability: str
    created_time: int


class JournalStatus(TypedDict):
    """The journal of a Status."""

    lsn: int
    durable_lsn: int
    frames: int
    size_bytes: int


class CheckpointStatus(TypedDict):
    """The newest checkpoint of a Status."""

    generation: int
    lsn: int
    written_time: int | None


class ChangeLogsStatus(TypedDict):
    """The logs of changes of a Status."""

    files: int
    rows: int
    size_bytes: int


class WriterStatus(TypedDict):
    """The process that holds the write lock."""

    pid: int
    command: str
    since_time: int | None


class TransactionCounts(TypedDict):
    """The number of transactions in each state."""

    open: int
    overdue: int
    committing: int
    aborting: int
    oldest_age_ms: int | None


class TopicStatus(TypedDict):
    """A topic of a Status."""

    topic: str
    partitions: int
    messages: int
    size_bytes: int
    open_txns: int
    hidden_messages: int
    delayed: int
    backlog: int
    watermark: int | None


class Status(TypedDict):
    """Of `Client.status`."""

    store: StoreStatus
    journal: JournalStatus
    checkpoint: CheckpointStatus
    change_logs: ChangeLogsStatus
    writer: WriterStatus | None
    txns: TransactionCounts
    topic_list: list[TopicStatus]
    problem_list: list[Problem]


class CheckRow(TypedDict):
    """A check of a Check."""

    name: str
    status: str
    value: int
    warn: int | None
    crit: int | None
    detail: str


class Check(TypedDict):
    """Of `Admin.check`."""

    status: str
    check_list: list[CheckRow]


class ConditionRow(TypedDict):
    """A condition of a Waited."""

    name: str
    met: bool
    value: str


class Waited(TypedDict):
    """Of `Client.wait`."""

    met: bool
    elapsed_ms: int
    condition_list: list[ConditionRow]


# --- integrity -------------------------------------------------------------------------------


class DoctorAnswer(TypedDict):
    """A finding of the doctor; fix: its remedy."""

    status: str
    detail: str
    fix: str | None


class DoctorRow(TypedDict):
    """Of `txlog.doctor`."""

    name: str
    status: str
    detail: str
    fix: str | None


class VerifyProblem(TypedDict):
    """A problem of a Verified."""

    code: str
    severity: str
    path: str | None
    topic: str | None
    partition: int | None
    ledger: int | None
    first: MessageId | None
    last: MessageId | None
    offset: int | None
    message: str
    hint: str | None


class Verified(TypedDict):
    """Of `txlog.verify`."""

    files: int
    size_bytes: int
    frames: int
    errors: int
    warnings: int
    problem_list: list[VerifyProblem]


class RepairAction(TypedDict):
    """A step of a Repaired; first, last: entries of the ledger, or LSNs."""

    action: str
    detail: str
    path: str | None
    ledger: int | None
    first: int | None
    last: int | None
    messages_lost: int | None
    done: bool


class Repaired(TypedDict):
    """Of `txlog.repair`."""

    applied: bool
    messages_lost: int | None
    action_list: list[RepairAction]


# --- as a report -----------------------------------------------------------------------------


class TopicOverview(TopicStatus):
    """A topic of an Overview."""

    last_publish_time: int | None


class TransactionsByState(TypedDict):
    """The number of transactions in one state."""

    state: str
    reason: str | None
    transactions: int


class TransactionDurations(TypedDict):
    """Transactions that took at most this long but longer than the row before; None: no bound."""

    up_to_ms: int | None
    committed: int
    aborted: int


class TransactionsOverview(TypedDict):
    """The transactions of an Overview."""

    state_list: list[TransactionsByState]
    duration_list: list[TransactionDurations]
    open_list: list[TransactionRow]


class DelayedOverview(TypedDict):
    """The times at which messages of a topic are due."""

    topic: str
    due_within_ms: int | None
    messages: int


class MoveOverview(TypedDict):
    """A change of a watermark."""

    time: int
    producer: str
    event_time: int | None
    idle: bool


class WatermarkOverview(TypedDict):
    """A topic's watermark; partition: the one that holds the watermark back."""

    topic: str
    status: str
    watermark: int | None
    lag_ms: int | None
    holder: str | None
    partition: int
    move_list: list[MoveOverview]


class Overview(TypedDict):
    """Of `Client.overview`."""

    time: int
    lsn: int
    store: StoreStatus
    journal: JournalStatus
    checkpoint: CheckpointStatus
    txns: TransactionCounts
    problem_list: list[Problem]
    topic_list: list[TopicOverview]
    transactions: TransactionsOverview
    subscription_list: list[SubscriptionRow]
    delayed_list: list[DelayedOverview]
    watermark_list: list[WatermarkOverview]
    segment_list: list[LedgerRows]


class ReportSpan(TypedDict):
    """Messages of a topic that became visible in a span of time."""

    topic: str
    from_time: int
    messages: int
    size_bytes: int


class ReportThroughput(TypedDict):
    """Messages by time; left_out: partitions and topics that cannot be read."""

    by_ms: int
    since: int | None
    row_list: list[ReportSpan]
    left_out: list[str]


class Report(Overview):
    """All the figures that `txlog report` draws."""

    txlog: str
    hanging_list: list[HangingTransaction]
    throughput: ReportThroughput


class DamagedStore(TypedDict):
    """The store of a DamagedReport; None: unreadable too."""

    path: str
    size_bytes: int
    uuid: str | None
    format: int | None
    created_time: int | None


class DamagedReport(TypedDict):
    """The figures that `txlog report` draws for a store that it cannot open."""

    txlog: str
    time: int
    store: DamagedStore
    files: int
    frames: int
    problem_list: list[Problem]
    hanging_list: list[HangingTransaction]
