"""Expiry: the time to live of topics, applied when somebody looks and behind each checkpoint.

Nothing runs in the background: a message past its time stays in a backlog until a consumer of the
subscription asks for more, a checkpoint is written, or somebody says so.
"""

from __future__ import annotations

from collections.abc import Sequence

from txlog.engine.decide.consuming.skip import expire
from txlog.engine.plan.policies import retention_policy
from txlog.engine.store.store import Store
from txlog.engine.view.view import View
from txlog.settings import Settings

Pair = tuple[int, int]


def expire_due(store: Store, pairs: Sequence[Pair] | None = None, *, fresh: bool = True) -> int:
    """Acknowledge what is past the time to live, and say how many messages that was.

    pairs: (topic, subscription) numbers, None for all; a store that may not be written is left
    fresh: follow the journal first
    cost:  a look at a policy for topics without a time to live, else at one row a partition
    """
    if store.disk.read_only and not store.dry_run:
        return 0

    def due(view: View) -> list[Pair]:
        asked = pairs if pairs is not None else [
            (held.topic, held.number) for held in view.catalog.subscriptions.values()
        ]  # fmt: skip
        timed = [pair for pair in asked if _is_timed(view, store.settings, pair[0])]
        now = store.clock.now()
        return [pair for pair in timed if expire(view, store.settings, now, [pair]).ops]

    wanted = store.read(due, fresh=fresh)
    if not wanted:
        return 0
    answer = store.write(lambda view, now: expire(view, store.settings, now, wanted))
    assert isinstance(answer, int)
    return answer


def _is_timed(view: View, settings: Settings, number: int) -> bool:
    topic = view.catalog.topics.get(number)
    return topic is not None and retention_policy(view, settings, topic).ttl_ms is not None
