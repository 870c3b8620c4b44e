"""Owns `bulk_load`: a data frame of any shape becomes messages of a topic, once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StringType

from txlog.client import open_store
from txlog.errors import InvalidArgument

_CASTS: Final = {
    "properties": "map<string,string>", "event_time": "timestamp", "deliver_at": "timestamp",
    "deliver_after": "bigint", "sequence_id": "bigint", "partition": "int",
}  # fmt: skip
_COLUMNS: Final = ("value", "key", *_CASTS)


def bulk_load(
    frame: DataFrame, store: str, topic: str, *, txn_key: str, batch_id: str,
    order_by: Sequence[str | Column] = (),
) -> dict[str, Any]:  # fmt: skip
    """Store a data frame as messages, once for this key and batch; the fields of Bulk.commit.

    frame:    value, and if they are there key, properties, event_time, deliver_at, deliver_after,
              sequence_id, partition; they are cast. Messages of a key go where a producer sends
              them, those without a key where the row's own partition of the frame says
    order_by: of the messages in each partition; without it they come in no order
    raises:   InvalidArgument, TopicNotFound, NotAllowed; an error of the job as Spark's
    """
    unknown = sorted(set(frame.columns) - set(_COLUMNS))
    if unknown or "value" not in frame.columns:
        raise InvalidArgument(
            f"a message has no column {unknown[0]}" if unknown else "there is no column value",
            hint=f"select and rename: {', '.join(_COLUMNS)}",
        )
    with open_store(store) as client:
        bulk = client.bulk(topic, key=txn_key, batch=batch_id)
        known = bulk.stored
        if known is not None:
            return known
        count = bulk.plan.partitions
    cast = {name: _cast(frame, name) for name in frame.columns}
    rows = frame.select(*(column.alias(name) for name, column in cast.items()))
    if "partition" not in frame.columns:
        home: Column = F.pmod(F.spark_partition_id(), F.lit(count))
        if "key" in frame.columns:
            home = F.coalesce(F.pmod(F.crc32("key"), F.lit(count)), home)
        rows = rows.withColumn("partition", home.cast("int"))
    rows = rows.repartitionById(count, F.col("partition"))
    if order_by:
        rows = rows.sortWithinPartitions(*order_by)
    options = {"topic": topic, "txnKey": txn_key, "batchId": batch_id}
    rows.write.format("txlog").mode("append").options(**options).save(store)
    with open_store(store) as client:
        found = client.bulk(topic, key=txn_key, batch=batch_id).commit([])
    return {**found, "already": False}


def _cast(frame: DataFrame, name: str) -> Column:
    """A column as the sink takes it; a number becomes bytes by its text."""
    column = F.col(name)
    if name in _CASTS:
        return column.cast(_CASTS[name])
    kind = frame.schema[name].dataType
    if isinstance(kind, BinaryType | StringType):
        return column.cast("binary")
    return column.cast("string").cast("binary")
