"""Owns the way of diagnostics out: lines on stderr, or behind what the log file has.

What is said is no result: where it can no longer be said, the call and its exit code stay as they
are. A log file that cannot be written at all is told before anything is done.
"""

from __future__ import annotations

import sys


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
