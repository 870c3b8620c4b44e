"""Owns the small markup of help topics and man pages: parsed once, shown as text or as mdoc.

NAME(SECTION): one line         the first line
# HEADING                       a section
term :: meaning                 a list, one line an item
(four blanks)text               verbatim
@name                           a table that the program fills in
anything else                   a paragraph, one line; `words` are literal
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from txlog import __version__
from txlog.cli.terminal.tables import width_of

Terms = list[tuple[str, str]]
_HEAD: Final = re.compile(r"([\w.-]+)\((\d)\): (.+)")
TERM_WIDTH_MAX: Final = 26
WIDTH: Final = 79


@dataclass
class Block:
    """A paragraph, a list of terms, or verbatim lines; exactly one of the three is filled."""

    text: str = ""
    terms: Terms = field(default_factory=list)
    lines: list[str] = field(default_factory=list)


@dataclass
class Page:
    """A man page: its name, section and summary, and its sections in order."""

    name: str
    section: int
    summary: str
    sections: list[tuple[str, list[Block]]] = field(default_factory=list)

    def add(self, heading: str, *blocks: Block) -> None:
        """Add a section."""
        self.sections.append((heading, list(blocks)))


def parse(source: str, tables: Mapping[str, Callable[[], Terms]]) -> Page:
    """Parse the source of a page; `tables` maps each `@name` to a function for its terms."""
    first, *lines = source.splitlines()
    head = _HEAD.fullmatch(first)
    assert head is not None, first
    page = Page(head[1], int(head[2]), head[3])
    for line in lines:
        if line.startswith("# "):
            page.add(line[2:])
            continue
        if not page.sections:
            continue
        blocks = page.sections[-1][1]
        last = blocks[-1] if blocks else None
        if not line:
            blocks.append(Block())  # a blank line separates blocks
        elif line.startswith("    "):
            if last is None or not last.lines:
                last = Block()
                blocks.append(last)
            last.lines.append(line[4:])
        elif line[1:] in tables and line[0] == "@":
            blocks.append(Block(terms=tables[line[1:]]()))
        elif " :: " in line:
            if last is None or not last.terms:
                last = Block()
                blocks.append(last)
            term, _, meaning = line.partition(" :: ")
            last.terms.append((term, meaning))
        else:
            blocks.append(Block(text=line))
    for _, blocks in page.sections:
        blocks[:] = [b for b in blocks if b.text or b.terms or b.lines]
    return page


def as_text(page: Page) -> str:
    """Return the page as text of at most 79 columns; verbatim lines can be longer."""
    out = [f"{page.name}: {page.summary}"]
    for heading, blocks in page.sections:
        out += ["", heading]
        for number, block in enumerate(blocks):
            out += [""] if number else []
            out += _text_lines(block)
    return "\n".join(out) + "\n"


def _text_lines(block: Block) -> list[str]:
    if block.lines:
        return [f"    {line}" if line else "" for line in block.lines]
    if block.text:
        return _wrapped(bare(block.text), "  ", "  ")
    width = max(width_of(bare(term)) for term, _ in block.terms)
    width = min(width, TERM_WIDTH_MAX)
    out = []
    for term, meaning in block.terms:
        word, hang = bare(term), " " * (width + 4)
        if width_of(word) > width:
            out += [f"  {word}", *_wrapped(bare(meaning), hang, hang)]
        else:
            padded = word + " " * (width - width_of(word))
            out += _wrapped(bare(meaning), f"  {padded}  ", hang)
    return out


def _wrapped(text: str, first: str, later: str) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=later,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [first.rstrip()]


def bare(text: str) -> str:
    """Text without backquotes; a literal of several words gets single quotes."""
    return re.sub(r"`([^`]+)`", lambda m: f"'{m[1]}'" if " " in m[1] else m[1], text)


def as_mdoc(page: Page, date: str) -> str:
    """Return the page as mdoc, the language of man pages; `man --warnings` accepts it silently."""
    out = [f".Dd {date}", f".Dt {page.name.upper()} {page.section}"]
    out += [
        f".Os txlog {__version__}",
        ".Sh NAME",
        f".Nm {page.name}",
        f".Nd {_escaped(page.summary)}",
    ]
    for heading, blocks in page.sections:
        out.append(f".Sh {_escaped(heading)}")
        if heading == "SEE ALSO":
            out += _references(blocks)
            continue
        for number, block in enumerate(blocks):
            if number and not block.terms and not block.lines:
                out.append(".Pp")
            out += _mdoc_lines(block)
    return "\n".join(out) + "\n"


def _mdoc_lines(block: Block) -> list[str]:
    if block.lines:
        body = [_escaped(line) if line else "\\&" for line in block.lines]
        return [".Bd -literal -offset indent", *body, ".Ed"]
    if block.text:
        return _filled(block.text)
    out = [".Bl -tag -width indent"]
    for term, meaning in block.terms:
        out += [f".It {_item(term)}", *_filled(meaning)]
    return [*out, ".El"]


def _item(term: str) -> str:
    """A term as one argument of .It; words that are also mdoc macros are escaped."""
    return '"' + _bold(_escaped(term)).replace('"', "\\(dq") + '"'


def _references(blocks: list[Block]) -> list[str]:
    references = re.findall(r"([\w.-]+)\((\d)\)", " ".join(block.text for block in blocks))
    ends = [" ,"] * (len(references) - 1) + [""]
    return [
        f".Xr {name} {number}{end}" for (name, number), end in zip(references, ends, strict=True)
    ]


def _filled(text: str) -> list[str]:
    lines = textwrap.wrap(text, 96, break_long_words=False, break_on_hyphens=False)
    return _bold(_escaped("\n".join(lines))).split("\n")


def _bold(text: str) -> str:
    """Escaped text with its literal words in bold; man does not break flags at their dashes."""
    text = re.sub(r"`([^`]+)`", r"\\fB\1\\fR", text)
    return re.sub(r"(?<!\S)(?=\S*\\-\S)", r"\\%", text)


def _escaped(text: str) -> str:
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("^", "\\(ha").replace("~", "\\(ti")
    text = text.replace("…", "...").replace("→", "\\(->")
    return re.sub(r"^(?=[.'])", r"\\&", text, flags=re.MULTILINE)
