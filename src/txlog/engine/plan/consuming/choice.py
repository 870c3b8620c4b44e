"""Which messages of one partition a consumer gets next, by the type of its subscription.

A message is deliverable if it is visible and not acknowledged, not held by an open transaction, and
not waiting after a nack. On the shared types it must also be due and not leased. On Exclusive and
Failover a consumer's own lease does not stop it: after a return the consumer goes back to the
lowest returned message and takes everything from there again.

On Key_Shared each consumer owns a share of the keys. A key's slot is crc32(key) & 0xFFFF, and its
key is the ordering key of a message, if it has one; the slots are split evenly over the attached
consumers, sorted by id. A consumer scans messages in order of position and skips the slots of other
owners. A slot is blocked for it while an earlier message of that slot is leased to another
consumer, is held by a transaction of another consumer, or waits after a nack. So a key keeps its
order while it moves between consumers. Messages without a key go to anyone.
Source: spec/transactions 9.1, spec/delayed 1.
"""

from __future__ import annotations

from binascii import crc32
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from txlog.base.settings import RECEIVE_BYTES_MAX, Settings
from txlog.base.startup import compute as pc
from txlog.clock import Instant
from txlog.engine.folds.catalog import Consumer, Topic, consumers_of, index_of
from txlog.engine.folds.cursor import Cursor
from txlog.engine.model.idset import Id, IdSet, before, covers
from txlog.engine.model.ops import Mark, Run
from txlog.engine.plan.clock_trust import due_ms
from txlog.engine.plan.delayed.due import DueScan, all_due, due_for_any, next_due
from txlog.engine.plan.delayed.index import Key
from txlog.engine.plan.policies import delay_policy
from txlog.engine.plan.reading.dispatch import (
    BatchBytes,
    Piece,
    Skip,
    id_of,
    last_position,
    part_of,
    plan,
    requests_of,
)
from txlog.engine.plan.route import ORDERING_KEY, ordering_key_in
from txlog.engine.plan.standing import ReadPosition, stands_at
from txlog.engine.view import View
from txlog.errors import Corruption

SHARED_TYPES = ("shared", "key-shared")


class PartitionDelivery(msgspec.Struct, gc=False):
    """The messages to deliver from one partition, and the position after them.

    runs:   the messages to lease; takes: for key-shared, offsets of the chosen rows in each piece
    error:  why the pieces cannot be read; then none of their messages is leased
    bytes:  an estimate of the bytes in the pieces
    is_more: the search ended early, so the caller asks again
    is_rewound: the search began again at mark-delete, because the index may have lost ids
    ahead:  the batch number, if the consumer takes it ahead of its application (Leased.ahead); or 0
    """

    partition: int
    pieces: list[Piece]
    place: ReadPosition
    runs: list[Run] = []
    takes: list[list[int]] | None = None
    error: Corruption | None = None
    bytes: int = 0
    is_more: bool = False
    is_rewound: bool = False
    ahead: int = 0


def is_at_end(view: View, part: PartitionDelivery) -> bool:
    """True when the log has nothing after the messages to deliver, and the index nothing at all."""
    place = part.place
    return (
        part.error is None
        and not place.strays
        and view.delayed(part.partition).is_empty
        and covers(place.mark, last_position(view, part.partition))
    )


class DelayRules(NamedTuple):
    """How a subscription honours deliver_at; messages with a time up to the cutoff are due.

    ahead_ms: the cutoff less the wall clock; strays_max, make_do: as in DueScan
    """

    cutoff: int
    ahead_ms: int
    strays_max: int
    make_do: bool

    def scan(
        self,
        view: View,
        me: Consumer,
        number: int,
        position: ReadPosition | None,
        now: Instant,
        members: tuple[int, ...] = (),
    ) -> DueScan:
        cursor = view.cursor(me.subscription, number)
        return DueScan(
            view,
            number,
            cursor,
            position,
            now,
            self.cutoff,
            strays_max=self.strays_max,
            make_do=self.make_do,
            members=members,
        )

    def next_ms(self, view: View, part: PartitionDelivery) -> int | None:
        """When the next message of a partition is due, by the wall clock; None: nothing waits."""
        at = next_due(view, part.partition, self.cutoff, part.place)
        return None if at is None else at - self.ahead_ms


def delays_of(
    view: View, settings: Settings, topic: Topic, me: Consumer, now: Instant, *, make_do: bool
) -> DelayRules | None:
    """How a consumer honours deliver_at; None: it gets delayed messages at once."""
    if me.kind not in SHARED_TYPES:
        return None
    policy = delay_policy(view, settings, topic)
    if not policy.active:
        return None
    cutoff = policy.cutoff(due_ms(view, settings, now))
    return DelayRules(cutoff, cutoff - now.wall_ms, settings.strays_max, make_do)


def active_consumer(view: View, subscription: int, index: int) -> int:
    """Failover: the consumer of the partition with this index (from 0); 0: none is attached."""
    consumers = consumers_of(view.catalog, subscription)
    if not consumers:
        return 0
    best = min(consumer.priority for consumer in consumers)
    pool = sorted(
        (consumer.name, consumer.number) for consumer in consumers if consumer.priority == best
    )
    return pool[index % len(pool)][1]


def choose(
    view: View,
    topic: Topic,
    me: Consumer,
    number: int,
    position: ReadPosition | None,
    limit: int,
    now: Instant,
    delays: DelayRules | None,
) -> PartitionDelivery | None:
    """The next messages of one partition for a consumer; None: there are none for it now.

    raises: IndexMissing, BucketLost: the index must be built or dropped first
    """
    if delays is None and position is not None and position.honours:
        position = None  # the messages that it passed over as not due are available now
    if me.kind == "key-shared":
        return _choose_keys(view, me, number, position, limit, now, delays)
    if delays is not None:
        return _choose_due(view, me, number, position, limit, now, delays)
    return _choose(view, topic, me, number, position, limit, now)


def _choose_due(
    view: View,
    me: Consumer,
    number: int,
    position: ReadPosition | None,
    limit: int,
    now: Instant,
    delays: DelayRules,
) -> PartitionDelivery:
    """The next messages of one partition for any consumer."""
    cursor, most = view.cursor(me.subscription, number), RECEIVE_BYTES_MAX
    is_rewound = False
    due = all_due(view, number, cursor, position, now, delays.cutoff, limit, most)
    if due is None:
        scan = delays.scan(view, me, number, position, now)
        is_rewound = scan.is_rewound
        due = due_for_any(view, number, scan, limit, most)
        if due.error is not None:
            return PartitionDelivery(number, due.pieces, due.place, error=due.error)
    return PartitionDelivery(
        number,
        due.pieces,
        due.place,
        _runs_of(due.pieces),
        bytes=due.bytes,
        is_more=due.is_more,
        is_rewound=is_rewound,
    )


def _choose_keys(
    view: View,
    me: Consumer,
    number: int,
    position: ReadPosition | None,
    limit: int,
    now: Instant,
    delays: DelayRules | None,
) -> PartitionDelivery:
    """The next messages of one partition for the owner of some keys."""
    cursor = view.cursor(me.subscription, number)
    members = tuple(other.number for other in consumers_of(view.catalog, me.subscription))
    scan = None if delays is None else delays.scan(view, me, number, position, now, members)
    chosen = choose_keys(view, number, cursor, me.number, members, position, limit, now, scan)
    if chosen.error is not None:
        return PartitionDelivery(number, chosen.pieces, chosen.place, error=chosen.error)
    return PartitionDelivery(
        number,
        chosen.pieces,
        chosen.place,
        chosen.runs(),
        chosen.takes,
        None,
        chosen.bytes,
        chosen.is_more,
        scan is not None and scan.is_rewound,
    )


def _choose(
    view: View,
    topic: Topic,
    me: Consumer,
    number: int,
    next_position: ReadPosition | None,
    limit: int,
    now: Instant,
) -> PartitionDelivery | None:
    """The next messages of one partition for a consumer; None: there are none for it now."""
    cursor = view.cursor(me.subscription, number)
    leases = cursor.leases
    if me.kind == "failover":
        if active_consumer(view, me.subscription, index_of(topic, number)) != me.number:
            return None
        if leases.others(me.number):
            # the earlier consumer is working on them; taken over now, they would come twice
            return None
    at = stands_at(cursor, next_position, now)
    waiting = leases.not_due(now)[0]
    skip: tuple[IdSet, ...] = (cursor.acked, cursor.held, waiting)
    if me.kind in SHARED_TYPES:
        skip = (*skip, leases.leased)
    planned = plan(view, number, at, limit, skip)
    next_position = ReadPosition(cursor.round, planned.after)
    return PartitionDelivery(
        number, planned.pieces, next_position, _runs_of(planned.pieces), bytes=planned.bytes
    )


def _runs_of(pieces: Iterable[Piece]) -> list[Run]:
    """The messages of a plan as runs."""
    return [
        (piece.ledger, piece.entry, piece.entry + piece.rows - 1, 0, 0)
        if piece.marker is None
        else (piece.ledger, piece.entry, piece.entry, piece.index, piece.index + piece.rows - 1)
        for piece in pieces
    ]


# --- Key_Shared -----------------------------------------------------------------------------------


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
    bytes: int = 0  # an estimate of the bytes in the pieces

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
    """The slot of a key, below SLOTS."""
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
    cost:   reads the key of each message that it passes, once while the members stay the same, and
            of messages that became due; never of messages that are not due
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

    Blocked slots need no check here: a message that another consumer has leased is in a slot of its
    own, or is above the mark.
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

    It is also below messages that block a slot, because this consumer may have passed them already.
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
        """True for a message that is unavailable now, but blocks no slot.

        A transaction of this consumer holds it, or it has no key.
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
