"""Owns Follower: a store as far as it is read, with a view that follows the journal.

    read(look)      read frames up to the witness, then run a function over the view; no lock
    refresh()       only the first
    damage          the journal's: what stands before it may be read by a caller that then raises
                    it; any other answer would be of an old state, so it raises at once
                    (spec/reliability 2.3)
    dry run         the view stays where it was opened, after every valid frame

A checkpoint of another process may take files from under it: then it looks again over the newest
one (R21), or loads everything anew. It does the same after anything that was broken off (R28): the
view counts as void from the first step that changes it until the last is done, and whoever finds it
void loads it anew.

Threads take turns by `Mutex`, whatever ends their calls. Who holds it is asked of the lock itself,
in one step of C, and never of what a call got round to noting: an interrupt may come between any
two steps of Python. Whether that call is still running is asked of the stack. So a hold that an
interrupt left behind can be told from a call that is under way.

1. A call from within a call of the same thread (from `__del__`, which the collector may run
   anywhere, or from a signal handler) would find everything half done: it is refused. What only
   cleans up is put off until the outer call has ended.
2. A child of a fork inherits the lock as it was at that moment. If another thread of its parent
   held it, nobody ever frees it there. With a plain lock the child would wait for ever; but its
   descriptors are closed, and it has to be told so (R27).
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from threading import RLock
from types import FrameType
from typing import Any, TypeVar

from txlog.clock import Clock
from txlog.engine.model.tally import Tally
from txlog.engine.storage.disk.protocol import Disk
from txlog.engine.storage.journal.journal import JournalMoved
from txlog.engine.store.identity import Identity
from txlog.engine.view.view import View
from txlog.errors import AlreadyClosed, Corruption, MissingFile, NotAllowed, TxlogError
from txlog.settings import Settings

T = TypeVar("T")


# --- turns -----------------------------------------------------------------------------------


class Mutex:
    """A lock that is free again when the call that took it has ended.

    has_refused: since the running call began, another was refused within it: its error may have
                 ended a step of the running one anywhere
    """

    __slots__ = ("_later", "_lock", "_owner", "_pid", "_report", "has_refused")

    def __init__(self, pid: Callable[[], int], report: Callable[[str], None] | None = None) -> None:
        self._lock: Any = RLock()  # typeshed does not know `_is_owned`, which Condition uses too
        self._pid = pid
        self._owner = pid()
        self._report = report
        self._later: deque[Callable[[], object]] = deque()
        self.has_refused = False

    def run(self, act: Callable[[], T]) -> T:
        """Run an act alone among the threads.

        Freed twice: an interrupt may end the first time anywhere, and the second time is for that.
        raises: NotAllowed, within a call that this thread is in; AlreadyClosed in a forked child
        """
        if self._pid() != self._owner:
            self._refuse_child()
        lock = self._lock
        if lock._is_owned():
            self._refuse_or_free()
        try:
            try:
                with lock:
                    self.has_refused = False
                    return act()
            finally:
                if lock._is_owned():
                    lock.release()
        finally:
            if self._later:
                self._tidy()

    def held(self) -> AbstractContextManager[object]:
        """For `with`, and its thread may come in again: for turns whose steps are calls themselves.

        It is taken and freed in one step of C each, where no signal comes between.
        """
        if self._pid() != self._owner:
            self._refuse_child()
        lock: AbstractContextManager[object] = self._lock
        return lock

    def is_inside(self) -> bool:
        """True within a call that this thread is in, from `__del__` or a signal handler."""
        if not self._lock._is_owned():
            return False
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame.f_code is _RUN and frame.f_locals.get("self") is self:
                return True
            frame = frame.f_back
        return False

    def put_off(self, act: Callable[[], object]) -> bool:
        """Within a call: have an act run when it has ended, and return True; else False.

        An error of it is reported, for nobody waits for it.
        """
        if not self.is_inside():
            return False
        self._later.append(act)
        return True

    def _refuse_child(self) -> None:
        raise AlreadyClosed(
            "the store was opened by another process, and this one is its child",
            hint="open it again, after the fork",
        )

    def _refuse_or_free(self) -> None:
        if self.is_inside():
            self.has_refused = True
            raise NotAllowed(
                "called from within another call on this store, from __del__ or a signal handler",
                hint="call it when that call has returned",
            )
        while self._lock._is_owned():  # two interrupts in a row left it
            self._lock.release()

    def _tidy(self) -> None:
        while self._later:
            try:
                act = self._later.popleft()
            except IndexError:  # another thread was quicker
                return
            try:
                act()
            except Exception as error:
                if self._report is not None:
                    self._report(f"what was put off within another call failed: {error}")


# --- following -------------------------------------------------------------------------------

_RUN = Mutex.run.__code__


def check_whole(view: View) -> None:
    """Raise Corruption (602) when the journal is damaged after this view."""
    if (damage := view.damage) is not None:
        raise damage


class Follower:
    """The state of an open store that stays up to date; safe to call from many threads."""

    __slots__ = (
        "_asked_durability",
        "_closed",
        "_is_void",
        "_mutex",
        "_settings_changes",
        "_view",
        "clock",
        "disk",
        "dry_run",
        "durability",
        "identity",
        "recovered_ms",
        "reports",
        "settings",
        "tally",
    )

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        identity: Identity,
        *,
        durability: str | None,
        dry_run: bool = False,
    ) -> None:
        self.disk = disk
        self.dry_run = dry_run
        self.clock = clock
        self.identity = identity
        self.reports: list[str] = []
        self._mutex = Mutex(disk.pid, self.note)
        self._closed = False
        self._is_void = False  # the view is worth nothing: the next call loads it anew
        self._asked_durability = durability
        self._settings_changes = -1
        self.settings = Settings()
        self.durability = durability or self.settings.durability
        began_ms = clock.now().wall_ms
        self.tally = Tally()
        self._view = self._load()  # also of a damaged journal (spec/reliability 2.3)
        self.recovered_ms = (began_ms, clock.now().wall_ms)  # when this process read the store
        self._adopt_settings()

    def _load(self) -> View:
        """A fresh view at the visible end; tried again when a checkpoint overtakes it."""
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
            return view

    @property
    def has_delays_to_look_at(self) -> bool:
        """True when this process changed a delayed index that nobody has looked after.

        It asks without the mutex: who changed it has done so, and asks afterwards.
        """
        return self._view.has_delays_to_look_at

    def note(self, report: str) -> None:
        """Keep a line for `reports`."""
        self.reports.append(report)

    def _need_open(self) -> None:
        if self._closed:
            raise AlreadyClosed("the store is closed", hint="open it again")

    def close(self) -> None:
        """Close every descriptor; within another call, when that has ended."""
        if not self.put_off(self.close):
            self._mutex.run(self._close)

    def _close(self) -> None:
        if not self._closed:
            self._closed = True
            self._view.close()

    def put_off(self, act: Callable[[], object]) -> bool:
        """Within a call of this thread (`__del__`, a signal handler): run an act after it.

        returns: whether it is put off; if not, the caller does it
        """
        return self._mutex.put_off(act)

    def read(
        self, look: Callable[[View], T], *, fresh: bool = True, up_to_damage: bool = False
    ) -> T:
        """Run a reading function over the newest durable state, alone among the threads.

        fresh: False for one that is about what this process has seen already
        up_to_damage: with a damaged journal look at what stands before the damage. Only for callers
               that raise the view's `damage` in the end; what is not found raises it here, as it
               may stand after it
        It may run again when files that it needs have been replaced: until it returns it must have
        no effect.
        raises: NotAllowed within another call of this thread, as every call here; what look raises;
                Corruption (602): the journal is damaged
        """
        return self._mutex.run(partial(self._look, look, fresh, up_to_damage))

    def _look(self, look: Callable[[View], T], fresh: bool, up_to_damage: bool) -> T:
        if fresh or self._closed or self._is_void:
            self._refresh()
        while True:
            damage = self._view.damage
            if damage is not None and not up_to_damage:
                raise damage
            at = (self._view.lsn, self._view.manifest.generation)
            self._is_void = True  # what it was noting may be half done, unless it says how it ended
            try:
                answer = look(self._view)
            except MissingFile:
                self._keep_view()
                self._refresh()  # R21
                if at == (self._view.lsn, self._view.manifest.generation):
                    raise
            except TxlogError as error:
                self._keep_view()
                if damage is not None and not isinstance(error, Corruption):
                    raise damage from error
                raise
            else:
                self._is_void = False
                return answer

    def _keep_view(self) -> None:
        """An error of ours ended a step where it can be refused, and the view is as it was.

        One from a call that was refused within this one may have come up anywhere.
        """
        self._is_void = self._mutex.has_refused

    def refresh(self) -> int:
        """Follow the journal up to the witness; returns the LSN of the view.

        raises: Corruption (602): it is damaged
        """
        return self._mutex.run(self._refreshed)

    def _refreshed(self) -> int:
        lsn = self._refresh()
        check_whole(self._view)
        return lsn

    def _refresh(self) -> int:
        self._need_open()
        if self._is_void:
            self._reload()
        if not self.dry_run:  # what it decided so far stands nowhere else
            self._is_void = True
            try:
                journal, known = self._view.journal, self._view.damage
                self._view.take(journal.read_durable(up_to_damage=True))
                self._view.adopt_manifest()
                if journal.damage is not None and (known is None or self._view.is_outdated):
                    self._reload()  # a checkpoint may stand after the damage
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
        """Forget what is known, and read the newest manifest and the journal after it."""
        self._mutex.run(self._made_anew)

    def _made_anew(self) -> View:
        self._reload()
        self._is_void = False
        return self._view

    def _reload(self) -> None:
        """Load the view anew; it is the caller who says that it is whole."""
        self._is_void = True
        self._view.close()
        self._view = self._load()

    def _adopt_settings(self) -> None:
        """Take the settings that the catalog has now; any process may have changed them."""
        catalog = self._view.catalog
        if catalog.settings_changes != self._settings_changes:
            self.settings = Settings.from_mapping(catalog.settings)
            self.durability = self._asked_durability or self.settings.durability
            self._settings_changes = catalog.settings_changes

    def _whole_view(self) -> View:
        return self._made_anew() if self._is_void else self._view

    def has_unflushed(self, *, unseen: bool = False) -> bool:
        """True when frames lie after the witness; unseen: when there are more than it holds."""

        def look() -> bool:
            view = self._whole_view()
            journal = view.journal
            journal.current.forget_window()
            is_behind = not unseen and journal.durable_lsn < view.lsn
            return is_behind or journal.current.read_header(journal.end) is not None

        return self._mutex.run(look)

    def tail_bytes(self) -> tuple[int, int]:
        """(frames, bytes) after the newest checkpoint, for deciding about the next one."""

        def look() -> tuple[int, int]:
            view = self._whole_view()
            return view.lsn - view.manifest.cut_lsn, view.journal.end

        return self._mutex.run(look)

    @property
    def length(self) -> float:
        """How long the journal after the newest checkpoint is; from 1 on another one is due.

        cost: two divisions; no lock, so it may be of a moment ago
        """
        view, settings = self._view, self.settings
        return max(
            (view.lsn - view.manifest.cut_lsn) / settings.checkpoint_frames,
            view.journal.end / settings.checkpoint_bytes,
        )

    def replayed(self, look: Callable[[View], T]) -> T:
        """Run a reading function over a fresh view: the ops since the checkpoint wait in it.

        The view is nobody else's, so this may be asked within a question.
        """
        self._need_open()
        view = self._load()
        try:
            check_whole(view)
            return look(view)
        finally:
            view.close()
