"""Leases: what goes into a consumer's hand, and how it comes back.

    receive                    Leased, for up to a whole batch over all partitions
    give_back                  Returned: all that one consumer has in hand
    negative_acknowledge       Returned, at once or after a delay that doubles with each redelivery
    redeliver                  Returned: everything in hand, or these ids, whoever has them
    reap                       Returned + ConsumerDetached of dead consumers, and run-out hand-outs

Deliverable is what is visible and neither acknowledged nor held nor waiting; on the shared types
also nothing that is leased. On Exclusive and Failover a consumer's own lease does not stop it:
after a return it goes back to the lowest returned message and takes all from there again.
Nothing here is flushed: a lease survives its process, and a power cut takes the process along.
Source: spec/transactions 9.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from txlog.clock import Instant
from txlog.engine.flow.acknowledge import by_partition
from txlog.engine.flow.acksets import messages_in
from txlog.engine.flow.dispatch import Piece, plan
from txlog.engine.flow.draft import Decision
from txlog.engine.flow.participants import unavailable_error
from txlog.engine.flow.place import Place, stands_at
from txlog.engine.flow.slots import choose_keys
from txlog.engine.folds import catalog as catalogs
from txlog.engine.folds.catalog import Consumer, Subscription, Topic, consumers_of, index_of
from txlog.engine.folds.cursor import Cursor
from txlog.engine.model.hands import due_in
from txlog.engine.model.idset import IdSet, each, size
from txlog.engine.model.ops import ConsumerDetached, Leased, Op, Returned, Run
from txlog.engine.view import View
from txlog.errors import AlreadyClosed, Corruption
from txlog.settings import RECEIVE_BYTES_MAX, Settings

Find = Callable[[View], tuple[Topic, Subscription]]
SHARED_TYPES = ("shared", "key-shared")
UNACKED_MAX = "unacked_max"


class Wants(msgspec.Struct, frozen=True, gc=False):
    """What a consumer asks for; partitions in the order in which they are tried."""

    subscription: int
    consumer: int
    partitions: Sequence[int]
    limit: int
    places: Mapping[int, Place]
    ack_timeout_ms: int | None = None


class Part(msgspec.Struct, gc=False):
    """What is handed over of one partition, and the place behind it.

    runs:  what was leased; takes: with keys, for each piece the offsets of its rows that are meant
    error: the pieces cannot be read, and nothing of them was leased
    bytes: about so many in the pieces
    """

    partition: int
    pieces: list[Piece]
    place: Place
    runs: list[Run] = []
    takes: list[list[int]] | None = None
    error: Corruption | None = None
    bytes: int = 0


class Handed(msgspec.Struct, gc=False):
    """The answer of receive; blocked: why there is nothing although there may be messages.

    is_more: ask again, the look at the keys ended early
    """

    parts: list[Part]
    blocked: str | None = None
    is_more: bool = False


class Back(msgspec.Struct, frozen=True, gc=False):
    """The answer of what gives back: messages, and those of the request that nobody had."""

    returned: int
    missed: int = 0


def attached(view: View, consumer: int) -> Consumer:
    """The consumer; raises AlreadyClosed when it was detached (its subscription is deleted)."""
    found = view.catalog.consumers.get(consumer)
    if found is None:
        raise AlreadyClosed("the consumer was detached from its subscription")
    return found


def active_consumer(view: View, subscription: int, index: int) -> int:
    """Failover: who gets the partition with this index (from 0); 0: nobody is attached."""
    known = consumers_of(view.catalog, subscription)
    if not known:
        return 0
    best = min(one.priority for one in known)
    pool = sorted((one.name, one.number) for one in known if one.priority == best)
    return pool[index % len(pool)][1]


def receive(view: View, settings: Settings, now: Instant, wants: Wants) -> Decision:
    """Decide what a consumer gets next; written, and flushed only if it hands out what is not.

    returns: Handed; None: reap first, hand-outs have run out
    raises:  AlreadyClosed, PartitionUnavailable when no partition is available
    """
    me = attached(view, wants.consumer)
    topic = view.catalog.topics[view.catalog.subscriptions[me.subscription].topic]
    away = view.catalog.unavailable
    numbers = [number for number in wants.partitions if number not in away]
    if not numbers:
        raise unavailable_error(view.catalog, topic, wants.partitions[0])
    if is_reaping_due(view, wants.subscription, numbers, now):
        return Decision([], answer=None)
    room = settings.unacked_max - _in_hand(view, me, wants, now)
    if room <= 0:
        return Decision([], answer=Handed([], UNACKED_MAX))
    left = min(wants.limit, room)
    held = view.catalog.subscriptions[wants.subscription]
    timeout_ms = wants.ack_timeout_ms
    if timeout_ms is None:
        timeout_ms = int(held.policies.get("ack_timeout_ms", 0))
    due = due_in(now, timeout_ms) if timeout_ms else None
    ops: list[Op] = []
    parts: list[Part] = []
    sync = is_more = False
    room_bytes = RECEIVE_BYTES_MAX
    for number in numbers:
        if left <= 0 or room_bytes <= 0:
            break
        if me.kind == "key-shared":
            part, more = _choose_keys(view, me, number, wants.places.get(number), left, now)
            is_more = is_more or more
        else:
            found = _choose(view, topic, me, number, wants.places.get(number), left, now)
            if found is None:
                continue
            part = found
        parts.append(part)
        if part.runs:
            ops.append(Leased(wants.subscription, number, me.number, part.runs, due))
            left -= sum(map(size, part.runs))
            room_bytes -= part.bytes
            sync = sync or not _is_durable(view, part.pieces[-1])
    return Decision(ops, None, sync, Handed(parts, is_more=is_more and not ops))


def _choose_keys(
    view: View, me: Consumer, number: int, place: Place | None, limit: int, now: Instant
) -> tuple[Part, bool]:
    """The next messages of one partition for the owner of some keys, and whether to ask again."""
    cursor = view.cursor(me.subscription, number)
    members = tuple(one.number for one in consumers_of(view.catalog, me.subscription))
    found = choose_keys(view, number, cursor, me.number, members, place, limit, now)
    if found.error is not None:
        return Part(number, found.pieces, found.place, error=found.error), False
    part = Part(number, found.pieces, found.place, found.runs(), found.takes, bytes=found.bytes)
    return part, found.is_more


def _choose(
    view: View, topic: Topic, me: Consumer, number: int, place: Place | None, limit: int,
    now: Instant,
) -> Part | None:  # fmt: skip
    """The next messages of one partition for a consumer; None: none of it is for this one now."""
    cursor = view.cursor(me.subscription, number)
    hands = cursor.hands
    if me.kind == "failover":
        if active_consumer(view, me.subscription, index_of(topic, number)) != me.number:
            return None
        if hands.others(me.number):
            return None  # the one before is at work on them: taken over now, they would come twice
    at = stands_at(cursor, place, now)
    waiting = hands.not_due(now)[0]
    skip: tuple[IdSet, ...] = (cursor.acked, cursor.held, waiting)
    if me.kind in SHARED_TYPES:
        skip = (*skip, hands.leased)
    found = plan(view, number, at, limit, skip)
    place = Place(cursor.round, found.behind)
    return Part(number, found.pieces, place, _runs_of(found.pieces), bytes=found.bytes)


def _in_hand(view: View, me: Consumer, wants: Wants, now: Instant) -> int:
    """Messages in hand; what is to be delivered again to the same hand is not counted twice."""
    total = 0
    for number in wants.partitions:
        cursor = view.cursor(me.subscription, number)
        lease = cursor.hands.leases.get(me.number)
        if lease is None:
            continue
        if me.kind in SHARED_TYPES:
            total += lease.count()
        else:
            total += lease.ids.count_through(stands_at(cursor, wants.places.get(number), now))
    return total


def _runs_of(pieces: Iterable[Piece]) -> list[Run]:
    """The messages of a plan as runs."""
    return [
        (one.ledger, one.entry, one.entry + one.rows - 1, 0, 0) if one.marker is None
        else (one.ledger, one.entry, one.entry, one.index, one.index + one.rows - 1)
        for one in pieces
    ]  # fmt: skip


def _is_durable(view: View, piece: Piece) -> bool:
    """True when the frame that made the piece visible is; a dead writer may have left others.

    Positions rise with the LSN, so the last piece of a partition speaks for those before it.
    """
    durable = view.journal.durable_lsn
    if durable >= view.lsn:
        return True
    if piece.marker is not None:
        return piece.marker.lsn <= durable
    last = piece.entry + piece.rows - 1
    return all(run.frame.lsn <= durable for run, _, _ in view.tail.slices(piece.ledger, last,
               last + 1))  # fmt: skip


# --- coming back -----------------------------------------------------------------------------


def reap_ops(view: View, subscription: Subscription, dead: Iterable[int], now: Instant) -> list[Op]:
    """What dead consumers had, and hand-outs that ran out, go back; each counts.

    dead: consumers whose lock the caller found free: they never come back, ids are used once
    """
    ops: list[Op] = []
    numbers = catalogs.numbers(view.catalog.topics[subscription.topic])
    gone = [one for one in dead if one in view.catalog.consumers]
    for number in numbers:
        hands = view.cursor(subscription.number, number).hands
        ops += [
            Returned(subscription.number, number, one, None)
            for one in gone if hands.in_hand(one)
        ]  # fmt: skip
        ops += [
            Returned(subscription.number, number, one, runs)
            for one, runs in hands.overdue(now) if one not in gone
        ]  # fmt: skip
    ops += [ConsumerDetached(subscription.number, one) for one in gone]
    return ops


def is_reaping_due(view: View, subscription: int, numbers: Iterable[int], now: Instant) -> bool:
    """True when a hand-out has run out."""
    return any(view.cursor(subscription, number).hands.overdue(now) for number in numbers)


def give_back(
    view: View, subscription: Subscription, consumer: int, unseen: Mapping[int, list[Run]], *,
    detach: bool,
) -> Decision:  # fmt: skip
    """Decide to give back a whole hand, and with detach to leave; answers Back.

    unseen: by partition, what the application never saw: it comes again without counting
    """
    ops: list[Op] = []
    total = 0
    for number in catalogs.numbers(view.catalog.topics[subscription.topic]):
        lease = view.cursor(subscription.number, number).hands.leases.get(consumer)
        if lease is not None and lease.ids:
            known = [part for run in unseen.get(number, ()) for part in lease.ids.common(run)]
            ops.append(Returned(subscription.number, number, consumer, None, known))
            total += lease.count()
    if detach and consumer in view.catalog.consumers:
        ops.append(ConsumerDetached(subscription.number, consumer))
    return Decision(ops, answer=Back(total))


def give_back_parts(view: View, subscription: int, consumer: int, parts: list[Part]) -> Decision:
    """Decide to give back what could not be read: nobody has seen it."""
    ops: list[Op] = [
        Returned(subscription, part.partition, consumer, [], part.runs)
        for part in parts if part.runs
    ]  # fmt: skip
    return Decision(ops)


def negative_acknowledge(
    view: View, settings: Settings, now: Instant, find: Find, runs: list[Run],
    delay_ms: int | None, *, consumer: int = 0, nack_delay_ms: int | None = None,
) -> Decision:  # fmt: skip
    """Decide that messages in hand come again after a delay; others are left alone.

    delay_ms:      for all of them; None: the subscription's, doubled with each redelivery
    consumer:      only from this hand; 0: from any
    nack_delay_ms: instead of the subscription's
    returns:       Back; raises MessageNotFound, PartitionUnavailable, what find raises
    """
    topic, subscription = find(view)
    base = nack_delay_ms
    if base is None:
        base = int(subscription.policies.get("nack_delay_ms", 0))
    most = int(subscription.policies.get("nack_backoff_max_ms", 0))
    ops: list[Op] = []
    total = asked = 0
    for number, wanted in by_partition(view, topic, runs).items():
        asked += messages_in(view, number, wanted)
        cursor = view.cursor(subscription.number, number)
        for holder, lease in cursor.hands.leases.items():
            if consumer not in (0, holder):
                continue
            mine = [part for run in wanted for part in lease.ids.common(run)]
            total += sum(map(size, mine))
            for delay, some in _by_delay(cursor, mine, delay_ms, base, most):
                due = due_in(now, delay) if delay else None
                ops.append(Returned(subscription.number, number, holder, some, [], due))
    return Decision(ops, answer=Back(total, asked - total))


def _by_delay(
    cursor: Cursor, runs: list[Run], delay_ms: int | None, base: int, most: int
) -> Iterator[tuple[int, list[Run]]]:
    """Runs with the delay they get; those that came again before wait longer."""
    if not runs:
        return
    if delay_ms is not None or base == 0 or most <= base or not cursor.redelivered:
        yield (base if delay_ms is None else delay_ms), runs
        return
    found: dict[int, list[Run]] = {}
    for run in runs:
        for one in each(run):
            times = min(cursor.redelivered.get(one, 0), 40)
            delay = min(base << times, most)
            found.setdefault(delay, []).append((one[0], one[1], one[1], one[2], one[2]))
    yield from sorted(found.items())


def redeliver(
    view: View, settings: Settings, now: Instant, find: Find, runs: list[Run] | None
) -> Decision:
    """Decide that messages come again at once, whoever has them; None: all that are in hand.

    returns: Back
    """
    if runs is not None:
        return negative_acknowledge(view, settings, now, find, runs, 0)
    topic, subscription = find(view)
    ops: list[Op] = []
    total = 0
    for number in catalogs.numbers(topic):
        for holder, lease in view.cursor(subscription.number, number).hands.leases.items():
            if lease.ids:
                ops.append(Returned(subscription.number, number, holder, None))
                total += lease.count()
    return Decision(ops, answer=Back(total))
