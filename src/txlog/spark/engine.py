"""Owns the engine of jobs that is a Spark session."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from txlog.client import Client
from txlog.errors import CommandFailed
from txlog.spark.reading import frame_of, local_frame, read
from txlog.spark.sessions import session
from txlog.stored import ROW_COLUMNS, Stored, paths_below
from txlog.views import Content, Source

T = TypeVar("T")
_Ask = Callable[[str], pa.Table]
_MESSAGES: Final = "txlog_messages"
_ROW: Final = (
    "kind tinyint, entry bigint, lsn bigint, txn_most bigint, txn_least bigint, txn_index int,"
    " `count` int, marker_ledger bigint, marker_entry bigint, producer string, sequence_id bigint,"
    " value binary"
)
_STRICT: Final = {
    "parquet.page.verify-checksum.enabled": "true",
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "recursiveFileLookup": "true",  # the directories above are no columns
}


class Spark:
    """Spark: the session of this process, or one that is started and ended with the engine.

    raises: MissingExtra without Java, InvalidArgument for what a running session cannot change
    """

    name = "spark"

    def __init__(self, master: str | None, conf: Mapping[str, str]) -> None:
        self._is_ours = SparkSession.getActiveSession() is None
        given = {"spark.log.level": "ERROR", **conf} if self._is_ours else conf
        self.session = session(master, given)

    def close(self) -> None:
        """End the session if it was started for this engine."""
        if self._is_ours:
            self.session.stop()

    def millis(self, column: str) -> str:
        """SQL for an instant in milliseconds."""
        return f"unix_millis({column})"

    def digest(self, column: str) -> str:
        """SQL for 48 bits of the md5 of bytes, as an integer."""
        return f"CAST(conv(substr(md5({column}), 1, 12), 16, 10) AS BIGINT)"

    def messages(self, client: Client, topic: str, sql: str) -> pa.Table:
        """Rows of a SELECT over `{messages}`."""
        read(self.session, client.path, topic).createOrReplaceTempView(_MESSAGES)
        try:
            return self._ask(sql.replace("{messages}", _MESSAGES))
        finally:
            self.session.catalog.dropTempView(_MESSAGES)

    def export(self, client: Client, content: Content, lsn: int, folder: Path) -> None:
        """Write the messages that became visible after an LSN as files of an export."""
        rows = frame_of(self.session, client.path, content)
        is_plain = F.col("txn_index").isNull()
        shaped = rows.where(F.col("lsn") > lsn).select(
            "partition",
            F.when(is_plain, F.col("ledger")).alias("ledger"),
            F.when(is_plain, F.col("entry")).alias("entry"),
            "txn_index",
            F.when(~is_plain, F.col("ledger")).alias("marker_ledger"),
            F.when(~is_plain, F.col("entry")).alias("marker_entry"),
            *("key", "value", "properties", "publish_time", "event_time", "deliver_at"),
            F.when(~is_plain, F.col("visible_time")).alias("visible_time"),
            *("producer", "sequence_id", "lsn"),
        )
        writer = shaped.write.mode("append").partitionBy("partition", "ledger")
        options = {
            "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
            "spark.sql.parquet.compression.codec": "zstd",
        }
        with self._set(options):
            self._run(lambda: writer.parquet(f"file:{folder}"))

    @contextmanager
    def _set(self, options: Mapping[str, str]) -> Iterator[None]:
        """Have these properties in the session, and then those from before."""
        before = {name: self.session.conf.get(name) for name in options}
        for name, value in options.items():
            self.session.conf.set(name, value)
        try:
            yield
        finally:
            for name, old in before.items():
                self.session.conf.set(name, str(old))

    @contextmanager
    def stored(self, client: Client, held: Stored) -> Iterator[_Ask]:
        """What runs a SELECT over the stored rows."""
        local = {name: getattr(held, name) for name in ("ledgers", "markers", "large", "acks")}
        rows = local_frame(self.session, held.rows)
        if held.files:
            rows = rows.unionByName(
                self._scan(client, held.files).select(
                    _role_of_file().alias("role"),
                    _partition_of_file().alias("partition"),
                    _ledger_of_file().alias("ledger"),
                    F.lit("").alias("file"),
                    *ROW_COLUMNS,
                )
            )
        frames = {name: local_frame(self.session, table) for name, table in local.items()}
        frames["stored"] = rows
        frames["large_chunks"] = (
            self._scan(client, held.large_files).select(
                _ledger_of_file().alias("ledger"), "kind", "entry", "value"
            )
            if held.large_files
            else frames["stored"].select("ledger", "kind", "entry", "value").where("false")
        )
        for name, frame in frames.items():
            frame.createOrReplaceTempView(name)
        try:
            yield self._ask
        finally:
            for name in frames:
                self.session.catalog.dropTempView(name)

    def _scan(self, client: Client, sources: Sequence[Source]) -> DataFrame:
        paths = [f"file:{_unglobbed(path)}" for path in paths_below(client.path, sources)]
        return self.session.read.schema(_ROW).options(**_STRICT).parquet(*paths)

    def _ask(self, sql: str) -> pa.Table:
        return self._run(lambda: self.session.sql(sql).toArrow())

    def _run(self, action: Callable[[], T]) -> T:
        """What Spark answers; raises CommandFailed."""
        try:
            return action()
        except (PySparkException, Py4JError) as error:
            text = " ".join(str(error).split())
            raise CommandFailed(f"Spark: {text[:300]}") from error


def _ledger_of_file() -> Column:
    """The ledger of a row by the name of its file, `ledger-<ledger>.<generation>.parquet`."""
    number = F.substring_index(F.col("_metadata.file_name"), ".", 1)
    return F.substring_index(number, "-", -1).cast("bigint")


def _partition_of_file() -> Column:
    return F.regexp_extract("_metadata.file_path", r"partition=(\d+)/(_txnlog/)?[^/]+$", 1).cast(
        "int"
    )


def _role_of_file() -> Column:
    is_sidecar = F.col("_metadata.file_path").contains("/_txnlog/")
    return F.when(is_sidecar, "s").otherwise("p")


def _unglobbed(path: str) -> str:
    """A path without the meaning of a pattern."""
    return re.sub(r"([\\{}\[\]*?])", r"\\\1", path)
