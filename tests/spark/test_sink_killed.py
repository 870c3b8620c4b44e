"""A driver of Spark that dies by SIGKILL while it writes: the job that is run again stores once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import txlog

pytestmark = [pytest.mark.spark, pytest.mark.slow]
JOB = """
import sys
from pyspark.sql import functions as F
from txlog.spark import bulk_load, session

store, gate = sys.argv[1:]
spark = session("local[2]", {"spark.driver.memory": "512m", "spark.testing.memory": 512 << 20,
                             "spark.log.level": "FATAL"})

def wait(number):
    if number == 999 and gate:  # the last row of the last task: the other one has staged its file
        with open(gate, "w") as file:
            file.write("here")
        with open(gate + ".on") as file:
            file.read(2)
    return str(number)

rows = spark.range(1000, numPartitions=2).select(
    F.udf(wait, "string", useArrow=False)("id").alias("value"),
    F.lit(0).alias("partition"),
)
write = rows.coalesce(1) if not gate else rows
write.write.format("txlog").mode("append").options(
    topic="orders", txnKey="k", batchId="1").save(store)
print("written", flush=True)
"""


def job(store: str, gate: str) -> subprocess.Popen[bytes]:
    """A driver, its JVM and their workers."""
    return subprocess.Popen(
        [sys.executable, "-c", JOB, store, gate], stdout=subprocess.PIPE, start_new_session=True
    )


def held(store: str) -> list[int]:
    """The numbers that the topic holds."""
    with txlog.open(store) as client:
        tables = list(client.read("orders"))
        return sorted(int(value) for table in tables for value in table["value"].to_pylist())


def test_driver_that_is_killed_before_its_commit(tmp_path: Path) -> None:
    """A task waits at its last row while the driver dies; the next driver stores it, once."""
    store, gate = str(tmp_path / "store"), tmp_path / "gate"
    txlog.init(store, durability="os")
    with txlog.open(store) as client:
        client.create_topic("orders", partitions=2)
    onward = Path(f"{gate}.on")
    os.mkfifo(gate)
    os.mkfifo(onward)
    held_open = os.open(onward, os.O_RDWR)  # so that a worker without a driver can end
    first = job(store, str(gate))
    with gate.open() as file:
        assert file.read(4) == "here"
    os.killpg(first.pid, signal.SIGKILL)
    os.write(held_open, b"on")
    first.communicate()
    os.close(held_open)
    assert held(store) == []
    second_job = job(store, "")
    out, _ = second_job.communicate()
    assert (second_job.returncode, out.strip()) == (0, b"written")
    assert held(store) == [*range(1000)]
    stage = next(Path(store).glob("topics/**/_stage"))
    remaining = [path for path in stage.iterdir()]
    assert len(remaining) <= 1, "what the killed driver left goes with a checkpoint, by its age"
