"""Owns the sinks of the data source `txlog`: the rows of a job or stream are stored once.

    driver   plans; if the batch is stored already, the tasks write nothing
    task     stages a file for each partition in the store's directory; a retry stages its own
    driver   commits one frame with the files of the attempts that Spark counts, or none

txnKey and batchId name a job's batch. An INSERT into a table needs no name: it gets one, which the
sink deletes once the rows are stored. txnAppId, or else Spark's id of the query, and Spark's number
of the micro-batch name a stream's batch. The checkpoint has that id, and the first batch under a
txnAppId records it. Batches of another checkpoint have the same numbers, so the sink refuses them.
Spark also calls `abort` when `commit` raised after the frame. So `abort` looks for the batch first,
and removes nothing stored. Both run in a process that Spark starts for them; a warning is a line in
its log, which goes to the standard error of the driver.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import (
    AtomicType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    IntegralType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from txlog.base.ids import TopicName
from txlog.base.message_columns import MESSAGES
from txlog.base.suggest import suggestion
from txlog.client.open import open_store
from txlog.client.sending.bulk import Bulk, stage
from txlog.engine.door.segments import RECORD
from txlog.engine.door.sending import COLUMNS
from txlog.engine.door.staging import Staged, StagePlan, check_token
from txlog.errors import InvalidArgument, TxlogError
from txlog.lake.spark.datasource import kept_by, plain
from txlog.lake.spark.options import NO_OPTIONS, SINK, STREAM_SINK, check_known
from txlog.lake.spark.records import fields_of, with_record

# Types whose text is the same on every machine, unlike the text of a float or an instant.
_BYTES: Final = (BinaryType, StringType, IntegralType, BooleanType, DateType, DecimalType)
# Types that Spark may pass for a column; columns match by name, and all but value may be missing.
_TYPES: Final[dict[str, tuple[type[DataType], ...]]] = {
    "value": _BYTES, "key": _BYTES, "properties": (MapType,), "event_time": (TimestampType,),
    "deliver_at": (TimestampType,), "deliver_after": (IntegralType,),
    "sequence_id": (IntegralType,), "partition": (IntegralType,),
}  # fmt: skip
# The key of INSERT statements without a batch name, before the number of the topic.
_INSERT: Final = "spark insert"
QUERY_ID: Final = "sql.streaming.queryId"
TAG_CHARS: Final = 16
_LOG: Final = logging.getLogger(__name__)
SMALL_BYTES: Final = 4 << 20
"""Opening a file below this size costs a reader more than reading it."""


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """The files that a task staged; plan, query: of a stream, whose commit has another plan."""

    staged: list[Staged]
    plan: StagePlan | None = None
    query: str = ""


@plain
class BatchSink(DataSourceArrowWriter):
    """A batch; made on the driver, and sent to the tasks."""

    def __init__(
        self,
        plan: StagePlan,
        of_store: Sequence[str] = (),
        *,
        is_stored: bool = False,
        is_named: bool = True,
    ) -> None:
        self._plan = plan
        self._of_store = of_store
        self._is_stored = is_stored
        self._is_named = is_named

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Stage the rows of one task."""
        if self._is_stored:
            return Written([])
        typing, of_store = self._plan.typing, self._of_store
        rows = (conformed(with_record(_inserted(batch, of_store), typing)) for batch in iterator)
        return Written(stage(self._plan, rows, _task()))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Store the files that the tasks staged, in one frame."""
        staged = _staged(messages)
        with open_store(self._plan.store) as client:
            client.bulk_of(self._plan).commit(staged)
            if not self._is_named:
                with suppress(TxlogError):  # an unnamed batch cannot be repeated, so forget it
                    client.admin.delete_transaction_key(self._plan.key)
        _warn(self._plan, staged, "use txlog.spark.bulk_load")

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Remove staged files, also of failed attempts; stored files stay."""
        with open_store(self._plan.store) as client:
            client.bulk_of(self._plan).abort()


@plain
class StreamSink(DataSourceStreamArrowWriter):
    """A micro-batch; made once for its tasks, and again in another process for its end."""

    def __init__(self, options: Mapping[str, str], plan: StagePlan) -> None:
        self._app = options.get("txnAppId")
        self._plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Stage the rows of one task."""
        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty(QUERY_ID)
        if self._app is None and not query:
            raise InvalidArgument("the query has no id", hint="set the option txnAppId")
        typing = self._plan.typing
        rows = (conformed(with_record(batch, typing)) for batch in iterator)
        staged = stage(self._plan, rows, _task())
        return Written(staged, self._plan, query or "")

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Store the files that the tasks staged, in one frame."""
        messages_written = [message for message in messages if isinstance(message, Written)]
        if not messages_written:
            return
        staged = _staged(messages)
        with open_store(self._plan.store) as client:
            bulk = self._bulk(client.bulk_of, messages_written[0], batchId)
            answer = bulk.commit(staged, rows_if_small=True)
        # each commit is a process that knows no earlier warnings: warn at batches 0, 1, 2, 4, …
        if answer.get("files") and not batchId & (batchId - 1):
            _warn(self._plan, staged, "make the batches larger")

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Remove staged files; without an answer of a task, all files with the stream's tag."""
        messages_written = [message for message in messages if isinstance(message, Written)]
        with open_store(self._plan.store) as client:
            if messages_written:
                self._bulk(client.bulk_of, messages_written[0], batchId).abort()
            elif self._plan.tag:
                client.bulk_of(self._plan.named(self._app or self._plan.tag, batchId)).abort()

    def _bulk(self, bulk_of: Callable[[StagePlan], Bulk], written: Written, batch: int) -> Bulk:
        assert written.plan is not None
        whose = written.query if self._app else ""
        return bulk_of(written.plan.named(self._app or written.query, batch, whose))


def batch_sink(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchSink:
    """The sink of a job. Raises InvalidArgument and the errors of Client.bulk."""
    _check_options(options, (*SINK, "columns"), "a batch", overwrite)
    path, topic = _need(options, "path"), _need(options, "topic")
    of_store = _of_store(schema)
    with open_store(path) as client:
        plan = client.plan_stage(topic)
        check_columns(schema, of_store, fields_of(plan.typing, schema.fieldNames()))
        if kept_by(schema) and "txnKey" not in options and "batchId" not in options:
            job = plan.directory.rpartition("/")[2]
            return BatchSink(plan.named(f"{_INSERT} {plan.number}", job), of_store, is_named=False)
        key, batch = _need(options, "txnKey"), _need(options, "batchId")
        bulk = client.bulk(topic, key=key, batch=batch)
        return BatchSink(bulk.plan, of_store, is_stored=bulk.stored is not None)


def stream_sink(options: Mapping[str, str], schema: StructType, overwrite: bool) -> StreamSink:
    """The sink of a micro-batch. Raises InvalidArgument and the errors of Client.plan_stage."""
    _check_options(options, STREAM_SINK, "a stream", overwrite)
    if "path" not in options:
        raise InvalidArgument(
            "the option path is missing",
            hint="toTable passes none of the table's options: set path and topic in writeStream",
        )
    app, where = options.get("txnAppId"), options.get("checkpointLocation")
    if app is not None:
        check_token(app, 0)
    tag = ""
    if app or where:  # otherwise this stream has no identity
        digest = hashlib.sha256(f"{app or ''}\0{where or ''}".encode())
        tag = digest.hexdigest()[:TAG_CHARS]
    with open_store(_need(options, "path")) as client:
        plan = client.plan_stage(_need(options, "topic"), tag)
        check_columns(schema, (), fields_of(plan.typing, schema.fieldNames()))
        return StreamSink(options, plan)


def _of_store(schema: StructType) -> list[str]:
    """The columns of an INSERT that only the store sets: rows must have null in them."""
    names = schema.fieldNames()
    is_insert = bool(kept_by(schema)) or names == [*MESSAGES]
    return [name for name in names if is_insert and name in MESSAGES and name not in _TYPES]


def check_columns(
    schema: StructType, of_store: Sequence[str] = (), fields: Sequence[str] = ()
) -> None:
    """Raise InvalidArgument for columns that messages do not have; fields: fields of records."""
    for field in schema.fields:
        if field.name in (*of_store, *fields) or (
            field.name == RECORD and isinstance(field.dataType, StructType)
        ):
            continue
        type_of_column = _TYPES.get(field.name)
        if type_of_column is None:
            raise InvalidArgument(
                f"a message has no column {field.name}"
                if field.name not in MESSAGES
                else f"the column {field.name} is set by the store",
                hint=suggestion(field.name, _TYPES, f"the columns are {', '.join(_TYPES)}"),
            )
        if field.name in ("key", "value") and not isinstance(field.dataType, AtomicType):
            raise no_text(field.name, field.dataType)
        if not isinstance(field.dataType, type_of_column):
            raise InvalidArgument(
                f"column {field.name} is {field.dataType.simpleString()}",
                hint="cast it, or use txlog.spark.bulk_load",
            )
    payload_columns = {"value", RECORD} & {*schema.fieldNames()}
    if len(payload_columns) == 2 and not of_store:
        raise InvalidArgument("there are both value and record", hint="leave out either")
    if not payload_columns and not fields:
        raise InvalidArgument("there is no column named value", hint="value is binary or text")


def no_text(name: str, kind: DataType) -> InvalidArgument:
    """The error for a key or value of a type without a portable encoding."""
    return InvalidArgument(
        f"column {name} is {kind.simpleString()[:100]}, it must be binary or text",
        hint=f"to_json({name}) AS {name}",
    )


def _check_options(
    options: Mapping[str, str], known_names: Sequence[str], subject: str, overwrite: bool
) -> None:
    check_known(options, known_names, subject)
    if overwrite:
        hint = "mode append" if subject == "a batch" else "outputMode append"
        raise InvalidArgument("a topic cannot be overwritten", hint=hint)


def _need(options: Mapping[str, str], name: str) -> str:
    value = options.get(name)
    if not value:
        hint = NO_OPTIONS
        if name in ("txnKey", "batchId"):
            hint = "txnKey and batchId name the batch: a repeat is stored only once"
        raise InvalidArgument(f"the option {name} is missing", hint=hint)
    return value


def _inserted(rows: pa.RecordBatch, of_store: Sequence[str]) -> pa.RecordBatch:
    """Rows of an INSERT without the columns of the store, which must be null, and unset ones."""
    for name in of_store:
        if rows.column(name).null_count < rows.num_rows:
            raise InvalidArgument(
                f"the column {name} is set by the store",
                hint="name the columns: INSERT INTO TABLE (key, value) SELECT key, value FROM …",
            )
    unset = [*of_store]
    if of_store and {"value", RECORD} <= {*rows.schema.names}:
        has = {name: rows.column(name).null_count < rows.num_rows for name in ("value", RECORD)}
        if all(has.values()):
            raise InvalidArgument("there are both value and record", hint="leave out either")
        unset.append("value" if has[RECORD] else RECORD)
    if "partition" in (rows.schema.names if unset else ()):
        unset += ["partition"] * (rows.column("partition").null_count == rows.num_rows)
    return rows.drop_columns(unset) if unset else rows


def conformed(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows of Spark with the types of messages; instants are cut to milliseconds."""
    pairs = zip(rows.schema.names, rows.columns, strict=True)
    arrays = [_cast(column, COLUMNS.get(name, column.type)) for name, column in pairs]
    return pa.RecordBatch.from_arrays(arrays, names=rows.schema.names)


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type == kind:
        return column
    of = column.type
    if kind == pa.binary() and not (pa.types.is_binary(of) or pa.types.is_large_binary(of)):
        column = column.cast(pa.string())
    return column.cast(kind, safe=not pa.types.is_timestamp(of))


def _task() -> int:
    """The number of the task, shared by all its attempts."""
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


def _staged(messages: Sequence[WriterCommitMessage | None]) -> list[Staged]:
    return [item for message in messages if isinstance(message, Written) for item in message.staged]


def _warn(plan: StagePlan, staged: Sequence[Staged], remedy: str) -> None:
    warning = said_of_small(staged, f"coalesce(n) the rows before writing them, or {remedy}")
    if warning is not None:
        _LOG.warning("txlog: topic %s: %s", TopicName.parse(plan.topic).short, warning)


def said_of_small(staged: Sequence[Staged], remedy: str) -> str | None:
    """The text of a warning if a partition has several small files, else None."""
    small = [item for item in staged if item.file.bytes < SMALL_BYTES]
    partitions = {item.partition for item in small}
    if len(small) <= len(partitions):
        return None
    return (
        f"{len(small)} of {len(staged)} files of this batch are below {SMALL_BYTES >> 20} MiB,"
        f" for {len(partitions)} partition{'s' * (len(partitions) > 1)}: {remedy}"
    )
