"""The metrics of delayed delivery. Source: spec/delayed 12."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.delayed.looking_kit import lose, seal
from tests.delayed.test_looking import bench_of, later
from txlog import Client
from txlog.client.answers.metrics_text import exposition

pytestmark = pytest.mark.usefixtures("quick_disk")
INDEX = "pulsar_delayed_message_index"


def figures(client: Client) -> dict[str, float]:
    """Every sample by its name and the values of its labels."""
    return {
        " ".join((family.name + suffix, *labels.values())): value
        for family in client.admin.metrics()
        for suffix, labels, value in family.samples
    }


def test_delayed_is_by_subscription_and_the_index_by_partition(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, 2)
    client = bench.client
    client.create_subscription("t", "other", type="key-shared")
    client.create_subscription("t", "at-once")
    sent = later(client, 1000, 2000, 3000, partition=0)
    later(client, 4000, partition=1)
    client.acknowledge("t", "s", sent[:1])
    seal(client, 0, 2)
    found_figures = figures(client)
    assert found_figures["pulsar_subscription_delayed t s"] == 3
    assert found_figures["pulsar_subscription_delayed t other"] == 4
    assert found_figures["pulsar_subscription_delayed t at-once"] == 0
    assert found_figures[f"{INDEX}_bucket_total t 0"] == 2
    assert found_figures[f"{INDEX}_bucket_total t 1"] == 1
    assert found_figures[f"{INDEX}_bucket_snapshot_size_bytes t 0"] > 100
    assert found_figures[f"{INDEX}_bucket_snapshot_size_bytes t 1"] == 0
    assert found_figures[f"{INDEX}_loaded t 1"] == 1
    assert found_figures[f"{INDEX}_size_bytes t 1"] >= 28
    bench.clock.advance(2500)
    assert figures(client)["pulsar_subscription_delayed t s"] == 2
    assert f"{INDEX}_bucket_total{{" in exposition(client.admin.metrics())


def test_steps_of_upkeep_are_counted_in_their_process(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    client = bench.client
    for n in range(3):
        later(client, 1000 + n, 2000 + n)
        seal(client, 0, 2)
    assert figures(client)[f"{INDEX}_bucket_op_count merge succeeded"] == 0
    client.topic("t").merge(1)
    found_figures = figures(client)
    assert found_figures[f"{INDEX}_bucket_op_count merge succeeded"] == 2
    assert found_figures[f"{INDEX}_bucket_op_count merge failed"] == 0
    assert found_figures["txlog_delayed_bucket_op_seconds_count merge"] == 2
    assert found_figures["txlog_delayed_bucket_op_seconds_sum merge"] > 0
    assert figures(bench.another())[f"{INDEX}_bucket_op_count merge succeeded"] == 0


def test_lateness_counts_delayed_messages_at_delivery(tmp_path: Path) -> None:
    """Lateness counts messages that waited for their time, not those promoted before it."""
    bench = bench_of(tmp_path)
    client = bench.client
    sent = later(client, 1000, 1950, 500_000, -1)
    with client.consumer("t", "s") as consumer:
        assert consumer.receive_batch(10).num_rows == 1
        bench.clock.advance(2000)
        assert consumer.receive_batch(10).num_rows == 2
        client.topic("t").promote(sent[2:3])
        assert consumer.receive_batch(10).num_rows == 1
    found_figures = figures(client)
    assert found_figures["txlog_delayed_popped_total"] == 3
    assert found_figures["txlog_delayed_handed_out_total"] == 4
    assert found_figures["txlog_delayed_rows_read_total"] >= 4
    assert found_figures["txlog_delayed_lateness_seconds_bucket 0.01"] == 0
    assert found_figures["txlog_delayed_lateness_seconds_bucket 0.1"] == 1
    assert found_figures["txlog_delayed_lateness_seconds_bucket 1"] == 2
    assert found_figures["txlog_delayed_lateness_seconds_count"] == 2
    assert found_figures["txlog_delayed_lateness_seconds_sum"] == 1.05


def test_rewinds_and_strays_of_consumers_are_counted(tmp_path: Path) -> None:
    """Spec 7: a lost bucket makes consumers rewind; without upkeep they look at each row."""
    bench = bench_of(tmp_path)
    client = bench.client
    later(client, 1000, 2000, 3000)
    seal(client, 0, 2)
    with client.consumer("t", "s") as consumer:
        assert consumer.receive_batch(10).num_rows == 0
        assert figures(client)["txlog_delayed_rewinds_total"] == 0
        lose(client, 0)
        with maintenance_held(client):
            assert consumer.receive_batch(10).num_rows == 0
        found_figures = figures(client)
        assert found_figures["txlog_delayed_rewinds_total"] == 1
        assert found_figures["txlog_delayed_strays"] == 2
    assert figures(client)["txlog_delayed_strays"] == 0


@contextmanager
def maintenance_held(client: Client) -> Iterator[None]:
    """Hold the maintenance lock like another process, so that no upkeep can rebuild."""
    lock = client.store.disk.lock_file("maintenance.lock")
    assert lock.try_acquire()
    try:
        yield
    finally:
        lock.close()
