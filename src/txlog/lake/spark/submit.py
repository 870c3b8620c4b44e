"""Owns what `spark-submit` is given to run txlog elsewhere: a zip of it, and properties.

Nothing here imports pyspark. The same version always makes a zip with the same bytes, and its name
says which; compiled packages (pyarrow, msgspec, crc32c, pyroaring) must be where the workers are,
in the environment that `python` or `archive` names.
"""

from __future__ import annotations

import io
import os
import sys
import zipfile
from hashlib import sha256
from pathlib import Path
from typing import Final

from txlog.lake.spark.java import cache_directory, publish

# What a session has by default; `session` adds what applies to one machine only.
DEFAULTS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
    # Rows go to and from pandas as Arrow columns.
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # With it the data source txlog gets filters, if it asks for them.
    "spark.sql.python.filterPushdown.enabled": "true",
    # Without it Spark takes most flipped bits as data.
    "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
    # Above 32 paths Spark would start a job to list files that are already known.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000000",
}
_UNPACKED: Final = "environment"
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip can have
_EXAMPLE: Final = '''\
"""Messages and bytes by topic and partition: spark-submit $(txlog spark submit-args) THIS STORE"""

import sys

from pyspark.sql import functions as F

import txlog.spark

if __name__ == "__main__":
    spark = txlog.spark.session()
    for topic in {topics!r}:
        messages = txlog.spark.read(spark, sys.argv[1], topic, isolation={isolation!r})
        count = messages.groupBy("topic", "partition").agg(
            F.count("*").alias("messages"), F.sum("size_bytes").alias("bytes")
        )
        for row in count.orderBy("partition").collect():
            print(*row)
    spark.stop()
'''


def zipped() -> bytes:
    """txlog and what lets Spark find it, as a zip for --py-files."""
    root = Path(__file__).parents[3]
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in ("txlog", "pyspark_txlog"):
            for path in sorted((root / package).rglob("*.py")):
                name = str(path.relative_to(root))
                archive.writestr(
                    zipfile.ZipInfo(name, _EPOCH), path.read_bytes(), zipfile.ZIP_DEFLATED
                )
    return out.getvalue()


def submit_args(python: str | None = None, archive: str | None = None) -> list[str]:
    """The arguments for spark-submit; the zip is made in the cache.

    python:  what workers run; by default, what runs this
    archive: an environment packed with venv-pack or conda-pack, which every worker unpacks
    raises:  DiskFailed
    """
    data = zipped()
    name = f"txlog-{sha256(data).hexdigest()[:12]}.zip"
    path = cache_directory(os.environ) / name
    publish(path, data, mode=0o600)
    words = ["--py-files", str(path)]
    if archive is not None:
        words += ["--archives", f"{archive}#{_UNPACKED}"]
        python = python or f"./{_UNPACKED}/bin/python"
    settings = {**DEFAULTS, "spark.pyspark.python": python or sys.executable}
    for key, value in settings.items():
        words += ["--conf", f"{key}={value}"]
    return words


def example(topics: list[str], isolation: str) -> str:
    """A job that can be run as it is."""
    return _EXAMPLE.format(topics=topics, isolation=isolation)
