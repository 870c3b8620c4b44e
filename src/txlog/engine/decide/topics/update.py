"""Changing a topic, or a setting of the store.

Partitions are only ever added. A key's partition is crc32(key) mod partitions, so keys move when
there are more. After the frame that adds partitions every send uses the new number, because a send
looks under the lock; earlier messages stay where they are. A setting is checked together with all
the others. A change is one op; an equal value is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from txlog.base.ids import TopicName
from txlog.base.settings import PARTITIONS_MAX, Settings
from txlog.clock import Instant
from txlog.engine.decide.draft import Decision, Draft
from txlog.engine.decide.sending.watermark import least_state
from txlog.engine.decide.topics.create import policy_ops, scale_coordinators
from txlog.engine.decide.topics.trim import POLICIES
from txlog.engine.folds.catalog import Topic
from txlog.engine.folds.cursor import BEFORE_ALL
from txlog.engine.folds.watermark import PAYLOAD_VERSION, START, Snapshot, encode_snapshot
from txlog.engine.model.ops import (
    ClockNoted,
    CursorOpened,
    PartitionsAdded,
    SettingSet,
    WatermarkSnapshot,
)
from txlog.engine.plan.clock_trust import ClockVerdict, judge
from txlog.engine.view.view import View
from txlog.errors import LimitExceeded, NotAllowed, NotFound

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
            payload = encode_snapshot(Snapshot(PAYLOAD_VERSION, START, state))
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
