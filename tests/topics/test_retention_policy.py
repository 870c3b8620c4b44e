"""Retention policies are inherited: the policy of a topic comes first, then its namespace, then the
store.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.cli.test_store import Tool, tool
from tests.engine_kit import Bench, send
from txlog.cli.main import main
from txlog.errors import InvalidArgument

pytestmark = pytest.mark.usefixtures("quick_disk")
DAY_MS = 86_400_000
_ = tool


def bench_of(folder: Path) -> Bench:
    """Two topics of a namespace and one of another, each with old ledgers and a backlog."""
    bench = Bench(folder / "store", ledger_entries_max=3, coordinators=1)
    for topic in ("t", "kept", "other/ns/t"):
        bench.client.create_topic(topic)
        bench.client.create_subscription(topic, "s")
        send(bench.client, b"0", b"1", b"2", b"3", topic=topic)
    bench.clock.advance(2 * DAY_MS)
    return bench


def left(bench: Bench, field: str) -> dict[str, object]:
    return {row["topic"]: dict(row)[field] for row in bench.client.subscriptions()}


def messages(bench: Bench) -> dict[str, int]:
    return {row["topic"]: row["messages"] for row in bench.client.topics()}


def test_time_to_live_of_the_store_applies_unless_a_topic_removes_it(
    tmp_path: Path,
) -> None:
    bench = bench_of(tmp_path)
    admin = bench.client.admin
    admin.set_retention_policies(ttl_ms=DAY_MS)
    admin.set_retention_policies(namespace="other/ns", ttl_ms=-1)
    admin.set_retention_policies("kept", ttl_ms=3 * DAY_MS)
    bench.client.checkpoint()
    assert left(bench, "backlog") == {"t": 0, "kept": 4, "other/ns/t": 4}
    assert bench.client.subscription("kept", "s").expire()["skipped"] == 0
    assert bench.client.consumer("kept", "s").receive_batch(9).num_rows == 4
    admin.remove_retention_policies(namespace="other/ns")
    assert bench.client.consumer("other/ns/t", "s").receive_batch(9).num_rows == 0


@pytest.mark.parametrize("policy", [{"retention_ms": DAY_MS}, {"retention_bytes": 0}])
def test_retention_of_a_namespace_trims_its_topics(tmp_path: Path, policy: dict[str, int]) -> None:
    bench = bench_of(tmp_path)
    for topic in ("t", "kept", "other/ns/t"):
        bench.client.subscription(topic, "s").clear_backlog()
    change = bench.client.admin.set_retention_policies
    change(None, "public/default", **policy)  # type: ignore[arg-type]  # names of two arguments
    change("kept", None, **dict.fromkeys(policy, -1))  # type: ignore[arg-type]  # as above
    plan = bench.client.admin.trim("t", by_policy=True, dry_run=True)
    bench.client.checkpoint()
    assert messages(bench)["t"] == 4 - plan["messages"] < 4
    assert messages(bench)["kept"] == messages(bench)["other/ns/t"] == 4
    assert bench.client.admin.trim("kept", by_policy=True)["ledgers"] == 0


def test_store_policy_trims_what_all_subscriptions_acknowledged(tmp_path: Path) -> None:
    """Ledgers of another topic with unacknowledged messages stay."""
    bench = bench_of(tmp_path)
    bench.client.subscription("t", "s").clear_backlog()
    bench.client.admin.set_retention_policies(retention_acked=True)
    bench.client.checkpoint()
    assert messages(bench) == {"t": 1, "kept": 4, "other/ns/t": 4}


def test_removed_bound_is_none_and_is_not_inherited(tmp_path: Path) -> None:
    bench = bench_of(tmp_path)
    admin = bench.client.admin
    admin.set_retention_policies(retention_ms=5, retention_bytes=7)
    answer = admin.set_retention_policies("t", retention_ms=-1)
    assert answer["policies"]["retention_ms"] is None
    assert answer["policies"]["retention_bytes"] == 7
    assert (answer["origins"]["retention_ms"], answer["origins"]["ttl_ms"]) == ("topic", "store")
    assert bench.reopen().describe_topic("t")["policies"] == {"retention_ms": None}
    answer_again = bench.client.admin.remove_retention_policies(["retention_ms"], "t")
    assert (answer_again["policies"]["retention_ms"], answer_again["changed"]) == (5, True)
    with pytest.raises(InvalidArgument):
        bench.client.admin.set_retention_policies("t", retention_ms=-2)


@pytest.mark.parametrize(
    "line",
    [
        "policy retention set --topic orders --time 1s",
        "policy retention set --time 1s",
        "topic update orders --retention 1s",
    ],
)
def test_commands_that_set_retention_say_what_applies_it(
    tool: Tool, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    """Nothing is deleted before a checkpoint; the printed command makes one."""
    tool.ok("produce", "orders", "-m", "a", "-m", "b")
    monkeypatch.setenv("TXLOG_NOW", "2026-11-20T09:12:09Z")
    code, _, err = tool(*line.split())
    assert code == 0
    assert tool.json("topic", "describe", "orders")["messages"] == 2
    [now] = [text.partition("now: txlog ")[2] for text in err.splitlines() if "now: " in text]
    assert main(shlex.split(now)) == 0
    assert tool.json("topic", "describe", "orders")["messages"] == 0
