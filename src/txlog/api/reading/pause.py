"""Waiting: look, rest until something may have changed, look again.

What ends a rest is a commit, a consumer that left or died (store/wakeups), or the next moment at
which time alone changes the answer: a message becomes due, a lease runs out. Where nobody tells of
changes, and where something changes that nobody tells of, it looks again after ever longer pauses.

A *thorough* look is that of a call that does not wait: it also asks what only asking shows, such as
frames that were written and not flushed, under the lock if need be. Right after a commit a look is
enough: a hundred waiting consumers must not queue for the lock at each commit of another topic.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

from txlog.engine.store.store import Store

T = TypeVar("T")
Rest = Callable[[float], float]
"""Given the pause of one who polls, returns how many seconds to rest without news."""

POLL_SECONDS_MIN: Final = 0.002
POLL_SECONDS_MAX: Final = 0.05
REST_SECONDS_MAX: Final = 60.0
"""Even if nothing is told, look after this time: somebody may have set the wall clock."""


def until_told(pause: float) -> float:
    """The rest of a call whose answer only a commit can change."""
    return REST_SECONDS_MAX


def polled(pause: float) -> float:
    """The rest of a call whose answer changes in ways that nobody tells of."""
    return pause


class Waiting:
    """One wait, for loops that look themselves: `look` before each look, `pause` after it."""

    __slots__ = (
        "_departures",
        "_is_settling",
        "_is_thorough",
        "_pause",
        "_rest",
        "_settle_at",
        "_store",
        "_thorough_at",
        "seen",
    )

    def __init__(self, store: Store, rest: Rest = until_told) -> None:
        self._store, self._rest = store, rest
        self.seen = 0
        self._departures = store.wakeups.departures
        self._is_settling = False  # a consumer has gone: its lock is free a moment later
        self._pause, self._thorough_at, self._settle_at = POLL_SECONDS_MIN, 0.0, 0.0
        self._is_thorough = True

    def look(self) -> bool:
        """Whether the look that begins now is to be thorough; what comes later ends the pause."""
        wakeups, now = self._store.wakeups, time.monotonic()
        self.seen = wakeups.count
        if wakeups.departures != self._departures:
            self._departures, self._is_settling = wakeups.departures, True
            if now >= self._settle_at:  # not anew for each of many that go
                self._settle_at = now + POLL_SECONDS_MAX
                self._pause, self._thorough_at = POLL_SECONDS_MIN, now
            self._thorough_at = min(self._thorough_at, self._settle_at)
        self._is_thorough = now >= self._thorough_at
        return self._is_thorough

    def pause(self, until_s: float | None = None) -> None:
        """Wait until it is worth looking again, or until a moment of the monotonic clock.

        raises: StoreNotFound if the store was removed meanwhile
        """
        seconds = self.rest(until_s)
        if seconds > 0:
            self._store.wakeups.wait(self.seen, seconds)

    def rest(self, until_s: float | None = None) -> float:
        """For how many seconds to wait, unless something is told after `seen`; raises as pause."""
        store, pause = self._store, self._pause
        wakeups = store.wakeups
        if wakeups.begin():  # new: what came before it is not told
            self._thorough_at = 0.0
            return 0.0
        quiet = self._rest(pause)
        if not wakeups.is_told:
            store.need_there()
        if self._is_settling or not wakeups.is_told:
            quiet = min(quiet, pause)
        now = time.monotonic()
        if self._is_thorough:
            self._thorough_at = now + quiet
            self._pause = min(POLL_SECONDS_MAX, pause * 2)
            self._is_settling = self._is_settling and self._pause < POLL_SECONDS_MAX
        else:
            self._thorough_at = min(self._thorough_at, now + quiet)
        wake_at = self._thorough_at if until_s is None else min(self._thorough_at, until_s)
        return max(0.0, wake_at - now)


def until(
    store: Store,
    look: Callable[[bool], T | None],
    timeout_ms: int | None,
    rest: Rest = until_told,
) -> T | None:
    """What `look` returns once it is not None; None when time runs out (None: wait for ever).

    look: given whether to be thorough, which the first and the last look are
    raises: StoreNotFound if the store was removed meanwhile; what look raises
    """
    deadline = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
    waiting = Waiting(store, rest)
    while True:
        is_over = deadline is not None and time.monotonic() >= deadline
        found = look(waiting.look() or is_over)
        if found is not None or is_over:
            return found
        waiting.pause(deadline)
