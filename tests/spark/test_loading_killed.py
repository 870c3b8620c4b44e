"""The driver of `bulk_load` dies by SIGKILL: the batch is stored whole or not at all, and once.

It dies while its tasks stage, and in its own calls that change a file, from its first look at the
store to the removal of the staged files. Then another driver runs the same load again.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import txlog
from txlog.lake.jobs.audit import audit
from txlog.lake.jobs.local import Local
from txlog.spark import bulk_load

pytestmark = [pytest.mark.spark, pytest.mark.slow]
SEED = int(os.environ.get("TXLOG_SEED", "20260101"))
KILLS = int(os.environ.get("TXLOG_KILLS", "5"))
ROWS = 1000
JOB = """
import fcntl, os, signal, sys
from glob import glob
from pyspark.sql import functions as F
from txlog.spark import bulk_load, session

store, nth = sys.argv[1], int(sys.argv[2])
spark = session("local[2]", {"spark.driver.memory": "512m", "spark.testing.memory": 512 << 20,
                             "spark.log.level": "FATAL"})
left, driver = 0, os.getpid()

def die_when_staged(number):
    if number == 999 and nth == 0:  # the last row of the last task
        while not glob(store + "/topics/**/_stage/*/*.parquet", recursive=True):
            pass
        os.kill(driver, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    return str(number)

rows = spark.range(1000, numPartitions=2).select(
    F.udf(die_when_staged, "string", useArrow=False)("id").alias("value")
)

def dying(name, owner):
    call = getattr(owner, name)
    def counted(*given, **named):
        global left
        left -= 1
        if left == 0:
            os.kill(driver, signal.SIGKILL)
        return call(*given, **named)
    setattr(owner, name, counted)

for name in ("pwrite", "pwritev", "fsync", "fdatasync", "link", "unlink", "mkdir", "rmdir"):
    dying(name, os)
dying("flock", fcntl)
left = nth
answer = bulk_load(rows, store, "t", txn_key="k", batch_id="1", shuffle=False)
left, calls = 0, nth - left
print("answered", calls, answer["messages"], flush=True)
"""


def made(path: Path) -> str:
    """A store with a message, whose checkpoints remove unreferenced files at once."""
    txlog.init(str(path), reader_grace_ms=0, stage_ttl_ms=0)
    with txlog.open(str(path)) as client:
        client.create_topic("t", partitions=2)
        client.producer("t").send(b"-1", partition=0)
    return str(path)


def run(store: str, nth: int) -> tuple[int, str]:
    """Run the job until its nth call (0: until a file is staged); returns exit code and output.

    Its JVM and its workers hold its output open, so all of them have ended by then.
    """
    job = subprocess.Popen(
        [sys.executable, "-c", JOB, store, str(nth)], stdout=subprocess.PIPE, text=True
    )
    out, _ = job.communicate()
    return job.returncode, out.strip()


def held(store: str) -> list[int]:
    """The numbers that the topic holds."""
    with txlog.open(store, read_only=True) as client:
        return sorted(
            int(value) for table in client.read("t") for value in table["value"].to_pylist()
        )


def test_load_with_a_killed_driver_is_whole_or_absent(spark: SparkSession, tmp_path: Path) -> None:
    """While it stages, in its first and last call, and in others that the seed chooses."""
    code, output = run(made(tmp_path / "whole"), 1 << 30)
    assert code == 0
    word, calls, messages = output.split()
    assert (word, messages) == ("answered", str(ROWS))
    count = int(calls)
    assert count > 20
    chance = random.Random(SEED)
    chosen = [0, 1, *sorted(chance.sample(range(2, count), KILLS - 3)), count]
    frame = spark.range(ROWS, numPartitions=2).select(F.col("id").alias("value"))
    ends = set()
    for nth in chosen:
        where = f"seed {SEED}, call {nth} of {count}"
        store = made(tmp_path / str(nth))
        assert run(store, nth)[0] == -signal.SIGKILL, where
        seen = held(store)
        assert seen in ([-1], [-1, *range(ROWS)]), where
        with txlog.open(store) as client:  # the first write settles unflushed frames
            client.producer("t").send(b"-2", partition=1)
            client.checkpoint()
        numbers = held(store)
        assert numbers in ([-2, -1], [-2, -1, *range(ROWS)]), where
        assert len(seen) < len(numbers), where
        answer = bulk_load(frame, store, "t", txn_key="k", batch_id="1")
        assert (answer["already"], answer["messages"]) == (len(numbers) > 2, ROWS), where
        assert held(store) == [-2, -1, *range(ROWS)], where
        with txlog.open(store) as client:
            client.checkpoint()
            assert not audit(client, ["t"], Local())["failed"], where
            assert txlog.verify(store, deep=True)["errors"] == 0, where
        assert not [*Path(store).glob("topics/**/_stage/*/*")], where
        ends.add(len(numbers))
    assert ends == {2, 2 + ROWS}
