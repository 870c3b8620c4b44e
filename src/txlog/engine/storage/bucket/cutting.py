"""Where the snapshot segments of a bucket end: windows of time, anchored at the data, and a size.

    a segment opens at t0, the time of its first id, and ends
      before the first deliver_at > t0 + step - 1, or when it holds ids_max ids, or at the end

The step is the setting; where time alone would make more than segments_max segments it doubles
until it does not. Times come sorted and in pieces, for a merge never holds all of them. The cost is
a bisection a segment. Source: spec/delayed-delivery 5.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cutting:
    """How segments are cut; ids_max below 1: no bound on the ids of one."""

    step_ms: int
    ids_max: int
    segments_max: int


class StepFinder:
    """Finds the step: feed it all times in order, then ask.

    span_ms: the greatest time less the least, or more; it bounds the steps that are tried
    """

    __slots__ = ("_ends", "_segments", "_segments_max", "_steps")

    def __init__(self, cutting: Cutting, span_ms: int) -> None:
        assert cutting.step_ms > 0 and cutting.segments_max > 0
        self._segments_max = cutting.segments_max
        self._steps = [cutting.step_ms]
        while span_ms // self._steps[-1] >= cutting.segments_max:
            self._steps.append(2 * self._steps[-1])
        self._segments = [0] * len(self._steps)
        self._ends: list[int | None] = [None] * len(self._steps)

    def feed(self, times: Sequence[int]) -> None:
        """Count the segments that each step would make of the next times."""
        for number in range(len(self._steps) - 1):  # the widest fits, whatever the times are
            if self._segments[number] <= self._segments_max:
                self._count(number, times)

    def _count(self, number: int, times: Sequence[int]) -> None:
        step, end, segments = self._steps[number], self._ends[number], self._segments[number]
        at = 0 if end is None else bisect_left(times, end)
        while at < len(times) and segments <= self._segments_max:
            end = times[at] + step
            segments += 1
            at = bisect_left(times, end, at)
        self._ends[number], self._segments[number] = end, segments

    @property
    def step_ms(self) -> int:
        """The least of the steps that makes few enough segments of what was fed."""
        found = zip(self._steps, self._segments, strict=True)
        return next(step for step, segments in found if segments <= self._segments_max)


class Cutter:
    """Cuts sorted times that come in pieces; remembers the open segment between them."""

    __slots__ = ("_end", "_ids", "_ids_max", "_step_ms")

    def __init__(self, step_ms: int, ids_max: int) -> None:
        self._step_ms = step_ms
        self._ids_max = ids_max
        self._ids = 0
        self._end = 0

    def feed(self, times: Sequence[int]) -> list[int]:
        """Where segments end within the next times; the last one stays open unless it is full."""
        ends: list[int] = []
        at = 0
        while at < len(times):
            if not self._ids:
                self._end = times[at] + self._step_ms
            stop = bisect_left(times, self._end, at)
            if self._ids_max > 0:
                stop = min(stop, at + self._ids_max - self._ids)
            self._ids += stop - at
            at = stop
            if at < len(times) or self._ids == self._ids_max:
                ends.append(at)
                self._ids = 0
        return ends
