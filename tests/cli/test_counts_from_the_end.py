"""`consume -o -N` counts the messages that it prints, also next to some that are not due."""

from __future__ import annotations

from pathlib import Path

import pytest

from txlog.cli.main import main

pytestmark = pytest.mark.usefixtures("quick_disk")
Capture = pytest.CaptureFixture[str]
NOW = "2026-11-20T12:00:00Z"


@pytest.fixture
def topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Capture) -> str:
    """Two partitions of four due messages; one or two later ones in between and at the end."""
    monkeypatch.setenv("TXLOG_STORE", str(tmp_path / "s"))
    monkeypatch.setenv("TXLOG_NOW", NOW)
    assert main(["init", str(tmp_path / "s")]) == 0
    assert main(["topic", "create", "t", "-p", "2"]) == 0
    for partition in ("0", "1"):
        for name in ("a", "b", "later", "c", "d", "later", "later"):
            delay = ["--deliver-after", "1h"] if name == "later" else []
            line = ["produce", "t", "-m", name + partition, "-p", partition, *delay]
            assert main(line) == 0
    capfd.readouterr()
    return "t"


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        ("-1", ["d0", "d1"]),
        ("-2", ["c0", "c1", "d0", "d1"]),
        ("-3", ["b0", "b1", "c0", "c1", "d0", "d1"]),
        ("-99", ["a0", "a1", "b0", "b1", "c0", "c1", "d0", "d1"]),
        ("-0", []),
        ("..-1", ["a0", "a1", "b0", "b1", "c0", "c1"]),
        ("-3..-1", ["b0", "b1", "c0", "c1"]),
    ],
)
def test_a_count_from_the_end_is_of_due_messages(
    offset: str, expected: list[str], topic: str, capfd: Capture
) -> None:
    assert main(["consume", topic, "-o", offset, "-f", "%v\\n"]) == 0
    assert sorted(capfd.readouterr().out.split()) == sorted(expected)


def test_the_count_takes_other_flags_along(topic: str, capfd: Capture) -> None:
    assert main(["consume", topic, "-o", "-2", "-p", "1", "-n", "1", "-f", "%v\\n"]) == 0
    assert capfd.readouterr().out.split() == ["c1"]
    assert main(["consume", f"{topic}/0", "-o", "-1", "--max-wait", "1ms", "-f", "%v\\n"]) == 0
    assert capfd.readouterr().out.split() == ["d0"]


def test_with_delayed_messages_they_count_too(topic: str, capfd: Capture) -> None:
    line = ["consume", f"{topic}/0", "-o", "-3", "--include-delayed", "-f", "%v\\n"]
    assert main(line) == 0
    assert capfd.readouterr().out.split() == ["d0", "later0", "later0"]


def test_once_they_are_due_they_count(topic: str, capfd: Capture) -> None:
    later = "2026-11-20T14:00:00Z"
    assert main(["consume", f"{topic}/0", "-o", "-2", "-f", "%v\\n", "--now", later]) == 0
    assert capfd.readouterr().out.split() == ["later0", "later0"]
