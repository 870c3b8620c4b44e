"""Owns reading lines at a terminal: readline, with Tab for verbs, flags and names in the store."""

from __future__ import annotations

import readline
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from txlog.cli.help.completion import FILES, candidates, split_line

_OWN: Final = ("use", "set", "unset", "begin", "commit", "abort", "exit")


@contextmanager
def prompted() -> Iterator[Callable[[str], str]]:
    """Asks for a line; the history is kept only in memory and goes with the shell."""
    before = readline.get_completer(), readline.get_completer_delims()
    readline.set_completer(_Completer().give)
    readline.set_completer_delims(" \t")
    readline.parse_and_bind("tab: complete")
    try:
        yield input
    finally:
        readline.set_completer(before[0])
        readline.set_completer_delims(before[1])


class _Completer:
    """Answers readline, which asks for one candidate after another."""

    def __init__(self) -> None:
        self._found: list[str] = []

    def give(self, text: str, number: int) -> str | None:
        """The candidate with this number, None after the last."""
        if number == 0:
            self._found = offered(readline.get_line_buffer()[: readline.get_endidx()])
        return self._found[number] if number < len(self._found) else None


def offered(line: str) -> list[str]:
    """The candidates for the last word of a line of the shell."""
    words = split_line(line) or [""]
    try:
        found = [word for word, _ in candidates(words) if word != FILES]
    except Exception:  # half a line is no reason to complain
        found = []
    if len(words) == 1:
        found = sorted([*found, *(word for word in _OWN if word.startswith(words[0]))])
        found = [word for word in found if word != "shell"]
    return [f"{word} " if word[-1] not in "=,/" else word for word in found]
