"""The bench of reading by Spark: what visibility costs, and what Python costs.

    PYTHONPATH=src python bench/spark_reading.py [--messages N] [--rounds N] [--only 25,unclean]
                                                 [--native] [--folder DIR] [--results]

In one run on one store: `spark.read.parquet` of the same bytes, without a rule; `txlog.spark.read`,
also without the checksums of pages; the data source `txlog`, with all columns and with the one that
is asked for; and a stream of it. `same` is the floor of any data source in Python: one that reads
nothing, and gives a batch of those messages again and again, until they are as many.
Four fifths of the messages are transactional, of so many a marker, a twentieth aborted. The same
store is read clean, and with an open transaction that kept its sidecars from being so. --native
leaves out the data source; a store that an earlier run left in --folder is read again. Figures are
medians of rounds that turn through the plans; a first round is not counted. CPU is that of the JVM
and its workers, which other programs on the machine disturb less.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType
from results import put

import txlog
from txlog.engine.relation.scans import scans_of
from txlog.lake.spark import reading
from txlog.lake.spark.reading import _STORED, read
from txlog.lake.spark.source import read_share, shares_of
from txlog.spark import session

PARTITIONS = 8
SENT = 50_000  # messages a frame, or a plain batch
POOL = 20_000
TASKS = 16  # of `same`; the data source makes about as many
TICKS = os.sysconf("SC_CLK_TCK")
HEADING = "## Reading by Spark"
LOAD = f"{os.getloadavg()[0]:.1f}"
Plan = Callable[[], object]


class Same(DataSource):
    """One batch in an Arrow file, given again and again; options: path, rows."""

    @classmethod
    def name(cls) -> str:
        """What stands in `format(…)`."""
        return "same"

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of so many rows."""
        return SameReader(self.options["path"], int(self.options["rows"]))


class SameReader(DataSourceReader):
    """Gives the batch."""

    def __init__(self, path: str, rows: int) -> None:
        self.path = path
        self.rows = rows

    def partitions(self) -> list[InputPartition]:
        """Numbers."""
        return [InputPartition(number) for number in range(TASKS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The share of one task."""
        with pa.OSFile(self.path) as file, pa.ipc.open_stream(file) as stored:
            batch = stored.read_next_batch()
        left = self.rows // TASKS
        while left > 0:
            yield batch.slice(0, left)
            left -= batch.num_rows


def same(spark: SparkSession, path: str, folder: Path, like: DataFrame) -> DataFrame:
    """As many rows as the store has, with these columns, from one batch of them."""
    with txlog.open(path, read_only=True) as client:
        shares = shares_of(path, scans_of(client._relation("t")), {})
        rows = sum(scan.stop - scan.start for share in shares for scan in share.scans)
    batch = next(read_share(shares[-1], like.schema))
    file = folder / f"same-{len(like.columns)}-{like.columns[0]}.arrow"
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    spark.dataSource.register(Same)
    chosen = spark.read.format("same").schema(like.schema)
    return chosen.options(path=str(file), rows=rows).load()


def unchecked(spark: SparkSession, path: str) -> DataFrame:
    """The frame of `read` without the checksums of pages."""
    strict = reading._STRICT
    reading._STRICT = {**strict, "parquet.page.verify-checksum.enabled": "false"}  # type: ignore[misc]
    try:
        return read(spark, path, "t")
    finally:
        reading._STRICT = strict  # type: ignore[misc]


def cpu_seconds(root: int) -> float:
    """What a process and all below it have used, as long as they live."""
    used: dict[int, float] = {}
    parent: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                text = Path("/proc", name, "stat").read_text()
            except OSError:
                continue
            fields = text.rpartition(")")[2].split()
            parent[int(name)] = int(fields[1])
            used[int(name)] = (int(fields[11]) + int(fields[12])) / TICKS
    total = 0.0
    for process in used:
        above = process
        while above not in (root, 0, 1):
            above = parent.get(above, 0)
        total += used[process] if above == root else 0.0
    return total


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


def measure(plans: dict[str, Plan], rounds: int, jvm: int) -> dict[str, tuple[float, float]]:
    """The median seconds of each plan, and of its CPU."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in plans}
    for number in range(rounds + 1):
        names = list(plans)
        for name in names[number % len(names) :] + names[: number % len(names)]:
            used, start = cpu_seconds(jvm), time.perf_counter()
            plans[name]()
            taken = time.perf_counter() - start
            if number:
                times[name].append((taken, cpu_seconds(jvm) - used))
    return {
        name: (statistics.median(t for t, _ in found), statistics.median(c for _, c in found))
        for name, found in times.items()
    }


def stream(
    spark: SparkSession, path: str, checkpoints: Path, columns: str, rows: int
) -> tuple[int, float]:
    """(messages, seconds of its batches) of a stream over the store."""
    query = (
        spark.readStream.format("txlog")
        .schema(columns)
        .option("topic", "t")
        .option("maxRowsPerTrigger", rows)
        .load(path)
        .writeStream.format("noop")
        .option("checkpointLocation", str(checkpoints))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    done = [one for one in query.recentProgress if one["numInputRows"]][1:]  # the first warms up
    taken = sum(one["durationMs"]["triggerExecution"] for one in done) / 1000
    return sum(one["numInputRows"] for one in done), taken


def run(
    spark: SparkSession,
    folder: Path,
    messages: int,
    rounds: int,
    a_marker: int,
    is_clean: bool,
    *,
    is_native: bool,
) -> Iterator[str]:
    """Make a store, measure; the lines of a table."""
    path = str(folder / f"store-{a_marker}-{is_clean}")
    start = time.perf_counter()
    if not Path(path).exists():
        fill(path, messages, a_marker, is_clean=is_clean)
    with txlog.open(path, read_only=True) as client:
        relation = client._relation("t")
    files = [source.ref.path for source in (*relation.direct, *relation.unclean)]
    made = time.perf_counter() - start
    yield ""
    yield (
        f"{messages:,} messages, {a_marker} a marker, {'clean' if is_clean else 'unclean'}: "
        f"{len(relation.direct)} files direct, {len(relation.unclean)} joined with "
        f"{relation.markers.num_rows:,} markers; open in {made:.0f} s."
    )
    yield ""
    paths = [f"file:{path}/{name}" for name in files]
    raw = spark.read.schema(_STORED).parquet(*paths)
    native = read(spark, path, "t")
    source = spark.read.format("txlog").option("topic", "t")
    every = source.load(path)
    bare = unchecked(spark, path)
    flat = None if is_native else same(spark, path, folder, every)
    plans: dict[str, Plan] = {}
    for kind, query, columns in (
        ("payload", payload, "value binary"),
        ("by key", by_key, "key binary"),
    ):
        plans |= {
            f"raw {kind}": lambda query=query: query(raw),  # type: ignore[misc]
            f"read {kind}": lambda query=query: query(native),  # type: ignore[misc]
            f"read {kind}, pages unchecked": lambda query=query: query(bare),  # type: ignore[misc]
        }
        if flat is None:
            continue
        few = source.schema(columns).load(path)  # the reader keeps the schema for the next one
        thin = same(spark, path, folder, few)
        plans |= {
            f"source {kind}": lambda query=query: query(every),  # type: ignore[misc]
            f"same {kind}": lambda query=query: query(flat),  # type: ignore[misc]
            f"source {kind}, its column": lambda query=query, few=few: query(few),  # type: ignore[misc]
            f"same {kind}, its column": lambda query=query, thin=thin: query(thin),  # type: ignore[misc]
        }
    jvm = int(spark._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]
    found = measure(plans, rounds, jvm)
    yield "| plan | seconds | of raw | of read | CPU s | of raw | of read |"
    yield "|---|---:|---:|---:|---:|---:|---:|"
    for name, (taken, used) in found.items():
        kind = name.split(",")[0].split(" ", 1)[1]
        (raw_taken, raw_used), (read_taken, read_used) = found[f"raw {kind}"], found[f"read {kind}"]
        yield (
            f"| {name} | {taken:.2f} | {taken / raw_taken:.2f} | {taken / read_taken:.2f} "
            f"| {used:.2f} | {used / raw_used:.2f} | {used / read_used:.2f} |"
        )
    for columns in () if is_native else (every.schema.toDDL(), "value binary"):
        count, taken = stream(
            spark, path, folder / f"c-{a_marker}-{is_clean}-{len(columns)}", columns, messages // 5
        )
        if taken:
            what = columns if len(columns) < 20 else "all columns"
            yield f"| stream of {what}, {count / taken:,.0f} messages/s | {taken:.2f} | | | | | |"


def how() -> str:
    """What was run, where."""
    return (
        f"`PYTHONPATH=src python bench/spark_reading.py {' '.join(sys.argv[1:])}`; pyspark "
        f"{pyspark.__version__}, pyarrow {pa.__version__}; load of the machine before and "
        f"behind {LOAD}, {os.getloadavg()[0]:.1f}. `same` reads nothing: the floor of any "
        "data source in Python."
    )


def main() -> int:
    """Parse, measure."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--messages", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--only", help="a number of messages a marker, and clean or unclean: 1000,clean"
    )
    parser.add_argument("--native", action="store_true", help="without the data source")
    parser.add_argument("--folder", type=Path, help="where stores are looked for, and left")
    parser.add_argument("--results", action="store_true", help="write into bench/RESULTS.md")
    given = parser.parse_args()
    lines: list[str] = []
    spark = session(
        "local[2]",
        {
            "spark.sql.shuffle.partitions": 2,
            "spark.driver.memory": "2g",
            "spark.log.level": "ERROR",
        },
    )
    with tempfile.TemporaryDirectory(prefix="txlog-bench-") as made:
        folder = given.folder or Path(made)
        for a_marker, is_clean in ((1000, True), (1000, False), (25, True), (25, False)):
            state = "clean" if is_clean else "unclean"
            if given.only in (None, f"{a_marker},{state}"):
                for line in run(
                    spark,
                    folder,
                    given.messages,
                    given.rounds,
                    a_marker,
                    is_clean,
                    is_native=given.native,
                ):
                    print(line, flush=True)
                    lines.append(line)
            if given.folder is None:  # room for the next one
                shutil.rmtree(folder / f"store-{a_marker}-{is_clean}", ignore_errors=True)
    spark.stop()
    if given.results:
        put(HEADING, [how(), *lines])
    return 0


if __name__ == "__main__":
    sys.exit(main())
