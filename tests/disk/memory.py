"""Owns the disk in memory: the protocols of the real one, with faults, kills and power cuts.

One `Machine` holds the files. Every `MemoryDisk` is one process on it, with its own open files and
locks; `process` makes another one. The disk calls a hook before every call, and tests replace them:
`step` before a call with an effect, `look` before one without. A hook counts, or raises

- OSError: the call fails as the real one would; a failed flush loses its bytes (see power_loss);
- Killed: this process is dead, its locks are free, every later call of it raises again;
- PowerCut: the same; afterwards the platter has the content of one of `images`.

If the error of a pwrite has an attribute `written`, that many bytes are written first.

    op of step   create mkdir rmdir pwrite datasync sync_dir link unlink lock unlock
    op of look   open read pread size exists listdir holder
"""

from __future__ import annotations

import errno
import hashlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from tests.disk.power_loss import (
    Chance,
    Node,
    choose_images,
    copy_tree,
    cut_power,
    pending_items,
)
from tests.disk.watch import MemoryWatch
from txlog.engine.storage.disk.locks import locked
from txlog.engine.storage.disk.protocol import (
    ACTING,
    GROUP_FILES,
    TEMPORARY_PREFIX,
    File,
    RootFate,
    Stream,
    as_views,
    compare,
    failure,
    flush_failure,
    number_of,
    split,
)
from txlog.errors import (
    AlreadyClosed,
    Corruption,
    MissingFile,
    OutcomeUnknown,
    ReadOnlyStore,
    TxlogError,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer


# --- a process and its machine ---------------------------------------------------------------


class Killed(BaseException):
    """The process died here; written: how many bytes of a pwrite it had written."""

    def __init__(self, written: int = 0) -> None:
        self.written = written
        super().__init__("killed")


class PowerCut(Killed):
    """The machine died here."""


class Machine:
    """The state that the processes of one machine share."""

    def __init__(self, root: Node, free_bytes: int, seed: int, first_pid: int) -> None:
        self.root = root
        self.free_bytes = free_bytes
        self.seed = seed
        self.next_pid = first_pid
        self.order = 0
        self.released = threading.Condition(threading.RLock())
        self.holders: dict[Node, MemoryLock] = {}
        self.announced = 0

    def tick(self) -> int:
        self.order += 1
        return self.order


class Process(Protocol):
    """The facts about the process that files and locks need."""

    machine: Machine
    blocked: Callable[[str, int], bool] | None

    def pid(self) -> int:
        """Return the id of the process."""

    def find(self, path: str) -> Node | None:
        """Return what a path leads to, None where a name is absent."""

    def add_file(self, path: str) -> Node:
        """Create an empty file."""

    def ask(self, op: str, path: str, action: str, **info: int) -> None:
        """Call the look hook about a call without effect."""

    def effect(self, op: str, path: str, **info: int) -> None:
        """Call the step hook; the caller maps its OSError."""

    def effect_mapped(self, op: str, path: str, action: str = "") -> None:
        """Call the step hook and map its OSError."""


class MemoryFile:
    """`File` on a node, with one descriptor, which reports each failed flush once."""

    def __init__(self, disk: Process, node: Node, path: str, write: bool) -> None:
        self.path = path
        self._disk = disk
        self.node = node
        self._can_write = write
        self._errors_seen = node.errors
        self._is_open = True

    def pread(self, offset: int, length: int) -> bytes:
        self._need_open()
        self._disk.ask("pread", self.path, "read", offset=offset, length=length)
        return bytes(self.node.data[offset : offset + length])

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
        room = self._disk.machine.free_bytes + len(self.node.data) - offset
        self._put(offset, joined[: max(room, 0)])
        if len(joined) > room:
            full = OSError(errno.ENOSPC, "No space left on device")
            raise failure(full, "write", self.path)

    def datasync(self) -> None:
        self._need_open()
        node = self.node
        try:
            self._disk.effect("datasync", self.path)
            with self._disk.machine.released:
                node.flush()
                if node.errors > self._errors_seen:  # the failed flush of another descriptor
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
        return len(self.node.data)

    def close(self) -> None:
        self._is_open = False

    def _need_open(self) -> None:
        if not self._is_open:
            raise AlreadyClosed(f"{self.path} is closed", path=self.path)

    def _put(self, offset: int, data: bytes) -> None:
        machine = self._disk.machine
        with machine.released:
            count_before = len(self.node.data)
            self.node.write(offset, data, machine.tick())
            machine.free_bytes -= len(self.node.data) - count_before
            machine.released.notify_all()


class MemoryScratch(MemoryFile):
    """A file without a name; closing it frees its space."""

    def close(self) -> None:
        if self._is_open:
            self._disk.machine.free_bytes += len(self.node.data)
        super().close()


class MemoryLock:
    """`LockFile` on a node. Instead of waiting it calls `MemoryDisk.blocked` if a test set that:
    (path, timeout_ms) -> whether to try again."""

    def __init__(self, disk: Process, node: Node, path: str) -> None:
        self.path = path
        self.disk = disk
        self._node = node
        self.is_open = True

    def acquire(self, timeout_ms: int, meanwhile: Callable[[], bool] | None = None) -> bool:
        machine = self.disk.machine
        while not self.try_acquire():
            if meanwhile is not None and meanwhile():
                return False
            if self.disk.blocked is not None:
                has_chance = self.disk.blocked(self.path, timeout_ms)
            else:
                with machine.released:
                    has_chance = machine.released.wait_for(self._is_free, timeout_ms / 1000)
            if not has_chance:
                raise locked(self.path, self.holder(), timeout_ms)
        return True

    def try_acquire(self) -> bool:
        if not self.is_open:
            raise AlreadyClosed(f"the lock {self.path} is closed", path=self.path)
        self.disk.effect_mapped("lock", self.path)
        machine = self.disk.machine
        with machine.released:
            entry = self.disk.find(self.path)
            if entry is None or entry is not self._node:  # unlinked meanwhile (R26)
                self._node = entry or self.disk.add_file(self.path)
            if not self._is_free():
                return False
            machine.holders[self._node] = self
            return True

    def release(self) -> None:
        if not self.is_open:
            return
        self.disk.effect_mapped("unlock", self.path)
        self.let_go()

    def close(self) -> None:
        self.is_open = False
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


# --- the disk --------------------------------------------------------------------------------

__all__ = ["Killed", "MemoryDisk", "PowerCut"]

FREE_BYTES = 1 << 40
FIRST_PID = 1000
FILES_KEPT = 2  # so few that every crash test closes files and opens them again


class Hook(Protocol):
    """Called before each call, with its facts: offset and length of a pwrite or pread."""

    def __call__(self, op: str, path: str, **info: int) -> None:
        """Return to let the call happen, or raise."""


def _let_happen(op: str, path: str, **info: int) -> None:
    """Do nothing: the hook for a disk without faults."""


class MemoryDisk:
    """`Disk` of one process on a machine in memory."""

    def __init__(
        self,
        machine: Machine | None = None,
        *,
        read_only: bool = False,
        free_bytes: int = FREE_BYTES,
        seed: int = 0,
    ) -> None:
        root = Node(is_directory=True)
        self.machine = machine or Machine(root, free_bytes, seed, FIRST_PID)
        self.read_only = read_only
        self.description = "memory"
        self.step: Hook = _let_happen
        self.look: Hook = _let_happen
        self.blocked: Callable[[str, int], bool] | None = None
        self._pid = self.machine.next_pid
        self.machine.next_pid += 1
        self._death: Killed | None = None
        self._durable = {""}

    # processes, kills, power cuts

    def process(self, read_only: bool = False) -> MemoryDisk:
        """Return another process on the same machine, without hooks."""
        return MemoryDisk(self.machine, read_only=read_only)

    @property
    def is_alive(self) -> bool:
        """False once this process was killed."""
        return self._death is None

    def kill(self, death: Killed | None = None) -> None:
        """End this process: its locks are freed, every later call raises."""
        self._death = death or Killed()
        for lock in list(self.machine.holders.values()):
            if lock.disk is self:
                lock.let_go()

    def copy(self) -> MemoryDisk:
        """Return a new machine with the same files, the same unflushed bytes, and no locks."""
        with self.machine.released:
            return self._other_machine(copy_tree(self.machine.root))

    def fork_kill(self) -> MemoryDisk:
        """Return the disk as after the death of all processes: it has all written data."""
        return self.copy()

    def images(self, rng: Chance, limit: int) -> Iterator[MemoryDisk]:
        """Yield up to limit of the disks that a power cut at this moment could leave."""
        items = pending_items(self.machine.root)
        for image in choose_images(items, rng, limit):
            yield self._other_machine(cut_power(self.machine.root, items, image))

    def files(self) -> dict[str, bytes]:
        """Return every file's visible bytes by path, sorted."""
        contents: dict[str, bytes] = {}
        todo = [("", self.machine.root)]
        while todo:
            at, node = todo.pop()
            if node.entries is None:
                contents[at] = bytes(node.data)
            else:
                todo += [(f"{at}/{n}" if at else n, child) for n, child in node.entries.items()]
        return dict(sorted(contents.items()))

    def damage(self, path: str, data: bytes | None) -> None:
        """Replace a file's content, also on the platter, without a call; data None: remove it."""
        parent, name = split(path)
        directory = self._directory(parent)
        node = self.find(path)
        assert directory.entries is not None
        directory.old.pop(name, None)
        directory.pending = [item for item in directory.pending if item.key != name]
        if data is None:
            directory.entries.pop(name, None)
            return
        if node is None:
            node = directory.entries[name] = Node()
            node.links = 1
        node.data, node.is_shared, node.old, node.pending = bytearray(data), False, {}, []

    # the protocol

    def leads_to(self, path: str, file: File) -> bool:
        assert isinstance(file, MemoryFile)
        return self.find(path) is file.node

    def fate(self) -> RootFate:
        return "there"

    def files_kept(self) -> int:
        return FILES_KEPT

    def open(self, path: str, write: bool = False) -> MemoryFile:
        if write:
            self._need_writable(path)
        self.ask("open", path, "open")
        return MemoryFile(self, self._file(path), path, write)

    def read(self, path: str) -> bytes:
        self.ask("read", path, "open")
        return bytes(self._file(path).data)

    def size(self, path: str) -> int:
        self.ask("size", path, "look at")
        return len(self._named(path).data)

    def exists(self, path: str) -> bool:
        self.ask("exists", path, "look at")
        return self.find(path) is not None

    def listdir(self, path: str) -> list[str]:
        self.ask("listdir", path, "list")
        with suppress(MissingFile):
            return sorted(self._directory(path).entries or ())
        return []

    def make_dirs(self, path: str) -> None:
        self._need_writable(path)
        if path in self._durable:
            return
        parent, name = split(path)
        self.make_dirs(parent)
        if self.find(path) is None:
            self.effect_mapped("mkdir", path)
            self._directory(parent).name(name, Node(is_directory=True), self.machine.tick())
        self._directory(path)
        try:
            self.sync_dir(parent)
        except TxlogError:
            if not self._directory(path).entries:  # no second flush of the same name (R13)
                self._directory(parent).name(name, None, self.machine.tick())
            raise
        self._durable.add(path)

    def publish(self, path: str, parts: Sequence[Buffer]) -> None:
        with self.publishing(path, parts):
            pass

    @contextmanager
    def publishing(self, path: str, parts: Sequence[Buffer] | Stream) -> Iterator[None]:
        with closing(MemoryDraft(self, path)) as draft:
            draft.fill(parts)
            draft.publish()
            yield

    def begin(self, path: str) -> MemoryDraft:
        return MemoryDraft(self, path)

    def scratch(self) -> MemoryScratch:
        if self.read_only:
            return MemoryDisk().scratch()  # another file system
        name = f"{TEMPORARY_PREFIX}{self.machine.tick():016x}"
        node = self.add_file(name)
        self.try_unlink(name)
        return MemoryScratch(self, node, name, write=True)

    def publish_all(self, files: Iterable[tuple[str, Sequence[Buffer]]]) -> None:
        names: set[str] = set()
        waiting = iter(files)
        while group := list(islice(waiting, GROUP_FILES)):
            self._publish_group(group)
            names |= {split(path)[0] for path, _ in group}
        for parent in sorted(names):
            self.sync_published(parent, parent)

    def _publish_group(self, group: Sequence[tuple[str, Sequence[Buffer]]]) -> None:
        new_group = self._make_group({split(path)[0] for path, _ in group})
        temporaries: list[str] = []
        try:
            for path, parts in group:
                parent, own_path = split(path)[0], f"{TEMPORARY_PREFIX}{self.machine.tick():016x}"
                temporaries.append(f"{parent}/{own_path}" if parent else own_path)
                node = self.add_file(temporaries[-1])
                MemoryFile(self, node, temporaries[-1], write=True).pwrite(0, parts)
            try:
                for temporary in temporaries:
                    MemoryFile(self, self._file(temporary), temporary, write=True).datasync()
                for parent in sorted({split(path)[0] for path in new_group}):
                    self.sync_dir(parent)
            except TxlogError:
                for temporary in temporaries:
                    self.try_unlink(temporary)
                for path in reversed(new_group):  # no second flush of the same name (R13)
                    with suppress(TxlogError):
                        self.remove_dir(path)
                raise
            self._durable.update(new_group)
            for (_, parts), temporary in zip(group, temporaries, strict=True):
                compare(self.open(temporary), parts, temporary)
            for (path, _), temporary in zip(group, temporaries, strict=True):
                self.effect_mapped("link", path, "publish")
                if self.find(path) is not None:
                    raise failure(FileExistsError(errno.EEXIST, "File exists"), "publish", path)
                parent, name = split(path)
                node = self._file(temporary)
                self._directory(parent).name(name, node, self.machine.tick())
        finally:
            if self.is_alive:
                for temporary in temporaries:
                    self.try_unlink(temporary)

    def _make_group(self, paths: Iterable[str]) -> list[str]:
        lines: list[str] = []
        for path in sorted(paths):
            above: list[str] = []
            while path not in self._durable and path not in lines:
                above.append(path)
                path = split(path)[0]
            for one in reversed(above):
                if self.find(one) is None:
                    self.effect_mapped("mkdir", one)
                    parent, name = split(one)
                    self._directory(parent).name(name, Node(is_directory=True), self.machine.tick())
                self._directory(one)
                lines.append(one)
        return lines

    def write_fresh(self, path: str, data: Buffer) -> None:
        with closing(MemoryDraft(self, path, path)) as draft:
            draft.fill([data])
            draft.keep()

    def unlink(self, path: str, missing_ok: bool = True) -> None:
        parent, name = split(path)
        self._need_writable(path)
        node = self.find(path)
        if node is None:
            if missing_ok:
                return
            raise failure(FileNotFoundError(errno.ENOENT, "No such file"), "remove", path)
        if node.entries is not None:
            raise Corruption(f"cannot remove {path}: a directory", path=path)
        self.effect_mapped("unlink", path, "remove")
        if self.find(path) is not node:  # another process was faster
            return self.unlink(path, missing_ok)
        self._directory(parent).name(name, None, self.machine.tick())
        if node.links == 0:
            self.machine.free_bytes += len(node.data)

    def link(self, source: str, path: str) -> None:
        parent, name = split(path)
        node = self._file(source)
        self.make_dirs(parent)
        self.effect_mapped("link", path, "publish")
        if self.find(path) is not None:
            raise failure(FileExistsError(errno.EEXIST, "File exists"), "publish", path)
        self._directory(parent).name(name, node, self.machine.tick())

    def kind(self, path: str) -> str:
        self.ask("exists", path, "look at")
        node = self.find(path)
        return "" if node is None else "file" if node.entries is None else "directory"

    def move(self, source: str, path: str) -> None:
        (above, own_items), (parent, name) = split(source), split(path)
        node = self._named(source)
        self.make_dirs(parent)
        self.effect_mapped("link", path, "move")
        self._directory(parent).name(name, node, self.machine.tick())
        self._directory(above).name(own_items, None, self.machine.tick())

    def remove_dir(self, path: str) -> bool:
        parent, name = split(path)
        self._need_writable(path)
        node = self.find(path)
        if node is None:
            return True
        if node.entries is None:
            raise Corruption(f"cannot remove {path}: not a directory", path=path)
        if node.entries:
            return False
        self.effect_mapped("rmdir", path, "remove")
        self._directory(parent).name(name, None, self.machine.tick())
        self._durable.discard(path)
        return True

    def sync_dir(self, path: str) -> None:
        directory = self._directory(path)
        try:
            self.effect("sync_dir", path)
        except OSError as error:
            number_of(error)
            directory.fail_flush()
            raise failure(error, "flush", path) from error
        directory.flush()

    def lock_file(self, path: str, create: bool = True) -> MemoryLock:
        node = self.find(path)
        if node is None and create and not self.read_only:
            self.make_dirs(split(path)[0])
            node = self.add_file(path)
        return MemoryLock(self, node or self._file(path), path)

    def watch(self) -> MemoryWatch | None:
        return MemoryWatch(self)

    def announce(self, path: str) -> None:
        with self.machine.released:
            self.machine.announced += 1
            self.machine.released.notify_all()

    def random_bytes(self, n: int) -> bytes:
        text = f"{self.machine.seed}:{self.machine.tick()}".encode()
        return hashlib.shake_128(text).digest(n)

    def free_bytes(self) -> int:
        return self.machine.free_bytes

    def pid(self) -> int:
        return self._pid

    def owner(self) -> tuple[int, str]:
        acting = ACTING.get()
        return (None if acting is None else acting()) or (1000, "user")

    def close(self) -> None:
        """Do nothing: this disk caches nothing."""

    # for the handles of this module

    def find(self, path: str) -> Node | None:
        """Return what a path leads to, None where a name is absent."""
        if path == "":
            return self.machine.root
        parent, name = split(path)
        above = self.find(parent)
        if above is None:
            return None
        if above.entries is None:
            raise Corruption(f"cannot look at {path}: {parent} is a file", path=path)
        return above.entries.get(name)

    def add_file(self, path: str) -> Node:
        """Create an empty file."""
        parent, name = split(path)
        self.effect_mapped("create", path)
        directory = self._directory(parent)
        if self.find(path) is not None:
            raise failure(FileExistsError(errno.EEXIST, "File exists"), "create", path)
        node = Node()
        directory.name(name, node, self.machine.tick())
        return node

    def ask(self, op: str, path: str, action: str, **info: int) -> None:
        """Call the look hook about a call without effect."""
        self._need_alive()
        try:
            self.look(op, path, **info)
        except OSError as error:
            raise failure(error, action, path) from error
        except Killed as death:
            self.kill(death)
            raise

    def effect(self, op: str, path: str, **info: int) -> None:
        """Call the step hook; the caller maps its OSError."""
        self._need_alive()
        self._need_writable(path)
        try:
            self.step(op, path, **info)
        except Killed as death:
            self.kill(death)
            raise

    def effect_mapped(self, op: str, path: str, action: str = "") -> None:
        try:
            self.effect(op, path)
        except OSError as error:
            raise failure(error, action or op, path) from error

    def sync_published(self, parent: str, path: str) -> None:
        """Flush the names in a directory; OutcomeUnknown when that fails."""
        try:
            self.sync_dir(parent)
        except TxlogError as error:  # R31
            raise OutcomeUnknown(f"{path} was written, its directory not", path=path) from error

    def try_unlink(self, path: str) -> None:
        """Unlink, and ignore errors."""
        with suppress(TxlogError):
            self.unlink(path)

    def _other_machine(self, root: Node) -> MemoryDisk:
        own_machine = self.machine
        twin = Machine(root, own_machine.free_bytes, own_machine.seed, own_machine.next_pid)
        twin.order = own_machine.order
        return MemoryDisk(twin)

    def _named(self, path: str) -> Node:
        node = self.find(path)
        if node is None:
            error = FileNotFoundError(errno.ENOENT, "No such file or directory")
            raise failure(error, "open", path)
        return node

    def _file(self, path: str) -> Node:
        node = self._named(path)
        if node.entries is not None:
            raise Corruption(f"cannot open {path}: not a regular file", path=path)
        return node

    def _directory(self, path: str) -> Node:
        node = self._named(path) if path else self.machine.root
        if node.entries is None:
            raise Corruption(f"cannot open {path}: not a directory", path=path)
        return node

    def _need_alive(self) -> None:
        if self._death is not None:
            raise self._death

    def _need_writable(self, path: str) -> None:
        if self.read_only:
            raise ReadOnlyStore(f"cannot change {path}: the store is read-only", path=path)


class MemoryDraft:
    """`Draft`, as on the posix disk; own_path: of the file until it has its final name."""

    def __init__(self, disk: MemoryDisk, path: str, own_path: str | None = None) -> None:
        self._directory, _ = split(path)
        if own_path is None:
            name = f"{TEMPORARY_PREFIX}{disk.machine.tick():016x}"
            own_path = f"{self._directory}/{name}" if self._directory else name
        self._disk, self.path, self._own = disk, path, own_path
        self._what: Sequence[Buffer] | Stream = Stream()
        self._is_left = False
        disk.make_dirs(self._directory)
        node = disk.add_file(own_path)
        self._file = MemoryFile(disk, node, own_path, write=True)
        self._held = disk.machine.holders[node] = MemoryLock(disk, node, own_path)

    def write(self, part: Buffer) -> None:
        assert isinstance(self._what, Stream)
        self._what.push(part, self._file.pwrite)

    def fill(self, parts: Sequence[Buffer] | Stream) -> None:
        """Write all bytes, and keep `parts`, which `publish` compares with the file."""
        self._what = parts
        if isinstance(parts, Stream):
            parts.write(self._file.pwrite)
        else:
            self._file.pwrite(0, parts)

    def publish(self) -> None:
        disk = self._disk
        self._file.datasync()
        compare(disk.open(self._own), self._what, self._own)
        disk.link(self._own, self.path)
        self._sync_name()
        self._discard()

    def keep(self) -> None:
        """Flush the written data and the draft's own path, which becomes its name."""
        self._file.datasync()
        self._sync_name()
        self._is_left = True

    def close(self) -> None:
        if not self._is_left and self._disk.is_alive:
            self._discard()
        self._file.close()
        self._held.close()

    def _sync_name(self) -> None:
        try:
            self._disk.sync_published(self._directory, self.path)
        except OutcomeUnknown:  # the file has its name
            self._is_left = True
            raise

    def _discard(self) -> None:
        self._is_left = True  # there is no second try: the sweeper removes the leftover file
        self._disk.try_unlink(self._own)
