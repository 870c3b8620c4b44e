"""The driver of a bulk load, which dies in a call that changes a file: STORE NTH; 0: amid tasks."""

from __future__ import annotations

import os
import signal
import sys
from glob import glob

from pyspark.sql import functions as F

from tests.children import dying
from txlog.spark import bulk_load, session

store, nth = sys.argv[1], int(sys.argv[2])
settings = {"spark.driver.memory": "512m", "spark.testing.memory": "536870912"}
spark = session("local[2]", {**settings, "spark.log.level": "FATAL"})
driver = os.getpid()


def die_when_staged(number: int) -> str:
    """Write a number; at the last row of the last task, end the driver and this worker."""
    if number == 999 and nth == 0:
        while not glob(store + "/topics/**/_stage/*/*.parquet", recursive=True):
            pass
        os.kill(driver, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    return str(number)


rows = spark.range(1000, numPartitions=2).select(
    F.udf(die_when_staged, "string", useArrow=False)("id").alias("value")
)
dying.begin(nth, tuple(name for name in dying.CALLS if name != "open"))
answer = bulk_load(rows, store, "t", txn_key="k", batch_id="1", shuffle=False)
dying.end(answer["messages"])
