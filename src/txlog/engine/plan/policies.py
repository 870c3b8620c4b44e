"""Which policy applies: the topic's, else its namespace's, else the store's.

Delayed delivery (spec/delayed 1, 10): as delayedDeliveryTickTimeMillis and its peers in Pulsar.

Retention: as Pulsar's retention-policies and message-ttl. UNLIMITED ends the search, as a number
does, so a topic can keep everything although its namespace has a bound.

    retention_ms, retention_bytes   ledgers whose newest message is older are trimmed, and ledgers
                                    beyond so many newer bytes
    retention_acked                 ledgers that every subscription has acknowledged are trimmed
    ttl_ms                          older messages are acknowledged (decide/consuming/position)
    compaction_threshold_bytes      a topic is compacted by key when it received so many bytes since
                                    the last compaction, like compaction-threshold in Pulsar

Watermarks (spec/watermarks 7, 11):

    watermark_snapshot_bytes_max, watermark_snapshot_entries_max, watermark_snapshot_markers_max
        once so much was appended since a partition's last snapshot, the next row gets one before it
    watermark_producers_max            the most producers, also of open transactions; 0: no bound
    watermark_producer_idle_timeout_ms a producer silent for this long is declared idle, 0: never
    watermark_open_transaction_check   count, refuse or off (0, 1, 2 as a policy)
    watermark_emit_interval_ms         least time between two events of a consumer
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import msgspec

from txlog.base.settings import UNLIMITED, WATERMARK_POLICIES, Settings
from txlog.engine.folds.catalog import Topic, numbers, policies_of, topic_of
from txlog.engine.view import View

# Names as in the catalog; values are integers, switches 0 and 1.
ACTIVE = "delayed_delivery_active"
TICK_TIME = "tick_time_ms"
STRICT = "deliver_at_time_strict"
MAX_DELAY = "max_delivery_delay_ms"
FIXED_DELAY = "fixed_delivery_delay_ms"
TTL_FROM = "ttl_from_deliver_at"
_FAR = 1 << 62
Known: TypeAlias = Callable[[str, int], Any]


# --- delayed delivery ------------------------------------------------------------------------


class DelayPolicy(msgspec.Struct, frozen=True, gc=False):
    """The delay policies of a topic; active False: no message waits."""

    active: bool
    tick_time_ms: int
    strict: bool
    max_delivery_delay_ms: int
    fixed_delivery_delay_ms: int
    is_ttl_from_deliver_at: bool

    def cutoff(self, now_ms: int) -> int:
        """The cutoff: messages with a time up to this are due."""
        return min(now_ms if self.strict else now_ms + self.tick_time_ms, _FAR)


def delay_policy(view: View, settings: Settings, topic: Topic) -> DelayPolicy:
    """The delay policies that apply to a topic."""
    return _policies(view, settings, topic).delay


class _Policies(NamedTuple):
    """The policies of a topic under these settings, valid until a policy changes."""

    settings: Settings
    topic: Topic
    delay: DelayPolicy
    retention: RetentionPolicy


def _policies(view: View, settings: Settings, topic: Topic) -> _Policies:
    """Every send calls this and policies change seldom, so the view caches the result."""
    cached: _Policies | None = view.policies.get(topic.number)
    if cached is None or cached.topic is not topic or cached.settings is not settings:
        lookup = policies_of(view.catalog, topic).get
        cached = _Policies(settings, topic, _delay(lookup, settings), _retention(lookup, settings))
        view.policies[topic.number] = cached
    return cached


def _delay(lookup: Known, settings: Settings) -> DelayPolicy:
    return DelayPolicy(
        bool(lookup(ACTIVE, settings.delayed_delivery_active)),
        lookup(TICK_TIME, settings.tick_time_ms),
        bool(lookup(STRICT, settings.deliver_at_time_strict)),
        lookup(MAX_DELAY, settings.max_delivery_delay_ms),
        lookup(FIXED_DELAY, settings.fixed_delivery_delay_ms),
        bool(lookup(TTL_FROM, settings.ttl_from == "deliver_at")),
    )


# --- retention -------------------------------------------------------------------------------


class RetentionPolicy(msgspec.Struct, frozen=True, gc=False):
    """The retention policies of a topic; None: no bound."""

    retention_ms: int | None
    retention_bytes: int | None
    retention_acked: bool
    ttl_ms: int | None

    @property
    def lets_go(self) -> bool:
        """True when ledgers may be trimmed without a command."""
        bounds = (self.retention_ms, self.retention_bytes)
        return self.retention_acked or any(bound is not None for bound in bounds)


def retention_policy(view: View, settings: Settings, topic: Topic) -> RetentionPolicy:
    """The retention policies that apply to a topic."""
    return _policies(view, settings, topic).retention


def _retention(lookup: Known, settings: Settings) -> RetentionPolicy:
    def bound(name: str, otherwise: int) -> int | None:
        value = lookup(name, otherwise)
        return None if value == UNLIMITED else value

    return RetentionPolicy(
        bound("retention_ms", settings.retention_ms),
        bound("retention_bytes", settings.retention_bytes),
        bool(lookup("retention_acked", settings.retention_acked)),
        bound("ttl_ms", settings.ttl_ms),
    )


def is_compaction_due(view: View, settings: Settings, topic: Topic) -> bool:
    """True when a topic received at least its threshold of bytes since it was compacted by key.

    The estimate assumes that the bytes of a ledger are spread evenly over its entries.
    """
    name = "compaction_threshold_bytes"
    threshold: int = policies_of(view.catalog, topic).get(name, getattr(settings, name))
    if threshold == UNLIMITED:
        return False
    size = 0
    for number in numbers(topic):
        state = view.topic(number)
        at, entry = (-1, -1) if state.compaction is None else state.compaction.horizon
        for end in state.ledgers:
            if end.ledger > at:
                size += end.payload_bytes
            elif end.ledger == at and end.entries:
                size += end.payload_bytes * (end.entries - 1 - entry) // end.entries
    return size >= max(1, threshold)


# --- watermarks ------------------------------------------------------------------------------

SNAPSHOT_SHARE = 10  # at least this many times a snapshot's size is appended before the next one


def policy(view: View, settings: Settings, topic: Topic, name: str) -> int:
    """The value for a topic; name: one of WATERMARK_POLICIES."""
    value = policies_of(view.catalog, topic).get(name)
    return getattr(settings, name) if value is None else value


def is_snapshot_due(view: View, settings: Settings, partition: int) -> bool:
    """True when enough was appended to a partition since its last snapshot."""
    state = view.watermark(partition)
    since = state.since
    if not since.moves:
        return False
    end = view.topic(partition).ledgers[-1]
    is_here = since.ledger == end.ledger
    size = end.payload_bytes - (since.ledger_bytes if is_here else 0)
    if size < SNAPSHOT_SHARE * since.size:
        return False
    entries = end.entries - (since.entry + 1 if is_here else 0)
    topic = topic_of(view.catalog, partition)
    bounds = ("bytes", size), ("entries", entries), ("markers", since.moves)
    return any(
        count >= policy(view, settings, topic, f"watermark_snapshot_{unit}_max")
        for unit, count in bounds
    )


assert all(hasattr(Settings(), name) for name in WATERMARK_POLICIES)
