"""Owns the program that `archive` runs: a session that loads what most sessions load, and ends.

usage: python -m txlog.spark.warm_up OPTION    (of the JVM, to make it write an archive)
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from txlog.spark.archive import QUIET
from txlog.spark.session import JAVA_OPTIONS, SHORT_JOB, session


def main() -> int:
    """Run it, and wait until the JVM has written its archive."""
    options = " ".join([*SHORT_JOB, QUIET, sys.argv[1]])
    spark = session("local[2]", {JAVA_OPTIONS: options, "spark.log.level": "ERROR"})
    with TemporaryDirectory() as folder:
        _work(spark, Path(folder))
    jvm = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
    spark.stop()
    jvm.stdin.close()  # for pyspark, the sign that the driver is gone
    return int(jvm.wait())


def _work(spark: SparkSession, folder: Path) -> None:
    """Write and read Parquet and Arrow; do a broadcast join, a group, a union, a sort."""
    files = str(folder / "rows.parquet")
    numbers = spark.range(10_000).withColumn("value", F.col("id").cast("string").cast("binary"))
    numbers.write.parquet(files)
    marks = spark.createDataFrame(pa.table({"id": pa.arange(0, 100)}))
    stored = spark.read.schema("id long, value binary").parquet(files)
    joined = stored.where("id % 7 = 1").join(F.broadcast(marks), ["id"])
    joined.unionByName(stored).groupBy("value").count().orderBy("value").toArrow()
    stored.count()


if __name__ == "__main__":
    sys.exit(main())
