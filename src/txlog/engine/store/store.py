"""Owns Store: an open store, and the only way to change one.

Threads meet here: calls wait in a queue, one thread leads, and all share a lock and a flush. The
docstring of the package gives the reason for each step of the write path, and the state that
remains when an interruption cuts one short.

    write(decide)   follow, sweep, decide, append and apply under the write lock, then flush
    read(look)      read frames up to the witness, then run a function over the view; no lock
    ask(question)   make the unflushed frames of a dead writer visible, then read
    refresh()       only the first half of read
    damage          of the journal: a caller that raises it in the end may first read the frames
                    before it; any other answer would show an old state, so other calls raise it at
                    once (spec/reliability 2.3)
    dry run         the view stays where it was opened, after every valid frame

A checkpoint of another process may remove files that the view needs. Then the store looks again
over the newest checkpoint (R21), or loads everything anew. It also loads anew after an interruption
(R28): the view counts as void from the first step that changes it until the last is done, and the
next call that finds it void loads it anew.

Mutex lets one call at a time run in the process that made it, however the call ends.

The mutex asks the lock itself whether this thread holds it, in one step of C. A flag would not do:
an interrupt may come between any two steps of Python, before the call sets the flag. The stack
shows whether that call is still running. So the mutex can tell a running call from a hold that an
interrupt left behind.

1. A call from within a call of the same thread would find everything half done, so it is refused.
   Such calls come from `__del__`, which the collector may run anywhere, or from a signal handler.
   Clean-up is put off until the outer call has ended.
2. A forked child inherits the lock as it was at that moment. If another thread of the parent held
   it, no thread of the child ever frees it. With a plain lock the child would wait for ever. But
   its descriptors are closed anyway, so the child gets an error (R27).
3. While a thread waits for its turn, another thread may do its work. The waiter must learn this
   without the lock, which the next thread may already have. So each waiter waits at a gate of its
   own instead of at the lock. On release, a thread opens the gate of every waiter whose work is
   done, and of one more waiter, which takes the lock. If a third thread takes the lock first, that
   thread opens gates when it releases it. A waiter joins the list of waiters before it tries the
   lock a last time, so the holder finds it in the list. An interrupt may swallow an opening, so no
   thread waits at a gate longer than LOOK_AGAIN_S. Other threads may keep taking the lock first
   without doing the waiter's work. So after the second opening it waits for the lock itself.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import partial
from threading import Lock, RLock, get_ident
from types import FrameType
from typing import Any, NamedTuple, Protocol, TypeVar, cast, overload
from weakref import WeakValueDictionary

from txlog.base.logs import Reports, log_event
from txlog.base.settings import Settings
from txlog.clock import Clock, Instant
from txlog.engine.decide.draft import Decision, Draft
from txlog.engine.decide.transactions import transaction
from txlog.engine.decide.transactions.sweep import CallScope, SweepResult
from txlog.engine.plan import clock_trust
from txlog.engine.storage.disk.locks import FileLock
from txlog.engine.storage.disk.protocol import Disk
from txlog.engine.storage.journal import Flight, JournalMoved
from txlog.engine.store import liveness
from txlog.engine.store.appender import (
    NO_FRAME,
    NOTHING,
    WRITING,
    WRITTEN,
    Appender,
    Call,
    Decide,
    Encoded,
    Group,
    NothingWritten,
    Sweeper,
    again,
    are_done,
    in_doubt,
    interrupted,
    is_sweep_due,
    note_doubt,
)
from txlog.engine.store.counters import BucketCounters
from txlog.engine.store.identity import FORMAT, Identity, need_there, raise_format
from txlog.engine.store.wakeups import Wakeups, is_called
from txlog.engine.view import ReadCounters, View
from txlog.errors import (
    AlreadyClosed,
    Corruption,
    MissingFile,
    NotAllowed,
    OutcomeUnknown,
    ReadOnlyStore,
    StoreFull,
    TryAgain,
    TxlogError,
    may_be_of_handler,
)

# --- one call at a time --------------------------------------------------------------------------


T = TypeVar("T")
LOOK_AGAIN_S = 0.1
TRIES = 2  # at a gate


class Mutex:
    """A lock that is free again once the call that took it has ended.

    flight:      the flush of the store that goes on outside, until its outcome is taken
    has_refused: during the running call, another call was refused inside it, whose error may have
                 cut short any step of the running call
    """

    __slots__ = (
        "_later",
        "_lock",
        "_owner",
        "_pid",
        "_report",
        "_waiting",
        "flight",
        "has_refused",
    )

    def __init__(self, pid: Callable[[], int], report: Callable[[str], None] | None = None) -> None:
        self._lock: Any = RLock()  # typeshed lacks `_is_owned`, which Condition uses, too
        self._pid = pid
        self._owner = pid()
        self._report = report
        self._later: deque[Callable[[], object]] = deque()
        self._waiting: dict[Any, Callable[[], bool]] = {}  # by gate, in order of arrival
        self.flight: Flight | None = None
        self.has_refused = False

    @overload
    def run(self, act: Callable[[], T]) -> T: ...

    @overload
    def run(self, act: Callable[[], T], is_done: Callable[[], bool]) -> T | None: ...

    def run(self, act: Callable[[], T], is_done: Callable[[], bool] | None = None) -> T | None:
        """Run an act while no other thread runs one.

        The lock is released twice: an interrupt may cut short the first attempt anywhere.
        is_done: called while this thread waits, by any thread: whether another thread has done the
                 work; raises nothing
        returns: the result of the act; None if the work was done meanwhile and the act did not run
        raises:  NotAllowed, inside another call of this thread; AlreadyClosed in a forked child
        """
        if self._pid() != self._owner:
            self._refuse_child()
        lock = self._lock
        if lock._is_owned() or (self.flight is not None and self._is_flying()):
            self._refuse_or_free()
        has_turn = is_done is None
        try:
            try:
                if is_done is None:
                    lock.acquire()
                else:
                    has_turn = lock.acquire(False) or self._wait(is_done)
                    if not has_turn:
                        return None
                self.has_refused = False
                return act()
            finally:
                if lock._is_owned():
                    lock.release()
                    if self._waiting:
                        self._wake()
        finally:
            if lock._is_owned():
                lock.release()
                self._wake()
            if has_turn and self._later and not self._is_flying():
                self._tidy()

    def _wait(self, is_done: Callable[[], bool]) -> bool:
        """Wait for the lock; True when this thread has it, False when its work is done."""
        gate: Any = Lock()
        gate.acquire()
        is_held, opened = False, 0
        try:
            try:
                self._waiting[gate] = is_done  # before the next try
                while not is_held:
                    if opened >= TRIES:
                        is_held = self._lock.acquire(True, LOOK_AGAIN_S)
                    else:
                        is_held = self._lock.acquire(False)
                        if not is_held:
                            opened += gate.acquire(True, LOOK_AGAIN_S)
                    if not is_held:
                        if self._pid() != self._owner:
                            self._refuse_child()
                        if is_done():
                            break
            finally:
                self._waiting.pop(gate, None)
        finally:
            self._waiting.pop(gate, None)
        return is_held

    def _wake(self) -> None:
        """Open the gate of each waiter whose work is done, and of the first other waiter."""
        has_next = False
        # list() allocates before it copies, so no finalizer can change the dict meanwhile
        for gate in list(self._waiting):
            is_done = self._waiting.get(gate)
            if is_done is None or not gate.locked() or (has_next and not is_done()):
                continue
            has_next = has_next or not is_done()
            with suppress(RuntimeError):  # another thread was faster
                gate.release()

    def held(self) -> AbstractContextManager[object]:
        """Return the lock for a `with` block of several steps; its thread may take it again.

        Python takes and frees it in one C step each. The block must not call `run`: that frees it.
        """
        if self._pid() != self._owner:
            self._refuse_child()
        lock: AbstractContextManager[object] = self._lock
        return lock

    def is_inside(self) -> bool:
        """True inside a call of this thread: we are in `__del__` or a signal handler."""
        frame = sys._getframe(1)
        if self._lock._is_owned() and is_called(_RUN, self, frame):
            return True
        return self._is_flying() and is_flushing(self, frame)

    def _is_flying(self) -> bool:
        """True while this thread flies the flight: its own call, which flushes, is not over."""
        flight = self.flight
        return flight is not None and not flight.has_landed and flight.owner == get_ident()

    def put_off(self, act: Callable[[], object]) -> bool:
        """Inside a call: run an act when that call has ended, and return True; otherwise return
        False.

        An error of the act goes to the report, as no caller waits for it.
        """
        if not self.is_inside():
            return False
        self._later.append(act)
        return True

    def check_process(self) -> None:
        """Raises AlreadyClosed in a forked child."""
        if self._pid() != self._owner:
            self._refuse_child()

    def _refuse_child(self) -> None:
        raise AlreadyClosed(
            "the store was opened by another process, and this one is its child",
            hint="open it again, after the fork",
        )

    def _refuse_or_free(self) -> None:
        if self.is_inside():
            if self._lock._is_owned():  # else the running call may be another thread's
                self.has_refused = True
            raise NotAllowed(
                "called from within another call on this store, from __del__ or a signal handler",
                hint="call it after that call has returned",
            )
        while self._lock._is_owned():  # left by two interrupts in a row
            self._lock.release()
        if self._is_flying() and self.flight is not None:
            self.flight.land()

    def _tidy(self) -> None:
        while self._later:
            try:
                act = self._later.popleft()
            except IndexError:  # another thread was faster
                return
            try:
                act()
            except Exception as error:  # the call that put it off is over
                if may_be_of_handler(error):
                    raise
                if self._report is not None:
                    self._report(f"an act put off until another call ended failed: {error}")


_RUN = frozenset([Mutex.run.__code__])


def is_flushing(mutex: Mutex, frame: FrameType | None) -> bool:
    """True if a frame or one of its callers is a call of the store that flies, or is about to."""
    while frame is not None:
        if frame.f_code is Store._turn.__code__ and frame.f_locals["self"]._mutex is mutex:
            return True
        frame = frame.f_back
    return False


# --- the store -----------------------------------------------------------------------------------


MAINTENANCE_PATH = "maintenance.lock"


class Upkeep(Protocol):
    """Automatic maintenance, for a process whose writes have made the journal long."""

    def look(self, store: Store) -> None:
        """Called after a write that found the journal long, outside every lock; raises nothing."""

    def finish(self) -> None:
        """Wait until this process runs no automatic maintenance."""


def _nothing(view: View, now: Instant) -> Decision[None]:
    """The decision of a call that only waits for a flush; it is never made."""
    return Decision([])


def check_whole(view: View) -> None:
    """Raise Corruption (602) when the journal is damaged after this view."""
    if (damage := view.damage) is not None:
        raise damage


class Owed(NamedTuple):
    """A group that waits until it is durable, and the flight for it; None: it is over."""

    group: Group
    flight: Flight | None


class Store:
    """An open store; safe to call from many threads of one process."""

    __slots__ = (
        "__weakref__",
        "_appender",
        "_asked_durability",
        "_closed",
        "_file_lock",
        "_is_void",
        "_leading",
        "_mutex",
        "_queue",
        "_settings_changes",
        "_sweeper",
        "_view",
        "_wakeups",
        "bucket_ops",
        "clock",
        "disk",
        "dry_run",
        "durability",
        "has_changed",
        "identity",
        "lock_timeout_asked_ms",
        "members",
        "recovered_ms",
        "reports",
        "settings",
        "tally",
        "upkeep",
    )

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        identity: Identity,
        *,
        lock_timeout_ms: int | None,
        durability: str | None,
        dry_run: bool = False,
    ) -> None:
        self.disk = disk
        self.dry_run = dry_run
        self.clock = clock
        self.identity = identity
        self.reports = Reports()
        self._mutex = Mutex(disk.pid, self.note)
        self._closed = False
        self._is_void = False  # the view is invalid: the next call loads a new one
        self._asked_durability = durability
        self._settings_changes = -1
        self.settings = Settings()
        self.durability = durability or self.settings.durability
        self.lock_timeout_asked_ms = lock_timeout_ms  # None: the setting
        self.bucket_ops = BucketCounters()
        self.has_changed = False  # by a call; a sweep before a reading call does not count
        self.upkeep: Upkeep | None = None
        # the consumers of this handle by number, as long as any code refers to them
        self.members: WeakValueDictionary[int, Any] = WeakValueDictionary()
        self._queue: deque[list[Call]] = deque()
        self._leading: list[list[Call]] = []  # calls that the leader took, or is about to take
        self._file_lock = FileLock(disk, liveness.WRITE_LOCK, self.note)
        self._sweeper = Sweeper()
        self._appender = Appender(disk, self.note, dry_run=dry_run)
        began_ms = clock.now().wall_ms
        self.tally = ReadCounters()
        self._wakeups: dict[None, Wakeups] = {}  # one entry, once a call waits
        try:
            self._view = self._load()  # also of a damaged journal (spec/reliability 2.3)
            self.recovered_ms = (began_ms, clock.now().wall_ms)  # when this process read the store
            self._adopt_settings()
            lsn = self._view.lsn
            log_event("store", "info", "opened %s: its log ends at LSN %d", disk.description, lsn)
        except TxlogError:  # a deleted store explains any missing file better
            self.need_there()
            raise

    @property
    def lock_timeout_ms(self) -> int:
        """How long to wait for a lock: the caller's time-out, else the setting of the store."""
        timeout_ms = self.lock_timeout_asked_ms
        return self.settings.lock_timeout_ms if timeout_ms is None else timeout_ms

    def release_reserve(self) -> bool:
        """Give the blocks of the reserve back to a full disk; False when it has none (R30)."""
        return self._appender.release_reserve()

    @property
    def has_written(self) -> bool:
        """True when this process has appended anything."""
        return self._appender.has_written

    # --- following and reading --------------------------------------------------------------------

    def _load(self) -> View:
        """A new view at the witness (dry run: after every valid frame); retries if overtaken."""
        while True:
            view = View.open(
                self.disk, self.identity.salt, self.clock.now().boot_id, up_to_damage=True
            )
            try:
                journal = view.journal
                view.take(
                    journal.read_valid()
                    if self.dry_run
                    else journal.read_durable(up_to_damage=True)
                )
            except JournalMoved:
                view.close()
                continue
            self.reports.extend([*view.reports, *journal.reports])
            journal.reports.clear()
            view.files.tally = self.tally
            journal.lock_timeout_ms = self.lock_timeout_ms
            return view

    @property
    def has_delays_to_look_at(self) -> bool:
        """True when this process changed a delayed index that has had no upkeep since.

        Needs no mutex: a thread reads it after its own change.
        """
        return self._view.has_delays_to_look_at

    def note(self, report: str) -> None:
        """Keep a line for `reports`."""
        self.reports.append(report)

    def need_there(self) -> None:
        """Raise StoreNotFound if the store was removed, moved away or replaced meanwhile."""
        need_there(self.disk, self.identity)

    def _need_witness(self) -> None:
        """As need_there, within a call, at the cost of one stat."""
        need_there(self.disk, self.identity, file=self._view.journal.witness.file)

    def _need_journal(self) -> None:
        """As need_there for a writer, with the journal file that it appends to."""
        journal = self._view.journal
        if journal.witness.file is None:  # missing, or the view was closed and not reloaded
            self.need_there()
        else:
            file = journal.current
            need_there(self.disk, self.identity, file.path, file.file)

    @property
    def wakeups(self) -> Wakeups:
        """The events that end the waits of this handle; the first wait makes it."""
        wakeups = self._wakeups.get(None)
        if wakeups is None:  # setdefault is one step of C: two threads get the same object
            new = Wakeups(self.disk, self.clock, self.identity.salt)
            wakeups = self._wakeups.setdefault(None, new)
        return wakeups

    def _need_open(self) -> None:
        if self._closed:
            raise AlreadyClosed("the store is closed", hint="open it again")

    def close(self) -> None:
        """Close every descriptor; inside another call, once that call has ended."""
        if not self.put_off(self.close):
            self._mutex.run(self._close)

    def _close(self) -> None:
        if not self._closed:
            self._closed = True
            for wakeups in self._wakeups.values():
                wakeups.close()
            self._view.close()
            self._file_lock.close()

    def put_off(self, act: Callable[[], object]) -> bool:
        """Within a call of this thread (`__del__`, a signal handler): run an act after it.

        returns: whether it is put off; if not, the caller runs it
        """
        return self._mutex.put_off(act)

    def read(
        self,
        look: Callable[[View], T],
        *,
        fresh: bool = True,
        up_to_damage: bool = False,
        waits: bool = True,
    ) -> T:
        """Run a reading function over the newest durable state, while no other thread is in a call.

        The function may run again if files that it needs were replaced, so it must have no effect
        until it returns.
        fresh: False for a function that needs only the state that this process has seen already
        up_to_damage: if the journal is damaged, read the frames before the damage. Only for callers
                      that raise the view's `damage` in the end. If the function does not find
                      something, this raises the damage, as the thing may lie after it
        waits: False if the application gets nothing that a power cut could take back: then the
               read does not wait for a flush under way. An error always waits for that flush,
               since it may rest on unflushed frames
        raises: NotAllowed inside another call of this thread, as every call here; errors of the
                function; Corruption (602): the journal is damaged
        """
        while True:
            answer = self._turn(partial(self._look, look, fresh, up_to_damage, waits))
            if not isinstance(answer, Owed):
                return cast(T, answer)
            waits = True
            for call in answer.group.calls:
                if call.error is not None:
                    raise call.error

    def _look(
        self, look: Callable[[View], T], fresh: bool, up_to_damage: bool, waits: bool
    ) -> T | Owed:
        """The answer, or the group that must be durable before the call shows anything."""
        if fresh or self._closed or not self._is_whole():
            self._refresh()
        if waits and self._view.journal.owes and not self.dry_run:
            return self._owed()
        while True:
            damage = self._view.damage
            if damage is not None and not up_to_damage:
                raise damage
            at = (self._view.lsn, self._view.manifest.generation)
            self._is_void = True  # an interrupt may leave the view half changed
            try:
                answer = look(self._view)
            except MissingFile:
                self._keep_view()
                self._refresh()  # R21
                if at == (self._view.lsn, self._view.manifest.generation):
                    raise
            except TxlogError as error:
                self._keep_view()
                if not waits and self._view.journal.owes and not self.dry_run:
                    return self._owed()
                if damage is not None and not isinstance(error, Corruption):
                    raise damage from error
                raise
            else:
                self._is_void = False
                return answer

    def _owed(self) -> Owed:
        """The group of a read that waits for frames which others make durable."""
        journal = self._view.journal
        group = Group([Call(_nothing)], journal.awaited_lsn, journal.place)
        return Owed(group, self._next_flight(group))

    def _keep_view(self) -> None:
        """After a TxlogError from a step that may refuse: the view is unchanged, so keep it.

        It cannot be kept if another call was refused within this call: that error may have cut
        short any step.
        """
        self._is_void = self._mutex.has_refused

    def refresh(self) -> int:
        """Follow the journal up to the witness; returns the LSN of the view.

        raises: Corruption (602): the journal is damaged
        """
        return self._mutex.run(self._refreshed)

    def _refreshed(self) -> int:
        lsn = self._refresh()
        check_whole(self._view)
        return lsn

    def _refresh(self) -> int:
        self._need_open()
        if not self.dry_run:
            self._need_witness()
        if not self._is_whole():
            self._reload()
        if not self.dry_run:  # the frames of a dry run exist only in its view
            self._is_void = True
            try:
                journal, old_damage = self._view.journal, self._view.damage
                self._view.take(journal.read_durable(up_to_damage=True))
                self._view.adopt_manifest()
                if journal.damage is not None and (old_damage is None or self._view.is_outdated):
                    self._reload()  # there may be a checkpoint after the damage
                    journal = self._view.journal
                if journal.reports:
                    self.reports.extend(journal.reports)
                    journal.reports.clear()
            except JournalMoved:
                self._reload()
        self._is_void = False
        self._adopt_settings()
        return self._view.lsn

    def reload(self) -> None:
        """Drop the view, and read the newest manifest and the journal after it."""
        self._mutex.run(self._made_anew)

    def _made_anew(self) -> View:
        self._reload()
        self._is_void = False
        return self._view

    def _reload(self) -> None:
        """Load the view again; the caller declares it valid."""
        self._is_void = True
        self._view.close()
        self._view = self._load()

    def _adopt_settings(self) -> None:
        """Adopt the catalog's current settings; any process may have changed them."""
        catalog = self._view.catalog
        if catalog.settings_changes != self._settings_changes:
            self.settings = Settings.from_mapping(catalog.settings)
            self.durability = self._asked_durability or self.settings.durability
            self._settings_changes = catalog.settings_changes

    def _is_whole(self) -> bool:
        """Whether calls may use the view: no change was cut short, and no frame is in doubt."""
        return not (self._is_void or self._view.journal.is_unsure)

    def _whole_view(self) -> View:
        return self._view if self._is_whole() else self._made_anew()

    def has_unflushed(self, *, unseen: bool = False) -> bool:
        """True when frames lie after the witness; unseen: when any lie after the view."""

        def look() -> bool:
            view = self._whole_view()
            is_behind = not unseen and view.journal.durable_lsn < view.lsn
            return is_behind or view.journal.has_more()

        return self._mutex.run(look)

    def tail_bytes(self) -> tuple[int, int]:
        """(frames, bytes) after the newest checkpoint, for the decision about the next one."""

        def look() -> tuple[int, int]:
            view = self._whole_view()
            return view.lsn - view.manifest.cut_lsn, view.journal.end

        return self._mutex.run(look)

    @property
    def length(self) -> float:
        """The journal after the newest checkpoint, as a share of the length when the next is due.

        cost: two divisions; no lock, so it may be slightly out of date
        """
        view, settings = self._view, self.settings
        return max(
            (view.lsn - view.manifest.cut_lsn) / settings.checkpoint_frames,
            view.journal.end / settings.checkpoint_bytes,
        )

    def replayed(self, look: Callable[[View], T]) -> T:
        """Run a function over a fresh view, in which the ops since the checkpoint are not applied.

        The view is its own, so a reading function may call this.
        """
        self._need_open()
        view = self._load()
        try:
            check_whole(view)
            return look(view)
        finally:
            view.close()

    # --- writing -----------------------------------------------------------------------------

    def write(
        self,
        decide: Callable[[View, Instant], Decision[T]],
        coordinators: tuple[int, ...] = (),
        uses: CallScope = NOTHING,
        *,
        tells: bool = False,
    ) -> T:
        """Run a decision under the write lock, and make its outcome as durable as it must be.

        coordinators: those the call names; they are loaded, so that the sweep sees them
        uses:         the cursors and other state that the call uses; the sweep ends what is overdue
                      there
        tells:        wake waiting consumers, although nothing is flushed
        returns: the decision's answer, after the flush when the decision must be durable
        raises:  the decision's error; ReadOnlyStore, StoreLocked, StoreFull, DiskFailed, TryAgain:
                 nothing was done; NotAllowed inside another call of this thread; OutcomeUnknown;
                 Corruption. An exception of a signal handler passes through, with a note if the
                 call may have been done
        """
        answer: T = self._submit(Call(decide, coordinators, uses))
        if tells:
            self.disk.announce(liveness.CONSUMERS_DIR)
        return answer

    def expire(self) -> SweepResult:
        """Sweep every coordinator without a bound; returns the sweep's result, durable."""
        swept = SweepResult()

        def decide(view: View, now: Instant) -> Decision[None]:
            nonlocal swept
            swept = self._sweeper.swept
            return Decision([], None, True)

        self._submit(Call(decide, thorough=True))
        return swept

    def _submit(self, call: Call) -> Any:
        self.submit([call])
        if call.error is not None:
            raise call.error
        return call.answer

    def submit(self, calls: list[Call]) -> None:
        """Run decisions one after another, in one frame where their rows allow it.

        Each sees the effect of its predecessors. A refused call fails alone, with the reason in its
        `error`.
        raises: as write, except for the errors of decisions
        """
        self._run_queued(calls, is_queued=False)

    def enqueue(self, calls: list[Call]) -> None:
        """Queue decisions, as `submit`, for the next group of any thread; returns at once.

        They are decided after all calls that were queued before. A thread must `finish` them, or
        else they run only when another call leads a group.
        raises: AlreadyClosed, ReadOnlyStore
        """
        if not self.dry_run:
            self.need_writable()
            self.has_changed = True
            self._queue.append(calls)

    def finish(self, calls: list[Call]) -> None:
        """Lead groups until enqueued calls have their outcomes; raises as `submit`."""
        self._run_queued(calls, is_queued=True)

    def _run_queued(self, calls: list[Call], *, is_queued: bool) -> None:
        if self.dry_run:
            self._mutex.run(partial(self._rehearse, calls))
            return
        if not is_queued:
            self.need_writable()
            self.has_changed = True
        is_done = partial(are_done, calls)
        try:
            try:
                try:
                    if not is_queued:
                        self._queue.append(calls)
                    while not calls[-1].done:
                        self._turn(partial(self._lead, calls), is_done)
                finally:  # always leave the queue; twice: an interrupt may cut the first short
                    if not calls[-1].done:
                        self._withdraw(calls)
            finally:
                if not calls[-1].done:
                    self._withdraw(calls)
            if self.upkeep is not None and self.length >= 1:
                self.upkeep.look(self)
        except BaseException as error:  # also of a signal handler
            if in_doubt(calls):
                if isinstance(error, TxlogError):
                    raise interrupted(error) from error
                note_doubt(error)
            raise

    def take_back(self, calls: list[Call]) -> bool:
        """Take enqueued calls out of the queue; False when a thread decides or has decided them."""
        return self._claim(calls)

    def _withdraw(self, calls: list[Call]) -> None:
        """Take calls of a leaving caller out of the queue; if a leader has them, wait for it."""
        if not self._claim(calls) and any(group is calls for group in self._leading):
            self._mutex.run(self._pass)

    def _pass(self) -> None:
        """Wait until the holder of the mutex is done."""

    def _claim(self, calls: list[Call]) -> bool:
        """Take calls out of the queue, in one step; False when another thread was faster."""
        try:
            self._queue.remove(calls)
        except ValueError:
            return False
        return True

    def _rehearse(self, calls: list[Call]) -> None:
        """Decide as write does, without lock or flush; only the view takes the frames."""
        for call in calls:
            try:
                self._rehearse_one(call)
            except TxlogError as error:
                call.error = error

    def _rehearse_one(self, call: Call) -> None:
        self._refresh()
        check_whole(self._view)
        view, now = self._view, self.clock.now()
        self._is_void = True
        if view.journal.lossy:
            view.journal.lossy = False
            draft = Draft(view, self.settings, now.wall_ms)
            transaction.recover_lossy(view, draft)
            if draft.ops:
                self._append(draft.decision(), now)
        self._load_named(call)
        self._sweep(view, now, [call])
        try:
            decision = self._noted(call.decide(view, now), now)
            encoded = self._appender.encoded(self.settings, decision)
        except TxlogError:
            self._keep_view()
            raise
        if decision.ops:
            self._appender.append(view, decision, encoded, now, is_awaited=False)
            self._adopt_settings()
        call.conclude(decision)
        self._is_void = False

    def check_process(self) -> None:
        """Raise AlreadyClosed in a forked child, before it takes a lock or uses a connection."""
        self._mutex.check_process()

    def need_writable(self) -> None:
        """Raise AlreadyClosed, or ReadOnlyStore where nothing may be changed."""
        if self._closed:
            self._need_open()
        if self.disk.read_only:
            raise ReadOnlyStore(
                f"{self.disk.description} is open for reading only", path=self.disk.description
            )

    def flush(self) -> None:
        """Make everything written so far durable and visible."""
        self.write(lambda view, now: Decision([], None, True))

    def _lead(self, own_calls: list[Call]) -> Owed | None:
        """Group commit (R12): one lock, every queued decision, one flush, all answers.

        returns: the group of the own calls, if it waits for a flush
        """
        if own_calls[-1].done:
            return None
        if (group := own_calls[-1].group) is not None:
            return Owed(group, self._next_flight(group))
        if own_calls not in self._queue and self._is_settled(own_calls):
            return None
        waiting = list(self._queue)
        try:
            try:
                decided = self._under_lock(partial(self._decide_queued, own_calls))
            finally:
                self._leading = []
        except TxlogError as error:  # no lock: calls that came meanwhile try themselves
            if in_doubt(own_calls):
                raise
            for calls in waiting:
                if self._claim(calls) or calls is own_calls:
                    for call in calls:
                        call.end(error)
            if are_done(own_calls):
                return None
            raise
        return None if decided is None else self._written(*decided, own_calls)

    def _is_settled(self, own_calls: list[Call]) -> bool:
        """End a call whose leader was interrupted; False when its own thread must decide it.

        Calls that share the frame of a transaction cannot be decided again.
        """
        error: TxlogError
        if in_doubt(own_calls):
            error = interrupted(InterruptedError("another thread was interrupted"))
        elif len(own_calls) > 1:
            error = TryAgain("another thread was interrupted; nothing was written")
        else:
            own_calls[0].renew()
            return False
        for call in own_calls:
            call.end(error)
        return True

    def _decide_queued(self, own_calls: list[Call]) -> tuple[list[Call], bool] | None:
        self._leading = list(self._queue)
        claimed = [*filter(self._claim, self._leading)]
        if own_calls not in claimed:  # a leader took it and was interrupted
            claimed.insert(0, own_calls)
        return self._run(claimed, own_calls)

    def _under_lock(self, act: Callable[[], T]) -> T:
        if self._closed:
            self._need_open()
        self._view.journal.lock_timeout_ms = timeout_ms = self.lock_timeout_ms
        return self._file_lock.run(act, timeout_ms, self._follow_ahead)

    def _follow_ahead(self) -> bool:
        """While waiting for the lock: take frames of other writers, so that fewer remain then."""
        if not self._is_void:
            self._is_void = True
            try:
                self._view.take(self._view.journal.follow())
            except (JournalMoved, TxlogError):
                return False  # the view is void; under the lock the cause shows again
            self._is_void = False
        return False

    def _run(
        self, groups: list[list[Call]], own_calls: list[Call], *, sync: bool = False
    ) -> tuple[list[Call], bool] | None:
        """Follow, then decide and write; a TxlogError becomes the outcome of the calls it concerns.

        returns: the decided calls, and whether one must be durable; None: all calls have ended
        """
        is_following = True
        calls = groups[0] if len(groups) == 1 else [call for group in groups for call in group]
        try:
            now = self.clock.now()
            has_swept = self._follow(calls, now)
            sync = has_swept or sync
            is_following = False
            for group in groups:
                if len(group) == 1:
                    sync = self._run_one(group[0], now, is_own=group is own_calls) or sync
                else:
                    sync = self._run_joined(group, now, is_own=group is own_calls) or sync
            if has_swept:  # no call may see the end of a transaction before it is durable
                for call in calls:
                    call.waits = True
        except TxlogError as error:
            self._fail(calls, error, is_following=is_following)
            return None
        return calls, sync

    def _written(self, calls: list[Call], sync: bool, own_calls: list[Call]) -> Owed | None:
        """After the write lock: end calls that need no flush; the others wait as a group.

        returns: the group, if the own calls are in it; else one of its own threads flushes
        """
        self._is_void = False
        journal = self._view.journal
        # without sync: an answer may show a frame whose durability others await
        lsn = journal.last_lsn if sync else journal.awaited_lsn
        is_durable = lsn <= journal.durable_lsn
        waiting = []
        for call in calls:
            if call.waits and not is_durable:
                waiting.append(call)
            else:
                call.done = True
        if is_durable or (calls and not waiting):
            return None
        group = Group(waiting, lsn, journal.place)
        if own_calls and own_calls[-1].done:
            return None
        return Owed(group, self._next_flight(group))

    def _turn(self, act: Callable[[], T], is_done: Callable[[], bool] | None = None) -> T | None:
        """Run an act under the mutex. If it owes a flush: without the mutex flush, or wait for the
        flush of another thread, until its group is over.

        If the flush fails, every call of the group fails with its error.
        returns: the result of the act, None if is_done: as `Mutex.run`
        """
        try:
            try:
                if is_done is None:
                    outcome: T | None = self._mutex.run(act)
                else:
                    outcome = self._mutex.run(act, is_done)
                if isinstance(outcome, Owed):
                    flight = outcome.flight
                    while flight is not None:
                        if flight.owner == get_ident():
                            flight.fly()
                        else:
                            flight.wait()
                        flight = self._mutex.run(partial(self._behind, flight, outcome.group))
                return outcome
            except BaseException:  # also of a signal handler
                self._land()
                raise
        except BaseException:  # twice: another interrupt may cut the first short
            self._land()
            raise

    def _land(self) -> None:
        """End the flight of this thread, if an interrupt has left one; it is cut short then."""
        self._view.journal.land()

    def _next_flight(self, group: Group) -> Flight | None:
        """The flight to fly or to wait for; None: the group is over."""
        flight = self._mutex.flight
        if flight is not None:
            if not flight.has_landed:
                return flight
            self._adopt(flight)
        try:
            return self._take_off(group)
        except TxlogError as error:
            self._land()  # it may have taken off
            self._end_unflushed(group, error)
            return None

    def _behind(self, flight: Flight, group: Group) -> Flight | None:
        """After a flight: end the group if it covers it; else the next flight, as _next_flight.

        Its failure is the outcome of the group of its own thread. Other groups go on like groups of
        other processes: their frames are copied to a new file, if they are still there (R13).
        """
        if self._mutex.flight is flight:
            self._adopt(flight)
        if group.is_over:
            return None
        if flight.error is not None and flight.owner == get_ident():
            self._end_unflushed(group, flight.error)
            return None
        if flight.is_durable and flight.lsn >= group.lsn and not self._is_void:
            try:
                self._end_durable(group)
            except TxlogError as error:
                self._end_unflushed(group, error)
            return None
        return self._next_flight(group)

    def _adopt(self, flight: Flight) -> None:
        """Take the outcome of a flight that has landed; unless it is durable, the view is void."""
        self._view.journal.adopt(flight)
        if not flight.is_durable:
            self._is_void = True
        self._mutex.flight = None

    def _take_off(self, group: Group) -> Flight | None:
        """Begin to make a group durable; None: it is, and over.

        raises: OutcomeUnknown; StoreLocked: a process holds the flush lock and makes no progress
        """
        if not self._is_whole():
            self._put_in_order()
        self._is_void = True
        sync = self.durability == "sync"
        journal = self._view.journal
        while (prepared := journal.take_off(group.lsn, sync=sync)) is None:
            # R13: with the write lock the frames go to a new file, and are durable there
            self._put_in_order()
            self._is_void = True
            journal = self._view.journal  # it may have been loaded anew
        if isinstance(prepared, Flight):
            self._mutex.flight = prepared
            if prepared.ahead:
                self._view.take(prepared.ahead)
            self._is_void = False
            return prepared
        if prepared:
            self._view.take(prepared)
        self._end_durable(group)
        self._is_void = False
        return None

    def _end_durable(self, group: Group) -> None:
        """End a group that is durable. Raises OutcomeUnknown, StoreNotFound."""
        self._view.journal.check_kept(group.place)
        if self.durability == "sync":  # the store may have been deleted while it was flushed
            self._need_witness()
        group.end()

    def _end_unflushed(self, group: Group, error: TxlogError) -> None:
        """End a group that could not be made durable; the view stays invalid."""
        self._is_void = True
        for call in group.calls:
            if not call.is_in_doubt and isinstance(call.error, TxlogError):
                call.error = again(error)  # the refusal rests on frames that may be lost
        self._fail(group.calls, error, is_following=False)
        group.end()

    def _put_in_order(self) -> None:
        """Follow and repair the journal under the write lock, outside of any call."""
        self._under_lock(partial(self._catch_up, self.clock.now()))
        self._is_void = False

    @staticmethod
    def _fail(calls: list[Call], error: TxlogError, *, is_following: bool) -> None:
        """If following or flushing failed, all calls end; the view stays invalid."""
        is_unknown = isinstance(error, OutcomeUnknown)
        for call in calls:
            if call.is_in_doubt:
                call.end(error if is_unknown else interrupted(error))
            elif is_following or not is_unknown or call.stage == NO_FRAME or call.error is not None:
                call.end(error)
            # an undecided call remains: its thread leads next

    def _run_one(self, call: Call, now: Instant, *, is_own: bool) -> bool:
        """Run a call in a frame of its own; returns whether the frame must be durable.

        `decide` is the caller's function: which view it decides on is known under the lock only.
        """
        view = self._view
        try:
            decision = self._noted(call.decide(view, now), now)
            encoded = self._appender.encoded(self.settings, decision)
        except OutcomeUnknown:
            raise
        except Exception as error:  # a refused decision fails alone (R12)
            is_stray = self._is_stray(error)
            if is_stray and not is_own:
                raise
            call.refuse(error)
            if is_stray:
                self._renew(now)  # the view may have been half changed
            return False
        call.waits = decision.waits or decision.sync or decision.error is not None
        if not decision.ops:
            call.conclude(decision)
            call.stage = NO_FRAME
            return decision.sync
        call.stage = WRITING
        try:
            is_awaited = self._is_awaited(decision)
            self._appender.append(view, decision, encoded, now, is_awaited=is_awaited)
        except NothingWritten as refused:
            call.refuse(refused.error)
            return False
        self._adopt_settings()
        call.conclude(decision)
        call.stage = WRITTEN
        return decision.sync

    def _is_awaited(self, decision: Decision[Any]) -> bool:
        """Whether the frame is flushed before its caller gets an answer.

        With durability `os` a frame that is not awaited is left to the operating system.
        """
        return decision.sync and (decision.outlasts or self.durability == "sync")

    def _is_stray(self, error: Exception) -> bool:
        """True for an error that no decision raises: a signal handler of this thread may have.

        If the call is another thread's, this thread raises it, and that thread decides again.
        """
        return not isinstance(error, TxlogError) or self._mutex.has_refused

    def _run_joined(self, calls: list[Call], now: Instant, *, is_own: bool) -> bool:
        """Run calls that share a frame; it is written once the last has decided."""
        sync, written = False, 0
        joined: list[Call] = []
        appender, view = self._appender, self._view
        try:
            for at, call in enumerate(calls):
                try:
                    decided = self._decide_joined(call, now, is_final=not joined)
                except Corruption:  # it may need rows of the frame that is not written yet
                    self._close_frame(joined)
                    joined, written = [], at
                    decided = self._decide_joined(call, now, is_final=True)
                if decided is None:
                    continue
                decision, encoded = decided
                if decision.batch is not None and not appender.fits(encoded[1]):
                    self._close_frame(joined)
                    joined, written = [], at
                # `_is_awaited`, without the call
                is_awaited = decision.sync and (decision.outlasts or self.durability == "sync")
                appender.join(view, decision, encoded, now, is_awaited=is_awaited)
                call.waits = decision.waits or decision.sync or decision.error is not None
                call.conclude(decision)
                if decision.ops:
                    joined.append(call)
                else:
                    call.stage = NO_FRAME
                sync = sync or decision.sync
            self._close_frame(joined)
            waits = any([call.waits for call in calls])  # the last to end ends the submission
            for call in calls:
                call.waits = waits
        except OutcomeUnknown:
            raise
        except NothingWritten as refused:  # the folds are ahead of the journal
            self._give_up(calls[written:], refused.error, now)
        except Exception as error:  # also of a signal handler: no call may stay undecided
            if in_doubt(joined) or not is_own:
                raise
            self._give_up(calls[written:], error, now)
        return sync

    def _decide_joined(
        self, call: Call, now: Instant, *, is_final: bool
    ) -> tuple[Decision[Any], Encoded] | None:
        """Decide a call that may share a frame; None: the decision refused, and only this call
        (R12).

        raises: Corruption, unless is_final
        """
        try:
            decision = call.decide(self._view, now)
            return decision, self._appender.encoded(self.settings, decision)
        except OutcomeUnknown:
            raise
        except TxlogError as error:
            if self._mutex.has_refused:
                raise NothingWritten(error) from error
            if isinstance(error, Corruption) and not is_final:
                raise
            call.refuse(error)
            return None

    def _close_frame(self, joined: list[Call]) -> None:
        for call in joined:
            call.stage = WRITING
        self._appender.close(self._view)
        for call in joined:
            call.stage = WRITTEN

    def _give_up(self, calls: list[Call], error: Exception, now: Instant) -> None:
        for call in calls:
            call.refuse(call.error or error)
        self._renew(now)

    def _renew(self, now: Instant) -> None:
        """Continue on a fresh view with the frames written so far."""
        self._appender.forget()
        self._reload()
        self._catch_up(now)

    def _follow(self, calls: list[Call], now: Instant) -> bool:
        """Catch up under the lock; recovery and the sweep write frames before the calls do."""
        self._catch_up(now)
        for call in calls:
            if call.coordinators:
                self._load_named(call)
        return self._sweep(self._view, now, calls)

    def _catch_up(self, now: Instant) -> None:
        """Read the frames after the view, and repair the journal's end; the view is invalid
        meanwhile.

        It stays invalid until the caller is done. The repair may need room, for a new journal file.
        """
        try:
            self._set_in_order(now)
        except StoreFull:
            if not self._appender.release_reserve():
                raise
            self._set_in_order(now)
        except TxlogError:
            self.need_there()  # the store was deleted: StoreNotFound replaces this error
            raise

    def _set_in_order(self, now: Instant) -> None:
        self._need_journal()
        if self._is_void:
            self._appender.forget()
            self._reload()
        self._is_void = True
        if self.identity.format < FORMAT:
            self.identity = raise_format(self.disk, self.identity)
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

    def _load_named(self, call: Call) -> None:
        for number in call.coordinators:
            if number < self.settings.coordinators:
                self._view.coordinator(number)

    def _sweep(self, view: View, now: Instant, calls: list[Call]) -> bool:
        """Write the sweep in a frame of its own; cheap while nothing can be due."""
        uses: list[CallScope] = []
        thorough = False
        for call in calls:
            if call.uses is not NOTHING:
                uses.append(call.uses)
            if call.thorough:
                thorough = True
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
        aborted = transaction.recover_lossy(self._view, draft)
        if draft.ops:
            self._append(draft.decision(sync=True), now)
        self._view.journal.flush()
        self._view.journal.confirm_boot()
        self._view.journal.lossy = False
        if aborted:
            self.reports.append(
                f"this copy was made while transactions were open: {aborted} aborted"
                if self._view.journal.is_new_copy
                else f"recovery aborted {aborted} open transactions: frames may have been lost"
            )

    def _append(self, decision: Decision[Any], now: Instant) -> None:
        """Write a frame that no caller waits for; raises StoreFull, DiskFailed: nothing done."""
        decision = self._noted(decision, now)
        encoded = self._appender.encoded(self.settings, decision)
        try:
            is_awaited = self._is_awaited(decision)
            self._appender.append(self._view, decision, encoded, now, is_awaited=is_awaited)
        except NothingWritten as refused:
            raise refused.error from refused
        self._adopt_settings()

    def _noted(self, decision: Decision[Any], now: Instant) -> Decision[None]:
        """The decision, with the state of the clocks added if it writes a frame and that is due."""
        noted = clock_trust.note(self._view, self.settings, now) if decision.ops else None
        if noted is None:
            return decision
        return Decision(
            [*decision.ops, noted],
            decision.batch,
            decision.sync,
            decision.answer,
            decision.error,
            outlasts=decision.outlasts,
        )

    def settle(self) -> None:
        """Make written frames durable and visible, if the lock is free at once (R22).

        A writer that died between its append and its flush leaves such frames; a reader that
        followed only the witness would miss them until the next write.
        """
        if self.disk.read_only or self._closed or self._view.damage is not None:
            return
        if self.has_unflushed():
            self._run_if_free([])

    def ask(self, question: Callable[[View], T], *, up_to_damage: bool = False) -> T:
        """The answer of a reading function over the newest state; does not wait for a lock.

        First makes the unflushed frames of a dead writer visible. up_to_damage: as for read
        """
        self.settle()
        return self.read(question, up_to_damage=up_to_damage)

    def sweep_if_due(self, uses: CallScope | None = None) -> None:
        """Before a reading call: sweep the state it uses (None: all), if the lock is free at once.

        A process that cannot write now, or at all, shows overdue transactions as recorded.
        """
        now = self.clock.now()
        if not self.disk.read_only and self.read(
            lambda view: is_sweep_due(view, self.settings, now, uses)
        ):
            decide: Decide = lambda view, now: Decision([])  # noqa: E731
            self._run_if_free([Call(decide, uses=uses or NOTHING, thorough=uses is None)])

    def _run_if_free(self, calls: list[Call]) -> None:
        self._turn(partial(self._run_at_once, calls))

    def _run_at_once(self, calls: list[Call]) -> Owed | None:
        self._need_open()
        if self._view.journal.is_flushing():
            return None  # its flusher raises the witness; a stopped process would block this call
        run = partial(self._run, [calls] if calls else [], calls, sync=True)
        decided = self._file_lock.run(run, None, otherwise=None)
        return None if decided is None else self._written(*decided, calls)

    # --- for maintenance ---------------------------------------------------------------------

    def locked(self, act: Callable[[View], T]) -> T:
        """Follow the journal under the write lock, run an act of maintenance, return its result."""
        return self._mutex.run(partial(self._locked, act))

    def _locked(self, act: Callable[[View], T]) -> T:
        return self._under_lock(partial(self._maintain, act))

    def _maintain(self, act: Callable[[View], T]) -> T:
        self._follow([], self.clock.now())
        answer = act(self._view)
        self._is_void = False
        return answer

    def cut(self, act: Callable[[View], T]) -> tuple[int, int, T]:
        """Start a new journal file, and run an act on the state at that cut (R14).

        Other processes may append as soon as the file exists; the view stays at the cut until the
        act returns. Returns (last LSN of the old file, its CRC, the act's result).
        """
        return self._mutex.run(partial(self._cut, act))

    def _cut(self, act: Callable[[View], T]) -> tuple[int, int, T]:
        lsn, crc = self._locked(lambda view: view.journal.cut())
        assert self._view.lsn == lsn
        self._is_void = True
        answer = act(self._view)
        self._is_void = False
        return lsn, crc, answer
