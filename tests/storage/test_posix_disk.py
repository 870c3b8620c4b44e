"""The real disk: modes, links, owners, locks, forks, and the translation of errors."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.storage.test_disk import BOTH_WAYS, Publish
from txlog.engine.storage.disk import posix
from txlog.engine.storage.disk import posix as disk_module
from txlog.engine.storage.disk.locks import find_holder, naps
from txlog.engine.storage.disk.posix import PosixDisk, create_root, filesystem
from txlog.engine.storage.disk.protocol import TEMPORARY_PREFIX, LockFile
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


@pytest.fixture
def root(tmp_path: Path) -> str:
    path = str(tmp_path / "store")
    create_root(path)
    return path


class TestPosix:
    """Tests that need the real disk."""

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

    def test_root_that_is_public_needs_a_flag_through_a_link_too(
        self, root: str, tmp_path: Path
    ) -> None:
        """spec/reliability 7.2; a link itself is followed as `cd` follows it."""
        link = tmp_path / "link"
        link.symlink_to(root)
        for text in (str(link), f"{link}/"):
            PosixDisk(text).write_fresh("f" + text[-1:].strip("/"), b"x")
        (tmp_path / "dangling").symlink_to(tmp_path / "gone")
        with pytest.raises(StoreNotFound):
            PosixDisk(str(tmp_path / "dangling"))
        Path(root).chmod(0o777)
        for text in (root, str(link)):
            with pytest.raises(NotAllowed, match="everybody"):
                PosixDisk(text)
        PosixDisk(root, allow_unsafe=True).write_fresh("g", b"x")
        assert PosixDisk(root, read_only=True).read("f") == b"x"

    def test_modes_do_not_depend_on_the_umask(self, tmp_path: Path) -> None:
        """spec/reliability 7.3."""
        old_umask = os.umask(0o277)
        try:
            disk = PosixDisk(_made(tmp_path / "a" / "private"))
            disk.publish("d/f", [b"x"])
            disk.lock_file("lock")
        finally:
            os.umask(old_umask)
        top = tmp_path / "a" / "private"
        assert [_mode(p) for p in (top, top / "d", top / "d/f", top / "lock")] == [
            0o700,
            0o700,
            0o600,
            0o600,
        ]

    def test_shared_store_has_the_mode_of_a_group(self, tmp_path: Path) -> None:
        import grp

        path = tmp_path / "shared"
        create_root(str(path), grp.getgrgid(os.getegid()).gr_name)
        disk = PosixDisk(str(path))
        disk.publish("d/f", [b"x"])
        assert [_mode(p) for p in (path, path / "d", path / "d/f")] == [0o2770, 0o2770, 0o660]

    def test_links_fifos_and_sockets_are_damage(self, root: str) -> None:
        """spec/reliability 7.2: no link is followed, and a FIFO never hangs us."""
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
        monkeypatch.setattr(disk_module, "KEPT_MAX", 3)
        disk = PosixDisk(root)
        count_before = _descriptor_count()
        for n in range(20):
            disk.publish(f"t/{n}/p/f", [b"%d" % n])
        assert [disk.read(f"t/{n}/p/f") for n in range(20)] == [b"%d" % n for n in range(20)]
        assert _descriptor_count() - count_before <= 3

    def test_nothing_leaks(self, root: str) -> None:
        count_before = _descriptor_count()
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
        assert _descriptor_count() == count_before
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
    @BOTH_WAYS
    def test_publish_that_fails_before_its_name_was_not_done(
        self, root: str, monkeypatch: pytest.MonkeyPatch, publish: Publish, call: str
    ) -> None:
        """R31."""
        disk = PosixDisk(root)
        disk.make_dirs("d")
        disk.read_only = False
        owner = fcntl if call == "flock" else os
        monkeypatch.setattr(owner, call, _failing(errno.EIO))
        with pytest.raises(DiskFailed):
            publish(disk, "d/f", [b"x"])
        monkeypatch.undo()
        assert disk.listdir("d") == []
        publish(disk, "d/f", [b"x"])

    def test_draft_that_reads_back_differently_gets_no_name(
        self, root: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """R3: the disk keeps no copy of the data, so it compares checksums after writing."""
        disk = PosixDisk(root)
        draft = disk.begin("d/f")
        draft.write(b"ab")
        draft.write(b"cd")
        [name] = disk.listdir("d")
        with Path(root, "d", name).open("r+b") as file:
            file.seek(2)
            file.write(b"x")
        with pytest.raises(DiskFailed, match="reads back differently"):
            draft.publish()
        draft.close()
        assert disk.listdir("d") == []

    def test_forked_child_keeps_the_draft_of_its_parent(self, root: str) -> None:
        disk = PosixDisk(root)
        draft = disk.begin("d/f")
        draft.write(b"x")
        child = os.fork()
        if child == 0:
            draft.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        draft.publish()
        draft.close()
        assert disk.read("d/f") == b"x"

    def test_publish_with_a_failed_last_flush_is_unknown(
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

    def test_many_files_cost_few_flushes(self, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
        """9: kills: a flush per file, except where a flush of the file system is not trusted.

        Each directory is flushed once, after all its names are made.
        """
        flushed: list[str] = []
        monkeypatch.setattr(os, "fsync", lambda fd: flushed.append("one"))
        for is_trusted, most in ((True, 4), (False, 300 + 2 * 300 + 5)):
            flushed.clear()

            def whole(fd: int, answer: bool = is_trusted) -> bool:
                flushed.append("all")
                return answer

            monkeypatch.setattr(disk_module, "sync_file_system", whole)
            disk = PosixDisk(root)
            disk.publish_all((f"t/{n}/p/{is_trusted}", [b"x"]) for n in range(300))
            assert flushed.count("all") == 4  # 128, 128 and 44 files, and the names
            assert len(flushed) - 4 * (not is_trusted) <= most
            assert ("one" in flushed) is not is_trusted

    @pytest.mark.parametrize(
        ("call", "after"),
        [("pwritev", 0), ("fsync", 0), ("fsync", 3), ("flock", 0), ("pread", 0), ("link", 0)],
    )
    def test_many_files_that_fail_before_their_names_were_not_done(
        self, root: str, monkeypatch: pytest.MonkeyPatch, call: str, after: int
    ) -> None:
        """R31, R13: no temporary stays, nor a directory whose name was not flushed."""
        monkeypatch.setattr(disk_module, "sync_file_system", lambda fd: False)
        disk = PosixDisk(root)
        disk.read_only = False
        owner = fcntl if call == "flock" else os
        with monkeypatch.context() as patched:
            patched.setattr(owner, call, _failing(errno.EIO, after=after))
            with pytest.raises(DiskFailed):
                disk.publish_all([(f"d/{n}/f", [b"x"]) for n in range(3)])
        assert not [path for path in Path(root).rglob(f"{TEMPORARY_PREFIX}*")]
        if call == "fsync":
            assert disk.listdir("") == []
        disk.publish_all([(f"d/{n}/f", [b"x"]) for n in range(3)])

    def test_many_files_with_unflushed_names_are_unknown(
        self, root: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """R31; 3 files and 3 directories are flushed before their names are."""
        monkeypatch.setattr(disk_module, "sync_file_system", lambda fd: False)
        disk = PosixDisk(root)
        disk.make_dirs("d")
        with monkeypatch.context() as patched:
            patched.setattr(os, "fsync", _failing(errno.EIO, after=3))
            with pytest.raises(OutcomeUnknown):
                disk.publish_all([(f"d/{n}", [b"x"]) for n in range(3)])
        assert disk.listdir("d") == ["0", "1", "2"]

    def test_data_that_reads_back_differently_is_not_published(
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
            (os, "open"),
            (os, "pread"),
            (os, "pwrite"),
            (os, "pwritev"),
            (os, "stat"),
            (os, "fstat"),
            (os, "fstatvfs"),
            (os, "unlink"),
            (os, "fsync"),
            (os, "mkdir"),
            (fcntl, "flock"),
        ):
            monkeypatch.setattr(owner, call, _failing(number))
        reading = (
            lambda: disk.open("d/f"),
            lambda: disk.read("d/f"),
            lambda: disk.size("d/f"),
            lambda: file.pread(0, 1),
            disk.free_bytes,
            file.size,
        )
        for work in (
            *reading,
            lambda: disk.publish("d/g", [b"x"]),
            lambda: disk.write_fresh("e/g", b"x"),
            lambda: disk.make_dirs("g"),
            lambda: disk.sync_dir("d"),
            lambda: disk.lock_file("other"),
            lambda: disk.unlink("d/f", missing_ok=False),
            lambda: file.pwrite(0, b"x"),
            lambda: file.pwrite(0, [b"x"]),
            lock.try_acquire,
            lock.release,
            lock.holder,
        ):
            kinds: tuple[type[TxlogError], ...] = (kind,)
            if number == errno.EACCES:  # what cannot be read is not read-only; locks do both
                kinds = (DiskFailed,) if work in reading else (kind, DiskFailed)
            with pytest.raises(kinds):
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
        child, report = _child(lambda: _held(root))
        assert report == b"ok"
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

        child, report = _child(in_child)
        other = disk.lock_file("lock")
        try:
            assert report == b"ok"
            assert not other.try_acquire()  # the child freed nothing
            lock.close()
            assert other.try_acquire()  # and it keeps nothing
        finally:
            os.kill(child, 9)
            os.waitpid(child, 0)

    def test_waiter_that_gave_up_is_used_again(self, root: str) -> None:
        disk = PosixDisk(root)
        first, second = disk.lock_file("lock"), disk.lock_file("lock")
        first.acquire(0)
        threads_before = threading.active_count()
        for _ in range(5):
            with pytest.raises(StoreLocked):
                second.acquire(1)
        assert threading.active_count() <= threads_before + 1
        first.release()
        second.acquire(60_000)
        assert not first.try_acquire()

    def test_interrupted_wait_leaves_no_lock(
        self, root: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        disk = PosixDisk(root)
        first, second = disk.lock_file("lock"), disk.lock_file("lock")
        first.acquire(0)
        with monkeypatch.context() as patch:

            def interrupt(seconds: float) -> None:
                raise KeyboardInterrupt

            patch.setattr(time, "sleep", interrupt)
            with pytest.raises(KeyboardInterrupt):
                second.acquire(60_000)
        first.release()
        first.acquire(60_000)

    def test_callback_runs_while_waiting(self, root: str) -> None:
        disk = PosixDisk(root)
        first, second = disk.lock_file("lock"), disk.lock_file("lock")
        first.acquire(0)
        calls: list[int] = []

        def meanwhile() -> bool:
            calls.append(len(calls))
            if len(calls) == 3:
                first.release()
            return False

        assert second.acquire(60_000, meanwhile)
        assert len(calls) == 3
        assert not first.acquire(60_000, lambda: True)
        second.release()
        assert first.acquire(0)

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
        monkeypatch.setattr(posix, "filesystem", lambda path: "nfs")
        with pytest.raises(NotAllowed, match="nfs"):
            create_root(str(tmp_path / "s"))
        create_root(str(tmp_path / "s"), allow_unsafe=True)


def _made(path: Path) -> str:
    create_root(str(path))
    return str(path)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def _descriptor_count() -> int:
    return len(os.listdir("/proc/self/fd"))


def _failing(number: int, error: Exception | None = None, after: int = 0) -> Callable[..., object]:
    """Return a call that fails, the first `after` times only pretending to work."""
    calls = iter(range(after))

    def fail(*args: object, **options: object) -> object:
        for _ in calls:
            return None
        raise error or OSError(number, os.strerror(number))

    return fail


def _held(root: str) -> LockFile:
    lock = PosixDisk(root).lock_file("lock")
    lock.acquire(0)
    return lock  # the lock is freed when the last handle goes


def _child(work: Callable[[], object]) -> tuple[int, bytes]:
    """Fork a child that works, reports the outcome, and then waits to be killed."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            result = work()
            os.write(write, b"ok")
            while True:
                threading.Event().wait(600)
        except BaseException as error:
            os.write(write, repr(error).encode())
            result = None
        finally:
            os._exit(0 if result is None else 1)
    os.close(write)
    report = os.read(read, 4096)
    os.close(read)
    return child, report


CALLS: dict[str, tuple[str, Callable[[PosixDisk], object]]] = {
    "read": ("pread", lambda disk: disk.read("f")),
    "write": ("pwrite", lambda disk: disk.open("f", write=True).pwrite(0, b"x")),
    "write pieces": ("pwritev", lambda disk: disk.open("f", write=True).pwrite(0, [b"x", b"y"])),
    "flush": ("fdatasync", lambda disk: disk.open("f", write=True).datasync()),
    "publish": ("link", lambda disk: disk.publish("g", [b"x"])),
    "publish and flush": ("fsync", lambda disk: disk.publish("g", [b"x"])),
    "flush names": ("fsync", lambda disk: disk.sync_dir("")),
    "make": ("fsync", lambda disk: disk.make_dirs("d")),
    "open": ("open", lambda disk: disk.open("f")),
    "look": ("stat", lambda disk: disk.exists("f")),
    "list": ("listdir", lambda disk: disk.listdir("")),
    "remove": ("unlink", lambda disk: disk.unlink("f")),
    "close": ("close", lambda disk: disk.open("f").close()),
    "space": ("fstatvfs", lambda disk: disk.free_bytes()),
}


@pytest.mark.parametrize("name", CALLS)
def test_exception_of_a_handler_is_no_disk_error(
    root: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler's OSError without a number passes unchanged through any call, and none is lost."""
    disk = PosixDisk(root)
    disk.publish("f", [b"data"])
    function, call = CALLS[name]
    real = getattr(os, function)

    def interrupted(*arguments: object, **options: object) -> None:
        real(*arguments, **options)
        monkeypatch.undo()
        raise TimeoutError("time is up")

    monkeypatch.setattr(os, function, interrupted)
    with pytest.raises(TimeoutError, match="time is up"):
        call(disk)
    disk.publish("h", [b"more"])  # and the disk goes on
    assert disk.read("h") == b"more"


@pytest.mark.parametrize("is_free", [True, False])
def test_exception_of_a_handler_does_not_mean_a_held_lock(
    root: str, is_free: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BlockingIOError from the system means a held lock; a handler's passes unchanged."""
    disk = PosixDisk(root)
    lock, other = disk.lock_file("lock"), disk.lock_file("lock")
    if not is_free:
        lock.acquire(0)

    def interrupted(*arguments: object) -> None:
        raise BlockingIOError("the queue is full")

    with monkeypatch.context() as patched, pytest.raises(BlockingIOError):
        patched.setattr(fcntl, "flock", interrupted)
        other.try_acquire()
    assert other.try_acquire() is is_free


class Napping:
    """A clock that advances only during naps, and records (when, how long) of each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.naps: list[tuple[float, float]] = []
        self.then: Callable[[], object] = lambda: None
        monkeypatch.setattr(time, "sleep", self._sleep)
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(time, "perf_counter_ns", lambda: 512)  # a nap as long as it says

    def _sleep(self, seconds: float) -> None:
        self.naps.append((self.now, seconds))
        self.now += seconds + 1e-6
        self.then()

    def between(self, start: float, stop: float) -> list[float]:
        return [length for at, length in self.naps if start <= at < stop]


def test_naps_are_brief_after_the_usual_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kills: naps that grow for ever, so that the longest wait is the last to end."""
    napping = Napping(monkeypatch)
    for _ in naps(1_000, usual_s=0.01):
        pass
    assert max(napping.between(0, 0.02)) > 0.9e-3
    assert max(napping.between(0.021, 0.04)) < 0.2e-3
    assert min(napping.between(0.041, 0.99)) > 0.9e-3  # it is held for long: look less often
    assert napping.now == pytest.approx(1, abs=0.021)


def test_a_lock_knows_how_long_waits_for_it_take(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    napping, disk = Napping(monkeypatch), PosixDisk(root)
    holder, waits = disk.lock_file("lock"), disk.lock_file("lock")
    until = 0.0

    def release_in_time() -> None:
        if napping.now >= until:
            holder.release()

    for _ in range(50):
        assert holder.try_acquire()
        until, napping.then = napping.now + 0.02, release_in_time
        waits.acquire(60_000)
        waits.release()
    assert holder.try_acquire()
    napping.naps.clear()
    began, napping.then = napping.now, lambda: None
    with pytest.raises(StoreLocked):
        waits.acquire(200)
    assert max(napping.between(began + 0.01, began + 0.035)) > 0.9e-3
    assert max(napping.between(began + 0.045, began + 0.075)) < 0.2e-3
