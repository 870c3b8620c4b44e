"""Policies of delayed delivery: those of the topic, else of its namespace, else of the store.

Source: spec/delayed-delivery 1, 10; in Pulsar delayedDeliveryTickTimeMillis and its kin.
"""

from __future__ import annotations

import msgspec

from txlog.engine.folds.catalog import Topic, policies_of
from txlog.engine.view.view import View
from txlog.settings import Settings

# Names as in the catalog; values are integers, switches 0 and 1.
ACTIVE = "delayed_delivery_active"
TICK_TIME = "tick_time_ms"
STRICT = "deliver_at_time_strict"
MAX_DELAY = "max_delivery_delay_ms"
FIXED_DELAY = "fixed_delivery_delay_ms"
TTL_FROM = "ttl_from_deliver_at"
_FAR = 1 << 62


class DelayPolicy(msgspec.Struct, frozen=True, gc=False):
    """What holds for a topic; active False: nothing of it waits."""

    active: bool
    tick_time_ms: int
    strict: bool
    max_delivery_delay_ms: int
    fixed_delivery_delay_ms: int
    is_ttl_from_deliver_at: bool

    def cutoff(self, now_ms: int) -> int:
        """What is due: messages whose time is at most this."""
        return min(now_ms if self.strict else now_ms + self.tick_time_ms, _FAR)


def delay_policy(view: View, settings: Settings, topic: Topic) -> DelayPolicy:
    """The policies of a topic."""
    known = policies_of(view.catalog, topic).get
    return DelayPolicy(
        bool(known(ACTIVE, settings.delayed_delivery_active)),
        known(TICK_TIME, settings.tick_time_ms),
        bool(known(STRICT, settings.deliver_at_time_strict)),
        known(MAX_DELAY, settings.max_delivery_delay_ms),
        known(FIXED_DELAY, settings.fixed_delivery_delay_ms),
        bool(known(TTL_FROM, settings.ttl_from == "deliver_at")),
    )
