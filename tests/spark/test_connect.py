"""Spark Connect: the server has txlog and the store, the client only Spark's own packages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import txlog
from txlog.lake.spark.java import bundled_java, find_java

pytest.importorskip("grpc_status", reason="Spark Connect needs grpcio-status and pandas")
pytest.importorskip("pandas")
pytestmark = [pytest.mark.spark, pytest.mark.slow]
# In a process of its own: one that has a JVM cannot become a client of a server.
CLIENT = """
import json, sys
from pyspark.sql import SparkSession, functions as F
store, check = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
rows = spark.read.format("txlog").option("topic", "typed").load(store)
total = rows.where("record.late > 0").agg(F.sum("record.late").alias("n")).collect()[0].n
rows.select("value").write.format("txlog").mode("append").options(
    path=store, topic="copied", txnKey="c", batchId="1"
).save()
query = (
    spark.readStream.format("txlog").option("topic", "typed").load(store).select("key", "value")
    .writeStream.format("txlog")
    .options(path=store, topic="streamed", txnAppId="s", checkpointLocation=check)
    .trigger(availableNow=True).start()
)
query.awaitTermination()
print(json.dumps([type(spark).__module__, total]))
"""


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
        done = subprocess.run(
            [sys.executable, "-c", CLIENT, store, str(tmp_path / "check")],
            env={
                **os.environ,
                "JAVA_HOME": str(find_java(os.environ, bundled_java()).home),
                "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            },
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        module, total = json.loads(done.stdout.splitlines()[-1])
        assert module.startswith("pyspark.sql.connect")
        assert total == sum(range(100)) + 1000
        expected = sorted(message.value or b"" for message in client.reader("typed"))
        assert len(expected) == 201
        for topic in ("copied", "streamed"):
            assert sorted(message.value or b"" for message in client.reader(topic)) == expected
