"""What stock consumers and producers record while everything is killed breaks no promise."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.clients import bed, recorded
from tests.harness import SEED
from tests.mutants.patch import PATCHES, read_mutant
from tests.source_tree import SOURCE

PLANS = recorded.PLANS | recorded.IN_TRANSACTIONS
SLOW_TO_START = ("shared", "failover, no batches", "shared, in transactions")  # Java's plans
DEATHS = {"python": 3, "go": 3, "java": 2}
RUNS = [
    *(("python", name) for name in recorded.PLANS),  # its client has no transactions
    *(pytest.param("go", name, marks=pytest.mark.needs("go")) for name in PLANS),
    *(pytest.param("java", name, marks=pytest.mark.needs("mvn")) for name in SLOW_TO_START),
]


@pytest.mark.clients
@pytest.mark.parametrize(("client", "name"), RUNS)
def test_histories_of_stock_clients_have_no_finding(client: str, name: str, tmp_path: Path) -> None:
    """Kills: whatever a checker of histories names, for clients that die as the server does."""
    try:
        recorded.program(client)
    except bed.Unavailable as error:
        pytest.skip(str(error))
    plan = PLANS[name] | {"Deaths": DEATHS[client]}
    assert recorded.wrong(client, plan, tmp_path, SEED) == ""


@pytest.mark.clients
def test_fault_of_a_server_is_named(tmp_path: Path) -> None:
    """Kills: a run that records too little, and a checker that lets everything pass."""
    source = tmp_path / "src"
    shutil.copytree(SOURCE, source)
    mutant = read_mutant(PATCHES / "114-ack-set-ignored.patch")
    for path, text in mutant.applied().items():
        (tmp_path / path).write_text(text, encoding="utf-8")
    plan = recorded.PLANS["shared"] | {"Deaths": 2}
    assert "unreachable-message: " in recorded.wrong("python", plan, tmp_path, SEED, source=source)
