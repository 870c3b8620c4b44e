"""Consent: the answers that a terminal takes, and refusals without a terminal (spec/cli 4)."""

from __future__ import annotations

import io
from types import SimpleNamespace
from typing import Any

import pytest

from txlog.cli.call import call as consent
from txlog.errors import Refused


def ask(
    monkeypatch: pytest.MonkeyPatch, answer: str, word: str | None = None, **flags: bool
) -> None:
    all_flags = {"yes": False, "no_input": False, **flags}
    monkeypatch.setattr(consent, "is_terminal", lambda number: True)
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    call: Any = SimpleNamespace(flags=SimpleNamespace(**all_flags))
    consent.confirm(call, "delete everything", word=word)


AGREED = [("y\n", None), ("YES\n", None), ("orders\n", "orders")]
REFUSED = [
    ("\n", None), ("n\n", None), ("", None), ("y\n", "orders"), ("\n", "orders"),
    ("order\n", "orders"),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "word"), AGREED)
def test_consent_lets_the_command_go_on(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    answer: str,
    word: str | None,
) -> None:
    ask(monkeypatch, answer, word)
    assert capfd.readouterr().err.startswith("delete everything\n")


@pytest.mark.parametrize(("answer", "word"), REFUSED)
def test_anything_else_is_no(
    monkeypatch: pytest.MonkeyPatch, answer: str, word: str | None
) -> None:
    """A topic is deleted by typing its name; Enter is No."""
    with pytest.raises(Refused) as caught:
        ask(monkeypatch, answer, word)
    assert caught.value.code == 901


def test_flags_answer_for_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    ask(monkeypatch, "", "orders", yes=True)
    with pytest.raises(Refused, match="not asked"):
        ask(monkeypatch, "y\n", no_input=True)
