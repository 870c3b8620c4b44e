"""The fixtures of pytest: a store, a client and a clock, new for each test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from txlog.testing.store import TemporaryStore

if TYPE_CHECKING:
    from pathlib import Path

    from txlog.client.client import Client
    from txlog.clock import ManualClock


@pytest.fixture
def txlog_store(tmp_path: Path) -> Iterator[TemporaryStore]:
    """A store that the test can crash; see txlog.testing."""
    with TemporaryStore(str(tmp_path / "txlog-store")) as store:
        yield store


@pytest.fixture
def txlog_client(txlog_store: TemporaryStore) -> Client:
    """A client of `txlog_store`."""
    return txlog_store.open()


@pytest.fixture
def txlog_clock(txlog_store: TemporaryStore) -> ManualClock:
    """The clock of `txlog_store`, which moves only when the test moves it."""
    return txlog_store.clock
