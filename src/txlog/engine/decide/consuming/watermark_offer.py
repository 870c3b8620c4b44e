"""Which watermark a consumer may receive, and the frame that records it.

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
from txlog.engine.view import View

HOLDING = ("unknown", "unavailable")  # no value while a partition is so
Pair = tuple[int, int]  # subscription, partition: numbers of the store


class PartitionWatermark(msgspec.Struct, frozen=True, gc=False):
    """The position of a subscription in a partition; clamp: None if there is none in this epoch.

    status: unknown, active, idle, or unavailable: its rows cannot be read now
    raw:    None unless active
    """

    status: str
    raw: int | None
    position: Position
    epoch: int
    clamp: int | None


class WatermarkOffer(msgspec.Struct, frozen=True, gc=False):
    """A value, and the state of each (subscription, partition) that it was computed from."""

    event_time: int
    standings: dict[Pair, PartitionWatermark]


def clamp_of(clamps: Mapping[int, Clamp], subscription: int, epoch: int) -> int | None:
    """The greatest value handed out to the subscription in this epoch; None: there is none."""
    clamp = clamps.get(subscription)
    return clamp.event_time if clamp is not None and clamp.epoch == epoch else None


def offer(standings: Mapping[Pair, PartitionWatermark], last: int | None) -> WatermarkOffer | None:
    """The next value for a consumer of these partitions, if any; last: its last value, or None."""
    if not standings or any(standing.status in HOLDING for standing in standings.values()):
        return None
    raws = [standing for standing in standings.values() if standing.raw is not None]
    if raws:
        value = min(_effective(standing) for standing in raws)
    else:
        clamps = [standing.clamp for standing in standings.values()]
        delivered = [clamp for clamp in clamps if clamp is not None]
        if last is not None or len(delivered) < len(clamps):
            return None  # All are idle: the delivered value stays.
        value = min(delivered)
    if last is not None and value <= last:
        return None
    return WatermarkOffer(value, dict(standings))


def _effective(standing: PartitionWatermark) -> int:
    assert standing.raw is not None
    return standing.raw if standing.clamp is None else max(standing.raw, standing.clamp)


def emit(view: View, offered: WatermarkOffer) -> Decision[bool]:
    """Decide to record a value before it is handed out; durable, with earlier acknowledgements.

    Answers False if the value may be stale: after a seek, or a value for another consumer.
    """
    ops: list[Op] = []
    for (subscription, partition), standing in offered.standings.items():
        epoch = view.cursor(subscription, partition).epoch
        clamps = view.watermark(partition).clamps
        if epoch != standing.epoch or clamp_of(clamps, subscription, epoch) != standing.clamp:
            return Decision([], answer=False)
        if standing.clamp is None or standing.clamp < offered.event_time:
            ops.append(
                WatermarkEmitted(
                    subscription, partition, epoch, offered.event_time, standing.position
                )
            )
    return Decision(ops, None, True, True)
