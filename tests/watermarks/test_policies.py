"""Policies of watermarks: inheritance, effects, bad values; spec/watermarks 11."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.engine_kit import Bench, begin, say
from tests.watermarks.test_examples import values
from txlog import Client
from txlog.base.settings import DAY_MS, GIB, INSTANT_MS_MAX, MIB
from txlog.errors import InvalidArgument, LimitExceeded, NotAllowed, TopicNotFound, TxlogError

pytestmark = [pytest.mark.usefixtures("quick_disk"), pytest.mark.store({"t": 1, "acme/jobs/t": 1})]
DEFAULTS = {
    "snapshot_bytes_max": 4 * MIB, "snapshot_entries_max": 10_000, "snapshot_markers_max": 1_000,
    "producers_max": 10_000, "producer_idle_timeout_ms": 0, "emit_interval_ms": 0,
    "open_transaction_check": "count",
}  # fmt: skip


def snapshots(client: Client, topic: int = 1) -> int:
    return client.store.read(
        lambda view: view.watermark(view.catalog.topics[topic].first_partition).figures.snapshots
    )


def lsn(client: Client) -> int:
    found_lsn = client.status()["journal"]["lsn"]
    assert isinstance(found_lsn, int)
    return found_lsn


def test_a_topic_inherits_from_its_namespace_and_that_from_the_store(bench: Bench) -> None:
    """11: topic, else namespace, else store; over a checkpoint and a restart."""
    admin = bench.client.admin
    assert admin.get_watermark_policies("acme/jobs/t") == {
        "topic": "acme/jobs/t",
        "namespace": None,
        "policies": DEFAULTS,
        "origins": dict.fromkeys(DEFAULTS, "store"),
    }
    assert admin.set_watermark_policies(producers_max=5, open_transaction_check="off")["changed"]
    admin.set_watermark_policies(
        namespace="acme/jobs",
        producers_max=6,
        snapshot_entries_max=7,
        open_transaction_check="refuse",
    )
    admin.set_watermark_policies("acme/jobs/t", producers_max=0, open_transaction_check="count")
    for _ in range(2):
        admin = bench.client.admin
        watermark_policies = admin.get_watermark_policies("acme/jobs/t")
        assert watermark_policies["policies"] == {
            **DEFAULTS,
            "producers_max": 0,
            "snapshot_entries_max": 7,
            "open_transaction_check": "count",
        }
        assert watermark_policies["origins"] == {
            **dict.fromkeys(DEFAULTS, "store"),
            "producers_max": "topic",
            "snapshot_entries_max": "namespace",
            "open_transaction_check": "topic",
        }
        other = admin.get_watermark_policies("t")["policies"]
        assert other == {**DEFAULTS, "producers_max": 5, "open_transaction_check": "off"}
        assert bench.client.describe_topic("acme/jobs/t")["policies"] == {
            "producers_max": 0,
            "open_transaction_check": "count",
        }
        bench.client.checkpoint()
        bench.reopen()
    admin = bench.client.admin
    assert not admin.set_watermark_policies("acme/jobs/t", producers_max=0)["changed"]
    answer = admin.remove_watermark_policies(["producers_max"], "acme/jobs/t")
    assert (answer["policies"]["producers_max"], answer["changed"]) == (6, True)
    assert admin.remove_watermark_policies([], "acme/jobs/t")["policies"] == {
        **DEFAULTS,
        "producers_max": 6,
        "snapshot_entries_max": 7,
        "open_transaction_check": "refuse",
    }
    assert not admin.remove_watermark_policies([], "acme/jobs/t")["changed"]
    admin.remove_watermark_policies(namespace="acme/jobs")
    assert admin.remove_watermark_policies()["policies"] == DEFAULTS
    assert admin.get_watermark_policies("acme/jobs/t")["policies"] == DEFAULTS


SCOPES: list[dict[str, Any]] = [{"topic": "t"}, {"namespace": "public/default"}, {}]


@pytest.mark.parametrize("scope", SCOPES)
def test_each_policy_does_what_it_says(bench: Bench, scope: dict[str, Any]) -> None:
    """In each scope, in a process that was open before.

    Guards against a policy that no code reads.
    """
    other = bench.another()
    consumer = other.consumer("t", "s", create=True, enable_watermarking=True)
    producer = other.producer("t", name="A")
    admin = bench.client.admin
    admin.set_watermark_policies(
        snapshot_markers_max=2,
        producers_max=2,
        emit_interval_ms=1000,
        open_transaction_check="refuse",
        producer_idle_timeout_ms=5000,
        **scope,
    )
    txn = begin(other)
    producer.send(b"x", event_time=15, txn=txn)
    with pytest.raises(NotAllowed):
        producer.new_watermark().event_time(16).send()
    for time in (10, 11, 12, 13):
        producer.new_watermark().event_time(time).send()
    assert snapshots(other) == 1  # before the third
    producer_b = other.producer("t", name="B")
    producer_b.new_watermark().event_time(20).send()
    with pytest.raises(LimitExceeded):
        other.producer("t", name="C").new_watermark().event_time(20).send()
    assert values(consumer) == [13]
    producer.new_watermark().event_time(14).send()
    assert values(consumer) == []
    bench.clock.advance(1000)
    assert values(consumer) == [14]
    bench.clock.advance(4000)
    producer_b.new_watermark().event_time(21).send()
    assert values(consumer) == [21]  # A was silent
    consumer.close()


@pytest.mark.parametrize("bound", ["snapshot_entries_max", "snapshot_bytes_max"])
def test_a_snapshot_after_so_many_rows_or_bytes(bench: Bench, bound: str) -> None:
    """7: and at least ten times the size of the last snapshot."""
    fields: dict[str, Any] = {bound: 10}
    bench.client.admin.set_watermark_policies("t", **fields)
    say(bench.client, "A", 10)
    say(bench.client, "B", 20, topic="acme/jobs/t")
    for _ in range(12):
        bench.client.producer("t").send(b"x" * 100)
        bench.client.producer("acme/jobs/t").send(b"x" * 100)
    assert (snapshots(bench.client), snapshots(bench.client, 2)) == (1, 0)


@pytest.mark.parametrize(("scope", "given", "error"), [
    ({}, {"snapshot_bytes_max": 0}, InvalidArgument),
    ({}, {"snapshot_entries_max": 0}, InvalidArgument),
    ({}, {"snapshot_markers_max": -1}, InvalidArgument),
    ({}, {"producers_max": -1}, InvalidArgument),
    ({}, {"producer_idle_timeout_ms": -1}, InvalidArgument),
    ({}, {"emit_interval_ms": -1}, InvalidArgument),
    ({}, {"snapshot_bytes_max": 64 * GIB + 1}, LimitExceeded),
    ({}, {"producers_max": 10_000_001}, LimitExceeded),
    ({}, {"producer_idle_timeout_ms": INSTANT_MS_MAX + 1}, LimitExceeded),
    ({}, {"emit_interval_ms": DAY_MS + 1}, LimitExceeded),
    ({}, {"emit_interval_ms": 1.0}, InvalidArgument),
    ({}, {"emit_interval_ms": True}, InvalidArgument),
    ({}, {"emit_interval_ms": "5"}, InvalidArgument),
    ({}, {"open_transaction_check": "no"}, InvalidArgument),
    ({}, {"open_transaction_check": 1}, InvalidArgument),
    ({"topic": "t", "namespace": "public/default"}, {"producers_max": 1}, InvalidArgument),
    ({"namespace": "jobs"}, {"producers_max": 1}, InvalidArgument),
    ({"topic": "no"}, {"producers_max": 1}, TopicNotFound),
])  # fmt: skip
def test_a_wrong_policy_changes_nothing(
    bench: Bench, scope: dict[str, Any], given: dict[str, Any], error: type[TxlogError]
) -> None:
    lsn_before = lsn(bench.client)
    for each_scope in [scope] if scope else [{}, {"topic": "t"}, {"namespace": "acme/jobs"}]:
        with pytest.raises(error):
            bench.client.admin.set_watermark_policies(**each_scope, **given)
    with pytest.raises(InvalidArgument, match="not a policy of watermarks"):
        bench.client.admin.remove_watermark_policies(["active"])
    with pytest.raises(InvalidArgument):  # watermark policies have a call of their own
        bench.client.set_policies("t", producers_max=5)
    for value, bound in ((-1, "negative"), (1 << 62, "above 2534")):
        with pytest.raises(InvalidArgument, match=f"must not be {bound}"):
            bench.client.set_policies("t", retention_ms=value)
    assert lsn(bench.client) == lsn_before


def test_settings_given_to_init_become_watermark_policies(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "store", watermark_open_transaction_check=1)
    policies = bench.client.admin.get_watermark_policies()["policies"]
    assert policies == {**DEFAULTS, "open_transaction_check": "refuse"}
    assert bench.client.admin.remove_watermark_policies()["policies"] == DEFAULTS
    bench.close()
