"""Messages whose values are bytes, for writing; and the timer of one run."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

PARTITIONS = 2


def rows(spark: SparkSession, count: int) -> DataFrame:
    """Rows with keys of 10,000 customers and values of 100 bytes; each task is one partition."""
    frame = spark.range(count, numPartitions=PARTITIONS).select(
        F.concat(F.lit("customer-"), F.pmod(F.xxhash64("id"), F.lit(10_000)))
        .cast("binary")
        .alias("key"),
        F.rpad(
            F.concat(
                F.lit('{"id": '),
                F.col("id"),
                F.lit(', "sum": '),
                F.md5(F.col("id").cast("string")),
                F.lit("}"),
            ),
            100,
            " ",
        )
        .cast("binary")
        .alias("value"),
        F.spark_partition_id().alias("partition"),
    )
    return frame.cache()


def timed(work: Callable[[], None]) -> tuple[float, float]:
    """Clock and processor seconds of a call; other programs add to the first only."""
    began, used = time.perf_counter(), processor_seconds()
    work()
    return time.perf_counter() - began, processor_seconds() - used


def processor_seconds() -> float:
    """Processor time of this process, the JVM and its Python workers, ended ones included."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        number = int(path.parent.name)
        parents[number] = int(fields[1])
        ticks[number] = sum(map(int, fields[11:15]))
    ours = {os.getpid()}
    while more := {one for one, above in parents.items() if above in ours} - ours:
        ours |= more
    return sum(ticks[one] for one in ours) / os.sysconf("SC_CLK_TCK")
