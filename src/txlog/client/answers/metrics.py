"""The metrics of a store as plain values, computed from the folds (the state) of a view.

There is one Family for each metric, in the order of spec/transactions 16. Names and types are
Pulsar's where the meaning is the same. Most counters are stored in folds, so they outlive processes
and never fall. Counters of this process (marked *) begin at 0 when it opens the store. No label is
a transaction id. `metrics_text` turns the families into text.

Delayed delivery. The index belongs to the partition, so a topic sums partitions and not
subscriptions:

    pulsar_subscription_delayed                        msgDelayed, as in `sub list`
    pulsar_delayed_message_index_bucket_total          sealed buckets, and the mutable one
    pulsar_delayed_message_index_loaded                * ids in memory
    pulsar_delayed_message_index_size_bytes            * the memory they take
    pulsar_delayed_message_index_bucket_snapshot_size_bytes    the files of sealed buckets
    pulsar_delayed_message_index_bucket_op_count       * steps of upkeep
    txlog_delayed_bucket_op_seconds                    * how long they took
    txlog_delayed_strays, _rewinds_total, _popped_total, _lateness_seconds
                                                       * what consumers did
    txlog_delayed_rows_read_total, _handed_out_total   * their ratio is the read amplification

Watermarks, of partitions where a producer has ever asserted anything:

    by topic, partition and subscription
    txlog_watermark_event_time_ms          emitted: the highest value given to a consumer, if any
    txlog_watermark_materialized_ms        the watermark at the mark-delete, if any
    txlog_watermark_lag_seconds            from the emitted value until now; none at the end
    txlog_watermark_status                 0 unknown, 1 active, 2 idle, 3 unreadable now
    txlog_watermark_held                   1 while the materialized value is below the emitted one
    txlog_watermark_emitted_total          values stored as emitted, in all epochs
    txlog_watermark_late_messages_total    * delivered late

    by topic and partition
    txlog_watermark_active_producers       producers that hold the watermark back
    txlog_watermark_pending_transactions   open transactions that may change it
    txlog_watermark_regressions_total, _snapshots_total, _snapshot_bytes_total
    txlog_watermark_rows_folded_total      * rows read for values
    txlog_watermark_ahead_of_open_txn_total   * asserted by a producer while one of its open
                                           transactions has older messages

Source: spec/transactions 16; spec/delayed 12; spec/watermarks 13.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from txlog.base.ids import TopicName
from txlog.base.settings import EVENT_TIME_MAX, SECOND_MS
from txlog.client.answers import alerts, lag
from txlog.client.answers.delayed import DelayCounts, in_memory
from txlog.client.answers.disk_usage import topic_file_bytes
from txlog.client.answers.keys import key_families, living_keys
from txlog.client.answers.metric_family import Family, Sample
from txlog.client.answers.partitions import sidecar_bytes
from txlog.client.answers.watermarks import Standing, standings
from txlog.engine.door import liveness as clock_trust
from txlog.engine.door.catalog import Subscription, Topic, index_of, numbers
from txlog.engine.door.consuming import Cursor
from txlog.engine.door.store import (
    FAILED,
    LATENESS_BOUNDS_MS,
    SUCCEEDED,
    BucketCounters,
    DeliveryCounters,
    Store,
    View,
)
from txlog.engine.door.transactions import (
    ABORTED,
    ABORTING,
    COMMITTED,
    COMMITTING,
    DURATION_BOUNDS_MS,
    OPEN,
    PREPARED,
    Coordinator,
)
from txlog.engine.door.watermarks import Watermark

if TYPE_CHECKING:
    from txlog.base.rows.consuming import LagRow
    from txlog.base.rows.store import AlertRow

KINDS = ("seal", "merge", "prune", "delete", "rebuild", "lost")
_INDEX = "pulsar_delayed_message_index"


# --- delayed delivery ------------------------------------------------------------------------


def delay_families(view: View, store: Store, topics: list[Topic]) -> Iterator[Family]:
    """The metrics of delayed delivery; samples in the order of `topics`."""
    counts = DelayCounts(view, store)
    yield Family(
        "pulsar_subscription_delayed",
        "gauge",
        "messages that are not due yet",
        [
            (
                "",
                {"topic": _short(topic), "subscription": record.name},
                counts.of_subscription(topic, record),
            )
            for topic in topics
            for record in (view.catalog.subscriptions[number] for number in topic.subscriptions)
        ],
    )
    places = [
        (
            {"topic": _short(topic), "partition": str(index)},
            view.delayed(number),
            in_memory(view, number),
        )
        for topic in topics
        for index, number in enumerate(numbers(topic))
    ]
    yield Family(
        f"{_INDEX}_bucket_total",
        "gauge",
        "sealed buckets plus the mutable one",
        [("", labels, len(state.buckets) + 1) for labels, state, _ in places],
    )
    yield Family(
        f"{_INDEX}_loaded",
        "gauge",
        "delayed ids in the memory of this process",
        [("", labels, loaded.ids) for labels, _, loaded in places],
    )
    yield Family(
        f"{_INDEX}_size_bytes",
        "gauge",
        "memory they take in this process",
        [("", labels, loaded.bytes) for labels, _, loaded in places],
    )
    yield Family(
        f"{_INDEX}_bucket_snapshot_size_bytes",
        "gauge",
        "files of sealed buckets",
        [
            ("", labels, sum(bucket.file.bytes for bucket in state.buckets))
            for labels, state, _ in places
        ],
    )
    yield from _bucket_ops(store.bucket_ops)
    yield from _delivery(store.bucket_ops.delivered)
    yield Family(
        "txlog_delayed_rows_read_total",
        "counter",
        "rows read, from any topic",
        [("", {}, store.tally.rows_read)],
    )
    yield Family(
        "txlog_delayed_handed_out_total",
        "counter",
        "messages delivered to callers",
        [("", {}, store.tally.handed_out)],
    )


def _delivery(counters: DeliveryCounters) -> Iterator[Family]:
    """Deliveries by consumers of this process."""
    yield Family(
        "txlog_delayed_strays",
        "gauge",
        "remembered as not due, but not in the index",
        [("", {}, counters.strays)],
    )
    yield Family(
        "txlog_delayed_rewinds_total",
        "counter",
        "times a consumer started over",
        [("", {}, counters.rewinds)],
    )
    yield Family(
        "txlog_delayed_popped_total",
        "counter",
        "messages delivered after waiting",
        [("", {}, counters.popped)],
    )
    samples: list[Sample] = []
    so_far = 0
    for bound_ms, count in zip(LATENESS_BOUNDS_MS, counters.lateness, strict=False):
        so_far += count
        samples.append(("_bucket", {"le": f"{bound_ms / 1000:g}"}, so_far))
    so_far += counters.lateness[-1]
    samples += [("_bucket", {"le": "+Inf"}, so_far), ("_count", {}, so_far)]
    samples.append(("_sum", {}, counters.lateness_ms / 1000))
    yield Family(
        "txlog_delayed_lateness_seconds",
        "histogram",
        "how long after they were due messages were delivered",
        samples,
    )


def _bucket_ops(counters: BucketCounters) -> Iterator[Family]:
    """Upkeep of buckets by this process since it opened the store."""
    kinds = sorted({*KINDS, *(kind for kind, _ in counters.counts)})
    yield Family(
        f"{_INDEX}_bucket_op_count",
        "gauge",
        "steps of upkeep in this process",
        [
            ("", {"type": kind, "state": state}, counters.counts[(kind, state)])
            for kind in kinds
            for state in (SUCCEEDED, FAILED)
        ],
    )
    samples: list[Sample] = []
    for kind in kinds:
        samples.append(("_count", {"type": kind}, counters.counts[(kind, SUCCEEDED)]))
        samples.append(("_sum", {"type": kind}, counters.seconds.get(kind, 0.0)))
    yield Family("txlog_delayed_bucket_op_seconds", "summary", "time of these steps", samples)


def _short(topic: Topic) -> str:
    return TopicName.parse(topic.name).short


# --- watermarks ------------------------------------------------------------------------------

_PREFIX: Final = "txlog_watermark"
STATUSES: Final = ("unknown", "active", "idle", "unavailable")
Labels = dict[str, str]


def watermark_families(view: View, store: Store, topics: list[Topic]) -> Iterator[Family]:
    """The metrics of watermarks; samples in the order of `topics`.

    cost: a value for each subscription and partition, each from at most the rows of one interval
          between snapshots
    """
    used = {topic.number: _used(view, topic) for topic in topics}
    places: list[tuple[Labels, Standing, int]] = []
    for topic in topics:
        indexes = [index_of(topic, number) for number in used[topic.number]]
        for subscription in topic.subscriptions if indexes else ():
            record = view.catalog.subscriptions[subscription]
            for standing in standings(view, topic, indexes, record):
                clamp = view.watermark(standing.number).clamps.get(subscription)
                labels = {
                    **_partition_labels(topic, standing.partition),
                    "subscription": record.name,
                }
                places.append((labels, standing, 0 if clamp is None else clamp.emitted))
    yield from _of_subscriptions(places, store.clock.now().wall_ms)
    yield Family(
        f"{_PREFIX}_late_messages_total",
        "counter",
        "messages delivered late by this process",
        [
            ("", {"topic": topic, "partition": str(partition), "subscription": name}, count)
            for (topic, partition, name), count in sorted(store.tally.late.items())
        ],
    )
    yield from _of_partitions(
        [
            (
                _partition_labels(topic, index_of(topic, number)),
                view.watermark(number),
                (store.tally.rows_folded[number], store.tally.ahead[topic.number]),
            )
            for topic in topics
            for number in used[topic.number]
        ]
    )


def _used(view: View, topic: Topic) -> list[int]:
    """The numbers of partitions with a watermark; it creates no state for other partitions."""
    return [
        number
        for number in numbers(topic)
        if view.exists(("watermark", number, 0)) and view.watermark(number).is_used
    ]


def _partition_labels(topic: Topic, index: int) -> Labels:
    return {"topic": TopicName.parse(topic.name).short, "partition": str(index)}


def _of_subscriptions(places: list[tuple[Labels, Standing, int]], now_ms: int) -> Iterator[Family]:
    emitted = [
        (labels, standing.emitted) for labels, standing, _ in places if standing.emitted is not None
    ]
    yield Family(
        f"{_PREFIX}_event_time_ms",
        "gauge",
        "the value given to consumers",
        [("", labels, value) for labels, value in emitted],
    )
    yield Family(
        f"{_PREFIX}_materialized_ms",
        "gauge",
        "the value of what is acknowledged",
        [
            ("", labels, standing.value)
            for labels, standing, _ in places
            if standing.value is not None
        ],
    )
    yield Family(
        f"{_PREFIX}_lag_seconds",
        "gauge",
        "from the value given to consumers until now",
        [
            ("", labels, (now_ms - value) / 1000)
            for labels, value in emitted
            if value != EVENT_TIME_MAX
        ],
    )
    yield Family(
        f"{_PREFIX}_status",
        "gauge",
        "0 unknown, 1 active, 2 idle, 3 unreadable now",
        [("", labels, STATUSES.index(standing.status)) for labels, standing, _ in places],
    )
    yield Family(
        f"{_PREFIX}_held",
        "gauge",
        "1 while a producer is below the value given to consumers",
        [("", labels, int(_is_held(standing))) for labels, standing, _ in places],
    )
    yield Family(
        f"{_PREFIX}_emitted_total",
        "counter",
        "values given to consumers",
        [("", labels, count) for labels, _, count in places],
    )


def _is_held(standing: Standing) -> bool:
    return (
        standing.value is not None
        and standing.emitted is not None
        and standing.value < standing.emitted
    )


def _of_partitions(places: list[tuple[Labels, Watermark, tuple[int, int]]]) -> Iterator[Family]:
    stored: list[tuple[str, str, str, Callable[[Watermark], int]]] = [
        (
            "active_producers",
            "gauge",
            "producers that are waited for",
            lambda state: len(state.state.active),
        ),
        (
            "pending_transactions",
            "gauge",
            "open transactions with watermarks",
            lambda state: len(state.pending),
        ),
        (
            "regressions_total",
            "counter",
            "asserted times that fell and changed nothing",
            lambda state: state.figures.regressions,
        ),
        (
            "snapshots_total",
            "counter",
            "snapshots in the log",
            lambda state: state.figures.snapshots,
        ),
        (
            "snapshot_bytes_total",
            "counter",
            "bytes of these snapshots",
            lambda state: state.figures.snapshot_bytes,
        ),
    ]
    for name, kind, text, value in stored:
        yield Family(
            f"{_PREFIX}_{name}",
            kind,
            text,
            [("", labels, value(state)) for labels, state, _ in places],
        )
    counted = (
        ("rows_folded_total", "rows that this process read for values"),
        ("ahead_of_open_txn_total", "ahead of an open transaction of a producer of this process"),
    )
    for at, (name, text) in enumerate(counted):
        samples: list[Sample] = [("", labels, counts[at]) for labels, _, counts in places]
        yield Family(f"{_PREFIX}_{name}", "counter", text, samples)


# --- all of them -----------------------------------------------------------------------------

REASONS = ("user", "admin", "conflict", "timeout", "fenced", "recovery")


def families(view: View, store: Store) -> list[Family]:
    """Every metric of the store.

    cost: loads every coordinator, sidecar and cursor
    """
    folds = _coordinators(view, store)
    return [
        *_coordinator_families(folds),
        *_transaction_families(folds, store.clock.now().wall_ms),
        *_partition_families(view),
        *_subscription_families(view),
        *_space_families(view, store),
        *_lag_families(lag.lag(view, store), _mean_bytes(view)),
        *_alert_families(alerts.judged(view, store)),
        *delay_families(view, store, _topics(view)),
        *watermark_families(view, store, _topics(view)),
        *key_families(living_keys(view)),
        *_clock_families(view, store),
    ]


def _clock_families(view: View, store: Store) -> Iterator[Family]:
    verdict = clock_trust.judge(view, store.settings, store.clock.now())
    jump_s = 0 if verdict.is_believed else verdict.ahead_ms // SECOND_MS
    yield Family(
        "txlog_clock_jump_seconds",
        "gauge",
        "how far the clock is ahead of what was expected, if nothing expires by it; else 0",
        [("", {}, jump_s)],
    )


# --- coordinators ----------------------------------------------------------------------------


def _coordinators(view: View, store: Store) -> list[tuple[int, Coordinator]]:
    components = view.known()
    return [
        (
            number,
            view.coordinator(number) if ("coordinator", number, 0) in components else Coordinator(),
        )
        for number in range(store.settings.coordinators)
    ]


def _coordinator_families(folds: list[tuple[int, Coordinator]]) -> Iterator[Family]:
    per_coordinator: list[tuple[str, str, str, Callable[[Coordinator], int]]] = [
        (
            "active_count",
            "gauge",
            "open transactions",
            lambda fold: sum(txn.status == OPEN for txn in fold.unfinished.values()),
        ),
        ("created_total", "counter", "transactions begun", lambda fold: fold.created_count),
        ("committed_total", "counter", "transactions committed", lambda fold: fold.committed_count),
        (
            "aborted_total",
            "counter",
            "transactions aborted, for any reason",
            lambda fold: fold.aborted_count,
        ),
        (
            "timeout_total",
            "counter",
            "transactions aborted by their timeout",
            lambda fold: fold.timed_out_count,
        ),
        (
            "append_log_total",
            "counter",
            "ops in the log of the coordinator",
            lambda fold: fold.log_ops,
        ),
    ]
    for name, kind, text, value in per_coordinator:
        yield Family(
            f"pulsar_txn_{name}",
            kind,
            text,
            [("", {"coordinator_id": str(number)}, value(fold)) for number, fold in folds],
        )


def _transaction_families(folds: list[tuple[int, Coordinator]], now_ms: int) -> Iterator[Family]:
    states = [fold for _, fold in folds]
    reasons = dict.fromkeys(REASONS, 0)
    for fold in states:
        for reason, count in fold.aborted_by.items():
            reasons[reason] = reasons.get(reason, 0) + count
    yield Family(
        "txlog_txn_aborted_by_reason_total",
        "counter",
        "aborts by reason",
        [("", {"reason": reason}, count) for reason, count in reasons.items()],
    )
    yield Family(
        "txlog_recovery_rolled_total",
        "counter",
        "transactions whose decided end was completed later, by a sweep or by recovery",
        [
            ("", {"direction": "forward"}, sum(fold.rolled_forward for fold in states)),
            ("", {"direction": "back"}, sum(fold.rolled_back for fold in states)),
        ],
    )
    yield _durations(states)
    counts = dict.fromkeys((OPEN, PREPARED, COMMITTING, ABORTING), 0)
    opened: list[int] = []
    prepared: list[int] = []
    for fold in states:
        for txn in fold.unfinished.values():
            counts[txn.status] += 1
            if txn.status == OPEN:
                opened.append(txn.wall_ms)
            if txn.status == PREPARED and txn.prepared is not None:
                prepared.append(txn.prepared.since_ms)
    yield Family(
        "txlog_txn_unfinished",
        "gauge",
        "unfinished transactions by status",
        [("", {"status": status.lower()}, count) for status, count in counts.items()],
    )
    oldest_ms = max(0, now_ms - min(opened, default=now_ms))
    yield Family(
        "txlog_txn_oldest_open_seconds",
        "gauge",
        "age of the oldest open transaction",
        [("", {}, oldest_ms / 1000)],
    )
    prepared_ms = max(0, now_ms - min(prepared, default=now_ms))
    yield Family(
        "txlog_txn_oldest_prepared_seconds",
        "gauge",
        "how long the oldest prepared transaction has been waiting for its database",
        [("", {}, prepared_ms / 1000)],
    )
    yield Family(
        "txlog_txn_waiting",
        "gauge",
        "decided, but waiting for partitions",
        [("", {}, counts[COMMITTING] + counts[ABORTING])],
    )


def _durations(folds: list[Coordinator]) -> Family:
    samples: list[Sample] = []
    for status in (COMMITTED, ABORTED):
        total = [0] * (len(DURATION_BOUNDS_MS) + 2)
        for fold in folds:
            for at, count in enumerate(fold.durations.get(status, ())):
                total[at] += count
        labels = {"status": status.lower()}
        so_far = 0
        for bound_ms, count in zip(DURATION_BOUNDS_MS, total, strict=False):
            so_far += count
            samples.append(("_bucket", {**labels, "le": f"{bound_ms / 1000:g}"}, so_far))
        so_far += total[-2]
        samples.append(("_bucket", {**labels, "le": "+Inf"}, so_far))
        samples.append(("_count", labels, so_far))
        samples.append(("_sum", labels, total[-1] / 1000))
    return Family("txlog_txn_duration_seconds", "histogram", "from begin to end", samples)


# --- lag, alerts, space ----------------------------------------------------------------------


def _mean_bytes(view: View) -> dict[str, float]:
    """By topic, the mean payload of its messages; 0 if it has none."""
    means: dict[str, float] = {}
    for topic in _topics(view):
        states = [view.topic(number) for number in numbers(topic)]
        messages = sum(state.messages for state in states)
        size = sum(state.payload_bytes for state in states)
        means[_short(topic)] = size / messages if messages else 0.0
    return means


def _lag_families(rows: Sequence[LagRow], mean_bytes: Mapping[str, float]) -> Iterator[Family]:
    """How far subscriptions are behind. An unknown figure has no sample."""
    for name, text, value in _LAG:
        values = [(row, value(row)) for row in rows]
        yield Family(
            name,
            "gauge",
            text,
            [("", _of(row), figure) for row, figure in values if figure is not None],
        )
    for direction, done in (("in", "became visible"), ("out", "were acknowledged")):
        rates: list[tuple[dict[str, str], str, float]] = []
        for row in rows:
            for window in ("1m", "15m"):
                rate: float | None = row[f"rate_{direction}_{window}"]  # type: ignore[literal-required]
                if rate is not None:
                    rates.append(({**_of(row), "window": window}, row["topic"], rate))
        yield Family(
            f"txlog_subscription_messages_{direction}",
            "gauge",
            f"messages a second that {done}, over the window",
            [("", labels, rate) for labels, _, rate in rates],
        )
        yield Family(
            f"txlog_subscription_bytes_{direction}",
            "gauge",
            "the same in bytes, by the mean message of the topic",
            [("", labels, round(rate * mean_bytes[topic], 3)) for labels, topic, rate in rates],
        )


def _seconds(value_ms: int | None) -> float | None:
    return None if value_ms is None else value_ms / 1000


_LAG: Final[list[tuple[str, str, Callable[[LagRow], float | None]]]] = [
    (
        "pulsar_subscription_back_log",
        "messages not acknowledged, delayed ones too",
        lambda row: row["backlog"],
    ),
    (
        "pulsar_subscription_back_log_no_delayed",
        "messages not acknowledged that are due",
        lambda row: row["backlog_no_delayed"],
    ),
    (
        "txlog_subscription_back_log_bytes",
        "payload bytes of these messages, with delayed ones",
        lambda row: row["backlog_bytes"],
    ),
    (
        "txlog_subscription_oldest_age_seconds",
        "age of the oldest message not acknowledged that is due",
        lambda row: _seconds(row["oldest_age_ms"]),
    ),
    (
        "txlog_subscription_catch_up_seconds",
        "until the backlog is empty, at the rates of now",
        lambda row: _seconds(row["catch_up_ms"]),
    ),
    ("pulsar_subscription_consumers_count", "live consumers", lambda row: row["consumers"]),
    (
        "txlog_subscription_no_consumer_seconds",
        "since the last sign of a consumer, while none is connected",
        lambda row: _seconds(row["no_consumer_ms"]),
    ),
]


def _of(row: LagRow | AlertRow) -> dict[str, str]:
    return {"topic": row["topic"], "subscription": row["subscription"]}


def _alert_families(rows: Sequence[AlertRow]) -> Iterator[Family]:
    """The thresholds of policies; an alert whose value is unknown has no sample in the first."""
    yield Family(
        "txlog_alert",
        "gauge",
        "1 while a backlog is above a threshold of its policies, else 0",
        [
            ("", {**_of(row), "alert": row["alert"]}, int(row["status"] == alerts.FIRING))
            for row in rows
            if row["status"] != alerts.UNKNOWN
        ],
    )
    yield Family(
        "txlog_alert_threshold",
        "gauge",
        "the threshold: messages, bytes or seconds",
        [
            (
                "",
                {**_of(row), "alert": row["alert"]},
                row["threshold"] / (1000 if alerts.is_time(row["alert"]) else 1),
            )
            for row in rows
        ],
    )


def _space_families(view: View, store: Store) -> Iterator[Family]:
    """Messages and bytes that came in, disk by topic, and the checkpoint."""
    places = [
        ({"topic": _short(topic), "partition": str(index)}, view.topic(number))
        for topic in _topics(view)
        for index, number in enumerate(numbers(topic))
    ]
    yield Family(
        "pulsar_in_messages_total",
        "counter",
        "messages that became visible",
        [("", labels, state.messages + state.trimmed_messages) for labels, state in places],
    )
    yield Family(
        "pulsar_in_bytes_total",
        "counter",
        "their payload bytes",
        [("", labels, state.payload_bytes + state.trimmed_bytes) for labels, state in places],
    )
    yield Family(
        "txlog_disk_bytes",
        "gauge",
        "files of a topic: messages, sidecar, compacted, index",
        [
            ("", {"topic": _short(topic), "part": part}, size)
            for topic in _topics(view)
            for part, size in topic_file_bytes(view, topic).items()
        ],
    )
    yield Family(
        "txlog_journal_bytes",
        "gauge",
        "of the newest journal file, which holds what no checkpoint has yet",
        [("", {}, view.journal.end)],
    )
    written_ms = view.manifest.time_ms
    yield Family(
        "txlog_checkpoint_age_seconds",
        "gauge",
        "since the newest checkpoint; no sample before the first",
        [("", {}, max(0, store.clock.now().wall_ms - written_ms) / 1000)] if written_ms else [],
    )


# --- partitions and subscriptions ------------------------------------------------------------


def _partition_families(view: View) -> Iterator[Family]:
    places = [
        ({"topic": _short(topic), "partition": str(index)}, view.topic(number), view.buffer(number))
        for topic in _topics(view)
        for index, number in enumerate(numbers(topic))
    ]
    yield Family(
        "pulsar_txn_tb_active_total",
        "gauge",
        "open transactions with messages there",
        [("", labels, sum(map(len, side.held.values()))) for labels, _, side in places],
    )
    yield Family(
        "txlog_sidecar_bytes",
        "gauge",
        "payload bytes of the sidecar",
        [
            ("", {**labels, "state": state}, size)
            for labels, _, side in places
            for state, size in zip(("live", "garbage"), sidecar_bytes(side), strict=True)
        ],
    )
    yield Family(
        "pulsar_txn_tb_committed_total",
        "counter",
        "transactions committed there",
        [("", labels, side.committed_count) for labels, _, side in places],
    )
    yield Family(
        "pulsar_txn_tb_aborted_total",
        "counter",
        "transactions aborted there",
        [("", labels, side.aborted_count) for labels, _, side in places],
    )
    yield Family(
        "txlog_dedup_dropped_total",
        "counter",
        "duplicate messages, not stored",
        [("", labels, state.dedup_dropped) for labels, state, _ in places],
    )
    yield Family(
        "txlog_dedup_original_missing_total",
        "counter",
        "duplicate messages answered without an id",
        [("", labels, state.dedup_missing) for labels, state, _ in places],
    )
    yield Family(
        "txlog_delayed_rejected_total",
        "counter",
        "messages refused for their delay",
        [("", labels, state.delays_refused) for labels, state, _ in places],
    )
    yield Family(
        "txlog_delayed_beyond_ttl_total",
        "counter",
        "messages that will expire before they are due",
        [("", labels, state.delays_beyond_ttl) for labels, state, _ in places],
    )


def _subscription_families(view: View) -> Iterator[Family]:
    places = [(_labels(view, record), _cursors(view, record)) for record in _subscriptions(view)]
    per_cursor: list[tuple[str, str, str, Callable[[Cursor], int]]] = [
        (
            "pulsar_txn_tp_committed_count_total",
            "counter",
            "commits with acknowledgements",
            lambda cursor: cursor.figures.committed,
        ),
        (
            "pulsar_txn_tp_aborted_count_total",
            "counter",
            "aborts with acknowledgements",
            lambda cursor: cursor.figures.aborted,
        ),
        (
            "txlog_pending_ack_messages",
            "gauge",
            "messages that open transactions acknowledged",
            lambda cursor: sum(acks.count for acks in cursor.pending.values()),
        ),
        (
            "txlog_ack_conflicts_total",
            "counter",
            "transactions aborted by a conflict",
            lambda cursor: cursor.figures.conflicts,
        ),
        (
            "txlog_ack_dropped_total",
            "counter",
            "messages acknowledged while a transaction held them",
            lambda cursor: cursor.figures.dropped,
        ),
        (
            "txlog_redelivered_total",
            "counter",
            "messages to be delivered again",
            lambda cursor: cursor.figures.redelivered,
        ),
        (
            "txlog_acknowledged_total",
            "counter",
            "messages acknowledged",
            lambda cursor: cursor.acked_count,
        ),
        (
            "txlog_dead_lettered_total",
            "counter",
            "messages moved to a dead-letter topic",
            lambda cursor: cursor.figures.dead_lettered,
        ),
    ]
    for name, kind, text, value in per_cursor:
        yield Family(
            name, kind, text, [("", labels, sum(map(value, cursors))) for labels, cursors in places]
        )


def _topics(view: View) -> list[Topic]:
    return sorted(view.catalog.topics.values(), key=lambda topic: topic.name)


def _subscriptions(view: View) -> list[Subscription]:
    return [view.catalog.subscriptions[n] for t in _topics(view) for n in t.subscriptions]


def _labels(view: View, subscription: Subscription) -> dict[str, str]:
    return {
        "topic": _short(view.catalog.topics[subscription.topic]),
        "subscription": subscription.name,
    }


def _cursors(view: View, subscription: Subscription) -> list[Cursor]:
    topic = view.catalog.topics[subscription.topic]
    return [view.cursor(subscription.number, number) for number in numbers(topic)]
