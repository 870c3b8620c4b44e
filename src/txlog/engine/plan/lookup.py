"""Finding what a call names (topics, subscriptions, transactions), or refusing what does not exist.

Every decision begins here, so the same mistake gets the same error from every operation.
Source: spec/transactions 2 and 5 (the decision table for send, ack, add).
"""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from txlog.base.ids import TopicName, TxnId
from txlog.base.suggest import NAMES_MAX, address_of, command_line, suggestion
from txlog.clock import Instant
from txlog.engine.folds import catalog as catalogs
from txlog.engine.folds import coordinator as coordinators
from txlog.engine.folds.catalog import Subscription, Topic
from txlog.engine.view import View
from txlog.errors import (
    CoordinatorNotFound,
    ExpiredTransaction,
    InvalidTxnStatus,
    NotAllowed,
    SubscriptionNotFound,
    TopicNotFound,
    TransactionNotFound,
    TransactionTimedOut,
)

if TYPE_CHECKING:
    from txlog.engine.folds.coordinator import Txn

ROOT_UID = 0


def topic(view: View, name: TopicName) -> Topic:
    """The topic of a name; raises TopicNotFound, also for a partition that it does not have."""
    record = catalogs.find_topic(view.catalog, name.full)
    if record is None:
        twin_number = view.catalog.by_name.get(name.full.casefold())
        twin = (
            None
            if twin_number is None
            else TopicName.parse(view.catalog.topics[twin_number].name).short
        )
        renamed = catalogs.find_renamed(view.catalog, name.topic.full)
        if renamed is not None:
            raise TopicNotFound(
                f"topic {name.topic.short} was renamed",
                hint=f"its name is {TopicName.parse(renamed.name).short}",
                topic=name.short,
            )
        names = tuple(other.name for other in islice(view.catalog.topics.values(), NAMES_MAX))
        raise TopicNotFound(
            f"topic {name.short} does not exist",
            hint=f"did you mean {twin}?" if twin else partial(_meant, name.topic.short, names),
            topic=name.short,
        )
    if name.partition is not None:
        check_partition(name.topic.short, record, name.partition)
    return record


def _meant(short: str, names: tuple[str, ...]) -> str:
    """The hint for a topic that does not exist; names: full names of existing topics."""
    others = (TopicName.parse(name).short for name in names)
    return suggestion(short, others, f"create it: {command_line('topic create', short)}")


def check_partition(short: str, topic: Topic, index: int) -> None:
    """Raises TopicNotFound when the topic with this short name has no such partition."""
    if not 0 <= index < topic.partitions:
        raise TopicNotFound(
            f"{short} has no partition {index}, it has {topic.partitions}",
            topic=short,
            partition=index,
        )


def live_topic(view: View, number: int, short: str) -> Topic:
    """The topic of a handle that was opened before; raises TopicNotFound when it was deleted."""
    record = view.catalog.topics.get(number)
    if record is None:
        raise TopicNotFound(f"topic {short} was deleted", topic=short)
    return record


def check_same(view: View, topic: Topic, number: int | None, place: str, anew: str) -> None:
    """Refuse to go on, from a position kept in a file, in another topic than that of the position.

    number: of the topic, kept with the position; None: a version that did not keep it wrote the
            file, and only the name counts
    place:  the file or directory
    anew:   how to begin with the topic of the call
    raises: NotAllowed
    """
    if number is None or number == topic.number:
        return
    short = TopicName.parse(topic.name).short
    other = view.catalog.topics.get(number)
    if other is None:
        raise NotAllowed(
            f"{place} has messages of an earlier topic, which was deleted; {short} is another one",
            hint=anew,
            topic=short,
        )
    name = TopicName.parse(other.name).short
    raise NotAllowed(
        f"{place} has messages of the topic whose name is {name} now; {short} is another one",
        hint=f"go on with {name}, or {anew}",
        topic=short,
    )


def live_subscription(view: View, number: int, name: str, short: str) -> Subscription:
    """The subscription of a handle; raises SubscriptionNotFound when it was deleted."""
    record = view.catalog.subscriptions.get(number)
    if record is None:
        raise SubscriptionNotFound(
            f"subscription {name} of {short} was deleted", topic=short, subscription=name
        )
    return record


def subscription(view: View, of: Topic, name: str) -> Subscription:
    """The subscription of the topic; raises SubscriptionNotFound."""
    record = catalogs.find_subscription(view.catalog, of, name)
    if record is None:
        short = TopicName.parse(of.name).short
        raise SubscriptionNotFound(
            f"topic {short} has no subscription {name}",
            hint=partial(
                suggestion,
                name,
                tuple(
                    view.catalog.subscriptions[number].name
                    for number in islice(of.subscriptions, NAMES_MAX)
                ),
                f"create it: {command_line('sub create', name, '-t', short)}",
            ),
            topic=short,
            subscription=name,
        )
    return record


def transaction(view: View, txn_id: TxnId, coordinator_count: int) -> Txn:
    """The record of a transaction; raises TransactionNotFound (never issued, or forgotten)."""
    record = None
    if txn_id.coordinator < coordinator_count:
        state = view.coordinator(txn_id.coordinator)
        record = coordinators.find(state, txn_id.sequence)
        if record is None and txn_id.sequence < state.next_sequence:
            raise TransactionNotFound(
                f"transaction {txn_id} has ended and is forgotten",
                code=305,
                txn=txn_id,
                hint="look at the data: what it committed is there",
            )
    if record is None:
        raise TransactionNotFound(
            f"transaction {txn_id} was never issued", hint=_never_issued(txn_id), txn=txn_id
        )
    return record


def _never_issued(txn_id: TxnId) -> str:
    """The hint for an id that was never issued.

    Pulsar prints (3,18) for 3:18; the command line reads that as one number above 2^64.
    """
    coordinator, sequence = txn_id.sequence >> 64, txn_id.sequence & ((1 << 64) - 1)
    if coordinator and not txn_id.coordinator:
        return f"did you mean {coordinator}:{sequence}?"
    return "txlog txn list shows the open ones"


def check_coordinator(number: int, coordinator_count: int) -> None:
    """Raises CoordinatorNotFound when the store has no coordinator with this number."""
    if not 0 <= number < coordinator_count:
        raise CoordinatorNotFound(
            f"there is no coordinator {number}, the store has 0 to {coordinator_count - 1}"
        )


def is_overdue(txn: Txn, now: Instant) -> bool:
    """OPEN for strictly longer than its time-out, from its start (spec/transactions 6)."""
    return txn.status == coordinators.OPEN and left_ms(txn, now) < 0


def left_ms(txn: Txn, now: Instant) -> int:
    """The time that an open transaction has left, in ms; below 0 it is overdue."""
    if txn.boot_id and txn.boot_id == now.boot_id:  # empty: unknown, so the wall clock decides
        return txn.timeout_ms - (now.boot_ms - txn.boot_ms)
    return txn.timeout_ms - (max(now.wall_ms, txn.modified_ms) - txn.wall_ms)


def check_owner(txn: Txn, uid: int) -> None:
    """Only the owner or root may use a transaction; raises NotAllowed."""
    if uid not in (txn.owner_uid, ROOT_UID):
        raise NotAllowed(
            f"transaction {txn.coordinator}:{txn.sequence} belongs to {txn.owner}",
            txn=TxnId(txn.coordinator, txn.sequence),
            owner=txn.owner,
        )


def check_open(txn: Txn) -> None:
    """Raises the error for an operation in a transaction that is not OPEN."""
    if txn.status != coordinators.OPEN:
        raise ended_error(txn)


def _begin_again(txn: Txn) -> str:
    key = () if txn.key is None else ("--transaction-key", txn.key)
    return f"begin again: {command_line('txn begin', *key)}"


def timed_out(txn: Txn) -> TransactionTimedOut:
    """The error for a transaction aborted by its time-out."""
    txn_id = TxnId(txn.coordinator, txn.sequence)
    return TransactionTimedOut(
        f"transaction {txn_id} was aborted: it timed out after {txn.timeout_ms / 1000:g}s",
        hint=_begin_again(txn),
        txn=txn_id,
    )


def prepared_error(txn: Txn) -> InvalidTxnStatus:
    """The error for a call that cannot be made with a prepared transaction."""
    txn_id, prepared = TxnId(txn.coordinator, txn.sequence), txn.prepared
    where = "another database" if prepared is None else f"{prepared.kind} {prepared.label}"
    address = "URL" if prepared is None else address_of(prepared.kind, prepared.label)
    return InvalidTxnStatus(
        f"transaction {txn_id} is prepared: a row in {where} decides whether it commits",
        hint=f"ask the database: {command_line('txn resolve', txn_id, '--database', address)}",
        txn=txn_id,
    )


def ended_error(txn: Txn) -> InvalidTxnStatus | ExpiredTransaction:
    """The error for a transaction that has ended, by its status and reason."""
    txn_id = TxnId(txn.coordinator, txn.sequence)
    if txn.status == coordinators.PREPARED:
        return prepared_error(txn)
    if txn.reason == "timeout":
        return timed_out(txn)
    if txn.reason == "fenced":
        return ExpiredTransaction(
            f"transaction {txn_id} is fenced: its key was taken over, or deleted",
            hint="stop this task",
            txn=txn_id,
            transaction_key=txn.key,
            epoch=txn.epoch,
            owner=txn.owner,
        )
    how = {
        "conflict": "was aborted by a conflict of acknowledgements",
        "recovery": "was aborted by the recovery of the store, after a failed flush or a restart",
    }.get(txn.reason or "", f"is {txn.status}")
    hint = _begin_again(txn)
    if txn.status == coordinators.COMMITTING:
        hint = f"it is decided; to see what it waits for: {command_line('txn show', txn_id)}"
    error = InvalidTxnStatus(f"transaction {txn_id} {how}", hint=hint, txn=txn_id)
    if txn.reason is not None:
        error.fields["reason"] = txn.reason
    if error.aborted_by_recovery:
        error.hint = "nothing of it is stored: do its work again in another transaction"
    return error
