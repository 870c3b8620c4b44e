"""The log of `txlog serve` on stderr, and its bound on the lines about clients."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from txlog.cli.call.call import Call
from txlog.cli.commands.serve import _log


def test_a_flood_of_clients_is_no_flood_of_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """Kills: a server that blocks because the reader of its stderr pipe is slower than the log."""
    now = [5_000]
    flags = SimpleNamespace(quiet=0, log_format="json", log_file=None)
    call: Any = SimpleNamespace(flags=flags, now_ms=lambda: now[0])
    tell = _log(cast(Call, call))
    for number in range(1_000):
        tell("dropped", {"peer": f"p{number}", "role": None})
    tell("reloaded", {"what": "rules"})
    now[0] = 6_000
    tell("dropped", {"peer": "a\nb"})
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert len(lines) == 22
    assert lines[0] == {
        "level": "warning", "time": "1970-01-01T00:00:05.000Z", "event": "dropped", "peer": "p0",
    }  # fmt: skip
    assert lines[20]["event"] == "reloaded"
    assert lines[20]["untold"] == 980
    assert lines[21]["peer"] == "a\nb"
