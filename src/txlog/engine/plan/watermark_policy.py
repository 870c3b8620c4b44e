"""Policies of watermarks: those of the topic, else of its namespace, else of the store.

    watermark_snapshot_bytes_max, watermark_snapshot_entries_max, watermark_snapshot_markers_max
        appended to a partition since its last snapshot: then the next row has one before it
    watermark_producers_max            names a partition waits for or may, 0 lifts the bound
    watermark_producer_idle_timeout_ms a producer silent for so long is declared idle, 0: never
    watermark_open_transaction_check   count, refuse or off (0, 1, 2 as a policy)
    watermark_emit_interval_ms         least time between two events of a consumer

Source: spec/watermarks 7, 11.
"""

from __future__ import annotations

from txlog.engine.folds.catalog import Topic, policies_of, topic_of
from txlog.engine.view.view import View
from txlog.settings import WATERMARK_POLICIES, Settings

SNAPSHOT_SHARE = 10  # so many times its own size lie between a snapshot and the next


def policy(view: View, settings: Settings, topic: Topic, name: str) -> int:
    """What holds for a topic; name: one of WATERMARK_POLICIES."""
    found = policies_of(view.catalog, topic).get(name)
    return getattr(settings, name) if found is None else found


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
        count >= policy(view, settings, topic, f"watermark_snapshot_{what}_max")
        for what, count in bounds
    )


assert all(hasattr(Settings(), name) for name in WATERMARK_POLICIES)
