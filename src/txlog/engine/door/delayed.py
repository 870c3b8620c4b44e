"""Delayed delivery: the index of due messages, its buckets, promotion and cancelling."""

from txlog.engine.decide.consuming.position import (
    HONOURING,
    DelayedSelection,
    Find,
    PromotionResult,
    cancel,
    promote,
)
from txlog.engine.decide.topics.buckets import cutoff_of, doomed
from txlog.engine.folds.delayed import Delayed, Ranges
from txlog.engine.plan.delayed.index import ROW_BYTES, DelayedIndex, LoadedPart, index_of_partition
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
from txlog.engine.upkeep.delayed.buckets import (
    INDEX_MAX,
    Search,
    delayed_partitions,
    logged,
    looked_up,
    merge_now,
    rebuild_now,
    tend_due,
)
