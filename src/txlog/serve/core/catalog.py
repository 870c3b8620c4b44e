"""Owns CatalogSnapshot: the topics and subscriptions of the store, and a watch for their changes.

    a change ─► the watch reads the catalog, at most 20 times a second ─► a snapshot, if the
                catalog differs ─► clients that watch topics, or whose topic or subscription was
                deleted or renamed

The watch sees changes by clients, by commands and by other processes alike.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from txlog.engine.door.facts import CATALOG
from txlog.engine.door.reading import REST_SECONDS_MAX, Concern, Quiet
from txlog.engine.door.store import View
from txlog.errors import TxlogError
from txlog.serve.core.service import BrokerService

PAUSE_SECONDS: Final = 0.05  # between two reads of a store with steady writes
RETRY_SECONDS: Final = 1.0  # after a read that failed with a retryable error


class CatalogSnapshot(NamedTuple):
    """The topics and subscriptions at one moment, by their numbers, which are never reused.

    stamp:  differs between different catalogs
    topics: name and number of partitions of each
    """

    stamp: tuple[int, ...]
    topics: dict[int, tuple[str, int]]
    subscriptions: frozenset[int]

    @classmethod
    def of(cls, view: View) -> CatalogSnapshot:
        """The snapshot of a view."""
        catalog = view.catalog
        topics = {topic.number: (topic.name, topic.partitions) for topic in catalog.topics.values()}
        return cls(_version(view), topics, frozenset(catalog.subscriptions))

    @property
    def renames(self) -> int:
        """How often a topic was renamed."""
        return self.stamp[-1]

    def lacks_topic(self, number: int, name: str) -> bool:
        """Whether a topic was deleted or renamed; False for a topic newer than the snapshot."""
        if number >= self.stamp[0]:
            return False
        return number not in self.topics or self.topics[number][0] != name

    def lacks_subscription(self, number: int) -> bool:
        """Whether a subscription was deleted; False for one newer than the snapshot."""
        return number < self.stamp[2] and number not in self.subscriptions


def _version(view: View) -> tuple[int, ...]:
    catalog = view.catalog  # numbers only grow, so a create or delete always changes them
    counts = len(catalog.topics), len(catalog.subscriptions), catalog.renames
    return catalog.next_topic, catalog.next_partition, catalog.next_subscription, *counts


async def watch_catalog(
    service: BrokerService, on_change: Callable[[CatalogSnapshot], Awaitable[None]]
) -> None:
    """Call a function with a snapshot now and after each change, until a read fails for good."""
    store, waits = service.store.store, service.client.waits
    seen: tuple[int, ...] = ()
    lsn = 0  # of the last look

    def rest(pause: float) -> Quiet:
        return Quiet(REST_SECONDS_MAX, concern=Concern(lsn, frozenset([CATALOG])))

    while True:
        looks = 0

        def look(_: bool, seen: tuple[int, ...] = seen) -> CatalogSnapshot | bool | None:
            nonlocal looks, lsn
            looks += 1
            lsn, version = store.read(lambda view: (view.lsn, _version(view)))
            if version == seen:
                return False if looks > 1 else None  # woken, but nothing has changed
            return store.read(CatalogSnapshot.of, fresh=False)

        try:
            snapshot = await waits.until(look, None, rest)
        except TxlogError as error:
            service.failed(error)
            if not error.retryable:
                return
            await asyncio.sleep(RETRY_SECONDS)
            continue
        if isinstance(snapshot, CatalogSnapshot):
            seen = snapshot.stamp
            await on_change(snapshot)
        await asyncio.sleep(PAUSE_SECONDS)
