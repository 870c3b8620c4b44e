"""Owns reading batches with the data source `txlog`: the driver plans tasks, workers read rows.

A task is a list of scans (relation/scans), so a worker needs only the files of the store. Rows that
are only in the journal are part of the task.

A frame of remote files is a data source of its own, as Spark itself would need hadoop-aws and its
own configuration for S3. A worker fetches row groups with the credentials in its environment, and
verifies every checksum. The scans are an option, so no worker needs the store.
"""

from __future__ import annotations

import base64
import dataclasses
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
from pyspark.serializers import CPickleSerializer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from txlog.base.suggest import command_line, suggestion
from txlog.client.open import open_store
from txlog.engine.door.disk import PosixDisk, is_far
from txlog.engine.door.relation import (
    UNCOMMITTED,
    Ends,
    Relation,
    Scan,
    grouped,
    read_scan,
    scans_of,
)
from txlog.engine.door.segments import RECORD
from txlog.errors import InvalidArgument
from txlog.lake.spark.datasource import SCHEMA, first_line, plain
from txlog.lake.spark.options import BatchOptions, batch_options
from txlog.lake.spark.records import as_type

BATCH_ROWS: Final = 25_000  # 10,000 and 100,000 are slower
WATERMARK: Final = "watermark"  # an optional column of streams
_COLUMNS: Final = f"{SCHEMA}, txn_state string, {WATERMARK} timestamp"
_TYPES: Final = dict(column.split(" ", 1) for column in _COLUMNS.split(", "))
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
# Columns whose lowest and highest values are known for ledgers, files or row groups.
PRUNED: Final = frozenset(
    ["partition", "ledger", "lsn", "entry", "key", "publish_time", "event_time", "deliver_at",
     "visible_time", "producer", "sequence_id"]
)  # fmt: skip


class Share(InputPartition):
    """What one task reads: scans of a store; wanted: the bounds of values, by column.

    watermark_ms: the watermark of a stream's batch, the same in all its rows
    """

    def __init__(
        self, store: str, scans: list[Scan], bounds: Ends, watermark_ms: int | None = None
    ) -> None:
        self.store = store
        self.scans = scans
        self.wanted = bounds
        self.watermark_ms = watermark_ms


def reader(options: Mapping[str, str], schema: StructType) -> DataSourceReader:
    """The reader of a batch. Raises InvalidArgument."""
    parsed = batch_options(options)
    return PruningReader(parsed, schema) if parsed.prunes else BatchReader(parsed, schema)


def shares_of(
    store: str, scans: Sequence[Scan], bounds: Ends, watermark_ms: int | None = None
) -> list[Share]:
    """One share per task."""
    return [Share(store, group, bounds, watermark_ms) for group in grouped(scans)]


def read_share(share: Share | None, schema: StructType) -> Iterator[pa.RecordBatch]:
    """The messages of a share, in the form for Spark; for no share Spark passes None."""
    if share is not None:
        with first_line():
            yield from _read_share(share, schema)


def _read_share(share: Share, schema: StructType) -> Iterator[pa.RecordBatch]:
    target_schema = to_arrow_schema(schema, timezone="UTC")
    names = [name for name in schema.fieldNames() if name != WATERMARK]
    needs_store = any(item.ref is not None and not is_far(item.ref.path) for item in share.scans)
    disk = PosixDisk(share.store, read_only=True) if needs_store else None
    try:
        for scan in share.scans:
            for table in read_scan(disk, scan, names or ["partition"], share.wanted):
                watermark = pa.scalar(share.watermark_ms, pa.timestamp("ms", "UTC"))
                # Spark checks only the first batch, so each must have exactly these types.
                columns = [
                    pa.repeat(watermark, len(table)).cast(field.type)
                    if field.name == WATERMARK
                    else _cast(table.column(field.name), field.type)
                    for field in target_schema
                ]
                whole = pa.Table.from_arrays(columns, schema=target_schema).combine_chunks()
                yield from whole.to_batches(max_chunksize=BATCH_ROWS)
    finally:
        if disk is not None:
            disk.close()


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if not pa.types.is_struct(kind):
        return column.cast(kind)
    return pa.chunked_array([as_type(chunk, kind) for chunk in column.chunks], kind)


def check_schema(schema: StructType, more: Sequence[str] = ()) -> StructType:
    """Return a schema that has only columns of messages or `more`. Raises InvalidArgument."""
    names = [*UNCOMMITTED.names, RECORD, *more]
    for field in schema.fields:
        if field.name not in names:
            raise InvalidArgument(
                f"a message has no column {field.name}",
                hint=suggestion(field.name, names, ", ".join(names)),
            )
        type_name = field.dataType.simpleString()
        if field.name == RECORD and isinstance(field.dataType, StructType):
            continue
        if type_name != _TYPES[field.name]:
            raise InvalidArgument(
                f"the column {field.name} is {_TYPES[field.name]}, not {type_name}"
            )
    return schema


def check_typed(schema: StructType, relation: Relation) -> None:
    """Raise InvalidArgument for records of a topic without a schema."""
    if RECORD in schema.fieldNames() and not relation.record:
        raise InvalidArgument(
            f"topic {relation.topic} has no schema, so its messages have no column {RECORD}",
            hint=f"to give it one: {command_line('schema upload', relation.topic, 'FILE')}",
        )


@plain
class BatchReader(DataSourceReader):
    """Reads the messages that a topic has; only options restrict what it reads."""

    def __init__(self, options: BatchOptions, schema: StructType) -> None:
        self._options = options
        self._schema = check_schema(schema)
        self._wanted: dict[str, tuple[object, object]] = {}

    def partitions(self) -> list[InputPartition]:
        """The share of each task, as of now; called on the driver.

        raises: StoreNotFound, TopicNotFound, PartitionUnavailable, Corruption, InvalidArgument
        """
        options = self._options
        with open_store(options.path, read_only=True) as client:
            relation = client._relation(
                options.topic,
                options.wanted,
                skip_unavailable=options.skip_unavailable,
                isolation=options.isolation,
            )
            if not options.include_open:
                relation = dataclasses.replace(relation, open=[])
            if not options.include_tail:
                relation = dataclasses.replace(relation, tail=relation.tail.slice(0, 0))
            check_typed(self._schema, relation)
            scans = scans_of(relation, self._wanted)
            return list(shares_of(client.path, scans, self._wanted))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of a share; called in a worker."""
        return read_share(partition if isinstance(partition, Share) else None, self._schema)


class PruningReader(BatchReader):
    """Also skips files by filters. Spark applies the filters again: a loose bound costs no rows.

    A separate class, since a class with pushFilters fails if Spark does not push any.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Record the bounds that filters set for columns in PRUNED; returns all filters."""
        for filter_ in filters:
            ends = _ends(filter_)
            if ends is None:
                continue
            name, low, high = ends
            previous = self._wanted.get(name, (None, None))
            self._wanted[name] = (_tighter(max, previous[0], low), _tighter(min, previous[1], high))
        return filters


def _ends(filter_: Filter) -> tuple[str, object, object] | None:
    """(column, lowest, highest value) that a filter lets pass; None: it bounds no column."""
    attribute: tuple[str, ...] = getattr(filter_, "attribute", ())
    if len(attribute) != 1 or attribute[0] not in PRUNED:
        return None
    name = attribute[0]
    if isinstance(filter_, In):
        values = [_plain(value) for value in filter_.value]
        if not values or any(value is None for value in values):
            return None
        return name, min(values), max(values)  # type: ignore[type-var]
    value = _plain(getattr(filter_, "value", None))
    if value is None:
        return None
    if isinstance(filter_, EqualTo | EqualNullSafe):
        return name, value, value
    if isinstance(filter_, GreaterThan | GreaterThanOrEqual):
        return name, value, None
    if isinstance(filter_, LessThan | LessThanOrEqual):
        return name, None, value
    return None


def _plain(value: object) -> object:
    """A value in the form of a file's statistics, instants in ms; None: it has no such form."""
    if isinstance(value, datetime):
        return None if value.tzinfo is None else (value - _EPOCH) // _MILLISECOND
    if isinstance(value, str):
        return value.encode()
    return value if isinstance(value, int | bytes) else None


def _tighter(choose: Callable[..., Any], current: object, new: object) -> object:
    """The tighter of two bounds; None is no bound."""
    if current is None or new is None:
        return new if current is None else current
    return choose(current, new)


# --- remote files ---------------------------------------------------------------------------------


def remote_frame(
    spark: SparkSession, scans: Sequence[Scan], record: StructType | None = None
) -> DataFrame:
    """The messages of scans, with the columns of `messages`, and `record` if a type is given."""
    spark.dataSource.register(ScansSource)
    packed = zlib.compress(CPickleSerializer().dumps(list(scans)))  # type: ignore[no-untyped-call]
    text = base64.b64encode(packed).decode()
    reader = spark.read.format(ScansSource.name()).option("scans", text)
    if record is not None:
        reader = reader.schema(f"{SCHEMA}, {RECORD} {record.simpleString()}")
    return reader.load()


class ScansSource(DataSource):
    """The messages of scans that were planned on the driver."""

    @classmethod
    def name(cls) -> str:
        """The name for `format(…)`."""
        return "txlog_scans"

    def schema(self) -> str:
        """The columns of `messages`."""
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """A reader of the scans."""
        return ScansReader(self.options["scans"], schema)


class ScansReader(DataSourceReader):
    """Reads scans in tasks of about 64 MB."""

    def __init__(self, scans: str, schema: StructType) -> None:
        self._scans = scans
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """The scans of each task; called on the driver."""
        packed = base64.b64decode(self._scans)
        serializer = CPickleSerializer()
        scans: list[Scan] = serializer.loads(zlib.decompress(packed))  # type: ignore[no-untyped-call]
        return shares_of("", scans, {})

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of a task; called in a worker."""
        return read_share(partition if isinstance(partition, Share) else None, self._schema)
