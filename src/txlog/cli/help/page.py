"""Owns how rich draws a page of help on a terminal; elsewhere `markup` prints it as text.

Of this package only this module imports rich, and only a terminal needs it. Lines have at most 79
columns, or fewer on a narrower terminal; verbatim lines keep their width.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from typing import Final

from rich.cells import cell_len
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from txlog.cli.help.markup import TERM_WIDTH_MAX, WIDTH, Block, Page, Terms, bare
from txlog.cli.terminal.screen import rendered

_INDENT: Final = 2
_LITERAL: Final = "cyan"


def drawn(page: Page, columns: int, color: bool) -> str:
    """Return the page as text for a terminal of this many columns."""
    width = min(columns, WIDTH)
    head = Text.assemble((page.name, "bold"), f": {page.summary}")
    out = [rendered(head, width, color)]
    for heading, blocks in page.sections:
        out += ["\n", rendered(Text(heading, "bold"), width, color)]
        for number, block in enumerate(blocks):
            out += ["\n"] if number else []
            if block.lines:
                out += [f"    {line}".rstrip() + "\n" for line in block.lines]
            else:
                out += [rendered(part, width, color) for part in _parts(block, width, color)]
    return "".join(out)


def _parts(block: Block, columns: int, color: bool) -> Iterator[RenderableType]:
    if block.text:
        yield _indented(_marked(block.text, color))
        return
    longest = max(cell_len(bare(term)) for term, _ in block.terms)
    width = min(longest, TERM_WIDTH_MAX, columns // 2)  # leave half the width to meanings
    for is_long, terms in groupby(block.terms, lambda pair: cell_len(bare(pair[0])) > width):
        if is_long:
            yield from _long([*terms], width, color)
        else:
            yield _short([*terms], width, color)


def _short(terms: Terms, width: int, color: bool) -> RenderableType:
    """Terms in one column, their meanings in a second."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=width)
    grid.add_column()
    for term, meaning in terms:
        grid.add_row(Text(bare(term), _LITERAL), _marked(meaning, color))
    return _indented(grid)


def _long(terms: Terms, width: int, color: bool) -> Iterator[RenderableType]:
    """Each term on its own line, its meaning below."""
    for term, meaning in terms:
        yield _indented(Text(bare(term), _LITERAL))
        yield _indented(_marked(meaning, color), width + 2)


def _indented(body: RenderableType, more: int = 0) -> RenderableType:
    return Padding(body, (0, 0, 0, _INDENT + more))


def _marked(text: str, color: bool) -> Text:
    """Text with literal words in a colour; without colours they get quotes, as in plain text."""
    if not color:
        return Text(bare(text))
    parts = re.split(r"`([^`]+)`", text)
    return Text.assemble(*((part, _LITERAL if at % 2 else "") for at, part in enumerate(parts)))
