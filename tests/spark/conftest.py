"""Owns the Spark session that all tests marked `spark` share, as one costs seconds, and a store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

import txlog
from txlog import Client
from txlog.spark import session


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session of two threads that tries a failed task three times; local[2] never would."""
    folder = tmp_path_factory.mktemp("spark")
    opened = session(
        "local[2,3]",
        {
            "spark.driver.memory": "512m",
            "spark.testing.memory": 512 << 20,
            "spark.sql.shuffle.partitions": 2,
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.local.dir": str(folder / "local"),
            "spark.log.level": "FATAL",
            # The second compiler pays off only in jobs that are longer than these.
            "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        },
    )
    yield opened
    opened.stop()
    gateway = SparkContext._gateway
    assert gateway is not None
    gateway.shutdown()
    jvm = gateway.proc
    jvm.stdin.close()
    jvm.wait()


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    """A client of a store with a topic `orders` of two partitions."""
    txlog.init(str(tmp_path / "store"))
    with txlog.open(str(tmp_path / "store")) as opened:
        opened.checkpoint_automatically = False
        opened.create_topic("orders", partitions=2)
        yield opened
