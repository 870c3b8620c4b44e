"""Owns the settings of a store and the hard limits: every bound has its name and value here.

A Settings is a value: init records it in the catalog, and a component takes it as a parameter.
`from_mapping` refuses unknown names, wrong types and values out of bounds; its error has the
setting, its bound and the requested value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from txlog.base.ids import COORDINATORS_MAX
from txlog.errors import InvalidArgument, LimitExceeded

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB
SECOND_MS: Final = 1_000
MINUTE_MS: Final = 60 * SECOND_MS
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS

# Hard limits (spec/reliability 7.5): checked before anything is allocated; no setting lifts them.
MESSAGE_BYTES_MAX: Final = 64 * MIB
# One value of an Arrow binary column; also all chunks of a message together.
CHUNKED_MESSAGE_BYTES_MAX: Final = 2 * GIB - 1
# Bytes that one call receives into memory; it returns at least one message of any size.
RECEIVE_BYTES_MAX: Final = 64 * MIB
KEY_BYTES_MAX: Final = 64 * KIB
PROPERTIES_MAX: Final = 1_000
TXN_MESSAGES_MAX: Final = 1_000_000
# Messages and bytes that wait in a transaction before a send writes them.
TXN_BUFFER_MESSAGES_MAX: Final = 10_000
TXN_BUFFER_BYTES_MAX: Final = 16 * MIB
SCHEMAS_MAX: Final = 1_000
QUEUE_SIZE: Final = 1_000  # messages that a consumer receives ahead, by default
# Messages that a producer may queue without waiting, by default; the same in bytes, which is also
# the size at which a frame with several producers takes no further producer.
PENDING_MESSAGES_MAX: Final = 50_000
PENDING_BYTES_MAX: Final = 64 * MIB
TOPICS_MAX: Final = 100_000
PARTITIONS_MAX: Final = 10_000
TRANSACTION_KEY_BYTES_MAX: Final = 512
# An instant must fit the year 9999, so that it can be printed: 9999-12-31T23:59:59.999Z.
INSTANT_MS_MAX: Final = 253_402_300_799_999
# The watermark that a producer asserts at the end of its stream.
EVENT_TIME_MAX: Final = (1 << 63) - 1
# A decided transaction that waits longer for a partition is hanging, unless a caller sets more.
HANGING_MS: Final = 15 * MINUTE_MS

DURABILITIES: Final = ("sync", "os")
TTL_FROM: Final = ("publish", "deliver_at")
# the value of a retention policy that has no bound, whatever the namespace or the store says
UNLIMITED: Final = -1
# Pulsar's strategies: the compatibility of a new schema with earlier ones
SCHEMA_COMPATIBILITIES: Final = (
    "none",
    "backward",
    "backward_transitive",
    "forward",
    "forward_transitive",
    "full",
    "full_transitive",
)
# a value that does not fit the schema is refused, stored and counted, or not checked
SCHEMA_VALIDATIONS: Final = ("enforce", "record", "off")
# settings with a fixed set of words
CHOICES: Final = {
    "durability": DURABILITIES,
    "ttl_from": TTL_FROM,
    "schema_compatibility": SCHEMA_COMPATIBILITIES,
    "schema_validation": SCHEMA_VALIDATIONS,
}


class Settings(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The settings of one store (spec/transactions 3, spec/cli 8.1)."""

    coordinators: int = 16
    durability: str = "sync"
    txn_timeout_default_ms: int = MINUTE_MS
    txn_timeout_max_ms: int = DAY_MS
    # unfinished transactions per coordinator; 0 lifts the bound
    txn_active_max: int = 10_000
    # how long, and how many, ended transactions are remembered; 0: none, negative: no bound
    txn_ended_retention_ms: int = HOUR_MS
    txn_ended_retention_count: int = 100_000
    # ids issued from one reserved block, so that a power cut never reuses one
    txn_ids_reserved: int = 1_024
    # overdue transactions of other callers that a call finishes before its own work
    sweep_max: int = 1_000
    # a checkpoint is due after this much journal, which bounds the time to open
    checkpoint_bytes: int = 64 * MIB
    checkpoint_frames: int = 8_192
    # a ledger rolls over at the first of the following bounds
    ledger_entries_max: int = 1_000_000
    ledger_bytes_max: int = 256 * MIB
    ledger_age_max_ms: int = 4 * HOUR_MS
    # key, payload and properties of one message
    max_message_bytes: int = 5 * MIB
    # producer names remembered per partition; the producer that was idle longest goes first
    dedup_producers_max: int = 10_000
    dedup_idle_ms: int = 7 * DAY_MS
    # unacknowledged messages per consumer
    unacked_max: int = 50_000
    lock_timeout_ms: int = 30 * SECOND_MS
    # below this, producing stops, so that abort, acknowledge and delete still have room
    free_bytes_min: int = 64 * MIB
    # files that no manifest names stay this long for readers of older snapshots
    reader_grace_ms: int = 10 * MINUTE_MS
    # staged files of a job that never ended stay this long
    stage_ttl_ms: int = DAY_MS
    # code that deletes by age does not trust a wall clock that is further ahead than this
    # (plan/clock_trust); -1: it trusts any
    clock_jump_max_ms: int = DAY_MS
    # share of dead bytes at which a closed sidecar ledger is compacted
    sidecar_garbage_ratio: float = 0.5
    # key, payload and properties of one message that is sent in chunks
    max_chunked_message_bytes: int = GIB
    # delayed delivery (spec/delayed 10); the next five are policies of topics as well
    delayed_delivery_active: bool = True
    # shortest time between wake-ups of a timer; the early window if not strict
    tick_time_ms: int = SECOND_MS
    deliver_at_time_strict: bool = True
    # 0 switches each off
    max_delivery_delay_ms: int = 0
    fixed_delivery_delay_ms: int = 0
    # the start of the time to live: publish or deliver_at
    ttl_from: str = "publish"
    # the mutable bucket is sealed once ids come from this many ledgers (0: by size only) ...
    ledger_step_per_bucket: int = 5
    # ... and it has at least this many ids, or from this many ids on regardless of ledgers
    min_index_count_per_bucket: int = 0
    mutable_ids_max: int = 500_000
    # a segment of a bucket spans at most this much time, and this many ids (-1: no limit)
    time_step_per_bucket_snapshot_seconds: int = 300
    max_indexes_per_snapshot_segment: int = 5_000
    segments_max: int = 200
    # above this number, buckets are merged; 0 or -1: never
    max_num_buckets: int = 20
    # messages that a consumer remembers as not due because the index lacks them
    strays_max: int = 100_000
    # event-time watermarks (spec/watermarks 11); policies of topics as well
    watermark_snapshot_bytes_max: int = 4 * MIB
    watermark_snapshot_entries_max: int = 10_000
    watermark_snapshot_markers_max: int = 1_000
    # producers that may hold a partition's watermark back; 0 lifts the bound
    watermark_producers_max: int = 10_000
    # 0: a silent producer is never declared idle
    watermark_producer_idle_timeout_ms: int = 0
    # shortest time between two events of a consumer
    watermark_emit_interval_ms: int = 0
    # a watermark ahead of the producer's open transaction is: 0 counted, 1 refused, 2 not checked
    watermark_open_transaction_check: int = 0
    # retention (plan/policies); policies of topics as well; -1: no bound
    retention_ms: int = UNLIMITED
    retention_bytes: int = UNLIMITED
    retention_acked: bool = False
    ttl_ms: int = UNLIMITED
    # a topic is compacted by key after this many new bytes; a policy as well; -1: never
    compaction_threshold_bytes: int = UNLIMITED
    # whether a producer or subscriber that names a missing topic creates it, and with how many
    # partitions
    allow_auto_topic_creation: bool = False
    default_num_partitions: int = 1
    # how long, and in how many bytes of each log, changes of keys, cursors and the catalog stay as
    # rows; of older changes only the newest of each object stays. 0: no rows at all, -1: no bound
    change_retention_ms: int = 7 * DAY_MS
    change_retention_bytes: int = 64 * MIB
    # schemas of topics (plan/records); policies of topics as well
    schema_compatibility: str = "full"
    schema_validation: str = "enforce"
    # alerts (client/answers/alerts); policies of topics and subscriptions as well; -1: none
    alert_backlog_age_ms: int = UNLIMITED
    alert_backlog_messages: int = UNLIMITED
    alert_backlog_bytes: int = UNLIMITED
    alert_no_consumer_ms: int = UNLIMITED

    @classmethod
    def from_mapping(cls, values: Mapping[str, object]) -> Settings:
        """Return the defaults, changed by values.

        raises: InvalidArgument for an unknown name, a wrong type or a value below its minimum;
                LimitExceeded for a value above its maximum
        """
        for name, value in values.items():
            _check_one(name, value)
        values_checked = {
            name: bool(value) if name in SWITCHES else value for name, value in values.items()
        }
        settings = cls(**values_checked)  # type: ignore[arg-type]  # every name and type was checked above
        settings._check_together()
        return settings

    def to_mapping(self) -> dict[str, int | str | float]:
        """Return all settings by name, in the order of the fields; switches as 0 and 1."""
        return {k: int(v) if k in SWITCHES else v for k, v in msgspec.structs.asdict(self).items()}

    def _check_together(self) -> None:
        if self.txn_timeout_default_ms > self.txn_timeout_max_ms:
            raise LimitExceeded(
                f"txn_timeout_default_ms is {self.txn_timeout_default_ms}, "
                f"more than txn_timeout_max_ms {self.txn_timeout_max_ms}",
                setting="txn_timeout_default_ms",
                limit=self.txn_timeout_max_ms,
                value=self.txn_timeout_default_ms,
            )
        if self.txn_ended_retention_ms < 0 and self.txn_ended_retention_count < 0:
            raise InvalidArgument(
                "txn_ended_retention_ms and txn_ended_retention_count are both negative: "
                "ended transactions would be kept for ever",
                setting="txn_ended_retention_ms",
                value=self.txn_ended_retention_ms,
            )


_WORD_MAX: Final = (1 << 63) - 1

# name -> (smallest, largest) for the integer settings
BOUNDS: Final[dict[str, tuple[int, int]]] = {
    "coordinators": (1, COORDINATORS_MAX),
    "txn_timeout_default_ms": (1, 366 * DAY_MS),
    "txn_timeout_max_ms": (1, 366 * DAY_MS),
    "txn_active_max": (0, 1_000_000),
    "txn_ended_retention_ms": (-1, INSTANT_MS_MAX),
    "txn_ended_retention_count": (-1, 10_000_000),
    "txn_ids_reserved": (1, 1 << 32),
    "sweep_max": (1, 1_000_000),
    "checkpoint_bytes": (64 * KIB, 16 * GIB),
    "checkpoint_frames": (1, 100_000_000),
    "ledger_entries_max": (1, 1_000_000_000),
    "ledger_bytes_max": (4 * KIB, 64 * GIB),
    "ledger_age_max_ms": (1, INSTANT_MS_MAX),
    "max_message_bytes": (1, MESSAGE_BYTES_MAX),
    "max_chunked_message_bytes": (1, CHUNKED_MESSAGE_BYTES_MAX),
    "dedup_producers_max": (1, 10_000_000),
    "dedup_idle_ms": (1, INSTANT_MS_MAX),
    "unacked_max": (1, 100_000_000),
    "lock_timeout_ms": (0, DAY_MS),
    "free_bytes_min": (0, _WORD_MAX),
    "reader_grace_ms": (0, 366 * DAY_MS),
    "stage_ttl_ms": (0, 366 * DAY_MS),
    "clock_jump_max_ms": (UNLIMITED, INSTANT_MS_MAX),
    "tick_time_ms": (0, DAY_MS),
    "max_delivery_delay_ms": (0, INSTANT_MS_MAX),
    "fixed_delivery_delay_ms": (0, INSTANT_MS_MAX),
    "ledger_step_per_bucket": (0, 1_000_000),
    "min_index_count_per_bucket": (0, 1_000_000_000),
    "mutable_ids_max": (1, 10_000_000),
    "time_step_per_bucket_snapshot_seconds": (1, 366 * DAY_MS // SECOND_MS),
    "max_indexes_per_snapshot_segment": (-1, 10_000_000),
    "segments_max": (1, 30_000),
    "max_num_buckets": (-1, 100_000),
    "strays_max": (1, 10_000_000),
    "watermark_snapshot_bytes_max": (1, 64 * GIB),
    "watermark_snapshot_entries_max": (1, 1_000_000_000),
    "watermark_snapshot_markers_max": (1, 1_000_000_000),
    "watermark_producers_max": (0, 10_000_000),
    "watermark_producer_idle_timeout_ms": (0, INSTANT_MS_MAX),
    "watermark_emit_interval_ms": (0, DAY_MS),
    "watermark_open_transaction_check": (0, 2),
    "retention_ms": (UNLIMITED, INSTANT_MS_MAX),
    "retention_bytes": (UNLIMITED, INSTANT_MS_MAX),
    "ttl_ms": (UNLIMITED, INSTANT_MS_MAX),
    "compaction_threshold_bytes": (UNLIMITED, INSTANT_MS_MAX),
    "default_num_partitions": (1, PARTITIONS_MAX),
    "change_retention_ms": (UNLIMITED, INSTANT_MS_MAX),
    "change_retention_bytes": (UNLIMITED, _WORD_MAX),
    "alert_backlog_age_ms": (UNLIMITED, INSTANT_MS_MAX),
    "alert_backlog_messages": (UNLIMITED, INSTANT_MS_MAX),
    "alert_backlog_bytes": (UNLIMITED, INSTANT_MS_MAX),
    "alert_no_consumer_ms": (UNLIMITED, INSTANT_MS_MAX),
}
WATERMARK_POLICIES: Final = tuple(name for name in BOUNDS if name.startswith("watermark_"))
ALERT_POLICIES: Final = tuple(name for name in BOUNDS if name.startswith("alert_"))
# settings that are true or false; 0 and 1 are accepted too
SWITCHES: Final = (
    "delayed_delivery_active",
    "deliver_at_time_strict",
    "retention_acked",
    "allow_auto_topic_creation",
)
# settings that are shares: above 0 and at most 1
SHARES: Final = ("sidecar_garbage_ratio",)

assert set(Settings.__struct_fields__) == {
    *CHOICES,
    *BOUNDS,
    *SHARES,
    *SWITCHES,
}  # every setting is bounded


def _check_one(name: str, value: object) -> None:
    if name in CHOICES:
        if value not in CHOICES[name]:
            raise InvalidArgument(
                f"{name} is {value!r}, it must be one of {', '.join(CHOICES[name])}",
                setting=name,
                value=value,
            )
        return
    if name in SWITCHES:
        if value not in (0, 1):
            raise InvalidArgument(
                f"{name} is {value!r}, it must be true or false", setting=name, value=value
            )
        return
    if name in SHARES:
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
            raise InvalidArgument(
                f"{name} is {value!r}, it must be above 0 and at most 1", setting=name, value=value
            )
        return
    if name not in BOUNDS:
        raise InvalidArgument(f"unknown setting {name!r}", setting=name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidArgument(
            f"{name} is {value!r}, it must be an integer", setting=name, value=value
        )
    check_setting(name, value)


def check_setting(name: str, value: int) -> int:
    """Return value if it is within the bounds of the setting.

    raises: InvalidArgument below, LimitExceeded above; both name the setting and the numbers
    """
    smallest, largest = BOUNDS[name]
    if value < smallest:
        raise InvalidArgument(
            f"{name} is {value}, the smallest is {smallest}",
            setting=name,
            limit=smallest,
            value=value,
        )
    if value > largest:
        raise LimitExceeded(
            f"{name} is {value}, the largest is {largest}",
            setting=name,
            limit=largest,
            value=value,
        )
    return value
