"""Tells when the tasks of an asynchronous client wait."""

from __future__ import annotations

import asyncio

import txlog.aio


def tasks_at_rest(client: txlog.aio.Client) -> int:
    """How many tasks of a client wait for a change."""
    return sum(not future.done() for future in client.waits._resting)


async def at_rest(client: txlog.aio.Client, count: int) -> None:
    """Wait until `count` tasks wait and the client looks up nothing."""
    while tasks_at_rest(client) < count or client.waits._news.task is not None:
        await asyncio.sleep(0)
