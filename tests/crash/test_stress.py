"""`python -m bench stress` for some seconds: eight processes, SIGKILLs, a full check."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness import bench


@pytest.mark.slow
def test_eight_processes_and_a_killer_lose_nothing(tmp_path: Path) -> None:
    """Nothing lost, nothing twice, no torn transaction, every answered outcome stable."""
    figures = bench("stress", tmp_path / "stress", "--seconds", "15")
    assert figures["committed"] > 0
    assert figures["kills"] > 0
