"""Owns what Spark computes for maintenance: sidecar rows in commit order, and delayed ids."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from txlog.engine.model.schema import MESSAGE, PROPERTY_MAP
from txlog.engine.storage.segment import FileRef
from txlog.spark.reading import local_frame

_SQL_TYPES: Final = {
    pa.int8(): "tinyint", pa.int32(): "int", pa.int64(): "bigint", pa.string(): "string",
    pa.binary(): "binary", PROPERTY_MAP: "map<string, string>",
}  # fmt: skip
_STRICT: Final = {
    "parquet.page.verify-checksum.enabled": "true", "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false", "recursiveFileLookup": "true",
}  # fmt: skip
_GLOB: Final = re.compile(r"([\\{}\[\]*?])")


def arranged(
    spark: SparkSession, root: str, sealed: Sequence[FileRef], other: pa.Table, places: pa.Table
) -> tuple[pa.Table, int]:
    """The rows of sealed and other files in the order of places; see upkeep.space.Arrange."""
    rows = local_frame(spark, other)
    if sealed:
        schema = ", ".join(
            f"`{field.name}` {_SQL_TYPES.get(field.type, 'timestamp')}" for field in MESSAGE
        )
        escaped = (_GLOB.sub(r"\\\1", f"{root}/{ref.path}") for ref in sealed)
        scan = spark.read.schema(schema).options(**_STRICT)
        rows = rows.unionByName(scan.parquet(*(f"file:{path}" for path in escaped)))
    rows = rows.where("kind = 0")
    data = rows.count()
    if not places.num_rows:
        return MESSAGE.empty_table(), data
    where = F.broadcast(local_frame(spark, places).withColumnRenamed("at", "base"))
    found = (
        rows.join(where, ["txn_most", "txn_least"])
        .where("txn_index BETWEEN first AND last")
        .orderBy(F.expr("base + txn_index - first"))
        .select(*(f"`{name}`" for name in MESSAGE.names))
        .toArrow()
    )
    columns = [
        found.column(field.name).cast(field.type, safe=not pa.types.is_timestamp(field.type))
        for field in MESSAGE
    ]
    return pa.Table.from_arrays(columns, schema=MESSAGE), data


def delayed_ids(frame: DataFrame) -> pa.Table:
    """Partition and id of every message with a delivery time, in order of position."""
    return (
        frame.where("deliver_at IS NOT NULL")
        .select(
            "partition",
            F.unix_millis("deliver_at").alias("deliver_at"),
            "ledger",
            "entry",
            F.coalesce("txn_index", F.lit(0)).alias("index"),
        )
        .orderBy("partition", "ledger", "entry", "index")
        .toArrow()
    )
