"""The metrics of watermarks. Source: spec/watermarks 13."""

from __future__ import annotations

import warnings

import pytest

from tests.engine_kit import START_MS, Bench, begin, say
from tests.watermarks.test_examples import drain, post, values
from txlog import Client
from txlog.client.answers.metrics_text import exposition
from txlog.engine.session.sending.producer import WatermarkAheadWarning

pytestmark = [
    pytest.mark.usefixtures("quick_disk"),
    pytest.mark.store({"t": 2, "quiet": 1}, [("quiet", "s")]),
]
LAST = (1 << 63) - 1
NAMES = {
    "event_time_ms": "gauge", "materialized_ms": "gauge", "lag_seconds": "gauge",
    "status": "gauge", "held": "gauge", "emitted_total": "counter",
    "late_messages_total": "counter", "active_producers": "gauge",
    "pending_transactions": "gauge", "regressions_total": "counter",
    "snapshots_total": "counter", "snapshot_bytes_total": "counter",
    "rows_folded_total": "counter", "ahead_of_open_txn_total": "counter",
}  # fmt: skip


def figures(client: Client) -> dict[str, float]:
    """Every sample by its name, without the prefix, and the values of its labels."""
    client.flush()
    return {
        " ".join((family.name.removeprefix("txlog_watermark_") + suffix, *labels.values())): value
        for family in client.admin.metrics()
        if family.name.startswith("txlog_watermark_")
        for suffix, labels, value in family.samples
    }


def test_names_and_types_are_as_specified(bench: Bench) -> None:
    """13; a topic without watermarks has no sample, and the store keeps no state for it."""
    bench.client.create_subscription("t", "s")
    families = bench.client.admin.metrics()
    types = {
        family.name.removeprefix("txlog_watermark_"): family.type
        for family in families
        if family.name.startswith("txlog_watermark")
    }
    assert types == NAMES
    assert figures(bench.client) == {}
    known_items = bench.client.store.read(lambda view: {key[0] for key in view.known()})
    assert "watermark" not in known_items
    assert "# TYPE txlog_watermark_emitted_total counter" in exposition(families)


def test_delivered_and_current_values_of_a_subscription(bench: Bench) -> None:
    client = bench.client
    with client.consumer("t", "s", create=True, enable_watermarking=True) as consumer:
        say(client, "A", START_MS - 5000)
        assert figures(client)["status t 0 s"] == 1
        assert "event_time_ms t 0 s" not in figures(client)
        assert values(consumer) == [START_MS - 5000]
        say(client, "A", START_MS - 3000)
        assert values(consumer) == [START_MS - 3000]
        assert figures(client)["held t 0 s"] == 0
        say(client, "B", START_MS - 4000)
        found_figures = figures(client)
        for index in "01":
            assert found_figures[f"event_time_ms t {index} s"] == START_MS - 3000
            assert found_figures[f"materialized_ms t {index} s"] == START_MS - 4000
            assert found_figures[f"lag_seconds t {index} s"] == 3
            assert found_figures[f"held t {index} s"] == 1
            assert found_figures[f"emitted_total t {index} s"] == 2
            assert found_figures[f"active_producers t {index}"] == 2
        say(client, "A", None)
        say(client, "B", None)
        found_figures = figures(client)
        assert (found_figures["status t 0 s"], found_figures["held t 0 s"]) == (2, 0)
        assert "materialized_ms t 0 s" not in found_figures
        client.admin.set_offline("t", 1)
        found_figures = figures(client)
        assert (found_figures["status t 0 s"], found_figures["status t 1 s"]) == (2, 3)
        client.admin.set_online("t", 1)
        say(client, "A", LAST)
        assert values(consumer) == [LAST]
        found_figures = figures(client)
        assert found_figures["event_time_ms t 0 s"] == LAST
        assert "lag_seconds t 0 s" not in found_figures
        consumer.seek("earliest")
        found_figures = figures(client)
        assert (found_figures["status t 0 s"], found_figures["emitted_total t 0 s"]) == (1, 3)
        assert "event_time_ms t 0 s" not in found_figures  # the seek began a new epoch
    other = figures(bench.reopen())
    assert (other["emitted_total t 0 s"], other["active_producers t 1"]) == (3, 1)


def test_unknown_and_active_partitions_have_different_samples(bench: Bench) -> None:
    client = bench.client
    client.create_subscription("t", "s")
    post(client, 10)
    say(client, "A", 20)
    found_figures = figures(client)
    assert (found_figures["status t 0 s"], found_figures["status t 1 s"]) == (0, 1)
    assert found_figures["materialized_ms t 1 s"] == 20


def test_counters_of_a_partition_survive_a_restart(bench: Bench) -> None:
    client = bench.client
    for time in (20, 10, 15, 30):
        say(client, "A", time)
    txns = [begin(client) for _ in range(3)]
    for txn, time in zip(txns, (40, 5, 50), strict=True):
        say(client, "B", time, txn=txn)
    client.commit(txns[0])
    client.commit(txns[1])
    client.topic("t").watermarks.snapshot()
    for _ in range(2):
        found_figures = figures(client)
        assert found_figures["regressions_total t 0"] == 3
        assert found_figures["pending_transactions t 0"] == 1
        assert found_figures["snapshots_total t 0"] == 1
        assert 20 < found_figures["snapshot_bytes_total t 0"] < 200
        client.checkpoint()
        client = bench.reopen()
    client.abort(txns[2])
    assert figures(client)["pending_transactions t 1"] == 0


def test_late_messages_are_counted_where_they_were_handed_out(bench: Bench) -> None:
    """By partition and subscription, single messages and batches; in this process."""
    client = bench.client
    for name in ("one", "many"):
        client.create_subscription("t", name)
    say(client, "A", 100)
    post(client, 10, 100, 20, partition=0)
    post(client, 30, 200, partition=1)
    client.producer("t").send(b"timeless", partition=1)
    with client.consumer("t", "one", enable_watermarking=True) as consumer:
        found_values, got = drain(consumer)
        assert (found_values, sum(message.is_late for message in got)) == ([100], 3)
    with client.consumer("t", "many", enable_watermarking=True) as consumer:
        assert consumer.receive_batch().num_rows == 0
        assert consumer.receive_batch().num_rows == 6
        assert consumer.late_messages == 3
    figures_after = figures(client)
    for name in ("one", "many"):
        assert figures_after[f"late_messages_total t 0 {name}"] == 2
        assert figures_after[f"late_messages_total t 1 {name}"] == 1
    assert "late_messages_total t 0 one" not in figures(bench.another())


def test_folded_rows_and_assertions_ahead_are_counted_per_process(bench: Bench) -> None:
    client = bench.client
    client.create_subscription("t", "s")
    producer = client.producer("t", name="A")
    txn = begin(client)
    producer.send(b"x", event_time=5, txn=txn, partition=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", WatermarkAheadWarning)
        for time in (10, 11, 12):
            producer.new_watermark().event_time(time).send()
    post(client, 30)
    say(client, "A", 20)
    figures_before = figures(client)
    assert (
        figures_before["ahead_of_open_txn_total t 0"]
        == figures_before["ahead_of_open_txn_total t 1"]
        == 3
    )
    figures_after = figures(client)
    # show reads the rows up to the message that holds the subscription's value
    assert figures_after["rows_folded_total t 0"] - figures_before["rows_folded_total t 0"] == 3
    assert figures_after["rows_folded_total t 1"] == figures_before["rows_folded_total t 1"] == 0
    assert figures(bench.another())["ahead_of_open_txn_total t 0"] == 0
