"""Registering places in a transaction before its first message or acknowledgement there.

Pulsar's clients name a partition or subscription before they use it, and admin tools show it from
then on. Messages and acknowledgements register their place themselves, so nothing depends on this:
the end of a transaction skips a participant that holds nothing.
Source: PIP-31 "Add partition", "Add subscription"; spec/transactions 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from txlog.base.ids import TopicName, TxnId
from txlog.base.settings import Settings
from txlog.clock import Instant
from txlog.engine.decide.draft import Decision, Draft
from txlog.engine.decide.transactions.enter import enter
from txlog.engine.folds import catalog as catalogs
from txlog.engine.folds.catalog import Topic
from txlog.engine.model.ops import PartitionAdded, SubscriptionAdded
from txlog.engine.plan.lookup import topic as find_topic
from txlog.engine.view.view import View

# Places that a transaction may register ahead. A record grows by copying, so without a bound one
# short command would cost every process seconds. Places beyond it register when they are used.
AHEAD_MAX: Final = 1_000


class TxnPlace(NamedTuple):
    """A topic or partition; subscription: None for messages, else for acknowledgements on it."""

    name: TopicName
    subscription: str | None = None


def register(
    view: View, settings: Settings, now: Instant, uid: int, txn_id: TxnId, places: list[TxnPlace]
) -> Decision[TxnId]:
    """Decide which places take part in a transaction; a whole topic registers all its partitions.

    A subscription that the store does not have is in memory only: it has nothing to register.

    returns: its TxnId, not flushed
    raises:  TransactionNotFound, NotAllowed (owner), InvalidTxnStatus and the like, TopicNotFound
    """
    draft = Draft(view, settings, now.wall_ms)
    txn = enter(draft, now, uid, txn_id)
    if isinstance(txn, Decision):
        return txn
    topics = [
        (named_place, find_topic(view, named_place.name)) for named_place in dict.fromkeys(places)
    ]
    pair, registered = (txn.coordinator, txn.sequence), {*txn.partitions, *txn.subscriptions}
    room = max(0, AHEAD_MAX - len(registered))
    for named_place, topic in topics[:room]:
        subscription = _subscription(view, topic, named_place)
        for partition in _partitions(topic, named_place) if subscription is not None else ():
            participant = (subscription, partition) if subscription else partition
            if participant in registered or len(registered) >= AHEAD_MAX:
                continue
            registered.add(participant)
            draft.ops.append(
                SubscriptionAdded(*pair, subscription, partition)
                if subscription
                else PartitionAdded(*pair, partition)
            )
    return draft.decision(txn_id)


def _partitions(topic: Topic, named_place: TxnPlace) -> Sequence[int]:
    """The store-wide numbers of the partitions of a place."""
    if named_place.name.partition is None:
        return catalogs.numbers(topic)
    return [catalogs.number_of(topic, named_place.name.partition)]


def _subscription(view: View, topic: Topic, named_place: TxnPlace) -> int | None:
    """The number of the subscription; 0: the place is for messages; None: it is not stored."""
    if named_place.subscription is None:
        return 0
    subscription = catalogs.find_subscription(view.catalog, topic, named_place.subscription)
    return None if subscription is None else subscription.number
