"""Delayed delivery: the index of due messages, its buckets, promotion and cancelling."""

from txlog.engine.decide.consuming.promotion import HONOURING, Changed, Find, Which, cancel, promote
from txlog.engine.decide.topics.buckets import cutoff_of, doomed
from txlog.engine.folds.delayed import Delayed, Ranges
from txlog.engine.plan.delayed.timetable import Timetable, timetable
from txlog.engine.plan.delayed.timetable_parts import ROW_BYTES, Loaded
from txlog.engine.plan.delayed.upcoming import (
    TIMES,
    Note,
    count_later,
    is_behind,
    is_in,
    later_in,
    runs_in_order,
    scan,
    upcoming,
    upcoming_in_any_order,
)
from txlog.engine.upkeep.delayed.buckets import delayed_partitions, merge_now, rebuild_now, tend_due
from txlog.engine.upkeep.delayed.sources import INDEX_MAX, Search, logged, looked_up
