"""Bars: only on a terminal, after a while, and removed at the end (spec/cli 4)."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, cast

import pytest
from rich.cells import cell_len

import txlog
from tests.harness import environment, python
from tests.harness import run as run_child
from txlog.cli import demo
from txlog.cli.call import progress as bars
from txlog.cli.call.call import Call
from txlog.cli.main import main
from txlog.cli.terminal import screen

SOURCE = str(Path(txlog.__file__).parents[1])


@pytest.fixture
def store(tmp_path: Path) -> str:
    path = str(tmp_path / "store")
    txlog.init(path)
    with txlog.open(path) as client:
        client.create_topic("t")
    return path


def calling(**flags: object) -> Call:
    """A call with the attributes that a bar reads."""
    usual: dict[str, object] = {"no_progress": False, "quiet": 0, "color": None}
    call = SimpleNamespace(
        flags=SimpleNamespace(**{**usual, **flags}),
        output=SimpleNamespace(as_json=False),
        line=None,
    )
    return cast(Call, call)


class Screen:
    """A program whose stderr is a terminal, and the output that the terminal received."""

    def __init__(self, *words: str, stdin: int | IO[bytes] = subprocess.PIPE) -> None:
        self.primary, secondary = pty.openpty()
        command = [sys.executable, "-m", "txlog", *words]
        environ = environment({"COLUMNS": "70"})
        self.child = subprocess.Popen(
            command, stdin=stdin, stdout=subprocess.PIPE, stderr=secondary, env=environ
        )
        os.close(secondary)
        self.shown = b""

    def until(self, text: str) -> None:
        """Wait for a text."""
        while text.encode() not in self.shown:
            data = os.read(self.primary, 65536)
            assert data
            self.shown += data

    def rest(self) -> tuple[int, bytes]:
        """Wait for the end; returns the exit code and the output after the bar's last removal."""
        if self.child.stdin is not None:
            self.child.stdin.close()
        try:
            while data := os.read(self.primary, 65536):
                self.shown += data
        except OSError:
            pass  # Linux raises EIO once the other side is closed
        os.close(self.primary)
        code = self.child.wait()
        assert self.child.stdout is not None
        assert self.child.stdout.read() == b""
        self.child.stdout.close()
        return code, self.shown.rpartition(bars.ERASE.encode())[2]


def test_a_file_has_a_bar_of_its_bytes(store: str, tmp_path: Path) -> None:
    """The bar shows the stored share of the file, not the read one; only the summary stays."""
    file = tmp_path / "lines"
    file.write_text("".join(f"line {number:03}\n" for number in range(30)))
    terminal = Screen("-S", store, "produce", "t", str(file), "--rate", "30/s")
    terminal.until("left")
    lines = terminal.shown.decode().split("\r\x1b[K")
    bar_line = next(line for line in lines if "left" in line)  # before, nothing may be stored yet
    text = re.sub(r"\x1b\[[0-9;]*m", "", bar_line)
    assert text.startswith("t ━")
    assert text.endswith("left")
    assert " of 270 B, " in text
    assert len(text) < 70
    code, remaining = terminal.rest()
    assert (code, remaining[:25]) == (0, b"30 messages in t, 1:0 to ")
    colors = len(re.findall(rb"\x1b\[[0-9;]*m", terminal.shown))
    moves = terminal.shown.count(b"\x1b[K")
    assert terminal.shown.count(b"\x1b") == colors + moves  # no other movement, no hidden cursor
    assert colors


def test_a_pipe_has_a_counter(store: str) -> None:
    """The counter appears even while no more input arrives."""
    terminal = Screen("-S", store, "produce", "t", "--flush-every", "10ms")
    assert terminal.child.stdin is not None
    terminal.child.stdin.write(b"a\nb\n")
    terminal.child.stdin.flush()
    terminal.until("t 2 messages, 4 B, ")
    code, remaining = terminal.rest()
    assert (code, remaining[:23]) == (0, b"2 messages in t, 1:0 to")


def test_a_signal_takes_the_bar_away(store: str) -> None:
    terminal = Screen("-S", store, "produce", "t", "--txn")
    assert terminal.child.stdin is not None
    terminal.child.stdin.write(b"a\n")
    terminal.child.stdin.flush()
    terminal.until("t ")
    terminal.child.send_signal(signal.SIGINT)
    report = b"interrupted: 0 messages stored in t; transaction 0:0 aborted, 1 record discarded\r\n"
    assert terminal.rest() == (130, report)


def test_a_second_signal_takes_the_bar_away_too(tmp_path: Path) -> None:
    done = run_child(python("second_signal"), code=-signal.SIGTERM)
    assert done.stderr == "gone"


def test_no_bar_off_a_terminal_or_if_turned_off(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No bar without a terminal, next to data on a terminal, or if the user turned it off."""

    def shows(call: Call, **more: bool) -> bool:
        with bars.Words(call, "at it", **more) as bar:
            assert (call.line is bar) == bar.shows
        assert call.line is None
        return bar.shows

    assert not shows(calling())  # stderr of a test is no terminal
    monkeypatch.setattr(bars, "is_terminal", lambda number: number == 2)
    assert shows(calling())
    monkeypatch.setenv("TERM", "dumb")  # it could not take a bar away
    assert not shows(calling())
    monkeypatch.setenv("TERM", "xterm")
    assert not shows(calling(no_progress=True))
    assert not shows(calling(quiet=1))
    monkeypatch.setenv("TXLOG_NO_PROGRESS", "1")
    assert not shows(calling())
    monkeypatch.delenv("TXLOG_NO_PROGRESS")
    as_json = calling()
    as_json.output = cast(Any, SimpleNamespace(as_json=True))
    assert not shows(as_json)
    monkeypatch.setattr(bars, "_is_file", lambda number: False)
    assert not shows(calling(), prints=True)
    monkeypatch.setattr(bars, "_is_file", lambda number: True)
    assert shows(calling(), prints=True)


def test_line_shows_amount_and_speed() -> None:
    """A share for files, a count for pipes; never more than the whole."""
    assert bars.amount("t", 0, None, 0, 0.0) == ("t", "", None)
    pipe = bars.amount("t", 2048, None, 1200, 2.0)
    assert pipe == ("t", "1,200 messages, 2.0 KiB, 1.0 KiB/s", None)
    half = bars.amount("t", 512, 1024, 9, 1.0)
    assert half == ("t", " 50% 512 B of 1.0 KiB, 512 B/s, 1s left", 0.5)
    grown = bars.amount("t", 3000, 1024, 9, 1.0)
    assert "100% 2.9 KiB of 1.0 KiB" in grown.words
    assert "left" not in grown.words


def test_a_counter_shows_messages_and_their_rate() -> None:
    """Kills: `topic copy` that shows a number of messages as bytes."""
    assert bars.messages("copy", 0, 1.0) == ("copy", "", None)
    assert bars.messages("copy", 100_000, 2.0).words == "100,000 messages, 50,000/s"
    counter = bars.Count(calling(), "copy")
    counter(3)
    assert counter._sight().words.startswith("3 messages, ")


def test_a_line_is_no_wider_than_the_terminal() -> None:
    """The bar is as long as its share, if it fits; it has colours only on request."""
    words = " 50% 512 B of 1.0 KiB, 512 B/s, 1s left"
    assert screen.progress("t", "2 messages", None, 80, False) == "t 2 messages"
    half = screen.progress("t", words, 0.5, 79, False)
    assert half == f"t {'━' * 15}{' ' * 15} {words}"
    full = screen.progress("t", words, 1.0, 79, False)
    assert full.index(words) == half.index(words)  # the bar keeps its length
    assert "━" not in screen.progress("t", words, 0.5, 50, False)
    for columns in (1, 2, 10, 30, 79):
        for name in ("t", "[red]漢字" * 20):
            assert cell_len(screen.progress(name, words, 0.5, columns, False)) <= columns
    assert "\x1b" in screen.progress("t", words, 0.5, 79, True)
    assert screen.progress("漢", "x", 0.5, 57, False) == "漢 x"  # 7 columns are no bar
    assert screen.progress("漢", "x", 0.5, 58, False) == "漢 ━━━━     x"
    assert screen.progress("t", "x", 0.5, 200, False) == f"t {'━' * 20}{' ' * 20} x"
    assert "\x1b[36m━" in screen.progress("t", "x", 0.5, 66, True)
    assert "\x1b[2m━" in screen.progress("t", "x", 0.5, 66, True)
    assert screen.progress("t", "", None, 20, False) == "t"
    # A long name of the current work is cut, but its elapsed time is not.
    assert screen.progress("x" * 80 + ",", "12s", None, 20, False) == "x" * 15 + "… 12s"


def test_sizes_are_known_of_files_only(tmp_path: Path) -> None:
    file, pipe = tmp_path / "file", tmp_path / "pipe"
    file.write_bytes(b"12345")
    os.mkfifo(pipe)
    assert bars.size_of([str(file), str(file)]) == 10
    assert bars.size_of([str(file), str(pipe)]) is None
    assert bars.size_of([str(tmp_path / "none")]) is None


def test_verify_reports_its_steps(store: str) -> None:
    reports: list[tuple[str, int]] = []
    result = txlog.verify(store, deep=True, tell=lambda *words: reports.append(words))
    assert [word for word in dict.fromkeys(doing for doing, _ in reports)] == [
        "reading",
        "replaying the journal",
        "comparing components",
    ]
    assert reports[-1][1] == result["size_bytes"]


def test_a_demo_says_how_far_its_workers_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The demo calls the bar with the arguments that it has on a terminal, too."""
    sights: list[bars.Sight] = []

    def run(path: str, *, progress: Callable[[str, int, int, int], None], **_: object) -> object:
        progress("totals", 20, 80, 3)
        sights.append(progress._stage())  # type: ignore[attr-defined]
        return {name: 0 for name in demo.Result.__annotations__} | {
            "path": path, "exact": True, "check_list": [],
        }  # fmt: skip

    monkeypatch.setattr(demo, "run", run)
    assert main(["demo", str(tmp_path / "d"), "--json"]) == 0
    assert sights == [bars.Sight("stage totals", "20 of 80 invoices, 3 killed", 0.25)]
    capsys.readouterr()
