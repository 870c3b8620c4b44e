"""Bulk loads, imports, exports, replays, audits and benchmarks."""

from typing import Annotated, TypedDict

from txlog.base.rows import fields
from txlog.base.rows.delayed import IndexRebuilt
from txlog.base.rows.space import Compacted


class BulkLoaded(TypedDict):
    """A bulk load; None: unknown in a dry run, or no longer known."""

    topic: fields.Topic
    files: fields.Files
    messages: Annotated[int, "messages stored"]
    size_bytes: fields.SizeBytes | None
    ledgers: Annotated[int | None, "ledgers written"]
    txn: fields.Txn | None
    already: fields.Already


class Imported(TypedDict):
    """An import; txn: None when there were several transactions."""

    topic: fields.Topic
    files: fields.Files
    messages: Annotated[int, "messages stored"]
    size_bytes: fields.SizeBytes | None
    txn: fields.Txn | None
    already: fields.Already


class Exported(TypedDict):
    """An export."""

    topic: fields.Topic
    path: fields.Path
    files: fields.Files
    messages: Annotated[int, "messages written"]
    size_bytes: Annotated[int, "bytes of the values written"]
    undecided: Annotated[int, "messages left out because --where has no answer for them"]
    file_bytes: Annotated[int, "bytes of the files written; 0 for standard output"]


class Replay(TypedDict):
    """A replay; read, written: None when the batch was stored before."""

    topic: fields.Topic
    dest: Annotated[str, "the topic that the job writes"]
    read: Annotated[int | None, "messages read; null when it was done before"]
    written: Annotated[int | None, "messages written; null when it was done before"]
    txn: fields.Txn | None
    already: fields.Already


class LatenessSpan(TypedDict):
    """A span of time of a Lateness."""

    from_time: Annotated[int, "start of the time span"]
    messages: fields.Messages
    late: Annotated[int, "messages older than the watermark just before them"]
    p50_ms: Annotated[int, "lateness that half of the messages did not exceed"]
    p90_ms: Annotated[int, "that 90 of 100 did not exceed"]
    p99_ms: Annotated[int, "that 99 of 100 did not exceed"]
    max_ms: Annotated[int, "of the latest message"]


class LatenessDelay(TypedDict):
    """How many messages would be late for a watermark with this lag."""

    delay_ms: int
    late: int


class Lateness(TypedDict):
    """How late the messages of a topic were."""

    topic: fields.Topic
    messages: fields.Messages
    row_list: Annotated[list[LatenessSpan], "a row for each span of time"]
    delay_list: Annotated[
        list[LatenessDelay], "late messages by the lag of a watermark in milliseconds"
    ]


class AuditCheck(TypedDict):
    """A check of an Audit; partition: None for a check of the whole topic."""

    name: fields.Name
    topic: fields.Topic
    partition: fields.Partition | None
    expected: Annotated[str, "what the records say"]
    found: Annotated[str, "what the rows say"]
    ok: Annotated[bool, "both are equal"]


class Audit(TypedDict):
    """The checks of an audit, and how many failed."""

    failed: Annotated[int, "checks that failed"]
    check_list: Annotated[
        list[AuditCheck], "each check: name, topic, partition, expected, found, ok"
    ]


class Measured(TypedDict):
    """A measurement."""

    mode: Annotated[str, "kind of the operation"]
    operations: Annotated[int, "calls measured"]
    per_second: Annotated[float, "operations a second"]
    p50_us: Annotated[int, "microseconds that half of the operations did not exceed"]
    p99_us: Annotated[int, "microseconds that 99 of 100 operations did not exceed"]
    max_us: Annotated[int, "microseconds of the slowest operation"]
    size_bytes: fields.SizeBytes
    messages: fields.Messages


# --- as commands print them ------------------------------------------------------------------


class JobRun(TypedDict):
    """The job of an answer, and its engine."""

    job: Annotated[str, "name of the job"]
    engine: Annotated[str, "engine of the job: duckdb or spark"]


class Timed(TypedDict):
    """The time that an answer took."""

    elapsed_ms: fields.ElapsedMs


class ImportRun(Imported, Timed):
    """Of `txlog import`."""


class ExportRun(Exported, Timed):
    """Of `txlog export`."""


class AuditRun(JobRun, Audit, Timed):
    """Of `txlog job audit`."""


class BulkLoadRun(JobRun, BulkLoaded, Timed):
    """Of `txlog job bulk-load`."""


class ReplayRun(JobRun, Replay, Timed):
    """Of `txlog job replay`."""


class LatenessRun(JobRun, Lateness, Timed):
    """Of `txlog job lateness`."""


class CompactRun(JobRun, Compacted, Timed):
    """Of `txlog job compact`."""


class RebuildRun(JobRun, IndexRebuilt, Timed):
    """Of `txlog job rebuild-delayed`."""


class MeasuredAgain(Measured):
    """Of `txlog bench --compare FILE`: a measurement, compared with an earlier one."""

    before_per_second: Annotated[float | None, "operations a second in the file of --compare"]
    ratio: Annotated[float | None, "current figure divided by the earlier one"]


class DemoRun(TypedDict):
    """Of `txlog demo`."""

    path: fields.Path
    lines: Annotated[int, "lines of invoices that were read"]
    invoices: Annotated[int, "invoices written"]
    refunds: Annotated[int, "refunds written"]
    quantity: Annotated[int, "sum of the quantities"]
    value: Annotated[str, "sum of the values"]
    kills: Annotated[int, "number of times that the worker was killed"]
    transactions: fields.Transactions
    lost: Annotated[int, "invoices and refunds that no total was written for"]
    doubled: Annotated[int, "totals beyond the first of an invoice or refund"]
    exact: Annotated[bool, "the result equals the computed one"]
    elapsed_ms: fields.ElapsedMs
    topics: fields.Topics
    messages: fields.Messages


class CrashFinding(TypedDict):
    """A defect that a crash test found."""

    kind: Annotated[str, "lost, doubled, changed, stuck or left"]
    file: Annotated[str, "the file of the line, relative to the program"]
    line: Annotated[int, "the line that is the cause"]
    other_line: Annotated[int | None, "the line that must be in one step with it"]
    cause: Annotated[str, "what is wrong"]
    example: Annotated[str, "what happened at the first point"]
    where: Annotated[str, "the topic, file or subscription that differs"]
    output_list: Annotated[list[str], "the first bytes of the messages or lines that differ"]
    input_list: Annotated[list[str], "ids of the messages that they were made from"]
    point: Annotated[int, "the first point at which it shows"]
    refused: Annotated[bool, "there, the call was refused, not killed"]
    points: Annotated[int, "the number of points at which it shows"]


class CrashTest(TypedDict):
    """Of `txlog crashtest`."""

    program: Annotated[str, "the program"]
    messages: fields.Messages
    points: Annotated[int, "places at which the program can be killed or refused"]
    tried: Annotated[int, "places at which it was"]
    runs: Annotated[int, "how often the program ran"]
    finding_list: Annotated[list[CrashFinding], "the defects"]
    outside_list: Annotated[list[str], "files and addresses that nobody copied or compared"]
    differing_list: Annotated[list[str], "files that differ without a kill, too: not compared"]


class SubmitArguments(TypedDict):
    """Of `txlog spark submit-args`."""

    args: Annotated[list[str], "the line for spark-submit"]
