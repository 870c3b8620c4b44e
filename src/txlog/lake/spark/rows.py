"""Owns the conversion of a source's rows to columns of messages, as a data frame."""

from __future__ import annotations

import re
from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, DataType, IntegralType, StringType

from txlog.errors import InvalidArgument
from txlog.lake.jobs.sources.loads import BASE64, MILLISECONDS, SECONDS, Files, encoded

_GLOB: Final = re.compile(r"([\\{}\[\]*?])")
_ESCAPED: Final = r"\\\1"
_OTHERS: Final = ("properties", "deliver_at", "sequence_id")


def message_frame(spark: SparkSession, source: Files) -> DataFrame:
    """The messages in files of Parquet or ndjson.

    raises: InvalidArgument for a missing column
    """
    chosen = source.columns
    if source.form == "ndjson":
        out = [F.col("line").cast("binary").alias("value")]
        for name, member in (("key", chosen.key), ("event_time", chosen.event_time)):
            if member is not None:
                text = F.get_json_object("line", f"$['{member}']")
                out.append(_shaped(name, text, StringType()).alias(name))
        return lines(spark, source).select(*out)
    frame = spark.read.option("mergeSchema", "true").parquet(*_paths(source))
    column_of = {"key": chosen.key, "value": chosen.value, "event_time": chosen.event_time}
    for column in (*column_of.values(), *chosen.values):
        if column is not None and column not in frame.columns:
            raise InvalidArgument(
                f"the source has no column {column}",
                hint=f"it has {', '.join(frame.columns)[:200]}",
            )
    whole = bool(chosen.values) or (chosen.value is None and "value" not in frame.columns)
    members = chosen.values or frame.columns
    row = F.to_json(F.struct(*map(_column, members)), {"ignoreNullFields": "false"})
    out = [row.cast("binary").alias("value")] if whole else []
    encodings = {name: encoding for name, _, encoding in encoded(source, frame.columns)}
    for name in ("value", "key", "event_time", *(() if whole else _OTHERS)):
        column = column_of.get(name) or (name if name in frame.columns else None)
        if column is not None:
            kind = frame.schema[column].dataType
            shaped = _shaped(name, _column(column), kind)
            if name in encodings and isinstance(kind, StringType):
                shaped = _decoded(name, _column(column), _column(encodings[name]))
            out.append(shaped.alias(name))
    return frame.select(*out)


def _decoded(name: str, text: Column, encoding: Column) -> Column:
    """The bytes that a text encodes, with the rules that `jobs.sources.rows` has for DuckDB."""

    def wrong(reason: str) -> Column:
        return F.raise_error(F.lit(reason)).cast("binary")

    return (
        F.when(text.isNull() & encoding.isNull(), F.lit(None))
        .when(text.isNull(), wrong(f"{name}_encoding without {name}"))
        .when(encoding.isNull(), wrong(f"{name} without {name}_encoding"))
        .when(encoding == "utf8", text.cast("binary"))
        .when(encoding != "base64", wrong(f"{name}_encoding is utf8, base64 or nothing"))
        .when(_is(BASE64, text), F.unbase64(text))
        .otherwise(wrong(f"{name} is not base64"))
    )


def lines(spark: SparkSession, source: Files) -> DataFrame:
    """The lines of an ndjson source, in a column `line`."""
    return spark.read.text(_paths(source)).withColumnRenamed("value", "line")


def _shaped(name: str, column: Column, kind: DataType) -> Column:
    """A column with its type in a message."""
    if name in ("event_time", "deliver_at"):
        if isinstance(kind, IntegralType):
            return F.timestamp_millis(column.cast("bigint"))
        if isinstance(kind, StringType):
            return (
                F.when(_is(SECONDS, column), F.timestamp_seconds(column.cast("bigint")))
                .when(_is(MILLISECONDS, column), F.timestamp_millis(column.cast("bigint")))
                .otherwise(column.cast("timestamp"))
            )
        return column.cast("timestamp")
    if name in ("key", "value"):
        return column if isinstance(kind, BinaryType) else column.cast("string").cast("binary")
    return column


def _is(pattern: str, text: Column) -> Column:
    return text.rlike(f"\\A(?:{pattern})\\z")


def _column(name: str) -> Column:
    """A column whose name may contain a dot."""
    return F.col("`" + name.replace("`", "``") + "`")


def _paths(source: Files) -> list[str]:
    return [f"file:{_GLOB.sub(_ESCAPED, path)}" for path in source.paths]
