"""The bench of reading by Spark: what visibility costs, and what Python costs.

    PYTHONPATH=src python bench/spark_reading.py [--messages N] [--rounds N]

In one run on one store: `spark.read.parquet` of the same bytes, without a rule; `txlog.spark.read`;
the data source `txlog`, with all columns and with the one that is asked for; and a stream of it.
Four fifths of the messages are transactional, of so many a marker, a twentieth aborted. The same
store is read clean, and with an open transaction that kept its sidecars from being so. Figures are
medians of rounds that turn through the plans; a first round is not counted.
"""

from __future__ import annotations

import argparse
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import txlog
from txlog.spark import read, session
from txlog.spark.reading import _STORED

PARTITIONS = 8
SENT = 50_000  # messages a frame, or a plain batch
POOL = 20_000
Plan = Callable[[], object]


def fill(path: str, messages: int, a_marker: int, *, is_clean: bool) -> None:
    """Make the store."""
    rng = random.Random(7)
    values = [
        b'{"id": %d, "pad": "%s"}' % (n, rng.randbytes(38).hex().encode()) for n in range(POOL)
    ]
    keys = [b"key-%d" % (n % 5000) for n in range(POOL)]
    pool = pa.table({"value": pa.array(values, pa.binary()), "key": pa.array(keys, pa.binary())})
    txlog.init(path, durability="os", free_bytes_min=0)
    with txlog.open(path) as client:
        client.checkpoint_automatically = False
        client.create_topic("t", partitions=PARTITIONS)
        producer = client.producer("t")
        held = client.transaction(timeout_ms=3_600_000)
        if not is_clean:
            producer.send_batch(_spread(pool.slice(0, PARTITIONS)), txn=held)
        sent = 0
        while sent < messages:
            count = min(SENT, messages - sent)
            rows = _spread(pool.take(pa.array([rng.randrange(POOL) for _ in range(count)])))
            plain = count // 5
            producer.send_batch(rows.slice(0, plain))
            step = a_marker * PARTITIONS  # so many a partition, and marker
            for start in range(plain, count, step):
                txn = client.transaction()
                producer.send_batch(rows.slice(start, step), txn=txn)
                if rng.random() < 0.05:
                    txn.abort()
                else:
                    txn.commit()
            sent += count
            client.checkpoint(roll_all=sent % (40 * SENT) == 0)
        client.checkpoint(roll_all=True)
        if not is_clean:
            client.admin.compact("t")
        else:
            held.abort()
            client.checkpoint(roll_all=True)


def _spread(rows: pa.Table) -> pa.Table:
    """Rows over all partitions."""
    partition = pa.array([n % PARTITIONS for n in range(rows.num_rows)], pa.int32())
    return rows.append_column("partition", partition)


def payload(frame: DataFrame) -> object:
    """Every byte of every value is looked at."""
    return frame.agg(F.sum(F.octet_length("value")), F.max("value")).collect()


def by_key(frame: DataFrame) -> object:
    """Count by key."""
    return frame.groupBy("key").count().agg(F.sum("count")).collect()


def measure(plans: dict[str, Plan], rounds: int) -> dict[str, float]:
    """The median seconds of each plan."""
    times: dict[str, list[float]] = {name: [] for name in plans}
    for number in range(rounds + 1):
        names = list(plans)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            start = time.perf_counter()
            plans[name]()
            if number:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(taken) for name, taken in times.items()}


def stream(
    spark: SparkSession, path: str, checkpoints: Path, columns: str, rows: int
) -> tuple[int, float]:
    """(messages, seconds of its batches) of a stream over the store."""
    query = (
        spark.readStream.format("txlog").schema(columns).option("topic", "t")
        .option("maxRowsPerTrigger", rows).load(path).writeStream.format("noop")
        .option("checkpointLocation", str(checkpoints)).trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()
    done = [one for one in query.recentProgress if one["numInputRows"]][1:]  # the first warms up
    taken = sum(one["durationMs"]["triggerExecution"] for one in done) / 1000
    return sum(one["numInputRows"] for one in done), taken


def run(spark: SparkSession, folder: Path, messages: int, rounds: int, a_marker: int,
        is_clean: bool) -> None:  # fmt: skip
    """Make a store, measure, print a table."""
    path = str(folder / f"store-{a_marker}-{is_clean}")
    start = time.perf_counter()
    fill(path, messages, a_marker, is_clean=is_clean)
    with txlog.open(path, read_only=True) as client:
        relation = client.relation("t")
    files = [source.ref.path for source in (*relation.direct, *relation.unclean)]
    made = time.perf_counter() - start
    print(f"\n{messages} messages, {a_marker} a marker, {'clean' if is_clean else 'unclean'}: "
          f"{len(relation.direct)} files direct, {len(relation.unclean)} joined with "
          f"{relation.markers.num_rows} markers; made in {made:.0f} s")  # fmt: skip
    paths = [f"file:{path}/{name}" for name in files]
    raw = spark.read.schema(_STORED).parquet(*paths)
    native = read(spark, path, "t")
    source = spark.read.format("txlog").option("topic", "t")
    every = source.load(path)
    plans: dict[str, Plan] = {
        "raw payload": lambda: payload(raw),
        "read payload": lambda: payload(native),
        "source payload": lambda: payload(every),
        "source payload, its column": lambda: payload(source.schema("value binary").load(path)),
        "raw by key": lambda: by_key(raw),
        "read by key": lambda: by_key(native),
        "source by key": lambda: by_key(every),
        "source by key, its column": lambda: by_key(source.schema("key binary").load(path)),
    }
    found = measure(plans, rounds)
    print("| plan | seconds | of raw | of read |\n|---|---|---|---|")
    for name, taken in found.items():
        kind = name.split(",")[0].split(" ", 1)[1]
        print(f"| {name} | {taken:.2f} | {taken / found[f'raw {kind}']:.2f} | "
              f"{taken / found[f'read {kind}']:.2f} |")  # fmt: skip
    for columns in (every.schema.toDDL(), "value binary"):
        count, taken = stream(
            spark, path, folder / f"c-{a_marker}-{is_clean}-{len(columns)}", columns, messages // 5
        )
        if taken:
            print(f"stream of {columns[:12].split()[0] if len(columns) < 20 else 'all columns'}: "
                  f"{count / taken:,.0f} messages/s")  # fmt: skip
    shutil.rmtree(path)


def main() -> int:
    """Parse, measure."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--only", help="a number of messages a marker, and clean or unclean: 1000,clean"
    )
    given = parser.parse_args()
    spark = session("local[2]", {"spark.sql.shuffle.partitions": 2, "spark.driver.memory": "2g",
                                 "spark.log.level": "ERROR"})  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="txlog-bench-") as folder:
        for a_marker, is_clean in ((1000, True), (1000, False), (25, True), (25, False)):
            state = "clean" if is_clean else "unclean"
            if given.only in (None, f"{a_marker},{state}"):
                run(spark, Path(folder), given.messages, given.rounds, a_marker, is_clean)
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
