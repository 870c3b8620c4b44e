"""Offloading: sealed files in a directory or bucket are read as they were in the store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qsl

import pytest

import txlog
from tests.disk.faults import FaultyDisk
from tests.disk.memory import Killed
from tests.engine_kit import client_on, relation_of
from txlog import Client, MessageId
from txlog.base.ranges import END, Bound
from txlog.clock import SystemClock
from txlog.engine.storage import remote as far
from txlog.engine.storage.disk.posix import PosixDisk
from txlog.engine.upkeep.service import run_checkpoint
from txlog.errors import (
    Corruption,
    DiskFailed,
    InvalidArgument,
    MissingFile,
    NotFound,
    TopicNotFound,
)

pytestmark = pytest.mark.usefixtures("quick_disk")
LARGE_BYTES = 2000


@contextmanager
def filled_store(folder: Path) -> Iterator[Client]:
    """A client of a store with two sealed partitions, a clean sidecar and a large message."""
    path = str(folder / "store")
    txlog.init(path, reader_grace_ms=0, max_message_bytes=LARGE_BYTES)
    with txlog.open(path) as opened:
        opened.checkpoint_automatically = False
        opened.create_topic("orders", partitions=2)
        fill(opened)
        yield opened


@pytest.fixture
def client(tmp_path: Path, archive: Path) -> Iterator[Client]:
    """A client of a filled store."""
    with filled_store(tmp_path) as opened:
        yield opened


def fill(client: Client) -> None:
    """Plain, transactional and large messages, all in sealed files."""
    producer = client.producer("orders", chunking=True)
    for number in range(4):
        producer.send(b"plain %d" % number, key=b"k", partition=number % 2)
        with client.transaction() as txn:
            producer.send(b"in a transaction", txn=txn, partition=number % 2)
    producer.send(b"large" * LARGE_BYTES, partition=0)
    client.checkpoint(roll_all=True)
    client.checkpoint()


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """The directory to offload to."""
    (tmp_path / "archive").mkdir(mode=0o700)
    return tmp_path / "archive"


def near(client: Client) -> list[Path]:
    """The sealed files in the store."""
    return sorted(Path(client.path).glob("topics/**/*.parquet"))


def there(archive: Path) -> list[Path]:
    """The files in the archive."""
    return sorted(archive.glob("**/*.parquet"))


def values(client: Client) -> list[object]:
    """All messages, as (id, value), by partition and position."""
    rows = [row for table in client.read("orders") for row in table.to_pylist()]
    rows.sort(key=lambda row: (row["partition"], row["ledger"], row["entry"], row["index"]))
    return [(row["partition"], row["ledger"], row["entry"], row["value"]) for row in rows]


def test_messages_are_read_from_there(client: Client, archive: Path) -> None:
    """R18. Guards against a copy that no reader uses, local files that stay, and an address lost at
    a restart.
    """
    values_before, files = values(client), near(client)
    answer = client.admin.offload("orders", str(archive))
    assert (answer["files"], answer["ledgers_left"]) == (5, 4)
    assert answer["size_bytes"] == sum(path.stat().st_size for path in there(archive))
    assert [path.name for path in there(archive)] == [path.name for path in files]
    client.checkpoint()
    client.create_topic("later")
    client.checkpoint()  # the manifest before no longer needs the local files
    assert near(client) == []
    assert values(client) == values_before
    with txlog.open(client.path) as other:
        assert values(other) == values_before
        rows = [row for row in other.segments() if row.get("file")]
        assert all(row["file"].startswith(f"file://{archive}/") for row in rows)
    client.create_subscription("orders", "s")
    with client.consumer("orders", "s") as consumer:
        assert consumer.receive_batch(100).num_rows == len(values_before)
    assert client.admin.offload("orders", str(archive))["files"] == 0
    sources = relation_of(client, "orders").direct
    assert client.has_files(sources)
    (archive / Path(sources[0].ref.path).relative_to(f"file:{archive}")).unlink()
    assert not client.has_files(sources)


def test_files_are_private_and_named_by_the_store(client: Client, archive: Path) -> None:
    """Two stores may share an archive; only its owner may read the files."""
    client.admin.offload("orders", archive.as_uri())
    [top] = archive.iterdir()
    assert top.name == client.store.identity.uuid
    assert {path.stat().st_mode & 0o077 for path in top.rglob("*") if path.is_dir()} == {0}


def test_later_messages_stay_in_the_store(client: Client, archive: Path) -> None:
    """Guards against an offload of the topic instead of its files."""
    client.admin.offload("orders", str(archive))
    values_before = values(client)
    client.producer("orders").send(b"later", partition=1)
    assert len(values(client)) == len(values_before) + 1
    client.checkpoint(roll_all=True)
    assert len(near(client)) >= 1
    assert client.admin.offload("orders", str(archive), 0)["files"] == 0
    assert client.admin.offload("orders", str(archive), 1)["files"] == 1
    client.checkpoint()
    assert len(values(client)) == len(values_before) + 1


def test_a_trim_removes_them_after_the_grace(client: Client, archive: Path) -> None:
    """R18. Guards against objects that no pass removes, and removing them before the frame."""
    client.admin.offload("orders", str(archive))
    client.producer("orders").send(b"x", partition=0)
    client.checkpoint(roll_all=True)
    assert there(archive)
    client.admin.trim("orders", END, force_unacked=True)
    assert there(archive)
    client.checkpoint()
    client.checkpoint()
    assert there(archive) == []
    assert values(client) == []


def test_an_automatic_checkpoint_makes_no_remote_calls(
    client: Client, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against a producer that waits for a network."""
    client.admin.offload("orders", str(archive))
    client.admin.trim("orders", END, force_unacked=True)
    with monkeypatch.context() as patched:
        patched.setattr(far, "located", lambda far: pytest.fail(f"reached for {far}"))
        for _ in range(3):
            client.producer("orders").send(b"x")
            assert not run_checkpoint(client.store, wait=False)["skipped"]
    assert there(archive)
    client.checkpoint()
    assert there(archive) == []


def test_deleting_the_topic_removes_them(client: Client, archive: Path) -> None:
    """Guards against files of deleted topics that stay outside for ever."""
    client.admin.offload("orders", str(archive))
    client.admin.delete_topic("orders")
    client.checkpoint()
    client.checkpoint()
    assert there(archive) == []


def test_a_compaction_brings_rows_back(tmp_path: Path, archive: Path) -> None:
    """Guards against a compaction that cannot read offloaded files, or keeps the file it
    replaced.
    """
    path = str(tmp_path / "small")
    txlog.init(path, reader_grace_ms=0, ledger_entries_max=3)
    with txlog.open(path) as client:
        client.checkpoint_automatically = False
        client.create_topic("orders")
        producer = client.producer("orders")
        for number in range(6):  # the last of three entries of a ledger is a marker
            producer.send(b"plain %d" % number)
            producer.send(b"plain")
            with client.transaction() as txn:
                producer.send(b"in %d" % number, txn=txn)
        client.checkpoint(roll_all=True)
        client.checkpoint()
        client.admin.offload("orders", str(archive))
        values_before, files = values(client), there(archive)
        at = MessageId(3, 0)  # after the first ledger, whose marker has a row in ledger 2
        assert client.admin.trim("orders", Bound("id", at), force_unacked=True)["ledgers"] == 1
        answer = client.admin.compact("orders")
        client.checkpoint()
        client.create_topic("later")
        client.checkpoint()
        assert (answer["messages"], answer["aborted_dropped"]) == (1, 1)
        assert len(there(archive)) == len(files) - 2
        assert len(near(client)) == 1
        assert values(client) == values_before[3:]


def test_a_dry_run_changes_nothing(client: Client, archive: Path) -> None:
    """Guards against a plan that copies."""
    answer = client.admin.offload("orders", str(archive), dry_run=True)
    assert (answer["files"], answer["dry_run"]) == (5, True)
    assert list(archive.iterdir()) == []


def test_a_damaged_copy_is_corruption(client: Client, archive: Path) -> None:
    """R5. Guards against unchecked bytes from outside, and a quarantine for an unmounted
    directory.
    """
    client.admin.offload("orders", str(archive))
    client.checkpoint()
    [path, *_] = there(archive)
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole[:40] + bytes([whole[40] ^ 1]) + whole[41:]):
        path.write_bytes(damaged)
        with pytest.raises(Corruption, match="is damaged"), txlog.open(client.path) as other:
            values(other)
    path.unlink()
    with pytest.raises(MissingFile, match="no such file"), txlog.open(client.path) as other:
        values(other)
    path.write_bytes(whole)
    with txlog.open(client.path) as other:
        assert len(values(other)) == 9


def test_a_damaged_file_is_not_copied(client: Client, archive: Path) -> None:
    """R5. Guards against a new checksum for damaged bytes, and an answer before the check."""
    path = near(client)[0]
    whole = bytearray(path.read_bytes())
    whole[40] ^= 1
    path.write_bytes(bytes(whole))
    with pytest.raises(Corruption, match="is damaged"):
        client.admin.offload("orders", str(archive))
    assert near(client)[0] == path


def test_a_copy_that_arrives_damaged_is_refused(
    client: Client, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards against a frame for bytes that were never read back."""
    put = far.put

    def bad(location: str, path: str, pieces: Iterator[bytes]) -> None:
        put(location, path, (piece[:-1] + b"?" for piece in pieces))

    values_before = values(client)
    monkeypatch.setattr(far, "put", bad)
    with pytest.raises(DiskFailed, match="reads back differently"):
        client.admin.offload("orders", str(archive))
    monkeypatch.undo()
    assert len(near(client)) == 5
    listed = client.admin.gc(True, 0)["file_list"]
    assert [row["reason"] for row in listed if row["path"].startswith("file://")] == ["unnamed"]
    assert there(archive) == []
    assert values(client) == values_before
    assert client.admin.offload("orders", str(archive))["files"] == 5


@pytest.mark.parametrize("call", ["offload", "gc"])
def test_a_copy_that_an_unflushed_frame_names_stays(
    client: Client, archive: Path, call: str
) -> None:
    """Seed 1763: a process dies between the frame of its copy and the flush. Another one did not
    see the frame, copied again, found the ledger moved already and removed the copy.
    """
    values_before = values(client)
    with client_on(dying := FaultyDisk(PosixDisk(client.path)), SystemClock()) as other:
        dying.fail_at("datasync", Killed(), "journal/*", nth=2)  # the first records the place
        with pytest.raises(Killed):
            other.admin.offload("orders", str(archive))
        if call == "offload":
            client.admin.offload("orders", str(archive))
        else:
            client.admin.gc(True, 0)
    client.create_topic("later")  # makes the frame durable
    assert values(client) == values_before


def test_gc_leaves_named_files(client: Client, archive: Path) -> None:
    """R19. Guards against a sweep outside that removes named files, or files of another store."""
    client.admin.offload("orders", str(archive))
    client.checkpoint()
    paths = there(archive)
    other = archive / "another-store"
    other.mkdir()
    (other / "ledger-000000000001.0000000001.parquet").write_bytes(b"of another store")
    orphan = paths[0].with_name("ledger-000000000099.0000000001.parquet")
    orphan.write_bytes(b"left by a pass that died")
    listed = client.admin.gc(False, 0)["file_list"]
    assert [(row["path"], row["size_bytes"]) for row in listed] == [(f"file://{orphan}", 24)]
    client.admin.gc(True, 0)
    assert there(archive) == sorted([*paths, other / "ledger-000000000001.0000000001.parquet"])


def test_gc_skips_files_that_are_already_removed(client: Client, archive: Path) -> None:
    """A manifest lists a removed file for a while.

    Guards against a gc that fails on such a file.
    """
    client.admin.offload("orders", str(archive))
    client.admin.trim("orders", END, force_unacked=True)
    for _ in range(2):  # neither makes remote calls
        client.producer("orders").send(b"x")
        run_checkpoint(client.store, wait=False)
    remaining = [f"file://{path}" for path in there(archive)]
    assert [row["path"] for row in client.admin.gc(False, 0)["file_list"]] == remaining
    assert [row["path"] for row in client.admin.gc(True, 0)["file_list"]] == remaining
    for apply in (False, True):
        assert client.admin.gc(apply, 0)["files"] == 0
    assert there(archive) == []


@pytest.mark.parametrize(
    "to",
    [
        "gs://bucket/x", "s3://user:secret@bucket/x", "s3://bucket/x?credential=y", "s3://B/x",
        "s3://bucket/a%20b", "s3://bucket/../x", "file://relative", "/tmp/what?",
    ],
)  # fmt: skip
def test_addresses_that_are_none_are_refused(client: Client, to: str) -> None:
    """Guards against credentials in a manifest, and an address that two programs read
    differently.
    """
    with pytest.raises(InvalidArgument):
        client.admin.offload("orders", to)


def test_places_that_will_not_do_are_refused(client: Client, archive: Path) -> None:
    """Guards against an unmounted mount point, and a place that is swept together with the
    store.
    """
    with pytest.raises(NotFound, match="no such directory"):
        client.admin.offload("orders", str(archive / "missing"))
    with pytest.raises(InvalidArgument, match="is inside the store"):
        client.admin.offload("orders", f"{client.path}/topics")
    with pytest.raises(TopicNotFound):
        client.admin.offload("nothing", str(archive))
    assert list(archive.iterdir()) == []


def test_addresses() -> None:
    """The addresses that are stored for the addresses that a user gives."""
    location = far.place_of("s3://bucket/a/b/?region=eu-1&endpoint_override=h:1&scheme=http", "u")
    assert location == "s3://bucket/a/b/u?endpoint_override=h:1&region=eu-1&scheme=http"
    at = far.address(location, "topics/x/ledger.parquet")
    assert at == (
        "s3://bucket/a/b/u/topics/x/ledger.parquet?endpoint_override=h:1&region=eu-1&scheme=http"
    )
    assert dict(parse_qsl(at.partition("?")[2])) == {
        "endpoint_override": "h:1",
        "region": "eu-1",
        "scheme": "http",
    }
    assert far.place_of("file:///a%20b/", "u") == "file:///a b/u"
    assert far.address("file:///a/u", "topics/x") == "file:///a/u/topics/x"
