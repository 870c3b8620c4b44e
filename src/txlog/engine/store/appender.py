"""Owns Appender: it turns decided calls into frames of the journal, which the folds then take.

A sweep may precede them, in a frame of its own. decide/transactions/sweep defines the sweep, and
Sweeper its time. A search costs time, so the sweeper waits for a reason: the first time-out in the
loaded coordinators is reached, a decided transaction can be completed, a producer may have been
silent for too long, or the last search for ended transactions to forget was long ago, in frames or
in time. A call that names an ended transaction past its retention is a reason as well.

A decision has a frame of its own. The appender encodes it, which may refuse it, then appends and
applies it; both happen, or the view must be thrown away (R28). Decisions that *join* share a frame:
the deferred operations of one transaction, and its commit. Each is applied when it is decided,
since the next must see it; the frame is written after the last. If that write fails, the folds are
ahead of the journal and must be thrown away, as after a failed flush.

DiskSpace stops sends before the disk is full, and gives up a reserve to let calls finish that free
space (spec/reliability R30).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa

from txlog.base.logs import log_event
from txlog.base.settings import Settings
from txlog.clock import Instant
from txlog.engine.decide.draft import Decision, Draft
from txlog.engine.decide.sending.watermark import declare_idle, is_silence_due, silent_producers
from txlog.engine.decide.transactions.sweep import (
    CallScope,
    SweepResult,
    concerned,
    forget_ended,
    is_anything_due,
    load_used,
    sweep,
)
from txlog.engine.model.ops import Op, TxnOpened, encode_ops, encode_readable, merged
from txlog.engine.model.schema import OneRow, encode_rows
from txlog.engine.plan.clock_trust import is_as_expected, note, trusted, wants_frame
from txlog.engine.storage.disk.protocol import Disk
from txlog.engine.storage.frame import (
    DECISION_BYTES_MAX,
    JournalName,
    RawFrame,
    frame_nowhere,
)
from txlog.engine.storage.journal import Journal
from txlog.engine.view import View
from txlog.errors import (
    IN_DOUBT,
    ExpiredTransaction,
    LimitExceeded,
    OutcomeUnknown,
    ProducerFenced,
    ReadOnlyStore,
    StoreFull,
    TryAgain,
    TxlogError,
    is_noted,
)

# --- the sweep before a call ----------------------------------------------------------------------

FORGET_FRAMES = 256
FORGET_MS_MIN, FORGET_MS_MAX = 1_000, 60_000


class Sweeper:
    """Decides whether a sweep is due, and drafts its frame; `swept`: the last sweep's result."""

    __slots__ = ("_forget_lsn", "_forget_ms", "swept")

    def __init__(self) -> None:
        self._forget_lsn = 0
        self._forget_ms = 0
        self.swept = SweepResult()

    def draft(
        self,
        view: View,
        settings: Settings,
        now: Instant,
        uses: Sequence[CallScope],
        *,
        thorough: bool,
    ) -> Draft | None:
        """Draft the frame of a sweep, which may have no ops; None: nothing can be due.

        uses:     the parts that the waiting calls use; they are swept first, whatever the bound
        thorough: every coordinator, without a bound
        """
        in_doubt, sure = False, now  # forgetting and silence cannot be undone
        if not is_as_expected(view, settings, now):
            in_doubt, sure = wants_frame(view, settings, now), trusted(view, settings, now)
        forget = thorough or view.lsn >= self._forget_lsn or now.boot_ms >= self._forget_ms
        for call_uses in uses:
            if load_used(view, settings, sure, call_uses):
                forget = True
        if thorough:
            view.load_coordinators()
        due = thorough or not view.no_deadline_before(now)
        may_be_silent = thorough or not view.no_silence_before(now)
        if not (due or forget or may_be_silent or in_doubt):
            return None
        self.swept = SweepResult()
        draft = Draft(view, settings, now.wall_ms)
        first = {pair for call_uses in uses for pair in concerned(view, call_uses)}
        if due:
            self.swept = sweep(draft, now, first, bounded=not thorough)
            draft.sync = bool(draft.ops)  # an end must be durable before anyone sees it
        if in_doubt and (noted := note(view, settings, now)) is not None:
            draft.ops.append(noted)
        if forget:
            self._forget_lsn = view.lsn + FORGET_FRAMES
            pause = min(max(settings.txn_ended_retention_ms, FORGET_MS_MIN), FORGET_MS_MAX)
            self._forget_ms = now.boot_ms + pause
            self.swept.forgotten = forget_ended(draft, sure, first, thorough=thorough)
        if may_be_silent:
            self._look_for_silence(draft, sure, thorough=thorough)
        return draft

    @staticmethod
    def _look_for_silence(draft: Draft, now: Instant, *, thorough: bool) -> None:
        view = draft.view
        silence = silent_producers(view, draft.settings, now.wall_ms, bounded=not thorough)
        if silence.silent:
            declare_idle(draft, silence.silent)
            draft.sync = True  # consumers in other processes wait for it
        else:
            view.note_silence(now, silence.again_ms)


def is_sweep_due(view: View, settings: Settings, now: Instant, uses: CallScope | None) -> bool:
    """For a reading call: whether anything it uses (None: the whole store) is due."""
    sure = trusted(view, settings, now)
    if uses is None:
        view.load_coordinators()
        return is_anything_due(view, settings, now, sure)
    if load_used(view, settings, sure, uses):
        return True
    if uses.cursors and is_silence_due(view, settings, sure):
        return True  # a consumer waiting for a watermark may be the only writer
    if view.no_deadline_before(now):
        return False
    if is_anything_due(view, settings, now, sure, ended=False):
        return True
    view.note_deadlines(now)  # until then looking again is cheap
    return False


# --- room on the disk ----------------------------------------------------------------------------


RESERVE_PATH = "reserve"
# The free space of the file system is checked once in this many frames with rows.
CHECK_FRAMES = 64
CHECK_BYTES = 1 << 20


class DiskSpace:
    """Watches the free space of a disk for one store."""

    __slots__ = ("_disk", "_frames")

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._frames = CHECK_FRAMES

    def check(self, rows_bytes: int, free_bytes_min: int) -> None:
        """Before a send: raise StoreFull while abort, ack and delete still have room."""
        self._frames += 1
        if self._frames < CHECK_FRAMES and rows_bytes < CHECK_BYTES:
            return
        self._frames = 0
        free = self._disk.free_bytes()
        if free < free_bytes_min + rows_bytes:
            self._frames = CHECK_FRAMES
            raise StoreFull(
                f"{free} bytes are free, sends stop below free_bytes_min {free_bytes_min}; "
                "nothing was written",
                hint="free space, or acknowledge and trim",
                path=self._disk.description,
                setting="free_bytes_min",
            )

    def release_reserve(self) -> bool:
        """Give the blocks of the reserve back, so that an abort or an ack finds room."""
        if not self._disk.exists(RESERVE_PATH):
            return False
        self._disk.unlink(RESERVE_PATH)
        return True


Rows = tuple[int, pa.Buffer | bytes | None]
NO_ROWS: Rows = (0, None)
Encoded = tuple[bytes, Rows]


# --- frames ----------------------------------------------------------------------------------


class NothingWritten(Exception):
    """The disk refused a frame, and no byte of it is in the journal; error: the reason."""

    def __init__(self, error: TxlogError) -> None:
        self.error = error
        super().__init__(str(error))


class Appender:
    """Writes the frames of one store; used under its write lock only."""

    __slots__ = (
        "_disk",
        "_dry_run",
        "_is_awaited",
        "_joined",
        "_report",
        "_rows",
        "_space",
        "_time_ms",
        "has_written",
    )

    def __init__(self, disk: Disk, report: Callable[[str], None], *, dry_run: bool) -> None:
        self._disk = disk
        self._dry_run = dry_run
        self._report = report
        self._space = DiskSpace(disk)
        self.has_written = False  # a frame of any kind, by this process
        self._joined: list[Op] = []
        self._rows: Rows = NO_ROWS
        self._is_awaited = False
        self._time_ms = 0

    def encoded(self, settings: Settings, decision: Decision[Any]) -> Encoded:
        """Encode the frame of a decision: the last step that may refuse it.

        raises: StoreFull, InvalidArgument (rows, types); ReadOnlyStore for rows in a dry run;
                LimitExceeded: no frame is that large
        """
        ops = encode_readable(decision.ops)
        if decision.batch is None:
            if len(ops) > DECISION_BYTES_MAX:
                raise _too_large(len(ops))
            return ops, NO_ROWS
        if self._dry_run:
            raise ReadOnlyStore("a dry run stores no messages", path=self._disk.description)
        batch = decision.batch
        columns, rows = batch.encoded() if isinstance(batch, OneRow) else encode_rows(batch)
        if len(ops) + len(rows) > DECISION_BYTES_MAX:
            raise _too_large(len(ops) + len(rows))
        self._space.check(len(rows), settings.free_bytes_min)
        return ops, (columns, rows)

    def append(
        self,
        view: View,
        decision: Decision[Any],
        encoded: Encoded,
        now: Instant,
        *,
        is_awaited: bool,
    ) -> None:
        """Write a frame and apply it; not flushed. After the write nothing may refuse it.

        is_awaited: its caller gets no answer before the frame is durable
        raises: NothingWritten; after any other exception, the frame may be in the journal, and the
                view must be thrown away
        """
        if self._dry_run:
            name = view.journal.current.name
            view.apply(frame_nowhere(name, view.lsn + 1, now.wall_ms), decision.ops)
            return
        ops, rows = encoded
        frame = self._write(view, ops, rows, now.wall_ms, is_awaited=is_awaited)
        view.apply(frame, decision.ops)

    def fits(self, rows: Rows) -> bool:
        """True when the open frame can take these rows: a frame holds rows of one decision only."""
        return rows[1] is None or self._rows[1] is None

    def join(
        self,
        view: View,
        decision: Decision[Any],
        encoded: Encoded,
        now: Instant,
        *,
        is_awaited: bool,
    ) -> None:
        """Apply a decision whose frame is still open for more decisions."""
        if is_awaited:
            self._is_awaited = True
        ops, (_, rows) = decision.ops, encoded
        if ops:
            view.take_ops(view.lsn + 1, now.wall_ms, ops)
            self._joined += ops
            self._time_ms = now.wall_ms
        if rows is not NO_ROWS:
            self._rows = rows

    def close(self, view: View) -> None:
        """Write the frame of the joined decisions; if it raises, the folds are no longer valid.

        raises: as append
        """
        ops, rows, is_awaited = self._joined, self._rows, self._is_awaited
        self.forget()
        if ops:
            if type(ops[0]) is TxnOpened:
                ops = merged(ops)
            data = encode_ops(ops)
            frame = self._write(view, data, rows, self._time_ms, is_awaited=is_awaited)
            view.take_frame(frame, ops)

    def forget(self) -> None:
        """Drop the joined decisions: the folds that took them are thrown away."""
        self._joined = []
        self._rows, self._is_awaited = NO_ROWS, False

    def release_reserve(self) -> bool:
        """Give the blocks of the reserve back, and report it; False when it has none."""
        released = self._space.release_reserve()
        if released:
            self._report("the disk is full: the reserve was given up to finish this call")
        return released

    def _write(
        self, view: View, ops: bytes, rows: Rows, time_ms: int, *, is_awaited: bool
    ) -> RawFrame:
        self.has_written = True
        journal = view.journal
        old_end = (journal.end, journal.last_lsn, journal.chain_crc)
        try:
            return self._append(journal, ops, rows, time_ms, is_awaited)
        except OutcomeUnknown:
            raise
        except TxlogError as error:
            # the end of the journal decides, not the error: a signal handler may have raised it
            if old_end != (journal.end, journal.last_lsn, journal.chain_crc):
                raise
            if not journal.current.ends_at(journal.end):
                raise
            raise NothingWritten(error) from error

    def _append(
        self, journal: Journal, ops: bytes, rows: Rows, time_ms: int, is_awaited: bool
    ) -> RawFrame:
        columns, data = rows
        try:
            return journal.append(ops, data, columns, time_ms, is_awaited=is_awaited)
        except StoreFull:
            if data is not None or not self.release_reserve():
                raise
            return journal.append(ops, data, columns, time_ms, is_awaited=is_awaited)


def _too_large(size: int) -> LimitExceeded:
    """The error for a frame that the journal would take, and no reader could read."""
    return LimitExceeded(
        f"one call writes {size} bytes, at most {DECISION_BYTES_MAX} go into a frame",
        hint="send smaller batches",
        limit=DECISION_BYTES_MAX,
        value=size,
    )


# --- calls -----------------------------------------------------------------------------------

Decide = Callable[[View, Instant], Decision[Any]]
NOTHING = CallScope()


# How far a call has got on its way to the journal.
QUEUED, WRITING, WRITTEN, NO_FRAME = range(4)


class Call:
    """A decision in the queue, and its outcome.

    Calls submitted together belong to one transaction and share a frame: without its commit they
    have no effect.

    coordinators: those that the call names; they are loaded, so that the sweep sees them
    uses:         the other state that it uses; the sweep ends overdue transactions there
    thorough:     first sweep every coordinator, without a bound
    then:         called with the call and its decision once that is applied, before the next one
                  decides
    stage:        QUEUED: its frame is not in the journal; WRITING: it may be; WRITTEN: it is, and
                  the folds have applied it; NO_FRAME: decided, with nothing to write
    done:         answer and error are final; if the answer promises durability, it is durable
    waits:        its answer comes once the frames before it are durable; as Decision.waits
    group:        the calls that the same leader decided, until they are done
    """

    __slots__ = (
        "answer",
        "coordinators",
        "decide",
        "done",
        "error",
        "group",
        "stage",
        "then",
        "thorough",
        "uses",
        "waits",
    )

    def __init__(
        self,
        decide: Decide,
        coordinators: tuple[int, ...] = (),
        uses: CallScope = NOTHING,
        *,
        thorough: bool = False,
        then: Callable[[Call, Decision[Any]], None] | None = None,
    ) -> None:
        self.decide = decide
        self.coordinators = coordinators
        self.uses = uses
        self.thorough = thorough
        self.then = then
        self.answer: Any = None
        self.error: BaseException | None = None
        self.group: Group | None = None
        self.stage = QUEUED
        self.done = False
        self.waits = True

    def renew(self) -> None:
        """Reset it to a call not decided yet."""
        self.answer, self.error, self.group = None, None, None
        self.stage, self.done, self.waits = QUEUED, False, True

    def conclude(self, decision: Decision[Any]) -> None:
        """Take the answer and error of the applied decision as the outcome."""
        self.answer, self.error = decision.answer, decision.error
        if self.then is not None:
            self.then(self, decision)

    def refuse(self, error: BaseException) -> None:
        """Record that nothing was written, and why."""
        self.stage, self.waits = QUEUED, True
        self.error = error
        if isinstance(error, (ProducerFenced, ExpiredTransaction)):
            log_event("fencing", "warning", "%s", error)

    def end(self, error: BaseException) -> None:
        """End the call with an error, unless it was refused: unknown outcome, or not tried."""
        self.error = self.error or error
        self.done = True

    def outcome(self) -> object:
        """The answer, after it was submitted; raises its error."""
        if self.error is not None:
            raise self.error
        if not self.done:
            raise interrupted(InterruptedError("the submission was interrupted"))
        return self.answer

    @property
    def is_in_doubt(self) -> bool:
        """True when its frame may be in the journal."""
        return self.stage in (WRITING, WRITTEN)


class Group:
    """Decided calls whose answers wait until the journal is durable up to an LSN.

    place: of the journal when they were decided: a file, and the LSN and CRC of its last frame
    """

    __slots__ = ("calls", "is_over", "lsn", "place")

    def __init__(self, calls: list[Call], lsn: int, place: tuple[JournalName, int, int]) -> None:
        self.calls, self.lsn, self.place = calls, lsn, place
        self.is_over = False
        for call in calls:
            call.group = self

    def end(self) -> None:
        """Every call has its outcome; under the mutex."""
        for call in self.calls:
            call.done = True
            call.group = None
        self.is_over = True


def are_done(calls: list[Call]) -> bool:
    """True when the outcomes of calls submitted together are final; the last one ends last."""
    return calls[-1].done


def in_doubt(calls: Iterable[Call]) -> bool:
    """True when an effect of the calls may be in the journal."""
    return any(call.is_in_doubt for call in calls)


def interrupted(error: BaseException) -> OutcomeUnknown:
    """The error for callers whose frames may be in the journal when the writing was interrupted."""
    unknown = OutcomeUnknown(
        f"{str(error) or type(error).__name__}, while the call was written: it may have been done",
        hint="ask by id, or repeat the call with the same producer and sequence",
    )
    unknown.__cause__ = error
    return unknown


def note_doubt(error: BaseException) -> None:
    """Add IN_DOUBT to an exception that is no TxlogError, if the call's frame may be written.

    An exception of a signal handler must reach the caller unchanged: `except SoftTimeLimitExceeded`
    would miss an OutcomeUnknown, and code that repeats a call on TxlogError would go on past its
    limit.
    """
    if not is_noted(error):
        error.add_note(IN_DOUBT)


def again(error: TxlogError) -> TryAgain:
    """The error for callers that were refused because of frames that could not be made durable."""
    refused = TryAgain(f"nothing was done, and what it depends on may be lost: {error}")
    refused.__cause__ = error
    return refused
