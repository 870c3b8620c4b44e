"""The store: opens a directory, and is the only way to change it.

Owns the write path (Law 3: decide, encode, append, apply, flush, witness, answer), group commit
among threads, and following what other processes append. It builds the components and hands them
out; decisions live in flow/, maintenance in upkeep/.

    write(decide)   mutex → flock → follow → sweep → decide → append → apply → flush → release
    refresh()       read frames up to the witness; no lock
    dry run         the same decisions over a view of its own; their frames go nowhere
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from txlog.clock import Clock, Instant
from txlog.engine.flow.draft import Decision, Draft
from txlog.engine.flow.resolve import recover_lossy
from txlog.engine.flow.sweep import Swept, Uses
from txlog.engine.identity import Identity
from txlog.engine.liveness import WRITE_LOCK
from txlog.engine.model.ops import encode_ops
from txlog.engine.model.schema import encode_rows
from txlog.engine.space import Space
from txlog.engine.storage.disk_protocol import Disk, LockFile
from txlog.engine.storage.journal import JournalMoved
from txlog.engine.storage.journal_file import RawFrame, frame_nowhere
from txlog.engine.sweeper import Sweeper, is_sweep_due
from txlog.engine.view import View
from txlog.errors import (
    AlreadyClosed,
    MissingFile,
    OutcomeUnknown,
    ReadOnlyStore,
    StoreFull,
    TxlogError,
)
from txlog.settings import Settings

T = TypeVar("T")
Decide = Callable[[View, Instant], Decision]
MAINTENANCE_PATH = "maintenance.lock"


NOTHING = Uses()


class _Call:
    """A queued decision of one thread."""

    __slots__ = ("answer", "coordinators", "decide", "done", "error", "thorough", "uses")

    def __init__(
        self, decide: Decide, coordinators: tuple[int, ...] = (), uses: Uses = NOTHING,
        *, thorough: bool = False,
    ) -> None:  # fmt: skip
        self.decide = decide
        self.coordinators = coordinators
        self.uses = uses
        self.thorough = thorough
        self.answer: object = None
        self.error: BaseException | None = None
        self.done = False


class Store:
    """An open store; safe to call from many threads of one process."""

    __slots__ = (
        "_asked_durability", "_closed", "_lock", "_mutex", "_queue", "_settings_changes",
        "_space", "_sweeper", "_view", "clock", "disk", "dry_run", "durability",
        "identity", "lock_timeout_ms", "recovered_ms", "reports", "settings",
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
        self._mutex = threading.RLock()
        self._queue: deque[_Call] = deque()
        self._lock: LockFile | None = None
        self._closed = False
        self._sweeper = Sweeper()
        self._space = Space(disk)
        self._asked_durability = durability
        self._settings_changes = -1
        self.settings = Settings()
        self.durability = durability or self.settings.durability
        began_ms = clock.now().wall_ms
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
            return view

    def close(self) -> None:
        """Close every descriptor; what was answered stands."""
        with self._mutex:
            if not self._closed:
                self._closed = True
                self._view.close()
                if self._lock is not None:
                    self._lock.close()

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
                    # trimmed or compacted since the view was made, and freed: look again (R21)
                    self._refresh()
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
        return self._submit(_Call(decide, coordinators, uses))

    def expire(self) -> Swept:
        """Sweep every coordinator without a bound; returns what was done, durable."""
        swept = Swept()

        def decide(view: View, now: Instant) -> Decision:
            nonlocal swept
            swept = self._sweeper.swept
            return Decision([], None, True)

        self._submit(_Call(decide, thorough=True))
        return swept

    def _submit(self, call: _Call) -> object:
        if self.dry_run:
            return self._rehearse(call)
        self.need_writable()
        self._queue.append(call)
        with self._mutex:
            if not call.done:
                self._lead()
        if call.error is not None:
            raise call.error
        return call.answer

    def _rehearse(self, call: _Call) -> object:
        """Decide as write does, without lock and flush; the view alone takes the frames."""
        with self._mutex:
            self._refresh()
            view, now = self._view, self.clock.now()
            if view.journal.lossy:
                view.journal.lossy = False
                draft = Draft(view, self.settings, now.wall_ms)
                recover_lossy(view, draft)
                if draft.ops:
                    self._append(draft.decision(), now)
            for number in call.coordinators:
                if number < self.settings.coordinators:
                    view.coordinator(number)
            self._sweep(view, now, [call])
            decision = call.decide(view, now)
            if decision.ops:
                self._append(decision, now)
            if decision.error is not None:
                raise decision.error
            return decision.answer

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
        calls: list[_Call] = []
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
            self._lock = self.disk.lock_file(WRITE_LOCK)
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

    def _run(self, calls: list[_Call], *, sync: bool = False) -> None:
        try:
            now = self.clock.now()
            sync = self._follow(calls, now) or sync
            for call in calls:
                try:
                    decision = call.decide(self._view, now)
                    if decision.ops:
                        self._append(decision, now)
                except (OutcomeUnknown, JournalMoved):
                    raise
                except Exception as error:  # a refused decision fails alone (R12)
                    call.error = error
                    continue
                call.answer, call.error = decision.answer, decision.error
                sync = sync or decision.sync
            if sync:
                self._view.journal.flush(sync=self.durability == "sync")
        except BaseException as error:
            # R28: whatever happened, these folds may be behind the journal or beside the disk
            for call in calls:
                call.error = call.error or error
            self._discard(error)
            if not isinstance(error, Exception):
                raise

    def _discard(self, error: BaseException) -> None:
        try:
            self._reload()
        except TxlogError as second:
            self._closed = True
            self.reports.append(f"the store could not be read again after {error}: {second}")

    def _follow(self, calls: list[_Call], now: Instant) -> bool:
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

    def _sweep(self, view: View, now: Instant, calls: list[_Call]) -> bool:
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
        aborted = recover_lossy(self._view, draft)
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
        view = self._view
        if self.dry_run:
            if decision.batch is not None:
                raise ReadOnlyStore("a dry run stores no messages", path=self.disk.description)
            name = view.journal.current.name
            view.apply(frame_nowhere(name, view.lsn + 1, now.wall_ms), decision.ops)
            return
        columns, rows = 0, None
        if decision.batch is not None:
            columns, rows = encode_rows(decision.batch)
            self._space.check(rows.size, self.settings.free_bytes_min)
        ops = encode_ops(decision.ops)
        try:
            raw = view.journal.append(ops, rows, columns, now.wall_ms)
        except StoreFull:
            if decision.batch is not None or not self._space.release_reserve():
                raise
            self.reports.append("the disk is full: the reserve was given up to finish this call")
            raw = view.journal.append(ops, rows, columns, now.wall_ms)
        view.apply(raw, decision.ops)
        if view.catalog.settings_changes != self._settings_changes:
            self._adopt_settings()

    def settle(self) -> None:
        """Make what is written but not flushed visible, if the lock is free at once (R22).

        A writer that died between its append and its flush left such frames; a reader that went by
        the witness alone would miss them until somebody writes.
        """
        if not self.disk.read_only and self.has_unflushed():
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
            self._run_if_free([_Call(decide, uses=uses or NOTHING, thorough=uses is None)])

    def _run_if_free(self, calls: list[_Call]) -> None:
        with self._mutex:
            if self._lock is None:
                self._lock = self.disk.lock_file(WRITE_LOCK)
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

    def find_frame(self, lsn: int) -> RawFrame | None:
        """A frame that is still in the journal."""
        with self._mutex:
            view = View.open(self.disk, self.identity.salt, self.clock.now().boot_id)
            try:
                if not view.manifest.cut_lsn < lsn <= self._view.lsn:
                    return None
                frames = view.journal.read_until(lsn)
                return frames[-1]
            finally:
                view.close()
