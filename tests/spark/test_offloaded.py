"""Tests of reading offloaded files: from a directory by Spark itself, from S3 by its workers."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import txlog
from tests.s3_server import s3_server
from tests.spark.test_reading import in_order
from tests.upkeep.test_offload import LARGE_BYTES, fill, near
from txlog.spark import read, release

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("quick_disk")]


def test_offloaded_messages_are_the_same(spark: SparkSession, tmp_path: Path) -> None:
    """Kills: offloaded rows without their ledger or partition, a scan of two roots as one."""
    path, archive = str(tmp_path / "store"), tmp_path / "archive"
    archive.mkdir(mode=0o700)
    txlog.init(path, reader_grace_ms=0, max_message_bytes=LARGE_BYTES)
    with s3_server() as bucket, txlog.open(path) as client:
        client.checkpoint_automatically = False
        client.create_topic("orders", partitions=2)
        fill(client)
        rows_before = in_order(read(spark, path, "orders"))
        assert len(rows_before) == 9
        client.admin.offload("orders", str(archive), 0)
        release(spark)
        client.checkpoint()
        client.create_topic("later")
        client.checkpoint()  # the one before needs no longer what was copied
        assert {file.parent.name for file in near(client)} == {"partition=1", "_txnlog"}
        assert in_order(read(spark, path, "orders")) == rows_before
        client.admin.offload("orders", bucket, 1)
        release(spark)
        client.checkpoint()
        client.create_topic("latest")
        client.checkpoint()
        assert near(client) == []
        frame = read(spark, path, "orders")
        assert in_order(frame) == rows_before
        assert frame.where("partition = 1 AND txn_index IS NULL").count() == 2
        source = spark.read.format("txlog").options(path=path, topic="orders").load()
        assert in_order(source) == rows_before
        stream = spark.readStream.format("txlog").options(path=path, topic="orders").load()
        query = stream.writeStream.format("memory").queryName("offloaded").outputMode("append")
        query.trigger(availableNow=True).start().awaitTermination()
        assert in_order(spark.table("offloaded")) == rows_before
        release(spark)
