"""Spark Connect: the server has txlog and the store, the client only Spark's own packages."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pytest

import txlog
from tests.harness import python, run
from txlog.lake.spark.java import bundled_java, find_java

pytest.importorskip("grpc_status", reason="Spark Connect needs grpcio-status and pandas")
pytest.importorskip("pandas")
pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_format_txlog_works_behind_a_server(tmp_path: Path) -> None:
    """A batch with `record`, a sink and a stream, exact; docs/analytics lists missing features."""
    store = str(tmp_path / "store")
    txlog.init(store)
    with txlog.open(store) as client:
        client.create_topic("typed", 2, schema=pa.schema([("late", pa.int64())]))
        client.create_topic("copied")
        client.create_topic("streamed")
        with client.producer("typed") as producer:
            for number in range(200):
                producer.send({"late": number - 100}, key=b"%d" % (number % 7))
            client.checkpoint(roll_all=True)
            producer.send({"late": 1000})
        # In a process of its own: one that has a JVM cannot become a client of a server.
        java = str(find_java(os.environ, bundled_java()).home)
        command = python("spark_connect", store, tmp_path / "check")
        done = run(command, env={"JAVA_HOME": java}, cwd=tmp_path)
        module, total = json.loads(done.stdout.splitlines()[-1])
        assert module.startswith("pyspark.sql.connect")
        assert total == sum(range(100)) + 1000
        expected = sorted(message.value or b"" for message in client.reader("typed"))
        assert len(expected) == 201
        for topic in ("copied", "streamed"):
            assert sorted(message.value or b"" for message in client.reader(topic)) == expected
