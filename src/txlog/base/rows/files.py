"""Segment files, journal frames, contents of a store's files."""

from __future__ import annotations

from typing import Any, TypedDict

from txlog.base.ids import MessageId


class LedgerStretch(TypedDict):
    """Rows of a ledger; markers: commit markers of the whole ledger, None for a sidecar."""

    topic: str
    partition: int
    ledger: int
    role: str
    state: str
    markers: int | None
    form: str
    rows: int
    first_entry: int
    last_entry: int


class LedgerRows(LedgerStretch, total=False):
    """Of `Client.segments`; these keys only for rows in a file, not in frames of the journal."""

    file: str
    clean: bool
    bytes: int
    crc: int
    first_lsn: int
    last_lsn: int


class SegmentRow(TypedDict):
    """Of `txlog segment list`; keys that need a topic or ledger are None for files without one."""

    topic: str | None
    partition: int | None
    ledger: int | None
    part: int | None
    state: str | None
    sidecar: bool | None
    messages: int | None
    markers: int | None
    first: MessageId | None
    last: MessageId | None
    rows: int | None
    size_bytes: int | None
    first_time: int | None
    last_time: int | None
    crc32c: str | None
    file: str | None
    log: str | None


class ColumnShape(TypedDict):
    """A column of a SegmentDescription."""

    name: str
    type: str
    codec: str | None
    size_bytes: int


class RowGroup(TypedDict):
    """A row group of a SegmentDescription."""

    rows: int
    size_bytes: int
    file: str
    first: MessageId | None
    last: MessageId | None


class SegmentDescription(SegmentRow):
    """Of `txlog segment show`."""

    column_list: list[ColumnShape]
    row_group_list: list[RowGroup]


class ColumnStatistics(TypedDict):
    """A column of a Parquet file; min and max have the column's own type."""

    name: str
    type: str
    codec: str | None
    size_bytes: int
    raw_bytes: int
    values: int
    nulls: int | None
    min: Any
    max: Any


class GroupStatistics(TypedDict):
    """A row group of a Parquet file, with its lowest and highest entry."""

    row_group: int
    rows: int
    size_bytes: int
    raw_bytes: int
    first_entry: int | None
    last_entry: int | None


class Frame(TypedDict):
    """A frame of the journal; each op has its name as `op`, and its own fields."""

    lsn: int
    written_time: int
    op_list: list[dict[str, Any]]
    size_bytes: int
    rows_bytes: int
    file: str
    offset: int
