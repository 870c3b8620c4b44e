"""Owns the locks, threads and clocks that programs get in a simulation instead of the real ones.

`install` replaces them in `threading`, `_thread` and `time` once, before txlog is imported. Outside
of a task of a simulation they behave as the real ones.
"""

from __future__ import annotations

import _thread
import math
import queue
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from tests.simulation.scheduler import SECOND, Active, Task, here, real

EPOCH_NS = 1_700_000_000 * SECOND
LOCK_YIELDS = 0.05  # how often taking a free lock gives the turn away


class Lock:
    """`threading.Lock` among tasks; a plain one elsewhere."""

    def __init__(self) -> None:
        self._real: Any = real.allocate_lock()
        self._is_held = False
        self._waiters: list[Task] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        at = here()
        if at is None:
            is_held: bool = self._real.acquire(blocking, timeout)
            self._is_held = is_held or self._is_held
            return is_held
        scheduler, task = at
        deadline = None if timeout < 0 else scheduler.now_ns + max(1, math.ceil(timeout * SECOND))
        while self._is_held:
            if not blocking or (deadline is not None and scheduler.now_ns >= deadline):
                return False
            self._waiters.append(task)
            try:
                scheduler.park(deadline)
            finally:
                if task in self._waiters:
                    self._waiters.remove(task)
        self._is_held = True
        self._real.acquire(False)
        return True

    __enter__ = acquire

    def release(self) -> None:
        if not self._is_held:
            raise RuntimeError("release unlocked lock")
        self._is_held = False
        self._real.release()
        scheduler = Active.scheduler
        if self._waiters and scheduler is not None:
            scheduler.wake(self._waiters.pop(0))

    def __exit__(self, *_: object) -> None:
        self.release()

    def locked(self) -> bool:
        return self._is_held

    acquire_lock, release_lock, locked_lock = acquire, release, locked

    def _at_fork_reinit(self) -> None:
        self.__init__()  # type: ignore[misc]


class RLock:
    """`threading.RLock` among tasks; it also works in a plain thread."""

    def __init__(self) -> None:
        self._block = Lock()
        self._owner: int | None = None
        self._count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = real.get_ident()
        if self._owner == me:
            self._count += 1
            return True
        is_held = self._block.acquire(blocking, timeout)
        if is_held:
            self._owner, self._count = me, 1
        return is_held

    __enter__ = acquire

    def release(self) -> None:
        if self._owner != real.get_ident():
            raise RuntimeError("cannot release un-acquired lock")
        self._count -= 1
        if not self._count:
            self._owner = None
            self._block.release()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _release_save(self) -> tuple[int, int | None]:
        state = self._count, self._owner
        self._count, self._owner = 0, None
        self._block.release()
        return state

    def _acquire_restore(self, state: tuple[int, int | None]) -> None:
        self._block.acquire()
        self._count, self._owner = state

    def _is_owned(self) -> bool:
        is_owned: bool = self._owner == real.get_ident()
        return is_owned

    def _recursion_count(self) -> int:
        return self._count if self._is_owned() else 0

    def _at_fork_reinit(self) -> None:
        self.__init__()  # type: ignore[misc]


_RealThread = threading.Thread


class Thread(_RealThread):
    """`threading.Thread`: a task of the process that starts it."""

    _task: Task | None = None

    def start(self) -> None:
        at = here()
        if at is None:
            super().start()
            return
        scheduler, task = at
        self._task = scheduler.spawn(self.name, task.process, self._run_task)
        self._started.set()  # type: ignore[attr-defined]

    def _run_task(self) -> None:
        ident = real.get_ident()
        self._ident = ident
        threading._active[ident] = self  # type: ignore[attr-defined]
        try:
            self.run()
        finally:
            threading._active.pop(ident, None)  # type: ignore[attr-defined]

    def join(self, timeout: float | None = None) -> None:
        at, task = here(), self._task
        if at is None or task is None:
            if task is None:
                super().join(timeout)
            return
        scheduler, me = at
        deadline = None if timeout is None else scheduler.now_ns + round(timeout * SECOND)
        while not task.is_over and (deadline is None or scheduler.now_ns < deadline):
            task.joiners.append(me)
            scheduler.park(deadline)

    def is_alive(self) -> bool:
        return super().is_alive() if self._task is None else not self._task.is_over


class OrderedSet(dict[Any, None]):
    """The items of a `WeakSet`, in the order in which they came."""

    def add(self, item: Any) -> None:
        self[item] = None

    def discard(self, item: Any) -> None:
        self.pop(item, None)

    def remove(self, item: Any) -> None:
        del self[item]


class OrderedWeakSet(weakref.WeakSet[Any]):
    """`weakref.WeakSet`, whose order is the same in each run: that of objects is not."""

    def __init__(self, data: Any = None) -> None:
        super().__init__()
        self.data: Any = OrderedSet()
        for item in data or ():
            self.add(item)


_KEPT: dict[str, Any] = {}
_MODULE_TIMES = (
    "monotonic",
    "monotonic_ns",
    "time",
    "time_ns",
    "perf_counter",
    "perf_counter_ns",
    "sleep",
    "clock_gettime_ns",
    "clock_gettime",
)


def _wall_ns() -> int | None:
    at = here()
    if at is None:
        return None
    scheduler, task = at
    offset: int = getattr(task.process, "wall_offset_ns", 0)
    return EPOCH_NS + scheduler.now_ns + offset


def _since_boot_ns() -> int | None:
    at = here()
    if at is None:
        return None
    scheduler, task = at
    booted: int = getattr(task.process, "booted_ns", 0)
    return scheduler.now_ns - booted


def _replacement(name: str) -> Callable[..., Any]:
    original = getattr(time, name)
    unit = 1 if name.endswith("_ns") else SECOND
    read = _wall_ns if name in ("time", "time_ns") else _since_boot_ns

    def clock(*arguments: Any) -> Any:
        is_wall = arguments and arguments[0] == time.CLOCK_REALTIME
        now = _wall_ns() if is_wall else read()
        if now is None:
            return original(*arguments)
        return now if unit == 1 else now / unit

    return clock


def _sleep(seconds: float) -> None:
    at = here()
    if at is None:
        _KEPT["sleep"](seconds)
    else:
        at[0].sleep(seconds)


def install() -> None:
    """Replace locks, threads and clocks; the caller has not imported txlog yet."""
    if _KEPT:
        return
    for name in _MODULE_TIMES:
        _KEPT[name] = getattr(time, name)
        setattr(time, name, _sleep if name == "sleep" else _replacement(name))
    module: Any = threading
    module.Lock = module._allocate_lock = Lock
    module.RLock = RLock
    module.Thread = Thread
    module._time = time.monotonic
    references: Any = weakref
    references.WeakSet = OrderedWeakSet
    queues: Any = queue  # executors hand work to threads with these
    queues.SimpleQueue = queues._PySimpleQueue
    queues.time = time.monotonic
    thread: Any = _thread
    thread.RLock = RLock
    thread.allocate_lock = Lock
