"""Entering a transaction: how every operation in one begins, and how a new one is opened.

An operation names a transaction by its id, or asks to open a new one. In that case the operation's
own frame opens the transaction, which saves a frame and changes no answer. Pulsar's clients name a
partition or subscription before they use it, and admin tools show it from then on. Messages and
acknowledgements register their place themselves, so nothing depends on `register`: the end of a
transaction skips a participant that holds nothing.
Source: PIP-31 "Begin transaction", "Add partition", "Add subscription"; spec/transactions 4 to 6.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from txlog.base.ids import TopicName, TxnId
from txlog.base.settings import Settings
from txlog.clock import Instant
from txlog.engine.decide.draft import Decision, Draft
from txlog.engine.decide.transactions.resolve import expire_if_due, reserve_ids
from txlog.engine.folds import catalog as catalogs
from txlog.engine.folds.catalog import Topic
from txlog.engine.folds.coordinator import Txn
from txlog.engine.model.ops import PartitionAdded, SubscriptionAdded, TxnOpened
from txlog.engine.plan.lookup import check_coordinator, check_open, check_owner, transaction
from txlog.engine.plan.lookup import topic as find_topic
from txlog.engine.view import View
from txlog.errors import InvalidArgument, LimitExceeded


class NewTxn(msgspec.Struct, frozen=True, gc=False):
    """A transaction to open; start: when the caller began it, from which its time-out counts.

    owner: (uid, name) of the process; coordinator: None for the next in turn
    """

    owner: tuple[int, str]
    start: Instant
    timeout_ms: int
    coordinator: int | None = None


Use = TxnId | NewTxn


def check_timeout(settings: Settings, timeout_ms: int | None) -> int:
    """The time-out to use, in ms; raises InvalidArgument, LimitExceeded."""
    timeout_ms = settings.txn_timeout_default_ms if timeout_ms is None else timeout_ms
    if type(timeout_ms) is not int:
        raise InvalidArgument(f"timeout_ms is {timeout_ms!r}, it must be an integer", code=203)
    if timeout_ms <= 0:
        raise InvalidArgument(
            f"the time-out is {timeout_ms} ms, it must be positive", code=203, value=timeout_ms
        )
    if timeout_ms > settings.txn_timeout_max_ms:
        raise LimitExceeded(
            f"the time-out is {timeout_ms} ms, txn_timeout_max_ms is {settings.txn_timeout_max_ms}",
            setting="txn_timeout_max_ms",
            limit=settings.txn_timeout_max_ms,
            value=timeout_ms,
        )
    return timeout_ms


def open_txn(
    draft: Draft, new: NewTxn, *, key: str | None = None, epoch: int = -1, freed: int = 0
) -> Txn:
    """Add the ops that open a transaction; returns the record it has from then on.

    freed:  unfinished transactions of its coordinator that the same frame ends
    raises: LimitExceeded (unfinished transactions), CoordinatorNotFound
    """
    view, settings = draft.view, draft.settings
    number = new.coordinator
    if number is None:
        number = view.catalog.unkeyed_txns % settings.coordinators
    check_coordinator(number, settings.coordinators)
    state = view.coordinator(number)
    if 0 < settings.txn_active_max <= len(state.unfinished) - freed:
        raise LimitExceeded(
            f"coordinator {number} has {len(state.unfinished)} unfinished transactions, "
            f"txn_active_max is {settings.txn_active_max}",
            hint="end some, or wait for their time-outs",
            setting="txn_active_max",
            limit=settings.txn_active_max,
            value=len(state.unfinished) + 1,
        )
    sequence = state.next_sequence
    if sequence >= state.reserved_below:
        reserve_ids(draft, number, sequence)
    (uid, name), start = new.owner, new.start
    draft.ops.append(
        TxnOpened(
            number,
            sequence,
            uid,
            name,
            new.timeout_ms,
            start.wall_ms,
            start.boot_id,
            start.boot_ms,
            key,
            epoch,
        )
    )
    return Txn(
        number,
        sequence,
        uid,
        name,
        new.timeout_ms,
        start.wall_ms,
        start.boot_id,
        start.boot_ms,
        key,
        epoch,
    )


def enter(draft: Draft, now: Instant, uid: int, use: Use) -> Txn | Decision[Any]:
    """The OPEN transaction to work in, or the decision that ends it because it timed out.

    raises: TransactionNotFound, NotAllowed (owner), InvalidTxnStatus and the like; as open_txn
    """
    if isinstance(use, NewTxn):
        return open_txn(draft, use)
    txn = transaction(draft.view, use, draft.settings.coordinators)
    check_owner(txn, uid)
    expired = expire_if_due(draft, txn, now)
    if expired is not None:
        return expired
    check_open(txn)
    return txn


# --- places that a client names before it uses them -----------------------------------------------


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
