"""Owns the scheduler: tasks of simulated processes take turns, and a seed decides whose turn it is.

A task is a thread of the operating system, but only one runs at a time: the others wait for their
gate. A task gives the turn away only where it calls `yield_turn`, `sleep` or `park`; the simulated
disk, clock, locks and waits do so. When every task waits, the time moves to the earliest deadline.
So a run is a function of the seed.

`real` keeps the functions of `time` and `_thread` that the simulation replaces.
"""

from __future__ import annotations

import _thread
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any

from tests.disk.memory import Killed

real = SimpleNamespace(
    allocate_lock=_thread.allocate_lock,
    start_new_thread=_thread.start_new_thread,
    get_ident=_thread.get_ident,
    monotonic=time.monotonic,
)

SECOND = 1_000_000_000  # nanoseconds
START_NS = 1000 * SECOND
STEP_NS = 20_000  # the longest time that one step takes
BUSY_STEPS_MAX = 30_000  # more than a whole life takes: a task that never waits repeats itself
STEPS_MAX = 500_000  # of a run, which takes a tenth: its tasks wait in turns for ever
HANG_S = 120.0  # of real time: a turn that takes longer does not end


class Stuck(Exception):
    """No task can go on, and no time-out will change that; or a turn does not end."""


class _Gate:
    """What a task waits at until it has the turn."""

    def __init__(self) -> None:
        self._lock: Any = real.allocate_lock()
        self._lock.acquire()

    def open(self) -> None:
        self._lock.release()

    def wait(self, seconds: float = -1) -> bool:
        is_open: bool = self._lock.acquire(True, seconds)
        return is_open


@dataclass(eq=False)
class Task:
    """A thread of a simulated process.

    number:   unique in its run; processes and messages of errors name it
    deadline: in nanoseconds, when a parked task goes on without being woken; None: never
    death:    raised at the next step of the task, once its process was killed
    busy_steps: since it last waited
    """

    number: int
    name: str
    process: Any
    act: Callable[[], object]
    gate: _Gate = field(default_factory=_Gate)
    is_parked: bool = False
    is_woken: bool = False
    is_over: bool = False
    deadline: int | None = None
    stopped_until: int = 0
    death: BaseException | None = None
    busy_steps: int = 0
    joiners: list[Task] = field(default_factory=list)
    ident: int = 0


class Scheduler:
    """Decides which task runs.

    now_ns: the monotonic clock of the machine
    steps:  how often a task could have given its turn away
    """

    def __init__(self, random: Random, *, switch_rate: float) -> None:
        self.random = random
        self.switch_rate = switch_rate
        self.now_ns = START_NS
        self.steps = 0
        self.switches = 0
        self.tasks: list[Task] = []
        self.current: Task | None = None
        self.failures: list[tuple[Task, BaseException, str]] = []
        self._by_ident: dict[int, Task] = {}
        self._count = 0
        self._done = _Gate()
        self._stuck: Stuck | None = None

    # tasks

    def spawn(self, name: str, process: Any, act: Callable[[], object]) -> Task:
        """Make a task that runs `act` when it first gets the turn."""
        self._count += 1
        task = Task(self._count, name, process, act)
        self.tasks.append(task)
        real.start_new_thread(self._run, (task,))
        return task

    def run(self) -> None:
        """Let the tasks take turns until all are over; raises Stuck."""
        if not self.tasks:
            return
        self._done = _Gate()
        self._hand_over(self._choose())
        steps = -1
        while not self._done.wait(HANG_S):
            if self.steps == steps:
                frames = sys._current_frames()
                ident = self.current.ident if self.current is not None else 0
                where = "".join(traceback.format_stack(frames[ident])) if ident in frames else ""
                raise Stuck(f"a turn of {self.current and self.current.name} does not end\n{where}")
            steps = self.steps
        self.current = None
        if self._stuck is not None:
            raise self._stuck

    def task_here(self) -> Task | None:
        """The task of the calling thread; None outside of the simulation."""
        return self._by_ident.get(real.get_ident())

    def _run(self, task: Task) -> None:
        task.ident = real.get_ident()
        self._by_ident[task.ident] = task
        task.gate.wait()
        try:
            if task.death is None:
                task.act()
        except Killed:
            pass
        except BaseException as error:
            self.failed(task, error)
        finally:
            self._by_ident.pop(task.ident, None)
            task.is_over = True
            self.tasks.remove(task)
            for joiner in task.joiners:
                self.wake(joiner)
            if self.tasks:
                try:
                    self._hand_over(self._choose())
                except Stuck as stuck:
                    self._stuck = stuck
                    self._done.open()
            else:
                self._done.open()

    def failed(self, task: Task, error: BaseException) -> None:
        """Note what ended a task, unless its process was killed."""
        if task.death is None:
            trace = "".join(traceback.format_exception(error))
            self.failures.append((task, error, trace))

    # turns

    def yield_turn(self) -> None:
        """Let another task run, if the seed says so."""
        task = self._step()
        if len(self.tasks) > 1 and self.random.random() < self.switch_rate:
            self._switch(task)
        self._raise_death(task)

    def sleep(self, seconds: float) -> None:
        """Give the turn away for some time."""
        self.park(self.now_ns + max(0, round(seconds * SECOND)))

    def park(self, deadline: int | None) -> bool:
        """Wait until another task calls `wake`, or for the deadline; whether it was woken."""
        task = self._step()
        task.busy_steps = 0
        task.is_parked, task.is_woken, task.deadline = True, False, deadline
        try:
            self._switch(task)
        finally:
            task.is_parked = False
        self._raise_death(task)
        return task.is_woken

    def wake(self, task: Task) -> None:
        """Let a parked task go on."""
        if task.is_parked:
            task.is_parked, task.is_woken = False, True

    def kill(self, process: Any, death: BaseException) -> None:
        """End the tasks of a process: each raises `death` at its next step."""
        for task in self.tasks:
            if task.process is process and task.death is None:
                task.death = death
                task.is_parked, task.stopped_until = False, 0

    def stop(self, process: Any, seconds: float) -> None:
        """Let no task of a process run for some time, as SIGSTOP does."""
        until = self.now_ns + round(seconds * SECOND)
        for task in self.tasks:
            if task.process is process:
                task.stopped_until = until

    def yield_stopped(self) -> None:
        """Give the turn away after `stop` of the own process."""
        task = self._step()
        self._switch(task)
        self._raise_death(task)

    def _step(self) -> Task:
        task = self.task_here()
        assert task is not None and task is self.current, "a step outside of its turn"
        self._raise_death(task)
        self.steps += 1
        task.busy_steps += 1
        if task.busy_steps > BUSY_STEPS_MAX or self.steps > STEPS_MAX:
            self._stuck = Stuck(f"{task.process}/{task.name} does not end")
            self._done.open()
            task.gate.wait()
        self.now_ns += self.random.randrange(STEP_NS)
        return task

    def _raise_death(self, task: Task) -> None:
        if task.death is not None:
            raise task.death

    def _switch(self, task: Task) -> None:
        other = self._choose()
        if other is not task:
            self._hand_over(other)
            task.gate.wait()

    def _hand_over(self, task: Task) -> None:
        self.switches += 1
        self.current = task
        task.gate.open()

    def _choose(self) -> Task:
        while True:
            now = self.now_ns
            dying = [task for task in self.tasks if task.death is not None]
            if dying:  # they end before anything else happens
                return dying[0]
            ready = [
                task
                for task in self.tasks
                if task.stopped_until <= now
                and (not task.is_parked or (task.deadline is not None and task.deadline <= now))
            ]
            if ready:
                return ready[self.random.randrange(len(ready))] if len(ready) > 1 else ready[0]
            moments = [
                max(task.stopped_until, task.deadline or 0)
                for task in self.tasks
                if not task.is_parked or task.deadline is not None
            ]
            if not moments:
                names = ", ".join(f"{task.process}/{task.name}" for task in self.tasks)
                raise Stuck(f"all wait for each other: {names}")
            self.now_ns = max(now + 1, min(moments))


class Active:
    """The scheduler of the run under way; None outside of one."""

    scheduler: Scheduler | None = None


def here() -> tuple[Scheduler, Task] | None:
    """The scheduler and the task of the calling thread; None outside of a simulation."""
    scheduler = Active.scheduler
    if scheduler is None:
        return None
    task = scheduler.task_here()
    return None if task is None else (scheduler, task)
