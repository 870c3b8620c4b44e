"""Scratch: data put aside comes back unchanged, or raises an error."""

from __future__ import annotations

import random

import pytest

from tests.disk.memory import Killed, MemoryDisk
from txlog.engine.storage.disk.protocol import TEMPORARY_PREFIX, File
from txlog.engine.upkeep.space.topic_compaction import Scratch
from txlog.errors import DiskFailed, StoreFull


class Seen(MemoryDisk):
    """A disk that shows the scratch file."""

    seen: File

    def scratch(self) -> File:  # type: ignore[override]
        """The same, and it is remembered."""
        self.seen = super().scratch()
        return self.seen


def test_data_put_aside_comes_back_in_any_order() -> None:
    aside = Scratch(MemoryDisk())
    slots = [aside.put([b"%d" % n, b"", b"x" * n]) for n in range(50)]
    assert aside.bytes == sum(slot.length for slot in slots)
    order = [*range(50)]
    random.Random(3).shuffle(order)
    for n in order:
        assert aside.get(slots[n]) == b"%d" % n + b"x" * n
    assert aside.get(aside.put([])) == b""


def test_changed_scratch_data_is_refused() -> None:
    """R5; kills: a missing checksum, or one that omits the length."""
    disk = Seen()
    aside = Scratch(disk)
    slot, other = aside.put([b"abc"]), aside.put([b"def"])
    disk.seen.pwrite(1, b"B")
    with pytest.raises(DiskFailed):
        aside.get(slot)
    assert aside.get(other) == b"def"
    with pytest.raises(DiskFailed):
        aside.get(other._replace(length=4))


def test_full_disk_is_an_error_and_its_space_is_freed() -> None:
    disk = MemoryDisk(free_bytes=1000)
    aside = Scratch(disk)
    aside.put([bytes(900)])
    with pytest.raises(StoreFull):
        aside.put([bytes(900)])
    aside.close()
    assert disk.free_bytes() == 1000


def test_a_crash_leaves_no_more_than_an_empty_temporary() -> None:
    """A crash at each step: before the file has a name, before the name is removed, and later."""
    for step, file_count in ((0, 0), (1, 1), (2, 0), (3, 0)):
        disk, calls = MemoryDisk(), 0

        def count(op: str, path: str, step: int = step, **info: int) -> None:
            nonlocal calls
            if calls == step:
                raise Killed
            calls += 1

        disk.step = count
        with pytest.raises(Killed):
            aside = Scratch(disk)
            for _ in range(3):
                aside.put([b"abc"])
        files = disk.fork_kill().files()
        assert len(files) == file_count and set(files.values()) <= {b""}
        assert all(path.startswith(TEMPORARY_PREFIX) for path in files)
        for image in disk.images(random.Random(step), 50):
            assert {path[:5] for path in image.files()} <= {TEMPORARY_PREFIX}
