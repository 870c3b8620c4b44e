"""The store as an open handle: reading from its view, writing decisions, waiting for news."""

from txlog.engine.decide.draft import Decision
from txlog.engine.decide.transactions.sweep import CallScope
from txlog.engine.store.appender import Call, Decide
from txlog.engine.store.counters import (
    FAILED,
    LATENESS_BOUNDS_MS,
    SUCCEEDED,
    BucketCounters,
    DeliveryCounters,
)
from txlog.engine.store.store import MAINTENANCE_PATH, Mutex, Store, check_whole
from txlog.engine.store.wakeups import STALL_SECONDS, UNKNOWN, EventCounts
from txlog.engine.upkeep.service import (
    Checkpoints,
    compact_changes,
    compact_due,
    due,
    run_checkpoint,
)
from txlog.engine.view import View
