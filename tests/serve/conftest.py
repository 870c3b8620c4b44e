"""The folder of a server: a store that is served, or the secret of its tokens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.serve.roles import SECRET
from tests.serve.served import served


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "secret.key").write_bytes(SECRET)
    return tmp_path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A store and the address that serves it, for the tests of a module."""
    path = tmp_path_factory.mktemp("s") / "s"
    with served(path) as url:
        yield path, url
