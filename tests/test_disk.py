"""One conformance suite over both disks; then what only the real one or the model can show."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from txlog.engine.storage import disk as disk_module
from txlog.engine.storage import disk_root
from txlog.engine.storage.disk import PosixDisk
from txlog.engine.storage.disk_lock import find_holder
from txlog.engine.storage.disk_protocol import TEMPORARY_PREFIX, Disk, LockFile, failure, split
from txlog.engine.storage.disk_root import create_root, filesystem
from txlog.engine.storage.memory_disk import Killed, MemoryDisk, PowerCut
from txlog.engine.storage.power_loss import VERSIONS_MAX
from txlog.errors import (
    AlreadyClosed,
    AlreadyExists,
    Corruption,
    DiskFailed,
    InvalidArgument,
    MissingFile,
    NameTaken,
    NoResources,
    NotAllowed,
    OutcomeUnknown,
    ReadOnlyStore,
    StoreFull,
    StoreLocked,
    StoreNotFound,
    TxlogError,
)

Opener = Callable[[bool], Disk]


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
    """What a `Disk` promises, whichever it is."""

    def test_published_bytes_are_read_back_joined(self, disk: Disk) -> None:
        disk.publish("a/b/one", [b"ab", bytearray(b"cd"), memoryview(b"ef"), b""])
        assert disk.read("a/b/one") == b"abcdef"
        assert disk.size("a/b/one") == 6
        assert disk.listdir("a/b") == ["one"]
        assert disk.listdir("") == ["a"]

    def test_published_name_is_used_once(self, disk: Disk) -> None:
        """R3; kills the mutants `rename` and `reuse a name`."""
        disk.publish("m/1", [b"first"])
        with pytest.raises(NameTaken) as caught:
            disk.publish("m/1", [b"second"])
        assert caught.value.fields["path"] == "m/1"
        assert disk.read("m/1") == b"first"
        assert disk.listdir("m") == ["1"]

    def test_linked_file_has_two_names(self, disk: Disk) -> None:
        """What was staged gets the name that a frame will give; a name is used once (R3)."""
        disk.publish("stage/one", [b"rows"])
        disk.link("stage/one", "ledgers/1")
        disk.sync_dir("ledgers")
        with pytest.raises(NameTaken):
            disk.link("stage/one", "ledgers/1")
        with pytest.raises(MissingFile):
            disk.link("stage/two", "ledgers/2")
        disk.unlink("stage/one")
        assert disk.read("ledgers/1") == b"rows"

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
        one, two = disk.lock_file("locks/l"), disk.lock_file("locks/l")
        assert one.holder() is None
        one.acquire(0)
        assert not two.try_acquire()
        holder = two.holder()
        assert holder is not None
        assert holder[0] == disk.pid()
        assert holder[1] != ""
        with pytest.raises(StoreLocked) as caught:
            two.acquire(0)
        assert caught.value.fields["pid"] == disk.pid()
        assert caught.value.fields["command"] == holder[1]
        one.release()
        assert one.holder() is None
        assert two.try_acquire()
        assert not one.try_acquire()
        two.release()

    def test_closing_another_handle_keeps_the_lock(self, disk: Disk) -> None:
        """R24; kills the mutant `lockf`."""
        one, two, three = (disk.lock_file("lock") for _ in range(3))
        one.acquire(0)
        two.release()
        two.close()
        assert not three.try_acquire()
        one.close()
        assert three.try_acquire()

    def test_waiting_ends_with_the_lock(self, disk: Disk) -> None:
        """R25."""
        one, two = disk.lock_file("lock"), disk.lock_file("lock")
        one.acquire(0)
        thread = threading.Thread(target=two.acquire, args=(60_000,))
        thread.start()
        one.release()
        thread.join()
        assert not one.try_acquire()
        two.release()
        assert one.try_acquire()

    def test_wait_that_ran_out_leaves_no_lock(self, disk: Disk) -> None:
        one, two = disk.lock_file("lock"), disk.lock_file("lock")
        one.acquire(0)
        for _ in range(3):
            with pytest.raises(StoreLocked):
                two.acquire(1)
        one.release()
        one.acquire(60_000)
        one.release()
        two.acquire(60_000)
        assert not one.try_acquire()

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


class TestPosix:
    """What only the real disk can show."""

    def test_root_must_be_a_directory_of_its_own(self, tmp_path: Path) -> None:
        with pytest.raises(StoreNotFound):
            PosixDisk(str(tmp_path / "none"))
        (tmp_path / "file").write_bytes(b"")
        with pytest.raises(StoreNotFound):
            PosixDisk(str(tmp_path / "file"))
        for path in ("file", "file/below"):
            with pytest.raises(AlreadyExists):
                create_root(str(tmp_path / path))
        with pytest.raises(AlreadyExists):
            create_root(str(tmp_path))
        with pytest.raises(InvalidArgument):
            create_root(str(tmp_path / "shared"), "no-such-group")

    def test_root_that_is_a_link_or_public_needs_a_flag(self, root: str, tmp_path: Path) -> None:
        """RELIABILITY 7.2."""
        link = tmp_path / "link"
        link.symlink_to(root)
        for text in (str(link), f"{link}/"):
            with pytest.raises(NotAllowed, match="is a link"):
                PosixDisk(text)
        PosixDisk(str(link), allow_unsafe=True).publish("f", [b"x"])
        Path(root).chmod(0o777)
        with pytest.raises(NotAllowed, match="everybody"):
            PosixDisk(root)
        assert PosixDisk(root, read_only=True).read("f") == b"x"

    def test_modes_do_not_depend_on_the_umask(self, tmp_path: Path) -> None:
        """RELIABILITY 7.3."""
        before = os.umask(0o277)
        try:
            disk = PosixDisk(_made(tmp_path / "a" / "private"))
            disk.publish("d/f", [b"x"])
            disk.lock_file("lock")
        finally:
            os.umask(before)
        top = tmp_path / "a" / "private"
        assert [_mode(p) for p in (top, top / "d", top / "d/f", top / "lock")] == [
            0o700,
            0o700,
            0o600,
            0o600,
        ]

    def test_shared_store_says_so_by_its_mode(self, tmp_path: Path) -> None:
        import grp

        path = tmp_path / "shared"
        create_root(str(path), grp.getgrgid(os.getegid()).gr_name)
        disk = PosixDisk(str(path))
        disk.publish("d/f", [b"x"])
        assert [_mode(p) for p in (path, path / "d", path / "d/f")] == [0o2770, 0o2770, 0o660]

    def test_links_fifos_and_sockets_are_damage(self, root: str) -> None:
        """RELIABILITY 7.2: no link is followed, and a FIFO never hangs us."""
        disk = PosixDisk(root)
        disk.publish("d/f", [b"x"])
        top = Path(root)
        (top / "link").symlink_to("d/f")
        (top / "up").symlink_to("d")
        os.mkfifo(top / "fifo")
        with socket.socket(socket.AF_UNIX) as server:
            here = Path.cwd()
            os.chdir(root)  # the address of a socket is short
            try:
                server.bind("socket")
            finally:
                os.chdir(here)
            for path in ("link", "up/f", "fifo", "socket"):
                for write in (False, True):
                    with pytest.raises(Corruption):
                        disk.open(path, write)
        with pytest.raises(Corruption):
            disk.publish("up/g", [b"x"])

    def test_file_of_a_stranger_is_damage(self, root: str) -> None:
        if os.geteuid() != 0:
            pytest.skip("needs root")
        disk = PosixDisk(root)
        disk.publish("f", [b"x"])
        os.chown(Path(root) / "f", 4242, -1)
        with pytest.raises(Corruption, match="another user"):
            disk.open("f")
        os.chown(root, 4242, -1)
        with pytest.raises(NotAllowed, match="foreign"):
            PosixDisk(root)
        assert PosixDisk(root, read_only=True).read("f") == b"x"

    def test_directory_descriptors_are_bounded(
        self, root: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(disk_module, "DIRECTORIES_MAX", 3)
        disk = PosixDisk(root)
        before = _descriptor_count()
        for n in range(20):
            disk.publish(f"t/{n}/p/f", [b"%d" % n])
        assert [disk.read(f"t/{n}/p/f") for n in range(20)] == [b"%d" % n for n in range(20)]
        assert _descriptor_count() - before <= 3

    def test_nothing_leaks(self, root: str) -> None:
        before = _descriptor_count()
        disk = PosixDisk(root)
        disk.publish("d/f", [b"x"])
        for path in ("d", "none/x", "../x", "d/f/g"):
            with pytest.raises(TxlogError):
                disk.open(path)
        with pytest.raises(NameTaken):
            disk.publish("d/f", [b"x"])
        with pytest.raises(NameTaken):
            disk.write_fresh("d/f", b"x")
        lock = disk.lock_file("lock")
        lock.acquire(0)
        lock.close()
        disk.close()
        assert _descriptor_count() == before
        with pytest.raises(AlreadyClosed):
            disk.read("d/f")

    def test_temporary_is_held_and_leaves(self, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """R3 and R19: the sweeper sees a lock on a temporary that is still written."""
        disk = PosixDisk(root)
        seen: list[bool] = []
        link = os.link

        def look(src: str, dst: str, **options: int) -> None:
            assert src.startswith(TEMPORARY_PREFIX)
            seen.append(disk.lock_file(f"d/{src}", create=False).try_acquire())
            link(src, dst, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(os, "link", look)
        disk.publish("d/f", [b"x"])
        assert seen == [False]
        assert disk.listdir("d") == ["f"]

    @pytest.mark.parametrize("call", ["pwritev", "fsync", "flock", "pread", "link"])
    def test_publish_that_fails_before_its_name_was_not_done(
        self, root: str, monkeypatch: pytest.MonkeyPatch, call: str
    ) -> None:
        """R31."""
        disk = PosixDisk(root)
        disk.make_dirs("d")
        disk.read_only = False
        owner = fcntl if call == "flock" else os
        monkeypatch.setattr(owner, call, _failing(errno.EIO))
        with pytest.raises(DiskFailed):
            disk.publish("d/f", [b"x"])
        monkeypatch.undo()
        assert disk.listdir("d") == []
        disk.publish("d/f", [b"x"])

    def test_publish_whose_last_flush_fails_is_unknown(
        self, root: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """R31."""
        disk = PosixDisk(root)
        disk.make_dirs("d")
        for path in ("d/f", "d/fresh"):
            monkeypatch.setattr(os, "fsync", _failing(errno.EIO, after=1))
            with pytest.raises(OutcomeUnknown):
                if path == "d/f":
                    disk.publish(path, [b"x"])
                else:
                    disk.write_fresh(path, b"x")
            monkeypatch.undo()
            assert disk.read(path) == b"x"

    def test_what_reads_back_differently_is_not_published(
        self, root: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """R3; kills the mutant `no read-back`."""
        disk = PosixDisk(root)
        pwritev = os.pwritev
        monkeypatch.setattr(os, "pwritev", lambda fd, data, at: pwritev(fd, [b"wrong"], at))
        with pytest.raises(DiskFailed, match="reads back"):
            disk.publish("f", [b"right"])
        monkeypatch.setattr(os, "pwritev", lambda fd, data, at: pwritev(fd, [b"right+"], at) - 1)
        with pytest.raises(DiskFailed, match="longer"):
            disk.publish("f", [b"right"])
        assert disk.listdir("") == []

    def test_directory_that_was_not_flushed_is_made_again(
        self, root: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        disk = PosixDisk(root)
        monkeypatch.setattr(os, "fsync", _failing(errno.EIO))
        with pytest.raises(DiskFailed):
            disk.make_dirs("a")
        monkeypatch.undo()
        assert not disk.exists("a")
        disk.make_dirs("a/b")
        assert disk.exists("a/b")

    def test_short_writes_are_continued(self, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
        disk = PosixDisk(root)
        disk.publish("f", [b""])
        file = disk.open("f", write=True)
        pwrite, pwritev = os.pwrite, os.pwritev
        monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data[:3], at))
        monkeypatch.setattr(os, "pwritev", lambda fd, data, at: pwritev(fd, [data[0][:2]], at))
        file.pwrite(0, b"abcdefg")
        file.pwrite(7, [b"hij", b"klmno"])
        assert file.pread(0, 99) == b"abcdefghijklmno"

    def test_short_reads_are_continued(self, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
        disk = PosixDisk(root)
        disk.publish("f", [b"abcdefg"])
        pread = os.pread
        monkeypatch.setattr(os, "pread", lambda fd, n, at: pread(fd, min(n, 2), at))
        assert disk.open("f").pread(1, 5) == b"bcdef"
        assert disk.open("f").pread(1, 50) == b"bcdefg"

    @pytest.mark.parametrize("taken", [0, 3])
    def test_full_disk_is_said_after_a_short_write(
        self, root: str, monkeypatch: pytest.MonkeyPatch, taken: int
    ) -> None:
        """R30."""
        disk = PosixDisk(root)
        disk.publish("f", [b""])
        file = disk.open("f", write=True)
        monkeypatch.setattr(os, "pwrite", lambda fd, data, at: taken)
        monkeypatch.setattr(os, "pwritev", lambda fd, data, at: 0)
        with pytest.raises(StoreFull):
            file.pwrite(0, b"abcdefg")

    @pytest.mark.parametrize(
        ("number", "kind"),
        [
            (errno.ENOSPC, StoreFull),
            (errno.EDQUOT, StoreFull),
            (errno.EFBIG, StoreFull),
            (errno.EROFS, ReadOnlyStore),
            (errno.EACCES, ReadOnlyStore),
            (errno.EMFILE, NoResources),
            (errno.ENFILE, NoResources),
            (errno.ENOMEM, NoResources),
            (errno.EIO, DiskFailed),
            (errno.EINVAL, DiskFailed),
            (errno.ENOENT, MissingFile),
        ],
    )
    def test_every_os_error_becomes_ours(
        self, root: str, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[TxlogError]
    ) -> None:
        disk = PosixDisk(root)
        disk.publish("d/f", [b"x"])
        file = disk.open("d/f", write=True)
        lock = disk.lock_file("lock")
        for owner, call in (
            (os, "open"), (os, "pread"), (os, "pwrite"), (os, "pwritev"), (os, "stat"),
            (os, "fstat"), (os, "fstatvfs"), (os, "unlink"), (os, "fsync"), (os, "mkdir"),
            (fcntl, "flock"),
        ):  # fmt: skip
            monkeypatch.setattr(owner, call, _failing(number))
        for work in (
            lambda: disk.open("d/f"),
            lambda: disk.read("d/f"),
            lambda: disk.publish("d/g", [b"x"]),
            lambda: disk.write_fresh("e/g", b"x"),
            lambda: disk.make_dirs("g"),
            lambda: disk.sync_dir("d"),
            lambda: disk.lock_file("other"),
            lambda: disk.unlink("d/f", missing_ok=False),
            lambda: disk.size("d/f"),
            disk.free_bytes,
            lambda: file.pread(0, 1),
            lambda: file.pwrite(0, b"x"),
            lambda: file.pwrite(0, [b"x"]),
            file.size,
            lock.try_acquire,
            lock.release,
            lock.holder,
        ):
            with pytest.raises(kind):
                work()
        monkeypatch.undo()
        assert disk.read("d/f") == b"x"

    def test_failed_flush_is_a_disk_failure_whatever_its_cause(
        self, root: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        disk = PosixDisk(root)
        disk.publish("f", [b"x"])
        file = disk.open("f", write=True)
        for number in (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS):
            monkeypatch.setattr(os, "fdatasync", _failing(number))
            with pytest.raises(DiskFailed):
                file.datasync()

    def test_killed_holder_frees_the_lock(self, root: str) -> None:
        """R24: the kernel frees the lock of the dead; until then it names them."""
        disk = PosixDisk(root)
        lock = disk.lock_file("lock")
        child, told = _child(lambda: _held(root))
        assert told == b"ok"
        assert not lock.try_acquire()
        with pytest.raises(StoreLocked) as caught:
            lock.acquire(0)
        assert caught.value.fields["pid"] in (child, None)
        os.kill(child, 9)
        lock.acquire(60_000)
        os.waitpid(child, 0)

    def test_forked_child_neither_keeps_nor_frees_the_lock(self, root: str) -> None:
        """R27; kills the mutant `unlock in child`."""
        disk = PosixDisk(root)
        lock, file = disk.lock_file("lock"), None
        disk.publish("f", [b"x"])
        file = disk.open("f", write=True)
        lock.acquire(0)

        def in_child() -> None:
            for call in (
                lambda: lock.acquire(0),
                lock.try_acquire,
                lambda: file.pwrite(0, b"y"),
                file.datasync,
                lambda: disk.read("f"),
                lambda: disk.publish("g", [b"x"]),
            ):
                with pytest.raises(AlreadyClosed):
                    call()
            lock.release()
            lock.close()

        child, told = _child(in_child)
        other = disk.lock_file("lock")
        try:
            assert told == b"ok"
            assert not other.try_acquire()  # the child freed nothing
            lock.close()
            assert other.try_acquire()  # and it keeps nothing
        finally:
            os.kill(child, 9)
            os.waitpid(child, 0)

    def test_waiter_that_gave_up_is_used_again(self, root: str) -> None:
        disk = PosixDisk(root)
        one, two = disk.lock_file("lock"), disk.lock_file("lock")
        one.acquire(0)
        before = threading.active_count()
        for _ in range(5):
            with pytest.raises(StoreLocked):
                two.acquire(1)
        assert threading.active_count() <= before + 1
        one.release()
        two.acquire(60_000)
        assert not one.try_acquire()

    def test_no_thread_to_wait_with(self, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
        disk = PosixDisk(root)
        one, two = disk.lock_file("lock"), disk.lock_file("lock")
        one.acquire(0)
        monkeypatch.setattr(threading.Thread, "start", _failing(0, RuntimeError("no thread")))
        with pytest.raises(NoResources):
            two.acquire(5)

    def test_interrupted_wait_leaves_no_lock(
        self, root: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        disk = PosixDisk(root)
        one, two = disk.lock_file("lock"), disk.lock_file("lock")
        one.acquire(0)
        with monkeypatch.context() as patch:
            wait = threading.Event.wait

            def interrupt(event: threading.Event, timeout: float | None = None) -> bool:
                if timeout == 60.0:
                    raise KeyboardInterrupt
                return wait(event, timeout)

            patch.setattr(threading.Event, "wait", interrupt)
            with pytest.raises(KeyboardInterrupt):
                two.acquire(60_000)
        one.release()
        one.acquire(60_000)

    def test_many_writers_lose_no_turn(self, root: str) -> None:
        disk = PosixDisk(root)
        disk.publish("n", [b"0000"])

        def count() -> None:
            lock, file = disk.lock_file("lock"), disk.open("n", write=True)
            for _ in range(50):
                lock.acquire(60_000)
                file.pwrite(0, b"%04d" % (int(file.pread(0, 4)) + 1))
                lock.release()
            lock.close()

        threads = [threading.Thread(target=count) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert disk.read("n") == b"0200"

    def test_holder_is_found_in_the_kernels_table(self) -> None:
        table = (
            "1: POSIX  ADVISORY  WRITE 11 fe:00:77 0 EOF\n"
            "2: FLOCK  ADVISORY  WRITE 22 00:1f:77 0 EOF\n"
            "3: FLOCK  ADVISORY  WRITE 33 fe:00:77 0 EOF\n"
            "3: -> FLOCK  ADVISORY  WRITE 44 fe:00:77 0 EOF\n"
            "4: FLOCK  ADVISORY  WRITE 55 fe:00:78 0 EOF\n"
        )
        assert find_holder(table, ("fe:00", 77)) == 33
        assert find_holder(table, ("aa:00", 78)) == 55
        assert find_holder(table, ("fe:00", 79)) is None
        assert find_holder("", ("fe:00", 77)) is None

    def test_network_file_systems_need_a_flag(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert filesystem(str(tmp_path)) not in ("nfs", "9p")
        monkeypatch.setattr(disk_root, "filesystem", lambda path: "nfs")
        with pytest.raises(NotAllowed, match="nfs"):
            create_root(str(tmp_path / "s"))
        create_root(str(tmp_path / "s"), allow_unsafe=True)


class TestFaults:
    """The model behaves as a failing machine does."""

    def test_hook_sees_every_effect_in_order(self) -> None:
        disk = MemoryDisk()
        seen: list[str] = []
        disk.step = lambda op, path, **info: seen.append(op)
        disk.publish("m/1", [b"x"])
        assert seen == [
            "mkdir", "sync_dir", "create", "pwrite", "datasync", "link", "sync_dir", "unlink",
        ]  # fmt: skip
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
    def test_publish_with_a_fault_at_any_call(self, number: int) -> None:
        """RELIABILITY 5.4: not done, unknown or done, and the name says which."""
        for at in range(20):
            disk = MemoryDisk()
            disk.step = _fault_at(at, OSError(number, "fault"))
            try:
                disk.publish("d/f", [b"bytes"])
            except OutcomeUnknown:
                assert disk.read("d/f") == b"bytes"
            except TxlogError:
                assert not disk.exists("d/f")
                disk.publish("d/f", [b"bytes"])
            assert disk.read("d/f") == b"bytes"
            assert disk.listdir("d") in (["f"], disk.listdir("d"))

    def test_failed_flush_is_never_made_good_by_another(self) -> None:
        """R13: the second flush returns success, and the platter has nothing."""
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

    def test_failed_flush_is_heard_by_descriptors_opened_before(self) -> None:
        """RELIABILITY 5.1: once each, and never by later ones."""
        disk = _disk_with_file(b"x")
        one, two = disk.open("f", write=True), disk.open("f", write=True)
        disk.step = _fault_at(0, OSError(errno.EIO, "fault"))
        with pytest.raises(DiskFailed):
            one.datasync()
        one.datasync()
        with pytest.raises(DiskFailed):
            two.datasync()
        two.datasync()
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
        one = MemoryDisk()
        two = one.process()
        assert one.pid() != two.pid()
        one.publish("f", [bytes(4)])
        mine, other = one.lock_file("lock"), two.lock_file("lock")
        mine.acquire(0)
        assert not other.try_acquire()
        assert other.holder() == (one.pid(), f"process {one.pid()}")
        one.step = _fault_at(0, Killed(written=2))
        with pytest.raises(Killed):
            one.open("f", write=True).pwrite(0, b"abcd")
        for call in (lambda: one.read("f"), mine.release, lambda: one.publish("g", [b""])):
            with pytest.raises(Killed):
                call()
        assert other.try_acquire()
        assert two.read("f") == b"ab\0\0"

    def test_simulated_wait_asks_the_test(self) -> None:
        one = MemoryDisk()
        two = one.process()
        mine, other = one.lock_file("lock"), two.lock_file("lock")
        mine.acquire(0)
        asked: list[int] = []

        def blocked(path: str, timeout_ms: int) -> bool:
            asked.append(timeout_ms)
            mine.release()
            return True

        two.blocked = blocked
        other.acquire(30_000)
        assert asked == [30_000]

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
    """What a power cut may leave (RELIABILITY 1), and what it may not."""

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
        """R3: whole and durable once publish has returned, its directories too."""
        disk = MemoryDisk()
        disk.publish("a/b/c/f", [b"bytes"])
        for image in _images(disk):
            assert image.read("a/b/c/f") == b"bytes"

    def test_directory_of_a_dead_process_is_flushed_by_who_uses_it(self) -> None:
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
        found = {tuple(image.files()) for image in _images(disk)}
        assert found == {(), ("f",), ("lock",), ("f", "lock")}
        disk.sync_dir("")
        assert {tuple(image.files()) for image in _images(disk)} == {("lock",)}

    def test_publish_cut_anywhere_leaves_it_whole_or_absent(self) -> None:
        """R3; kills the mutants `no fsync before link` and `no directory fsync`."""
        whole = bytes(range(256)) * 5
        for at in range(20):
            disk = MemoryDisk()
            disk.step = _fault_at(at, PowerCut())
            try:
                disk.publish("d/f", [whole])
                is_done = True
            except PowerCut:
                is_done = False
            for image in _images(disk):
                if image.exists("d/f"):
                    assert image.read("d/f") == whole
                else:
                    assert not is_done

    def test_sectors_go_one_by_one_and_torn(self) -> None:
        disk = _disk_with_file(b"o" * 1536)
        disk.open("f", write=True).pwrite(0, b"n" * 1536)
        found = {image.read("f") for image in _images(disk)}
        for pattern in range(8):  # any subset of the sectors
            assert b"".join(b"no"[b : b + 1] * 512 for b in _bits(pattern, 3)) in found
        for cut in (1, 511, 512, 768, 1535):
            assert b"n" * cut + b"o" * (1536 - cut) in found

    def test_grown_file_may_be_short_or_hold_zeros_or_garbage(self) -> None:
        disk = _disk_with_file(b"x" * 512)
        disk.open("f", write=True).pwrite(512, b"y" * 512)
        found = {image.read("f")[512:] for image in _images(disk)}
        assert {b"", bytes(512), b"y" * 512} <= found
        assert any(len(tail) == 512 and tail[0] not in b"\0y" for tail in found)
        assert all(image.read("f")[:512] == b"x" * 512 for image in _images(disk))

    def test_later_write_may_be_kept_without_an_earlier_one(self) -> None:
        """R8: any subset, any order."""
        disk = _disk_with_file(bytes(1024))
        file = disk.open("f", write=True)
        file.pwrite(0, b"first")
        file.pwrite(512, b"second")
        found = {(i.read("f")[:5], i.read("f")[512:518]) for i in _images(disk)}
        assert (bytes(5), b"second") in found
        assert (b"first", bytes(6)) in found

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
        again = [image.files() for image in disk.images(random.Random(5), 40)]
        assert len(first) == 40
        assert first == again
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
        """RELIABILITY 5.1: crash the recovery too."""
        disk = _disk_with_file(bytes(512))
        disk.open("f", write=True).pwrite(0, b"a")
        for image in _images(disk):
            before = image.read("f")
            image.open("f", write=True).pwrite(1, b"b")
            assert before in {second.read("f") for second in _images(image)}


def test_split_of_good_paths() -> None:
    assert split("a") == ("", "a")
    assert split("a/b/..c") == ("a/b", "..c")


def test_failure_is_one_plain_line() -> None:
    error = failure(OSError(errno.EIO, "Input/output error"), "read", "journal/1")
    assert str(error) == "cannot read journal/1: Input/output error"
    assert error.fields == {"path": "journal/1", "errno": "EIO"}


def _made(path: Path) -> str:
    create_root(str(path))
    return str(path)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def _descriptor_count() -> int:
    return len(os.listdir("/proc/self/fd"))


def _bits(pattern: int, count: int) -> list[int]:
    return [pattern >> n & 1 for n in range(count)]


def _failing(number: int, error: Exception | None = None, after: int = 0) -> Callable[..., object]:
    """Return a call that fails, the first `after` times only pretending to work."""
    calls = iter(range(after))

    def fail(*args: object, **options: object) -> object:
        for _ in calls:
            return None
        raise error or OSError(number, os.strerror(number))

    return fail


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
    disk.sync_dir("")  # the temporary is gone for good
    return disk


def _images(disk: MemoryDisk) -> list[MemoryDisk]:
    return list(disk.images(random.Random(0), 500))


def _held(root: str) -> LockFile:
    lock = PosixDisk(root).lock_file("lock")
    lock.acquire(0)
    return lock  # who has no handle any more has no lock


def _child(work: Callable[[], object]) -> tuple[int, bytes]:
    """Fork a child that works, says how it went, and then waits to be killed."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            kept = work()
            os.write(write, b"ok")
            while True:
                threading.Event().wait(600)
        except BaseException as error:
            os.write(write, repr(error).encode())
            kept = None
        finally:
            os._exit(0 if kept is None else 1)
    os.close(write)
    told = os.read(read, 4096)
    os.close(read)
    return child, told
