"""The protocols of a disk, the rule for paths, and OSError as our errors.

`posix` implements them; so does the disk in memory of the tests, with a model of power loss, and
one suite runs over both. Paths are text relative to the root of the store, with parts separated by
'/', never absolute and never with '.' or '..'.

An OSError without a number comes from no system call: a signal handler raised it during one, as job
runners do with TimeoutError when time is up. It does not concern the disk and passes unchanged,
like KeyboardInterrupt (R28).
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from txlog.base.startup.crc32c import crc32c
from txlog.errors import (
    AlreadyClosed,
    Corruption,
    DiskFailed,
    MissingFile,
    NameTaken,
    NoResources,
    ReadOnlyStore,
    StoreFull,
    TxlogError,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

# Where one process serves many users: a function that returns the number and name of the user that
# this thread or task calls for. That user owns the transactions and keys that the calls begin. Each
# call asks it anew, because a user may lose a right while a connection is open. None: the user of
# the process.
ACTING: ContextVar[Callable[[], tuple[int, str] | None] | None] = ContextVar("ACTING", default=None)

TEMPORARY_PREFIX = ".tmp-"
"""Prefix of an unpublished name: readers of a directory ignore it, the sweeper removes it."""

GROUP_FILES = 128  # files published together: one descriptor is open for each
READ_BACK_BYTES = 1 << 20  # compared at a time when reading back, to bound memory

_ERRORS: dict[int, type[TxlogError]] = {
    errno.ENOENT: MissingFile,
    errno.EEXIST: NameTaken,
    errno.EROFS: ReadOnlyStore,
    errno.EACCES: ReadOnlyStore,
    errno.EPERM: ReadOnlyStore,
    errno.ENOSPC: StoreFull,
    errno.EDQUOT: StoreFull,
    errno.EFBIG: StoreFull,  # RLIMIT_FSIZE
    errno.EMFILE: NoResources,
    errno.ENFILE: NoResources,
    errno.ENOMEM: NoResources,
    errno.ENOLCK: NoResources,
    errno.EBADF: AlreadyClosed,
    errno.ELOOP: Corruption,  # a link where a file should be
    errno.ENOTDIR: Corruption,
    errno.EISDIR: Corruption,
    errno.ENXIO: Corruption,  # a socket or a device
}


_READING = frozenset(("open", "read", "list", "look at"))


class File(Protocol):
    """An open regular file. Offsets and lengths in bytes."""

    def pread(self, offset: int, length: int) -> bytes:
        """Return the bytes at offset; fewer than length only at the end of the file."""

    def pwrite(self, offset: int, data: Buffer | Sequence[Buffer]) -> None:
        """Write all of data (a buffer, or a list or tuple of buffers) at offset, or raise.

        raises: StoreFull (part may be written), DiskFailed
        """

    def datasync(self) -> None:
        """Make every byte written to the file durable; DiskFailed is final (R13)."""

    def size(self) -> int:
        """Return the length of the file."""

    def close(self) -> None:
        """Let go of the descriptor; harmless when repeated."""


class LockFile(Protocol):
    """An exclusive lock for one holder among all processes; freed by the death of its process.

    One handle is one holder: two handles exclude each other, also within a process. A handle must
    not be acquired twice without a release between.

    is_open: until `close`; a lock taken for good is held until then
    """

    is_open: bool

    def acquire(self, timeout_ms: int, meanwhile: Callable[[], bool] | None = None) -> bool:
        """Take the lock, waiting up to timeout_ms; StoreLocked names the holder.

        meanwhile: called before every further try; True: the caller no longer needs the lock, and
                   this returns False
        """

    def try_acquire(self) -> bool:
        """Take the lock if it is free now."""

    def release(self) -> None:
        """Give the lock back; harmless when it is not held or the handle is closed."""

    def close(self) -> None:
        """Let go of the descriptor, and with it of the lock."""

    def holder(self) -> tuple[int, str] | None:
        """Return pid and command line of the holder, None when free or unknown. Takes no lock."""


WatchEvent: TypeAlias = Literal["writes", "names", "closings", "moves"]
RootFate: TypeAlias = Literal["there", "removed", "moved", "replaced"]


class Watch(Protocol):
    """Reports changes to files of a store, made by any process; for one caller at a time."""

    def fileno(self) -> int:
        """Return the descriptor that becomes readable with the next event."""

    def add(self, path: str, what: WatchEvent) -> bool:
        """Report events of a path from now on; False if that is impossible.

        what: "writes" to a file, and its end; "names" that come to a directory; "closings" in a
              directory: a file that was open for writing was closed, or a file was removed, which
              reports that file, or `announce`, which reports the directory; "moves" of a directory,
              and its end
        Needed again after the file or directory of that name was replaced, and harmless otherwise.
        """

    def drop(self, path: str) -> None:
        """Stop reporting a path; harmless for a path that was never added."""

    def has(self, path: str) -> bool:
        """Whether this path is still watched."""

    def wait(self, seconds: float | None) -> frozenset[str]:
        """Wait for an event, or until time is up; then as take."""

    def take(self) -> frozenset[str]:
        """Return the paths that changed since the last call; "" for a ring or an ended watch."""

    def ring(self) -> None:
        """End the wait of the waiting thread, or else the next wait; from any thread."""

    def close(self) -> None:
        """Let go of the descriptor; harmless when repeated."""


class Draft(Protocol):
    """A file that is written before it has its name; for one thread.

    Until it is published or closed it is a temporary whose lock is held (R19), and one descriptor.
    path: the name that it gets
    """

    path: str

    def write(self, part: Buffer) -> None:
        """Write the next bytes, which are not kept. After a failure the draft can only be closed.

        raises: StoreFull (part may be written), DiskFailed
        """

    def publish(self) -> None:
        """Flush the file, read it back, and give it its name: as `Disk.publish`. Once.

        raises: NameTaken, StoreFull, DiskFailed (not done); OutcomeUnknown (R31)
        """

    def close(self) -> None:
        """Let go of the descriptor; remove an unpublished file. Harmless when repeated."""


class Disk(Protocol):
    """One store's directory."""

    @property
    def read_only(self) -> bool:
        """Whether every call with an effect raises ReadOnlyStore."""

    @property
    def description(self) -> str:
        """The path of the root, for display."""

    def leads_to(self, path: str, file: File) -> bool:
        """Whether a path leads to an open file, by the name that the store was opened with.

        True where the disk cannot tell.
        """

    def fate(self) -> RootFate:
        """Return what happened to the store's directory, "there" if its name still leads to it.

        Also "there" where the disk cannot tell.
        """

    def files_kept(self) -> int:
        """Return how many files a user of the disk may keep open besides those in use."""

    def open(self, path: str, write: bool = False) -> File:
        """Open a file that exists; MissingFile when it does not."""

    def read(self, path: str) -> bytes:
        """Return the whole of a file; MissingFile when it is absent."""

    def size(self, path: str) -> int:
        """Return the length of a file; MissingFile when it is absent."""

    def exists(self, path: str) -> bool:
        """Whether the name exists, as a file of any kind."""

    def listdir(self, path: str) -> list[str]:
        """Return the names in a directory, sorted, temporaries included; [] when it is absent."""

    def make_dirs(self, path: str) -> None:
        """Make the directory and those above it, durably."""

    def publish(self, path: str, parts: Sequence[Buffer]) -> None:
        """Publish the joined parts under a name never used before, whole and durable or not at all
        (R3).

        raises: NameTaken, StoreFull, DiskFailed (not done); OutcomeUnknown (R31)
        """

    def publishing(
        self, path: str, parts: Sequence[Buffer] | Stream
    ) -> AbstractContextManager[None]:
        """Publish, and hold the file's lock during the body: upkeep's sweep leaves it (R19).

        raises: as publish; an exception of the body passes through, and the file stays
        """

    def begin(self, path: str) -> Draft:
        """Begin a file that will be published under a name never used before.

        raises: StoreFull, DiskFailed, NoResources
        """

    def scratch(self) -> File:
        """Make a file without a name for bytes that are read again soon: closing it removes it.

        It is in the store, which has room for the result; where the store is read-only, in the
        system's directory for temporary files.
        raises: StoreFull, DiskFailed, NoResources
        """

    def publish_all(self, files: Iterable[tuple[str, Sequence[Buffer]]]) -> None:
        """Publish many files with few flushes, in groups; the last flush is for all names.

        If a file is refused, those before it stay where they are: their names are used up (R3).
        raises: as publish
        """

    def write_fresh(self, path: str, data: Buffer) -> None:
        """Create a file with data, durably but not atomically: a crash may leave part of it.

        raises: NameTaken, StoreFull, DiskFailed (not done); OutcomeUnknown (R31)
        """

    def unlink(self, path: str, missing_ok: bool = True) -> None:
        """Remove a name; durable with the next sync_dir."""

    def link(self, source: str, path: str) -> None:
        """Give a published file a second name, never used before; durable with the next sync_dir.

        raises: NameTaken, MissingFile (no source), StoreFull, DiskFailed
        """

    def kind(self, path: str) -> str:
        """The kind of file that a name leads to, links not followed; "" when it is absent.

        file, directory, link, pipe, socket, device, or unreadable (a file without permission to
        read)
        """

    def move(self, source: str, path: str) -> None:
        """Rename a file of any kind; durable with sync_dir of both directories.

        Only for files that do not belong in a store: a published file is linked, never replaced.
        """

    def remove_dir(self, path: str) -> bool:
        """Remove a directory if it is empty or absent; False when it is not empty."""

    def sync_dir(self, path: str) -> None:
        """Make the names in a directory durable."""

    def lock_file(self, path: str, create: bool = True) -> LockFile:
        """Open a lock file, made if absent and create is set; taking it is a separate call."""

    def watch(self) -> Watch | None:
        """Return a watch of changes to files, None where that is impossible."""

    def announce(self, path: str) -> None:
        """Give an event to every watch of the closings in a directory; ignores failure."""

    def random_bytes(self, n: int) -> bytes:
        """Return n unpredictable bytes."""

    def free_bytes(self) -> int:
        """Return how many bytes this user may still write."""

    def pid(self) -> int:
        """Return the id of this process."""

    def owner(self) -> tuple[int, str]:
        """Return the user that the caller acts for (`ACTING`), else id and name of the effective
        user.
        """

    def close(self) -> None:
        """Let go of cached descriptors; open files and locks stay."""


class Stream:
    """Parts of a file that come one by one and are not kept; read once, compared by checksum."""

    __slots__ = ("_bytes", "_parts", "sums")

    def __init__(self, parts: Iterable[Buffer] = ()) -> None:
        self._parts = parts
        self._bytes = 0
        self.sums: list[tuple[int, int]] = []  # length and CRC32C of each part so far

    def write(self, write: Callable[[int, memoryview], None]) -> None:
        """Give each part and its offset to `write`."""
        for part in self._parts:
            self.push(part, write)

    def push(self, part: Buffer, write: Callable[[int, memoryview], None]) -> None:
        """Give one more part and its offset to `write`."""
        view = memoryview(part).cast("B")
        self.sums.append((view.nbytes, crc32c(view)))
        offset, self._bytes = self._bytes, self._bytes + view.nbytes
        write(offset, view)


def number_of(error: OSError) -> int:
    """Return the errno of an error of the system; raise an error that has none."""
    if error.errno is None:
        raise error
    return error.errno


def is_of_handler(error: BaseException) -> bool:
    """Whether a signal handler raised it; Arrow, too, raises plain OSErrors without a number."""
    return isinstance(error, OSError) and error.errno is None and type(error) is not OSError


class IgnoringFailure:
    """A block whose failure changes nothing; errors that do not come from the disk pass through."""

    __slots__ = ()

    def __enter__(self) -> None:
        """Nothing to begin."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        return isinstance(error, OSError) and error.errno is not None


def failure(error: OSError, action: str, path: str) -> TxlogError:
    """Return our error for an OSError of `action` on `path`; raise it if it is not the disk's."""
    number = number_of(error)
    reason = error.strerror or str(error)
    name = errno.errorcode.get(number, "")
    kind = _ERRORS.get(number, DiskFailed)
    if number in (errno.EACCES, errno.EPERM) and action in _READING:
        kind = DiskFailed  # failing to read does not make it a read-only store
    if kind is AlreadyClosed:
        reason = "the handle is closed or belongs to another process"
    elif kind is Corruption:
        reason = "not a regular file or directory of the store"
    return kind(f"cannot {action} {path}: {reason}", path=path, errno=name)


def flush_failure(error: OSError, path: str) -> TxlogError:
    """Return our error for a failed flush: DiskFailed whatever the reason, as it is final.

    raises: the error, if it is not the disk's: the flush was cut short or done, but did not fail
    """
    number = number_of(error)
    if number == errno.EBADF:
        return failure(error, "flush", path)
    name = errno.errorcode.get(number, "")
    return DiskFailed(f"cannot flush {path}: {error.strerror}", path=path, errno=name)


def split(path: str) -> tuple[str, str]:
    """Return directory and name of a path; Corruption when a name could escape its directory."""
    parent, _, name = path.rpartition("/")
    if name in ("", ".", "..") or "\0" in name or path[0] == "/":
        raise Corruption(f"not a path inside a store: {path}", path=path)
    return parent, name


def as_views(data: Buffer | Sequence[Buffer]) -> list[memoryview]:
    """Return data as flat views of bytes, empty ones left out."""
    parts = data if isinstance(data, list | tuple) else (data,)
    return [memoryview(part).cast("B") for part in parts if memoryview(part).nbytes]


def compare(file: File, parts: Buffer | Sequence[Buffer] | Stream, path: str) -> None:
    """Raise DiskFailed unless a file, opened afresh, holds exactly the parts (R3)."""
    offset = 0
    if isinstance(parts, Stream):
        for length, expected in parts.sums:
            crc, end = 0, offset + length
            while offset < end:
                piece = file.pread(offset, min(READ_BACK_BYTES, end - offset))
                if not piece:
                    raise DiskFailed(f"{path} reads back shorter", path=path, offset=offset)
                crc = crc32c(piece, crc)
                offset += len(piece)
            if crc != expected:
                raise DiskFailed(f"{path} reads back differently", path=path, offset=end - length)
    else:
        for view in as_views(parts):
            for start in range(0, view.nbytes, READ_BACK_BYTES):
                want = bytes(view[start : start + READ_BACK_BYTES])
                if file.pread(offset, len(want)) != want:
                    raise DiskFailed(f"{path} reads back differently", path=path, offset=offset)
                offset += len(want)
    if file.size() != offset:
        raise DiskFailed(f"{path} reads back longer", path=path, offset=offset)
