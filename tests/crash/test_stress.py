"""`python -m bench stress` for some seconds: eight processes, SIGKILLs, a full check."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.slow
def test_eight_processes_and_a_killer_lose_nothing(tmp_path: Path) -> None:
    """Nothing lost, nothing twice, no torn transaction, every answered outcome stable."""
    seed = random.SystemRandom().randrange(1 << 32)
    print("seed", seed)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "bench",
            "stress",
            "--seconds",
            "15",
            "--seed",
            str(seed),
            "--where",
            str(tmp_path / "stress"),
        ],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["committed"] > 0
    assert figures["kills"] > 0
