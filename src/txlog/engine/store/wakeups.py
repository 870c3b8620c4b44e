"""Owns Wakeups: what ends the waits of a store handle before their time.

A call that waits looks, waits here, and looks again. It wakes when something has become durable,
which every flush says in the witness with its last write; when a consumer has left or died, which
closes its lock file; or when another thread of the handle rings. One watch with one descriptor
serves all threads: whoever holds the gate polls it, and each of the others waits for a bell of its
own, hung up before it tries the gate. Whoever leaves rings the bell of the one that has waited
longest: if it was told of something it leaves as well, and else takes the gate, if that is free. So
all who know less are rung for before one who knows as much. (If they waited for the gate itself,
one that looks and waits again would be there before them, and keep it until more is told.) A signal
handler may wait inside a wait of its thread, and so may `__del__`: the inner one polls if the outer
one did, and has it look when it comes to. If it forks, the wait of the child is over, where nothing
is told and nobody rings. The watch is made by the first wait. There is never a thread.

Of a consumer that has left or died the lock file is told, so its number is known, and what leaves
something behind that is not flushed has written it before it tells. So whoever asks the journal and
the catalog knows whom it concerns (client/aio/waits); threads look for themselves.

What is appended and not flushed matters to few: to who previews open transactions, to who waits for
what others hold in hand. Only while such a call waits are the journal's appends watched, too
(`heed_appends`). They raise `count` as well, since whoever holds the gate must let the others look,
but those who heed no appends rest on.

Where nobody tells of changes (`is_told` is False) a wait ends only when its time is up, so callers
keep it short. A clock that is moved by hand has no part in this: its users look as often as before.

    tally              copied before a look; whatever happens after that raises its count
    wait(count, …)     True once the count is another one
    fileno(), drain()  the same for an event loop: the descriptor can be read, then drain
    pass_on            called by a thread that was told: the loop may find nothing to read any more
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import takewhile
from threading import Lock, RLock, get_ident, main_thread
from typing import Any, Final
from weakref import WeakSet

import msgspec

from txlog.clock import Clock, SystemClock
from txlog.engine.storage.disk.handle import call_in_child
from txlog.engine.storage.disk.protocol import Disk, Told, Watch
from txlog.engine.storage.journal.file import JOURNAL_DIR, list_journals
from txlog.engine.storage.journal.witness import WITNESS_PATH, Witness, Witnessed
from txlog.engine.store.liveness import CONSUMERS_DIR
from txlog.engine.store.mutex import is_called
from txlog.errors import MissingFile, TxlogError

STALL_SECONDS: Final = 0.25
"""A flush that takes longer may be one whose process has died: then whoever waits looks."""
WAIT_SECONDS_MAX: Final = 3600.0
SIGNAL_SECONDS: Final = STALL_SECONDS
"""The main thread waits in turns of this length. Python runs signal handlers there between two of
its steps, and a signal that reaches another thread, or `_thread.interrupt_main`, ends no wait. Not
shorter than STALL_SECONDS, or no turn would notice that a flush stalls.
"""
HEED_SECONDS: Final = 1.0
"""How long appends are told after the last wait for one: the next wait often comes soon."""
GONE_MAX: Final = 1000
"""Of so many that left it is known who they were; with more since a look, everybody looks."""
UNTOLD_SECONDS_MAX: Final = 0.05
"""Where nothing is told a wait is over so soon, whatever its caller had hoped for."""
UNKNOWN: Final = ""
_ANYBODY: Final = frozenset([UNKNOWN])
GOING_SECONDS: Final = 10.0
"""A lock that is held so long after its file has closed belongs to somebody else who lives."""


class Tally:
    """What a handle was told so far.

    count:      all of it
    news:       all but appends
    known:      of the news those of which can be asked whom they concern: they say no more than
                that something became durable, or who has left
    gone:       how often a consumer has left or died, and of the last ones the lock file and when,
                on the monotonic clock; CONSUMERS_DIR: one has given messages back, UNKNOWN: it was
                not told who
    beginnings: how often something began to be told; who looked before that must look again
    """

    __slots__ = ("appends", "beginnings", "count", "gone", "known", "news")

    def __init__(self) -> None:
        self.count = self.news = self.appends = self.known = self.beginnings = 0
        self.gone: tuple[int, tuple[tuple[str, float], ...]] = (0, ())

    def copy(self) -> Tally:
        """As it is now; what is told meanwhile raises the count once more."""
        made = Tally()
        made.count = self.count  # first, as it rises last
        made.known = self.known  # before the news, which rise after it
        made.news, made.appends = self.news, self.appends
        made.gone, made.beginnings = self.gone, self.beginnings
        return made

    @property
    def others(self) -> int:
        """How much was told that may concern anybody."""
        return self.news - self.known

    @property
    def departures(self) -> int:
        """How often a consumer has left or died, or given messages back."""
        return self.gone[0]

    def gone_since(self, departures: int) -> frozenset[str]:
        """Whose lock files have closed since there were so many departures; as of gone."""
        count, last = self.gone
        new = count - departures
        if new <= 0:
            return frozenset()
        return frozenset(path for path, _ in last[-new:]) if new <= len(last) else _ANYBODY

    def going(self) -> frozenset[str]:
        """Lock files that closed lately: it is told a moment before the kernel frees the lock."""
        since = time.monotonic() - GOING_SECONDS
        last = takewhile(lambda one: one[1] >= since, reversed(self.gone[1]))
        return frozenset(path for path, _ in last)

    def depart(self, paths: Iterable[str]) -> None:
        """Lock files have closed; whoever notes it adds it, too."""
        (count, last), now = self.gone, time.monotonic()
        new = [(path, now) for path in paths]
        self.gone = (count + len(new), (*last, *new)[-GONE_MAX:])

    def add(self, *, is_append: bool = False, is_known: bool = False) -> None:
        """Something was told."""
        if is_append:
            self.appends += 1
        else:
            self.known += is_known
            self.news += 1
        self.count += 1  # last: whoever sees it sees what has raised it


class Appends:
    """The journal file whose appends are told, while a call waits that heeds them."""

    __slots__ = ("_heeded_at", "_is_heeded", "_lock", "_tally", "disk", "path")

    def __init__(self, disk: Disk, tally: Tally) -> None:
        self.disk, self._tally = disk, tally
        self._lock: Any = RLock()  # its own: whoever polls may have the gate for long
        self._is_heeded = False  # somebody has asked for them since the last one
        self._heeded_at = 0.0
        self.path: str | None = None

    def heed(self, watch: Watch) -> bool:
        """Have the next append told, too; False if it cannot be."""
        with self._lock:
            self._is_heeded, self._heeded_at = True, time.monotonic()
            if self.path is None or not watch.has(self.path):
                self._hear(watch)
                if self.path is not None:
                    self._tally.beginnings += 1
            return self.path is not None

    def came(self, watch: Watch | None) -> None:
        """Something was appended: if nobody has asked for a while, tell of the next no more."""
        with self._lock:
            if self._is_heeded:
                self._is_heeded, self._heeded_at = False, time.monotonic()
            elif time.monotonic() - self._heeded_at > HEED_SECONDS and watch is not None:
                watch.drop(str(self.path))
                self.path = None

    def renew(self, watch: Watch) -> bool:
        """Whether there was a newer journal file, of which nobody has told yet."""
        with self._lock:
            before = self.path
            if before is not None:
                self._hear(watch)
            return before != self.path

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
        self._gate: Any = RLock()  # as in store/mutex: freed by what is held, not by what was noted
        self._bells: dict[int, Any] = {}  # by thread, in the order in which they came
        self._making: Any = RLock()  # before the gate, which whoever polls keeps for long
        self._seen: Witnessed | None = None
        self._stalled = -1  # the record of a flush that took too long
        self._is_closed = False
        self.tally = Tally()
        self._heard = Appends(disk, self.tally)
        self.is_told = False
        self.pass_on: Callable[[], object] | None = None
        _made.add(self)

    @property
    def count(self) -> int:
        """What `wait` compares; taken before a look."""
        return self.tally.count

    def begin(self) -> None:
        """Make the watch if there is none."""
        if self.is_told or self._is_closed or type(self._clock) is not SystemClock:
            return
        if self._is_inside():  # another thread may be making it, and wait for what this one has
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
        except BaseException:  # an interrupt, which may have kept it from ringing
            self._ring_next()
            raise

    def _arm(self) -> None:
        """Watch what there is, as the witness and the journal may be new files."""
        watch = self._watch
        if watch is None:
            return
        if self._heard.renew(watch):
            self.tally.add(is_append=True)  # those that came before it was watched
        wanted: tuple[tuple[str, Told], ...] = (
            (JOURNAL_DIR, "names"),  # the witness may come back
            (CONSUMERS_DIR, "closings"),
            (WITNESS_PATH, "writes"),
            (".", "moves"),  # the store may be moved away
        )
        self._witness.close()
        is_told = all([watch.add(path, what) for path, what in wanted])
        self._seen = self._look()
        if is_told and not self.is_told:
            self.tally.beginnings += 1
        self.is_told = is_told  # last: whoever sees this sees that it has just begun

    def heed_appends(self) -> bool:
        """Have the next append told, too; False if it cannot be."""
        watch = self._watch
        return self.is_told and watch is not None and self._heard.heed(watch)

    def _look(self) -> Witnessed | None:
        try:
            return self._witness.read()
        except (MissingFile, TxlogError):  # whoever looks again hears of it
            return None

    def wait(self, seen: int, seconds: float) -> bool:
        """Wait until `count` is no longer what it was, at most so many seconds; whether it is not.

        seen: taken before the caller looked
        """
        watch, is_inside = self._watch, self._is_inside()
        if watch is None or not self.is_told:  # maybe only since the caller knew how long
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
            # of a flush that has begun, too: the loop is to look after it
            pass_on = self.pass_on
            if pass_on is not None and (self.count != seen or self.flushing):
                pass_on()
            return self.count != seen
        except BaseException:  # an interrupt: what was told may be lost, and whoever was to ring
            self._cut_short(is_inside)
            raise

    def _wait(self, watch: Watch, seen: int, deadline: float, bell: Any, is_inside: bool) -> None:
        me = get_ident()
        turn = SIGNAL_SECONDS if me == main_thread().ident else WAIT_SECONDS_MAX
        if (outer := self._bells.pop(me, None)) is not None:  # its wait goes on after this one
            with suppress(RuntimeError):
                outer.release()
        if outer is not None or is_inside:  # whom it may have been about to ring
            self._ring_next()
        while self.count == seen and (left := deadline - time.monotonic()) > 0:
            self._bells[me] = bell  # again, if a wait inside this one took it away
            if not (is_inside or self._gate.acquire(blocking=False)):
                bell.acquire(timeout=min(left, turn))
                continue
            while self.count == seen and (left := deadline - time.monotonic()) > 0:
                patience, left = self._patience(), min(left, turn)
                self._note(watch.wait(min(left, patience)), has_waited=patience <= left)

    def _leave(self, is_inside: bool) -> None:
        self._bells.pop(get_ident(), None)
        if is_inside:
            self.ring()  # the outer one polls what this one has read
        else:
            self._free()
        self._ring_next()

    def _cut_short(self, is_inside: bool = False) -> None:
        """After an interrupt: have everybody look, as what was told may be lost."""
        self.tally.add()
        self._leave(is_inside)
        pass_on = self.pass_on
        if pass_on is not None:
            pass_on()

    def _free(self) -> None:
        while self._gate._is_owned():
            self._gate.release()

    def _pass_gate(self) -> None:
        """Free the gate if this thread has it; one of those who wait may want it."""
        if self._gate._is_owned():
            self._free()
            self._ring_next()

    def _is_inside(self) -> bool:
        """True inside a call of this thread that has the gate: in `__del__` or a signal handler."""
        if not self._gate._is_owned():
            return False
        if is_called(_HOLDERS, self, sys._getframe(2)):  # not the one that asks
            return True
        self._free()  # left by two interrupts in a row
        return False

    def _ring_next(self) -> None:
        if self._bells:
            main = main_thread().ident
            for thread in list(self._bells):
                bell = self._bells.get(thread)
                if bell is None:  # it came meanwhile, and rings as well
                    return
                with suppress(RuntimeError):  # it was rung, and its owner is about to come
                    bell.release()
                if thread != main:  # which may be in a signal handler for long
                    return

    def _patience(self) -> float:
        """How long to wait for the next event, in seconds."""
        record = self._seen
        if record is None or record.seq == self._stalled:
            return WAIT_SECONDS_MAX
        return STALL_SECONDS if record.flushing_lsn > record.durable_lsn else WAIT_SECONDS_MAX

    def fileno(self) -> int | None:
        """The descriptor an event loop can watch for reading; None where nobody tells."""
        watch = self._watch
        return watch.fileno() if watch is not None and self.is_told else None

    @property
    def flushing(self) -> int:
        """The number of the record that says that a flush is under way; 0: none is, or it stalls.

        Who finds the same one STALL_SECONDS later says so to `drain`.
        """
        record = self._seen
        return 0 if record is None or self._patience() == WAIT_SECONDS_MAX else record.seq

    def drain(self, *, has_waited: bool = False) -> bool:
        """Take what the descriptor has to say, without waiting; whether `count` has risen.

        has_waited: for the end of a flush, long enough
        """
        before, watch = self.count, self._watch
        if watch is None or self._is_inside():
            return False
        try:
            try:
                if self._gate.acquire(blocking=False):  # else another thread does it
                    self._note(watch.take(), has_waited=has_waited)
            finally:
                self._pass_gate()
        except BaseException:  # an interrupt, as of wait
            self._cut_short()
            raise
        return self.count != before

    def _note(self, told: frozenset[str], *, has_waited: bool) -> None:
        before, self._seen = self._seen, self._look()
        watch, heard = self._watch, self._heard.path
        has_appended = heard is not None and heard in told
        if has_appended:
            told -= {heard}
            self.tally.add(is_append=True)
            self._heard.came(watch)
        left = {one for one in told if one.startswith(CONSUMERS_DIR)}
        if told - left - {WITNESS_PATH} or not self._has_all(watch):
            if left:
                self.tally.depart([UNKNOWN])
            self._arm()
            self.tally.add()
        elif left:
            self.tally.depart(left)
            # what became durable with it is in the journal, where whoever asks looks anyway
            is_known = _is_same(before, self._seen) or _is_further(before, self._seen)
            self.tally.add(is_known=is_known)
        elif told and not _is_same(before, self._seen):
            self.tally.add(is_known=_is_further(before, self._seen))
        elif has_waited and not (told or has_appended) and self.flushing:
            self._stalled = self.flushing
            self.tally.add()

    @staticmethod
    def _has_all(watch: Watch | None) -> bool:
        """Whether all is still watched of which whoever waits has to hear."""
        return watch is None or (watch.has(WITNESS_PATH) and watch.has(CONSUMERS_DIR))

    def ring(self) -> None:
        """Have every waiting thread of this handle look again."""
        watch = self._watch
        if watch is not None:
            watch.ring()

    def close(self) -> None:
        """End all waits; the descriptors go with the last."""
        self._is_closed = True
        self.tally.add()
        self.ring()
        self._let_go()

    def end_in_child(self) -> None:
        """In a forked child: the wait that its thread forked in, from a signal handler, is over."""
        self._is_closed, self.pass_on = True, None  # the loop is the parent's, and so is its pipe
        self.tally.add()
        for bell in self._bells.values():
            with suppress(RuntimeError):
                bell.release()

    def _let_go(self) -> None:
        if self._is_inside():  # the outer call does this when it ends
            return
        try:
            try:
                if self._gate.acquire(blocking=False):  # else somebody polls it, and does this then
                    if self._watch is not None:
                        self._watch.close()
                    self._watch, self.is_told, self._heard.path = None, False, None
                    self._witness.close()
            finally:
                self._pass_gate()
        except BaseException:  # an interrupt, as of wait
            self._cut_short()
            raise


_made: WeakSet[Wakeups] = WeakSet()


def _end_all_in_child() -> None:
    for one in list(_made):
        one.end_in_child()


call_in_child(_end_all_in_child)
_HOLDERS: Final = frozenset(
    one.__code__ for one in (Wakeups._make, Wakeups.wait, Wakeups.drain, Wakeups._let_go)
)


def _is_same(one: Witnessed | None, other: Witnessed | None) -> bool:
    """Whether a record says no more than the one before, but that a flush has begun."""
    return (
        one is not None
        and other is not None
        and (one.durable_lsn, one.boot, one.journal, one.rewrite, one.poisoned)
        == (other.durable_lsn, other.boot, other.journal, other.rewrite, other.poisoned)
    )


def _is_further(one: Witnessed | None, other: Witnessed | None) -> bool:
    """Whether a record says no more than the one before, but that more is durable."""
    if one is None or other is None or other.durable_lsn <= one.durable_lsn:
        return False
    return _is_same(msgspec.structs.replace(one, durable_lsn=other.durable_lsn), other)
