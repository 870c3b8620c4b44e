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


def values(capfd: Capture, *words: str) -> list[str]:
    assert main([*words, "-f", "%v\\n"]) == 0
    return capfd.readouterr().out.split()


def test_last_counts_over_all_partitions(topic: str, capfd: Capture) -> None:
    """All became visible together here, so the partitions take turns."""
    assert values(capfd, "consume", topic, "--last", "3") == ["c1", "d0", "d1"]
    assert values(capfd, "consume", topic, "--last", "3", "-p", "0") == ["b0", "c0", "d0"]
    assert values(capfd, "consume", topic, "--last", "0") == []
    assert len(values(capfd, "consume", topic, "--last", "99")) == 8
    included = values(capfd, "consume", topic, "--last", "3", "--include-delayed")
    assert included == values(capfd, "peek", topic, "--last", "3") == ["later1", "later0", "later1"]


def test_last_is_of_those_that_match(topic: str, capfd: Capture) -> None:
    early = ["--where", "text(value) < 'c'"]
    assert values(capfd, "consume", topic, "--last", "3", *early) == ["a1", "b0", "b1"]
    assert values(capfd, "consume", topic, "--last", "1", "--grep", "^a") == ["a1"]
    assert values(capfd, "consume", topic, "--last", "2", "--until", "+2") == ["b0", "b1"]


def test_last_is_in_order_of_visible_time_over_topics(
    topic: str, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    for second, (other, partition) in enumerate([("t", "1"), ("u", "0"), ("t", "0")], 1):
        monkeypatch.setenv("TXLOG_NOW", f"2026-11-20T12:00:0{second}Z")
        line = ["produce", other, "--create", "-m", f"{other}{partition}", "-p", partition]
        assert main([word for word in line if other == "u" or word != "--create"]) == 0
    for words in ([], ["--where", "text(value) <> 'x'"]):
        assert values(capfd, "consume", "t", "u", "--last", "3", *words) == ["t1", "u0", "t0"]


def test_last_reads_longer_ends_until_each_partition_has_enough(
    topic: str, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txlog.cli.consume.work.READ_MESSAGES", 1)
    assert values(capfd, "consume", topic, "--last", "1", "--grep", "^a") == ["a1"]


@pytest.mark.parametrize("words", [["-F"], ["-n", "1"], ["-o", "-1"], ["-s", "x"]])
def test_last_does_not_go_with_another_choice(topic: str, words: list[str]) -> None:
    assert main(["consume", topic, "--last", "3", *words]) == 2
