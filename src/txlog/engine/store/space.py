"""Room on the disk: sends stop before it is full; a reserve lets calls finish that free space.

Source: spec/reliability R30.
"""

from __future__ import annotations

from txlog.engine.storage.disk.protocol import Disk
from txlog.errors import StoreFull

RESERVE_PATH = "reserve"
# The free space of the file system is checked once in this many frames with rows.
CHECK_FRAMES = 64
CHECK_BYTES = 1 << 20


class DiskSpace:
    """Watches the free space of a disk for one store."""

    __slots__ = ("_disk", "_frames")

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._frames = CHECK_FRAMES

    def check(self, rows_bytes: int, free_bytes_min: int) -> None:
        """Before a send: raises StoreFull while abort, ack and delete still have room."""
        self._frames += 1
        if self._frames < CHECK_FRAMES and rows_bytes < CHECK_BYTES:
            return
        self._frames = 0
        free = self._disk.free_bytes()
        if free < free_bytes_min + rows_bytes:
            self._frames = CHECK_FRAMES
            raise StoreFull(
                f"{free} bytes are free, sends stop below free_bytes_min {free_bytes_min}; "
                "nothing was written",
                hint="free space, or acknowledge and trim",
                path=self._disk.description,
                setting="free_bytes_min",
            )

    def release_reserve(self) -> bool:
        """Give the blocks of the reserve back, so that an abort or an ack finds room."""
        if not self._disk.exists(RESERVE_PATH):
            return False
        self._disk.unlink(RESERVE_PATH)
        return True
