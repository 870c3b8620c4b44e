"""Messages on a terminal: no format prints a control sequence that the terminal would obey."""

from __future__ import annotations

import io
import json
import sys

import pytest

import txlog
from txlog.cli.line.dispatch import run
from txlog.cli.output import percent
from txlog.cli.terminal.say import safe, safe_bytes

HOSTILE = "a\x1b]0;title\x07\x1b[2J\x9b31m\u202eb\u2066\x7f\rc"
OBEYED = "\x1b\x07\x9b\x7f\r\u202e\u2066"
FORMS = ("csv", "tsv", "json", "ndjson", "raw", "lines", "auto", "envelope", "%v\n", "%k %h %v\n")


class Terminal(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        raise OSError("none")


def shown(monkeypatch: pytest.MonkeyPatch, *argv: str) -> str:
    """Run a command on a terminal; returns its stdout and stderr."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("NO_COLOR", "1")
    run([*argv])
    monkeypatch.undo()
    return terminal.getvalue()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("hostile") / "store")
    txlog.init(path, durability="os")
    with txlog.open(path) as client:
        client.create_topic("orders")
        client.producer("orders").send(HOSTILE.encode(), key=HOSTILE, properties={"p": HOSTILE})
        client.producer("orders").send(b"\x9b2J not UTF-8", key="k")
    return path


@pytest.mark.parametrize("form", FORMS)
def test_messages_move_nothing_on_a_terminal(
    store: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kills: a message that sets the title, clears the screen or reverses the following text."""
    text = shown(monkeypatch, "-S", store, "peek", "orders", "-f", form)
    assert "title" in text or form in ("envelope", "raw")
    assert not set(OBEYED) & set(text.replace("\r\n", "\n"))
    if form == "ndjson":
        assert len([json.loads(line) for line in text.splitlines() if line[:1] == "{"]) == 2


@pytest.mark.parametrize("form", ["csv", "tsv", "table", "json", "md"])
def test_answers_of_queries_move_nothing_on_a_terminal(
    store: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sql = 'SELECT key, key AS "x\x1b[2J" FROM orders'
    text = shown(monkeypatch, "-S", store, "query", sql, "-f", form)
    assert "title" in text
    assert not set(OBEYED) & set(text)


def test_errors_move_nothing_on_a_terminal(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, "-S", store, "peek", "or\x1b[2J\x9bders")
    assert "error" in text
    assert not set(OBEYED) & set(text)


def test_off_a_terminal_bytes_are_as_they_were_sent(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = io.StringIO()
    monkeypatch.setattr(sys, "stdout", plain)
    run(["-S", store, "peek", "orders", "-f", "%v\n"])
    monkeypatch.undo()
    assert plain.getvalue().startswith(HOSTILE)


def test_a_format_of_the_user_has_its_own_colours(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = shown(monkeypatch, "-S", store, "peek", "orders", "-f", "\\x1b[32m%v\\x1b[0m\\n")
    assert text.count("\x1b[32m") == 2
    assert text.count("\x1b") == 4
    assert percent.controls("\\x1b[32m%v\\n%k\\x07") == ["\x1b[32m", "\x07"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain\ttext\n", "plain\ttext\n"),
        ("é 中 👩‍🚀", "é 中 👩‍🚀"),
        ("\x1b[1m", "\\x1b[1m"),
        ("\x9b1m\x7f\u2028", "\\u009b1m\\u007f\\u2028"),
        ("\u061c\u200e\u202e\u2069", "\\u061c\\u200e\\u202e\\u2069"),
    ],
)
def test_control_sequences_are_escaped(text: str, expected: str) -> None:
    assert safe(text) == expected
    assert safe_bytes(text.encode()) == expected.encode()


def test_bytes_that_are_no_text_are_written_out_or_left() -> None:
    assert safe_bytes(b"\x9b\xff\xe9") == b"\\x9b\xff\xe9"
