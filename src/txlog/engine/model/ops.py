"""The closed set of ops: small journaled facts in the past tense.

A frame carries a list of them (msgpack, each an array with its tag first). Tags are never reused;
new fields go last with a default; a changed meaning is a new tag. An op carries the outcome, not
the request, so that applying it needs no second component (Law 7).

Ids inside ops: `partition` and `subscription` are the store's internal numbers, a transaction is
the pair (coordinator, sequence). Ops of one subject are defined in modules of their own; this one
is where everybody takes them from.
"""

import msgspec

from txlog.engine.model.bulk_ops import Adopted as Adopted
from txlog.engine.model.bulk_ops import BatchRecorded as BatchRecorded
from txlog.engine.model.catalog_ops import ClockNoted as ClockNoted
from txlog.engine.model.catalog_ops import ConsumerAttached as ConsumerAttached
from txlog.engine.model.catalog_ops import ConsumerDetached as ConsumerDetached
from txlog.engine.model.catalog_ops import IsolationSet as IsolationSet
from txlog.engine.model.catalog_ops import PartitionAvailable as PartitionAvailable
from txlog.engine.model.catalog_ops import PartitionOffline as PartitionOffline
from txlog.engine.model.catalog_ops import PartitionsAdded as PartitionsAdded
from txlog.engine.model.catalog_ops import PolicySet as PolicySet
from txlog.engine.model.catalog_ops import SettingSet as SettingSet
from txlog.engine.model.catalog_ops import SubscriptionCreated as SubscriptionCreated
from txlog.engine.model.catalog_ops import SubscriptionDeleted as SubscriptionDeleted
from txlog.engine.model.catalog_ops import SubscriptionPolicySet as SubscriptionPolicySet
from txlog.engine.model.catalog_ops import SubscriptionTypeSet as SubscriptionTypeSet
from txlog.engine.model.catalog_ops import TopicCreated as TopicCreated
from txlog.engine.model.catalog_ops import TopicDeleted as TopicDeleted
from txlog.engine.model.cursor_ops import AckConflicted as AckConflicted
from txlog.engine.model.cursor_ops import Acked as Acked
from txlog.engine.model.cursor_ops import CursorOpened as CursorOpened
from txlog.engine.model.cursor_ops import CursorTrimmed as CursorTrimmed
from txlog.engine.model.cursor_ops import DeadLettered as DeadLettered
from txlog.engine.model.cursor_ops import Due as Due
from txlog.engine.model.cursor_ops import Leased as Leased
from txlog.engine.model.cursor_ops import Mark as Mark
from txlog.engine.model.cursor_ops import PendingAborted as PendingAborted
from txlog.engine.model.cursor_ops import PendingAcked as PendingAcked
from txlog.engine.model.cursor_ops import PendingCommitted as PendingCommitted
from txlog.engine.model.cursor_ops import Returned as Returned
from txlog.engine.model.cursor_ops import Run as Run
from txlog.engine.model.cursor_ops import Sought as Sought
from txlog.engine.model.delay_ops import Bucket as Bucket
from txlog.engine.model.delay_ops import BucketDeleted as BucketDeleted
from txlog.engine.model.delay_ops import BucketSealed as BucketSealed
from txlog.engine.model.delay_ops import BucketsMerged as BucketsMerged
from txlog.engine.model.delay_ops import DelaysCounted as DelaysCounted
from txlog.engine.model.delay_ops import NamespacePolicySet as NamespacePolicySet
from txlog.engine.model.delay_ops import Promoted as Promoted
from txlog.engine.model.key_ops import KeyBound as KeyBound
from txlog.engine.model.key_ops import KeyConnected as KeyConnected
from txlog.engine.model.key_ops import KeyDeleted as KeyDeleted
from txlog.engine.model.key_ops import KeyReleased as KeyReleased
from txlog.engine.model.loss_ops import LossAccepted as LossAccepted
from txlog.engine.model.place_ops import Offloaded as Offloaded
from txlog.engine.model.place_ops import PlaceAdded as PlaceAdded
from txlog.engine.model.watermark_ops import BufferWatermark as BufferWatermark
from txlog.engine.model.watermark_ops import Effect as Effect
from txlog.engine.model.watermark_ops import WatermarkEmitted as WatermarkEmitted
from txlog.engine.model.watermark_ops import WatermarkIdled as WatermarkIdled
from txlog.engine.model.watermark_ops import WatermarkSet as WatermarkSet
from txlog.engine.model.watermark_ops import WatermarkSnapshot as WatermarkSnapshot
from txlog.engine.storage.segment import FileRef
from txlog.errors import Corruption


class _Op(msgspec.Struct, frozen=True, array_like=True, gc=False):
    pass


class LedgerRolled(_Op, tag="roll", frozen=True, array_like=True, gc=False):
    """The open ledger of a partition (role p) or of its sidecar (role s) is `new`; old 0: none."""

    partition: int
    role: str
    old: int
    new: int


class LedgerSealed(_Op, tag="seal", frozen=True, array_like=True, gc=False):
    """A closed ledger is one Parquet file from now on."""

    partition: int
    role: str
    file: FileRef


class LedgerReserved(_Op, tag="lres", frozen=True, array_like=True, gc=False):
    """This id is kept for one file: of the sidecar, for a compaction or the chunks of a large
    message; of the partition, for a staged one. It is used by that, or burnt."""

    partition: int
    role: str
    ledger: int


class LedgerTrimmed(_Op, tag="trim", frozen=True, array_like=True, gc=False):
    """A closed ledger is gone, with its rows: the oldest of a partition, or one of a sidecar.

    through: the last message of the partition's ledger; null where it had none
    """

    partition: int
    role: str
    ledger: int
    messages: int
    payload_bytes: int
    through: Mark | None = None


class Compacted(_Op, tag="comp", frozen=True, array_like=True, gc=False):
    """Closed ledgers of a sidecar are one new sealed ledger, file.ledger, without dead rows.

    moved: (old ledger, first row, rows, first row in the file); what is not moved was dead
    """

    partition: int
    old: list[int]
    file: FileRef
    payload_bytes: int
    moved: list[tuple[int, int, int, int]]


class IdsReserved(_Op, tag="ids", frozen=True, array_like=True, gc=False):
    """Sequences below this bound may be given out by the coordinator."""

    coordinator: int
    below: int


class CounterRaised(_Op, tag="ctr", frozen=True, array_like=True, gc=False):
    """After a lossy recovery the next sequence is this one; those before it are never given out."""

    coordinator: int
    sequence: int


class TxnOpened(_Op, tag="open", frozen=True, array_like=True, gc=False):
    """A transaction is OPEN; start is wall and boot clock in ms."""

    coordinator: int
    sequence: int
    owner_uid: int
    owner: str
    timeout_ms: int
    wall_ms: int
    boot_id: str
    boot_ms: int
    key: str | None = None
    epoch: int = -1


class PartitionAdded(_Op, tag="addp", frozen=True, array_like=True, gc=False):
    """A partition takes part in the transaction."""

    coordinator: int
    sequence: int
    partition: int


class SubscriptionAdded(_Op, tag="adds", frozen=True, array_like=True, gc=False):
    """A subscription takes part in the transaction, on one partition."""

    coordinator: int
    sequence: int
    subscription: int
    partition: int


class StatusUpdated(_Op, tag="stat", frozen=True, array_like=True, gc=False):
    """The status changed from expected to status; markers as (partition, ledger, entry, count).

    skipped: with the last status, participants that were deleted before: (partition, subscription)
    """

    coordinator: int
    sequence: int
    expected: str
    status: str
    reason: str | None = None
    messages: int = 0
    acks: int = 0
    markers: list[tuple[int, int, int, int]] = []
    skipped: list[tuple[int, int]] = []


class TxnsForgotten(_Op, tag="forg", frozen=True, array_like=True, gc=False):
    """Ended transactions are no longer remembered."""

    coordinator: int
    sequences: list[int]


class Appended(_Op, tag="app", frozen=True, array_like=True, gc=False):
    """Plain messages: rows row_start.. of the frame are entries first_entry.. of the ledger.

    times: int64 little endian, the deliver_at of each, NO_TIME for none; null: none has one
    """

    partition: int
    ledger: int
    first_entry: int
    row_start: int
    rows: int
    payload_bytes: int
    producer: str | None = None
    last_sequence: int = -1
    times: bytes | None = None


class ProducerOpened(_Op, tag="prod", frozen=True, array_like=True, gc=False):
    """A named producer was opened; older ones of the name are fenced. First partition only."""

    partition: int
    producer: str
    epoch: int


class ProducersForgotten(_Op, tag="pfor", frozen=True, array_like=True, gc=False):
    """Names that a partition remembers no longer."""

    partition: int
    producers: list[str]


class CommitMarker(_Op, tag="mark", frozen=True, array_like=True, gc=False):
    """The entry that makes `count` messages of a transaction visible in this partition.

    producer, last_sequence: of a large message sent plainly, in a transaction made for it alone
    delayed: how many of them have a deliver_at, due or not
    watermarks: the net effect of the transaction's watermark rows here; count may be 0 then
    """

    partition: int
    ledger: int
    entry: int
    coordinator: int
    sequence: int
    count: int
    payload_bytes: int
    producer: str | None = None
    last_sequence: int = -1
    delayed: int = 0
    watermarks: list[Effect] = []


class BufferAppended(_Op, tag="bapp", frozen=True, array_like=True, gc=False):
    """Messages of an open transaction, in the sidecar; the first has index first_index (from 1).

    times: as in Appended
    """

    partition: int
    ledger: int
    first_entry: int
    row_start: int
    rows: int
    payload_bytes: int
    coordinator: int
    sequence: int
    first_index: int
    producer: str | None = None
    last_sequence: int = -1
    times: bytes | None = None


class ChunksAppended(_Op, tag="chnk", frozen=True, array_like=True, gc=False):
    """A large message of an open transaction is the sidecar ledger file.ledger, all of it.

    value_bytes, crc: length and CRC32C of the value that its chunks make
    last_sequence:    the sequence of the message, -1: it has none
    plain:            sent without a transaction; the same frame opens and commits one for it
    """

    partition: int
    file: FileRef
    value_bytes: int
    crc: int
    payload_bytes: int
    coordinator: int
    sequence: int
    index: int
    producer: str | None = None
    last_sequence: int = -1
    plain: bool = False
    deliver_at: int | None = None


class BufferCommitted(_Op, tag="bcom", frozen=True, array_like=True, gc=False):
    """The sidecar's TXN_COMMIT row at (ledger, entry); the marker stands in the partition."""

    partition: int
    coordinator: int
    sequence: int
    ledger: int
    entry: int
    marker_ledger: int
    marker_entry: int


class BufferAborted(_Op, tag="babo", frozen=True, array_like=True, gc=False):
    """The sidecar's TXN_ABORT row at (ledger, entry); the transaction's rows are dead.

    delayed: how many of them have a deliver_at; watermarks: whether there are watermark rows too
    """

    partition: int
    coordinator: int
    sequence: int
    ledger: int
    entry: int
    delayed: int = 0
    watermarks: bool = False


class Deduplicated(_Op, tag="dup", frozen=True, array_like=True, gc=False):
    """Messages were there already and not stored; of `missing` the original was not found."""

    partition: int
    dropped: int
    missing: int


Op = (
    SettingSet | TopicCreated | SubscriptionCreated | ConsumerAttached | ConsumerDetached
    | LedgerRolled | LedgerSealed | IdsReserved | CounterRaised | TxnOpened | PartitionAdded
    | SubscriptionAdded | StatusUpdated | TxnsForgotten
    | KeyConnected | KeyBound | KeyReleased | KeyDeleted | Appended | CommitMarker
    | BufferAppended | BufferCommitted | BufferAborted | CursorOpened | Acked | PendingAcked
    | PendingCommitted | PendingAborted | ProducerOpened | ProducersForgotten | AckConflicted
    | Deduplicated | PartitionOffline | PartitionAvailable
    | LedgerReserved | LedgerTrimmed | Compacted | PolicySet | CursorTrimmed
    | IsolationSet | SubscriptionTypeSet | Leased | Returned
    | PartitionsAdded | TopicDeleted | SubscriptionPolicySet | SubscriptionDeleted
    | Sought | DeadLettered | ChunksAppended
    | BucketSealed | BucketsMerged | BucketDeleted | Promoted | NamespacePolicySet
    | DelaysCounted
    | WatermarkSet | WatermarkIdled | WatermarkSnapshot | BufferWatermark | WatermarkEmitted
    | Adopted | BatchRecorded | PlaceAdded | Offloaded | LossAccepted | ClockNoted
)  # fmt: skip

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Op])


def encode_ops(ops: list[Op]) -> bytes:
    """The bytes of a frame's ops."""
    return _encoder.encode(ops)


def decode_ops(data: bytes, *, lsn: int) -> list[Op]:
    """The ops of a frame; an unknown tag or shape is Corruption naming the frame."""
    try:
        return _decoder.decode(data)
    except msgspec.DecodeError as exc:
        raise Corruption(f"frame {lsn} holds an op this version cannot read: {exc}", lsn=lsn,
                         code=602) from exc  # fmt: skip
