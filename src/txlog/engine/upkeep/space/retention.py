"""Retention and expiry: messages are removed only when a policy or a user asks for it.

A trim is one frame (decide/topics/ledgers). The next checkpoint no longer names its files; they are
removed after the grace period of readers, or at once on a full disk (R18). A message past its time
to live stays in the backlog until the subscription's consumer receives, a checkpoint is written, or
a user expires it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from txlog.base.ids import TopicName
from txlog.base.ranges import Bound
from txlog.base.settings import Settings
from txlog.clock import Instant
from txlog.engine.decide.consuming.position import expire
from txlog.engine.decide.draft import Decision
from txlog.engine.decide.topics.ledgers import TrimAnswer, trim
from txlog.engine.plan.lookup import topic as find_topic
from txlog.engine.plan.policies import retention_policy
from txlog.engine.store.store import Store
from txlog.engine.view import View

# --- trimming --------------------------------------------------------------------------------


def trim_topic(
    store: Store, name: TopicName, to: Bound | None, *, force_unacked: bool, dry_run: bool
) -> TrimAnswer:
    """Trim a topic up to a bound, or by its policies; dry_run: only return the result.

    raises: Refused (902), TopicNotFound, and the errors of resolving a bound
    """

    def decide(view: View, now: Instant) -> Decision[TrimAnswer]:
        topic = find_topic(view, name)
        return trim(view, store.settings, now, topic, to, force_unacked=force_unacked)

    if dry_run:
        return store.read(lambda view: decide(view, store.clock.now()).answered())
    return store.write(decide)


def trim_by_policies(store: Store) -> int:
    """Trim topics by their policies, up to the first unacknowledged message; counts the ledgers."""

    def decision(view: View, now: Instant, number: int) -> Decision[TrimAnswer]:
        topic = view.catalog.topics.get(number)
        if topic is None:
            return Decision([])
        return trim(view, store.settings, now, topic, None, careful=True)

    def wanted(view: View) -> list[int]:
        return [
            number
            for number, topic in view.catalog.topics.items()
            if retention_policy(view, store.settings, topic).lets_go
        ]

    def is_due(view: View, number: int) -> bool:
        return bool(decision(view, store.clock.now(), number).ops)

    ledgers = 0
    for number in store.read(wanted):  # one by one, so that other calls get their turn
        if not store.read(partial(is_due, number=number), fresh=False):
            continue
        answer = store.write(lambda view, now, number=number: decision(view, now, number))  # type: ignore[misc]
        if isinstance(answer, TrimAnswer):
            ledgers += answer.total("ledgers")
    return ledgers


# --- expiry ----------------------------------------------------------------------------------

Pair = tuple[int, int]


def expire_due(store: Store, pairs: Sequence[Pair] | None = None, *, fresh: bool = True) -> int:
    """Acknowledge messages past their time to live; returns how many, 0 in a read-only store.

    pairs: (topic, subscription) numbers; None: all
    fresh: follow the journal first
    cost:  a policy lookup for topics without a time to live, else one row per partition
    """
    if store.disk.read_only and not store.dry_run:
        return 0

    def due(view: View) -> list[Pair]:
        candidates = (
            pairs
            if pairs is not None
            else [
                (subscription.topic, subscription.number)
                for subscription in view.catalog.subscriptions.values()
            ]
        )
        timed = [pair for pair in candidates if is_timed(view, store.settings, pair[0])]
        now = store.clock.now()
        return [pair for pair in timed if expire(view, store.settings, now, [pair]).ops]

    due_pairs = store.read(due, fresh=fresh)
    if not due_pairs:
        return 0
    answer = store.write(lambda view, now: expire(view, store.settings, now, due_pairs))
    return answer


def is_timed(view: View, settings: Settings, number: int) -> bool:
    """True when the messages of a topic have a time to live."""
    topic = view.catalog.topics.get(number)
    return topic is not None and retention_policy(view, settings, topic).ttl_ms is not None
