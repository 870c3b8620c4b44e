"""`txlog top` and `txlog sub list --watch` on a real terminal: order, keys, signals, restoring."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import time
from pathlib import Path

import pyte
import pytest

import txlog
from tests.tiers import graded

ALTERNATE, BACK = b"\x1b[?1049h", b"\x1b[?1049l"


class Terminal:
    """A program on a pseudo-terminal, and the screen that a person would see."""

    def __init__(self, words: list[str], store: Path, columns: int = 100, lines: int = 12) -> None:
        self.pid, self.descriptor = pty.fork()
        if self.pid == 0:
            argv = [sys.executable, "-m", "txlog", "-S", str(store), *words]
            os.execve(sys.executable, argv, {**os.environ, "TERM": "xterm-256color"})
        size = struct.pack("HHHH", lines, columns, 0, 0)
        fcntl.ioctl(self.descriptor, termios.TIOCSWINSZ, size)
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self.output = b""

    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.screen.display)

    def read(self, seconds: float) -> bool:
        """Take what the program writes; False once it has ended."""
        poll = select.poll()
        poll.register(self.descriptor, select.POLLIN)
        if not poll.poll(seconds * 1000):
            return True
        try:
            data = os.read(self.descriptor, 65536)
        except OSError:  # Linux raises EIO once the other side is closed
            return False
        self.output += data
        self._stream.feed(data)
        return bool(data)

    def until(self, *texts: str) -> str:
        """The screen once it has these texts, in this order."""
        deadline = time.monotonic() + 60
        while True:
            shown, at = self.text(), 0
            for text in texts:
                at = shown.find(text, at) + 1
                if not at:
                    break
            else:
                return shown
            assert time.monotonic() < deadline, shown
            assert self.read(1), shown

    def press(self, keys: str) -> None:
        os.write(self.descriptor, keys.encode())

    def end(self) -> int:
        """Read until the program ends; returns its wait status."""
        while self.read(60):
            pass
        os.close(self.descriptor)
        return os.waitpid(self.pid, 0)[1]


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
    terminal = Terminal(["top", "--every", "1s"], store)
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
    terminal = Terminal(["top"], store)
    terminal.until("pears/s")
    os.kill(terminal.pid, number)
    status = terminal.end()
    assert os.waitstatus_to_exitcode(status) == {signal.SIGTERM: 143, signal.SIGINT: 130}[number]
    assert BACK in terminal.output and b"\x1b[?25h" in terminal.output
    assert b"Traceback" not in terminal.output


def test_narrow_top_keeps_the_backlog_and_scrolls(store: Path) -> None:
    terminal = Terminal(["top"], store, columns=40, lines=6)
    shown = terminal.until("BACKLOG", "pears/s", "plums/s")
    assert "apples/s" not in shown and "CONSUMERS" not in shown
    terminal.press("\x1b[B")  # down
    terminal.until("plums/s", "apples/s")
    terminal.press("q")
    assert terminal.end() == 0


def test_watched_list_shows_new_messages(store: Path) -> None:
    terminal = Terminal(["sub", "list", "--watch", "100ms", "--columns", "topic,backlog"], store)
    terminal.until("apples", "1")
    with txlog.open(str(store)) as client:
        for _ in range(76):
            client.producer("apples").send(b"v")
    terminal.until("apples", "77", "pears", "3")
    os.kill(terminal.pid, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(terminal.end()) == 143
