"""The commands of delayed messages: shapes of output, exit codes, a terminal."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from tests.delayed.test_looking import bench_of, later
from tests.engine_kit import Bench
from tests.source_tree import ROOT
from txlog.base.times import format_time
from txlog.cli.main import main

pytestmark = pytest.mark.usefixtures("quick_disk")
NOW = "2023-11-14T22:13:20.000Z"  # the start of a bench


def run(bench: Bench, *arguments: str) -> int:
    return main([*arguments, "-S", bench.path, "--now", NOW])


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    new_bench = bench_of(tmp_path)
    later(new_bench.client, 1000, 2000, 120_000)
    return new_bench


def test_every_format_has_the_same_rows(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(bench, "delay", "list", "t", "--json") == 0
    rows = json.loads(capfd.readouterr().out)
    names = [row["message_id"] for row in rows]
    assert [row["due_in_ms"] for row in rows] == [1000, 2000, 120_000]
    for form in ("ndjson", "tsv", "csv", "table", "md", "wide", "names"):
        assert run(bench, "delay", "list", "t", "-f", form) == 0
        out = capfd.readouterr().out.splitlines()
        heads = {"tsv": 1, "csv": 1, "table": 1, "wide": 1, "md": 2}.get(form, 0)
        assert len(out) == heads + 3
        assert all(name in line for name, line in zip(names, out[heads:], strict=True))
    assert run(bench, "delay", "list", "t", "--columns", "txn,message_id") == 0
    assert capfd.readouterr().out.splitlines() == ["txn\tmessage_id", *(f"\t{n}" for n in names)]


def test_nothing_delayed_is_an_empty_list(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    bench.client.create_topic("empty")
    for verb in ("list", "next"):
        assert run(bench, "delay", verb, "empty", "--json") == 0
        assert capfd.readouterr().out == "[]\n"
    assert run(bench, "delayed", "buckets", "empty", "--json") == 0
    (row,) = json.loads(capfd.readouterr().out)
    assert (row["state"], row["messages"], row["first"]) == ("mutable", 0, None)


def test_next_looks_at_the_whole_store(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    client = bench.client
    client.create_topic("u")
    client.create_subscription("u", "only-here", type="shared")
    client.producer("u").send(b"x", deliver_at=1_700_000_001_500)
    assert run(bench, "delay", "next", "-n", "3", "--columns", "topic,due_in_ms") == 0
    assert capfd.readouterr().out.split() == [
        "topic",
        "due_in_ms",
        "t",
        "1000",
        "u",
        "1500",
        "t",
        "2000",
    ]
    assert run(bench, "delay", "next", "-s", "only-here", "--columns", "topic,due_in_ms") == 0
    assert capfd.readouterr().out.split()[2:] == ["u", "1500"]


@pytest.mark.parametrize(
    ("words", "exit_code"),
    [
        (["delay", "list", "nowhere"], 3),
        (["delay", "list", "t", "-s", "nobody"], 3),
        (["delay", "list", "t", "--before", "soon"], 2),
        (["delay", "list", "t", "--histogram", "--limit", "3"], 2),
        (["delay", "list", "t", "--histogram", "--columns", "key"], 2),
        (["delay", "list", "t", "--limit", "-1"], 2),
        (["delay", "next", "t", "-n", "0"], 2),
        (["delay", "buckets", "t", "-f", "names"], 2),
        (["delay", "promote", "t"], 2),
        (["delay", "promote", "t", "--all", "1:0"], 2),
        (["delay", "promote", "t", "1:99", "-y"], 3),
        (["delay", "cancel", "t", "x", "-y"], 2),
        (["delay", "cancel", "t", "--all"], 9),
        (["delay", "cancel", "t", "--all", "--read-only"], 4),
        (["delay", "merge", "t", "--to", "0"], 2),
        (["delay", "rebuild", "t", "--from", "x"], 2),
        (["delay", "list", "t", "--read-only"], 0),
        (["delay", "cancel", "t", "--all", "--dry-run"], 0),
    ],
)
def test_exit_codes(
    bench: Bench, capfd: pytest.CaptureFixture[str], words: list[str], exit_code: int
) -> None:
    """spec/cli 5; a refused command changes nothing."""
    assert run(bench, *words) == exit_code
    if exit_code:
        assert capfd.readouterr().out == ""
    assert bench.client.subscriptions("t")[0]["backlog"] == 3


def test_ids_come_from_stdin(bench: Bench, tmp_path: Path) -> None:
    """`txlog delay list T -f names | txlog delay cancel T -`."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "TXLOG_STORE": bench.path,
        "TXLOG_NOW": NOW,
    }
    txlog = f"{sys.executable} -m txlog"
    command = f"{txlog} delay list t --limit 2 -f names | {txlog} delay cancel t - -y --json"
    done = subprocess.run(
        command, shell=True, env=environment, capture_output=True, timeout=120, check=True
    )
    parsed = json.loads(done.stdout)
    assert (parsed["cancelled"], parsed["not_delayed"], parsed["dry_run"]) == (2, 0, False)
    assert bench.client.subscriptions("t")[0]["backlog"] == 1


def test_a_terminal_gets_bars_and_readable_times(bench: Bench) -> None:
    primary, secondary = pty.openpty()
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "TXLOG_NOW": NOW,
        "COLUMNS": "90",
        "NO_COLOR": "1",
    }
    arguments = [
        sys.executable,
        "-m",
        "txlog",
        "delay",
        "list",
        "t",
        "--histogram",
        "-S",
        bench.path,
    ]
    subprocess.run(arguments, env=environment, stdout=secondary, timeout=120, check=True)
    os.close(secondary)
    with os.fdopen(primary, "rb") as terminal:
        lines = []
        try:
            while line := terminal.readline():
                lines.append(line.decode().rstrip())
        except OSError:  # the other end is closed
            pass
    assert lines[0].split() == ["DUE", "WITHIN", "MESSAGES", "BAR"]
    assert [line.count("█") for line in lines[1:]] == [40, 20, 0, 0, 0]
    assert lines[1].split()[:2] == ["1m", "2"]


def test_the_times_of_a_bench(bench: Bench) -> None:
    assert format_time(bench.clock.now().wall_ms) == NOW
