"""Policies of a topic, a namespace, the store, as the API answers them: the keys are what the
commands print.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from txlog.engine.flow.scoped_policies import (
    Family,
    Scope,
    ScopedPolicies,
    Value,
    get_policies,
    remove_policies,
    scope_of,
    set_policies,
)
from txlog.engine.store import Store
from txlog.looking import look

Answer = dict[str, Any]


def get(store: Store, family: Family, topic: str | None, namespace: str | None) -> Answer:
    """What holds for a topic, a namespace, the store; {topic, namespace, policies, origins}."""
    scope = scope_of(topic, namespace)
    return _answer(look(store, lambda view: get_policies(view, store.settings, family, scope)))


def change(
    store: Store, family: Family, topic: str | None, namespace: str | None,
    values: Mapping[str, Value | None],
) -> Answer:  # fmt: skip
    """Set policies, those that are not None; as get, and changed."""
    scope = scope_of(topic, namespace)
    given = {name: value for name, value in values.items() if value is not None}
    return _changed(
        store.write(lambda view, now: set_policies(view, store.settings, family, scope, given))
    )


def remove(
    store: Store, family: Family, topic: str | None, namespace: str | None, names: Collection[str]
) -> Answer:
    """Inherit policies again, all if none is named; as change."""
    scope = scope_of(topic, namespace)
    return _changed(
        store.write(lambda view, now: remove_policies(view, store.settings, family, scope, names))
    )


def _changed(answer: object) -> Answer:
    assert isinstance(answer, ScopedPolicies)
    return {**_answer(answer), "changed": answer.changed}


def _answer(found: ScopedPolicies) -> Answer:
    scope: Scope = found.scope
    return {
        "topic": None if scope.topic is None else scope.topic.short,
        "namespace": scope.namespace, "policies": found.policies, "origins": found.origins,
    }  # fmt: skip
