"""Segments of a bucket: windows of time anchored at the data, bounded in ids and in number."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txlog.engine.storage.bucket import Cutter, SegmentLimits, StepFinder

SECONDS = [0, 10_000, 299_000, 300_000, 900_000, 1_200_000]
TIMES = st.lists(st.integers(-3_000, 3_000), max_size=60).map(sorted)
MANY = 1_000


def cut_segments(times: Sequence[int], cutting: SegmentLimits) -> list[int]:
    """The ends of the segments of sorted times; the last is len(times)."""
    if not times:
        return []
    finder = StepFinder(cutting, times[-1] - times[0])
    finder.feed(times)
    ends = Cutter(finder.step_ms, cutting.ids_max).feed(times)
    return ends if ends and ends[-1] == len(times) else [*ends, len(times)]


def pieces(times: list[int], cutting: SegmentLimits) -> list[list[int]]:
    ends = cut_segments(times, cutting)
    return [times[start:end] for start, end in pairwise([0, *ends])]


def plain_cut(times: list[int], step: int, ids_max: int) -> list[list[int]]:
    """The rule of the specification, applied to one time after the other."""
    out: list[list[int]] = []
    for at in times:
        full = out and ids_max > 0 and len(out[-1]) == ids_max
        if not out or full or at > out[-1][0] + step - 1:
            out.append([])
        out[-1].append(at)
    return out


@pytest.mark.parametrize(
    ("ids_max", "expected"),
    [
        (2, [[0, 10], [299, 300], [900], [1200]]),
        (-1, [[0, 10, 299], [300], [900], [1200]]),
    ],
)
def test_example_d(ids_max: int, expected: list[list[int]]) -> None:
    """spec/delayed 13 D."""
    segments = pieces(SECONDS, SegmentLimits(300_000, ids_max, 2_000))
    assert [[at // 1000 for at in segment] for segment in segments] == expected


def test_nothing_has_no_segment() -> None:
    assert cut_segments([], SegmentLimits(1, 1, 1)) == []


@given(times=TIMES, step=st.integers(1, 700), ids_max=st.integers(-1, 9))
def test_segments_follow_the_rule(times: list[int], step: int, ids_max: int) -> None:
    assert pieces(times, SegmentLimits(step, ids_max, MANY)) == plain_cut(times, step, ids_max)


@given(times=TIMES, step=st.integers(1, 50), segments_max=st.integers(1, 12))
def test_step_doubles_until_time_makes_few_enough_segments(
    times: list[int], step: int, segments_max: int
) -> None:
    segments = pieces(times, SegmentLimits(step, -1, segments_max))
    expected_step = step
    while len(plain_cut(times, expected_step, -1)) > segments_max:
        expected_step *= 2
    assert segments == plain_cut(times, expected_step, -1)
    assert len(segments) <= segments_max


def test_ids_do_not_widen_the_step() -> None:
    """Only time alone is counted: a bucket may have more segments than segments_max by size."""
    assert len(pieces([7] * 100, SegmentLimits(1, 10, 3))) == 10


@given(
    times=TIMES,
    step=st.integers(1, 200),
    ids_max=st.integers(-1, 9),
    segments_max=st.integers(1, 12),
    cuts=st.lists(st.integers(0, 60), max_size=8),
)
def test_pieces_cut_as_the_whole(
    times: list[int], step: int, ids_max: int, segments_max: int, cuts: list[int]
) -> None:
    """A merge streams: pieces are cut at the same places as the whole."""
    if not times:
        return
    bounds = [0, *sorted(min(cut, len(times)) for cut in cuts), len(times)]
    parts = [times[start:end] for start, end in pairwise(bounds)]
    finder = StepFinder(SegmentLimits(step, ids_max, segments_max), 6_000)
    for part in parts:
        finder.feed(part)
    cutter, done, ends = Cutter(finder.step_ms, ids_max), 0, []
    for part in parts:
        ends += [done + end for end in cutter.feed(part)]
        done += len(part)
    if not ends or ends[-1] != len(times):
        ends.append(len(times))
    assert ends == cut_segments(times, SegmentLimits(step, ids_max, segments_max))


def test_far_times_do_not_overflow() -> None:
    times = [-(2**63), 0, 2**63 - 1]
    assert len(pieces(times, SegmentLimits(300_000, -1, 2))) <= 2
