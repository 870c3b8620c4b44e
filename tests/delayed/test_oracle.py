"""Delayed delivery against the oracle: random histories of two processes; spec/delayed 1.

A failure prints the history in its shortest form, and the seed that repeats it. To run more:
PYTHONPATH=src python -m tests.delayed.oracle --from 0 --histories 5000
"""

from __future__ import annotations

import os
import random

import pytest

from tests.delayed.oracle import STEPS, run, shrink
from tests.tiers import graded
from txlog.engine.plan.policies import DelayPolicy

pytestmark = pytest.mark.usefixtures("quick_disk")
BLOCK = 5
FIRST = random.randrange(10**9) if os.environ.get("HYPOTHESIS_SEED_FREE") == "1" else 0


def judge(first: int, count: int) -> None:
    """Run histories; fails with the first that the engine gets wrong."""
    for seed in range(first, first + count):
        steps = list(range(STEPS))
        if run(str(seed), steps) is not None:
            pytest.fail("\n".join(shrink(str(seed), steps).trace))


@pytest.mark.parametrize("block", graded(range(6), 1))
def test_delivered_messages_equal_the_model(block: int) -> None:
    """Never early, never twice, never missed: the whole of section 1, in any history."""
    judge(FIRST + block * BLOCK, BLOCK)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_many_more_histories(block: int) -> None:
    """The same, 2,000 more."""
    judge(FIRST + 1_000 + block * 100, 100)


def test_the_oracle_sees_what_comes_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards against an oracle that agrees with everything."""
    cutoff = DelayPolicy.cutoff
    monkeypatch.setattr(DelayPolicy, "cutoff", lambda self, now_ms: cutoff(self, now_ms) + 10)
    failure = next(filter(None, (run(str(seed), list(range(STEPS))) for seed in range(20))))
    assert "is not due before" in failure.trace[-1]


@pytest.mark.deep
def test_the_oracle_sees_what_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for an index that is a little late."""
    cutoff = DelayPolicy.cutoff
    monkeypatch.setattr(DelayPolicy, "cutoff", lambda self, now_ms: cutoff(self, now_ms) - 1)
    failure = next(filter(None, (run(str(seed), list(range(STEPS))) for seed in range(20))))
    assert "is left" in failure.trace[-1]
