"""Key_Shared: which consumer gets which keys, and when a key may change hands.

A key's slot is crc32(key) & 0xFFFF, and its key is the ordering key of a message, if it has one;
the slots are split evenly over the attached consumers, sorted by id. A consumer scans messages in
order of position and leaves those of other owners alone. A slot is blocked for it while an earlier
message of that slot is leased to another consumer, is held by a transaction of another consumer, or
waits after a nack. So a key keeps its order while it moves between consumers. Messages without a
key go to anyone.
Source: spec/transactions 9.1.
"""

from __future__ import annotations

from binascii import crc32
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import msgspec
import pyarrow as pa

from txlog.base.settings import RECEIVE_BYTES_MAX
from txlog.base.startup import compute as pc
from txlog.clock import Instant
from txlog.engine.folds.cursor import Cursor, covers
from txlog.engine.model.idset import Id, IdSet, before
from txlog.engine.model.ops import Mark, Run
from txlog.engine.plan.delayed.due import DueScan
from txlog.engine.plan.delayed.index import Key
from txlog.engine.plan.reading.dispatch import (
    BatchBytes,
    Piece,
    Skip,
    id_of,
    part_of,
    plan,
    requests_of,
)
from txlog.engine.plan.route import ORDERING_KEY, ordering_key_in
from txlog.engine.plan.standing import ReadPosition, stands_at
from txlog.engine.view.view import View
from txlog.errors import Corruption

SLOTS = 1 << 16
NO_SLOT = -1
_NO_SLOT = pa.scalar(NO_SLOT, pa.int32())
SCAN_ROWS_MIN = 64
# rows checked under the write lock before a consumer that finds no message must try again
SCAN_ROWS_MAX = 65_536


class KeySharedBatch(msgspec.Struct, gc=False):
    """The next messages of a partition for one owner.

    pieces:  ranges that contain them; takes: for each, the offsets of the chosen rows
    is_more: the scan ended early, and there may be messages after it
    error:   the keys of the pieces cannot be read, and nothing is chosen
    """

    pieces: list[Piece]
    takes: list[list[int]]
    place: ReadPosition
    is_more: bool = False
    error: Corruption | None = None
    bytes: int = 0  # roughly those in the pieces

    def runs(self) -> list[Run]:
        """The chosen messages as runs."""
        out: list[Run] = []
        for piece, offsets in zip(self.pieces, self.takes, strict=True):
            first = last = offsets[0]
            for at in offsets[1:]:
                if at != last + 1:
                    out.append(_run(piece, first, last))
                    first = at
                last = at
            out.append(_run(piece, first, last))
        return out


def _run(piece: Piece, first: int, last: int) -> Run:
    if piece.marker is None:
        return (piece.ledger, piece.entry + first, piece.entry + last, 0, 0)
    return (piece.ledger, piece.entry, piece.entry, piece.index + first, piece.index + last)


def slot_of(key: bytes) -> int:
    """The slot of a key."""
    return crc32(key) & (SLOTS - 1)


def slots_of(members: tuple[int, ...], consumer: int) -> range:
    """The slots that a consumer owns among the attached ones, which are sorted by id."""
    count, at = len(members), members.index(consumer)
    return range(-(-at * SLOTS // count), -(-(at + 1) * SLOTS // count))


def choose_keys(
    view: View,
    number: int,
    cursor: Cursor,
    consumer: int,
    members: tuple[int, ...],
    position: ReadPosition | None,
    limit: int,
    now: Instant,
    scan: DueScan | None = None,
) -> KeySharedBatch:
    """The next messages of a partition for the owner of some slots, at most limit.

    scan:   for a subscription that honours deliver_at
    cost: reads the keys of the messages that it passes, once while the members stay the same, and
            of messages that have become due; no key of messages that are not due
    raises: IndexMissing, BucketLost
    """
    stops = _BlockedSlots(cursor, consumer, now)
    own_slots = slots_of(members, consumer)
    at = stands_at(cursor, position, now, members) if scan is None else scan.mark
    out = KeySharedBatch([], [], _place(cursor, at, members, scan))
    look = _OwnerPass(out, limit, stops)
    skip: Skip = stops.passed
    if scan is not None:
        if cursor.leases.waiting or stops.first_elsewhere() is not None:
            at = _back_to_due(scan, stops)
        elif not _take_due(view, number, scan, look, own_slots, len(members)):
            return out
    # a waiting message blocks its key, also where the consumer has passed it
    if cursor.leases.waiting:
        at = _lower(at, min(cursor.leases.waiting))
    if scan is not None:
        scan.open_forward(at)
        skip = (*skip, *scan.skip)
    looked = 0
    while look.left > 0 and out.bytes < RECEIVE_BYTES_MAX:
        planned = plan(view, number, at, max(SCAN_ROWS_MIN, look.left * len(members)), skip)
        at = planned.after
        if not planned.messages:
            break
        try:
            slots = _slots(view, planned.pieces)
            waiting = {} if scan is None else scan.not_due(planned.pieces)
        except Corruption as error:
            return KeySharedBatch(planned.pieces, [], out.place, error=error)
        start = 0
        for piece, offsets in _owned(planned.pieces, slots, own_slots):
            if scan is not None and waiting:
                offsets = look.put_off(scan, piece, offsets, waiting, start)
            look.take(piece, offsets, planned.bytes * piece.rows // planned.messages)
            start += piece.rows
        looked += planned.messages
        if looked >= SCAN_ROWS_MAX and look.halt is None and not out.pieces:
            out.is_more = True
            break
    out.is_more = out.is_more or (scan is not None and scan.is_more and not out.pieces)
    out.place = _place(cursor, look.halt or at, members, scan)
    return out


def _place(
    cursor: Cursor, at: Mark, members: tuple[int, ...], scan: DueScan | None
) -> ReadPosition:
    return ReadPosition(cursor.round, at, members) if scan is None else scan.place(at)


def _take_due(
    view: View, number: int, scan: DueScan, look: _OwnerPass, own_slots: range, owners: int
) -> bool:
    """Take the owner's due messages below its mark; False: their keys cannot be read.

    No key is blocked there: messages that others hold are of their slots, or the mark is below
    them.
    """
    budget = BatchBytes(view, number, RECEIVE_BYTES_MAX)
    chosen: list[Id] = []
    passed = scan.pointer
    due = scan.due()
    is_over = False
    while not is_over and len(chosen) < look.left:
        count = max(SCAN_ROWS_MIN, (look.left - len(chosen)) * owners)
        batch = list(islice(due, count))
        is_over = len(batch) < count
        pieces = scan.pieces_of(sorted(key[1:] for key in batch))
        try:
            slots = _slots_by_id(view, pieces)
        except Corruption as error:
            scan.pointer = min(scan.pointer, passed)
            if chosen:
                break  # deliver those first
            look.fail(pieces, scan.place(scan.mark), error)
            return False
        for key in batch:
            id_ = key[1:]
            slot = slots[id_]
            if slot == NO_SLOT or slot in own_slots:
                room, each = budget.fit(id_[0], scan.marker_of(id_), id_[2], 1, is_first=not chosen)
                if not room or len(chosen) == look.left:
                    scan.pointer = min(scan.pointer, passed)
                    is_over = True
                    break
                budget.left -= each
                chosen.append(id_)
            passed = key
        if not is_over:
            scan.pass_over(passed)
    look.take_all(scan.pieces_of(sorted(chosen)), RECEIVE_BYTES_MAX - budget.left)
    return True


def _slots_by_id(view: View, pieces: list[Piece]) -> dict[Id, int]:
    if not pieces:
        return {}
    ids = (id_of(piece, offset) for piece in pieces for offset in range(piece.rows))
    return dict(zip(ids, _slots(view, pieces).to_pylist(), strict=True))


def _back_to_due(scan: DueScan, stops: _BlockedSlots) -> Mark:
    """The position to continue from, below all messages that became due after the scan passed them.

    It is also below messages that block a key: the consumer that passed them may not know of them.
    """
    lowest: Id | None = None
    for key in scan.due():
        if lowest is None or key[1:] < lowest:
            lowest = key[1:]
    if lowest is None:
        return scan.mark
    if not scan.is_more:
        scan.forget_due()
    first = stops.first_elsewhere()
    return _lower(_lower(scan.mark, lowest), first if first is not None else lowest)


def _lower(mark: Mark, id_: Id) -> Mark:
    """The lower of a mark and the position before a message."""
    lowest = before(id_)
    return mark if covers(lowest, mark) else lowest


class _OwnerPass:
    """One pass over the messages of an owner, in order of position.

    halt: the position before the first message that must be looked at again
    """

    __slots__ = ("_out", "_stops", "halt", "left")

    def __init__(self, out: KeySharedBatch, limit: int, stops: _BlockedSlots) -> None:
        self._out, self._stops = out, stops
        self.left = limit
        self.halt: Mark | None = None

    def fail(self, pieces: list[Piece], position: ReadPosition, error: Corruption) -> None:
        """Choose nothing, because these pieces cannot be read."""
        self._out.pieces, self._out.place, self._out.error = pieces, position, error

    def take_all(self, pieces: list[Piece], size: int) -> None:
        """Take whole pieces with this many bytes: all rows belong to the owner, and none is
        blocked.
        """
        self._out.pieces += pieces
        self._out.takes += [list(range(piece.rows)) for piece in pieces]
        self._out.bytes += size
        self.left -= sum(piece.rows for piece in pieces)

    def put_off(
        self,
        scan: DueScan,
        piece: Piece,
        offsets: list[tuple[int, int]],
        waiting: dict[int, Key],
        start: int,
    ) -> list[tuple[int, int]]:
        """The rows of a piece, which begins at row `start`, without those that must wait."""
        available: list[tuple[int, int]] = []
        strays: list[Key] = []
        for offset, slot in offsets:
            key = waiting.get(start + offset)
            if key is None:
                available.append((offset, slot))
            elif scan.room(strays):
                strays.append(key)
            else:
                self.halt = self.halt or before(key[1:])
        scan.remember(strays)
        return available

    def take(self, piece: Piece, offsets: list[tuple[int, int]], size: int) -> None:
        """Take the available rows of a piece with this many bytes; the piece is read as a whole.

        offsets: (offset, slot) of the owner's rows
        """
        stops = self._stops
        chosen: list[int] = []
        for offset, slot in offsets:
            if self.left == 0:
                self.halt = self.halt or before(id_of(piece, offset))
                break
            if not stops.is_clear:
                id_ = id_of(piece, offset)
                if stops.is_stopped(id_, slot):
                    self.halt = self.halt or before(id_)
                    continue
                if stops.is_away(id_, slot):
                    continue
            chosen.append(offset)
            self.left -= 1
        if chosen:
            self._out.pieces.append(part_of(piece, chosen[0], chosen[-1]))
            self._out.takes.append([offset - chosen[0] for offset in chosen])
            self._out.bytes += size * (chosen[-1] - chosen[0] + 1) // piece.rows


class _BlockedSlots:
    """The messages that block slots for their owner; it grows as the pass moves on by position."""

    __slots__ = ("_blocked", "_blocking", "_elsewhere", "_held", "is_clear", "passed")

    def __init__(self, cursor: Cursor, consumer: int, now: Instant) -> None:
        leases = cursor.leases
        lease = leases.by_consumer.get(consumer)
        # these need no check: deleted, or leased to this consumer
        self.passed: tuple[IdSet, ...] = (cursor.acked,)
        if lease is not None and lease.ids:
            self.passed = (cursor.acked, lease.ids)
        elsewhere = IdSet()
        for pending in cursor.pending.values():
            if pending.consumer != consumer:
                for run in pending.runs:
                    elsewhere.add(run)
        others = [leases.by_consumer[other].ids for other in leases.others(consumer)]
        self._elsewhere = elsewhere
        self._blocking = [ids for ids in (*others, elsewhere, leases.not_due(now)[0]) if ids]
        self._held = cursor.held
        self._blocked: set[int] = set()
        self.is_clear = not (self._blocking or cursor.held)

    def first_elsewhere(self) -> Id | None:
        """The lowest message that a transaction acknowledged through another consumer holds."""
        return self._elsewhere.first()

    def is_stopped(self, id_: Id, slot: int) -> bool:
        """True for a message that is unavailable now and blocks later messages of its slot."""
        if slot == NO_SLOT:
            return False
        if slot in self._blocked:
            return True
        if any(id_ in ids for ids in self._blocking):
            self._blocked.add(slot)
            return True
        return False

    def is_away(self, id_: Id, slot: int) -> bool:
        """True for a message that is unavailable now, but holds nothing up.

        Held by a transaction through this very consumer; or without a key.
        """
        return id_ in self._held or (slot == NO_SLOT and any(id_ in ids for ids in self._blocking))


def _slots(view: View, pieces: list[Piece]) -> pa.Array:
    """The slot of each row of the pieces, NO_SLOT without a key."""
    rows = pa.concat_tables(view.rows(requests_of(pieces), ("key", "properties")))
    slots = _slots_of(rows.column("key"), slot_of)
    properties = rows.column("properties")
    if properties.null_count < len(properties):
        ordering = pc.map_lookup(properties.combine_chunks(), ORDERING_KEY, "last")
        if ordering.null_count < len(ordering):
            slots = pc.coalesce(_slots_of(ordering, _slot_by_property), slots)
    return pc.fill_null(slots, _NO_SLOT)


def _slots_of(column: pa.ChunkedArray | pa.Array, of: Callable[[Any], int | None]) -> pa.Array:
    """A slot for each value; each distinct value is computed once."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    encoded = pc.dictionary_encode(column)
    slots = pa.array([of(value) for value in encoded.dictionary.to_pylist()], pa.int32())
    return slots.take(encoded.indices)


def _slot_by_property(text: str) -> int | None:
    key = ordering_key_in(text)
    return None if key is None else slot_of(key)


def _owned(
    pieces: list[Piece], slots: pa.Array, own_slots: range
) -> Iterator[tuple[Piece, list[tuple[int, int]]]]:
    """For each piece (offset, slot) of the rows that belong to the owner, or to anyone."""
    is_mine = pc.and_(
        pc.greater_equal(slots, pa.scalar(own_slots.start, pa.int32())),
        pc.less(slots, pa.scalar(own_slots.stop, pa.int32())),
    )
    is_mine = pc.or_(is_mine, pc.equal(slots, _NO_SLOT))
    rows = pc.indices_nonzero(is_mine)
    pairs = list(zip(rows.to_pylist(), slots.take(rows).to_pylist(), strict=True))
    start = at = 0
    for piece in pieces:
        first = at
        while at < len(pairs) and pairs[at][0] < start + piece.rows:
            at += 1
        yield piece, [(row - start, slot) for row, slot in pairs[first:at]]
        start += piece.rows
