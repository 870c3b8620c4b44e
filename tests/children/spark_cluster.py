"""Reads and a load; each loses the executor of its last row once: FAR NEAR FLAGS."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

import txlog.spark

far, near, flags = sys.argv[1:]
spark = txlog.spark.session()


def doomed(flag: str) -> Any:
    """The number of a row; the last of all takes the executor with it, once."""

    @F.udf(returnType="int", useArrow=False)
    def number(value: str) -> int:
        if int(value) != 3999 or os.path.exists(f"{flags}/{flag}"):
            return int(value)
        os.close(os.open(f"{flags}/{flag}", os.O_CREAT | os.O_EXCL))
        process = os.getppid()  # the daemon of Python, whose parent is the executor
        while Path(f"/proc/{process}/comm").read_text() != "java\n":
            process = int(Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[1])
        os.kill(process, signal.SIGKILL)
        while True:
            signal.pause()

    return number


def told(what: str, frame: DataFrame) -> None:
    """Print what was read."""
    row = frame.agg(F.count("*"), F.count_distinct("n"), F.sum("n")).first()
    assert row is not None
    print(what, *row, flush=True)


@F.udf(returnType="string", useArrow=False)
def place(value: str) -> str:
    """The Python of a worker, and the files that it sees of the store."""
    return f"{os.path.basename(sys.prefix)} {os.listdir(far)}"


text = F.decode("value", "utf-8")
for topic in ("directory", "bucket"):
    frame = txlog.spark.read(spark, far, topic)
    told(f"read {topic}", frame.select(doomed(f"read-{topic}")(text).alias("n")))
    source = spark.read.format("txlog").options(path=far, topic=topic).load()
    told(f"source {topic}", source.select(doomed(f"source-{topic}")(text).alias("n")))
print(*sorted({row[0] for row in frame.select(place("value")).collect()}))
rows = frame.select("key", doomed("load")(text).cast("string").alias("value"))
for _ in range(2):
    answer = txlog.spark.bulk_load(rows, near, "loaded", txn_key="k", batch_id="1", shuffle=False)
    print("loaded", answer["messages"], answer["already"])
spark.stop()
