"""The same messages by every way in: API, consumer, DuckDB, Spark's own scan, its data source, a
stream.

One store has messages of every history; it is read, reorganized, and read again.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import txlog
from tests.engine_kit import relation_of
from tests.spark.test_reading import in_order
from tests.sql.test_querying import SAME, asked
from tests.sql.test_scanning import place
from txlog import Client, MessageId
from txlog.base.ranges import Bound
from txlog.spark import read

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("quick_disk")]
LARGE_BYTES = 500
PARTITIONS = 3
Row = dict[str, Any]


class Filling:
    """Random messages of every kind, with and without each optional field."""

    def __init__(self, client: Client, seed: str) -> None:
        self._client = client
        self._rng = random.Random(seed)
        self._sent = 0

    def send(self, count: int, txn: txlog.Transaction | None = None) -> None:
        """Send so many messages to random partitions."""
        rng = self._rng
        for _ in range(count):
            self._sent += 1
            at = 1_700_000_000_000 + self._sent
            self._client.producer("orders", name=rng.choice((None, f"p{self._sent}"))).send(
                rng.choice((b"%d" % self._sent, b"", b"\xff\x00", None)),
                key=rng.choice((None, b"", b"a", b"\xfe")),
                properties=rng.choice((None, {}, {"z": "b", "c": ""}, {"é": "\n"})),
                event_time=rng.choice((None, at)),
                deliver_at=rng.choice((None, None, 32_503_680_000_000 + self._sent)),
                partition=rng.randrange(PARTITIONS),
                txn=txn,
            )

    def large(self, txn: txlog.Transaction | None = None) -> None:
        self._sent += 1
        self._client.producer("orders", chunking=True).send(
            (b"\x00\xff%d" % self._sent) * LARGE_BYTES,
            key=b"large",
            txn=txn,
            partition=self._rng.randrange(PARTITIONS),
        )

    def transaction(self, *, commits: bool) -> None:
        txn = self._client.transaction(write_through=True)
        self.send(6, txn)
        if commits:
            txn.commit()
        else:
            txn.abort()


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    """A client of a store in which everything has happened to `orders`."""
    txlog.init(
        str(tmp_path / "store"),
        durability="os",
        free_bytes_min=0,
        reader_grace_ms=0,
        max_message_bytes=LARGE_BYTES,
        ledger_entries_max=40,
    )
    with txlog.open(str(tmp_path / "store")) as opened:
        opened.checkpoint_automatically = False
        opened.create_topic("orders", partitions=PARTITIONS)
        opened.create_topic("others")
        opened.producer("others").send(b"of another topic")
        yield opened


def fill(client: Client) -> txlog.Transaction:
    """Give messages every kind of history; returns the transaction that is still open."""
    filling = Filling(client, "equality")
    for _ in range(2):
        filling.send(12)
        client.checkpoint(roll_all=True)
    client.admin.trim("orders", Bound("last", 2), force_unacked=True)
    late, still_open = (
        client.transaction(timeout_ms=3_600_000, write_through=True) for _ in range(2)
    )
    for txn in (late, still_open):
        filling.send(4, txn)
    filling.large()
    for commits in (True, False, True):
        filling.transaction(commits=commits)
        filling.send(5)
    client.checkpoint(roll_all=True)
    client.admin.compact("orders")  # the open transaction keeps these sidecars unclean
    filling.large(late)
    late.commit()
    client.topic("orders").watermarks.set(1_700_000_000_000, "w")
    bulk = client.bulk("orders", key="daily", batch="monday")
    rows = {"value": [b"bulk 1", None, b"bulk 3"], "key": [b"a", b"b", None]}
    bulk.commit(bulk.stage([pa.table(rows)]))
    batch = {**rows, "event_time": pa.array([1, None, 2], pa.timestamp("ms", "UTC"))}
    client.producer("orders").send_batch(pa.table(batch))  # late, by the watermark
    filling.transaction(commits=True)
    client.checkpoint(roll_all=True)  # clean from birth
    filling.transaction(commits=True)
    filling.send(5)
    client.checkpoint()  # parts
    filling.transaction(commits=True)
    filling.transaction(commits=False)
    filling.large()
    filling.send(5, still_open)
    filling.send(5)  # in frames
    return still_open


def by_api(client: Client) -> list[Row]:
    rows: list[Row] = pa.concat_tables(client.read("orders")).to_pylist()
    return sorted(rows, key=place)


def by_consumer(client: Client) -> list[Row]:
    """The messages of an exclusive consumer, which gets delayed ones before they are due."""
    with client.consumer("orders", "each", durable=False, start="earliest") as consumer:
        messages = [*iter(consumer.receive, None)]
    return [
        {
            "message_id": str(message.message_id),
            "partition": message.partition,
            "key": message.key,
            "value": message.value,
            "properties": message.properties,
            "event_time": message.event_time,
        }
        for message in messages
    ]


def by_stream(spark: SparkSession, path: str, limit: int) -> list[Row]:
    """All messages by a stream, in micro-batches."""
    query = (
        spark.readStream.format("txlog")
        .option("topic", "orders")
        .option("maxRowsPerTrigger", limit)
        .load(path)
        .writeStream.format("memory")
        .queryName("streamed")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert len(query.recentProgress) > 2
    return in_order(spark.table("streamed"))


def compare(spark: SparkSession, client: Client) -> list[Row]:
    """API, DuckDB and Spark's own scan give the same rows in all columns."""
    api = by_api(client)
    sql = asked(client, "FROM orders ORDER BY partition, ledger, entry, txn_index")
    assert [{name: row[name] for name in SAME} for row in sql] == [
        {name: row[name] for name in SAME} for row in api
    ]
    assert [row["message_id"] for row in sql] == [
        str(MessageId(row["ledger"], row["entry"], row["index"] or 0)) for row in api
    ]
    assert in_order(read(spark, client.path, "orders")) == sql
    by_id = {row["message_id"]: row for row in by_consumer(client)}
    assert {*by_id} == {row["message_id"] for row in sql}
    for row in sql:
        message = by_id[row["message_id"]]
        for name in ("partition", "key", "value"):
            assert message[name] == row[name]
        assert dict(message["properties"] or {}) == dict(row["properties"] or {})
        ms = row["event_time"] and round(row["event_time"].timestamp() * 1000)
        assert message["event_time"] == ms
    return sql


def test_every_way_in_gives_the_same_messages(
    spark: SparkSession, client: Client, tmp_path: Path
) -> None:
    """API = consumer = DuckDB = Spark, batch and stream; before and after compaction, sealing, a
    commit, and the way of two partitions to another directory.
    """
    still_open = fill(client)
    relation = relation_of(client, "orders")
    assert {source.ref.form for source in relation.direct} == {"sealed", "adopted"}
    assert all([relation.unclean, relation.open, relation.large_files, relation.tail.num_rows])
    assert {source.role for source in relation.direct} == {"p", "s"}
    assert any(relation.first_ledger[index] > 3 for index in range(PARTITIONS))
    rows_before = compare(spark, client)
    source = spark.read.format("txlog").option("topic", "orders").load(client.path)
    assert in_order(source) == rows_before
    assert by_stream(spark, client.path, 25) == rows_before
    assert len(rows_before) > 60
    assert any(row["deliver_at"] for row in rows_before)
    still_open.commit()
    client.checkpoint(roll_all=True)
    client.admin.compact("orders")
    client.checkpoint()
    relation = relation_of(client, "orders")
    assert (relation.unclean, relation.tail.num_rows) == ([], 0)
    rows_after = compare(spark, client)
    message_ids = {row["message_id"] for row in rows_before}
    assert [row for row in rows_after if row["message_id"] in message_ids] == rows_before
    assert len(rows_after) == len(rows_before) + 9
    (archive := tmp_path / "archive").mkdir()
    for partition in (0, 1):
        client.admin.offload("orders", str(archive), partition)
    assert any(archive.rglob("*.parquet"))
    assert compare(spark, client) == rows_after
    source = spark.read.format("txlog").option("topic", "orders").load(client.path)
    assert in_order(source) == rows_after
    assert by_stream(spark, client.path, 25) == rows_after
