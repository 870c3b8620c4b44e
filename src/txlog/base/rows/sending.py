"""What producers and processing stored: messages, batches of files."""

from typing import Annotated, TypedDict

from txlog.base.ids import TxnId
from txlog.base.rows import fields


class BulkPartition(TypedDict):
    """The rows of a batch in one partition; ledger: the first ledger."""

    partition: fields.Partition
    ledger: int
    messages: fields.Messages


class BulkHead(TypedDict):
    """The identity of a batch; already: it was stored before."""

    topic: fields.Topic
    key: str
    batch: int | str
    already: bool


class BulkStored(BulkHead, total=False):
    """Of `Bulk.commit` and `Bulk.stored`; a batch before the last one has only the head."""

    messages: fields.Messages
    size_bytes: fields.SizeBytes
    files: int
    lsn: fields.Lsn | None
    time: int | None
    txn: fields.Txn | None
    partitions: list[BulkPartition]


class ProducedPartition(TypedDict):
    """A partition of a Produced; first, last: the ids of its messages."""

    partition: fields.Partition
    messages: fields.Messages
    first: fields.First | None
    last: fields.Last | None


class Produced(TypedDict):
    """Of `txlog produce`."""

    topic: fields.Topic
    messages: Annotated[int, "messages stored"]
    size_bytes: fields.SizeBytes
    duplicates: Annotated[int, "stored before, so not written again"]
    skipped: fields.Skipped
    dead_lettered: fields.DeadLettered
    partition_list: Annotated[list[ProducedPartition], "a row for each partition"]
    transactions: fields.Transactions
    txn: fields.Txn | None
    txn_state: fields.TxnState | None
    transaction_key: fields.TransactionKey | None
    epoch: fields.Epoch | None
    elapsed_ms: fields.ElapsedMs


class Processed(TypedDict):
    """Of `txlog run` and `txlog transform`."""

    input: Annotated[str, "the topics it read"]
    output: Annotated[str | None, "the topic it wrote; null when each output names one"]
    transactions: fields.Transactions
    aborted: Annotated[int, "transactions aborted"]
    skipped: fields.Skipped
    dead_lettered: fields.DeadLettered
    late_messages: fields.LateMessages
    last_txn: Annotated[TxnId | None, "the transaction committed last"]
    elapsed_ms: fields.ElapsedMs
    consumed: Annotated[int, "messages acknowledged in committed transactions"]
    produced: Annotated[int, "messages produced in committed transactions"]
