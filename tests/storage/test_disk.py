"""One conformance suite over both disks; test_posix_disk and test_memory_disk have the rest."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from tests.disk.memory import MemoryDisk
from txlog.engine.storage.disk.posix import PosixDisk, create_root
from txlog.engine.storage.disk.protocol import TEMPORARY_PREFIX, Disk, failure, split
from txlog.errors import (
    AlreadyClosed,
    Corruption,
    MissingFile,
    NameTaken,
    ReadOnlyStore,
    StoreLocked,
)

Opener = Callable[[bool], Disk]
Publish = Callable[[Disk, str, Sequence[bytes]], None]


def at_once(disk: Disk, path: str, parts: Sequence[bytes]) -> None:
    """Publish parts given as a list."""
    disk.publish(path, parts)


def one_by_one(disk: Disk, path: str, parts: Sequence[bytes]) -> None:
    """Publish parts given one by one."""
    with closing(disk.begin(path)) as draft:
        for part in parts:
            draft.write(part)
        draft.publish()


BOTH_WAYS = pytest.mark.parametrize("publish", [at_once, one_by_one])


@pytest.fixture
def root(tmp_path: Path) -> str:
    path = str(tmp_path / "store")
    create_root(path)
    return path


@pytest.fixture(params=["posix", "memory"])
def opener(request: pytest.FixtureRequest, root: str) -> Iterator[Opener]:
    """Give a function that opens the same store again: argument read_only."""
    memory = MemoryDisk()
    opened: list[Disk] = []

    def open_disk(read_only: bool) -> Disk:
        disk: Disk
        if request.param == "posix":
            disk = PosixDisk(root, read_only=read_only)
        else:
            disk = memory.process(read_only)
        opened.append(disk)
        return disk

    yield open_disk
    for disk in opened:
        disk.close()


@pytest.fixture
def disk(opener: Opener) -> Disk:
    return opener(False)


class TestConformance:
    """The promises of a `Disk`, which every implementation keeps."""

    def test_published_bytes_are_read_back_joined(self, disk: Disk) -> None:
        disk.publish("a/b/one", [b"ab", bytearray(b"cd"), memoryview(b"ef"), b""])
        assert disk.read("a/b/one") == b"abcdef"
        assert disk.size("a/b/one") == 6
        assert disk.listdir("a/b") == ["one"]
        assert disk.listdir("") == ["a"]

    @BOTH_WAYS
    def test_published_name_is_used_once(self, disk: Disk, publish: Publish) -> None:
        """R3; kills the mutants `rename` and `reuse a name`."""
        publish(disk, "m/1", [b"first"])
        with pytest.raises(NameTaken) as caught:
            publish(disk, "m/1", [b"second"])
        assert caught.value.fields["path"] == "m/1"
        assert disk.read("m/1") == b"first"
        assert disk.listdir("m") == ["1"]

    def test_draft_has_no_name_until_it_is_published(self, opener: Opener) -> None:
        """R3, R19: until then it is a temporary, which the sweeper keeps while its lock is held."""
        disk = opener(False)
        draft, other = disk.begin("d/f"), disk.begin("d/g")
        for part in (b"ab", b"", bytearray(b"cd"), memoryview(b"efg")[:1], bytes(100_000)):
            draft.write(part)
        other.write(b"never")
        names = disk.listdir("d")
        assert len(names) == 2 and all(name.startswith(TEMPORARY_PREFIX) for name in names)
        for name in names:
            assert not opener(False).lock_file(f"d/{name}", create=False).try_acquire()
        other.close()
        other.close()
        assert len(disk.listdir("d")) == 1
        draft.publish()
        draft.close()
        assert disk.listdir("d") == ["f"]
        assert disk.read("d/f") == b"abcde" + bytes(100_000)
        with closing(disk.begin("empty")) as nothing:
            nothing.publish()
        assert disk.read("empty") == b""

    def test_scratch_file_has_no_name_and_ends_with_its_handle(self, opener: Opener) -> None:
        """R23: nor does a scratch file of a read-only store leave a trace there."""
        for read_only in (False, True):
            disk = opener(read_only)
            free_before, names = disk.free_bytes(), disk.listdir("")
            first, other = disk.scratch(), disk.scratch()
            for file, byte in ((first, b"a"), (other, b"b")):
                file.pwrite(0, [byte, byte * 10_000])
                file.pwrite(10_001, byte)
            assert disk.listdir("") == names
            assert first.pread(0, 20_000) == b"a" * 10_002
            assert other.pread(9_999, 2) == b"bb"
            other.close()
            with pytest.raises(AlreadyClosed):
                other.pread(0, 1)
            first.close()
            first.close()
            if isinstance(disk, MemoryDisk):
                assert disk.free_bytes() == free_before

    def test_many_files_are_published_as_one_is(self, disk: Disk) -> None:
        """R3: whole, durable, under names never used; kills a group that is not taken whole."""
        files = [(f"a/{n % 7}/b/{n}", [b"%d" % n, b"!"]) for n in range(300)]
        calls: list[int] = []

        def made() -> Iterator[tuple[str, list[bytes]]]:
            for number, file in enumerate(files):
                calls.append(number)
                yield file

        disk.publish_all(made())
        disk.publish_all([])
        assert calls == [*range(300)]
        for path, parts in files:
            assert disk.read(path) == b"".join(parts)
        for number in range(7):
            assert not [n for n in disk.listdir(f"a/{number}/b") if n.startswith(TEMPORARY_PREFIX)]
        disk.publish("a/0/b/more", [b"x"])  # the directories are known to be durable
        with pytest.raises(NameTaken) as caught:
            disk.publish_all([("a/1/b/new", [b"x"]), ("a/1/b/1", [b"x"]), ("a/2/b/new", [b"x"])])
        assert caught.value.fields["path"] == "a/1/b/1"
        assert disk.read("a/1/b/1") == b"1!"
        assert not [n for n in disk.listdir("a/1/b") if n.startswith(TEMPORARY_PREFIX)]
        assert not disk.exists("a/2/b/new")

    def test_linked_file_has_two_names(self, disk: Disk) -> None:
        """A staged file also gets the name that a frame will use; a name is used once (R3)."""
        disk.publish("stage/one", [b"rows"])
        disk.link("stage/one", "ledgers/1")
        disk.sync_dir("ledgers")
        with pytest.raises(NameTaken):
            disk.link("stage/one", "ledgers/1")
        with pytest.raises(MissingFile):
            disk.link("stage/two", "ledgers/2")
        disk.unlink("stage/one")
        assert disk.read("ledgers/1") == b"rows"

    def test_watch_reports_changes_by_another_process(self, opener: Opener) -> None:
        """The watch reports writes, new names, closed files and announcements, each once."""
        disk, other = opener(False), opener(False)
        for path in ("journal/witness", "consumers/1.lock"):
            disk.publish(path, [b"0"])
        watch = disk.watch()
        assert watch is not None
        assert watch.add("journal/witness", "writes")
        assert watch.add("journal", "names") and watch.add("consumers", "closings")
        assert not watch.add("nothing", "writes") and not watch.has("nothing")
        assert watch.wait(0) == frozenset()
        with closing(other.open("journal/witness", write=True)) as file:
            file.pwrite(0, b"1")
            assert watch.wait(None) == {"journal/witness"}
            assert watch.wait(0) == frozenset()
        other.read("journal/witness")
        with closing(other.lock_file("consumers/1.lock", create=False)) as lock:
            assert lock.try_acquire()
        changed = watch.take()
        assert "consumers/1.lock" not in changed or isinstance(disk, MemoryDisk)  # only asked
        other.announce("consumers")
        assert watch.wait(None) == {"consumers"}
        lock = other.lock_file("consumers/1.lock")
        lock.close()
        other.unlink("consumers/1.lock")
        assert watch.wait(None) == {"consumers/1.lock"}
        other.publish("journal/2.journal", [b""])
        assert "journal" in watch.wait(None)
        watch.ring()
        assert watch.wait(None) == {""}
        assert watch.wait(0) == frozenset()
        watch.close()

    def test_a_watch_follows_a_file_that_is_replaced(self, disk: Disk) -> None:
        """The witness is made anew in recovery only; then it must be added again."""
        disk.publish("journal/witness", [b"0"])
        watch = disk.watch()
        assert watch is not None and watch.add("journal/witness", "writes")
        disk.unlink("journal/witness")
        while watch.has("journal/witness"):
            assert watch.wait(None)
        disk.publish("journal/witness", [b"1"])
        assert watch.add("journal/witness", "writes")
        watch.take()
        with closing(disk.open("journal/witness", write=True)) as file:
            file.pwrite(0, b"2")
        assert watch.wait(None) == {"journal/witness"}
        watch.close()

    def test_only_an_empty_directory_is_removed(self, disk: Disk) -> None:
        disk.publish("stage/job/one", [b"rows"])
        assert not disk.remove_dir("stage/job")
        disk.unlink("stage/job/one")
        assert disk.remove_dir("stage/job")
        assert disk.listdir("stage") == []
        assert disk.remove_dir("stage/job") and disk.remove_dir("nothing/there")
        disk.publish("stage/job/two", [b"again"])
        assert disk.read("stage/job/two") == b"again"

    def test_fresh_file_is_made_once(self, disk: Disk) -> None:
        disk.write_fresh("journal/witness", b"w" * 8192)
        assert disk.read("journal/witness") == b"w" * 8192
        with pytest.raises(NameTaken):
            disk.write_fresh("journal/witness", b"")
        assert disk.size("journal/witness") == 8192

    def test_nothing_at_all_can_be_published(self, disk: Disk) -> None:
        disk.publish("empty", [])
        assert disk.read("empty") == b""

    def test_many_parts_are_one_file(self, disk: Disk) -> None:
        parts = [bytes([n % 256]) * (n % 7) for n in range(3000)]
        disk.publish("many", parts)
        assert disk.read("many") == b"".join(parts)

    def test_absent_names(self, disk: Disk) -> None:
        disk.make_dirs("there")
        for path in ("nothing", "no/thing", "there/nothing"):
            assert not disk.exists(path)
            for call in (disk.open, disk.read, disk.size):
                with pytest.raises(MissingFile) as caught:
                    call(path)
                assert caught.value.fields["path"] == path
            disk.unlink(path)
            with pytest.raises(MissingFile):
                disk.unlink(path, missing_ok=False)
        assert disk.listdir("no") == []

    def test_names_that_leave_the_store_are_damage(self, disk: Disk) -> None:
        for path in ("../x", "a/../x", "/etc/passwd", "a//b", "a/./b", "a/", ".", "..", "a\0b", ""):
            with pytest.raises(Corruption):
                disk.open(path)
            with pytest.raises(Corruption):
                disk.publish(path, [b"x"])

    def test_directory_where_a_file_belongs_is_damage(self, disk: Disk) -> None:
        disk.publish("f", [b"x"])
        disk.make_dirs("d")
        with pytest.raises(Corruption):
            disk.open("d")
        with pytest.raises(Corruption):
            disk.open("f/x")
        with pytest.raises(Corruption):
            disk.make_dirs("f/x")
        with pytest.raises(Corruption):
            disk.listdir("f")

    def test_file_reads_and_writes_at_offsets(self, disk: Disk) -> None:
        disk.publish("f", [bytes(10)])
        file = disk.open("f", write=True)
        file.pwrite(3, b"abc")
        file.pwrite(6, memoryview(bytearray(b"de")))
        file.pwrite(8, [b"f", b"", bytearray(b"ghi"), memoryview(b"jk")])
        file.pwrite(0, b"")
        file.datasync()
        assert file.size() == 14
        assert file.pread(0, 100) == b"\0\0\0abcdefghijk"
        assert file.pread(4, 3) == b"bcd"
        assert file.pread(14, 5) == b""
        assert file.pread(100, 5) == b""
        file.pwrite(20, b"z")
        assert file.pread(12, 100) == b"jk\0\0\0\0\0\0z"
        assert disk.open("f").pread(20, 1) == b"z"

    def test_file_opened_for_reading_is_not_written(self, disk: Disk) -> None:
        disk.publish("f", [b"x"])
        with pytest.raises(AlreadyClosed):
            disk.open("f").pwrite(0, b"y")

    def test_unlinked_file_stays_readable(self, disk: Disk) -> None:
        """R21: descriptors survive unlink."""
        disk.publish("f", [b"bytes"])
        file = disk.open("f")
        disk.unlink("f")
        disk.sync_dir("")
        assert not disk.exists("f")
        assert file.pread(0, 5) == b"bytes"

    def test_closed_handles_refuse(self, disk: Disk) -> None:
        disk.publish("f", [b"x"])
        file = disk.open("f", write=True)
        file.close()
        file.close()
        for call in (
            lambda: file.pread(0, 1),
            lambda: file.pwrite(0, b"y"),
            lambda: file.pwrite(0, [b"y"]),
            file.datasync,
            file.size,
        ):
            with pytest.raises(AlreadyClosed):
                call()
        lock = disk.lock_file("lock")
        lock.close()
        with pytest.raises(AlreadyClosed):
            lock.acquire(0)
        lock.release()

    def test_two_handles_of_one_process_exclude_each_other(self, disk: Disk) -> None:
        """R24."""
        first, second = disk.lock_file("locks/l"), disk.lock_file("locks/l")
        assert first.holder() is None
        first.acquire(0)
        assert not second.try_acquire()
        holder = second.holder()
        assert holder is not None
        assert holder[0] == disk.pid()
        assert holder[1] != ""
        with pytest.raises(StoreLocked) as caught:
            second.acquire(0)
        assert caught.value.fields["pid"] == disk.pid()
        assert caught.value.fields["command"] == holder[1]
        first.release()
        assert first.holder() is None
        assert second.try_acquire()
        assert not first.try_acquire()
        second.release()

    def test_closing_another_handle_keeps_the_lock(self, disk: Disk) -> None:
        """R24; kills the mutant `lockf`."""
        first, second, third = (disk.lock_file("lock") for _ in range(3))
        first.acquire(0)
        second.release()
        second.close()
        assert not third.try_acquire()
        first.close()
        assert third.try_acquire()

    def test_waiting_ends_with_the_lock(self, disk: Disk) -> None:
        """R25."""
        first, second = disk.lock_file("lock"), disk.lock_file("lock")
        first.acquire(0)
        thread = threading.Thread(target=second.acquire, args=(60_000,))
        thread.start()
        first.release()
        thread.join()
        assert not first.try_acquire()
        second.release()
        assert first.try_acquire()

    def test_wait_that_ran_out_leaves_no_lock(self, disk: Disk) -> None:
        first, second = disk.lock_file("lock"), disk.lock_file("lock")
        first.acquire(0)
        for _ in range(3):
            with pytest.raises(StoreLocked):
                second.acquire(1)
        first.release()
        first.acquire(60_000)
        first.release()
        second.acquire(60_000)
        assert not first.try_acquire()

    def test_lock_file_that_was_unlinked_is_no_lock(self, disk: Disk) -> None:
        """R26; kills the mutant `unlink`."""
        old, late = disk.lock_file("c.lock"), disk.lock_file("c.lock")
        old.acquire(0)
        disk.unlink("c.lock")
        old.release()
        late.acquire(0)
        assert disk.exists("c.lock")
        assert not disk.lock_file("c.lock").try_acquire()

    def test_lock_file_is_not_made_when_not_asked_for(self, disk: Disk) -> None:
        with pytest.raises(MissingFile):
            disk.lock_file("lock", create=False)
        assert not disk.exists("lock")

    def test_read_only_leaves_no_trace(self, opener: Opener, disk: Disk) -> None:
        """R23."""
        disk.publish("d/f", [b"x"])
        disk.lock_file("lock").acquire(0)
        reader = opener(True)
        assert reader.read_only
        assert not disk.read_only
        for call in (
            lambda: reader.publish("d/g", [b""]),
            lambda: reader.begin("d/g"),
            lambda: reader.write_fresh("d/g", b""),
            lambda: reader.make_dirs("e"),
            lambda: reader.unlink("d/f"),
            lambda: reader.sync_dir("d"),
            lambda: reader.open("d/f", write=True),
        ):
            with pytest.raises(ReadOnlyStore):
                call()
        with pytest.raises(MissingFile):
            reader.lock_file("other")
        holder = reader.lock_file("lock").holder()
        assert holder is None or holder[0] == disk.pid()
        assert reader.read("d/f") == b"x"
        assert reader.listdir("") == ["d", "lock"]

    def test_small_facts(self, disk: Disk) -> None:
        assert disk.random_bytes(16) != disk.random_bytes(16)
        assert len(disk.random_bytes(5)) == 5
        assert disk.free_bytes() > 0
        assert disk.owner()[1] != ""
        assert disk.description != ""


def test_split_of_good_paths() -> None:
    assert split("a") == ("", "a")
    assert split("a/b/..c") == ("a/b", "..c")


def test_failure_is_one_plain_line() -> None:
    error = failure(OSError(errno.EIO, "Input/output error"), "read", "journal/1")
    assert str(error) == "cannot read journal/1: Input/output error"
    assert error.fields == {"path": "journal/1", "errno": "EIO"}
