"""A batch of files that is stored once."""

from __future__ import annotations

from typing import TypedDict

from txlog.base.ids import TxnId


class BulkPartition(TypedDict):
    """What a batch put into one partition; ledger: the first."""

    partition: int
    ledger: int
    messages: int


class BulkHead(TypedDict):
    """Which batch it is; already: it was stored before."""

    topic: str
    key: str
    batch: int | str
    already: bool


class BulkStored(BulkHead, total=False):
    """Of `Bulk.commit` and `Bulk.stored`; of a number below the last one only the head is known."""

    messages: int
    size_bytes: int
    files: int
    lsn: int | None
    time: int | None
    txn: TxnId | None
    partitions: list[BulkPartition]
