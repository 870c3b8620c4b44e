"""Writes what happens to a store to the standard `logging`, in loggers below `txlog`.

| logger | level | what it tells |
|---|---|---|
| `txlog.store` | info | a store was opened, and where its log ends |
| `txlog.recovery` | warning | recovery or maintenance mended, removed or left out something |
| `txlog.checkpoint` | info, warning | a checkpoint was written, or failed |
| `txlog.fencing` | info, warning | a key got a new holder; a call of the old holder was refused |
| `txlog.redelivery` | info | messages of a dead consumer went back; dead letters were moved |

They are silent until the program gives one, or `txlog`, a handler. A program that has not
imported `logging` has no handler, and so pays nothing. A handler runs in the thread of the call,
sometimes while the call holds the lock of the store: it should be quick, and must not call the
store.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Literal

Area = Literal["store", "recovery", "checkpoint", "fencing", "redelivery"]


def log_event(area: Area, level: Literal["info", "warning"], text: str, *values: object) -> None:
    """Write an event to the logger `txlog.<area>`; values fill the places (`%s`) of text."""
    logging = sys.modules.get("logging")
    if logging is None:
        return
    logger = logging.getLogger(f"txlog.{area}")
    if not logger.handlers:  # without a handler, logging would print warnings on stderr
        logger.addHandler(logging.NullHandler())
    getattr(logger, level)(text, *values)


class Reports(list[str]):
    """Lines about recovery and maintenance for `Client.reports`, each also written to the log."""

    def append(self, report: str) -> None:
        """Keep a line."""
        log_event("recovery", "warning", "%s", report)
        super().append(report)

    def extend(self, reports: Iterable[str]) -> None:
        """Keep several lines."""
        for report in reports:
            self.append(report)

    def take(self) -> list[str]:
        """Return the lines since the last call."""
        lines = [*self]
        del self[: len(lines)]
        return lines
