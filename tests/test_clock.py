"""Clocks: the manual one moves only when told to, the system's reads both times."""

from __future__ import annotations

import pytest

from txlog.clock import Clock, Instant, ManualClock, SystemClock


def test_manual_clock_moves_only_when_told() -> None:
    clock = ManualClock(1_000)
    assert clock.now() == clock.now() == Instant(1_000, "boot", 0)
    clock.advance(5)
    assert clock.now() == Instant(1_005, "boot", 5)
    clock.set_wall(10)
    assert clock.now() == Instant(10, "boot", 5)
    clock.reboot("second", 20)
    assert clock.now() == Instant(20, "second", 0)
    with pytest.raises(AssertionError):
        clock.advance(-1)


def test_system_clock_keeps_one_boot_and_never_runs_backwards() -> None:
    clock: Clock = SystemClock()
    first, second = clock.now(), clock.now()
    assert first.boot_id == second.boot_id == SystemClock().now().boot_id
    assert second.boot_ms >= first.boot_ms
    assert first.wall_ms > 1_700_000_000_000
