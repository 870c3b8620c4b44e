"""Owns the counters of one process: delivered delayed messages, and work on their index."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from typing import Final, Protocol
from weakref import WeakSet

import pyarrow as pa

from txlog.base.startup import compute as pc

LATENESS_BOUNDS_MS: Final = (1, 10, 100, 1_000, 10_000, 60_000, 600_000, 3_600_000)
REST_MS = 10_000  # after a failure, no automatic retry for this long

SUCCEEDED, FAILED = "succeeded", "failed"


class DelayedReader(Protocol):
    """A consumer's reader, as far as the counters need it."""

    @property
    def strays(self) -> int:
        """How many messages it remembers as not due, because the index lacks them."""


class DeliveryCounters:
    """Counters of one process; they only rise.

    popped:   messages delivered whose time came after they became visible
    lateness: counts of popped messages by how long they were overdue: by bound, and beyond the last
    rewinds:  a consumer began again at mark-delete, as the index may have lost something
    standers: the readers of this process's consumers
    """

    __slots__ = ("lateness", "lateness_ms", "popped", "rewinds", "standers")

    def __init__(self) -> None:
        self.popped = 0
        self.lateness = [0] * (len(LATENESS_BOUNDS_MS) + 1)
        self.lateness_ms = 0
        self.rewinds = 0
        self.standers: WeakSet[DelayedReader] = WeakSet()

    def note(self, received: pa.Table, now_ms: int) -> None:
        """Count delivered rows of RECEIVED; a message released before its time is not late."""
        at = received["deliver_at"]
        if at.null_count == len(at):
            return
        waited = received.filter(pc.greater(at, received["visible_time"]))
        self.popped += waited.num_rows
        late = pc.subtract(pa.scalar(now_ms, pa.int64()), waited["deliver_at"].cast(pa.int64()))
        overdue = late.filter(pc.greater_equal(late, 0))
        if not len(overdue):
            return
        self.lateness_ms += int(pc.sum(overdue).as_py())
        for row in pc.value_counts(overdue).to_pylist():
            self.lateness[bisect_left(LATENESS_BOUNDS_MS, row["values"])] += row["counts"]

    @property
    def strays(self) -> int:
        """How many messages the consumers of this process remember as not due."""
        return sum(stander.strays for stander in self.standers)


class BucketCounters:
    """Counts and times of this process's work on buckets, and the pause after a failure.

    counts: by (seal, merge, prune, delete, rebuild, lost or tend; succeeded or failed)
    seconds: spent, by kind; rest_until_ms: no automatic retry before; delivered: its consumers'
    """

    __slots__ = ("counts", "delivered", "rest_until_ms", "seconds")

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.seconds: dict[str, float] = {}
        self.rest_until_ms = -(1 << 63)
        self.delivered = DeliveryCounters()

    def note(self, kind: str, seconds: float) -> None:
        """Count an operation that succeeded."""
        self.counts[(kind, SUCCEEDED)] += 1
        self.seconds[kind] = self.seconds.get(kind, 0.0) + seconds

    def fail(self, kind: str, now_ms: int) -> None:
        """Count an operation that failed, and begin the pause after it."""
        self.counts[(kind, FAILED)] += 1
        self.rest_until_ms = now_ms + REST_MS

    def is_resting(self, now_ms: int) -> bool:
        """True for a while after a failure; a clock that went back ends it."""
        return self.rest_until_ms - REST_MS <= now_ms < self.rest_until_ms
