"""Results of compacting, trimming, offloading and collecting garbage."""

from __future__ import annotations

from typing import TypedDict

from txlog.base.ids import MessageId


class Compacted(TypedDict):
    """Of `Admin.compact`."""

    topic: str
    transactions: int
    messages: int
    aborted_dropped: int
    size_before_bytes: int
    size_after_bytes: int
    ledgers_before: int
    ledgers_after: int
    dry_run: bool


class TopicCompacted(TypedDict):
    """Of `Admin.compact_topic`."""

    topic: str
    partitions: int
    lsn: int
    messages: int
    keys_kept: int
    keys_deleted: int
    without_key: int
    files: int
    size_before_bytes: int
    size_after_bytes: int
    dry_run: bool


class ChangesCompacted(TypedDict):
    """Of `Admin.compact_changes`."""

    log: str
    rows_before: int
    files_before: int
    size_before_bytes: int
    rows_after: int
    files_after: int
    size_after_bytes: int


class Confirmed(TypedDict):
    """Of `Admin.confirm`."""

    place: str


class Offloaded(TypedDict):
    """Of `Admin.offload`."""

    topic: str
    place: str
    files: int
    size_bytes: int
    ledgers_left: int
    dry_run: bool


class TrimmedPartition(TypedDict):
    """A partition of a Trimmed."""

    partition: int
    first_before: MessageId | None
    first_after: MessageId | None
    ledgers: int
    messages: int
    size_bytes: int
    unacked: int


class Trimmed(TypedDict):
    """Of `Admin.trim`."""

    topic: str
    ledgers: int
    messages: int
    size_bytes: int
    partition_list: list[TrimmedPartition]
    dry_run: bool


class UnnamedFile(TypedDict):
    """A file of a GarbageCollected."""

    path: str
    size_bytes: int
    reason: str


class GarbageCollected(TypedDict):
    """Of `Admin.gc`."""

    applied: bool
    files: int
    file_list: list[UnnamedFile]
    size_bytes: int


class CheckpointWritten(TypedDict):
    """Of `Client.checkpoint`."""

    generation: int
    lsn: int
    frames: int
    rows: int
    parts: int
    sealed_ledgers: int
    journals_deleted: int
    freed_bytes: int
    skipped: bool
    elapsed_ms: int
