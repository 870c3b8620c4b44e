"""Owns `read`: the committed messages of a topic as a data frame, scanned by Spark itself.

What is committed is decided by `views.Relation`; here it is written as Spark's plan: a scan of the
files that need no more than `kind = 0`, in one piece; one of the files that are joined with their
markers; what lies in parts and in the journal as local rows. Files are named one by one, never a
directory, which knows no generation and no transaction.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import Final

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from txlog.client import Client, open_store
from txlog.errors import NotAllowed, SnapshotExpired, TopicNotFound
from txlog.ids import TopicName
from txlog.views import Content, Source, adopted_lsns

_TRIES: Final = 5
# By session, what lets go of the files of its frames; they go with the session as well.
_PINS: Final[weakref.WeakKeyDictionary[SparkSession, list[Callable[[], object]]]] = (
    weakref.WeakKeyDictionary()
)
_USER: Final = ("key", "value", "properties", "publish_time", "event_time", "deliver_at")
_COLUMNS: Final = (
    "topic", "partition", "message_id", "ledger", "entry", "txn_index", *_USER, "visible_time",
    "producer", "sequence_id", "lsn", "size_bytes",
)  # fmt: skip
# As in views.COMMITTED, and the size: that of a large message is known without its value.
_BRANCH: Final = tuple(name for name in _COLUMNS if name not in ("topic", "message_id"))
_STORED: Final = (
    "kind tinyint, entry bigint, lsn bigint, publish_time timestamp, key binary, value binary,"
    " properties map<string, string>, event_time timestamp, deliver_at timestamp,"
    " producer string, sequence_id bigint, txn_most bigint, txn_least bigint, txn_index int,"
    " marker_ledger bigint, marker_entry bigint, visible_time timestamp, partition int"
)
# Whatever the session says: a damaged page or a missing file is an error, never fewer rows.
_STRICT: Final = {
    "parquet.page.verify-checksum.enabled": "true",
    "ignoreMissingFiles": "false",
    "ignoreCorruptFiles": "false",
}
_TXN: Final = ["partition", "txn_most", "txn_least"]
_OF_MARKER: Final = ("marker_ledger", "marker_entry", "visible_time", "lsn")


def read(spark: SparkSession, store: str, topic: str) -> DataFrame:
    """Return the committed messages of a topic, as of now; the columns are those of `messages`.

    The frame stands for what was committed when it was made, however often it runs: its files are
    pinned until `release`, or until this process or all that stands on the session is gone. Of a
    store that this user cannot write nothing is pinned: there the files go after `reader_grace_ms`,
    and the frame fails with Spark's error of a missing file. Rows come in no order but by
    `orderBy("partition", "ledger", "entry", "txn_index")`.
    raises: StoreNotFound, TopicNotFound, PartitionUnavailable, Corruption, SnapshotExpired
    cost:   the driver reads what is in parts and in the journal; the rest only a job reads
    """
    name = TopicName.parse(topic)
    with _opened(store) as client:
        for _ in range(_TRIES):
            found = [
                content for content in client.contents([name.full]) if content.name == name.full
            ]
            if not found:
                raise TopicNotFound(f"there is no topic {name.short}", topic=name.short)
            relation = found[0].relation
            pin = client.pin([*relation.direct, *relation.unclean, *relation.large_files])
            try:
                frame = _Plan(spark, client.path, found[0]).frame()
            except BaseException as error:
                if pin is not None:
                    pin.close()
                if isinstance(error, AnalysisException) and _is_overtaken(error):
                    continue  # R21: a checkpoint has removed files since
                raise
            if pin is not None:
                _PINS.setdefault(spark, []).append(weakref.finalize(spark, pin.close))
            return frame
    raise SnapshotExpired("the store moved on faster than it could be read")


def frame_of(spark: SparkSession, path: str, content: Content) -> DataFrame:
    """The messages of a content of the store at a path; its files are the caller's to pin."""
    return _Plan(spark, path, content).frame()


def release(spark: SparkSession) -> None:
    """Let the files go that frames of a session hold; these frames must not be used any more."""
    for pin in _PINS.pop(spark, []):
        pin()


def _opened(store: str) -> Client:
    """A client that may pin files; of a store that this user should not write, one that may not."""
    try:
        client = open_store(store)
    except NotAllowed:
        return open_store(store, read_only=True)
    client.checkpoint_automatically = False  # it came to read
    return client


def _is_overtaken(error: AnalysisException) -> bool:
    return error.getCondition() == "PATH_NOT_FOUND"


class _Plan:
    """The branches of a topic's frame."""

    def __init__(self, spark: SparkSession, path: str, content: Content) -> None:
        self._spark = spark
        self._path = path
        self._content = content
        self._relation = content.relation
        markers = content.relation.markers.select([*_TXN, *_OF_MARKER])
        renamed = [*_TXN, *(f"m_{name}" for name in _OF_MARKER)]
        self._markers = markers.rename_columns(renamed)

    def frame(self) -> DataFrame:
        """All of it, under the names that users see."""
        relation, content = self._relation, self._content
        branches: list[DataFrame] = []
        if relation.direct:
            branches.append(self._direct())
        if relation.unclean:
            branches.append(self._joined(self._scan(relation.unclean)))
        if content.partition_parts.num_rows:
            rows = self._local(content.partition_parts).where("kind = 0")
            branches.append(_branch(rows, visible_time=F.col("publish_time")))
        if content.sidecar_parts.num_rows:
            branches.append(self._joined(self._local(content.sidecar_parts)))
        if relation.large_files:
            branches.append(self._large())
        if relation.tail.num_rows or not branches:
            branches.append(_branch(self._local(relation.tail)))
        whole = branches[0]
        for branch in branches[1:]:
            whole = whole.unionByName(branch)
        inner = F.coalesce(F.concat(F.lit(":"), F.col("txn_index")), F.lit(""))
        return whole.select(
            F.lit(relation.topic).alias("topic"),
            "partition",
            F.concat("ledger", F.lit(":"), "entry", inner).alias("message_id"),
            *_COLUMNS[3:],
        )

    def _direct(self) -> DataFrame:
        """Files whose data rows are all committed; the marker, if any, is in the row."""
        return _branch(
            self._scan(self._relation.direct).where("kind = 0"),
            ledger=F.coalesce("marker_ledger", _ledger_of_file()),
            entry=F.coalesce("marker_entry", "entry"),
            visible_time=F.coalesce("visible_time", "publish_time"),
            lsn=self._lsn(),
        )

    def _lsn(self) -> Column:
        """The LSN of a row of `direct`: that of its ledger where it was adopted."""
        lsns = adopted_lsns(self._relation.direct)
        if not lsns:
            return F.col("lsn")
        known = F.map_from_arrays(F.lit([*lsns]), F.lit([*lsns.values()]))
        return F.coalesce("lsn", F.element_at(known, _ledger_of_file()))

    def _joined(self, rows: DataFrame) -> DataFrame:
        """Data rows of transactions that have a marker, at its place."""
        markers = F.broadcast(self._local(self._markers))
        return _branch(
            rows.where("kind = 0").join(markers, _TXN),
            ledger=F.col("m_marker_ledger"),
            entry=F.col("m_marker_entry"),
            visible_time=F.col("m_visible_time"),
            lsn=F.col("m_lsn"),
        )

    def _large(self) -> DataFrame:
        """Large messages: a file has the chunks of one, in order of entry."""
        relation = self._relation
        ledgers = {source.ref.path: source.ref.ledger for source in relation.large_files}
        paths = relation.large.column("path").to_pylist()
        file = pa.array([ledgers[path] for path in paths], pa.int64())
        chunks = F.array_sort(F.collect_list(F.struct("entry", "value")))
        empty = F.lit("").cast("binary")
        value = F.aggregate(chunks, empty, lambda whole, chunk: F.concat(whole, chunk["value"]))
        values = (
            self._scan(relation.large_files)
            .select("entry", "value", _ledger_of_file().alias("file"))
            .groupBy("file")
            .agg(value.alias("value"))
        )
        rows = self._local(relation.large.drop_columns("path").append_column("file", file))
        return _branch(rows.join(values, ["file"]), size_bytes=F.col("bytes"))

    def _scan(self, sources: Sequence[Source]) -> DataFrame:
        """Rows of Parquet files, which Spark lists and opens as it needs them."""
        paths = [str(PurePath(self._path, source.ref.path)) for source in sources]
        base = paths[0][: paths[0].rindex("/partition=")]
        return (
            self._spark.read.schema(_STORED)
            .options(basePath=f"file:{base}", **_STRICT)
            .parquet(*(f"file:{_unglobbed(path)}" for path in paths))
        )

    def _local(self, table: pa.Table) -> DataFrame:
        return local_frame(self._spark, table)


def local_frame(spark: SparkSession, table: pa.Table) -> DataFrame:
    """Rows that travel with the plan.

    In one chunk: pyspark makes a task of each, and loses all rows if the first chunk is empty.
    """
    return spark.createDataFrame(table.combine_chunks())


def _branch(rows: DataFrame, **computed: Column) -> DataFrame:
    """The columns that branches have in common: as they are, or computed."""
    computed = {
        "size_bytes": F.coalesce(F.octet_length("value"), F.lit(0)).cast("bigint"),
        **computed,
    }
    return rows.select(
        *(computed[name].alias(name) if name in computed else F.col(name) for name in _BRANCH)
    )


def _ledger_of_file() -> Column:
    """The ledger of a row by the name of its file, `ledger-<ledger>.<generation>.parquet`."""
    number = F.substring_index(F.col("_metadata.file_name"), ".", 1)
    return F.substring_index(number, "-", -1).cast("bigint")


def _unglobbed(path: str) -> str:
    """A path without the meaning of a pattern."""
    return re.sub(r"([\\{}\[\]*?])", r"\\\1", path)
