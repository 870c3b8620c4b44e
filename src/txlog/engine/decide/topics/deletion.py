"""Deleting subscriptions and topics, in one frame each.

Whatever transactions hold there goes too. An open transaction commits without it and reports it as
skipped; a decided one that waited for nothing else completes in the frame of the deletion (I-17).
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
from txlog.engine.view.view import View
from txlog.errors import ConsumerBusy, StillInUse


@dataclass(frozen=True, slots=True)
class DeletedSubscription:
    """What a deleted subscription had not acknowledged."""

    topic: str
    subscription: str
    backlog: int


@dataclass(frozen=True, slots=True)
class DeletedTopic:
    """What was in a deleted topic."""

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
    held: Subscription,
    *,
    dead: Collection[int],
    force: bool,
) -> Decision[DeletedSubscription]:
    """Decide to delete a subscription, with what it acknowledged and what is pending on it.

    dead:    consumers of it that the caller found dead; any other keeps it, unless forced
    returns: a DeletedSubscription, durable
    raises:  ConsumerBusy
    """
    short = TopicName.parse(topic.name).short
    known = {one.number for one in consumers_of(view.catalog, held.number)}
    if not force and known - set(dead):
        raise ConsumerBusy(
            f"subscription {held.name} of {short} has a live consumer",
            hint="close it, or --force",
            topic=short,
            subscription=held.name,
        )
    draft = Draft(view, settings, now.wall_ms)
    ours = list(numbers(topic))
    answer = DeletedSubscription(
        short, held.name, sum(backlog(view, held.number, number) for number in ours)
    )
    clamped = [
        number
        for number in ours
        if view.exists(("watermark", number, 0)) and held.number in view.watermark(number).clamps
    ]
    draft.ops.append(SubscriptionDeleted(held.number, ours, clamped))
    _complete(draft, ours, [(number, held.number) for number in ours])
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
        for coordinator, held in side.held.items()
        for sequence in held
    }
    used = [one for one in subscriptions if dead is None or _is_consumed(view, one, dead)]
    if not force and (used or txns):
        raise StillInUse(
            f"topic {short} has subscriptions ({len(used)}) or unfinished transactions "
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
    ledgers += [one for state in states if state.compaction for one in state.compaction.ledgers]
    draft.ops.append(TopicDeleted(topic.number, ours, ledgers))
    gone = [(number, subscription) for number in ours for subscription in (0, *subscriptions)]
    _complete(draft, ours, gone)
    return draft.decision(answer, sync=True)


def delete_unused(
    view: View, settings: Settings, now: Instant, number: int
) -> Decision[DeletedTopic]:
    """Decide to delete a topic that nothing was stored in; nothing to do if it is gone.

    raises: StillInUse (408): it has entries, a policy or a second schema, or as `delete_topic`
    """
    topic = view.catalog.topics.get(number)
    if topic is None:
        return Decision([])
    states = [view.topic(one) for one in numbers(topic)]
    is_used = any(
        len(state.ledgers) > 1 or state.ledgers[0].entries or state.trimmed for state in states
    )
    if is_used or len(topic.schemas) > 1 or view.catalog.policies.get(number):
        raise StillInUse(f"topic {TopicName.parse(topic.name).short} is used by others")
    return delete_topic(view, settings, now, topic, force=False)


def _is_consumed(view: View, subscription: int, dead: Collection[int]) -> bool:
    return any(one.number not in dead for one in consumers_of(view.catalog, subscription))


def _complete(draft: Draft, partitions: list[int], gone: list[Participant]) -> None:
    """Add the end of every decided transaction that waits for nothing but what is deleted."""
    found = {
        (txn.coordinator, txn.sequence): txn
        for partition in partitions
        for txn in waiting_for(draft.view, partition)
    }
    for txn in in_order(list(found.values())):
        if not participants(draft.view, txn, gone=gone).waiting:
            finish_ops(draft, txn, gone=gone)
