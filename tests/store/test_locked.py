"""Every command that waits for a lock names the process that holds it, and its command."""

from __future__ import annotations

import json
import os
import shlex
import sys
from pathlib import Path

import pytest

import txlog
from tests.harness import Child, python
from txlog.cli.main import main


@pytest.mark.parametrize(
    ("lock", "words", "expected"),
    [
        ("lock", ["topic", "create", "orders"], "the store is locked by process"),
        ("maintenance.lock", ["admin", "checkpoint"], "the store is being maintained by process"),
    ],
)
def test_a_lock_error_names_the_holder(
    lock: str, words: list[str], expected: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """spec/cli 5: 501, with pid and command; a real process holds a real flock."""
    txlog.init(str(tmp_path / "shop"))
    if not (tmp_path / "shop" / lock).exists():
        assert main(["-S", str(tmp_path / "shop"), "admin", "checkpoint"]) == 0
    command = python("hold_lock", tmp_path / "shop" / lock)
    with Child(command) as holder:
        assert holder.line() == "held"
        where = ["-S", str(tmp_path / "shop"), "--lock-timeout", "50ms"]
        capfd.readouterr()
        assert main([*where, *words]) == 5
        errors = capfd.readouterr().err
        assert f"error: {expected} {holder.pid} ({shlex.join(command[:3])}" in errors
        assert f"txlog -S {tmp_path}/shop admin locks" in errors
        assert main([*where, *words, "--json"]) == 5
        error = json.loads(capfd.readouterr().err)["error"]
        assert (error["code"], error["pid"], error["retryable"]) == ("TXL-501", holder.pid, True)
        assert os.path.basename(sys.executable) in error["command"]
        assert main(["-S", str(tmp_path / "shop"), "admin", "locks", "--json"]) == 0
        holders = {row["path"]: row["pid"] for row in json.loads(capfd.readouterr().out)}
        assert holders[lock] == holder.pid
    assert main([*where, *words]) == 0  # a lock dies with its process
