"""What of a transaction remains to be ended, and where that can be done now.

Nothing is flagged as done: a participant that holds nothing of the transaction any more is done.
A partition and its sidecar are one unit; they are not available while the catalog says so. A
participant that was deleted is done as well, and is named as skipped.
Source: spec/transactions 5.1, 11.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import msgspec

from txlog.engine.folds import buffer as buffers
from txlog.engine.folds import catalog as catalogs
from txlog.engine.folds import coordinator as folds_coordinator
from txlog.engine.folds.catalog import Catalog, Topic
from txlog.engine.view.view import View
from txlog.errors import PartitionUnavailable
from txlog.ids import TopicName

if TYPE_CHECKING:
    from txlog.engine.folds.buffer import Held
    from txlog.engine.folds.coordinator import Txn
    from txlog.engine.folds.cursor import Pending

Place = tuple[int, int]  # (partition, subscription); subscription 0: the partition itself


class Participants(msgspec.Struct, gc=False):
    """What holds something of a transaction, in order of internal ids."""

    partitions: list[tuple[int, Held]] = []
    cursors: list[tuple[int, int, Pending]] = []  # (subscription, partition, ...)
    waiting: list[Place] = []
    skipped: list[Place] = []
    messages: int = 0  # of the transaction, in what is available and in what waits
    acks: int = 0

    @property
    def can_go_on(self) -> bool:
        """True when an end has something to do: at a participant, or the last status."""
        return bool(self.partitions or self.cursors or not self.waiting)


def participants(view: View, txn: Txn, back: int = 0, gone: Collection[Place] = ()) -> Participants:
    """The participants of a transaction that are not done.

    back: a partition that this frame makes available
    gone: what this frame deletes
    """
    out, pair = Participants(), (txn.coordinator, txn.sequence)
    catalog = view.catalog
    away = catalog.unavailable
    for partition in sorted(txn.partitions):
        if (partition, 0) in gone or not catalogs.has_partition(catalog, partition):
            out.skipped.append((partition, 0))
            continue
        held = buffers.find_held(view.buffer(partition), *pair)
        if held is None:
            continue
        out.messages += held.count
        if partition == back or partition not in away:
            out.partitions.append((partition, held))
        else:
            out.waiting.append((partition, 0))
    for subscription, partition in sorted(txn.subscriptions):
        if (partition, subscription) in gone or subscription not in catalog.subscriptions:
            out.skipped.append((partition, subscription))
            continue
        pending = view.cursor(subscription, partition).pending.get(pair)
        if pending is None:
            continue
        out.acks += pending.count
        if partition == back or partition not in away:
            out.cursors.append((subscription, partition, pending))
        else:
            out.waiting.append((partition, subscription))
    return out


def skipped_by(view: View, txn: Txn) -> list[Place]:
    """Participants that were deleted before the end; of an unfinished one, those that are now."""
    return txn.skipped if txn.status in folds_coordinator.ENDED else participants(view, txn).skipped


def waiting_for(view: View, partition: int) -> list[Txn]:
    """Decided transactions that wait for a partition, in order of decision (1.5)."""
    pairs = {
        (coordinator, sequence)
        for coordinator, held in view.buffer(partition).held.items()
        for sequence in held
    }
    for subscription in catalogs.topic_of(view.catalog, partition).subscriptions:
        pairs |= set(view.cursor(subscription, partition).pending)
    found = [view.coordinator(pair[0]).unfinished.get(pair[1]) for pair in pairs]
    return in_order([txn for txn in found if txn is not None and txn.decision_lsn])


def in_order(txns: list[Txn]) -> list[Txn]:
    """Decided transactions in the order in which their markers have to stand."""
    return sorted(txns, key=lambda txn: (txn.decision_lsn, txn.coordinator, txn.sequence))


def check_available(view: View, topic: Topic, partition: int) -> None:
    """Raises PartitionUnavailable when the partition (its store-wide number) is not available."""
    if partition in view.catalog.unavailable:
        raise unavailable_error(view.catalog, topic, partition)


def unavailable_error(catalog: Catalog, topic: Topic, partition: int) -> PartitionUnavailable:
    """The error of a call that needs a partition which is offline or quarantined."""
    name, index = TopicName.parse(topic.name).short, catalogs.index_of(topic, partition)
    is_damaged = catalog.unavailable[partition].reason == "damage"
    how = "quarantined: a file of it is damaged" if is_damaged else "offline"
    return PartitionUnavailable(
        f"partition {name}/{index} is {how}",
        hint=f"txlog admin online {name}/{index} brings it back; other partitions go on",
        topic=name, partition=index,
    )  # fmt: skip


def place_name(catalog: Catalog, place: Place) -> str:
    """`topic/partition` or `topic/partition:subscription`; numbers for what is deleted."""
    partition, subscription = place
    if catalogs.has_partition(catalog, partition):
        topic = catalogs.topic_of(catalog, partition)
        text = f"{TopicName.parse(topic.name).short}/{catalogs.index_of(topic, partition)}"
    else:
        text = f"partition {partition}"
    if not subscription:
        return text
    held = catalog.subscriptions.get(subscription)
    return f"{text}:{held.name if held else f'subscription {subscription}'}"
