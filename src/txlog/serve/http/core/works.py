"""Owns Works: calls of the store that may take long, in threads of their own.

What clients send is stored in threads of its own, too (pulsar/groups), and short calls have the
thread of the client. So an offload to a disk that hangs holds up nobody. Each kind of call has a
few places. One holder never has all of them, and whoever finds none is refused with 509 (429).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Final, TypeVar

from txlog.client.client import Client
from txlog.serve.core.limits import Quota

T = TypeVar("T")
SLOW_CALLS_MAX: Final = 8  # of one kind


class SlowCalls:
    """The long calls of a server, by their kind: an operation such as admin or look."""

    def __init__(self) -> None:
        self._places = dict[str, Quota]()
        self._threads = dict[str, ThreadPoolExecutor]()

    async def run(self, kind: str, holder: str, act: Callable[[Client], T], client: Client) -> T:
        """Run a call.

        holder: whose it is, a role or an address
        raises: TryAgain (509): there are too many; what the call raises
        """
        places = self._places.setdefault(kind, Quota(f"long {kind} calls", SLOW_CALLS_MAX))
        places.take(holder)
        if kind not in self._threads:
            self._threads[kind] = ThreadPoolExecutor(SLOW_CALLS_MAX, f"txlog-{kind}")
        call = self._threads[kind].submit(copy_context().run, act, client)
        waiting = asyncio.wrap_future(call)
        waiting.add_done_callback(lambda _: places.give(holder))
        return await asyncio.shield(waiting)

    def close(self) -> None:
        """Begin nothing more; what was begun ends by itself, or with the process."""
        for threads in self._threads.values():
            threads.shutdown(wait=False, cancel_futures=True)
