"""Owns the bytes of an input: blocks from a descriptor."""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Iterator

from txlog.errors import DiskFailed, NotFound

_BLOCK_BYTES = 1 << 20


def check_files(paths: list[str]) -> None:
    """Refuse paths that cannot be read, before anything is written.

    raises: NotFound (308), DiskFailed (102)
    """
    for path in paths:
        if path == "-":
            continue
        if not os.path.exists(path):
            raise NotFound(f"no file {path}", path=path)
        if os.path.isdir(path):
            raise DiskFailed(f"{path} is a directory", path=path)


def read_blocks(path: str | None, wait_s: Callable[[], float | None]) -> Iterator[bytes | None]:
    """Yield the bytes of a file, of stdin for None or `-`; None when nothing came in wait_s()."""
    if path is not None and path != "-":
        with open(path, "rb") as file:
            while block := file.read(_BLOCK_BYTES):
                yield block
        return
    try:
        number = sys.stdin.fileno()
    except (OSError, ValueError, AttributeError):  # closed, or replaced by a test or a notebook
        if sys.stdin is not None and not sys.stdin.closed:
            yield sys.stdin.read().encode("utf-8", "surrogateescape")
        return
    coming = select.poll()  # `select.select` takes no descriptor from 1,024 on
    coming.register(number, select.POLLIN)
    while True:
        seconds = wait_s()
        if not coming.poll(None if seconds is None else max(0, seconds) * 1000):
            yield None
            continue
        data = os.read(number, _BLOCK_BYTES)
        if not data:
            return
        yield data
