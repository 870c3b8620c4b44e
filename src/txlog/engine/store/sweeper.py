"""When the sweep before a call can find anything due; transactions/sweep defines what it does.

A search is not free, so the sweeper waits for a reason. Reasons are the first time-out of the
loaded coordinators, a decided transaction that it can drive on, the first producer that may have
been silent for too long, and a number of frames or a time since it last looked through ended
transactions. A call that names a transaction which is due waits for no other reason.
"""

from __future__ import annotations

from collections.abc import Sequence

from txlog.base.settings import Settings
from txlog.clock import Instant
from txlog.engine.decide.draft import Draft
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
from txlog.engine.plan.clock_trust import is_as_expected, note, trusted, wants_frame
from txlog.engine.view import View

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
        """The frame of the sweep, None when nothing can be due.

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
