"""Owns Wakeups: the events that end the waits of a store handle early.

A waiting call looks for news, waits here, and looks again. Three events wake it: something became
durable, because each flush ends by writing the witness; a consumer left or died, which closes its
lock file; another thread of this handle rings.

One watch with one descriptor serves all threads. The thread that holds the gate polls it. Each
other thread waits for a bell of its own, which it registers before it tries the gate. A thread that
leaves rings the bell of the thread that has waited longest. If the count has changed for that
thread, it leaves as well; otherwise it takes the gate, if the gate is free. So threads that have
not seen the news are rung before a thread that has. (If they waited for the gate itself, a thread
that looks and waits again would get there first, and keep the gate until the next event.)

A signal handler or `__del__` may wait inside a wait of its own thread. If the outer wait was
polling, the inner one polls, and rings so that the outer one looks when it resumes. If the handler
forks, the child's wait ends: in the child no event arrives and no thread rings. The first wait
makes the watch. Nothing here starts a thread.

When a consumer leaves or dies, the event names its lock file, so its number is known. A consumer
that leaves unflushed frames behind has written them before that event. So a caller can ask the
journal and the catalog which waiters an event concerns (client/aio/waits); threads simply look
again.

Only two kinds of callers care about unflushed appends: readers that preview open transactions, and
consumers waiting for messages that a peer has leased. The journal's appends are watched only while
such a call waits (`heed_appends`). They raise `count` as well, since the thread with the gate must
let the others look; threads that ignore appends go back to sleep.

Where the system cannot watch files (`is_told` is False), a wait ends only when its time is up, so
callers keep it short. With a clock that tests move by hand there is no watch, and callers poll.

    tally              copied before a look; every event after that raises its count
    wait(count, …)     True once the count has changed
    fileno(), drain()  the same for an event loop: once the descriptor is readable, call drain
    pass_on            called by a thread that got an event: the loop may find nothing left to read
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from itertools import takewhile
from threading import Lock, RLock, get_ident, main_thread
from types import CodeType, FrameType
from typing import Any, Final
from weakref import WeakSet

import msgspec

from txlog.clock import Clock, SystemClock
from txlog.engine.storage.disk.posix import call_in_child
from txlog.engine.storage.disk.protocol import Disk, Watch, WatchEvent
from txlog.engine.storage.frame import (
    JOURNAL_DIR,
    WITNESS_PATH,
    Witness,
    WitnessRecord,
    list_journals,
)
from txlog.engine.store.liveness import CONSUMERS_DIR
from txlog.errors import MissingFile, TxlogError

STALL_SECONDS: Final = 0.25
"""If a flush takes longer, its process may have died: then the waiters look again."""
WAIT_SECONDS_MAX: Final = 3600.0
SIGNAL_SECONDS: Final = STALL_SECONDS
"""The main thread waits in turns of this length. Python runs signal handlers there, between two of
its steps. A signal that reaches another thread, or `_thread.interrupt_main`, ends no wait. Not
shorter than STALL_SECONDS, or no turn would notice that a flush stalls.
"""
HEED_SECONDS: Final = 1.0
"""Appends stay watched for so long after the last wait for one: the next often comes soon."""
GONE_MAX: Final = 1000
"""The tally remembers so many closed lock files; after more than that, all waiters look."""
UNTOLD_SECONDS_MAX: Final = 0.05
"""The longest wait where files cannot be watched, even if the caller asked for a longer one."""
UNKNOWN: Final = ""
MAX_LSN: Final = 1 << 63
_ANYBODY: Final = frozenset([UNKNOWN])
GOING_SECONDS: Final = 10.0
"""If a lock is still held so long after its file was closed, another live process holds it."""


class EventCounts:
    """The events that a handle has got so far, as counts that only rise.

    count:      all events; appends: events of the journal; news: all others
    known:      the news for which a caller can find out which waiters they concern: they only say
                that something became durable, or which consumer left
    gone:       how often a consumer has left or died; and for the newest such event, lock file
                and time on the monotonic clock. CONSUMERS_DIR: a consumer gave messages back,
                UNKNOWN: the kernel did not name the file
    beginnings: how often watching something began; a caller that looked before must look again
    """

    __slots__ = ("appends", "beginnings", "count", "gone", "known", "news")

    def __init__(self) -> None:
        self.count = self.news = self.appends = self.known = self.beginnings = 0
        self.gone: tuple[int, tuple[tuple[str, float], ...]] = (0, ())

    def copy(self) -> EventCounts:
        """A copy of the present state; an event during the copying raises the count once more."""
        tally = EventCounts()
        tally.count = self.count  # first, as it rises last
        tally.known = self.known  # before the news, which rise after it
        tally.news, tally.appends = self.news, self.appends
        tally.gone, tally.beginnings = self.gone, self.beginnings
        return tally

    @property
    def others(self) -> int:
        """How many events may concern any waiter."""
        return self.news - self.known

    @property
    def departures(self) -> int:
        """How often a consumer has left or died, or given messages back."""
        return self.gone[0]

    def gone_since(self, departures: int) -> frozenset[str]:
        """The lock files that closed since `departures` had this value; values as in `gone`."""
        count, last = self.gone
        new = count - departures
        if new <= 0:
            return frozenset()
        return frozenset(path for path, _ in last[-new:]) if new <= len(last) else _ANYBODY

    def going(self) -> frozenset[str]:
        """Lock files that closed lately: the event comes just before the kernel frees the lock."""
        since = time.monotonic() - GOING_SECONDS
        last = takewhile(lambda departure: departure[1] >= since, reversed(self.gone[1]))
        return frozenset(path for path, _ in last)

    def depart(self, paths: Iterable[str]) -> None:
        """Note that lock files have closed; the caller then calls `add`."""
        (count, last), now = self.gone, time.monotonic()
        new = [(path, now) for path in paths]
        self.gone = (count + len(new), (*last, *new)[-GONE_MAX:])

    def add(self, *, is_append: bool = False, is_known: bool = False) -> None:
        """Count an event."""
        if is_append:
            self.appends += 1
        else:
            self.known += is_known
            self.news += 1
        self.count += 1  # last: a reader of the new count also sees the fields above


class AppendWatch:
    """The journal file whose appends are watched while a waiting call needs them."""

    __slots__ = ("_heeded_at", "_is_heeded", "_lock", "_tally", "disk", "path")

    def __init__(self, disk: Disk, tally: EventCounts) -> None:
        self.disk, self._tally = disk, tally
        self._lock: Any = RLock()  # not the gate: the polling thread may hold that for long
        self._is_heeded = False  # a caller has asked for them since the last append
        self._heeded_at = 0.0
        self.path: str | None = None

    def heed(self, watch: Watch) -> bool:
        """Make the next append an event, too; False if that is impossible."""
        with self._lock:
            self._is_heeded, self._heeded_at = True, time.monotonic()
            if self.path is None or not watch.has(self.path):
                self._hear(watch)
                if self.path is not None:
                    self._tally.beginnings += 1
            return self.path is not None

    def came(self, watch: Watch | None) -> None:
        """Note an append; stop watching appends if no caller has asked for them for a while."""
        with self._lock:
            if self._is_heeded:
                self._is_heeded, self._heeded_at = False, time.monotonic()
            elif time.monotonic() - self._heeded_at > HEED_SECONDS and watch is not None:
                watch.drop(str(self.path))
                self.path = None

    def renew(self, watch: Watch) -> bool:
        """True if a newer journal file has appeared, or the file is no longer watched."""
        with self._lock:
            old_path = self.path
            if old_path is not None:
                self._hear(watch)
            return old_path != self.path

    def _hear(self, watch: Watch) -> None:
        names = list_journals(self.disk)
        newest = names[-1].path if names else None
        if self.path not in (None, newest):
            watch.drop(str(self.path))
        self.path = newest if newest is not None and watch.add(newest, "writes") else None


class Wakeups:
    """The waits of one store handle; safe to call from many threads, and inside another call."""

    __slots__ = (
        "__weakref__",
        "_bells",
        "_clock",
        "_gate",
        "_heard",
        "_is_closed",
        "_making",
        "_seen",
        "_stalled",
        "_watch",
        "_witness",
        "is_told",
        "pass_on",
        "tally",
    )

    def __init__(self, disk: Disk, clock: Clock, salt: bytes) -> None:
        self._clock = clock
        self._witness = Witness(disk, salt, is_reader=True)
        self._watch: Watch | None = None
        self._gate: Any = RLock()  # as in Mutex: freed if held, whatever a flag says
        self._bells: dict[int, Any] = {}  # by thread, in the order in which they came
        self._making: Any = (
            RLock()
        )  # taken before the gate, which the polling thread holds for long
        self._seen: WitnessRecord | None = None
        self._stalled = -1  # the record of a flush that took too long
        self._is_closed = False
        self.tally = EventCounts()
        self._heard = AppendWatch(disk, self.tally)
        self.is_told = False
        self.pass_on: Callable[[], object] | None = None
        _made.add(self)

    @property
    def count(self) -> int:
        """The number that `wait` compares; the caller takes it before it looks."""
        return self.tally.count

    def begin(self) -> None:
        """Make the watch if there is none."""
        if self.is_told or self._is_closed or type(self._clock) is not SystemClock:
            return
        if (
            self._is_inside()
        ):  # another thread may be making it, and wait for a lock that this thread holds
            return
        with self._making:
            if not self.is_told:  # else another thread was first, and may poll for hours
                self._make()

    def _make(self) -> None:
        try:
            try:
                with self._gate:
                    if self._watch is None:
                        self._watch = self._heard.disk.watch()
                    self._arm()
            finally:
                self._ring_next()
        except BaseException:  # an interrupt, which may have prevented the ring
            self._ring_next()
            raise

    def _arm(self) -> None:
        """Watch all files again, as the witness and the journal may be new files."""
        watch = self._watch
        if watch is None:
            return
        if self._heard.renew(watch):
            self.tally.add(is_append=True)  # for the appends before it was watched
        watches: tuple[tuple[str, WatchEvent], ...] = (
            (JOURNAL_DIR, "names"),  # the witness may come back
            (CONSUMERS_DIR, "closings"),
            (WITNESS_PATH, "writes"),
            (".", "moves"),  # the store may be moved away
        )
        self._witness.close()
        is_told = all([watch.add(path, event) for path, event in watches])
        self._seen = self._look()
        if is_told and not self.is_told:
            self.tally.beginnings += 1
        self.is_told = is_told  # last: a thread that sees it also sees the new beginning

    def heed_appends(self) -> bool:
        """Make the next append raise `count`, too; False if appends cannot be watched."""
        watch = self._watch
        return self.is_told and watch is not None and self._heard.heed(watch)

    def _look(self) -> WitnessRecord | None:
        try:
            return self._witness.read()
        except (MissingFile, TxlogError):  # the next look of a caller raises it
            return None

    def wait(self, seen: int, seconds: float) -> bool:
        """Wait until `count` differs from `seen`, or time is up; returns whether it differs.

        seen: the count that the caller took before it looked
        """
        watch, is_inside = self._watch, self._is_inside()
        if (
            watch is None or not self.is_told
        ):  # watching may have ended after the caller chose the time
            time.sleep(min(seconds, UNTOLD_SECONDS_MAX))
            return self.count != seen
        bell: Any = Lock()
        bell.acquire()
        try:
            try:
                self._wait(watch, seen, time.monotonic() + seconds, bell, is_inside)
            finally:
                self._leave(is_inside)
            if self._is_closed:
                self._let_go()
            # also when a flush has begun: the loop must watch for its end
            pass_on = self.pass_on
            if pass_on is not None and (self.count != seen or self.flushing):
                pass_on()
            return self.count != seen
        except BaseException:  # an interrupt: an event, or a thread's ring, may be lost
            self._cut_short(is_inside)
            raise

    def _wait(self, watch: Watch, seen: int, deadline: float, bell: Any, is_inside: bool) -> None:
        me = get_ident()
        turn = SIGNAL_SECONDS if me == main_thread().ident else WAIT_SECONDS_MAX
        if (outer := self._bells.pop(me, None)) is not None:  # the outer wait goes on later
            with suppress(RuntimeError):
                outer.release()
        if outer is not None or is_inside:  # the outer wait may have been about to ring
            self._ring_next()
        while self.count == seen and (seconds_left := deadline - time.monotonic()) > 0:
            self._bells[me] = bell  # register again: an inner wait may have removed it
            if not (is_inside or self._gate.acquire(blocking=False)):
                bell.acquire(timeout=min(seconds_left, turn))
                continue
            while self.count == seen and (seconds_left := deadline - time.monotonic()) > 0:
                patience, seconds_left = self._patience(), min(seconds_left, turn)
                self._note(
                    watch.wait(min(seconds_left, patience)), has_waited=patience <= seconds_left
                )

    def _leave(self, is_inside: bool) -> None:
        self._bells.pop(get_ident(), None)
        if is_inside:
            self.ring()  # the events are read already; the outer wait must look again
        else:
            self._free()
        self._ring_next()

    def _cut_short(self, is_inside: bool = False) -> None:
        """After an interrupt: make all waiters look, as events may be lost."""
        self.tally.add()
        self._leave(is_inside)
        pass_on = self.pass_on
        if pass_on is not None:
            pass_on()

    def _free(self) -> None:
        while self._gate._is_owned():
            self._gate.release()

    def _pass_gate(self) -> None:
        """Free the gate if this thread has it, and ring a thread that may want it."""
        if self._gate._is_owned():
            self._free()
            self._ring_next()

    def _is_inside(self) -> bool:
        """True inside a call of this thread that has the gate: in `__del__` or a signal handler."""
        if not self._gate._is_owned():
            return False
        if is_called(_HOLDERS, self, sys._getframe(2)):  # not the caller itself
            return True
        self._free()  # left by two interrupts in a row
        return False

    def _ring_next(self) -> None:
        if self._bells:
            main = main_thread().ident
            for thread in list(self._bells):
                bell = self._bells.get(thread)
                if bell is None:  # that thread has left meanwhile, and rings as well
                    return
                with suppress(RuntimeError):  # already rung, and its thread is about to run
                    bell.release()
                if thread != main:  # the main thread may be busy in a signal handler
                    return

    def _patience(self) -> float:
        """How long to wait for the next event, in seconds."""
        record = self._seen
        if record is None or record.seq == self._stalled:
            return WAIT_SECONDS_MAX
        return STALL_SECONDS if record.flushing_lsn > record.durable_lsn else WAIT_SECONDS_MAX

    def fileno(self) -> int | None:
        """The descriptor for an event loop to watch; None where files cannot be watched."""
        watch = self._watch
        return watch.fileno() if watch is not None and self.is_told else None

    @property
    def durable_lsn(self) -> int:
        """The LSN up to which frames were durable at the last event; if unknown, beyond all."""
        record = self._seen
        return MAX_LSN if record is None else record.durable_lsn

    @property
    def flushing(self) -> int:
        """The number of the record that marks a flush under way; 0: there is none, or it stalls.

        A loop that still finds the same number STALL_SECONDS later passes `has_waited` to `drain`.
        """
        record = self._seen
        return 0 if record is None or self._patience() == WAIT_SECONDS_MAX else record.seq

    def drain(self, *, has_waited: bool = False) -> bool:
        """Read the events of the descriptor without waiting; returns whether `count` has risen.

        has_waited: the caller has waited long enough for the end of a flush
        """
        old_count, watch = self.count, self._watch
        if watch is None or self._is_inside():
            return False
        try:
            try:
                if self._gate.acquire(blocking=False):  # else another thread does it
                    self._note(watch.take(), has_waited=has_waited)
            finally:
                self._pass_gate()
        except BaseException:  # an interrupt, as in wait
            self._cut_short()
            raise
        return self.count != old_count

    def _note(self, paths: frozenset[str], *, has_waited: bool) -> None:
        old_record, self._seen = self._seen, self._look()
        watch, heard = self._watch, self._heard.path
        has_appended = heard is not None and heard in paths
        if has_appended:
            paths -= {heard}
            self.tally.add(is_append=True)
            self._heard.came(watch)
        closed = {path for path in paths if path.startswith(CONSUMERS_DIR)}
        if paths - closed - {WITNESS_PATH} or not self._has_all(watch):
            if closed:
                self.tally.depart([UNKNOWN])
            self._arm()
            self.tally.add()
        elif closed:
            self.tally.depart(closed)
            # frames that became durable with it are in the journal, where callers look anyway
            is_known = _is_same(old_record, self._seen) or _is_further(old_record, self._seen)
            self.tally.add(is_known=is_known)
        elif (paths or old_record != self._seen) and not _is_same(old_record, self._seen):
            # without a path: the witness changed after these events, and its event brings no news
            self.tally.add(is_known=_is_further(old_record, self._seen))
        elif has_waited and not (paths or has_appended) and self.flushing:
            self._stalled = self.flushing
            self.tally.add()

    @staticmethod
    def _has_all(watch: Watch | None) -> bool:
        """Whether the files that every waiter depends on are still watched."""
        return watch is None or (watch.has(WITNESS_PATH) and watch.has(CONSUMERS_DIR))

    def ring(self) -> None:
        """Make every waiting thread of this handle look again."""
        watch = self._watch
        if watch is not None:
            watch.ring()

    def close(self) -> None:
        """End all waits; the last wait closes the descriptors."""
        self._is_closed = True
        self.tally.add()
        self.ring()
        self._let_go()

    def end_in_child(self) -> None:
        """In a forked child: end the wait in which its thread forked, from a signal handler."""
        self._is_closed, self.pass_on = True, None  # the loop and its pipe belong to the parent
        self.tally.add()
        for bell in self._bells.values():
            with suppress(RuntimeError):
                bell.release()

    def _let_go(self) -> None:
        if self._is_inside():  # the outer call does this when it ends
            return
        try:
            try:
                if self._gate.acquire(
                    blocking=False
                ):  # else the polling thread does this when it ends
                    if self._watch is not None:
                        self._watch.close()
                    self._watch, self.is_told, self._heard.path = None, False, None
                    self._witness.close()
            finally:
                self._pass_gate()
        except BaseException:  # an interrupt, as in wait
            self._cut_short()
            raise


_made: WeakSet[Wakeups] = WeakSet()


def _end_all_in_child() -> None:
    for wakeups in list(_made):
        wakeups.end_in_child()


call_in_child(_end_all_in_child)
_HOLDERS: Final = frozenset(
    method.__code__ for method in (Wakeups._make, Wakeups.wait, Wakeups.drain, Wakeups._let_go)
)


def _is_same(old: WitnessRecord | None, new: WitnessRecord | None) -> bool:
    """True if the new record differs from the old one at most in the mark of a flush."""
    return (
        old is not None
        and new is not None
        and (old.durable_lsn, old.boot, old.journal, old.rewrite, old.poisoned)
        == (new.durable_lsn, new.boot, new.journal, new.rewrite, new.poisoned)
    )


def _is_further(old: WitnessRecord | None, new: WitnessRecord | None) -> bool:
    """True if, apart from the mark of a flush, the records differ in a higher durable LSN only."""
    if old is None or new is None or new.durable_lsn <= old.durable_lsn:
        return False
    return _is_same(msgspec.structs.replace(old, durable_lsn=new.durable_lsn), new)


def is_called(functions: Collection[CodeType], of: object, frame: FrameType | None) -> bool:
    """True if a frame or one of its callers runs such a method of this object."""
    while frame is not None:
        if frame.f_code in functions and frame.f_locals.get("self") is of:
            return True
        frame = frame.f_back
    return False
