"""Policies: a subscription's own, and those that a topic inherits from its namespace and the store.

A subscription's own; each may be set, changed or removed (spec/transactions 3 and 9.1):

    ack_timeout_ms       a message not acknowledged for this long is delivered again
    nack_delay_ms        a negatively acknowledged message comes again after this
    nack_backoff_max_ms  the delay doubles with each redelivery, up to this
    max_redeliver_count  a message redelivered more often goes to the dead-letter topic
    dead_letter_topic, retry_topic   names, else <topic>-<subscription>-DLQ and -RETRY
    split_batches        1: clients of the server that acknowledge a batch as a whole get each of
                         its messages alone; the server sets it for such a client with transactions

Inherited ones, in five families. A topic takes each one that it does not have from its namespace,
and that from the store. A scope that loses a policy inherits again; the store goes back to the
default (spec/delayed 9 and 10; spec/watermarks 11):

    DELAYED      active, tick_time_ms, strict: which types wait, and how early a message may be
                 max_delivery_delay_ms    a longer delay is refused; 0: any
                 fixed_delivery_delay_ms  the delay of every message; 0: the requested delay
                 ttl_from                 publish or deliver_at: from when a time to live counts
    RETENTION    retention_ms, retention_bytes, retention_acked, ttl_ms: which messages are kept,
                 and how long they wait; compaction_threshold_bytes: when a topic is compacted by
                 key (plan/policies), shown as None where there is no bound; and ttl_from
    WATERMARK    the policies of plan/policies, named without their `watermark_`
    SCHEMA       compatibility, validation: of the schemas of topics (plan/records)
    ALERT        thresholds of a subscription's backlog, named without their `alert_`; None: no
                 alert. A subscription's own override its topic's
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from txlog.base.ids import TopicName
from txlog.base.settings import (
    ALERT_POLICIES,
    CHOICES,
    INSTANT_MS_MAX,
    SWITCHES,
    UNLIMITED,
    WATERMARK_POLICIES,
    Settings,
    check_setting,
)
from txlog.engine.decide.draft import Decision
from txlog.engine.folds.catalog import Subscription, Topic
from txlog.engine.model.ops import (
    NamespacePolicySet,
    Op,
    PolicySet,
    SettingSet,
    SubscriptionPolicySet,
)
from txlog.engine.plan.derived import DEAD, DERIVED, derived_topic
from txlog.engine.plan.lookup import subscription as find_subscription
from txlog.engine.plan.lookup import topic as find_topic
from txlog.engine.plan.policies import ACTIVE, FIXED_DELAY, MAX_DELAY, STRICT, TICK_TIME, TTL_FROM
from txlog.engine.view import View
from txlog.errors import InvalidArgument

Policies = Mapping[str, int | str | None]
SPLIT_BATCHES: Final = "split_batches"
LEAST: Final = {
    "ack_timeout_ms": 1000, "nack_delay_ms": 0, "nack_backoff_max_ms": 0, "max_redeliver_count": 0,
    SPLIT_BATCHES: 0, **dict.fromkeys(ALERT_POLICIES, UNLIMITED),
}  # fmt: skip
TOPICS = {kind.policy: kind.suffix for kind in DERIVED if kind.policy is not None}


# --- of a subscription -----------------------------------------------------------------------


def policy_ops(
    subscription: int, topic: str, name: str, policies: Policies
) -> list[SubscriptionPolicySet]:
    """The ops of policies of a subscription; topic: its full name. Raises InvalidArgument."""
    for policy, value in policies.items():
        _check(policy, value)
        if policy in TOPICS and isinstance(value, str) and TopicName.parse(value).full == topic:
            raise InvalidArgument(
                f"{policy} is the topic itself: its messages would come again forever",
                hint="name another topic",
                topic=TopicName.parse(topic).short,
            )
    if policies.get("max_redeliver_count") is not None:
        derived_topic(topic, name, DEAD)  # a name that is too long is refused now
    return [SubscriptionPolicySet(subscription, *item) for item in policies.items()]


def _check(policy: str, value: int | str | None) -> None:
    if policy in TOPICS:
        if value is not None:
            if not isinstance(value, str):
                raise InvalidArgument(f"{policy} is {value!r}, it must be a topic", code=203)
            TopicName.parse(value).check_new()
        return
    if policy not in LEAST:
        raise InvalidArgument(
            f"{policy} is not a policy of subscriptions", hint=", ".join([*LEAST, *TOPICS])
        )
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidArgument(f"{policy} is {value!r}, it must be an integer", code=203)
    if not LEAST[policy] <= value <= INSTANT_MS_MAX:
        raise InvalidArgument(f"{policy} is {value}, the least is {LEAST[policy]}", code=203)


def set_policies(
    view: View, topic: Topic, subscription: Subscription, policies: Policies
) -> Decision[dict[str, int | str]]:
    """Decide policies of a subscription, None to remove one; answers all that it then has."""
    ops = policy_ops(subscription.number, topic.name, subscription.name, policies)
    merged = {**subscription.policies, **policies}
    answer = {name: value for name, value in merged.items() if value is not None}
    changed = [op for op in ops if subscription.policies.get(op.name) != op.value]
    return Decision([*changed], None, True, answer)


# --- inherited -------------------------------------------------------------------------------

Value = int | str  # the value of a policy: a switch is a bool, some are words
OPEN_TRANSACTION_CHECKS: Final = ("count", "refuse", "off")


class _PolicyName(NamedTuple):
    """How a policy is named in the catalog and in the settings of the store.

    words: its possible values; the catalog has the index of one
    """

    policy: str
    setting: str
    words: tuple[str, ...] = ()

    @property
    def is_switch(self) -> bool:
        return self.setting in SWITCHES


class PolicyGroup(NamedTuple):
    """Policies that are set together; noun: their subject."""

    noun: str
    names: Mapping[str, _PolicyName]


DELAYED: Final = PolicyGroup(
    "delayed delivery",
    {
        "active": _PolicyName(ACTIVE, ACTIVE),
        "tick_time_ms": _PolicyName(TICK_TIME, TICK_TIME),
        "strict": _PolicyName(STRICT, STRICT),
        "max_delivery_delay_ms": _PolicyName(MAX_DELAY, MAX_DELAY),
        "fixed_delivery_delay_ms": _PolicyName(FIXED_DELAY, FIXED_DELAY),
        "ttl_from": _PolicyName(TTL_FROM, "ttl_from", CHOICES["ttl_from"]),
    },
)
_RETENTION: Final = ("retention_ms", "retention_bytes", "ttl_ms", "compaction_threshold_bytes")
_UNBOUND: Final = (*_RETENTION, *ALERT_POLICIES)
RETENTION: Final = PolicyGroup(
    "retention",
    {
        **{name: _PolicyName(name, name) for name in (*_RETENTION, "retention_acked")},
        "ttl_from": DELAYED.names["ttl_from"],
    },
)
WATERMARK: Final = PolicyGroup(
    "watermarks",
    {
        name.removeprefix("watermark_"): _PolicyName(
            name, name, OPEN_TRANSACTION_CHECKS if name.endswith("_check") else ()
        )
        for name in WATERMARK_POLICIES
    },
)
SCHEMA: Final = PolicyGroup(
    "schemas",
    {
        name.removeprefix("schema_"): _PolicyName(name, name, CHOICES[name])
        for name in ("schema_compatibility", "schema_validation")
    },
)
ALERT: Final = PolicyGroup(
    "alerts", {name.removeprefix("alert_"): _PolicyName(name, name) for name in ALERT_POLICIES}
)


class PolicyScope(msgspec.Struct, frozen=True, gc=False):
    """Whose policies: a topic's, a namespace's (tenant/namespace), or with neither the store's.

    subscription: of the topic; it may have alerts of its own
    """

    topic: TopicName | None = None
    namespace: str | None = None
    subscription: str | None = None


class ScopedPolicies(msgspec.Struct, frozen=True, gc=False):
    """The policies in effect in a scope; origins: whose each is: subscription, topic, namespace
    or store.
    """

    scope: PolicyScope
    policies: dict[str, Value | None]
    origins: dict[str, str]
    changed: bool = False


def scope_of(
    topic: str | None, namespace: str | None, subscription: str | None = None
) -> PolicyScope:
    """The scope named; raises InvalidArgument (201 for two, 202 for a bad name)."""
    if topic is None:
        if subscription is not None:
            raise InvalidArgument(
                f"the topic of subscription {subscription} is missing", hint="name it with --topic"
            )
        return PolicyScope(namespace=None if namespace is None else _namespace(namespace))
    if namespace is not None:
        raise InvalidArgument("a topic and a namespace are given", hint="name one of them")
    return PolicyScope(topic=TopicName.parse(topic), subscription=subscription)


def _namespace(text: str) -> str:
    """A namespace as the catalog names it; raises InvalidArgument (202)."""
    if text.count("/") != 1:
        raise InvalidArgument(
            f"{text!r} is not a namespace", code=202, hint="write TENANT/NAMESPACE"
        )
    name = TopicName.parse(f"{text}/any")
    return f"{name.tenant}/{name.namespace}"


def get_policies(
    view: View, settings: Settings, family: PolicyGroup, scope: PolicyScope
) -> ScopedPolicies:
    """The policies in effect in a scope. Raises TopicNotFound, SubscriptionNotFound."""
    return _effective(view, settings, family, scope, _found(view, scope), {})


class _Found(NamedTuple):
    """The topic and subscription that a scope names, from the catalog."""

    topic: Topic | None = None
    subscription: Subscription | None = None


def _found(view: View, scope: PolicyScope) -> _Found:
    if scope.topic is None:
        return _Found()
    topic = find_topic(view, scope.topic)
    if scope.subscription is None:
        return _Found(topic)
    return _Found(topic, find_subscription(view, topic, scope.subscription))


def own_policies(view: View, topic: Topic) -> dict[str, Value | None]:
    """All policies set for a topic itself; names in families as users write them."""
    by_policy = {
        names.policy: (name, names)
        for family in (DELAYED, RETENTION, WATERMARK, SCHEMA, ALERT)
        for name, names in family.names.items()
    }
    out: dict[str, Value | None] = {}
    for policy, value in view.catalog.policies.get(topic.number, {}).items():
        name, names = by_policy.get(policy, (policy, _PolicyName(policy, policy)))
        out[name] = _said(names, value)
    return out


def set_scoped_policies(
    view: View,
    settings: Settings,
    family: PolicyGroup,
    scope: PolicyScope,
    values: Mapping[str, Value],
) -> Decision[ScopedPolicies]:
    """Decide policies of a scope; answers the resulting ScopedPolicies.

    raises: InvalidArgument, LimitExceeded, TopicNotFound
    """
    stored = {name: _stored(family, name, value) for name, value in values.items()}
    return _decided(view, settings, family, scope, stored)


def remove_policies(
    view: View, settings: Settings, family: PolicyGroup, scope: PolicyScope, names: Collection[str]
) -> Decision[ScopedPolicies]:
    """Decide that a scope inherits these policies (none named: all); as set_scoped_policies."""
    for name in names:
        _name(family, name)
    return _decided(view, settings, family, scope, dict.fromkeys(names or family.names))


def _decided(
    view: View,
    settings: Settings,
    family: PolicyGroup,
    scope: PolicyScope,
    stored: Mapping[str, int | None],
) -> Decision[ScopedPolicies]:
    """stored: the values as the catalog has them, None: inherit."""
    target = _found(view, scope)
    ops: list[Op] = []
    for name, value in stored.items():
        ops += _op(view, settings, scope, target, family.names[name], value)
    answer = _effective(view, settings, family, scope, target, stored)
    return Decision(ops, None, True, msgspec.structs.replace(answer, changed=bool(ops)))


def _op(
    view: View,
    settings: Settings,
    scope: PolicyScope,
    found: _Found,
    names: _PolicyName,
    value: int | None,
) -> list[Op]:
    """The ops that give a scope this value; empty if it has the value."""
    topic, subscription = found
    if subscription is not None:
        if subscription.policies.get(names.policy) == value:
            return []
        return [SubscriptionPolicySet(subscription.number, names.policy, value)]
    if topic is not None:
        if view.catalog.policies.get(topic.number, {}).get(names.policy) == value:
            return []
        return [PolicySet(topic.number, names.policy, value)]
    if scope.namespace is not None:
        if view.catalog.namespace_policies.get(scope.namespace, {}).get(names.policy) == value:
            return []
        return [NamespacePolicySet(scope.namespace, names.policy, value)]
    setting = _default(names) if value is None else value
    if names.setting in CHOICES:
        word = names.words[setting]
        same = word == getattr(settings, names.setting)
        return [] if same else [SettingSet(names.setting, word)]
    same = setting == getattr(settings, names.setting)
    return [] if same else [SettingSet(names.setting, setting)]


def _effective(
    view: View,
    settings: Settings,
    family: PolicyGroup,
    scope: PolicyScope,
    found: _Found,
    changes: Mapping[str, int | None],
) -> ScopedPolicies:
    """The policies in effect in a scope after its own changes."""
    topic, subscription = found
    namespace = scope.namespace
    if topic is not None:
        name_of = TopicName.parse(topic.name)
        namespace = f"{name_of.tenant}/{name_of.namespace}"
    levels: list[tuple[str, Mapping[str, Any]]] = []
    if subscription is not None:
        levels.append(("subscription", subscription.policies))
    if topic is not None:
        levels.append(("topic", view.catalog.policies.get(topic.number, {})))
    if namespace is not None:
        levels.append(("namespace", view.catalog.namespace_policies.get(namespace, {})))
    policies: dict[str, Value | None] = {}
    origins: dict[str, str] = {}
    for name, names in family.names.items():
        values_set: list[tuple[str, int]] = []
        for at, (origin, values) in enumerate(levels):
            value = values.get(names.policy)
            if at == 0 and name in changes:
                value = changes[name]
            if value is not None:
                values_set.append((origin, value))
        of_store = _of_store(settings, names)
        if not levels and name in changes:
            changed = changes[name]
            of_store = _default(names) if changed is None else changed
        values_set.append(("store", of_store))
        origins[name], value = values_set[0]
        policies[name] = _said(names, value)
    return ScopedPolicies(scope, policies, origins)


def _default(names: _PolicyName) -> int:
    return _of_store(Settings(), names)


def _of_store(settings: Settings, names: _PolicyName) -> int:
    """The value of a setting, in the form that a policy has in the catalog."""
    value: Value = getattr(settings, names.setting)
    return names.words.index(value) if isinstance(value, str) else int(value)


def _said(names: _PolicyName, value: int) -> Value | None:
    """A catalog value as users write it."""
    if names.policy in _UNBOUND and value == UNLIMITED:
        return None
    if names.words:
        return names.words[value]
    return bool(value) if names.is_switch else value


def _stored(family: PolicyGroup, name: str, value: object) -> int:
    """A user's value as the catalog has it; raises InvalidArgument."""
    names = _name(family, name)
    if names.is_switch:
        if value not in (0, 1) or isinstance(value, float):
            raise InvalidArgument(
                f"{name} is {value!r}, it must be true or false", setting=name, value=value
            )
        return int(bool(value))
    if names.words:
        if value not in names.words:
            *others, last = names.words
            choices = f"{', '.join(others)} or {last}"
            raise InvalidArgument(f"{name} is {value!r}, it must be {choices}", setting=name)
        return names.words.index(str(value))
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidArgument(f"{name} is {value!r}, it must be an integer", setting=name)
    return check_setting(names.setting, value)


def _name(family: PolicyGroup, name: str) -> _PolicyName:
    names = family.names.get(name)
    if names is None:
        raise InvalidArgument(
            f"{name} is not a policy of {family.noun}", hint=", ".join(family.names)
        )
    return names


assert set(WATERMARK.names) == {
    "snapshot_bytes_max",
    "snapshot_entries_max",
    "snapshot_markers_max",
    "producers_max",
    "producer_idle_timeout_ms",
    "emit_interval_ms",
    "open_transaction_check",
}
