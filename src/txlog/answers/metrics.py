"""The metrics of a store as plain values, computed from the folds of a view.

One Family a metric, in the order of spec/transactions 16: names and types are Pulsar's where the
meaning is the same. Counters are fields of folds, so they survive processes and only grow; no
transaction id is ever a label. txlog.answers.metrics_text makes the Prometheus text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from txlog.answers.delayfigures import delay_families
from txlog.answers.keys import key_families, living_keys
from txlog.answers.metric_family import Family, Sample
from txlog.answers.partitions import sidecar_bytes
from txlog.answers.watermarkfigures import watermark_families
from txlog.engine.folds.catalog import Subscription, Topic, numbers
from txlog.engine.folds.coordinator import (
    ABORTED,
    ABORTING,
    COMMITTED,
    COMMITTING,
    DURATION_BOUNDS_MS,
    OPEN,
    Coordinator,
)
from txlog.engine.folds.cursor import Cursor
from txlog.engine.plan import clock_trust
from txlog.engine.store.store import Store
from txlog.engine.view.view import View
from txlog.ids import TopicName
from txlog.settings import SECOND_MS

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
        *delay_families(view, store, _topics(view)),
        *watermark_families(view, store, _topics(view)),
        *key_families(living_keys(view)),
        *_clock_families(view, store),
    ]


def _clock_families(view: View, store: Store) -> Iterator[Family]:
    known = clock_trust.judge(view, store.settings, store.clock.now())
    jump_s = 0 if known.is_believed else known.ahead_ms // SECOND_MS
    yield Family("txlog_clock_jump_seconds", "gauge", "the clock ahead of what was expected, if "
                 "nothing expires by it; else 0", [("", {}, jump_s)])  # fmt: skip


# --- coordinators ----------------------------------------------------------------------------


def _coordinators(view: View, store: Store) -> list[tuple[int, Coordinator]]:
    known = view.known()
    return [
        (number, view.coordinator(number) if ("coordinator", number, 0) in known
         else Coordinator())
        for number in range(store.settings.coordinators)
    ]  # fmt: skip


def _coordinator_families(folds: list[tuple[int, Coordinator]]) -> Iterator[Family]:
    per_coordinator: list[tuple[str, str, str, Callable[[Coordinator], int]]] = [
        ("active_count", "gauge", "open transactions",
         lambda fold: sum(txn.status == OPEN for txn in fold.unfinished.values())),
        ("created_total", "counter", "transactions begun", lambda fold: fold.created_count),
        ("committed_total", "counter", "transactions committed",
         lambda fold: fold.committed_count),
        ("aborted_total", "counter", "transactions aborted, for whatever reason",
         lambda fold: fold.aborted_count),
        ("timeout_total", "counter", "transactions aborted by their time-out",
         lambda fold: fold.timed_out_count),
        ("append_log_total", "counter", "ops in the log of the coordinator",
         lambda fold: fold.log_ops),
    ]  # fmt: skip
    for name, kind, text, value in per_coordinator:
        yield Family(f"pulsar_txn_{name}", kind, text, [
            ("", {"coordinator_id": str(number)}, value(fold)) for number, fold in folds
        ])  # fmt: skip


def _transaction_families(folds: list[tuple[int, Coordinator]], now_ms: int) -> Iterator[Family]:
    states = [fold for _, fold in folds]
    reasons = dict.fromkeys(REASONS, 0)
    for fold in states:
        for reason, count in fold.aborted_by.items():
            reasons[reason] = reasons.get(reason, 0) + count
    yield Family("txlog_txn_aborted_by_reason_total", "counter", "aborts by their reason", [
        ("", {"reason": reason}, count) for reason, count in reasons.items()
    ])  # fmt: skip
    yield Family(
        "txlog_recovery_rolled_total", "counter",
        "ends completed later than they were decided, by a sweep or by recovery", [
            ("", {"direction": "forward"}, sum(fold.rolled_forward for fold in states)),
            ("", {"direction": "back"}, sum(fold.rolled_back for fold in states)),
        ],
    )  # fmt: skip
    yield _durations(states)
    counts = dict.fromkeys((OPEN, COMMITTING, ABORTING), 0)
    opened: list[int] = []
    for fold in states:
        for txn in fold.unfinished.values():
            counts[txn.status] += 1
            if txn.status == OPEN:
                opened.append(txn.wall_ms)
    yield Family("txlog_txn_unfinished", "gauge", "unfinished transactions by status", [
        ("", {"status": status.lower()}, count) for status, count in counts.items()
    ])  # fmt: skip
    oldest_ms = max(0, now_ms - min(opened, default=now_ms))
    yield Family("txlog_txn_oldest_open_seconds", "gauge", "age of the oldest open transaction", [
        ("", {}, oldest_ms / 1000)
    ])  # fmt: skip
    yield Family("txlog_txn_waiting", "gauge", "decided, but waiting for partitions", [
        ("", {}, counts[COMMITTING] + counts[ABORTING])
    ])  # fmt: skip


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
    return Family("txlog_txn_duration_seconds", "histogram", "from the begin to the end", samples)


# --- partitions and subscriptions ------------------------------------------------------------


def _partition_families(view: View) -> Iterator[Family]:
    places = [
        ({"topic": _short(topic), "partition": str(index)}, view.topic(number),
         view.buffer(number))
        for topic in _topics(view)
        for index, number in enumerate(numbers(topic))
    ]  # fmt: skip
    yield Family("pulsar_txn_tb_active_total", "gauge", "open transactions with messages there", [
        ("", labels, sum(map(len, side.held.values()))) for labels, _, side in places
    ])  # fmt: skip
    yield Family("txlog_sidecar_bytes", "gauge", "payload bytes of the sidecar", [
        ("", {**labels, "state": state}, size)
        for labels, _, side in places
        for state, size in zip(("live", "garbage"), sidecar_bytes(side), strict=True)
    ])  # fmt: skip
    yield Family("pulsar_txn_tb_committed_total", "counter", "transactions committed there", [
        ("", labels, side.committed_count) for labels, _, side in places
    ])  # fmt: skip
    yield Family("pulsar_txn_tb_aborted_total", "counter", "transactions aborted there", [
        ("", labels, side.aborted_count) for labels, _, side in places
    ])  # fmt: skip
    yield Family("txlog_dedup_dropped_total", "counter", "messages there before, not stored", [
        ("", labels, state.dedup_dropped) for labels, state, _ in places
    ])  # fmt: skip
    yield Family(
        "txlog_dedup_original_missing_total",
        "counter",
        "messages not stored, whose original was not found",
        [("", labels, state.dedup_missing) for labels, state, _ in places],
    )
    yield Family("txlog_delayed_rejected_total", "counter", "messages refused for their delay", [
        ("", labels, state.delays_refused) for labels, state, _ in places
    ])  # fmt: skip
    yield Family(
        "txlog_delayed_beyond_ttl_total", "counter", "stored to expire before they are due", [
            ("", labels, state.delays_beyond_ttl) for labels, state, _ in places
        ],
    )  # fmt: skip


def _subscription_families(view: View) -> Iterator[Family]:
    places = [(_labels(view, held), _cursors(view, held)) for held in _subscriptions(view)]
    per_cursor: list[tuple[str, str, str, Callable[[Cursor], int]]] = [
        ("pulsar_txn_tp_committed_count_total", "counter", "commits with acknowledgements",
         lambda cursor: cursor.figures.committed),
        ("pulsar_txn_tp_aborted_count_total", "counter", "aborts with acknowledgements",
         lambda cursor: cursor.figures.aborted),
        ("txlog_pending_ack_messages", "gauge", "messages that open transactions acknowledged",
         lambda cursor: sum(one.count for one in cursor.pending.values())),
        ("txlog_ack_conflicts_total", "counter", "transactions aborted by a conflict",
         lambda cursor: cursor.figures.conflicts),
        ("txlog_ack_dropped_total", "counter", "acknowledged while a transaction held them",
         lambda cursor: cursor.figures.dropped),
        ("txlog_redelivered_total", "counter", "messages that were to come again",
         lambda cursor: cursor.figures.redelivered),
        ("txlog_dead_lettered_total", "counter", "messages moved to a dead-letter topic",
         lambda cursor: cursor.figures.dead_lettered),
    ]  # fmt: skip
    for name, kind, text, value in per_cursor:
        yield Family(name, kind, text, [
            ("", labels, sum(map(value, cursors))) for labels, cursors in places
        ])  # fmt: skip


def _short(topic: Topic) -> str:
    return TopicName.parse(topic.name).short


def _topics(view: View) -> list[Topic]:
    return sorted(view.catalog.topics.values(), key=lambda topic: topic.name)


def _subscriptions(view: View) -> list[Subscription]:
    return [view.catalog.subscriptions[n] for t in _topics(view) for n in t.subscriptions]


def _labels(view: View, held: Subscription) -> dict[str, str]:
    return {"topic": _short(view.catalog.topics[held.topic]), "subscription": held.name}


def _cursors(view: View, held: Subscription) -> list[Cursor]:
    topic = view.catalog.topics[held.topic]
    return [view.cursor(held.number, number) for number in numbers(topic)]
