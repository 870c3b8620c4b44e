"""Entering a transaction: how every operation in one begins, and how a new one is opened.

An operation names a transaction by its id, or asks to open a new one. In that case the operation's
own frame opens the transaction, which saves a frame and changes no answer.
Source: PIP-31 "Begin transaction"; spec/transactions 4, 5, 6.
"""

from __future__ import annotations

from typing import Any

import msgspec

from txlog.base.ids import TxnId
from txlog.base.settings import Settings
from txlog.clock import Instant
from txlog.engine.decide.draft import Decision, Draft
from txlog.engine.decide.transactions.resolve import expire_if_due, reserve_ids
from txlog.engine.folds.coordinator import Txn
from txlog.engine.model.ops import TxnOpened
from txlog.engine.plan.lookup import check_coordinator, check_open, check_owner, transaction
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
