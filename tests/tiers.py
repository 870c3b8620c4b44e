"""Owns the choice of quick tests among similar ones; the others are deep (CONTRIBUTING.md)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest

_ROW = type(pytest.param())


def graded(values: Iterable[Any], quick: int | Collection[Any]) -> list[Any]:
    """Parameters, marked deep except the first `quick`, or except those in the collection.

    values: one for each test, or a tuple or `pytest.param` with one for each parameter
    """
    return [
        value if (n < quick if isinstance(quick, int) else value in quick) else _deep(value)
        for n, value in enumerate(values)
    ]


def _deep(value: Any) -> Any:
    if isinstance(value, _ROW):
        marks = [*value.marks, pytest.mark.deep]
        return pytest.param(*value.values, marks=marks, id=value.id)
    values = value if isinstance(value, tuple) else [value]
    return pytest.param(*values, marks=pytest.mark.deep)
