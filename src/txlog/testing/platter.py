"""Owns CrashDisk: the disk of a store, for clients that die at a chosen call or lose the power.

A `Platter` is what all clients of a store in a test share: it counts the calls that change files,
and keeps the old bytes of every write that was not flushed. A client that crashed has closed all
its files and locks, as the kernel does after kill -9, and every further call of it raises Crashed.
A power cut takes back the writes that no flush covered; names of files are not taken back.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from weakref import WeakSet

from txlog.engine.door.disk import PosixDisk

if TYPE_CHECKING:
    from random import Random

    from typing_extensions import Buffer

SECTOR = 512  # bytes a disk writes whole

# The calls that change files; the program can die before each call.
EFFECTS = frozenset(
    "publish publishing publish_all write_fresh unlink link move remove_dir sync_dir make_dirs"
    " pwrite datasync".split()
)
FREEING = frozenset(("release", "close", "drop"))  # a dead client's clean-up calls these
PARTS = frozenset(("open", "begin", "scratch", "lock_file", "watch"))  # they return open files


class Crashed(SystemExit):
    """The process of this client died here. A thread that ends with it prints nothing."""


class Write(NamedTuple):
    """A write that was not flushed: where, its bytes, those before it, and the old file size."""

    offset: int
    new: bytes
    old: bytes
    old_size: int


class Platter:
    """The state that the clients of one store share.

    calls:    how many calls changed files so far
    crash_at: the number of the call before which its client dies; None: none
    crash:    the exception with which a client died there, None before
    """

    def __init__(self) -> None:
        self.calls = 0
        self.crash_at: int | None = None
        self.crash: Crashed | None = None
        self._writes: dict[str, list[Write]] = {}

    def step(self, call: str, path: str) -> None:
        """Count a call that changes files; raise Crashed at call `crash_at`."""
        self.calls += 1
        if self.calls == self.crash_at:
            self.crash = Crashed(f"{call} of {path}" if path else call)
            raise self.crash

    def note(self, path: str, write: Write) -> None:
        """Keep a write until its file is flushed."""
        self._writes.setdefault(path, []).append(write)

    def unflushed(self, path: str) -> list[Write]:
        """The writes of a file that the next flush makes durable."""
        return [*self._writes.get(path, ())]

    def flushed(self, path: str, writes: Sequence[Write]) -> None:
        """Forget writes that are durable now; another thread may have written since."""
        covered = {*map(id, writes)}
        self._writes[path] = [w for w in self._writes.get(path, ()) if id(w) not in covered]

    def gone(self, path: str) -> None:
        """Forget a file that was removed."""
        self._writes.pop(path, None)

    def cut_power(self, root: str, chance: Random | None) -> None:
        """Take back the writes that were not flushed.

        chance: keeps some of their sectors; without it, all are lost
        """
        for path, writes in self._writes.items():
            at = os.path.join(root, path)
            if not os.path.exists(at):
                continue
            with open(at, "r+b", buffering=0) as file:
                for write in reversed(writes):
                    os.pwrite(file.fileno(), write.old, write.offset)
                    os.ftruncate(file.fileno(), write.old_size)
                for write in writes if chance is not None else ():
                    assert chance is not None
                    for at_byte in range(0, len(write.new), SECTOR):
                        if chance.random() < 0.5:
                            sector = write.new[at_byte : at_byte + SECTOR]
                            os.pwrite(file.fileno(), sector, write.offset + at_byte)
        self._writes.clear()


class CrashDisk:
    """A `Disk` that passes every call on to a real one until its process dies."""

    def __init__(self, path: str, platter: Platter, *, read_only: bool = False) -> None:
        self._disk = PosixDisk(path, read_only=read_only)
        self._platter = platter
        self._parts: WeakSet[_Part] = WeakSet()
        self.is_dead = False

    def die(self) -> None:
        """Close all files and locks, as the kernel does for a process that is killed."""
        self.is_dead = True
        for part in [*self._parts]:
            if hasattr(part.target, "ring"):
                part.target.ring()
            part.target.close()
        self._disk.close()

    def _reach(
        self, call: str, path: str, act: Callable[..., Any], *arguments: Any, **options: Any
    ) -> Any:
        """Make a call of the disk or of a part, unless the process is dead or dies here."""
        if self.is_dead:
            if call in FREEING:
                return None
            raise Crashed(f"{call} of {path}: the process is dead")
        if call in EFFECTS:
            try:
                self._platter.step(call, path)
            except Crashed:
                self.die()
                raise
        inner = [each.target if isinstance(each, _Part) else each for each in arguments]
        answer = act(*inner, **options)
        if call == "unlink":
            self._platter.gone(path)
        return answer

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._disk, name)
        if not callable(value):
            return value

        def _call(*arguments: Any, **options: Any) -> Any:
            path = arguments[0] if arguments and isinstance(arguments[0], str) else ""
            answer = self._reach(name, path, value, *arguments, **options)
            if name not in PARTS or answer is None:
                return answer
            part = _Part(self, self._platter, answer, path)
            self._parts.add(part)
            return part

        return _call


class _Part:
    """An open file, draft, lock or watch of a CrashDisk."""

    def __init__(self, disk: CrashDisk, platter: Platter, target: Any, path: str) -> None:
        self.target = target
        self._disk = disk
        self._platter = platter
        self._path = path

    def pwrite(self, offset: int, data: Buffer | Sequence[Buffer]) -> None:
        """Write, and keep the overwritten bytes until the file is flushed."""
        new = b"".join(data) if isinstance(data, (list, tuple)) else bytes(cast("Buffer", data))
        old_size = 0 if self._disk.is_dead else self.target.size()
        old = b"" if self._disk.is_dead else self.target.pread(offset, len(new))
        self._disk._reach("pwrite", self._path, self.target.pwrite, offset, data)
        if self._path:
            self._platter.note(self._path, Write(offset, new, old, old_size))

    def datasync(self) -> None:
        """Flush the file; from now on no power cut takes its writes back."""
        writes = self._platter.unflushed(self._path)
        self._disk._reach("datasync", self._path, self.target.datasync)
        self._platter.flushed(self._path, writes)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self.target, name)
        if not callable(value):
            return value
        return lambda *arguments, **options: self._disk._reach(
            name, self._path, value, *arguments, **options
        )
