"""Where a consumer stands in a partition, and what a return does to that.

A process remembers its own places; the cursor's rounds say how far each of them must go back. So a
lease carries no position, and a return costs other processes nothing until they look.
Source: spec/transactions 9.1 (rounds, stale cumulative acknowledgements).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from txlog.clock import Instant
from txlog.engine.folds.cursor import Cursor, covers
from txlog.engine.model.idset import before
from txlog.engine.model.ops import Mark


class Place(msgspec.Struct, frozen=True, gc=False):
    """A consumer's place in a partition: nothing at or below it can be delivered to it.

    round:   of the cursor; the place is valid while that is unchanged, later returns say how far to
             go back
    members: the consumers it shared with then; with others it begins again

    The rest is of subscriptions that honour deliver_at (delayed/due).

    pointer: what was passed over as not due has a key above it
    cuts, losses: counts of the index (folds/delayed) that it knows of
    strays:  keys of rows that were met and are not due, in order
    """

    round: int
    mark: Mark
    members: tuple[int, ...] = ()
    pointer: tuple[int, int, int, int] = (0, 0, 0, 0)
    cuts: int = 0
    losses: int = 0
    honours: bool = False
    strays: tuple[tuple[int, int, int, int], ...] = ()


class Standing(msgspec.Struct, frozen=True, gc=False):
    """The consumer a call comes through, its places, and the last message it got in each.

    consumer 0: through none, by id
    seen: how far its application has come, where it has something ahead of that
    """

    consumer: int = 0
    places: Mapping[int, Place] = {}
    highest: Mapping[int, Mark] = {}
    seen: Mapping[int, Mark] = {}


OUTSIDE = Standing()


def stands_at(
    cursor: Cursor, place: Place | None, now: Instant, members: tuple[int, ...] = ()
) -> Mark:
    """Where a consumer continues: its place, or further back if messages have come back since."""
    mark = cursor.mark_delete
    if place is not None and place.members == members:
        mark = place.mark
        if place.round != cursor.round:
            mark = cursor.rewound(place.round, mark)
    if cursor.leases.waiting:
        lowest = cursor.leases.not_due(now)[1]
        if lowest is not None and not covers(before(lowest), mark):
            mark = before(lowest)
    return cursor.mark_delete if covers(cursor.mark_delete, mark) else mark


def is_stale(
    cursor: Cursor, standing: Standing, partition: int, target: Mark, now: Instant
) -> bool:
    """True when a cumulative acknowledgement is of a message received before some came back.

    The consumer has had it, and is below it again: what came back would be lost.
    """
    highest = standing.highest.get(partition)
    if highest is None or not covers(highest, target):
        return False  # never received through it: the id is taken as meant
    place, seen = standing.places.get(partition), standing.seen.get(partition)
    if place is not None and seen is not None:
        place = msgspec.structs.replace(place, mark=seen)
    return not covers(stands_at(cursor, place, now), target)
