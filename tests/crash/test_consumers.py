"""`python -m bench consumers` for some seconds: eight consumers of each type, SIGKILLs."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiers import graded

ROOT = Path(__file__).resolve().parent.parent.parent
SEED = int(os.environ.get("TXLOG_SEED", "0")) or random.SystemRandom().randrange(1 << 32)


@pytest.mark.parametrize(
    "kind", graded(["exclusive", "shared", "failover", "key-shared"], ["shared"])
)
def test_consumers_that_are_killed_lose_and_double_nothing(tmp_path: Path, kind: str) -> None:
    """9.1, I-9, I-12, K10: each message once; with Key_Shared in the order of its key."""
    print("seed", SEED)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "bench",
            "consumers",
            "--types",
            kind,
            "--seconds",
            "4",
            "--no-figures",
            "--rate",
            "300",
            "--seed",
            str(SEED),
            "--where",
            str(tmp_path / "torture"),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])[kind]
    assert figures["messages"] > 0
    assert figures["kills"] > 0
