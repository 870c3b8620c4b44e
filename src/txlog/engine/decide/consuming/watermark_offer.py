"""What a consumer may be handed as its watermark, and the frame that makes it stay.

    raw(P)        the least time of an active producer at the tracking position P; it may fall
    clamp         the greatest value that a consumer of the subscription was handed in this epoch
    effective     the greater of the two, of a partition that is active
    a consumer    the least effective value over its active partitions, if none is unknown

The frame is durable before the value is handed out, and so are the acknowledgements beneath it.
Source: spec/watermarks 8.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from txlog.engine.decide.draft import Decision
from txlog.engine.folds.watermark import Clamp, Position
from txlog.engine.model.ops import Op, WatermarkEmitted
from txlog.engine.view.view import View

HOLDING = ("unknown", "unavailable")  # no value while a partition is so
Pair = tuple[int, int]  # subscription, partition: numbers of the store


class Standing(msgspec.Struct, frozen=True, gc=False):
    """Where a subscription stands in a partition; clamp: None without one in this epoch.

    status: unknown, active, idle, or unavailable: its rows cannot be read now
    raw:    None unless active
    """

    status: str
    raw: int | None
    position: Position
    epoch: int
    clamp: int | None


class Offer(msgspec.Struct, frozen=True, gc=False):
    """A value, and what it rests on: (subscription, partition) -> standing, of all it has."""

    event_time: int
    standings: dict[Pair, Standing]


def clamp_of(clamps: Mapping[int, Clamp], subscription: int, epoch: int) -> int | None:
    """What was delivered in this epoch."""
    known = clamps.get(subscription)
    return known.event_time if known is not None and known.epoch == epoch else None


def offer(standings: Mapping[Pair, Standing], last: int | None) -> Offer | None:
    """What to deliver to a consumer with these partitions; last: what it has, None: it is new."""
    if not standings or any(one.status in HOLDING for one in standings.values()):
        return None
    active = [one for one in standings.values() if one.raw is not None]
    if active:
        value = min(_effective(one) for one in active)
    else:
        clamps = [one.clamp for one in standings.values()]
        known = [clamp for clamp in clamps if clamp is not None]
        if last is not None or len(known) < len(clamps):
            return None  # all idle: what was delivered stays
        value = min(known)
    if last is not None and value <= last:
        return None
    return Offer(value, dict(standings))


def _effective(one: Standing) -> int:
    assert one.raw is not None
    return one.raw if one.clamp is None else max(one.raw, one.clamp)


def emit(view: View, offered: Offer) -> Decision[bool]:
    """Decide that a value is delivered; durable, with the acknowledgements below it.

    Answers False when it may be stale: a seek came between, or another consumer got more.
    """
    ops: list[Op] = []
    for (subscription, partition), one in offered.standings.items():
        epoch = view.cursor(subscription, partition).epoch
        clamps = view.watermark(partition).clamps
        if epoch != one.epoch or clamp_of(clamps, subscription, epoch) != one.clamp:
            return Decision([], answer=False)
        if one.clamp is None or one.clamp < offered.event_time:
            ops.append(
                WatermarkEmitted(subscription, partition, epoch, offered.event_time, one.position)
            )
    return Decision(ops, None, True, True)
