"""Simulations are repeatable, small seeds are clean, and what was once found stays mended."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pytest

from tests.simulation import scheduler
from tests.simulation.scheduler import Scheduler, Stuck

ROOT = Path(__file__).parents[2]
FOUND = sorted(Path(__file__).with_name("found").glob("*.json"))
DAY = datetime.now(UTC).toordinal()
SEEDS_PER_DAY, SEEDS_IN_CI = 100_000, 40


def simulate(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command; it puts its own locks and clocks in place, so it needs a process."""
    return subprocess.run(
        [sys.executable, "-m", "tests.simulation", *arguments],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )


def test_a_seed_gives_the_same_history_each_time() -> None:
    alone = simulate("--seed", "8", "--digest")
    after = simulate("--seed", "5", "--seeds", "4", "--digest")
    digest = re.search(r"^seed 8: (\w{64})$", alone.stdout, re.MULTILINE)
    assert digest is not None, alone.stderr
    assert digest[0] in after.stdout


def test_tasks_that_wait_in_turns_for_ever_are_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "STEPS_MAX", 1_000)
    tasks = Scheduler(Random(1), switch_rate=0.5)

    def poll() -> None:
        while True:
            tasks.sleep(0.1)

    for name in "ab":
        tasks.spawn(name, "p1", poll)
    with pytest.raises(Stuck, match="does not end"):
        tasks.run()


def test_what_was_once_found_stays_mended() -> None:
    answer = simulate(*(f"--replay={path}" for path in FOUND))
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert f"{len(FOUND)} runs" in answer.stderr


@pytest.mark.deep
def test_seeds_of_today_are_clean() -> None:
    first = DAY * SEEDS_PER_DAY
    answer = simulate("--seed", str(first), "--seeds", str(SEEDS_IN_CI))
    assert answer.returncode == 0, answer.stdout + answer.stderr
