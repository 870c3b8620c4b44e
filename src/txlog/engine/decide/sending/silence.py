"""Silent producers: those silent for too long are declared idle, by an ordinary row.

    watermark_producer_idle_timeout_ms   policy of a topic, its namespace or the store; 0: never

The sweep before a writing call looks for them (store/sweeper). Silence is counted by the wall clock
from the frame with a producer's last watermark row in a partition; a producer with rows in an open
transaction is not silent. An unavailable partition is left alone until it is back.
Source: spec/watermarks 10.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from txlog.base.settings import Settings
from txlog.clock import Instant
from txlog.engine.decide.draft import Draft
from txlog.engine.folds.catalog import Topic, numbers
from txlog.engine.model.ops import WatermarkIdled
from txlog.engine.plan.policies import policy
from txlog.engine.view.view import View
from txlog.errors import Corruption

TIMEOUT: Final = "watermark_producer_idle_timeout_ms"
BY_TIMEOUT: Final = "timeout"
RETRY_MS: Final = 1_000  # while something delays an overdue producer
LOOK_MS_MAX: Final = 60_000  # between two looks, because the wall clock may be set
NEVER_MS: Final = 1 << 62


class SilentProducers(NamedTuple):
    """(partition, producer) to be declared idle, and after how many ms there may be others."""

    silent: list[tuple[int, str]]
    again_ms: int


def silent_producers(
    view: View, settings: Settings, now_ms: int, *, bounded: bool = True
) -> SilentProducers:
    """The producers silent for as long as the topic's policy says.

    bounded: at most sweep_max of them, and from at most sweep_max partitions that may have one; the
             starting point moves as the journal grows
    cost: loads the watermarks of these partitions and reads no row; without the policy it loads no
        fold
    """
    limits = _limits(view, settings)
    if not limits:
        return SilentProducers([], NEVER_MS)
    again_ms = min(LOOK_MS_MAX, *limits)  # a producer that begins now is not silent before that
    watched: list[tuple[int, int]] = []
    for topic in _topics(view, settings):
        if limit_ms := policy(view, settings, topic, TIMEOUT):
            watched += [(number, limit_ms) for number in _used(view, topic)]
    most = settings.sweep_max
    if bounded and len(watched) > most:
        start = view.lsn % len(watched)
        watched = (watched[start:] + watched[:start])[:most]
        again_ms = min(again_ms, RETRY_MS)
    silent: list[tuple[int, str]] = []
    for number, limit_ms in watched:
        try:
            state = view.watermark(number)
        except Corruption:
            continue  # readers of this partition get the error; other calls must not fail
        busy = {name for effects in state.pending.values() for name in effects}
        for name, active in state.state.active.items():
            left_ms = active.time_ms + limit_ms - now_ms
            if left_ms > 0:
                again_ms = min(again_ms, left_ms)
            elif name in busy:
                again_ms = min(again_ms, RETRY_MS)
            elif not bounded or len(silent) < most:
                silent.append((number, name))
    return SilentProducers(silent, again_ms)


def _limits(view: View, settings: Settings) -> list[int]:
    """The values of the policy in all scopes."""
    catalog = view.catalog
    scopes = [*catalog.namespace_policies.values(), *catalog.policies.values()]
    values = [getattr(settings, TIMEOUT), *(scope.get(TIMEOUT, 0) for scope in scopes)]
    return [limit_ms for limit_ms in values if limit_ms]


def _topics(view: View, settings: Settings) -> Iterable[Topic]:
    """Topics that may have the policy."""
    catalog = view.catalog
    of_namespaces = catalog.namespace_policies.values()
    if getattr(settings, TIMEOUT) or any(TIMEOUT in scope for scope in of_namespaces):
        return catalog.topics.values()
    return [
        catalog.topics[number] for number, scope in catalog.policies.items() if TIMEOUT in scope
    ]


def _used(view: View, topic: Topic) -> Iterator[int]:
    away = view.catalog.unavailable
    for number in numbers(topic):
        if number not in away and view.exists(("watermark", number, 0)):
            yield number


def declare_idle(draft: Draft, silent: Iterable[tuple[int, str]]) -> None:
    """Add the W_IDLE rows."""
    for number, name in silent:
        where = draft.take_entries(number, "p", 1)
        draft.ops.append(WatermarkIdled(number, *where, name, BY_TIMEOUT))


def is_silence_due(view: View, settings: Settings, now: Instant) -> bool:
    """True when a sweep would declare a producer idle."""
    if view.no_silence_before(now):
        return False
    look = silent_producers(view, settings, now.wall_ms)
    if not look.silent:
        view.note_silence(now, look.again_ms)
    return bool(look.silent)
