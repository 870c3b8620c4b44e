"""Owns Census: which topics and subscriptions there are, and who is told when that changes.

    a commit ─► the store is looked at, a few times a second at most ─► Census, if it is another one
             ─► who is to know: clients that watch, or whose topic or subscription is gone

It does not matter who changed it: a client, a command, another process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from txlog.engine.door.reading import until_told
from txlog.engine.door.store import View
from txlog.errors import TxlogError
from txlog.serve.core.service import Service

GAP_SECONDS: Final = 0.05  # between looks at a store that is written to all the time
AGAIN_SECONDS: Final = 1.0  # after one that failed, and may be repeated


class Census(NamedTuple):
    """Which topics and subscriptions there are, by their numbers, which are not used again.

    stamp:  another one if there are others
    topics: name and partitions of each
    """

    stamp: tuple[int, ...]
    topics: dict[int, tuple[str, int]]
    subscriptions: frozenset[int]

    @classmethod
    def of(cls, view: View) -> Census:
        """Take it."""
        catalog = view.catalog
        topics = {one.number: (one.name, one.partitions) for one in catalog.topics.values()}
        return cls(_stamp(view), topics, frozenset(catalog.subscriptions))

    def lacks_topic(self, number: int) -> bool:
        """Whether a topic is gone; one that came after the census is not."""
        return number < self.stamp[0] and number not in self.topics

    def lacks_subscription(self, number: int) -> bool:
        """The same of a subscription."""
        return number < self.stamp[2] and number not in self.subscriptions


def _stamp(view: View) -> tuple[int, ...]:
    one = view.catalog  # numbers only grow, so what came and went shows
    known = len(one.topics), len(one.subscriptions)
    return one.next_topic, one.next_partition, one.next_subscription, *known


async def follow(service: Service, told: Callable[[Census], Awaitable[None]]) -> None:
    """Tell of each change, until it is cancelled, or the store cannot be read any more."""
    store, waits = service.store.store, service.client.waits
    seen: tuple[int, ...] = ()
    while True:
        looks = 0

        def look(_: bool, seen: tuple[int, ...] = seen) -> Census | bool | None:
            nonlocal looks
            looks += 1
            if store.read(_stamp) == seen:
                return False if looks > 1 else None  # nothing, though something was told
            return store.read(Census.of, fresh=False)

        try:
            found = await waits.until(look, None, until_told)
        except TxlogError as error:
            service.failed(error)
            if not error.retryable:
                return
            await asyncio.sleep(AGAIN_SECONDS)
            continue
        if isinstance(found, Census):
            seen = found.stamp
            await told(found)
        await asyncio.sleep(GAP_SECONDS)
