"""Which folds take an op: the bases of the op classes.

A component is one fold of a store: (kind, number, number), the numbers being a partition, a
coordinator, or a subscription and a partition. The folds of an op follow from the op alone, so a
replay needs to load no fold that the frames do not change.

Most ops have a *home*, the fold that takes each of them, and only some of these have others: what
hands out ops asks for the home alone where the class has no `others`. `components` are all.

A *facet* is a part of a component that somebody may wait for: what comes back to a cursor, who the
consumers of a subscription are. It has a name like a component, and an op says whether it is of it.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

Component = tuple[str, int, int]

CATALOG: Component = ("catalog", 0, 0)
FILES: Component = ("files", 0, 0)
RETURNS = "returns"


class _Partitioned(Protocol):
    @property
    def partition(self) -> int: ...


class _Coordinated(Protocol):
    @property
    def coordinator(self) -> int: ...


class _Subscribed(Protocol):
    @property
    def subscription(self) -> int: ...
    @property
    def partition(self) -> int: ...


class _OfSubscription(Protocol):
    @property
    def subscription(self) -> int: ...


def returns(subscription: int, partition: int) -> Component:
    """The facet of a cursor after which a consumer may get a message that nobody has sent.

    Without what acknowledges and what hands out: both only leave less to the others. But as long as
    an open transaction holds something, which its time-out gives back, it is all of the cursor.
    """
    return (RETURNS, subscription, partition)


def peers(subscription: int) -> Component:
    """What a consumer waits for that a peer's death ends; no op is of it, as nobody writes it."""
    return ("peers", subscription, 0)


def members(subscription: int) -> Component:
    """The facet of the catalog that says which consumers a subscription has."""
    return ("members", subscription, 0)


class Routed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An op whose folds depend on what it holds: it names them itself."""


class OfCatalog(Routed, frozen=True):
    """An op that the catalog takes."""

    def home(self) -> Component:
        """The fold that takes it in any case."""
        return CATALOG

    def components(self) -> tuple[Component, ...]:
        """Which folds take it."""
        return (CATALOG,)


class OfMembers(OfCatalog, frozen=True):
    """An op that changes who consumes a subscription, and nothing else in the catalog."""

    def facet(self: _OfSubscription) -> Component:
        """What of the catalog it changes."""
        return members(self.subscription)


class OfFiles(Routed, frozen=True):
    """An op that no fold takes: it changes which file a ledger has."""

    def components(self) -> tuple[Component, ...]:
        """Which folds take it."""
        return (FILES,)


class OfCoordinator(Routed, frozen=True):
    """An op that a coordinator takes."""

    def home(self: _Coordinated) -> Component:
        """The fold that takes it in any case."""
        return ("coordinator", self.coordinator, 0)

    def components(self: _Coordinated) -> tuple[Component, ...]:
        """Which folds take it."""
        return (("coordinator", self.coordinator, 0),)


class OfKey(Routed, frozen=True):
    """An op that the keys of a coordinator take."""

    def home(self: _Coordinated) -> Component:
        """The fold that takes it in any case."""
        return ("key", self.coordinator, 0)

    def components(self: _Coordinated) -> tuple[Component, ...]:
        """Which folds take it."""
        return (("key", self.coordinator, 0),)


class OfTopic(Routed, frozen=True):
    """An op that a partition takes."""

    def home(self: _Partitioned) -> Component:
        """The fold that takes it in any case."""
        return ("topic", self.partition, 0)

    def components(self: _Partitioned) -> tuple[Component, ...]:
        """Which folds take it."""
        return (("topic", self.partition, 0),)


class OfBuffer(Routed, frozen=True):
    """An op that a sidecar takes."""

    def home(self: _Partitioned) -> Component:
        """The fold that takes it in any case."""
        return ("buffer", self.partition, 0)

    def components(self: _Partitioned) -> tuple[Component, ...]:
        """Which folds take it."""
        return (("buffer", self.partition, 0),)


class OfDelayed(Routed, frozen=True):
    """An op that the delayed index of a partition takes."""

    def components(self: _Partitioned) -> tuple[Component, ...]:
        """Which folds take it."""
        return (("delayed", self.partition, 0),)


class OfCursor(Routed, frozen=True):
    """An op that a cursor takes."""

    def home(self: _Subscribed) -> Component:
        """The fold that takes it in any case."""
        return ("cursor", self.subscription, self.partition)

    def components(self: _Subscribed) -> tuple[Component, ...]:
        """Which folds take it."""
        return (("cursor", self.subscription, self.partition),)


class OfReturns(OfCursor, frozen=True):
    """An op after which a consumer may get what it could not have before."""

    def facet(self: _Subscribed) -> Component:
        """What of the cursor it changes."""
        return returns(self.subscription, self.partition)


class OfTopicAndWatermark(Routed, frozen=True):
    """A row about watermarks: a partition and its watermark take it."""

    def components(self: _Partitioned) -> tuple[Component, ...]:
        """Which folds take it."""
        return (("topic", self.partition, 0), ("watermark", self.partition, 0))


class OfFilesAndDelayed(Routed, frozen=True):
    """An op that replaces files of a delayed index."""

    def components(self: _Partitioned) -> tuple[Component, ...]:
        """Which folds take it."""
        return (FILES, ("delayed", self.partition, 0))


def beside(partition: int, delayed: int, watermarks: object) -> tuple[Component, ...]:
    """The folds concerned with what a transaction has besides messages."""
    found: tuple[Component, ...] = (("delayed", partition, 0),) if delayed else ()
    return (*found, ("watermark", partition, 0)) if watermarks else found
