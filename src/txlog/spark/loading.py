"""Owns `bulk_load`: a data frame of any shape becomes messages of a topic, once."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, StringType

from txlog.client import open_store
from txlog.errors import InvalidArgument, TxlogError
from txlog.spark.writing import stored_columns, write_files, written_files

_CASTS: Final = {
    "properties": "map<string,string>", "event_time": "timestamp", "deliver_at": "timestamp",
    "deliver_after": "bigint", "sequence_id": "bigint", "partition": "int",
}  # fmt: skip
FILE_ROWS: Final = 1_000_000
_COLUMNS: Final = ("value", "key", *_CASTS)


def bulk_load(
    frame: DataFrame, store: str, topic: str, *, txn_key: str, batch_id: str,
    order_by: Sequence[str | Column] = (), file_rows: int = FILE_ROWS,
) -> dict[str, Any]:  # fmt: skip
    """Store a data frame as messages, once for this key and batch; the fields of Bulk.commit.

    Spark's own Parquet writer makes the files, in the store; this process looks at each before
    it commits. Of a batch that is stored nothing is computed.

    frame:     value, and if they are there key, properties, event_time, deliver_at, deliver_after,
               sequence_id, partition; they are cast. Messages of a key go where a producer sends
               them, those without a key where the row's own partition of the frame says
    order_by:  of the messages in each partition; without it they come in no order
    file_rows: of the largest file; a partition has as many files as it takes
    raises:    InvalidArgument, TopicNotFound, NotAllowed; an error of the job as Spark's
    """
    unknown = sorted(set(frame.columns) - set(_COLUMNS))
    if unknown or "value" not in frame.columns:
        raise InvalidArgument(
            f"a message has no column {unknown[0]}" if unknown else "there is no column value",
            hint=f"select and rename: {', '.join(_COLUMNS)}",
        )
    if file_rows < 1:
        raise InvalidArgument(f"file_rows is {file_rows}, it must be positive", code=203)
    with open_store(store) as client:
        bulk = client.bulk(topic, key=txn_key, batch=batch_id)
        known = bulk.stored
        if known is not None:
            return known
        bulk.prepare()
        plan = bulk.plan
    try:
        rows = _routed(frame, plan.partitions)
        if order_by:
            rows = rows.sortWithinPartitions(*order_by)
        write_files(stored_columns(rows, plan, file_rows), plan, file_rows)
        with open_store(store) as client:
            bulk = client.bulk_of(plan)
            return bulk.commit(bulk.describe(written_files(plan)))
    except BaseException:
        with suppress(TxlogError), open_store(store) as client:  # what stays goes by its age
            client.bulk_of(plan).abort()
        raise


def _routed(frame: DataFrame, count: int) -> DataFrame:
    """Messages with the types that they have, each in the task with the number of its partition."""
    cast = {name: _cast(frame, name) for name in frame.columns}
    rows = frame.select(*(column.alias(name) for name, column in cast.items()))
    if "partition" in frame.columns:
        wrong = F.concat(
            F.lit("partition "), F.coalesce(F.col("partition").cast("string"), F.lit("null")),
            F.lit(f" is not one of 0 to {count - 1}"),
        )  # fmt: skip
        known = F.col("partition").between(0, count - 1)
        home: Column = F.when(known, F.col("partition")).otherwise(F.raise_error(wrong))
    else:
        home = F.pmod(F.spark_partition_id(), F.lit(count))
        if "key" in frame.columns:
            home = F.coalesce(F.pmod(F.crc32("key"), F.lit(count)), home)
    return rows.withColumn("partition", home.cast("int")).repartitionById(count, F.col("partition"))


def _cast(frame: DataFrame, name: str) -> Column:
    """A column as the sink takes it; a number becomes bytes by its text."""
    column = F.col(name)
    if name in _CASTS:
        return column.cast(_CASTS[name])
    kind = frame.schema[name].dataType
    if isinstance(kind, BinaryType | StringType):
        return column.cast("binary")
    return column.cast("string").cast("binary")
