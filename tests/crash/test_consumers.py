"""`python -m bench consumers` for some seconds: eight consumers of each type, SIGKILLs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness import bench
from tests.tiers import graded


@pytest.mark.parametrize(
    "kind", graded(["exclusive", "shared", "failover", "key-shared"], ["shared"])
)
def test_consumers_that_are_killed_lose_and_double_nothing(tmp_path: Path, kind: str) -> None:
    """9.1, I-9, I-12, K10: each message once; with Key_Shared in the order of its key."""
    words = ["--types", kind, *"--seconds 4 --no-figures --rate 300".split()]
    figures = bench("consumers", tmp_path / "torture", *words)[kind]
    assert figures["messages"] > 0
    assert figures["kills"] > 0
