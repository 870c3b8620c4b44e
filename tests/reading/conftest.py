"""A store to wait in, and the moments at which threads begin to wait."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import txlog
from txlog.engine.store.wakeups import Wakeups


@pytest.fixture
def path(tmp_path: Path) -> str:
    store_path = str(tmp_path / "store")
    txlog.init(store_path, free_bytes_min=0)
    with txlog.open(store_path) as client:
        client.create_topic("t")
        client.create_subscription("t", "s", type="shared")
    return store_path


@pytest.fixture
def rests(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Semaphore]:
    """Released each time a thread is about to wait."""
    semaphore, wait = threading.Semaphore(0), Wakeups.wait

    def noted(self: Wakeups, seen: int, seconds: float) -> bool:
        semaphore.release()
        return wait(self, seen, seconds)

    monkeypatch.setattr(Wakeups, "wait", noted)
    yield semaphore
