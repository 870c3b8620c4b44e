"""Segment files, journal frames, contents of a store's files."""

from typing import Annotated, Any, TypedDict

from txlog.base.rows import fields


class LedgerStretch(TypedDict):
    """Rows of a ledger that are in one file, or in frames of the journal."""

    topic: fields.Topic
    partition: fields.Partition
    ledger: Annotated[int, "number of the ledger"]
    role: Annotated[str, "partition or sidecar"]
    state: Annotated[str, "open, closed (it takes no more rows) or sealed"]
    markers: Annotated[int | None, "commit markers of the whole ledger; null: a sidecar"]
    form: Annotated[str, "part, sealed, chunks (of a large message), or frames: no file"]
    rows: fields.Rows
    first_entry: Annotated[int, "its first entry"]
    last_entry: Annotated[int, "its last entry"]


class LedgerRows(LedgerStretch, total=False):
    """Of `Client.segments`; these keys only for rows in a file, not in frames of the journal."""

    file: fields.File
    clean: Annotated[bool, "it has only data rows of committed transactions"]
    bytes: Annotated[int, "bytes of the file"]
    crc: Annotated[int, "CRC32C of the file"]
    first_lsn: Annotated[int, "frame of its first row"]
    last_lsn: Annotated[int, "frame of its last row"]


class SegmentRow(TypedDict):
    """Of `txlog segment list`; keys that need a topic or ledger are None for files without one."""

    topic: fields.Topic | None
    partition: fields.Partition | None
    ledger: Annotated[int | None, "number of the ledger"]
    part: Annotated[int | None, "number of the part, for a ledger in several files"]
    state: Annotated[
        str | None, "open, sealed, trimmed or compacted", ("open", "sealed", "trimmed", "compacted")
    ]
    messages: Annotated[int | None, "messages in it"]
    size_bytes: Annotated[int | None, "bytes of the file"]
    first: fields.First | None
    last: fields.Last | None
    sidecar: Annotated[bool | None, "whether it has rows of transactions"]
    rows: fields.Rows | None
    markers: Annotated[int | None, "commit markers"]
    first_time: Annotated[int | None, "when its first row was written"]
    last_time: Annotated[int | None, "when its last row was written"]
    crc32c: Annotated[str | None, "checksum of the whole file"]
    file: fields.File | None
    log: fields.Log | None


class ColumnShape(TypedDict):
    """A column of a SegmentDescription."""

    name: str
    type: str
    codec: str | None
    size_bytes: fields.SizeBytes


class RowGroup(TypedDict):
    """A row group of a SegmentDescription."""

    rows: int
    size_bytes: fields.SizeBytes
    file: fields.File
    first: fields.First | None
    last: fields.Last | None


class SegmentDescription(SegmentRow):
    """Of `txlog segment show`."""

    column_list: Annotated[list[ColumnShape], "its columns: name, type, codec, size_bytes"]
    row_group_list: Annotated[list[RowGroup], "its row groups: rows, size_bytes, first, last"]


class ColumnStatistics(TypedDict):
    """A column of a Parquet file; min and max have the column's own type."""

    name: str
    type: str
    codec: str | None
    size_bytes: fields.SizeBytes
    raw_bytes: int
    values: int
    nulls: int | None
    min: Any
    max: Any


class GroupStatistics(TypedDict):
    """A row group of a Parquet file, with its lowest and highest entry."""

    row_group: int
    rows: int
    size_bytes: fields.SizeBytes
    raw_bytes: int
    first_entry: int | None
    last_entry: int | None


class Frame(TypedDict):
    """A frame of the journal; each op has its name as `op`, and its own fields."""

    lsn: fields.Lsn
    written_time: int
    op_list: list[dict[str, Any]]
    size_bytes: fields.SizeBytes
    rows_bytes: int
    file: fields.File
    offset: int


class StoredRow(TypedDict):
    """Of `txlog segment cat`: the columns that a file stores, of messages and markers."""

    kind: Annotated[int, "0 data, 1 commit, 2 abort, 3 to 5 watermarks, 6 chunk"]
    entry: Annotated[int, "number in the ledger, from 0"]
    lsn: Annotated[int, "frame of the row"]
    publish_time: fields.PublishTime | None
    key: Annotated[str | None, "message key"]
    value: Annotated[str | None, "payload"]
    properties: fields.Properties | None
    event_time: fields.EventTime | None
    deliver_at: fields.DeliverAt | None
    producer: fields.Producer | None
    sequence_id: fields.SequenceId | None
    txn_most: Annotated[int | None, "coordinator of the transaction, shifted by 48 bits"]
    txn_least: Annotated[int | None, "its sequence"]
    txn_index: fields.TxnIndex | None
    count: fields.Count | None
    marker_ledger: Annotated[int | None, "ledger of the marker that made it visible"]
    marker_entry: Annotated[int | None, "its entry"]
    visible_time: fields.VisibleTime | None
    schema_version: fields.SchemaVersion | None


class Found(TypedDict):
    """The fields of `txlog inspect` that no other command prints."""

    file: fields.File | None
    row: Annotated[int | None, "number of the row in the file"]
    acknowledged_list: Annotated[list[str], "subscriptions that have acknowledged it"]
    lsn: Annotated[int, "number of the frame"]
    written_time: Annotated[int, "when the frame was written"]
    durable: Annotated[bool, "the frame is safe from power loss"]
    op_list: Annotated[list[dict[str, Any]], "the ops of the frame"]
    rows: fields.Rows
