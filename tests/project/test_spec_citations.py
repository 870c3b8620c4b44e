"""Citations in the code lead somewhere: each `spec/NAME 4.2` is a place of docs/spec/NAME.md.

Code cites sections (`spec/cli 8.5`), items of a section's list (`spec/cli 12.5`), rules by their
name (`spec/reliability R17`) and invariants (`spec/transactions I-6`, the items of section 17).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.source_tree import ROOT
from tests.spec_page import FOLDER, places

_PLACE = r"(?:R\d+|I-\d+|\d+(?:\.\d+)*)"
_CITED = re.compile(rf"\bspec/([a-z-]+)(?:\s+({_PLACE}(?:(?:,\s+|\s+and\s+|\s+to\s+){_PLACE})*))?")
_GONE = re.compile(r"\bCLI\.md|\bCLI \d|\bANALYTICS \d|\bRELIABILITY R?\d|\bspec \d")
FILES = sorted(
    file
    for top in ("src", "tests", "bench", "scripts", "examples", "docs")
    for file in (ROOT / top).rglob("*")
    if file.suffix in (".py", ".md") and file != Path(__file__)
)


def _cited(file: Path) -> Iterator[tuple[str, str]]:
    """The pages and places that a file cites."""
    for page, listed in _CITED.findall(file.read_text(encoding="utf-8")):
        for place in re.findall(_PLACE, listed) or [""]:
            if place.startswith("R"):
                yield "reliability", place
            elif place.startswith("I-"):
                yield "transactions", f"17.{place[2:]}"
            else:
                yield page, place


def _exists(name: str, place: str) -> bool:
    return (FOLDER / f"{name}.md").exists() and (not place or place in places(name))


def test_cited_places_exist() -> None:
    """Kills: a citation of a renumbered section, or of a page that does not exist."""
    missing = {
        f"{file.relative_to(ROOT)}: spec/{name} {place}"
        for file in FILES
        for name, place in _cited(file)
        if not _exists(name, place)
    }
    assert not missing, "\n".join(sorted(missing))


def test_every_page_is_cited() -> None:
    """A page that no code cites is no specification, and belongs to the guides."""
    cited = {name for file in FILES if file.suffix == ".py" for name, _ in _cited(file)}
    assert cited == {file.stem for file in FOLDER.glob("*.md")}


def test_nothing_outside_of_the_repository_is_cited() -> None:
    """Kills: the names that the pages had before they moved into the repository."""
    for file in FILES:
        match = _GONE.search(file.read_text(encoding="utf-8"))
        assert match is None, f"{file}: {match}"
