"""Deleting subscriptions and topics, in one frame each.

The messages and acknowledgements of transactions there go too. An open transaction commits without
it and reports it as skipped; a decided one that waited for nothing else completes in the frame of
the deletion (I-17).
Files go as they do in a trim: the frame lets go of the ledgers, and the next checkpoint no longer
names them. Source: spec/transactions 5.1, 9.3, 11.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from txlog.base.ids import TopicName
from txlog.base.settings import Settings
from txlog.clock import Instant
from txlog.engine.decide.draft import Decision, Draft
from txlog.engine.decide.topics.buckets import all_gone
from txlog.engine.decide.transactions.resolve import finish_ops
from txlog.engine.folds.catalog import Subscription, Topic, consumers_of, numbers
from txlog.engine.model.ops import SubscriptionDeleted, TopicDeleted
from txlog.engine.plan.ack_sets import backlog
from txlog.engine.plan.participants import Participant, in_order, participants, waiting_for
from txlog.engine.view import View
from txlog.errors import ConsumerBusy, StillInUse


@dataclass(frozen=True, slots=True)
class DeletedSubscription:
    """The deleted subscription, and how many messages it had not acknowledged."""

    topic: str
    subscription: str
    backlog: int


@dataclass(frozen=True, slots=True)
class DeletedTopic:
    """The counts of a deleted topic."""

    topic: str
    partitions: int
    messages: int
    size_bytes: int
    subscriptions: int


def delete_subscription(
    view: View,
    settings: Settings,
    now: Instant,
    topic: Topic,
    subscription: Subscription,
    *,
    dead: Collection[int],
    force: bool,
) -> Decision[DeletedSubscription]:
    """Decide to delete a subscription, with its acknowledgements, final and pending.

    dead:    its consumers that the caller found dead; a live one prevents this, unless forced
    returns: a DeletedSubscription, durable
    raises:  ConsumerBusy
    """
    short = TopicName.parse(topic.name).short
    consumers = {consumer.number for consumer in consumers_of(view.catalog, subscription.number)}
    if not force and consumers - set(dead):
        raise ConsumerBusy(
            f"subscription {subscription.name} of {short} has a live consumer",
            hint="close it, or --force",
            topic=short,
            subscription=subscription.name,
        )
    draft = Draft(view, settings, now.wall_ms)
    ours = list(numbers(topic))
    answer = DeletedSubscription(
        short, subscription.name, sum(backlog(view, subscription.number, number) for number in ours)
    )
    clamped = [
        number
        for number in ours
        if view.exists(("watermark", number, 0))
        and subscription.number in view.watermark(number).clamps
    ]
    draft.ops.append(SubscriptionDeleted(subscription.number, ours, clamped))
    _complete(draft, ours, [(number, subscription.number) for number in ours])
    return draft.decision(answer, sync=True)


def delete_topic(
    view: View,
    settings: Settings,
    now: Instant,
    topic: Topic,
    *,
    force: bool,
    dead: Collection[int] | None = None,
) -> Decision[DeletedTopic]:
    """Decide to delete a topic, with its messages and subscriptions.

    dead:    subscriptions that have no consumer but these do not count; None: all count
    returns: a DeletedTopic, durable
    raises:  StillInUse (408) with subscriptions or unfinished transactions, unless forced
    """
    short = TopicName.parse(topic.name).short
    ours = list(numbers(topic))
    states = [view.topic(number) for number in ours]
    sides = [view.buffer(number) for number in ours]
    subscriptions = list(topic.subscriptions)
    txns = {
        (coordinator, sequence)
        for side in sides
        for coordinator, sequences in side.held.items()
        for sequence in sequences
    }
    consumed = [
        number for number in subscriptions if dead is None or _is_consumed(view, number, dead)
    ]
    if not force and (consumed or txns):
        raise StillInUse(
            f"topic {short} has subscriptions ({len(consumed)}) or unfinished transactions "
            f"({len(txns)})",
            hint="--force deletes it anyway",
            topic=short,
        )
    answer = DeletedTopic(
        short,
        topic.partitions,
        sum(state.messages for state in states),
        sum(state.payload_bytes for state in states),
        len(subscriptions),
    )
    draft = Draft(view, settings, now.wall_ms)
    draft.ops += [SubscriptionDeleted(number, ours) for number in subscriptions]
    draft.ops += [op for number in ours for op in all_gone(view, number)]
    ledgers = [end.ledger for state in states for end in state.ledgers]
    ledgers += [end.ledger for side in sides for end in side.ledgers]
    ledgers += [
        ledger for state in states if state.compaction for ledger in state.compaction.ledgers
    ]
    draft.ops.append(TopicDeleted(topic.number, ours, ledgers))
    deleted = [(number, subscription) for number in ours for subscription in (0, *subscriptions)]
    _complete(draft, ours, deleted)
    return draft.decision(answer, sync=True)


def delete_unused(
    view: View, settings: Settings, now: Instant, number: int
) -> Decision[DeletedTopic]:
    """Decide to delete a topic without stored messages; does nothing if it is deleted already.

    raises: StillInUse (408): it has entries, a policy or a second schema, or as `delete_topic`
    """
    topic = view.catalog.topics.get(number)
    if topic is None:
        return Decision([])
    states = [view.topic(partition) for partition in numbers(topic)]
    is_used = any(
        len(state.ledgers) > 1 or state.ledgers[0].entries or state.trimmed for state in states
    )
    if is_used or len(topic.schemas) > 1 or view.catalog.policies.get(number):
        raise StillInUse(f"topic {TopicName.parse(topic.name).short} is used by others")
    return delete_topic(view, settings, now, topic, force=False)


def _is_consumed(view: View, subscription: int, dead: Collection[int]) -> bool:
    return any(consumer.number not in dead for consumer in consumers_of(view.catalog, subscription))


def _complete(draft: Draft, partitions: list[int], deleted: list[Participant]) -> None:
    """Add the end of every decided transaction that waits only for the deleted participants."""
    waiting = {
        (txn.coordinator, txn.sequence): txn
        for partition in partitions
        for txn in waiting_for(draft.view, partition)
    }
    for txn in in_order(list(waiting.values())):
        if not participants(draft.view, txn, deleted=deleted).waiting:
            finish_ops(draft, txn, deleted=deleted)
