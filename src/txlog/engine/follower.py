"""Owns Follower: an open store as far as it is read, with a view that follows the journal.

    read(look)      read frames up to the witness, then run a function over the view; no lock
    refresh()       only the first
    dry run         the view stays where it was opened, behind every valid frame

A checkpoint of others may take files from under it: then it looks again over the newest (R21), or
loads everything anew. So it does behind an interrupt: what a frame has half done in the folds must
not be gone on with (R28).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from txlog.clock import Clock
from txlog.engine.identity import Identity
from txlog.engine.model.tally import Tally
from txlog.engine.mutex import Mutex
from txlog.engine.storage.disk_protocol import Disk
from txlog.engine.storage.journal import JournalMoved
from txlog.engine.view import View
from txlog.errors import AlreadyClosed, MissingFile
from txlog.settings import Settings

T = TypeVar("T")


class Follower:
    """The state of an open store that stays up to date; safe to call from many threads."""

    __slots__ = (
        "_asked_durability", "_closed", "_is_void", "_mutex", "_settings_changes", "_view", "clock",
        "disk", "dry_run", "durability", "identity", "recovered_ms", "reports", "settings", "tally",
    )  # fmt: skip

    def __init__(
        self, disk: Disk, clock: Clock, identity: Identity, *, durability: str | None,
        dry_run: bool = False,
    ) -> None:  # fmt: skip
        self.disk = disk
        self.dry_run = dry_run
        self.clock = clock
        self.identity = identity
        self.reports: list[str] = []
        self._mutex = Mutex(disk.pid)
        self._closed = False
        self._is_void = False  # the view is worth nothing: the next call loads it anew
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

    def _need_open(self) -> None:
        if self._closed:
            raise AlreadyClosed("the store is closed", hint="open it again")

    def close(self) -> None:
        """Close every descriptor."""
        with self._mutex:
            if not self._closed:
                self._closed = True
                self._view.close()

    def read(self, look: Callable[[View], T], *, fresh: bool = True) -> T:
        """Run a reading function over the newest durable state, alone among the threads.

        fresh: False for one that is about what this process has seen already
        It may run again, when files that it needs have been replaced since: until it returns it
        must leave nothing behind.
        """
        with self._mutex:
            if fresh or self._closed or self._is_void:
                self._refresh()
            while True:
                at = (self._view.lsn, self._view.manifest.generation)
                try:
                    return look(self._view)
                except MissingFile:
                    self._refresh()  # R21
                    if at == (self._view.lsn, self._view.manifest.generation):
                        raise
                except Exception:
                    raise
                except BaseException:  # an interrupt: what it was noting may be half done
                    self._is_void = True
                    raise

    def refresh(self) -> int:
        """Follow the journal up to the witness; returns the LSN of the view."""
        with self._mutex:
            self._refresh()
            return self._view.lsn

    def _refresh(self) -> None:
        self._need_open()
        if self._is_void:
            self._reload()
        if self.dry_run:
            return  # what it decided so far stands nowhere else
        try:
            self._view.take(self._view.journal.read_durable())
            self._view.adopt_manifest()
        except JournalMoved:
            self._reload()
        except BaseException:
            self._is_void = True
            raise
        self._adopt_settings()

    def reload(self) -> None:
        """Forget what is known, and read the newest manifest and the journal behind it."""
        with self._mutex:
            self._reload()

    def _reload(self) -> None:
        self._is_void = True
        self._view.close()
        self._view = self._load()
        self._is_void = False

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
            if self._is_void:
                self._reload()
            journal = self._view.journal
            journal.current.forget_window()
            return (
                not unseen and journal.durable_lsn < self._view.lsn
            ) or journal.current.read_header(journal.end) is not None

    def tail_bytes(self) -> tuple[int, int]:
        """(frames, bytes) behind the newest checkpoint, for deciding about the next one."""
        with self._mutex:
            view = self._view
            return view.lsn - view.manifest.cut_lsn, view.journal.end

    @property
    def is_long(self) -> bool:
        """True when the journal behind the newest checkpoint has grown past its settings.

        cost: two comparisons; no lock, so it may be of a moment ago
        """
        view, settings = self._view, self.settings
        return (
            view.lsn - view.manifest.cut_lsn >= settings.checkpoint_frames
            or view.journal.end >= settings.checkpoint_bytes
        )

    def replayed(self, look: Callable[[View], T]) -> T:
        """Run a reading function over a fresh view: the ops since the checkpoint wait in it."""
        with self._mutex:
            view = self._load()
            try:
                return look(view)
            finally:
                view.close()
