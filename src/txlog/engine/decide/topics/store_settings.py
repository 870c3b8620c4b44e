"""Deciding a setting of the store: checked with all others; one op, or none if it is so already."""

from __future__ import annotations

import msgspec

from txlog.clock import Instant
from txlog.engine.decide.draft import Decision
from txlog.engine.decide.topics.create import scale_coordinators
from txlog.engine.model.ops import ClockNoted, SettingSet
from txlog.engine.plan.clock_trust import judge
from txlog.engine.view.view import View
from txlog.errors import NotFound
from txlog.settings import Settings

Value = int | str | float


class ChangedSetting(msgspec.Struct, frozen=True, gc=False):
    """A setting, its value before and now."""

    name: str
    before: Value
    value: Value


def set_setting(view: View, settings: Settings, now: Instant, name: str, value: Value) -> Decision:
    """Decide a setting of the store; answers ChangedSetting.

    raises: NotFound (308); InvalidArgument and LimitExceeded by its bounds and by other settings;
            NotAllowed for fewer coordinators
    """
    before = current(settings, name)
    wanted = Settings.from_mapping({**settings.to_mapping(), name: value}).to_mapping()[name]
    answer = ChangedSetting(name, before, wanted)
    if wanted == before:
        return Decision([], None, True, answer)
    if name == "coordinators":
        assert isinstance(wanted, int)
        decided = scale_coordinators(view, settings, now, wanted)
        return Decision(decided.ops, None, True, answer)
    return Decision([SettingSet(name, wanted)], None, True, answer)


def current(settings: Settings, name: str) -> Value:
    """The value of a setting; raises NotFound (308)."""
    known = settings.to_mapping()
    if name not in known:
        raise NotFound(f"no setting {name[:60]}", hint="txlog config show lists them", setting=name)
    return known[name]


def accept_clock(view: View, settings: Settings, now: Instant) -> Decision:
    """Decide that the wall clock is right, durable; answers what was thought of it before."""
    before = judge(view, settings, now)
    return Decision([ClockNoted(now.wall_ms, now.boot_id, now.boot_ms)], None, True, before)
