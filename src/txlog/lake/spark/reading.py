"""Owns `read`: the messages of a topic as a data frame, scanned by Spark itself.

`Relation` decides which messages are committed; this module writes it as Spark's plan. One scan
reads files of messages only, another the files that need `kind = 0`, a third the files that are
joined with their markers. Rows in parts and in the journal are local rows. Many local rows become a
Parquet file in Spark's own scratch directory, if Spark runs on this machine: a query then reads
only the columns that it needs. The plan names files one by one, as a directory does not show
generations and transactions. Spark scans files offloaded to a directory there; for files in an
object store, workers fetch them (`source`).
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
import threading
import warnings
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from pathlib import PurePath
from typing import Final, cast

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_type

from txlog.base.arguments import StrPath
from txlog.base.choices import Isolation
from txlog.base.message_columns import PLACED
from txlog.base.ranges import START, Bound, Range, parse_bound
from txlog.base.startup import compute as pc
from txlog.base.suggest import command_line
from txlog.clock import SystemClock
from txlog.engine.door.disk import is_remote, local_path
from txlog.engine.door.reading import Where, bound_of
from txlog.engine.door.relation import (
    ALL,
    FileSource,
    Relation,
    RelationContent,
    RelationFilter,
    Span,
    adopted_lsns,
    scans_of,
)
from txlog.engine.door.segments import RECORD
from txlog.engine.door.topics import records_as
from txlog.errors import InvalidArgument, SnapshotExpired
from txlog.lake.spark.records import as_type, is_scanned, record_of, spark_type
from txlog.lake.spark.session import is_local, need_jvm, opened
from txlog.lake.spark.source import remote_frame
from txlog.lake.sql.messages import MESSAGE_ID, SIZE_BYTES, files_of
from txlog.lake.sql.spark_script import LEDGER_OF_FILE, SCANNED, STRICT, file_url

_TRIES: Final = 5
# By session: callbacks that release the files of its frames; they also run when it ends.
_PINS: Final[weakref.WeakKeyDictionary[SparkSession, list[Callable[[], object]]]] = (
    weakref.WeakKeyDictionary()
)
# The columns of all branches. The size is known without a large message's value.
_BRANCH: Final = (*PLACED, "size_bytes")
_TXN: Final = ["partition", "txn_most", "txn_least"]
_OF_MARKER: Final = ("marker_ledger", "marker_entry", "visible_time", "lsn")
_MARKERS: Final = [*_TXN, *(f"m_{name}" for name in _OF_MARKER)]
_MARKERS_FEW: Final = 20_000  # up to this many markers are part of the plan
_MARKERS_MANY: Final = 2_000_000
_EDGES_FEW: Final = 4
_LAYERS_FEW: Final = 4
# Spark broadcasts up to this size by itself; above it, its planner need not know the size.
_LOCAL_BYTES: Final = 10 << 20
_LOCAL_MOST: Final = "spark.sql.execution.arrow.localRelationThreshold"
_SCRATCH_ROWS: Final = 65_536  # rows of a row group, which one task reads
_LOCAL_LOCK: Final = threading.Lock()


def read(
    spark: SparkSession,
    store: StrPath,
    topic: str | Sequence[str],
    *,
    partitions: Sequence[int] | None = None,
    start: Where | str | None = None,
    end: Where | str | None = None,
    at_lsn: int | None = None,
    isolation: Isolation = "committed",
    skip_unavailable: bool = False,
) -> DataFrame:
    """Return the messages of a topic, or several, as of now, with the columns of `messages`.

    The frame has the messages of the moment it was made, no matter how often it runs. Its files are
    pinned until `release`, or until this process and everything using the session have ended. In a
    store that this user cannot write nothing is pinned, and files go after `reader_grace_ms`. Rows
    have no order; the log's is `orderBy("partition", "ledger", "entry", "txn_index")`.
    topic:      also one partition, `orders/2`; several topics are read at one LSN, each as its own
                frame would be, but without the column `record`
    start, end: positions of the API, or bounds of the command line: `17:4`, `@-1h`, `-10`; end is
                excluded
    at_lsn:     the topic at this LSN, as far as it still exists
    isolation:  uncommitted: a column txn_state, and messages of open and aborted transactions
    skip_unavailable: leave out unavailable partitions with a warning, instead of failing
    raises: StoreNotFound, TopicNotFound, PartitionUnavailable, Corruption, SnapshotExpired,
            InvalidArgument, MessageNotFound
    cost:   the driver reads rows in parts and in the journal, and decodes their records; if there
            are many, it writes a file for Spark, on this machine. Only a job reads all other rows
    """
    need_jvm(spark, "read", 'spark.read.format("txlog").option("topic", …).load(…)')
    selection = RelationFilter(partitions, Range(_bound(start) or START, _bound(end)), at_lsn)
    topics = [topic] if isinstance(topic, str) else list(topic)
    if not topics:
        raise InvalidArgument("no topic was given", code=203)
    topic_frames = frames(
        spark, store, topics, selection, isolation=isolation, skip_unavailable=skip_unavailable
    )
    return reduce(DataFrame.unionByName, topic_frames)


def frames(
    spark: SparkSession,
    store: StrPath,
    topics: Sequence[str],
    selection: RelationFilter | None = None,
    *,
    isolation: Isolation = "committed",
    skip_unavailable: bool = False,
) -> list[DataFrame]:
    """A frame for each topic, all at one LSN; otherwise as `read`."""
    with opened(store) as client:
        for _ in range(_TRIES):
            contents = client.content_of_each(
                topics, selection or ALL, skip_unavailable=skip_unavailable, isolation=isolation
            )
            pin = client._pin(files_of(contents))
            scratch = _Scratch(spark)
            is_typed = len(contents) == 1
            try:
                topic_frames = [
                    _Plan(spark, client.path, item, isolation, scratch, is_typed=is_typed).frame()
                    for item in contents
                ]
            except BaseException as error:  # files without an owner would stay
                scratch.remove()
                if pin is not None:
                    pin.close()
                if isinstance(error, AnalysisException) and _is_overtaken(error):
                    continue  # R21: a checkpoint has removed files since
                raise
            if pin is not None:
                _keep(spark, pin.close)
            _keep(spark, scratch.remove)
            for content in contents:
                _warn(content.relation)
            return topic_frames
    raise SnapshotExpired("the store moved on faster than it could be read")


def _bound(position: Where | str | None) -> Bound | None:
    """A position as a bound; it may be a bound of the command line."""
    if position is None:
        return None
    if isinstance(position, str) and position not in ("earliest", "latest"):
        return parse_bound(position, SystemClock().now().wall_ms)
    return bound_of(cast(Where, position))


def _warn(relation: Relation) -> None:
    """Warn about missing partitions of a frame, and about markers that make it slow."""
    topic, markers = relation.topic, relation.markers.num_rows
    if relation.unavailable:
        away = ", ".join(map(str, relation.unavailable))
        warnings.warn(f"{topic}: left out unavailable partitions: {away}", stacklevel=4)
    if markers > _MARKERS_MANY:
        warnings.warn(
            f"{topic}: {markers} markers are joined with their rows; "
            f"`{command_line('admin compact', topic)}` avoids that",
            stacklevel=4,
        )


def frame_of(spark: SparkSession, path: str, content: RelationContent) -> DataFrame:
    """A frame of a content's messages, without `record`; the caller pins its files."""
    scratch = _Scratch(spark)
    _keep(spark, scratch.remove)
    return _Plan(spark, path, content, "committed", scratch, is_typed=False).frame()


def release(spark: SparkSession) -> None:
    """Unpin the files of all frames of a session; do not use the frames afterwards."""
    for pin in _PINS.pop(spark, []):
        pin()


def _keep(spark: SparkSession, end: Callable[[], object]) -> None:
    """Let `release`, or the end of the session, call `end`."""
    _PINS.setdefault(spark, []).append(weakref.finalize(spark, end))


def _is_overtaken(error: AnalysisException) -> bool:
    return error.getCondition() == "PATH_NOT_FOUND"


class _Plan:
    """Builds the frame of one topic, as a union of branches."""

    def __init__(
        self,
        spark: SparkSession,
        path: str,
        content: RelationContent,
        isolation: str,
        scratch: _Scratch,
        *,
        is_typed: bool,
    ) -> None:
        """is_typed: with the column `record`, if the topic has a schema."""
        relation = content.relation
        self._record = relation.record if is_typed else 0
        if self._record and not is_scanned(relation.record_type):
            warnings.warn(
                f"{relation.topic}: a record has a time of day, which Spark's reader does"
                f" not know: without the column {RECORD}; format txlog has it",
                stacklevel=5,
            )
            self._record = 0
        self._spark = spark
        self._scratch = scratch
        self._path = path
        self._content = content
        self._relation, self._remote = _split(content.relation)
        self._has_state = isolation == "uncommitted"
        cut = {i: span for i, span in content.relation.spans.items() if span.cuts_markers}
        self._cut = cut  # in these partitions a range may cut a marker

    def frame(self) -> DataFrame:
        """The whole frame, with the column names that users see."""
        relation, content = self._relation, self._content
        branches: list[DataFrame] = []
        if relation.direct:
            branches += self._direct()
        for group in self._alike(relation.unclean):
            rows = self._messages(group)
            if relation.spans:
                lsns = pc.min(relation.markers.column("first_lsn")).as_py()
                latest = pc.max(relation.markers.column("lsn")).as_py()
                rows = rows.where(F.col("lsn").between(lsns, latest))
            branches.append(self._joined(rows))
        if content.partition_parts.num_rows:
            rows = self._local(content.partition_parts).where("kind = 0")
            branches.append(self._branch(rows, visible_time="publish_time"))
        if content.sidecar_parts.num_rows:
            rows = self._local(content.sidecar_parts).where("kind = 0")
            branches.append(self._joined(rows))
        if relation.large_files:
            branches.append(self._large())
        if self._remote is not None:
            kind = spark_type(relation.schemas[-1]) if self._record else None
            branches.append(self._branch(remote_frame(self._spark, scans_of(self._remote), kind)))
        if relation.tail.num_rows or not branches:
            branches.append(self._branch(self._local(relation.tail)))
        if self._has_state:
            state = "CASE WHEN txn_index IS NOT NULL THEN 'committed' END AS txn_state"
            branches = [branch.selectExpr("*", state) for branch in branches]
            if relation.hidden.num_rows:
                hidden = self._local(relation.hidden)
                branches.append(self._branch(hidden, "txn_state"))
        whole = branches[0]
        for branch in branches[1:]:
            whole = whole.unionByName(branch)
        at = PLACED.index("visible_time")
        return whole.selectExpr(
            f"CAST(X'{relation.topic.encode().hex()}' AS STRING) AS topic",
            "partition",
            f"{MESSAGE_ID} AS message_id",
            *PLACED[1:at],
            *([RECORD] if self._record else []),
            *_BRANCH[at:],
            *(["txn_state"] if self._has_state else []),
        )

    def _direct(self) -> list[DataFrame]:
        """Branches of files whose rows are all committed and have their marker's position, if any.

        Similar files that are read completely are one scan. A few files at the edges of a range are
        one scan each, so that Spark can skip row groups by entry.
        """
        direct = [source for source in self._relation.direct if source.ref.messages]
        whole = [source for source in direct if source.within is None]
        cut = [source for source in direct if source.within is not None]
        few = [source for source in cut if source.role == "p"]
        if len(few) > _EDGES_FEW:
            few = []
        many = [source for source in cut if source not in few]
        out = [self._placed(layer) for group in self._alike(whole) for layer in _layers(group)]
        for source in few:
            low, high = _entries(source)
            out.append(self._placed([source], (F.col("entry") >= low) & (F.col("entry") < high)))
        if many:
            spans = {source.partition: source.within for source in many if source.within}
            out += [self._placed(group).where(_is_within(spans)) for group in self._alike(many)]
        return out

    def _placed(self, group: Sequence[FileSource], within: Column | None = None) -> DataFrame:
        """A branch of similar files, with the positions of their rows."""
        rows = self._messages(group)
        if within is not None:
            rows = rows.where(within)
        ledger, lsn = "ledger", "lsn"
        if _is_named(group[0]):
            ledgers = {source.partition: source.ref.ledger for source in group}
            if len(ledgers) == len(group):
                file, ledger = "partition", _looked_up(ledgers, "partition")
                lsns = adopted_lsns(group)
                lsns = {
                    file_name: lsns[ledgers[file_name]]
                    for file_name in ledgers
                    if ledgers[file_name] in lsns
                }
            else:
                # Spark computes all the metadata of each row, unless a query uses some of it.
                rows = rows.where("_metadata.file_name != ''")
                file, ledger, lsns = LEDGER_OF_FILE, LEDGER_OF_FILE, adopted_lsns(group)
            if lsns:
                lsn = f"coalesce(lsn, {_looked_up(lsns, file)})"
        return self._branch(
            rows,
            ledger=f"coalesce(marker_ledger, {ledger})",
            entry="coalesce(marker_entry, entry)",
            visible_time="coalesce(visible_time, publish_time)",
            lsn=lsn,
        )

    def _joined(self, rows: DataFrame) -> DataFrame:
        """A branch: rows of transactions that have a marker, at its position."""
        joined = self._branch(
            rows.join(F.broadcast(self._markers()), _TXN),
            ledger="m_marker_ledger",
            entry="m_marker_entry",
            visible_time="m_visible_time",
            lsn="m_lsn",
        )
        if not self._cut:
            return joined
        return joined.where(~F.col("partition").isin([*self._cut]) | _is_within(self._cut))

    def _markers(self) -> DataFrame:
        """The wanted markers; if there are many, Spark reads them from sealed files."""
        markers = self._relation.markers.select([*_TXN, *_OF_MARKER])
        files = [
            source
            for source in self._relation.direct
            if source.role == "p" and not source.ref.is_messages_only
        ]
        if markers.num_rows <= _MARKERS_FEW or not files:
            return self._local(markers.rename_columns(_MARKERS))
        sealed = pa.array(sorted({source.ref.ledger for source in files}), pa.int64())
        filed = pc.is_in(markers.column("marker_ledger"), value_set=sealed)
        spans = {source.partition: source.within for source in files if source.within}
        groups = [
            self._scan(group)
            .where("kind = 1")
            .select(
                *_TXN,
                F.expr(LEDGER_OF_FILE if _is_named(group[0]) else "ledger").alias("ledger"),
                "entry",
                F.lit(0).alias("txn_index"),
                F.col("publish_time").alias("m_visible_time"),
                F.col("lsn").alias("m_lsn"),
            )
            for group in self._alike(files)
        ]
        scanned = reduce(DataFrame.unionByName, groups)
        if spans:
            # all messages of a cut marker are joined, then the unwanted ones are dropped
            whole = {i: Span((*span.start[:2], 0), span.stop) for i, span in spans.items()}
            scanned = scanned.where(~F.col("partition").isin([*spans]) | _is_within(whole))
        here = scanned.drop("txn_index").withColumnsRenamed(
            {"ledger": "m_marker_ledger", "entry": "m_marker_entry"}
        )
        return here.unionByName(
            self._local(markers.filter(pc.invert(filed)).rename_columns(_MARKERS))
        )

    def _large(self) -> DataFrame:
        """A branch of large messages: each file has the chunks of one message, by entry."""
        relation = self._relation
        ledgers = {source.ref.path: source.ref.ledger for source in relation.large_files}
        paths = relation.large.column("path").to_pylist()
        file = pa.array([ledgers[path] for path in paths], pa.int64())
        chunks = F.array_sort(F.collect_list(F.struct("entry", "value")))
        empty = F.lit("").cast("binary")
        value = F.aggregate(chunks, empty, lambda whole, chunk: F.concat(whole, chunk["value"]))
        groups = [
            self._scan(group).selectExpr("entry", "value", f"{LEDGER_OF_FILE} AS file")
            for group in self._alike(relation.large_files)
        ]
        values = reduce(DataFrame.unionByName, groups).groupBy("file").agg(value.alias("value"))
        rows = self._local(relation.large.drop_columns("path").append_column("file", file))
        return self._branch(rows.join(values, ["file"]), size_bytes="bytes")

    def _branch(self, rows: DataFrame, *more: str, **computed: str) -> DataFrame:
        """The columns common to all branches; a record is null in rows without one."""
        if not self._record:
            return _branch(rows, *more, **computed)
        if RECORD not in rows.columns:
            kind = spark_type(self._relation.schemas[self._record - 1])
            rows = rows.withColumn(RECORD, F.lit(None).cast(kind))
        return _branch(rows, RECORD, *more, **computed)

    def _scan(self, sources: Sequence[FileSource]) -> DataFrame:
        """Rows of Parquet files, which Spark lists and opens on demand."""
        paths = [self._at(source) for source in sources]
        base = paths[0][: paths[0].rindex("/partition=")]
        written = sources[0].ref.record if self._record else 0
        schemas, columns = self._relation.schemas, SCANNED
        if written:
            columns = f"{SCANNED}, {RECORD} {spark_type(schemas[written - 1]).simpleString()}"
        rows = (
            self._spark.read.schema(columns)
            .options(basePath=f"file:{base}", **STRICT)
            .parquet(*map(file_url, paths))
        )
        if written in (0, self._record):
            return rows
        return rows.withColumn(RECORD, record_of(written, schemas, self._record))

    def _at(self, source: FileSource) -> str:
        """The path of a file, in the store or outside it."""
        return local_path(source.ref.path) or str(PurePath(self._path, source.ref.path))

    def _alike(self, sources: Sequence[FileSource]) -> list[list[FileSource]]:
        """The files in groups; a scan can read a group, with the same rule for all of its rows.

        The files of a group are below the directory of one topic: Spark reads the partition from
        the path.
        """
        groups: dict[object, list[FileSource]] = {}
        for source in sources:
            root = self._at(source).rpartition("/partition=")[0]
            written = source.ref.record if self._record else 0
            alike = (root, source.ref.is_messages_only, _is_named(source), written)
            groups.setdefault(alike, []).append(source)
        return list(groups.values())

    def _messages(self, group: Sequence[FileSource]) -> DataFrame:
        """The rows of kind `data` in similar files."""
        rows = self._scan(group)
        return rows if group[0].ref.is_messages_only else rows.where("kind = 0")

    def _local(self, table: pa.Table) -> DataFrame:
        """A frame of rows in memory, with the record decoded; many rows go to a scratch file."""
        if self._record and {"value", "schema_version"} <= {*table.column_names}:
            # each frame is a chunk, and a call per chunk costs as much as its rows
            table = table.combine_chunks()
            column = records_as(self._relation.schemas, self._record, table)
            struct = spark_type(self._relation.schemas[self._record - 1])
            kind = to_arrow_type(struct, timezone="UTC")
            pieces = [as_type(chunk, kind) for chunk in column.chunks]
            table = table.append_column(RECORD, pa.chunked_array(pieces, kind))
        if table.nbytes > _LOCAL_BYTES and self._scratch.is_there:
            return self._scratch.frame(table)
        return local_frame(self._spark, table)


class _Scratch:
    """Files of rows that are in no file of the store, in Spark's scratch directory; for one frame.

    pyspark would write such rows there as well, for the JVM. The JVM then holds all their columns,
    and converts them to rows again for each query. Remote executors do not see these files.
    """

    def __init__(self, spark: SparkSession) -> None:
        context = spark.sparkContext
        self.is_there = is_local(context.master or "") and not context._encryption_enabled
        self._spark = spark
        self._files: list[str] = []

    def frame(self, table: pa.Table) -> DataFrame:
        """The rows, as a scan by Spark."""
        handle, path = tempfile.mkstemp(".parquet", dir=self._spark.sparkContext._temp_dir)
        self._files.append(path)
        with os.fdopen(handle, "wb") as file:
            pq.write_table(
                table,
                file,
                row_group_size=_SCRATCH_ROWS,
                compression="none",
                use_dictionary=False,
                write_page_checksum=True,
            )
        scan = self._spark.read.schema(from_arrow_schema(table.schema)).options(**STRICT)
        return scan.parquet(file_url(path))

    def remove(self) -> None:
        """Remove the files; Spark removes leftovers when it ends."""
        for path in self._files:
            with suppress(FileNotFoundError):
                os.unlink(path)


def _split(relation: Relation) -> tuple[Relation, Relation | None]:
    """(a relation without its remote files, one with only the remote files or None)."""
    sources = (*relation.direct, *relation.unclean, *relation.large_files)
    if not any(is_remote(source.ref.path) for source in sources):
        return relation, None

    def some(sources: list[FileSource], *, remote: bool) -> list[FileSource]:
        return [source for source in sources if is_remote(source.ref.path) is remote]

    def part(*, remote: bool) -> Relation:
        large = some(relation.large_files, remote=remote)
        paths = pa.array([source.ref.path for source in large], pa.string())
        is_here = pc.is_in(relation.large.column("path"), value_set=paths)
        return dataclasses.replace(
            relation,
            direct=some(relation.direct, remote=remote),
            unclean=some(relation.unclean, remote=remote),
            large_files=large,
            large=relation.large.filter(is_here),
        )

    near, far = part(remote=False), part(remote=True)
    return near, dataclasses.replace(
        far, open=[], tail=relation.tail.slice(0, 0), hidden=relation.hidden.slice(0, 0)
    )


def local_frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    """A frame of rows in memory.

    The table becomes one chunk: pyspark makes a task of each, and loses all rows if the first is
    empty. Few rows are part of the plan. Many are not: Spark would convert all their columns to
    rows on the driver, before it knows which columns a query needs.
    The frame gets the table's schema: without it pyspark takes local timestamps for instants, and
    reads them in the time zone of the session, where some do not exist.
    """
    table = table.combine_chunks()
    schema = from_arrow_schema(table.schema)
    if table.nbytes <= _LOCAL_BYTES:
        return spark.createDataFrame(table, schema)
    with _LOCAL_LOCK:
        previous = spark.conf.get(_LOCAL_MOST) or ""
        spark.conf.set(_LOCAL_MOST, "0")
        try:
            return spark.createDataFrame(table, schema)
        finally:
            spark.conf.set(_LOCAL_MOST, previous)


def _entries(source: FileSource) -> tuple[int, int]:
    """The wanted entries of a file: the first, and the one after the last."""
    assert source.within is not None
    return source.within.entries(source.ref.ledger, source.ref.last + 1)


def _is_within(spans: Mapping[int, Span]) -> Column:
    """Whether a row is at a wanted position; spans: by partition."""
    index = F.coalesce("txn_index", F.lit(0))
    out = F.lit(False)
    for partition, span in spans.items():
        position = F.struct(F.col("ledger"), F.col("entry"), index)
        ends = [
            F.struct(F.lit(m[0]).cast("bigint"), F.lit(m[1]).cast("bigint"), F.lit(m[2]))
            for m in span
        ]
        inside = (position >= ends[0]) & (position < ends[1])
        out = out | ((F.col("partition") == partition) & inside)
    return out


def _branch(rows: DataFrame, *more: str, **computed: str) -> DataFrame:
    """The columns common to all branches, unchanged or computed by SQL, then `more`.

    SQL, as each function of a Column makes several calls to the JVM, half of the cost of a plan.
    """
    computed = {"size_bytes": SIZE_BYTES, **computed}
    expressions = (f"{computed[name]} AS {name}" if name in computed else name for name in _BRANCH)
    return rows.selectExpr(*expressions, *more)


def _is_named(source: FileSource) -> bool:
    """Whether only the name of a file has the ledger of its rows."""
    return source.role == "p" and source.ref.messages < 0


def _layers(group: Sequence[FileSource]) -> list[list[FileSource]]:
    """Split similar files into scans with one file per partition, if a few scans are enough.

    Then the partition identifies the file of a row. Reading the file name would cost each row some
    time, even in queries that do not use the ledger.
    """
    if not _is_named(group[0]):
        return [[*group]]
    layers: list[list[FileSource]] = []
    depth: dict[int, int] = {}
    for source in group:
        at = depth[source.partition] = depth.get(source.partition, -1) + 1
        layers[at:] = layers[at:] or [[]]
        layers[at].append(source)
    return layers if len(layers) <= _LAYERS_FEW else [[*group]]


def _looked_up(mapping: Mapping[int, int], key: str) -> str:
    """SQL for the value of a number in a mapping, or null."""
    numbers, values = (
        ", ".join(f"{number}L" for number in part) for part in (mapping, mapping.values())
    )
    return f"element_at(map_from_arrays(array({numbers}), array({values})), CAST({key} AS BIGINT))"
