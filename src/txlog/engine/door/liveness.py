"""Processes that hold a lock of the store, and clocks that can be trusted."""

from txlog.engine.plan.clock_trust import due_ms, judge, trusted
from txlog.engine.store.liveness import (
    CONSUMERS_DIR,
    WRITE_LOCK,
    consumer_lock,
    consumer_of,
    dead_consumers,
    holder_of,
    read_all_seen,
    writer,
)
