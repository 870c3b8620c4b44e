"""Owns the files of docs/decisions: numbers new decisions and makes the table of the index.

usage: python -m scripts.decisions [--check]
       python -m scripts.decisions add [--area AREA] FILE...

Without arguments the script writes the table in docs/decisions/index.md; --check only compares.
`add` takes files in which each decision is a `## heading` and its text. It gives each decision the
next number and a file. A line `Area: AREA` may begin a text; --area is for texts without one.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "decisions"
INDEX = FOLDER / "index.md"
AREAS = (
    "topics", "sending", "reading", "consuming", "transactions", "delayed", "watermarks", "space",
    "storage", "calls", "repair", "administration", "functions", "analytics", "command line",
    "serving", "project",
)  # fmt: skip
_SLUG_MAX = 60
_HEAD = re.compile(r"# (\d+)\. (.+)\n\n- Status: (.+)\n- Area: (.+)\n\n")
_PART = re.compile(r"\n+(?=\*\*[A-Z][^*\n]*\.\*\*)")  # each is a paragraph of its own
_TABLE = re.compile(r"(<!-- made by [^\n]*-->\n).*?(<!-- end -->)", re.DOTALL)


class Decision(NamedTuple):
    """The head of a decision's file."""

    number: int
    title: str
    status: str
    area: str


class Draft(NamedTuple):
    """A decision that has no number yet."""

    title: str
    area: str
    text: str


def main() -> int:
    """Add the named files' decisions, write the index; with --check return 1 if it differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="only compare")
    commands = parser.add_subparsers(dest="command")
    adding = commands.add_parser("add", help="number and file the decisions of FILE")
    adding.add_argument("--area", choices=AREAS, default="")
    adding.add_argument("files", nargs="+", type=Path, metavar="FILE")
    options = parser.parse_args()
    if options.command == "add":
        try:
            # All are read before the first is written.
            added = [draft for file in options.files for draft in drafts(file, options.area)]
        except (OSError, ValueError) as error:
            sys.exit(str(error))
        for draft in added:
            print(add(draft).relative_to(FOLDER.parent.parent))
    if options.check:
        if INDEX.read_text(encoding="utf-8") == index():
            return 0
        print("differs: docs/decisions/index.md")
        return 1
    INDEX.write_text(index(), encoding="utf-8")
    return 0


def files() -> list[Path]:
    """The files of decisions, in the order of their numbers."""
    return sorted(FOLDER.glob("[0-9]*.md"))


def read(file: Path) -> Decision:
    """Parse the head of a decision's file.

    Raises:
        ValueError: the file does not begin with number, title, status and area
    """
    match = _HEAD.match(file.read_text(encoding="utf-8"))
    if match is None:
        raise ValueError(f"{file} does not begin as docs/decisions/template.md does")
    return Decision(int(match[1]), match[2], match[3], match[4])


def index() -> str:
    """The text that docs/decisions/index.md should have."""
    rows = ["|  | decision | area | status |", "|---|---|---|---|"]
    for file in files():
        number, title, status, area = read(file)
        title = title.replace("|", r"\|")
        rows.append(f"| {number} | [{title}]({file.name}) | {area} | {status} |")
    made = "".join(f"{row}\n" for row in rows)
    text = INDEX.read_text(encoding="utf-8")
    return _TABLE.sub(lambda match: match[1] + made + match[2], text)


def drafts(file: Path, area: str) -> list[Draft]:
    """The decisions in a file of `## heading` and text; area is for those that name none.

    Raises:
        ValueError: no heading; a decision without text, or with an area that is not in AREAS
    """
    head, *parts = re.split(r"^## +", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
    if not parts or "**" in head:
        raise ValueError(f"{file}: a decision begins with a line `## heading`")
    found = []
    for part in parts:
        title, _, text = part.partition("\n")
        title = re.sub(r"^\d+\. ", "", title.strip()).removesuffix(".")
        match = re.match(r"\s*(?:- )?Area: *([\w ]+)\n", text)
        draft = Draft(
            title, match[1].strip() if match else area, text[match.end() :] if match else text
        )
        if draft.area not in AREAS:
            raise ValueError(f"{file}: {title}: Area is one of {', '.join(AREAS)}")
        if not draft.text.strip():
            raise ValueError(f"{file}: {title}: nothing is said")
        found.append(draft)
    return found


def add(draft: Draft) -> Path:
    """Write a decision under the next number; return its file."""
    number = 1 + max((read(file).number for file in files()), default=0)
    return write(number, draft.title, "accepted", draft.area, draft.text.strip())


def write(number: int, title: str, status: str, area: str, text: str) -> Path:
    """Write the file of one decision and return it."""
    file = FOLDER / file_name(number, title)
    head = f"# {number}. {title}\n\n- Status: {status}\n- Area: {area}\n\n"
    text = _PART.sub("\n\n", text)
    file.write_text(f"{head}{text}\n", encoding="utf-8")
    return file


def file_name(number: int, title: str) -> str:
    """The number with four digits, and words of the title: `0001-the-lock-file-is-….md`."""
    words = re.sub(r"[^a-z0-9]+", " ", title.lower()).split()
    slug = ""
    for word in words:
        if len(slug) + len(word) >= _SLUG_MAX:
            break
        slug = f"{slug}-{word}" if slug else word
    return f"{number:04}-{slug}.md"


if __name__ == "__main__":
    sys.exit(main())
