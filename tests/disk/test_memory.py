"""The disk in memory: faults at a call, and the states that a power cut can leave."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from contextlib import suppress

import pytest

from tests.disk.memory import Killed, MemoryDisk, PowerCut
from tests.disk.power_loss import VERSIONS_MAX
from tests.storage.test_disk import BOTH_WAYS, Publish
from txlog.engine.storage.disk.protocol import TEMPORARY_PREFIX
from txlog.errors import (
    DiskFailed,
    OutcomeUnknown,
    StoreFull,
    TxlogError,
)


class TestFaults:
    """The model behaves as a failing machine does."""

    def test_hook_sees_every_effect_in_order(self) -> None:
        disk = MemoryDisk()
        seen: list[str] = []
        disk.step = lambda op, path, **info: seen.append(op)
        disk.publish("m/1", [b"x"])
        assert seen == [
            "mkdir",
            "sync_dir",
            "create",
            "pwrite",
            "datasync",
            "link",
            "sync_dir",
            "unlink",
        ]
        seen.clear()
        lock = disk.lock_file("lock")
        lock.acquire(0)
        lock.release()
        assert seen == ["create", "lock", "unlock"]

    def test_same_calls_give_the_same_disk(self) -> None:
        def run() -> dict[str, bytes]:
            disk = MemoryDisk(seed=7)
            disk.publish("a", [disk.random_bytes(20)])
            disk.write_fresh("b/c", disk.random_bytes(20))
            return disk.files()

        assert run() == run()

    @pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EMFILE, errno.EROFS])
    @BOTH_WAYS
    def test_publish_with_a_fault_at_any_call(self, publish: Publish, number: int) -> None:
        """spec/reliability 5.4: the result is not done, unknown or done, and the name exists
        accordingly.
        """
        for at in range(20):
            disk = MemoryDisk()
            disk.step = _fault_at(at, OSError(number, "fault"))
            try:
                publish(disk, "d/f", [b"by", b"tes"])
            except OutcomeUnknown:
                assert disk.read("d/f") == b"bytes"
            except TxlogError:
                assert not disk.exists("d/f")
                publish(disk, "d/f", [b"by", b"tes"])
            assert disk.read("d/f") == b"bytes"
            kinds = {name.partition("-")[0] for name in disk.listdir("d")}
            assert kinds <= {"f", ".tmp"}, "what a failure left behind is known as unfinished"

    def test_failed_flush_is_not_repaired_by_a_second_one(self) -> None:
        """R13: a second flush returns success, and the platter still has no data."""
        disk = _disk_with_file(b"old" + bytes(2000))
        file = disk.open("f", write=True)
        file.pwrite(0, b"new")
        disk.step = _fault_at(0, OSError(errno.EIO, "fault"))
        with pytest.raises(DiskFailed):
            file.datasync()
        file.datasync()
        disk.open("f", write=True).datasync()
        assert disk.read("f")[:3] == b"new"  # the cache lies
        assert {b"old", b"new"} <= {image.read("f")[:3] for image in _images(disk)}

    def test_failed_flush_is_reported_by_descriptors_opened_before(self) -> None:
        """spec/reliability 5.1: a descriptor reports it once; later descriptors do not."""
        disk = _disk_with_file(b"x")
        first, second = disk.open("f", write=True), disk.open("f", write=True)
        disk.step = _fault_at(0, OSError(errno.EIO, "fault"))
        with pytest.raises(DiskFailed):
            first.datasync()
        first.datasync()
        with pytest.raises(DiskFailed):
            second.datasync()
        second.datasync()
        disk.open("f", write=True).datasync()

    def test_bytes_written_again_after_a_failed_flush_can_be_flushed(self) -> None:
        disk = _disk_with_file(bytes(1024))
        file = disk.open("f", write=True)
        file.pwrite(0, b"new")
        disk.step = _fault_at(0, OSError(errno.EIO, "fault"))
        with pytest.raises(DiskFailed):
            file.datasync()
        file.pwrite(0, b"new")
        file.datasync()
        assert {image.read("f")[:3] for image in _images(disk)} == {b"new"}

    def test_short_write_leaves_its_first_bytes(self) -> None:
        disk = _disk_with_file(bytes(8))
        error = OSError(errno.ENOSPC, "fault")
        error.written = 2  # type: ignore[attr-defined]
        disk.step = _fault_at(0, error)
        with pytest.raises(StoreFull):
            disk.open("f", write=True).pwrite(0, b"abcd")
        assert disk.read("f") == b"ab" + bytes(6)

    def test_small_disk_fills_and_empties(self) -> None:
        disk = MemoryDisk(free_bytes=100)
        disk.publish("a", [bytes(60)])
        assert disk.free_bytes() == 40
        with pytest.raises(StoreFull):
            disk.publish("b", [bytes(41)])
        assert disk.listdir("") == ["a"]
        assert disk.free_bytes() == 40
        disk.open("a", write=True).pwrite(0, b"x" * 60)  # no new blocks
        disk.unlink("a")
        assert disk.free_bytes() == 100

    def test_killed_process_refuses_all_calls_and_frees_its_locks(self) -> None:
        first = MemoryDisk()
        second = first.process()
        assert first.pid() != second.pid()
        first.publish("f", [bytes(4)])
        own_lock_file, other = first.lock_file("lock"), second.lock_file("lock")
        own_lock_file.acquire(0)
        assert not other.try_acquire()
        assert other.holder() == (first.pid(), f"process {first.pid()}")
        first.step = _fault_at(0, Killed(written=2))
        with pytest.raises(Killed):
            first.open("f", write=True).pwrite(0, b"abcd")
        for call in (
            lambda: first.read("f"),
            own_lock_file.release,
            lambda: first.publish("g", [b""]),
        ):
            with pytest.raises(Killed):
                call()
        assert other.try_acquire()
        assert second.read("f") == b"ab\0\0"

    def test_simulated_wait_asks_the_test(self) -> None:
        first = MemoryDisk()
        second = first.process()
        own_lock_file, other = first.lock_file("lock"), second.lock_file("lock")
        own_lock_file.acquire(0)
        numbers: list[int] = []

        def blocked(path: str, timeout_ms: int) -> bool:
            numbers.append(timeout_ms)
            own_lock_file.release()
            return True

        second.blocked = blocked
        other.acquire(30_000)
        assert numbers == [30_000]

    def test_look_hook_fails_reads(self) -> None:
        """R31: a read EIO is never an end of file."""
        disk = _disk_with_file(b"x")
        file = disk.open("f")
        disk.look = _fault_at(0, OSError(errno.EIO, "fault"))
        with pytest.raises(DiskFailed):
            file.pread(0, 1)
        assert file.pread(0, 1) == b"x"

    def test_damage_is_on_the_platter(self) -> None:
        disk = _disk_with_file(b"good")
        disk.damage("f", b"bad")
        disk.damage("stray", b"?")
        assert [image.files() for image in _images(disk)] == [{"f": b"bad", "stray": b"?"}]
        disk.damage("f", None)
        assert not disk.exists("f")


class TestPowerLoss:
    """The states that a power cut can leave (spec/reliability 1), and those that it cannot."""

    def test_kill_keeps_what_power_loss_may_not(self) -> None:
        disk = _disk_with_file(b"old")
        disk.open("f", write=True).pwrite(0, b"new")
        lock = disk.lock_file("lock")
        lock.acquire(0)
        killed = disk.fork_kill()
        assert killed.read("f") == b"new"
        assert killed.lock_file("lock").try_acquire()
        assert {b"old", b"new"} <= {image.read("f") for image in _images(killed)}

    def test_flushed_bytes_are_in_every_image(self) -> None:
        disk = _disk_with_file(bytes(2048))
        file = disk.open("f", write=True)
        file.pwrite(100, b"a" * 900)
        file.datasync()
        file.pwrite(0, b"b" * 10)
        for image in _images(disk):
            data = image.read("f")
            assert data[100:1000] == b"a" * 900
            assert data[:10] in (b"b" * 10, bytes(10)) or data[:1] == b"b"

    def test_published_file_is_in_every_image(self) -> None:
        """R3: the file and its directories are whole and durable once publish has returned."""
        disk = MemoryDisk()
        disk.publish("a/b/c/f", [b"bytes"])
        for image in _images(disk):
            assert image.read("a/b/c/f") == b"bytes"

    def test_directory_of_a_dead_process_is_flushed_by_its_next_user(self) -> None:
        disk = MemoryDisk()
        disk.step = _fault_at(1, Killed())  # after mkdir, before its flush
        with pytest.raises(Killed):
            disk.make_dirs("d")
        other = disk.process()
        other.publish("d/f", [b"x"])
        assert all(image.read("d/f") == b"x" for image in _images(other))

    def test_name_without_a_flush_may_vanish(self) -> None:
        disk = _disk_with_file(b"x")
        disk.lock_file("lock")
        disk.unlink("f")
        files = {tuple(image.files()) for image in _images(disk)}
        assert files == {(), ("f",), ("lock",), ("f", "lock")}
        disk.sync_dir("")
        assert {tuple(image.files()) for image in _images(disk)} == {("lock",)}

    @BOTH_WAYS
    def test_publish_cut_anywhere_leaves_it_whole_or_absent(self, publish: Publish) -> None:
        """R3. Finds the mutants `no fsync before link` and `no directory fsync`."""
        whole = bytes(range(256)) * 5
        for at in range(20):
            disk = MemoryDisk()
            disk.step = _fault_at(at, PowerCut())
            try:
                publish(disk, "d/f", [whole[:700], whole[700:]])
                is_done = True
            except PowerCut:
                is_done = False
            for image in _images(disk):
                if image.exists("d/f"):
                    assert image.read("d/f") == whole
                else:
                    assert not is_done

    @BOTH_WAYS
    def test_interrupted_publish_leaves_only_files_that_a_sweeper_may_remove(
        self, publish: Publish
    ) -> None:
        """R19: a temporary file with a free lock may be left, with or without the final name, but
        never half a file.
        """
        ends = set()
        for at in range(20):
            disk = MemoryDisk()
            disk.step = _fault_at(at, Killed(written=1))
            with suppress(Killed):
                publish(disk, "d/f", [b"by", b"tes"])
            other = disk.process()
            remaining = [name for name in other.listdir("d") if name != "f"]
            assert all(name.startswith(TEMPORARY_PREFIX) for name in remaining)
            assert all(
                other.lock_file(f"d/{name}", create=False).try_acquire() for name in remaining
            )
            if other.exists("d/f"):
                assert other.read("d/f") == b"bytes"
            ends.add((len(remaining), other.exists("d/f")))
        assert ends == {(0, False), (1, False), (1, True), (0, True)}

    def test_full_disk_leaves_no_part_of_a_file(self) -> None:
        disk = MemoryDisk()
        disk.machine.free_bytes = 150
        draft = disk.begin("d/f")
        draft.write(bytes(100))
        with pytest.raises(StoreFull):
            draft.write(bytes(100))
        draft.close()
        assert disk.listdir("d") == []
        assert disk.machine.free_bytes == 150

    def test_sectors_go_one_by_one_and_torn(self) -> None:
        disk = _disk_with_file(b"o" * 1536)
        disk.open("f", write=True).pwrite(0, b"n" * 1536)
        contents = {image.read("f") for image in _images(disk)}
        for pattern in range(8):  # any subset of the sectors
            assert b"".join(b"no"[b : b + 1] * 512 for b in _bits(pattern, 3)) in contents
        for cut in (1, 511, 512, 768, 1535):
            assert b"n" * cut + b"o" * (1536 - cut) in contents

    def test_grown_file_may_be_short_or_hold_zeros_or_garbage(self) -> None:
        disk = _disk_with_file(b"x" * 512)
        disk.open("f", write=True).pwrite(512, b"y" * 512)
        contents = {image.read("f")[512:] for image in _images(disk)}
        assert {b"", bytes(512), b"y" * 512} <= contents
        assert any(len(tail) == 512 and tail[0] not in b"\0y" for tail in contents)
        assert all(image.read("f")[:512] == b"x" * 512 for image in _images(disk))

    def test_later_write_may_be_kept_without_an_earlier_one(self) -> None:
        """R8: a power cut keeps any subset, in any order."""
        disk = _disk_with_file(bytes(1024))
        file = disk.open("f", write=True)
        file.pwrite(0, b"first")
        file.pwrite(512, b"second")
        rows = {(i.read("f")[:5], i.read("f")[512:518]) for i in _images(disk)}
        assert (bytes(5), b"second") in rows
        assert (b"first", bytes(6)) in rows

    def test_witness_rewritten_for_ever_stays_small(self) -> None:
        disk = _disk_with_file(bytes(8192))
        file = disk.open("f", write=True)
        for n in range(5000):
            file.pwrite(4096 * (n % 2), b"%08d" % n)
        images = list(_images(disk))
        assert {b"00004998", bytes(8)} <= {image.read("f")[:8] for image in images}
        assert len(disk.machine.root.entries["f"].pending) <= 2 * (VERSIONS_MAX * 2 + 256)  # type: ignore[index]

    def test_images_are_bounded_and_repeat_with_their_seed(self) -> None:
        disk = _disk_with_file(bytes(10_000))
        disk.open("f", write=True).pwrite(0, bytes(range(250)) * 40)
        first = [image.files() for image in disk.images(random.Random(5), 40)]
        files_again = [image.files() for image in disk.images(random.Random(5), 40)]
        assert len(first) == 40
        assert first == files_again
        assert first[0]["f"] == bytes(10_000)
        assert first[1]["f"] == disk.read("f")
        assert len(list(MemoryDisk().images(random.Random(5), 40))) == 1

    def test_image_is_a_disk_of_its_own(self) -> None:
        disk = _disk_with_file(b"old!")
        file = disk.open("f", write=True)
        file.pwrite(0, b"new!")
        file.datasync()
        image = next(disk.images(random.Random(1), 1))
        image.open("f", write=True).pwrite(0, b"else")
        file.pwrite(0, b"here")
        assert (disk.read("f"), image.read("f")) == (b"here", b"else")

    def test_image_can_be_cut_again(self) -> None:
        """spec/reliability 5.1: a power cut may also happen during recovery."""
        disk = _disk_with_file(bytes(512))
        disk.open("f", write=True).pwrite(0, b"a")
        for image in _images(disk):
            messages_before = image.read("f")
            image.open("f", write=True).pwrite(1, b"b")
            assert messages_before in {second.read("f") for second in _images(image)}


def _bits(pattern: int, count: int) -> list[int]:
    return [pattern >> n & 1 for n in range(count)]


def _fault_at(call: int, error: BaseException) -> Callable[..., None]:
    """Return a hook that raises error at the given call, counted from 0."""
    count = iter(range(1_000_000))

    def hook(op: str, path: str, **info: int) -> None:
        if next(count) == call:
            raise error

    return hook


def _disk_with_file(data: bytes) -> MemoryDisk:
    disk = MemoryDisk()
    disk.publish("f", [data])
    disk.sync_dir("")  # the temporary file was removed durably
    return disk


def _images(disk: MemoryDisk) -> list[MemoryDisk]:
    return list(disk.images(random.Random(0), 500))
