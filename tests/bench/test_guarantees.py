"""`python -m bench guarantees` finds what a system loses or doubles."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

guarantees: Any = import_module("bench.guarantees")
rounds: Any = import_module("bench.guarantees.rounds")
TWO_OUTPUTS_OF_TEN = 20


@pytest.mark.parametrize("name", ["sqlite", "txlog"])
@pytest.mark.parametrize(
    ("fault", "lost", "doubled"),
    [(None, 0, 0), ("ack-first", TWO_OUTPUTS_OF_TEN, 0), ("write-first", 0, TWO_OUTPUTS_OF_TEN)],
)
def test_the_count_finds_a_fault(
    tmp_path: Path, name: str, fault: str | None, lost: int, doubled: int
) -> None:
    """A client that acknowledges apart from its writes dies once between the two."""
    count = partial(rounds.count, partial(guarantees.made, name), name, folder=tmp_path)
    found = count(60, depth=1, fault=fault, patience_s=0.3)
    assert (found["lost"], found["doubled"]) == (lost, doubled), found


@pytest.mark.parametrize("name", ["sqlite", "txlog"])
def test_killed_clients_lose_and_double_nothing(tmp_path: Path, name: str) -> None:
    """Kills: a message that a client held when it was killed is never received again."""
    count = partial(rounds.count, partial(guarantees.made, name), name, folder=tmp_path)
    found = count(2_000, kills=3, every_s=0.3, patience_s=0.3)
    assert (found["lost"], found["doubled"]) == (0, 0), found


def test_a_system_that_is_missing_is_a_line_with_the_reason() -> None:
    """Kills: one missing program ends the comparison of the others."""
    found = {
        "name": "redis",
        "title": "Redis",
        "began": "now",
        "missing": "no program redis-server",
    }
    assert guarantees.table({"redis": found})[4] == "| Redis | not had: no program redis-server |"
