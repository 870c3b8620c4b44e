"""Typed topics: records in and out by Spark and DuckDB, in turns with their own Parquet.

1. Writing a cached frame of twenty fields: Spark's Parquet writer (zstd); the same with the bytes
   of the records as JSON in one more column, as a store keeps them; `bulk_load`; the sink.
2. Two fields of twenty, by Spark: `spark.read.parquet` of the files from part 1,
   `txlog.spark.read`, format `txlog`, `from_json` of the bytes; a stream of format `txlog`, with
   its rows a second.
3. The same by Spark while a fifth of the rows is in the journal: Spark's driver decodes these when
   it makes the frame. Once the time includes making the frame, once the frame was made before.
4. The same by DuckDB: the files themselves, and the view of `txlog views`.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path

import duckdb
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

import txlog
from bench.columns.written import timed
from txlog.base.schemas.values import encode
from txlog.cli.main import main as command
from txlog.spark import bulk_load, read

PARTITIONS = 2
Found = dict[str, tuple[float, float]]
"""Seconds of the clock and of processors, by what took them."""


def frame_of(spark: SparkSession, count: int) -> DataFrame:
    """Rows of twenty fields: longs, doubles, words, instants."""
    word = F.concat(F.lit("word "), F.pmod(F.xxhash64("id"), F.lit(1_000)))
    kinds = [
        F.pmod(F.xxhash64("id", F.lit(1)), F.lit(1 << 40)),
        F.rand(1) * 1000,
        word,
        F.timestamp_millis(F.col("id") * 1000),
    ]
    fields = [kinds[n % 4].alias(f"f{n}") for n in range(20)]
    return spark.range(count, numPartitions=PARTITIONS).select(*fields).cache()


def turns(rounds: int, works: dict[str, Callable[[int], object]]) -> Found:
    """Run all works in turns; returns the median clock and processor seconds of each."""
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
    for number in range(rounds + 1):
        for name, work in works.items():
            took[name].append(timed(lambda work=work, number=number: work(number)))
    return {
        name: (
            statistics.median(one for one, _ in pairs[1:]),
            statistics.median(one for _, one in pairs[1:]),
        )
        for name, pairs in took.items()
    }


def show(title: str, rows: int, found: Found) -> None:
    """Print a table; the last column is the ratio to the first line."""
    print(f"\n{title}\n")
    print("| | s | processor s | rows/s | of the first |\n|---|---|---|---|---|")
    base = next(iter(found.values()))
    for name, (wall, used) in found.items():
        print(f"| {name} | {wall:.2f} | {used:.2f} | {rows / wall:,.0f} | {used / base[1]:.2f} |")


def writing(spark: SparkSession, folder: Path, frame: DataFrame, rounds: int) -> tuple[str, Found]:
    """Part 1; returns the path of the store and the figures."""
    store = str(folder / "store")
    txlog.init(store, durability="os")
    with txlog.open(store) as client:
        for name in ("t", "loaded", "sunk", "fresh"):
            client.create_topic(
                name, partitions=PARTITIONS, schema=to_arrow_schema(frame.schema, timezone="UTC")
            )
    record = frame.select(F.struct("*").alias("record"))
    both = record.withColumn("value", F.to_json("record").cast("binary"))

    def sink(number: int) -> None:
        record.write.format("txlog").mode("append").options(
            path=store, topic="sunk", txnKey="s", batchId=str(number)
        ).save()

    def parquet(rows: DataFrame, name: str) -> None:
        rows.write.mode("overwrite").option("compression", "zstd").parquet(str(folder / name))

    found = turns(
        rounds,
        {
            "Spark's writer": lambda number: parquet(record, "flat"),
            "Spark's writer, with JSON": lambda number: parquet(both, "both"),
            "bulk_load": lambda number: bulk_load(
                record, store, "loaded", txn_key="l", batch_id=str(number)
            ),
            "sink": sink,
        },
    )
    show("Writing", frame.count(), found)
    bulk_load(record, store, "t", txn_key="t", batch_id="1")
    return store, found


def reading(spark: SparkSession, folder: Path, store: str, count: int, rounds: int) -> Found:
    """Part 2."""
    two = (F.sum("record.f0"), F.sum("record.f1"))
    kind = spark.read.parquet(str(folder / "flat")).schema["record"].dataType
    assert isinstance(kind, StructType)
    given = {"path": store, "topic": "t"}

    def source() -> DataFrame:
        return spark.read.format("txlog").options(**given).schema(f"record {narrow}").load()

    narrow = "struct<f0:bigint,f1:double>"

    def parsed() -> DataFrame:
        value = F.from_json(F.col("value").cast("string"), kind).alias("record")
        return read(spark, store, "t").select(value)

    def stream(number: int) -> None:
        rows = spark.readStream.format("txlog").options(**given).load().select("record")
        query = (
            rows.writeStream.format("noop")
            .option("checkpointLocation", str(folder / f"check-{number}"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    found = turns(
        rounds,
        {
            "spark.read.parquet": lambda number: (
                spark.read.parquet(str(folder / "flat")).agg(*two).collect()
            ),
            "txlog.spark.read": lambda number: read(spark, store, "t").agg(*two).collect(),
            "format txlog": lambda number: source().agg(*two).collect(),
            "from_json of the bytes": lambda number: parsed().agg(*two).collect(),
            "a stream, all of record": stream,
        },
    )
    show("Two fields of twenty, by Spark", count, found)
    return found


def with_journal(
    spark: SparkSession, folder: Path, store: str, frame: DataFrame, rounds: int
) -> Found:
    """Part 3."""
    two = (F.sum("record.f0"), F.sum("record.f1"))
    record = frame.select(F.struct("*").alias("record"))
    is_new = F.pmod("record.f0", F.lit(5)) == 0
    bulk_load(record.where(~is_new), store, "fresh", txn_key="f", batch_id="1")
    sent = record.where(is_new).select("record").toArrow()
    with txlog.open(store) as client:
        client.checkpoint_automatically = False
        schema = txlog.schema_of(to_arrow_schema(frame.schema, timezone="UTC"))
        producer = client.producer("fresh")
        for batch in sent.to_batches(max_chunksize=1_000):
            values = encode(schema, batch.column("record"))
            producer.send_batch(pa.table({"value": values}))
    kept = read(spark, store, "fresh")
    found = turns(
        rounds,
        {
            "spark.read.parquet": lambda number: (
                spark.read.parquet(str(folder / "flat")).agg(*two).collect()
            ),
            "txlog.spark.read, asked once": lambda number: (
                read(spark, store, "fresh").agg(*two).collect()
            ),
            "a frame that is there, asked again": lambda number: kept.agg(*two).collect(),
        },
    )
    show("Two fields of twenty, by Spark, a fifth in the journal", frame.count(), found)
    return found


def by_duckdb(folder: Path, store: str, count: int, rounds: int) -> Found:
    """Part 4."""
    script = folder / "views.sql"
    if command(["views", "-S", store, "--out", str(folder / "views.duckdb"), "-q"]):
        raise SystemExit(f"no views: {script}")
    opened = duckdb.connect(str(folder / "views.duckdb"), read_only=True)
    asked = "SELECT sum(record.f0), sum(record.f1) FROM"
    raw = f"{store}/topics/public/default/t/**/*.parquet"
    found = turns(
        rounds * 5,
        {
            "the files": lambda number: opened.sql(f"{asked} '{raw}'").fetchall(),
            "the view": lambda number: opened.sql(f"{asked} t").fetchall(),
        },
    )
    show("Two fields of twenty, by DuckDB", count, found)
    opened.close()
    return found
