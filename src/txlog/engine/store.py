"""The store: opens a directory, and is the only way to change it.

Owns the write path (Law 3: decide, encode, append, apply, flush, witness, answer), group commit
among threads, and following what other processes append. It builds the components and hands them
out; decisions live in flow/, maintenance in upkeep/.

    write(decide)   mutex → flock → follow → sweep → decide → append → apply → flush → release
    refresh()       read frames up to the witness; no lock
    dry run         the same decisions over a view of its own; their frames go nowhere
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TypeVar

from txlog.clock import Clock, Instant
from txlog.engine import liveness
from txlog.engine.appender import Appender
from txlog.engine.bucket_ops import BucketOps
from txlog.engine.call import NOTHING, Call, Decide
from txlog.engine.flow import resolve
from txlog.engine.flow.draft import Decision, Draft
from txlog.engine.flow.sweep import Swept, Uses
from txlog.engine.identity import Identity
from txlog.engine.model.tally import Tally
from txlog.engine.mutex import Mutex
from txlog.engine.storage.disk_protocol import Disk, LockFile
from txlog.engine.storage.journal import JournalMoved
from txlog.engine.sweeper import Sweeper, is_sweep_due
from txlog.engine.view import View
from txlog.errors import AlreadyClosed, MissingFile, OutcomeUnknown, ReadOnlyStore, TxlogError
from txlog.settings import Settings

T = TypeVar("T")
MAINTENANCE_PATH = "maintenance.lock"


class Store:
    """An open store; safe to call from many threads of one process."""

    __slots__ = (
        "_appender", "_asked_durability", "_closed", "_lock", "_mutex", "_queue",
        "_settings_changes", "_sweeper", "_view", "bucket_ops", "clock", "disk", "dry_run",
        "durability", "identity", "lock_timeout_ms", "recovered_ms", "reports", "settings",
        "tally",
    )  # fmt: skip

    def __init__(
        self, disk: Disk, clock: Clock, identity: Identity, *, lock_timeout_ms: int,
        durability: str | None, dry_run: bool = False,
    ) -> None:  # fmt: skip
        self.disk = disk
        self.dry_run = dry_run
        self.clock = clock
        self.identity = identity
        self.lock_timeout_ms = lock_timeout_ms
        self.reports: list[str] = []
        self.bucket_ops = BucketOps()
        self._mutex = Mutex(disk.pid)
        self._queue: deque[Call] = deque()
        self._lock: LockFile | None = None
        self._closed = False
        self._sweeper = Sweeper()
        self._appender = Appender(disk, self.note, dry_run=dry_run)
        self._asked_durability = durability
        self._settings_changes = -1
        self.settings = Settings()
        self.durability = durability or self.settings.durability
        began_ms = clock.now().wall_ms
        self.tally = Tally()
        self._view = self._load()
        self.recovered_ms = (began_ms, clock.now().wall_ms)  # when this process read the store
        self._adopt_settings()

    def _load(self) -> View:
        """A fresh view at the visible end; tried again when a checkpoint overtakes it."""
        while True:
            view = View.open(self.disk, self.identity.salt, self.clock.now().boot_id)
            try:
                journal = view.journal
                view.take(journal.read_valid() if self.dry_run else journal.read_durable())
            except JournalMoved:
                view.close()
                continue
            self.reports.extend(view.reports)
            view.files.tally = self.tally
            return view

    def note(self, report: str) -> None:
        """Keep a line for `reports`."""
        self.reports.append(report)

    def close(self) -> None:
        """Close every descriptor; what was answered stands."""
        with self._mutex:
            if not self._closed:
                self._closed = True
                self._view.close()
                if self._lock is not None:
                    self._lock.close()

    @property
    def has_written(self) -> bool:
        """True when this process has appended anything."""
        return self._appender.has_written

    # --- reading -----------------------------------------------------------------------------

    def read(self, look: Callable[[View], T], *, fresh: bool = True) -> T:
        """Run a reading function over the newest durable state, alone among the threads.

        fresh: False for one that is about what this process has seen already
        It may run again, when files that it needs have been replaced since: until it returns it
        must leave nothing behind.
        """
        with self._mutex:
            if fresh or self._closed:
                self._refresh()
            while True:
                at = (self._view.lsn, self._view.manifest.generation)
                try:
                    return look(self._view)
                except MissingFile:
                    self._refresh()  # R21
                    if at == (self._view.lsn, self._view.manifest.generation):
                        raise

    def refresh(self) -> int:
        """Follow the journal up to the witness; returns the LSN of the view."""
        with self._mutex:
            self._refresh()
            return self._view.lsn

    def _refresh(self) -> None:
        if self._closed:
            raise AlreadyClosed("the store is closed", hint="open it again")
        if self.dry_run:
            return  # what it decided so far stands nowhere else
        try:
            self._view.take(self._view.journal.read_durable())
            self._view.adopt_manifest()
        except JournalMoved:
            self._reload()
        self._adopt_settings()

    def reload(self) -> None:
        """Forget what is known, and read the newest manifest and the journal behind it."""
        with self._mutex:
            self._reload()

    def _reload(self) -> None:
        self._view.close()
        self._view = self._load()

    def _adopt_settings(self) -> None:
        """Take the settings that the catalog has now; any process may have changed them."""
        catalog = self._view.catalog
        if catalog.settings_changes != self._settings_changes:
            self.settings = Settings.from_mapping(catalog.settings)
            self.durability = self._asked_durability or self.settings.durability
            self._settings_changes = catalog.settings_changes

    def has_unflushed(self, *, unseen: bool = False) -> bool:
        """True when frames lie behind the witness; unseen: when there are more than it holds."""
        with self._mutex:
            journal = self._view.journal
            journal.current.forget_window()
            return (
                not unseen and journal.durable_lsn < self._view.lsn
            ) or journal.current.read_header(journal.end) is not None

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
        self._queue.extend(calls)  # in one step: no other thread takes a part of them
        with self._mutex:
            if not calls[-1].done:
                self._lead()

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
        if self._closed:
            raise AlreadyClosed("the store is closed", hint="open it again")
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
        except TxlogError as error:
            for call in calls:
                call.error, call.done = error, True
            return
        try:
            self._run(calls)
        finally:
            for call in calls:
                call.done = True
            self._release()

    def _acquire(self) -> None:
        if self._closed:
            raise AlreadyClosed("the store is closed", hint="open it again")
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
            except TxlogError:
                self._reload()
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

    def tail_bytes(self) -> tuple[int, int]:
        """(frames, bytes) behind the newest checkpoint, for deciding about the next one."""
        with self._mutex:
            view = self._view
            return view.lsn - view.manifest.cut_lsn, view.journal.end

    def replayed(self, look: Callable[[View], T]) -> T:
        """Run a reading function over a fresh view: the ops since the checkpoint wait in it."""
        with self._mutex:
            view = self._load()
            try:
                return look(view)
            finally:
                view.close()
