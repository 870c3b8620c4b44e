"""Results of compacting, trimming, offloading and collecting garbage."""

from typing import Annotated, TypedDict

from txlog.base.ids import MessageId
from txlog.base.rows import fields


class Compacted(TypedDict):
    """Of `Admin.compact`."""

    topic: fields.Topic
    transactions: fields.Transactions
    messages: fields.Messages
    aborted_dropped: Annotated[int, "messages of aborted or trimmed transactions left out"]
    size_before_bytes: fields.SizeBeforeBytes
    size_after_bytes: fields.SizeAfterBytes
    ledgers_before: Annotated[int, "ledgers before"]
    ledgers_after: Annotated[int, "ledgers after"]
    dry_run: fields.DryRun


class TopicCompacted(TypedDict):
    """Of `Admin.compact_topic`."""

    topic: fields.Topic
    partitions: fields.Partitions
    lsn: Annotated[int, "the last frame that was read"]
    messages: Annotated[int, "messages that were read"]
    keys_kept: Annotated[int, "keys whose newest message has a value"]
    keys_deleted: Annotated[int, "keys whose newest message has none"]
    without_key: Annotated[int, "messages without a key, which are left out"]
    files: fields.Files
    size_before_bytes: fields.SizeBeforeBytes
    size_after_bytes: fields.SizeAfterBytes
    dry_run: fields.DryRun


class DiskUsageRow(TypedDict):
    """The bytes on the disk of a topic, or of another part of the store."""

    name: Annotated[
        str, "the topic; or journal, checkpoints, changes, locks, deleted (topics), other"
    ]
    kind: Annotated[str, "topic or store", ("topic", "store")]
    size_bytes: Annotated[int, "bytes of its files and directories, as `du -b` counts them"]
    messages_bytes: Annotated[int, "files of messages"]
    sidecar_bytes: Annotated[int, "files of messages that came in transactions"]
    index_bytes: Annotated[int, "files of the index of delayed messages"]
    compacted_bytes: Annotated[int, "files with the newest message of each key"]
    changes_bytes: Annotated[int, "files of the logs of changes"]
    other_bytes: Annotated[int, "directories, notes, staged and temporary files"]
    files: fields.Files
    offloaded_bytes: Annotated[int, "files outside the store; not in size_bytes"]


class DiskUsage(TypedDict):
    """Of `Client.disk_usage`."""

    path: fields.Path
    size_bytes: Annotated[int, "of the whole directory, as `du -b` counts it"]
    offloaded_bytes: Annotated[int, "files outside the store; not in size_bytes"]
    usage_list: Annotated[list[DiskUsageRow], "a row for each topic and part, largest first"]


class ChangesCompacted(TypedDict):
    """Of `Admin.compact_changes`."""

    log: fields.Log
    rows_before: Annotated[int, "rows before"]
    rows_after: Annotated[int, "rows after"]
    files_before: Annotated[int, "files before"]
    files_after: Annotated[int, "files after"]
    size_before_bytes: fields.SizeBeforeBytes
    size_after_bytes: fields.SizeAfterBytes


class Confirmed(TypedDict):
    """Of `Admin.confirm`."""

    place: fields.Place


class Offloaded(TypedDict):
    """Of `Admin.offload`."""

    topic: fields.Topic
    place: fields.Place
    files: fields.Files
    size_bytes: fields.SizeBytes
    ledgers_left: Annotated[int, "ledgers that stay in the store"]
    dry_run: fields.DryRun


class TrimmedPartition(TypedDict):
    """A partition of a Trimmed."""

    partition: fields.Partition
    first_before: MessageId | None
    first_after: MessageId | None
    ledgers: int
    messages: fields.Messages
    size_bytes: fields.SizeBytes
    unacked: int


class Trimmed(TypedDict):
    """Of `Admin.trim`."""

    topic: fields.Topic
    ledgers: Annotated[int, "ledgers deleted"]
    messages: Annotated[int, "messages deleted"]
    size_bytes: fields.SizeBytes
    partition_list: Annotated[list[TrimmedPartition], "a row for each partition"]
    dry_run: fields.DryRun


class UnnamedFile(TypedDict):
    """A file of a GarbageCollected."""

    path: fields.Path
    size_bytes: fields.SizeBytes
    reason: fields.Reason


class GarbageCollected(TypedDict):
    """Of `Admin.gc`."""

    applied: Annotated[bool, "the files were unlinked"]
    files: fields.Files
    size_bytes: fields.SizeBytes
    file_list: Annotated[list[UnnamedFile], "the files, each with the reason"]


class CheckpointWritten(TypedDict):
    """Of `Client.checkpoint`."""

    generation: Annotated[int, "number of the checkpoint"]
    lsn: fields.Lsn
    frames: fields.Frames
    rows: fields.Rows
    parts: Annotated[int, "files of open ledgers written"]
    sealed_ledgers: Annotated[int, "ledgers written as Parquet"]
    journals_deleted: Annotated[int, "journal files no longer needed"]
    freed_bytes: Annotated[int, "bytes of unlinked files"]
    skipped: Annotated[bool, "nothing has changed since the last one"]
    elapsed_ms: fields.ElapsedMs
