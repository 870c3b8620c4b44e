"""Every message for which a stock client got an answer is stored, and once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.clients import answered, bed

# Plans that lost messages before the store recorded the numbers that it has.
PLANS: dict[str, dict[str, Any]] = {
    "a batch for each key, killed": {"Keys": 3, "DelayMs": 50, "Kills": 2},
    "delayed messages ahead of long batches, killed": {"Delayed": 4, "DelayMs": 500, "Kills": 2},
    "numbers with gaps": {"Keys": 2, "Delayed": 5, "Gap": 1_000_000, "Named": True, "Kills": 1},
    "a refusal": {"Delayed": 3, "Refused": 41, "DelayMs": 100, "Count": 82},
    "a batch for each key in transactions": {"Keys": 3, "Txn": 60, "Kills": 1},
}
PLAIN = {"Count": 240, "DelayMs": 10, "Keys": 0, "Delayed": 0, "Gap": 0, "Refused": 0}
REST = {"Named": False, "Txn": 0, "Kills": 0}
clients = [
    "python",
    pytest.param("go", marks=pytest.mark.needs("go")),
    pytest.param("java", marks=pytest.mark.needs("mvn")),
]


@pytest.mark.clients
@pytest.mark.parametrize("client", clients)
def test_answered_messages_are_stored_once(client: str, tmp_path: Path) -> None:
    """Kills: a receipt for a message that is stored nowhere, and a message that is stored twice."""
    try:
        answered.program(client)
    except bed.Unavailable as error:
        pytest.skip(str(error))
    faults = {}
    for number, (name, changed) in enumerate(PLANS.items()):
        plan = {**PLAIN, **REST, **changed}
        if client == "python" and plan["Txn"]:
            continue  # it has no transactions
        with bed.running(answered.Mortal(tmp_path / f"{number}")) as server:
            faults[name] = answered.wrong(client, plan, server, f"t{number}")
    assert faults == dict.fromkeys(faults, "")
