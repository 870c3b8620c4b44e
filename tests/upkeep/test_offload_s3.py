"""Offloading to S3, against a real server of that interface on this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import txlog
from tests.s3_server import s3_server
from tests.upkeep.test_offload import filled_store, near, values
from txlog import Client
from txlog.base.ranges import END
from txlog.engine.storage import remote
from txlog.errors import Corruption, DiskFailed
from txlog.lake.sql.client_query import Query

pytestmark = [pytest.mark.usefixtures("quick_disk"), pytest.mark.deep]


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """The bucket to offload to."""
    with s3_server() as address:
        yield address


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    """A client of a store like the one of test_offload."""
    with filled_store(tmp_path) as opened:
        yield opened


def rows(client: Client, sql: str) -> list[dict[str, object]]:
    """The rows of a query."""
    with Query(client, sql) as query:
        found_rows: list[dict[str, object]] = query.rows().read_all().to_pylist()
        return found_rows


def there(client: Client) -> list[str]:
    """The objects of the store."""
    [message] = client.store.read(lambda view: view.catalog.places)
    return sorted(at for at, _ in remote.listed(message))


def test_messages_are_read_from_a_bucket(client: Client, bucket: str) -> None:
    """The whole path: copy, frame, grace, reading, trim. Guards against objects that stay."""
    values_before, listed = values(client), rows(client, "FROM orders ORDER BY ALL")
    everything = rows(client, "FROM messages_all ORDER BY ALL")
    assert client.admin.offload("orders", bucket)["files"] == 5
    client.checkpoint()
    client.create_topic("later")
    client.checkpoint()
    assert near(client) == []
    assert len(there(client)) == 5
    with txlog.open(client.path) as other:
        assert values(other) == values_before
        assert rows(other, "FROM orders ORDER BY ALL") == listed
        assert rows(other, "FROM messages_all ORDER BY ALL") == everything
    client.producer("orders").send(b"later")
    client.checkpoint(roll_all=True)
    assert rows(client, "SELECT count(*) AS n FROM orders") == [{"n": len(values_before) + 1}]
    query = "SELECT count(*) AS n FROM orders WHERE partition = 1 AND txn_index IS NOT NULL"
    assert rows(client, query) == [{"n": 2}]
    client.admin.trim("orders", END, force_unacked=True)
    client.checkpoint()
    client.checkpoint()
    assert there(client) == []


def test_unnamed_objects_are_removed_from_a_bucket(client: Client, bucket: str) -> None:
    """R19. Guards against a sweep of the wrong objects."""
    client.admin.offload("orders", bucket)
    paths = there(client)
    [message] = client.store.read(lambda view: view.catalog.places)
    orphan = "topics/public/default/orders/partition=0/ledger-000000000099.0000000001.parquet"
    remote.put(message, orphan, [b"left by", b" a pass that died"])
    assert len(there(client)) == len(paths) + 1
    listed = client.admin.gc(True, 0)["file_list"]
    assert [row["path"] for row in listed if remote.is_far(row["path"])] == [
        remote.address(message, orphan)
    ]
    assert there(client) == paths


def test_damage_in_a_bucket_is_corruption(client: Client, bucket: str) -> None:
    """R5. Guards against unchecked pages from a network."""
    client.admin.offload("orders", bucket)
    client.checkpoint()
    [message] = client.store.read(lambda view: view.catalog.places)
    at = next(at for at in there(client) if "_txnlog" not in at)
    path = remote.without_options(at).removeprefix(remote.without_options(message) + "/")
    file = remote.open_far(at)
    whole = file.pread(0, file.size())
    file.close()
    row = next(row for row in client.segments() if row["file"] == at)
    footer = row["bytes"] - 3000
    for byte in (footer + 2000, 40):  # in the footer, in a page
        remote.put(message, path, [whole[:byte], bytes([whole[byte] ^ 1]), whole[byte + 1 :]])
        with pytest.raises(Corruption, match="is damaged"), txlog.open(client.path) as other:
            values(other)
        with pytest.raises((Corruption, txlog.errors.SqlError)):
            rows(client, "FROM orders")
    remote.put(message, path, [whole])
    assert len(values(client)) == 9


def test_a_bucket_out_of_reach_is_an_error(client: Client) -> None:
    """Guards against a place that is recorded before a call has reached it."""
    nowhere = "s3://archive/x?endpoint_override=127.0.0.1:1&region=us-east-1&scheme=http"
    with pytest.raises(DiskFailed, match="cannot list s3://archive/x"):
        client.admin.offload("orders", nowhere)
    assert client.store.read(lambda view: view.catalog.places) == []
