"""Waiting: look, rest until something may have changed, look again.

What ends a rest is a commit, a consumer that left or died (store/wakeups), or the next moment at
which time alone changes the answer: a message becomes due, a lease runs out. For a wait that heeds
them, also what is appended and not flushed: messages of open transactions, acknowledgements. Where
nobody tells of changes it looks again after ever longer pauses.

A *thorough* look is that of a call that does not wait: it also asks what only asking shows, such as
frames that were written and not flushed, under the lock if need be. Right after a commit a look is
enough: a hundred waiting consumers must not queue for the lock at each commit of another topic.
After an append that is heeded only a thorough look finds anything, so these are as far apart as the
pauses of one who polls.

After a consumer has left or died looks are thorough and come again soon for a moment, since its
lock is free a moment after that is told. Who is told of everything does this whoever has left, and
who is told only of what concerns it, when a peer has (`Departures`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, TypeVar

from txlog.engine.model.routes import Component
from txlog.engine.store.store import Store
from txlog.engine.store.wakeups import Tally

T = TypeVar("T")


class Concern(NamedTuple):
    """What became durable after an LSN matters only if it changes one of these components."""

    lsn: int
    keys: frozenset[Component] = frozenset()


BY_TIME: Final = Concern(1 << 62)
"""Of a rest that time alone ends."""


class Quiet(NamedTuple):
    """How many seconds to rest without news, and what is news.

    heeds_appends: what is appended is
    concern:       which flushes are; None: all of them
    """

    seconds: float
    heeds_appends: bool = False
    concern: Concern | None = None


Rest = Callable[[float], Quiet]
"""Given the pause of one who polls, returns how to rest."""

POLL_SECONDS_MIN: Final = 0.002
POLL_SECONDS_MAX: Final = 0.05
APART_SECONDS_MIN: Final = 0.002
APART_SECONDS_MAX: Final = 0.05
"""Looks for what was appended are so far apart, ever more the longer that goes on in vain."""
REST_SECONDS_MAX: Final = 60.0
"""Even if nothing is told, look after this time: somebody may have set the wall clock."""


def until_told(pause: float) -> Quiet:
    """The rest of a call whose answer only a commit can change."""
    return Quiet(REST_SECONDS_MAX)


def until_appended(store: Store, pause: float) -> Quiet:
    """The rest of a call whose answer changes with what is appended, flushed or not.

    An append is told while its writer still has the lock. A look that could not get at it comes
    again soon.
    """
    is_behind = not store.disk.read_only and store.has_unflushed(unseen=True)
    seconds = min(pause, APART_SECONDS_MAX) if is_behind else REST_SECONDS_MAX
    return Quiet(seconds, heeds_appends=True)


def least(quiets: Iterable[Quiet]) -> Quiet:
    """The rest of several at once: the shortest, and of whatever any of them heeds."""
    every = [Quiet(REST_SECONDS_MAX, concern=BY_TIME), *quiets]
    concerns = [one.concern for one in every if one.concern is not None]
    return Quiet(
        min(one.seconds for one in every),
        any(one.heeds_appends for one in every),
        Concern(
            min(one.lsn for one in concerns), frozenset().union(*(one.keys for one in concerns))
        )
        if len(concerns) == len(every)
        else None,
    )


class Departures:
    """Which consumers that leave concern a wait: all, or those of which `mourn` tells.

    is_asked_for: somebody asks whom they concern, and tells, but while nobody knows
    is_concerned: what the last rest said; False: nobody knows
    asked:        of so many it is settled whether they concern this wait
    is_bereft:    one has died since the last look that may concern it
    """

    __slots__ = ("asked", "is_asked_for", "is_bereft", "is_concerned")

    def __init__(self, count: int, *, is_asked_for: bool) -> None:
        self.asked, self.is_asked_for = count, is_asked_for
        self.is_concerned = self.is_bereft = False

    def mourn(self) -> None:
        """One that concerns it may have died: the next look is thorough, and more follow."""
        self.is_bereft = True

    def come(self, now: int) -> bool:
        """At a look, given how many there were: whether one concerns it since the look before."""
        is_bereft, self.is_bereft = self.is_bereft, False
        if self.is_asked_for and self.is_concerned:
            return is_bereft
        asked, self.asked = self.asked, now
        return is_bereft or now != asked

    def are_forgotten(self, now: int) -> bool:
        """After a look that knew of so many: whether of some of them nobody will ask any more."""
        return self.asked != now and not (self.is_asked_for and self.is_concerned)


class Waiting:
    """One wait, for loops that look themselves: `look` before each look, `pause` after it."""

    __slots__ = (
        "_apart",
        "_heed_at",
        "_heeds",
        "_is_settling",
        "_is_thorough",
        "_pause",
        "_rest",
        "_settle_at",
        "_store",
        "_tally",
        "_thorough_at",
        "_wake_at",
        "concern",
        "departures",
    )

    def __init__(
        self, store: Store, rest: Rest = until_told, *, is_asked_for: bool = False
    ) -> None:
        """is_asked_for: as of Departures"""
        self._store, self._rest = store, rest
        self._tally = store.wakeups.tally.copy()  # before the last look
        self.departures = Departures(self._tally.departures, is_asked_for=is_asked_for)
        self._heeds = False  # wants to hear of appends
        self._apart = APART_SECONDS_MIN
        self._heed_at = self._wake_at = 0.0  # when to look for what was appended; anyway
        self._is_settling = False  # a consumer has gone: its lock is free a moment later
        self._pause, self._thorough_at, self._settle_at = POLL_SECONDS_MIN, 0.0, 0.0
        self._is_thorough = True
        self.concern: Concern | None = None  # of the rest that has begun

    @property
    def seen(self) -> Tally:
        """What was told before the last look: when it is more by now, look again."""
        return self._tally

    def look(self) -> bool:
        """Whether the look that begins now is to be thorough; what comes later ends the pause."""
        before, now = self._tally, time.monotonic()
        self._tally = self._store.wakeups.tally.copy()
        if self._heeds and self._tally.appends != before.appends:
            self._thorough_at = now
        if self.departures.come(self._tally.departures):
            self._is_settling = True
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
        while seconds > 0:
            self._store.wakeups.wait(self._tally.count, seconds)
            seconds = self.rest_on()

    def rest_on(self) -> float:
        """How many seconds are left of a rest that was told of something; 0: look again now."""
        tally = self._store.wakeups.tally.copy()
        is_over = tally.count == self._tally.count or tally.news != self._tally.news
        if is_over or self.departures.is_bereft:
            return 0.0  # time is up; or more than appends; or a look knew of a death, and not whose
        self._tally.count = tally.count
        if self._heeds:
            self._thorough_at = min(self._thorough_at, self._heed_at)
            self._wake_at = min(self._wake_at, self._heed_at)
        return max(0.0, self._wake_at - time.monotonic())

    def rest(self, until_s: float | None = None) -> float:
        """For how many seconds to wait, unless something is told after `seen`; raises as pause."""
        store, pause = self._store, self._pause
        wakeups = store.wakeups
        wakeups.begin()
        quiet, self._heeds, concern = self._rest(pause)
        self.departures.is_concerned = concern is not None and not self._heeds
        self.concern = None if self._heeds or self._is_settling else concern
        is_told = wakeups.is_told and (not self._heeds or wakeups.heed_appends())
        if wakeups.tally.beginnings != self._tally.beginnings or self.departures.are_forgotten(
            self._tally.departures
        ):  # nobody has told of what came after the look; or tells whom what came before concerns
            self._thorough_at = 0.0
            return 0.0
        if not wakeups.is_told:
            store.need_there()
        if self._is_settling or not is_told:
            quiet = min(quiet, pause)
        now = time.monotonic()
        if self._is_thorough:
            self._thorough_at = now + quiet
            is_rested = now - self._heed_at > APART_SECONDS_MAX
            self._apart = (
                APART_SECONDS_MIN if is_rested else min(APART_SECONDS_MAX, 2 * self._apart)
            )
            self._heed_at = now + self._apart
            self._pause = min(POLL_SECONDS_MAX, pause * 2)
            self._is_settling = self._is_settling and self._pause < POLL_SECONDS_MAX
        else:
            self._thorough_at = min(self._thorough_at, now + quiet)
        self._wake_at = self._thorough_at if until_s is None else min(self._thorough_at, until_s)
        return max(0.0, self._wake_at - now)


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
    if timeout_ms is not None and timeout_ms <= 0:
        return look(True)
    deadline = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
    waiting = Waiting(store, rest)
    while True:
        is_over = deadline is not None and time.monotonic() >= deadline
        found = look(waiting.look() or is_over)
        if found is not None or is_over:
            return found
        waiting.pause(deadline)
