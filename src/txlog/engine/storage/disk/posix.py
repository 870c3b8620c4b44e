"""Owns every file effect of the engine: descriptors, flushes, publication, locks, watches.

The real `Disk`. In the engine only this module, `libc`, `locks` and `user_files` (for files outside
any store) call `os` or `fcntl` (spec/reliability R1).

1. The root is opened once; every other call uses a directory descriptor and one name, and never
   follows a link. Anything but a regular file, and a file with an unexpected owner, is Corruption.
2. No bare OSError leaves: `failure` maps it to one of our errors. Reads and writes handle every
   byte or fail. A failed write may have written a part of its bytes; the caller zeroes it (R30). A
   failed flush is never repeated (R13).
3. A published name was never used before and holds exactly the bytes given (R3). When the last
   flush of its directory fails, the outcome is unknown (R31).
4. Locks are flock, on descriptors of their own (R24). A forked child closes every inherited
   descriptor at once and never unlocks; all its handles are then AlreadyClosed (R27).
5. A file or lock handle belongs to one thread at a time; a disk may be used by many.
"""

from __future__ import annotations

import errno
import fcntl
import grp
import importlib
import os
import pwd
import select
import stat
import struct
import threading
import weakref
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, NoReturn

from txlog.base.suggest import command_line
from txlog.engine.storage.disk.libc import (
    add_watch,
    inode_of,
    open_inotify,
    remove_watch,
    sync_file_system,
)
from txlog.engine.storage.disk.locks import Identity, PosixLock, find_holder, identity_of, read_proc
from txlog.engine.storage.disk.protocol import (
    ACTING,
    GROUP_FILES,
    TEMPORARY_PREFIX,
    File,
    IgnoringFailure,
    RootFate,
    Stream,
    WatchEvent,
    as_views,
    compare,
    failure,
    flush_failure,
    number_of,
    split,
)
from txlog.errors import (
    AlreadyExists,
    Corruption,
    DiskFailed,
    InvalidArgument,
    MissingFile,
    NotAllowed,
    OutcomeUnknown,
    ReadOnlyStore,
    StoreNotFound,
    TxlogError,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

# --- descriptors ----------------------------------------------------------------------------------

_CLOSED = 2**31 - 1  # no descriptor; some Python calls refuse -1 with their own error

_handles: weakref.WeakSet[Handle] = weakref.WeakSet()


class Handle:
    """A descriptor that a forked child closes, as does the collector if no code refers to it."""

    __slots__ = ("__weakref__", "fd", "path")

    def __init__(self, fd: int, path: str) -> None:
        self.fd = fd
        self.path = path
        _handles.add(self)

    def close(self) -> None:
        fd, self.fd = self.fd, _CLOSED  # a later use gets EBADF, never someone else's descriptor
        try:  # no call in between: an interrupt there could leave a lock's descriptor open
            os.close(fd)
        except OSError as error:  # close promises nothing (R33)
            if error.errno is None:
                raise

    def __reduce__(self) -> NoReturn:
        """Two handles of one descriptor would close it twice, the second time someone else's."""
        raise TypeError("an open store cannot be copied or pickled: open it again instead")

    def __del__(self) -> None:
        if getattr(self, "fd", _CLOSED) != _CLOSED:  # an interrupt may stop it half made
            self.close()

    def stat(self) -> os.stat_result:
        try:
            return os.fstat(self.fd)
        except OSError as error:
            raise failure(error, "look at", self.path) from error


def call_in_child(act: Callable[[], None]) -> None:
    """Have each child forked from now on call this first; it raises nothing."""
    os.register_at_fork(after_in_child=act)


def _close_inherited() -> None:
    """In a forked child, close the descriptors of the parent. Never LOCK_UN: R27."""
    for handle in list(_handles):
        handle.close()


call_in_child(_close_inherited)


# --- open files ------------------------------------------------------------------------------

VECTOR_MAX = 1024  # buffers Linux takes in one pwritev (IOV_MAX)


class PosixFile(Handle):
    """`File` on a descriptor; one system call each where all goes well."""

    __slots__ = ("_inode",)

    def inode(self) -> tuple[int, int]:
        """Return device and inode; no other file has the same while this file is open."""
        try:
            return self._inode
        except AttributeError:
            at = self.stat()
            self._inode: tuple[int, int] = (at.st_dev, at.st_ino)
            return self._inode

    def pread(self, offset: int, length: int) -> bytes:
        try:
            data = os.pread(self.fd, length, offset)
            while len(data) < length:  # only zero bytes mean the end
                more = os.pread(self.fd, length - len(data), offset + len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            raise failure(error, "read", self.path) from error
        return data

    def pwrite(self, offset: int, data: Buffer | Sequence[Buffer]) -> None:
        try:
            if type(data) is not bytes or os.pwrite(self.fd, data, offset) != len(data):
                write_all(self.fd, offset, data)  # again after a short write, to get the error
        except OSError as error:
            raise failure(error, "write", self.path) from error

    def datasync(self) -> None:
        try:
            os.fdatasync(self.fd)
        except OSError as error:
            raise flush_failure(error, self.path) from error

    def size(self) -> int:
        return self.stat().st_size


def write_all(fd: int, offset: int, data: Buffer | Sequence[Buffer]) -> None:
    """Write all of data, however short each transfer; an OSError says why it failed."""
    views = as_views(data)
    first = 0
    while first < len(views):
        done = os.pwritev(fd, views[first : first + VECTOR_MAX], offset)
        if done == 0:
            raise OSError(errno.ENOSPC, "the device takes no more bytes")
        offset += done
        while first < len(views) and done >= views[first].nbytes:
            done -= views[first].nbytes
            first += 1
        if done:
            views[first] = views[first][done:]


# --- locks -----------------------------------------------------------------------------------

KEPT_MAX = 128  # descriptors of directories kept by one disk, of files kept by one view
KEPT_SHARE = 8  # and at most this share of the soft limit: a process has other files and views
COMMAND_CHARS_MAX = 200  # of the lock holder's command line, shown in an error

LOOKS_BY_LSTAT = 32  # the first looks use lstat; after that, statx is cheaper
NO_STATX = -(1 << 62)  # a count of looks that never reaches that
GROUP_FLUSHES_MIN = 8  # from this many on, one flush of the file system is cheaper

_OPEN = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # O_NONBLOCK: opening a FIFO must not block
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
_TRY = fcntl.LOCK_EX | fcntl.LOCK_NB


class _LockDescriptor(Handle):
    """A descriptor that flock is called on; the `Descriptor` of `locks`."""

    __slots__ = ()

    def lock(self) -> bool:
        try:
            fcntl.flock(self.fd, _TRY)
        except OSError as error:
            if error.errno == errno.EWOULDBLOCK:
                return False
            raise failure(error, "lock", self.path) from error
        return True

    def unlock(self) -> None:
        try:
            fcntl.flock(self.fd, fcntl.LOCK_UN)
        except OSError as error:
            if number_of(error) != errno.EBADF:
                raise failure(error, "unlock", self.path) from error

    def identity(self) -> Identity:
        return identity_of(self.stat())


class _LockSite:
    """The name of a lock file in the store; the `LockSite` of `locks`."""

    def __init__(self, disk: PosixDisk, path: str) -> None:
        self.path = path
        self._disk = disk

    def open(self, create: bool = True) -> _LockDescriptor:
        return _LockDescriptor(self._disk.open_lock(self.path, create), self.path)

    def identity(self) -> Identity | None:
        with suppress(MissingFile):
            return identity_of(self._disk.stat(self.path))
        return None

    def holder(self, identity: Identity) -> tuple[int, str] | None:
        pid = find_holder(read_proc("/proc/locks").decode(errors="replace"), identity)
        if pid is None:
            return None
        arguments = read_proc(f"/proc/{pid}/cmdline").rstrip(b"\0").split(b"\0")
        return pid, b" ".join(arguments).decode(errors="replace")[:COMMAND_CHARS_MAX]


# --- the disk --------------------------------------------------------------------------------

_KINDS = (
    (stat.S_ISDIR, "directory"), (stat.S_ISLNK, "link"), (stat.S_ISFIFO, "pipe"),
    (stat.S_ISSOCK, "socket"),
)  # fmt: skip


class PosixDisk:
    """`Disk` on a directory of a local file system."""

    def __init__(
        self,
        root: str,
        read_only: bool = False,
        shared_group: str | None = None,
        *,
        allow_unsafe: bool = False,
    ) -> None:
        """Open the directory of a store; one that cannot be written becomes read-only.

        shared_group: the group that shares the store; a root of mode 2770 implies it
        allow_unsafe: may write to a root that another user owns or every user can write
        raises:       StoreNotFound, NotAllowed, NoResources, DiskFailed
        """
        fd = open_root(root)
        self._root = Handle(fd, root)
        at = os.fstat(fd)
        self.description = os.path.abspath(root)
        self._looks = 0
        self._name = _name_of(root, self.description, at)
        self._is_shared = shared_group is not None or at.st_mode & 0o2070 == 0o2070
        self._owners = (at.st_uid, os.geteuid(), 0)
        self.read_only = read_only or not os.access(
            ".", os.W_OK | os.X_OK, dir_fd=fd, effective_ids=True
        )
        self._directories: dict[str, Handle] = {"": self._root}
        self._durable = {""}  # directories whose names are known to be on disk
        self._owner: tuple[int, str] | None = None  # the lookup costs 16 us
        self._mutex = threading.RLock()  # reentrant, as `__del__` runs anywhere
        is_foreign = at.st_uid != os.geteuid() and not self._is_shared
        if not (self.read_only or allow_unsafe) and (is_foreign or at.st_mode & 0o002):
            self._root.close()
            reason = f"{root} {'is foreign' if is_foreign else 'can be written by everybody'}"
            raise NotAllowed(reason, hint="open it read-only, or fix its owner and mode", path=root)

    def leads_to(self, path: str, file: File) -> bool:
        if self._name is None:
            return True
        assert isinstance(file, PosixFile)
        name = f"{self._name}/{path}"
        try:
            inode = inode_of(name) if self._looks > LOOKS_BY_LSTAT else self._inode_of(name)
        except NotImplementedError:
            self._looks = NO_STATX
            return self.leads_to(path, file)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:  # for instance, a parent directory is no longer searchable
            number_of(error)
            return True
        return inode == file.inode()

    def _inode_of(self, path: str) -> tuple[int, int]:
        """Device and inode of the file at a path, for the first looks; raises OSError.

        lstat makes the next write to a journal file slow, and ctypes takes 2 ms to import: a short
        command uses lstat, a long run statx.
        """
        self._looks += 1
        at = os.lstat(path)
        return at.st_dev, at.st_ino

    def fate(self) -> RootFate:
        root_stat = self._root.stat()
        if self._name is None:
            return "there" if root_stat.st_nlink else "removed"
        try:
            at = os.stat(self._name)
        except (FileNotFoundError, NotADirectoryError):
            return "moved" if root_stat.st_nlink else "removed"
        except OSError as error:
            number_of(error)
            return "there" if root_stat.st_nlink else "removed"
        return "there" if os.path.samestat(at, root_stat) else "replaced"

    def files_kept(self) -> int:
        return _kept_max()

    def open(self, path: str, write: bool = False) -> PosixFile:
        if write:
            self._need_writable(path)
        return PosixFile(self._open(path, os.O_RDWR if write else os.O_RDONLY), path)

    def read(self, path: str) -> bytes:
        with closing(self.open(path)) as file:
            return file.pread(0, file.size())

    def size(self, path: str) -> int:
        return self.stat(path).st_size

    def exists(self, path: str) -> bool:
        with suppress(MissingFile):
            return bool(self.stat(path))
        return False

    def stat(self, path: str) -> os.stat_result:
        """Return the stat of a name, links not followed (for this module)."""
        parent, name = split(path)
        with self._directory(parent, "look at", path) as fd:
            return os.stat(name, dir_fd=fd, follow_symlinks=False)

    def listdir(self, path: str) -> list[str]:
        with suppress(MissingFile), self._directory(path, "list", path) as fd:
            own_fd = os.open(".", DIRECTORY, dir_fd=fd)  # a shared descriptor has one offset
            with closing(Handle(own_fd, path)):
                return sorted(os.listdir(own_fd))
        return []

    def make_dirs(self, path: str) -> None:
        self._need_writable(path)
        if path in self._durable:
            return
        parent, name = split(path)
        self.make_dirs(parent)
        with self._directory(parent, "make", path) as fd:
            with suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=fd)
                os.chmod(name, 0o2770 if self._is_shared else 0o700, dir_fd=fd)  # umask or not
            try:
                os.fsync(fd)  # also when it existed: its maker may have died before this
            except OSError as error:
                number_of(error)
                with IgnoringFailure():
                    os.rmdir(name, dir_fd=fd)  # no second flush of the same name (R13)
                raise
        self._durable.add(path)

    def publish(self, path: str, parts: Sequence[Buffer]) -> None:
        with self.publishing(path, parts):
            pass

    @contextmanager
    def publishing(self, path: str, parts: Sequence[Buffer] | Stream) -> Iterator[None]:
        with closing(PosixDraft(self, path)) as draft:
            draft.fill(parts)
            draft.publish()
            yield

    def begin(self, path: str) -> PosixDraft:
        return PosixDraft(self, path)

    def scratch(self) -> PosixFile:
        if self.read_only:
            try:
                with importlib.import_module("tempfile").TemporaryFile(buffering=0) as file:
                    return PosixFile(os.dup(file.fileno()), "a temporary file")
            except OSError as error:
                raise failure(error, "make", "a temporary file") from error
        name = TEMPORARY_PREFIX + os.urandom(8).hex()
        file = PosixFile(self._open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL), name)
        self._discard(name)  # if that fails, or this process dies first, upkeep's sweep removes it
        return file

    def publish_all(self, files: Iterable[tuple[str, Sequence[Buffer]]]) -> None:
        names: set[str] = set()
        waiting = iter(files)
        while group := list(islice(waiting, GROUP_FILES)):
            self._publish_group(group)
            names |= {split(path)[0] for path, _ in group}
        try:
            self._flush_many([], names)
        except TxlogError as error:  # R31
            raise OutcomeUnknown("files were written, their directories not") from error

    def _publish_group(self, group: Sequence[tuple[str, Sequence[Buffer]]]) -> None:
        """Give files their names: write all files, flush, read back, then link.

        The caller flushes the names.
        """
        new_directories, holders = self._make_group({split(path)[0] for path, _ in group})
        with ExitStack() as stack:
            temporaries: list[tuple[Handle, str]] = []
            for path, parts in group:
                parent = split(path)[0]
                own_name = TEMPORARY_PREFIX + os.urandom(8).hex()
                temporary = f"{parent}/{own_name}" if parent else own_name
                file = Handle(self._open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL), path)
                stack.callback(file.close)
                stack.callback(self._discard, temporary)
                with self._directory(parent, "write", path):
                    fcntl.flock(file.fd, _TRY)
                    write_all(file.fd, 0, parts)
                temporaries.append((file, temporary))
            try:
                self._flush_many([file for file, _ in temporaries], holders)
            except BaseException:  # Ctrl-C, too, leaves no temporaries
                for _, temporary in temporaries:
                    self._discard(temporary)
                for path in reversed(new_directories):  # no second flush of the same name (R13)
                    with suppress(TxlogError):
                        self.remove_dir(path)
                raise
            self._durable.update(new_directories)
            for (_, parts), (_, temporary) in zip(group, temporaries, strict=True):
                with closing(self.open(temporary)) as fresh:
                    compare(fresh, parts, temporary)
            for (path, _), (_, temporary) in zip(group, temporaries, strict=True):
                (parent, name), own_name = split(path), split(temporary)[1]
                with self._directory(parent, "publish", path) as fd:
                    os.link(own_name, name, src_dir_fd=fd, dst_dir_fd=fd, follow_symlinks=False)

    def _make_group(self, paths: Iterable[str]) -> tuple[list[str], set[str]]:
        """Make directories without a flush; returns them and their parents."""
        created: list[str] = []
        for path in sorted(paths):
            above: list[str] = []
            while path not in self._durable and path not in created:
                above.append(path)
                path = split(path)[0]
            for directory in reversed(above):
                parent, name = split(directory)
                with self._directory(parent, "make", directory) as fd, suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=fd)
                    os.chmod(name, 0o2770 if self._is_shared else 0o700, dir_fd=fd)
                # also when it existed: its maker may have died before this
                created.append(directory)
        return created, {split(path)[0] for path in created}

    def _flush_many(self, files: Sequence[Handle], directories: Collection[str]) -> None:
        """Flush files, and the names in directories; by one call if there are many."""
        if len(files) + len(directories) >= GROUP_FLUSHES_MIN and sync_file_system(self._root.fd):
            return
        for file in files:
            try:
                os.fsync(file.fd)
            except OSError as error:
                raise failure(error, "write", file.path) from error
        for path in sorted(directories):
            self.sync_dir(path)

    def _discard(self, temporary: str) -> None:
        with suppress(TxlogError):  # upkeep's sweep removes what stays
            self.unlink(temporary)

    def write_fresh(self, path: str, data: Buffer) -> None:
        with closing(PosixDraft(self, path, path)) as draft:
            draft.fill([data])
            draft.keep()

    def unlink(self, path: str, missing_ok: bool = True) -> None:
        self._need_writable(path)
        parent, name = split(path)
        try:
            with self._directory(parent, "remove", path) as fd:
                os.unlink(name, dir_fd=fd)
        except MissingFile:
            if not missing_ok:
                raise

    def link(self, source: str, path: str) -> None:
        (above, own_name), (parent, name) = split(source), split(path)
        self.make_dirs(parent)
        with (
            self._directory(above, "publish", source) as of,
            self._directory(parent, "publish", path) as fd,
        ):
            os.link(own_name, name, src_dir_fd=of, dst_dir_fd=fd, follow_symlinks=False)

    def kind(self, path: str) -> str:
        try:
            mode = self.stat(path).st_mode
        except MissingFile:
            return ""
        if not stat.S_ISREG(mode):
            return next((name for is_it, name in _KINDS if is_it(mode)), "device")
        parent, name = split(path)
        with self._directory(parent, "look at", path) as fd:
            may = os.access(name, os.R_OK, dir_fd=fd, effective_ids=True)
        return "file" if may else "unreadable"

    def move(self, source: str, path: str) -> None:
        (above, own_name), (parent, name) = split(source), split(path)
        self.make_dirs(parent)
        with (
            self._directory(above, "move", source) as of,
            self._directory(parent, "move", path) as fd,
        ):
            os.rename(own_name, name, src_dir_fd=of, dst_dir_fd=fd)

    def remove_dir(self, path: str) -> bool:
        self._need_writable(path)
        parent, name = split(path)
        try:
            with suppress(MissingFile), self._directory(parent, "remove", path) as fd:
                os.rmdir(name, dir_fd=fd)
        except DiskFailed as error:
            if error.fields.get("errno") != "ENOTEMPTY":
                raise
            return False
        with self._mutex:
            self._durable.discard(path)
            if (handle := self._directories.pop(path, None)) is not None:
                handle.close()
        return True

    def sync_dir(self, path: str) -> None:
        self._need_writable(path)
        with self._directory(path, "flush", path) as fd:
            os.fsync(fd)

    def lock_file(self, path: str, create: bool = True) -> PosixLock:
        site = _LockSite(self, path)
        return PosixLock(site.open(create), site, os.getpid)

    def open_lock(self, path: str, create: bool) -> int:
        """Return a new descriptor of a lock file (for this module)."""
        if self.read_only:  # only to find the holder; R23: leave not even a lock file
            return self._open(path, os.O_RDONLY)
        # only to test it: closing a file that was open for writing is an event for watches
        if not create:
            return self._open(path, os.O_RDWR if self._is_on_network else os.O_RDONLY)
        self.make_dirs(split(path)[0])
        return self._open(path, os.O_RDWR | os.O_CREAT)

    @cached_property
    def _is_on_network(self) -> bool:
        """Whether this is a network file system, where flock needs a descriptor that can write."""
        return filesystem(f"/proc/self/fd/{self._root.fd}") in _NETWORK

    def watch(self) -> PosixWatch | None:
        try:
            return PosixWatch(self._root)
        except OSError as error:
            number_of(error)
            return None

    def announce(self, path: str) -> None:
        with suppress(TxlogError), self._directory(path, "touch", path) as fd:
            os.utime(fd)

    def random_bytes(self, n: int) -> bytes:
        return os.urandom(n)

    def free_bytes(self) -> int:
        try:
            at = os.fstatvfs(self._root.fd)
        except OSError as error:
            raise failure(error, "look at", self.description) from error
        return at.f_bavail * at.f_frsize

    def pid(self) -> int:
        return os.getpid()

    def owner(self) -> tuple[int, str]:
        acting = ACTING.get()
        owner = None if acting is None else acting()
        if owner is not None:
            return owner
        uid, effective = os.geteuid(), self._owner
        if effective is None or effective[0] != uid:
            name = str(uid)
            with suppress(KeyError):
                name = pwd.getpwuid(uid).pw_name
            effective = self._owner = (uid, name)
        return effective

    def close(self) -> None:
        with self._mutex:
            for handle in self._directories.values():
                handle.close()
            self._directories = {"": self._root}

    def _need_writable(self, path: str) -> None:
        if self.read_only:
            raise ReadOnlyStore(f"cannot change {path}: the store is read-only", path=path)

    def _open(self, path: str, flags: int) -> int:
        parent, name = split(path)
        action = "open" if not flags & os.O_RDWR else "open for writing"
        with self._directory(parent, action, path) as directory:
            fd = os.open(name, flags | _OPEN, 0o600, dir_fd=directory)
            try:
                at = os.fstat(fd)
                if not stat.S_ISREG(at.st_mode):
                    raise Corruption(f"cannot open {path}: not a regular file", path=path)
                if at.st_uid not in self._owners and not self._is_shared:
                    raise Corruption(f"cannot open {path}: belongs to another user", path=path)
                mode = 0o660 if self._is_shared else 0o600  # whatever the umask
                # no needless chmod: it would be an event for watches of the directory
                if flags & os.O_CREAT and at.st_uid == os.geteuid() and at.st_mode & 0o777 != mode:
                    os.fchmod(fd, mode)
            except BaseException:  # no other code can close it yet
                os.close(fd)
                raise
        return fd

    @contextmanager
    def _directory(self, path: str, action: str, subject: str) -> Iterator[int]:
        """Yield a descriptor of a directory, reached one name at a time; map errors of the body."""
        new_fd = -1
        try:
            handle = self._directories.get(path)
            if handle is None:
                parent, name = split(path)
                with self._directory(parent, action, subject) as above:
                    new_fd = os.open(name, DIRECTORY, dir_fd=above)
                room = _kept_max()
                with self._mutex:
                    if path not in self._directories and len(self._directories) < room:
                        handle = self._directories[path] = Handle(new_fd, path)
                        new_fd = -1
            yield new_fd if handle is None else handle.fd
        except OSError as error:
            raise failure(error, action, subject) from error
        finally:
            if new_fd >= 0:
                os.close(new_fd)


class PosixDraft:
    """`Draft`: begun, written, flushed, read back, linked; unlinked if anything fails.

    own: its path until it has its name; by default a temporary's
    """

    __slots__ = ("_directory", "_disk", "_file", "_is_left", "_own", "_what", "path")

    def __init__(self, disk: PosixDisk, path: str, own: str | None = None) -> None:
        self._directory, _ = split(path)
        if own is None:
            name = TEMPORARY_PREFIX + os.urandom(8).hex()
            own = f"{self._directory}/{name}" if self._directory else name
        self._disk, self.path, self._own = disk, path, own
        self._what: Sequence[Buffer] | Stream = Stream()
        self._is_left = False  # True: its own path stays, or upkeep's sweep removes it
        disk.make_dirs(self._directory)
        self._file = Handle(disk._open(own, os.O_RDWR | os.O_CREAT | os.O_EXCL), own)
        try:
            with self._open_directory("write"):
                fcntl.flock(self._file.fd, _TRY)
        except BaseException:  # no other code can remove it
            self.close()
            raise

    def write(self, part: Buffer) -> None:
        assert isinstance(self._what, Stream)
        with self._open_directory("write"):
            self._what.push(part, self._put)

    def fill(self, parts: Sequence[Buffer] | Stream) -> None:
        """Write all bytes; parts that are no Stream are kept, and compared byte by byte."""
        self._what = parts
        with self._open_directory("write"):
            if isinstance(parts, Stream):
                parts.write(self._put)
            else:
                write_all(self._file.fd, 0, parts)

    def publish(self) -> None:
        with self._open_directory("write") as directory:
            os.fsync(self._file.fd)
            with closing(self._disk.open(self._own)) as fresh:
                compare(fresh, self._what, self._own)
            own_name, name = split(self._own)[1], split(self.path)[1]
            try:
                os.link(
                    own_name,
                    name,
                    src_dir_fd=directory,
                    dst_dir_fd=directory,
                    follow_symlinks=False,
                )
            except OSError as error:
                raise failure(error, "publish", self.path) from error
            self._sync_name(directory)
            self._discard(directory)

    def keep(self) -> None:
        """Flush the file and its own path, which is its name."""
        with self._open_directory("write") as directory:
            os.fsync(self._file.fd)
            self._sync_name(directory)
            self._is_left = True

    def close(self) -> None:
        try:
            if not self._is_left:  # Ctrl-C, too, leaves no half-made file
                with suppress(TxlogError), self._open_directory("remove") as directory:
                    self._discard(directory)
        finally:
            self._file.close()

    def _put(self, offset: int, part: memoryview) -> None:
        write_all(self._file.fd, offset, part)

    def _sync_name(self, directory: int) -> None:
        try:
            _sync_published(directory, self.path)
        except OutcomeUnknown:  # the file has its name
            self._is_left = True
            raise

    def _discard(self, directory: int) -> None:
        self._is_left = True  # no second try: upkeep's sweep removes what stays
        with IgnoringFailure():
            os.unlink(split(self._own)[1], dir_fd=directory)

    def _open_directory(self, action: str) -> AbstractContextManager[int]:
        return self._disk._directory(self._directory, action, self.path)


def open_root(path: str) -> int:
    """A descriptor of the directory of a store; links are followed, as `cd` does.

    The owner of the resulting directory matters, and the caller checks it.
    raises: StoreNotFound, DiskFailed
    """
    try:
        return os.open(path.rstrip("/") or "/", DIRECTORY & ~os.O_NOFOLLOW)
    except FileNotFoundError as error:
        hint = f"{command_line('init', path)} makes one"
        raise StoreNotFound(f"no store at {path}", hint=hint, path=path) from error
    except NotADirectoryError as error:
        raise StoreNotFound(f"{path} is not a directory", path=path) from error
    except OSError as error:
        raise failure(error, "open", path) from error


def _name_of(root: str, description: str, at: os.stat_result) -> str | None:
    """The path that leads to an open root from everywhere; None when there is none.

    A path with `..` after a link leads elsewhere once it is made absolute.
    """
    for name in (description, os.path.realpath(root)):
        try:
            if os.path.samestat(os.stat(name), at):
                return name
        except OSError as error:
            number_of(error)
    return None


def descriptor_limit() -> int:
    """How many descriptors this process may have: RLIMIT_NOFILE as it is now."""
    limit = os.sysconf("SC_OPEN_MAX")
    return 1 << 30 if limit < 0 else limit


def _kept_max() -> int:
    return max(1, min(KEPT_MAX, descriptor_limit() // KEPT_SHARE))


def _sync_published(directory: int, path: str) -> None:
    try:
        os.fsync(directory)
    except OSError as error:  # R31: the name may or may not survive
        number_of(error)
        raise OutcomeUnknown(f"{path} was written, its directory not", path=path) from error


# --- before there is a store -----------------------------------------------------------------


def absolute(path: str) -> str:
    """The path from the root, `a//./b/` tidied to `a/b`; before a `..` links are followed.

    raises: InvalidArgument
    """
    if "\0" in path:
        raise InvalidArgument("a path cannot contain a zero byte")
    # ask for the working directory only if needed: it may have been deleted
    joined = path if os.path.isabs(path) else os.path.join(os.getcwd(), path)
    parts = [part for part in joined.split("/") if part not in ("", ".")]
    if ".." in parts:
        last = len(parts) - parts[::-1].index("..")
        above = os.path.realpath("/" + "/".join(parts[:last]))
        parts = [*filter(None, above.split("/")), *parts[last:]]
    return "/" + "/".join(parts)


_NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "afs", "ceph"})


def create_root(
    path: str,
    shared_group: str | None = None,
    *,
    allow_unsafe: bool = False,
    may_hold: Container[str] = (),
) -> None:
    """Make the directory of a store, private or shared with a group; it may exist if it is empty.

    may_hold: names that it may hold, besides temporary names
    raises:   AlreadyExists (not empty), NotAllowed (network file system), InvalidArgument;
              DiskFailed where no directory can be made, as in /proc
    """
    try:
        group = -1 if shared_group is None else grp.getgrnam(shared_group).gr_gid
    except KeyError as error:
        raise InvalidArgument(f"no such group: {shared_group}") from error
    above = [os.path.dirname(os.path.abspath(path))]
    while not os.path.isdir(above[-1]) and above[-1] != "/":
        above.append(os.path.dirname(above[-1]))
    try:
        _make(path, above)
        if not allow_unsafe and (kind := filesystem(path)) in _NETWORK:
            reason = f"{path} is on a network file system ({kind})"
            raise NotAllowed(reason, hint="--allow-unsafe-fs uses it, without promises", path=path)
        with closing(Handle(open_root(path), path)) as root:
            others = [name for name in os.listdir(root.fd) if name not in may_hold]
            if not all(name.startswith(TEMPORARY_PREFIX) for name in others):
                raise AlreadyExists(f"not an empty directory: {path}", path=path)
            if shared_group is not None:
                os.fchown(root.fd, -1, group)
            os.fchmod(root.fd, 0o700 if shared_group is None else 0o2770)
        for directory in above:
            with suppress(PermissionError):  # a directory that this user may enter but not read
                fd = os.open(directory, DIRECTORY & ~os.O_NOFOLLOW)
                with closing(Handle(fd, directory)):
                    os.fsync(fd)
    except (FileExistsError, NotADirectoryError) as error:
        raise AlreadyExists(f"not a directory: {path}", path=path) from error
    except FileNotFoundError as error:  # every parent exists, so the file system refused
        raise DiskFailed(
            f"cannot create {path}: the file system takes no directory there",
            path=path,
            errno="ENOENT",
        ) from error
    except OSError as error:
        raise failure(error, "create", path) from error


def _make(path: str, above: list[str]) -> None:
    """Make a directory and its parents, the topmost last; existing ones are fine.

    os.makedirs calls itself for each level, and a name may have thousands.
    """
    with suppress(FileNotFoundError):
        os.stat(os.path.abspath(path))  # a name that is too long fails before any level is made
    for directory in reversed(above):
        with suppress(FileExistsError):
            os.mkdir(directory)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not os.path.isdir(path):
            raise


def filesystem(path: str) -> str:
    """Return the kernel's name for the kind of file system path is on, "" when unknown."""
    device = os.stat(path).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in read_proc("/proc/self/mountinfo").decode(errors="replace").splitlines():
        mount, _, source = line.partition(" - ")
        if mount.split()[2:3] == [number]:
            return source.split()[0]
    return ""


def usage(root: str) -> Iterator[tuple[str, bool, int]]:
    """(path below the root, whether it is a directory, bytes) of everything in a directory.

    The root comes first, as "". As `du -b` counts: apparent sizes, directories too, and a file with
    several names once. Files that vanish meanwhile are left out.
    """
    yield "", True, os.lstat(root).st_size
    seen: set[tuple[int, int]] = set()
    directories = [""]
    while directories:
        directory = directories.pop()
        try:
            entries = sorted(
                os.scandir(os.path.join(root, directory)), key=lambda entry: entry.name
            )
        except FileNotFoundError:
            continue
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
                if (status.st_dev, status.st_ino) in seen:
                    continue
                seen.add((status.st_dev, status.st_ino))
            path = f"{directory}/{entry.name}" if directory else entry.name
            is_directory = stat.S_ISDIR(status.st_mode)
            if is_directory:
                directories.append(path)
            yield path, is_directory, status.st_size


def is_there(path: str, name: str) -> bool:
    """True when the directory has a file of any kind with that name."""
    return os.path.exists(os.path.join(path, name))


# --- watching -------------------------------------------------------------------------------------
#
# One descriptor reports all watched files, to the thread that polls it. The caller's lock
# (store/wakeups) allows one wait at a time; an event loop may poll it as well; a forked child
# closes it like any other. Where the kernel, the file system or a limit of the machine refuses,
# there is no watch, and the caller looks again from time to time.
#
# How a process dies does not matter: the kernel closes its files, and reports that. The event comes
# a moment before the kernel frees their locks.

_MODIFY, _ATTRIB, _CLOSE_WRITE, _MOVED_TO = 0x2, 0x4, 0x8, 0x80
_CREATE, _DELETE, _DELETE_SELF, _MOVE_SELF = 0x100, 0x200, 0x400, 0x800
_OVERFLOW, _IGNORED = 0x4000, 0x8000
_NO_LINKS = 0x2000000
_MASKS: dict[WatchEvent, int] = {
    "writes": _MODIFY | _ATTRIB | _DELETE_SELF | _MOVE_SELF | _NO_LINKS,
    "names": _CREATE | _MOVED_TO | _DELETE_SELF | _NO_LINKS,
    "closings": _CLOSE_WRITE | _DELETE | _ATTRIB | _DELETE_SELF | _NO_LINKS,
    "moves": _MOVE_SELF | _DELETE_SELF,
}
_EVENT = struct.Struct("iIII")  # watch, what, cookie, length of the name
_READ_BYTES = 1 << 16
_WAIT_MS_MAX = 1 << 30


class PosixWatch(Handle):
    """`Watch` by inotify."""

    __slots__ = ("_at", "_files", "_named", "_paths", "_root")

    def __init__(self, root: Handle) -> None:
        """raises: OSError: this machine cannot watch files"""
        super().__init__(open_inotify(root.fd), "inotify")
        self._root = root
        self._paths: dict[int, str] = {}  # by number of the watch
        self._at: dict[str, int] = {}
        self._files: set[str] = set()
        self._named: set[int] = set()  # watches that report names in their directory

    def fileno(self) -> int:
        return self.fd

    def add(self, path: str, what: WatchEvent) -> bool:
        try:
            # through the descriptor: the directory of the store may have been renamed
            number = add_watch(self.fd, f"/proc/self/fd/{self._root.fd}/{path}", _MASKS[what])
        except OSError as error:
            number_of(error)
            self.drop(path)
            return False
        old = self._at.get(path)
        if old is not None and old != number:  # the name leads to another file now
            self.drop(path)
        self._paths[number], self._at[path] = path, number
        if what == "writes":
            self._files.add(path)
        elif what == "closings":
            self._named.add(number)
        return True

    def wait(self, seconds: float | None) -> frozenset[str]:
        poll = select.poll()
        poll.register(self.fd, select.POLLIN)
        poll.poll(None if seconds is None else min(int(seconds * 1000) + 1, _WAIT_MS_MAX))
        return self.take()

    def take(self) -> frozenset[str]:
        changed: set[str] = set()
        try:
            while data := os.read(self.fd, _READ_BYTES):
                at = 0
                while at < len(data):
                    number, mask, _, length = _EVENT.unpack_from(data, at)
                    at += _EVENT.size + length
                    self._note(number, mask, changed, data[at - length : at])
        except OSError as error:  # nothing more; or it is closed
            number_of(error)
        return frozenset(changed)

    def _note(self, number: int, mask: int, changed: set[str], name: bytes) -> None:
        if mask & _OVERFLOW:
            changed.update(self._at)
        path = self._paths.get(number, "")
        if path and name and number in self._named:
            if mask & ~_ATTRIB:  # a new mode of a file is no event
                changed.add(f"{path}/{os.fsdecode(name.rstrip(bytes(1)))}")
        else:
            changed.add(path)
        if mask & (_ATTRIB | _MOVE_SELF) and path in self._files:
            changed.add("")  # it may have lost its name, while a process has it open
        if mask & _IGNORED and path:
            self._paths.pop(number, None)  # another thread may drop it at the same moment
            self._named.discard(number)
            if self._at.get(path) == number:
                self._at.pop(path, None)

    def drop(self, path: str) -> None:
        number = self._at.pop(path, None)
        if number is None:
            return
        self._paths.pop(number, None)
        self._named.discard(number)
        self._files.discard(path)
        try:
            remove_watch(self.fd, number)
        except OSError as error:
            number_of(error)

    def has(self, path: str) -> bool:
        return path in self._at

    def ring(self) -> None:
        try:  # the end of a watch is an event: no second descriptor is needed
            here = f"/proc/self/fd/{self._root.fd}"
            remove_watch(self.fd, add_watch(self.fd, here, _MOVE_SELF))
        except OSError as error:
            number_of(error)
