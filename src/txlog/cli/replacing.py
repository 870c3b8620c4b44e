"""Owns how a named output file is replaced at once: a reader sees the old bytes or the new ones."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from txlog.errors import DiskFailed


def replace_file(path: str, data: bytes) -> None:
    """Put data in place of the file, or make it; durable when it returns.

    The temporary lies beside it, for a rename is atomic only within a file system; its name ends
    in none of the suffixes that collectors look for.
    raises: DiskFailed: the old file is as it was
    """
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        try:
            _write(temporary, data)
            os.replace(temporary, target)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
        _flush_directory(target.parent)
    except OSError as error:
        raise DiskFailed(f"{path}: {error.strerror}", path=path) from error


def _write(temporary: Path, data: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(temporary, flags, 0o644), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _flush_directory(directory: Path) -> None:
    number = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(number)
    finally:
        os.close(number)
