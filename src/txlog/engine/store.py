"""Owns Store: an open store, and the only way to change one.

It has the write path (Law 3: decide, encode, append, apply, flush, witness, answer), and group
commit among threads; how it follows the journal is in follower. Decisions live in flow/,
maintenance in upkeep/.

    write(decide)   mutex → flock → follow → sweep → decide → append → apply → flush → release
    dry run         the same decisions over a view of its own; their frames go nowhere
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeVar

from txlog.clock import Clock, Instant
from txlog.engine import liveness
from txlog.engine.appender import Appender
from txlog.engine.bucket_ops import BucketOps
from txlog.engine.call import NOTHING, Call, Decide
from txlog.engine.flow import resolve
from txlog.engine.flow.draft import Decision, Draft
from txlog.engine.flow.sweep import Swept, Uses
from txlog.engine.follower import Follower
from txlog.engine.identity import Identity
from txlog.engine.storage.disk_protocol import Disk, LockFile
from txlog.engine.storage.journal import JournalMoved
from txlog.engine.sweeper import Sweeper, is_sweep_due
from txlog.engine.view import View
from txlog.errors import OutcomeUnknown, ReadOnlyStore, TxlogError

T = TypeVar("T")
MAINTENANCE_PATH = "maintenance.lock"


class Upkeep(Protocol):
    """What looks after a store that its own calls make long."""

    def look(self, store: Store) -> None:
        """Behind a write, outside of every lock, that found the journal long; raises nothing."""

    def finish(self) -> None:
        """Wait until no maintenance of this process is under way that nobody asked for."""


class Store(Follower):
    """An open store; safe to call from many threads of one process."""

    __slots__ = (
        "_appender", "_lock", "_queue", "_sweeper", "bucket_ops", "has_changed",
        "lock_timeout_asked_ms", "upkeep",
    )  # fmt: skip

    def __init__(
        self, disk: Disk, clock: Clock, identity: Identity, *, lock_timeout_ms: int | None,
        durability: str | None, dry_run: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(disk, clock, identity, durability=durability, dry_run=dry_run)
        self.lock_timeout_asked_ms = lock_timeout_ms  # None: the setting
        self.bucket_ops = BucketOps()
        self.has_changed = False  # by a call; a sweep that a look began is none
        self.upkeep: Upkeep | None = None
        self._queue: deque[Call] = deque()
        self._lock: LockFile | None = None
        self._sweeper = Sweeper()
        self._appender = Appender(disk, self.note, dry_run=dry_run)

    @property
    def lock_timeout_ms(self) -> int:
        """How long to wait for a lock: what was asked for, else what the store says."""
        asked = self.lock_timeout_asked_ms
        return self.settings.lock_timeout_ms if asked is None else asked

    def close(self) -> None:
        """Close every descriptor; what was answered stands."""
        with self._mutex:
            if not self._closed:
                super().close()
                if self._lock is not None:
                    self._lock.close()

    def release_reserve(self) -> bool:
        """Give the blocks of the reserve back to a full disk; False when it has none (R30)."""
        return self._appender.release_reserve()

    @property
    def has_written(self) -> bool:
        """True when this process has appended anything."""
        return self._appender.has_written

    # --- writing -----------------------------------------------------------------------------

    def write(
        self, decide: Decide, coordinators: tuple[int, ...] = (), uses: Uses = NOTHING
    ) -> object:
        """Run a decision under the write lock and make its outcome what it must be.

        coordinators: those the call names; they are loaded, so that the sweep sees them
        uses:         what else the call works with; the sweep ends what is overdue there
        returns: the decision's answer, after the flush when the decision must be durable
        raises:  the decision's error; ReadOnlyStore, StoreLocked, StoreFull, DiskFailed: nothing
                 was done; OutcomeUnknown; Corruption
        """
        return self._submit(Call(decide, coordinators, uses))

    def expire(self) -> Swept:
        """Sweep every coordinator without a bound; returns what was done, durable."""
        swept = Swept()

        def decide(view: View, now: Instant) -> Decision:
            nonlocal swept
            swept = self._sweeper.swept
            return Decision([], None, True)

        self._submit(Call(decide, thorough=True))
        return swept

    def _submit(self, call: Call) -> object:
        self.submit([call])
        if call.error is not None:
            raise call.error
        return call.answer

    def submit(self, calls: list[Call]) -> None:
        """Run decisions one behind the other, with one lock and one flush for all of them.

        Each sees what those before it did; a refused one fails alone, and says so in its `error`.
        """
        if self.dry_run:
            for call in calls:
                try:
                    self._rehearse(call)
                except TxlogError as error:
                    call.error = error
            return
        self.need_writable()
        self.has_changed = True
        self._queue.extend(calls)  # in one step: no other thread takes a part of them
        with self._mutex:
            if not calls[-1].done:
                self._lead()
        if self.is_long and self.upkeep is not None:
            self.upkeep.look(self)

    def _rehearse(self, call: Call) -> None:
        """Decide as write does, without lock and flush; the view alone takes the frames."""
        with self._mutex:
            self._refresh()
            view, now = self._view, self.clock.now()
            if view.journal.lossy:
                view.journal.lossy = False
                draft = Draft(view, self.settings, now.wall_ms)
                resolve.recover_lossy(view, draft)
                if draft.ops:
                    self._append(draft.decision(), now)
            for number in call.coordinators:
                if number < self.settings.coordinators:
                    view.coordinator(number)
            self._sweep(view, now, [call])
            decision = call.decide(view, now)
            if decision.ops:
                self._append(decision, now)
            call.conclude(decision)

    def need_writable(self) -> None:
        """Raise AlreadyClosed, or ReadOnlyStore where nothing may be changed."""
        self._need_open()
        if self.disk.read_only:
            raise ReadOnlyStore(
                f"{self.disk.description} is open for reading only", path=self.disk.description
            )

    def flush(self) -> None:
        """Make everything written so far durable and visible."""
        self.write(lambda view, now: Decision([], None, True))

    def _lead(self) -> None:
        """Group commit (R12): one lock, every queued decision, one flush, all answers."""
        calls: list[Call] = []
        while self._queue:
            calls.append(self._queue.popleft())
        try:
            self._acquire()
        except BaseException as error:  # an interrupt too: nobody else would run these calls
            for call in calls:
                call.error, call.done = error, True
            if not isinstance(error, Exception):
                raise
            return
        try:
            self._run(calls)
        finally:
            for call in calls:
                call.done = True
            self._release()

    def _acquire(self) -> None:
        self._need_open()
        if self._lock is None:
            self._lock = self.disk.lock_file(liveness.WRITE_LOCK)
        self._lock.acquire(self.lock_timeout_ms)

    def _release(self) -> None:
        """Free the lock; what was decided is decided, so a failure must not become its answer."""
        assert self._lock is not None
        try:
            self._lock.release()
        except TxlogError as error:
            self.reports.append(f"the write lock was freed by closing it: {error}")
            self._lock.close()
            self._lock = None

    def _run(self, calls: list[Call], *, sync: bool = False) -> None:
        try:
            now = self.clock.now()
            sync = self._follow(calls, now) or sync
            at = 0
            while at < len(calls):
                last = at + 1
                while last < len(calls) and calls[last].joins:
                    last += 1
                run = self._run_one if last == at + 1 else self._run_joined
                sync = run(calls[at:last], now) or sync
                at = last
            if sync:
                self._view.journal.flush(sync=self.durability == "sync")
        except BaseException as error:
            # R28: whatever happened, these folds may be behind the journal or beside the disk
            for call in calls:
                call.error = call.error or error
            self._discard(error)
            if not isinstance(error, Exception):
                raise

    def _run_one(self, calls: list[Call], now: Instant) -> bool:
        """Run a call with a frame of its own; returns whether it must be durable."""
        call = calls[0]
        try:
            decision = call.decide(self._view, now)
            if decision.ops:
                self._append(decision, now)
        except (OutcomeUnknown, JournalMoved):
            raise
        except Exception as error:  # a refused decision fails alone (R12)
            call.error = error
            return False
        call.conclude(decision)
        return decision.sync

    def _run_joined(self, calls: list[Call], now: Instant) -> bool:
        """Run calls that share a frame; it is written when the last has decided."""
        sync, written = False, 0
        try:
            for at, call in enumerate(calls):
                try:
                    decision = call.decide(self._view, now)
                    rows = self._appender.encoded(self.settings, decision)
                except (OutcomeUnknown, JournalMoved):
                    raise
                except Exception as error:  # a refused decision fails alone (R12)
                    call.error = error
                    continue
                if not self._appender.fits(rows):
                    self._appender.close(self._view)
                    written = at
                self._appender.join(self._view, decision, rows, now)
                call.conclude(decision)
                sync = sync or decision.sync
            self._appender.close(self._view)
        except OutcomeUnknown:
            raise
        except TxlogError as error:  # the disk is full: the folds are ahead of the journal
            for call in calls[written:]:
                call.error = call.error or error
            self._appender.forget()
            self._reload()
        return sync

    def _discard(self, error: BaseException) -> None:
        self._appender.forget()
        try:
            self._reload()
        except TxlogError as second:
            self._closed = True
            self.reports.append(f"the store could not be read again after {error}: {second}")

    def _follow(self, calls: list[Call], now: Instant) -> bool:
        """Catch up under the lock; recovery and the sweep ride in frames before the calls'."""
        if self._is_void:
            self._reload()
        view = self._view
        try:
            frames = view.journal.catch_up()
        except JournalMoved:
            self._reload()
            view = self._view
            frames = view.journal.catch_up()
        if frames:
            view.take(frames)
        view.adopt_manifest()
        if view.catalog.settings_changes != self._settings_changes:
            self._adopt_settings()
        if view.journal.reports:
            self.reports.extend(view.journal.reports)
            view.journal.reports.clear()
        if view.journal.lossy:
            self._recover(now)
        for call in calls:
            for number in call.coordinators:
                if number < self.settings.coordinators:
                    view.coordinator(number)
        return self._sweep(view, now, calls)

    def _sweep(self, view: View, now: Instant, calls: list[Call]) -> bool:
        """Let the sweep ride in a frame of its own; cheap while nothing can be due."""
        uses: list[Uses] = []
        thorough = False
        for call in calls:
            if call.uses is not NOTHING:
                uses.append(call.uses)
            thorough = thorough or call.thorough
        draft = self._sweeper.draft(view, self.settings, now, uses, thorough=thorough)
        if draft is None:
            return False
        if draft.ops:
            self._append(draft.decision(), now)
        if not view.no_deadline_before(now) and not self._sweeper.swept.left:
            view.note_deadlines(now)
        return draft.sync

    def _recover(self, now: Instant) -> None:
        """R9: after a lossy recovery nothing stays OPEN; durable before anything else."""
        draft = Draft(self._view, self.settings, now.wall_ms)
        aborted = resolve.recover_lossy(self._view, draft)
        if draft.ops:
            self._append(draft.decision(sync=True), now)
        self._view.journal.flush()
        self._view.journal.confirm_boot()
        self._view.journal.lossy = False
        if aborted:
            self.reports.append(
                f"recovery aborted {aborted} open transactions: frames may have been lost"
            )

    def _append(self, decision: Decision, now: Instant) -> None:
        self._appender.append(self._view, self.settings, decision, now)
        if self._view.catalog.settings_changes != self._settings_changes:
            self._adopt_settings()

    def settle(self) -> None:
        """Make what is written but not flushed visible, if the lock is free at once (R22).

        A writer that died between its append and its flush left such frames; a reader that went by
        the witness alone would miss them until somebody writes.
        """
        if not (self.disk.read_only or self._closed) and self.has_unflushed():
            self._run_if_free([])

    def sweep_if_due(self, uses: Uses | None = None) -> None:
        """Before a reading call: sweep what it uses (None: all), if the lock is free at once.

        A process that may not write, or not now, shows what is overdue as it is recorded.
        """
        now = self.clock.now()
        if not self.disk.read_only and self.read(
            lambda view: is_sweep_due(view, self.settings, now, uses)
        ):
            decide: Decide = lambda view, now: Decision([])  # noqa: E731
            self._run_if_free([Call(decide, uses=uses or NOTHING, thorough=uses is None)])

    def _run_if_free(self, calls: list[Call]) -> None:
        with self._mutex:
            if self._lock is None:
                self._lock = self.disk.lock_file(liveness.WRITE_LOCK)
            if not self._lock.try_acquire():
                return
            try:
                self._run(calls, sync=True)
            finally:
                self._lock.release()

    # --- for maintenance ---------------------------------------------------------------------

    def locked(self, act: Callable[[View], T]) -> T:
        """Run an act of maintenance on the journal under the write lock, after following."""
        with self._mutex:
            self._acquire()
            assert self._lock is not None
            try:
                self._follow([], self.clock.now())
                return act(self._view)
            except BaseException:
                self._is_void = True
                raise
            finally:
                self._release()

    def cut(self, act: Callable[[View], T]) -> tuple[int, int, T]:
        """Start a new journal file, and run an act on the state at that cut (R14).

        Other processes append as soon as the file is there; the view stays where it is until the
        act returns. Returns (last LSN of the old file, its CRC, what the act returned).
        """
        with self._mutex:
            lsn, crc = self.locked(lambda view: view.journal.cut())
            assert self._view.lsn == lsn
            return lsn, crc, act(self._view)
