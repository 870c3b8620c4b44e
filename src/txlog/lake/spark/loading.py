"""Owns `bulk_load`: a data frame of any shape becomes messages of a topic, once.

    driver   plans, and starts no task if the batch is stored already
    task     gets its rows as Arrow batches, and stages a file for each partition that has rows
    driver   commits one frame with the files of the attempts whose answers Spark took

A task answers with the files it staged. A second attempt stages its own files, and Spark takes the
answer of only one attempt. Files of other attempts are removed with the directory of the job.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark import RDD, TaskContext
from pyspark.serializers import NoOpSerializer
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DateType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from txlog.base.arguments import StrPath
from txlog.client.open import open_store
from txlog.client.sending.bulk import stage
from txlog.engine.door.segments import RECORD
from txlog.engine.door.staging import ROWS_AT_ONCE, Staged, StagePlan
from txlog.errors import InvalidArgument, InvalidMessage, LimitExceeded, TxlogError
from txlog.lake.spark import sink
from txlog.lake.spark.records import fields_of, with_record
from txlog.lake.spark.session import need_jvm

if TYPE_CHECKING:
    from txlog.base.rows.sending import BulkStored


# If the optimizer's estimate is larger, the size of the source is unknown.
_KNOWN_BYTES: Final = 1 << 60
# Bytes that Spark reads in a task of a scan of files by default.
_TASK_BYTES: Final = 128 << 20
_CASTS: Final = {
    "properties": "map<string,string>", "event_time": "timestamp", "deliver_at": "timestamp",
    "deliver_after": "bigint", "sequence_id": "bigint", "partition": "int",
}  # fmt: skip
_OF_TEXT: Final = (NumericType, BooleanType, DateType, TimestampType, TimestampNTZType)
_COLUMNS: Final = ("value", "key", *_CASTS)


def bulk_load(
    frame: DataFrame,
    store: StrPath,
    topic: str,
    *,
    txn_key: str,
    batch_id: str,
    order_by: Sequence[str | Column] = (),
    shuffle: bool | None = None,
    producer: str | None = None,
) -> BulkStored:
    """Store a data frame as messages, once for this key and batch; returns as Bulk.commit.

    frame:    value, or for a typed topic the struct record or columns named as its fields; if
              present, key, properties, event_time, deliver_at, deliver_after, sequence_id,
              partition; they are cast. A key or value that is a number, boolean, date or instant
              becomes the bytes of CAST(… AS STRING). Messages with a key go to the partition that a
              producer would choose, others to one chosen by the frame's own partition
    order_by: the order of the messages in each partition; without it there is no order
    shuffle:  bring the rows of a partition to one task before they are written, which makes one
              file per partition; False: each task writes its own files. None: shuffle if files
              would be small otherwise, or with order_by, which needs it
    producer: a name for the messages; then sequence_id is refused
    txn_key:  in a function of `foreachBatch`, a key per checkpoint: another checkpoint is refused
    raises:   InvalidArgument, InvalidMessage, TopicNotFound, NotAllowed; errors of the job are
              Spark's own. Warns about files that are small without need
    """
    need_jvm(frame, "bulk_load", 'frame.write.format("txlog") with txnKey and batchId')
    if order_by and shuffle is False:
        raise InvalidArgument("an order needs all rows of a partition in one task: shuffle")
    with open_store(store) as client:
        producer_bulk = client.bulk(topic, key=txn_key, batch=batch_id, producer=producer)
        bulk = client.bulk_of(producer_bulk.plan.named(txn_key, batch_id, _query(frame)))
        stored = bulk.stored
        if stored is not None:
            return stored
        plan = bulk.plan
    _check_columns(frame, plan)
    try:
        staged = _staged(_arranged(frame, plan.partitions, order_by, shuffle), plan)
        with open_store(store) as client:
            answer = client.bulk_of(plan).commit(staged)
    except BaseException:  # remove staged files after any failure
        # a later cleanup removes leftovers by age
        with suppress(TxlogError), open_store(store) as client:
            client.bulk_of(plan).abort()
        raise
    warning = sink.said_of_small(staged, "bring the rows to fewer tasks, or shuffle them")
    if warning is not None:
        warnings.warn(warning, RuntimeWarning, stacklevel=2)
    return answer


def _check_columns(frame: DataFrame, plan: StagePlan) -> None:
    names = frame.columns
    fields = fields_of(plan.typing, names)
    unknown = sorted({*names} - {*_COLUMNS, RECORD, *fields})
    if unknown or not (fields or {"value", RECORD} & {*names}):
        raise InvalidArgument(
            f"a message has no column {unknown[0]}" if unknown else "there is no column value",
            hint=f"select and rename: {', '.join(_COLUMNS)}",
        )
    if {"value", RECORD} <= {*names}:
        raise InvalidArgument("there are both value and record", hint="leave out either")


class _Task:
    """The work of one task on its rows, which arrive as encapsulated Arrow batches."""

    def __init__(self, plan: StagePlan, schema: pa.Schema) -> None:
        self._plan = plan
        self._schema = schema

    def __call__(self, items: Iterable[Any]) -> Iterator[list[Staged] | TxlogError]:
        context = TaskContext.get()
        assert context is not None
        try:
            yield stage(self._plan, self._tables(items), context.partitionId())
        except (InvalidArgument, InvalidMessage, LimitExceeded) as error:
            # A retry would fail as well, so it is an answer, not a failure that Spark retries.
            yield error

    def _tables(self, items: Iterable[bytes]) -> Iterator[pa.Table]:
        """The rows in tables of about ROWS_AT_ONCE / 2: each table is one routing step."""
        waiting: list[pa.RecordBatch] = []
        rows = 0
        for item in items:
            batch = pa.ipc.read_record_batch(pa.py_buffer(item), self._schema)
            batch = sink.conformed(with_record(batch, self._plan.typing))
            waiting.append(batch)
            rows += batch.num_rows
            if rows >= ROWS_AT_ONCE // 2:
                yield pa.Table.from_batches(waiting)
                waiting, rows = [], 0
        if waiting:
            yield pa.Table.from_batches(waiting)


def _staged(rows: DataFrame, plan: StagePlan) -> list[Staged]:
    """Let each task of a frame stage its rows.

    raises: InvalidArgument, InvalidMessage, LimitExceeded, as a producer does
    """
    is_large = rows.sparkSession.conf.get("spark.sql.execution.arrow.useLargeVarTypes") == "true"
    schema = to_arrow_schema(rows.schema, timezone="UTC", prefers_large_types=is_large)
    batches = rows._jdf.toArrowBatchRdd().toJavaRDD()
    task = _Task(plan, schema)
    answers = RDD(batches, rows.sparkSession.sparkContext, NoOpSerializer()).mapPartitions(task)
    staged: list[Staged] = []
    for answer in answers.collect():
        if isinstance(answer, TxlogError):
            raise answer
        staged += answer
    return staged


def _query(frame: DataFrame) -> str:
    """The id of the streaming query, in a function of `foreachBatch`; "" elsewhere."""
    return frame.sparkSession.sparkContext.getLocalProperty(sink.QUERY_ID) or ""


def _arranged(
    frame: DataFrame, count: int, order_by: Sequence[str | Column], shuffle: bool | None
) -> DataFrame:
    """The frame with the types of messages, shuffled into `count` partitions and sorted if due."""
    cast = {name: _cast(frame, name) for name in frame.columns}
    rows = frame.select(*(column.alias(name) for name, column in cast.items()))
    if not (order_by or (_is_small(frame, count) if shuffle is None else shuffle)):
        return rows
    if "partition" not in frame.columns:
        home: Column = F.pmod(F.spark_partition_id(), F.lit(count))
        if "key" in frame.columns:
            home = F.coalesce(F.pmod(F.crc32("key"), F.lit(count)), home)
        rows = rows.withColumn("partition", home.cast("int"))
    rows = rows.repartitionById(count, F.col("partition"))
    return rows.sortWithinPartitions(*order_by) if order_by else rows


def _is_small(frame: DataFrame, count: int) -> bool:
    """Whether tasks would write small files; True if the size of the rows is unknown."""
    execution = frame._jdf.queryExecution()
    size: int = execution.optimizedPlan().stats().sizeInBytes()
    if size > _KNOWN_BYTES:
        return True
    tasks: int = execution.sparkPlan().outputPartitioning().numPartitions()
    if tasks < 1:  # a scan of files has no number of tasks
        least = frame.sparkSession.sparkContext.defaultParallelism
        tasks = max(least, -(-size // _TASK_BYTES))
    files = tasks * count if {"key", "partition"} & {*frame.columns} else tasks
    return files > count and size < files * sink.SMALL_BYTES


def _cast(frame: DataFrame, name: str) -> Column:
    """A column with the type for the sink; a number or instant becomes the bytes of its text."""
    column = F.col(name)
    if name in _CASTS:
        return column.cast(_CASTS[name])
    kind = frame.schema[name].dataType
    if (name == RECORD and isinstance(kind, StructType)) or name not in _COLUMNS:
        return column  # a record, or a field of a record
    if isinstance(kind, BinaryType | StringType):
        return column.cast("binary")
    if not isinstance(kind, _OF_TEXT):
        raise sink.no_text(name, kind)
    return column.cast("string").cast("binary")
