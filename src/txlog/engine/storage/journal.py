"""The journal: the only file that is ever appended to; its end, its flush, and recovery.

One thread at a time uses a handle (the store's mutex). It appends only while its caller holds the
write lock: catch_up, append (written). Then comes flush (mark, fdatasync, raise), under a lock of
its own, so that other processes append meanwhile; one flush covers all frames appended before it.
Only the holder of the flush lock writes the witness. A process that needs both locks takes the
write lock first.

A Flight is a flush that goes on without the mutex, so that other threads of its process append
meanwhile, too: take_off (mark) under the mutex, fly (fdatasync, raise) without it, adopt under it
again. The flush lock belongs to the flight until it has landed. flock does not keep threads of one
process apart, so the Flusher does: a thread that needs the flush lock waits for the landing, and
the journal reports that a process flushes.

Invariants
  1. Frames form one chain: lsn + 1, the previous CRC, the place in the file.
  2. Everything at or below `durable_lsn` has been covered by a completed flush.
  3. The same bytes are never flushed twice after a failure (R13): a failed handle answers nothing
     more, and the next one rolls the frames forward, encoded anew, into another file.
  4. Bytes cut from the journal are in `quarantine/` first (R4).
  5. A frame that a flush may have covered is not taken back (cut_back checks under its lock).
Source: spec/reliability 2.2 and 2.3, Laws 2 and 3.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from threading import Lock, get_ident
from typing import Any, TypeVar

import msgspec

from txlog.engine.storage.checked import HINT
from txlog.engine.storage.disk.locks import FileLock
from txlog.engine.storage.disk.protocol import Disk
from txlog.engine.storage.frame import (
    FILE_HEADER_BYTES,
    FILE_VERSION,
    FILL_BYTES,
    FRAME_BYTES_MAX,
    Buffer,
    JournalFile,
    JournalName,
    RawFrame,
    Witness,
    WitnessRecord,
    attested_lsn,
    boot_bytes,
    encode,
    joined,
    list_journals,
    publish_journal,
)
from txlog.errors import (
    Corruption,
    LimitExceeded,
    MissingFile,
    OutcomeUnknown,
    StoreLocked,
    TxlogError,
)

# --- rolling forward -------------------------------------------------------------------------


def place_of(opened: JournalFile, lsn: int) -> tuple[int, int]:
    """(offset of frame lsn, chain CRC before it) in a journal file; raises Corruption."""
    at, chain, number = FILE_HEADER_BYTES, opened.chain_crc, opened.name.first_lsn
    while number < lsn:
        frame = opened.read_frame(at, number, chain)
        if frame is None:
            raise broken(opened, at, number, lsn)
        at, chain, number = at + frame.total_bytes, frame.crc, number + 1
    return at, chain


def rebased(
    opened: JournalFile, span: tuple[int, int], lsn: int, chain: int
) -> tuple[list[Buffer], int]:
    """The frames of a span, encoded for a new file where offsets and CRCs differ.

    lsn, chain: the number of the first, and the CRC before it
    returns: their bytes, and the CRC of the last; raises Corruption
    """
    out: list[Buffer] = []
    start, end = span
    frames = opened.file.pread(start, end - start)
    at, target, previous = 0, FILE_HEADER_BYTES, chain
    while at < len(frames):
        frame = opened.read_frame(start + at, lsn, chain)
        if frame is None:
            raise broken(opened, start + at, lsn, lsn)
        rows_at = frame.rows_offset - start
        parts, total, crc = encode(
            lsn=lsn,
            durable_lsn=frame.durable_lsn,
            time_ms=frame.time_ms,
            offset=target,
            ops=frame.ops,
            rows=frames[rows_at : rows_at + frame.rows_bytes],
            columns=frame.columns,
            salt=opened.salt,
            previous_crc=previous,
            is_awaited=frame.is_awaited,
        )
        out.extend(parts)
        chain, previous = frame.crc, crc
        at, target, lsn = at + frame.total_bytes, target + total, lsn + 1
    return out, previous


def broken(opened: JournalFile, at: int, first: int, last: int) -> Corruption:
    """The error for a journal file in which durable frames cannot be read."""
    path = opened.name.path
    return Corruption(
        f"{path} is damaged at byte {at}: LSN {first} to {last} were durable and cannot be read",
        hint=HINT,
        path=path,
        offset=at,
        lsn=first,
        last_lsn=last,
    )


# --- the flush -------------------------------------------------------------------------------


FLUSH_LOCK = "flush.lock"
LOCK_TIMEOUT_MS = 30_000  # until a store says otherwise
# For the flush lock, once a frame is in the file: after that, a time-out is an unknown outcome.
WRITTEN_TIMEOUT_MS = 5_000
LOOK_AGAIN_S = 0.1  # a thread that waits for a landing looks again, in case its wake-up was lost
REWRITE_BYTES_MAX = 1 << 20  # bytes of frames rewritten by one call (R11)
T = TypeVar("T")


class Flight:
    """A flush under way, which needs no mutex until it has landed.

    lsn:        of the last frame that it covers
    ahead:      covered frames of other processes that the caller had not seen
    owner:      the thread that flies
    settled:    the record of the witness when the tail was last in order, before it
    record:     the record that it wrote
    is_durable: it has landed, and the witness counts its frames as durable
    error:      why it failed; neither of both: it was cut short, and its mark stays (R13)
    """

    __slots__ = (
        "_flusher",
        "_gate",
        "_mark",
        "_opened",
        "ahead",
        "error",
        "has_landed",
        "is_durable",
        "lsn",
        "owner",
        "record",
        "settled",
    )

    def __init__(
        self,
        flusher: Flusher,
        opened: JournalFile,
        mark: WitnessRecord,
        ahead: list[RawFrame],
        lsn: int,
        settled: WitnessRecord | None,
    ) -> None:
        self._flusher, self._opened, self._mark = flusher, opened, mark
        self._gate: Any = Lock()
        self._gate.acquire()
        self.ahead, self.lsn, self.settled = ahead, lsn, settled
        self.owner = get_ident()
        self.record: WitnessRecord | None = None
        self.error: OutcomeUnknown | None = None
        self.is_durable = self.has_landed = False

    def fly(self) -> None:
        """Flush, raise the witness, and free the flush lock. Raises what a signal handler raises.

        Errors of the disk are in `error`. A flight that has landed does not fly again.
        """
        if self.has_landed:
            return
        try:
            try:
                self._fly()
            finally:
                self.land()
        finally:
            if not self.has_landed:
                self.land()

    def _fly(self) -> None:
        mark, witness = self._mark, self._flusher.witness
        first = mark.durable_lsn + 1
        try:
            self._opened.file.datasync()
        except TxlogError as exc:
            self.error = self._unknown(f"the flush of LSN {first} to", exc)
            poisoned = msgspec.structs.replace(mark, poisoned=True)
            try:
                witness.write(poisoned, after=mark)
            except TxlogError:
                self._flusher.note("the witness could not be marked after a failed write")
            return
        record = msgspec.structs.replace(mark, durable_lsn=self.lsn, flushing_lsn=0)
        try:
            witness.write(record, after=mark)
        except TxlogError as exc:  # durable, but visible only once a witness covers it
            self.error = self._unknown("the witness of LSN", exc)
            return
        self.record = record
        self.is_durable = True

    def _unknown(self, action: str, exc: Exception) -> OutcomeUnknown:
        return unknown_flush(action, self.lsn, self._opened.name.path, exc)

    def land(self) -> None:
        """Free the lock, and let the waiting threads go on; nothing if that is done."""
        if not self.has_landed:
            self._flusher.free()
            self.has_landed = True
        try:
            self._gate.release()
        except RuntimeError:  # it is open
            return

    def wait(self) -> None:
        """Wait until it has landed."""
        while not self.has_landed:
            if self._gate.acquire(True, LOOK_AGAIN_S):
                self._gate.release()


def unknown_flush(action: str, lsn: int, path: str, exc: Exception) -> OutcomeUnknown:
    """The error of a caller whose frames, up to an LSN, may not be durable."""
    return OutcomeUnknown(
        f"{action} {lsn} failed: {exc}",
        hint="ask by id, or repeat the call with the same producer and sequence",
        lsn=lsn,
        path=path,
    )


def is_flush_broken(witnessed: WitnessRecord) -> bool:
    """True when a flush has failed, or its end is unknown; also while a flush is under way."""
    return witnessed.poisoned or witnessed.flushing_lsn > witnessed.durable_lsn


class Flusher:
    """The flush of one handle: runs acts under the flush lock, with the witness as it is then.

    Only the holder of `flush.lock` writes the witness. A flush is the kernel's promise about one
    descriptor of one file. It does not cover two things, which this class remembers: the name of
    the file, until its directory was flushed (R14), and frames older than the descriptor, whose
    write-back may have failed before this descriptor could get the error (R11). Since Linux 4.13
    each open descriptor gets the error of a failed write-back once, so later frames need nothing.

    boot: the boot of this process, in the bytes of the witness
    """

    __slots__ = (
        "_disk",
        "_file_lock",
        "_foreign",
        "_synced_dir",
        "boot",
        "flight",
        "lock_timeout_ms",
        "note",
        "witness",
    )

    def __init__(
        self, disk: Disk, salt: bytes, boot_id: str, note: Callable[[str], object]
    ) -> None:
        self._disk = disk
        self._file_lock = FileLock(disk, FLUSH_LOCK, note)
        self.note = note
        self.flight: Flight | None = None  # the last one
        self._foreign: list[tuple[int, int, int]] = []  # (LSN, offset, bytes): R11
        self._synced_dir: JournalName | None = None
        self.boot = boot_bytes(boot_id)
        self.lock_timeout_ms = LOCK_TIMEOUT_MS
        self.witness = Witness(disk, salt)

    # --- the lock ----------------------------------------------------------------------------

    @property
    def written_timeout_ms(self) -> int:
        """How long a caller whose frame is in the file waits for the lock."""
        return max(self.lock_timeout_ms, WRITTEN_TIMEOUT_MS)

    def run(self, act: Callable[[], T], *, is_written: bool = False) -> T:
        """Run an act under the flush lock; is_written: the caller's frame is in the file.

        raises: StoreLocked; errors of the act
        """
        timeout_ms = self.written_timeout_ms if is_written else self.lock_timeout_ms
        self.await_landing()
        return self._file_lock.run(lambda: self._informed(act), timeout_ms)

    def take_off(
        self, prepare: Callable[[], Flight | T], otherwise: T, is_done: Callable[[], bool]
    ) -> Flight | T:
        """Run an act under the flush lock, which a flight that it returns keeps until it has
        landed.

        It waits for the lock as for a written frame.
        is_done: called while waiting; True: the work is done
        returns: the result of the act, or `otherwise` if it did not run
        """
        self.await_landing()
        self.flight = None
        try:
            try:
                if not self._file_lock.take(self.written_timeout_ms, is_done):
                    return otherwise
                outcome = self._informed(prepare)
                if isinstance(outcome, Flight):
                    self.flight = outcome
                return outcome
            finally:
                if self.flight is None:
                    self._file_lock.free()
        finally:
            if self.flight is None:
                self._file_lock.free()

    def free(self) -> None:
        """Free the lock that a flight has kept."""
        self._file_lock.free()

    def land_own(self) -> None:
        """End the flight of this thread if it has not landed; it is cut short then."""
        flight = self.flight
        if flight is not None and not flight.has_landed and flight.owner == get_ident():
            flight.land()

    @property
    def is_flying(self) -> bool:
        """Whether a flight of this handle keeps the flush lock."""
        return self.flight is not None and not self.flight.has_landed

    def await_landing(self) -> None:
        """Wait until no flight of this handle keeps the flush lock."""
        flight = self.flight
        if flight is None or flight.has_landed:
            return
        if flight.owner == get_ident():  # an interrupt has left it
            flight.land()
        else:
            flight.wait()

    def run_if_free(self, act: Callable[[], object]) -> None:
        """Run an act under the flush lock if no process holds it now."""
        if not self.is_flying:
            self._file_lock.run(lambda: self._informed(act), None, otherwise=None)

    def is_held(self) -> bool:
        """Whether a living process, which may be stopped, holds the flush lock now."""
        return self.is_flying or self._file_lock.run(lambda: False, None, otherwise=True)

    def _informed(self, act: Callable[[], T]) -> T:
        self.witness.read()
        return act()

    # --- before fdatasync --------------------------------------------------------------------

    def stand_at(self, name: JournalName, *, is_published: bool = False) -> None:
        """Continue in this file; is_published: its name is durable already."""
        self._foreign.clear()
        if is_published:
            self._synced_dir = name

    def note_older(self, frame: RawFrame) -> None:
        """Note a frame that may be older than our descriptor of its file."""
        self._foreign.append((frame.lsn, frame.offset, frame.total_bytes))

    def forget_older(self, lsn: int) -> None:
        """Forget the noted frames up to an LSN: a flush of this handle has covered them."""
        if self._foreign:
            self._foreign = [noted for noted in self._foreign if noted[0] > lsn]

    def prepare(self, opened: JournalFile, durable_lsn: int) -> None:
        """Make this descriptor's flush cover the file's name and older frames, too (R11, R14)."""
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

    def is_of_boot(self, witnessed: WitnessRecord) -> bool:
        """Whether a record was written since the machine was started."""
        return witnessed.boot == self.boot

    def close(self) -> None:
        """Close every descriptor, once no flight needs them."""
        self.await_landing()
        self.witness.close()
        self._file_lock.close()


# --- the journal -----------------------------------------------------------------------------

# A larger frame is written straight to the end: filling with zeros first would write it twice.
FILL_FRAME_BYTES_MAX = 256 << 10
WITNESS_LOOKS_MAX = 5


class JournalMoved(Exception):
    """The journals this handle was reading are deleted or rewritten: load the newest manifest."""


class Journal:
    """Reads and appends frames; see the module's docstring."""

    __slots__ = (
        "_ahead",
        "_attested",
        "_checked_tail",
        "_cut",
        "_disk",
        "_files",
        "_flushed_lsn",
        "_flusher",
        "_has_looked_ahead",
        "_is_barred",
        "_is_first_pass",
        "_settled",
        "_unsure",
        "awaited_lsn",
        "chain_crc",
        "current",
        "damage",
        "durable_lsn",
        "end",
        "is_new_copy",
        "last_lsn",
        "lossy",
        "poisoned",
        "reports",
        "salt",
        "witness",
    )

    def __init__(self, disk: Disk, salt: bytes, boot_id: str) -> None:
        self._disk = disk
        self.salt = salt
        self.reports: list[str] = []
        self._flusher = Flusher(disk, salt, boot_id, self.reports.append)
        self.witness = self._flusher.witness
        self._files: dict[JournalName, JournalFile] = {}
        self._is_first_pass = True  # frames may be older than our descriptor of their file
        self._unsure: tuple[int, int, int] | None = None  # (LSN, offset, CRC) read without a lock
        self.awaited_lsn = 0  # the newest frame whose writer answers only once it is durable
        self._attested = 0
        self._ahead = 0  # the LSN that frames after the witness prove durable
        self._has_looked_ahead = False
        self._is_barred = False  # the header after the checkpoint is bad: reads return nothing
        self._cut = 0
        self._checked_tail = False
        self._settled: WitnessRecord | None = None  # the record when the tail was last in order
        self.chain_crc = 0
        self.damage: Corruption | None = None  # where reading stopped before the durable end
        self.durable_lsn = 0
        self._flushed_lsn = 0  # up to here this handle has flushed the frames itself
        self.end = 0
        self.last_lsn = 0
        self.lossy = False
        self.is_new_copy = False  # lossy because this is a copy that was never written to
        self.poisoned = False
        self.current: JournalFile

    def open_at(self, cut_lsn: int, chain_crc: int, *, up_to_damage: bool = False) -> None:
        """Continue after frame cut_lsn, whose CRC the manifest gives.

        up_to_damage: if the header of the next file is bad, stay before it: until a repair, every
                      read reports the damage
        raises:       JournalMoved; Corruption, without up_to_damage
        """
        name = self._name_behind(cut_lsn)
        try:
            try:
                self._files[name] = self._continuing(name, chain_crc)
            except Corruption as error:
                if not up_to_damage or isinstance(error, MissingFile):
                    raise
                self._files[name] = JournalFile(self._disk, name, self.salt, chain_crc=chain_crc)
                self._is_barred = True
        except MissingFile as exc:
            raise JournalMoved from exc
        self._stand_at(name, cut_lsn)
        self._cut = cut_lsn
        self.durable_lsn = max(self.durable_lsn, cut_lsn)

    def _name_behind(self, cut_lsn: int) -> JournalName:
        """The file that continues after a checkpoint; raises JournalMoved."""
        names = [name for name in list_journals(self._disk) if name.first_lsn <= cut_lsn + 1]
        if not names or names[-1].first_lsn != cut_lsn + 1:
            raise JournalMoved
        return names[-1]

    def _continuing(self, name: JournalName, chain_crc: int) -> JournalFile:
        """Open a file whose first frame follows the one with this CRC; raises Corruption."""
        opened = JournalFile(self._disk, name, self.salt)
        if opened.chain_crc != chain_crc:
            opened.close()
            raise Corruption(
                f"{name.path} does not continue the checkpoint at LSN {name.first_lsn - 1}",
                hint=HINT,
                path=name.path,
                offset=32,
                lsn=name.first_lsn,
            )
        return opened

    def _barred(self) -> Corruption | None:
        """The error of the bad header that this handle stays before; None without one.

        raises: JournalMoved: the header has been repaired since
        """
        if not self._is_barred:
            return None
        try:
            if self._name_behind(self.last_lsn) == self.current.name:
                self._continuing(self.current.name, self.chain_crc).close()
        except MissingFile as exc:
            raise JournalMoved from exc
        except Corruption as error:
            return error
        raise JournalMoved

    def _stand_at(self, name: JournalName, last_lsn: int) -> None:
        self._settled = None
        self.current = self.file(name)
        self.current.forget_window()
        self.chain_crc = self.current.chain_crc
        self.end = FILE_HEADER_BYTES
        self.last_lsn = last_lsn
        self._flusher.stand_at(name)
        self._is_first_pass = True
        self._unsure = None
        self._checked_tail = False

    def file(self, name: JournalName) -> JournalFile:
        """An open file by name; it is closed again once many others have been opened.

        raises: MissingFile: another process's checkpoint removed it; the view must follow (R21)
        """
        opened = self._files.get(name)
        if opened is None:
            limit, current = self._disk.files_kept(), getattr(self, "current", None)
            for other in list(self._files)[: max(0, len(self._files) + 1 - limit)]:
                if self._files[other] is not current:
                    self._files.pop(other).close()
            opened = self._files[name] = JournalFile(self._disk, name, self.salt)
        return opened

    def forget_before(self, lsn: int) -> None:
        """Close files whose frames are all at or below lsn."""
        names = sorted(self._files)
        for name, next_name in pairwise(names):
            if next_name.first_lsn <= lsn + 1 and name != self.current.name:
                self._files.pop(name).close()

    # --- reading -----------------------------------------------------------------------------

    def read_durable(self, *, up_to_damage: bool = False) -> list[RawFrame]:
        """Frames after the last one read, up to the witness; takes no lock, changes nothing.

        After a reboot every valid frame came from the disk, so this returns all (R22).
        up_to_damage: if durable frames cannot be read, return the frames before them, which were
                      durable too, and set `damage`
        raises:       JournalMoved; Corruption, without up_to_damage
        """
        frames = self._read_durable()
        if self.damage is not None and not up_to_damage:
            raise self.damage
        return frames

    def _read_durable(self) -> list[RawFrame]:
        witnessed = self.witness.read()
        self.damage = self._barred()
        if self.damage is not None:
            return []
        if witnessed is not None and witnessed.boot == self._flusher.boot:
            durable, frames = witnessed.durable_lsn, []
            if durable > self.last_lsn:
                frames = self._read_on(durable, witnessed, is_reader=True)
                if self._stops_before(durable):
                    return frames
            if self.witness.is_damaged or not self._has_looked_ahead:
                frames += self._read_ahead(witnessed)
                durable = max(durable, self._ahead)
            self.durable_lsn = max(self.durable_lsn, durable)
            return frames
        frames = self._read_on(None, witnessed, is_reader=True)
        if not self._has_looked_ahead and self.damage is None:
            self._has_looked_ahead = True
            while (proven := self._attested_behind()) > self.last_lsn:
                more = self._read_on(None, witnessed, is_reader=True)  # another process is writing
                frames += more
                if not more:
                    self._attested = max(self._attested, proven)
                    break
        known_lsn = max(
            self._cut, self._attested, 0 if witnessed is None else witnessed.durable_lsn
        )
        if not self._stops_before(known_lsn):
            self.durable_lsn = self.last_lsn
        return frames

    def _stops_before(self, known_lsn: int) -> bool:
        """Whether a frame up to a known durable LSN is damaged; frames before it are durable."""
        if self.damage is None and self.last_lsn < known_lsn:
            self._check_moved()
            self.damage = self._broken(known_lsn)
        if self.damage is not None:
            self.durable_lsn = max(self.durable_lsn, min(self.last_lsn, known_lsn))
        return self.damage is not None

    def _read_ahead(self, witnessed: WitnessRecord) -> list[RawFrame]:
        """Frames after the witness that later frames prove durable; reports problems of the
        witness.

        It may be an older copy, or its newest record may be damaged. The handle checks this at
        opening, and while a record is damaged.
        """
        for _ in range(WITNESS_LOOKS_MAX):  # a record may be read while it is being written
            if not self.witness.is_damaged:
                break
            self.witness.read()
        if self.witness.is_damaged and not self._has_looked_ahead:
            self.reports.append(
                "a record of journal/witness is damaged: the latest messages may be hidden until "
                "the next write"
            )
        self._has_looked_ahead = True
        self._ahead = self._proven()
        if self._ahead <= self.last_lsn:
            return []
        reread = self.witness.read()
        known_lsn = witnessed.durable_lsn if reread is None else reread.durable_lsn
        if known_lsn < self._ahead and not self.witness.is_damaged:
            self.reports.append(
                f"journal/witness is older than the journal: it knows of LSN {known_lsn}, frames "
                f"prove LSN {self._ahead}"
            )
        return self._read_on(self._ahead, None)

    def _proven(self) -> int:
        """The highest LSN that valid frames after the last one read declare durable (R8)."""
        file, at, lsn, crc = self.current, self.end, self.last_lsn, self.chain_crc
        file.forget_window()
        younger = [name for name in list_journals(self._disk) if name > file.name]
        highest = self._attested
        while True:
            if younger and lsn + 1 >= younger[0].first_lsn:
                try:
                    file = self.file(younger.pop(0))
                except Corruption:
                    break  # the next read reports it
                at, lsn, crc = FILE_HEADER_BYTES, file.name.first_lsn - 1, file.chain_crc
                file.forget_window()
                highest = max(highest, lsn)  # R14: the previous file was flushed
                continue
            frame = file.read_frame(at, lsn + 1, crc)
            if frame is None:
                break
            at, lsn, crc = frame.offset + frame.total_bytes, frame.lsn, frame.crc
            highest = max(highest, frame.durable_lsn)
        return min(highest, lsn)

    def read_valid(self) -> list[RawFrame]:
        """Every valid frame after the last one read, flushed or not; changes nothing.

        A writer would find the same, so a dry run uses it. `lossy` is set as by catch_up, and
        `damage` is the error that catch_up would raise.
        """
        witnessed = self.witness.read()
        self.lossy = witnessed is None or witnessed.boot != self._flusher.boot or witnessed.poisoned
        self.damage = self._barred()
        if self.damage is not None:
            return []
        frames = self._read_on(None, witnessed)
        known_lsn = max(
            self._cut, self._attested, 0 if witnessed is None else witnessed.durable_lsn
        )
        self.damage = self._broken(known_lsn) if self.last_lsn < known_lsn else None
        return frames

    def read_until(self, lsn: int) -> list[RawFrame]:
        """Frames after the last one read up to lsn, all known to be durable; raises Corruption."""
        frames = self._read_on(lsn, None)
        if self.last_lsn < lsn:
            raise self._broken(lsn)
        return frames

    def has_more(self) -> bool:
        """Whether a frame follows the last one read, flushed or not; reads no frame.

        It may be the first of a newer file. The last record read of the witness names that file.
        """
        self.current.forget_window()
        if self.current.read_header(self.end) is not None:
            return True
        newest = self.witness.last
        if newest is None:
            return False
        name = JournalName(newest.journal, newest.rewrite)
        if name <= self.current.name:
            return False
        try:
            opened = self.file(name)
        except (MissingFile, Corruption):  # the next read follows, or reports it
            return True
        opened.forget_window()
        return opened.read_header(FILE_HEADER_BYTES) is not None

    def _read_on(
        self, stop_lsn: int | None, witnessed: WitnessRecord | None, *, is_reader: bool = False
    ) -> list[RawFrame]:
        """Frames up to an LSN, or the last valid one.

        raises: JournalMoved; Corruption: of a newer file, which becomes `damage` for a reader
        """
        out: list[RawFrame] = []
        self.current.forget_window()
        here = self.current.name
        # a witness of an earlier boot may be older than the files: look for newer files
        settled = witnessed is not None and (
            witnessed.boot,
            witnessed.journal,
            witnessed.rewrite,
        ) == (self._flusher.boot, here.first_lsn, here.rewrite)
        younger = [] if settled else [n for n in list_journals(self._disk) if n > here]
        # R11 concerns only unflushed frames: the process that raised the witness flushed the others
        durable = self.durable_lsn if stop_lsn is None else stop_lsn
        if witnessed is not None and witnessed.boot == self._flusher.boot:
            durable = max(durable, witnessed.durable_lsn)
        while stop_lsn is None or self.last_lsn < stop_lsn:
            if younger and self.last_lsn + 1 >= younger[0].first_lsn:
                try:
                    self._switch(younger.pop(0))
                except Corruption as error:  # every frame before it was flushed (R14)
                    if not is_reader:
                        raise
                    self.damage = error
                    break
                continue
            frame = self.current.read_frame(self.end, self.last_lsn + 1, self.chain_crc)
            if frame is None:
                break
            self.last_lsn = frame.lsn
            self.chain_crc = frame.crc
            self.end = frame.offset + frame.total_bytes
            self._attested = max(self._attested, frame.durable_lsn)
            out.append(frame)
            if frame.is_awaited:
                self.awaited_lsn = frame.lsn
            if self._is_first_pass and frame.lsn > durable:
                self._flusher.note_older(frame)
        if stop_lsn is None:
            self._is_first_pass = False
        return out

    def _switch(self, name: JournalName) -> None:
        """Continue in a newer file.

        raises: JournalMoved: it repeats frames that this handle has read (R13). The copies may
                differ: the new file lacks frames that their writer took back, or that a failed
                flush lost
        """
        if name.first_lsn <= self.last_lsn:
            raise JournalMoved
        try:
            opened = self.file(name)
        except MissingFile as exc:
            raise JournalMoved from exc
        if name.first_lsn == self.last_lsn + 1 and opened.chain_crc != self.chain_crc:
            raise Corruption(
                f"{name.path} does not continue the chain",
                path=name.path,
                offset=32,
                lsn=name.first_lsn,
            )
        self._stand_at(name, name.first_lsn - 1)

    def _check_moved(self) -> None:
        """Raise JournalMoved if two checkpoints by others deleted this file and the next: no
        damage.
        """
        if self.current.name not in list_journals(self._disk):
            raise JournalMoved

    def _broken(self, known_lsn: int) -> Corruption:
        return broken(self.current, self.end, self.last_lsn + 1, known_lsn)

    # --- recovery, under the write lock ------------------------------------------------------

    def catch_up(self) -> list[RawFrame]:
        """Read new frames of other processes and repair the tail; only under the write lock.

        raises:  Corruption, when bytes known to be durable are damaged; JournalMoved
        returns: the new frames, all valid; `lossy` is set when answered frames may be lost
        source:  the decision table of spec/reliability 2.3
        """
        settled = self._settled
        if (
            settled is not None
            and self._unsure is None
            and self.witness.is_last(settled)
            and (self.current.ends_at(self.end))
        ):
            return []  # no other writer since this handle settled or raised the witness
        self.damage = None
        witnessed = self.witness.read()
        if (barred := self._barred()) is not None:
            raise barred
        self._make_sure()
        frames = self._read_on(None, witnessed)
        known_lsn = max(
            self._cut, self._attested, 0 if witnessed is None else witnessed.durable_lsn
        )
        known_lsn = max(known_lsn, self.current.name.first_lsn - 1)  # R14: older files were flushed
        if self.last_lsn < known_lsn:
            self._check_moved()
            raise self._broken(known_lsn)
        rebooted = witnessed is not None and witnessed.boot != self._flusher.boot
        if not (self._checked_tail and self.current.is_blank(self.end)):
            self._settle_tail(known_lsn)
            self._checked_tail = True
        if witnessed is None:
            # its boot is unknown, so this may follow a power cut; confirm_boot rewrites it
            self.reports.append("both witness records were damaged: rewritten")
            self.lossy = True
            self.durable_lsn = known_lsn
        elif rebooted:
            self.lossy = True
            self.is_new_copy = witnessed.boot == boot_bytes("")
            self.durable_lsn = known_lsn
        else:
            self.durable_lsn = max(self.durable_lsn, known_lsn)
            if witnessed.poisoned:
                self._flusher.run(self._put_right)
            elif witnessed.flushing_lsn > witnessed.durable_lsn:
                self._flusher.run_if_free(self._put_right)  # else a living process flushes
            elif not self.lossy:
                self._settled = witnessed
        if self.current.version < FILE_VERSION:
            self._flusher.run(partial(self._roll_forward, is_needed=True))
        return frames

    def _put_right(self) -> None:
        """Under both locks: roll forward frames whose flush failed, or whose flushing process died.

        Source: R13
        """
        witnessed = self.witness.last
        assert witnessed is not None
        self.durable_lsn = max(self.durable_lsn, witnessed.durable_lsn)
        if is_flush_broken(witnessed):
            self.lossy = self.lossy or witnessed.poisoned
            self._roll_forward(is_needed=witnessed.poisoned)

    @property
    def is_unsure(self) -> bool:
        """True after follow, until catch_up: the writer may take back the frames it read."""
        return self._unsure is not None

    def _make_sure(self) -> None:
        """Under the write lock: check that frames read without it still exist.

        raises: JournalMoved: their writer has taken them back (cut_back)
        """
        unsure, self._unsure = self._unsure, None
        if unsure is None:
            return
        self.current.forget_window()
        header = self.current.read_header(unsure[1])
        if header is None or (header.lsn, header.crc) != (unsure[0], unsure[2]):
            raise JournalMoved

    def _settle_tail(self, known_lsn: int) -> None:
        """Cut off bytes after the end that are no valid frame; raise if they were durable once."""
        file = self.current.file
        stop = self.current.written_until(self.end)
        if stop == self.end:
            return
        attested = self._attested_behind()
        if attested > self.last_lsn:
            raise self._broken(max(attested, known_lsn))
        tail = file.pread(self.end, stop - self.end)
        name = f"quarantine/{self.last_lsn + 1:020d}-{self._disk.random_bytes(4).hex()}.tail"
        self._disk.publish(name, [tail])
        self.current.zero(self.end, stop - self.end)
        file.datasync()
        self.reports.append(
            f"recovery cut {len(tail)} bytes of an unfinished frame after LSN {self.last_lsn}; "
            f"copy in {name}"
        )

    def _attested_behind(self) -> int:
        """The highest LSN declared durable by genuine frames after the end, even after a bad one.

        Source: A of spec/reliability 2.3
        """
        stop = self.current.written_until(self.end)
        if stop == self.end:
            return 0
        # a genuine frame may end in zeros, which written_until takes for blank
        tail = self.current.file.pread(self.end, stop - self.end + FILL_BYTES)
        return attested_lsn(tail, self.end, self.salt)

    def _roll_forward(self, *, is_needed: bool) -> None:
        """R13: copy valid unwitnessed frames to a new file; never flush the old bytes again.

        is_needed: make a new file even when there is no frame to copy
        raises:    JournalMoved: some frames that this handle has read are missing now
        """
        count = max(0, self.last_lsn - self.durable_lsn)
        if not count and not is_needed:
            self._raise(flushing=0, poisoned=self.lossy)  # until confirm_boot: R9 comes first
            return
        old = self.current
        first = self.durable_lsn + 1
        if count > 0:
            start, chain = place_of(old, first)
        else:  # nothing to copy, but neither the old file nor its directory can be trusted
            start, chain = self.end, self.chain_crc
        try:
            rewritten, chain_last = rebased(old, (start, self.end), first, chain)
        except Corruption as error:  # not durable; read before the failed flush lost its pages
            raise JournalMoved from error
        same = [n.rewrite for n in list_journals(self._disk) if n.first_lsn == first]
        name = JournalName(first, max(same) + 1 if same else 0)
        if old.version < FILE_VERSION:
            # only this makes an older program that has the store open look for the new file
            witnessed = self.witness.last
            flushing = 0 if witnessed is None else witnessed.flushing_lsn
            self._raise(flushing=flushing, poisoned=self.lossy, is_moving=True)
        publish_journal(self._disk, name, self.salt, chain, rewritten)
        last = self.last_lsn
        self._stand_at(name, first - 1)
        self._read_on(last, None)
        assert self.last_lsn == last  # Law 2: every valid frame was copied
        assert self.chain_crc == chain_last
        self._flusher.stand_at(name, is_published=True)
        self.durable_lsn = last
        self._raise(flushing=0, poisoned=self.lossy)
        if old.version == FILE_VERSION:
            self.reports.append(f"recovery rolled forward {count} frames to LSN {last}")

    # --- writing, under the write lock -------------------------------------------------------

    def append(
        self,
        ops: bytes,
        rows: Buffer | None,
        columns: int,
        time_ms: int,
        *,
        is_awaited: bool = False,
    ) -> RawFrame:
        """Write the next frame; durable only after flush.

        is_awaited: a process that shows its effect makes it durable first
        raises: StoreFull, DiskFailed, ...: the journal was cut back, nothing was done;
                LimitExceeded: no process could read the frame; OutcomeUnknown
        """
        offset, lsn = self.end, self.last_lsn + 1
        parts, total, crc = encode(
            lsn=lsn,
            durable_lsn=self.durable_lsn,
            time_ms=time_ms,
            offset=offset,
            ops=ops,
            rows=rows,
            columns=columns,
            salt=self.salt,
            previous_crc=self.chain_crc,
            is_awaited=is_awaited,
        )
        if total > FRAME_BYTES_MAX:
            raise LimitExceeded(
                f"a frame of {total} bytes has more than {FRAME_BYTES_MAX}",
                limit=FRAME_BYTES_MAX,
                value=total,
            )
        self._write(offset, parts, total)
        current, end = self.current, offset + total
        if end > current.size:
            current.size = end
        self.end, self.last_lsn, self.chain_crc = end, lsn, crc
        if is_awaited:
            self.awaited_lsn = lsn
        rows_bytes = 0 if rows is None else memoryview(rows).nbytes
        return RawFrame(
            lsn,
            time_ms,
            self.durable_lsn,
            columns,
            ops,
            current.name,
            offset,
            total,
            offset + 64 + len(ops),
            rows_bytes,
            crc,
            is_awaited,
        )

    def _write(self, offset: int, parts: list[Buffer], total: int) -> None:
        """Write a frame at the end, after filling new space with zeros; raises as append."""
        current = self.current
        file = current.file
        try:
            if offset + total > current.size:
                current.size = file.size()
                if offset + total > current.size and total <= FILL_FRAME_BYTES_MAX:
                    file.pwrite(current.size, bytes(FILL_BYTES))
                    current.size += FILL_BYTES
            file.pwrite(offset, joined(parts) if total <= FILL_FRAME_BYTES_MAX else parts)
        except Exception as exc:  # also of a signal handler: the file may have some bytes
            try:
                self._flusher.run(partial(self._cut_back, offset, exc), is_written=True)
            except TxlogError as failure:
                if not isinstance(exc, TxlogError):
                    raise exc from failure  # of a signal handler: the caller expects this class
                if isinstance(failure, StoreLocked):
                    raise self._unknown("taking back what follows LSN", failure) from exc
                raise
            raise

    def _cut_back(self, offset: int, error: Exception) -> None:
        """R30: no byte of a failed append may stay; if that fails, the handle is poisoned.

        If a signal handler raised, the frame may be whole already. If a flush has covered it, its
        outcome is unknown to this caller, and it stays.
        """
        witnessed = self.witness.last
        if witnessed is not None and self._flusher.is_of_boot(witnessed):
            if witnessed.durable_lsn > self.last_lsn:
                raise self._unknown("writing the frame after LSN", error)
            self.durable_lsn = max(self.durable_lsn, witnessed.durable_lsn)
        try:
            self.current.zero(offset, max(0, self.current.file.size() - offset))
        except TxlogError as exc:
            self._poison()
            raise self._unknown("cutting back after the frame of LSN", error) from exc

    def _poison(self) -> None:
        self.poisoned = True
        self._settled = None
        try:
            self._raise(flushing=self.last_lsn, poisoned=True)
        except TxlogError:
            self.reports.append("the witness could not be marked after a failed write")

    @property
    def owes(self) -> bool:
        """True when an awaited frame is not known to be durable: no answer may show it."""
        return self.awaited_lsn > self.durable_lsn

    def follow(self) -> list[RawFrame]:
        """Read the frames after the last one read, flushed or not, without a lock; writes nothing.

        Their writer may still take them back; catch_up checks. raises: JournalMoved, Corruption
        """
        self.current.forget_window()
        if self.current.is_blank(self.end):
            return []  # or the journal continues in another file: catch_up reads the witness
        frames = self._read_on(None, self.witness.last)
        if frames:
            self._unsure = (frames[-1].lsn, frames[-1].offset, frames[-1].crc)
        return frames

    def flush(self) -> None:
        """Make every frame durable, and record it in the witness; under the write lock.

        raises: OutcomeUnknown when it fails; StoreLocked. An exception of a signal handler passes:
                the flush was cut short, and did not fail. Its mark stays, so the next holder of
                the lock copies the frames to new pages (R13)
        """
        target = self.last_lsn
        if self.durable_lsn >= target:
            return
        try:
            try:
                prepared = self.take_off(target)
                if isinstance(prepared, Flight):
                    prepared.fly()
            finally:
                self._flusher.land_own()
        finally:
            self._flusher.land_own()
        if isinstance(prepared, Flight):
            self.adopt(prepared)
            if prepared.error is not None:
                raise prepared.error
        elif prepared is None:
            try:
                self._flusher.run(self._put_right)
            except JournalMoved as exc:
                raise self._unknown("rolling forward to LSN", exc) from exc

    def take_off(self, lsn: int, *, sync: bool = True) -> Flight | list[RawFrame] | None:
        """Begin to make every frame up to an LSN durable.

        One flush covers the frames of other processes, too; often another process was quicker, and
        the work is done.
        sync:    False leaves the bytes to the operating system (durability "os"), unless there are
                 awaited frames
        returns: the flight; its caller makes it fly and then adopts it. Frames: all is done, and
                 the caller has not seen these. None: a flush has failed, or its process has died;
                 the next holder of the write lock repairs that
        raises:  OutcomeUnknown when it fails; StoreLocked
        """
        if self.durable_lsn >= lsn:
            return []
        return self._flusher.take_off(
            partial(self._prepare, lsn, sync), [], partial(self._is_flushed, lsn)
        )

    def land(self) -> None:
        """End the flight of this thread if it has not landed; it is cut short then."""
        self._flusher.land_own()

    def adopt(self, flight: Flight) -> None:
        """Take the outcome of a flight that has landed."""
        if self._flusher.flight is flight:
            self._flusher.flight = None
        if not flight.is_durable:
            self._settled = None
            return
        self._flusher.forget_older(flight.lsn)
        self.durable_lsn = max(self.durable_lsn, min(flight.lsn, self.last_lsn))
        self._flushed_lsn = max(self._flushed_lsn, min(flight.lsn, self.last_lsn))
        if flight.settled is not None and self._settled is flight.settled:
            self._settled = flight.record

    def is_flushing(self) -> bool:
        """Whether a living process, which may be stopped, holds the flush lock now."""
        return self._flusher.is_held()

    @property
    def lock_timeout_ms(self) -> int:
        """How long to wait for the flush lock."""
        return self._flusher.lock_timeout_ms

    @lock_timeout_ms.setter
    def lock_timeout_ms(self, timeout_ms: int) -> None:
        self._flusher.lock_timeout_ms = timeout_ms

    @property
    def place(self) -> tuple[JournalName, int, int]:
        """The file, and the LSN and CRC of the last frame."""
        return self.current.name, self.last_lsn, self.chain_crc

    def check_kept(self, place: tuple[JournalName, int, int]) -> None:
        """Make sure that a roll-forward (R13) copied the frames up to a place, if there was one.

        A failed flush may have lost pages, and then other processes use their LSNs again. If the
        old file still holds a frame, the roll-forward had copied it.
        raises: OutcomeUnknown
        """
        name, lsn, crc = place
        witnessed = self.witness.last
        if (
            witnessed is not None
            and witnessed.journal == name.first_lsn
            and witnessed.rewrite == name.rewrite
        ):
            return
        names = list_journals(self._disk)
        if name in names and not any(other > name and other.first_lsn <= lsn for other in names):
            return
        try:
            old = self.file(name)
            old.forget_window()
            is_kept = place_of(old, lsn + 1)[1] == crc
        except Corruption:
            is_kept = False
        if not is_kept:
            raise OutcomeUnknown(
                f"a flush failed, and frames up to LSN {lsn} of {name.path} may be lost",
                hint="ask by id, or repeat the call with the same producer and sequence",
                lsn=lsn,
                path=name.path,
            )

    def _is_flushed(self, lsn: int) -> bool:
        witnessed = self.witness.read()
        if witnessed is None or not self._flusher.is_of_boot(witnessed):
            return self.durable_lsn >= lsn
        return self._knows(witnessed, lsn)

    def _knows(self, witnessed: WitnessRecord, lsn: int) -> bool:
        """Adopt the durable LSN of a record of this boot; returns whether it covers an LSN."""
        self.durable_lsn = max(self.durable_lsn, min(witnessed.durable_lsn, self.last_lsn))
        return self.durable_lsn >= lsn

    def _prepare(self, target: int, sync: bool) -> Flight | list[RawFrame] | None:
        """The part of `take_off` that runs under the flush lock."""
        witnessed = self.witness.last
        if witnessed is not None and self._flusher.is_of_boot(witnessed) and not self.lossy:
            if self._knows(witnessed, target):
                return []
            if is_flush_broken(witnessed):
                return None
        try:
            ahead = [] if self._is_at_end(witnessed) else self._read_on(None, witnessed)
        except JournalMoved:  # only after both witness records were damaged
            return None
        if sync or self.owes:
            try:
                self._flusher.prepare(self.current, self.durable_lsn)
                self._raise(flushing=self.last_lsn)
            except TxlogError as exc:
                self._poison()
                raise self._unknown(f"the flush of LSN {self.durable_lsn + 1} to", exc) from exc
            mark = self.witness.last
            assert mark is not None
            return Flight(self._flusher, self.current, mark, ahead, self.last_lsn, self._settled)
        self._flusher.forget_older(self.last_lsn)
        self.durable_lsn = self.last_lsn
        was_settled = self._settled is not None
        try:
            self._raise(flushing=0)
        except TxlogError as exc:  # visible only once a witness covers it
            raise self._unknown("the witness of LSN", exc) from exc
        if was_settled:
            self._settled = self.witness.last
        return ahead

    def _is_at_end(self, witnessed: WitnessRecord | None) -> bool:
        """True when the witness names the current file, and no frame follows there."""
        name = self.current.name
        return (
            witnessed is not None
            and witnessed.journal == name.first_lsn
            and witnessed.rewrite == name.rewrite
            and not self._is_first_pass
            and witnessed.boot == self._flusher.boot
            and self.current.ends_at(self.end)
        )

    def _unknown(self, action: str, exc: Exception) -> OutcomeUnknown:
        return unknown_flush(action, self.last_lsn, self.current.name.path, exc)

    def _raise(self, *, flushing: int, poisoned: bool = False, is_moving: bool = False) -> None:
        last, name = self.witness.last, self.current.name
        record = WitnessRecord(
            0,  # write sets the number
            self._flusher.boot,
            0 if last is None else last.generation,
            0 if is_moving else name.first_lsn,
            self.durable_lsn,
            self.end,
            self.chain_crc,
            name.rewrite,
            flushing,
            poisoned,
        )
        self.witness.write(record)

    def confirm_boot(self) -> None:
        """Record in the witness that this boot has taken over, after a lossy recovery."""
        self._flusher.run(partial(self._raise, flushing=0))

    def cut(self) -> tuple[int, int]:
        """Flush, start the next file; returns (last LSN of the old, its CRC). Source: R14."""
        self.flush()
        self._flusher.run(self._cut_file)
        return self.last_lsn, self.chain_crc

    def _flush_old_file(self) -> None:
        """Flush the file that the cut ends: no later flush reaches it, and until the checkpoint has
        ended, the frames of the next file follow it. With durability `os` the witness counts
        frames as durable that no process has flushed.
        """
        self._flush_name()
        try:
            self.current.file.datasync()
        except TxlogError as exc:
            self._poison()
            raise self._unknown("the flush of the journal up to", exc) from exc
        self._flushed_lsn = self.last_lsn

    def _flush_name(self) -> None:
        """Make the name of the file durable, before a checkpoint or the next file refers to it."""
        try:
            self._flusher.prepare(self.current, self.durable_lsn)
        except TxlogError as exc:
            self._poison()
            raise self._unknown("the flush of the journal up to", exc) from exc

    def _cut_file(self) -> None:
        if self.end == FILE_HEADER_BYTES:  # its maker may have died before it flushed the name
            self._flush_name()
            return
        if self._flushed_lsn < self.last_lsn:
            self._flush_old_file()
        name = JournalName(self.last_lsn + 1)
        # a crash after the next line must not leave a witness that hides the new file
        self._raise(flushing=0, is_moving=True)
        try:
            publish_journal(self._disk, name, self.salt, self.chain_crc, [])
        except OutcomeUnknown:  # R31: write no frame to a file whose name may be lost
            self._poison()
            raise
        self._stand_at(name, self.last_lsn)
        self._flusher.stand_at(name, is_published=True)
        self._checked_tail = True
        self._raise(flushing=0)

    def note_generation(self, generation: int) -> None:
        """Record the newest manifest in the witness, so that its loss is noticed."""
        self._flusher.run(partial(self._note_generation, generation))

    def _note_generation(self, generation: int) -> None:
        if self.witness.last is not None:
            self._settled = None
            self.witness.write(msgspec.structs.replace(self.witness.last, generation=generation))

    def close(self) -> None:
        """Close every descriptor, once no flight needs them."""
        self._flusher.await_landing()
        for opened in self._files.values():
            opened.close()
        self._files.clear()
        self._flusher.close()
