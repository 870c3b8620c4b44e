"""Bulk loads, imports, exports, replays, audits and benchmarks."""

from __future__ import annotations

from typing import TypedDict

from txlog.base.ids import TxnId


class BulkLoaded(TypedDict):
    """Of `txlog job run bulk-load`; None: unknown in a dry run, or no longer known."""

    topic: str
    files: int
    messages: int
    size_bytes: int | None
    ledgers: int | None
    txn: TxnId | None
    already: bool


class Imported(TypedDict):
    """Of `txlog import`; txn: None when there were several."""

    topic: str
    files: int
    messages: int
    size_bytes: int | None
    txn: TxnId | None
    already: bool


class Exported(TypedDict):
    """Of `txlog export`."""

    topic: str
    path: str
    files: int
    messages: int
    size_bytes: int


class Replay(TypedDict):
    """Of `txlog job run replay`; read: None when the batch was stored before."""

    topic: str
    dest: str
    read: int | None
    written: int | None
    txn: TxnId | None
    already: bool


class LatenessSpan(TypedDict):
    """A span of time of a Lateness."""

    from_time: int
    messages: int
    late: int
    p50_ms: int
    p90_ms: int
    p99_ms: int
    max_ms: int


class LatenessDelay(TypedDict):
    """The number of messages that a watermark with this lag would find late."""

    delay_ms: int
    late: int


class Lateness(TypedDict):
    """Of `txlog job run lateness`."""

    topic: str
    messages: int
    row_list: list[LatenessSpan]
    delay_list: list[LatenessDelay]


class AuditCheck(TypedDict):
    """A check of an Audit; partition: None for a check of the whole topic."""

    name: str
    topic: str
    partition: int | None
    expected: str
    found: str
    ok: bool


class Audit(TypedDict):
    """Of `txlog job run audit`."""

    failed: int
    check_list: list[AuditCheck]


class Measured(TypedDict):
    """Of `txlog bench`."""

    mode: str
    operations: int
    per_second: float
    p50_us: int
    p99_us: int
    max_us: int
    size_bytes: int
    messages: int
