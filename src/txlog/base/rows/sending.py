"""A batch of files that is stored once."""

from __future__ import annotations

from typing import TypedDict

from txlog.base.ids import TxnId


class BulkPartition(TypedDict):
    """The rows of a batch in one partition; ledger: the first ledger."""

    partition: int
    ledger: int
    messages: int


class BulkHead(TypedDict):
    """The identity of a batch; already: it was stored before."""

    topic: str
    key: str
    batch: int | str
    already: bool


class BulkStored(BulkHead, total=False):
    """Of `Bulk.commit` and `Bulk.stored`; a batch before the last one has only the head."""

    messages: int
    size_bytes: int
    files: int
    lsn: int | None
    time: int | None
    txn: TxnId | None
    partitions: list[BulkPartition]
