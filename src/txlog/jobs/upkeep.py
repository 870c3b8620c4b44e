"""Owns the job `compact`: the sidecars of a topic in the order of commits, without dead rows.

The engine reads and sorts; each row is compared with what the sidecar goes by, then files and one
frame a ledger are written as by `txlog admin compact`, refused if a source changed meanwhile.

Owns the job `rebuild-delayed`: the index of delayed messages, made anew from the log.

The engine finds the messages that have a time; buckets and frames are written as by
`txlog delay rebuild`.
"""

from __future__ import annotations

from typing import Any

from txlog.api.client import Client
from txlog.jobs.engine import Engine, Tell, silent

Answer = dict[str, Any]


def compact(
    client: Client, topic: str, engine: Engine, *, dry_run: bool = False, tell: Tell = silent
) -> Answer:
    """Compact the sidecars of a topic; returns and raises as `client.admin.compact`."""
    tell(f"{topic}: compacting")
    arrange = None if dry_run else engine.arrange(client)
    return client.admin.compact(topic, dry_run=dry_run, arrange=arrange)


def rebuild_delayed(
    client: Client, topic: str, engine: Engine, *, dry_run: bool = False, tell: Tell = silent
) -> Answer:
    """Rebuild the index of a topic; returns and raises as `client.topic(topic).rebuild`."""
    handle = client.topic(topic)
    tell(f"{topic}: looking for delayed messages")
    searches = None if dry_run else engine.searches(client, topic)
    tell(f"{topic}: writing buckets")
    return handle.rebuild(dry_run=dry_run, searches=searches)
