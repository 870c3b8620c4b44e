"""Which messages of one partition a consumer gets next, by the type of its subscription.

A message is deliverable if it is visible and neither acknowledged, held nor waiting. On the shared
types it must also be due and not leased. On Exclusive and Failover a consumer's own lease does not
stop it: after a return it goes back to the lowest returned message and takes everything
from there again. Source: spec/transactions 9.1, spec/delayed 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from txlog.base.settings import RECEIVE_BYTES_MAX, Settings
from txlog.clock import Instant
from txlog.engine.folds.catalog import Consumer, Topic, consumers_of, index_of
from txlog.engine.model.idset import IdSet
from txlog.engine.model.ops import Run
from txlog.engine.plan.clock_trust import due_ms
from txlog.engine.plan.consuming.key_shared import choose_keys
from txlog.engine.plan.delayed.due import DueScan, all_due, due_for_any, next_due
from txlog.engine.plan.policies import delay_policy
from txlog.engine.plan.reading.dispatch import Piece, plan
from txlog.engine.plan.standing import ReadPosition, stands_at
from txlog.engine.view.view import View
from txlog.errors import Corruption

SHARED_TYPES = ("shared", "key-shared")


class PartitionDelivery(msgspec.Struct, gc=False):
    """The messages to deliver from one partition, and the position after them.

    runs: the leased messages; takes: for key-shared, the offsets of the chosen rows in each piece
    error: why the pieces cannot be read; none of their messages was leased
    bytes: roughly those in the pieces
    is_more: the caller asks again, because the search ended early
    is_rewound: it began again at mark-delete, because the index may have lost ids
    ahead:  the number of its batch, if it is taken ahead
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


class DelayRules(NamedTuple):
    """How a subscription honours deliver_at; ahead_ms: how long before it is due it may come."""

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
    """How a consumer honours deliver_at; None: it gets every message at once."""
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
