"""Beginning and ending a transaction: the decision table of spec/transactions 5.

The answer to an end depends only on (id, action) and the record, so a repeated end gets the same
answer from every process and after every restart.
Source: PIP-31 "Begin transaction", "End transaction".
"""

from __future__ import annotations

import msgspec

from txlog.base.ids import TxnId
from txlog.base.settings import Settings
from txlog.clock import Instant
from txlog.engine.decide.draft import Decision, Draft
from txlog.engine.decide.transactions.enter import NewTxn, open_txn
from txlog.engine.decide.transactions.resolve import (
    EndOutcome,
    abort_ops,
    aborter,
    commit_ops,
    unrecorded_markers,
)
from txlog.engine.folds.coordinator import (
    ABORTED,
    ABORTING,
    COMMITTED,
    COMMITTING,
    ENDED,
    OPEN,
    Txn,
)
from txlog.engine.plan.lookup import check_owner, ended_error, is_overdue, timed_out, transaction
from txlog.engine.plan.participants import Participant, participants
from txlog.engine.view import View


class EndAnswer(msgspec.Struct, frozen=True, gc=False):
    """How a transaction ended; markers as (partition number, ledger, entry, messages).

    waiting: participants that are not available, with status COMMITTING or ABORTING
    skipped: participants that were deleted
    """

    txn_id: TxnId
    status: str
    already: bool
    reason: str | None
    messages: int
    acks: int
    markers: list[tuple[int, int, int, int]]
    open_ms: int
    waiting: list[Participant] = []
    skipped: list[Participant] = []


def begin(view: View, settings: Settings, now: Instant, new: NewTxn) -> Decision[TxnId]:
    """Decide a new transaction; written, not flushed: an OPEN one is aborted by a power cut.

    returns: its TxnId
    raises:  InvalidArgument, LimitExceeded (time-out, unfinished transactions),
             CoordinatorNotFound
    """
    draft = Draft(view, settings, now.wall_ms)
    txn = open_txn(draft, new)
    return draft.decision(TxnId(txn.coordinator, txn.sequence))


def end(
    view: View, settings: Settings, now: Instant, uid: int, txn_id: TxnId, *, commit: bool
) -> Decision[EndAnswer]:
    """Decide how a transaction ends; the returned ops are its point of no return.

    returns: an EndAnswer, with `already` and without ops when the same end was decided before
    raises:  TransactionNotFound, NotAllowed (owner), TransactionTimedOut, ExpiredTransaction,
             InvalidTxnStatus (ended the other way)
    """
    txn = transaction(view, txn_id, settings.coordinators)
    check_owner(txn, uid)
    draft = Draft(view, settings, now.wall_ms)
    open_ms = now.wall_ms - txn.wall_ms
    if is_overdue(txn, now):  # the sweep of the call has a bound
        outcome = abort_ops(draft, txn, "timeout")
        answer = _answer(txn_id, outcome, True, open_ms)
        return Decision(draft.ops, None, True, answer, timed_out(txn) if commit else None)
    if txn.status == OPEN:
        outcome = commit_ops(draft, txn) if commit else abort_ops(draft, txn, aborter(txn, uid))
        return draft.decision(_answer(txn_id, outcome, False, open_ms), sync=True)
    same = (COMMITTING, COMMITTED) if commit else (ABORTING, ABORTED)
    if txn.status not in same or txn.reason == "fenced":
        raise ended_error(txn)
    # the sweep has done everything. Another process may have written the end without flushing it
    return Decision([], None, True, _recorded(view, txn_id, txn, open_ms))


def _answer(txn_id: TxnId, outcome: EndOutcome, already: bool, open_ms: int) -> EndAnswer:
    return EndAnswer(
        txn_id,
        outcome.status,
        already,
        outcome.reason,
        outcome.messages,
        outcome.acks,
        outcome.markers,
        open_ms,
        outcome.waiting,
        outcome.skipped,
    )


def _recorded(view: View, txn_id: TxnId, txn: Txn, open_ms: int) -> EndAnswer:
    if txn.status in ENDED:
        return EndAnswer(
            txn_id,
            txn.status,
            True,
            txn.reason,
            txn.messages,
            txn.acks,
            list(txn.markers),
            txn.ended_ms - txn.wall_ms,
            [],
            list(txn.skipped),
        )
    involved = participants(view, txn)
    markers = sorted([*txn.markers, *unrecorded_markers(view, txn)])
    return EndAnswer(
        txn_id,
        txn.status,
        True,
        txn.reason,
        txn.messages,
        txn.acks,
        markers,
        open_ms,
        involved.waiting,
        involved.skipped,
    )
