"""Owns Scratch: temporary bytes, in a file that no other process sees.

The file has no name, so it vanishes however the process ends, and it is never flushed. Bytes that
are read back are checked all the same: nothing reaches pyarrow unchecked (spec/reliability R5).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from txlog.base.startup.crc32c import crc32c
from txlog.engine.storage.disk.protocol import Disk, as_views
from txlog.errors import DiskFailed

if TYPE_CHECKING:
    from typing_extensions import Buffer


class ScratchSlot(NamedTuple):
    """The position of bytes in a scratch file."""

    offset: int
    length: int
    crc: int


class Scratch:
    """A file for temporary bytes; for one thread."""

    __slots__ = ("_file", "bytes")

    def __init__(self, disk: Disk) -> None:
        """Raises StoreFull, DiskFailed, NoResources."""
        self._file = disk.scratch()
        self.bytes = 0

    def put(self, parts: Sequence[Buffer]) -> ScratchSlot:
        """Write the joined parts; raises StoreFull, DiskFailed."""
        views, crc = as_views(parts), 0
        for view in views:
            crc = crc32c(view, crc)
        slot = ScratchSlot(self.bytes, sum(view.nbytes for view in views), crc)
        self._file.pwrite(slot.offset, views)
        self.bytes += slot.length
        return slot

    def get(self, slot: ScratchSlot) -> bytes:
        """The bytes of an earlier `put`; raises DiskFailed."""
        data = self._file.pread(slot.offset, slot.length)
        if len(data) != slot.length or crc32c(data) != slot.crc:
            raise DiskFailed("a temporary file reads back differently", offset=slot.offset)
        return data

    def close(self) -> None:
        """Close and so remove the file; harmless when repeated."""
        self._file.close()
