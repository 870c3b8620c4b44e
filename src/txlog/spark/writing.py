"""Owns the files of a batch that Spark's own Parquet writer makes: no row passes through Python.

    frame    the columns of stored rows, each task's rows of one partition of the topic
    Spark    writes to the directory of the job; its committer moves there what its tasks committed
    driver   takes the names, and with them the partition and place of each file

What a sealed file has to be is said by options of the writer; what it is, the driver looks up when
it describes the file, so that no surprise of a session's properties becomes a message.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from txlog.engine.flow.staging import StagePlan, Written
from txlog.engine.model.schema import KIND_DATA, MESSAGE
from txlog.engine.storage.segment import GROUP_BYTES, GROUP_ROWS
from txlog.errors import NotAllowed
from txlog.settings import INSTANT_MS_MAX, KEY_BYTES_MAX
from txlog.spark.arranging import sql_type

_ROW_OF_TASK: Final = (1 << 33) - 1  # monotonically_increasing_id has the task above these bits
_FILE: Final = re.compile(r"part-(\d+)-[0-9a-f-]{36}[-.]c(\d+)\.zstd\.parquet")
_NO_STATISTICS: Final = ("value", "properties.key_value.key", "properties.key_value.value")
_WITH_DICTIONARY: Final = ("kind", "publish_time", "key")
OPTIONS: Final = {
    "compression": "zstd",
    "parquet.compression.codec.zstd.level": "1",
    "parquet.block.size": str(GROUP_BYTES),
    "parquet.block.row.count.limit": str(GROUP_ROWS),
    # Else a hundred messages of megabytes are a row group before anybody looks.
    "parquet.page.size.row.check.min": "1",
    "parquet.writer.max-padding": "0",
    "parquet.page.write-checksum.enabled": "true",
    "parquet.size.statistics.enabled": "false",
    "parquet.enable.dictionary": "false",
    **{f"parquet.enable.dictionary#{name}": "true" for name in _WITH_DICTIONARY},
    **{f"parquet.column.statistics.enabled#{name}": "false" for name in _NO_STATISTICS},
    # The first form: a task's files come to the directory when the job commits, all or none.
    "mapreduce.fileoutputcommitter.algorithm.version": "1",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",
}
# Properties that only a session has.
_SESSION: Final = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MILLIS",
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.sql.parquet.fieldId.write.enabled": "false",
    "spark.sql.sources.commitProtocolClass": (
        "org.apache.spark.sql.execution.datasources.SQLHadoopMapReduceCommitProtocol"
    ),
    "spark.sql.parquet.output.committer.class": (
        "org.apache.parquet.hadoop.ParquetOutputCommitter"
    ),
}


def write_files(rows: DataFrame, plan: StagePlan, file_rows: int) -> None:
    """Write rows to the directory of a plan; one task has the rows of one partition.

    rows:      the columns of stored_columns
    file_rows: of the largest file
    raises:    an error of the job as Spark's; then there may be anything in the directory
    """
    java = rows.sparkSession._jsparkSession
    gateway = rows.sparkSession.sparkContext._jvm
    assert gateway is not None
    # A copy of the session: what is set for this write must not change what others write meanwhile.
    own = java.cloneSession()
    for name, value in _SESSION.items():
        own.conf().set(name, value)
    dataset = gateway.org.apache.spark.sql.classic.Dataset.ofRows(
        own, rows._jdf.queryExecution().analyzed()
    )
    writer = dataset.write().mode("append")
    for name, value in {**OPTIONS, "maxRecordsPerFile": str(file_rows)}.items():
        writer = writer.option(name, value)
    writer.parquet(f"file:{plan.store}/{plan.directory}")


def written_files(plan: StagePlan) -> list[Written]:
    """The files that the job of a plan has committed; the number of a task is the partition.

    raises: NotAllowed: two files have one place, or something else lies there
    """
    found: dict[tuple[int, int], Written] = {}
    for entry in sorted(Path(plan.store, plan.directory).iterdir()):
        name = entry.name
        if name.startswith("."):
            continue
        match = _FILE.fullmatch(name)
        place = (int(match[1]), int(match[2])) if match else (plan.partitions, 0)
        if place in found or place[0] >= plan.partitions:
            raise NotAllowed(
                f"{name} is no file that Spark's Parquet writer makes here",
                hint="bulk_load needs Spark's own committer of files", path=str(entry),
            )  # fmt: skip
        found[place] = Written(name, place[0], *place)
    return [*found.values()]


def stored_columns(rows: DataFrame, plan: StagePlan, file_rows: int) -> DataFrame:
    """The columns of stored rows over those of messages, with what a producer refuses refused.

    rows: value and others as text_load has them, and partition, which is the number of the task
    """
    known = set(rows.columns)
    time_ms = F.lit(plan.time_ms).cast("bigint")
    row = F.monotonically_increasing_id().bitwiseAND(F.lit(_ROW_OF_TASK))
    is_home = F.col("partition") == F.spark_partition_id()
    strays = F.raise_error(F.lit("a task has rows of two partitions"))
    found = {
        "kind": F.lit(KIND_DATA).cast("tinyint"),
        "entry": F.when(is_home, F.pmod(row, F.lit(file_rows))).otherwise(strays),
        "publish_time": F.timestamp_millis(time_ms),
        "value": _checked_value(known, plan.message_bytes_max),
        "deliver_at": _deliver_at(known, plan),
    }
    for name in ("key", "properties", "event_time", "sequence_id"):
        if name in known:
            found[name] = F.col(name)
    return rows.select(
        *(
            found.get(field.name, F.lit(None).cast(sql_type(field.type))).alias(field.name)
            for field in MESSAGE
        )
    )


def _checked_value(known: set[str], bytes_max: int) -> Column:
    """The value of a message that is not too large."""
    zero = F.lit(0)
    key = F.coalesce(F.octet_length("key"), zero) if "key" in known else zero
    size = F.coalesce(F.octet_length("value"), zero) + key
    if "properties" in known:
        size = size + F.aggregate(
            F.coalesce(F.map_entries("properties"), F.array()), F.lit(0),
            lambda total, pair: total + F.octet_length(pair["key"])
            + F.coalesce(F.octet_length(pair["value"]), zero),
        )  # fmt: skip
    large = F.concat(
        F.lit("a message has "), size.cast("string"),
        F.lit(f" bytes, max_message_bytes is {bytes_max}: it must be sent, with chunking"),
    )  # fmt: skip
    checked = F.when(size > bytes_max, F.raise_error(large))
    if "key" in known:
        long = F.concat(
            F.lit("a key has "),
            key.cast("string"),
            F.lit(f" bytes, the largest is {KEY_BYTES_MAX}"),
        )
        checked = checked.when(key > KEY_BYTES_MAX, F.raise_error(long))
    return checked.otherwise(F.col("value"))


def _deliver_at(known: set[str], plan: StagePlan) -> Column:
    """When a message is delivered: at a time, or after one, which counts from that of the job."""
    if plan.fixed_delay_ms:
        return _later(F.lit(plan.fixed_delay_ms), plan.time_ms)
    at = F.col("deliver_at") if "deliver_at" in known else F.lit(None).cast("timestamp")
    if "deliver_after" not in known:
        return at
    after = F.col("deliver_after")
    both = F.lit("a message has both deliver_at and deliver_after")
    negative = F.concat(
        F.lit("deliver_after is "), after.cast("string"), F.lit(", it must not be negative")
    )
    return (
        F.when(after.isNull(), at)
        .when(after < 0, F.raise_error(negative))
        .when(at.isNotNull(), F.raise_error(both))
        .otherwise(_later(after, plan.time_ms))
    )


def _later(delay: Column, time_ms: int) -> Column:
    most = F.lit(INSTANT_MS_MAX - time_ms)
    return F.timestamp_millis((F.least(delay, most) + F.lit(time_ms)).cast("bigint"))
