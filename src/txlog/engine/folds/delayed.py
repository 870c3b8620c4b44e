"""The delayed fold: when the delayed messages of one partition are due, for all subscriptions.

Ops: Appended, Adopted, BufferAppended, ChunksAppended and CommitMarker, BufferAborted of messages
with a time; BucketSealed, BucketsMerged, BucketDeleted; LedgerTrimmed.

    sent in a transaction ──> pending ──commit──> mutable ──seal──> bucket ──merge──> bucket
    sent plainly ─────────────────────────────────┘ (not here: due when sent or committed)

The log decides what exists and the cursor what is left, so an id missing here costs time, never a
message. `unindexed` are the ranges where ids are missing although they may not be due.

Delayed ids with their times are columns in the order of position (`Schedule`): 28 bytes per id;
tuples in a list would cost about 200.

Invariants
  1. Ids enter in order of position: buckets are disjoint rising ranges, mutable is above them.
  2. No bucket generation is used twice.
  3. An id is in at most one of mutable, buckets, pending.
  4. A message that is neither here nor in `unindexed` has a time of at most `passed_ms`.
Source: apache/pulsar#16763; spec/delayed 3, 4.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from txlog.engine.model.ops import (
    NO_TIME,
    Adopted,
    Appended,
    Bucket,
    BucketDeleted,
    BucketSealed,
    BucketsMerged,
    BufferAborted,
    BufferAppended,
    ChunksAppended,
    CommitMarker,
    Fold,
    Id,
    LedgerTrimmed,
    Op,
    broken,
    times_from,
    unexpected,
)

# --- delayed ids ----------------------------------------------------------------------------------


class DumpedSchedule(msgspec.Struct, array_like=True):
    """The columns as bytes, little endian: int64 three times, int32."""

    at: bytes = b""
    ledger: bytes = b""
    entry: bytes = b""
    index: bytes = b""


class Schedule:
    """Columns at, ledger, entry (int64) and index (int32); (ledger, entry, index) rises."""

    __slots__ = ("at", "entry", "index", "ledger")

    def __init__(self) -> None:
        self.at = array("q")
        self.ledger = array("q")
        self.entry = array("q")
        self.index = array("i")

    def __len__(self) -> int:
        return len(self.at)

    def __iter__(self) -> Iterator[tuple[int, int, int, int]]:
        """(at, ledger, entry, index), in order of position; for tests and small schedules."""
        return zip(self.at, self.ledger, self.entry, self.index, strict=True)

    def place(self, number: int) -> Id:
        """The id of a row."""
        return (self.ledger[number], self.entry[number], self.index[number])

    def add_entries(self, ledger: int, first: int, times: array[int], now_ms: int) -> int:
        """Add the consecutive plain messages whose time is later than now_ms.

        returns: the greatest time that was not added, NO_TIME if there is none
        """
        if min(times) > now_ms:  # most batches: all are later, or none
            count = len(times)
            self.at.extend(times)
            self.ledger.extend(array("q", [ledger]) * count)
            self.entry.extend(range(first, first + count))
            self.index.extend(array("i", [0]) * count)
            return NO_TIME
        passed = NO_TIME
        for entry, at in enumerate(times, first):
            if at > now_ms:
                self._add(at, ledger, entry, 0)
            elif at > passed:
                passed = at
        return passed

    def add_messages(
        self, ledger: int, entry: int, indexes: Iterable[int], times: Iterable[int], now_ms: int
    ) -> int:
        """Add the messages of one marker whose time is after now_ms; returns as add_entries."""
        passed = NO_TIME
        for index, at in zip(indexes, times, strict=True):
            if at > now_ms:
                self._add(at, ledger, entry, index)
            elif at > passed:
                passed = at
        return passed

    def _add(self, at: int, ledger: int, entry: int, index: int) -> None:
        self.at.append(at)
        self.ledger.append(ledger)
        self.entry.append(entry)
        self.index.append(index)

    def rows_through(self, last: Id) -> int:
        """How many rows are at or below an id."""
        return bisect_left(range(len(self)), True, key=lambda row: self.place(row) > last)

    def cut(self, rows: int) -> None:
        """Drop the first rows."""
        del self.at[:rows], self.ledger[:rows], self.entry[:rows], self.index[:rows]

    def dump(self) -> DumpedSchedule:
        """Plain values, for msgpack."""
        return DumpedSchedule(
            self.at.tobytes(), self.ledger.tobytes(), self.entry.tobytes(), self.index.tobytes()
        )

    @classmethod
    def load(cls, dumped: DumpedSchedule) -> Schedule:
        """The inverse of dump."""
        schedule = cls()
        schedule.at.frombytes(dumped.at)
        schedule.ledger.frombytes(dumped.ledger)
        schedule.entry.frombytes(dumped.entry)
        schedule.index.frombytes(dumped.index)
        return schedule


# --- the fold -------------------------------------------------------------------------------------

Ranges = list[tuple[Id, Id]]


class PendingDelays:
    """The delayed messages of an open transaction: index (from 1) and time of each."""

    __slots__ = ("at", "index")

    def __init__(self) -> None:
        self.index = array("i")
        self.at = array("q")


class Delayed:
    """State of the fold.

    unindexed: closed position ranges, disjoint, in order
    cuts: how many ops may have left ids out; cutoff_ms: the highest cutoff of such an op
    losses:    buckets that were removed although some of their ids may not have been due
    passed_ms: no row outside this index and `unindexed` has a later time
    """

    __slots__ = (
        "buckets",
        "cutoff_ms",
        "cuts",
        "losses",
        "mutable",
        "next_gen",
        "passed_ms",
        "pending",
        "unindexed",
    )

    def __init__(self) -> None:
        self.buckets: list[Bucket] = []
        self.mutable = Schedule()
        self.pending: dict[tuple[int, int], PendingDelays] = {}
        self.unindexed: Ranges = []
        self.next_gen = 1
        self.cuts = 0
        self.cutoff_ms = NO_TIME
        self.losses = 0
        self.passed_ms = NO_TIME

    @property
    def is_empty(self) -> bool:
        """True when the index has no message; messages of open transactions do not count."""
        return not (self.buckets or self.mutable or self.unindexed)


class _Dumped(msgspec.Struct, array_like=True):
    buckets: list[Bucket]
    mutable: DumpedSchedule
    pending: list[tuple[int, int, bytes, bytes]]
    unindexed: Ranges
    next_gen: int
    cuts: int
    cutoff_ms: int
    losses: int
    passed_ms: int


def apply(state: Delayed, lsn: int, time_ms: int, op: Op) -> None:
    """Apply one op."""
    take = _TAKES.get(type(op))
    if take is None:
        raise unexpected("delayed", lsn, op)
    take(state, lsn, time_ms, op)


def _appended(state: Delayed, lsn: int, time_ms: int, op: Appended) -> None:
    _check_above(state, lsn, (op.ledger, op.first_entry, 0))
    if op.times is None:
        raise unexpected("delayed", lsn, op)
    times = times_from(op.times)
    _passed(state, state.mutable.add_entries(op.ledger, op.first_entry, times, time_ms))


def _adopted(state: Delayed, lsn: int, time_ms: int, op: Adopted) -> None:
    ledger = op.file.ledger
    _check_above(state, lsn, (ledger, 0, 0))
    if op.times is None:
        raise unexpected("delayed", lsn, op)
    _passed(state, state.mutable.add_entries(ledger, 0, times_from(op.times), time_ms))


def _buffer_appended(state: Delayed, lsn: int, time_ms: int, op: BufferAppended) -> None:
    if op.times is None:
        raise unexpected("delayed", lsn, op)
    pending = _pending(state, op.coordinator, op.sequence)
    for index, at in enumerate(times_from(op.times), op.first_index):
        if at != NO_TIME:
            pending.index.append(index)
            pending.at.append(at)


def _chunks_appended(state: Delayed, lsn: int, time_ms: int, op: ChunksAppended) -> None:
    if op.deliver_at is None:
        raise unexpected("delayed", lsn, op)
    pending = _pending(state, op.coordinator, op.sequence)
    pending.index.append(op.index)
    pending.at.append(op.deliver_at)


def _pending(state: Delayed, coordinator: int, sequence: int) -> PendingDelays:
    key = (coordinator, sequence)
    pending = state.pending.get(key)
    if pending is None:
        pending = state.pending[key] = PendingDelays()
    return pending


def _commit_marker(state: Delayed, lsn: int, time_ms: int, op: CommitMarker) -> None:
    pending = state.pending.pop((op.coordinator, op.sequence), None)
    if pending is None or len(pending.at) != op.delayed:
        raise broken("delayed", lsn, f"{op.coordinator}:{op.sequence} has other delayed messages")
    _check_above(state, lsn, (op.ledger, op.entry, 1))
    _passed(
        state,
        state.mutable.add_messages(op.ledger, op.entry, pending.index, pending.at, time_ms),
    )


def _buffer_aborted(state: Delayed, lsn: int, time_ms: int, op: BufferAborted) -> None:
    if state.pending.pop((op.coordinator, op.sequence), None) is None:
        raise broken("delayed", lsn, f"{op.coordinator}:{op.sequence} has no delayed messages")


def _check_above(state: Delayed, lsn: int, id_: Id) -> None:
    mutable = state.mutable
    last = mutable.place(-1) if mutable else state.buckets[-1].last if state.buckets else None
    if last is not None and id_ <= last:
        raise broken("delayed", lsn, f"message {id_} does not follow {last}")


def _passed(state: Delayed, at: int) -> None:
    state.passed_ms = max(state.passed_ms, at)


def _cut(state: Delayed, cutoff_ms: int) -> None:
    """Note an op that may have left out ids due at its cutoff."""
    state.cuts += 1
    state.cutoff_ms = max(state.cutoff_ms, cutoff_ms)
    _passed(state, cutoff_ms)


def _bucket_sealed(state: Delayed, lsn: int, time_ms: int, op: BucketSealed) -> None:
    if op.kind == "seal":
        state.mutable.cut(state.mutable.rows_through(op.last))
    else:
        state.unindexed = without(state.unindexed, op.first, op.last)
    if op.bucket is not None:
        _insert(state, lsn, op.bucket)
    _cut(state, op.cutoff_ms)


def _buckets_merged(state: Delayed, lsn: int, time_ms: int, op: BucketsMerged) -> None:
    _take(state, lsn, op.sources)
    if op.bucket is not None:
        _insert(state, lsn, op.bucket)
    _cut(state, op.cutoff_ms)


def _bucket_deleted(state: Delayed, lsn: int, time_ms: int, op: BucketDeleted) -> None:
    for bucket in _take(state, lsn, op.gens):
        if op.cause == "lost" or (op.cause == "acknowledged" and bucket.max_at > op.cutoff_ms):
            state.losses += 1
            state.unindexed = _united(state.unindexed, bucket.first, bucket.last, state.buckets)
            _passed(state, bucket.cutoff_ms)
    _cut(state, op.cutoff_ms)


def _insert(state: Delayed, lsn: int, bucket: Bucket) -> None:
    if bucket.gen < state.next_gen:
        raise broken("delayed", lsn, f"bucket generation {bucket.gen} is used again")
    state.next_gen = bucket.gen + 1
    at = bisect_left(state.buckets, bucket.first, key=lambda other: other.first)
    below, above = state.buckets[max(0, at - 1) : at], state.buckets[at : at + 1]
    if any(other.last >= bucket.first for other in below) or any(
        other.first <= bucket.last for other in above
    ):
        raise broken("delayed", lsn, f"bucket {bucket.gen} overlaps another")
    state.buckets.insert(at, bucket)


def _take(state: Delayed, lsn: int, gens: list[int]) -> list[Bucket]:
    sources = set(gens)
    taken_buckets = [bucket for bucket in state.buckets if bucket.gen in sources]
    if len(taken_buckets) != len(sources):
        raise broken("delayed", lsn, f"of the buckets {gens} some do not exist")
    state.buckets = [bucket for bucket in state.buckets if bucket.gen not in sources]
    return taken_buckets


def _ledger_trimmed(state: Delayed, lsn: int, time_ms: int, op: LedgerTrimmed) -> None:
    if op.role != "p":
        raise unexpected("delayed", lsn, op)
    # buckets are deleted by another op, because they have files
    last: Id = (op.ledger, 1 << 62, 0)
    state.mutable.cut(state.mutable.rows_through(last))
    state.unindexed = without(state.unindexed, (0, 0, 0), last)


def _united(ranges: Ranges, first: Id, last: Id, buckets: list[Bucket]) -> Ranges:
    """The ranges with one more; neighbours without a bucket between them are joined.

    Otherwise every acknowledged bucket would add a range.
    """
    out: Ranges = []
    for range_ in sorted([*ranges, (first, last)]):
        if out and not any(out[-1][1] < bucket.first < range_[0] for bucket in buckets):
            out[-1] = (out[-1][0], max(out[-1][1], range_[1]))
        else:
            out.append(range_)
    return out


def without(ranges: Ranges, first: Id, last: Id) -> Ranges:
    """The ranges without a closed range; of a range that it cuts, what lies before and after."""
    out: Ranges = []
    for low, high in ranges:
        if high < first or last < low:
            out.append((low, high))
            continue
        if low < first:
            out.append((low, _previous(first)))
        if last < high:
            out.append(((last[0], last[1], last[2] + 1), high))
    return out


def _previous(id_: Id) -> Id:
    """The id right below `id`, even if no such message exists."""
    ledger, entry, index = id_
    return (ledger, entry, index - 1) if index else (ledger, entry - 1, (1 << 31) - 1)


def _dump(state: Delayed) -> bytes:
    return msgspec.msgpack.encode(
        _Dumped(
            state.buckets,
            state.mutable.dump(),
            [
                (*key, pending.index.tobytes(), pending.at.tobytes())
                for key, pending in state.pending.items()
            ],
            state.unindexed,
            state.next_gen,
            state.cuts,
            state.cutoff_ms,
            state.losses,
            state.passed_ms,
        )
    )


_decoder = msgspec.msgpack.Decoder(_Dumped)


def _load(data: bytes) -> Delayed:
    dumped = _decoder.decode(data)
    state = Delayed()
    state.buckets, state.mutable = dumped.buckets, Schedule.load(dumped.mutable)
    for coordinator, sequence, index, at in dumped.pending:
        pending = _pending(state, coordinator, sequence)
        pending.index.frombytes(index)
        pending.at.frombytes(at)
    state.unindexed, state.next_gen = dumped.unindexed, dumped.next_gen
    state.cuts, state.cutoff_ms = dumped.cuts, dumped.cutoff_ms
    state.losses, state.passed_ms = dumped.losses, dumped.passed_ms
    return state


_TAKES: dict[type, Callable[[Delayed, int, int, Any], None]] = {
    Adopted: _adopted,
    Appended: _appended,
    BufferAppended: _buffer_appended,
    ChunksAppended: _chunks_appended,
    CommitMarker: _commit_marker,
    BufferAborted: _buffer_aborted,
    BucketSealed: _bucket_sealed,
    BucketsMerged: _buckets_merged,
    BucketDeleted: _bucket_deleted,
    LedgerTrimmed: _ledger_trimmed,
}
FOLD = Fold("delayed", Delayed, apply, _dump, _load)
