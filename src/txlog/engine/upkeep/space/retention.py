"""Retention: trimming partitions, by a bound when somebody asks, by the topics' policies otherwise.

A trim is one frame (flow/trim.py). Its files lose their names at the next checkpoint and go after
the grace of readers, or at once on a full disk (R18).
"""

from __future__ import annotations

from functools import partial

from txlog.clock import Instant
from txlog.engine.decide.draft import Decision
from txlog.engine.decide.topics.trim import TrimAnswer, trim
from txlog.engine.plan.lookup import topic as find_topic
from txlog.engine.plan.policies import retention_policy
from txlog.engine.store.store import Store
from txlog.engine.view.view import View
from txlog.ids import TopicName
from txlog.ranges import Bound


def trim_topic(
    store: Store, name: TopicName, to: Bound | None, *, force_unacked: bool, dry_run: bool
) -> TrimAnswer:
    """Trim a topic up to a bound, or by its policies; dry_run: only say what would go.

    raises: Refused (902), TopicNotFound, and what a bound raises
    """

    def decide(view: View, now: Instant) -> Decision:
        topic = find_topic(view, name)
        return trim(view, store.settings, now, topic, to, force_unacked=force_unacked)

    if dry_run:
        answer = store.read(lambda view: decide(view, store.clock.now())).answer
    else:
        answer = store.write(decide)
    assert isinstance(answer, TrimAnswer)
    return answer


def trim_by_policies(store: Store) -> int:
    """Trim every topic that has policies, as far as all of it is acknowledged; returns ledgers."""

    def decision(view: View, now: Instant, number: int) -> Decision:
        topic = view.catalog.topics.get(number)
        if topic is None:
            return Decision([])
        return trim(view, store.settings, now, topic, None, careful=True)

    def wanted(view: View) -> list[int]:
        return [
            number for number, topic in view.catalog.topics.items()
            if retention_policy(view, store.settings, topic).lets_go
        ]  # fmt: skip

    def is_due(view: View, number: int) -> bool:
        return bool(decision(view, store.clock.now(), number).ops)

    ledgers = 0
    for number in store.read(wanted):  # one by one: callers of this process come in between
        if not store.read(partial(is_due, number=number), fresh=False):
            continue
        answer = store.write(lambda view, now, number=number: decision(view, now, number))  # type: ignore[misc]
        if isinstance(answer, TrimAnswer):
            ledgers += answer.total("ledgers")
    return ledgers
