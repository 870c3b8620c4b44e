"""Owns what tests of the server share: a store that is served to a module, and a path for one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serve.served import served


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """The folder of a store that is served to the tests of a module, and its URL."""
    path = tmp_path_factory.mktemp("s") / "s"
    with served(path) as url:
        yield path, url


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Where a test makes its store."""
    return str(tmp_path / "store")
