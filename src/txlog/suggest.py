"""Owns the name that was probably meant: the nearest of those there are, for hints of errors."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

# More names than this are not looked through: an error must not take longer than the call.
_NAMES_MAX: Final = 2_000
_WORD_MAX: Final = 100


def near(word: str, names: Iterable[str]) -> str | None:
    """The nearest of the names, at most a third of its letters away; None if there is none.

    Letters added, left out, changed or swapped count one each; case does not count.
    """
    folded = word.casefold()
    if len(folded) > _WORD_MAX:
        return None
    best: tuple[int, str] | None = None
    for number, name in enumerate(names):
        if number == _NAMES_MAX:
            break
        other = name.casefold()
        most = max(len(folded), len(other)) // 3
        if best is not None:
            most = min(most, best[0] - 1)
        if abs(len(other) - len(folded)) > most:
            continue
        away = _distance(folded, other)
        if away <= most:
            best = (away, name)
    return None if best is None else best[1]


def meant(word: str, names: Iterable[str], otherwise: str) -> str:
    """The hint of an error: what was probably meant, otherwise what helps."""
    found = near(word, names)
    return otherwise if found is None else f"did you mean {found}?"


def _distance(one: str, other: str) -> int:
    """Edits between two words, a swap of neighbours as one."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, letter in enumerate(one, start=1):
        above, row, older = row, [i], before
        for j, seen in enumerate(other, start=1):
            cost = min(above[j] + 1, row[j - 1] + 1, above[j - 1] + (letter != seen))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == seen:
                cost = min(cost, older[j - 2] + 1)
            row.append(cost)
        before = above
    return row[-1]
