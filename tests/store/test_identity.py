"""`init` makes a whole store or none, and the remains of a failed `init` do not stop the next."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import txlog
from txlog.base.settings import Settings
from txlog.clock import SystemClock
from txlog.engine.storage.disk import posix
from txlog.engine.storage.disk.posix import PosixDisk
from txlog.engine.store import identity
from txlog.engine.store.identity import IDENTITY_PATH, make_store, read_identity
from txlog.errors import AlreadyExists, FormatMismatch, StoreFull, StoreLocked, TxlogError

pytestmark = pytest.mark.usefixtures("quick_disk")


class Failing(PosixDisk):
    """A disk where one writing call fails, before or after its change."""

    left = 0
    behind = False

    def _step(self, call: Any, *args: Any) -> Any:
        self.left -= 1
        at = self.left
        if at == 0 and not self.behind:
            raise StoreFull("no room")
        answer = call(*args)
        if at == 0:
            raise StoreFull("no room")
        return answer

    def make_dirs(self, path: str) -> None:
        self._step(super().make_dirs, path)

    def write_fresh(self, path: str, data: Any) -> None:
        self._step(super().write_fresh, path, data)

    def publish(self, path: str, parts: Any) -> None:
        self._step(super().publish, path, parts)


def tree(path: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


@pytest.mark.parametrize("behind", [False, True])
def test_init_succeeds_after_an_interrupted_init(tmp_path: Path, behind: bool) -> None:
    """spec/cli 11.7: `init` that failed did nothing, so it may be repeated. Kills: any step."""
    failed = 0
    while True:
        root = tmp_path / str(failed)
        posix.create_root(str(root))
        disk = Failing(str(root))
        disk.left, disk.behind = failed + 1, behind
        try:
            make_store(disk, Settings(), SystemClock())
            break
        except StoreFull:
            failed += 1
        finally:
            disk.close()
        if (root / IDENTITY_PATH).exists():
            continue
        (root / ".tmp-0123456789abcdef").write_bytes(b"of one that was killed")
        identity_made = txlog.init(str(root))
        assert identity_made["created"] and not list(root.rglob(".tmp-*"))
        with txlog.open(str(root)) as client:
            assert client.create_topic("t")
            client.producer("t").send(b"m")
    assert failed >= 10


def test_store_without_its_identity_is_not_removed(tmp_path: Path) -> None:
    """Kills: an `init` that removes a store whose txlog.toml is missing."""
    root = tmp_path / "store"
    txlog.init(str(root))
    with txlog.open(str(root)) as client:
        client.create_topic("t")
    (root / IDENTITY_PATH).unlink()
    files = tree(root)
    with pytest.raises(AlreadyExists, match="not an empty directory"):
        txlog.init(str(root))
    assert tree(root) == files


def test_init_removes_only_files_of_an_earlier_init(tmp_path: Path) -> None:
    for number, name in enumerate(("notes.txt", "journal/notes.txt", "topics/x/y", "reserve/x")):
        (tmp_path / str(number) / name).parent.mkdir(parents=True)
        (tmp_path / str(number) / name).write_text("mine")
        with pytest.raises(TxlogError):
            txlog.init(str(tmp_path / str(number)))
        assert (tmp_path / str(number) / name).read_text() == "mine"


def test_one_of_two_processes_makes_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second process waits, and finds a store. Kills: removal of the first one's files."""
    monkeypatch.setattr(identity, "WAIT_MS", 0)
    root = tmp_path / "store"
    posix.create_root(str(root))
    disk = PosixDisk(str(root))
    disk.write_fresh("lock", b"")
    lock = disk.lock_file("lock")
    lock.acquire(0)
    with pytest.raises(StoreLocked):
        txlog.init(str(root))
    identity_made = identity._make(disk, Settings(), SystemClock())
    lock.close()
    with pytest.raises(AlreadyExists, match="is a store already"):
        txlog.init(str(root))
    assert txlog.init(str(root), if_not_exists=True)["uuid"] == identity_made.uuid
    assert read_identity(disk) == identity_made
    disk.close()


@pytest.mark.parametrize("read_only", [False, True])
def test_an_older_program_refuses_a_newer_store(tmp_path: Path, read_only: bool) -> None:
    """603, and nothing is written. Kills: a program that reads what it does not understand."""
    store = tmp_path / "store"
    txlog.init(str(store))
    disk = PosixDisk(str(store))
    old_identity = read_identity(disk)
    disk.close()
    newer = identity.Identity(identity.FORMAT + 1, old_identity.uuid, old_identity.created_ms)
    (store / IDENTITY_PATH).write_text(identity.text_of(newer))
    files_before = tree(store)
    with pytest.raises(FormatMismatch, match=rf"has format {identity.FORMAT + 1}, this") as caught:
        txlog.open(str(store), read_only=read_only)
    assert caught.value.code == 603
    assert tree(store) == files_before
