"""Owns the arguments for `spark-submit` to run txlog elsewhere: a zip of it, and properties.

Nothing here imports pyspark. The same version always makes a zip with the same bytes and the same
name. The workers need the compiled packages (pyarrow, msgspec, crc32c, pyroaring) in the
environment that `python` or `archive` names.
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

# Defaults of a session; `session` adds those for one machine.
DEFAULTS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.showConsoleProgress": "false",
    # Rows go to and from pandas as Arrow columns.
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # With it Spark passes filters to the data source txlog, if it wants them.
    "spark.sql.python.filterPushdown.enabled": "true",
    # Without it Spark accepts most flipped bits as data.
    "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
    # Above 32 paths Spark would start a job to list files that are already known.
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000000",
}
_UNPACKED: Final = "environment"
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip can store
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
    """txlog and the files that let Spark find it, as a zip for --py-files."""
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
    """The arguments for spark-submit; writes the zip into the cache.

    python:  the Python of the workers; by default, the current one
    archive: an environment packed with venv-pack or conda-pack, which every worker unpacks
    raises:  DiskFailed
    """
    data = zipped()
    name = f"txlog-{sha256(data).hexdigest()[:12]}.zip"
    path = cache_directory(os.environ) / name
    publish(path, data, mode=0o600)
    arguments = ["--py-files", str(path)]
    if archive is not None:
        arguments += ["--archives", f"{archive}#{_UNPACKED}"]
        python = python or f"./{_UNPACKED}/bin/python"
    settings = {**DEFAULTS, "spark.pyspark.python": python or sys.executable}
    for key, value in settings.items():
        arguments += ["--conf", f"{key}={value}"]
    return arguments


def example(topics: list[str], isolation: str) -> str:
    """The text of an example job for these topics, which runs unchanged."""
    return _EXAMPLE.format(topics=topics, isolation=isolation)
