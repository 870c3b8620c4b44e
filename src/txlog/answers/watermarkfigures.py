"""The metrics of watermarks, of partitions where a producer ever asserted anything.

    by topic, partition and subscription
    txlog_watermark_event_time_ms          emitted: the highest value handed to a consumer, if any
    txlog_watermark_materialized_ms        that of where everything before is acknowledged, if any
    txlog_watermark_lag_seconds            from the emitted value until now; none at the end
    txlog_watermark_status                 0 unknown, 1 active, 2 idle, 3 it cannot be read now
    txlog_watermark_held                   1 while the materialized value is below the emitted one
    txlog_watermark_emitted_total          values that were stored as handed out, in all epochs
    txlog_watermark_late_messages_total    handed out by consumers of this process, too late

    by topic and partition
    txlog_watermark_active_producers, _pending_transactions   who is waited for, or may be
    txlog_watermark_regressions_total, _snapshots_total, _snapshot_bytes_total
    txlog_watermark_rows_folded_total      rows that this process read for values
    txlog_watermark_ahead_of_open_txn_total   asserted by producers of this process although an open
                                           transaction of theirs has older messages

Those of this process begin at 0 when it opens the store; the others survive it.
Source: spec/watermarks 13.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from txlog.answers.metric_family import Family, Sample
from txlog.answers.watermarks import Standing, standings
from txlog.engine.folds.catalog import Topic, index_of, numbers
from txlog.engine.folds.watermark import Watermark
from txlog.engine.store.store import Store
from txlog.engine.view.view import View
from txlog.ids import TopicName
from txlog.settings import EVENT_TIME_MAX

_PREFIX: Final = "txlog_watermark"
STATUSES: Final = ("unknown", "active", "idle", "unavailable")
Labels = dict[str, str]


def watermark_families(view: View, store: Store, topics: list[Topic]) -> Iterator[Family]:
    """The metrics of these topics, in order.

    cost: a value for each subscription and partition, each of at most the rows of one interval
          between snapshots
    """
    used = {topic.number: _used(view, topic) for topic in topics}
    places: list[tuple[Labels, Standing, int]] = []
    for topic in topics:
        indexes = [index_of(topic, number) for number in used[topic.number]]
        for subscription in topic.subscriptions if indexes else ():
            held = view.catalog.subscriptions[subscription]
            for one in standings(view, topic, indexes, held):
                clamp = view.watermark(one.number).clamps.get(subscription)
                labels = {**_labels(topic, one.partition), "subscription": held.name}
                places.append((labels, one, 0 if clamp is None else clamp.emitted))
    yield from _of_subscriptions(places, store.clock.now().wall_ms)
    yield Family(f"{_PREFIX}_late_messages_total", "counter", "handed out late by this process", [
        ("", {"topic": topic, "partition": str(partition), "subscription": name}, count)
        for (topic, partition, name), count in sorted(store.tally.late.items())
    ])  # fmt: skip
    yield from _of_partitions([
        (_labels(topic, index_of(topic, number)), view.watermark(number),
         (store.tally.rows_folded[number], store.tally.ahead[topic.number]))
        for topic in topics for number in used[topic.number]
    ])  # fmt: skip


def _used(view: View, topic: Topic) -> list[int]:
    """Partitions, by number, with any watermark; no state is made for others."""
    return [
        number for number in numbers(topic)
        if view.exists(("watermark", number, 0)) and view.watermark(number).is_used
    ]  # fmt: skip


def _labels(topic: Topic, index: int) -> Labels:
    return {"topic": TopicName.parse(topic.name).short, "partition": str(index)}


def _of_subscriptions(places: list[tuple[Labels, Standing, int]], now_ms: int) -> Iterator[Family]:
    emitted = [(labels, one.emitted) for labels, one, _ in places if one.emitted is not None]
    yield Family(f"{_PREFIX}_event_time_ms", "gauge", "the value handed to consumers", [
        ("", labels, value) for labels, value in emitted
    ])  # fmt: skip
    yield Family(f"{_PREFIX}_materialized_ms", "gauge", "the value of what is acknowledged", [
        ("", labels, one.value) for labels, one, _ in places if one.value is not None
    ])  # fmt: skip
    yield Family(f"{_PREFIX}_lag_seconds", "gauge", "from the value handed out until now", [
        ("", labels, (now_ms - value) / 1000)
        for labels, value in emitted if value != EVENT_TIME_MAX
    ])  # fmt: skip
    yield Family(
        f"{_PREFIX}_status", "gauge", "0 unknown, 1 active, 2 idle, 3 it cannot be read now",
        [("", labels, STATUSES.index(one.status)) for labels, one, _ in places],
    )  # fmt: skip
    yield Family(f"{_PREFIX}_held", "gauge", "1 while a producer is below what was handed out", [
        ("", labels, int(_is_held(one))) for labels, one, _ in places
    ])  # fmt: skip
    yield Family(f"{_PREFIX}_emitted_total", "counter", "values that were handed out", [
        ("", labels, count) for labels, _, count in places
    ])  # fmt: skip


def _is_held(one: Standing) -> bool:
    return one.value is not None and one.emitted is not None and one.value < one.emitted


def _of_partitions(places: list[tuple[Labels, Watermark, tuple[int, int]]]) -> Iterator[Family]:
    stored: list[tuple[str, str, str, Callable[[Watermark], int]]] = [
        ("active_producers", "gauge", "producers that are waited for",
         lambda state: len(state.state.active)),
        ("pending_transactions", "gauge", "open transactions with watermarks",
         lambda state: len(state.pending)),
        ("regressions_total", "counter", "times that fell, and changed nothing",
         lambda state: state.figures.regressions),
        ("snapshots_total", "counter", "snapshots in the log",
         lambda state: state.figures.snapshots),
        ("snapshot_bytes_total", "counter", "bytes of these",
         lambda state: state.figures.snapshot_bytes),
    ]  # fmt: skip
    for name, kind, text, value in stored:
        yield Family(f"{_PREFIX}_{name}", kind, text, [
            ("", labels, value(state)) for labels, state, _ in places
        ])  # fmt: skip
    counted = (
        ("rows_folded_total", "rows that this process read for values"),
        ("ahead_of_open_txn_total", "ahead of an open transaction of a producer of this process"),
    )
    for at, (name, text) in enumerate(counted):
        samples: list[Sample] = [("", labels, counts[at]) for labels, _, counts in places]
        yield Family(f"{_PREFIX}_{name}", "counter", text, samples)
