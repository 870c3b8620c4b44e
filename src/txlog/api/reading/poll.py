"""Waiting for messages: asking again, less and less often, until some come or time is up.

There is no thread and no notification between processes, so waiting means looking.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Event
from typing import TypeVar

T = TypeVar("T")
POLL_SECONDS_MIN, POLL_SECONDS_MAX = 0.002, 0.05


def until(take: Callable[[], T | None], timeout_ms: int | None) -> T | None:
    """What `take` returns once it is not None; None when time runs out (None: wait forever)."""
    deadline = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
    pause = POLL_SECONDS_MIN
    while True:
        found = take()
        if found is not None:
            return found
        left = POLL_SECONDS_MAX if deadline is None else deadline - time.monotonic()
        if left <= 0:
            return None
        Event().wait(min(pause, left))
        pause = min(POLL_SECONDS_MAX, pause * 2)
