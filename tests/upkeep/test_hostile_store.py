"""A store from a stranger: the program removes nothing outside it because the store names it."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import txlog
from txlog import Client
from txlog.base.ranges import END
from txlog.engine.decide.draft import Decision
from txlog.engine.decide.topics import ledgers
from txlog.engine.model.ops import PlaceAdded
from txlog.engine.storage import manifest as manifests
from txlog.engine.storage import remote
from txlog.engine.storage.disk.posix import PosixDisk
from txlog.errors import DiskFailed
from txlog.lake.sql.client_query import Query

pytestmark = pytest.mark.usefixtures("quick_disk")


def made(path: Path, name: str = "store") -> Path:
    """A store with messages in sealed files."""
    store = path / name
    txlog.init(str(store), reader_grace_ms=0)
    with opened(store) as client:
        client.create_topic("orders")
        client.create_subscription("orders", "s")
        for _ in range(2):
            client.producer("orders").send(b"x")
            client.checkpoint(roll_all=True)
    return store


def opened(store: Path) -> Client:
    client = txlog.open(str(store))
    client.checkpoint_automatically = False
    return client


def tamper(store: Path, dropped: list[str]) -> None:
    """Change the newest manifest, so that it lists these files as dropped long ago."""
    with opened(store) as client:
        salt = client.store.identity.salt
    disk = PosixDisk(str(store))
    number = manifests.generations(disk)[-1]
    manifest = manifests.read_manifest(disk, number, salt)
    changed = msgspec.structs.replace(
        manifest, dropped=[(path, 1) for path in dropped], files=dict(manifest.files.items())
    )
    path = store / manifests.manifest_path(number)
    path.chmod(0o600)
    path.write_bytes(manifests.encode_manifest(changed, salt))
    disk.close()


def clean_up(store: Path) -> list[str]:
    """Run every command that removes files; returns the reports."""
    with opened(store) as client:
        client.producer("orders").send(b"y")
        for _ in range(2):
            client.checkpoint(roll_all=True)
        client.admin.trim("orders", END, force_unacked=True)
        client.checkpoint()
        client.admin.gc(False, 0)
        client.admin.gc(True, 0)
        return [*client.store.reports]


def victims(folder: Path, uuid: str) -> dict[str, Path]:
    """Files of the user, by the kind of path that leads to them."""
    home = folder / "home"
    inside = home / uuid / "topics/public/default/orders/partition=0"
    inside.mkdir(parents=True)
    victim_paths = {"plain": home / "precious.txt", "as of a store": inside / "ledger-1.1.parquet"}
    for path in victim_paths.values():
        path.write_text("precious")
    return victim_paths


@pytest.mark.parametrize("which", ["plain", "as of a store"])
@pytest.mark.parametrize("form", ["file://{}", "{}", "../home/precious.txt", "file://{}?region=x"])
def test_a_manifest_cannot_remove_files_outside_the_store(
    tmp_path: Path, which: str, form: str
) -> None:
    """Guards against removing the address in a manifest as if it were the store's own file."""
    store = made(tmp_path)
    with opened(store) as client:
        uuid = client.store.identity.uuid
    victim = victims(tmp_path, uuid)[which]
    tamper(store, [form.format(victim)])
    clean_up(store)
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("which", ["plain", "as of a store"])
def test_a_catalog_cannot_make_gc_clear_a_directory(tmp_path: Path, which: str) -> None:
    """Guards against a gc that clears a directory because the catalog lists it as a place of the
    store.
    """
    store = made(tmp_path)
    with opened(store) as client:
        uuid = client.store.identity.uuid
        victim = victims(tmp_path, uuid)[which]
        home = f"file://{tmp_path / 'home'}"
        client.store.write(lambda view, now: ledgers.add_place(view, home))
        client.store.write(lambda view, now: ledgers.add_place(view, f"{home}/{uuid}"))
    texts = clean_up(store)
    assert victim.read_text() == "precious"
    assert any("is not looked at" in text for text in texts)


def test_a_place_that_was_not_confirmed_is_not_even_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against a call to any address, with the user's credentials, because a catalog names
    it.
    """
    store = made(tmp_path)
    with opened(store) as client:
        uuid = client.store.identity.uuid
        location = f"s3://bucket/{uuid}?endpoint_override=127.0.0.1:1"
        client.store.write(lambda view, now: Decision([PlaceAdded(location)], None, True))
    tamper(store, [remote.address(location, "topics/a/b/c/partition=0/ledger-1.1.parquet")])
    monkeypatch.setattr(remote, "located", lambda far: pytest.fail(f"reached for {far}"))
    clean_up(store)


def test_a_link_in_a_confirmed_place_leads_nowhere(tmp_path: Path) -> None:
    """Guards against a directory in an archive that was replaced by a link to the user's files."""
    store, archive = made(tmp_path), tmp_path / "archive"
    archive.mkdir(mode=0o700)
    with opened(store) as client:
        assert client.admin.offload("orders", str(archive))["files"]
        uuid = client.store.identity.uuid
    [first, *_] = sorted(archive.glob("**/*.parquet"))
    directory, elsewhere = first.parent, tmp_path / "elsewhere"
    shutil.move(directory, elsewhere)
    directory.symlink_to(elsewhere)
    paths = sorted(elsewhere.iterdir())
    texts = clean_up(store)
    assert sorted(elsewhere.iterdir()) == paths
    assert any(uuid in text for text in texts)


def test_files_of_a_store_that_was_moved_go_once_its_place_is_confirmed(tmp_path: Path) -> None:
    """A copy by hand has the same uuid, so the original may still need the files that the copy
    drops.
    """
    store, archive = made(tmp_path), tmp_path / "archive"
    archive.mkdir(mode=0o700)
    with opened(store) as client:
        assert client.admin.offload("orders", str(archive))["files"]
    moved = tmp_path / "moved"
    shutil.move(store, moved)
    files = sorted(archive.glob("**/*.parquet"))
    with opened(moved) as client:
        assert len(list(client.reader("orders"))) == 2  # it reads them as before
        client.admin.confirm(str(archive))  # for reading only
    texts = clean_up(moved)
    assert sorted(archive.glob("**/*.parquet")) == files
    assert any("txlog admin offload TOPIC --to PLACE confirms a place" in text for text in texts)
    with opened(moved) as client:
        client.admin.offload("orders", str(archive))
        client.checkpoint()
        client.admin.gc(True, 0)
    assert list(archive.glob("**/*.parquet")) == []


def test_nothing_is_offloaded_where_no_record_can_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against files moved to a place where the program would refuse to open them."""
    store, archive = made(tmp_path), tmp_path / "archive"
    archive.mkdir(mode=0o700)
    (tmp_path / "state").write_text("a file")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with opened(store) as client:
        with pytest.raises(DiskFailed, match="cannot record") as caught:
            client.admin.offload("orders", str(archive))
        assert "XDG_STATE_HOME" in str(caught.value.hint)
        assert len(list(client.reader("orders"))) == 2
    assert list(archive.glob("**/*.parquet")) == []


def named_at(store: Path, location: str | None, far: str = "") -> None:
    """Change the newest manifest, so that all rows are in files at an address.

    place: of a store, where each file keeps its name; None: all files have the address `far`
    """
    with opened(store) as client:
        salt = client.store.identity.salt
    disk = PosixDisk(str(store))
    number = manifests.generations(disk)[-1]
    manifest = manifests.read_manifest(disk, number, salt)
    files = {
        ledger: [
            msgspec.structs.replace(
                ref, path=far if location is None else remote.address(location, ref.path)
            )
            for ref in refs
        ]
        for ledger, refs in manifest.files.items()
    }
    changed = msgspec.structs.replace(manifest, files=files)
    path = store / manifests.manifest_path(number)
    path.chmod(0o600)
    path.write_bytes(manifests.encode_manifest(changed, salt))
    disk.close()


def queried(client: Client) -> list[dict[str, object]]:
    """Rows by SQL, which DuckDB reads from files."""
    with Query(client, "SELECT count(value) AS n FROM orders") as query:
        rows: list[dict[str, object]] = query.rows().read_all().to_pylist()
        return rows


def read_by_all_doors(store: Path) -> list[str]:
    """Read a topic in every possible way; returns the error of each."""
    ways: list[Callable[[Client], object]] = [
        lambda client: list(client.reader("orders")),
        lambda client: client.consumer("orders", "s").receive(0),
        queried,
        lambda client: client._content("orders"),
        lambda client: client._contents(None, everything=True),
    ]
    answers = []
    for way in ways:
        with opened(store) as client, pytest.raises(DiskFailed) as caught:
            way(client)
        answers.append(f"{caught.value} {caught.value.hint}")
    return answers


@pytest.mark.parametrize("kind", ["local", "s3", "odd"])
def test_nothing_is_opened_because_a_manifest_names_it(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against showing a file of the user, and calling an address with the user's
    credentials.
    """
    store = made(tmp_path)
    with opened(store) as client:
        uuid = client.store.identity.uuid
    monkeypatch.setattr(remote, "located", lambda far: pytest.fail(f"reached for {far}"))
    if kind == "odd":
        named_at(store, None, "file:///etc/passwd")
        command = "do not trust this store"
    else:
        base = f"file://{tmp_path}" if kind == "local" else "s3://bucket/a"
        options = "" if kind == "local" else "?endpoint_override=127.0.0.1:1&scheme=http"
        named_at(store, f"{base}/{uuid}{options}")
        command = f"txlog admin confirm {shlex.quote(base + options)}"
    for answer in read_by_all_doors(store):
        assert "only the store names this place" in answer
        assert command in answer
    report = txlog.verify(str(store), deep=True)
    assert any(
        "only the store names this place" in problem["message"]
        for problem in report["problem_list"]
    )


def test_a_store_of_another_user_is_read_once_its_place_is_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hint of the error is the command that confirms the place; the store itself stays
    unchanged.
    """
    store, archive = made(tmp_path), tmp_path / "archive"
    archive.mkdir(mode=0o700)
    with opened(store) as client:
        assert client.admin.offload("orders", str(archive))["files"]
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
    monkeypatch.setattr(remote, "_trusted", set[str]())
    for answer in read_by_all_doors(store):
        assert f"txlog admin confirm file://{archive}" in answer
    with txlog.open(str(store), read_only=True) as client:
        client.admin.confirm(f"file://{archive}")
    monkeypatch.setattr(remote, "_trusted", set[str]())
    with opened(store) as client:
        assert len(list(client.reader("orders"))) == 2
        assert queried(client) == [{"n": 2}]


@pytest.mark.parametrize("name", ["a'b", "a\x1b[2J", "a b"])
def test_a_hint_has_no_words_of_a_store_for_a_shell(tmp_path: Path, name: str) -> None:
    """Guards against a hint that runs a command chosen by the maker of the store."""
    far = f"file:///x/{name}/uuid/topics/a/b/c/partition=0/ledger-1.1.parquet"
    with pytest.raises(DiskFailed) as caught:
        remote.check_named(far)
    shown_location = "'file:///x/a b'" if name == "a b" else "PLACE"
    assert str(caught.value.hint).endswith(f"txlog admin confirm {shown_location}")
