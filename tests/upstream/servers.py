"""Owns servers of a test: `txlog serve` at given ports, started by the launcher."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from tests.upstream.suite import served


class Servers:
    """Servers of one new store, while the context lasts.

    options:  of `txlog serve`, a list for each server
    settings: of the store
    """

    def __init__(
        self, launcher: int, options: Sequence[Sequence[str]], settings: Mapping[str, int]
    ) -> None:
        self._launcher = launcher
        self._request = {"start": options, "settings": settings}

    def __enter__(self) -> Servers:
        self._connection = served(self._launcher)
        with self._connection.makefile("rw") as lines:
            print(json.dumps(self._request), file=lines, flush=True)
            answer = json.loads(lines.readline())
        assert "error" not in answer, answer["error"]
        return self

    def __exit__(self, *_: object) -> None:
        with self._connection, self._connection.makefile("rw") as lines:
            print(json.dumps({"stop": True}), file=lines, flush=True)
            lines.readline()
