"""The sweep before every call: it aborts, continues and forgets (spec/transactions 6).

    overdue OPEN                         aborted, reason timeout
    PREPARED                             left alone: its database decides
    COMMITTING, ABORTING                 continued at participants that are available by now
    ended, older or more than retained   forgotten, by an op

Nothing runs in the background. The sweep sees only loaded coordinators; a call names the places
that it uses, and the coordinators of unresolved transactions there get loaded. The bound on ended
transactions covers the whole store, so it is exact when every coordinator is loaded (checkpoint,
expire, listing). In between the sweep may forget too late, never too early.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from heapq import merge
from typing import TYPE_CHECKING

import msgspec

from txlog.base.settings import INSTANT_MS_MAX, Settings
from txlog.clock import Instant
from txlog.engine.decide.draft import Draft
from txlog.engine.decide.transactions import transaction
from txlog.engine.folds import coordinator as folds_coordinator
from txlog.engine.folds.catalog import Subscription, Topic, number_of
from txlog.engine.model.ops import TxnsForgotten
from txlog.engine.plan.lookup import is_overdue
from txlog.engine.plan.participants import in_order, participants
from txlog.engine.plan.route import PartitionSlice
from txlog.engine.view import View
from txlog.errors import TxlogError

if TYPE_CHECKING:
    from txlog.engine.folds.coordinator import Txn

Pair = tuple[int, int]
Find = Callable[[View], tuple[Topic, Subscription]]


class CallScope(msgspec.Struct, frozen=True, gc=False):
    """The places that a call works with: the sweep before it ends unfinished transactions there.

    txn:     the transaction it names
    sends:   the number of the topic that it sends to in a transaction, and the routed slices
    cursors: (subscription, partition) pairs that it receives on
    acks:    the function that finds the subscription, and the ledgers of acknowledged messages
    """

    txn: Pair | None = None
    sends: tuple[int, list[PartitionSlice]] | None = None
    cursors: tuple[tuple[int, int], ...] = ()
    acks: tuple[Find, tuple[int, ...]] | None = None

    def in_txn(self, coordinator: int, sequence: int) -> CallScope:
        """The same, in a transaction."""
        return CallScope((coordinator, sequence), self.sends, self.cursors, self.acks)


class SweepResult(msgspec.Struct, gc=False):
    """How many transactions a sweep changed."""

    expired: int = 0
    rolled_forward: int = 0
    rolled_back: int = 0
    forgotten: int = 0
    left: int = 0  # decided transactions beyond the bound


def load_used(view: View, settings: Settings, now: Instant, uses: CallScope) -> bool:
    """Load the coordinators of the places that a call uses, except of acknowledgements.

    Those check holders themselves, and are repeated if one is overdue.
    returns: True if the transaction that the call names has passed its retention
    """
    is_past = False
    if uses.txn is not None and uses.txn[0] < settings.coordinators:
        txn = view.coordinator(uses.txn[0]).ended.get(uses.txn[1])
        is_past = txn is not None and txn.ended_ms < horizon_ms(settings, now.wall_ms)
    if uses.sends is not None:
        topic = view.catalog.topics.get(uses.sends[0])
        for piece in uses.sends[1] if topic is not None else ():  # else the call itself raises
            assert topic is not None
            for number, sequences in view.buffer(number_of(topic, piece.partition)).held.items():
                if sequences:
                    view.coordinator(number)
    for key in uses.cursors:
        for pair in view.cursor(*key).pending:
            view.coordinator(pair[0])
    return is_past


def concerned(view: View, uses: CallScope) -> set[Pair]:
    """The transactions to sweep for a call even beyond the bound: its own, and those that hold
    acknowledgements on its cursors.
    """
    out = set() if uses.txn is None else {uses.txn}
    for key in [*uses.cursors, *_acknowledged(view, uses)]:
        out.update(view.cursor(*key).pending)
    return out


def _acknowledged(view: View, uses: CallScope) -> set[tuple[int, int]]:
    """(subscription, partition) pairs that a call acknowledges on."""
    if uses.acks is None:
        return set()
    find, ledgers = uses.acks
    try:
        subscription = find(view)[1].number
    except TxlogError:
        return set()  # the call itself raises
    owners = view.catalog.owners
    return {(subscription, owners[ledger][0]) for ledger in ledgers if ledger in owners}


def sweep(
    draft: Draft, now: Instant, first: Collection[Pair] = (), *, bounded: bool
) -> SweepResult:
    """Add the ops that abort overdue and continue decided transactions of loaded coordinators.

    first:   transactions to sweep in any case
    bounded: at most sweep_max others: the decided ones first, then the oldest overdue ones
    """
    overdue, decided = _due(draft.view, now)
    limit = draft.settings.sweep_max if bounded else len(overdue) + len(decided)
    swept = SweepResult()
    # markers are written in order of decision, so one beyond the bound needs all earlier ones, too
    reach = [at + 1 for at, txn in enumerate(decided) if _pair(txn) in first]
    now_going_on = decided[: max([limit, *reach])]
    swept.left = len(decided) - len(now_going_on)
    for txn in now_going_on:
        if transaction.finish_ops(draft, txn).status in folds_coordinator.ENDED:
            if txn.status == folds_coordinator.COMMITTING:
                swept.rolled_forward += 1
            else:
                swept.rolled_back += 1
    callers = [txn for txn in overdue if _pair(txn) in first]
    others = [txn for txn in overdue if _pair(txn) not in first]
    for txn in callers + others[: max(0, limit - len(decided))]:
        transaction.abort_ops(draft, txn, "timeout")
        swept.expired += 1
    return swept


def _due(view: View, now: Instant) -> tuple[list[Txn], list[Txn]]:
    """(overdue transactions, oldest first; decided ones that can continue, by decision)."""
    overdue: list[Txn] = []
    decided: list[Txn] = []
    for _, state in view.loaded_coordinators():
        for txn in state.unfinished.values():
            if txn.status == folds_coordinator.OPEN:
                if is_overdue(txn, now):
                    overdue.append(txn)
            elif txn.decision_lsn and participants(view, txn).can_go_on:
                decided.append(txn)
    return sorted(overdue, key=lambda txn: (txn.wall_ms, _pair(txn))), in_order(decided)


def _pair(txn: Txn) -> Pair:
    return (txn.coordinator, txn.sequence)


def is_anything_due(
    view: View, settings: Settings, now: Instant, sure: Instant, *, ended: bool = True
) -> bool:
    """True when a sweep of the loaded coordinators would write something.

    sure:  the instant with a wall clock that can be trusted (plan/clock_trust)
    ended: also look for ended transactions past their retention
    """
    return any(_due(view, now)) or (
        ended and bool(forgettable(view, settings, sure.wall_ms, thorough=True))
    )


def forget_ended(
    draft: Draft, now: Instant, first: Collection[Pair] = (), *, thorough: bool
) -> int:
    """Add the ops that forget ended transactions of loaded coordinators; returns how many."""
    due = forgettable(draft.view, draft.settings, now.wall_ms, first, thorough=thorough)
    for number in sorted(due):
        draft.ops.append(TxnsForgotten(number, sorted(due[number])))
    return sum(map(len, due.values()))


def forgettable(
    view: View, settings: Settings, now_ms: int, first: Collection[Pair] = (), *, thorough: bool
) -> dict[int, set[int]]:
    """The sequences of ended transactions past either bound of the retention, by coordinator.

    first:    transactions to check in any case
    thorough: check all; else stop at the first of a coordinator that is young enough. A transaction
              that ended under a clock far ahead may then hide later transactions until a thorough
              sweep
    cost: the number of transactions returned, and a look at every block of ended ones
        (Ended.before)
    """
    horizon = horizon_ms(settings, now_ms)
    out: dict[int, set[int]] = {}
    states = view.loaded_coordinators()
    surplus = 0
    if settings.txn_ended_retention_count >= 0:
        surplus = sum(len(state.ended) for _, state in states) - settings.txn_ended_retention_count
    if surplus > 0:
        oldest: Iterator[Txn] = merge(
            *(state.ended.values() for _, state in states),
            key=lambda txn: (txn.decision_lsn, _pair(txn)),
        )
        for _, txn in zip(range(surplus), oldest, strict=False):
            out.setdefault(txn.coordinator, set()).add(txn.sequence)
    for number, state in states:
        old = state.ended.before(horizon, thorough=thorough)
        named_txns = [state.ended.get(sequence) for home, sequence in first if home == number]
        old += [txn.sequence for txn in named_txns if txn is not None and txn.ended_ms < horizon]
        if old:
            out.setdefault(number, set()).update(old)
    return out


def horizon_ms(settings: Settings, now_ms: int) -> int:
    """Transactions that ended before this instant have passed their retention; -1: none ever."""
    limit = settings.txn_ended_retention_ms
    if limit < 0:
        return -1
    return now_ms - limit if limit else INSTANT_MS_MAX + 1
