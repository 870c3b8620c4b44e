"""Owns the output of diagnostics: lines on stderr, or lines appended to the log file.

A diagnostic is not a result: if it cannot be written, the call and its exit code stay the same. A
log file that cannot be written at all is reported before the command does anything.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Final

from txlog.cli.terminal.escapes import safe

_COLORS: Final = {"error": "\x1b[1;31m", "warning": "\x1b[1;33m", "note": "\x1b[36m"}
_PLAIN: Final = "\x1b[0m"
_OURS: Final = (*_COLORS.values(), _PLAIN)


def is_colored(choice: str, terminal: bool, environ: Mapping[str, str]) -> bool:
    """Return whether to use colours: --color, the variables, the terminal (spec/cli 4)."""
    if choice != "auto":
        return choice == "always"
    if environ.get("NO_COLOR"):
        return False
    if environ.get("CLICOLOR_FORCE", "0") != "0" or environ.get("FORCE_COLOR", "0") != "0":
        return True
    return terminal and environ.get("CLICOLOR") != "0" and environ.get("TERM") != "dumb"


def marked(word: str, choice: str, environ: Mapping[str, str]) -> str:
    """The start of a line on stderr, such as `error: `."""
    try:
        terminal = sys.stderr.isatty()
    except (AttributeError, ValueError):
        terminal = False
    if is_colored(choice, terminal, environ):
        return f"{_COLORS[word]}{word}:{_PLAIN} "
    return f"{word}: "


def say(text: str) -> None:
    """Write text on stderr, and ignore failures; a terminal obeys only our own colours in it."""
    try:
        if sys.stderr.isatty():
            text = safe(text, _OURS)
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, AttributeError, ValueError):
        pass  # stderr is closed or full


def begin_log(path: str) -> None:
    """Check that lines can be appended to the file at path; create it if it is missing.

    raises: OSError
    """
    with open(path, "a", encoding="utf-8"):
        pass


def log(path: str, line: str) -> None:
    """Append a line to the file at path."""
    try:
        with open(path, "a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(line + "\n")
    except OSError:
        say(line + "\n")  # the disk is full, or the directory was deleted
