"""Owns the common parts of the three clients' suites."""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from tests.clients import bed
from tests.upstream.verdicts import Outcome

Unavailable = bed.Unavailable
BUILD = bed.ROOT / "build" / "upstream"
LOCALHOST = "127.0.0.1"


class Suite(ABC):
    """The tests of a client.

    name:    of the client
    parts:   how many days a run of all takes, a part each day
    causes:  reasons why a test differs, by a text that its error contains
    """

    name: ClassVar[str]
    parts: ClassVar[int]
    causes: ClassVar[Mapping[str, str]]

    @abstractmethod
    def prepare(self) -> None:
        """Fetch and build the tests. Raises Unavailable where that cannot be done."""

    @abstractmethod
    def tests(self) -> Sequence[str]:
        """The names of the tests that are known before they run."""

    @abstractmethod
    def group(self, test: str) -> str:
        """The group of a test: a worker runs the tests of a group one after the other."""

    @abstractmethod
    def run(self, tests: Sequence[str], launcher: int, limit_s: float) -> Iterator[Outcome]:
        """Run tests of one group, in a worker.

        launcher: the port of its servers
        limit_s:  for each test; one that takes longer is killed and has failed
        """

    def close(self) -> None:
        """End processes that the runs have left."""
        return


def served(port: int) -> socket.socket:
    """A connection to the launcher."""
    return socket.create_connection((LOCALHOST, port))


def built(folder: Path, source: Path) -> bool:
    """Whether the build in a folder is newer than its source."""
    mark = folder / "built"
    newest = max(path.stat().st_mtime for path in [source, *source.rglob("*")] if path.is_file())
    return mark.exists() and mark.stat().st_mtime > newest
