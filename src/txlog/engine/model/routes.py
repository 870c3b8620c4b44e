"""Which folds take an op: the bases of the op classes.

A component is one fold of a store: (kind, number, number), the numbers being a partition, a
coordinator, or a subscription and a partition. The folds of an op follow from the op alone, so a
replay needs to load no fold that the frames do not change.

Most ops have a *home*, a fold that takes every op of the class, and only some of these classes have
others: the view asks only for the home where the class has no `others`. `components` returns all.

A *facet* is a part of a component that a consumer may wait for: messages that return to a cursor,
the consumers of a subscription. It has a name like a component, and an op names the facet that it
changes.
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
    """The facet of a cursor with the ops that may return sent messages to a consumer.

    Acknowledging and leasing are not in it: both only leave fewer messages for other consumers. But
    while an open transaction has pending messages, which its time-out returns, the facet is the
    whole cursor.
    """
    return (RETURNS, subscription, partition)


def peers(subscription: int) -> Component:
    """The facet of waits that end when a peer dies; no op changes it."""
    return ("peers", subscription, 0)


def members(subscription: int) -> Component:
    """The facet of the catalog with the consumers of a subscription."""
    return ("members", subscription, 0)


class Routed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An op whose folds depend on its content: it names them itself."""


class OfCatalog(Routed, frozen=True):
    """An op that the catalog takes."""

    def home(self) -> Component:
        """The fold that takes every such op."""
        return CATALOG

    def components(self) -> tuple[Component, ...]:
        """All folds that take it."""
        return (CATALOG,)


class OfMembers(OfCatalog, frozen=True):
    """An op that changes the consumers of a subscription, and nothing else in the catalog."""

    def facet(self: _OfSubscription) -> Component:
        """The part of the catalog that it changes."""
        return members(self.subscription)


class OfFiles(Routed, frozen=True):
    """An op that no fold takes: it changes which file a ledger has."""

    def components(self) -> tuple[Component, ...]:
        """All folds that take it."""
        return (FILES,)


class OfCoordinator(Routed, frozen=True):
    """An op that a coordinator takes."""

    def home(self: _Coordinated) -> Component:
        """The fold that takes every such op."""
        return ("coordinator", self.coordinator, 0)

    def components(self: _Coordinated) -> tuple[Component, ...]:
        """All folds that take it."""
        return (("coordinator", self.coordinator, 0),)


class OfKey(Routed, frozen=True):
    """An op that the keys of a coordinator take."""

    def home(self: _Coordinated) -> Component:
        """The fold that takes every such op."""
        return ("key", self.coordinator, 0)

    def components(self: _Coordinated) -> tuple[Component, ...]:
        """All folds that take it."""
        return (("key", self.coordinator, 0),)


class OfTopic(Routed, frozen=True):
    """An op that a partition takes."""

    def home(self: _Partitioned) -> Component:
        """The fold that takes every such op."""
        return ("topic", self.partition, 0)

    def components(self: _Partitioned) -> tuple[Component, ...]:
        """All folds that take it."""
        return (("topic", self.partition, 0),)


class OfBuffer(Routed, frozen=True):
    """An op that a sidecar takes."""

    def home(self: _Partitioned) -> Component:
        """The fold that takes every such op."""
        return ("buffer", self.partition, 0)

    def components(self: _Partitioned) -> tuple[Component, ...]:
        """All folds that take it."""
        return (("buffer", self.partition, 0),)


class OfDelayed(Routed, frozen=True):
    """An op that the delayed index of a partition takes."""

    def components(self: _Partitioned) -> tuple[Component, ...]:
        """All folds that take it."""
        return (("delayed", self.partition, 0),)


class OfCursor(Routed, frozen=True):
    """An op that a cursor takes."""

    def home(self: _Subscribed) -> Component:
        """The fold that takes every such op."""
        return ("cursor", self.subscription, self.partition)

    def components(self: _Subscribed) -> tuple[Component, ...]:
        """All folds that take it."""
        return (("cursor", self.subscription, self.partition),)


class OfReturns(OfCursor, frozen=True):
    """An op after which a consumer may get messages that it could not get before."""

    def facet(self: _Subscribed) -> Component:
        """The part of the cursor that it changes."""
        return returns(self.subscription, self.partition)


class OfTopicAndWatermark(Routed, frozen=True):
    """A row about watermarks: a partition and its watermark take it."""

    def components(self: _Partitioned) -> tuple[Component, ...]:
        """All folds that take it."""
        return (("topic", self.partition, 0), ("watermark", self.partition, 0))


class OfFilesAndDelayed(Routed, frozen=True):
    """An op that replaces files of a delayed index."""

    def components(self: _Partitioned) -> tuple[Component, ...]:
        """All folds that take it."""
        return (FILES, ("delayed", self.partition, 0))


def beside(partition: int, delayed: int, watermarks: object) -> tuple[Component, ...]:
    """The folds concerned with a transaction's delayed messages and watermarks."""
    folds: tuple[Component, ...] = (("delayed", partition, 0),) if delayed else ()
    return (*folds, ("watermark", partition, 0)) if watermarks else folds
