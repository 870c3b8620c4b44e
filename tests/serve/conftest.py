"""Owns what tests of the server share: a store that is served to a module, and paths for one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serve.roles import SECRET
from tests.serve.served import served


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the secret of the server's tokens."""
    (tmp_path / "secret.key").write_bytes(SECRET)
    return tmp_path


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
