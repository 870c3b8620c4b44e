"""Owns descriptors and open files: reading and writing with every byte, or an error of ours.

A forked child closes every inherited descriptor at once and never unlocks; all its handles are then
AlreadyClosed (R27). Only `disk` uses this module.
"""

from __future__ import annotations

import errno
import importlib
import os
import re
import sys
import weakref
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, NoReturn

from txlog.engine.storage.disk.protocol import as_views, failure, flush_failure

if TYPE_CHECKING:
    from typing_extensions import Buffer

VECTOR_MAX = 1024  # buffers Linux takes in one pwritev (IOV_MAX)
_CLOSED = 2**31 - 1  # no descriptor; some calls of Python refuse -1 with an error of its own

_handles: weakref.WeakSet[Handle] = weakref.WeakSet()


class Handle:
    """A descriptor that a forked child closes; one that nobody has any more is closed, too."""

    __slots__ = ("__weakref__", "fd", "path")

    def __init__(self, fd: int, path: str) -> None:
        self.fd = fd
        self.path = path
        _handles.add(self)

    def close(self) -> None:
        fd, self.fd = self.fd, _CLOSED  # a later use finds EBADF, never a stranger's descriptor
        try:  # no call comes between, in which an interrupt could lose what holds a lock
            os.close(fd)
        except OSError as error:  # close promises nothing (R33)
            if error.errno is None:
                raise

    def __reduce__(self) -> NoReturn:
        """Two handles of one descriptor would close it twice, the second time a stranger's."""
        raise TypeError("an open store cannot be copied or pickled: open it again where it is used")

    def __del__(self) -> None:
        if getattr(self, "fd", _CLOSED) != _CLOSED:  # an interrupt may end the making of one
            self.close()

    def stat(self) -> os.stat_result:
        try:
            return os.fstat(self.fd)
        except OSError as error:
            raise failure(error, "look at", self.path) from error


def _close_inherited() -> None:
    """Close, in a forked child, what belongs to the parent. Never LOCK_UN: R27."""
    for handle in list(_handles):
        handle.close()


os.register_at_fork(after_in_child=_close_inherited)


class PosixFile(Handle):
    """`File` on a descriptor; one system call each where all goes well."""

    __slots__ = ()

    def pread(self, offset: int, length: int) -> bytes:
        try:
            data = os.pread(self.fd, length, offset)
            while len(data) < length:  # only nothing at all is the end
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
                write_all(self.fd, offset, data)  # after a short write: all again, to learn why
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
    """Write all of data, however short each transfer; an OSError says why it could not be."""
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


def sync_file_system(fd: int) -> bool:
    """Flush all of the file system that fd lies on by one call: for many files it is one flush.

    returns: False where that did not work or is not to be trusted: flush each file then. Linux
             tells of a write that failed since 5.8, and only of some file systems it is known that
             they hide none; of which file it was each descriptor that is open still tells.
    """
    libc = _libc()
    if libc is None:
        return False
    found = bytearray(512)  # struct statfs; it begins with the kind
    statfs = (importlib.import_module("ctypes").c_char * len(found)).from_buffer(found)
    if libc.fstatfs(fd, statfs) or int.from_bytes(found[:8], sys.byteorder) not in _SYNCED_WHOLE:
        return False
    return not libc.syncfs(fd)


@cache
def _libc() -> Any:
    """The C library, where syncfs is there and tells of errors; else None."""
    found = re.match(r"(\d+)\.(\d+)", os.uname().release)
    if sys.platform != "linux" or found is None or (int(found[1]), int(found[2])) < (5, 8):
        return None
    library = importlib.import_module("ctypes").CDLL(None)  # a ms that few need
    return library if hasattr(library, "syncfs") and hasattr(library, "fstatfs") else None


# ext4, xfs, btrfs: the first field of struct statfs.
_SYNCED_WHOLE = frozenset((0xEF53, 0x58465342, 0x9123683E))
