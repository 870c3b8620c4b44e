"""Counts what this process did with delayed indexes, for its metrics."""

from __future__ import annotations

from collections import Counter

from txlog.engine.store.delay_tally import DelayTally

REST_MS = 10_000  # after a failure nobody tries again on his own for so long

SUCCEEDED, FAILED = "succeeded", "failed"


class BucketOps:
    """counts: by (seal, merge, prune, delete, rebuild, lost or tend; succeeded or failed).

    seconds: spent by kind; rest_until_ms: upkeep failed, it is not tried by itself before
    delivered: what its consumers got
    """

    __slots__ = ("counts", "delivered", "rest_until_ms", "seconds")

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.seconds: dict[str, float] = {}
        self.rest_until_ms = -(1 << 63)
        self.delivered = DelayTally()

    def note(self, kind: str, seconds: float) -> None:
        """One more that was done."""
        self.counts[(kind, SUCCEEDED)] += 1
        self.seconds[kind] = self.seconds.get(kind, 0.0) + seconds

    def fail(self, kind: str, now_ms: int) -> None:
        """One that was given up."""
        self.counts[(kind, FAILED)] += 1
        self.rest_until_ms = now_ms + REST_MS

    def is_resting(self, now_ms: int) -> bool:
        """True for a while after a failure; a clock that went back ends it."""
        return self.rest_until_ms - REST_MS <= now_ms < self.rest_until_ms
