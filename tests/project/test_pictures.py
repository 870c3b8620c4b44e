"""The committed pictures are what the scripts draw, and load nothing."""

from __future__ import annotations

import re
import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from scripts.pictures import cast, diagrams, recording
from tests.source_tree import ROOT

PICTURES = sorted((ROOT / "docs" / "pictures").glob("*.svg"))


@pytest.mark.parametrize("file", PICTURES, ids=lambda file: file.name)
def test_a_picture_is_well_formed_and_loads_nothing(file: Path) -> None:
    """GitHub shows an SVG as an image: without scripts, and without anything from elsewhere."""
    text = file.read_text(encoding="utf-8")
    assert len(text) < recording.SIZE_MAX
    ElementTree.fromstring(text)
    assert not re.search(r"<script|<foreignObject|href=|@import|\bon\w+=|url\((?!#)", text)


def test_diagrams_are_what_the_script_draws() -> None:
    """Kills: a diagram that was mended by hand."""
    for name, drawing in (("store", diagrams.store()), ("transaction", diagrams.transaction())):
        file = ROOT / "docs" / "pictures" / f"{name}.svg"
        assert file.read_text(encoding="utf-8") == f"{drawing}\n"


def test_recording_shows_kills_and_exact_totals() -> None:
    """The last moment has the totals of the whole file."""
    lines = shown_last(recording.FILE.read_text(encoding="utf-8"))
    assert sum("Killed" in line for line in lines) >= 2
    totals = recording.totals("\n".join(lines))
    assert totals[-1] == (recording.LINES, 0, 0, 9_747_747_934)
    assert all(row[1:3] == (0, 0) for row in totals)


def test_screen_of_a_real_shell_becomes_an_animation(tmp_path: Path) -> None:
    """A line is drawn once for each text that it had; the last moment needs no animation."""
    bash = shutil.which("bash")
    assert bash is not None
    environment = {"PATH": str(Path(bash).parent), "PS1": "$ ", "TERM": "xterm", "LANG": "C.UTF-8"}
    pane = cast.Pane("a <shell>", tmp_path, environment)
    try:
        steps = [
            (pane, "echo '<&>'\n", lambda text: text.count("<&>") == 2),
            (pane, "clear\n", lambda text: "echo" not in text),
            (pane, "echo 1 Killed\n", lambda text: "\n1 Killed" in text),
        ]
        recorded = cast.record([pane], steps)
    finally:
        pane.close()
    drawing = cast.animated(recorded, {"Killed": "red"})
    ElementTree.fromstring(drawing)
    assert "&lt;&amp;&gt;" in drawing
    last = shown_last(drawing)
    assert "1 Killed" in last
    assert not any("<&>" in line for line in last)
    assert 'font-weight="bold">Killed</tspan>' in drawing


@pytest.mark.slow
def test_recording_can_be_made_again(tmp_path: Path) -> None:
    file = tmp_path / "recording.svg"
    assert recording.write(200_000, 2, file) == [file]
    assert recording.totals("\n".join(shown_last(file.read_text())))[-1][:3] == (200_000, 0, 0)


def shown_last(drawing: str) -> list[str]:
    """The lines of the last moment: those that a viewer without animation shows."""
    names = r"\{http://www\.w3\.org/2000/svg\}text"
    texts = [
        ("".join(each.itertext()), each.get("class", ""))
        for each in ElementTree.fromstring(drawing).iter()
        if re.fullmatch(names, each.tag)
    ]
    return [text for text, kind in texts if kind.endswith(" z")]
