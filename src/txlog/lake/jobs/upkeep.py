"""Owns the jobs `compact` and `rebuild-delayed`: upkeep with an engine that reads and sorts.

The engine's result is checked row by row against the store's own records. Files and frames are then
written as by `txlog admin compact` and `txlog delay rebuild`, and refused if a source changed
meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from txlog.client.client import Client
from txlog.lake.jobs.engine import Engine, Tell, silent

if TYPE_CHECKING:
    from txlog.base.rows.delayed import IndexRebuilt
    from txlog.base.rows.space import Compacted


def compact(
    client: Client, topic: str, engine: Engine, *, dry_run: bool = False, tell: Tell = silent
) -> Compacted:
    """Compact the sidecars of a topic; returns and raises as `client.admin.compact`."""
    tell(f"{topic}: compacting")
    arrange = None if dry_run else engine.arrange(client)
    return client.admin.compact(topic, dry_run=dry_run, arrange=arrange)


def rebuild_delayed(
    client: Client, topic: str, engine: Engine, *, dry_run: bool = False, tell: Tell = silent
) -> IndexRebuilt:
    """Rebuild the delayed index of a topic; returns and raises as `client.topic(topic).rebuild`."""
    handle = client.topic(topic)
    tell(f"{topic}: looking for delayed messages")
    searches = None if dry_run else engine.searches(client, topic)
    tell(f"{topic}: writing buckets")
    return handle.rebuild(dry_run=dry_run, searches=searches)
