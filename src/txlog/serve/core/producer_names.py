"""Owns ProducerNames: the producers that are connected to this server, by topic and name.

The store knows exclusive producers, because they hold a lock there
(engine/decide/sending/producers). Shared producers leave no trace in the store before they send. So
this module has the rules between the two.

    shared     refused while a producer waits to be exclusive; the store refuses it if the topic has
               an exclusive producer
    exclusive  refused if the topic has any other producer
    waiting    waits until the topic has no other producer
    fencing    closes the other producers

Producers of Pulsar's binary protocol and of its WebSocket protocol are registered here. REST has
none: each request is a transaction of its own, as in Pulsar, and only the store can refuse it.

A name belongs to its newest holder: when an older holder leaves later, the name stays in use.

Source: Pulsar's AbstractTopic.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Final

from txlog.base.ids import TopicName
from txlog.errors import ProducerBusy, ProducerFenced, TxlogError

SHARED: Final = "shared"
EXCLUSIVE: Final = "exclusive"
WAITING: Final = "wait-for-exclusive"
FENCING: Final = "exclusive-with-fencing"


class NameHolder:
    """A client's producer that is connected, or about to be.

    topic:      in full
    name:       in the store
    mode:       its access mode
    close:      begins to close it in favour of another producer; an opening is cancelled with this
                error
    is_waiting: it is not exclusive yet
    is_leaving: it is being closed
    is_free:    set once another producer may have its name
    """

    def __init__(
        self, topic: str, name: str, mode: str, close: Callable[[TxlogError], object]
    ) -> None:
        self.topic, self.name, self.mode, self.close = topic, name, mode, close
        self.is_waiting = mode == WAITING
        self.is_leaving = False
        self.is_free = asyncio.Event()


class ProducerNames:
    """The holder of each name, by topic."""

    def __init__(self) -> None:
        self._topics: dict[str, dict[str, NameHolder]] = {}

    def take(self, holder: NameHolder, *, comes_again: bool) -> NameHolder | None:
        """Take a name at once, so that another client cannot; returns its previous holder.

        comes_again: the client had this producer before, so the holder on its old connection is
                     closed
        raises:      ProducerBusy: the name is in use, or a producer waits to be exclusive;
                     ProducerFenced: the topic has other producers, and `holder` is exclusive
        """
        short = TopicName.parse(holder.topic).short
        previous = self._topics.get(holder.topic, {}).get(holder.name)
        if previous is not None and not (comes_again or previous.is_leaving):
            raise ProducerBusy(f"producer {holder.name} of {short} is connected")
        others = [*self._others(holder)]
        if holder.mode == EXCLUSIVE and others:
            raise ProducerFenced(f"topic {short} has other producers, so none may be exclusive")
        if holder.mode == SHARED and any(other.is_waiting for other in others):
            raise ProducerBusy(f"a producer of topic {short} waits to be exclusive")
        self._topics.setdefault(holder.topic, {})[holder.name] = holder
        return previous

    async def replace(self, previous: NameHolder) -> None:
        """Close the previous holder, unless it is closing already, and wait until it has left."""
        if not previous.is_leaving:
            previous.close(
                ProducerBusy(f"producer {previous.name} has reconnected by another connection")
            )
        await previous.is_free.wait()

    async def wait_until_alone(self, holder: NameHolder) -> None:
        """Wait until the topic has no other producers except those that wait, too."""
        while others := [other for other in self._others(holder) if not other.is_waiting]:
            await others[0].is_free.wait()

    def close_others(self, holder: NameHolder) -> None:
        """Close the other producers of the topic, after `holder` has fenced them."""
        for other in list(self._others(holder)):
            other.close(ProducerFenced(f"producer {holder.name} has taken over the topic"))

    def free(self, holder: NameHolder) -> None:
        """Unregister a producer; its name is free unless a newer producer has it."""
        holder.is_free.set()
        names = self._topics.get(holder.topic, {})
        if names.get(holder.name) is holder:
            del names[holder.name]
            if not names:
                del self._topics[holder.topic]

    def _others(self, holder: NameHolder) -> Iterator[NameHolder]:
        for other in self._topics.get(holder.topic, {}).values():
            if other.name != holder.name:
                yield other
