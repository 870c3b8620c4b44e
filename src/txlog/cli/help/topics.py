"""Owns the help topics and hand-written man pages: texts in texts/, tables from the program."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

from txlog.base.suggest import command_line
from txlog.cli.call.environment import USER_SETTINGS, VARIABLES
from txlog.cli.help import markup
from txlog.cli.help.codes import CODES, EXITS, codes_of, names_of
from txlog.cli.line import catalogue
from txlog.cli.line.command import GLOBAL_FLAGS
from txlog.cli.terminal.tables import Look
from txlog.errors import NotFound

_FOLDER: Final = Path(__file__).with_name("texts")
TOPICS: Final[dict[str, str]] = {
    "offsets": "ranges and bounds: -o, --to, --until, --at",
    "format": "shapes of output and input; the files of a store",
    "formatting": "%-formats of messages",
    "transactions": "all or nothing; keys, time-outs, conflicts",
    "exit-codes": "how commands end, and every error",
    "environment": "variables, profiles, the user's settings",
    "sql": "relations and columns of query and views",
}


def topic(word: str) -> markup.Page:
    """Return the page of a help topic, or of an error: `TXL-403`, `txl-403`, `403`.

    raises: NotFound (308) with the nearest name
    """
    if word in TOPICS:
        return read(word)
    number = word.upper().removeprefix("TXL-")
    if number.isdecimal() and len(number) < 20 and int(number) in CODES:
        return error_page(int(number))
    names = [*TOPICS, *catalogue.NOUNS, *catalogue.COMMANDS]
    near = difflib.get_close_matches(word.lower(), names, n=1, cutoff=0.6)
    excerpt = word if len(word) <= 40 else f"{word[:37]}..."
    hint = (
        f"did you mean: {command_line('help', *near[0].split())}"
        if near
        else "txlog help lists the topics"
    )
    raise NotFound(f'no help on "{excerpt}"', hint=hint, name=excerpt)


def shown(page: markup.Page, look: Look) -> str:
    """Return the page as rich draws it on a terminal, as text elsewhere."""
    if not look.width:
        return markup.as_text(page)
    drawn: str = importlib.import_module("txlog.cli.help.page").drawn(page, look.width, look.color)
    return drawn


def overview() -> str:
    """Return the list of topics."""
    width = max(map(len, TOPICS))
    lines = [f"  txlog help {name.ljust(width)}  {text}" for name, text in TOPICS.items()]
    example = f"  txlog help {'TXL-403'.ljust(width)}  an error: what causes it, what to do"
    return "\n".join(
        ["help topics:", "", *lines, example, "", "txlog COMMAND -h helps with one", ""]
    )


def read(name: str) -> markup.Page:
    """Return a page of texts/ with its tables filled in."""
    return markup.parse(source(name), _TABLES)


def source(name: str) -> str:
    """Return the raw text of a file in texts/."""
    return (_FOLDER / f"{name}.txt").read_text(encoding="utf-8")


def has(name: str) -> bool:
    """Return whether texts/ has a text of that name."""
    return (_FOLDER / f"{name}.txt").is_file()


def error_page(code: int) -> markup.Page:
    """Return the page of one code."""
    page = markup.Page(f"TXL-{code}", 7, CODES[code].means)
    page.add("CAUSE", markup.Block(text=CODES[code].cause))
    page.add("FIX", markup.Block(text=CODES[code].fix))
    page.add("EXAMPLE", markup.Block(lines=[CODES[code].example]))
    names = ", ".join(names_of(code))
    retry = "; the same call may succeed later" if code // 100 == 5 else ""
    page.add("IN PROGRAMS", markup.Block(text=f"exit {code // 100}{retry}; class {names}"))
    return page


def exits() -> markup.Terms:
    """Exit codes and their meanings."""
    return [(str(code), meaning) for code, meaning in EXITS.items()]


def errors_of(*exit_codes: int) -> markup.Terms:
    """The errors for which a command ends with one of these exit codes."""
    return [
        (f"TXL-{code}", CODES[code].means)
        for exit_code in exit_codes
        for code in codes_of(exit_code)
    ]


def _all_errors() -> markup.Terms:
    return errors_of(*EXITS)


def _commands() -> markup.Terms:
    return [(f"`txlog {path}`", entry.help) for path, entry in catalogue.COMMANDS.items()]


def _global_flags() -> markup.Terms:
    return [
        (", ".join(f"`{name}`" for name in names) + (f" {value}" if value else ""), text)
        for names, value, text in GLOBAL_FLAGS.values()
    ]


def _environment() -> markup.Terms:
    return list(VARIABLES.items())


def _user_settings() -> markup.Terms:
    return list(USER_SETTINGS.items())


_TABLES: Final[dict[str, Callable[[], markup.Terms]]] = {
    "exits": exits,
    "commands": _commands,
    "global-flags": _global_flags,
    "errors": _all_errors,
    "environment": _environment,
    "user-settings": _user_settings,
}
