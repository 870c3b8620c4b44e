"""Which messages of one partition a consumer gets next, by the type of its subscription.

A message is deliverable if it is visible and neither acknowledged, held nor waiting; on the shared
types it must also be due and leased to nobody. On Exclusive and Failover a consumer's own lease
does not stop it: after a return it goes back to the lowest returned message and takes everything
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
from txlog.engine.plan.standing import Place, stands_at
from txlog.engine.view.view import View
from txlog.errors import Corruption

SHARED_TYPES = ("shared", "key-shared")


class Part(msgspec.Struct, gc=False):
    """What is delivered of one partition, and the place after it.

    runs:  what was leased; takes: with keys, for each piece the offsets of its rows that are meant
    error: the pieces cannot be read, and nothing of them was leased
    bytes: roughly those in the pieces
    is_more: ask again, the look ended early
    is_rewound: it began again at mark-delete, as the index may have lost something
    ahead:  the number of the batch that it is, if it is taken ahead
    """

    partition: int
    pieces: list[Piece]
    place: Place
    runs: list[Run] = []
    takes: list[list[int]] | None = None
    error: Corruption | None = None
    bytes: int = 0
    is_more: bool = False
    is_rewound: bool = False
    ahead: int = 0


class Delays(NamedTuple):
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
        place: Place | None,
        now: Instant,
        members: tuple[int, ...] = (),
    ) -> DueScan:
        cursor = view.cursor(me.subscription, number)
        return DueScan(
            view,
            number,
            cursor,
            place,
            now,
            self.cutoff,
            strays_max=self.strays_max,
            make_do=self.make_do,
            members=members,
        )

    def next_ms(self, view: View, part: Part) -> int | None:
        """When the next message of a partition is due, by the wall clock; None: nothing waits."""
        at = next_due(view, part.partition, self.cutoff, part.place)
        return None if at is None else at - self.ahead_ms


def delays_of(
    view: View, settings: Settings, topic: Topic, me: Consumer, now: Instant, *, make_do: bool
) -> Delays | None:
    """How a consumer honours deliver_at; None: everything is its own at once."""
    if me.kind not in SHARED_TYPES:
        return None
    policy = delay_policy(view, settings, topic)
    if not policy.active:
        return None
    cutoff = policy.cutoff(due_ms(view, settings, now))
    return Delays(cutoff, cutoff - now.wall_ms, settings.strays_max, make_do)


def active_consumer(view: View, subscription: int, index: int) -> int:
    """Failover: who gets the partition with this index (from 0); 0: nobody is attached."""
    known = consumers_of(view.catalog, subscription)
    if not known:
        return 0
    best = min(one.priority for one in known)
    pool = sorted((one.name, one.number) for one in known if one.priority == best)
    return pool[index % len(pool)][1]


def choose(
    view: View,
    topic: Topic,
    me: Consumer,
    number: int,
    place: Place | None,
    limit: int,
    now: Instant,
    delays: Delays | None,
) -> Part | None:
    """The next messages of one partition for a consumer; None: nothing is for this one now.

    raises: Unindexed, BucketLost: what the index lacks there is wanted first
    """
    if delays is None and place is not None and place.honours:
        place = None  # what it passed over as not due is available now
    if me.kind == "key-shared":
        return _choose_keys(view, me, number, place, limit, now, delays)
    if delays is not None:
        return _choose_due(view, me, number, place, limit, now, delays)
    return _choose(view, topic, me, number, place, limit, now)


def _choose_due(
    view: View,
    me: Consumer,
    number: int,
    place: Place | None,
    limit: int,
    now: Instant,
    delays: Delays,
) -> Part:
    """The next messages of one partition for any consumer."""
    cursor, most = view.cursor(me.subscription, number), RECEIVE_BYTES_MAX
    is_rewound = False
    found = all_due(view, number, cursor, place, now, delays.cutoff, limit, most)
    if found is None:
        scan = delays.scan(view, me, number, place, now)
        is_rewound = scan.is_rewound
        found = due_for_any(view, number, scan, limit, most)
        if found.error is not None:
            return Part(number, found.pieces, found.place, error=found.error)
    return Part(
        number,
        found.pieces,
        found.place,
        _runs_of(found.pieces),
        bytes=found.bytes,
        is_more=found.is_more,
        is_rewound=is_rewound,
    )


def _choose_keys(
    view: View,
    me: Consumer,
    number: int,
    place: Place | None,
    limit: int,
    now: Instant,
    delays: Delays | None,
) -> Part:
    """The next messages of one partition for the owner of some keys."""
    cursor = view.cursor(me.subscription, number)
    members = tuple(one.number for one in consumers_of(view.catalog, me.subscription))
    scan = None if delays is None else delays.scan(view, me, number, place, now, members)
    found = choose_keys(view, number, cursor, me.number, members, place, limit, now, scan)
    if found.error is not None:
        return Part(number, found.pieces, found.place, error=found.error)
    return Part(
        number,
        found.pieces,
        found.place,
        found.runs(),
        found.takes,
        None,
        found.bytes,
        found.is_more,
        scan is not None and scan.is_rewound,
    )


def _choose(
    view: View,
    topic: Topic,
    me: Consumer,
    number: int,
    place: Place | None,
    limit: int,
    now: Instant,
) -> Part | None:
    """The next messages of one partition for a consumer; None: nothing is for this one now."""
    cursor = view.cursor(me.subscription, number)
    leases = cursor.leases
    if me.kind == "failover":
        if active_consumer(view, me.subscription, index_of(topic, number)) != me.number:
            return None
        if leases.others(me.number):
            return None  # the one before is working on them: taken over now, they would come twice
    at = stands_at(cursor, place, now)
    waiting = leases.not_due(now)[0]
    skip: tuple[IdSet, ...] = (cursor.acked, cursor.held, waiting)
    if me.kind in SHARED_TYPES:
        skip = (*skip, leases.leased)
    found = plan(view, number, at, limit, skip)
    place = Place(cursor.round, found.after)
    return Part(number, found.pieces, place, _runs_of(found.pieces), bytes=found.bytes)


def _runs_of(pieces: Iterable[Piece]) -> list[Run]:
    """The messages of a plan as runs."""
    return [
        (one.ledger, one.entry, one.entry + one.rows - 1, 0, 0)
        if one.marker is None
        else (one.ledger, one.entry, one.entry, one.index, one.index + one.rows - 1)
        for one in pieces
    ]
