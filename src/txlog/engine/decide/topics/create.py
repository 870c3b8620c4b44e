"""Creating and changing topics, subscriptions, coordinators and settings; rolling ledgers over.

Partitions are only ever added. A key's partition is crc32(key) mod partitions, so keys move when
there are more. After the frame that adds partitions every send uses the new number, because a send
looks under the lock; earlier messages stay where they are. A setting is checked together with all
the others. A change is one op; an equal value is none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import msgspec

from txlog.base.ids import MessageId, TopicName
from txlog.base.ranges import START, Bound
from txlog.base.schemas.schema import Schema
from txlog.base.settings import (
    INSTANT_MS_MAX,
    PARTITIONS_MAX,
    TOPICS_MAX,
    Settings,
    check_setting,
)
from txlog.clock import Instant
from txlog.engine.decide.draft import Decision, Draft
from txlog.engine.decide.sending.watermark import least_state
from txlog.engine.decide.topics.policies import Policies
from txlog.engine.decide.topics.policies import policy_ops as subscription_policies
from txlog.engine.decide.topics.trim import POLICIES
from txlog.engine.folds.catalog import Topic, consumers_of, numbers
from txlog.engine.folds.cursor import BEFORE_ALL
from txlog.engine.folds.watermark import PAYLOAD_VERSION, Snapshot, encode_snapshot
from txlog.engine.folds.watermark import START as FIRST_POSITION
from txlog.engine.model.ops import (
    ClockNoted,
    CursorOpened,
    IsolationSet,
    PartitionsAdded,
    PolicySet,
    SchemaAdded,
    SettingSet,
    SubscriptionCreated,
    TopicCreated,
    WatermarkSnapshot,
)
from txlog.engine.plan.clock_trust import ClockVerdict, judge
from txlog.engine.plan.lookup import subscription as find_subscription
from txlog.engine.plan.lookup import topic as find_topic
from txlog.engine.plan.reading.ranges import partition_of, resolve_bound
from txlog.engine.plan.reading.uncommitted import check_isolation
from txlog.engine.view import View
from txlog.errors import (
    AlreadyExists,
    ConsumerBusy,
    InvalidArgument,
    LimitExceeded,
    NotAllowed,
    NotFound,
)

NO_POLICIES: Mapping[str, int | None] = MappingProxyType({})
SUBSCRIPTION_TYPES = ("exclusive", "shared", "failover", "key-shared")


def nothing(view: View, now: Instant) -> Decision[None]:
    """A call that only needs the sweep before every decision."""
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
    """Decide a new topic; answers whether it was created."""
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
    draft.ops.append(TopicCreated(catalog.next_topic, full, first, partitions))
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
            raise InvalidArgument(f"{name} is {value}, it must not be negative", code=203)
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
    """Decide a new subscription; answers whether it was created."""
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
    """Decide to close the open ledgers of these topics or of all (None), for sealing."""
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


# --- a topic ---------------------------------------------------------------------------------


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
    """Decide that the wall clock is right, durable; answers the verdict on it before."""
    judged = judge(view, settings, now)
    return Decision([ClockNoted(now.wall_ms, now.boot_id, now.boot_ms)], None, True, judged)
