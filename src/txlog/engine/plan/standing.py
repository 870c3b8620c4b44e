"""The position of a consumer in a partition, and the effect of returned messages on it.

A process keeps its own positions in memory. The rounds of the cursor show how far each position
must go back after a return. So a lease records no position, and a return costs other processes
nothing until they read.
Source: spec/transactions 9.1 (rounds, stale cumulative acknowledgements).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from txlog.clock import Instant
from txlog.engine.folds.cursor import Cursor
from txlog.engine.model.idset import before, covers
from txlog.engine.model.ops import Mark


class ReadPosition(msgspec.Struct, frozen=True, gc=False):
    """A consumer's place in a partition: no message up to it can be delivered to the consumer now.

    round:   of the cursor; while it is unchanged, the place is valid; if it is higher, messages
             were returned, and the consumer goes back to the lowest returned message
    members: the consumers of the subscription at that time; if they change, the consumer begins at
             mark-delete

    The other fields are for subscriptions that honour deliver_at (delayed/due).

    pointer: messages that the scan passed over as not due have a key above it
    cuts, losses: counts of the index (folds/delayed) at the time of the scan
    strays:  keys of scanned rows that are not due, in order
    """

    round: int
    mark: Mark
    members: tuple[int, ...] = ()
    pointer: tuple[int, int, int, int] = (0, 0, 0, 0)
    cuts: int = 0
    losses: int = 0
    honours: bool = False
    strays: tuple[tuple[int, int, int, int], ...] = ()


class ConsumerState(msgspec.Struct, frozen=True, gc=False):
    """The consumer of a call, and by partition its place and the last message it got (highest).

    consumer: its number; 0: the call is by message id, without a consumer
    seen:     how far its application has got, in partitions where it has taken messages ahead
    """

    consumer: int = 0
    places: Mapping[int, ReadPosition] = {}
    highest: Mapping[int, Mark] = {}
    seen: Mapping[int, Mark] = {}


OUTSIDE = ConsumerState()


def stands_at(
    cursor: Cursor, position: ReadPosition | None, now: Instant, members: tuple[int, ...] = ()
) -> Mark:
    """The position where a consumer continues, further back if messages were returned since."""
    mark = cursor.mark_delete
    if position is not None and position.members == members:
        mark = position.mark
        if position.round != cursor.round:
            mark = cursor.rewound(position.round, mark)
    if cursor.leases.waiting:
        lowest = cursor.leases.not_due(now)[1]
        if lowest is not None and not covers(before(lowest), mark):
            mark = before(lowest)
    return cursor.mark_delete if covers(cursor.mark_delete, mark) else mark


def is_stale(
    cursor: Cursor, standing: ConsumerState, partition: int, target: Mark, now: Instant
) -> bool:
    """True when messages below a cumulative acknowledgement came back after the consumer got it.

    The consumer is below the message again; accepting it would lose the returned messages.
    """
    highest = standing.highest.get(partition)
    if highest is None or not covers(highest, target):
        return False  # the consumer never received it, so the caller means the id
    position, seen = standing.places.get(partition), standing.seen.get(partition)
    if position is not None and seen is not None:
        position = msgspec.structs.replace(position, mark=seen)
    return not covers(stands_at(cursor, position, now), target)
