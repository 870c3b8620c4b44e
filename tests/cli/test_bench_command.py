"""`txlog bench`: each mode does its operations, and leaves no files. No test judges a figure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.test_store import Tool, tool
from txlog.cli.benchmark import MODES, bench
from txlog.errors import InvalidArgument

pytestmark = pytest.mark.usefixtures("quick_disk")
_ = tool


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_does_its_operations(tmp_path: Path, mode: str) -> None:
    row = bench(str(tmp_path), mode, message_bytes=7, txn_size=3, operations_max=60)
    assert row["operations"] == 60
    assert row["messages"] == (60 if mode == "produce" else 180)
    assert row["size_bytes"] == 7 * row["messages"]
    assert 0 <= row["p50_us"] <= row["p99_us"] <= row["max_us"]
    assert not list(tmp_path.iterdir())


def test_senseless_benchmarks_are_refused(tmp_path: Path) -> None:
    for wrong in ({"mode": "no"}, {"message_bytes": 0}, {"txn_size": 0}, {"txn_size": 1 << 20}):
        with pytest.raises(InvalidArgument):
            bench(str(tmp_path), **wrong)
    assert not list(tmp_path.iterdir())


def test_two_runs_are_compared(tool: Tool, tmp_path: Path) -> None:
    flags = ["--mode", "txn", "--duration", "1ms", "--txn-size", "2"]
    [row] = [tool.json("bench", *flags)]
    (row,) = row if isinstance(row, list) else (row,)
    assert row["mode"] == "txn" and row["ratio"] is None
    first_run = tmp_path / "before.json"
    first_run.write_text(json.dumps([{**row, "per_second": row["per_second"] * 2}]))
    (second_run,) = json.loads(tool.ok("bench", *flags, "--compare", str(first_run), "--json"))
    assert second_run["ratio"] == pytest.approx(
        second_run["per_second"] / row["per_second"] / 2, abs=0.001
    )
    assert tool.error("bench", *flags, "--compare", str(tmp_path / "none"))["code"] == "TXL-308"
    first_run.write_text("[]")
    assert tool.error("bench", *flags, "--compare", str(first_run))["exit"] == 2
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith(".")] == []
