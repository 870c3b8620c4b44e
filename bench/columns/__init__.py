"""Spark and DuckDB on a store, in turns with the same engine on plain Parquet.

    python -m bench columns [--messages N] [--rows N] [--rounds N] [--results]

Values of bytes have about 100 bytes each, mostly in transactions of 1,000 messages a marker; all
files are sealed and clean. Typed values, whose own tables come first, have twenty fields; a query
needs two. Each figure is the median of rounds. A round runs all plans of a part in turn; the first
does not count. Times are by the clock and of processors, which other programs disturb less.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

import duckdb
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import txlog
from bench.columns import stored, typed, written
from bench.results import command as own_command
from bench.results import put
from txlog.cli.main import main as command
from txlog.lake.spark.datasource import SCHEMA
from txlog.lake.sql.spark_script import SCANNED
from txlog.spark import bulk_load, read, session

HEADING = "## Ratios to plain Parquet"
Line = tuple[str, str, float, float]  # what, asked, by the clock, of processors


def beside(found: typed.Found, what: str, of: str, said: str, asked: str) -> Line:
    """A line with the ratio of two figures in `found`; asked: the ratio that is the target."""
    clock, used = (one / other for one, other in zip(found[what], found[of], strict=True))
    return said, asked, clock, used


def reading(
    spark: SparkSession, folder: Path, messages: int, rounds: int
) -> tuple[list[Line], list[str]]:
    """(lines for reading bytes by Spark and DuckDB, sentences with the rates of streams)."""
    path = str(folder / "bytes")
    stored.fill(path, messages, 1000, is_clean=True)
    with txlog.open(path, read_only=True) as client:
        files = [f"{path}/{source.ref.path}" for source in client._relation("t").direct]
    raw = spark.read.schema(SCANNED).parquet(*(f"file:{one}" for one in files))
    own, source = read(spark, path, "t"), spark.read.format("txlog").option("topic", "t")
    cloudpickle.register_pickle_by_value(stored)  # its source: workers do not find bench
    lines: list[Line] = []
    for name, query, column in (
        ("payload", stored.payload, "value binary"),
        ("group by key", stored.by_key, "key binary"),
    ):
        few = source.schema(column).load(path)
        thin = stored.same(spark, path, folder, few)
        plans = {"raw": raw, "read": own, "source": few, "same": thin}
        found = typed.turns(
            rounds,
            {
                kind: lambda number, query=query, plan=plan: query(plan)
                for kind, plan in plans.items()
            },
        )
        lines += [
            beside(found, "read", "raw", f"bytes, {name}: `read` / spark.read.parquet", "1.3"),
            beside(found, "source", "raw", f"bytes, {name}: format `txlog` / the same", "2.0"),
            beside(found, "same", "raw", "… a source in Python that reads nothing / the same", "-"),
        ]
    opened = str(folder / "bytes.duckdb")
    if command(["views", "-S", path, "--out", opened, "-q"]):
        raise SystemExit("no views")
    with duckdb.connect(opened, read_only=True) as duck:
        for name, sql in (
            ("payload", "SELECT sum(octet_length(value)), max(hash(value)) FROM "),
            ("group by key", "SELECT count(*) FROM (SELECT key, count(*) FROM {} GROUP BY key)"),
        ):
            asked = sql if "{}" in sql else sql + "{}"
            found = typed.turns(
                3 * rounds,
                {
                    "raw": lambda number, asked=asked: duck.sql(
                        asked.format(f"read_parquet({files})")
                    ).fetchall(),
                    "view": lambda number, asked=asked: duck.sql(asked.format("t")).fetchall(),
                },
            )
            lines.append(beside(found, "view", "raw", f"bytes, {name}: DuckDB view / raw", "1.2"))
    said = []
    for columns in (SCHEMA, "value binary"):
        what = "all columns" if "," in columns else "the value"
        count, taken = stored.stream(
            spark, path, folder / f"stream-{len(columns)}", columns, messages // 5
        )
        said.append(f"A stream of {what}: {count / taken:,.0f} messages a second.")
    return lines, said


def writing(spark: SparkSession, folder: Path, count: int, rounds: int) -> list[Line]:
    """Lines for writing bytes into a store."""
    frame = written.rows(spark, count)
    frame.count()
    plain, store = frame.drop("partition"), str(folder / "written")
    txlog.init(store)
    with txlog.open(store) as client:
        client.create_topic("t", partitions=written.PARTITIONS)

    def sink(number: int) -> None:
        frame.write.format("txlog").mode("append").options(
            topic="t", txnKey="k", batchId=str(number)
        ).save(store)

    def parquet(number: int) -> None:
        into = str(folder / f"plain-{number}")
        plain.write.option("compression", "zstd").parquet(into)

    found = typed.turns(
        rounds,
        {
            "parquet": parquet,
            "load": lambda number: bulk_load(plain, store, "t", txn_key="l", batch_id=str(number)),
            "sink": sink,
        },
    )
    frame.unpersist()
    return [
        beside(found, "load", "parquet", "bytes: `bulk_load` / Spark's writer, zstd", "1.2"),
        beside(found, "sink", "parquet", "bytes: the sink / the same", "1.2"),
    ]


def records(spark: SparkSession, folder: Path, count: int, rounds: int) -> list[Line]:
    """Lines for typed values; prints their own tables."""
    frame = typed.frame_of(spark, count)
    frame.count()
    store, written = typed.writing(spark, folder, frame, rounds)
    found = typed.reading(spark, folder, store, count, rounds)
    fresh = typed.with_journal(spark, folder, store, frame, rounds)
    seen = typed.by_duckdb(folder, store, count, rounds)
    frame.unpersist()
    raw, both = "spark.read.parquet", "Spark's writer, with JSON"
    once, again = "txlog.spark.read, asked once", "a frame that is there, asked again"
    return [
        beside(found, "txlog.spark.read", raw, "typed: `read` / spark.read.parquet", "1.3"),
        beside(fresh, once, raw, "… a fifth of the rows in the journal, asked once", "1.3"),
        beside(fresh, again, raw, "… the same, the frame asked again", "1.3"),
        beside(found, "format txlog", raw, "typed: format `txlog` / the same", "2.0"),
        beside(seen, "the view", "the files", "typed: DuckDB view / raw", "1.2"),
        beside(written, "bulk_load", both, "typed: `bulk_load` / Spark's writer, with JSON", "1.2"),
        beside(written, "sink", both, "typed: the sink / the same", "1.2"),
    ]


def main() -> None:
    """Run all, print one table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--messages", type=int, default=4_000_000, help="of bytes, to read")
    parser.add_argument("--rows", type=int, default=1_000_000, help="typed, and to write")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--results", action="store_true", help="write into bench/RESULTS.md")
    given = parser.parse_args()
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="txlog-bench-") as name:
        folder = Path(name)
        spark = session(
            "local[2]",
            {
                "spark.driver.memory": "2g",
                "spark.sql.shuffle.partitions": 2,
                "spark.log.level": "ERROR",
            },
        )
        lines = records(spark, folder, given.rows, given.rounds)
        lines += writing(spark, folder, given.rows, given.rounds)
        more, said = reading(spark, folder, given.messages, given.rounds)
        spark.stop()
    table = ["| ratio | asked | by the clock | of processors |", "|---|---:|---:|---:|"]
    table += [
        f"| {what} | {asked} | {clock:.2f} | {used:.2f} |"
        for what, asked, clock, used in [*lines, *more]
    ]
    how = (
        f"{own_command()}; load of the machine"
        f" before and behind {before:.1f}, {os.getloadavg()[0]:.1f}."
    )
    out = [how, "", *table, "", " ".join(said)]
    print("\n".join(["", *out]))
    if given.results:
        put(HEADING, out)
