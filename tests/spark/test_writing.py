"""bulk_load: files that Spark's own Parquet writer makes are messages as a producer's are."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import txlog
from tests.test_querying import asked
from txlog import Client
from txlog.engine.model.schema import MESSAGE
from txlog.engine.storage.segment import GROUP_BYTES
from txlog.errors import Corruption, NotAllowed
from txlog.settings import INSTANT_MS_MAX
from txlog.spark import bulk_load, loading, read
from txlog.spark.writing import write_files

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("quick_disk")]
COUNT = 400
USER = ["key", "value", "properties", "event_time", "deliver_at", "sequence_id"]


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    """A client of a store with topics `t` and `plain` of two partitions."""
    txlog.init(str(tmp_path / "store"), durability="os")
    with txlog.open(str(tmp_path / "store")) as opened:
        for topic in ("t", "plain"):
            opened.create_topic(topic, partitions=2)
        yield opened


def messages(count: int = COUNT) -> pa.Table:
    """Messages with everything that a column may hold, the partition named."""
    return pa.table(
        {
            "key": pa.array([None if n % 5 == 0 else b"" if n % 7 == 0 else b"k\xff%d" % (n % 9)
                             for n in range(count)], pa.binary()),
            "value": pa.array([None if n % 11 == 0 else b"" if n % 13 == 0 else b"\0v%d" % n
                               for n in range(count)], pa.binary()),
            "properties": pa.array([None if n % 3 == 0 else [] if n % 4 == 0 else
                                    [("ä", f"ö{n}"), ("none", None), ("", "")]
                                    for n in range(count)], MESSAGE.field("properties").type),
            "event_time": pa.array([None if n % 6 == 0 else (n - 200) * 1_000_003 + n
                                    for n in range(count)], pa.timestamp("us", "UTC")),
            "deliver_at": pa.array([None if n % 4 else 1_700_000_000_000_000 + n
                                    for n in range(count)], pa.timestamp("us", "UTC")),
            "sequence_id": pa.array([None if n % 2 else (1 << 60) + n for n in range(count)],
                                    pa.int64()),
            "partition": pa.array([n * 2 // count for n in range(count)], pa.int32()),
        }
    )  # fmt: skip


def held(client: Client, topic: str) -> list[dict[str, Any]]:
    """The messages of a topic without what differs between two batches, in order."""
    found = []
    for partition in range(2):
        for table in client.read(topic, partitions=[partition]):
            found += table.select(["partition", *USER]).to_pylist()
    return found


def files_of(client: Client, topic: str) -> list[Path]:
    """The files of ledgers of a topic, in order of ledger."""
    return sorted(Path(client.path).glob(f"topics/*/*/{topic}/partition=*/ledger-*.parquet"),
                  key=lambda path: path.name)  # fmt: skip


def stages(client: Client) -> list[str]:
    """What lies below any _stage."""
    return sorted(str(path) for path in Path(client.path).glob("topics/**/_stage/**/*"))


def floored(micros: pa.ChunkedArray) -> pa.Array:
    """Instants in milliseconds, rounded down."""
    whole = [None if one is None else one // 1000 for one in micros.cast("int64").to_pylist()]
    return pa.array(whole, pa.timestamp("ms", "UTC"))


def test_messages_are_those_that_a_producer_stores(spark: SparkSession, client: Client) -> None:
    """Every column and its nulls, several files a partition, in order; whatever the session says.

    Kills: INT96, other units, an entry that does not begin at 0 in a second file, files of a mode
    that others may read, a session whose properties are changed.
    """
    table = messages()
    strange = {
        "spark.sql.parquet.outputTimestampType": "INT96",
        "spark.sql.parquet.writeLegacyFormat": "true",
        "spark.sql.files.maxRecordsPerFile": "7",
        "spark.sql.parquet.compression.codec": "gzip",
        "mapreduce.fileoutputcommitter.algorithm.version": "2",
    }
    for name, value in strange.items():
        spark.conf.set(name, value)
    try:
        frame = spark.createDataFrame(table)
        answer = bulk_load(
            frame.repartition(3), client.path, "t", txn_key="k", batch_id="1", file_rows=150,
            order_by=[F.coalesce("value", F.lit(b"")), "event_time", "sequence_id", "key"],
        )  # fmt: skip
        assert {name: spark.conf.get(name) for name in strange} == strange
    finally:
        for name in strange:
            spark.conf.unset(name)
    assert (answer["messages"], answer["files"], answer["already"]) == (COUNT, 4, False)
    for name in ("event_time", "deliver_at"):
        at = table.column_names.index(name)
        table = table.set_column(at, name, floored(table[name]))
    client.producer("plain").send_batch(table)
    sent, stored = held(client, "plain"), held(client, "t")
    assert sorted(stored, key=repr) == sorted(sent, key=repr)
    for partition in range(2):
        values = [one["value"] or b"" for one in stored if one["partition"] == partition]
        assert values == sorted(values) and len(values) == COUNT // 2
    payload = sum(len(one["key"] or b"") + len(one["value"] or b"") for one in sent)
    assert answer["size_bytes"] == payload
    for path in files_of(client, "t"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        file = pq.ParquetFile(path)
        assert file.schema_arrow.names == MESSAGE.names and file.schema_arrow.types == MESSAGE.types
        assert file.read(columns=["entry"])["entry"].to_pylist() == [*range(file.metadata.num_rows)]
        column = file.metadata.row_group(0).column(5)
        assert (column.path_in_schema, column.compression) == ("value", "ZSTD")
        assert column.statistics is None
    assert stages(client) == []
    columns = ["partition", "ledger", "entry", *USER]
    sql = f"SELECT {', '.join(columns)} FROM t ORDER BY partition, ledger, entry"
    as_sql = asked(client, sql)
    native = read(spark, client.path, "t").select(*columns).orderBy(*columns[:3]).toArrow()
    by_source = (
        spark.read.format("txlog").option("topic", "t").load(client.path)
        .select(*columns).orderBy(*columns[:3]).toArrow()
    )  # fmt: skip
    assert len(as_sql) == COUNT
    assert native.to_pylist() == as_sql == by_source.to_pylist()


def test_same_batch_again_computes_nothing(spark: SparkSession, client: Client) -> None:
    frame = spark.range(COUNT).select(F.col("id").alias("value"))
    answer = bulk_load(frame, client.path, "t", txn_key="k", batch_id="1")
    poison = frame.select(F.raise_error(F.lit("computed")).cast("binary").alias("value"))
    again = bulk_load(poison, client.path, "t", txn_key="k", batch_id="1")
    assert again == {**answer, "already": True}


def test_attempts_that_fail_leave_nothing(spark: SparkSession, client: Client) -> None:
    """The second attempt is stored, and the rows of the first, which had a file, are not."""

    @F.udf(returnType="string", useArrow=False)
    def fail_late(value: int, last: int) -> str:
        context = TaskContext.get()
        assert context is not None
        if value == last and context.attemptNumber() < 2:
            raise RuntimeError("the last row of the first attempts")
        return f"{value} {context.attemptNumber()}"

    # The rows fail behind the shuffle, in the task that writes.
    rows = spark.range(COUNT, numPartitions=1).select(
        fail_late("id", F.lit(COUNT - 1)).alias("value")
    )
    answer = bulk_load(rows, client.path, "t", txn_key="k", batch_id="1", file_rows=100)
    assert answer["messages"] == COUNT
    found = [one["value"].decode().split() for one in held(client, "t")]
    assert sorted(int(number) for number, _ in found) == [*range(COUNT)]
    assert {attempt for _, attempt in found} == {"2"} and stages(client) == []


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"value": "repeat('x', 6000000)"}, "a message has 6000000 bytes"),
        ({"key": "repeat('x', 70000)"}, "a key has 70000 bytes"),
        ({"deliver_after": "-1"}, "deliver_after is -1"),
        ({"deliver_after": "1", "deliver_at": "timestamp_millis(1)"}, "both"),
        ({"partition": "2"}, "partition 2 is not one of 0 to 1"),
        ({"partition": "CAST(NULL AS INT)"}, "partition null is not one"),
    ],
)  # fmt: skip
def test_what_a_producer_refuses_is_refused(
    spark: SparkSession, client: Client, columns: dict[str, str], text: str
) -> None:
    frame = spark.range(2, numPartitions=1).select(F.col("id").alias("value"))
    for name, column in columns.items():
        frame = frame.withColumn(name, F.expr(column))
    with pytest.raises(Exception, match=text):
        bulk_load(frame, client.path, "t", txn_key="k", batch_id="1")
    assert held(client, "t") == [] and stages(client) == []


def test_delays_count_from_the_job(spark: SparkSession, client: Client) -> None:
    table = pa.table({
        "value": [b"none", b"soon", b"never", b"at"],
        "deliver_after": pa.array([None, 5000, 1 << 62, None], pa.int64()),
        "deliver_at": pa.array([None, None, None, 7_000_000], pa.timestamp("us", "UTC")),
    })  # fmt: skip
    bulk_load(spark.createDataFrame(table), client.path, "t", txn_key="k", batch_id="1")
    found = {}
    for rows in client.read("t"):
        published = rows["publish_time"].cast("int64").to_pylist()
        times = rows["deliver_at"].cast("int64").to_pylist()
        for value, time_ms, at in zip(rows["value"].to_pylist(), published, times, strict=True):
            found[value] = None if at is None else (at, at - time_ms)
    assert found[b"none"] is None
    assert found[b"soon"] is not None and found[b"soon"][1] == 5000
    assert found[b"never"] is not None and found[b"never"][0] == INSTANT_MS_MAX
    assert found[b"at"] is not None and found[b"at"][0] == 7000


def test_large_messages_are_small_row_groups(spark: SparkSession, client: Client) -> None:
    """Else a reader of one message would decode hundreds of megabytes.

    Kills: the writer's default, which first looks at what it holds after a hundred rows.
    """
    noise = F.transform(F.sequence(F.lit(0), F.lit(4095)), lambda n: F.xxhash64("id", n))
    value = F.array_join(F.transform(noise, lambda n: F.hex(n)), "")
    frame = spark.range(400, numPartitions=1).select(value.alias("value"))
    answer = bulk_load(frame, client.path, "t", txn_key="k", batch_id="1")
    assert answer["size_bytes"] > 20_000_000
    (path,) = files_of(client, "t")
    metadata = pq.read_metadata(path)
    groups = [metadata.row_group(n).column(5) for n in range(metadata.num_row_groups)]
    assert groups[0].path_in_schema == "value"
    assert max(group.total_compressed_size for group in groups) <= 1.25 * GROUP_BYTES


def test_what_is_not_as_it_was_written_is_not_stored(
    spark: SparkSession, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flipped bit behind Spark's back; a file that another committer might have left."""
    frame = spark.range(COUNT).select(F.col("id").alias("value"))

    def damaged(rows: DataFrame, plan: Any, file_rows: int) -> None:
        write_files(rows, plan, file_rows)
        path = next(Path(plan.store, plan.directory).glob("part-00001-*.parquet"))
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)

    def twice(rows: DataFrame, plan: Any, file_rows: int) -> None:
        for _ in range(2):
            write_files(rows, plan, file_rows)

    for broken, error in ((damaged, Corruption), (twice, NotAllowed)):
        monkeypatch.setattr(loading, "write_files", broken)
        with pytest.raises(error):
            bulk_load(frame, client.path, "t", txn_key="k", batch_id="1")
        assert held(client, "t") == [] and stages(client) == []
