"""Owns Flusher: the flush of one handle of the journal, its lock, and what goes before fdatasync.

Only who holds `flush.lock` writes the witness. A flush is the kernel's promise about one descriptor
of one file, so this remembers what that promise does not cover by itself: the name of the file,
until its directory was flushed (R14), and frames that are older than the descriptor, whose
write-back may have failed before it was there to be told (R11). Since Linux 4.13 each descriptor
that was open hears of a failed write-back once, so frames that came later need nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from txlog.engine.storage.disk.protocol import Disk
from txlog.engine.storage.journal.file import JournalFile, JournalName, RawFrame
from txlog.engine.storage.journal.witness import Witness, Witnessed, boot_bytes
from txlog.engine.storage.section import Section

FLUSH_LOCK = "flush.lock"
LOCK_TIMEOUT_MS = 30_000  # until a store says otherwise
# For the flush lock, once a frame is in the file: giving up then leaves its outcome unknown.
WRITTEN_TIMEOUT_MS = 5_000
REWRITE_BYTES_MAX = 1 << 20  # of several frames by one call (R11)
T = TypeVar("T")
U = TypeVar("U")


def is_flush_broken(witnessed: Witnessed) -> bool:
    """True when a flush has failed, or nobody knows how it ended; of one under way, too."""
    return witnessed.poisoned or witnessed.flushing_lsn > witnessed.durable_lsn


class Flusher:
    """Runs acts under the flush lock, with the witness as it is then; see the module's docstring.

    boot: the boot of this process, as the witness writes it
    """

    __slots__ = (
        "_disk",
        "_foreign",
        "_section",
        "_synced_dir",
        "boot",
        "lock_timeout_ms",
        "witness",
    )

    def __init__(
        self, disk: Disk, salt: bytes, boot_id: str, note: Callable[[str], object]
    ) -> None:
        self._disk = disk
        self._section = Section(disk, FLUSH_LOCK, note)
        self._foreign: list[tuple[int, int, int]] = []  # (LSN, offset, bytes): R11
        self._synced_dir: JournalName | None = None
        self.boot = boot_bytes(boot_id)
        self.lock_timeout_ms = LOCK_TIMEOUT_MS
        self.witness = Witness(disk, salt)

    # --- the lock ----------------------------------------------------------------------------

    @property
    def written_timeout_ms(self) -> int:
        """How long whoever has a frame in the file waits for the lock."""
        return max(self.lock_timeout_ms, WRITTEN_TIMEOUT_MS)

    def run(self, act: Callable[[], T], *, is_written: bool = False) -> T:
        """Run an act under the flush lock; is_written: its frame is in the file.

        raises: StoreLocked; what the act raises
        """
        timeout_ms = self.written_timeout_ms if is_written else self.lock_timeout_ms
        return self._section.run(lambda: self._informed(act), timeout_ms)

    def run_unless(self, act: Callable[[], T], otherwise: U, is_done: Callable[[], bool]) -> T | U:
        """Run an act as for a frame in the file, unless it is done while the lock is waited for.

        returns: what the act does, or `otherwise`
        """
        timeout_ms = self.written_timeout_ms
        return self._section.run(
            lambda: self._informed(act), timeout_ms, is_done, otherwise=otherwise
        )

    def run_if_free(self, act: Callable[[], object]) -> None:
        """Run an act under the flush lock if nobody has it now."""
        self._section.run(lambda: self._informed(act), None, otherwise=None)

    def is_held(self) -> bool:
        """Whether a living process, which may be stopped, has the flush lock now."""
        return self._section.run(lambda: False, None, otherwise=True)

    def _informed(self, act: Callable[[], T]) -> T:
        self.witness.read()
        return act()

    # --- before fdatasync --------------------------------------------------------------------

    def stand_at(self, name: JournalName, *, is_published: bool = False) -> None:
        """The journal goes on in this file; is_published: its name is durable already."""
        self._foreign.clear()
        if is_published:
            self._synced_dir = name

    def note_older(self, frame: RawFrame) -> None:
        """A frame may be older than our descriptor of its file."""
        self._foreign.append((frame.lsn, frame.offset, frame.total_bytes))

    def forget_older(self) -> None:
        """A flush of ours has covered what was noted."""
        self._foreign.clear()

    def prepare(self, opened: JournalFile, durable_lsn: int) -> None:
        """Make what this descriptor's flush would not cover part of it (R11, R14)."""
        if self._synced_dir != opened.name:
            self._disk.sync_dir("journal")
            self._synced_dir = opened.name
        if not self._foreign:
            return
        at = stop = 0
        for lsn, offset, length in self._foreign:
            if lsn <= durable_lsn:
                continue
            if offset != stop or stop - at + length > REWRITE_BYTES_MAX:
                self._rewrite(opened, at, stop)
                at = offset
            stop = offset + length
        self._rewrite(opened, at, stop)

    @staticmethod
    def _rewrite(opened: JournalFile, start: int, stop: int) -> None:
        if stop > start:
            opened.file.pwrite(start, opened.file.pread(start, stop - start))

    # --- the witness -------------------------------------------------------------------------

    def is_of_boot(self, witnessed: Witnessed) -> bool:
        """Whether a record was written since the machine was started."""
        return witnessed.boot == self.boot

    def close(self) -> None:
        """Close every descriptor."""
        self.witness.close()
        self._section.close()
