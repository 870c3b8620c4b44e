"""Owns the simulated machine: processes share one disk, and each call of the disk is a step.

A step may give the turn away, and then meet a fault that the scenario put at this place.
"""

from __future__ import annotations

import errno
import hashlib
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from tests.disk import memory
from tests.disk.memory import Killed, Machine, MemoryDisk, MemoryFile, MemoryLock, PowerCut
from tests.disk.power_loss import Node, choose_images, cut_power, pending_items
from tests.disk.watch import MemoryWatch
from tests.simulation.scheduler import SECOND, Scheduler, Task
from txlog.engine.storage.disk.locks import locked
from txlog.engine.storage.disk.protocol import TEMPORARY_PREFIX, WatchEvent

PLATTER_CHOICES = 12  # of so many disks that a power cut could leave, one is taken
NOTHING_KEPT = 0.5  # how often a power cut leaves only what was flushed
DISK_BYTES = 1 << 40
WATCHES_FROM = 1 << 20  # numbers of descriptors
NAP_SECONDS_MIN, NAP_SECONDS_MAX = 0.0002, 2.0


class Interrupted(Exception):
    """What a signal handler raised in the middle of a call."""


class Released:
    """Stands for `Machine.released`: wakes those who wait for a lock or a change of a file."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._waiting: list[Task] = []

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass

    def notify_all(self) -> None:
        for task in self._waiting:
            self._scheduler.wake(task)

    @contextmanager
    def heard_by(self, task: Task | None) -> Iterator[None]:
        """Wake this task as well, meanwhile."""
        assert task is not None
        self._waiting.append(task)
        try:
            yield
        finally:
            self._waiting.remove(task)

    def wait_for(self, is_so: Callable[[], bool], seconds: float | None) -> bool:
        scheduler = self._scheduler
        deadline = None if seconds is None else scheduler.now_ns + round(seconds * SECOND)
        while not is_so():
            task = scheduler.task_here()
            if task is None or (deadline is not None and scheduler.now_ns >= deadline):
                return is_so()
            with self.heard_by(task):
                scheduler.park(deadline)
        return True


class SharedMachine(Machine):
    """The files and locks that all processes share, and when each file changed last."""

    released: Released  # type: ignore[assignment]

    def __init__(self, scheduler: Scheduler, seed: int) -> None:
        super().__init__(Node(is_directory=True), DISK_BYTES, seed, memory.FIRST_PID)
        self.released = Released(scheduler)
        self.changed: dict[Node, int] = {}


class SharedFile(MemoryFile):
    """A file whose writes the machine numbers."""

    def _put(self, offset: int, data: bytes) -> None:
        machine = self._disk.machine
        assert isinstance(machine, SharedMachine)
        machine.changed[self.node] = machine.order + 1
        super()._put(offset, data)


class SharedLock(MemoryLock):
    """A lock that tries again when it may be free, or after a nap, as on the real disk."""

    def acquire(self, timeout_ms: int, meanwhile: Callable[[], bool] | None = None) -> bool:
        if self.try_acquire():
            return True
        scheduler = self.disk.process_here.world.scheduler  # type: ignore[attr-defined]
        deadline = scheduler.now_ns + timeout_ms * 1_000_000
        nap = NAP_SECONDS_MIN
        while scheduler.now_ns < deadline:
            left = (deadline - scheduler.now_ns) / SECOND
            self.disk.machine.released.wait_for(self._is_free, min(nap, left))
            nap = min(2 * nap, NAP_SECONDS_MAX)
            if meanwhile is not None and meanwhile():
                return False
            if self.try_acquire():
                return True
        raise locked(self.path, self.holder(), timeout_ms)


class SharedWatch(MemoryWatch):
    """Reports changes of files by the numbers of their writes."""

    def __init__(self, disk: SharedDisk) -> None:
        super().__init__(disk)
        self._process = disk.process_here
        self._since: int | None = None
        watches = self._process.world.watches
        self._number = WATCHES_FROM + len(watches)
        watches[self._number] = self

    def fileno(self) -> int:
        return self._number

    def ready_at(self, now_ns: int) -> int | None:
        """When an event loop sees that a file has changed; None: none has."""
        if not self._has_news():
            self._since = None
            return None
        if self._since is None:
            self._since = now_ns
        return self._since + round(self._process.late_events_s * SECOND)

    def _state(self, path: str) -> object:
        if path == ".":
            return "there"
        disk = self._disk
        node = disk.find(path)
        if node is None or node.entries is not None:
            return super()._state(path)
        machine = disk.machine
        assert isinstance(machine, SharedMachine)
        return id(node), machine.changed.get(node, 0)

    def add(self, path: str, kind: WatchEvent) -> bool:
        if self._process.has_no_watch:
            return False
        return super().add(path, kind)

    def wait(self, seconds: float | None) -> frozenset[str]:
        late = self._process.late_events_s
        events = super().wait(seconds)
        if events and late:
            self._process.world.scheduler.sleep(late)
            events |= self.take()
        return events


class SharedDisk(MemoryDisk):
    """The disk as one simulated process sees it."""

    def __init__(self, process: SimulatedProcess, read_only: bool = False) -> None:
        machine = process.world.machine
        machine.next_pid -= 1
        super().__init__(machine, read_only=read_only)
        machine.next_pid += 1
        self._pid = process.pid
        self.process_here: SimulatedProcess = process
        self.step = self.look = self._meet
        process.disks.append(self)

    def _meet(self, op: str, path: str, **info: int) -> None:
        self.process_here.world.meet(self.process_here, op, path, info)

    def open(self, path: str, write: bool = False) -> SharedFile:
        file = super().open(path, write)
        return SharedFile(self, file.node, path, write)

    def lock_file(self, path: str, create: bool = True) -> SharedLock:
        lock = super().lock_file(path, create)
        return SharedLock(self, lock._node, path)

    def watch(self) -> SharedWatch | None:
        return None if self.process_here.has_no_watch else SharedWatch(self)

    def process(self, read_only: bool = False) -> MemoryDisk:
        return SharedDisk(self.process_here, read_only)


class SimulatedProcess:
    """A process: its id, clock, and open disks.

    wall_offset_ns: its wall clock differs by so much from that of the machine
    booted_ns:      when the machine booted, on the monotonic clock
    has_no_watch:   it cannot watch files; late_events_s: reports of changes come so much later
    kind:           as of its plan
    is_remote:      it runs on another machine, which keeps its power
    sockets:        its ends of connections; loops: its event loops that have ended
    """

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.pid = world.machine.next_pid
        world.machine.next_pid += 1
        self.disks: list[SharedDisk] = []
        self.is_alive = True
        self.has_no_watch = False
        self.late_events_s = 0.0
        self.kind = ""
        self.is_remote = False
        self.sockets: list[Any] = []
        self.loops: list[Any] = []

    def __str__(self) -> str:
        return self.name

    @property
    def wall_offset_ns(self) -> int:
        return self.world.wall_offset_ns

    @property
    def booted_ns(self) -> int:
        return self.world.booted_ns

    def end(self, death: Killed) -> None:
        """Free what the kernel frees when a process ends, and end its tasks."""
        self.is_alive = False
        self.world.scheduler.kill(self, death)
        for disk in self.disks:
            disk.kill(death)
        for socket in [*self.sockets]:
            socket.end_of_process()


class World:
    """The machine, its processes, and the faults that they meet.

    faults:   by number of the call of the disk, those that happen there
    faults_after: by number of the answer that the applications got, those that happen then
    placed:   faults that wait for a call or an answer of some kind, see `arrange`
    calls:    the calls of the disk so far; trace: a hash of them all
    on_death: called with a process after it was killed, and with None after a power cut
    """

    def __init__(self, seed: int, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.random = Random(f"{seed} faults")
        self.machine = SharedMachine(scheduler, seed)
        self.processes: list[SimulatedProcess] = []
        self.faults: dict[int, list[dict[str, Any]]] = {}
        self.faults_after: dict[int, list[dict[str, Any]]] = {}
        self.placed: list[dict[str, Any]] = []
        self.bucket: dict[str, bytes] = {}  # objects by name; another machine keeps them
        self.database = b""  # what was committed to the database
        self.database_writer: Any = None  # the connection that holds its lock
        self.calls = self.answers = 0
        self.wall_offset_ns = 0
        self.booted_ns = 0
        self.boots = 0
        self.met: list[str] = []
        self.on_death: Callable[[SimulatedProcess | None], None] = lambda process: None
        self.on_event: Callable[..., None] = lambda op, **info: None
        self.trace = hashlib.sha256()
        self.watches: dict[int, SharedWatch] = {}
        self.network: Any = None
        self._calm = 0

    @property
    def boot_id(self) -> str:
        return str(uuid.UUID(int=0x51 + self.boots))

    def new_process(self, name: str) -> SimulatedProcess:
        process = SimulatedProcess(self, name)
        self.processes.append(process)
        return process

    @contextmanager
    def calm(self) -> Iterator[None]:
        """No fault happens meanwhile."""
        self._calm += 1
        try:
            yield
        finally:
            self._calm -= 1

    def arrange(self, fault: dict[str, Any], cause: SimulatedProcess | None = None) -> None:
        """Let a fault happen, at one of these places:

        at (after)    the call of the disk of this number; after: the answer of this number
        on, nth       the nth call of this kind from now on: [op or "", part of the path]
        answer, nth   the nth answer to a call of the API with this name
        calls         so many calls of the disk after another fault, its cause; answers: so many
                      answers after it; own: so many calls of the process that met the cause
        same          only the process that met the cause counts
        is_behind     only calls count at which an older journal file is not flushed
        then          faults whose cause is this one
        """
        fault = dict(fault)
        if "own" in fault and cause is not None:
            fault |= {"on": ["", ""], "nth": fault["own"], "process": cause.name}
        if "same" in fault and cause is not None:
            fault["process"] = cause.name
        if "on" in fault or "answer" in fault:
            self.placed.append(fault)
        elif fault.get("after") or "answers" in fault:
            at = fault["at"] if "at" in fault else self.answers + fault["answers"]
            self.faults_after.setdefault(at, []).append(fault)
        else:
            at = fault["at"] if "at" in fault else self.calls + fault["calls"]
            self.faults.setdefault(at, []).append(fault)

    def forget_faults(self) -> None:
        """Nothing happens any more."""
        self.faults.clear()
        self.faults_after.clear()
        self.placed.clear()

    def answered(self, process: SimulatedProcess, op: str = "") -> None:
        """A call of a process has returned: what was promised must hold from now on."""
        self.answers += 1
        if self._calm:
            return
        due = self.faults_after.pop(self.answers, [])
        due += self._reached(lambda fault: fault.get("answer") == op, process)
        for fault in due:
            self._happen(fault, process, "", "", {})

    def meet(self, process: SimulatedProcess, op: str, path: str, info: dict[str, int]) -> None:
        """A process is about to make a call of the disk."""
        scheduler = self.scheduler
        if scheduler.task_here() is None:
            return
        scheduler.yield_turn()
        facts = ",".join(map(str, info.values()))
        self.trace.update(f"{scheduler.now_ns} {process.name} {op} {path} {facts}\n".encode())
        self.calls += 1
        if self._calm:
            return
        due = self.faults.pop(self.calls, [])
        if self.placed:
            due += self._reached(lambda fault: _is_there(fault, op, path), process)
        for fault in due:
            self._happen(fault, process, op, path, info)

    def _reached(
        self, is_there: Callable[[dict[str, Any]], bool], process: SimulatedProcess
    ) -> list[dict[str, Any]]:
        """Count a call for the faults that wait for its kind; returns those that are due."""
        due = []
        for fault in [*self.placed]:
            if fault.get("process", process.name) == process.name and is_there(fault):
                if "is_behind" in fault and not self._is_behind():
                    continue
                fault["nth"] -= 1
                if fault["nth"] <= 0:
                    self.placed.remove(fault)
                    due.append(fault)
        return due

    def _is_behind(self) -> bool:
        """Whether a journal file before the newest has bytes that no flush has covered (R14)."""
        directory = self.machine.root.entries["journal"].entries  # type: ignore[index]
        names = sorted(name for name in directory or () if name.endswith(".journal"))
        older = [directory[name] for name in names[:-1]]  # type: ignore[index]
        return any(not item.is_lost for node in older for item in node.pending)

    def _happen(
        self,
        fault: dict[str, Any],
        process: SimulatedProcess,
        op: str,
        path: str,
        info: dict[str, int],
    ) -> None:
        kind = fault["kind"]
        if not self._suits(kind, op, path):
            later = self.faults.setdefault(self.calls + 1, [])
            later.append(fault)
            return
        self.met.append(kind)
        for following in fault.get("then", ()):
            self.arrange(following, process)
        if kind == "nothing":  # a place from which others are counted
            return
        if kind.startswith("net_"):
            if self.network is not None:
                self.network.faults.append(fault)
            return
        if kind == "kill":
            death = Killed(self.random.randrange(info["length"] + 1) if op == "pwrite" else 0)
            process.end(death)
            self.on_death(process)
            raise death
        if kind == "power_cut":
            raise self.cut_power()
        if kind == "stop":
            self.on_event("stop", process=process.name)
            scheduler = self.scheduler
            scheduler.stop(process, fault["seconds"])
            scheduler.yield_stopped()
            self.on_event("continue", process=process.name)
        elif kind == "slow":  # only the thread of this call waits
            self.scheduler.sleep(fault["seconds"])
        elif kind == "clock":
            self.wall_offset_ns += fault["ms"] * 1_000_000
            self.on_event("clock_jump", by_ms=fault["ms"])
        elif kind == "interrupt":
            raise Interrupted("a signal handler raised this")
        else:
            number = getattr(errno, kind.removeprefix("short_"))
            error = OSError(number, "simulated")
            if kind.startswith("short_"):
                length = info["length"]
                written = length if fault.get("is_whole") else self.random.randrange(length + 1)
                error.written = written  # type: ignore[attr-defined]
            if op == "datasync":
                self.on_event("lossy", process=process.name)
            raise error

    def _suits(self, kind: str, op: str, path: str) -> bool:
        if path.rpartition("/")[2].startswith(TEMPORARY_PREFIX) and op == "unlink":
            return kind in ("kill", "power_cut", "stop", "clock")
        if kind == "interrupt":  # only a main thread without an event loop runs signal handlers
            task = self.scheduler.task_here()
            return task is not None and task.name == "main" and task.process.kind == "agent"
        if kind == "EIO":
            writes = ("pwrite", "datasync", "sync_dir", "link", "pread", "read", "unlink")
            return op in writes or op.startswith("far_")
        if kind == "ENOSPC":
            return op in ("pwrite", "create", "mkdir", "link")
        if kind == "EMFILE":
            return op in ("open", "create", "read", "listdir")
        if kind.startswith("short_"):
            return op == "pwrite"
        return True

    def cut_power(self) -> PowerCut:
        """End all processes, and leave one of the disks that the platter may hold."""
        death = PowerCut()
        dead = [each for each in self.processes if each.is_alive and not each.is_remote]
        for process in dead:
            process.end(death)
        machine = self.machine
        items = pending_items(machine.root)
        images = list(choose_images(items, self.random, PLATTER_CHOICES))
        # the first keeps nothing that was not flushed, so it shows each flush that is missing
        number = 0 if self.random.random() < NOTHING_KEPT else self.random.randrange(len(images))
        image = images[number]
        machine.root = cut_power(machine.root, items, image)
        machine.holders.clear()
        machine.changed.clear()
        self.boots += 1
        self.booted_ns = self.scheduler.now_ns
        self.on_death(None)
        return death


def _is_there(fault: dict[str, Any], op: str, path: str) -> bool:
    """Whether a call of the disk is of the kind that a fault waits for."""
    if "on" not in fault:
        return False
    wanted, part = fault["on"]
    return wanted in ("", op) and part in path
