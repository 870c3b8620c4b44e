"""The benchmark of watermarks at a small size: its answers agree with SQLite's."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest

MESSAGES, MARKERS = 6_000, 300


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return importlib.import_module("bench.watermarks")


@pytest.mark.deep
def test_watermark_at_any_position_agrees_with_sql(bench: ModuleType, tmp_path: Path) -> None:
    """The least of the producers' latest watermarks at random positions; row reads are bounded."""
    markers = bench.fill(tmp_path / "store", MESSAGES, MARKERS)
    assert len(markers) == MARKERS
    bench.make_peer(tmp_path / "peer.sqlite", markers)
    places = bench.places_of(tmp_path / "store", 200, seed=7)
    answers = bench.seeking(tmp_path / "store", places)
    peer_answers = bench.asking_peer(tmp_path / "peer.sqlite", places)
    assert [answer[0] for answer in answers] == [answer[0] for answer in peer_answers]
    assert len({answer[0] for answer in answers}) > 5
    assert 0 < max(answer[1] for answer in answers) <= MARKERS
    count, share, ledgers = bench.shares(tmp_path / "store")
    assert count < 5 and 0 <= share < 0.1 and ledgers == 2
    ours, theirs = bench.cold(tmp_path / "store", tmp_path / "peer.sqlite", places[0])
    assert ours["value"] == theirs["value"]


def test_every_way_gives_a_figure(bench: ModuleType, tmp_path: Path) -> None:
    figures = [
        *bench.asserting(tmp_path / "a", 2, 3, "os"),
        *bench.committing(tmp_path / "b", 2, 3),
        *bench.acknowledging(tmp_path / "c", 40, 10, 5),
        bench.offering(tmp_path / "d", 2, 5),
        bench.offering(tmp_path / "d", 2, 5, beside=True),
    ]
    assert len(figures) == 9 and min(figures) > 0
    assert bench.only_watermarks(tmp_path / "e", 3, 12)[1] < 0.1


def test_new_sections_replace_old_ones(tmp_path: Path) -> None:
    """New figures replace their old sections, in any order, and keep the text around them."""
    path, put = tmp_path / "RESULTS.md", importlib.import_module("bench.results").put
    path.write_text("# Results\n\nfirst\n")
    for step, heading in enumerate(("## A", "## B", "## A", "## B", "## B", "## A")):
        put(heading, [f"figure {step}"], path)
    assert path.read_text() == "# Results\n\nfirst\n\n## A\n\nfigure 5\n\n## B\n\nfigure 4\n"


def test_every_scenario_is_one_that_can_be_asked_for() -> None:
    """Kills: a program in bench/ that its command does not know, or one without a purpose."""
    command = importlib.import_module("bench.__main__")
    programs = {
        path.stem if path.is_file() else path.name
        for path in command.HERE.iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert programs - {"__init__", "__main__", "results"} == {*command.SCENARIOS}
    assert all(len(command.purpose(name)) > 20 for name in command.SCENARIOS)
