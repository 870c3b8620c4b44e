"""The benchmark of watermarks at a small size: its answers agree with SQLite's."""

from __future__ import annotations

import importlib.util
import itertools
from pathlib import Path
from types import ModuleType

import pytest

from tests.source_tree import ROOT

MESSAGES, MARKERS = 6_000, 300


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_w", ROOT / "bench" / "watermarks.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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


def test_new_sections_replace_old_ones(bench: ModuleType, tmp_path: Path) -> None:
    """New figures replace their old sections, in any order, and keep the text around them."""
    path = tmp_path / "RESULTS.md"
    path.write_text("# Results\n\nfirst\n")
    spec = importlib.util.spec_from_file_location("bench_d", ROOT / "bench" / "delayed.py")
    assert spec is not None and spec.loader is not None
    other = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(other)
    steps = [bench, other, bench, other, other, bench]
    for step, module in zip(itertools.count(), steps, strict=False):
        module.put(f"{module.HEADING}\n\nfigure {step}\n", path)
    text = path.read_text()
    assert text.startswith("# Results\n\nfirst\n\n## ")
    assert text.count("## Watermarks") == text.count("## Delayed messages") == 1
    assert text.count("figure 5") == text.count("figure 4") == 1 and "figure 0" not in text
