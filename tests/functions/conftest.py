"""The store that the functions of the tests read and write."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import txlog


@pytest.fixture
def client(tmp_path: Path) -> Iterator[txlog.Client]:
    """Return a store with topics in (two partitions), out and bad, and subscription s on in."""
    txlog.init(str(tmp_path / "store"), coordinators=2)
    with txlog.open(str(tmp_path / "store")) as opened:
        opened.create_topic("in", 2)
        for topic in ("out", "bad", "other"):
            opened.create_topic(topic)
        opened.create_subscription("in", "s")
        yield opened
