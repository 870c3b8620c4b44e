"""Tests of pins: files of a living reader stay, and files of a dead one are removed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import txlog
from tests.engine_kit import little_room, pin_of, relation_of
from tests.harness import Child, python
from txlog import Client
from txlog.base.ranges import END
from txlog.engine.storage.disk.posix import PosixDisk
from txlog.engine.storage.manifest import generations
from txlog.engine.store.liveness import PINS_DIR, pinned, pins
from txlog.lake.sql.client_query import Query

pytestmark = pytest.mark.usefixtures("quick_disk")
SQL = "SELECT count(*) AS n, max(octet_length(value)) AS bytes FROM orders"


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    """A client of a store without grace, with sealed ledgers of a partition and its sidecar."""
    path = str(tmp_path / "store")
    txlog.init(path, reader_grace_ms=0)
    with txlog.open(path) as opened:
        opened.checkpoint_automatically = False
        opened.create_topic("orders")
        producer = opened.producer("orders")
        for number in range(3):
            producer.send(b"plain")
            with opened.transaction() as txn:
                producer.send(b"in a transaction", txn=txn)
            opened.checkpoint(roll_all=bool(number % 2))
        opened.checkpoint(roll_all=True)
        yield opened


def files(client: Client) -> set[str]:
    """The Parquet files of the topic."""
    root = Path(client.path)
    return {str(path.relative_to(root)) for path in root.glob("topics/**/*.parquet")}


def reader(client: Client) -> Child:
    """A process that has a query open and waits for a line before it reads."""
    process = Child(python("query_reader", client.path, SQL))
    assert process.line() == "ready"
    return process


def let_everything_go(client: Client) -> None:
    """Compact and trim the topic, write checkpoints, and remove all unreferenced files."""
    client.producer("orders").send(b"later")
    client.checkpoint(roll_all=True)
    client.admin.compact("orders")
    client.admin.trim("orders", END, force_unacked=True)
    client.checkpoint()
    client.checkpoint()
    client.admin.gc(True, 0)


def test_files_of_a_reader_stay_while_it_lives(client: Client) -> None:
    """R18; kills: a checkpoint, sweep or gc that unlinks pinned files; pins without end."""
    old_files = files(client)
    with reader(client) as process:
        assert [row["name"] for row in client.admin.locks() if row["held"]].count("pin") == 1
        let_everything_go(client)
        assert old_files <= files(client)
        assert list(client.read("orders")) == []
        assert process.ask() == "[{'n': 6, 'bytes': 16}]"
        assert process.end() == (0, "")
    client.checkpoint()
    assert not old_files & files(client)
    assert pins(PosixDisk(client.path)) == []


def test_files_pinned_by_a_killed_reader_are_removed(client: Client) -> None:
    """R24; kills: a pin that outlives its process."""
    old_files = files(client)
    with reader(client) as process:
        process.kill()
    [pin] = Path(client.path, PINS_DIR).iterdir()
    listed = client.admin.gc(False, 0)["file_list"]
    assert [row["path"] for row in listed if row["reason"] == "pin"] == [f"pins/{pin.name}"]
    let_everything_go(client)
    assert not old_files & files(client)
    assert not pin.exists()


def test_a_pin_on_unnamed_files_holds_off_the_sweep(client: Client) -> None:
    """R19: a reader pins a file when no manifest names it any more; the sweep still keeps it."""
    [source, *_] = relation_of(client, "orders").direct
    path = Path(client.path, source.ref.path)
    away = path.with_suffix(".away")
    path.rename(away)  # so that the sweep sees a file that no manifest names
    client.admin.trim("orders", END, force_unacked=True)
    for _ in range(3):
        client.producer("orders").send(b"x")
        client.checkpoint()
    away.rename(path)
    pin = pin_of(client, [source])
    client.checkpoint()
    assert not [row for row in client.admin.gc(True, 0)["file_list"] if "topics" in row["path"]]
    assert path.exists()
    pin.close()
    client.checkpoint()
    assert not path.exists()


def test_a_pin_that_cannot_be_read_keeps_every_file(client: Client) -> None:
    """Kills: taking a damaged pin for an empty one; damage of a dead pin that stops upkeep."""
    old_files = files(client)
    pin = pin_of(client, relation_of(client, "orders").direct)
    path = Path(client.path, pin.path)
    whole = path.read_bytes()
    for damaged in (b"", whole[:20], whole[:-1], whole[:-1] + bytes([whole[-1] ^ 1])):
        path.write_bytes(damaged)
        let_everything_go(client)
        assert old_files <= files(client)
    pin.close()
    path.write_bytes(whole[:20])
    client.checkpoint()
    assert not old_files & files(client)
    assert not path.exists()


def test_pinned_files_stay_on_a_full_disk(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """R18: with no room left files go at once, but a reader would die without them."""
    sources = relation_of(client, "orders").direct
    pin = pin_of(client, sources)
    monkeypatch.setattr(PosixDisk, "free_bytes", lambda self: 1)
    client.admin.trim("orders", END, force_unacked=True)
    client.checkpoint()
    assert {source.ref.path for source in sources} <= files(client)
    pin.close()
    client.checkpoint()
    assert not {source.ref.path for source in sources} & files(client)


def test_read_only_client_leaves_no_pin(client: Client) -> None:
    """R23."""
    with txlog.open(client.path, read_only=True) as looking, Query(looking, SQL) as query:
        assert not Path(client.path, PINS_DIR).exists()
        assert query.rows().read_all().to_pylist() == [{"n": 6, "bytes": 16}]


def test_a_full_disk_is_read_without_a_pin(client: Client) -> None:
    """Promise 8; kills: a store that cannot be read when its disk is full."""
    with little_room(0), Query(client, SQL) as query:
        assert query.rows().read_all().to_pylist() == [{"n": 6, "bytes": 16}]
    assert pins(PosixDisk(client.path)) == []
    (report,) = client.reports()
    assert "a checkpoint may remove files before they are read" in report


def test_a_query_without_files_makes_no_pin(client: Client) -> None:
    """Guards the cost of a query over lists."""
    with Query(client, "SELECT count(*) AS n FROM topics") as query:
        assert query.rows().read_all().to_pylist() == [{"n": 1}]
        assert not Path(client.path, PINS_DIR).exists()


def test_a_pin_ends_once(client: Client) -> None:
    """Closing a pin twice is no error; a file is free if none of the current pins has it."""
    [source, *_] = relation_of(client, "orders").direct
    disk = PosixDisk(client.path)
    salt = client.store.identity.salt
    first, second = pin_of(client, [source]), pin_of(client, [source])
    assert not pinned(disk, salt)(source.ref.path)
    first.close()
    first.close()
    assert not pinned(disk, salt)(source.ref.path)
    second.close()
    assert pinned(disk, salt)(source.ref.path)
    assert generations(disk)
    disk.close()
