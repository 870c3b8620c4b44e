"""Files outside any store that users name: replaced whole and durably, or left as they were.

Another process sees all old bytes or all new bytes, and never a part.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from txlog.engine.storage.disk.libc import exchange
from txlog.engine.storage.disk.protocol import IgnoringFailure, is_of_handler
from txlog.errors import AlreadyExists, DiskFailed, NotAllowed, TxlogError


def replace_file(path: str, data: bytes) -> None:
    """Put data in place of the file, or make it; durable when it returns.

    raises: DiskFailed: the old file is as it was
    """
    with replacing(path) as file:
        file.write(data)


@contextmanager
def replacing(path: str, *, only_new: bool = False) -> Iterator[BinaryIO]:
    """Yield a temporary file that replaces `path` durably when the block ends; not if it raises.

    The temporary is in the same directory, as a rename is atomic only within a file system;
    collectors ignore its name, which has none of their suffixes.
    only_new: an existing file is not replaced
    raises:   DiskFailed; AlreadyExists
    """
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        try:
            with os.fdopen(os.open(temporary, flags, 0o644), "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            if only_new:
                os.link(temporary, target)
                os.unlink(temporary)
            else:
                os.replace(temporary, target)
        except BaseException:  # Ctrl-C, too, leaves no temporary
            with IgnoringFailure():
                os.unlink(temporary)
            raise
        _flush_directory(target.parent)
    except OSError as error:
        raise _failure(error, path) from error


def _failure(error: OSError, path: str) -> TxlogError:
    if is_of_handler(error):
        raise error
    if isinstance(error, FileExistsError):
        return AlreadyExists(f"{path} exists", path=path)
    return DiskFailed(f"{path}: {error.strerror or error}", path=path)


def _flush_directory(directory: Path) -> None:
    number = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def state_home() -> str | None:
    """The directory for state of a user's programs: $XDG_STATE_HOME, or ~/.local/state; or None.

    The standard requires programs to ignore a relative path.
    """
    configured = os.environ.get("XDG_STATE_HOME", "")
    home = os.path.expanduser("~")
    if os.path.isabs(configured):
        return configured
    return f"{home}/.local/state" if os.path.isabs(home) else None


def real_path(path: str) -> str:
    """A path without links."""
    return os.path.realpath(path)


def read_file(path: str, bytes_max: int) -> bytes | None:
    """The bytes of a file of this user or root; None: missing, not readable, too large, foreign.

    raises: DiskFailed
    """
    try:
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        with os.fdopen(number, "rb") as file:
            if os.fstat(file.fileno()).st_uid not in (os.geteuid(), 0):
                return None
            data = file.read(bytes_max + 1)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    except OSError as error:
        raise _failure(error, path) from error
    return data if len(data) <= bytes_max else None


def names_in(path: str, most: int) -> list[str]:
    """The first `most` names in a directory, sorted; none if it is missing or not readable.

    raises: DiskFailed
    """
    try:
        return sorted(os.listdir(path))[:most]
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []
    except OSError as error:
        raise _failure(error, path) from error


def remove_files(paths: Iterable[str]) -> None:
    """Remove existing files, and flush their directories.

    raises: DiskFailed
    """
    above: set[Path] = set()
    for path in map(Path, paths):
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise _failure(error, str(path)) from error
        above.add(path.parent)
    for directory in above:
        _flush_directory(directory)


def rename_file(path: str, name: str) -> None:
    """Give a file another name in its directory, durably; a missing file may have it already.

    raises: DiskFailed
    """
    target = Path(path).with_name(name)
    try:
        with suppress(FileNotFoundError):
            os.replace(path, target)
        _flush_directory(target.parent)
    except OSError as error:
        raise _failure(error, path) from error


def move_directory(path: str, target: str) -> None:
    """Give a directory another name, durably; an empty directory there is replaced.

    raises: AlreadyExists (the other is not empty), DiskFailed
    """
    try:
        os.rename(path, target)
        for parent in {Path(path).parent, Path(target).parent}:
            _flush_directory(parent)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise AlreadyExists(f"{target} is not an empty directory", path=target) from error
        raise _failure(error, target) from error


def exchange_directories(first: str, second: str) -> None:
    """Exchange the names of two directories durably: after a crash both are as before, or both new.

    raises: NotAllowed (the file system cannot), DiskFailed
    """
    try:
        exchange(first, second)
        for parent in {Path(first).parent, Path(second).parent}:
            _flush_directory(parent)
    except OSError as error:
        if error.errno in (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
            raise NotAllowed(
                f"the file system of {first} cannot exchange two directories in one step",
                hint="restore to a new place, and move the directories",
                path=first,
            ) from error
        raise _failure(error, second) from error


def make_directory(path: str) -> None:
    """Make a directory and its parents; it may exist; its name is durable.

    raises: DiskFailed
    """
    target = Path(path)
    missing = [parent for parent in (target, *target.parents) if not parent.is_dir()]
    try:
        target.mkdir(parents=True, exist_ok=True)
        for parent in missing:
            _flush_directory(parent.parent)
    except OSError as error:
        raise _failure(error, path) from error
