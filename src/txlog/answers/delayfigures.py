"""The metrics of delayed delivery; names are Pulsar's where the meaning is the same.

    pulsar_subscription_delayed                        msgDelayed, as in `sub list`
    pulsar_delayed_message_index_bucket_total          sealed buckets, and the mutable one
    pulsar_delayed_message_index_loaded                ids in the memory of this process
    pulsar_delayed_message_index_size_bytes            the memory they take
    pulsar_delayed_message_index_bucket_snapshot_size_bytes    the files of sealed buckets
    pulsar_delayed_message_index_bucket_op_count       steps of upkeep in this process
    txlog_delayed_bucket_op_seconds                    how long they took
    txlog_delayed_strays, _rewinds_total, _popped_total, _lateness_seconds
                                                       what the consumers of this process did
    txlog_delayed_rows_read_total, _handed_out_total   their quotient is the read amplification

The index belongs to the partition: a topic sums partitions, not subscriptions.
Source: spec/delayed-delivery 12.
"""

from __future__ import annotations

from collections.abc import Iterator

from txlog.answers.delayed import DelayCounts, in_memory
from txlog.answers.metric_family import Family, Sample
from txlog.engine.folds.catalog import Topic, numbers
from txlog.engine.store.counters import FAILED, LATENESS_BOUNDS_MS, SUCCEEDED, BucketOps, DelayTally
from txlog.engine.store.store import Store
from txlog.engine.view.view import View
from txlog.ids import TopicName

KINDS = ("seal", "merge", "prune", "delete", "rebuild", "lost")
_INDEX = "pulsar_delayed_message_index"


def delay_families(view: View, store: Store, topics: list[Topic]) -> Iterator[Family]:
    """The metrics of these topics, in order."""
    counts = DelayCounts(view, store)
    yield Family("pulsar_subscription_delayed", "gauge", "messages that are not due yet", [
        ("", {"topic": _short(topic), "subscription": held.name},
         counts.of_subscription(topic, held))
        for topic in topics
        for held in (view.catalog.subscriptions[number] for number in topic.subscriptions)
    ])  # fmt: skip
    places = [
        ({"topic": _short(topic), "partition": str(index)}, view.delayed(number),
         in_memory(view, number))
        for topic in topics
        for index, number in enumerate(numbers(topic))
    ]  # fmt: skip
    yield Family(f"{_INDEX}_bucket_total", "gauge", "sealed buckets, and the mutable one", [
        ("", labels, len(state.buckets) + 1) for labels, state, _ in places
    ])  # fmt: skip
    yield Family(f"{_INDEX}_loaded", "gauge", "delayed ids in the memory of this process", [
        ("", labels, loaded.ids) for labels, _, loaded in places
    ])  # fmt: skip
    yield Family(f"{_INDEX}_size_bytes", "gauge", "memory that they take in this process", [
        ("", labels, loaded.bytes) for labels, _, loaded in places
    ])  # fmt: skip
    yield Family(f"{_INDEX}_bucket_snapshot_size_bytes", "gauge", "files of sealed buckets", [
        ("", labels, sum(bucket.file.bytes for bucket in state.buckets))
        for labels, state, _ in places
    ])  # fmt: skip
    yield from _bucket_ops(store.bucket_ops)
    yield from _delivery(store.bucket_ops.delivered)
    yield Family("txlog_delayed_rows_read_total", "counter", "rows read, of whatever topic", [
        ("", {}, store.tally.rows_read)
    ])  # fmt: skip
    yield Family("txlog_delayed_handed_out_total", "counter", "messages given to callers", [
        ("", {}, store.tally.handed_out)
    ])  # fmt: skip


def _delivery(known: DelayTally) -> Iterator[Family]:
    """What the consumers of this process did."""
    yield Family("txlog_delayed_strays", "gauge", "remembered as not due, not in the index", [
        ("", {}, known.strays)
    ])  # fmt: skip
    yield Family("txlog_delayed_rewinds_total", "counter", "times that a consumer began again", [
        ("", {}, known.rewinds)
    ])  # fmt: skip
    yield Family("txlog_delayed_popped_total", "counter", "handed out after they had waited", [
        ("", {}, known.popped)
    ])  # fmt: skip
    samples: list[Sample] = []
    so_far = 0
    for bound_ms, count in zip(LATENESS_BOUNDS_MS, known.lateness, strict=False):
        so_far += count
        samples.append(("_bucket", {"le": f"{bound_ms / 1000:g}"}, so_far))
    so_far += known.lateness[-1]
    samples += [("_bucket", {"le": "+Inf"}, so_far), ("_count", {}, so_far)]
    samples.append(("_sum", {}, known.lateness_ms / 1000))
    yield Family(
        "txlog_delayed_lateness_seconds", "histogram", "handed out so long after they were due",
        samples,
    )  # fmt: skip


def _bucket_ops(known: BucketOps) -> Iterator[Family]:
    """What this process did to buckets since it opened the store."""
    kinds = sorted({*KINDS, *(kind for kind, _ in known.counts)})
    yield Family(f"{_INDEX}_bucket_op_count", "gauge", "steps of upkeep in this process", [
        ("", {"type": kind, "state": state}, known.counts[(kind, state)])
        for kind in kinds for state in (SUCCEEDED, FAILED)
    ])  # fmt: skip
    samples: list[Sample] = []
    for kind in kinds:
        samples.append(("_count", {"type": kind}, known.counts[(kind, SUCCEEDED)]))
        samples.append(("_sum", {"type": kind}, known.seconds.get(kind, 0.0)))
    yield Family("txlog_delayed_bucket_op_seconds", "summary", "time of these steps", samples)


def _short(topic: Topic) -> str:
    return TopicName.parse(topic.name).short
