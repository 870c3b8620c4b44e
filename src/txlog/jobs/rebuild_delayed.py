"""Owns the job `rebuild-delayed`: the index of delayed messages, made anew from the log.

The engine finds the messages that have a time; buckets and frames are written as by
`txlog delay rebuild`.
"""

from __future__ import annotations

from typing import Any

from txlog.api.client import Client
from txlog.jobs.engine import Engine, Tell, silent

Answer = dict[str, Any]


def rebuild_delayed(
    client: Client, topic: str, engine: Engine, *, dry_run: bool = False, tell: Tell = silent
) -> Answer:
    """Rebuild the index of a topic; returns and raises as `client.topic(topic).rebuild`."""
    handle = client.topic(topic)
    tell(f"{topic}: looking for delayed messages")
    searches = None if dry_run else engine.searches(client, topic)
    tell(f"{topic}: writing buckets")
    return handle.rebuild(dry_run=dry_run, searches=searches)
