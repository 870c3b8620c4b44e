"""Verifying a cursor: what is acknowledged, held or in hand exists, and nothing is two of these."""

from __future__ import annotations

from collections.abc import Iterable

from txlog.engine.folds import buffer as buffers
from txlog.engine.folds import coordinator as coordinators
from txlog.engine.folds.cursor import BEFORE_ALL, Cursor
from txlog.engine.model.idset import IdSet, covers, size
from txlog.engine.model.ops import Run
from txlog.engine.upkeep.verify.findings import Findings
from txlog.engine.view.view import View


def check_cursor(view: View, subscription: int, number: int, findings: Findings) -> None:
    """One subscription in one partition."""
    cursor = view.cursor(subscription, number)
    held = view.catalog.subscriptions[subscription]
    check = _Check(view, number, f"subscription {held.name}", findings)
    check.mark(cursor)
    check.ids("acknowledged", cursor.acked, cursor)
    check.ids("held by a transaction", cursor.held, cursor)
    check.ids("in hand", cursor.hands.leased, cursor)
    check.pending(cursor, subscription)
    for consumer, lease in cursor.hands.leases.items():
        if lease.ids and consumer not in view.catalog.consumers:
            check.say(f"consumer {consumer} has messages in hand and does not exist")
    for name, other in (("acknowledged", cursor.acked), ("held", cursor.held)):
        for run in cursor.hands.leased.runs():
            if other.first_common(run) is not None:
                check.say(f"{_text(run)} is in hand and {name}", run)
                break


class _Check:
    """What the checks of one cursor share."""

    __slots__ = ("_ends", "_findings", "_number", "_view", "_who")

    def __init__(self, view: View, number: int, who: str, findings: Findings) -> None:
        self._view = view
        self._number = number
        self._who = who
        self._findings = findings
        self._ends = {end.ledger: end.entries for end in view.topic(number).ledgers}

    def say(self, message: str, run: Run | None = None) -> None:
        first = None if run is None else (run[0], run[1])
        self._findings.error(
            604, f"{self._who}: {message}", partition=self._number,
            ledger=None if run is None else run[0], first=first,
        )  # fmt: skip

    def mark(self, cursor: Cursor) -> None:
        """Mark-delete stands at a place of the partition, or before its first ledger."""
        ledger, entry, index = cursor.mark_delete
        if cursor.mark_delete == BEFORE_ALL or ledger < min(self._ends):
            return
        entries = self._ends.get(ledger)
        run: Run = (ledger, entry, entry, index, index)
        if entries is None or entry >= entries or entry < -1:
            self.say(f"mark-delete {ledger}:{entry} is no place of the partition", run)
        elif index:
            marker = buffers.find_marker(self._view.buffer(self._number), ledger, entry)
            if marker is None or index > marker.count:
                self.say(f"mark-delete {ledger}:{entry}:{index} is no message", run)

    def ids(self, what: str, ids: IdSet, cursor: Cursor) -> None:
        """Every id is a message of the partition behind mark-delete."""
        for run in ids.runs():
            if not self._exists(run):
                self.say(f"{_text(run)} is {what} and does not exist", run)
                return
            last = (run[0], run[2], run[4])
            if covers(cursor.mark_delete, last) and what != "held by a transaction":
                self.say(f"{_text(run)} is {what} and lies before mark-delete", run)
                return

    def _exists(self, run: Run) -> bool:
        ledger, first, last, index_first, index_last = run
        if ledger < min(self._ends):
            return True  # trimmed: it counts as deleted
        entries = self._ends.get(ledger)
        if entries is None or not 0 <= first <= last < entries:
            return False
        if not index_first:
            return True
        marker = buffers.find_marker(self._view.buffer(self._number), ledger, first)
        return marker is not None and index_last <= marker.count

    def pending(self, cursor: Cursor, subscription: int) -> None:
        """What transactions hold: each by one, the counts right, registered with an open one."""
        seen = IdSet()
        for (coordinator, sequence), one in cursor.pending.items():
            name = f"transaction {coordinator}:{sequence}"
            if (run := _common(seen, one.runs)) is not None:
                self.say(f"{_text(run)} is held by {name} and by another", run)
            for run in one.runs:
                seen.add(run)
            txn = coordinators.find(self._view.coordinator(coordinator), sequence)
            if txn is not None and (subscription, self._number) not in txn.subscriptions:
                self.say(f"{name} holds acknowledgements and is not registered for it")
            count = sum(self._messages(run) for run in one.runs)
            if count != one.count:
                self.say(f"{name} holds {one.count} acknowledgements, its ids are {count}")

    def _messages(self, run: Run) -> int:
        """Messages of a run: a marker counts its own."""
        if run[3]:
            return size(run)
        state = self._view.buffer(self._number)
        silent = self._view.watermark(self._number).silent.get(run[0])
        total = size(run)
        if silent is not None:
            total -= silent.range_cardinality(run[1], run[2] + 1)
        for marker in state.markers.get(run[0], []):
            if run[1] <= marker.entry <= run[2] and marker.count:
                total += marker.count - 1
        return total


def _common(seen: IdSet, runs: Iterable[Run]) -> Run | None:
    for run in runs:
        if seen.first_common(run) is not None:
            return run
    return None


def _text(run: Run) -> str:
    ledger, first, last, index_first, index_last = run
    if index_first:
        return f"{ledger}:{first}:{index_first}" + (
            f" to :{index_last}" if index_last > index_first else ""
        )
    return f"{ledger}:{first}" + (f" to {ledger}:{last}" if last > first else "")
