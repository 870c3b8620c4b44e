"""Owns the time: the only module that reads a clock.

An Instant carries wall and boot time, because a deadline is judged by boot time while the boot is
the same, and by the wall clock after a restart (spec/reliability R32). Nothing orders by time.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from datetime import timedelta

_BOOT_ID_PATH = "/proc/sys/kernel/random/boot_id"
# Linux has CLOCK_BOOTTIME, which keeps running in suspend; elsewhere the monotonic clock must do.
_BOOT_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Instant(NamedTuple):
    """One reading of both clocks: wall_ms since 1970 in UTC, boot_ms since boot boot_id."""

    wall_ms: int
    boot_id: str
    boot_ms: int


_made = tuple.__new__  # a NamedTuple's own is a function of Python, and each call asks for the time


class Clock(Protocol):
    """Where the store gets the time; a parameter of the store that is passed no deeper."""

    def now(self) -> Instant:
        """Return the time as read, never clamped."""


class SystemClock:
    """The clocks of this machine."""

    __slots__ = ("_boot_id",)

    def __init__(self) -> None:
        self._boot_id = _read_boot_id()

    def now(self) -> Instant:
        """Return the wall clock and the time since boot."""
        wall_ms = time.time_ns() // 1_000_000
        boot_ms = time.clock_gettime_ns(_BOOT_CLOCK) // 1_000_000
        return _made(Instant, (wall_ms, self._boot_id, boot_ms))


class ManualClock:
    """A clock that moves only when told to, for tests, demonstrations and `--now`."""

    __slots__ = ("_boot_id", "_boot_ms", "_wall_ms")

    def __init__(self, wall_ms: int, boot_id: str = "boot", boot_ms: int = 0) -> None:
        self._wall_ms = wall_ms
        self._boot_id = boot_id
        self._boot_ms = boot_ms

    def now(self) -> Instant:
        """Return the time it was set to."""
        return Instant(self._wall_ms, self._boot_id, self._boot_ms)

    def advance(self, ms: int | timedelta) -> None:
        """Let milliseconds, or a timedelta, pass on both clocks."""
        if not isinstance(ms, int):
            ms = round(ms.total_seconds() * 1000)
        assert ms >= 0, "time only moves forward; set_wall turns the wall clock back"
        self._wall_ms += ms
        self._boot_ms += ms

    def set_wall(self, wall_ms: int) -> None:
        """Set the wall clock alone, as an administrator or NTP does."""
        self._wall_ms = wall_ms

    def reboot(self, boot_id: str, wall_ms: int | None = None) -> None:
        """Begin a new boot: boot time starts at 0 again."""
        self._boot_id = boot_id
        self._boot_ms = 0
        if wall_ms is not None:
            self._wall_ms = wall_ms


def _read_boot_id() -> str:
    try:
        with open(_BOOT_ID_PATH, encoding="ascii") as file:
            return file.read().strip()
    except OSError as error:
        if error.errno is None:
            raise  # from a signal handler: it says nothing about the file
        return ""  # no boot id: each process is its own boot, and deadlines use the wall
