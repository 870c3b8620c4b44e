"""Golden transcripts: what the commands print is what tests/golden/ says, byte for byte."""

from __future__ import annotations

import pytest

from scripts import golden

TRANSCRIPTS = sorted(golden.GOLDEN.glob("*.txt"))


@pytest.mark.parametrize("name", [path.stem for path in TRANSCRIPTS])
def test_a_transcript_is_still_true(name: str) -> None:
    """STYLE 11: golden first. Rewrite with `python -m scripts.golden` and read the diff."""
    text = (golden.GOLDEN / f"{name}.txt").read_text()
    blocks = golden.parse(text)
    assert golden.render(blocks) == text
    assert golden.render(golden.play(blocks)) == text


def test_there_are_transcripts() -> None:
    """A glob that finds nothing must not pass for a test."""
    assert TRANSCRIPTS
