"""Measures what Spark's way into a store costs beside its own Parquet writer, in one run.

    PYTHONPATH=src python bench/sinks.py [--rows N] [--rounds N]

1. A batch of rows of 100 bytes with a key, from a cached frame with one task a partition:
   Spark's Parquet writer, with its default codec, with zstd, and with zstd where each key has its
   task; `bulk_load`, which routes by the key, checks and commits; the sink of the data source,
   which is told where each row goes; `drop`, the floor of any sink in Python: one that takes the
   rows and drops them. Interleaved, medians, each to a place of its own.
2. The same batch again: what is stored is not written.
3. Micro-batches of 20,000 rows, as Spark reports their duration.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

import pyarrow as pa  # noqa: E402
from pyspark.sql import DataFrame, SparkSession  # noqa: E402
from pyspark.sql import functions as F  # noqa: E402
from pyspark.sql.datasource import (  # noqa: E402
    DataSource,
    DataSourceArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType  # noqa: E402

import txlog  # noqa: E402
from txlog.spark import bulk_load, session  # noqa: E402

PARTITIONS = 2
MICRO_ROWS = 20_000


class Drop(DataSource):
    """A sink that keeps nothing."""

    @classmethod
    def name(cls) -> str:
        """What stands in `format(…)`."""
        return "drop"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """The writer."""
        return DropWriter()


class DropWriter(DataSourceArrowWriter):
    """Takes the rows."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """All of a task."""
        for _ in iterator:
            pass
        return WriterCommitMessage()


def rows(spark: SparkSession, count: int) -> DataFrame:
    """Keys of some customers, values of 100 bytes of JSON-like text; every task has a partition."""
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
    """Seconds, and seconds of processor time: what else runs here does not count in them."""
    began, used = time.perf_counter(), processor_seconds()
    work()
    return time.perf_counter() - began, processor_seconds() - used


def processor_seconds() -> float:
    """Of this process, the JVM and its Python workers, those that have ended too."""
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


def batches(spark: SparkSession, folder: Path, count: int, rounds: int) -> None:
    """The sink beside Spark's writer."""
    frame = rows(spark, count)
    assert frame.count() == count
    store = folder / "store"
    txlog.init(str(store))
    with txlog.open(str(store)) as client:
        client.create_topic("t", partitions=PARTITIONS)
    plain = frame.drop("partition")

    def parquet(codec: str, number: int, *, is_routed: bool = False) -> None:
        name = f"{codec}{'-routed' * is_routed}-{number}"
        given = plain.repartition(PARTITIONS, "key") if is_routed else plain
        given.write.option("compression", codec).parquet(str(folder / name))

    def sink(number: int) -> None:
        frame.write.format("txlog").mode("append").options(
            topic="t", txnKey="k", batchId=str(number)
        ).save(str(store))

    def drop(number: int) -> None:
        frame.write.format("drop").mode("append").save()

    spark.dataSource.register(Drop)

    def load(number: int) -> None:
        bulk_load(plain, str(store), "t", txn_key="loads", batch_id=str(number))

    works: dict[str, Callable[[int], None]] = {
        "snappy": lambda at: parquet("snappy", at),
        "zstd": lambda at: parquet("zstd", at),
        "routed": lambda at: parquet("zstd", at, is_routed=True),
        "bulk_load": load,
        "again": load,
        "sink": sink,
        "drop": drop,
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
    for number in range(rounds + 1):
        for name, work in works.items():
            seconds = timed(lambda: work(number))  # noqa: B023
            if number:  # the first one starts workers and compiles
                found[name].append(seconds)
        sizes = {name: size(folder / f"{name}-{number}") for name in ("snappy", "zstd")}
        for path in folder.glob(f"*-{number}"):
            shutil.rmtree(path)
    print(f"{count:,} rows, medians of {rounds}: seconds, and of the processor")
    median: dict[str, list[float]] = {}
    for name, each in found.items():
        median[name] = [statistics.median(one) for one in zip(*each, strict=True)]
        wall, used = median[name]
        print(f"  {name:9} {wall:6.2f} {used:6.2f}   {' '.join(f'{a:.2f}' for a, _ in each)}")
    print(
        f"  bytes: snappy {sizes['snappy']:,}, zstd {sizes['zstd']:,}, "
        f"a batch {size(store / 'topics') // (2 * rounds + 2):,}"
    )
    for ours, theirs in (
        ("bulk_load", "snappy"),
        ("bulk_load", "zstd"),
        ("bulk_load", "routed"),
        ("sink", "snappy"),
        ("sink", "zstd"),
        ("drop", "zstd"),
        ("again", "bulk_load"),
    ):
        # The two of a round had the same neighbours: the median of the ratios, not a ratio of two.
        of = [
            [a / b for a, b in zip(one, two, strict=True)]
            for one, two in zip(found[ours], found[theirs], strict=True)
        ]
        wall, used = (statistics.median(one) for one in zip(*of, strict=True))
        print(f"{ours} / {theirs}: {wall:.2f}; of processor time {used:.2f}")


def streams(spark: SparkSession, folder: Path, rounds: int) -> None:
    """Micro-batches."""
    store, source = folder / "stream", folder / "in"
    txlog.init(str(store))
    with txlog.open(str(store)) as client:
        client.create_topic("t", partitions=PARTITIONS)
    frame = rows(spark, MICRO_ROWS)
    source.mkdir()
    for number in range(rounds + 2):
        frame.coalesce(1).write.parquet(str(folder / "one"))
        (part,) = (folder / "one").glob("part-*.parquet")
        shutil.move(part, source / f"{number:05d}.parquet")
        shutil.rmtree(folder / "one")
    query = (
        spark.readStream.schema(frame.schema)
        .option("maxFilesPerTrigger", 1)
        .parquet(str(source))
        .writeStream.format("txlog")
        .options(topic="t", checkpointLocation=str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(store))
    )
    query.awaitTermination()
    took = [one["durationMs"] for one in query.recentProgress if one["numInputRows"]][2:]
    total = [one["triggerExecution"] for one in took]
    adds = [one["addBatch"] for one in took]
    print(
        f"micro-batch of {MICRO_ROWS:,} rows: {statistics.median(total):.0f} ms, of which "
        f"{statistics.median(adds):.0f} ms the sink; each {total}"
    )


def size(folder: Path) -> int:
    """Bytes of the Parquet files below a directory."""
    return sum(path.stat().st_size for path in folder.rglob("*.parquet"))


def main() -> None:
    """Run both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        spark = session("local[2]", {"spark.driver.memory": "2g", "spark.log.level": "ERROR"})
        batches(spark, Path(folder), given.rows, given.rounds)
        streams(spark, Path(folder), 8)
        spark.stop()


if __name__ == "__main__":
    main()
