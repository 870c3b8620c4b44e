"""Leases: what goes into a consumer's hand, and how it comes back.

    receive                    Leased, for up to a whole batch over all partitions
    give_back                  Returned: all that one consumer has in hand
    negative_acknowledge       Returned, at once or after a delay that doubles with each redelivery
    redeliver                  Returned: everything in hand, or these ids, whoever has them
    reap                       Returned + ConsumerDetached of dead consumers, and run-out hand-outs

What is deliverable says choosing.py. Nothing here is flushed: a lease survives its process, and a
power cut takes the process along.
Source: spec/transactions 9.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from txlog.clock import Instant
from txlog.engine.flow.acknowledge import by_partition
from txlog.engine.flow.acksets import messages_in
from txlog.engine.flow.choosing import SHARED_TYPES as SHARED_TYPES
from txlog.engine.flow.choosing import Part as Part
from txlog.engine.flow.choosing import active_consumer as active_consumer
from txlog.engine.flow.choosing import choose, delays_of
from txlog.engine.flow.cycle import Unindexed
from txlog.engine.flow.dispatch import Piece
from txlog.engine.flow.draft import Decision
from txlog.engine.flow.participants import unavailable_error
from txlog.engine.flow.place import Place, stands_at
from txlog.engine.flow.timeparts import BucketLost
from txlog.engine.folds import catalog as catalogs
from txlog.engine.folds.catalog import Consumer, Subscription, Topic
from txlog.engine.folds.cursor import Cursor
from txlog.engine.model.hands import due_in
from txlog.engine.model.idset import each, size
from txlog.engine.model.ops import ConsumerDetached, Leased, Op, Returned, Run
from txlog.engine.view import View
from txlog.errors import AlreadyClosed
from txlog.settings import RECEIVE_BYTES_MAX, Settings

Find = Callable[[View], tuple[Topic, Subscription]]
UNACKED_MAX = "unacked_max"


class Wants(msgspec.Struct, frozen=True, gc=False):
    """What a consumer asks for; partitions in the order in which they are tried.

    make_do: without an index that is missing, which costs reads; else the answer asks for it
    """

    subscription: int
    consumer: int
    partitions: Sequence[int]
    limit: int
    places: Mapping[int, Place]
    ack_timeout_ms: int | None = None
    make_do: bool = False


class Handed(msgspec.Struct, gc=False):
    """The answer of receive; blocked: why there is nothing although there may be messages.

    is_more: ask again, the look ended early
    wanting: an index that is to be built, or dropped, before anything is handed out
    due_ms:  if there is nothing: when the next message is due, by the wall clock
    """

    parts: list[Part]
    blocked: str | None = None
    is_more: bool = False
    wanting: Unindexed | BucketLost | None = None
    due_ms: int | None = None


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
    delays = delays_of(view, settings, topic, me, now, make_do=wants.make_do)
    ops: list[Op] = []
    parts: list[Part] = []
    sync = is_more = False
    room_bytes = RECEIVE_BYTES_MAX
    for number in numbers:
        if left <= 0 or room_bytes <= 0:
            break
        try:
            part = choose(view, topic, me, number, wants.places.get(number), left, now, delays)
        except (Unindexed, BucketLost) as error:
            return Decision([], answer=Handed([], wanting=error))
        if part is None:
            continue
        is_more = is_more or part.is_more
        parts.append(part)
        if part.runs:
            ops.append(Leased(wants.subscription, number, me.number, part.runs, due))
            left -= sum(map(size, part.runs))
            room_bytes -= part.bytes
            sync = sync or not _is_durable(view, part.pieces[-1])
    handed = Handed(parts, is_more=is_more and not ops)
    if delays is not None and not ops:
        found = (delays.next_ms(view, part) for part in parts)
        handed.due_ms = min((at for at in found if at is not None), default=None)
    return Decision(ops, None, sync, handed)


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
