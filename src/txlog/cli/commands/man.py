"""Owns the commands of manual pages: install, show, path."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

from txlog.cli.call.call import Call, show_text
from txlog.cli.call.call import install as install_file
from txlog.cli.call.environment import data_home
from txlog.cli.help import man_pages, topics
from txlog.cli.line.command import Argument, command
from txlog.cli.terminal.tables import counted
from txlog.errors import NotFound

Pages = Annotated[list[str] | None, Argument(metavar="PAGE", show_default=False)]


@command(
    "man install",
    "install man pages where man finds them",
    examples=("txlog man install", "txlog man install --json"),
    rows="tool.FileInstalled",
    changes=True,
)
def install(call: Call) -> None:
    """Write the man pages below $XDG_DATA_HOME/man, where `man` finds them.

    Repeating it is harmless: it writes only pages that changed.
    """
    top = data_home(os.environ) / "man"
    names = man_pages.page_names()
    changed = sum(
        install_file(call, top / f"man{name[-1]}" / name, man_pages.mdoc(name)) for name in names
    )
    call.summary(f"{counted(len(names), 'page')} in {top}, {changed} written; try: man txlog")


@command(
    "man show",
    "print a man page",
    examples=("txlog man show produce", "txlog man show txn commit", "txlog man show offsets"),
)
def show(call: Call, page: Pages = None) -> None:
    """Print a man page as text: of a command, a noun, or txlog without PAGE."""
    show_text(call, topics.shown(man_pages.page(_named(page)), call.output.look))


@command(
    "man path",
    "where the man pages are",
    examples=("txlog man path", "txlog man path produce"),
)
def path(call: Call, page: Pages = None) -> None:
    """Print the directory of the man pages, or the file of one.

    `man install` put the pages there; otherwise it is the directory of the package.
    """
    name = _named(page)
    for top in (data_home(os.environ) / "man", Path(sys.prefix) / "share" / "man"):
        file = top / f"man{name[-1]}" / name
        if file.is_file():
            call.output.text(f"{file if page else top}\n")
            return
    raise NotFound("no man pages are installed", hint="txlog man install")


def _named(page: list[str] | None) -> str:
    """The name of the page for the words, as in `txlog-produce.1`.

    raises: NotFound (308)
    """
    word = " ".join(page or ["txlog"])
    name = man_pages.find(word)
    if name is None:
        excerpt = word if len(word) <= 40 else f"{word[:37]}..."
        raise NotFound(
            f'no page "{excerpt}"', hint="txlog man show lists the commands", name=excerpt
        )
    return name
