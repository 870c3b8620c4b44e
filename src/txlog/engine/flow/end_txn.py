"""Beginning and ending a transaction; the decision table of spec/transactions 5.

The answer of an end depends on (id, action) and the record only, so that a repeated end answers the
same from every process and after every restart.
Source: PIP-31 "Begin transaction", "End transaction".
"""

from __future__ import annotations

from dataclasses import dataclass

from txlog.clock import Instant
from txlog.engine.flow.draft import Decision, Draft
from txlog.engine.flow.lookup import check_coordinator, check_owner, ended_error, transaction
from txlog.engine.flow.resolve import abort_ops, commit_ops, expire_if_due, reserve_ids
from txlog.engine.folds.coordinator import ABORTED, ABORTING, COMMITTED, COMMITTING, OPEN, Txn
from txlog.engine.model.ops import StatusUpdated, TxnOpened
from txlog.engine.view import View
from txlog.errors import InvalidArgument, LimitExceeded
from txlog.ids import TxnId
from txlog.settings import Settings


@dataclass(frozen=True, slots=True)
class EndAnswer:
    """How a transaction ended; markers as (partition number, ledger, entry, messages)."""

    txn_id: TxnId
    status: str
    already: bool
    reason: str | None
    messages: int
    acks: int
    markers: list[tuple[int, int, int, int]]
    open_ms: int


def begin(
    view: View, settings: Settings, now: Instant, owner: tuple[int, str], timeout_ms: int | None,
    coordinator: int | None,
) -> Decision:  # fmt: skip
    """Decide a new transaction; written, not flushed: an OPEN one is aborted by a power cut.

    returns: its TxnId
    raises:  InvalidArgument, LimitExceeded (time-out, unfinished transactions),
             CoordinatorNotFound
    """
    timeout_ms = settings.txn_timeout_default_ms if timeout_ms is None else timeout_ms
    if timeout_ms <= 0:
        raise InvalidArgument(
            f"the time-out is {timeout_ms} ms, it must be positive", code=203, value=timeout_ms
        )
    if timeout_ms > settings.txn_timeout_max_ms:
        raise LimitExceeded(
            f"the time-out is {timeout_ms} ms, txn_timeout_max_ms is {settings.txn_timeout_max_ms}",
            setting="txn_timeout_max_ms", limit=settings.txn_timeout_max_ms, value=timeout_ms,
        )  # fmt: skip
    if coordinator is None:
        coordinator = view.catalog.unkeyed_txns % settings.coordinators
    check_coordinator(coordinator, settings.coordinators)
    state = view.coordinator(coordinator)
    if 0 < settings.txn_active_max <= len(state.unfinished):
        raise LimitExceeded(
            f"coordinator {coordinator} has {len(state.unfinished)} unfinished transactions, "
            f"txn_active_max is {settings.txn_active_max}",
            hint="end some, or wait for their time-outs", setting="txn_active_max",
            limit=settings.txn_active_max, value=len(state.unfinished) + 1,
        )  # fmt: skip
    draft = Draft(view, settings, now.wall_ms)
    sequence = state.next_sequence
    if sequence >= state.reserved_below:
        reserve_ids(draft, coordinator, sequence)
    uid, name = owner
    draft.ops.append(
        TxnOpened(coordinator, sequence, uid, name, timeout_ms, now.wall_ms, now.boot_id,
                  now.boot_ms)
    )  # fmt: skip
    return draft.decision(TxnId(coordinator, sequence))


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
