"""Policies of what a topic keeps: those of the topic, else of its namespace, else of the store.

    retention_ms, retention_bytes   ledgers whose newest message is older go, and those beyond so
                                    many newer bytes
    retention_acked                 ledgers that every subscription has acknowledged go
    ttl_ms                          messages that are older are acknowledged (skip.py)

UNLIMITED ends the search, as a number does: a topic keeps everything whatever its namespace says.
Source: in Pulsar retention-policies and message-ttl of topics and namespaces.
"""

from __future__ import annotations

import msgspec

from txlog.engine.folds.catalog import Topic, policies_of
from txlog.engine.view.view import View
from txlog.settings import UNLIMITED, Settings


class RetentionPolicy(msgspec.Struct, frozen=True, gc=False):
    """What holds for a topic; None: no bound."""

    retention_ms: int | None
    retention_bytes: int | None
    retention_acked: bool
    ttl_ms: int | None

    @property
    def lets_go(self) -> bool:
        """Ledgers may go on their own."""
        bounds = (self.retention_ms, self.retention_bytes)
        return self.retention_acked or any(bound is not None for bound in bounds)


def retention_policy(view: View, settings: Settings, topic: Topic) -> RetentionPolicy:
    """The policies of a topic."""
    known = policies_of(view.catalog, topic).get

    def bound(name: str, otherwise: int) -> int | None:
        value = known(name, otherwise)
        return None if value == UNLIMITED else value

    return RetentionPolicy(
        bound("retention_ms", settings.retention_ms),
        bound("retention_bytes", settings.retention_bytes),
        bool(known("retention_acked", settings.retention_acked)),
        bound("ttl_ms", settings.ttl_ms),
    )
