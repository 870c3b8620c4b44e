"""The draft of a frame: the ops that a decision appends, checked against the view.

A decision does not change the view, so the view does not show the entries and ledger ids that it
takes. The draft counts them, so that the rows of one frame follow each other without gaps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar, cast

import msgspec
import pyarrow as pa

from txlog.base.settings import Settings
from txlog.engine.model.ops import LedgerRolled, Op, WatermarkSnapshot
from txlog.engine.model.schema import OneRow
from txlog.engine.plan import ack_sets
from txlog.engine.plan.policies import is_snapshot_due
from txlog.engine.view import View
from txlog.errors import TxlogError

if TYPE_CHECKING:
    from txlog.engine.plan.ack_sets import CursorEffect


Mark: TypeAlias = tuple[
    int, dict[tuple[int, str], tuple[int, int]], int, bool, set[tuple[int, str]]
]


T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Decision(msgspec.Struct, Generic[T_co]):
    """The frame that the store appends, applies and flushes, and its answer after that (Law 3).

    ops, batch: the ops of the frame, and their rows; without ops nothing is appended
    sync:       the frame is durable before the caller gets its answer
    answer:     returned to the caller, unless there is an error
    error:      raised after the append: a conflict, for example, also aborts a transaction
    waits:      False: the answer shows nothing that a power cut could take, so the caller gets it
                while earlier frames are still being flushed
    outlasts:   with `sync`: a power cut does not take the frame, also where the durability is `os`,
                because a database that commits durably relies on it
    """

    ops: list[Op]
    batch: pa.RecordBatch | OneRow | None = None
    sync: bool = False
    answer: T_co | None = None
    error: TxlogError | None = None
    waits: bool = True
    outlasts: bool = False

    def answered(self) -> T_co:
        """The answer; raises the error, if there is one."""
        if self.error is not None:
            raise self.error
        return cast(T_co, self.answer)


class Draft:
    """Collects the ops of one frame.

    forgotten: names of producers that the frame forgets, by partition
    """

    __slots__ = (
        "_ends",
        "_next_ledger",
        "_settled",
        "forgotten",
        "now_ms",
        "ops",
        "settings",
        "sync",
        "view",
    )

    def __init__(self, view: View, settings: Settings, now_ms: int) -> None:
        self.view = view
        self.settings = settings
        self.now_ms = now_ms
        self.ops: list[Op] = []
        self.sync = False
        self.forgotten: set[tuple[int, str]] = set()
        self._ends: dict[tuple[int, str], tuple[int, int]] = {}
        self._next_ledger = 0
        self._settled: dict[tuple[int, int], CursorEffect] | None = None

    def mark(self) -> Mark:
        """The state so far, for `back_to`."""
        return (
            len(self.ops),
            dict(self._ends),
            self._next_ledger,
            self.sync,
            set(self.forgotten),
        )

    def back_to(self, mark: Mark) -> None:
        """Drop everything added since a mark."""
        count, self._ends, self._next_ledger, self.sync, self.forgotten = mark
        del self.ops[count:]

    def new_ledger(self) -> int:
        """Take a ledger id that was never used; this makes the frame durable (R10)."""
        if not self._next_ledger:
            self._next_ledger = self.view.catalog.next_ledger
        self._next_ledger += 1
        self.sync = True
        return self._next_ledger - 1

    def skip_ledgers(self, first: int) -> None:
        """Begin new ledger ids at `first`, which is above every id used so far."""
        assert first >= max(self._next_ledger, self.view.catalog.next_ledger)  # Law 6
        self._next_ledger = first

    def take_entries(self, partition: int, role: str, rows: int) -> tuple[int, int]:
        """(ledger, first entry) for the next rows of a partition (p) or its sidecar (s).

        Opens a ledger if there is none, or if the open one is full by entries, bytes or age. Adds
        a snapshot of watermarks before them if one is due.
        """
        key = (partition, role)
        end = self._ends.get(key)
        if end is None:
            end = self._open_end(partition, role)
            # a new ledger already has its snapshot
            if role == "p" and end[1] and is_snapshot_due(self.view, self.settings, partition):
                end = self._behind_snapshot(partition, *end)
        ledger, entry = end
        self._ends[key] = (ledger, entry + rows)
        return end

    def _open_end(self, partition: int, role: str) -> tuple[int, int]:
        view = self.view
        ledgers = (view.topic(partition) if role == "p" else view.buffer(partition)).ledgers
        if not ledgers:
            return self.roll(partition, role, 0)
        last, limits = ledgers[-1], self.settings
        ledger, entries = last.ledger, last.entries
        if (
            entries >= limits.ledger_entries_max
            or last.payload_bytes >= limits.ledger_bytes_max
            or self.now_ms - last.opened_ms >= limits.ledger_age_max_ms
        ) and self.holds_rows(partition, role, ledger, entries):
            return self.roll(partition, role, ledger)
        return ledger, entries

    def open_partition(self, partition: int) -> None:
        """Open the first ledger of a partition that this frame creates."""
        self._ends[(partition, "p")] = self.roll(partition, "p", 0)

    def holds_rows(self, partition: int, role: str, ledger: int, entries: int) -> bool:
        """True for a ledger with rows other than its first snapshot."""
        if entries == 1 and role == "p":
            return 0 not in self.view.watermark(partition).snapshots.get(ledger, ())
        return entries > 0

    def roll(self, partition: int, role: str, old: int) -> tuple[int, int]:
        """Close a ledger (0: there is none) and open one; returns (its id, its next entry).

        Once a partition has had a watermark, each new ledger begins with a snapshot of the state.
        """
        ledger = self.new_ledger()
        self.ops.append(LedgerRolled(partition, role, old, ledger))
        if role == "s" or not old or not self.view.watermark(partition).state.seen:
            return (ledger, 0)
        last = self.view.topic(partition).ledgers[-1]
        self._snapshot(partition, ledger, 0, (last.ledger, last.entries - 1), 0)
        return (ledger, 1)

    def roll_behind(self, partition: int, last: tuple[int, int]) -> None:
        """Open a ledger of a partition after a closed ledger that this frame adds.

        last: its last row; that ledger has no snapshot, as nothing in it moves a watermark
        """
        ledger = self.new_ledger()
        self.ops.append(LedgerRolled(partition, "p", last[0], ledger))
        if self.view.watermark(partition).state.seen:
            self._snapshot(partition, ledger, 0, last, 0)

    def _behind_snapshot(self, partition: int, ledger: int, entry: int) -> tuple[int, int]:
        """Add a snapshot of watermarks at this entry; returns (ledger, the entry after it)."""
        last = self.view.topic(partition).ledgers[-1]
        self._snapshot(partition, ledger, entry, (ledger, entry - 1), last.payload_bytes)
        return (ledger, entry + 1)

    def snapshot(self, partition: int) -> None:
        """Add a snapshot of watermarks after the last row, due or not."""
        ledger, entry = self._open_end(partition, "p")
        if entry <= 1 and not self.holds_rows(partition, "p", ledger, entry):
            return  # the ledger begins with a snapshot
        last = self.view.topic(partition).ledgers[-1]
        self._snapshot(partition, ledger, entry, (ledger, entry - 1), last.payload_bytes)
        self._ends[(partition, "p")] = (ledger, entry + 1)

    def _snapshot(
        self, partition: int, ledger: int, entry: int, as_of: tuple[int, int], ledger_bytes: int
    ) -> None:
        payload = self.view.watermark(partition).payload(as_of)
        self.ops.append(WatermarkSnapshot(partition, ledger, entry, payload, ledger_bytes))

    def settled(self, subscription: int, partition: int) -> CursorEffect:
        """The effect on a cursor of the commits so far in this frame; the next one builds on it."""
        key = (subscription, partition)
        if self._settled is None:
            self._settled = {}
        state = self._settled.get(key)
        if state is None:
            mark = self.view.cursor(subscription, partition).mark_delete
            state = self._settled[key] = ack_sets.CursorEffect(mark)
        return state

    def decision(self, answer: T | None = None, *, sync: bool = False) -> Decision[T]:
        """The finished decision without rows."""
        return Decision(self.ops, None, sync or self.sync, answer)
