"""Beginning and ending a transaction; the decision table of spec/transactions 5.

The answer of an end depends on (id, action) and the record only, so that a repeated end answers the
same from every process and after every restart.
Source: PIP-31 "Begin transaction", "End transaction".
"""

from __future__ import annotations

import msgspec

from txlog.clock import Instant
from txlog.engine.flow.draft import Decision, Draft
from txlog.engine.flow.enter import NewTxn, open_txn
from txlog.engine.flow.lookup import check_owner, ended_error, transaction
from txlog.engine.flow.resolve import abort_ops, commit_ops, expire_if_due
from txlog.engine.folds.coordinator import ABORTED, ABORTING, COMMITTED, COMMITTING, OPEN, Txn
from txlog.engine.model.ops import StatusUpdated
from txlog.engine.view import View
from txlog.ids import TxnId
from txlog.settings import Settings


class EndAnswer(msgspec.Struct, frozen=True, gc=False):
    """How a transaction ended; markers as (partition number, ledger, entry, messages)."""

    txn_id: TxnId
    status: str
    already: bool
    reason: str | None
    messages: int
    acks: int
    markers: list[tuple[int, int, int, int]]
    open_ms: int


def begin(view: View, settings: Settings, now: Instant, new: NewTxn) -> Decision:
    """Decide a new transaction; written, not flushed: an OPEN one is aborted by a power cut.

    returns: its TxnId
    raises:  InvalidArgument, LimitExceeded (time-out, unfinished transactions),
             CoordinatorNotFound
    """
    draft = Draft(view, settings, now.wall_ms)
    txn = open_txn(draft, new)
    return draft.decision(TxnId(txn.coordinator, txn.sequence))


def end(
    view: View, settings: Settings, now: Instant, uid: int, txn_id: TxnId, *, commit: bool,
    reason: str = "user",
) -> Decision:  # fmt: skip
    """Decide how a transaction ends; the returned ops are its point of no return.

    returns: an EndAnswer, with `already` and without ops when the same end was decided before
    raises:  TransactionNotFound, NotAllowed (owner), TransactionTimedOut, ExpiredTransaction,
             InvalidTxnStatus (ended the other way)
    """
    txn = transaction(view, txn_id, settings.coordinators)
    check_owner(txn, uid)
    draft = Draft(view, settings, now.wall_ms)
    if commit:
        expired = expire_if_due(draft, txn, now)
        if expired is not None:
            return expired
    open_ms = now.wall_ms - txn.wall_ms
    if txn.status == OPEN:
        decided = commit_ops(draft, txn) if commit else abort_ops(draft, txn, reason)
        status = COMMITTED if commit else ABORTED
        return draft.decision(_answer(txn_id, status, decided, False, open_ms), sync=True)
    same = (COMMITTING, COMMITTED) if commit else (ABORTING, ABORTED)
    if txn.status not in same or txn.reason == "fenced":
        raise ended_error(txn)
    return Decision([], None, True, _recorded(txn_id, txn))  # it may be another's, unflushed


def _answer(
    txn_id: TxnId, status: str, decided: StatusUpdated, already: bool, open_ms: int
) -> EndAnswer:
    return EndAnswer(
        txn_id, status, already, decided.reason, decided.messages, decided.acks,
        decided.markers, open_ms,
    )  # fmt: skip


def _recorded(txn_id: TxnId, txn: Txn) -> EndAnswer:
    return EndAnswer(
        txn_id, txn.status, True, txn.reason, txn.messages, txn.acks, txn.markers,
        txn.ended_ms - txn.wall_ms,
    )  # fmt: skip
