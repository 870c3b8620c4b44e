"""Waiting: look, rest until something may have changed, look again.

A rest ends when another process commits, when a consumer leaves or dies (store/wakeups), or at the
next moment at which time alone changes the answer: a message becomes due, a lease expires. A wait
may also ask for appends: then an unflushed append ends it, which may be a message of an open
transaction or an acknowledgement. Where the kernel does not report changes, the wait polls, with
growing pauses.

A *thorough* look does everything that a call without a wait does: it also finds frames that were
written and not flushed, and takes the lock for that if need be. After a commit a plain look is
enough. Otherwise a hundred waiting consumers would queue for the lock at each commit to another
topic. Only a thorough look finds an unflushed append. So a wait that asks for appends makes
these looks no more often than a wait that polls.

After a consumer has left or died, the looks are thorough and frequent for a moment, because the
event comes just before the kernel frees the lock. A thread looks like this after every departure,
a task of the asynchronous client only after the departure of a peer (`Departures`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable
from typing import Final, NamedTuple, TypeVar

from txlog.engine.model.ops import Component
from txlog.engine.store.store import Store
from txlog.engine.store.wakeups import EventCounts

T = TypeVar("T")


class Concern(NamedTuple):
    """A flush wakes the wait only if it changed a component in `keys` after `lsn`.

    queue: waits with the same queue wait for the same messages, and each gets what another leaves.
           So a change of a partition or cursor wakes one of them; None: it wakes all
    """

    lsn: int
    keys: frozenset[Component] = frozenset()
    queue: Hashable = None


BY_TIME: Final = Concern(1 << 62)
"""The concern of a rest that no flush ends, only time."""


class Quiet(NamedTuple):
    """How long to rest, and which events end the rest early.

    heeds_appends: appends end it, flushed or not
    concern:       which flushes end it; None: all
    """

    seconds: float
    heeds_appends: bool = False
    concern: Concern | None = None


Rest = Callable[[float], Quiet]
"""Takes the pause that a polling wait would make now (seconds), and returns how to rest."""

POLL_SECONDS_MIN: Final = 0.002
POLL_SECONDS_MAX: Final = 0.05
APART_SECONDS_MIN: Final = 0.002
APART_SECONDS_MAX: Final = 0.05
"""The distance between two thorough looks for appends. It doubles while they follow each other."""
REST_SECONDS_MAX: Final = 60.0
"""Look after this time even without an event: the wall clock may have been set."""


def until_told(pause: float) -> Quiet:
    """The rest of a call whose answer only a commit can change."""
    return Quiet(REST_SECONDS_MAX)


def until_appended(store: Store, pause: float) -> Quiet:
    """The rest of a call whose answer changes with each append, flushed or not.

    The event of an append comes while its writer still holds the lock. If the look could not read
    the appended frame for that reason, the next look comes soon.
    """
    is_behind = not store.disk.read_only and store.has_unflushed(unseen=True)
    seconds = min(pause, APART_SECONDS_MAX) if is_behind else REST_SECONDS_MAX
    return Quiet(seconds, heeds_appends=True)


def least(quiets: Iterable[Quiet]) -> Quiet:
    """One rest instead of several: as long as the shortest, and ended by the events of each."""
    rests = [Quiet(REST_SECONDS_MAX, concern=BY_TIME), *quiets]
    concerns = [quiet.concern for quiet in rests if quiet.concern is not None]
    queues = list[Hashable]()
    for concern in concerns:  # no comprehension: that is a call, at each receive
        if concern.keys:
            queues.append(concern.queue)
    return Quiet(
        min(quiet.seconds for quiet in rests),
        any(quiet.heeds_appends for quiet in rests),
        Concern(
            min(concern.lsn for concern in concerns),
            frozenset().union(*(concern.keys for concern in concerns)),
            queues[0] if len(queues) == 1 else None,
        )
        if len(concerns) == len(rests)
        else None,
    )


class Departures:
    """Decides which departures of consumers (left or died) make a wait look again.

    A thread looks after every departure. For a task of the asynchronous client, client/aio/waits
    finds out which subscriptions lost a consumer, and calls `mourn` on waits of its peers.

    is_asked_for: client/aio/waits does this for the wait, whenever its rest has a concern
    is_concerned: the present rest has a concern
    asked:        how many departures the looks so far have taken into account
    is_bereft:    since the last look a consumer has gone that may be a peer
    """

    __slots__ = ("asked", "is_asked_for", "is_bereft", "is_concerned")

    def __init__(self, count: int, *, is_asked_for: bool) -> None:
        self.asked, self.is_asked_for = count, is_asked_for
        self.is_concerned = self.is_bereft = False

    def mourn(self) -> None:
        """Note that a peer may have died: the next look is thorough, and more follow soon."""
        self.is_bereft = True

    def come(self, now: int) -> bool:
        """True if this look must allow for a new departure; now: departures so far."""
        is_bereft, self.is_bereft = self.is_bereft, False
        if self.is_asked_for and self.is_concerned:
            return is_bereft
        asked, self.asked = self.asked, now
        return is_bereft or now != asked

    def are_forgotten(self, now: int) -> bool:
        """True if the last look left departures to client/aio/waits, which now ignores this wait.

        now: departures before that look
        """
        return self.asked != now and not (self.is_asked_for and self.is_concerned)


class Waiting:
    """The state of one wait. The caller's loop calls `look` before each look, `pause` after it."""

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
        self._heeds = False  # appends end the rest, too
        self._apart = APART_SECONDS_MIN
        # the earliest moment to look for an append; the end of the rest without an event
        self._heed_at = self._wake_at = 0.0
        self._is_settling = False  # a consumer has left: the kernel frees its lock in a moment
        self._pause, self._thorough_at, self._settle_at = POLL_SECONDS_MIN, 0.0, 0.0
        self._is_thorough = True
        self.concern: Concern | None = None  # of the present rest

    @property
    def seen(self) -> EventCounts:
        """The events before the last look; if there are more by now, look again."""
        return self._tally

    def look(self) -> bool:
        """Begin a look; True if it is to be thorough. Events from here on end the next pause."""
        previous, now = self._tally, time.monotonic()
        self._tally = self._store.wakeups.tally.copy()
        if self._heeds and self._tally.appends != previous.appends:
            self._thorough_at = now
        if self.departures.come(self._tally.departures):
            self._is_settling = True
            if now >= self._settle_at:  # once, if many consumers leave at about the same time
                self._settle_at = now + POLL_SECONDS_MAX
                self._pause, self._thorough_at = POLL_SECONDS_MIN, now
            self._thorough_at = min(self._thorough_at, self._settle_at)
        self._is_thorough = now >= self._thorough_at
        return self._is_thorough

    def pause(self, until_s: float | None = None) -> None:
        """Sleep until a look may find something new.

        until_s: on the monotonic clock, the latest moment to return; None: no limit
        raises:  StoreNotFound if the store was removed meanwhile
        """
        seconds = self.rest(until_s)
        while seconds > 0:
            self._store.wakeups.wait(self._tally.count, seconds)
            seconds = self.rest_on()

    def rest_on(self) -> float:
        """After an event or a time-out: the seconds left of this rest; 0: look again now."""
        tally = self._store.wakeups.tally.copy()
        is_over = tally.count == self._tally.count or tally.news != self._tally.news
        if is_over or self.departures.is_bereft:
            return 0.0  # time is up, something other than an append happened, or a peer has gone
        self._tally.count = tally.count
        if self._heeds:
            self._thorough_at = min(self._thorough_at, self._heed_at)
            self._wake_at = min(self._wake_at, self._heed_at)
        return self.left()

    def left(self) -> float:
        """The seconds left of this rest."""
        return max(0.0, self._wake_at - time.monotonic())

    def rest(self, until_s: float | None = None) -> float:
        """Begin a rest; returns the seconds to wait for an event after `seen`, 0: look again now.

        until_s, raises: as `pause`
        """
        store, pause = self._store, self._pause
        wakeups = store.wakeups
        wakeups.begin()
        quiet, self._heeds, concern = self._rest(pause)
        self.departures.is_concerned = concern is not None and not self._heeds
        self.concern = None if self._heeds or self._is_settling else concern
        is_told = wakeups.is_told and (not self._heeds or wakeups.heed_appends())
        if wakeups.tally.beginnings != self._tally.beginnings or self.departures.are_forgotten(
            self._tally.departures
        ):  # watching began after the look, or no one will report a departure before it: look again
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
    """Call `look` until it returns something else than None, and return that; None at the time-out.

    look:       its argument says whether to be thorough; the first and the last look are
    timeout_ms: None: no time-out; 0 or less: one look
    raises:     StoreNotFound if the store was removed meanwhile; the errors of `look`
    """
    if timeout_ms is not None and timeout_ms <= 0:
        return look(True)
    deadline = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
    waiting = Waiting(store, rest)
    while True:
        is_over = deadline is not None and time.monotonic() >= deadline
        answer = look(waiting.look() or is_over)
        if answer is not None or is_over:
            return answer
        waiting.pause(deadline)
