"""What stock consumers and producers record while everything is killed breaks no promise."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.clients import bed, recorded
from tests.harness import SEED
from tests.mutants.patch import PATCHES, read_mutant
from tests.source_tree import SOURCE

clients = [
    "python",
    pytest.param("go", marks=pytest.mark.needs("go")),
    pytest.param("java", marks=pytest.mark.needs("mvn")),
]


@pytest.mark.clients
@pytest.mark.parametrize("name", [*recorded.PLANS, *recorded.IN_TRANSACTIONS])
@pytest.mark.parametrize("client", clients)
def test_histories_of_stock_clients_have_no_finding(client: str, name: str, tmp_path: Path) -> None:
    """Kills: whatever a checker of histories names, for clients that die as the server does."""
    try:
        recorded.program(client)
    except bed.Unavailable as error:
        pytest.skip(str(error))
    if client == "python" and name in recorded.IN_TRANSACTIONS:
        pytest.skip("it has no transactions")
    plan = {**recorded.PLANS, **recorded.IN_TRANSACTIONS}[name]
    deaths = {"Deaths": 3} if client == "java" else {}  # it starts slowly
    assert recorded.wrong(client, plan | deaths, tmp_path, SEED) == ""


@pytest.mark.clients
@pytest.mark.parametrize(
    ("patch", "finding"),
    [
        ("114-ack-set-ignored", "unreachable-message"),
        ("61-leased-message-is-free", "duplicate-delivery"),
    ],
)
def test_faults_of_a_server_are_named(patch: str, finding: str, tmp_path: Path) -> None:
    """Kills: a run that records too little, and a checker that lets everything pass."""
    source = tmp_path / "src"
    shutil.copytree(SOURCE, source)
    for path, text in read_mutant(PATCHES / f"{patch}.patch").applied().items():
        (tmp_path / path).write_text(text, encoding="utf-8")
    plan = recorded.PLANS["shared"] | {"Deaths": 3}
    assert f"{finding}: " in recorded.wrong("python", plan, tmp_path, SEED, source=source)
