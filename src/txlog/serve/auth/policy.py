"""Owns the access rules: which role may do what, and where.

    produce, consume    on topics
    admin               everything below a resource, and its settings
    look                names and figures. A role with any right at a topic may look at its
                        namespace and tenant; lists there contain only topics that it may look
                        at. The store itself needs a rule for the whole store

A resource is the store, a tenant, a namespace or a topic: a tuple of zero to three names. A rule
names a resource and covers everything below it.

    *                   the store
    acme/*              a tenant
    acme/shop/*         a namespace
    acme/shop/orders    a topic
    acme/shop/or*       the topics with this prefix
    orders, or*         a topic of public/default, or the topics with this prefix
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from txlog.base.ids import NAMESPACE_DEFAULT, TENANT_DEFAULT, TopicName, check_name
from txlog.base.suggest import suggestion
from txlog.errors import InvalidArgument

PRODUCE: Final = "produce"
CONSUME: Final = "consume"
ADMIN: Final = "admin"
LOOK: Final = "look"
ACTIONS: Final = (PRODUCE, CONSUME, ADMIN, LOOK)
ROLES_MAX: Final = 10_000
ROLE_BYTES_MAX: Final = 256
PLACES_MAX: Final = 1_000  # for one role and action

Resource = tuple[str, ...]
STORE: Final[Resource] = ()
_KINDS: Final = ("tenant", "namespace", "topic")


def is_role(role: object) -> bool:
    """Whether a value can be a role: printable text of at most 256 bytes, without spaces at its
    ends.

    Transactions record the role, and an `&` would end the name of a key's owner in metrics.
    """
    if not isinstance(role, str) or not 0 < len(role) <= ROLE_BYTES_MAX:
        return False
    if not role.isprintable() or "&" in role or role != role.strip():
        return False
    return len(role.encode()) <= ROLE_BYTES_MAX


class ResourcePattern(NamedTuple):
    """The resource of a rule: whole names, then the prefix of a name."""

    names: Resource
    beginning: str | None

    def covers(self, resource: Resource) -> bool:
        """Whether the rule applies to a resource."""
        count = len(self.names)
        if resource[:count] != self.names:
            return False
        if self.beginning is None:
            return True
        return len(resource) > count and resource[count].startswith(self.beginning)

    def reaches(self, resource: Resource) -> bool:
        """Whether the rule applies to anything at or below a resource."""
        shared = min(len(self.names), len(resource))
        if resource[:shared] != self.names[:shared]:
            return False
        return len(resource) <= len(self.names) or self.covers(resource)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessPolicy:
    """The rules of all roles; superusers may do everything."""

    superusers: frozenset[str] = frozenset()
    rules: Mapping[str, Mapping[str, tuple[ResourcePattern, ...]]] = field(default_factory=dict)

    def may(self, role: str, action: str, resource: Resource) -> bool:
        """Whether a role may do it; admin of a resource includes everything there."""
        if role in self.superusers:
            return True
        of = self.rules.get(role)
        if of is None:
            return False
        if action == LOOK:
            patterns_of_role = [pattern for patterns in of.values() for pattern in patterns]
            return any(
                pattern.reaches(resource) if resource else pattern.covers(resource)
                for pattern in patterns_of_role
            )
        return any(
            pattern.covers(resource) for of_action in {action, ADMIN} for pattern in of[of_action]
        )

    def acts(self, role: str) -> bool:
        """Whether a role may produce, consume or administer anything."""
        of = self.rules.get(role, {})
        return role in self.superusers or any(of.get(name) for name in (PRODUCE, CONSUME, ADMIN))


def resource_of(topic: TopicName) -> Resource:
    """A topic as a resource; its partitions share it."""
    return (topic.tenant, topic.namespace, topic.name)


def read_policy(document: Mapping[str, object], name: str) -> AccessPolicy:
    """The rules in `superusers` and `[roles.NAME]` of a file; raises InvalidArgument.

    name: the file's name in errors
    """
    superusers = _texts(document.get("superusers", []), f"{name}: superusers", ROLES_MAX)
    for role in superusers:
        _check_role(role, name)
    roles = document.get("roles", {})
    if not isinstance(roles, dict) or len(roles) > ROLES_MAX:
        raise InvalidArgument(f"{name}: roles is not a table of at most {ROLES_MAX} roles")
    rules = {}
    for role, table in roles.items():
        _check_role(role, name)
        if not isinstance(table, dict):
            raise InvalidArgument(f"{name}: roles.{role} is not a table")
        for key in table:
            if key not in ACTIONS:
                raise InvalidArgument(
                    f"{name}: roles.{role} has {key!r}, which is not an action",
                    hint=suggestion(key, ACTIONS, f"write {', '.join(ACTIONS)}"),
                )
        rules[role] = {
            action: _patterns(table.get(action, []), f"{name}: roles.{role}.{action}")
            for action in ACTIONS
        }
    return AccessPolicy(superusers=frozenset(superusers), rules=rules)


def _check_role(role: str, name: str) -> None:
    if not is_role(role):
        raise InvalidArgument(f"{name}: {role[:40]!r} is not a valid role", code=202)


def _patterns(value: object, source: str) -> tuple[ResourcePattern, ...]:
    return tuple(
        _pattern(text, f"{source}[{index}]")
        for index, text in enumerate(_texts(value, source, PLACES_MAX))
    )


def _pattern(text: str, source: str) -> ResourcePattern:
    if text == "*":
        return ResourcePattern((), None)
    names = text.removeprefix("persistent://").split("/")
    if len(names) == 1:
        names = [TENANT_DEFAULT, NAMESPACE_DEFAULT, *names]
    beginning = names.pop().removesuffix("*") if text.endswith("*") else None
    if len(names) + (beginning is not None) > len(_KINDS):
        raise InvalidArgument(f"{source} is {text!r}, it has more than tenant, namespace and topic")
    if any("*" in name for name in [*names, beginning or ""]):
        raise InvalidArgument(f"{source} is {text!r}: a * may only be at the end", code=202)
    if (len(names) < 2 and beginning) or (len(names) == 2 and beginning is None):
        raise InvalidArgument(
            f"{source} is {text!r}, which is neither a tenant, a namespace nor a topic",
            code=202,
            hint="write TENANT/*, TENANT/NAMESPACE/*, TENANT/NAMESPACE/TOPIC or TOPIC",
        )
    try:
        for kind, name in zip(_KINDS, names, strict=False):
            check_name(kind, name)
        if beginning:
            check_name("topic", beginning)
    except InvalidArgument as error:
        raise InvalidArgument(f"{source}: {error}", code=202) from error
    return ResourcePattern(tuple(names), beginning or None)


def _texts(value: object, source: str, count_max: int) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise InvalidArgument(f"{source} is not a list of texts")
    if len(value) > count_max:
        raise InvalidArgument(f"{source} has {len(value)} of them, the most are {count_max}")
    return value
