"""The driver of a sink, whose last task waits at its last row if there is a gate: STORE GATE."""

from __future__ import annotations

import sys

from pyspark.sql import functions as F

from txlog.spark import session

store, gate = sys.argv[1:]
settings = {"spark.driver.memory": "512m", "spark.testing.memory": "536870912"}
spark = session("local[2]", {**settings, "spark.log.level": "FATAL"})


def wait(number: int) -> str:
    """Write a number."""
    if number == 999 and gate:  # the last row of the last task: the other one has staged its file
        with open(gate, "w") as file:
            file.write("here")
        with open(gate + ".on") as file:
            file.read(2)
    return str(number)


rows = spark.range(1000, numPartitions=2).select(
    F.udf(wait, "string", useArrow=False)("id").alias("value"),
    F.lit(0).alias("partition"),
)
write = rows if gate else rows.coalesce(1)
options = {"topic": "orders", "txnKey": "k", "batchId": "1"}
write.write.format("txlog").mode("append").options(**options).save(store)
print("written", flush=True)
