"""Tests of store.identity: nothing is acknowledged into files that no name leads to."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import txlog
from tests.disk.faults import FaultyDisk
from tests.engine_kit import client_on
from txlog import Client, Message
from txlog.clock import SystemClock
from txlog.engine.storage.disk import posix
from txlog.engine.storage.disk.libc import inode_of
from txlog.engine.storage.disk.posix import PosixDisk
from txlog.errors import Corruption, OutcomeUnknown, StoreNotFound, TxlogError

pytestmark = pytest.mark.usefixtures("quick_disk")


def made(path: Path, value: bytes = b"old") -> None:
    """A store with one message."""
    txlog.init(str(path), free_bytes_min=0)
    with txlog.open(str(path)) as client:
        client.create_topic("t")
        client.producer("t").send(value)


def removed(path: Path) -> None:
    shutil.rmtree(path)


def moved(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))


def made_anew(path: Path) -> None:
    moved(path)
    made(path, b"new")


def restored(path: Path) -> None:
    """A copy in its place: the same store as before, in another directory."""
    copy = path.with_name("copy")
    shutil.copytree(path, copy)
    shutil.rmtree(path)
    copy.rename(path)


def emptied(path: Path) -> None:
    for path_inside in path.iterdir():
        shutil.rmtree(path_inside) if path_inside.is_dir() else path_inside.unlink()


def made_anew_inside(path: Path) -> None:
    emptied(path)
    made(path, b"new")


def restored_inside(path: Path) -> None:
    """File by file, as rsync does: the same directories, the same store."""
    for path_inside in [*path.rglob("*")]:
        if path_inside.is_file():
            other = path_inside.with_name("other")
            shutil.copy2(path_inside, other)
            other.replace(path_inside)


FATES: list[tuple[Callable[[Path], None], str]] = [
    (removed, "was removed"),
    (moved, "was moved away"),
    (made_anew, "its name leads to another directory"),
    (restored, "its name leads to another directory"),
    (emptied, "was removed"),
    (made_anew_inside, "another store was made"),
    (restored_inside, "its files are others"),
]
USES: list[Callable[[Client], object]] = [
    lambda client: client.producer("t").send(b"lost"),
    lambda client: client.transaction().commit(),
    lambda client: client.create_topic("u"),
    lambda client: list(client.read("t")),
    lambda client: client.wait_for_change(1 << 40, timeout_ms=None),
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made(tmp_path / "store")
    return tmp_path / "store"


@pytest.fixture
def client(path: Path) -> Iterator[Client]:
    """A client that has sent, so that its handle has everything open and settled."""
    client = txlog.open(str(path))
    client.producer("t").send(b"before")
    yield client
    with suppress(TxlogError):
        client.close()


@pytest.mark.parametrize(("fate", "message"), FATES, ids=lambda one: getattr(one, "__name__", ""))
def test_missing_store_is_noticed(
    path: Path, client: Client, fate: Callable[[Path], None], message: str
) -> None:
    """Kills: a send that is acknowledged into deleted files, a wait that never ends."""
    fate(path)
    for use in USES:
        with pytest.raises(StoreNotFound, match=message) as caught:
            use(client)
        assert caught.value.code == 301
        assert caught.value.hint
    if path.exists() and fate is not emptied:
        with txlog.open(str(path)) as other:
            assert b"lost" not in [one.value for one in other.reader("t")]


def test_a_reader_and_a_consumer_notice_it_too(path: Path, client: Client) -> None:
    """Kills: old messages delivered as if nothing had happened."""
    reader = client.reader("t")
    client.create_subscription("t", "s")
    consumer = client.consumer("t", "s")
    assert isinstance(reader.read_next(), Message)
    moved(path)
    with pytest.raises(StoreNotFound, match="moved away"):
        [reader.read_next(timeout_ms=None) for _ in range(3)]
    with pytest.raises(StoreNotFound, match="moved away"):
        consumer.receive(timeout_ms=None)


def test_a_store_that_comes_back_is_used_as_before(path: Path, client: Client) -> None:
    """A refused call has done nothing, and the handle is as it was."""
    moved(path)
    for _ in range(2):
        with pytest.raises(StoreNotFound):
            client.producer("t").send(b"refused")
    path.with_name("elsewhere").rename(path)
    client.producer("t").send(b"again")
    assert [message.value for message in client.reader("t")] == [b"old", b"before", b"again"]


def test_a_journal_that_was_removed_is_noticed(path: Path, client: Client) -> None:
    """Kills: a writer that compares directories only."""
    for file in (path / "journal").glob("*.journal"):
        file.unlink()
    with pytest.raises(StoreNotFound, match="has lost its file journal/"):
        client.producer("t").send(b"lost")


def test_files_removed_by_checkpoints_are_no_reason_to_refuse(path: Path, client: Client) -> None:
    """Kills: a handle that is refused because a checkpoint removed its journal file or witness."""
    with txlog.open(str(path)) as other:
        for number in range(3):
            other.producer("t").send(b"%d" % number)
            other.checkpoint(roll_all=True)
    assert len(list(client.read("t"))) >= 1
    client.producer("t").send(b"after")
    (path / "journal" / "witness").unlink()
    client.producer("t").send(b"last")
    values = [message.value for message in client.reader("t")]
    assert values == [b"old", b"before", b"0", b"1", b"2", b"after", b"last"]


def test_store_removed_during_a_flush_leaves_the_outcome_unknown(
    path: Path,
) -> None:
    """Kills: a call acknowledged because it looked before it wrote only."""
    disk = FaultyDisk(PosixDisk(str(path)))
    with client_on(disk, SystemClock()) as client:
        disk.after("datasync", lambda: moved(path))
        with pytest.raises(OutcomeUnknown, match="was moved away"):
            client.producer("t").send(b"in the moved store")


def test_a_link_that_leads_to_another_store_now(tmp_path: Path, path: Path) -> None:
    made(tmp_path / "other")
    link = tmp_path / "current"
    link.symlink_to(path)
    with txlog.open(str(link)) as client:
        client.producer("t").send(b"by the link")
        link.unlink()
        link.symlink_to(tmp_path / "other")
        with pytest.raises(StoreNotFound, match="replaced"):
            client.producer("t").send(b"lost")


@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_store_removed_while_opening_raises_store_not_found(
    path: Path, monkeypatch: pytest.MonkeyPatch, has_checkpoint: bool
) -> None:
    """Kills: "the store moved on faster than it could be read", a file that cannot be opened."""
    if has_checkpoint:
        with txlog.open(str(path)) as client:
            client.checkpoint()
    moved_store = path.with_name("kept")
    path.rename(moved_store)
    at, calls = 0, 0

    def removing(call: Callable[..., object]) -> Callable[..., object]:
        def counted(*arguments: object, **options: object) -> object:
            nonlocal calls
            calls += 1
            if calls == at:
                removed(path)
            return call(*arguments, **options)

        return counted

    for name in ("_open", "listdir", "exists", "read", "leads_to"):
        monkeypatch.setattr(PosixDisk, name, removing(getattr(PosixDisk, name)))
    while calls >= at:  # until nothing is asked of the disk any more
        shutil.copytree(moved_store, path, dirs_exist_ok=True)
        at, calls = at + 1, 0
        with suppress(StoreNotFound):
            txlog.open(str(path)).close()
    assert at > 3


def test_a_store_that_lost_its_journal_before_any_checkpoint_is_damaged(path: Path) -> None:
    """Kills: TXL-504, that the store moved on faster than it could be read: it never will."""
    for file in (path / "journal").iterdir():
        file.unlink()
    with pytest.raises(Corruption, match="no journal file") as caught:
        txlog.open(str(path))
    assert caught.value.code == 602


def test_path_through_a_link_is_not_normalized(tmp_path: Path, path: Path) -> None:
    """Kills: a store refused because `link/..` is not what it looks like."""
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "deep" / "er")
    path.rename(tmp_path / "deep" / "store")
    with txlog.open(f"{tmp_path}/link/../store") as client:
        client.producer("t").send(b"x")
        removed(tmp_path / "deep" / "store")
        with pytest.raises(StoreNotFound, match="was removed"):
            client.producer("t").send(b"lost")


def test_unstable_inode_numbers_are_no_reason_to_refuse(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some file systems number a file anew each time it is looked up."""
    monkeypatch.setattr(PosixDisk, "leads_to", lambda disk, path, file: False)
    client.producer("t").send(b"x")
    assert len([*client.reader("t")]) == 3


def test_unreadable_path_does_not_mean_a_missing_store(
    path: Path, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that has given up rights may not search the directories above any more."""
    stat = os.stat

    def refusing(name: object, **others: object) -> os.stat_result:
        if str(name).startswith(str(path)):
            raise PermissionError(13, "Permission denied")
        return stat(name, **others)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "stat", refusing)
    monkeypatch.setattr(os, "lstat", lambda name: refusing(name, follow_symlinks=False))
    monkeypatch.setattr(posix, "inode_of", lambda name: refusing(name, follow_symlinks=False))
    producer = client.producer("t")
    for _ in range(posix.LOOKS_BY_LSTAT):  # at last, in the other way too
        producer.send(b"x")
    assert len([*client.reader("t")]) == 2 + posix.LOOKS_BY_LSTAT


def test_a_long_run_asks_for_no_times(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: lstat at each commit, which makes the next write to the journal stamp its file."""
    looked: list[str] = []
    lstat, producer = os.lstat, client.producer("t")

    def noted(name: str) -> os.stat_result:
        looked.append(name)
        return lstat(name)

    for _ in range(posix.LOOKS_BY_LSTAT):
        producer.send(b"x")
    monkeypatch.setattr(os, "lstat", noted)
    producer.send(b"x")
    assert looked == []


def test_without_statx(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> tuple[int, int]:
        raise NotImplementedError

    monkeypatch.setattr(posix, "inode_of", missing)
    producer = client.producer("t")
    for _ in range(posix.LOOKS_BY_LSTAT + 1):
        producer.send(b"x")


def test_both_looks_see_the_same(path: Path) -> None:
    at = os.lstat(path)
    assert inode_of(str(path)) == (at.st_dev, at.st_ino)
    with pytest.raises(FileNotFoundError):
        inode_of(str(path / "nothing"))


def test_a_wait_wakes_when_the_store_is_moved(path: Path, client: Client) -> None:
    """Kills: a consumer that waits an hour in a store that is elsewhere."""
    wakeups = client.store.wakeups
    wakeups.begin()
    if not wakeups.is_told:
        pytest.skip("this machine does not tell of changes")
    seen = wakeups.count
    assert not wakeups.wait(seen, 0)
    moved(path)
    assert wakeups.wait(seen, 60)
