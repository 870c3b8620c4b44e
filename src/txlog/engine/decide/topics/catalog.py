"""Topics, subscriptions, coordinators and settings: created, changed, deleted; schemas of topics.

Partitions are only ever added. A key's partition is crc32(key) mod partitions, so keys move when
there are more. After the frame that adds partitions every send uses the new number, because a send
reads it under the lock; earlier messages stay where they are. A setting is checked together with
all the others. A change of a setting is one op, an equal value none.

A deletion is one frame, which removes the messages and acknowledgements of transactions there, too.
An open transaction commits without it and reports it as skipped; a decided one that waited for
nothing else completes in the frame of the deletion (I-17). Files go as in a trim: the frame drops
the ledgers, and the next checkpoint no longer names them.

A version of a schema is added if it is compatible with the earlier versions. A deletion deletes
every version. Their numbers are not used again, and their definitions stay: messages name them.
Source: spec/transactions 5.1, 9.3, 11; spec/schemas 1; Pulsar's schema registry and its
compatibility strategies.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import msgspec

from txlog.base.ids import MessageId, TopicName
from txlog.base.ranges import START, Bound
from txlog.base.schemas import resolution
from txlog.base.schemas.schema import Schema
from txlog.base.settings import (
    CHOICES,
    INSTANT_MS_MAX,
    PARTITIONS_MAX,
    SCHEMAS_MAX,
    TOPICS_MAX,
    Settings,
    check_setting,
)
from txlog.base.suggest import command_line
from txlog.clock import Instant
from txlog.engine.decide.draft import Decision, Draft
from txlog.engine.decide.sending.watermark import least_state
from txlog.engine.decide.topics.buckets import all_gone
from txlog.engine.decide.topics.ledgers import POLICIES
from txlog.engine.decide.topics.policies import Policies
from txlog.engine.decide.topics.policies import policy_ops as subscription_policies
from txlog.engine.decide.transactions.transaction import finish_ops
from txlog.engine.folds.catalog import (
    SchemaVersion,
    Subscription,
    Topic,
    consumers_of,
    free_directory,
    numbers,
    policies_of,
)
from txlog.engine.folds.cursor import BEFORE_ALL
from txlog.engine.folds.watermark import PAYLOAD_VERSION, Snapshot, encode_snapshot
from txlog.engine.folds.watermark import START as FIRST_POSITION
from txlog.engine.model.ops import (
    ClockNoted,
    CursorOpened,
    IsolationSet,
    Op,
    PartitionsAdded,
    PolicySet,
    SchemaAdded,
    SchemaMismatched,
    SchemasDeleted,
    SettingSet,
    SubscriptionCreated,
    SubscriptionDeleted,
    TopicCreated,
    TopicDeleted,
    WatermarkSnapshot,
)
from txlog.engine.plan.ack_sets import backlog
from txlog.engine.plan.clock_trust import ClockVerdict, judge
from txlog.engine.plan.lookup import subscription as find_subscription
from txlog.engine.plan.lookup import topic as find_topic
from txlog.engine.plan.participants import Participant, in_order, participants, waiting_for
from txlog.engine.plan.reading.ranges import partition_of, resolve_bound
from txlog.engine.plan.reading.uncommitted import check_isolation
from txlog.engine.plan.records import COMPATIBILITY, ENFORCE, MARK, VALIDATION, schema_in, word
from txlog.engine.view import View
from txlog.errors import (
    AlreadyExists,
    ConsumerBusy,
    IncompatibleSchema,
    InvalidArgument,
    LimitExceeded,
    NotAllowed,
    NotFound,
    StillInUse,
)

NO_POLICIES: Mapping[str, int | None] = MappingProxyType({})
SUBSCRIPTION_TYPES = ("exclusive", "shared", "failover", "key-shared")


def nothing(view: View, now: Instant) -> Decision[None]:
    """Decide nothing, for a call that only needs the sweep before it."""
    del view, now
    return Decision([], None, True)


def create_topic(
    view: View,
    settings: Settings,
    now: Instant,
    name: TopicName,
    partitions: int,
    *,
    if_not_exists: bool,
    policies: Mapping[str, int | None] = NO_POLICIES,
    schema: Schema | None = None,
) -> Decision[bool]:
    """Decide a new topic; durable; answers whether it was created.

    if_not_exists: a topic of this name is no error
    raises: InvalidArgument, LimitExceeded, AlreadyExists
    """
    if partitions < 1:
        raise InvalidArgument(f"a topic has at least 1 partition, not {partitions}", code=203)
    if partitions > PARTITIONS_MAX:
        raise LimitExceeded(
            f"a topic has at most {PARTITIONS_MAX} partitions, not {partitions}",
            setting="partitions_max",
            limit=PARTITIONS_MAX,
            value=partitions,
        )
    catalog = view.catalog
    existing = catalog.by_name.get(name.full.casefold())
    if existing is not None:
        there = catalog.topics[existing]
        if if_not_exists and there.name == name.full:
            return Decision([], None, True, False)
        raise AlreadyExists(
            f"topic {TopicName.parse(there.name).short} exists already", topic=name.short
        )
    if len(catalog.topics) >= TOPICS_MAX:
        raise LimitExceeded(
            f"the store has {TOPICS_MAX} topics, the most there can be",
            setting="topics_max",
            limit=TOPICS_MAX,
            value=TOPICS_MAX + 1,
        )
    draft = Draft(view, settings, now.wall_ms)
    first = catalog.next_partition
    full = name.check_new().full
    directory = free_directory(catalog, catalog.next_topic, full)
    draft.ops.append(TopicCreated(catalog.next_topic, full, first, partitions, directory))
    for number in range(first, first + partitions):
        draft.open_partition(number)
    draft.ops += policy_ops(catalog.next_topic, policies)
    if schema is not None:
        draft.ops.append(SchemaAdded(catalog.next_topic, 1, schema.type, schema.definition))
    return draft.decision(True, sync=True)


def first_use(
    view: View, settings: Settings, now: Instant, name: TopicName
) -> Decision[Topic | bool]:
    """Decide to create a missing topic, if the store allows that; answers the topic.

    raises: TopicNotFound: the store does not allow it, or the name has a partition or differs only
        in case
    """
    is_new = name.full.casefold() not in view.catalog.by_name and name.partition is None
    if not (is_new and settings.allow_auto_topic_creation):
        return Decision([], answer=find_topic(view, name))
    partitions = settings.default_num_partitions
    return create_topic(view, settings, now, name, partitions, if_not_exists=True)


def set_policies(
    view: View, topic: Topic, policies: Mapping[str, int | None]
) -> Decision[dict[str, int]]:
    """Decide policies of a topic, None to remove one; answers the policies that it then has."""
    merged = {**view.catalog.policies.get(topic.number, {}), **policies}
    answer = {name: value for name in POLICIES if (value := merged.get(name)) is not None}
    return Decision([*policy_ops(topic.number, policies)], None, True, answer)


def policy_ops(topic: int, policies: Mapping[str, int | None]) -> list[PolicySet]:
    """The ops of policies of a topic; raises InvalidArgument."""
    for name, value in policies.items():
        if name not in POLICIES:
            raise InvalidArgument(f"{name} is not a policy", hint=", ".join(POLICIES))
        if value is not None and not isinstance(value, int):
            raise InvalidArgument(f"{name} is {value!r}, it must be an integer", code=203)
        if value is not None and not 0 <= value <= INSTANT_MS_MAX:
            bound = "negative" if value < 0 else f"above {INSTANT_MS_MAX}"
            raise InvalidArgument(f"{name} is {value}, it must not be {bound}", code=203)
    return [
        PolicySet(topic, name, None if value is None else int(value))  # True is 1
        for name, value in policies.items()
    ]


def check_type(type: str) -> str:
    """The subscription type, if there is one of this name; raises InvalidArgument."""
    if type not in SUBSCRIPTION_TYPES:
        raise InvalidArgument(
            f"{type!r} is not a subscription type", hint=", ".join(SUBSCRIPTION_TYPES)
        )
    return type


def create_subscription(
    view: View,
    settings: Settings,
    now: Instant,
    topic: Topic,
    name: str,
    *,
    type: str,
    isolation: str,
    position: Bound | None,
    if_not_exists: bool,
    policies: Policies = NO_POLICIES,
) -> Decision[bool]:
    """Decide a new subscription; durable; answers whether it was created.

    position: where it starts; None: the start of each partition. An id selects its own partition
    raises: InvalidArgument, AlreadyExists (unless if_not_exists), as resolve_bound
    """
    check_type(type)
    check_isolation(isolation)
    folded = name.casefold()
    for number in topic.subscriptions:
        there = view.catalog.subscriptions[number]
        if there.name.casefold() == folded:
            if if_not_exists and there.name == name:
                return Decision([], None, True, False)
            raise AlreadyExists(
                f"subscription {there.name} exists already",
                subscription=there.name,
                topic=TopicName.parse(topic.name).short,
            )
    draft = Draft(view, settings, now.wall_ms)
    number = view.catalog.next_subscription
    draft.ops.append(SubscriptionCreated(number, topic.number, name, type, isolation))
    bound = position or START
    for index, partition in enumerate(numbers(topic)):
        # an id selects its partition; in the others nothing is skipped
        is_other = isinstance(bound.value, MessageId) and (
            partition_of(view, topic, bound.value) != index
        )
        mark = resolve_bound(view, topic, index, START if is_other else bound)
        draft.ops.append(CursorOpened(number, partition, mark))
    draft.ops += subscription_policies(number, topic.name, name, policies)
    return draft.decision(True, sync=True)


def scale_coordinators(view: View, settings: Settings, now: Instant, count: int) -> Decision[int]:
    """Decide to have more coordinators; answers their number before.

    raises: NotAllowed for fewer, InvalidArgument and LimitExceeded by the bounds of the setting
    """
    check_setting("coordinators", count)
    old_count = settings.coordinators
    if count < old_count:
        raise NotAllowed(
            f"the store has {old_count} coordinators, {count} asked for: their number may "
            "only grow",
            setting="coordinators",
            limit=old_count,
            value=count,
        )
    draft = Draft(view, settings, now.wall_ms)
    if count > old_count:
        draft.ops.append(SettingSet("coordinators", count))
    return draft.decision(old_count, sync=True)


def roll(view: View, settings: Settings, now: Instant, topics: list[Topic] | None) -> Decision[int]:
    """Decide to close the open ledgers of topics (None: all), for sealing; answers how many."""
    draft = Draft(view, settings, now.wall_ms)
    rolled = 0
    for topic in view.catalog.topics.values() if topics is None else topics:
        for number in numbers(topic):
            for role in ("p", "s"):
                state = view.topic(number) if role == "p" else view.buffer(number)
                last = state.ledgers[-1] if state.ledgers else None
                if last and draft.holds_rows(number, role, last.ledger, last.entries):
                    draft.roll(number, role, last.ledger)
                    rolled += 1
    return draft.decision(rolled, sync=True)


def set_isolation(
    view: View, topic: Topic, name: str, isolation: str, dead: Collection[int]
) -> Decision[bool]:
    """Decide the isolation of a subscription; answers whether it changed.

    dead: consumers that the caller found dead; any other consumer raises ConsumerBusy
    """
    check_isolation(isolation)
    subscription = find_subscription(view, topic, name)
    if any(
        consumer.number not in dead for consumer in consumers_of(view.catalog, subscription.number)
    ):
        raise ConsumerBusy(
            f"subscription {name} has a consumer: its isolation cannot be changed",
            hint="close the consumer",
            subscription=name,
        )
    if subscription.isolation == isolation:
        return Decision([], None, True, False)
    return Decision([IsolationSet(subscription.number, isolation)], None, True, True)


# --- changing a topic, or a setting ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class UpdatedTopic:
    """The partitions and policies of a topic after a change, and whether anything changed."""

    topic: str
    partitions: int
    policies: dict[str, int]
    changed: bool


def update_topic(
    view: View,
    settings: Settings,
    now: Instant,
    topic: Topic,
    partitions: int | None,
    policies: Mapping[str, int | None],
) -> Decision[UpdatedTopic]:
    """Decide partitions (None: unchanged) and policies (None: remove) of a topic.

    returns: an UpdatedTopic, durable; subscriptions get new partitions from their start
    raises:  NotAllowed (fewer partitions), LimitExceeded, InvalidArgument (a policy)
    """
    short = TopicName.parse(topic.name).short
    draft = Draft(view, settings, now.wall_ms)
    count = topic.partitions if partitions is None else partitions
    if count < topic.partitions:
        raise NotAllowed(
            f"topic {short} has {topic.partitions} partitions, {count} asked for: their number "
            "may only grow",
            hint="messages cannot move between partitions",
            topic=short,
        )
    if count > PARTITIONS_MAX:
        raise LimitExceeded(
            f"a topic has at most {PARTITIONS_MAX} partitions, not {count}",
            setting="partitions_max",
            limit=PARTITIONS_MAX,
            value=count,
        )
    old_policies = view.catalog.policies.get(topic.number, {})
    different = {name: value for name, value in policies.items() if old_policies.get(name) != value}
    policy_ops(topic.number, policies)  # refuses a bad value, even one that is set already
    draft.ops += policy_ops(topic.number, different)
    if count > topic.partitions:
        _add(draft, topic, count - topic.partitions)
    now_known = {
        name: value
        for name, value in {**old_policies, **policies}.items()
        if value is not None and name in POLICIES
    }
    return draft.decision(UpdatedTopic(short, count, now_known, bool(draft.ops)), sync=True)


def _add(draft: Draft, topic: Topic, count: int) -> None:
    first = draft.view.catalog.next_partition
    draft.ops.append(PartitionsAdded(topic.number, first, count))
    state = least_state(draft.view, topic)
    for number in range(first, first + count):
        ledger, entry = draft.roll(number, "p", 0)
        if state is not None:  # a partition without known state would stop every consumer
            payload = encode_snapshot(Snapshot(PAYLOAD_VERSION, FIRST_POSITION, state))
            draft.ops.append(WatermarkSnapshot(number, ledger, entry, payload, 0))
        for subscription in topic.subscriptions:
            draft.ops.append(CursorOpened(subscription, number, BEFORE_ALL))


# --- a setting -------------------------------------------------------------------------------

Value = int | str | float


class ChangedSetting(msgspec.Struct, frozen=True, gc=False):
    """A setting, its value before and now."""

    name: str
    before: Value
    value: Value


def set_setting(
    view: View, settings: Settings, now: Instant, name: str, value: Value
) -> Decision[ChangedSetting]:
    """Decide a setting of the store; answers ChangedSetting.

    raises: NotFound (308); InvalidArgument and LimitExceeded by its bounds and by other settings;
            NotAllowed for fewer coordinators
    """
    old_value = current(settings, name)
    new_value = Settings.from_mapping({**settings.to_mapping(), name: value}).to_mapping()[name]
    answer = ChangedSetting(name, old_value, new_value)
    if new_value == old_value:
        return Decision([], None, True, answer)
    if name == "coordinators":
        assert isinstance(new_value, int)
        decided = scale_coordinators(view, settings, now, new_value)
        return Decision(decided.ops, None, True, answer)
    return Decision([SettingSet(name, new_value)], None, True, answer)


def current(settings: Settings, name: str) -> Value:
    """The value of a setting; raises NotFound (308)."""
    values = settings.to_mapping()
    if name not in values:
        raise NotFound(f"no setting {name[:60]}", hint="txlog config show lists them", setting=name)
    return values[name]


def accept_clock(view: View, settings: Settings, now: Instant) -> Decision[ClockVerdict]:
    """Decide that the wall clock is right; durable; answers the verdict on it before this."""
    judged = judge(view, settings, now)
    mark = view.catalog.clock
    # a mark that was wrong, and too far ahead, must not keep producer names for ever
    behind_ms = 0 if mark is None else min(mark.behind_ms, now.wall_ms)
    noted = ClockNoted(now.wall_ms, now.boot_id, now.boot_ms, behind_ms=behind_ms)
    return Decision([noted], None, True, judged)


# --- schemas --------------------------------------------------------------------------------------


def add_schema(
    view: View, settings: Settings, topic: Topic, schema: Schema, *, marks: bool = False
) -> Decision[int]:
    """Decide a new version; answers its number, or the number of an equal version that exists.

    marks: with its first schema the topic gets the policy that values which do not fit are stored
           and counted, unless it or its namespace has a policy for that
    raises: IncompatibleSchema, LimitExceeded
    """
    existing = find(topic, schema)
    if existing is not None:
        return Decision([], None, True, existing.version)
    check(view, settings, topic, schema)
    if len(topic.schemas) >= SCHEMAS_MAX:
        raise LimitExceeded(
            f"topic {_short(topic)} has had {SCHEMAS_MAX} schemas, the most there may be",
            hint="make another topic",
            limit=SCHEMAS_MAX,
            value=SCHEMAS_MAX + 1,
        )
    version = len(topic.schemas) + 1
    ops: list[Op] = [SchemaAdded(topic.number, version, schema.type, schema.definition)]
    is_said = VALIDATION in policies_of(view.catalog, topic)
    is_first = all(version_.deleted for version_ in topic.schemas)
    if (
        marks
        and schema.is_record
        and is_first
        and not is_said
        and settings.schema_validation == ENFORCE
    ):
        ops.append(PolicySet(topic.number, VALIDATION, CHOICES[VALIDATION].index(MARK)))
    if schema.is_record and not topic.schemas:
        ops += _unread(view, topic)
    return Decision(ops, None, True, version)


def _unread(view: View, topic: Topic) -> list[Op]:
    """Count the messages before the first schema: no writer checked them, they have no record."""
    counts = {partition: view.topic(partition).messages for partition in numbers(topic)}
    return [SchemaMismatched(partition, count) for partition, count in counts.items() if count]


def find(topic: Topic, schema: Schema) -> SchemaVersion | None:
    """The version of the topic that is this schema, if it is not deleted."""
    for existing in reversed(topic.schemas):
        if (
            not existing.deleted
            and existing.kind == schema.type
            and _is_same(schema_in(existing), schema)
        ):
            return existing
    return None


def _is_same(existing: Schema, schema: Schema) -> bool:
    """Whether two schemas of one type are the same.

    For a declared schema only properties that name types count, such as key.schema.type: clients
    change the others when they send a schema back.
    """
    if schema.is_record or existing.definition == schema.definition:
        return existing.definition == schema.definition
    existing_parts, parts = existing.declaration, schema.declaration
    return existing_parts[1] == parts[1] and _types_in(existing_parts[2]) == _types_in(parts[2])


def _types_in(properties: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in properties.items() if name.endswith(".type")}


def check(view: View, settings: Settings, topic: Topic, schema: Schema) -> None:
    """Raise IncompatibleSchema unless the schema may follow the topic's schemas."""
    strategy = word(view, settings, topic, COMPATIBILITY)
    older = [schema_in(version) for version in topic.schemas if not version.deleted]
    why = resolution.check(strategy.upper(), schema, older)
    if why is not None:
        raise IncompatibleSchema(
            f"the schema does not fit those of topic {_short(topic)}, which must stay {strategy}"
            f" compatible: {why}",
            hint=f"{'give a new field a default; ' * why.endswith('has no default')}"
            f"{command_line('policy schema get', '-t', _short(topic))} shows what may follow",
            topic=_short(topic),
        )


def delete_schemas(topic: Topic) -> Decision[int]:
    """Decide to delete a topic's schemas, so that it takes any bytes; answers how many it had."""
    count = sum(not version.deleted for version in topic.schemas)
    return Decision([SchemasDeleted(topic.number)] if count else [], None, True, count)


def _short(topic: Topic) -> str:
    return TopicName.parse(topic.name).short


# --- deletion -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeletedSubscription:
    """The deleted subscription, and how many messages it had not acknowledged."""

    topic: str
    subscription: str
    backlog: int


@dataclass(frozen=True, slots=True)
class DeletedTopic:
    """The counts of a deleted topic."""

    topic: str
    partitions: int
    messages: int
    size_bytes: int
    subscriptions: int


def delete_subscription(
    view: View,
    settings: Settings,
    now: Instant,
    topic: Topic,
    subscription: Subscription,
    *,
    dead: Collection[int],
    force: bool,
) -> Decision[DeletedSubscription]:
    """Decide to delete a subscription, with its acknowledgements, final and pending.

    dead:    its consumers that the caller found dead; a live one prevents this, unless forced
    returns: a DeletedSubscription, durable
    raises:  ConsumerBusy
    """
    short = TopicName.parse(topic.name).short
    consumers = {consumer.number for consumer in consumers_of(view.catalog, subscription.number)}
    if not force and consumers - set(dead):
        raise ConsumerBusy(
            f"subscription {subscription.name} of {short} has a live consumer",
            hint="close it, or --force",
            topic=short,
            subscription=subscription.name,
        )
    draft = Draft(view, settings, now.wall_ms)
    ours = list(numbers(topic))
    answer = DeletedSubscription(
        short, subscription.name, sum(backlog(view, subscription.number, number) for number in ours)
    )
    clamped = [
        number
        for number in ours
        if view.exists(("watermark", number, 0))
        and subscription.number in view.watermark(number).clamps
    ]
    draft.ops.append(SubscriptionDeleted(subscription.number, ours, clamped))
    _complete(draft, ours, [(number, subscription.number) for number in ours])
    return draft.decision(answer, sync=True)


def delete_topic(
    view: View,
    settings: Settings,
    now: Instant,
    topic: Topic,
    *,
    force: bool,
    dead: Collection[int] | None = None,
) -> Decision[DeletedTopic]:
    """Decide to delete a topic, with its messages and subscriptions.

    dead:    consumers found dead: a subscription with no others does not count; None: all count
    returns: a DeletedTopic, durable
    raises:  StillInUse (408) with subscriptions or unfinished transactions, unless forced
    """
    short = TopicName.parse(topic.name).short
    ours = list(numbers(topic))
    states = [view.topic(number) for number in ours]
    sides = [view.buffer(number) for number in ours]
    subscriptions = list(topic.subscriptions)
    txns = {
        (coordinator, sequence)
        for side in sides
        for coordinator, sequences in side.held.items()
        for sequence in sequences
    }
    consumed = [
        number for number in subscriptions if dead is None or _is_consumed(view, number, dead)
    ]
    if not force and (consumed or txns):
        raise StillInUse(
            f"topic {short} has subscriptions ({len(consumed)}) or unfinished transactions "
            f"({len(txns)})",
            hint="--force deletes it anyway",
            topic=short,
        )
    answer = DeletedTopic(
        short,
        topic.partitions,
        sum(state.messages for state in states),
        sum(state.payload_bytes for state in states),
        len(subscriptions),
    )
    draft = Draft(view, settings, now.wall_ms)
    draft.ops += [SubscriptionDeleted(number, ours) for number in subscriptions]
    draft.ops += [op for number in ours for op in all_gone(view, number)]
    ledgers = [end.ledger for state in states for end in state.ledgers]
    ledgers += [end.ledger for side in sides for end in side.ledgers]
    ledgers += [
        ledger for state in states if state.compaction for ledger in state.compaction.ledgers
    ]
    draft.ops.append(TopicDeleted(topic.number, ours, ledgers))
    deleted = [(number, subscription) for number in ours for subscription in (0, *subscriptions)]
    _complete(draft, ours, deleted)
    return draft.decision(answer, sync=True)


def delete_unused(
    view: View, settings: Settings, now: Instant, number: int, schemas: int = 1
) -> Decision[DeletedTopic]:
    """Decide to delete a topic without stored messages; does nothing if it is deleted already.

    schemas: how many the caller may have added
    raises: StillInUse (408): it has entries, a policy or more schemas, or as `delete_topic`
    """
    topic = view.catalog.topics.get(number)
    if topic is None:
        return Decision([])
    states = [view.topic(partition) for partition in numbers(topic)]
    is_used = any(
        len(state.ledgers) > 1 or state.ledgers[0].entries or state.trimmed for state in states
    )
    if is_used or len(topic.schemas) > schemas or view.catalog.policies.get(number):
        raise StillInUse(f"topic {TopicName.parse(topic.name).short} is used by others")
    return delete_topic(view, settings, now, topic, force=False)


def _is_consumed(view: View, subscription: int, dead: Collection[int]) -> bool:
    return any(consumer.number not in dead for consumer in consumers_of(view.catalog, subscription))


def _complete(draft: Draft, partitions: list[int], deleted: list[Participant]) -> None:
    """Add the ends of decided transactions that wait for nothing but deleted participants."""
    waiting = {
        (txn.coordinator, txn.sequence): txn
        for partition in partitions
        for txn in waiting_for(draft.view, partition)
    }
    for txn in in_order(list(waiting.values())):
        if not participants(draft.view, txn, deleted=deleted).waiting:
            finish_ops(draft, txn, deleted=deleted)
