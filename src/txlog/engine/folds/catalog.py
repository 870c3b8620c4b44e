"""The catalog fold: topics, partitions, subscriptions, settings, and the owner of each ledger.

Log of its changes: system/catalog. Ops SettingSet, TopicCreated, SubscriptionCreated,
  ConsumerAttached, ConsumerDetached, LedgerRolled, SubscriptionTypeSet, PartitionOffline,
  PartitionAvailable, LedgerReserved, PolicySet, IsolationSet, PartitionsAdded, TopicDeleted,
  SubscriptionPolicySet, SubscriptionDeleted, NamespacePolicySet, PlaceAdded, LossAccepted,
  ClockNoted, LedgerTrimmed (role s), Compacted (each large message is a ledger, whose owner would
  otherwise stay), PartitionCompacted (removes the ledgers of the earlier compaction), SchemaAdded,
  SchemasDeleted, TopicRenamed, TxnOpened and TxnEnded (they count those without a key, which go
  round robin over coordinators).

Invariants
  1. A number of a topic, partition, subscription, ledger or consumer is never used twice (Law 6).
  2. Names of topics are unique after case folding.
  3. No two topics have one directory, also after case folding. A topic keeps its directory when it
     is renamed, because published files do not move.
  4. Trimmed ledgers of a partition keep their owner, because message ids name them. In a sidecar
     and in compacted rows (role c), only existing ledgers have one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import TypeVar

import msgspec

from txlog.base.ids import TopicName, encode_component
from txlog.base.schemas import schema as definitions
from txlog.engine.model.ops import (
    ClockNoted,
    Compacted,
    ConsumerAttached,
    ConsumerDetached,
    Fold,
    IsolationSet,
    LedgerReserved,
    LedgerRolled,
    LedgerTrimmed,
    LossAccepted,
    NamespacePolicySet,
    Op,
    PartitionAvailable,
    PartitionCompacted,
    PartitionOffline,
    PartitionsAdded,
    PlaceAdded,
    PolicySet,
    SchemaAdded,
    SchemasDeleted,
    SettingSet,
    SubscriptionCreated,
    SubscriptionDeleted,
    SubscriptionPolicySet,
    SubscriptionTypeSet,
    TopicCreated,
    TopicDeleted,
    TopicRenamed,
    TxnEnded,
    TxnOpened,
    broken,
    unexpected,
)
from txlog.engine.storage.late_values import LazyDict

NO_TOPIC = 1 << 62  # above every number
FORMER_MAX = 100  # names; a letter under an earlier name can no longer be moved back

K = TypeVar("K")


class SchemaVersion(msgspec.Struct, array_like=True, frozen=True):
    """A current or deleted schema of a topic; kind and definition as in SchemaAdded."""

    version: int
    kind: str
    definition: str
    time_ms: int
    deleted: bool = False


class Topic(msgspec.Struct, array_like=True):
    """A topic: name tenant/namespace/name.

    Partition numbers are store-wide; only number_of, index_of and numbers map them to topics.

    partitions: how many, including added ones
    added:      (first number, partitions) of each extent after the first
    schemas:    all versions, rising; numbers of deleted versions are not used again
    directory:  below `topics/`; empty: derived from its name (`topic_path`)
    former:     its earlier names, each once, the newest last; at most FORMER_MAX
    """

    number: int
    name: str
    first_partition: int
    partitions: int
    created_ms: int
    subscriptions: list[int]
    added: list[tuple[int, int]] = []
    schemas: list[SchemaVersion] = []
    directory: str = ""
    former: list[str] = []


class Subscription(msgspec.Struct, array_like=True):
    """A durable subscription of one topic."""

    number: int
    topic: int
    name: str
    type: str
    isolation: str
    created_ms: int
    # these three fields: in dumps of older versions only; Catalog.consumers replaces them
    consumer: int = 0
    consumer_name: str = ""
    consumer_since_ms: int = 0
    policies: dict[str, int | str] = {}


class Consumer(msgspec.Struct, array_like=True, gc=False):
    """A consumer that was attached; it lives while consumers/<number>.lock is held."""

    number: int
    subscription: int
    name: str
    kind: str
    priority: int
    since_ms: int


class Unavailable(msgspec.Struct, array_like=True, gc=False):
    """Why a partition is not available: reason admin or damage, and the first bad row."""

    reason: str
    ledger: int = 0
    row: int = 0
    since_ms: int = 0


class Loss(msgspec.Struct, array_like=True, gc=False):
    """A loss that a repair accepted; ledger 0: LSNs of the journal, else entries of the ledger."""

    partition: int
    ledger: int
    first: int
    last: int
    messages: int
    reason: str
    uid: int
    time_ms: int


class Catalog(msgspec.Struct, array_like=True, dict=True):
    """State of the fold; numbers start at 1. The attribute `_members` is not dumped."""

    settings: dict[str, int | str | float] = {}
    topics: dict[int, Topic] = {}
    subscriptions: dict[int, Subscription] = {}
    owners: dict[int, tuple[int, str]] = {}  # ledger -> (partition, role)
    next_topic: int = 1
    next_partition: int = 1
    next_subscription: int = 1
    next_ledger: int = 1
    next_consumer: int = 1
    unkeyed_txns: int = 0
    by_name: dict[str, int] = {}  # folded full name -> topic
    first_of: list[tuple[int, int]] = []  # (first partition, topic), rising
    coordinator_counts: list[int] = []  # former values of the setting `coordinators`, oldest first
    unavailable: dict[int, Unavailable] = {}  # partition -> why
    policies: dict[int, dict[str, int]] = {}  # topic -> name -> value
    settings_changes: int = 0  # only grows: shows whether a copy of the settings is outdated
    consumers: dict[int, Consumer] = {}
    namespace_policies: dict[str, dict[str, int]] = {}  # tenant/namespace -> name -> value
    places: list[str] = []  # where files outside of the store may be
    losses: list[Loss] = []  # accepted by repairs
    clock: ClockNoted | None = None  # the clocks when the wall clock was last trusted
    directories: dict[str, int] = {}  # folded directory, if not derived from the name -> topic
    renames: int = 0  # only grows: shows whether a copy of the names is outdated


def apply(state: Catalog, lsn: int, time_ms: int, op: Op) -> None:
    """Apply one op."""
    if isinstance(op, TxnEnded) and op.opened is not None:
        op = op.opened
    if isinstance(op, TxnOpened):
        state.unkeyed_txns += op.key is None
    elif isinstance(op, _Ledgers):
        _ledgers(state, lsn, op)
    elif isinstance(op, PolicySet | NamespacePolicySet):
        _set_policy(state, op)
    elif isinstance(op, TopicCreated | TopicRenamed | SchemaAdded | SchemasDeleted):
        _topic(state, lsn, time_ms, op)
    elif isinstance(op, SubscriptionCreated):
        state.subscriptions[op.subscription] = Subscription(
            op.subscription, op.topic, op.name, op.kind, op.isolation, time_ms
        )
        state.topics[op.topic].subscriptions.append(op.subscription)
        state.next_subscription = op.subscription + 1
    elif isinstance(op, PartitionsAdded | TopicDeleted | SubscriptionDeleted):
        _reshape(state, lsn, op)
    elif isinstance(op, ConsumerAttached | ConsumerDetached):
        _consumer(state, time_ms, op)
    elif isinstance(op, IsolationSet | SubscriptionTypeSet | SubscriptionPolicySet):
        _subscription(state, op)
    elif isinstance(op, PartitionOffline | PartitionAvailable):
        _switch(state, lsn, time_ms, op)
    elif isinstance(op, SettingSet | ClockNoted | PlaceAdded | LossAccepted):
        _set(state, time_ms, op)
    else:
        raise unexpected("catalog", lsn, op)


def _subscription(
    state: Catalog, op: IsolationSet | SubscriptionTypeSet | SubscriptionPolicySet
) -> None:
    subscription = state.subscriptions[op.subscription]
    if isinstance(op, IsolationSet):
        subscription.isolation = op.isolation
    elif isinstance(op, SubscriptionTypeSet):
        subscription.type = op.kind
    else:
        subscription.policies.pop(op.name, None)
        if op.value is not None:
            subscription.policies[op.name] = op.value


def _consumer(state: Catalog, time_ms: int, op: ConsumerAttached | ConsumerDetached) -> None:
    if isinstance(op, ConsumerAttached):
        _attach(state, time_ms, op)
    else:
        _detach(state, op.consumer)


def _detach(state: Catalog, consumer: int) -> None:
    consumer_record = state.consumers.pop(consumer, None)
    if consumer_record is not None:
        _members(state).get(consumer_record.subscription, {}).pop(consumer, None)


def _members(state: Catalog) -> dict[int, dict[int, Consumer]]:
    """The consumers by subscription, in order of number; cached, because many calls need it."""
    by_subscription: dict[int, dict[int, Consumer]] | None = state.__dict__.get("_members")
    if by_subscription is None:
        by_subscription = state.__dict__["_members"] = {}
        for number, consumer in sorted(state.consumers.items()):
            by_subscription.setdefault(consumer.subscription, {})[number] = consumer
    return by_subscription


def _attach(state: Catalog, time_ms: int, op: ConsumerAttached) -> None:
    if op.kind == "exclusive":  # old journals do not record that the earlier consumer was dead
        for other in consumers_of(state, op.subscription):
            _detach(state, other.number)
    consumer = Consumer(op.consumer, op.subscription, op.name, op.kind, op.priority, time_ms)
    _members(state).setdefault(op.subscription, {})[op.consumer] = consumer
    state.consumers[op.consumer] = consumer
    state.next_consumer = op.consumer + 1


def _reshape(
    state: Catalog, lsn: int, op: PartitionsAdded | TopicDeleted | SubscriptionDeleted
) -> None:
    """Add partitions to a topic, or delete a topic or subscription."""
    if isinstance(op, SubscriptionDeleted):
        subscription = state.subscriptions.pop(op.subscription)
        state.topics[subscription.topic].subscriptions.remove(op.subscription)
        for consumer in consumers_of(state, op.subscription):
            _detach(state, consumer.number)
        return
    topic = state.topics[op.topic]
    if isinstance(op, PartitionsAdded):
        if op.first_partition < state.next_partition:
            raise broken("catalog", lsn, f"partition {op.first_partition} was given out before")
        topic.added.append((op.first_partition, op.partitions))
        topic.partitions += op.partitions
        state.first_of.append((op.first_partition, op.topic))
        state.next_partition = op.first_partition + op.partitions
        return
    if topic.subscriptions:
        raise broken("catalog", lsn, f"topic {topic.name} is deleted with its subscriptions")
    gone_ones = set(op.partitions)
    del state.topics[op.topic], state.by_name[topic.name.casefold()]
    state.directories.pop(topic.directory.casefold(), None)
    state.first_of = [extent for extent in state.first_of if extent[1] != op.topic]
    state.owners = {k: owner for k, owner in state.owners.items() if owner[0] not in gone_ones}
    state.unavailable = {k: why for k, why in state.unavailable.items() if k not in gone_ones}
    state.policies.pop(op.topic, None)


def _topic(
    state: Catalog,
    lsn: int,
    time_ms: int,
    op: TopicCreated | TopicRenamed | SchemaAdded | SchemasDeleted,
) -> None:
    """Create or rename a topic, or change its schemas."""
    if isinstance(op, TopicCreated):
        _create_topic(state, lsn, time_ms, op)
        return
    if isinstance(op, TopicRenamed):
        _rename_topic(state, lsn, op)
        return
    topic = state.topics[op.topic]
    if isinstance(op, SchemasDeleted):
        replace = msgspec.structs.replace
        topic.schemas = [replace(version, deleted=True) for version in topic.schemas]
        return
    if op.version != len(topic.schemas) + 1:
        raise broken("catalog", lsn, f"schema {op.version} of {topic.name} is not the next one")
    topic.schemas = [*topic.schemas, SchemaVersion(op.version, op.kind, op.definition, time_ms)]


def _set(
    state: Catalog, time_ms: int, op: SettingSet | ClockNoted | PlaceAdded | LossAccepted
) -> None:
    if isinstance(op, ClockNoted):
        state.clock = op
        return
    if isinstance(op, LossAccepted):
        state.losses.append(
            Loss(
                op.partition, op.ledger, op.first, op.last, op.messages, op.reason, op.uid, time_ms
            )
        )
        return
    if isinstance(op, PlaceAdded):
        state.places.append(op.place)
        return
    former = state.settings.get(op.name)
    if op.name == "coordinators" and isinstance(former, int) and former != op.value:
        state.coordinator_counts.append(former)
    state.settings[op.name] = op.value
    state.settings_changes += 1


def _switch(
    state: Catalog, lsn: int, time_ms: int, op: PartitionOffline | PartitionAvailable
) -> None:
    if isinstance(op, PartitionOffline):
        state.unavailable[op.partition] = Unavailable(op.reason, op.ledger, op.row, time_ms)
    elif state.unavailable.pop(op.partition, None) is None:
        raise broken("catalog", lsn, f"partition {op.partition} is available already")


def _create_topic(state: Catalog, lsn: int, time_ms: int, op: TopicCreated) -> None:
    folded = op.name.casefold()
    if folded in state.by_name or op.topic in state.topics:
        raise broken("catalog", lsn, f"topic {op.name} exists")
    state.topics[op.topic] = Topic(
        op.topic, op.name, op.first_partition, op.partitions, time_ms, [], directory=op.directory
    )
    _take_directory(state, lsn, op)
    state.by_name[folded] = op.topic
    state.first_of.append((op.first_partition, op.topic))
    state.next_topic = op.topic + 1
    state.next_partition = op.first_partition + op.partitions


def _rename_topic(state: Catalog, lsn: int, op: TopicRenamed) -> None:
    topic, folded = state.topics[op.topic], op.name.casefold()
    if state.by_name.get(folded, op.topic) != op.topic:
        raise broken("catalog", lsn, f"topic {op.name} exists")
    del state.by_name[topic.name.casefold()]
    state.by_name[folded] = op.topic
    former = [name for name in topic.former if name not in (topic.name, op.name)]
    state.directories.pop(topic.directory.casefold(), None)
    # a new record: open sessions keep the old one, with the name by which they were opened
    state.topics[op.topic] = msgspec.structs.replace(
        topic,
        name=op.name,
        directory=op.directory,
        former=[*former, topic.name][-FORMER_MAX:],
    )
    state.renames += 1
    _take_directory(state, lsn, op)


def _take_directory(state: Catalog, lsn: int, op: TopicCreated | TopicRenamed) -> None:
    """Note a topic's directory, if it is not derived from its name; it must not be in use."""
    folded = (op.directory or topic_path(op.name)).casefold()
    if folded in state.directories:
        raise broken("catalog", lsn, f"the directory of {op.name} is that of another topic")
    if op.directory:
        state.directories[folded] = op.topic


def _set_policy(state: Catalog, op: PolicySet | NamespacePolicySet) -> None:
    if isinstance(op, PolicySet):
        _put(state.policies, op.topic, op.name, op.value)
    else:
        _put(state.namespace_policies, op.namespace, op.name, op.value)


def _put(policies: dict[K, dict[str, int]], of: K, name: str, value: int | None) -> None:
    """Set or remove a policy; removes an empty entry."""
    values = policies.setdefault(of, {})
    if value is not None:
        values[name] = value
    else:
        values.pop(name, None)
    if not values:
        del policies[of]


_Ledgers = LedgerRolled | LedgerReserved | LedgerTrimmed | Compacted | PartitionCompacted


def _ledgers(state: Catalog, lsn: int, op: _Ledgers) -> None:
    """Add ledgers; remove trimmed and compacted ledgers."""
    if isinstance(op, LedgerRolled | LedgerReserved):
        ledger = op.new if isinstance(op, LedgerRolled) else op.ledger
        _own(state, lsn, ledger, op.partition, op.role)
        return
    for ledger in [op.ledger] if isinstance(op, LedgerTrimmed) else op.old:
        state.owners.pop(ledger, None)


def _own(state: Catalog, lsn: int, ledger: int, partition: int, role: str) -> None:
    if ledger < state.next_ledger:
        raise broken("catalog", lsn, f"ledger {ledger} was given out before")
    state.owners[ledger] = (partition, role)
    state.next_ledger = ledger + 1


def topic_path(full_name: str) -> str:
    """The directory below `topics/` of a topic that has none of its own."""
    name = TopicName.parse(full_name)
    return "/".join(map(encode_component, (name.tenant, name.namespace, name.name)))


def directory_of(topic: Topic) -> str:
    """The directory of a topic, from the root of the store."""
    return f"topics/{topic.directory or topic_path(topic.name)}"


def free_directory(state: Catalog, number: int, full_name: str) -> str:
    """The directory of a new topic; empty: derived from its name, as no renamed topic has that one.

    No encoded name contains @, so no other topic has a directory with this number.
    """
    path = topic_path(full_name)
    return f"{path}@{number}" if path.casefold() in state.directories else ""


def extents(topic: Topic) -> list[tuple[int, int]]:
    """(first number, partitions) of each run of partition numbers, in order of the partitions."""
    base = topic.partitions - sum(count for _, count in topic.added)
    return [(topic.first_partition, base), *topic.added]


def numbers(topic: Topic) -> Sequence[int]:
    """The store-wide numbers of a topic's partitions, in their order."""
    if not topic.added:
        return range(topic.first_partition, topic.first_partition + topic.partitions)
    return [first + step for first, count in extents(topic) for step in range(count)]


def number_of(topic: Topic, index: int) -> int:
    """The store-wide number of the partition with this index (from 0), which exists."""
    if not topic.added:
        return topic.first_partition + index
    return numbers(topic)[index]


def index_of(topic: Topic, number: int) -> int:
    """The index of a partition in its topic; -1: the number is not one of the topic's."""
    if not topic.added:
        index = number - topic.first_partition
        return index if 0 <= index < topic.partitions else -1
    earlier = 0
    for first, count in extents(topic):
        if first <= number < first + count:
            return earlier + number - first
        earlier += count
    return -1


def policies_of(state: Catalog, topic: Topic) -> dict[str, int]:
    """The policies that a topic has, or inherits from its namespace; not to be changed."""
    own_policies = state.policies.get(topic.number, {})
    if not state.namespace_policies:
        return own_policies
    name = TopicName.parse(topic.name)
    return {**state.namespace_policies.get(f"{name.tenant}/{name.namespace}", {}), **own_policies}


def schema_of(topic: Topic) -> SchemaVersion | None:
    """The newest schema of a topic whose values are records; None: its values are bytes."""
    newest = topic.schemas[-1] if topic.schemas else None
    return None if newest is None or newest.deleted or not has_records(newest) else newest


def has_records(schema: SchemaVersion) -> bool:
    """True if the values of a schema are records; False if clients only declared it."""
    return not schema.kind.startswith(definitions.DECLARED)


def declared_of(topic: Topic) -> SchemaVersion | None:
    """The newest schema of a topic, if clients have declared it; otherwise None."""
    newest = topic.schemas[-1] if topic.schemas else None
    return None if newest is None or newest.deleted or has_records(newest) else newest


def record_schemas(topic: Topic) -> list[SchemaVersion]:
    """The schemas up to the newest that has records; version N is the Nth."""
    count = len(topic.schemas)
    while count and not has_records(topic.schemas[count - 1]):
        count -= 1
    return topic.schemas[:count]


def topic_of(state: Catalog, partition: int) -> Topic:
    """The topic that a partition number belongs to, which exists."""
    topic = _find_topic_of(state, partition)
    assert topic is not None  # Law 2: an earlier op made the partition
    return topic


def has_partition(state: Catalog, partition: int) -> bool:
    """True when a topic has this partition."""
    return _find_topic_of(state, partition) is not None


def _find_topic_of(state: Catalog, partition: int) -> Topic | None:
    at = bisect_right(state.first_of, (partition, NO_TOPIC)) - 1
    topic = state.topics.get(state.first_of[at][1]) if at >= 0 else None
    return topic if topic is not None and index_of(topic, partition) >= 0 else None


def find_topic(state: Catalog, full_name: str) -> Topic | None:
    """The topic of exactly this name."""
    number = state.by_name.get(full_name.casefold())
    if number is None or state.topics[number].name != full_name:
        return None
    return state.topics[number]


def find_renamed(state: Catalog, full_name: str) -> Topic | None:
    """The topic that had this name before; None: there is none, or it is not certain which."""
    numbered = {number: state.topics[number] for number in state.directories.values()}
    matches = [topic for topic in numbered.values() if full_name in topic.former]
    return matches[0] if len(matches) == 1 else None


def find_subscription(state: Catalog, topic: Topic, name: str) -> Subscription | None:
    """The subscription of this name on the topic."""
    for number in topic.subscriptions:
        if state.subscriptions[number].name == name:
            return state.subscriptions[number]
    return None


def consumers_of(state: Catalog, subscription: int) -> list[Consumer]:
    """The attached consumers of a subscription, by number.

    A dead consumer stays until a peer detects it.
    """
    return list(_members(state).get(subscription, {}).values())


class _Dump(Catalog, array_like=True):
    """A dump; topics and subscriptions are decoded on demand, because a call needs few."""

    topics: dict[int, msgspec.Raw] = {}  # type: ignore[assignment]
    subscriptions: dict[int, msgspec.Raw] = {}  # type: ignore[assignment]


def _load(data: bytes) -> Catalog:
    dump = _decoder.decode(data)
    values = {name: getattr(dump, name) for name in Catalog.__struct_fields__}
    values["topics"] = LazyDict(dump.topics, _one_topic.decode)
    held_ones = values["subscriptions"] = LazyDict(dump.subscriptions, _one_subscription.decode)
    state = Catalog(**values)
    if _length(data) <= _CONSUMERS:
        for subscription in held_ones.values():
            if subscription.consumer:
                state.consumers[subscription.consumer] = Consumer(
                    subscription.consumer,
                    subscription.number,
                    subscription.consumer_name,
                    "exclusive",
                    0,
                    subscription.consumer_since_ms,
                )
                (
                    subscription.consumer,
                    subscription.consumer_name,
                    subscription.consumer_since_ms,
                ) = 0, "", 0
    return state


def _length(data: bytes) -> int:
    """How many fields a dump has: the head of its array."""
    return data[0] & 0x0F if data[0] >> 4 == 0x9 else int.from_bytes(data[1:3], "big")


assert _Dump.__struct_fields__ == Catalog.__struct_fields__
_CONSUMERS = Catalog.__struct_fields__.index("consumers")
_decoder = msgspec.msgpack.Decoder(_Dump)
_one_topic, _one_subscription = (
    msgspec.msgpack.Decoder(Topic),
    msgspec.msgpack.Decoder(Subscription),
)
FOLD = Fold("catalog", Catalog, apply, msgspec.msgpack.encode, _load)
