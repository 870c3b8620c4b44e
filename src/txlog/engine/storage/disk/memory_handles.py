"""Owns what a process in memory holds: open files, locks, and the machine they are on.

The other half of `memory_disk`, which says what the hooks may do.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from txlog.engine.storage.disk.locks import locked
from txlog.engine.storage.disk.power_loss import Node
from txlog.engine.storage.disk.protocol import as_views, failure, flush_failure, number_of
from txlog.errors import AlreadyClosed

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Killed(BaseException):
    """The process died here; written is how much of a pwrite it had done."""

    def __init__(self, written: int = 0) -> None:
        self.written = written
        super().__init__("killed")


class PowerCut(Killed):
    """The machine died here."""


class Machine:
    """What the processes of one machine share."""

    def __init__(self, root: Node, free_bytes: int, seed: int, first_pid: int) -> None:
        self.root = root
        self.free_bytes = free_bytes
        self.seed = seed
        self.next_pid = first_pid
        self.order = 0
        self.released = threading.Condition(threading.RLock())
        self.holders: dict[Node, MemoryLock] = {}

    def tick(self) -> int:
        self.order += 1
        return self.order


class Process(Protocol):
    """What files and locks need of the process that opened them."""

    machine: Machine
    blocked: Callable[[str, int], bool] | None

    def pid(self) -> int:
        """Return the id of the process."""

    def find(self, path: str) -> Node | None:
        """Return what a path leads to, None where a name is absent."""

    def add_file(self, path: str) -> Node:
        """Create an empty file."""

    def ask(self, op: str, path: str, action: str, **info: int) -> None:
        """Let the look hook have its say about a call without effect."""

    def effect(self, op: str, path: str, **info: int) -> None:
        """Let the step hook have its say; its OSError is the caller's to map."""

    def effect_mapped(self, op: str, path: str, action: str = "") -> None:
        """Let the step hook have its say, its OSError mapped."""


class MemoryFile:
    """`File` on a node; one descriptor, for what it hears of failed flushes."""

    def __init__(self, disk: Process, node: Node, path: str, write: bool) -> None:
        self.path = path
        self._disk = disk
        self._node = node
        self._can_write = write
        self._errors_seen = node.errors
        self._is_open = True

    def pread(self, offset: int, length: int) -> bytes:
        self._need_open()
        self._disk.ask("pread", self.path, "read", offset=offset, length=length)
        return bytes(self._node.data[offset : offset + length])

    def pwrite(self, offset: int, data: Buffer | Sequence[Buffer]) -> None:
        self._need_open()
        if not self._can_write:
            raise AlreadyClosed(f"cannot write {self.path}: opened for reading", path=self.path)
        joined = b"".join(as_views(data))
        try:
            self._disk.effect("pwrite", self.path, offset=offset, length=len(joined))
        except (OSError, Killed) as error:
            self._put(offset, joined[: getattr(error, "written", 0)])
            if isinstance(error, OSError):
                raise failure(error, "write", self.path) from error
            raise
        room = self._disk.machine.free_bytes + len(self._node.data) - offset
        self._put(offset, joined[: max(room, 0)])
        if len(joined) > room:
            full = OSError(errno.ENOSPC, "No space left on device")
            raise failure(full, "write", self.path)

    def datasync(self) -> None:
        self._need_open()
        node = self._node
        try:
            self._disk.effect("datasync", self.path)
            with self._disk.machine.released:
                node.flush()
                if node.errors > self._errors_seen:  # of another descriptor's flush
                    raise OSError(errno.EIO, "Input/output error")
        except OSError as error:
            number_of(error)
            if node.errors == self._errors_seen:
                node.fail_flush()
            self._errors_seen = node.errors
            raise flush_failure(error, self.path) from error

    def size(self) -> int:
        self._need_open()
        self._disk.ask("size", self.path, "look at")
        return len(self._node.data)

    def close(self) -> None:
        self._is_open = False

    def _need_open(self) -> None:
        if not self._is_open:
            raise AlreadyClosed(f"{self.path} is closed", path=self.path)

    def _put(self, offset: int, data: bytes) -> None:
        machine = self._disk.machine
        with machine.released:
            before = len(self._node.data)
            self._node.write(offset, data, machine.tick())
            machine.free_bytes -= len(self._node.data) - before


class MemoryLock:
    """`LockFile` on a node. Waiting asks `MemoryDisk.blocked` where a test has set it."""

    def __init__(self, disk: Process, node: Node, path: str) -> None:
        self.path = path
        self.disk = disk
        self._node = node
        self._is_open = True

    def acquire(self, timeout_ms: int) -> None:
        machine = self.disk.machine
        while not self.try_acquire():
            if self.disk.blocked is not None:
                has_chance = self.disk.blocked(self.path, timeout_ms)
            else:
                with machine.released:
                    has_chance = machine.released.wait_for(self._is_free, timeout_ms / 1000)
            if not has_chance:
                raise locked(self.path, self.holder(), timeout_ms)

    def try_acquire(self) -> bool:
        if not self._is_open:
            raise AlreadyClosed(f"the lock {self.path} is closed", path=self.path)
        self.disk.effect_mapped("lock", self.path)
        machine = self.disk.machine
        with machine.released:
            named = self.disk.find(self.path)
            if named is None or named is not self._node:  # unlinked meanwhile (R26)
                self._node = named or self.disk.add_file(self.path)
            if not self._is_free():
                return False
            machine.holders[self._node] = self
            return True

    def release(self) -> None:
        if not self._is_open:
            return
        self.disk.effect_mapped("unlock", self.path)
        self.let_go()

    def close(self) -> None:
        self._is_open = False
        self.let_go()

    def holder(self) -> tuple[int, str] | None:
        self.disk.ask("holder", self.path, "look at")
        other = self.disk.machine.holders.get(self._node)
        return (other.disk.pid(), f"process {other.disk.pid()}") if other else None

    def let_go(self) -> None:
        """Free the lock if this handle holds it, as the end of the process does."""
        machine = self.disk.machine
        with machine.released:
            if machine.holders.get(self._node) is self:
                del machine.holders[self._node]
                machine.released.notify_all()

    def _is_free(self) -> bool:
        return self.disk.machine.holders.get(self._node, self) is self
