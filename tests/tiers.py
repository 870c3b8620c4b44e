"""Owns the choice of quick tests among similar ones; the others are deep (CONTRIBUTING.md)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def graded(values: Iterable[Any], quick: int | Collection[Any]) -> list[Any]:
    """Parameters, marked deep except the first `quick`, or except those in the collection."""
    return [
        value
        if (n < quick if isinstance(quick, int) else value in quick)
        else pytest.param(value, marks=pytest.mark.deep)
        for n, value in enumerate(values)
    ]
