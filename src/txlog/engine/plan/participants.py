"""The work left to end a transaction, where it can be done now, and transactions that hang.

No flag says that a participant is done: it is done when it holds nothing of the transaction. A
partition and its sidecar are one unit, unavailable while the catalog lists the partition as such. A
deleted participant is done as well, and is listed as skipped. Source: spec/transactions 5.1, 11.

A transaction that does not end by itself has one of four causes (spec/transactions 15). The age of
an open transaction alone is no cause (KIP-664).

    PREPARED beyond the limit               prepared: its database was not asked for the outcome
    COMMITTING, ABORTING beyond the limit   unavailable: it waits for partitions, bring them back;
                                            else overdue: nothing holds it up
    OPEN beyond its time-out                overdue: its coordinator was not loaded
    everything else                         corrupt: impossible by Law 4, reported, never repaired
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

import msgspec

from txlog.base.ids import TopicName
from txlog.base.suggest import command_line
from txlog.clock import Instant
from txlog.engine.folds import buffer as buffers
from txlog.engine.folds import catalog as catalogs
from txlog.engine.folds import coordinator as coordinators
from txlog.engine.folds.catalog import Catalog, Topic, index_of
from txlog.engine.plan.lookup import is_overdue
from txlog.engine.view import View
from txlog.errors import PartitionUnavailable

if TYPE_CHECKING:
    from txlog.engine.folds.buffer import OpenTxn
    from txlog.engine.folds.coordinator import Coordinator, Txn
    from txlog.engine.folds.cursor import PendingAcks

Participant = tuple[int, int]  # (partition, subscription); subscription 0: the partition itself


# --- what remains ----------------------------------------------------------------------------


class Participants(msgspec.Struct, gc=False):
    """The participants of a transaction that are not done, in order of internal ids.

    waiting: unavailable ones; skipped: deleted ones
    """

    partitions: list[tuple[int, OpenTxn]] = []
    cursors: list[tuple[int, int, PendingAcks]] = []  # (subscription, partition, ...)
    waiting: list[Participant] = []
    skipped: list[Participant] = []
    messages: int = 0  # of the transaction, in available and waiting places
    acks: int = 0

    @property
    def can_go_on(self) -> bool:
        """True when ending can go on: at an available participant, or with the last status."""
        return bool(self.partitions or self.cursors or not self.waiting)


def participants(
    view: View, txn: Txn, back: int = 0, deleted: Collection[Participant] = ()
) -> Participants:
    """The participants of a transaction that are not done, and the deleted ones.

    back: a partition that this frame makes available
    deleted: participants that this frame deletes
    """
    out, pair = Participants(), (txn.coordinator, txn.sequence)
    catalog = view.catalog
    away = catalog.unavailable
    for partition in sorted(txn.partitions):
        side = view.buffer_in_use(partition)
        messages = None if side is None else buffers.find_held(side, *pair)
        if (deleted and (partition, 0) in deleted) or (
            messages is None and not catalogs.has_partition(catalog, partition)
        ):
            out.skipped.append((partition, 0))
            continue
        if side is None:
            messages = buffers.find_held(view.buffer(partition), *pair)
        if messages is None:
            continue
        out.messages += messages.count
        if partition == back or partition not in away:
            out.partitions.append((partition, messages))
        else:
            out.waiting.append((partition, 0))
    for subscription, partition in sorted(txn.subscriptions):
        if (partition, subscription) in deleted or subscription not in catalog.subscriptions:
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


def skipped_by(view: View, txn: Txn) -> list[Participant]:
    """Participants that were deleted before the transaction ended, or up to now if unfinished."""
    is_ended = txn.status in coordinators.ENDED
    return list(txn.skipped) if is_ended else participants(view, txn).skipped


def waiting_for(view: View, partition: int) -> list[Txn]:
    """Decided transactions that wait for a partition, in order of decision (1.5)."""
    pairs = {
        (coordinator, sequence)
        for coordinator, sequences in view.buffer(partition).held.items()
        for sequence in sequences
    }
    for subscription in catalogs.topic_of(view.catalog, partition).subscriptions:
        pairs |= set(view.cursor(subscription, partition).pending)
    txns = [view.coordinator(pair[0]).unfinished.get(pair[1]) for pair in pairs]
    return in_order([txn for txn in txns if txn is not None and txn.decision_lsn])


def in_order(txns: list[Txn]) -> list[Txn]:
    """Decided transactions in the order that their markers must have."""
    return sorted(txns, key=lambda txn: (txn.decision_lsn, txn.coordinator, txn.sequence))


def check_available(view: View, topic: Topic, partition: int) -> None:
    """Raises PartitionUnavailable when the partition (its store-wide number) is not available."""
    if partition in view.catalog.unavailable:
        raise unavailable_error(view.catalog, topic, partition)


def unavailable_error(catalog: Catalog, topic: Topic, partition: int) -> PartitionUnavailable:
    """The error for a call that needs an offline or quarantined partition."""
    name, index = TopicName.parse(topic.name).short, catalogs.index_of(topic, partition)
    is_damaged = catalog.unavailable[partition].reason == "damage"
    how = "quarantined: a file of it is damaged" if is_damaged else "offline"
    return PartitionUnavailable(
        f"partition {name}/{index} is {how}",
        hint=f"{command_line('admin online', f'{name}/{index}')} brings it back; "
        "other partitions carry on",
        topic=name,
        partition=index,
    )


def participant_name(catalog: Catalog, participant: Participant) -> str:
    """`topic/partition` or `topic/partition:subscription`; numbers for deleted ones."""
    partition, subscription = participant
    if catalogs.has_partition(catalog, partition):
        topic = catalogs.topic_of(catalog, partition)
        text = f"{TopicName.parse(topic.name).short}/{catalogs.index_of(topic, partition)}"
    else:
        text = f"partition {partition}"
    if not subscription:
        return text
    record = catalog.subscriptions.get(subscription)
    return f"{text}:{record.name if record else f'subscription {subscription}'}"


# --- hanging transactions --------------------------------------------------------------------


class HangingTxn(msgspec.Struct, frozen=True):
    """A transaction that hangs; cause: unavailable, overdue or corrupt; waiting: for which."""

    coordinator: int
    sequence: int
    status: str | None  # None: unknown
    age_ms: int
    cause: str
    detail: str
    waiting: tuple[Participant, ...] = ()


def hanging(view: View, now: Instant, older_than_ms: int, topics: list[Topic]) -> list[HangingTxn]:
    """The hanging transactions of the topics, one per transaction and cause, in order of id.

    older_than_ms: how long a decided transaction may take
    """
    view.load_coordinators()
    numbers = {number for topic in topics for number in catalogs.numbers(topic)}
    is_all = len(topics) == len(view.catalog.topics)
    findings: dict[tuple[int, int, str], HangingTxn] = {}
    for _, state in view.loaded_coordinators():
        for txn in state.unfinished.values():
            touched = {*txn.partitions, *(partition for _, partition in txn.subscriptions)}
            if is_all or touched & numbers:
                for finding in _of_unfinished(view, now, older_than_ms, txn):
                    findings[(finding.coordinator, finding.sequence, finding.cause)] = finding
    for number in sorted(numbers):
        for finding in contradictions(view, number, now):
            findings.setdefault((finding.coordinator, finding.sequence, finding.cause), finding)
    return [findings[key] for key in sorted(findings)]


def _of_unfinished(view: View, now: Instant, older_than_ms: int, txn: Txn) -> Iterator[HangingTxn]:
    pair, age_ms = (txn.coordinator, txn.sequence), now.wall_ms - txn.wall_ms
    if txn.status == coordinators.OPEN:
        if is_overdue(txn, now):
            yield HangingTxn(*pair, txn.status, age_ms, "overdue", "its time-out is over")
    elif txn.prepared is not None and txn.status == coordinators.PREPARED:
        if now.wall_ms - txn.prepared.since_ms > older_than_ms:
            detail = f"{txn.prepared.kind} {txn.prepared.label} decides it"
            yield HangingTxn(*pair, txn.status, age_ms, "prepared", detail)
    elif age_ms > older_than_ms:
        waiting = tuple(participants(view, txn).waiting)
        if waiting:
            detail = "it waits for partitions"
            yield HangingTxn(*pair, txn.status, age_ms, "unavailable", detail, waiting)
        else:
            yield HangingTxn(*pair, txn.status, age_ms, "overdue", "nothing holds it up")


def contradictions(view: View, partition: int, now: Instant | None = None) -> Iterator[HangingTxn]:
    """Search one partition for the four impossible states; now: for the age."""
    now = now or Instant(0, "", 0)
    side, topic_of = view.buffer(partition), view.catalog.topics
    for coordinator, by_sequence in side.held.items():
        for sequence in by_sequence:
            yield from _held(view, now, (coordinator, sequence), partition, 0)
    for topic in topic_of.values():
        if index_of(topic, partition) >= 0:
            for subscription in topic.subscriptions:
                for pair in view.cursor(subscription, partition).pending:
                    yield from _held(view, now, pair, partition, subscription)
    for markers in side.markers.values():
        for marker in markers:
            txn = coordinators.find(view.coordinator(marker.coordinator), marker.sequence)
            if txn is not None and txn.status == coordinators.ABORTED:
                yield _corrupt(
                    txn,
                    (marker.coordinator, marker.sequence),
                    now,
                    "it is aborted but has a marker",
                )


def _held(
    view: View, now: Instant, pair: tuple[int, int], partition: int, subscription: int
) -> Iterator[HangingTxn]:
    """Check the transaction of held messages or acknowledgements: it must be unfinished and
    list the place.
    """
    contents = "acknowledgements" if subscription else "messages"
    state: Coordinator = view.coordinator(pair[0])
    txn = coordinators.find(state, pair[1])
    if txn is None:
        how = "forgotten" if pair[1] < state.next_sequence else "never issued"
        yield _corrupt(None, pair, now, f"it was {how} and has {contents}")
        return
    if txn.status in coordinators.ENDED:
        yield _corrupt(txn, pair, now, f"it has ended and has {contents} without an end")
    is_registered = (
        (subscription, partition) in txn.subscriptions
        if subscription
        else partition in txn.partitions
    )
    if not is_registered:
        yield _corrupt(txn, pair, now, f"it has {contents} that it was not registered for")


def _corrupt(txn: Txn | None, pair: tuple[int, int], now: Instant, detail: str) -> HangingTxn:
    age_ms = 0 if txn is None else now.wall_ms - txn.wall_ms
    return HangingTxn(*pair, None if txn is None else txn.status, age_ms, "corrupt", detail)
