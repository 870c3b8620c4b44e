"""Taking a partition away, and bringing it back together with the transactions that wait for it.

Bringing it back is one frame: the markers, aborts and cursor changes of every decided transaction
that waited, in order of decision; the last status of transactions that are complete with it; and
PartitionAvailable. So no reader sees the partition while a marker is still missing.
Source: spec/transactions 11.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from txlog.base.ids import TopicName, TxnId
from txlog.base.settings import Settings
from txlog.clock import Instant
from txlog.engine.decide.draft import Decision, Draft
from txlog.engine.decide.transactions.transaction import finish_ops
from txlog.engine.folds.catalog import number_of
from txlog.engine.folds.coordinator import ENDED
from txlog.engine.model.ops import PartitionAvailable, PartitionOffline
from txlog.engine.plan.lookup import topic as find_topic
from txlog.engine.plan.participants import waiting_for
from txlog.engine.view import View
from txlog.errors import Corruption, InvalidArgument


@dataclass(frozen=True, slots=True)
class AvailabilityChange:
    """Whether a partition is online, whether that changed, and which transactions this ended."""

    online: bool
    changed: bool
    finished: list[TxnId] = field(default_factory=list)


def partition_number(view: View, name: TopicName) -> int:
    """The store-wide number of the partition in a name; a topic with one partition needs no index.

    raises: TopicNotFound, InvalidArgument (which of several)
    """
    topic = find_topic(view, name)
    if name.partition is None and topic.partitions > 1:
        raise InvalidArgument(
            f"{name.short} has {topic.partitions} partitions: which one?",
            code=205,
            hint=f"{name.short}/0",
            topic=name.short,
        )
    return number_of(topic, name.partition or 0)


def set_offline(view: View, name: TopicName) -> Decision[AvailabilityChange]:
    """Decide to take a partition away; answers AvailabilityChange. Raises as partition_number."""
    number = partition_number(view, name)
    if number in view.catalog.unavailable:
        return Decision([], None, True, AvailabilityChange(False, False))
    return Decision(
        [PartitionOffline(number, "admin")], None, True, AvailabilityChange(False, True)
    )


def quarantine(view: View, partition: int, ledger: int, row: int) -> Decision[bool]:
    """Decide to take a partition away if this row still cannot be read; answers whether it is."""
    if partition in view.catalog.unavailable:
        return Decision([], None, True, True)
    try:
        view.rows([(ledger, row, row + 1)])
    except Corruption:
        return Decision([PartitionOffline(partition, "damage", ledger, row)], None, True, True)
    return Decision([], None, True, False)  # a checkpoint has replaced the file meanwhile


def set_online(
    view: View, settings: Settings, now: Instant, name: TopicName
) -> Decision[AvailabilityChange]:
    """Decide to bring back a partition whose files the caller has checked; as set_offline."""
    number = partition_number(view, name)
    if number not in view.catalog.unavailable:
        return Decision([], None, True, AvailabilityChange(True, False))
    draft = Draft(view, settings, now.wall_ms)
    finished: list[TxnId] = []
    for txn in waiting_for(view, number):
        if finish_ops(draft, txn, back=number).status in ENDED:
            finished.append(TxnId(txn.coordinator, txn.sequence))
    draft.ops.append(PartitionAvailable(number))
    return draft.decision(AvailabilityChange(True, True, finished), sync=True)
