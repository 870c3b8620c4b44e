"""Leases: handing messages to a consumer, and taking them back.

    receive                    Leased, for up to a whole batch over all partitions
    give_back                  Returned: everything that one consumer has in hand
    negative_acknowledge       Returned, at once or after a delay that doubles with each redelivery
    redeliver                  Returned: everything in hand, or these ids, in any consumer's hand
    reap                       Returned + ConsumerDetached for dead consumers, and expired leases

plan/consuming/choice says what is deliverable. What a consumer took ahead and its application never
got comes back without counting, and no time-out runs for it: callers say how far each application
has come (Seen). The package says why leases are not flushed. Source: spec/transactions 9.1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import msgspec

from txlog.base.settings import RECEIVE_BYTES_MAX, Settings
from txlog.clock import Instant
from txlog.engine.decide.consuming.acknowledge import by_partition
from txlog.engine.decide.draft import Decision
from txlog.engine.folds import catalog as catalogs
from txlog.engine.folds.catalog import Consumer, Subscription, Topic
from txlog.engine.folds.cursor import Cursor
from txlog.engine.model.idset import IdSet, each, size
from txlog.engine.model.leases import Seen, due_in
from txlog.engine.model.ops import ConsumerDetached, Due, Leased, Op, Returned, Run
from txlog.engine.plan.ack_sets import messages_in
from txlog.engine.plan.consuming.choice import SHARED_TYPES as SHARED_TYPES
from txlog.engine.plan.consuming.choice import Part as Part
from txlog.engine.plan.consuming.choice import active_consumer as active_consumer
from txlog.engine.plan.consuming.choice import choose, delays_of
from txlog.engine.plan.delayed.due import Unindexed
from txlog.engine.plan.delayed.timetable_parts import BucketLost
from txlog.engine.plan.participants import unavailable_error
from txlog.engine.plan.reading.dispatch import Piece
from txlog.engine.plan.standing import Place, stands_at
from txlog.engine.view.view import View
from txlog.errors import AlreadyClosed

Find = Callable[[View], tuple[Topic, Subscription]]
UNACKED_MAX = "unacked_max"
ALL = Seen(batch=1 << 62)
NOBODY: Mapping[int, Seen] = {}
NO_LIMITS: Mapping[int, int] = {}


class Wants(msgspec.Struct, frozen=True, gc=False):
    """What a consumer asks for; partitions in the order in which they are tried.

    make_do: without a missing index, which costs reads; else the answer asks for it
    ahead:   0: the application gets all of it at once; else it is taken ahead, and this is the
             number of its first batch, of one partition; the next has the next number
    most:    the most that all consumers of a shared type together take ahead
    seen:    (partition, messages, when their time-out is over) of what the application got of the
             batches before; it is written with what is leased now
    limits:  the most messages of a partition; of one that is not named, `limit` alone decides
    """

    subscription: int
    consumer: int
    partitions: Sequence[int]
    limit: int
    places: Mapping[int, Place]
    ack_timeout_ms: int | None = None
    make_do: bool = False
    ahead: int = 0
    most: int = 1
    seen: Sequence[tuple[int, list[Run], Due]] = ()
    limits: Mapping[int, int] = NO_LIMITS

    def making_do(self) -> Wants:
        """The same, without a missing index."""
        return msgspec.structs.replace(self, make_do=True)


class Delivery(msgspec.Struct, gc=False):
    """The answer of receive; blocked: why there is nothing although there may be messages.

    is_more: ask again, the look ended early
    wanting: an index to be built, or dropped, before anything is delivered
    due_ms:  if there is nothing: when the next message is due, by the wall clock
    timeout_ms: the ack time-out, 0 for none
    """

    parts: list[Part]
    blocked: str | None = None
    is_more: bool = False
    wanting: Unindexed | BucketLost | None = None
    due_ms: int | None = None
    timeout_ms: int = 0


class ReturnResult(msgspec.Struct, frozen=True, gc=False):
    """The answer of a return: messages, and those of the request that nobody held."""

    returned: int
    missed: int = 0


def attached(view: View, consumer: int) -> Consumer:
    """The consumer; raises AlreadyClosed when it was detached (its subscription is deleted)."""
    found = view.catalog.consumers.get(consumer)
    if found is None:
        raise AlreadyClosed("the consumer was detached from its subscription")
    return found


def receive(
    view: View, settings: Settings, now: Instant, wants: Wants
) -> Decision[Delivery | None]:
    """Decide what a consumer gets next; written, and flushed only if it delivers what is not.

    returns: Delivery; None: reap first, leases have run out
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
        return Decision([], answer=Delivery([], UNACKED_MAX))
    left = most = min(wants.limit, room, _share(view, me, wants))
    held = view.catalog.subscriptions[wants.subscription]
    timeout_ms = _timeout_ms(held, wants)
    due = due_in(now, timeout_ms) if timeout_ms and not wants.ahead else None
    delays = delays_of(view, settings, topic, me, now, make_do=wants.make_do)
    ops: list[Op] = []
    parts: list[Part] = []
    sync = is_more = False
    room_bytes = RECEIVE_BYTES_MAX
    for number in numbers:
        if left <= 0 or room_bytes <= 0:
            break
        place, most_here = wants.places.get(number), min(left, wants.limits.get(number, left))
        try:
            part = choose(view, topic, me, number, place, most_here, now, delays)
        except (Unindexed, BucketLost) as error:
            return Decision([], answer=Delivery([], wanting=error))
        if part is None:
            continue
        is_more = is_more or part.is_more
        parts.append(part)
        if part.runs:
            part.ahead = wants.ahead and wants.ahead + len(ops)
            ops.append(Leased(wants.subscription, number, me.number, part.runs, due, part.ahead))
            left -= sum(map(size, part.runs))
            room_bytes -= part.bytes
            sync = sync or not _is_durable(view, part.pieces[-1])
    handed = Delivery(parts, is_more=is_more and not ops, timeout_ms=timeout_ms)
    if wants.ahead and most - left == 1:
        _hand_over(ops, parts, due_in(now, timeout_ms) if timeout_ms else None)
    if ops:
        ops[:0] = _seen_ops(view, wants)
    if delays is not None and not ops:
        found = (delays.next_ms(view, part) for part in parts)
        handed.due_ms = min((at for at in found if at is not None), default=None)
    return Decision(ops, None, sync, handed)


def _timeout_ms(held: Subscription, wants: Wants) -> int:
    given = wants.ack_timeout_ms
    return int(held.policies.get("ack_timeout_ms", 0)) if given is None else given


def _share(view: View, me: Consumer, wants: Wants) -> int:
    """How many a consumer of a shared type may have ahead, given the others."""
    if not wants.ahead or me.kind not in SHARED_TYPES:
        return wants.limit
    return max(1, wants.most // len(catalogs.consumers_of(view.catalog, me.subscription)))


def _hand_over(ops: list[Op], parts: list[Part], due: Due | None) -> None:
    """A single message goes to the application at once, so none is ahead."""
    [at] = [at for at, part in enumerate(parts) if part.runs]
    [op] = ops
    assert isinstance(op, Leased)
    ops[0] = msgspec.structs.replace(op, due=due, ahead=0)
    parts[at].ahead = 0


def _seen_ops(view: View, wants: Wants) -> list[Op]:
    """What the application got since the last frame and still has, with its time-outs."""
    ops: list[Op] = []
    for number, runs, due in wants.seen:
        lease = view.cursor(wants.subscription, number).leases.by_consumer.get(wants.consumer)
        mine = [] if lease is None else [part for run in runs for part in lease.ids.common(run)]
        if mine:
            ops.append(Leased(wants.subscription, number, wants.consumer, mine, due))
    return ops


def _in_hand(view: View, me: Consumer, wants: Wants, now: Instant) -> int:
    """Leased messages; what will be delivered again to the same consumer is not counted twice."""
    total = 0
    for number in wants.partitions:
        cursor = view.cursor(me.subscription, number)
        lease = cursor.leases.by_consumer.get(me.number)
        if lease is None:
            continue
        if me.kind in SHARED_TYPES:
            total += lease.count()
        else:
            total += lease.ids.count_through(stands_at(cursor, wants.places.get(number), now))
    return total


def _is_durable(view: View, piece: Piece) -> bool:
    """True when the frame that made the piece visible is; a dead writer may leave others.

    Positions rise with the LSN, so the last piece of a partition decides for those before it.
    """
    durable = view.journal.durable_lsn
    if durable >= view.lsn:
        return True
    if piece.marker is not None:
        return piece.marker.lsn <= durable
    last = piece.entry + piece.rows - 1
    return all(
        run.frame.lsn <= durable for run, _, _ in view.tail.slices(piece.ledger, last, last + 1)
    )


# --- coming back -----------------------------------------------------------------------------


def reap_ops(
    view: View,
    subscription: Subscription,
    dead: Mapping[int, Seen],
    now: Instant,
    late: Mapping[int, Seen] = NOBODY,
) -> list[Op]:
    """What dead consumers held, and leases that ran out, go back; what was seen counts.

    dead: consumers whose lock the caller found free: they never come back, ids are used once
    late: live consumers that let the time-out of their last delivery run out
    """
    ops: list[Op] = []
    numbers = catalogs.numbers(view.catalog.topics[subscription.topic])
    gone = [one for one in dead if one in view.catalog.consumers]
    for number in numbers:
        leases = view.cursor(subscription.number, number).leases
        ops += [
            Returned(subscription.number, number, one, None, leases.apart(one, dead[one])[1])
            for one in gone
            if leases.in_hand(one)
        ]
        ops += [
            Returned(subscription.number, number, one, runs)
            for one, runs in leases.overdue(now)
            if one not in gone
        ]
        for one, seen in late.items():
            got, unseen = leases.apart(one, seen)
            if one not in gone and (got or unseen):
                ops.append(Returned(subscription.number, number, one, got, unseen))
    ops += [ConsumerDetached(subscription.number, one) for one in gone]
    return ops


def is_reaping_due(view: View, subscription: int, numbers: Iterable[int], now: Instant) -> bool:
    """True when a lease has run out."""
    return any(view.cursor(subscription, number).leases.overdue(now) for number in numbers)


def give_back(
    view: View, subscription: Subscription, consumer: int, seen: Seen, *, detach: bool
) -> Decision[ReturnResult]:
    """Decide to return all that a consumer holds, and with detach to leave; answers ReturnResult.

    seen: how far its application came: what it never got comes again without counting
    """
    ops: list[Op] = []
    total = 0
    for number in catalogs.numbers(view.catalog.topics[subscription.topic]):
        lease = view.cursor(subscription.number, number).leases.by_consumer.get(consumer)
        if lease is not None and lease.ids:
            unseen = lease.apart(seen)[1]
            ops.append(Returned(subscription.number, number, consumer, None, unseen))
            total += lease.count()
    if detach and consumer in view.catalog.consumers:
        ops.append(ConsumerDetached(subscription.number, consumer))
    return Decision(ops, answer=ReturnResult(total))


def give_back_unseen(view: View, subscription: int, consumer: int, seen: Seen) -> Decision[None]:
    """Decide to return what a consumer took ahead and its application did not get."""
    held = view.catalog.subscriptions.get(subscription)
    if held is None:
        return Decision([])
    ops: list[Op] = []
    for number in catalogs.numbers(view.catalog.topics[held.topic]):
        unseen = view.cursor(subscription, number).leases.apart(consumer, seen)[1]
        if unseen:
            ops.append(Returned(subscription, number, consumer, [], unseen))
    return Decision(ops)


def give_back_parts(
    view: View, subscription: int, consumer: int, parts: list[Part]
) -> Decision[None]:
    """Decide to return what could not be read: nobody has seen it."""
    ops: list[Op] = [
        Returned(subscription, part.partition, consumer, [], part.runs)
        for part in parts
        if part.runs
    ]
    return Decision(ops)


def give_back_runs(
    view: View, subscription: int, consumer: int, parts: Iterable[tuple[int, list[Run]]]
) -> Decision[None]:
    """Decide to return what a consumer holds of some runs by partition: nobody has seen it."""
    if subscription not in view.catalog.subscriptions:
        return Decision([])
    ops: list[Op] = []
    for number, runs in parts:
        lease = view.cursor(subscription, number).leases.by_consumer.get(consumer)
        mine = [] if lease is None else [part for run in runs for part in lease.ids.common(run)]
        if mine:
            ops.append(Returned(subscription, number, consumer, [], mine))
    return Decision(ops)


def negative_acknowledge(
    view: View,
    settings: Settings,
    now: Instant,
    find: Find,
    runs: list[Run],
    delay_ms: int | None,
    *,
    consumer: int = 0,
    nack_delay_ms: int | None = None,
    seen: Mapping[int, Seen] = NOBODY,
) -> Decision[ReturnResult]:
    """Decide that leased messages come again after a delay; others are left alone.

    delay_ms:      for all of them; None: the subscription's, doubled with each redelivery
    consumer:      only from this one; 0: from any
    nack_delay_ms: instead of the subscription's
    seen:          how far applications came in what their consumers took ahead; what none has got
                   comes again at once, uncounted
    returns:       ReturnResult; raises MessageNotFound, PartitionUnavailable, what find raises
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
        for holder, lease in cursor.leases.by_consumer.items():
            if consumer not in (0, holder):
                continue
            mine = [part for run in wanted for part in lease.ids.common(run)]
            total += sum(map(size, mine))
            unseen = _common(lease.apart(seen.get(holder, ALL))[1], mine)
            if unseen:
                ops.append(Returned(subscription.number, number, holder, [], unseen))
                mine = _without(mine, unseen)
            for delay, some in _by_delay(cursor, mine, delay_ms, base, most):
                due = due_in(now, delay) if delay else None
                ops.append(Returned(subscription.number, number, holder, some, [], due))
    return Decision(ops, answer=ReturnResult(total, asked - total))


def _common(left: list[Run], right: list[Run]) -> list[Run]:
    """What is in both."""
    known = IdSet()
    for run in left:
        known.add(run)
    return [part for run in right for part in known.common(run)] if left else []


def _without(runs: list[Run], others: list[Run]) -> list[Run]:
    """Runs without what is in some others."""
    left = IdSet()
    for run in runs:
        left.add(run)
    for run in others:
        left.discard(run)
    return left.runs()


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
    view: View,
    settings: Settings,
    now: Instant,
    find: Find,
    runs: list[Run] | None,
    seen: Mapping[int, Seen] = NOBODY,
) -> Decision[ReturnResult]:
    """Decide that messages come again at once, in any consumer's hand; None: all leased ones.

    returns: ReturnResult; seen: as in negative_acknowledge
    """
    if runs is not None:
        return negative_acknowledge(view, settings, now, find, runs, 0, seen=seen)
    topic, subscription = find(view)
    ops: list[Op] = []
    total = 0
    for number in catalogs.numbers(topic):
        for holder, lease in view.cursor(subscription.number, number).leases.by_consumer.items():
            if lease.ids:
                unseen = lease.apart(seen.get(holder, ALL))[1]
                ops.append(Returned(subscription.number, number, holder, None, unseen))
                total += lease.count()
    return Decision(ops, answer=ReturnResult(total))
