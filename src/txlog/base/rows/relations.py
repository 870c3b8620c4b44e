"""Relations of SQL that no listing of a command has."""

from typing import Annotated, Any, TypedDict

from txlog.base.ids import MessageId, Position, TxnId
from txlog.base.rows import fields

Id = Annotated[MessageId, "L:E, or L:E:I in a transaction"]
Ledger = Annotated[int, "of the message id"]
TxnIndex = Annotated[int, "its number in the transaction, from 1; null outside transactions"]
Cumulative = Annotated[bool, "this message and all before it"]
Lsn = Annotated[int, "of the frame"]
Time = Annotated[int, "when the frame was written"]


class Acknowledgement(TypedDict):
    """Of `acks`: a message that a subscription has acknowledged."""

    topic: fields.Topic
    subscription: fields.Subscription
    partition: fields.Partition
    message_id: Id
    ledger: Ledger
    entry: Ledger
    txn_index: TxnIndex | None
    cumulative: Cumulative


class PendingAcknowledgement(Acknowledgement):
    """Of `pending_acks`: a message that an open transaction holds."""

    txn: fields.Txn
    since: Annotated[int | None, "when the transaction began"]


class FrameRow(TypedDict):
    """Of `frames`: a frame that is still in a journal."""

    lsn: Lsn
    time: Time
    ops: Annotated[list[str], "names of its ops"]
    rows: Annotated[int, "messages in it"]
    bytes: Annotated[int, "size of the frame"]
    durable: Annotated[bool, "it is safe from power loss"]
    journal: Annotated[str, "the file"]
    offset: Annotated[int, "its place in the file"]


class KeyChange(TypedDict):
    """Of `transaction_key_log`: the state of a key after a change."""

    lsn: Lsn
    time: Time
    change: Annotated[str, "connected, bound, released, batch, deleted or snapshot"]
    coordinator: fields.Coordinator
    owner_uid: fields.OwnerUid
    owner: fields.Owner
    transaction_key: fields.TransactionKey
    epoch: Annotated[int, "epoch of the newest holder"]
    txn: Annotated[TxnId | None, "the transaction of this change"]
    open_txn: Annotated[TxnId | None, "the transaction bound to the key"]
    deleted: Annotated[bool, "a tombstone, which keeps the epoch"]
    batch: Annotated[str | None, "the batch recorded here"]
    last_batch: Annotated[int | None, "the highest number of a batch"]
    batch_names: Annotated[int, "number of named batches"]
    ended_txns: Annotated[int, "transactions that ended"]


class CursorChange(TypedDict):
    """Of `cursor_log`: a change of a subscription in a partition."""

    lsn: Annotated[int, "of the frame; if there are several, of the last"]
    time: Time
    change: Annotated[str, "opened, acknowledged, held, committed, aborted, returned, …, snapshot"]
    topic: fields.Topic
    partition: fields.Partition
    subscription: fields.Subscription
    first_lsn: Annotated[int, "the first frame of acknowledgements that are one row"]
    changes: Annotated[int, "number of changes that are one row"]
    messages: Annotated[int, "messages acknowledged, held or moved by these changes"]
    mark_ledger: Annotated[int | None, "mark-delete after the change; null: unknown"]
    mark_entry: Annotated[int | None, "its entry"]
    mark_index: Annotated[int | None, "its index; above 0 it is inside that marker"]
    ranges: Annotated[list[Any], "ids of the messages of the change"]
    txn: Annotated[TxnId | None, "the messages are held for it, or it ended"]
    complete: Annotated[bool, "the row has the whole state, in the columns below"]
    acknowledged: Annotated[list[Any] | None, "beyond mark-delete; null: too many ranges"]
    bitmaps: Annotated[list[Any], "the same as portable roaring bitmaps"]
    pending: Annotated[list[Any], "messages that unfinished transactions hold"]
    redelivered: Annotated[list[Any] | None, "messages that were redelivered; null: too many"]
    acknowledged_messages: Annotated[int, "messages acknowledged since the beginning"]
    redelivered_messages: Annotated[int, "messages that were redelivered"]
    seeks: Annotated[int, "seeks since the beginning"]
    subscription_number: Annotated[int, "number of the subscription in the catalog"]
    partition_number: Annotated[int, "number of the partition in the catalog"]


class CatalogChange(TypedDict):
    """Of `catalog_log`: the state of an entity after a change."""

    lsn: Lsn
    time: Time
    change: Annotated[str, "the op, or snapshot"]
    entity: Annotated[str, "setting/NAME, topic/N, subscription/N, …"]
    topic: fields.Topic | None
    partition: fields.Partition | None
    subscription: fields.Subscription | None
    name: Annotated[str | None, "name of a setting or policy"]
    value: Annotated[str | None, "JSON; null: removed"]
    deleted: Annotated[bool, "the entity is gone"]


class DelayedMessage(TypedDict):
    """Of `delayed`."""

    topic: fields.Topic
    partition: fields.Partition
    message_id: Id
    deliver_at: fields.DeliverAt
    key: Annotated[bytes | None, "message key"]
    size_bytes: Annotated[int, "bytes of payload"]


class WatermarkOfProducer(TypedDict):
    """Of `watermarks`: a producer that takes part in the watermark of a partition."""

    topic: fields.Topic
    subscription: Annotated[str | None, "where the watermark is; null: at the end of the log"]
    partition: fields.Partition
    status: fields.WatermarkStatus
    watermark: Annotated[int | None, "the lowest time of an active producer"]
    emitted: Annotated[int | None, "the highest watermark that a consumer has received"]
    producer: Annotated[str | None, "name of the producer; null: there is none"]
    event_time: Annotated[int | None, "the time that the producer asserted"]
    holds: Annotated[bool | None, "it has the lowest time"]
    idle: Annotated[bool | None, "the watermark does not wait for it"]
    position: Annotated[Position | None, "position of the assertion"]
    pending_txns: Annotated[int | None, "open transactions that assert watermarks"]
