"""How values look on a terminal (spec/cli 4)."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import txlog
from txlog.cli.commands import status
from txlog.cli.terminal import tables

PERSON = tables.Look(human=True, color=False, utc=True, width=0)


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("begin_time", "2026-11-20T09:12:04.123Z", "2026-11-20 09:12:04"),
        ("watermark", "2026-11-20T09:12:04.123Z", "2026-11-20 09:12:04"),
        ("size_bytes", 2048, "2.0 KiB"),
        ("age_ms", 240_000, "4m"),
        ("messages", 1_180_002, "1,180,002"),
        # A query names its columns as it likes.
        ("start_time", "soon", "soon"),
        ("at_time", "so\x1b[2Jon", "so\\x1b[2Jon"),
        ("end_time", "0001-01-01T00:00:00+23:00", "0001-01-01T00:00:00+23:00"),
    ],
)
def test_a_value_for_people(name: str, value: object, shown: str) -> None:
    assert tables.readable(name, value, PERSON) == shown


def test_off_a_terminal_a_value_is_as_in_json() -> None:
    plain = tables.Look(human=False, color=False, utc=True, width=0)
    instant = "2026-11-20T09:12:04.123Z"
    assert tables.readable("watermark", instant, plain) == instant
    assert tables.readable("size_bytes", 2048, plain) == "2048"


def test_a_cut_line_is_no_wider_and_costs_its_width() -> None:
    """Characters may take two columns, or none; a line may be a message of megabytes."""
    assert tables.cut("abc", 3) == "abc"
    assert tables.cut("abcd", 3) == "ab…"
    assert tables.cut("漢字漢字", 5) == "漢字…"
    assert tables.cut("é" * 4, 4) == "é" * 4
    assert tables.cut("x" * 5_000_000, 10) == "x" * 9 + "…"  # quadratic, it would not end
    assert tables.cut("abc", 0) == "…"


def test_the_head_of_status_fits_the_terminal(tmp_path: Path) -> None:
    """spec/cli 4: nothing wraps; the path has a line of its own where it would."""
    path = tmp_path / ("long" * 20)
    txlog.init(str(path))
    with txlog.open(str(path)) as client:
        client.create_topic("orders")
        client.checkpoint()
        answer = client.status()
    at_ms = answer["checkpoint"]["written_time"]
    call: Any = SimpleNamespace(
        output=SimpleNamespace(look=tables.Look(human=True, color=False, utc=True, width=80)),
        now_ms=lambda: at_ms + 240_000,
    )
    lines = status._text(call, answer).splitlines()
    assert lines[0] == str(path)
    assert lines[1].endswith("   checkpoint 1, 4m ago")
    assert "HIDDEN  DELAYED" in lines[3]
    assert max(map(len, lines[1:])) <= 80
    call.output.look = tables.Look(human=False, color=False, utc=True, width=0)
    assert status._text(call, answer).splitlines()[0].endswith("   checkpoint 1")
