"""Consent: the answers that a terminal takes, and refusals without a terminal (spec/cli 4)."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from txlog.cli.call import call as consent
from txlog.cli.main import main
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
    with pytest.raises(Refused, match="needs consent to delete everything"):
        ask(monkeypatch, "y\n", no_input=True)


def test_restore_over_a_store_names_what_it_replaces_and_who_uses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for line in ("init shop", "-S shop topic create orders", "-S shop copy backup"):
        assert main(line.split()) == 0
    capfd.readouterr()
    words = ["restore", "backup", "shop", "--replace", "--json", "--no-input"]
    holder = [
        sys.executable, "-c",
        "import sys, txlog\n"
        "consumer = txlog.open('shop').consumer('orders', 'billing', create=True)\n"
        "print('ready', flush=True)\nsys.stdin.read()",
    ]  # fmt: skip
    with subprocess.Popen(holder, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        code = main(words)
        error = json.loads(capfd.readouterr().err)["error"]
        process.communicate()
    assert (code, error["code"], error["hint"]) == (9, "TXL-901", "run it again with --yes")
    assert error["message"].startswith(f"needs consent to replace {tmp_path}/shop")
    assert len(error["plan"]) == 1
    assert f"process {process.pid}, " in error["plan"][0]
    assert error["plan"][0].endswith("consumer of billing")
    assert main([*words, "--yes"]) == 0
    capfd.readouterr()
    assert main([*words, "--yes"]) == 4  # shop.replaced exists
    assert "rename it" in json.loads(capfd.readouterr().err)["error"]["hint"]


def test_help_of_a_command_that_asks_lists_yes(capfd: pytest.CaptureFixture[str]) -> None:
    for path, asks in (("sub seek", True), ("restore", True), ("sub list", False)):
        assert main([*path.split(), "-h"]) == 0
        assert ("--yes" in capfd.readouterr().out) is asks
