"""Owns DueScan: which messages of a partition are due for a subscription that honours deliver_at.

    mark     a position: all messages below are acknowledged, held, leased, or not due
    pointer  a key: all messages passed over as not due are above it
    strays   keys of scanned rows that are not due and not in the index

A scan polls the index after the pointer for messages that became due below the mark, then reads
forward from the mark. It changes no state: a message that the caller does not take comes again,
because pointer and mark pass only messages that are taken or unavailable. A returned message moves
the mark back (standing). If the index may have lost ids, the mark moves back to mark-delete: that
repeats bitmap operations, and reads no row that is acknowledged, leased or not due.

Rows outside the index are read one by one where one may not be due: in a range that is not indexed,
or if this clock is behind the clock of the writer that left them out.
Source: spec/delayed 1, 7.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from heapq import merge
from typing import NamedTuple

import msgspec
import pyarrow as pa

from txlog.base.startup import compute as pc
from txlog.clock import Instant
from txlog.engine.folds.buffer import Marker, find_marker
from txlog.engine.folds.cursor import Cursor
from txlog.engine.folds.delayed import Delayed
from txlog.engine.model.idset import before, covers
from txlog.engine.model.ops import Id, Mark
from txlog.engine.plan.delayed.index import (
    BucketLost,
    BucketUnreadable,
    DelayedIndex,
    Key,
    after_time,
    index_of_partition,
)
from txlog.engine.plan.policies import ACTIVE
from txlog.engine.plan.reading.dispatch import (
    BatchBytes,
    Piece,
    Skip,
    id_of,
    part_of,
    plan,
    requests_of,
)
from txlog.engine.plan.standing import ReadPosition, stands_at
from txlog.engine.view import View
from txlog.errors import Corruption

LOOK_ROWS = 4096  # rows whose time is read at once
# ids and rows looked at under the write lock before a consumer that gets none must try again
LOOK_ROWS_MAX = 65_536


class IndexMissing(Exception):
    """A scan reached a range that is not indexed: rebuild it rather than read it row by row."""

    def __init__(self, partition: int, first: Id, last: Id) -> None:
        super().__init__(f"{first} to {last} of partition {partition} is not indexed")
        self.partition, self.first, self.last = partition, first, last


class DueMessages(msgspec.Struct, gc=False):
    """The messages of a scan; is_more: it ended early, so scan again; error: they cannot be read.

    place: the position after them; bytes: an estimate
    """

    pieces: list[Piece]
    place: ReadPosition
    bytes: int = 0
    is_more: bool = False
    error: Corruption | None = None


class SplitPieces(NamedTuple):
    """Pieces without the waiting rows, their message count, and the waiting rows.

    stop: the position before the first row that was not looked at, None for none
    """

    pieces: list[Piece]
    messages: int
    waiting: list[Key]
    stop: Mark | None


class DueScan:
    """One scan of a partition for a subscription; messages with a time up to the cutoff are due.

    busy:     sets of ids that are unavailable now; skip: sets of ids that are not due
    looked:   how many ids and rows it has checked; is_more: it ended before it checked all
    make_do:  read row by row if the index is missing, instead of raising
    is_rewound: it begins again at mark-delete, because the index may have lost ids
    """

    __slots__ = (
        "_away",
        "_delayed",
        "_is_behind",
        "_is_cut",
        "_make_do",
        "_markers",
        "_members",
        "_number",
        "_ranges",
        "_strays_max",
        "_table",
        "_view",
        "busy",
        "cursor",
        "cutoff",
        "is_more",
        "is_rewound",
        "looked",
        "mark",
        "pointer",
        "skip",
        "strays",
    )

    def __init__(
        self,
        view: View,
        number: int,
        cursor: Cursor,
        position: ReadPosition | None,
        now: Instant,
        cutoff: int,
        *,
        strays_max: int,
        make_do: bool,
        members: tuple[int, ...] = (),
    ) -> None:
        self._view, self._number, self.cursor, self.cutoff = view, number, cursor, cutoff
        self._strays_max, self._make_do, self._members = strays_max, make_do, members
        delayed = self._delayed = view.delayed(number)
        self.mark, self.pointer = cursor.mark_delete, after_time(cutoff)
        self.strays: tuple[Key, ...] = ()
        self.is_rewound = position is not None and _is_stale(position, delayed)
        if position is not None and position.members == members and not self.is_rewound:
            self.mark = stands_at(cursor, position, now, members)
            self.pointer = min(self.pointer, position.pointer)
            self.strays = position.strays
        sets = (cursor.acked, cursor.held, cursor.leases.leased, cursor.leases.not_due(now)[0])
        self.busy = tuple(ids for ids in sets if ids)
        self._table: DelayedIndex | None = None
        if not delayed.is_empty:
            self._table = index_of_partition(view, number, cutoff)
        self.skip: Skip = ()
        self._ranges: list[tuple[Id, Id]] = []
        self._away: list[Id] = []  # the first ids of ranges whose bucket cannot be read now
        # a store older than its index has messages with a time that no op recorded
        is_older = ACTIVE not in view.catalog.settings
        self._is_behind = is_older or cutoff < delayed.passed_ms
        self._is_cut = False
        self._markers: dict[tuple[int, int], Marker | None] = {}
        self.looked = 0
        self.is_more = False

    def place(self, mark: Mark) -> ReadPosition:
        """The position from which the next scan continues, with this mark."""
        delayed = self._delayed
        return ReadPosition(
            self.cursor.round,
            mark,
            self._members,
            self.pointer,
            delayed.cuts,
            delayed.losses,
            True,
            self.strays,
        )

    def is_free(self, id_: Id) -> bool:
        """True for a message that is not acknowledged, held, leased or waiting after a nack."""
        return not covers(self.cursor.mark_delete, id_) and not any(id_ in ids for ids in self.busy)

    # --- below the mark ----------------------------------------------------------------------

    def due(self) -> Iterator[Key]:
        """Free messages that are due below the mark, in order of key.

        The pointer follows: it stays before the last key until the caller asks for the next, so
        that a key that the caller does not take comes again. Raises BucketLost.
        """
        last: Key | None = None
        start = self.pointer
        for key in merge(self._due_strays(), self._polled()):
            if self.looked >= LOOK_ROWS_MAX:
                self.is_more = self.pointer > start  # else the next scan would find the same
                return
            self.looked += 1
            id_ = key[1:]
            if key != last and covers(self.mark, id_) and self.is_free(id_):
                yield key
                last = key
            self.pass_over(key)
        self.pass_over(after_time(self.cutoff))

    def pass_over(self, key: Key) -> None:
        if not self._is_cut and key > self.pointer:
            self.pointer = key

    def marker_of(self, id_: Id) -> Marker | None:
        """The marker of a message; None for a plain message."""
        where = id_[:2]
        if id_[2] and where not in self._markers:
            buffer = self._view.buffer(self._number)
            self._markers[where] = find_marker(buffer, *where)
        return self._markers.get(where)

    def pieces_of(self, ids: list[Id]) -> list[Piece]:
        """Ids in order of position as pieces, neighbours together."""
        out: list[Piece] = []
        at = 0
        while at < len(ids):
            ledger, entry, index = ids[at]
            step = (0, 1) if index else (1, 0)
            stop = at + 1
            while stop < len(ids) and ids[stop] == (
                ledger,
                entry + (stop - at) * step[0],
                index + (stop - at) * step[1],
            ):
                stop += 1
            out.append(Piece(ledger, entry, stop - at, index, self.marker_of(ids[at])))
            at = stop
        return out

    def _polled(self) -> Iterator[Key]:
        if self._table is None:
            return
        try:
            yield from self._table.poll(self.pointer, self.mark)
        except BucketUnreadable:
            self._is_cut = True  # the pointer waits until the bucket can be read
        except BucketLost:
            if not self._make_do:
                raise
            self._is_cut = True

    def _due_strays(self) -> list[Key]:
        """Strays that are due; those that are no longer free are forgotten."""
        if not self.strays or self.strays[0][0] > self.cutoff:
            return []
        count = bisect_right(self.strays, after_time(self.cutoff))
        free = [key for key in self.strays[:count] if self.is_free(key[1:])]
        if len(free) < count:
            self.strays = (*free, *self.strays[count:])
        return free

    def take_due(self, limit: int, bytes_max: int) -> tuple[list[Piece], int, int]:
        """Due messages below the mark in order of position: pieces, messages and bytes."""
        budget = BatchBytes(self._view, self._number, bytes_max)
        chosen: list[Id] = []
        for key in self.due():
            if len(chosen) == limit:
                break
            id_ = key[1:]
            room, each = budget.fit(id_[0], self.marker_of(id_), id_[2], 1, is_first=not chosen)
            if not room:
                break
            budget.left -= each
            chosen.append(id_)
        chosen.sort()
        return self.pieces_of(chosen), len(chosen), bytes_max - budget.left

    # --- from the mark on --------------------------------------------------------------------

    def open_forward(self, start: Mark) -> None:
        """Find the ids that a read from a position leaves out, and the ranges where it
        checks each row.

        raises: BucketLost
        """
        self._ranges = list(self._delayed.unindexed)
        if self._table is not None:
            self.skip, away = self._table.futures(self.cursor, start, make_do=self._make_do)
            self._ranges += ((bucket.first, bucket.last) for bucket in away)
            self._away = [bucket.first for bucket in away]

    def not_due(self, pieces: list[Piece]) -> dict[int, Key]:
        """Rows of the pieces, numbered throughout, that must wait although the index lacks them.

        cost: reads the times of rows that may not be due, and no others
        raises: IndexMissing, when the index must be built first; Corruption
        """
        reached = self._reached(pieces)
        if reached is None:
            if not self._is_behind:
                return {}
        elif not (self._make_do or reached[0] in self._away):
            raise IndexMissing(self._number, *reached)
        tables = self._view.rows(requests_of(pieces), ("deliver_at",))
        times = pa.concat_tables(tables).column(0).cast(pa.int64())
        rows = pc.indices_nonzero(pc.greater(times, pa.scalar(self.cutoff, pa.int64())))
        out: dict[int, Key] = {}
        number = start = 0
        for row, at in zip(rows.to_pylist(), times.take(rows).to_pylist(), strict=True):
            while row >= start + pieces[number].rows:
                start += pieces[number].rows
                number += 1
            id_ = id_of(pieces[number], row - start)
            if id_ not in self.cursor.released:
                out[row] = (at, *id_)
        return out

    def _reached(self, pieces: list[Piece]) -> tuple[Id, Id] | None:
        """The first range without an index that overlaps a piece."""
        if self._ranges:
            for piece in pieces:
                first, last = id_of(piece, 0), id_of(piece, piece.rows - 1)
                for low, high in self._ranges:
                    if low <= last and first <= high:
                        return low, high
        return None

    def forget_due(self) -> None:
        """Forget strays that are due: a read from below them finds them again."""
        count = bisect_right(self.strays, after_time(self.cutoff))
        self.strays = self.strays[count:]

    def remember(self, waiting: list[Key]) -> None:
        """Remember rows that the index lacks as strays, to deliver them when they are due."""
        if waiting:
            self.strays = tuple(sorted({*self.strays, *waiting}))

    def room(self, waiting: list[Key]) -> bool:
        """True when it may remember one more stray beyond these."""
        return len(self.strays) + len(waiting) < self._strays_max


def _is_stale(position: ReadPosition, delayed: Delayed) -> bool:
    """True when the index may lack ids after this position, so that the scan begins again."""
    if not position.honours or position.losses != delayed.losses:
        return True
    return position.cuts != delayed.cuts and position.pointer < after_time(delayed.cutoff_ms)


def all_due(
    view: View,
    number: int,
    cursor: Cursor,
    position: ReadPosition | None,
    now: Instant,
    cutoff: int,
    limit: int,
    bytes_max: int,
) -> DueMessages | None:
    """The messages after a position if none can be waiting for its time; None: a scan is necessary.

    The scan would find the same messages, in many more steps.
    """
    delayed = view.delayed(number)
    if not delayed.is_empty or cutoff < delayed.passed_ms or ACTIVE not in view.catalog.settings:
        return None
    if position is not None and (
        position.strays or position.members or _is_stale(position, delayed)
    ):
        return None
    busy = (cursor.acked, cursor.held, cursor.leases.leased, cursor.leases.not_due(now)[0])
    planned = plan(view, number, stands_at(cursor, position, now), limit, busy, bytes_max=bytes_max)
    pointer = after_time(cutoff)
    cuts, losses = delayed.cuts, delayed.losses
    next_position = ReadPosition(cursor.round, planned.after, (), pointer, cuts, losses, True)
    return DueMessages(planned.pieces, next_position, planned.bytes)


def due_for_any(view: View, number: int, scan: DueScan, limit: int, bytes_max: int) -> DueMessages:
    """A whole scan for a Shared subscription: due messages below the mark, then the messages
    after it.

    raises: IndexMissing, BucketLost
    """
    pieces, total, used = scan.take_due(limit, bytes_max)
    mark = scan.mark
    if total < limit:
        scan.open_forward(mark)
    batch = limit - total
    while total < limit and used < bytes_max:
        planned = plan(
            view, number, mark, batch, (*scan.busy, *scan.skip), bytes_max=bytes_max - used
        )
        if not planned.messages:
            mark = planned.after
            break
        try:
            rows = scan.not_due(planned.pieces)
        except Corruption as error:
            if pieces:
                break  # deliver those first
            return DueMessages(planned.pieces, scan.place(mark), error=error)
        if not rows and total + planned.messages <= limit:
            pieces += planned.pieces
            used += planned.bytes
            mark = planned.after
            break
        split = _split(planned.pieces, rows, limit - total, scan)
        scan.remember(split.waiting)
        pieces += split.pieces
        total += split.messages
        used += planned.bytes * split.messages // planned.messages
        mark = split.stop or planned.after
        scan.looked += planned.messages
        if split.stop is not None:
            break
        if scan.looked >= LOOK_ROWS_MAX:
            scan.is_more = True
            break
        batch = max(limit - total, LOOK_ROWS)  # most of the next messages may wait
    return DueMessages(pieces, scan.place(mark), used, scan.is_more)


def _split(pieces: list[Piece], rows: dict[int, Key], limit: int, scan: DueScan) -> SplitPieces:
    """Pieces without the rows that wait, at most limit messages."""
    out: list[Piece] = []
    waiting: list[Key] = []
    total = start = 0
    waits = sorted(rows)
    at = 0
    for piece in pieces:
        first = 0
        while first < piece.rows:
            is_last = at == len(waits) or waits[at] >= start + piece.rows
            stop = piece.rows if is_last else waits[at] - start
            count = min(stop - first, limit - total)
            if count:
                out.append(part_of(piece, first, first + count - 1))
                total += count
            if count < stop - first:
                return SplitPieces(out, total, waiting, before(id_of(piece, first + count)))
            first = stop + 1
            if not is_last:
                if not scan.room(waiting):
                    return SplitPieces(out, total, waiting, before(id_of(piece, stop)))
                waiting.append(rows[waits[at]])
                at += 1
        start += piece.rows
    return SplitPieces(out, total, waiting, None)


def next_due(view: View, number: int, cutoff: int, position: ReadPosition) -> int | None:
    """The lowest time above the cutoff that the index or the strays know; None: there is none."""
    times: list[int] = []
    if not view.delayed(number).is_empty:
        key = index_of_partition(view, number, cutoff).next_key()
        if key is not None:
            times.append(key[0])
    at = bisect_right(position.strays, after_time(cutoff))
    if at < len(position.strays):
        times.append(position.strays[at][0])
    return min(times, default=None)
