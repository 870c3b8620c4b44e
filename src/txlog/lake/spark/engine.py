"""Owns the engine that runs jobs on a Spark session, and the work that it does for upkeep.

It converts rows of files to messages by the rules that `jobs.sources.rows` has for DuckDB.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType, DataType, IntegralType, StringType

from txlog.base.ids import TopicName
from txlog.base.message_columns import STORED, spark_schema
from txlog.base.startup import compute as pc
from txlog.base.times import local_zone_name
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
from txlog.errors import CommandFailed, InvalidArgument
from txlog.lake.jobs.replay import in_words, transformed
from txlog.lake.jobs.sources.loads import (
    BASE64,
    KEPT,
    LOCAL,
    MILLISECONDS,
    NO_NAME,
    PROPERTY,
    SECONDS,
    SHOWN_TWICE,
    SKIPPED,
    Files,
    Transform,
    encoded,
    no_objects,
)
from txlog.lake.spark.loading import bulk_load
from txlog.lake.spark.reading import frame_of, local_frame, read
from txlog.lake.spark.session import session
from txlog.lake.sql.spark_script import LEDGER_OF_FILE, STRICT, file_url

if TYPE_CHECKING:
    from txlog.base.rows.sending import BulkStored


T = TypeVar("T")
_Ask = Callable[[str], pa.Table]
_MESSAGES: Final = "txlog_messages"
_ROW: Final = spark_schema(ROW_COLUMNS)
_PROPERTIES: Final = "map<string,string>"
# Names of directories must not become columns.
_FLAT: Final = {**STRICT, "recursiveFileLookup": "true"}


class Spark:
    """Runs jobs on the active Spark session, or on one that it starts; methods as in Engine.

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
        """SQL that counts the distinct values of a column in a group."""
        return f"count(DISTINCT {column})"

    def messages(self, client: Client, topic: str, sql: str) -> pa.Table:
        """Rows of a SELECT over `{messages}`."""
        read(self.session, client.path, topic).createOrReplaceTempView(_MESSAGES)
        try:
            return self._ask(sql.replace("{messages}", _MESSAGES))
        finally:
            self.session.catalog.dropTempView(_MESSAGES)

    def count(self, source: Files) -> int:
        """The number of messages in the files; it reads each record."""
        frame = _message_frame(self.session, source)
        self._check_lines(source)
        # A plain count would skip the columns, and miss unreadable values in them.
        return self._run(lambda: frame.where("xxhash64(struct(*)) IS NOT NULL").count())

    def load(self, client: Client, source: Files, topic: str, key: str, batch: str) -> BulkStored:
        """Store the rows of files as one batch, by event time in each partition."""
        frame = _message_frame(self.session, source)
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
        if function is None:
            return self._run(frame.count), self._stored_frame(client, sent, dest, key, batch)

        def ranges() -> str:
            return _described(frame)

        sent = transformed(function, sent, DataFrame, ranges)
        try:  # Spark calls the functions in a frame only now
            answer = self._stored_frame(client, sent, dest, key, batch)
        except CommandFailed as error:
            raise CommandFailed(f"{error.message} ({ranges()})", hint=error.hint) from error
        return self._run(frame.count), answer

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
        bad = _lines(self.session, source).where(
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
        """A context with the function that runs a SELECT over the stored rows."""
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
                    F.expr(LEDGER_OF_FILE).alias("ledger"),
                    F.lit("").alias("file"),
                    *ROW_COLUMNS,
                )
            )
        frames = {name: local_frame(self.session, table) for name, table in local.items()}
        frames["stored"] = rows
        frames["large_chunks"] = (
            self._scan(client, rows_stored.large_files).select(
                F.expr(LEDGER_OF_FILE).alias("ledger"), "kind", "entry", "value"
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
        paths = map(file_url, paths_below(client.path, sources))
        return self.session.read.schema(_ROW).options(**_FLAT).parquet(*paths)

    def _ask(self, sql: str) -> pa.Table:
        return self._run(lambda: self.session.sql(sql).toArrow())

    def _run(self, action: Callable[[], T]) -> T:
        """Run an action and return its result; raises CommandFailed for an error of Spark."""
        try:
            return action()
        except (PySparkException, Py4JError) as error:
            text = " ".join(str(error).split())
            raise CommandFailed(f"Spark: {text[:300]}") from error


def _described(frame: DataFrame) -> str:
    """The messages of a topic in words: the range of each partition."""
    place = F.struct("ledger", "entry", F.coalesce("txn_index", F.lit(0)))
    rows = frame.groupBy("topic", "partition").agg(
        F.count("*").alias("messages"),
        F.min_by("message_id", place).alias("first"),
        F.max_by("message_id", place).alias("last"),
    )
    ranges = [tuple(row) for row in rows.orderBy("partition").collect()]
    return in_words(ranges[0][0], (range_[1:] for range_ in ranges)) if ranges else "no message"


def _delayed_places(view: View, name: TopicName) -> tuple[list[int], list[Id], RelationContent]:
    """(the numbers of a topic's partitions, the last position of each, the topic's content)."""
    topic = find_topic(view, name)
    numbers = [number_of(topic, index) for index in range(topic.partitions)]
    ends = [view.topic(number).ledgers[-1] for number in numbers]
    return numbers, [(end.ledger, end.entries - 1, INDEX_MAX) for end in ends], content(view, name)


def _partition_of_file() -> Column:
    return F.regexp_extract("_metadata.file_path", r"partition=(\d+)/(_txnlog/)?[^/]+$", 1).cast(
        "int"
    )


def _role_of_file() -> Column:
    is_sidecar = F.col("_metadata.file_path").contains("/_txnlog/")
    return F.when(is_sidecar, "s").otherwise("p")


# --- rows of files as messages -------------------------------------------------------------------


_OTHERS: Final = ("properties", "deliver_at", "sequence_id")


def _message_frame(spark: SparkSession, source: Files) -> DataFrame:
    """A frame with the messages in files of Parquet or ndjson.

    raises: InvalidArgument for a missing column
    """
    chosen = source.columns
    if source.form == "ndjson":
        out = [F.col("line").cast("binary").alias("value")]
        for name, member in (("key", chosen.key), ("event_time", chosen.event_time)):
            if member is not None:
                text = F.get_json_object("line", f"$['{member}']")
                out.append(_shaped(name, text, StringType()).alias(name))
        return _lines(spark, source).select(*out)
    frame = spark.read.option("mergeSchema", "true").parquet(*map(file_url, source.paths))
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


def _lines(spark: SparkSession, source: Files) -> DataFrame:
    """The lines of an ndjson source, in a column `line`."""
    return spark.read.text([*map(file_url, source.paths)]).withColumnRenamed("value", "line")


def _shaped(name: str, column: Column, kind: DataType) -> Column:
    """A column, converted to its type in a message."""
    if name in ("event_time", "deliver_at"):
        if isinstance(kind, IntegralType):
            return F.timestamp_millis(column.cast("bigint"))
        if isinstance(kind, StringType):
            return (
                F.when(_is(SECONDS, column), F.timestamp_seconds(column.cast("bigint")))
                .when(_is(MILLISECONDS, column), F.timestamp_millis(column.cast("bigint")))
                .when(_is(LOCAL, column), _local_instant(column, local_zone_name()))
                .otherwise(column.cast("timestamp"))
            )
        return column.cast("timestamp")
    if name in ("key", "value"):
        return column if isinstance(kind, BinaryType) else column.cast("string").cast("binary")
    return column


def _local_instant(text: Column, zone: str | None) -> Column:
    """The instant of a text without an offset, with the rules that `jobs.sources.rows` has."""

    def wrong(reason: str) -> Column:
        text_of_error = F.concat(F.lit('not a time: "'), text, F.lit(f'": {reason}'))
        return F.raise_error(text_of_error).cast("timestamp_ntz")

    if zone is None:
        return wrong(NO_NAME).cast("timestamp")
    wall, name, utc = text.cast("timestamp_ntz"), F.lit(zone), F.lit("UTC")

    def shown(moment: Column) -> Column:
        return F.convert_timezone(utc, name, moment)

    def by(near: Column) -> Column:
        return wall - (shown(near) - near)

    day = F.expr("INTERVAL 1 DAY")
    first, second = by(wall - day), by(wall + day)
    is_first, is_second = shown(first) == wall, shown(second) == wall
    moment = (
        F.when(is_first & ((first == second) | ~is_second), first)
        .when(~is_first & is_second, second)
        .when(is_first, wrong(SHOWN_TWICE))
        .otherwise(F.when(wall.isNotNull(), wrong(SKIPPED)))
    )
    epoch = F.lit("1970-01-01 00:00:00").cast("timestamp_ntz")
    return F.timestamp_micros(F.timestamp_diff("MICROSECOND", epoch, moment))


def _is(pattern: str, text: Column) -> Column:
    return text.rlike(f"\\A(?:{pattern})\\z")


def _column(name: str) -> Column:
    """A column whose name may contain a dot."""
    return F.col("`" + name.replace("`", "``") + "`")


# --- computations for maintenance ------------------------------------------------------------


def arranged(
    spark: SparkSession, root: str, sealed: Sequence[FileRef], other: pa.Table, places: pa.Table
) -> tuple[pa.Table, int]:
    """As Arrange: (the rows with a place, in the order of places, the number of all data rows)."""
    rows = local_frame(spark, other)
    if sealed:
        scan = spark.read.schema(spark_schema(STORED)).options(**_FLAT)
        rows = rows.unionByName(scan.parquet(*(file_url(f"{root}/{ref.path}") for ref in sealed)))
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
    """Partition, delivery time in ms and id of every message that has one, by position."""
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
