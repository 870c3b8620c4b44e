"""Golden transcripts: the commands print the files in tests/golden, byte for byte."""

from __future__ import annotations

import re

import pytest

from scripts import golden
from tests.tiers import graded
from txlog.cli.line.catalogue import COMMANDS

TRANSCRIPTS = sorted(golden.GOLDEN.glob("*.txt"))
# The commands of every day, and those that refuse; the tests of each room have the others as well.
QUICK = frozenset(
    "first_steps topics produce consuming subscriptions transactions schemas delayed query verify"
    " mistakes dry_run".split()
)


@pytest.mark.parametrize("name", graded([path.stem for path in TRANSCRIPTS], QUICK))
def test_a_transcript_is_still_true(name: str) -> None:
    """The commands print each transcript again. `python -m scripts.golden` rewrites it."""
    text = (golden.GOLDEN / f"{name}.txt").read_text()
    blocks = golden.parse(text)
    assert golden.render(blocks) == text
    assert golden.render(golden.play(blocks)) == text


def test_every_command_is_in_a_transcript() -> None:
    """Kills: a command whose output no transcript shows, so that no review has ever seen it."""
    played = "\n".join(
        block.command for path in TRANSCRIPTS for block in golden.parse(path.read_text())
    )
    unseen = {path for path in COMMANDS if not re.search(rf"txlog {path}(?![\w-])", played)}
    assert unseen == set()


def test_there_are_transcripts() -> None:
    """A glob that finds nothing must not pass for a test."""
    assert {path.stem for path in TRANSCRIPTS} > QUICK
