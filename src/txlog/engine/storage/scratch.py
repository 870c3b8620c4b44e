"""Owns Scratch: bytes that are put aside and read again, in a file that nobody else sees.

It has no name, so nothing of it is left by whatever ends the process, and nothing of it is flushed.
What is read back is checked all the same: nothing reaches pyarrow unchecked (spec/reliability R5).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from txlog.base.startup.crc32c import crc32c
from txlog.engine.storage.disk.protocol import Disk, as_views
from txlog.errors import DiskFailed

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Kept(NamedTuple):
    """Where bytes lie in a scratch file."""

    offset: int
    length: int
    crc: int


class Scratch:
    """A file for what is put aside; for one thread."""

    __slots__ = ("_file", "bytes")

    def __init__(self, disk: Disk) -> None:
        """Raises StoreFull, DiskFailed, NoResources."""
        self._file = disk.scratch()
        self.bytes = 0

    def put(self, parts: Sequence[Buffer]) -> Kept:
        """Put the joined parts aside; raises StoreFull, DiskFailed."""
        views, crc = as_views(parts), 0
        for view in views:
            crc = crc32c(view, crc)
        kept = Kept(self.bytes, sum(view.nbytes for view in views), crc)
        self._file.pwrite(kept.offset, views)
        self.bytes += kept.length
        return kept

    def get(self, kept: Kept) -> bytes:
        """What was put there; raises DiskFailed."""
        data = self._file.pread(kept.offset, kept.length)
        if len(data) != kept.length or crc32c(data) != kept.crc:
            raise DiskFailed("a temporary file reads back differently", offset=kept.offset)
        return data

    def close(self) -> None:
        """Let go of it all; harmless when repeated."""
        self._file.close()
