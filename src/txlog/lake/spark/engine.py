"""Owns the engine that runs jobs on a Spark session, and its computations for maintenance."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from txlog.base.ids import TopicName
from txlog.base.message_columns import STORED, spark_schema
from txlog.base.startup import compute as pc
from txlog.client.client import Client
from txlog.engine.door.catalog import number_of
from txlog.engine.door.catalog import topic as find_topic
from txlog.engine.door.delayed import INDEX_MAX, Search, looked_up
from txlog.engine.door.facts import IDS, MESSAGE, Id
from txlog.engine.door.relation import (
    ROW_COLUMNS,
    ROWS,
    FileSource,
    RelationContent,
    StoredRows,
    content,
    part_rows,
    paths_below,
)
from txlog.engine.door.segments import FileRef
from txlog.engine.door.space import Arrange
from txlog.engine.door.store import View
from txlog.errors import CommandFailed
from txlog.lake.jobs.sources.loads import KEPT, PROPERTY, Files, Transform
from txlog.lake.jobs.sources.refused import no_objects
from txlog.lake.spark.loading import bulk_load
from txlog.lake.spark.reading import frame_of, local_frame, read
from txlog.lake.spark.rows import lines, message_frame
from txlog.lake.spark.session import session

if TYPE_CHECKING:
    from txlog.base.rows.sending import BulkStored


T = TypeVar("T")
_Ask = Callable[[str], pa.Table]
_MESSAGES: Final = "txlog_messages"
_ROW: Final = (
    "kind tinyint, entry bigint, lsn bigint, txn_most bigint, txn_least bigint, txn_index int,"
    " `count` int, marker_ledger bigint, marker_entry bigint, producer string, sequence_id bigint,"
    " value binary"
)
_PROPERTIES: Final = "map<string,string>"
_STRICT: Final = {
    "parquet.page.verify-checksum.enabled": "true",
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
    "recursiveFileLookup": "true",  # names of directories must not become columns
}


class Spark:
    """Spark: the session of this process, or one that is started and ended with the engine.

    raises: MissingExtra without Java, InvalidArgument for properties that a running session cannot
            change
    """

    name = "spark"

    def __init__(self, master: str | None, conf: Mapping[str, str]) -> None:
        self._is_ours = SparkSession.getActiveSession() is None
        properties = {"spark.log.level": "ERROR", **conf} if self._is_ours else conf
        self.session = session(master, properties)

    def close(self) -> None:
        """End the session if this engine started it."""
        if self._is_ours:
            self.session.stop()

    def millis(self, column: str) -> str:
        """SQL for an instant in milliseconds."""
        return f"unix_millis({column})"

    def digest(self, column: str) -> str:
        """SQL for 48 bits of the MD5 of bytes, as an integer."""
        return f"CAST(conv(substr(md5({column}), 1, 12), 16, 10) AS BIGINT)"

    def distinct(self, column: str) -> str:
        """SQL for the number of distinct values of an integer column in a group."""
        return f"count(DISTINCT {column})"

    def messages(self, client: Client, topic: str, sql: str) -> pa.Table:
        """Rows of a SELECT over `{messages}`."""
        read(self.session, client.path, topic).createOrReplaceTempView(_MESSAGES)
        try:
            return self._ask(sql.replace("{messages}", _MESSAGES))
        finally:
            self.session.catalog.dropTempView(_MESSAGES)

    def count(self, source: Files) -> int:
        """The number of messages in files; it reads each record."""
        frame = message_frame(self.session, source)
        self._check_lines(source)
        # A plain count would skip the columns, and miss unreadable values in them.
        return self._run(lambda: frame.where("xxhash64(struct(*)) IS NOT NULL").count())

    def load(self, client: Client, source: Files, topic: str, key: str, batch: str) -> BulkStored:
        """Store the rows of files as one batch, by event time in each partition."""
        frame = message_frame(self.session, source)
        self._check_lines(source)
        return self._stored_frame(client, frame, topic, key, batch)

    def replay(
        self,
        client: Client,
        content: RelationContent,
        dest: str,
        key: str,
        batch: str,
        function: Transform | None,
    ) -> tuple[int, BulkStored]:
        """Store messages again, by event time in each partition."""
        frame = frame_of(self.session, client.path, content)
        origin = F.create_map(F.lit(PROPERTY), F.concat("topic", F.lit(":"), "message_id"))
        others = F.map_filter("properties", lambda name, _: name != PROPERTY)
        sent = frame.withColumn(
            "properties", F.map_concat(F.coalesce(others, F.create_map().cast(_PROPERTIES)), origin)
        ).select(*KEPT)
        if function is not None:
            sent = self._changed(sent, function)
        answer = self._stored_frame(client, sent, dest, key, batch)
        return self._run(frame.count), answer

    def _changed(self, frame: DataFrame, function: Transform) -> DataFrame:
        try:
            changed = function(frame)
        except Exception as error:  # a user's function may raise anything
            raise CommandFailed(f"the transform failed: {type(error).__name__}: {error}") from error
        if not isinstance(changed, DataFrame):
            raise CommandFailed(
                f"the transform returned a {type(changed).__name__}, not a DataFrame"
            )
        return changed

    def _stored_frame(
        self, client: Client, frame: DataFrame, topic: str, key: str, batch: str
    ) -> BulkStored:
        order = ["event_time"] if "event_time" in frame.columns else []
        return self._run(
            lambda: bulk_load(
                frame, client.path, topic, txn_key=key, batch_id=batch, order_by=order
            )
        )

    def _check_lines(self, source: Files) -> None:
        """Raise BadRecord when a line of an ndjson source is not a JSON object."""
        if source.form != "ndjson":
            return
        kind = F.schema_of_variant(F.try_parse_json("line"))
        bad = lines(self.session, source).where(
            ~F.coalesce(kind.startswith("OBJECT"), F.lit(False))
        )
        count = self._run(bad.count)
        if count:
            raise no_objects(source, count)

    def arrange(self, client: Client) -> Arrange:
        """The function that reads and sorts the rows of a compaction."""
        return lambda sealed, other, places: self._run(
            lambda: arranged(self.session, client.path, sealed, other, places)
        )

    def searches(self, client: Client, topic: str) -> Mapping[int, Search]:
        """By partition, the functions that find the delayed ids of a topic as of now."""
        name = TopicName.parse(topic)
        numbers, ends, content = client.store.ask(lambda view: _delayed_places(view, name))
        frame = frame_of(self.session, client.path, content)
        ids = self._run(lambda: delayed_ids(frame))
        by_partition = {
            number: ids.filter(pc.equal(ids.column("partition"), pa.scalar(index, pa.int32())))
            for index, number in enumerate(numbers)
        }
        return {
            number: looked_up(rows.select(IDS.names).cast(IDS), end)
            for (number, rows), end in zip(by_partition.items(), ends, strict=True)
        }

    @contextmanager
    def stored(self, client: Client, rows_stored: StoredRows) -> Iterator[_Ask]:
        """The function that runs a SELECT over the stored rows."""
        local = {
            name: getattr(rows_stored, name) for name in ("ledgers", "markers", "large", "acks")
        }
        tables = [*rows_stored.frames.tables(), *part_rows(rows_stored.parts, client.open)]
        rows = local_frame(self.session, pa.concat_tables([ROWS.empty_table(), *tables]))
        if rows_stored.files:
            rows = rows.unionByName(
                self._scan(client, rows_stored.files).select(
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
            self._scan(client, rows_stored.large_files).select(
                _ledger_of_file().alias("ledger"), "kind", "entry", "value"
            )
            if rows_stored.large_files
            else frames["stored"].select("ledger", "kind", "entry", "value").where("false")
        )
        for name, frame in frames.items():
            frame.createOrReplaceTempView(name)
        try:
            yield self._ask
        finally:
            for name in frames:
                self.session.catalog.dropTempView(name)

    def _scan(self, client: Client, sources: Sequence[FileSource]) -> DataFrame:
        paths = [f"file:{_unglobbed(path)}" for path in paths_below(client.path, sources)]
        return self.session.read.schema(_ROW).options(**_STRICT).parquet(*paths)

    def _ask(self, sql: str) -> pa.Table:
        return self._run(lambda: self.session.sql(sql).toArrow())

    def _run(self, action: Callable[[], T]) -> T:
        """Run an action and return the rows of Spark; raises CommandFailed."""
        try:
            return action()
        except (PySparkException, Py4JError) as error:
            text = " ".join(str(error).split())
            raise CommandFailed(f"Spark: {text[:300]}") from error


def _delayed_places(view: View, name: TopicName) -> tuple[list[int], list[Id], RelationContent]:
    """The partitions of a topic, the last position of each, and the content up to there."""
    topic = find_topic(view, name)
    numbers = [number_of(topic, index) for index in range(topic.partitions)]
    ends = [view.topic(number).ledgers[-1] for number in numbers]
    return numbers, [(end.ledger, end.entries - 1, INDEX_MAX) for end in ends], content(view, name)


def _ledger_of_file() -> Column:
    """The ledger of a row, from the name of its file, `ledger-<ledger>.<generation>.parquet`."""
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
    """A path, escaped so that it does not act as a pattern."""
    return re.sub(r"([\\{}\[\]*?])", r"\\\1", path)


# --- computations for maintenance ------------------------------------------------------------


def arranged(
    spark: SparkSession, root: str, sealed: Sequence[FileRef], other: pa.Table, places: pa.Table
) -> tuple[pa.Table, int]:
    """The rows of sealed and other files in the order of places; see upkeep.space.Arrange."""
    rows = local_frame(spark, other)
    if sealed:
        escaped = (_unglobbed(f"{root}/{ref.path}") for ref in sealed)
        scan = spark.read.schema(spark_schema(STORED)).options(**_STRICT)
        rows = rows.unionByName(scan.parquet(*(f"file:{path}" for path in escaped)))
    rows = rows.where("kind = 0")
    data = rows.count()
    if not places.num_rows:
        return MESSAGE.empty_table(), data
    where = F.broadcast(local_frame(spark, places).withColumnRenamed("at", "base"))
    ordered = (
        rows.join(where, ["txn_most", "txn_least"])
        .where("txn_index BETWEEN first AND last")
        .orderBy(F.expr("base + txn_index - first"))
        .select(*(f"`{name}`" for name in MESSAGE.names))
        .toArrow()
    )
    columns = [
        ordered.column(field.name).cast(field.type, safe=not pa.types.is_timestamp(field.type))
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
