"""Owns servers of a test: `txlog serve` at given ports, started by the launcher."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tests.upstream.suite import served


class Servers:
    """Servers of one new store, while the context lasts."""

    def __init__(self, launcher: int, options: Sequence[Sequence[str]]) -> None:
        self._launcher, self._options = launcher, options

    def __enter__(self) -> Servers:
        self._connection = served(self._launcher)
        with self._connection.makefile("rw") as lines:
            print(json.dumps({"start": self._options}), file=lines, flush=True)
            answer = json.loads(lines.readline())
        assert "error" not in answer, answer["error"]
        return self

    def __exit__(self, *_: object) -> None:
        with self._connection, self._connection.makefile("rw") as lines:
            print(json.dumps({"stop": True}), file=lines, flush=True)
            lines.readline()
