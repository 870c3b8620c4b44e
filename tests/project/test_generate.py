"""Files that scripts.generate writes are up to date."""

from __future__ import annotations

from scripts import generate, golden
from tests.source_tree import ROOT


def test_everything_that_follows_from_declarations_is_up_to_date() -> None:
    """The catalogue, the specification, tables of errors and man pages are those that it makes."""
    differing = [str(path.relative_to(ROOT)) for path in generate.differences()]
    assert not differing, "run python -m scripts.generate"


def test_every_command_in_a_transcript_has_its_output() -> None:
    assert golden.unplayed() == []
