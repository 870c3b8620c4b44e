"""A whole store: status, checks, settings, locks, reports."""

from typing import Annotated, TypedDict

from txlog.base.rows import fields
from txlog.base.rows.consuming import LagRow
from txlog.base.rows.files import LedgerRows
from txlog.base.rows.transactions import HangingTransaction, TransactionRow

# --- created and copied ----------------------------------------------------------------------


class StoreMade(TypedDict):
    """Of `txlog.init`."""

    path: fields.Path
    uuid: fields.Uuid
    format: Annotated[int, "version of the format"]
    created: fields.Created


class StoreImage(TypedDict):
    """The size of a store's copy."""

    lsn: fields.Lsn
    files: int
    size_bytes: fields.SizeBytes
    offloaded: int


class StoreCopied(TypedDict):
    """Of `Client.copy`."""

    path: fields.Path
    uuid: fields.Uuid
    lsn: fields.Lsn
    files: fields.Files
    size_bytes: fields.SizeBytes
    offloaded: Annotated[int, "files outside the store, named but not copied"]
    verified: Annotated[bool, "the whole copy was read and compared"]


class Difference(TypedDict):
    """Of `txlog diff`."""

    kind: Annotated[
        str,
        "what differs: setting, namespace policy, topic, schema, policy, partition, message, "
        "subscription or cursor",
    ]
    topic: fields.Topic | None
    partition: fields.Partition | None
    subscription: fields.Subscription | None
    name: fields.Name
    store: Annotated[str | None, "the value in STORE; null: it has none"]
    other: Annotated[str | None, "the value in OTHER; null: it has none"]


class StoreRestored(StoreCopied):
    """Of `txlog restore`."""

    replaced: Annotated[str | None, "where the store is now that was in this place"]
    copied: Annotated[bool, "it leaves offloaded files to the store that it was copied from"]


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

    name: Annotated[
        str,
        "write, flush, maintenance, pin or consumer",
        ("write", "flush", "maintenance", "pin", "consumer"),
    ]
    path: fields.Path
    held: Annotated[bool, "whether a process holds it"]
    pid: Annotated[int | None, "the process"]
    command: Annotated[str | None, "command line of the process"]
    since_time: Annotated[int | None, "start of the holding; null: unknown"]
    subscription: fields.Subscription | None


class MetricRow(TypedDict):
    """A sample of a metric, as `txlog metrics` prints it."""

    name: fields.Name
    type: Annotated[str, "gauge, counter, summary, …"]
    labels: Annotated[dict[str, str], "labels and their values"]
    value: Annotated[float, "the figure"]


class ClockAccepted(TypedDict):
    """Of `Admin.accept_clock`."""

    ahead_ms: Annotated[int, "how far the clock is ahead of the expected time"]
    was_believed: Annotated[bool, "the clock was trusted already"]


# --- at a glance -----------------------------------------------------------------------------


class Problem(TypedDict):
    """A problem of the store, and its remedy."""

    code: str
    message: str
    hint: str | None


class StoreStatus(TypedDict):
    """The store of a Status."""

    path: fields.Path
    uuid: fields.Uuid
    format: int
    size_bytes: fields.SizeBytes
    durability: str
    created_time: fields.CreatedTime


class JournalStatus(TypedDict):
    """The journal of a Status."""

    lsn: fields.Lsn
    durable_lsn: int
    frames: int
    size_bytes: fields.SizeBytes


class CheckpointStatus(TypedDict):
    """The newest checkpoint of a Status."""

    generation: Annotated[int, "number of the checkpoint"]
    lsn: fields.Lsn
    written_time: int | None


class ChangeLogsStatus(TypedDict):
    """The logs of changes of a Status."""

    files: int
    rows: int
    size_bytes: fields.SizeBytes


class WriterStatus(TypedDict):
    """The process that holds the write lock."""

    pid: int
    command: str
    since_time: int | None


class TransactionCounts(TypedDict):
    """The number of transactions in each state."""

    open: int
    overdue: int
    prepared: int
    committing: int
    aborting: int
    oldest_age_ms: int | None


class TopicStatus(TypedDict):
    """A topic of a Status."""

    topic: fields.Topic
    partitions: fields.Partitions
    messages: fields.Messages
    size_bytes: fields.SizeBytes
    open_txns: int
    hidden_messages: int
    delayed: fields.Delayed
    backlog: fields.Backlog
    watermark: int | None


class Status(TypedDict):
    """Of `Client.status`."""

    store: Annotated[StoreStatus, "its path, size, durability and time of creation"]
    journal: Annotated[
        JournalStatus, "its newest frame, the newest durable one, number and size of its files"
    ]
    checkpoint: Annotated[
        CheckpointStatus, "the newest: its number, its LSN and when it was written"
    ]
    change_logs: Annotated[
        ChangeLogsStatus, "files of the logs of changes: their number, rows and size"
    ]
    writer: Annotated[
        WriterStatus | None, "process that holds the write lock: pid and command; null: none"
    ]
    txns: Annotated[
        TransactionCounts,
        "numbers of transactions in each state",
    ]
    topic_list: Annotated[list[TopicStatus], "the topics"]
    problem_list: Annotated[
        list[Problem], "problems: code, message, hint; from verify also severity and place"
    ]


class AlertRow(TypedDict):
    """A threshold that applies to a subscription, and whether its backlog is above it."""

    topic: fields.Topic
    subscription: fields.Subscription
    alert: Annotated[str, "backlog-age, backlog, backlog-bytes or no-consumer-for"]
    status: Annotated[str, "ok, firing or unknown", ("ok", "firing", "unknown")]
    value: int | None
    threshold: int
    message: str


class CheckRow(TypedDict):
    """A check of a Check; value: null: unknown."""

    name: str
    status: str
    value: int | None
    warn: int | None
    crit: int | None
    detail: str


class Check(TypedDict):
    """Of `Admin.check`."""

    status: Annotated[str, "ok, warning or critical"]
    check_list: Annotated[list[CheckRow], "each check: name, topic, partition, expected, found, ok"]


class ConditionRow(TypedDict):
    """A condition of a Waited."""

    name: str
    met: bool
    value: str


class Waited(TypedDict):
    """Of `Client.wait`."""

    met: Annotated[bool, "the condition is met, or all are"]
    elapsed_ms: fields.ElapsedMs
    condition_list: Annotated[
        list[ConditionRow], "for each its name, whether it is met, and its value"
    ]


# --- integrity -------------------------------------------------------------------------------


class DoctorAnswer(TypedDict):
    """A finding of the doctor; fix: its remedy."""

    status: str
    detail: str
    fix: str | None


class DoctorRow(TypedDict):
    """Of `txlog.doctor`."""

    name: fields.Name
    status: Annotated[str, "ok, warn or fail", ("ok", "warn", "fail")]
    detail: fields.Detail
    fix: Annotated[str | None, "what helps"]


class VerifyProblem(TypedDict):
    """A problem of a Verified."""

    code: str
    severity: Annotated[str, "error or warning", ("error", "warning")]
    path: fields.Path | None
    topic: fields.Topic | None
    partition: fields.Partition | None
    ledger: int | None
    first: fields.First | None
    last: fields.Last | None
    offset: int | None
    message: str
    hint: str | None


class Verified(TypedDict):
    """Of `txlog.verify`."""

    files: fields.Files
    size_bytes: fields.SizeBytes
    frames: fields.Frames
    errors: Annotated[int, "losses and contradictions"]
    warnings: Annotated[int, "faults that upkeep or the next writer corrects"]
    problem_list: Annotated[
        list[VerifyProblem], "problems: code, message, hint; from verify also severity and place"
    ]


class RepairAction(TypedDict):
    """A step of a Repaired; first, last: entries of the ledger, or LSNs."""

    action: str
    detail: str
    path: fields.Path | None
    ledger: int | None
    first: int | None
    last: int | None
    messages_lost: int | None
    done: bool


class Repaired(TypedDict):
    """Of `txlog.repair`."""

    applied: Annotated[bool, "the plan was carried out"]
    messages_lost: Annotated[
        int | None, "messages lost for good, or planned to be without --apply; null: unknown"
    ]
    action_list: Annotated[
        list[RepairAction],
        "each step: action, path, ledger, first, last, messages_lost, detail, done",
    ]


# --- as a report -----------------------------------------------------------------------------


class TopicOverview(TopicStatus):
    """A topic of an Overview."""

    last_publish_time: int | None


class TransactionsByState(TypedDict):
    """The number of transactions in one state."""

    state: str
    reason: fields.Reason | None
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

    topic: fields.Topic
    due_within_ms: int | None
    messages: fields.Messages


class MoveOverview(TypedDict):
    """A change of a watermark."""

    time: int
    producer: fields.Producer
    event_time: fields.EventTime | None
    idle: bool


class WatermarkOverview(TypedDict):
    """A topic's watermark; partition: the one that holds the watermark back."""

    topic: fields.Topic
    status: str
    watermark: int | None
    lag_ms: int | None
    holder: str | None
    partition: fields.Partition
    move_list: list[MoveOverview]


class Overview(TypedDict):
    """Of `Client.overview`."""

    time: int
    lsn: fields.Lsn
    store: StoreStatus
    journal: JournalStatus
    checkpoint: CheckpointStatus
    txns: TransactionCounts
    problem_list: list[Problem]
    topic_list: list[TopicOverview]
    transactions: TransactionsOverview
    subscription_list: list[LagRow]
    delayed_list: list[DelayedOverview]
    watermark_list: list[WatermarkOverview]
    segment_list: list[LedgerRows]


class ReportSpan(TypedDict):
    """Messages of a topic that became visible in a span of time."""

    topic: fields.Topic
    from_time: int
    messages: fields.Messages
    size_bytes: fields.SizeBytes


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

    path: fields.Path
    size_bytes: fields.SizeBytes
    uuid: fields.Uuid | None
    format: int | None
    created_time: fields.CreatedTime | None


class DamagedReport(TypedDict):
    """The figures that `txlog report` draws for a store that it cannot open."""

    txlog: str
    time: int
    store: DamagedStore
    files: int
    frames: int
    problem_list: list[Problem]
    hanging_list: list[HangingTransaction]


class ReportWritten(TypedDict):
    """Of `txlog report`."""

    path: fields.Path
    topics: fields.Topics
    messages: fields.Messages
    problems: Annotated[int, "number of problems, see txlog status"]
    size_bytes: fields.SizeBytes
