"""The driver of `bulk_load` dies by SIGKILL: the batch is stored whole or not at all, and once.

It dies while its tasks stage, and in its own calls that change a file, from its first look at the
store to the removal of the staged files. Then another driver runs the same load again.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import txlog
from tests.harness import KILLED, kill_in_calls, python, run
from txlog.lake.jobs.audit import audit
from txlog.lake.jobs.local import Local
from txlog.spark import bulk_load

pytestmark = [pytest.mark.spark, pytest.mark.slow]
KILLS = int(os.environ.get("TXLOG_KILLS", "5"))
ROWS = 1000


def made(path: Path) -> str:
    """A store with a message, whose checkpoints remove unreferenced files at once."""
    txlog.init(str(path), reader_grace_ms=0, stage_ttl_ms=0)
    with txlog.open(str(path)) as client:
        client.create_topic("t", partitions=2)
        client.producer("t").send(b"-1", partition=0)
    return str(path)


def held(store: str) -> list[int]:
    """The numbers that the topic holds."""
    with txlog.open(store, read_only=True) as client:
        return sorted(
            int(value) for table in client.read("t") for value in table["value"].to_pylist()
        )


def test_load_with_a_killed_driver_is_whole_or_absent(spark: SparkSession, tmp_path: Path) -> None:
    """While it stages, in its first and last call, and in others that the seed chooses."""

    def prepare(name: str) -> list[str]:
        return python("spark_load", made(tmp_path / name))

    frame = spark.range(ROWS, numPartitions=2).select(F.col("id").alias("value"))
    ends = set()
    run([*prepare("0"), "0"], code=KILLED)  # while it stages
    kills = [("0", "staging"), *kill_in_calls(prepare, KILLS - 1, 20)]
    for name, where in kills:
        store = str(tmp_path / name)
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
