"""A directory, link, pipe or socket in place of a file: verify reports it, repair moves it away.

Tried in place of each kind of file that a store has. R26.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

import txlog
from tests.engine_kit import START_MS, Bench, open_client, send, values
from tests.tiers import graded
from txlog.clock import ManualClock
from txlog.errors import TxlogError

pytestmark = pytest.mark.usefixtures("quick_disk")
KINDS = ("directory", "link", "pipe", "socket")
NEWEST = {
    "manifest": "manifest/*", "state": "state/*", "part": "topics/*/*/*/*/_ledger*",
    "journal": "journal/*.journal",
}  # fmt: skip
FIXED = ("journal/witness", "reserve", "lock", "maintenance.lock", "pins.lock")
UNNAMED = ("consumers/1.lock", "pins/0123456789abcdef.lock", "state/0000000099.state")


@cache
def sample() -> Path:
    """Two checkpoints and a tail: a, b, c, d."""
    bench = Bench(Path(mkdtemp(), "store"))
    bench.client.create_topic("t")
    for value in (b"a", b"b", b"c"):
        send(bench.client, value)
        bench.client.checkpoint()
    send(bench.client, b"d")
    bench.close()
    return Path(bench.path)


def put(path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace a file, or a missing file, by something of this kind."""
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    if kind == "directory":
        path.mkdir()
    elif kind == "link":
        path.symlink_to("/dev/null")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        monkeypatch.chdir(path.parent)  # a long path is no address
        with socket.socket(socket.AF_UNIX) as each_socket:
            each_socket.bind(path.name)


def codes(store: Path, **how: Any) -> dict[str, str | None]:
    report = txlog.verify(str(store), clock=ManualClock(START_MS), **how)
    return {problem["code"]: problem["path"] for problem in report["problem_list"]}


def repaired(store: Path, **how: Any) -> list[str]:
    done = txlog.repair(str(store), apply=True, clock=ManualClock(START_MS), **how)
    assert all(action["done"] for action in done["action_list"]), done
    return list(dict.fromkeys(action["action"] for action in done["action_list"]))


@pytest.mark.parametrize("kind", graded(KINDS, 1))
@pytest.mark.parametrize("name", [*FIXED, *UNNAMED])
def test_it_is_named_and_moved_to_the_quarantine(
    name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Verify checks all other files too; repair makes the missing file anew."""
    store = tmp_path / "store"
    shutil.copytree(sample(), store)
    put(store / name, kind, monkeypatch)
    for deep in (False, True):
        assert codes(store, deep=deep)["irregular"] == name
    assert repaired(store)[0] == "set-aside"
    aside = store / "quarantine" / (name.replace("/", "+") + ".damaged")
    assert aside.is_symlink() if kind == "link" else aside.exists()
    assert set(codes(store)) == {"quarantine"}
    with open_client(str(store), ManualClock(START_MS)) as client:
        send(client, b"e")
        client.checkpoint()
        assert values(client) == [b"a", b"b", b"c", b"d", b"e"]


@pytest.mark.parametrize("kind", graded(KINDS, ("link",)))
@pytest.mark.parametrize("name", NEWEST)
def test_in_place_of_a_named_file_it_is_damage(
    name: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Repair treats it as a lost file; only a lost journal costs messages."""
    store = tmp_path / "store"
    shutil.copytree(sample(), store)
    path = max(store.glob(NEWEST[name]))
    put(path, kind, monkeypatch)
    found_codes = codes(store)
    assert found_codes["irregular"] == str(path.relative_to(store))
    assert any(code.startswith("TXL-") for code in found_codes)
    repaired(store, accept_loss=name == "journal")
    assert not any(code.startswith("TXL-") for code in codes(store, deep=True))
    expected_values = [b"a", b"b", b"c"] if name == "journal" else [b"a", b"b", b"c", b"d"]
    with open_client(str(store), ManualClock(START_MS)) as client:
        send(client, b"e")
        assert values(client) == [*expected_values, b"e"]


@pytest.mark.parametrize("kind", KINDS)
def test_no_repair_restores_the_identity(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    shutil.copytree(sample(), store)
    put(store / "txlog.toml", kind, monkeypatch)
    assert codes(store)["irregular"] == "txlog.toml"
    plan = txlog.repair(str(store), apply=True, clock=ManualClock(START_MS))
    assert [action["action"] for action in plan["action_list"]] == ["restore"]


def test_bytes_after_the_last_dump_are_reported(tmp_path: Path) -> None:
    """Verify reports them: no code needs them, and no store writes them."""
    store = tmp_path / "store"
    shutil.copytree(sample(), store)
    path = max(store.glob("state/*"))
    path.write_bytes(path.read_bytes() + b"more")
    assert codes(store) == {"void": f"state/{path.name}"}


NOBODY = 65534


@contextmanager
def of_nobody(store: Path) -> Iterator[None]:
    """Run as a user without rights who owns the store.

    All modules are loaded before, as other users may not enter the home directory.
    """
    for folder, _, names in os.walk(store):
        for path in (folder, *(os.path.join(folder, name) for name in names)):
            os.chown(path, NOBODY, NOBODY)
    group = os.getegid()
    os.setegid(NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(group)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to be somebody who may not read a file")
    folder = Path(mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("name", [*FIXED[:4], "manifest", "state", "part", "journal"])
def test_an_unreadable_file_is_named_and_made_again(name: str, open_folder: Path) -> None:
    """Mode 000, for a user who is not root; a journal is not given up, as chmod brings it back."""
    warm, store = open_folder / "warm", open_folder / "store"
    shutil.copytree(sample(), warm)
    max(warm.glob("state/*")).unlink()
    codes(warm, deep=True)
    repaired(warm)
    shutil.copytree(sample(), store)
    path = max(store.glob(NEWEST.get(name, name)))
    relative_path = str(path.relative_to(store))
    path.chmod(0)
    clock = ManualClock(START_MS)
    with of_nobody(store):
        for deep in (False, True):
            assert codes(store, deep=deep)["irregular"] == relative_path
        if name == "journal":
            with pytest.raises(TxlogError, match="Permission denied"):
                txlog.repair(str(store), apply=True, accept_loss=True, clock=clock)
            path.chmod(0o600)
        else:
            repaired(store)
        assert set(codes(store, deep=True)) <= {"quarantine"}
        with open_client(str(store), clock) as client:
            send(client, b"e")
            assert values(client) == [b"a", b"b", b"c", b"d", b"e"]
