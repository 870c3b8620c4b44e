"""Owns Wakeups: what ends the waits of a store handle before their time.

A call that waits looks, waits here, and looks again. It wakes when something has become durable,
which every flush says in the witness with its last write; when a consumer has left or died, which
closes its lock file; or when another thread of the handle rings. One watch with one descriptor
serves all threads: whoever holds the gate polls it, and the others wait for the gate. It is made by
the first wait. There is never a thread.

What is appended and not flushed matters to few: to who previews open transactions, to who waits for
what others hold in hand. Only while such a call waits are the journal's appends watched, too
(`heed_appends`). They raise `count` as well, since whoever holds the gate must let the others look,
but those who heed no appends rest on.

Where nobody tells of changes (`is_told` is False) a wait ends only when its time is up, so callers
keep it short. A clock that is moved by hand has no part in this: its users look as often as before.

    count              taken before a look; whatever happens after that raises it
    appends            how much of that was nothing but appends
    departures         how often a consumer has left or died
    wait(count, …)     True once the count is another one
    fileno(), drain()  the same for an event loop: the descriptor can be read, then drain
"""

from __future__ import annotations

import time
from threading import RLock
from typing import Any, Final

from txlog.clock import Clock, SystemClock
from txlog.engine.storage.disk.protocol import Disk, Told, Watch
from txlog.engine.storage.journal.file import JOURNAL_DIR, list_journals
from txlog.engine.storage.journal.witness import WITNESS_PATH, Witness, Witnessed
from txlog.engine.store.liveness import CONSUMERS_DIR
from txlog.errors import MissingFile, TxlogError

STALL_SECONDS: Final = 0.25
"""A flush that takes longer may be one whose process has died: then whoever waits looks."""
WAIT_SECONDS_MAX: Final = 3600.0
HEED_SECONDS: Final = 1.0
"""How long appends are told after the last wait for one: the next wait often comes soon."""


class Appends:
    """The journal file whose appends are told, while a call waits that heeds them."""

    __slots__ = ("_disk", "_heeded_at", "_is_heeded", "_lock", "path")

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._lock: Any = RLock()  # its own: whoever polls may have the gate for long
        self._is_heeded = False  # somebody has asked for them since the last one
        self._heeded_at = 0.0
        self.path: str | None = None

    def heed(self, watch: Watch) -> bool:
        """Have the next append told, too; True: they were not before."""
        with self._lock:
            before = self.path
            self._is_heeded, self._heeded_at = True, time.monotonic()
            if before is None or not watch.has(before):
                self._hear(watch)
            return before is None and self.path is not None

    def came(self, watch: Watch | None) -> None:
        """Something was appended: if nobody has asked for a while, tell of the next no more."""
        with self._lock:
            if self._is_heeded:
                self._is_heeded, self._heeded_at = False, time.monotonic()
            elif time.monotonic() - self._heeded_at > HEED_SECONDS and watch is not None:
                watch.drop(str(self.path))
                self.path = None

    def renew(self, watch: Watch) -> None:
        """There may be a newer journal file."""
        with self._lock:
            if self.path is not None:
                self._hear(watch)

    def _hear(self, watch: Watch) -> None:
        names = list_journals(self._disk)
        newest = names[-1].path if names else None
        if self.path not in (None, newest):
            watch.drop(str(self.path))
        self.path = newest if newest is not None and watch.add(newest, "writes") else None


class Wakeups:
    """The waits of one store handle; safe to call from many threads, and inside another call."""

    __slots__ = (
        "_clock",
        "_disk",
        "_gate",
        "_heard",
        "_is_closed",
        "_seen",
        "_stalled",
        "_watch",
        "_witness",
        "appends",
        "count",
        "departures",
        "is_told",
    )

    def __init__(self, disk: Disk, clock: Clock, salt: bytes) -> None:
        self._disk = disk
        self._clock = clock
        self._witness = Witness(disk, salt, is_reader=True)
        self._watch: Watch | None = None
        self._gate: Any = RLock()  # as in store/mutex: freed by what is held, not by what was noted
        self._seen: Witnessed | None = None
        self._stalled = -1  # the record of a flush that took too long
        self._is_closed = False
        self._heard = Appends(disk)
        self.count = self.appends = 0
        self.departures = 0
        self.is_told = False

    def begin(self) -> bool:
        """Make the watch if there is none; True: it is new, so look again before the first wait."""
        if self.is_told or self._is_closed or type(self._clock) is not SystemClock:
            return False
        gate = self._gate
        try:
            gate.acquire()
            if self._watch is None:
                self._watch = self._disk.watch()
            return self._arm()
        finally:
            if gate._is_owned():
                gate.release()

    def _arm(self) -> bool:
        """Watch what there is, as the witness may be a new file; True: all, and not so before."""
        watch, before = self._watch, self.is_told
        if watch is None:
            return False
        self._heard.renew(watch)
        wanted: tuple[tuple[str, Told], ...] = (
            (JOURNAL_DIR, "names"),  # the witness may come back
            (CONSUMERS_DIR, "closings"),
            (WITNESS_PATH, "writes"),
            (".", "moves"),  # the store may be moved away
        )
        self._witness.close()
        self.is_told = all([watch.add(path, what) for path, what in wanted])
        self._seen = self._look()
        return self.is_told and not before

    def heed_appends(self) -> bool:
        """Have the next append told, too; True: they were not, so look again before the wait."""
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
        watch = self._watch
        if watch is None or not self.is_told:
            time.sleep(seconds)
            return self.count != seen
        deadline = time.monotonic() + seconds
        gate = self._gate
        try:
            if gate.acquire(timeout=max(0.0, seconds)):
                while self.count == seen and (left := deadline - time.monotonic()) > 0:
                    self._note(watch.wait(min(left, self._patience())))
        except BaseException:  # an interrupt: what was told may be lost
            self.count += 1
            raise
        finally:
            if gate._is_owned():
                gate.release()
        if self._is_closed:
            self._let_go()
        return self.count != seen

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

    def drain(self) -> bool:
        """Take what the descriptor has to say, without waiting; whether `count` has risen."""
        before, watch, gate = self.count, self._watch, self._gate
        try:
            if watch is not None and gate.acquire(blocking=False):  # else another thread does it
                self._note(watch.take())
        finally:
            if gate._is_owned():
                gate.release()
        return self.count != before

    def _note(self, told: frozenset[str]) -> None:
        before, self._seen = self._seen, self._look()
        watch, heard = self._watch, self._heard.path
        has_appended = heard is not None and heard in told
        if has_appended:
            told -= {heard}
            self.appends += 1
            self.count += 1
            self._heard.came(watch)
        if told - {WITNESS_PATH} or (watch is not None and not watch.has(WITNESS_PATH)):
            if CONSUMERS_DIR in told:
                self.departures += 1
            self._arm()
            self.count += 1
        elif told and not _is_same(before, self._seen):
            self.count += 1
        elif (
            not (told or has_appended) and self._patience() == STALL_SECONDS and before is not None
        ):
            self._stalled = before.seq
            self.count += 1

    def ring(self) -> None:
        """Have every waiting thread of this handle look again."""
        watch = self._watch
        if watch is not None:
            watch.ring()

    def close(self) -> None:
        """End all waits; the descriptors go with the last."""
        self._is_closed = True
        self.count += 1
        self.ring()
        self._let_go()

    def _let_go(self) -> None:
        gate = self._gate
        try:
            if gate.acquire(blocking=False):  # else somebody polls it, and does this then
                if self._watch is not None:
                    self._watch.close()
                self._watch, self.is_told, self._heard.path = None, False, None
                self._witness.close()
        finally:
            if gate._is_owned():
                gate.release()


def _is_same(one: Witnessed | None, other: Witnessed | None) -> bool:
    """Whether a record says no more than the one before, but that a flush has begun."""
    return (
        one is not None
        and other is not None
        and (one.durable_lsn, one.boot, one.journal, one.rewrite, one.poisoned)
        == (other.durable_lsn, other.boot, other.journal, other.rewrite, other.poisoned)
    )
