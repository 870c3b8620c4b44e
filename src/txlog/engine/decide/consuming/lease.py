"""Leases: handing messages to a consumer, and taking them back.

    receive                    Leased, for up to a whole batch over all partitions
    give_back                  Returned: all messages that a consumer has in hand
    negative_acknowledge       Returned, at once or after a delay that doubles with each redelivery
    redeliver                  Returned: all leased messages, or these ids, of any consumer
    reap_ops                   Returned + ConsumerDetached for dead consumers, and expired leases

plan/consuming/choice decides which messages are deliverable. Messages that a consumer took ahead
and did not pass to its application are not counted as redelivered when they come back, and no
time-out runs for them: callers report how far each application has got (Seen). The docstring of the
package explains why leases are not flushed. Source: spec/transactions 9.1.
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
from txlog.engine.model.ops import (
    CATALOG,
    ConsumerDetached,
    Due,
    Leased,
    Op,
    Returned,
    Run,
    returns,
)
from txlog.engine.plan.ack_sets import messages_in
from txlog.engine.plan.consuming.choice import SHARED_TYPES as SHARED_TYPES
from txlog.engine.plan.consuming.choice import PartitionDelivery as PartitionDelivery
from txlog.engine.plan.consuming.choice import active_consumer as active_consumer
from txlog.engine.plan.consuming.choice import choose, delays_of
from txlog.engine.plan.delayed.due import IndexMissing
from txlog.engine.plan.delayed.index import BucketLost
from txlog.engine.plan.participants import unavailable_error
from txlog.engine.plan.reading.dispatch import Piece
from txlog.engine.plan.standing import ReadPosition, stands_at
from txlog.engine.view import View
from txlog.errors import AlreadyClosed

Find = Callable[[View], tuple[Topic, Subscription]]
UNACKED_MAX = "unacked_max"
ALL = Seen(batch=1 << 62)
NOBODY: Mapping[int, Seen] = {}
NO_LIMITS: Mapping[int, int] = {}


class ReceiveRequest(msgspec.Struct, frozen=True, gc=False):
    """The request of a consumer; the decision tries the partitions in this order.

    make_do: do without a missing index, at the cost of reads; else the answer names that index
    ahead:   0: the application gets all messages at once; else the consumer takes them ahead, and
             this is the number of the first batch (one per partition); the next batch has the next
             number
    most:    how many messages all consumers of a shared type together may take ahead
    seen:    (partition, messages, end of their time-out) of earlier batches that the application
             received; the frame of the new lease also writes these
    limits:  the most messages per partition; without an entry, only `limit` applies
    """

    subscription: int
    consumer: int
    partitions: Sequence[int]
    limit: int
    places: Mapping[int, ReadPosition]
    ack_timeout_ms: int | None = None
    make_do: bool = False
    ahead: int = 0
    most: int = 1
    seen: Sequence[tuple[int, list[Run], Due]] = ()
    limits: Mapping[int, int] = NO_LIMITS

    def making_do(self) -> ReceiveRequest:
        """The same, without a missing index."""
        return msgspec.structs.replace(self, make_do=True)


class Delivery(msgspec.Struct, gc=False):
    """The answer of receive.

    blocked: `unacked_max` if that limit of leased messages was reached
    is_more: the search ended early, so the caller must repeat the request
    wanting: an index to be built, or dropped, before anything is delivered
    due_ms:  if it is empty: when the next message is due, by the wall clock
    timeout_ms: the ack time-out, 0 for none
    is_last: it looked in all partitions; if it came to their ends (choice.is_at_end), another
        request would get nothing now
    """

    parts: list[PartitionDelivery]
    blocked: str | None = None
    is_more: bool = False
    wanting: IndexMissing | BucketLost | None = None
    due_ms: int | None = None
    timeout_ms: int = 0
    is_last: bool = False


class ReturnResult(msgspec.Struct, frozen=True, gc=False):
    """How many messages came back, and how many requested messages were not leased."""

    returned: int
    missed: int = 0


def attached(view: View, consumer: int) -> Consumer:
    """The consumer; raises AlreadyClosed when it was detached (its subscription is deleted)."""
    record = view.catalog.consumers.get(consumer)
    if record is None:
        raise AlreadyClosed("the consumer was detached from its subscription")
    return record


def receive(
    view: View, settings: Settings, now: Instant, wants: ReceiveRequest
) -> Decision[Delivery | None]:
    """Decide which messages a consumer gets next; flushed only if some are not durable yet.

    answers: a Delivery; None: leases have expired, so the caller must reap first
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
    budget = most = min(wants.limit, room, _share(view, me, wants))
    subscription = view.catalog.subscriptions[wants.subscription]
    timeout_ms = _timeout_ms(subscription, wants)
    due = due_in(now, timeout_ms) if timeout_ms and not wants.ahead else None
    delays = delays_of(view, settings, topic, me, now, make_do=wants.make_do)
    ops: list[Op] = []
    parts: list[PartitionDelivery] = []
    sync = is_more = is_last = False
    room_bytes = RECEIVE_BYTES_MAX
    for number in numbers:
        if budget <= 0 or room_bytes <= 0:
            break
        position = wants.places.get(number)
        most_here = min(budget, wants.limits.get(number, budget))
        try:
            part = choose(view, topic, me, number, position, most_here, now, delays)
        except (IndexMissing, BucketLost) as error:
            return Decision([], answer=Delivery([], wanting=error))
        if part is None:
            continue
        is_more = is_more or part.is_more
        parts.append(part)
        if part.runs:
            part.ahead = wants.ahead and wants.ahead + len(ops)
            ops.append(Leased(wants.subscription, number, me.number, part.runs, due, part.ahead))
            budget -= sum(map(size, part.runs))
            room_bytes -= part.bytes
            sync = sync or not all(_is_durable(view, piece) for piece in part.pieces)
    else:
        is_last = not is_more
    handed = Delivery(parts, is_more=is_more and not ops, timeout_ms=timeout_ms, is_last=is_last)
    if wants.ahead and most - budget == 1:
        _hand_over(ops, parts, due_in(now, timeout_ms) if timeout_ms else None)
    if ops:
        ops[:0] = _seen_ops(view, wants)
    if delays is not None and not ops:
        due_times = (delays.next_ms(view, part) for part in parts)
        handed.due_ms = min((at for at in due_times if at is not None), default=None)
    waits = not ops or _rests_on_flight(view, wants.subscription, numbers)
    return Decision(ops, None, sync, handed, waits=waits)


def _rests_on_flight(view: View, subscription: int, numbers: Iterable[int]) -> bool:
    """True when frames that are not durable yet may have made messages available again.

    The messages themselves are durable, or the decision is flushed. Acknowledgements and leases
    only leave fewer messages, and the frame of a consumer that comes or goes is never waited for.
    """
    durable = view.journal.durable_lsn
    if durable >= view.lsn:
        return False
    facets = [returns(subscription, number) for number in numbers]
    return view.last_change([CATALOG, *facets]) > durable


def _timeout_ms(subscription: Subscription, wants: ReceiveRequest) -> int:
    requested = wants.ack_timeout_ms
    return int(subscription.policies.get("ack_timeout_ms", 0)) if requested is None else requested


def _share(view: View, me: Consumer, wants: ReceiveRequest) -> int:
    """How many messages a consumer of a shared type may take ahead: an equal share of all."""
    if not wants.ahead or me.kind not in SHARED_TYPES:
        return wants.limit
    return max(1, wants.most // len(catalogs.consumers_of(view.catalog, me.subscription)))


def _hand_over(ops: list[Op], parts: list[PartitionDelivery], due: Due | None) -> None:
    """A single message goes to the application at once, so no message is ahead."""
    [at] = [at for at, part in enumerate(parts) if part.runs]
    [op] = ops
    assert isinstance(op, Leased)
    ops[0] = msgspec.structs.replace(op, due=due, ahead=0)
    parts[at].ahead = 0


def _seen_ops(view: View, wants: ReceiveRequest) -> list[Op]:
    """Leases with a time-out for messages that the application got since the last frame and has."""
    ops: list[Op] = []
    for number, runs, due in wants.seen:
        lease = view.cursor(wants.subscription, number).leases.by_consumer.get(wants.consumer)
        still_leased = (
            [] if lease is None else [part for run in runs for part in lease.ids.common(run)]
        )
        if still_leased:
            ops.append(Leased(wants.subscription, number, wants.consumer, still_leased, due))
    return ops


def _in_hand(view: View, me: Consumer, wants: ReceiveRequest, now: Instant) -> int:
    """How many messages are leased to the consumer; those that it will receive again count once."""
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
    """True when the frame that made the piece visible is durable; others may be in flight, or left
    by a dead writer.
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
    """The ops that return the messages of dead consumers and of expired leases.

    Messages that the application saw count as redelivered.
    dead: consumers whose lock file the caller could lock. Ids are used once: they stay dead
    late: live consumers whose last message has outlived its time-out
    """
    ops: list[Op] = []
    numbers = catalogs.numbers(view.catalog.topics[subscription.topic])
    detached = [consumer for consumer in dead if consumer in view.catalog.consumers]
    for number in numbers:
        leases = view.cursor(subscription.number, number).leases
        ops += [
            Returned(
                subscription.number,
                number,
                consumer,
                None,
                leases.apart(consumer, dead[consumer])[1],
            )
            for consumer in detached
            if leases.in_hand(consumer)
        ]
        ops += [
            Returned(subscription.number, number, consumer, runs)
            for consumer, runs in leases.overdue(now)
            if consumer not in detached
        ]
        for consumer, seen in late.items():
            got, unseen = leases.apart(consumer, seen)
            if consumer not in detached and (got or unseen):
                ops.append(Returned(subscription.number, number, consumer, got, unseen))
    ops += [ConsumerDetached(subscription.number, consumer) for consumer in detached]
    return ops


def is_reaping_due(view: View, subscription: int, numbers: Iterable[int], now: Instant) -> bool:
    """True when a lease has run out."""
    return any(view.cursor(subscription, number).leases.overdue(now) for number in numbers)


def give_back(
    view: View, subscription: Subscription, consumer: int, seen: Seen, *, detach: bool
) -> Decision[ReturnResult]:
    """Decide to return all messages leased to a consumer, and with detach to remove the consumer.

    seen: how far its application has got: messages it never received do not count as redelivered
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
    """Decide to return the messages that a consumer took ahead and its application did not get."""
    record = view.catalog.subscriptions.get(subscription)
    if record is None:
        return Decision([])
    ops: list[Op] = []
    for number in catalogs.numbers(view.catalog.topics[record.topic]):
        unseen = view.cursor(subscription, number).leases.apart(consumer, seen)[1]
        if unseen:
            ops.append(Returned(subscription, number, consumer, [], unseen))
    return Decision(ops)


def give_back_parts(
    view: View, subscription: int, consumer: int, parts: list[PartitionDelivery]
) -> Decision[None]:
    """Decide to return messages that could not be read; they do not count as redelivered."""
    ops: list[Op] = [
        Returned(subscription, part.partition, consumer, [], part.runs)
        for part in parts
        if part.runs
    ]
    return Decision(ops)


def give_back_runs(
    view: View, subscription: int, consumer: int, parts: Iterable[tuple[int, list[Run]]]
) -> Decision[None]:
    """Decide to return the leased messages in `parts`; they do not count as redelivered."""
    if subscription not in view.catalog.subscriptions:
        return Decision([])
    ops: list[Op] = []
    for number, runs in parts:
        lease = view.cursor(subscription, number).leases.by_consumer.get(consumer)
        leased = [] if lease is None else [part for run in runs for part in lease.ids.common(run)]
        if leased:
            ops.append(Returned(subscription, number, consumer, [], leased))
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
    default_ms: int = 0,
    seen: Mapping[int, Seen] = NOBODY,
) -> Decision[ReturnResult]:
    """Decide that leased messages come again after a delay, and count as redelivered.

    delay_ms:      for all; None: nack_delay_ms, doubled per redelivery up to nack_backoff_max_ms
    consumer:      return only leases of this consumer; 0: of all consumers
    nack_delay_ms: None: the policy of the subscription; default_ms: if it has none
    seen:          how far each application has got in the messages that its consumer took ahead;
                   messages that no application received come again at once, uncounted
    raises:        MessageNotFound, PartitionUnavailable, as find
    """
    topic, subscription = find(view)
    base = nack_delay_ms
    if base is None:
        base = int(subscription.policies.get("nack_delay_ms", default_ms))
    most = int(subscription.policies.get("nack_backoff_max_ms", 0))
    ops: list[Op] = []
    total = requested = 0
    for number, named_runs in by_partition(view, topic, runs).items():
        requested += messages_in(view, number, named_runs)
        cursor = view.cursor(subscription.number, number)
        for holder, lease in cursor.leases.by_consumer.items():
            if consumer not in (0, holder):
                continue
            leased = [part for run in named_runs for part in lease.ids.common(run)]
            total += sum(map(size, leased))
            unseen = _common(lease.apart(seen.get(holder, ALL))[1], leased)
            if unseen:
                ops.append(Returned(subscription.number, number, holder, [], unseen))
                leased = _without(leased, unseen)
            for delay, delayed in _by_delay(cursor, leased, delay_ms, base, most):
                due = due_in(now, delay) if delay else None
                ops.append(Returned(subscription.number, number, holder, delayed, [], due))
    return Decision(ops, answer=ReturnResult(total, requested - total))


def _common(first: list[Run], second: list[Run]) -> list[Run]:
    """The messages in both."""
    ids = IdSet()
    for run in first:
        ids.add(run)
    return [part for run in second for part in ids.common(run)] if first else []


def _without(runs: list[Run], others: list[Run]) -> list[Run]:
    """The messages of the first runs that are not in the second runs."""
    ids = IdSet()
    for run in runs:
        ids.add(run)
    for run in others:
        ids.discard(run)
    return ids.runs()


def _by_delay(
    cursor: Cursor, runs: list[Run], delay_ms: int | None, base: int, most: int
) -> Iterator[tuple[int, list[Run]]]:
    """Runs with their delay. Messages that were redelivered before wait longer."""
    if not runs:
        return
    if delay_ms is not None or base == 0 or most <= base or not cursor.redelivered:
        yield (base if delay_ms is None else delay_ms), runs
        return
    by_delay: dict[int, list[Run]] = {}
    for run in runs:
        for id_ in each(run):
            times = min(cursor.redelivered.get(id_, 0), 40)
            delay = min(base << times, most)
            by_delay.setdefault(delay, []).append((id_[0], id_[1], id_[1], id_[2], id_[2]))
    yield from sorted(by_delay.items())


def redeliver(
    view: View,
    settings: Settings,
    now: Instant,
    find: Find,
    runs: list[Run] | None,
    seen: Mapping[int, Seen] = NOBODY,
) -> Decision[ReturnResult]:
    """Decide to redeliver messages at once, whichever consumer has them.

    runs: None: all leased messages; seen: as in negative_acknowledge
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
