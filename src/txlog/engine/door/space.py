"""Space: trimming, compaction, offloading, and removing files that nothing names."""

from txlog.engine.store.liveness import Pin, pin, pins
from txlog.engine.upkeep.checkpoint.checkpoint import leading, unlink_free
from txlog.engine.upkeep.space.compact import (
    Arrange,
    CompactReport,
    compact_sidecars,
    plan_compaction,
    roll_open,
    sidecar_bytes,
)
from txlog.engine.upkeep.space.offload import OffloadReport, far_unnamed, offload_files, offloadable
from txlog.engine.upkeep.space.retention import trim_topic
from txlog.engine.upkeep.space.sweep import (
    free_gone,
    names_in,
    paths_of,
    replaced,
    unlink_unnamed,
    unnamed,
)
from txlog.engine.upkeep.space.topic_compaction import TopicCompactReport, compact_topic
