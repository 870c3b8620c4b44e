"""Programs with wrong values fail in mypy and in basedpyright, line by line; right ones pass.

The programs are text, so that the checks of this tree do not read them.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import typing
from pathlib import Path

import pytest

from txlog.base import choices, settings
from txlog.cli.commands.txn import STATES
from txlog.engine.decide.sending.producers import ACCESS_MODES
from txlog.engine.decide.topics.catalog import SUBSCRIPTION_TYPES

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).parent / "typing"
# Lines of the wrong program that are right: imports, empty lines, and the handles of later lines.
RIGHT_LINES = ("import ", "from ", "client = ", "producer = ", "consumer = ")


@pytest.fixture
def programs(tmp_path: Path) -> list[str]:
    """The right and the wrong program, as files."""
    for name in ("right", "wrong"):
        (tmp_path / f"{name}.py").write_text((PROGRAMS / f"{name}.txt").read_text())
    return [str(tmp_path / "right.py"), str(tmp_path / "wrong.py")]


def expected() -> set[tuple[str, int]]:
    lines = (PROGRAMS / "wrong.txt").read_text().splitlines()
    return {
        ("wrong.py", number)
        for number, line in enumerate(lines, 1)
        if line and not line.startswith(RIGHT_LINES)
    }


def test_mypy_finds_every_wrong_value_and_no_other(programs: list[str]) -> None:
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--no-error-summary", *programs],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    errors = re.findall(r"(\w+\.py):(\d+): error", checked.stdout)
    assert {(name, int(line)) for name, line in errors} == expected(), checked.stdout


@pytest.mark.deep
def test_basedpyright_finds_every_wrong_value_and_no_other(programs: list[str]) -> None:
    checked = subprocess.run(
        [Path(sys.executable).parent / "basedpyright", "--outputjson", *programs],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = {
        (Path(error["file"]).name, error["range"]["start"]["line"] + 1)
        for error in json.loads(checked.stdout)["generalDiagnostics"]
        if error["severity"] == "error"
    }
    assert found == expected()


@pytest.mark.parametrize(
    ("words", "accepted"),
    [
        (choices.SubscriptionType, SUBSCRIPTION_TYPES),
        (choices.AccessMode, ACCESS_MODES),
        (choices.Durability, settings.DURABILITIES),
        (choices.TtlFrom, settings.TTL_FROM),
        (choices.Compatibility, settings.SCHEMA_COMPATIBILITIES),
        (choices.Validation, settings.SCHEMA_VALIDATIONS),
        (choices.TransactionState, STATES),
    ],
)
def test_the_types_have_the_words_that_the_store_accepts(
    words: object, accepted: tuple[str, ...]
) -> None:
    assert sorted(typing.get_args(words)) == sorted(accepted)
