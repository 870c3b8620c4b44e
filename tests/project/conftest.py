"""Tests that read the whole project need no collector of garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def no_collection() -> Iterator[None]:
    """Syntax trees live until the end, and each collection would visit every tree again."""
    gc.disable()
    yield
    gc.enable()
