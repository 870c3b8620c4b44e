"""A client of Spark Connect: STORE CHECKPOINTS; prints its session's module, and a sum."""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

store, check = sys.argv[1:]
spark = SparkSession.builder.remote("local[2]").getOrCreate()
rows = spark.read.format("txlog").option("topic", "typed").load(store)
total = rows.where("record.late > 0").agg(F.sum("record.late").alias("n")).collect()[0].n
rows.select("value").write.format("txlog").mode("append").options(
    path=store, topic="copied", txnKey="c", batchId="1"
).save()
stream = spark.readStream.format("txlog").option("topic", "typed").load(store)
query = (
    stream.select("key", "value")
    .writeStream.format("txlog")
    .options(path=store, topic="streamed", txnAppId="s", checkpointLocation=check)
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
print(json.dumps([type(spark).__module__, total]))
