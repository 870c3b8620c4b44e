"""The cursor fold: what one subscription has acknowledged in one partition.

Ledger: _cursors/<subscription>. Ops
  CursorOpened, Acked, PendingAcked, PendingCommitted, PendingAborted, AckConflicted,
  CursorTrimmed.

    PENDING ──ack──> DELETED
       │  ▲
       │  └── abort (redelivery count + 1) ──┐
       └──ack in a transaction──> PENDING_ACK ──commit──> DELETED

Entries acknowledged beyond the mark-delete position are roaring bitmaps, one a ledger; single
messages of a transaction (marker:I) are a bitmap a marker until all of them are, then its entry.

Invariants
  1. Mark-delete never falls; a mark (ledger, entry, index) with index > 0 is inside that marker.
  2. A message is held by at most one transaction; another's end never touches it.
Source: PIP-31 "Acknowledgement"; spec/transactions 9.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
from pyroaring import BitMap, BitMap64

from txlog.engine.model.fold import Fold, broken, unexpected
from txlog.engine.model.ops import (
    AckConflicted,
    Acked,
    CursorOpened,
    CursorTrimmed,
    Mark,
    Op,
    PendingAborted,
    PendingAcked,
    PendingCommitted,
    Run,
)

BEFORE_ALL: Mark = (0, -1, 0)


class Pending(msgspec.Struct, array_like=True, gc=False):
    """What a transaction holds in PENDING_ACK here."""

    runs: list[Run] = []
    cumulative: Mark | None = None
    count: int = 0


class IdSet:
    """A set of message ids: whole entries by ledger, and single messages by marker."""

    __slots__ = ("entries", "inner")

    def __init__(self) -> None:
        self.entries: dict[int, BitMap64] = {}
        self.inner: dict[tuple[int, int], BitMap] = {}

    def add(self, run: Run) -> None:
        """Add a run; a whole entry replaces what was known of its messages."""
        ledger, first, last, index_first, index_last = run
        if index_first:
            inner = self.inner.get((ledger, first))
            if inner is None:
                inner = self.inner[(ledger, first)] = BitMap()
            inner.add_range(index_first, index_last + 1)
            return
        known = self.entries.get(ledger)
        if known is None:
            known = self.entries[ledger] = BitMap64()
        known.add_range(first, last + 1)
        if self.inner:
            for key in [k for k in self.inner if k[0] == ledger and first <= k[1] <= last]:
                del self.inner[key]

    def discard(self, run: Run) -> None:
        """Take a run out; what is not there is ignored."""
        ledger, first, last, index_first, index_last = run
        if index_first:
            inner = self.inner.get((ledger, first))
            if inner is not None:
                inner.remove_range(index_first, index_last + 1)
                if not inner:
                    del self.inner[(ledger, first)]
            return
        known = self.entries.get(ledger)
        if known is not None:
            known.remove_range(first, last + 1)
            if not known:
                del self.entries[ledger]

    def empty(self) -> None:
        """Take everything out; the bitmaps stay, for the next run is likely to be near."""
        for known in self.entries.values():
            known.clear()
        self.inner.clear()

    def first_common(self, run: Run) -> tuple[int, int, int] | None:
        """The first id of the run that is in the set, as (ledger, entry, index)."""
        ledger, first, last, index_first, index_last = run
        known = self.entries.get(ledger)
        if known is not None and known.range_cardinality(first, last + 1):
            below = known.rank(first - 1) if first else 0
            return (ledger, known[below], index_first)
        if index_first:
            inner = self.inner.get((ledger, first))
            if inner is not None and inner.range_cardinality(index_first, index_last + 1):
                return (ledger, first, next(i for i in inner if i >= index_first))
            return None
        for key in self.inner:
            if key[0] == ledger and first <= key[1] <= last:
                return (ledger, key[1], self.inner[key][0])
        return None

    def drop_through(self, mark: Mark) -> None:
        """Forget everything at or below a mark."""
        ledger, entry, index = mark
        for number in [n for n in self.entries if n <= ledger]:
            if number < ledger:
                del self.entries[number]
            else:
                self.entries[number].remove_range(0, entry + (index == 0))
                if not self.entries[number]:
                    del self.entries[number]
        if not self.inner:
            return
        for key in [k for k in self.inner if k < (ledger, entry)]:
            del self.inner[key]
        if index == 0:
            self.inner.pop((ledger, entry), None)

    def count(self) -> tuple[int, int]:
        """(whole entries, single messages)."""
        return sum(map(len, self.entries.values())), sum(map(len, self.inner.values()))

    def dump(self) -> tuple[dict[int, bytes], list[tuple[int, int, bytes]]]:
        """Plain values, for msgpack."""
        return (
            {ledger: known.serialize() for ledger, known in sorted(self.entries.items())},
            [(k[0], k[1], known.serialize()) for k, known in sorted(self.inner.items())],
        )

    @classmethod
    def load(cls, entries: dict[int, bytes], inner: Iterable[tuple[int, int, bytes]]) -> IdSet:
        """The inverse of dump."""
        made = cls()
        made.entries = {ledger: BitMap64.deserialize(raw) for ledger, raw in entries.items()}
        made.inner = {(ledger, entry): BitMap.deserialize(raw) for ledger, entry, raw in inner}
        return made


class Figures(msgspec.Struct, array_like=True, gc=False):
    """What happened here since the beginning; each only grows.

    ops: taken by this fold; ends of transactions with acknowledgements here; messages that came
    again, that were asked for while a transaction held them; conflicts
    """

    ops: int = 0
    committed: int = 0
    aborted: int = 0
    redelivered: int = 0
    dropped: int = 0
    conflicts: int = 0


class Cursor:
    """State of the fold. `held` is what any transaction holds, derived from `pending`."""

    __slots__ = (
        "acked", "acked_count", "figures", "held", "last_ack_ms", "mark_delete", "pending",
        "redelivered", "round",
    )  # fmt: skip

    def __init__(self) -> None:
        self.mark_delete: Mark = BEFORE_ALL
        self.acked = IdSet()
        self.held = IdSet()
        self.pending: dict[tuple[int, int], Pending] = {}
        self.redelivered: dict[tuple[int, int, int], int] = {}
        self.round = 0
        self.acked_count = 0  # messages DELETED by acknowledgement, for the backlog
        self.last_ack_ms = 0
        self.figures = Figures()


class _Dumped(msgspec.Struct, array_like=True):
    mark_delete: Mark
    acked: dict[int, bytes]
    inner: list[tuple[int, int, bytes]]
    pending: list[tuple[int, int, Pending]]
    redelivered: list[tuple[int, int, int, int]]
    round: int
    acked_count: int
    last_ack_ms: int
    figures: Figures = msgspec.field(default_factory=Figures)


def apply(state: Cursor, lsn: int, time_ms: int, op: Op) -> None:
    """Apply one op."""
    take = _TAKES.get(type(op))
    if take is None:
        raise unexpected("cursor", lsn, op)
    take(state, lsn, time_ms, op)
    state.figures.ops += 1


def _take_acked(state: Cursor, lsn: int, time_ms: int, op: Acked) -> None:
    for run in op.runs:
        state.acked.add(run)
    _advance(state, lsn, op.mark_delete)
    state.acked_count += op.count
    state.figures.dropped += op.dropped
    if op.count:
        state.last_ack_ms = time_ms


def _take_pending_acked(state: Cursor, lsn: int, time_ms: int, op: PendingAcked) -> None:
    _hold(state, op)


def _take_pending_committed(state: Cursor, lsn: int, time_ms: int, op: PendingCommitted) -> None:
    pending = _take(state, lsn, op.coordinator, op.sequence)
    for run in op.runs:
        state.acked.add(run)
    _advance(state, lsn, op.mark_delete)
    state.acked_count += pending.count
    state.figures.committed += 1
    state.last_ack_ms = time_ms


def _take_pending_aborted(state: Cursor, lsn: int, time_ms: int, op: PendingAborted) -> None:
    pending = _take(state, lsn, op.coordinator, op.sequence)
    for message in (message for run in pending.runs for message in _each(run)):
        state.redelivered[message] = state.redelivered.get(message, 0) + 1
    state.round += 1
    state.figures.aborted += 1
    state.figures.redelivered += pending.count


def _take_ack_conflicted(state: Cursor, lsn: int, time_ms: int, op: AckConflicted) -> None:
    state.figures.conflicts += 1


def _take_cursor_opened(state: Cursor, lsn: int, time_ms: int, op: CursorOpened) -> None:
    state.mark_delete = op.mark_delete


def _take_cursor_trimmed(state: Cursor, lsn: int, time_ms: int, op: CursorTrimmed) -> None:
    _trim(state, lsn, op)


def _trim(state: Cursor, lsn: int, op: CursorTrimmed) -> None:
    for coordinator, sequence, runs, cumulative, count in op.pending:
        pending = state.pending.get((coordinator, sequence))
        if pending is None:
            raise broken("cursor", lsn, f"transaction {coordinator}:{sequence} holds nothing")
        for run in pending.runs:
            state.held.discard(run)
        for run in runs:
            state.held.add(run)
        pending.runs, pending.cumulative, pending.count = runs, cumulative, count
    _advance(state, lsn, op.mark_delete)


def _hold(state: Cursor, op: PendingAcked) -> None:
    key = (op.coordinator, op.sequence)
    pending = state.pending.get(key)
    if pending is None:
        pending = state.pending[key] = Pending()
    pending.runs.extend(op.runs)
    for run in op.runs:
        state.held.add(run)
    if op.cumulative is not None:
        pending.cumulative = op.cumulative
    pending.count += op.count


def _each(run: Run) -> Iterator[tuple[int, int, int]]:
    ledger, first, last, index_first, index_last = run
    if index_first:
        return ((ledger, first, index) for index in range(index_first, index_last + 1))
    return ((ledger, entry, 0) for entry in range(first, last + 1))


def _take(state: Cursor, lsn: int, coordinator: int, sequence: int) -> Pending:
    pending = state.pending.pop((coordinator, sequence), None)
    if pending is None:
        raise broken("cursor", lsn, f"transaction {coordinator}:{sequence} holds nothing")
    if state.pending:
        for run in pending.runs:
            state.held.discard(run)
    else:  # most of the time nobody else holds anything
        state.held.empty()
    return pending


def _advance(state: Cursor, lsn: int, mark: Mark) -> None:
    if mark < state.mark_delete and state.mark_delete[:2] != mark[:2]:
        raise broken("cursor", lsn, "mark-delete would fall")
    if mark == state.mark_delete:
        return
    state.mark_delete = mark
    if state.acked.entries or state.acked.inner:
        state.acked.drop_through(mark)
    if state.redelivered:
        for key in [k for k in state.redelivered if covers(mark, k)]:
            del state.redelivered[key]


def covers(mark: Mark, message: tuple[int, int, int]) -> bool:
    """True when the mark stands at or behind the message; index 0 of a mark covers its entry."""
    if message[:2] != mark[:2]:
        return message[:2] < mark[:2]
    return mark[2] == 0 or (message[2] != 0 and message[2] <= mark[2])


def _dump(state: Cursor) -> bytes:
    acked, inner = state.acked.dump()
    return msgspec.msgpack.encode(
        _Dumped(
            state.mark_delete, acked, inner,
            [(*key, pending) for key, pending in state.pending.items()],
            [(*key, count) for key, count in sorted(state.redelivered.items())],
            state.round, state.acked_count, state.last_ack_ms, state.figures,
        )
    )  # fmt: skip


# The type of an op says who takes it: a chain of isinstance would cost more than the ops do.
_TAKES: dict[type, Callable[[Cursor, int, int, Any], None]] = {
    Acked: _take_acked,
    PendingAcked: _take_pending_acked,
    PendingCommitted: _take_pending_committed,
    PendingAborted: _take_pending_aborted,
    AckConflicted: _take_ack_conflicted,
    CursorOpened: _take_cursor_opened,
    CursorTrimmed: _take_cursor_trimmed,
}
_decoder = msgspec.msgpack.Decoder(_Dumped)


def _load(data: bytes) -> Cursor:
    dumped = _decoder.decode(data)
    state = Cursor()
    state.mark_delete = dumped.mark_delete
    state.acked = IdSet.load(dumped.acked, dumped.inner)
    for coordinator, sequence, pending in dumped.pending:
        state.pending[(coordinator, sequence)] = pending
        for run in pending.runs:
            state.held.add(run)
    state.redelivered = {(a, b, c): count for a, b, c, count in dumped.redelivered}
    state.round, state.acked_count = dumped.round, dumped.acked_count
    state.last_ack_ms = dumped.last_ack_ms
    state.figures = dumped.figures
    return state


FOLD = Fold("cursor", Cursor, apply, _dump, _load)
