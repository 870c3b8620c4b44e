"""Owns Supervisor: the one place where background tasks of the server begin and end.

A task that nobody awaits must not fail unseen. The supervisor logs every exception of a task except
cancellation, and then closes what the task served, so that its client comes again instead of
waiting for something that has stopped. Callbacks that answer clients are called here too: one that
fails does not keep the others from their answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context
from functools import partial
from typing import Any, Final

Close = Callable[[], object]


def nothing() -> None:
    """Close nothing: the task served nobody in particular, or begins again when it is needed."""


class Supervisor:
    """The background tasks of a server."""

    __slots__ = ("_failed", "_running")

    def __init__(self, failed: Callable[[BaseException], object]) -> None:
        """failed: logs an exception"""
        self._failed: Final = failed
        self._running: Final = set[asyncio.Task[None]]()  # asyncio itself keeps only weak ones

    def begin(
        self, work: Coroutine[Any, Any, None], close: Close, context: Context | None = None
    ) -> asyncio.Task[None]:
        """Run something in the background; close: closes what it serves, if it fails."""
        task = asyncio.create_task(work, context=context)
        self._running.add(task)
        task.add_done_callback(partial(self._ended, close))
        return task

    def call(self, act: Callable[[], object], close: Close = nothing) -> None:
        """Call something whose failure must not stop its caller."""
        try:
            act()
        except Exception as error:  # a bug: it is logged, and the caller goes on
            self._failed(error)
            if close is not nothing:
                self.call(close)

    def _ended(self, close: Close, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._failed(error)
            self.call(close)
