"""`txlog top` and `txlog sub list --watch` on a real terminal: order, keys, signals, restoring."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

import txlog
from tests.screen import Screen
from tests.tiers import graded

ALTERNATE, BACK = b"\x1b[?1049h", b"\x1b[?1049l"


def screen(store: Path, *words: str, columns: int = 100, lines: int = 12) -> Screen:
    """A command on a store, on a terminal."""
    argv = [sys.executable, "-m", "txlog", "-S", str(store), *words]
    return Screen(argv, {**os.environ, "TERM": "xterm-256color"}, columns, lines)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "shop"
    txlog.init(str(path))
    with txlog.open(str(path)) as client:
        for topic, count in (("apples", 1), ("pears", 3), ("plums", 2)):
            client.create_topic(topic)
            client.create_subscription(topic, "s")
            for _ in range(count):
                client.producer(topic).send(b"v")
    return path


def test_top_sorts_by_keys_and_gives_the_screen_back(store: Path) -> None:
    with screen(store, "top", "--every", "1s") as terminal:
        shown = terminal.until(
            "3 subscriptions, 3 behind, 6 messages", "pears/s", "plums/s", "apples/s"
        )
        for heading in ("BACKLOG", "OLDEST", "IN/S", "OUT/S", "CATCH UP", "CONSUMERS"):
            assert heading in shown
        terminal.press("n")
        terminal.until("apples/s", "pears/s", "plums/s")
        terminal.press("r")
        terminal.until("plums/s", "pears/s", "apples/s")
        with txlog.open(str(store)) as client:
            for _ in range(4):
                client.producer("apples").send(b"v")
        terminal.press("b")
        terminal.until("10 messages", "apples/s", "pears/s", "plums/s")
        terminal.press("q")
        assert terminal.end() == 0
        assert ALTERNATE in terminal.output and BACK in terminal.output


@pytest.mark.parametrize("number", graded([signal.SIGTERM, signal.SIGINT], 1))
def test_signal_ends_top_and_gives_the_screen_back(store: Path, number: signal.Signals) -> None:
    with screen(store, "top") as terminal:
        terminal.until("pears/s")
        os.kill(terminal.pid, number)
        assert terminal.end() == {signal.SIGTERM: 143, signal.SIGINT: 130}[number]
        assert BACK in terminal.output and b"\x1b[?25h" in terminal.output
        assert b"Traceback" not in terminal.output


def test_narrow_top_keeps_the_backlog_and_scrolls(store: Path) -> None:
    with screen(store, "top", columns=40, lines=6) as terminal:
        shown = terminal.until("BACKLOG", "pears/s", "plums/s")
        assert "apples/s" not in shown and "CONSUMERS" not in shown
        terminal.press("\x1b[B")  # down
        terminal.until("plums/s", "apples/s")
        terminal.press("q")
        assert terminal.end() == 0


def test_watched_list_shows_new_messages(store: Path) -> None:
    words = ("sub", "list", "--watch", "100ms", "--columns", "topic,backlog")
    with screen(store, *words) as terminal:
        terminal.until("apples", "1")
        with txlog.open(str(store)) as client:
            for _ in range(76):
                client.producer("apples").send(b"v")
        terminal.until("apples", "77", "pears", "3")
        os.kill(terminal.pid, signal.SIGTERM)
        assert terminal.end() == 143
