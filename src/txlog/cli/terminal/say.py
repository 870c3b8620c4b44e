"""Owns the way of diagnostics out: lines on stderr, or behind what the log file has.

What is said is no result: where it can no longer be said, the call and its exit code stay as they
are. A log file that cannot be written at all is told before anything is done.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Final

_COLORS: Final = {"error": "\x1b[1;31m", "warning": "\x1b[1;33m", "note": "\x1b[36m"}
_PLAIN: Final = "\x1b[0m"


def is_colored(choice: str, terminal: bool, environ: Mapping[str, str]) -> bool:
    """Tell whether there are colours: --color, the variables, the terminal (spec/cli 4)."""
    if choice != "auto":
        return choice == "always"
    if environ.get("NO_COLOR"):
        return False
    if environ.get("CLICOLOR_FORCE", "0") != "0" or environ.get("FORCE_COLOR", "0") != "0":
        return True
    return terminal and environ.get("CLICOLOR") != "0" and environ.get("TERM") != "dumb"


def marked(word: str, choice: str, environ: Mapping[str, str]) -> str:
    """`error: ` and the like as a line on stderr begins with it."""
    try:
        terminal = sys.stderr.isatty()
    except (AttributeError, ValueError):
        terminal = False
    if is_colored(choice, terminal, environ):
        return f"{_COLORS[word]}{word}:{_PLAIN} "
    return f"{word}: "


def say(text: str) -> None:
    """Write text on stderr, whoever listens."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, AttributeError, ValueError):
        pass  # closed, full or gone


def begin_log(path: str) -> None:
    """See that lines can be added to the file at path; it is made if need be.

    raises: OSError
    """
    with open(path, "a", encoding="utf-8"):
        pass


def log(path: str, line: str) -> None:
    """Add a line to the file at path."""
    try:
        with open(path, "a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(line + "\n")
    except OSError:
        say(line + "\n")  # the disk is full, or the file has lost its directory
