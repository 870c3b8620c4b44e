"""The closed set of ops: small journaled facts in the past tense.

A frame carries a list of them (msgpack, each an array with its tag first). Tags are never reused;
new fields go last with a default; a changed meaning is a new tag. An op carries the outcome, not
the request, so that applying it needs no second component (Law 7).

Ids inside ops: `partition` and `subscription` are the store's internal numbers, a transaction is
the pair (coordinator, sequence). Ops of one subject are defined in modules of their own; this one
is where everybody takes them from.

The ops of batches that were written as files, a part of the closed set of ops.py.

The ops of the catalog: what there is, and what it was told.

They are part of the closed set of ops.py, which is where everybody takes them from.

The ops of cursors: what a subscription has acknowledged, holds and was given.

Part of the closed set of ops.py, which is where everybody takes them from.

`runs` are ids of messages as (ledger, first, last, index_first, index_last): with index_first 0 the
entries first..last as wholes, else the messages index_first..index_last of the transaction whose
marker is entry `first`.

The ops of delayed delivery: the buckets of a partition's index, promotions, policies.

The times themselves are in the ops that store messages. Part of the closed set of ops.py, which is
where everybody takes them from. Source: apache/pulsar#16763; spec/delayed 4, 9.

The ops of transaction keys, a part of the closed set of ops.py.

The op about what is gone for good, a part of the closed set of ops.py.

The ops of files outside of the store, a part of the closed set of ops.py.

The ops of event-time watermarks: rows of a partition or sidecar that are not data.

Part of the closed set of ops.py, which is where everybody takes them from. What a transaction
asserts takes effect with its commit marker, which carries the net effect of its rows.
Source: apache/pulsar#12267; spec/watermarks 3, 7, 8.
"""

from __future__ import annotations

from typing import Final

import msgspec

from txlog.engine.storage.segment import FileRef
from txlog.errors import Corruption


class Adopted(msgspec.Struct, tag="adpt", frozen=True, array_like=True, gc=False):
    """A file that was staged is the ledger file.ledger of a partition, closed, behind the last one.

    An open ledger without a row gives way to it. The LSN of its rows is that of this frame.
    time_ms: the publish_time of its rows; times: as in Appended
    """

    partition: int
    file: FileRef
    payload_bytes: int
    time_ms: int
    times: bytes | None = None


class Batch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a recorded batch was: the answer to whoever brings it again.

    topic:    its number
    sequence: of its transaction, at the coordinator of the key
    places:   (partition, first ledger, messages); its ledgers there follow one another
    lsn:      of the frame; 0 in an op, which is in it
    """

    topic: int
    sequence: int
    messages: int
    payload_bytes: int
    files: int
    time_ms: int
    places: list[tuple[int, int, int]]
    lsn: int = 0


class BatchRecorded(msgspec.Struct, tag="brec", frozen=True, array_like=True, gc=False):
    """The batch of this number or name was stored under the key, in this frame."""

    coordinator: int
    uid: int
    key: str
    batch: int | str
    answer: Batch


class _Op(msgspec.Struct, frozen=True, array_like=True, gc=False):
    pass


class SettingSet(_Op, tag="set", frozen=True, array_like=True, gc=False):
    """A setting of the store has this value."""

    name: str
    value: int | str | float


class ClockNoted(_Op, tag="clk", frozen=True, array_like=True, gc=False):
    """The wall clock was believed at wall_ms, when the clock since boot stood at boot_ms.

    seen_*: where both stood when a wall clock that is far ahead was first seen in another boot
    """

    wall_ms: int
    boot_id: str
    boot_ms: int
    seen_wall_ms: int = 0
    seen_boot_id: str = ""
    seen_boot_ms: int = 0


class TopicCreated(_Op, tag="topic", frozen=True, array_like=True, gc=False):
    """A topic exists; its partitions are numbered from first_partition.

    The same frame holds a LedgerRolled for the first ledger of each.
    """

    topic: int
    name: str
    first_partition: int
    partitions: int


class PartitionsAdded(_Op, tag="padd", frozen=True, array_like=True, gc=False):
    """A topic has more partitions, numbered from first_partition; the frame makes their ledgers."""

    topic: int
    first_partition: int
    partitions: int


class TopicDeleted(_Op, tag="tdel", frozen=True, array_like=True, gc=False):
    """A topic is gone with its partitions and these ledgers, those of sidecars too."""

    topic: int
    partitions: list[int]
    ledgers: list[int]


class SubscriptionCreated(_Op, tag="sub", frozen=True, array_like=True, gc=False):
    """A durable subscription exists on a topic."""

    subscription: int
    topic: int
    name: str
    kind: str
    isolation: str


class SubscriptionPolicySet(_Op, tag="spol", frozen=True, array_like=True, gc=False):
    """A policy of a subscription has this value; null: it has none any more."""

    subscription: int
    name: str
    value: int | str | None


class SubscriptionDeleted(_Op, tag="sdel", frozen=True, array_like=True, gc=False):
    """A subscription is gone with its cursors on these partitions, and what was pending there.

    clamped: those where its consumers were handed watermarks; none where the partitions go, too
    """

    subscription: int
    partitions: list[int]
    clamped: list[int] = []


class ConsumerAttached(_Op, tag="con", frozen=True, array_like=True, gc=False):
    """A consumer holds consumers/<id>.lock and receives on the subscription."""

    subscription: int
    consumer: int
    name: str
    kind: str = "exclusive"
    priority: int = 0


class ConsumerDetached(_Op, tag="coff", frozen=True, array_like=True, gc=False):
    """The consumer closed itself, or was found dead."""

    subscription: int
    consumer: int


class SubscriptionTypeSet(_Op, tag="styp", frozen=True, array_like=True, gc=False):
    """The type of a subscription is another one; no consumer of it lived."""

    subscription: int
    kind: str


class IsolationSet(_Op, tag="iso", frozen=True, array_like=True, gc=False):
    """The isolation of a subscription is another one; no consumer of it lived."""

    subscription: int
    isolation: str


class PolicySet(_Op, tag="pol", frozen=True, array_like=True, gc=False):
    """A policy of a topic has this value; null: it has none any more."""

    topic: int
    name: str
    value: int | None


class PartitionOffline(_Op, tag="poff", frozen=True, array_like=True, gc=False):
    """A partition and its sidecar are not available: reason admin or damage.

    ledger, row: with damage, the first row that cannot be read; nothing behind it is shown
    """

    partition: int
    reason: str
    ledger: int = 0
    row: int = 0


class PartitionAvailable(_Op, tag="pon", frozen=True, array_like=True, gc=False):
    """A partition is available again; its frame ends every decided transaction that waited."""

    partition: int


Run = tuple[int, int, int, int, int]
Mark = tuple[int, int, int]
Due = tuple[int, str, int]  # an instant to come: wall ms, boot id, boot ms


class CursorOpened(_Op, tag="curs", frozen=True, array_like=True, gc=False):
    """The subscription starts behind this position in the partition."""

    subscription: int
    partition: int
    mark_delete: Mark


class Acked(_Op, tag="ack", frozen=True, array_like=True, gc=False):
    """These messages are DELETED on the subscription; the mark-delete position is the new one.

    dropped: messages asked for that a transaction holds; without others runs is empty.
    """

    subscription: int
    partition: int
    runs: list[Run]
    mark_delete: Mark
    count: int
    dropped: int = 0


class DeadLettered(_Op, tag="dlq", frozen=True, array_like=True, gc=False):
    """Of the messages that this frame acknowledges here, so many went to the dead-letter topic."""

    subscription: int
    partition: int
    count: int


class PendingAcked(_Op, tag="pack", frozen=True, array_like=True, gc=False):
    """These messages are PENDING_ACK for the transaction; cumulative: up to and with this id.

    consumer: through which it was acknowledged, 0: by id
    """

    subscription: int
    partition: int
    coordinator: int
    sequence: int
    runs: list[Run]
    cumulative: Mark | None
    count: int
    consumer: int = 0


class PendingCommitted(_Op, tag="pcom", frozen=True, array_like=True, gc=False):
    """What the transaction held is DELETED; runs and mark_delete are the outcome."""

    subscription: int
    partition: int
    coordinator: int
    sequence: int
    runs: list[Run]
    mark_delete: Mark


class PendingAborted(_Op, tag="pabo", frozen=True, array_like=True, gc=False):
    """What the transaction held is PENDING again, each with one redelivery more."""

    subscription: int
    partition: int
    coordinator: int
    sequence: int


class AckConflicted(_Op, tag="conf", frozen=True, array_like=True, gc=False):
    """An acknowledgement here was a conflict; the same frame aborts its transaction."""

    subscription: int
    partition: int


class CursorTrimmed(_Op, tag="ctrm", frozen=True, array_like=True, gc=False):
    """Ledgers were trimmed: mark-delete moved over them, and what transactions still hold is this.

    pending: (coordinator, sequence, runs, cumulative, count) of those that held trimmed messages
    """

    subscription: int
    partition: int
    mark_delete: Mark
    pending: list[tuple[int, int, list[Run], Mark | None, int]]


class Leased(_Op, tag="leas", frozen=True, array_like=True, gc=False):
    """These messages are in a consumer's hand; due: with an ack time-out, until then.

    Messages of a marker stand one by one (index_first above 0), never as its entry. What is in this
    hand already, of a time-out that begins now, may stand here again.
    ahead: 0: the application has them; else the number of a batch that the consumer took ahead of
           its application, in the order of the runs: its lock file says how far that has come
    """

    subscription: int
    partition: int
    consumer: int
    runs: list[Run]
    due: Due | None = None
    ahead: int = 0


class Returned(_Op, tag="ret", frozen=True, array_like=True, gc=False):
    """Messages are in nobody's hand any more, and are delivered again.

    consumer:  who had them, 0: anybody
    counted:   those with one redelivery more; null: all that the consumer has left
    uncounted: those that no application has seen
    due:       the counted ones come not before; null: at once
    """

    subscription: int
    partition: int
    consumer: int
    counted: list[Run] | None
    uncounted: list[Run] = []
    due: Due | None = None


class Sought(_Op, tag="seek", frozen=True, array_like=True, gc=False):
    """Up to this position everything is DELETED, behind it nothing; counts and leases are void."""

    subscription: int
    partition: int
    mark_delete: Mark


Id = tuple[int, int, int]  # the id of a message: ledger, entry, index (0: a plain one)
NO_TIME = -(1 << 63)  # in the `times` of an op: this message has none


class Bucket(msgspec.Struct, frozen=True, array_like=True):
    """An immutable bucket: the delayed ids of a range of positions, in a published file.

    first, last:    the whole range as it was made, closed
    count:          ids in the file; min_at, max_at: their least and greatest time
    cutoff_ms:      what was due then was left out
    half_at:        once this is due, more than half of the ids are
    """

    gen: int
    file: FileRef
    first: Id
    last: Id
    count: int
    min_at: int
    max_at: int
    cutoff_ms: int
    half_at: int = (1 << 63) - 1


class BucketSealed(_Op, tag="bsea", frozen=True, array_like=True, gc=False):
    """Ids first..last are in a bucket, without those due at cutoff_ms; null: all of them were.

    kind: seal (they leave the mutable bucket), rebuild (they were not indexed)
    """

    partition: int
    kind: str
    first: Id
    last: Id
    cutoff_ms: int
    bucket: Bucket | None


class BucketsMerged(_Op, tag="bmer", frozen=True, array_like=True, gc=False):
    """One bucket stands for its sources, without what was due at cutoff_ms; null: all of it was.

    paths: the files that lose their name
    """

    partition: int
    sources: list[int]
    cutoff_ms: int
    bucket: Bucket | None
    paths: list[str]


class BucketDeleted(_Op, tag="bdel", frozen=True, array_like=True, gc=False):
    """Buckets are gone; cause: due, acknowledged, trimmed or lost.

    What of a lost one, or of an acknowledged one, may still be wanted is not indexed from then on.
    """

    partition: int
    gens: list[int]
    cause: str
    cutoff_ms: int
    paths: list[str]


class Promoted(_Op, tag="prom", frozen=True, array_like=True, gc=False):
    """These messages are released on the subscription: delivered whatever their time."""

    subscription: int
    partition: int
    runs: list[tuple[int, int, int, int, int]]


class DelaysCounted(_Op, tag="dcnt", frozen=True, array_like=True, gc=False):
    """Messages for a partition were refused for their delay, or stored to expire before it ends."""

    partition: int
    refused: int = 0
    beyond_ttl: int = 0


class NamespacePolicySet(_Op, tag="npol", frozen=True, array_like=True, gc=False):
    """A policy of a namespace (tenant/namespace) has this value; null: it has none."""

    namespace: str
    name: str
    value: int | None


NEW_HOLDER: Final = -1  # an epoch: presented by one that was not connected before


class KeyConnected(msgspec.Struct, tag="kcon", frozen=True, array_like=True, gc=False):
    """A holder connected the transaction key (uid, key); only this epoch may begin under it."""

    coordinator: int
    uid: int
    owner: str
    key: str
    epoch: int


class KeyBound(msgspec.Struct, tag="kbnd", frozen=True, array_like=True, gc=False):
    """The key's transaction is this one from now on."""

    coordinator: int
    uid: int
    key: str
    epoch: int
    sequence: int


class KeyReleased(msgspec.Struct, tag="krel", frozen=True, array_like=True, gc=False):
    """A transaction of the key has ended, open_ms after its begin."""

    coordinator: int
    uid: int
    key: str
    sequence: int
    open_ms: int


class KeyDeleted(msgspec.Struct, tag="kdel", frozen=True, array_like=True, gc=False):
    """The key is a tombstone that keeps its last epoch."""

    coordinator: int
    uid: int
    key: str


class LossAccepted(msgspec.Struct, tag="loss", frozen=True, array_like=True, gc=False):
    """Somebody went on without what was damaged, by `admin repair --accept-loss`.

    partition, ledger: where; 0: the journal, and first and last are LSNs, else entries
    messages: how many are lost for certain; of frames that cannot be read nobody knows
    """

    partition: int
    ledger: int
    first: int
    last: int
    messages: int
    reason: str
    uid: int


class PlaceAdded(msgspec.Struct, tag="plac", frozen=True, array_like=True, gc=False):
    """Files may be in this place from now on: before the first is copied, so that a sweep looks."""

    place: str


class Offloaded(msgspec.Struct, tag="offl", frozen=True, array_like=True, gc=False):
    """The sealed file of a ledger is at an address from now on; its bytes are the same."""

    partition: int
    file: FileRef


# (producer, whether it was idle in between, its time or null): what a transaction does to one
Effect = tuple[str, bool, int | None]
UNNAMED = "(unnamed)"  # the member that producers without a name share
_effects = msgspec.msgpack.Decoder(list[Effect])


def encode_effects(effects: list[Effect]) -> bytes:
    """The effects of a marker as its row has them."""
    return msgspec.msgpack.encode(effects)


def read_effects(value: bytes) -> list[Effect]:
    """The effects of a marker; raises msgspec.DecodeError."""
    return _effects.decode(value)


class WatermarkSet(_Op, tag="wset", frozen=True, array_like=True, gc=False):
    """A W_SET row: from here on nothing of the producer is older than event_time (ms)."""

    partition: int
    ledger: int
    entry: int
    producer: str
    event_time: int


class WatermarkIdled(_Op, tag="widl", frozen=True, array_like=True, gc=False):
    """A W_IDLE row: the producer leaves until its next W_SET; by: producer, admin or timeout."""

    partition: int
    ledger: int
    entry: int
    producer: str
    by: str


class WatermarkSnapshot(_Op, tag="wsna", frozen=True, array_like=True, gc=False):
    """A W_SNAPSHOT row: the whole state just before it.

    payload:      msgpack, as folds/watermark has it
    ledger_bytes: payload bytes of the ledger before this row
    """

    partition: int
    ledger: int
    entry: int
    payload: bytes
    ledger_bytes: int


class BufferWatermark(_Op, tag="bwmk", frozen=True, array_like=True, gc=False):
    """A W_SET or, with event_time null, W_IDLE row in the sidecar, of an open transaction."""

    partition: int
    ledger: int
    entry: int
    coordinator: int
    sequence: int
    producer: str
    event_time: int | None


class WatermarkEmitted(_Op, tag="wemi", frozen=True, array_like=True, gc=False):
    """A consumer of the subscription is handed event_time: it does not fall in this epoch.

    position: (ledger, entry) up to which everything was acknowledged
    """

    subscription: int
    partition: int
    epoch: int
    event_time: int
    position: tuple[int, int]


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
    SettingSet
    | TopicCreated
    | SubscriptionCreated
    | ConsumerAttached
    | ConsumerDetached
    | LedgerRolled
    | LedgerSealed
    | IdsReserved
    | CounterRaised
    | TxnOpened
    | PartitionAdded
    | SubscriptionAdded
    | StatusUpdated
    | TxnsForgotten
    | KeyConnected
    | KeyBound
    | KeyReleased
    | KeyDeleted
    | Appended
    | CommitMarker
    | BufferAppended
    | BufferCommitted
    | BufferAborted
    | CursorOpened
    | Acked
    | PendingAcked
    | PendingCommitted
    | PendingAborted
    | ProducerOpened
    | ProducersForgotten
    | AckConflicted
    | Deduplicated
    | PartitionOffline
    | PartitionAvailable
    | LedgerReserved
    | LedgerTrimmed
    | Compacted
    | PolicySet
    | CursorTrimmed
    | IsolationSet
    | SubscriptionTypeSet
    | Leased
    | Returned
    | PartitionsAdded
    | TopicDeleted
    | SubscriptionPolicySet
    | SubscriptionDeleted
    | Sought
    | DeadLettered
    | ChunksAppended
    | BucketSealed
    | BucketsMerged
    | BucketDeleted
    | Promoted
    | NamespacePolicySet
    | DelaysCounted
    | WatermarkSet
    | WatermarkIdled
    | WatermarkSnapshot
    | BufferWatermark
    | WatermarkEmitted
    | Adopted
    | BatchRecorded
    | PlaceAdded
    | Offloaded
    | LossAccepted
    | ClockNoted
)

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
        raise Corruption(
            f"frame {lsn} holds an op this version cannot read: {exc}", lsn=lsn, code=602
        ) from exc
