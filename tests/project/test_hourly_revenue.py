"""The example of watermarks: its plan keeps its promises, its comparison finds faults, it runs.

Source: spec/watermarks 1, 2, 9; examples/hourly_revenue.py.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import txlog
from tests.source_tree import ROOT, SOURCE

EXAMPLES = ROOT / "examples"
LINES, BOUND_MS, SEED = 1_500, 3 * 3_600_000, 5
TOPICS = ("lines", "revenue", "late-lines")
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def plans() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLES)
        yield importlib.import_module("hourly_plan")
        for name in [name for name in sys.modules if name.startswith("hourly")]:
            del sys.modules[name]


@pytest.fixture(scope="module")
def plan(plans: ModuleType) -> Any:
    return plans.make_plan(LINES, BOUND_MS, SEED)


def test_each_line_is_in_one_list_and_each_till_keeps_its_promise(
    plans: ModuleType, plan: Any
) -> None:
    """Section 2: no line is later than the bound allows, although lines do swap places."""
    parts = [*plan.shares.values(), plan.stragglers]
    assert sorted(line for part in parts for line in part["line"].to_pylist()) == [*range(LINES)]
    assert plan.stragglers.num_rows == LINES // 100
    for share in plan.shares.values():
        newest = swapped = 0
        for time in share["event_time"].cast(pa.int64()).to_pylist():
            assert time >= newest - BOUND_MS
            swapped += time < newest
            newest = max(newest, time)
        assert swapped > share.num_rows // 3
    second = plan.shares["till-2"]
    assert second.num_rows > LINES // 8
    assert pc.max(second["arrival"]).as_py() < plan.arrival(plans.TILL_2_UNTIL)


def test_the_seed_decides_all_of_it(plans: ModuleType, plan: Any) -> None:
    same, other = (plans.make_plan(LINES, BOUND_MS, seed) for seed in (SEED, SEED + 1))
    assert all(same.shares[till].equals(share) for till, share in plan.shares.items())
    assert same.stragglers.equals(plan.stragglers)
    assert not other.shares["till-1"].equals(plan.shares["till-1"])
    assert not other.stragglers.equals(plan.stragglers)


def hours(plans: ModuleType, late: list[int]) -> list[dict[str, object]]:
    """The windows of a correct run."""
    return [
        {
            "start": start,
            "end": start + 3_600_000,
            "lines": lines,
            "revenue": f"{worth // 1000}.{worth % 1000:03}",
        }
        for start, (lines, worth) in plans._wanted(LINES, late).items()
    ]


FAULTS = {
    "none": "",
    "a line is missing": "1 lines were not sent",
    "a line is there twice": "1 lines were sent twice",
    "a window is there twice": "1 windows were given twice",
    "a window is missing": "None, the file has",
    "a penny is missing": "the file has",
    "late twice": "1 lines were late twice",
    "a straggler is in time": "stragglers in time",
    "an honest line is late": "a till that kept its promise",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_comparison_finds_each_fault(
    plans: ModuleType, plan: Any, fault: str, tmp_path: Path
) -> None:
    """Kills: a comparison that accepts any output, so that the demonstration proves nothing."""
    late = plan.stragglers["line"].to_pylist()
    overdue = plan.shares["till-3"]["line"].to_pylist()[-3:]
    late += overdue
    if fault == "a straggler is in time":
        late.remove(plan.stragglers["line"][0].as_py())
    elif fault == "an honest line is late":
        late.append(plan.shares["till-1"]["line"][0].as_py())
    windows = hours(plans, late)
    if fault == "a window is there twice":
        windows.append(windows[0])
    elif fault == "a window is missing":
        del windows[0]
    elif fault == "a penny is missing":
        windows[0]["revenue"] = str(windows[0]["revenue"])[:-2] + "90"
    all_lines = pa.concat_tables([*plan.shares.values(), plan.stragglers])
    all_lines = all_lines.select(["key", "value", "event_time", "line"])
    put_aside = all_lines.filter(pc.is_in(all_lines["line"], pa.array(late)))
    sent = all_lines.slice(fault == "a line is missing")
    if fault == "a line is there twice":
        sent = pa.concat_tables([all_lines, all_lines.slice(0, 1)])
    elif fault == "late twice":
        put_aside = pa.concat_tables([put_aside, put_aside.slice(0, 1)])
    txlog.init(str(tmp_path), durability="os")
    with txlog.open(str(tmp_path)) as client:
        for topic in TOPICS:
            client.create_topic(topic)
        client.producer("lines").send_batch(sent.drop_columns("line"))
        client.producer("late-lines").send_batch(put_aside.drop_columns("line"))
        values = pa.array([json.dumps(window).encode() for window in windows], pa.binary())
        client.producer("revenue").send_batch(pa.table({"value": values}))
        faults = plans.compare(client, plan, TOPICS, overdue)
    if fault == "none":
        assert faults.problems == []
        assert faults.window_lines + faults.late == faults.sent == LINES
        assert (faults.stragglers_late, faults.successor_late) == (LINES // 100, 3)
    else:
        assert any(FAULTS[fault] in problem for problem in faults.problems), faults.problems


def test_pounds_become_integers_exactly(plans: ModuleType) -> None:
    for text, worth in (("1", 1000), ("-0.001", -1), ("12.34", 12340), ("-11062.06", -11062060)):
        assert plans.thousandths(text) == worth


def demonstrate(tmp_path: Path, *options: str) -> dict[str, str]:
    """Run the command; returns its printed figures by their names."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / "hourly_revenue.py"), *options],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=600,
        env={"PATH": os.environ.get("PATH", os.defpath), "PYTHONPATH": str(SOURCE)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in done.stdout.splitlines())


def check(figures: dict[str, str], lines: int, kills: int) -> None:
    assert figures["each line exactly once, each hour exact"] == "yes"
    assert int(figures["lines sent"]) == int(figures["lines of the file"]) == lines
    assert int(figures["lines in them"]) + int(figures["late lines"]) == lines
    assert int(figures["times the function was killed"]) == kills
    assert int(figures["that had been mislaid"]) == min(50, lines // 100)


@pytest.mark.deep
def test_the_demonstration_is_exact_and_draws_itself(tmp_path: Path) -> None:
    """Tills and the function are processes, killed with SIGKILL; DuckDB checks the result."""
    options = ("--lines", "4000", "--kills", "1", "--seconds", "0", "--picture", "it.svg")
    check(demonstrate(tmp_path, *options), 4_000, 1)
    drawn = ElementTree.parse(tmp_path / "it.svg").getroot()
    words = [element.text or "" for element in drawn.iter(f"{SVG}text")]
    for label in ("till-3 killed", "declared idle", "watermark of till-1", "event time (UTC)"):
        assert any(label in word for word in words), label
    assert len(list(drawn.iter(f"{SVG}rect"))) > 10
    for element in drawn.iter(f"{SVG}text"):
        assert 0 <= float(element.attrib["x"]) <= 1200


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
def test_the_demonstration_is_exact_whatever_the_seed(tmp_path: Path, seed: int) -> None:
    options = ("--lines", "40000", "--kills", "10", "--seconds", "6", "--seed", str(seed))
    check(demonstrate(tmp_path, *options), 40_000, 10)
