"""Setting the policies of delayed delivery: of a topic, of a namespace, of the store.

    active           false: everybody gets everything at once
    tick_time_ms     least time between wake-ups of a timer; how early it may be if not strict
    strict           never early
    max_delivery_delay_ms    a longer delay is refused; 0: any
    fixed_delivery_delay_ms  what every message is delayed by; 0: what it asks for
    ttl_from         publish or deliver_at: from when the topic's time to live counts

A topic inherits each one that it does not have from its namespace, that from the store; whoever
loses a policy inherits again, and the store goes back to the default. Source: spec 9, 10.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

import msgspec

from txlog.engine.flow.delay_policy import (
    ACTIVE,
    FIXED_DELAY,
    MAX_DELAY,
    STRICT,
    TICK_TIME,
    TTL_FROM,
)
from txlog.engine.flow.draft import Decision
from txlog.engine.flow.lookup import topic as find_topic
from txlog.engine.folds.catalog import Topic
from txlog.engine.model.ops import NamespacePolicySet, Op, PolicySet, SettingSet
from txlog.engine.view import View
from txlog.errors import InvalidArgument
from txlog.ids import TopicName
from txlog.settings import CHOICES, Settings, check_setting

Value = int | str  # of a policy: a switch is a bool, ttl_from a word


class _Name(NamedTuple):
    """How a policy is named in the catalog and in the settings of the store."""

    policy: str
    setting: str


NAMES: Final = {
    "active": _Name(ACTIVE, ACTIVE),
    "tick_time_ms": _Name(TICK_TIME, TICK_TIME),
    "strict": _Name(STRICT, STRICT),
    "max_delivery_delay_ms": _Name(MAX_DELAY, MAX_DELAY),
    "fixed_delivery_delay_ms": _Name(FIXED_DELAY, FIXED_DELAY),
    "ttl_from": _Name(TTL_FROM, "ttl_from"),
}
SWITCHES: Final = ("active", "strict")


class Scope(msgspec.Struct, frozen=True, gc=False):
    """Whose policies: a topic's, a namespace's (tenant/namespace), or with neither the store's."""

    topic: TopicName | None = None
    namespace: str | None = None


class DelayedPolicies(msgspec.Struct, frozen=True, gc=False):
    """What holds in a scope, and which scope each comes from: topic, namespace or store."""

    scope: Scope
    policies: dict[str, Value]
    origins: dict[str, str]
    changed: bool = False


def scope_of(topic: str | None, namespace: str | None) -> Scope:
    """The scope that is named; raises InvalidArgument (201 for both, 202 for a bad name)."""
    if topic is None:
        return Scope(namespace=None if namespace is None else _namespace(namespace))
    if namespace is not None:
        raise InvalidArgument("a topic and a namespace are given", hint="name one of them")
    return Scope(topic=TopicName.parse(topic))


def _namespace(text: str) -> str:
    """A namespace as the catalog names it; raises InvalidArgument (202)."""
    if text.count("/") != 1:
        raise InvalidArgument(
            f"{text!r} is not a namespace", code=202, hint="write TENANT/NAMESPACE"
        )
    name = TopicName.parse(f"{text}/any")
    return f"{name.tenant}/{name.namespace}"


def get_policies(view: View, settings: Settings, scope: Scope) -> DelayedPolicies:
    """What holds in a scope. Raises TopicNotFound."""
    topic = None if scope.topic is None else find_topic(view, scope.topic)
    return _effective(view, settings, scope, topic, {})


def own_policies(view: View, topic: Topic) -> dict[str, Value]:
    """Everything that was set for a topic itself, those of delayed delivery as people say them."""
    said = {known.policy: name for name, known in NAMES.items()}
    out: dict[str, Value] = {}
    for policy, value in view.catalog.policies.get(topic.number, {}).items():
        name = said.get(policy)
        out[policy if name is None else name] = value if name is None else _said(name, value)
    return out


def set_policies(
    view: View, settings: Settings, scope: Scope, values: Mapping[str, Value]
) -> Decision:
    """Decide policies of a scope; answers DelayedPolicies as they are then.

    raises: InvalidArgument, LimitExceeded, TopicNotFound
    """
    return _decided(view, settings, scope, {name: _stored(name, values[name]) for name in values})


def remove_policies(
    view: View, settings: Settings, scope: Scope, names: Collection[str]
) -> Decision:
    """Decide that a scope inherits these policies (none named: all); answers as set_policies."""
    for name in names:
        _check_name(name)
    return _decided(view, settings, scope, dict.fromkeys(names or NAMES))


def _decided(
    view: View, settings: Settings, scope: Scope, wanted: Mapping[str, int | None]
) -> Decision:
    """wanted: the values as the catalog has them, None: inherit."""
    topic = None if scope.topic is None else find_topic(view, scope.topic)
    ops: list[Op] = []
    for name, value in wanted.items():
        ops += _op(view, settings, scope, topic, name, value)
    answer = _effective(view, settings, scope, topic, wanted)
    return Decision(ops, None, True, msgspec.structs.replace(answer, changed=bool(ops)))


def _op(
    view: View, settings: Settings, scope: Scope, topic: Topic | None, name: str, value: int | None
) -> list[Op]:
    """What gives a scope this value, nothing if it has it."""
    known = NAMES[name]
    if topic is not None:
        if view.catalog.policies.get(topic.number, {}).get(known.policy) == value:
            return []
        return [PolicySet(topic.number, known.policy, value)]
    if scope.namespace is not None:
        if view.catalog.namespace_policies.get(scope.namespace, {}).get(known.policy) == value:
            return []
        return [NamespacePolicySet(scope.namespace, known.policy, value)]
    setting = _default(name) if value is None else _said(name, value)
    if setting == getattr(settings, known.setting):
        return []
    return [SettingSet(known.setting, int(setting) if name in SWITCHES else setting)]


def _effective(
    view: View, settings: Settings, scope: Scope, topic: Topic | None,
    changes: Mapping[str, int | None],
) -> DelayedPolicies:  # fmt: skip
    """What holds in a scope after changes of its own."""
    namespace = scope.namespace
    if topic is not None:
        name_of = TopicName.parse(topic.name)
        namespace = f"{name_of.tenant}/{name_of.namespace}"
    levels: list[tuple[str, Mapping[str, int]]] = []
    if topic is not None:
        levels.append(("topic", view.catalog.policies.get(topic.number, {})))
    if namespace is not None:
        levels.append(("namespace", view.catalog.namespace_policies.get(namespace, {})))
    policies: dict[str, Value] = {}
    origins: dict[str, str] = {}
    for name, known in NAMES.items():
        found: list[tuple[str, Value]] = []
        for at, (origin, values) in enumerate(levels):
            value = values.get(known.policy)
            if at == 0 and name in changes:
                value = changes[name]
            if value is not None:
                found.append((origin, _said(name, value)))
        of_store: Value = getattr(settings, known.setting)
        if not levels and name in changes:
            changed = changes[name]
            of_store = _default(name) if changed is None else _said(name, changed)
        found.append(("store", of_store))
        origins[name], policies[name] = found[0]
    return DelayedPolicies(scope, policies, origins)


def _default(name: str) -> Value:
    value: Value = getattr(Settings(), NAMES[name].setting)
    return value


def _said(name: str, value: int) -> Value:
    """A value as people say it, of one as the catalog has it."""
    if name == "ttl_from":
        return CHOICES["ttl_from"][value]
    return bool(value) if name in SWITCHES else value


def _stored(name: str, value: object) -> int:
    """A value as the catalog has it, of one that was given; raises InvalidArgument."""
    _check_name(name)
    if name in SWITCHES:
        if value not in (0, 1) or isinstance(value, float):
            raise InvalidArgument(
                f"{name} is {value!r}, it must be true or false", setting=name, value=value
            )
        return int(bool(value))
    if name == "ttl_from":
        if value not in CHOICES["ttl_from"]:
            words = " or ".join(CHOICES["ttl_from"])
            raise InvalidArgument(f"{name} is {value!r}, it must be {words}", setting=name)
        return CHOICES["ttl_from"].index(str(value))
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidArgument(f"{name} is {value!r}, it must be an integer", setting=name)
    return check_setting(NAMES[name].setting, value)


def _check_name(name: str) -> None:
    if name not in NAMES:
        raise InvalidArgument(f"{name} is not a policy of delayed delivery", hint=", ".join(NAMES))
