"""Owns the event loop of a simulated process: asyncio with a simulated clock and descriptors.

The loop is a task of the scheduler. It may give the turn away before each callback, and it parks
where a real loop polls. What it polls are sources: the watch of files, and sockets of the simulated
network. Tasks and futures have numbers as hashes, so that a set of them has one order in all runs.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
from asyncio.base_events import BaseEventLoop
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from tests.disk.memory import Killed
from tests.simulation.machine import SimulatedProcess
from tests.simulation.scheduler import SECOND, Task


class Source(Protocol):
    """What a loop can wait for."""

    def ready_at(self, now_ns: int) -> int | None:
        """When it is ready; None: only after something else has happened."""


class _Ready(deque[Any]):
    """The callbacks that are ready; each is a step, so a killed process makes no further one."""

    def __init__(self, process: SimulatedProcess) -> None:
        super().__init__()
        self._scheduler = process.world.scheduler

    def popleft(self) -> Any:
        if self._scheduler.task_here() is not None:
            self._scheduler.yield_turn()
        return super().popleft()


class _Selector:
    """Waits until a source is ready, the loop is woken, or time is up."""

    def __init__(self, process: SimulatedProcess) -> None:
        self.readers: dict[Any, tuple[Source, asyncio.Handle]] = {}
        self._world = process.world
        self._task: Task | None = None
        self._is_woken = False

    def select(self, timeout: float | None) -> list[asyncio.Handle]:
        scheduler, machine = self._world.scheduler, self._world.machine
        scheduler.yield_turn()
        deadline = None
        if timeout is not None:
            deadline = scheduler.now_ns + math.ceil(timeout * SECOND)
        while True:
            now, moments = scheduler.now_ns, [] if deadline is None else [deadline]
            ready = []
            for source, handle in self.readers.values():
                moment = source.ready_at(now)
                if moment is not None and moment <= now:
                    ready.append(handle)
                elif moment is not None:
                    moments.append(moment)
            if ready or self._is_woken or timeout == 0 or (deadline and now >= deadline):
                self._is_woken = False
                return ready
            self._task = scheduler.current
            with machine.released.heard_by(scheduler.current):
                scheduler.park(min(moments, default=None))

    def wake(self) -> None:
        """End the present or next wait."""
        self._is_woken = True
        if self._task is not None:
            self._world.scheduler.wake(self._task)

    def close(self) -> None:
        self.readers.clear()


class SimulatedTask(asyncio.Task[Any]):
    """A task of asyncio whose hash is the same in each run."""

    def __init__(self, coro: Any, *, loop: SimulatedLoop, **options: Any) -> None:
        self._number = loop.new_number()
        super().__init__(coro, loop=loop, **options)

    def __hash__(self) -> int:
        return self._number


class SimulatedFuture(asyncio.Future[Any]):
    """The same for a future."""

    def __init__(self, *, loop: SimulatedLoop) -> None:
        self._number = loop.new_number()
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._number


class SimulatedLoop(BaseEventLoop):
    """An event loop of a simulated process.

    failures: what callbacks and tasks raised that nobody awaits
    """

    _selector: _Selector

    def __init__(self, process: SimulatedProcess) -> None:
        super().__init__()
        self.process, self.world = process, process.world
        self._ready = _Ready(process)
        self._selector = _Selector(process)
        self._numbers = 0
        self.failures: list[BaseException] = []
        self.set_task_factory(lambda loop, coro, **more: SimulatedTask(coro, loop=self, **more))

    def new_number(self) -> int:
        """A number for a hash."""
        self._numbers += 1
        return self._numbers

    def create_future(self) -> asyncio.Future[Any]:
        return SimulatedFuture(loop=self)

    def _process_events(self, event_list: list[asyncio.Handle]) -> None:
        for handle in event_list:
            self._add_callback(handle)  # type: ignore[attr-defined]

    def _write_to_self(self) -> None:
        self._selector.wake()

    def wake(self) -> None:
        """Let it look at its sources again."""
        self._selector.wake()

    def add_reader(  # type: ignore[override]
        self, fd: Any, callback: Callable[..., object], *args: Any
    ) -> None:
        source = self.world.watches[fd] if isinstance(fd, int) else fd
        self._selector.readers[fd] = source, asyncio.Handle(callback, args, self)
        self.wake()

    def remove_reader(self, fd: Any) -> bool:
        return self._selector.readers.pop(fd, None) is not None

    async def connect_accepted_socket(
        self, protocol_factory: Callable[[], Any], sock: Any, **_: Any
    ) -> tuple[Any, Any]:
        protocol = protocol_factory()
        transport = sock.serve(self, protocol)
        await asyncio.sleep(0)
        return transport, protocol

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], Any], host: str, port: int, **_: Any
    ) -> tuple[Any, Any]:
        endpoint = await self.world.network.connect(self, (host, port))
        return await self.connect_accepted_socket(protocol_factory, endpoint)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Keep what went wrong; nothing after the death of the process."""
        error = context.get("exception")
        if self.process.is_alive and not isinstance(error, Killed):
            self.failures.append(error or RuntimeError(str(context.get("message"))))


def run_in_loop(process: SimulatedProcess, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a coroutine in a new loop; then the process ends, with all that it still does."""
    scheduler = process.world.scheduler
    loop = SimulatedLoop(process)
    try:
        loop.run_until_complete(main())
    except Killed:
        raise
    except BaseException as error:
        loop.failures.append(error)
    finally:
        task = scheduler.task_here()
        for failure in loop.failures:
            assert task is not None
            scheduler.failed(task, failure)
        process.loops.append(loop)  # a loop that is freed would end its coroutines
        if process.is_alive:
            process.end(Killed())


for _name in ("asyncio", "concurrent.futures"):  # what a killed process leaves is no news
    logging.getLogger(_name).disabled = True


def _tell_unraisable(unraisable: Any) -> None:
    """Say nothing of the coroutines of killed processes, which end when they are freed."""
    if not asyncio.iscoroutine(unraisable.object):
        sys.__unraisablehook__(unraisable)


sys.unraisablehook = _tell_unraisable
