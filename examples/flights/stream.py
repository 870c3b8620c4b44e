"""The flights by Structured Streaming: enrich, then windows by airline, each batch stored once.

    python examples/flights/stream.py STORE CHECKPOINTS
    spark-submit $(txlog spark submit-args) examples/flights/stream.py STORE CHECKPOINTS

The first query goes from `flights` to `spark-departures`, the second from there to `spark-delays`,
until each has caught up. You can kill the program at any moment and start it again. It produces the
messages of functions.py, except that Spark drops flights that are later than its watermark.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.csv

import txlog

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DATA = Path(__file__).resolve().parents[2] / "data"
FLIGHT = "carrier string, flight int, origin string, dest string, dep_delay int"
DEPARTURE = "carrier string, delay int, status string"
ROWS_A_BATCH = 1000
# No flight of the file is 14 hours out of order (`txlog job lateness`); a limit adds some.
DELAY = "15 hours"


def departures(flights: DataFrame, airlines: DataFrame) -> DataFrame:
    """Add the name of the airline and the status of the flight."""
    from pyspark.sql import functions as F

    read = flights.select("key", "event_time", F.from_json(F.decode("value", "utf-8"), FLIGHT))
    flight = read.toDF("key", "event_time", "f").select("key", "event_time", "f.*")
    status = F.when(F.col("dep_delay").isNull(), "cancelled")
    value = F.struct(
        "carrier",
        F.col("name").alias("airline"),
        "flight",
        F.concat_ws("-", "origin", "dest").alias("route"),
        F.col("dep_delay").alias("delay"),
        status.when(F.col("dep_delay") >= 15, "late").otherwise("on time").alias("status"),
    )
    joined = flight.join(F.broadcast(airlines), "carrier")
    return joined.select(
        "key", "event_time", F.to_json(value, {"ignoreNullFields": "false"}).alias("value")
    )


def delays(messages: DataFrame) -> DataFrame:
    """Sum up six hours, one message per airline, once the watermark has passed them."""
    from pyspark.sql import functions as F

    read = messages.select("event_time", F.from_json(F.decode("value", "utf-8"), DEPARTURE))
    departure = read.toDF("event_time", "d").select("event_time", "d.*")
    windows = departure.withWatermark("event_time", DELAY).groupBy(
        F.window("event_time", "6 hours"), "carrier"
    )
    totals = windows.agg(
        F.count("*").alias("flights"),
        F.count_if(F.col("status") == "cancelled").alias("cancelled"),
        F.count_if(F.col("status") == "late").alias("late"),
        F.coalesce(F.sum("delay"), F.lit(0)).alias("minutes"),
    )
    start = F.col("window.start")
    value = F.struct(
        F.unix_millis(start).alias("start"), "carrier", "flights", "cancelled", "late", "minutes"
    )
    return totals.select(
        F.encode("carrier", "utf-8").alias("key"),
        start.alias("event_time"),
        F.to_json(value).alias("value"),
    )


def messages_of(spark: SparkSession, store: str, topic: str) -> DataFrame:
    """Read a topic as a stream."""
    source = spark.readStream.format("txlog")
    return source.options(path=store, topic=topic, maxRowsPerTrigger=ROWS_A_BATCH).load()


def write(messages: DataFrame, store: str, topic: str, checkpoints: str) -> None:
    """Store the available rows, batch by batch; the query has the topic's name."""
    sink = messages.writeStream.format("txlog").options(
        path=store, topic=topic, txnAppId=topic, checkpointLocation=f"{checkpoints}/{topic}"
    )
    sink.trigger(availableNow=True).start().awaitTermination()


def main() -> int:
    """Run both steps, one after the other."""
    from txlog.spark import session

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("store")
    parser.add_argument("checkpoints")
    given = parser.parse_args()
    with txlog.open(given.store) as client:
        there = {row["topic"] for row in client.topics()}
        for topic in {"spark-departures", "spark-delays"} - there:
            client.create_topic(topic, partitions=2)
    conf = {"spark.log.level": "ERROR", "spark.sql.shuffle.partitions": 2}
    spark = session(conf=conf)
    airlines = spark.createDataFrame(pyarrow.csv.read_csv(DATA / "airlines.csv"))
    flights = messages_of(spark, given.store, "flights")
    write(departures(flights, airlines), given.store, "spark-departures", given.checkpoints)
    enriched = messages_of(spark, given.store, "spark-departures")
    write(delays(enriched), given.store, "spark-delays", given.checkpoints)
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
