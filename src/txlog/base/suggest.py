"""Owns the words of hints: the nearest existing name, and command lines that work as they stand."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from heapq import nlargest
from itertools import islice
from types import ModuleType
from typing import Final

# At most this many names are searched: an error must not take longer than the call.
NAMES_MAX: Final = 2_000
_COMPARED_MAX: Final = 40  # names compared letter by letter, which takes 30 us each
_WORD_MAX: Final = 100
_LIKENESS_MIN: Final = 0.65  # one letter in three may differ


def nearest(word: str, names: Iterable[str]) -> str | None:
    """Return the name most similar to the word; None if none is similar enough.

    It ignores case, and searches only the first NAMES_MAX names.
    """
    if len(word) > _WORD_MAX:
        return None
    difflib: ModuleType = importlib.import_module("difflib")  # only needed for mistakes
    names_by_fold: dict[str, str] = {}
    for name in islice(names, NAMES_MAX):
        names_by_fold.setdefault(name.casefold(), name)
    folded = word.casefold()
    likely = nlargest(_COMPARED_MAX, names_by_fold, key=lambda name: _shared(folded, name))
    matches = difflib.get_close_matches(folded, likely, 1, _LIKENESS_MIN)
    return names_by_fold[matches[0]] if matches else None


def _shared(word: str, name: str) -> int:
    """Letters that two words share at the beginning and the end, where typing errors are rare."""
    return _begin_alike(word, name) + _begin_alike(word[::-1], name[::-1])


def _begin_alike(word: str, name: str) -> int:
    count = 0
    for letter, other in zip(word, name, strict=False):
        if letter != other:
            break
        count += 1
    return count


def command_line(path: str, *words: object) -> str:
    """Return a line of a hint that works when pasted: `txlog`, a command and its words, quoted.

    Every line with a name in it comes from here, so a test finds them all and parses them.
    """
    shlex: ModuleType = importlib.import_module("shlex")  # only needed for hints
    return " ".join(["txlog", path, *(shlex.quote(str(word)) for word in words)])


def suggestion(word: str, names: Iterable[str], otherwise: str) -> str:
    """Return the hint `did you mean NAME?` with the nearest name, or else `otherwise`."""
    name = nearest(word, names)
    return otherwise if name is None else f"did you mean {name}?"


def address_of(kind: str, label: str) -> str:
    """The value of --database for a database, as far as its label has it."""
    return "URL" if kind == "postgresql" else f"{kind}:{label}"
