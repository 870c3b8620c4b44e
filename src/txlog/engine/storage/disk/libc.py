"""Functions of the C library that Python's `os` lacks: syncfs, statx, inotify, one heap.

ctypes takes 2 ms to import, so the first call here imports it; most processes make none. Where the
library lacks a function, calls return False or raise, and callers use another way.
"""

from __future__ import annotations

import importlib
import os
import re
import struct
import sys
from functools import cache
from typing import Any

_AT_FDCWD, _AT_SYMLINK_NOFOLLOW, _STATX_INO = -100, 0x100, 0x100
_STATX_BYTES = 256
_RENAME_EXCHANGE = 2
_ENCODING, _ERRORS = sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()
_M_ARENA_MAX = -8
_STATX = struct.Struct("=32xQ96xII")  # stx_ino, stx_dev_major, stx_dev_minor

# The first field of struct statfs. On these file systems, syncfs reports every failed write:
_EXT4, _XFS, _BTRFS = 0xEF53, 0x58465342, 0x9123683E
_SYNCED_WHOLE = frozenset((_EXT4, _XFS, _BTRFS))
# On these, every write passes through this kernel, so inotify reports every write. (On other file
# systems a server or host may write for other machines.) In order: tmpfs, ramfs, overlay, ZFS,
# F2FS, bcachefs, JFS.
_TELLING = _SYNCED_WHOLE | {
    0x01021994, 0x858458F6, 0x794C7630, 0x2FC12FC1, 0xF2F52010, 0xCA451A4E, 0x3153464A,
}  # fmt: skip


@cache
def _library() -> Any:
    return importlib.import_module("ctypes").CDLL(None, use_errno=True)


def _has(*names: str) -> bool:
    return sys.platform == "linux" and all(hasattr(_library(), name) for name in names)


def _kind(fd: int) -> int:
    """The kind of file system a descriptor is on, 0 if unknown."""
    fields = bytearray(512)  # struct statfs
    statfs = (importlib.import_module("ctypes").c_char * len(fields)).from_buffer(fields)
    if _library().fstatfs(fd, statfs):
        return 0
    return int.from_bytes(fields[:8], sys.byteorder)


def sync_file_system(fd: int) -> bool:
    """Flush the whole file system that fd is on: one flush for many files.

    returns: False if it failed or cannot be trusted: then flush each file. Linux reports a failed
             write here since 5.8, and only some file systems are known to hide none; each open
             descriptor still reports whether it was its file.
    """
    version = re.match(r"(\d+)\.(\d+)", os.uname().release)
    if version is None or (int(version[1]), int(version[2])) < (5, 8):
        return False
    if not _has("syncfs", "fstatfs") or _kind(fd) not in _SYNCED_WHOLE:
        return False
    return not _library().syncfs(fd)


def inode_of(path: str) -> tuple[int, int]:
    """Device and inode of a name, links not followed, without asking for times.

    Since Linux 6.13, a process that asks for the times of a file makes the next write stamp it
    anew; ext4 then waits for its journal. A statx call names the fields that it needs.

    raises: OSError: as lstat does; NotImplementedError: there is no statx
    """
    call, buffer = _statx()
    fields = bytearray(_STATX_BYTES)
    buffer_at = buffer.from_buffer(fields)
    name = path.encode(_ENCODING, _ERRORS)
    if call(_AT_FDCWD, name, _AT_SYMLINK_NOFOLLOW, _STATX_INO, buffer_at) < 0:
        raise _failed()
    inode, major, minor = _STATX.unpack_from(fields)
    return os.makedev(major, minor), inode


@cache
def _statx() -> Any:
    """The function statx, and the type of the buffer that it fills."""
    if not _has("statx"):
        raise NotImplementedError("no statx")
    return _library().statx, importlib.import_module("ctypes").c_char * _STATX_BYTES


def exchange(first: str, second: str) -> None:
    """Exchange two names of a file system in one step. Raises OSError where that cannot be done."""
    if not _has("renameat2"):
        raise OSError(38, "no renameat2")
    names = [os.fsencode(name) for name in (first, second)]
    _checked(_library().renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE))


def share_heap() -> None:
    """Make all threads allocate from one heap; call this before there are other threads.

    glibc returns freed memory to its heap only. If each thread of a stream has its own heap, the
    process grows by as much as each has ever needed.
    """
    if _has("mallopt"):
        _library().mallopt(_M_ARENA_MAX, 1)


def open_inotify(fd: int) -> int:
    """A new inotify descriptor, if inotify reports every change on the file system of fd.

    raises: OSError: there is none, or there are too many
    """
    if not _has("inotify_init1", "inotify_add_watch", "inotify_rm_watch", "fstatfs"):
        raise OSError(38, "no inotify")
    if _kind(fd) not in _TELLING:
        raise OSError(95, "inotify would not tell of all writes")
    return _checked(_library().inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))


def add_watch(fd: int, path: str, mask: int) -> int:
    """The number of the watch on a path; the same number for the same file. Raises OSError."""
    return _checked(_library().inotify_add_watch(fd, os.fsencode(path), mask))


def remove_watch(fd: int, number: int) -> None:
    """End a watch; the descriptor reports that, too. Raises OSError."""
    _checked(_library().inotify_rm_watch(fd, number))


def _checked(answer: int) -> int:
    if answer < 0:
        raise _failed()
    return answer


def _failed() -> OSError:
    number = importlib.import_module("ctypes").get_errno()
    return OSError(number, os.strerror(number))
