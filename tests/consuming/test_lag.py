"""Lag: the backlog of a subscription, its age, bytes and rates, unknown values, and the cost."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.engine_kit import Bench, say, send, send_txn
from txlog import MessageId
from txlog.base.ranges import END
from txlog.base.rows.consuming import LagRow
from txlog.client.answers import lag as lags
from txlog.engine.storage.disk.posix import PosixDisk

pytestmark = pytest.mark.usefixtures("quick_disk")

MINUTE_MS = 60_000


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    bench = Bench(tmp_path / "store", coordinators=1)
    bench.client.create_topic("t")
    bench.client.create_subscription("t", "s", type="shared")
    return bench


def row_of(bench: Bench) -> LagRow:
    [row] = bench.client.lag()
    return row


# --- the oldest message ------------------------------------------------------------------------


def test_age_is_of_the_first_message_that_is_not_acknowledged(bench: Bench) -> None:
    ids: list[MessageId] = []
    for value in (b"0", b"1", b"2"):
        ids += send(bench.client, value)
        bench.clock.advance(1_000)
    assert row_of(bench)["oldest_age_ms"] == 3_000
    bench.client.acknowledge("t", "s", [ids[1]])
    assert row_of(bench)["oldest_age_ms"] == 3_000
    bench.client.acknowledge("t", "s", [ids[0]])
    row = row_of(bench)
    assert (row["backlog"], row["oldest_age_ms"], row["oldest_estimated"]) == (1, 1_000, False)
    bench.client.acknowledge("t", "s", [ids[2]])
    row = row_of(bench)
    assert (row["backlog"], row["oldest_age_ms"], row["catch_up_ms"]) == (0, None, 0)


def test_age_of_a_transaction_is_that_of_its_commit(bench: Bench) -> None:
    txn = bench.client.begin()["txn"]
    bench.client.producer("t").send(b"early", txn=txn)
    bench.clock.advance(5_000)
    assert row_of(bench)["oldest_age_ms"] is None  # no reader sees it
    bench.client.commit(txn)
    bench.clock.advance(1_000)
    row = row_of(bench)
    assert (row["backlog"], row["oldest_age_ms"]) == (1, 1_000)


def test_delayed_message_has_no_age_until_it_is_due(bench: Bench) -> None:
    deliver_at = bench.clock.now().wall_ms + MINUTE_MS
    bench.client.producer("t").send(b"later", deliver_at=deliver_at)
    row = row_of(bench)
    assert (row["backlog"], row["backlog_no_delayed"], row["oldest_age_ms"]) == (1, 0, None)
    bench.clock.advance(1_000)
    send(bench.client, b"now")
    bench.clock.advance(2_000)
    assert row_of(bench)["oldest_age_ms"] == 2_000  # of the second message
    bench.clock.advance(MINUTE_MS)
    assert row_of(bench)["oldest_age_ms"] == 3_000  # since the first was due, not since its publish


def test_beyond_the_budget_of_reads_an_age_is_an_estimate_and_says_so(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids: list[MessageId] = []
    for value in (b"0", b"1", b"2"):
        ids += send(bench.client, value)
        bench.clock.advance(1_000)
    bench.client.acknowledge("t", "s", ids[:1])
    bench.client.checkpoint()
    read = bench.client.reading()["rows_read"]
    assert row_of(bench)["oldest_estimated"] is False
    assert bench.client.reading()["rows_read"] == read  # it counts what consumers read
    monkeypatch.setattr(lags, "READS_MAX", 0)
    row = row_of(bench)
    assert row["oldest_estimated"] is True
    assert 1_000 <= (row["oldest_age_ms"] or 0) <= 3_000


# --- bytes -------------------------------------------------------------------------------------


def test_bytes_of_an_untouched_backlog_are_exact_and_of_others_in_proportion(bench: Bench) -> None:
    ids = send(bench.client, b"x" * 10, b"x" * 30)
    assert row_of(bench)["backlog_bytes"] == 40
    bench.client.acknowledge("t", "s", ids[:1])
    assert row_of(bench)["backlog_bytes"] == 20
    send_txn(bench.client, b"y" * 7)
    bench.client.acknowledge("t", "s", ids[1:])
    assert row_of(bench)["backlog"] == 1


# --- rates -------------------------------------------------------------------------------------


def test_rates_count_what_became_visible_and_what_was_acknowledged(bench: Bench) -> None:
    ids = send(bench.client, *[b"v"] * 30)
    send_txn(bench.client, *[b"v"] * 30)
    bench.client.abort(bench.client.begin()["txn"])
    bench.client.acknowledge("t", "s", ids[:15])
    txn = bench.client.begin()["txn"]
    bench.client.acknowledge("t", "s", ids[15:30], txn=txn)
    bench.client.commit(txn)
    bench.clock.advance(MINUTE_MS - 1)
    row = row_of(bench)
    assert (row["rate_in_1m"], row["rate_out_1m"]) == (1.0, 0.5)
    assert (row["rate_in_15m"], row["rate_out_15m"]) == (0.067, 0.033)
    bench.clock.advance(1)
    row = row_of(bench)
    assert (row["rate_in_1m"], row["rate_out_1m"]) == (0.0, 0.0)
    assert row["catch_up_ms"] is None  # no consumer acknowledges: never


def test_time_to_catch_up_follows_from_the_rates(bench: Bench) -> None:
    ids = send(bench.client, *[b"v"] * 120)
    bench.clock.advance(2 * MINUTE_MS)
    bench.client.acknowledge("t", "s", ids[:60])
    bench.clock.advance(1_000)
    assert row_of(bench)["catch_up_ms"] == MINUTE_MS  # 60 messages, one a second


def test_rate_is_unknown_and_not_zero_when_the_journal_is_gone(bench: Bench) -> None:
    send(bench.client, b"v")
    for _ in range(3):
        bench.client.checkpoint()
        send(bench.client, b"v")
    row = bench.another().lag()[0]
    assert row["rate_in_1m"] is None and row["rate_out_1m"] is None and row["catch_up_ms"] is None
    bench.clock.advance(20_000)
    late = bench.another().lag()[0]
    assert late["rate_in_1m"] is not None and late["rate_in_15m"] is None


def test_client_that_stays_open_remembers_beyond_the_journal(bench: Bench) -> None:
    for _ in range(6):
        send(bench.client, *[b"v"] * 10)
        bench.client.lag()
        bench.client.checkpoint()
        bench.clock.advance(9_000)
    assert row_of(bench)["rate_in_1m"] == 1.0
    assert bench.another().lag()[0]["rate_in_15m"] is None


def test_commit_of_acknowledgements_older_than_the_journal_makes_the_rate_unknown(
    bench: Bench,
) -> None:
    ids = send(bench.client, *[b"v"] * 10)
    txn = bench.client.begin(10 * MINUTE_MS)["txn"]
    bench.client.acknowledge("t", "s", ids, txn=txn)
    for _ in range(3):
        bench.client.checkpoint()
        send(bench.client, b"v")
    bench.clock.advance(2 * MINUTE_MS)
    bench.client.commit(txn)
    bench.clock.advance(1_000)
    row = bench.another().lag()[0]
    assert row["rate_in_1m"] == 0.0
    assert row["rate_out_1m"] is None


# --- consumers ---------------------------------------------------------------------------------


def test_consumers_say_process_and_machine_and_their_absence_is_timed(bench: Bench) -> None:
    bench.clock.advance(5_000)
    assert row_of(bench)["no_consumer_ms"] == 5_000
    with bench.client.consumer("t", "s"):
        described = bench.client.subscription("t", "s").describe()
        [consumer] = described["consumer_list"]
        assert (consumer["pid"], consumer["host"]) == (os.getpid(), platform.node())
        assert consumer["address"] is None
        assert described["no_consumer_ms"] is None
        bench.clock.advance(5_000)
    bench.clock.advance(1_000)
    assert row_of(bench)["no_consumer_ms"] == 1_000


# --- alerts ------------------------------------------------------------------------------------


def alerts_of(bench: Bench) -> dict[str, tuple[str, int | None]]:
    checks = bench.client.admin.check()["check_list"]
    return {
        row["name"].split(" ")[1]: (row["status"], row["warn"])
        for row in checks
        if row["name"].startswith("alert ")
    }


def test_narrowest_threshold_decides_and_off_ends_the_search(bench: Bench) -> None:
    admin = bench.client.admin
    send(bench.client, b"0", b"1")
    bench.clock.advance(10_000)
    assert alerts_of(bench) == {}
    admin.set_alert_policies(backlog_messages=1, backlog_age_ms=60_000)
    assert alerts_of(bench) == {"backlog-age": ("ok", 60_000), "backlog": ("warning", 1)}
    admin.set_alert_policies("t", backlog_messages=5, backlog_age_ms=5_000)
    assert alerts_of(bench) == {"backlog-age": ("warning", 5_000), "backlog": ("ok", 5)}
    answer = admin.set_alert_policies("t", subscription="s", backlog_messages=-1)
    assert answer["policies"]["backlog_messages"] is None
    assert answer["origins"]["backlog_messages"] == "subscription"
    assert alerts_of(bench) == {"backlog-age": ("warning", 5_000)}
    admin.remove_alert_policies([], "t", subscription="s")
    admin.remove_alert_policies([], "t")
    assert alerts_of(bench) == {"backlog-age": ("ok", 60_000), "backlog": ("warning", 1)}


def test_alert_is_a_problem_of_status_and_overview_and_a_metric(bench: Bench) -> None:
    send(bench.client, b"0")
    bench.client.admin.set_alert_policies("t", subscription="s", backlog_messages=0)
    [problem] = bench.client.status()["problem_list"]
    assert problem["code"] == "alert" and problem["hint"] == "txlog sub describe s -t t"
    assert bench.client.overview()["problem_list"] == [problem]
    samples = {family.name: family.samples for family in bench.client.admin.metrics()}
    labels = {"topic": "t", "subscription": "s", "alert": "backlog"}
    assert samples["txlog_alert"] == [("", labels, 1)]
    assert samples["txlog_alert_threshold"] == [("", labels, 0)]
    assert bench.reopen().status()["problem_list"] == [problem]  # it is stored


def test_unavailable_watermark_has_no_lag_and_a_bound_makes_that_unknown(bench: Bench) -> None:
    say(bench.client, "p", bench.clock.now().wall_ms)
    bench.client.checkpoint()
    bench.client.admin.set_offline("t", 0)
    answer = bench.client.admin.check(lag_ms=(1_000, None))
    [row] = [row for row in answer["check_list"] if row["name"] == "lag t"]
    assert (row["value"], row["status"]) == (None, "unknown")


# --- counters ----------------------------------------------------------------------------------


def test_counter_of_messages_does_not_fall_with_a_trim(bench: Bench) -> None:
    def counted(name: str) -> float:
        families = bench.client.admin.metrics()
        return sum(value for f in families if f.name == name for _, _, value in f.samples)

    ids = send(bench.client, b"abc", b"de")
    bench.client.acknowledge("t", "s", ids)
    bench.client.checkpoint(roll_all=True)
    assert bench.client.admin.trim("t", END)["messages"] == 2
    assert (counted("pulsar_in_messages_total"), counted("pulsar_in_bytes_total")) == (2, 5)
    assert counted("txlog_acknowledged_total") == 2


# --- cost --------------------------------------------------------------------------------------


def test_cost_of_a_large_store_is_bounded_in_opened_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path / "store", coordinators=1)
    for number in range(20):
        bench.client.create_topic(f"t{number}", partitions=20)
        bench.client.create_subscription(f"t{number}", "s")
        for value in (b"0", b"1", b"2"):
            bench.client.producer(f"t{number}").send(value, partition=number)
            bench.clock.advance(1)
        with bench.client.consumer(f"t{number}", "s") as consumer:
            consumer.acknowledge(consumer.receive(timeout_ms=0))
    bench.client.checkpoint()
    monkeypatch.setattr(lags, "READS_MAX", 5)
    opened: list[str] = []
    whole = PosixDisk.open

    def open_counted(disk: PosixDisk, path: str, write: bool = False) -> Any:
        opened.append(path)
        return whole(disk, path, write)

    monkeypatch.setattr(PosixDisk, "open", open_counted)
    rows = bench.another().lag()
    assert [row["backlog"] for row in rows] == [2] * 20
    assert sum(row["oldest_estimated"] for row in rows) == 15  # five were read
    states = [path for path in opened if path.startswith("state/")]
    assert len(states) <= 10  # one for all dumps, and a few single ones
    bench.close()


# --- disk --------------------------------------------------------------------------------------


def test_disk_usage_agrees_with_du(bench: Bench) -> None:
    ids = send(bench.client, *[b"x" * 100] * 50)
    send_txn(bench.client, *[b"y" * 100] * 50)
    deliver_at = bench.clock.now().wall_ms + MINUTE_MS
    bench.client.producer("t").send(b"later", deliver_at=deliver_at)
    bench.client.acknowledge("t", "s", ids)
    bench.client.checkpoint(roll_all=True)
    usage = bench.client.disk_usage()
    du = shutil.which("du")
    assert du is not None
    told = subprocess.run([du, "-sb", bench.path], capture_output=True, text=True, check=True)
    assert usage["size_bytes"] == int(told.stdout.split()[0])
    sizes = [row["size_bytes"] for row in usage["usage_list"]]
    assert sizes == sorted(sizes, reverse=True) and sum(sizes) == usage["size_bytes"]
    [topic] = [row for row in usage["usage_list"] if row["kind"] == "topic"]
    parts = ("messages", "sidecar", "index", "compacted", "changes", "other")
    assert topic["name"] == "t" and topic["messages_bytes"] and topic["sidecar_bytes"]
    assert sum(topic[f"{part}_bytes"] for part in parts) == topic["size_bytes"]  # type: ignore[literal-required]
    assert {row["name"] for row in usage["usage_list"]} >= {"journal", "checkpoints", "locks"}
    bench.client.admin.delete_topic("t", force=True)
    rows = {row["name"]: row for row in bench.client.disk_usage()["usage_list"]}
    assert "t" not in rows and rows["deleted"]["kind"] == "store"
    assert rows["deleted"]["size_bytes"] == topic["size_bytes"], "until they are removed"


def test_offloaded_bytes_are_counted_apart(bench: Bench, tmp_path: Path) -> None:
    send(bench.client, *[b"x" * 100] * 50)
    bench.client.checkpoint(roll_all=True)
    place = tmp_path / "place"
    place.mkdir()
    answer = bench.client.admin.offload("t", str(place))
    usage = bench.client.disk_usage()
    assert usage["offloaded_bytes"] == answer["size_bytes"] > 0
    told = subprocess.run(["du", "-sb", bench.path], capture_output=True, text=True, check=True)
    assert usage["size_bytes"] == int(told.stdout.split()[0])
