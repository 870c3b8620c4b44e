"""The closed set of ops: small journaled facts in the past tense.

A frame carries a list of ops (msgpack, each an array with its tag first). Tags are never reused;
new fields go last with a default; a changed meaning is a new tag. An op carries the outcome, not
the request, so that applying it needs no second component (Law 7). Its class determines the folds
that take it: by the base, or in `components` where that depends on its content.

Ids inside ops: `partition` and `subscription` are the store's internal numbers, a transaction is
the pair (coordinator, sequence). `runs` are ids of messages as (ledger, first, last, index_first,
index_last): with index_first 0 the whole entries first..last, else the messages
index_first..index_last of the transaction whose marker is entry `first`.

The watermarks that a transaction sets take effect with its commit marker, which carries the net
effect of its rows. Source: spec/transactions 2; apache/pulsar#16763, spec/delayed 4 and 9;
apache/pulsar#12267, spec/watermarks 3, 7 and 8.

A component is one fold of a store: (kind, number, number), the numbers being a partition, a
coordinator, or a subscription and a partition. The folds of an op follow from the op alone, so a
replay needs to load no fold that the frames do not change.

Most ops have a *home*, a fold that takes every op of the class. If an op of the class may also
change other folds, the class has `others`. Without it, the view asks for the home alone.
`components` returns all folds.

A *facet* is a part of a component that a consumer may wait for: messages that return to a cursor,
the consumers of a subscription. It has a name like a component, and an op names the facet that it
changes.

A fold is a component's state as a deterministic function of its ops. `apply` sees the LSN and the
time of the frame and the op, nothing else: no clock, no disk, no other fold (Law 7).
`load(dump(state))` is the same state, so a checkpoint may come at any frame (Law 1).
"""

# Without `from __future__ import annotations`: the decoder would evaluate the text of every
# annotation of every op, which costs each command 2.4 ms.
import re
from array import array
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import msgspec

from txlog.engine.storage.segment import FileRef
from txlog.errors import Corruption, InvalidArgument

# --- the folds of an op --------------------------------------------------------------------------


Component = tuple[str, int, int]

CATALOG: Component = ("catalog", 0, 0)
FILES: Component = ("files", 0, 0)
RETURNS = "returns"


class _Homed(Protocol):
    def home(self) -> Component: ...


class _Partitioned(Protocol):
    @property
    def partition(self) -> int: ...


class _Coordinated(Protocol):
    @property
    def coordinator(self) -> int: ...


class _Subscribed(Protocol):
    @property
    def subscription(self) -> int: ...
    @property
    def partition(self) -> int: ...


class _OfSubscription(Protocol):
    @property
    def subscription(self) -> int: ...


def returns(subscription: int, partition: int) -> Component:
    """The facet of a cursor with the ops that may return sent messages to a consumer.

    Acknowledging and leasing are not in it: both only leave fewer messages for other consumers. But
    while an open transaction has pending messages, which its time-out returns, the facet is the
    whole cursor.
    """
    return (RETURNS, subscription, partition)


def peers(subscription: int) -> Component:
    """The facet of waits that the death of a peer may end; no op changes it."""
    return ("peers", subscription, 0)


def members(subscription: int) -> Component:
    """The facet of the catalog with the consumers of a subscription."""
    return ("members", subscription, 0)


class Routed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An op; a class without a home names its folds in `components`."""

    def components(self: _Homed) -> tuple[Component, ...]:
        """All folds that take it."""
        return (self.home(), *getattr(self, "others", tuple)())


class OfCatalog(Routed, frozen=True):
    """An op that the catalog takes."""

    def home(self) -> Component:
        """The fold that takes every such op."""
        return CATALOG


class OfMembers(OfCatalog, frozen=True):
    """An op that changes the consumers of a subscription, and nothing else in the catalog."""

    def facet(self: _OfSubscription) -> Component:
        """The part of the catalog that it changes."""
        return members(self.subscription)


class OfFiles(Routed, frozen=True):
    """An op that no fold takes: it changes which file a ledger has."""

    def components(self) -> tuple[Component, ...]:
        """All folds that take it."""
        return (FILES,)


class OfCoordinator(Routed, frozen=True):
    """An op that a coordinator takes."""

    def home(self: _Coordinated) -> Component:
        """The fold that takes every such op."""
        return ("coordinator", self.coordinator, 0)


class OfKey(Routed, frozen=True):
    """An op that the keys of a coordinator take."""

    def home(self: _Coordinated) -> Component:
        """The fold that takes every such op."""
        return ("key", self.coordinator, 0)


class OfTopic(Routed, frozen=True):
    """An op that a partition takes."""

    def home(self: _Partitioned) -> Component:
        """The fold that takes every such op."""
        return ("topic", self.partition, 0)


class OfBuffer(Routed, frozen=True):
    """An op that a sidecar takes."""

    def home(self: _Partitioned) -> Component:
        """The fold that takes every such op."""
        return ("buffer", self.partition, 0)


class OfDelayed(Routed, frozen=True):
    """An op that the delayed index of a partition takes."""

    def components(self: _Partitioned) -> tuple[Component, ...]:
        """All folds that take it."""
        return (("delayed", self.partition, 0),)


class OfCursor(Routed, frozen=True):
    """An op that a cursor takes."""

    def home(self: _Subscribed) -> Component:
        """The fold that takes every such op."""
        return ("cursor", self.subscription, self.partition)


class OfReturns(OfCursor, frozen=True):
    """An op after which a consumer may get messages that it could not get before."""

    def facet(self: _Subscribed) -> Component:
        """The part of the cursor that it changes."""
        return returns(self.subscription, self.partition)


class OfTopicAndWatermark(Routed, frozen=True):
    """A row about watermarks: a partition and its watermark take it."""

    def components(self: _Partitioned) -> tuple[Component, ...]:
        """All folds that take it."""
        return (("topic", self.partition, 0), ("watermark", self.partition, 0))


class OfFilesAndDelayed(Routed, frozen=True):
    """An op that replaces files of a delayed index."""

    def components(self: _Partitioned) -> tuple[Component, ...]:
        """All folds that take it."""
        return (FILES, ("delayed", self.partition, 0))


def beside(partition: int, delayed: int, watermarks: object) -> tuple[Component, ...]:
    """The folds concerned with a transaction's delayed messages and watermarks."""
    folds: tuple[Component, ...] = (("delayed", partition, 0),) if delayed else ()
    return (*folds, ("watermark", partition, 0)) if watermarks else folds


# --- ops -----------------------------------------------------------------------------------------


class Adopted(Routed, tag="adpt", frozen=True):
    """A staged file became the closed ledger file.ledger of a partition, after its last ledger.

    It replaces an open ledger without rows. The LSN of its rows is the LSN of this frame.
    time_ms: the publish_time of its rows; times: as in Appended
    """

    partition: int
    file: FileRef
    payload_bytes: int
    time_ms: int
    times: bytes | None = None

    def components(self) -> tuple[Component, ...]:
        topic: Component = ("topic", self.partition, 0)
        if self.times is None:
            return (FILES, topic)
        return (FILES, topic, ("delayed", self.partition, 0))


class Batch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A recorded batch: the answer to a caller that submits it again.

    topic:    its number
    sequence: of its transaction, at the coordinator of the key
    places:   (partition, first ledger, messages); its ledgers there follow one another
    lsn:      of the frame; 0 in an op, which means the op's own frame
    """

    topic: int
    sequence: int
    messages: int
    payload_bytes: int
    files: int
    time_ms: int
    places: list[tuple[int, int, int]]
    lsn: int = 0


class BatchRecorded(OfKey, tag="brec", frozen=True):
    """The batch of this number or name was stored under the key, in this frame."""

    coordinator: int
    uid: int
    key: str
    batch: int | str
    answer: Batch


class SettingSet(OfCatalog, tag="set", frozen=True):
    """A setting of the store has this value."""

    name: str
    value: int | str | float


class ClockNoted(OfCatalog, tag="clk", frozen=True):
    """The wall clock was trusted at wall_ms, when the clock since boot showed boot_ms.

    seen_*:    both clocks when a wall clock far ahead was first seen in another boot
    behind_ms: the expected time at which a frame was last known to have an earlier stamp; 0: never
    """

    wall_ms: int
    boot_id: str
    boot_ms: int
    seen_wall_ms: int = 0
    seen_boot_id: str = ""
    seen_boot_ms: int = 0
    behind_ms: int = 0


class TopicCreated(OfCatalog, tag="topic", frozen=True):
    """A topic exists; its partitions are numbered from first_partition.

    The same frame has a LedgerRolled for the first ledger of each.

    directory: below `topics/`; empty: derived from its name
    """

    topic: int
    name: str
    first_partition: int
    partitions: int
    directory: str = ""


class PartitionsAdded(OfCatalog, tag="padd", frozen=True):
    """A topic has more partitions, numbered from first_partition; the frame makes their ledgers."""

    topic: int
    first_partition: int
    partitions: int


class TopicRenamed(OfCatalog, tag="tren", frozen=True):
    """A topic has another name; its files stay in this directory below `topics/`.

    directory: empty: derived from its new name
    """

    topic: int
    name: str
    directory: str


class TopicDeleted(Routed, tag="tdel", frozen=True):
    """A topic was deleted with its partitions and these ledgers, sidecars included."""

    topic: int
    partitions: list[int]
    ledgers: list[int]

    def components(self) -> tuple[Component, ...]:
        return (FILES, CATALOG)


class SubscriptionCreated(OfCatalog, tag="sub", frozen=True):
    """A durable subscription exists on a topic."""

    subscription: int
    topic: int
    name: str
    kind: str
    isolation: str


class SubscriptionPolicySet(OfCatalog, tag="spol", frozen=True):
    """A policy of a subscription has this value; null: the policy was removed."""

    subscription: int
    name: str
    value: int | str | None


class SubscriptionDeleted(Routed, tag="sdel", frozen=True):
    """A subscription was deleted with its cursors on these partitions, pending messages included.

    clamped: partitions where its consumers were handed watermarks; empty where the partitions are
             deleted, too
    """

    subscription: int
    partitions: list[int]
    clamped: list[int] = msgspec.field(default_factory=list)

    def components(self) -> tuple[Component, ...]:
        return (CATALOG, *(("watermark", number, 0) for number in self.clamped))


class ConsumerAttached(OfMembers, tag="con", frozen=True):
    """A consumer holds consumers/<id>.lock and receives on the subscription."""

    subscription: int
    consumer: int
    name: str
    kind: str = "exclusive"
    priority: int = 0


class ConsumerDetached(OfMembers, tag="coff", frozen=True):
    """The consumer closed itself, or another process found it dead."""

    subscription: int
    consumer: int


class SubscriptionTypeSet(OfCatalog, tag="styp", frozen=True):
    """The type of a subscription changed; it had no living consumer."""

    subscription: int
    kind: str


class IsolationSet(OfCatalog, tag="iso", frozen=True):
    """The isolation of a subscription changed; it had no living consumer."""

    subscription: int
    isolation: str


class PolicySet(OfCatalog, tag="pol", frozen=True):
    """A policy of a topic has this value; null: the policy was removed."""

    topic: int
    name: str
    value: int | None


class SchemaAdded(OfCatalog, tag="scha", frozen=True):
    """A topic has a schema of this version; kind and definition as in `schemas.Schema`."""

    topic: int
    version: int
    kind: str
    definition: str


class SchemasDeleted(OfCatalog, tag="schd", frozen=True):
    """The schemas of a topic were deleted; values of old versions can still be decoded."""

    topic: int


class SchemaMismatched(OfTopic, tag="schm", frozen=True):
    """Messages were stored though their values do not fit the schema."""

    partition: int
    messages: int


class PartitionOffline(OfCatalog, tag="poff", frozen=True):
    """A partition and its sidecar are not available: reason admin or damage.

    ledger, row: with damage, the first unreadable row; readers get nothing from there on
    """

    partition: int
    reason: str
    ledger: int = 0
    row: int = 0


class PartitionAvailable(OfCatalog, tag="pon", frozen=True):
    """A partition is available again; its frame ends every decided transaction that waited."""

    partition: int


Run = tuple[int, int, int, int, int]
Mark = tuple[int, int, int]
Due = tuple[int, str, int]  # an instant to come: wall ms, boot id, boot ms


class CursorOpened(OfReturns, tag="curs", frozen=True):
    """The subscription starts after this position in the partition."""

    subscription: int
    partition: int
    mark_delete: Mark


class Acked(OfCursor, tag="ack", frozen=True):
    """These messages are DELETED on the subscription; the mark-delete position is the new one.

    dropped: requested messages that a transaction has pending; if there are only such, runs is
             empty.
    """

    subscription: int
    partition: int
    runs: list[Run]
    mark_delete: Mark
    count: int
    dropped: int = 0


class DeadLettered(OfCursor, tag="dlq", frozen=True):
    """How many of the messages that this frame acknowledges here went to the dead-letter topic."""

    subscription: int
    partition: int
    count: int


class PendingAcked(OfCursor, tag="pack", frozen=True):
    """These messages are PENDING_ACK for the transaction; cumulative: up to and including this id.

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


class PendingCommitted(OfCursor, tag="pcom", frozen=True):
    """The transaction's pending messages are DELETED; runs and mark_delete are the outcome."""

    subscription: int
    partition: int
    coordinator: int
    sequence: int
    runs: list[Run]
    mark_delete: Mark


class PendingAborted(OfReturns, tag="pabo", frozen=True):
    """Messages acknowledged in the transaction are PENDING again, with one more redelivery each."""

    subscription: int
    partition: int
    coordinator: int
    sequence: int


class AckConflicted(OfCursor, tag="conf", frozen=True):
    """An acknowledgement here was a conflict; the same frame aborts its transaction."""

    subscription: int
    partition: int


class CursorTrimmed(OfReturns, tag="ctrm", frozen=True):
    """Ledgers were trimmed: mark-delete moved over them; `pending` replaces pending messages.

    pending: (coordinator, sequence, runs, cumulative, count) of the transactions that had trimmed
             messages pending
    """

    subscription: int
    partition: int
    mark_delete: Mark
    pending: list[tuple[int, int, list[Run], Mark | None, int]]


class Leased(OfCursor, tag="leas", frozen=True):
    """These messages are leased to a consumer; due: with an ack time-out, until then.

    Messages of a marker are listed one by one (index_first above 0), never as its entry. The op may
    list messages that this consumer has leased already; their time-out begins anew.
    ahead: 0: the application has them; else the number of a batch that the consumer took ahead of
           its application, in the order of the runs: its lock file records how far the application
           has got
    """

    subscription: int
    partition: int
    consumer: int
    runs: list[Run]
    due: Due | None = None
    ahead: int = 0

    def facet(self) -> Component | None:
        """The cursor's returns, if these messages may come back: waiting peers must know when."""
        if self.due is None and not self.ahead:
            return None
        return returns(self.subscription, self.partition)


class Returned(OfReturns, tag="ret", frozen=True):
    """Messages are no longer leased, and are delivered again.

    consumer:  the consumer that had leased them, 0: any
    counted:   messages with one more redelivery; null: all that the consumer still has
    uncounted: messages that no application has seen
    due:       the counted ones are not delivered before this; null: at once
    """

    subscription: int
    partition: int
    consumer: int
    counted: list[Run] | None
    uncounted: list[Run] = msgspec.field(default_factory=list)
    due: Due | None = None


class Sought(OfReturns, tag="seek", frozen=True):
    """Everything up to this position is DELETED, nothing after it; counts and leases are void."""

    subscription: int
    partition: int
    mark_delete: Mark


Id = tuple[int, int, int]  # the id of a message: ledger, entry, index (0: a plain one)
NO_TIME = -(1 << 63)  # in the `times` of an op: this message has none


def times_from(data: bytes) -> "array[int]":
    """The times of an op: int64 little endian, NO_TIME for none."""
    out = array("q")
    out.frombytes(data)
    return out


class Bucket(msgspec.Struct, frozen=True, array_like=True):
    """An immutable bucket: the delayed ids of a range of positions, in a published file.

    first, last:    the original range, closed
    count:          ids in the file; min_at, max_at: their least and greatest time
    cutoff_ms:      ids due at this time were left out
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


class BucketSealed(OfDelayed, tag="bsea", frozen=True):
    """Ids first..last are in a bucket, without those due at cutoff_ms; null: all were due.

    kind: seal (they leave the mutable bucket), rebuild (they were not indexed)
    """

    partition: int
    kind: str
    first: Id
    last: Id
    cutoff_ms: int
    bucket: Bucket | None


class BucketsMerged(OfFilesAndDelayed, tag="bmer", frozen=True):
    """One bucket replaces its sources, without ids due at cutoff_ms; null: all were due.

    paths: the files to unlink
    """

    partition: int
    sources: list[int]
    cutoff_ms: int
    bucket: Bucket | None
    paths: list[str]


class BucketDeleted(OfFilesAndDelayed, tag="bdel", frozen=True):
    """Buckets were deleted; cause: due, acknowledged, trimmed or lost.

    Undelivered ids of a lost or acknowledged bucket are unindexed from then on.
    """

    partition: int
    gens: list[int]
    cause: str
    cutoff_ms: int
    paths: list[str]


class Promoted(OfReturns, tag="prom", frozen=True):
    """These messages are released on the subscription: delivered whatever their time."""

    subscription: int
    partition: int
    runs: list[tuple[int, int, int, int, int]]


class DelaysCounted(OfTopic, tag="dcnt", frozen=True):
    """Messages for a partition were refused for their delay, or stored to expire before it ends."""

    partition: int
    refused: int = 0
    beyond_ttl: int = 0


class NamespacePolicySet(OfCatalog, tag="npol", frozen=True):
    """A policy of a namespace (tenant/namespace) has this value; null: it was removed."""

    namespace: str
    name: str
    value: int | None


NEW_HOLDER: Final = -1  # the epoch that a holder presents if it was not connected before


class KeyConnected(OfKey, tag="kcon", frozen=True):
    """A holder connected the transaction key (uid, key); only this epoch may begin under it."""

    coordinator: int
    uid: int
    owner: str
    key: str
    epoch: int


class KeyBound(OfKey, tag="kbnd", frozen=True):
    """This is the key's transaction from now on."""

    coordinator: int
    uid: int
    key: str
    epoch: int
    sequence: int


class KeyReleased(OfKey, tag="krel", frozen=True):
    """A transaction of the key has ended, open_ms after its begin."""

    coordinator: int
    uid: int
    key: str
    sequence: int
    open_ms: int


class KeyDeleted(OfKey, tag="kdel", frozen=True):
    """The key is a tombstone that keeps its last epoch."""

    coordinator: int
    uid: int
    key: str


class LossAccepted(OfCatalog, tag="loss", frozen=True):
    """An operator gave up damaged data, by `admin repair --accept-loss`.

    partition, ledger: where; 0: the journal, and first and last are LSNs, else entries
    messages: how many are certainly lost; for unreadable frames the number is unknown
    """

    partition: int
    ledger: int
    first: int
    last: int
    messages: int
    reason: str
    uid: int


class PlaceAdded(OfCatalog, tag="plac", frozen=True):
    """Files may be in this place from now on: written before the first copy, for the sweep."""

    place: str


class Offloaded(OfFiles, tag="offl", frozen=True):
    """The sealed file of a ledger is at an address from now on, with the same bytes."""

    partition: int
    file: FileRef


# (producer, whether it was idle in between, its time or null): the effect of a transaction on it
Effect = tuple[str, bool, int | None]
UNNAMED = "(unnamed)"  # the member that producers without a name share
_effects = msgspec.msgpack.Decoder(list[Effect])


def encode_effects(effects: list[Effect]) -> bytes:
    """The effects of a marker as bytes of its row."""
    return msgspec.msgpack.encode(effects)


def read_effects(value: bytes) -> list[Effect]:
    """The effects of a marker; raises msgspec.DecodeError."""
    return _effects.decode(value)


class WatermarkSet(OfTopicAndWatermark, tag="wset", frozen=True):
    """A W_SET row: from here on nothing of the producer is older than event_time (ms)."""

    partition: int
    ledger: int
    entry: int
    producer: str
    event_time: int


class WatermarkIdled(OfTopicAndWatermark, tag="widl", frozen=True):
    """A W_IDLE row: the producer leaves until its next W_SET; by: producer, admin or timeout."""

    partition: int
    ledger: int
    entry: int
    producer: str
    by: str


class WatermarkSnapshot(OfTopicAndWatermark, tag="wsna", frozen=True):
    """A W_SNAPSHOT row: the whole state just before it.

    payload:      msgpack, in the form of folds/watermark
    ledger_bytes: payload bytes of the ledger before this row
    """

    partition: int
    ledger: int
    entry: int
    payload: bytes
    ledger_bytes: int


class BufferWatermark(Routed, tag="bwmk", frozen=True):
    """A W_SET or, with event_time null, W_IDLE row in the sidecar, of an open transaction."""

    partition: int
    ledger: int
    entry: int
    coordinator: int
    sequence: int
    producer: str
    event_time: int | None

    def components(self) -> tuple[Component, ...]:
        return (("buffer", self.partition, 0), ("watermark", self.partition, 0))


class WatermarkEmitted(Routed, tag="wemi", frozen=True):
    """A consumer of the subscription got event_time; within this epoch it does not fall.

    position: (ledger, entry) up to which everything was acknowledged
    """

    subscription: int
    partition: int
    epoch: int
    event_time: int
    position: tuple[int, int]

    def components(self) -> tuple[Component, ...]:
        return (("watermark", self.partition, 0),)


class LedgerRolled(Routed, tag="roll", frozen=True):
    """The open ledger of a partition (role p) or of its sidecar (role s) is `new`; old 0: none."""

    partition: int
    role: str
    old: int
    new: int

    def components(self) -> tuple[Component, ...]:
        return (CATALOG, ("topic" if self.role == "p" else "buffer", self.partition, 0))


class LedgerSealed(Routed, tag="seal", frozen=True):
    """A closed ledger is one Parquet file from now on."""

    partition: int
    role: str
    file: FileRef

    def components(self) -> tuple[Component, ...]:
        return (FILES, ("topic" if self.role == "p" else "buffer", self.partition, 0))


class LedgerReserved(OfCatalog, tag="lres", frozen=True):
    """This id is reserved for one file, and never used for another.

    A file of the sidecar, for a compaction or the chunks of a large message; of the partition, for
    a staged file; or of compacted rows (role c).
    """

    partition: int
    role: str
    ledger: int


class LedgerTrimmed(Routed, tag="trim", frozen=True):
    """A closed ledger was removed with its rows: a partition's oldest, or one of a sidecar.

    through: the last message of the partition's ledger; null where it had none
    """

    partition: int
    role: str
    ledger: int
    messages: int
    payload_bytes: int
    through: Mark | None = None

    def components(self) -> tuple[Component, ...]:
        number = self.partition
        if self.role != "p":
            return (FILES, CATALOG, ("buffer", number, 0))
        return (FILES, *((kind, number, 0) for kind in ("topic", "buffer", "delayed", "watermark")))


class Compacted(Routed, tag="comp", frozen=True):
    """One new sealed ledger, file.ledger, replaces closed ledgers of a sidecar, without dead rows.

    moved: (old ledger, first row, rows, first row in the file); all other rows were dead
    """

    partition: int
    old: list[int]
    file: FileRef
    payload_bytes: int
    moved: list[tuple[int, int, int, int]]

    def components(self) -> tuple[Component, ...]:
        return (FILES, CATALOG, ("buffer", self.partition, 0))


class PartitionCompacted(Routed, tag="pcmp", frozen=True):
    """These files have the newest message of each key among the rows up to the horizon.

    old:     the ledgers of the previous compaction, which these replace
    files:   ledgers of role c in order, whose rows are in order of their ids; none: no key is left
    horizon: (ledger, entry) of the last entry that the compaction read
    lsn:     the compaction read all partitions of the topic as of this LSN
    """

    partition: int
    old: list[int]
    files: list[FileRef]
    horizon: tuple[int, int]
    lsn: int

    def components(self) -> tuple[Component, ...]:
        return (FILES, CATALOG, ("topic", self.partition, 0))


class IdsReserved(OfCoordinator, tag="ids", frozen=True):
    """The coordinator may assign sequences below this bound."""

    coordinator: int
    below: int


class CounterRaised(OfCoordinator, tag="ctr", frozen=True):
    """After a lossy recovery: the coordinator's next sequence. It never assigns lower ones."""

    coordinator: int
    sequence: int


class TxnOpened(OfCoordinator, tag="open", frozen=True):
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

    def others(self) -> tuple[Component, ...]:
        return (CATALOG,)


class PartitionAdded(OfCoordinator, tag="addp", frozen=True):
    """A partition takes part in the transaction."""

    coordinator: int
    sequence: int
    partition: int


class SubscriptionAdded(OfCoordinator, tag="adds", frozen=True):
    """A subscription takes part in the transaction, on one partition."""

    coordinator: int
    sequence: int
    subscription: int
    partition: int


class StatusUpdated(OfCoordinator, tag="stat", frozen=True):
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
    markers: list[tuple[int, int, int, int]] = msgspec.field(default_factory=list)
    skipped: list[tuple[int, int]] = msgspec.field(default_factory=list)


class TxnEnded(OfCoordinator, tag="txn", frozen=True):
    """A transaction was decided and has ended, in one frame: no participant is waited for.

    status, reason: COMMITTED or ABORTED; messages, acks, markers, skipped: as in StatusUpdated
    opened:         the op that this frame would open it with; null: it was open
    partitions, subscriptions: its places in this frame, as (subscription, partition); with opened
    """

    coordinator: int
    sequence: int
    status: str
    reason: str | None
    messages: int
    acks: int
    markers: list[tuple[int, int, int, int]]
    skipped: list[tuple[int, int]]
    opened: TxnOpened | None = None
    partitions: tuple[int, ...] = ()
    subscriptions: tuple[tuple[int, int], ...] = ()

    def others(self) -> tuple[Component, ...]:
        return () if self.opened is None else (CATALOG,)

    def steps(self) -> list[Any]:
        """The ops that it replaces, in the order of a frame."""
        pair = (self.coordinator, self.sequence)
        decided = "COMMITTING" if self.status == "COMMITTED" else "ABORTING"
        acks, markers = self.acks, self.markers
        return [
            *([] if self.opened is None else [self.opened]),
            *[PartitionAdded(*pair, partition) for partition in self.partitions],
            *[SubscriptionAdded(*pair, *place) for place in self.subscriptions],
            StatusUpdated(*pair, "OPEN", decided, self.reason, self.messages, acks, markers),
            StatusUpdated(*pair, decided, self.status, skipped=self.skipped),
        ]


class TxnPrepared(OfCoordinator, tag="prep", frozen=True):
    """An OPEN transaction is PREPARED: a row in a database of the user decides its outcome.

    token:     the primary key of that row, random
    kind:      sqlite, postgresql or duckdb
    database:  the identity of the database, which it stores itself
    label:     a text by which an operator recognises the database; never a password
    """

    coordinator: int
    sequence: int
    token: str
    kind: str
    database: str
    label: str


class TxnsForgotten(OfCoordinator, tag="forg", frozen=True):
    """Ended transactions are forgotten."""

    coordinator: int
    sequences: list[int]


class Appended(OfTopic, tag="app", frozen=True):
    """Plain messages: rows row_start.. of the frame are entries first_entry.. of the ledger.

    last_sequence: of the last message; all from the producer's highest so far up to it are stored.
                   -1: the SequencesStored after this op has them
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

    def others(self) -> tuple[Component, ...]:
        return (("delayed", self.partition, 0),) if self.times else ()


class SequencesStored(OfTopic, tag="seqs", frozen=True):
    """Sequences of the messages that the previous op appended, where some numbers were left out.

    runs: first and last of each run, flat, rising; no number in them was stored before
    row:  of the last message, if later ones of its batch are in other partitions; -1: the last run
    """

    partition: int
    producer: str
    runs: list[int]
    row: int = -1


class ProducerOpened(OfTopic, tag="prod", frozen=True):
    """A named producer was opened; older ones of the name are fenced. First partition only."""

    partition: int
    producer: str
    epoch: int


class ProducersForgotten(OfTopic, tag="pfor", frozen=True):
    """Names that a partition has forgotten."""

    partition: int
    producers: list[str]


class CommitMarker(OfTopic, tag="mark", frozen=True):
    """The entry that makes `count` messages of a transaction visible in this partition.

    producer, last_sequence: of a large message sent plainly, in a transaction made for it alone
    delayed: how many of the messages have a deliver_at, due or not
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
    watermarks: list[Effect] = msgspec.field(default_factory=list)

    def others(self) -> tuple[Component, ...]:
        if not self.delayed and not self.watermarks:
            return ()
        return beside(self.partition, self.delayed, self.watermarks)


class BufferAppended(OfBuffer, tag="bapp", frozen=True):
    """Messages of an open transaction, in the sidecar; the first has index first_index (from 1).

    last_sequence, times: as in Appended, with BufferSequencesStored
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

    def others(self) -> tuple[Component, ...]:
        return (("delayed", self.partition, 0),) if self.times else ()


class BufferSequencesStored(OfBuffer, tag="bseq", frozen=True):
    """As SequencesStored, for messages that the previous op added to an open transaction."""

    partition: int
    coordinator: int
    sequence: int
    producer: str
    runs: list[int]
    row: int = -1


class ChunksAppended(Routed, tag="chnk", frozen=True):
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

    def components(self) -> tuple[Component, ...]:
        buffer: Component = ("buffer", self.partition, 0)
        if self.deliver_at is None:
            return (FILES, buffer)
        return (FILES, buffer, ("delayed", self.partition, 0))


class BufferCommitted(OfBuffer, tag="bcom", frozen=True):
    """The sidecar's TXN_COMMIT row at (ledger, entry); its marker is in the partition."""

    partition: int
    coordinator: int
    sequence: int
    ledger: int
    entry: int
    marker_ledger: int
    marker_entry: int


class BufferAborted(OfBuffer, tag="babo", frozen=True):
    """The sidecar's TXN_ABORT row at (ledger, entry); the transaction's rows are dead.

    delayed: how many of the rows have a deliver_at; watermarks: whether there are watermark rows
    """

    partition: int
    coordinator: int
    sequence: int
    ledger: int
    entry: int
    delayed: int = 0
    watermarks: bool = False

    def others(self) -> tuple[Component, ...]:
        if not self.delayed and not self.watermarks:
            return ()
        return beside(self.partition, self.delayed, self.watermarks)


class Deduplicated(OfTopic, tag="dup", frozen=True):
    """Messages existed already and were not stored; `missing` of the answers had no id."""

    partition: int
    dropped: int
    missing: int


Op = (
    SettingSet | TopicCreated | SubscriptionCreated | ConsumerAttached | ConsumerDetached
    | LedgerRolled | LedgerSealed | IdsReserved | CounterRaised | TxnOpened | PartitionAdded
    | SubscriptionAdded | StatusUpdated | TxnsForgotten | KeyConnected | KeyBound | KeyReleased
    | KeyDeleted | Appended | CommitMarker | BufferAppended | BufferCommitted | BufferAborted
    | CursorOpened | Acked | PendingAcked | PendingCommitted | PendingAborted | ProducerOpened
    | ProducersForgotten | AckConflicted | Deduplicated | PartitionOffline | PartitionAvailable
    | LedgerReserved | LedgerTrimmed | Compacted | PolicySet | CursorTrimmed | IsolationSet
    | SubscriptionTypeSet | Leased | Returned | PartitionsAdded | TopicDeleted
    | SubscriptionPolicySet | SubscriptionDeleted | Sought | DeadLettered | ChunksAppended
    | BucketSealed | BucketsMerged | BucketDeleted | Promoted | NamespacePolicySet
    | DelaysCounted | WatermarkSet | WatermarkIdled | WatermarkSnapshot | BufferWatermark
    | WatermarkEmitted | Adopted | BatchRecorded | PlaceAdded | Offloaded | LossAccepted
    | ClockNoted | PartitionCompacted | SchemaAdded | SchemasDeleted | SchemaMismatched
    | SequencesStored | BufferSequencesStored | TopicRenamed | TxnEnded | TxnPrepared
)  # fmt: skip

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Op])


def encode_ops(ops: list[Op]) -> bytes:
    """The bytes of a frame's ops."""
    return _encoder.encode(ops)


# What msgspec raises for bytes that are not a value of the type.
UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def decode_ops(data: bytes, *, lsn: int) -> list[Op]:
    """The ops of a frame; an unknown tag or shape is Corruption naming the frame."""
    try:
        return _decoder.decode(data)
    except UNREADABLE as exc:
        raise Corruption(
            f"frame {lsn} holds an op this version cannot read: {exc}", lsn=lsn, code=602
        ) from exc


# --- ops to be written ---------------------------------------------------------------------------

# An op accepts a caller's value of any type. If a float or a bool were written where a reader
# expects an integer, no process could open the store after that.

# Their values come from folds, and were checked when they were written first.
_OF_FOLDS = frozenset([
    StatusUpdated, TxnEnded, CommitMarker, BufferCommitted, BufferAborted, PendingCommitted,
    PendingAborted,
])  # fmt: skip
_PLACE = re.compile(r" - at `\$\[(\d+)\]\[(\d+)\](.*)`$")


def encode_readable(ops: list[Op]) -> bytes:
    """The bytes of a frame's ops, after checking that they can be read back.

    cost:   0.5 us for a small op, 6 us for a whole transaction
    raises: InvalidArgument, naming the field
    """
    try:
        data = encode_ops(ops)
        if not _OF_FOLDS.issuperset(map(type, ops)):
            decode_ops(data, lsn=0)
    except Corruption as error:
        raise _refused(ops, str(error.__cause__)) from error
    except (TypeError, ValueError, OverflowError) as error:  # a type msgpack does not know
        raise _refused(ops, str(error)) from error
    return data


def merged(ops: list[Op]) -> list[Op]:
    """The ops of a frame; if it opens and ends a transaction, with one op instead of several.

    That op also lists the partitions and subscriptions of the transaction. A fold may apply it or
    the separate ops: the state is the same.
    """
    opened: Any = None
    ended = -1
    partitions: list[int] = []
    subscriptions: list[tuple[int, int]] = []
    out: list[Any] = []
    for op in ops:
        kind = type(op)
        if kind not in _OPENING:
            if kind is TxnEnded:
                ended = len(out)
            out.append(op)
        elif kind is PartitionAdded:
            partitions.append(op.partition)  # type: ignore[union-attr]
        elif kind is SubscriptionAdded:
            subscriptions.append((op.subscription, op.partition))  # type: ignore[union-attr]
        else:
            opened = op
    if ended < 0 or opened is None or out[ended].sequence != opened.sequence:
        return ops
    places = {"partitions": tuple(partitions), "subscriptions": tuple(subscriptions)}
    out[ended] = msgspec.structs.replace(out[ended], opened=opened, **places)
    return out


_OPENING = frozenset([TxnOpened, PartitionAdded, SubscriptionAdded])


def array_head(items: int) -> bytes:
    """The bytes before the items of a msgpack array; dumps join encoded items with it."""
    if items < 1 << 4:
        return bytes((0x90 | items,))
    if items < 1 << 16:
        return b"\xdc" + items.to_bytes(2, "big")
    return b"\xdd" + items.to_bytes(4, "big")


def map_head(items: int) -> bytes:
    """The bytes before the items of a msgpack map."""
    if items < 1 << 4:
        return bytes((0x80 | items,))
    if items < 1 << 16:
        return b"\xde" + items.to_bytes(2, "big")
    return b"\xdf" + items.to_bytes(4, "big")


def _refused(ops: list[Op], why: str) -> InvalidArgument:
    match = _PLACE.search(why)
    if match is None:
        return InvalidArgument(f"an argument cannot be stored: {why}")
    op = ops[int(match[1])]
    name = op.__struct_fields__[int(match[2]) - 1]  # its tag is the first element
    problem = "holds a value of another type" if match[3] else f"is {getattr(op, name)!r}"
    return InvalidArgument(f"{name} {problem}: {why[:1].lower()}{why[1 : match.start()]}")


# --- folds ---------------------------------------------------------------------------------------


Take = Callable[[Any, int, int, Any], None]


class Fold(msgspec.Struct, frozen=True):
    """One kind of component; the state's type is private to the fold's module.

    takes: for some types of op, the function that applies it, where `apply` does nothing else
    """

    kind: str
    new: Callable[[], Any]
    apply: Callable[[Any, int, int, Op], None]
    dump: Callable[[Any], bytes]
    load: Callable[[bytes], Any]
    takes: Mapping[type, Take] = {}

    def take(self, op: type) -> Take:
        """The function that applies an op of this type."""
        return self.takes.get(op, self.apply)

    def read(self, data: bytes) -> object:
        """The state in a dump whose bytes have been compared; raises Corruption."""
        try:
            return self.load(data)
        except UNREADABLE as error:
            raise Corruption(
                f"the dump of a {self.kind} cannot be read: {error}",
                hint="txlog admin repair makes it again from the journal",
                code=604,
            ) from error


def unexpected(kind: str, lsn: int, op: Op) -> Corruption:
    """The error for an op that this kind of fold does not take."""
    return Corruption(
        f"frame {lsn}: a {kind} cannot take the op {type(op).__name__}", lsn=lsn, code=604
    )


def broken(kind: str, lsn: int, why: str) -> Corruption:
    """The error for an op that contradicts the state: an invariant of txlog does not hold."""
    return Corruption(f"frame {lsn}: {kind}: {why}", lsn=lsn, code=604)
