"""Tests of the arguments of spark-submit, and of a cluster of JVMs that load txlog from a zip."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import txlog
from tests.source_tree import ROOT
from tests.upkeep.test_offload import LARGE_BYTES, fill, near
from txlog.lake.spark.java import bundled_java, cache_directory, environment_for, find_java
from txlog.lake.spark.submit import example, submit_args, zipped

# Besides the example: the data source reads, writes, and streams from topic to topic.
_SOURCE = """
    def found(topic):
        reader = spark.read.format("txlog").options(path=sys.argv[1], topic=topic)
        print("source", topic, reader.load().count())

    found("orders")
    spark.range(10, numPartitions=2).selectExpr("string(id) AS value").write.format("txlog").mode(
        "append").options(path=sys.argv[1], topic="copies", txnKey="k", batchId="1").save()
    found("copies")
    stream = spark.readStream.format("txlog").options(path=sys.argv[1], topic="orders").load()
    stream.where("size_bytes < 2000").select("value").writeStream.format("txlog").options(
        path=sys.argv[1], topic="copies", checkpointLocation=sys.argv[1] + ".checkpoint"
    ).trigger(availableNow=True).start().awaitTermination()
    found("copies")
"""


def test_the_zip_is_the_same_each_time(tmp_path: Path) -> None:
    """Kills: times in the zip, so that the cache grows with every call; data in it."""
    data = zipped()
    assert data == zipped()
    path = tmp_path / "txlog.zip"
    path.write_bytes(data)
    names = zipfile.ZipFile(path).namelist()
    assert {"txlog/__init__.py", "txlog/lake/spark/reading.py", "pyspark_txlog/__init__.py"} <= {
        *names
    }
    assert all(name.endswith(".py") for name in names)


def test_neither_command_imports_pyspark(tmp_path: Path) -> None:
    """spec/cli 8.8: both work where Spark is not installed."""
    script = (
        "import sys\nfrom txlog.lake.spark import submit as submitting\n"
        "submitting.submit_args()\nsubmitting.example(['a'], 'committed')\n"
        "sys.exit('pyspark' in sys.modules)"
    )
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, check=False)
    assert done.returncode == 0


def test_an_archive_says_which_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: workers with another Python than the one that was packed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    words = submit_args(archive="env.tar.gz")
    assert words[words.index("--archives") + 1] == "env.tar.gz#environment"
    assert "spark.pyspark.python=./environment/bin/python" in words
    assert f"spark.pyspark.python={sys.executable}" in submit_args()
    assert "spark.pyspark.python=/opt/python" in submit_args("/opt/python", "env.tar.gz")


@pytest.mark.spark
@pytest.mark.slow
def test_a_cluster_of_two_workers(tmp_path: Path) -> None:
    """Guards docs/cluster.md: spark-submit, two worker JVMs, txlog from its zip, files outside.

    Kills: a data source that the planners of Spark do not find, as they do not see the zip.
    """
    path, archive = str(tmp_path / "store"), tmp_path / "archive"
    archive.mkdir(mode=0o700)
    txlog.init(path, reader_grace_ms=0, max_message_bytes=LARGE_BYTES)
    with txlog.open(path) as client:
        client.checkpoint_automatically = False
        client.create_topic("orders", partitions=2)
        client.create_topic("copies", partitions=2)
        fill(client)
        client.admin.offload("orders", str(archive))
        client.checkpoint()
        client.create_topic("more")
        client.checkpoint()  # the one before needs no longer what the copies were made of
        assert near(client) == []
        client.producer("orders").send(b"in the journal", partition=1)
    job = tmp_path / "job.py"
    text, stop = example(["orders"], "committed"), "    spark.stop()\n"
    assert text.endswith(stop)
    job.write_text(text.removesuffix(stop) + _SOURCE + stop)
    cache = tmp_path / "cache"
    java = environment_for(find_java(os.environ, bundled_java()), cache_directory(os.environ))
    environment = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        **java,
        "XDG_CACHE_HOME": str(cache),
        "SPARK_WORKER_DIR": str(tmp_path / "work"),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    completed = subprocess.run(
        [sys.executable, "-m", "txlog", "spark", "submit-args"],
        check=True,
        text=True,
        stdout=subprocess.PIPE,
        env={**environment, "PYTHONPATH": str(ROOT / "src")},
    )
    submit = str(Path(sys.executable).with_name("spark-submit"))
    done = subprocess.run(
        [
            submit,
            "--master",
            "local-cluster[2,1,1024]",
            "--driver-memory",
            "512m",
            "--conf",
            "spark.sql.shuffle.partitions=2",
            "--conf",
            "spark.log.level=ERROR",
            *shlex.split(completed.stdout),
            str(job),
            path,
        ],
        check=False,
        text=True,
        capture_output=True,
        cwd=tmp_path,
        env=environment,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    lines = [line for line in done.stdout.splitlines() if line]
    assert lines == [
        "orders 0 5 10046",
        "orders 1 5 60",
        "source orders 10",
        "source copies 10",
        "source copies 19",
    ], done.stderr[-4000:]
