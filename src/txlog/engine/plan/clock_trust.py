"""How far to trust the wall clock; code that deletes or delivers by time asks here first.

A wall clock that is set forward makes all data look old. So the store keeps a *mark*: the wall
clock and the clock since boot at the moment when the wall clock was last trusted.

    same boot       the time is the mark plus what the clock since boot has run. If the wall clock
                    is more than clock_jump_max_ms ahead of that, it was set, and is not trusted
                    until a user accepts it
    another boot    it is unknown how long the machine was off. If the wall clock is more than
                    the bound ahead of the mark, it is trusted after running for SETTLE_MS of this
                    boot without being set
    no mark         a store of an older version: as another boot, from its newest frame on

Until then, deletion uses the expected time: in the same boot it advances with the clock since boot,
otherwise it stands still. Messages are stamped, ordered and delivered by the wall clock as it is;
only in the same boot, where it is known to be wrong, delayed messages wait for the expected time. A
slow wall clock is trusted: it deletes less. But what it stamps looks too old when it is right
again. So the mark also notes when frames were last written by a clock behind the expected time, and
producer names are no older than that (`seen_ms`).
Source: spec/reliability R32.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from txlog.base.settings import HOUR_MS, MINUTE_MS, UNLIMITED, Settings
from txlog.clock import Instant
from txlog.engine.model.ops import ClockNoted
from txlog.engine.view import View

SETTLE_MS: Final = HOUR_MS
NOTE_MS: Final = HOUR_MS  # a mark is this old at most while the store is written to
BEHIND_MS: Final = MINUTE_MS  # a clock that is slower by less is not noted


class ClockVerdict(NamedTuple):
    """The verdict on the wall clock.

    ahead_ms:    how far it is ahead of the expected time
    is_believed: deletion by age may use it
    is_set:      it was set in this boot, and only a user's command makes it trusted
    left_ms:     else how long it must still run without being set, until it is trusted
    """

    ahead_ms: int
    is_believed: bool
    is_set: bool
    left_ms: int
    expected_ms: int


def judge(view: View, settings: Settings, now: Instant) -> ClockVerdict:
    """The verdict on the wall clock at this instant."""
    mark = _mark(view)
    is_same = mark.boot_id != "" and mark.boot_id == now.boot_id
    expected = mark.wall_ms + (max(0, now.boot_ms - mark.boot_ms) if is_same else 0)
    ahead, bound = now.wall_ms - expected, settings.clock_jump_max_ms
    if bound == UNLIMITED or ahead <= bound:
        return ClockVerdict(ahead, True, False, 0, expected)
    if is_same:
        return ClockVerdict(ahead, False, True, 0, expected)
    ran_ms = _ran_ms(mark, now, bound)
    return ClockVerdict(ahead, ran_ms >= SETTLE_MS, False, max(0, SETTLE_MS - ran_ms), expected)


def is_as_expected(view: View, settings: Settings, now: Instant) -> bool:
    """True when the mark is of this boot and the wall clock is not too far ahead of it; cheap."""
    mark, bound = view.catalog.clock, settings.clock_jump_max_ms
    return (
        mark is not None
        and mark.boot_id == now.boot_id != ""
        and mark.boot_ms <= now.boot_ms
        and now.wall_ms - mark.wall_ms - now.boot_ms + mark.boot_ms <= bound != UNLIMITED
    )


def trusted(view: View, settings: Settings, now: Instant) -> Instant:
    """The instant for deleting by age: now, or the time expected."""
    if is_as_expected(view, settings, now):
        return now
    judged = judge(view, settings, now)
    return now if judged.is_believed else now._replace(wall_ms=judged.expected_ms)


def due_ms(view: View, settings: Settings, now: Instant) -> int:
    """The time that deliver_at is compared with: the wall clock, unless it was set in this boot."""
    if is_as_expected(view, settings, now):
        return now.wall_ms
    judged = judge(view, settings, now)
    return judged.expected_ms if judged.is_set else now.wall_ms


def seen_ms(view: View, time_ms: int) -> int:
    """The latest time at which a frame stamped `time_ms` may have been written."""
    clock = view.catalog.clock
    return (
        time_ms if clock is None or not clock.behind_ms else max(time_ms, clock.behind_ms + NOTE_MS)
    )


def note(view: View, settings: Settings, now: Instant) -> ClockNoted | None:
    """The op with a new mark, or with the first doubt of this boot; None: nothing to record.

    The caller adds it to a frame that it writes anyway.
    """
    mark = view.catalog.clock
    if is_as_expected(view, settings, now) and _stands(mark, now):
        return None
    judged = judge(view, settings, now)
    if judged.is_believed:
        if _stands(mark, now):
            return None
        behind_ms = 0 if mark is None else mark.behind_ms
        if judged.ahead_ms < -BEHIND_MS:
            behind_ms = judged.expected_ms
        wall_ms = max(now.wall_ms, judged.expected_ms)
        return ClockNoted(wall_ms, now.boot_id, now.boot_ms, behind_ms=behind_ms)
    if judged.is_set or (mark is not None and _ran_ms(mark, now, settings.clock_jump_max_ms) >= 0):
        return None
    at = _mark(view)
    seen = (now.wall_ms, now.boot_id, now.boot_ms)
    return ClockNoted(at.wall_ms, at.boot_id, at.boot_ms, *seen, at.behind_ms)


def wants_frame(view: View, settings: Settings, now: Instant) -> bool:
    """True when a frame must record the first doubt of a new boot, so that SETTLE_MS begins."""
    if is_as_expected(view, settings, now):
        return False
    judged = judge(view, settings, now)
    return not judged.is_believed and note(view, settings, now) is not None


def _stands(mark: ClockNoted | None, now: Instant) -> bool:
    """True for a recent mark of this boot with no doubt since, that says if the clock is behind."""
    if mark is None or mark.boot_id != now.boot_id or mark.seen_boot_id:
        return False
    ran_ms = now.boot_ms - mark.boot_ms
    is_behind = now.wall_ms - mark.wall_ms < ran_ms - BEHIND_MS
    return ran_ms < NOTE_MS and (not is_behind or mark.behind_ms >= mark.wall_ms)


def _mark(view: View) -> ClockNoted:
    clock = view.catalog.clock
    return ClockNoted(view.time_ms, "", 0) if clock is None else clock


def _ran_ms(mark: ClockNoted, now: Instant, bound: int) -> int:
    """For how long the clock has run since it was first in doubt; -1: not in this boot, or set."""
    if not mark.seen_boot_id or mark.seen_boot_id != now.boot_id:
        return -1
    ran_ms = now.boot_ms - mark.seen_boot_ms
    return ran_ms if abs(now.wall_ms - mark.seen_wall_ms - ran_ms) <= bound else -1
