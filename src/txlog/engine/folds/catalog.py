"""The catalog fold: topics, partitions, subscriptions, settings, and who owns which ledger.

Ledger: system/catalog. Ops
  SettingSet, TopicCreated, SubscriptionCreated, ConsumerAttached, ConsumerDetached, LedgerRolled,
  SubscriptionTypeSet, PartitionOffline, PartitionAvailable, LedgerReserved, PolicySet,
  IsolationSet,
  TxnOpened (counts the transactions without a key, which go round robin over the coordinators).

Invariants
  1. A topic, partition, subscription, ledger, consumer number is never given out twice (Law 6).
  2. Names are unique after case folding.
"""

from __future__ import annotations

from bisect import bisect_right

import msgspec

from txlog.engine.model.fold import Fold, broken, unexpected
from txlog.engine.model.ops import (
    ConsumerAttached,
    ConsumerDetached,
    IsolationSet,
    LedgerReserved,
    LedgerRolled,
    Op,
    PartitionAvailable,
    PartitionOffline,
    PolicySet,
    SettingSet,
    SubscriptionCreated,
    SubscriptionPolicySet,
    SubscriptionTypeSet,
    TopicCreated,
    TxnOpened,
)

NO_TOPIC = 1 << 62  # above every number


class Topic(msgspec.Struct, array_like=True):
    """A topic: name tenant/namespace/name, partitions first_partition.. in order."""

    number: int
    name: str
    first_partition: int
    partitions: int
    created_ms: int
    subscriptions: list[int]


class Subscription(msgspec.Struct, array_like=True):
    """A durable subscription of one topic."""

    number: int
    topic: int
    name: str
    type: str
    isolation: str
    created_ms: int
    consumer: int = 0  # these three: dumps of older versions only; Catalog.consumers has them now
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
    """Why a partition is not available: reason admin or damage, and the first row that is bad."""

    reason: str
    ledger: int = 0
    row: int = 0
    since_ms: int = 0


class Catalog(msgspec.Struct, array_like=True):
    """State of the fold; numbers start at 1."""

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
    settings_changes: int = 0  # only grows: whoever copied the settings asks whether to again
    consumers: dict[int, Consumer] = {}


def apply(state: Catalog, lsn: int, time_ms: int, op: Op) -> None:
    """Apply one op."""
    if isinstance(op, TxnOpened):
        if op.key is None:
            state.unkeyed_txns += 1
    elif isinstance(op, LedgerRolled | LedgerReserved):
        ledger = op.new if isinstance(op, LedgerRolled) else op.ledger
        _own(state, lsn, ledger, op.partition, op.role)
    elif isinstance(op, PolicySet):
        _set_policy(state, op)
    elif isinstance(op, TopicCreated):
        _create_topic(state, lsn, time_ms, op)
    elif isinstance(op, SubscriptionCreated):
        state.subscriptions[op.subscription] = Subscription(
            op.subscription, op.topic, op.name, op.kind, op.isolation, time_ms
        )
        state.topics[op.topic].subscriptions.append(op.subscription)
        state.next_subscription = op.subscription + 1
    elif isinstance(op, ConsumerAttached | ConsumerDetached | IsolationSet | SubscriptionTypeSet):
        _subscription(state, time_ms, op)
    elif isinstance(op, PartitionOffline | PartitionAvailable):
        _switch(state, lsn, time_ms, op)
    elif isinstance(op, SettingSet):
        _set(state, op)
    elif isinstance(op, SubscriptionPolicySet):
        held = state.subscriptions[op.subscription]
        if op.value is None:
            held.policies.pop(op.name, None)
        else:
            held.policies[op.name] = op.value
    else:
        raise unexpected("catalog", lsn, op)


def _subscription(
    state: Catalog, time_ms: int,
    op: ConsumerAttached | ConsumerDetached | IsolationSet | SubscriptionTypeSet,
) -> None:  # fmt: skip
    if isinstance(op, ConsumerAttached):
        _attach(state, time_ms, op)
    elif isinstance(op, ConsumerDetached):
        state.consumers.pop(op.consumer, None)
    elif isinstance(op, IsolationSet):
        state.subscriptions[op.subscription].isolation = op.isolation
    else:
        state.subscriptions[op.subscription].type = op.kind


def _attach(state: Catalog, time_ms: int, op: ConsumerAttached) -> None:
    if op.kind == "exclusive":  # in old journals nobody says that the one before was found dead
        for other in consumers_of(state, op.subscription):
            del state.consumers[other.number]
    state.consumers[op.consumer] = Consumer(
        op.consumer, op.subscription, op.name, op.kind, op.priority, time_ms
    )
    state.next_consumer = op.consumer + 1


def _set(state: Catalog, op: SettingSet) -> None:
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
        op.topic, op.name, op.first_partition, op.partitions, time_ms, []
    )  # fmt: skip
    state.by_name[folded] = op.topic
    state.first_of.append((op.first_partition, op.topic))
    state.next_topic = op.topic + 1
    state.next_partition = op.first_partition + op.partitions


def _set_policy(state: Catalog, op: PolicySet) -> None:
    named = state.policies.setdefault(op.topic, {})
    if op.value is not None:
        named[op.name] = op.value
    else:
        named.pop(op.name, None)
    if not named:
        del state.policies[op.topic]


def _own(state: Catalog, lsn: int, ledger: int, partition: int, role: str) -> None:
    if ledger < state.next_ledger:
        raise broken("catalog", lsn, f"ledger {ledger} was given out before")
    state.owners[ledger] = (partition, role)
    state.next_ledger = ledger + 1


def number_of(topic: Topic, index: int) -> int:
    """The store-wide number of the partition with this index (from 0), which exists."""
    return topic.first_partition + index


def topic_of(state: Catalog, partition: int) -> Topic:
    """The topic that a partition number belongs to."""
    low, high = 0, len(state.first_of)
    while low < high:
        middle = (low + high) // 2
        if state.first_of[middle][0] <= partition:
            low = middle + 1
        else:
            high = middle
    return state.topics[state.first_of[low - 1][1]]


def numbers(topic: Topic) -> range:
    """The partitions of a topic by their store-wide numbers, in order."""
    return range(topic.first_partition, topic.first_partition + topic.partitions)


def index_of(topic: Topic, number: int) -> int:
    """The partition of the topic, from 0, with this store-wide number."""
    return number - topic.first_partition


def has_partition(state: Catalog, partition: int) -> bool:
    """True when a topic has this partition."""
    if not state.first_of or partition < state.first_of[0][0]:
        return False
    low = bisect_right(state.first_of, (partition, NO_TOPIC))
    topic = state.topics.get(state.first_of[low - 1][1])
    return topic is not None and partition < topic.first_partition + topic.partitions


def find_topic(state: Catalog, full_name: str) -> Topic | None:
    """The topic of exactly this name."""
    number = state.by_name.get(full_name.casefold())
    if number is None or state.topics[number].name != full_name:
        return None
    return state.topics[number]


def find_subscription(state: Catalog, topic: Topic, name: str) -> Subscription | None:
    """The subscription of this name on the topic."""
    for number in topic.subscriptions:
        if state.subscriptions[number].name == name:
            return state.subscriptions[number]
    return None


def consumers_of(state: Catalog, subscription: int) -> list[Consumer]:
    """The attached consumers of a subscription, by number; a dead one stays until it is noticed."""
    return [one for _, one in sorted(state.consumers.items()) if one.subscription == subscription]


def _load(data: bytes) -> Catalog:
    state = _decoder.decode(data)
    for held in state.subscriptions.values():
        if held.consumer:
            state.consumers[held.consumer] = Consumer(
                held.consumer, held.number, held.consumer_name, "exclusive", 0,
                held.consumer_since_ms,
            )  # fmt: skip
            held.consumer, held.consumer_name, held.consumer_since_ms = 0, "", 0
    return state


_decoder = msgspec.msgpack.Decoder(Catalog)
FOLD = Fold("catalog", Catalog, apply, msgspec.msgpack.encode, _load)
