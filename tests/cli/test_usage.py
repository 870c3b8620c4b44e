"""The help of commands: sections of flags, meanings, widths and colours."""

from __future__ import annotations

import os
import re
import sys

import pytest

from tests.terminal import shown
from tests.tiers import graded
from txlog.cli.line import catalogue, dispatch, usage
from txlog.cli.line.parameters import parameters_of
from txlog.cli.main import main


@pytest.mark.parametrize("path", usage.SECTIONS)
def test_sections_name_flags_that_exist_and_lose_none(path: str) -> None:
    command = dispatch.load(path)
    own = [each for each in parameters_of(command) if each.is_flag and not each.of_all]
    spellings = {word for each in own for word in each.names}
    named = [word for words in usage.SECTIONS[path].values() for word in words.split()]
    assert set(named) <= spellings
    assert len(named) == len(set(named))
    text = usage.text(command, full=False, columns=80, color=False)
    text = text[text.index(f"\n{next(iter(usage.SECTIONS[path]))}:\n") :]
    for each in own:
        shown_once = len(re.findall(rf"(?m)^  (?:-\w, )?(?:--\w+, )?{each.name}\b(?!-)", text))
        assert each.hidden or shown_once == 1, each.name


def test_large_commands_have_sections() -> None:
    """A list of more than a dozen flags has no order that a reader can see."""
    for path in catalogue.COMMANDS:
        parameters = parameters_of(dispatch.load(path))
        own = [each for each in parameters if each.is_flag and not (each.of_all or each.hidden)]
        assert len(own) <= 12 or path in usage.SECTIONS, path


def test_the_most_used_flags_come_first(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["produce", "-h"]) == 0
    text = capfd.readouterr().out
    headings = re.findall(r"(?m)^(\w[\w ]*):$", text)
    assert headings[:3] == ["Arguments", "Input", "Time"]
    assert headings[-1] == "All commands"
    assert text.index("--message") < text.index("--txn-every") < text.index("--batch")
    assert "--lock-timeout" not in text
    assert main(["produce", "--help"]) == 0
    assert "--lock-timeout" in capfd.readouterr().out


@pytest.mark.parametrize("columns", graded([80, 200], 1))
def test_help_fits_the_terminal_and_has_colours(columns: int) -> None:
    env = {**os.environ, "COLUMNS": str(columns), "TERM": "xterm"}
    env.pop("NO_COLOR", None)
    argv = [sys.executable, "-m", "txlog", "serve", "-h"]
    text = shown(argv, env)
    assert "\x1b[1mAddresses:\x1b[0m" in text
    assert "\x1b[36m--pulsar\x1b[0m" in text
    plain = re.sub(r"\x1b\[\d*m", "", text)
    body = plain.partition("Arguments:" if "Arguments:" in plain else "Addresses:")[2]
    assert max(map(len, body.splitlines())) <= min(columns, 100)
    for extra in (["--no-color"], ["--color", "never"]):
        assert "\x1b" not in shown([*argv, *extra], env)
    assert "\x1b" not in shown(argv, {**env, "NO_COLOR": "1"})


def test_a_wrong_flag_is_reported_before_help(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["topic", "create", "--bogus", "-h"]) == 2
    assert "no such option: --bogus" in capfd.readouterr().err
