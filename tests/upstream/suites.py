"""Owns the suites by the names of their clients."""

from __future__ import annotations

from pathlib import Path

from tests.upstream.go import Go
from tests.upstream.java import Java
from tests.upstream.python import Python
from tests.upstream.suite import Suite

CLIENTS = ("go", "java", "python")


def suite_of(client: str, sources: str | None) -> Suite:
    """The suite of a client.

    sources: a checkout of the client's repository, for Python
    """
    if client == "go":
        return Go()
    if client == "java":
        return Java()
    return Python(Path(sources) if sources else None)
