"""A hunt ends: a detector that hangs counts as one that finds the mutant."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants import hunt
from tests.mutants.hunt import Hunter
from tests.mutants.patch import Detector, all_mutants


def test_a_test_that_hangs_finds_the_mutant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "test_hangs.py"
    path.write_text("import threading\n\ndef test_it():\n    threading.Event().wait()\n")
    monkeypatch.setattr(hunt, "TESTS_S", 0.5)
    hunted = Hunter().hunt(all_mutants()[0], [Detector((str(path),))])
    assert "does not end within 0.5 s" in hunted.found_by


def test_a_simulation_that_hangs_finds_the_mutant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hunt, "SIMULATION_S", 0.1)
    monkeypatch.setattr(hunt, "SEED_S", 0.1)
    monkeypatch.setattr(Hunter, "_passes", lambda *_: True)
    hunted = Hunter(first=10).hunt(all_mutants()[0], [Detector((), 3, "all")])
    assert "do not end within" in hunted.found_by


def test_the_time_of_the_processor_is_bounded() -> None:
    with pytest.raises(hunt.TimeIsOver):
        Hunter(bound_s=0).hunt(all_mutants()[0], all_mutants()[0].detectors)
