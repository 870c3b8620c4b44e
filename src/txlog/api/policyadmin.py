"""Owns PolicyAdmin: policies of a topic, a namespace, the store, as the API answers them.

The keys of the answers are what the commands print.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from txlog.arguments import checked
from txlog.engine.decide.topics.policies import (
    DELAYED,
    RETENTION,
    WATERMARK,
    Scope,
    ScopedPolicies,
    get_policies,
    remove_policies,
    scope_of,
)
from txlog.engine.decide.topics.policies import Family as PolicyFamily
from txlog.engine.decide.topics.policies import Value as PolicyValue
from txlog.engine.decide.topics.policies import (
    set_scoped_policies as set_policies,
)
from txlog.engine.store.ask import look
from txlog.engine.store.store import Store

Answer = dict[str, Any]


@checked
class PolicyAdmin:
    """The operations on policies."""

    __slots__ = ("_store",)

    def __init__(self, store: Store) -> None:
        """For Admin."""
        self._store = store

    # --- delayed delivery --------------------------------------------------------------------

    def set_delayed_policies(
        self, topic: str | None = None, namespace: str | None = None, *,
        active: bool | None = None, tick_time_ms: int | None = None, strict: bool | None = None,
        max_delivery_delay_ms: int | None = None, fixed_delivery_delay_ms: int | None = None,
        ttl_from: str | None = None,
    ) -> Answer:  # fmt: skip
        """Say how messages wait for their delivery: of a topic, a namespace, else the store.

        active:     False: everybody gets everything at once
        tick_time_ms, strict: how early a message may come, if not strict
        max_delivery_delay_ms: a longer delay is refused (InvalidMessage); 0: any
        fixed_delivery_delay_ms: every message waits so long, whatever it asks for; 0: its own
        ttl_from:   "publish" or "deliver_at": from when a message's time to live counts
        None:       as it is; a topic inherits from its namespace, that from the store
        returns:    {topic, namespace, policies, origins, changed}, what holds from now on
        raises:     TopicNotFound, InvalidArgument, LimitExceeded
        """
        given = {
            "active": active, "tick_time_ms": tick_time_ms, "strict": strict,
            "max_delivery_delay_ms": max_delivery_delay_ms,
            "fixed_delivery_delay_ms": fixed_delivery_delay_ms, "ttl_from": ttl_from,
        }  # fmt: skip
        return _change(self._store, DELAYED, topic, namespace, given)

    def get_delayed_policies(
        self, topic: str | None = None, namespace: str | None = None
    ) -> Answer:
        """What holds, and which of topic, namespace and store says so; as set_delayed_policies."""
        return _get(self._store, DELAYED, topic, namespace)

    def remove_delayed_policies(
        self, names: Collection[str] = (), topic: str | None = None, namespace: str | None = None
    ) -> Answer:
        """Inherit these policies again, all if none is named; as set_delayed_policies."""
        return _remove(self._store, DELAYED, topic, namespace, names)

    # --- retention ---------------------------------------------------------------------------

    def set_retention_policies(
        self, topic: str | None = None, namespace: str | None = None, *,
        retention_ms: int | None = None, retention_bytes: int | None = None,
        retention_acked: bool | None = None, ttl_ms: int | None = None,
        ttl_from: str | None = None,
    ) -> Answer:  # fmt: skip
        """Say what is kept, and for how long: of a topic, a namespace, else of the store.

        retention_ms, retention_bytes: ledgers whose newest message is older go, and those beyond
                    so much; never on their own with what a subscription has not acknowledged
        retention_acked: ledgers that every subscription has acknowledged go
        ttl_ms:     older messages are acknowledged; ttl_from: as set_delayed_policies
        -1:         no bound, whatever the namespace or the store say; the answer has None
        None:       as it is; a topic inherits from its namespace, that from the store
        returns:    {topic, namespace, policies, origins, changed}, what holds from now on
        raises:     TopicNotFound, InvalidArgument, LimitExceeded
        """
        given = {
            "retention_ms": retention_ms, "retention_bytes": retention_bytes,
            "retention_acked": retention_acked, "ttl_ms": ttl_ms, "ttl_from": ttl_from,
        }  # fmt: skip
        return _change(self._store, RETENTION, topic, namespace, given)

    def get_retention_policies(
        self, topic: str | None = None, namespace: str | None = None
    ) -> Answer:
        """What holds, and which of topic, namespace and store says so; as set_…_policies."""
        return _get(self._store, RETENTION, topic, namespace)

    def remove_retention_policies(
        self, names: Collection[str] = (), topic: str | None = None, namespace: str | None = None
    ) -> Answer:
        """Inherit these policies again, all if none is named; as set_retention_policies."""
        return _remove(self._store, RETENTION, topic, namespace, names)

    # --- watermarks --------------------------------------------------------------------------

    def set_watermark_policies(
        self, topic: str | None = None, namespace: str | None = None, *,
        snapshot_bytes_max: int | None = None, snapshot_entries_max: int | None = None,
        snapshot_markers_max: int | None = None, producers_max: int | None = None,
        producer_idle_timeout_ms: int | None = None, open_transaction_check: str | None = None,
        emit_interval_ms: int | None = None,
    ) -> Answer:  # fmt: skip
        """Say how watermarks are kept and given: of a topic, a namespace, else the store.

        snapshot_…: appended since the last snapshot of a partition: then the next has one before it
        producers_max: names that a partition waits for, or may; 0: any
        producer_idle_timeout_ms: a producer silent for so long is declared idle by the next call
                    that writes; 0: never
        open_transaction_check: "count", "refuse" or "off": a watermark ahead of a message in an
                    open transaction of the same producer
        emit_interval_ms: least time between two events of a consumer
        None:       as it is; a topic inherits from its namespace, that from the store
        returns:    {topic, namespace, policies, origins, changed}, what holds from now on
        raises:     TopicNotFound, InvalidArgument, LimitExceeded
        """
        given = {
            "snapshot_bytes_max": snapshot_bytes_max, "snapshot_entries_max": snapshot_entries_max,
            "snapshot_markers_max": snapshot_markers_max, "producers_max": producers_max,
            "producer_idle_timeout_ms": producer_idle_timeout_ms,
            "open_transaction_check": open_transaction_check, "emit_interval_ms": emit_interval_ms,
        }  # fmt: skip
        return _change(self._store, WATERMARK, topic, namespace, given)

    def get_watermark_policies(
        self, topic: str | None = None, namespace: str | None = None
    ) -> Answer:
        """What holds, and which of topic, namespace and store says so; as set_…_policies."""
        return _get(self._store, WATERMARK, topic, namespace)

    def remove_watermark_policies(
        self, names: Collection[str] = (), topic: str | None = None, namespace: str | None = None
    ) -> Answer:
        """Inherit these policies again, all if none is named; as set_watermark_policies."""
        return _remove(self._store, WATERMARK, topic, namespace, names)


def _get(store: Store, family: PolicyFamily, topic: str | None, namespace: str | None) -> Answer:
    """What holds for a topic, a namespace, the store; {topic, namespace, policies, origins}."""
    scope = scope_of(topic, namespace)
    return _answer(look(store, lambda view: get_policies(view, store.settings, family, scope)))


def _change(
    store: Store, family: PolicyFamily, topic: str | None, namespace: str | None,
    values: Mapping[str, PolicyValue | None],
) -> Answer:  # fmt: skip
    """Set policies, those that are not None; as get, and changed."""
    scope = scope_of(topic, namespace)
    given = {name: value for name, value in values.items() if value is not None}
    return _changed(
        store.write(lambda view, now: set_policies(view, store.settings, family, scope, given))
    )


def _remove(
    store: Store,
    family: PolicyFamily,
    topic: str | None,
    namespace: str | None,
    names: Collection[str],
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
