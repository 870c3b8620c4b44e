"""The rotation of tests: each has its days, whatever other tests there are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from scripts import check
from tests.rotation import TIERS, Tier, chosen, today
from tests.tiers import graded

NAMES = [f"tests/test_{n % 7}.py::test[{n}]" for n in range(700)]
SEVENTHS = Tier(7, limit_s=25.0)
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("tier", TIERS)
def test_every_test_of_a_tier_has_its_day(tier: str) -> None:
    parts = [chosen(NAMES, TIERS[tier], day) for day in range(TIERS[tier].parts)]
    assert sorted(name for part in parts for name in part) == sorted(NAMES)
    expected = len(NAMES) / len(parts)
    assert all(0.7 * expected <= len(part) <= 1.3 * expected for part in parts)


@pytest.mark.parametrize("tier", TIERS)
def test_a_test_keeps_its_day_when_others_come_and_go(tier: str) -> None:
    some = {*NAMES[::3]}
    assert {*chosen(some, TIERS[tier], 3)} == some & {*chosen(NAMES, TIERS[tier], 3)}


def test_order_of_a_tier_with_a_limit_differs_from_week_to_week() -> None:
    """The time may end before the last test."""
    weeks = [chosen(NAMES, SEVENTHS, 3), chosen(NAMES, SEVENTHS, 3 + SEVENTHS.parts)]
    assert {*weeks[0]} == {*weeks[1]} and weeks[0] != weeks[1]


def test_tier_without_a_limit_keeps_its_order() -> None:
    """Tests of one file share what is expensive to make."""
    names = chosen(NAMES, Tier(3), 1)
    assert names == [name for name in NAMES if name in names]


def test_a_file_has_a_test_every_day_where_the_quick_suite_has_none_of_its_kind() -> None:
    names = [f"tests/clients/test_{n}.py::test" for n in range(40)]
    names += [f"tests/clients/test_many.py::test[{n}]" for n in range(3)]
    tier = Tier(5, has_files=True)
    days = [chosen(names, tier, day) for day in range(15)]
    for day in days:
        assert {name.partition("::")[0] for name in day} == {
            name.partition("::")[0] for name in names
        }
    assert {name for day in days for name in day} == {*names}


TREE = """
import pytest
@pytest.mark.parametrize("number", range(30))
@pytest.mark.deep
def test_law(number): pass
@pytest.mark.slow
@pytest.mark.deep
@pytest.mark.parametrize("number", range(30))
def test_seed(number): pass
def test_behaviour(): pass
"""


@pytest.mark.parametrize("workers", graded(["1", "0"], 1))
def test_each_part_is_named_with_its_counts(tmp_path: Path, workers: str) -> None:
    """A test with two marks belongs to the rarer tier; one without any runs every day."""
    (tmp_path / "test_tree.py").write_text(TREE, encoding="utf-8")
    (tmp_path / "conftest.py").write_text(
        "from tests.rotation import Rotation\n"
        "def pytest_configure(config): config.pluginmanager.register(Rotation(8))\n",
        encoding="utf-8",
    )
    (tmp_path / "pytest.ini").write_text(
        f"[pytest]\npythonpath = {ROOT} {ROOT / 'src'}\nmarkers =\n    slow\n    deep\n",
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", workers],
        cwd=tmp_path, capture_output=True, text=True, check=False, encoding="utf-8",
    )  # fmt: skip
    names = {
        "deep": [f"test_tree.py::test_law[{n}]" for n in range(30)],
        "slow": [f"test_tree.py::test_seed[{n}]" for n in range(30)],
    }
    counts = {tier: len(chosen(names[tier], TIERS[tier], 8)) for tier in names}
    assert f"{sum(counts.values()) + 1} passed" in done.stdout, done.stdout
    for tier, part in (("slow", "part 2 of 7"), ("deep", "part 1 of 4")):
        assert f"{tier} tests, {part}: {counts[tier]} of 30 " in done.stdout, done.stdout
        assert f"{counts[tier]} ran in 0 s, 0 were skipped" in done.stdout


def test_the_line_of_today_names_every_tier() -> None:
    assert today(8).startswith(
        "parts of today: slow 2 of 7, deep 1 of 4, spark 1 of 2, clients 1 of 2; "
    )
    assert {*check.MARKED} - {"tests"} <= {*TIERS}


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The commands of the steps that run; no command does anything, and the spark command fails."""
    commands = list[list[str]]()

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, int("spark" in command), stdout="a line\n")

    monkeypatch.setattr(subprocess, "run", run)
    return commands


@pytest.mark.parametrize(
    ("words", "marks", "has_day"),
    [
        (["--all"], {"deep and not spark", "spark", "clients"}, True),
        (["--slow"], {"deep and not spark", "spark", "clients"}, False),
        (["--only", "deep"], {"deep and not spark and not slow"}, False),
        ([], set(), False),
    ],
)
def test_only_a_run_of_all_has_parts(
    ran: list[list[str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    words: list[str], marks: set[str], has_day: bool,
) -> None:  # fmt: skip
    """Of steps side by side each output is printed in one piece, and a failure is one of all."""
    monkeypatch.setattr(sys, "argv", ["check.py", *words])
    assert check.main() == int("spark" in marks)
    marked = {command[-1 - 2 * has_day]: command for command in ran if "-m" in command[3:]}
    quick = "not spark and not deep and not clients"
    assert marked.keys() - {quick, f"{quick} and not slow"} == marks
    assert all(("--day" in command) == has_day for command in marked.values())
    printed = capsys.readouterr()
    assert ("parts of today: slow " in printed.out) == has_day
    if "spark" in marks:
        assert "== spark\na line\n== spark: FAILED (" in printed.out
        assert printed.err == "failed: spark\n"
