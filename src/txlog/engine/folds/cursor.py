"""The cursor fold: the acknowledgements of one subscription in one partition.

Log of its changes: system/cursors, or _cursors/<subscription> of a large one. Ops
  CursorOpened, Acked, PendingAcked, PendingCommitted, PendingAborted, AckConflicted,
  CursorTrimmed, Leased, Returned, Sought, DeadLettered, Promoted.

    PENDING ──ack──> DELETED
       │  ▲
       │  └── abort (redelivery count + 1) ──┐
       └──ack in a transaction──> PENDING_ACK ──commit──> DELETED

Entries acknowledged beyond the mark-delete position are roaring bitmaps, one per ledger. Single
messages of a transaction (marker:I) are a bitmap per marker; when all are acknowledged, the entry
of the marker replaces it.

A PENDING message may be leased to a consumer, or wait after a nack (model/leases). Any
acknowledgement ends both. A return raises `round`, unless its messages wait for an instant.

Invariants
  1. Only a seek moves mark-delete back; a mark (ledger, entry, index) with index > 0 is inside
     that marker.
  2. A message is held by at most one transaction; the end of another transaction never changes it.
  3. A DELETED or PENDING_ACK message is not leased, and does not wait.
Source: PIP-31 "Acknowledgement"; spec/transactions 9.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Any

import msgspec

from txlog.engine.model.idset import Id, before, covers, each
from txlog.engine.model.idset import IdSet as IdSet
from txlog.engine.model.leases import DumpedLease, Ids, Leases
from txlog.engine.model.ops import (
    AckConflicted,
    Acked,
    CursorOpened,
    CursorTrimmed,
    DeadLettered,
    Due,
    Fold,
    Leased,
    Mark,
    Op,
    PendingAborted,
    PendingAcked,
    PendingCommitted,
    Promoted,
    Returned,
    Run,
    Sought,
    broken,
    unexpected,
)

BEFORE_ALL: Mark = (0, -1, 0)
# rounds that a slow consumer can tell apart; for older ones the lowest position counts
REWINDS_MAX = 64


class PendingAcks(msgspec.Struct, array_like=True, gc=False):
    """The acknowledgements of a transaction in PENDING_ACK here.

    consumer: the consumer of all these acknowledgements; 0: by id, or several consumers
    """

    runs: list[Run] = []
    cumulative: Mark | None = None
    count: int = 0
    consumer: int = 0


class CursorCounts(msgspec.Struct, array_like=True, gc=False):
    """Counts since the beginning; each only grows.

    ops: applied by this fold; ends of transactions with acknowledgements here; messages
    redelivered; acknowledgements dropped because a transaction held the message; conflicts;
    messages dead-lettered
    """

    ops: int = 0
    committed: int = 0
    aborted: int = 0
    redelivered: int = 0
    dropped: int = 0
    conflicts: int = 0
    dead_lettered: int = 0


class Cursor:
    """State of the fold. `held` has the ids that any transaction holds, derived from `pending`.

    rewinds: (round, position before the lowest message that came back in it), both rising
    """

    __slots__ = (
        "_lowest_counts",
        "acked",
        "acked_count",
        "epoch",
        "figures",
        "held",
        "last_ack_ms",
        "leases",
        "mark_delete",
        "pending",
        "redelivered",
        "released",
        "rewinds",
        "round",
    )

    def __init__(self) -> None:
        self.mark_delete: Mark = BEFORE_ALL
        self.acked = IdSet()
        self.held = IdSet()
        self.pending: dict[tuple[int, int], PendingAcks] = {}
        self.leases = Leases()
        self.redelivered: dict[Id, int] = {}
        self._lowest_counts: list[Id] = []  # a heap of its keys: mark-delete removes the lowest
        self.round = 0
        self.rewinds: list[tuple[int, Mark]] = []
        self.acked_count = 0  # messages DELETED by acknowledgement since the beginning; only grows
        self.last_ack_ms = 0
        self.figures = CursorCounts()
        self.epoch = 0  # raised by each seek; values delivered in earlier epochs are void
        self.released = IdSet()  # delivered whatever their time: returned by a lease, or promoted

    def count_again(self, ids: Iterable[Id]) -> None:
        """Count one more redelivery for each id."""
        for id_ in ids:
            count = self.redelivered.get(id_, 0)
            self.redelivered[id_] = count + 1
            if not count:
                heappush(self._lowest_counts, id_)

    def forget_counts(self, mark: Mark) -> None:
        """Drop the counts of ids that mark-delete has passed."""
        lowest = self._lowest_counts
        while lowest and covers(mark, lowest[0]):
            self.redelivered.pop(heappop(lowest), None)

    def set_counts(self, counts: dict[Id, int]) -> None:
        """Take counts from a dump."""
        self.redelivered, self._lowest_counts = counts, list(counts)
        heapify(self._lowest_counts)

    def rewind(self, lowest: Id | None) -> None:
        """Begin a round after messages came back; lowest: the first message."""
        self.round += 1
        if lowest is None:
            return
        mark = before(lowest)
        while self.rewinds and not _is_below(self.rewinds[-1][1], mark):
            self.rewinds.pop()  # a rewind to the new mark passes the popped mark, too
        self.rewinds.append((self.round, mark))
        if len(self.rewinds) > REWINDS_MAX:
            self.rewinds[:2] = [(self.rewinds[1][0], self.rewinds[0][1])]

    def rewound(self, since: int, position: Mark) -> Mark:
        """The position where a consumer continues that was at a position in an earlier round."""
        for number, mark in self.rewinds:
            if number > since:
                return mark if _is_below(mark, position) else position
        return position


def _is_below(first: Mark, second: Mark) -> bool:
    return first != second and covers(second, first)


class Dumped(msgspec.Struct, array_like=True):
    """The dump of a cursor: bitmaps are portable roaring, 64 bits of entries, else 32."""

    mark_delete: Mark
    acked: dict[int, bytes]
    inner: list[tuple[int, int, bytes]]
    pending: list[tuple[int, int, PendingAcks]]
    redelivered: list[tuple[int, int, int, int]]
    round: int
    acked_count: int
    last_ack_ms: int
    figures: CursorCounts = msgspec.field(default_factory=CursorCounts)
    leases: list[DumpedLease] = []
    waiting: list[tuple[Id, Due]] = []
    rewinds: list[tuple[int, Mark]] = []
    epoch: int = 0
    released: Ids = ({}, [])


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
        state.leases.settle(run)
        if state.released:
            state.released.discard(run)
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


def _firsts(runs: Iterable[Run]) -> list[Id]:
    """The first id of each run; a run of a damaged op may be empty."""
    return [first for run in runs for first in islice(each(run), 1)]


def _take_pending_aborted(state: Cursor, lsn: int, time_ms: int, op: PendingAborted) -> None:
    pending = _take(state, lsn, op.coordinator, op.sequence)
    state.count_again(id_ for run in pending.runs for id_ in each(run))
    state.rewind(min(_firsts(pending.runs), default=None))
    state.figures.aborted += 1
    state.figures.redelivered += pending.count


def _take_leased(state: Cursor, lsn: int, time_ms: int, op: Leased) -> None:
    state.leases.lease(op.consumer, op.runs, op.due, op.ahead)
    if state.released:
        for run in op.runs:
            state.released.discard(run)


def _take_returned(state: Cursor, lsn: int, time_ms: int, op: Returned) -> None:
    leases = state.leases
    leases.release(op.consumer, op.uncounted)
    counted = op.counted
    if counted is None:
        lease = leases.by_consumer.pop(op.consumer, None)
        counted = [] if lease is None else lease.ids.runs()
    leases.release(op.consumer, counted)
    for run in (*op.uncounted, *counted):
        state.released.add(run)
    ids = [id_ for run in counted for id_ in each(run)]
    state.count_again(ids)
    state.figures.redelivered += len(ids)
    if op.due is not None:
        leases.wait(ids, op.due)
        return
    back = _firsts([*op.uncounted, *counted])
    if back:
        state.rewind(min(back))


def _take_promoted(state: Cursor, lsn: int, time_ms: int, op: Promoted) -> None:
    for run in op.runs:
        state.released.add(run)
    state.rewind(min(_firsts(op.runs), default=None))


def _take_ack_conflicted(state: Cursor, lsn: int, time_ms: int, op: AckConflicted) -> None:
    state.figures.conflicts += 1


def _take_dead_lettered(state: Cursor, lsn: int, time_ms: int, op: DeadLettered) -> None:
    state.figures.dead_lettered += op.count


def _take_cursor_opened(state: Cursor, lsn: int, time_ms: int, op: CursorOpened) -> None:
    state.mark_delete = op.mark_delete


def _take_cursor_trimmed(state: Cursor, lsn: int, time_ms: int, op: CursorTrimmed) -> None:
    _trim(state, lsn, op)


def _take_sought(state: Cursor, lsn: int, time_ms: int, op: Sought) -> None:
    if state.pending:  # the frame aborts the transactions first
        raise broken("cursor", lsn, "a seek over what a transaction holds")
    state.mark_delete = op.mark_delete
    state.acked, state.leases, state.released = IdSet(), Leases(), IdSet()
    state.set_counts({})
    state.round += 1
    state.rewinds = [(state.round, BEFORE_ALL)]  # all consumers continue after mark-delete
    state.epoch += 1


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
        pending = state.pending[key] = PendingAcks()
        pending.consumer = op.consumer
    elif pending.consumer != op.consumer:
        pending.consumer = 0
    pending.runs.extend(op.runs)
    for run in op.runs:
        state.held.add(run)
        state.leases.settle(run)
        if state.released:
            state.released.discard(run)
    if op.cumulative is not None:
        pending.cumulative = op.cumulative
    pending.count += op.count


def _take(state: Cursor, lsn: int, coordinator: int, sequence: int) -> PendingAcks:
    pending = state.pending.pop((coordinator, sequence), None)
    if pending is None:
        raise broken("cursor", lsn, f"transaction {coordinator}:{sequence} holds nothing")
    if state.pending:
        for run in pending.runs:
            state.held.discard(run)
    else:  # usually no other transaction holds ids
        state.held.empty(pending.runs)
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
        state.forget_counts(mark)
    if state.leases.by_consumer or state.leases.waiting:
        state.leases.drop_through(mark)
    if state.released:
        state.released.drop_through(mark)


def _dump(state: Cursor) -> bytes:
    acked, inner = state.acked.dump()
    leases, waiting = state.leases.dump()
    return msgspec.msgpack.encode(
        Dumped(
            state.mark_delete,
            acked,
            inner,
            [(*key, pending) for key, pending in state.pending.items()],
            [(*key, count) for key, count in sorted(state.redelivered.items())],
            state.round,
            state.acked_count,
            state.last_ack_ms,
            state.figures,
            leases,
            waiting,
            state.rewinds,
            state.epoch,
            state.released.dump(),
        )
    )


# Looked up by the type of the op: a chain of isinstance would cost more than applying the ops.
_TAKES: dict[type, Callable[[Cursor, int, int, Any], None]] = {
    Acked: _take_acked,
    PendingAcked: _take_pending_acked,
    PendingCommitted: _take_pending_committed,
    PendingAborted: _take_pending_aborted,
    AckConflicted: _take_ack_conflicted,
    DeadLettered: _take_dead_lettered,
    CursorOpened: _take_cursor_opened,
    CursorTrimmed: _take_cursor_trimmed,
    Leased: _take_leased,
    Returned: _take_returned,
    Sought: _take_sought,
    Promoted: _take_promoted,
}
_decoder = msgspec.msgpack.Decoder(Dumped)


def read_dump(data: bytes) -> Dumped:
    """Decode a dump, leaving its bitmaps encoded."""
    return _decoder.decode(data)


def _load(data: bytes) -> Cursor:
    dumped = read_dump(data)
    state = Cursor()
    state.mark_delete = dumped.mark_delete
    if dumped.acked or dumped.inner:
        state.acked = IdSet.load(dumped.acked, dumped.inner)
    for coordinator, sequence, pending in dumped.pending:
        state.pending[(coordinator, sequence)] = pending
        for run in pending.runs:
            state.held.add(run)
    if dumped.redelivered:
        state.set_counts({(a, b, c): count for a, b, c, count in dumped.redelivered})
    if dumped.leases or dumped.waiting:
        state.leases = Leases.load(dumped.leases, dumped.waiting)
    state.rewinds = dumped.rewinds
    state.round, state.acked_count = dumped.round, dumped.acked_count
    state.last_ack_ms = dumped.last_ack_ms
    state.figures, state.epoch = dumped.figures, dumped.epoch
    if any(dumped.released):
        state.released = IdSet.load(*dumped.released)
    return state


FOLD = Fold("cursor", Cursor, apply, _dump, _load)
