"""When the sweep before a call has something to look for; what it does is decided in flow/sweep.

Looking is not free, so it waits: for the first time-out of the loaded coordinators, for something
decided that may be driven on, and for some frames or some time before ended transactions are looked
through again. A call that names a transaction which is due itself waits for none of these.
"""

from __future__ import annotations

from collections.abc import Sequence

from txlog.clock import Instant
from txlog.engine.flow.draft import Draft
from txlog.engine.flow.sweep import (
    Swept,
    Uses,
    concerned,
    forget_ended,
    is_anything_due,
    load_used,
    sweep,
)
from txlog.engine.view import View
from txlog.settings import Settings

FORGET_FRAMES = 256
FORGET_MS_MIN, FORGET_MS_MAX = 1_000, 60_000


class Sweeper:
    """Decides whether a sweep is due, and drafts its frame; `swept`: what the last one did."""

    __slots__ = ("_forget_lsn", "_forget_ms", "swept")

    def __init__(self) -> None:
        self._forget_lsn = 0
        self._forget_ms = 0
        self.swept = Swept()

    def draft(
        self, view: View, settings: Settings, now: Instant, uses: Sequence[Uses], *, thorough: bool
    ) -> Draft | None:
        """The frame of the sweep, None when nothing can be due.

        thorough: every coordinator, without a bound
        """
        forget = thorough or view.lsn >= self._forget_lsn or now.boot_ms >= self._forget_ms
        for one in uses:
            if load_used(view, settings, now, one):
                forget = True
        if thorough:
            view.load_coordinators()
        due = thorough or not view.no_deadline_before(now)
        if not due and not forget:
            return None
        self.swept = Swept()
        draft = Draft(view, settings, now.wall_ms)
        first = {pair for one in uses for pair in concerned(view, one)}
        if due:
            self.swept = sweep(draft, now, first, bounded=not thorough)
            draft.sync = bool(draft.ops)  # an end is durable before anybody hears of it
        if forget:
            self._forget_lsn = view.lsn + FORGET_FRAMES
            pause = min(max(settings.txn_ended_retention_ms, FORGET_MS_MIN), FORGET_MS_MAX)
            self._forget_ms = now.boot_ms + pause
            self.swept.forgotten = forget_ended(draft, now, first, thorough=thorough)
        return draft


def is_sweep_due(view: View, settings: Settings, now: Instant, uses: Uses | None) -> bool:
    """For a reading call, which looks first: of what it uses (None: the store) something is due."""
    if uses is None:
        view.load_coordinators()
        return is_anything_due(view, settings, now)
    if load_used(view, settings, now, uses):
        return True
    if view.no_deadline_before(now):
        return False
    if is_anything_due(view, settings, now, ended=False):
        return True
    view.note_deadlines(now)  # until then the next look is cheap
    return False
