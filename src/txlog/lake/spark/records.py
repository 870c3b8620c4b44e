"""Owns records of typed topics in Spark: their type, conversion between versions, and records built
from columns.

A record has the type of the newest schema. Spark scans it as a column of the files, so that it
reads only the fields that a query needs; records in parts and in the journal are decoded here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_schema
from pyspark.sql.types import DataType, StructType

from txlog.base.ids import TopicName
from txlog.base.schemas import classes as schemas
from txlog.base.schemas import resolution
from txlog.base.schemas.resolution import Cast, Change, Items, Record, Step, Symbols
from txlog.base.schemas.schema import Schema
from txlog.client.client import Client
from txlog.client.open import open_store
from txlog.engine.door.catalog import SchemaVersion
from txlog.engine.door.catalog import schema_of as newest_of
from txlog.engine.door.catalog import topic as find_topic
from txlog.engine.door.segments import RECORD
from txlog.engine.door.sending import COLUMNS
from txlog.engine.door.topics import ValueSchema, schema_in
from txlog.errors import InvalidArgument
from txlog.lake.spark.datasource import SCHEMA

_BEFORE: Final = ", visible_time timestamp"


def columns_of(options: Mapping[str, str]) -> str:
    """The columns of the messages for these options, `NAME TYPE, …`; a typed topic has `record`.

    raises: StoreNotFound, TopicNotFound; nothing for missing options
    """
    columns = SCHEMA
    path, topic = options.get("path"), options.get("topic") or options.get("subscribe")
    if path and topic and "," not in topic:
        with open_store(path, read_only=True) as client:
            kind = record_type(client, topic)
        if kind is not None:
            columns = SCHEMA.replace(_BEFORE, f", {RECORD} {kind.simpleString()}{_BEFORE}")
    is_committed = options.get("isolation", "committed") == "committed"
    return columns if is_committed else f"{columns}, txn_state string"


def record_type(client: Client, topic: str) -> StructType | None:
    """The type of the records of a topic; None: its values are bytes."""
    name = TopicName.parse(topic, allow_partition=True)
    newest = client.store.ask(lambda view: newest_of(find_topic(view, name)))
    return None if newest is None else spark_type(newest)


def spark_type(version: SchemaVersion) -> StructType:
    """The Spark type for records of a schema."""
    struct = of_arrow(schema_in(version).arrow)
    assert isinstance(struct, StructType)
    return struct


def of_arrow(kind: pa.DataType) -> DataType:
    """The Spark type for an Arrow type; every part is nullable. Times of day are microseconds since
    midnight: Spark's own type for them is disabled by default."""
    return from_arrow_type(_nullable(kind))


def _nullable(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _nullable(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _nullable(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(_nullable(kind.value_type))
    return pa.int64() if pa.types.is_time(kind) else kind


def schema_of(frame: DataFrame | StructType, type: str = "json") -> Schema:
    """A schema for a topic, with a field for each column of a data frame.

    `client.create_topic("flights", schema=schema_of(flights))`; `bulk_load`, the sink and INSERT
    then write these rows as records. `key`, times and other columns of messages are fields only
    within `record`: drop them first, if they are meant for the message.
    type:   avro or json: how values encode records
    raises: InvalidArgument for a column that no record can hold, such as an interval
    """
    kind = frame if isinstance(frame, StructType) else frame.schema
    try:
        columns = to_arrow_schema(kind, timezone="UTC")
    except PySparkTypeError as error:
        raise InvalidArgument(f"schema: {error}", hint="drop the column, or cast it") from error
    return schemas.schema_of(columns, type)


def is_scanned(kind: pa.DataType) -> bool:
    """Whether Spark's Parquet reader knows all types in it; it does not know times of day."""
    if pa.types.is_struct(kind):
        return all(is_scanned(field.type) for field in kind)
    if pa.types.is_map(kind):
        return is_scanned(kind.key_type) and is_scanned(kind.item_type)
    return is_scanned(kind.value_type) if pa.types.is_list(kind) else not pa.types.is_time(kind)


def as_type(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert records to another type: fields match by name, missing ones are null."""
    if array.type == kind:
        return array
    mask = array.is_null() if array.null_count else None
    if pa.types.is_list(kind) and pa.types.is_list(array.type):
        array = pa.concat_arrays([array])  # so that the offsets of a slice count from its start
        items = as_type(array.values, kind.value_type)
        return pa.ListArray.from_arrays(array.offsets, items, kind, mask=mask)
    if pa.types.is_map(kind) and pa.types.is_map(array.type):
        array = pa.concat_arrays([array])
        items = as_type(array.items, kind.item_type)
        return pa.MapArray.from_arrays(array.offsets, array.keys, items, kind, mask=mask)
    if pa.types.is_time(array.type) and pa.types.is_int64(kind):
        return array.cast(pa.time64("us")).cast(kind)
    if not (pa.types.is_struct(kind) and pa.types.is_struct(array.type)):
        return array.cast(kind)
    names = [field.name for field in array.type]
    children = [
        as_type(array.field(field.name), field.type)
        if field.name in names
        else pa.nulls(len(array), field.type)
        for field in kind
    ]
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)


# --- versions --------------------------------------------------------------------------------


def record_of(written: int, schemas: Sequence[SchemaVersion], version: int) -> Column:
    """The column `record` of a file, converted to a version; written: FileRef.record or 0."""
    kind = spark_type(schemas[version - 1])
    if not written:
        return F.lit(None).cast(kind)
    if written == version:
        return F.col(RECORD)
    steps = resolution.plan(schema_in(schemas[written - 1]), schema_in(schemas[version - 1]))
    if steps is None:
        return F.lit(None).cast(kind)
    return _record(steps, F.col(RECORD)).cast(kind)


def _record(steps: Sequence[Step], value: Column) -> Column:
    struct = F.struct(*(_field(step, value).alias(step.name) for step in steps))
    return F.when(value.isNotNull(), struct)


def _field(step: Step, value: Column) -> Column:
    if step.source is None:
        return _literal(step.default)
    extracted = value.getField(step.source)
    return extracted if step.change is None else _changed(step.change, extracted)


def _literal(value: pa.Scalar) -> Column:
    kind = value.type
    column = F.lit(None)
    if value.is_valid and pa.types.is_struct(kind):
        column = F.struct(*(_literal(value[item.name]).alias(item.name) for item in kind))
    elif value.is_valid and pa.types.is_map(kind):
        keys, items = ([_literal(item[part]) for item in value.values] for part in ("key", "value"))
        column = F.map_from_arrays(F.array(*keys), F.array(*items))
    elif value.is_valid and pa.types.is_list(kind):
        column = F.array(*map(_literal, value.values))
    elif value.is_valid:
        column = F.lit(value.as_py())
    return column.cast(of_arrow(kind))


def _changed(change: Change, value: Column) -> Column:
    if isinstance(change, Cast):
        return value.cast(of_arrow(change.type))
    if isinstance(change, Symbols):
        replaced = F.when(value.isin(*change.known), value).otherwise(F.lit(change.default))
        return F.when(value.isNotNull(), replaced)
    if isinstance(change, Record):
        return _record(change.steps, value)
    if isinstance(change, Items):
        return F.transform(value, lambda item: _changed(change.change, item))
    return F.transform_values(value, lambda _, item: _changed(change.change, item))


# --- writing ---------------------------------------------------------------------------------


def fields_of(typing: ValueSchema | None, names: Sequence[str]) -> list[str]:
    """The columns that are fields of a topic's records, for rows with neither record nor value.

    Columns of messages are not fields.
    """
    if typing is None or {"value", RECORD} & {*names}:
        return []
    fields = [field.name for field in typing.schema.arrow]
    return [name for name in names if name in fields and name not in (*COLUMNS, "partition")]


def with_record(rows: pa.RecordBatch, typing: ValueSchema | None) -> pa.RecordBatch:
    """Rows with the columns from `fields_of` combined into the column `record`."""
    fields = fields_of(typing, rows.schema.names)
    if not fields:
        return rows
    columns = [rows.column(name) for name in fields]
    record = pa.StructArray.from_arrays(columns, names=fields)
    return rows.drop_columns(fields).append_column(RECORD, record)
