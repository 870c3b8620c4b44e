"""Counts what this process delivered of delayed messages, for its metrics; never stored."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final, Protocol
from weakref import WeakSet

import pyarrow as pa

from txlog.startup import compute as pc

LATENESS_BOUNDS_MS: Final = (1, 10, 100, 1_000, 10_000, 60_000, 600_000, 3_600_000)


class Stander(Protocol):
    """Whoever stands in partitions for a subscription."""

    @property
    def strays(self) -> int:
        """Messages that it remembers as not due because the index lacks them."""


class DelayTally:
    """Counters of one process; they only rise.

    popped:   messages handed out whose time came after they became visible
    lateness: of these, how many by bound, and beyond the last; they were due so long before
    rewinds:  a consumer began again at mark-delete, for the index may have lost something
    standers: the consumers of this process
    """

    __slots__ = ("lateness", "lateness_ms", "popped", "rewinds", "standers")

    def __init__(self) -> None:
        self.popped = 0
        self.lateness = [0] * (len(LATENESS_BOUNDS_MS) + 1)
        self.lateness_ms = 0
        self.rewinds = 0
        self.standers: WeakSet[Stander] = WeakSet()

    def note(self, received: pa.Table, now_ms: int) -> None:
        """Rows of RECEIVED were handed out; what was released before its time is not late."""
        at = received["deliver_at"]
        if at.null_count == len(at):
            return
        waited = received.filter(pc.greater(at, received["visible_time"]))
        self.popped += waited.num_rows
        late = pc.subtract(pa.scalar(now_ms, pa.int64()), waited["deliver_at"].cast(pa.int64()))
        found = late.filter(pc.greater_equal(late, 0))
        if not len(found):
            return
        self.lateness_ms += int(pc.sum(found).as_py())
        for row in pc.value_counts(found).to_pylist():
            self.lateness[bisect_left(LATENESS_BOUNDS_MS, row["values"])] += row["counts"]

    @property
    def strays(self) -> int:
        """What the consumers of this process remember as not due."""
        return sum(one.strays for one in self.standers)
