"""Tests of the sinks: Spark's rows are stored exactly once, through failures and retries."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSourceWriter
from pyspark.sql.types import StructType

import txlog
from txlog import Client
from txlog.client.sending.bulk import stage
from txlog.engine.upkeep.space import adopt
from txlog.errors import InvalidArgument
from txlog.lake.spark.datasource import TxlogSource
from txlog.lake.spark.sink import BatchSink, StreamSink, Written, batch_sink
from txlog.spark import bulk_load

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("quick_disk")]
COUNT = 500


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    """A client of a store with a topic `orders` of two partitions."""
    txlog.init(str(tmp_path / "store"), durability="os")
    with txlog.open(str(tmp_path / "store")) as opened:
        opened.create_topic("orders", partitions=2)
        yield opened


def orders(spark: SparkSession, count: int = COUNT, tasks: int = 2) -> DataFrame:
    """So many messages with keys and instants."""
    frame = spark.range(count, numPartitions=tasks)
    return frame.select(
        F.col("id").cast("string").alias("value"),
        F.concat(F.lit("k"), F.col("id") % 17).alias("key"),
        F.timestamp_millis("id").alias("event_time"),
        F.create_map(F.lit("n"), F.col("id").cast("string")).alias("properties"),
    )


def write(frame: DataFrame, client: Client, batch: str = "1", **options: str) -> None:
    """Write a batch."""
    all_options = {"topic": "orders", "txnKey": "k", "batchId": batch, **options}
    frame.write.format("txlog").mode("append").options(**all_options).save(client.path)


def held(client: Client, topic: str = "orders") -> list[int]:
    """The numbers that the topic holds, in order of number."""
    return sorted(int(row) for table in client.read(topic) for row in table["value"].to_pylist())


def stages(client: Client) -> list[str]:
    """The files below any _stage."""
    return sorted(str(path) for path in Path(client.path).glob("topics/**/_stage/**/*"))


def refused(frame: DataFrame, client: Client, **options: str) -> str:
    """The text of the error of a write."""
    with pytest.raises(Exception) as caught:
        write(frame, client, **options)
    return str(caught.value)


def test_struct_is_refused_in_the_first_line(spark: SparkSession, client: Client) -> None:
    first_line = refused(spark.sql("SELECT struct(1 AS n) AS value"), client).splitlines()[0]
    assert first_line.endswith(
        "is struct<n:int>, it must be binary or text; to_json(value) AS value"
    )


class TestBatch:
    """df.write.format("txlog")."""

    def test_rows_are_messages_where_a_producer_puts_them(
        self, spark: SparkSession, client: Client
    ) -> None:
        write(orders(spark), client)
        table = pa.concat_tables(client.read("orders")).sort_by("event_time")
        assert table["value"].to_pylist() == [b"%d" % n for n in range(COUNT)]
        assert table["event_time"].cast("int64").to_pylist() == [*range(COUNT)]
        assert table["properties"].to_pylist()[7] == [("n", "7")]
        for key, partition in zip(
            table["key"].to_pylist(), table["partition"].to_pylist(), strict=True
        ):
            assert partition == crc32(key) % 2
        assert stages(client) == []

    def test_same_batch_again_writes_nothing(self, spark: SparkSession, client: Client) -> None:
        """The driver tells the tasks that the batch is stored: they would fail if they staged."""
        write(orders(spark), client)
        first = client.bulk("orders", key="k", batch="1").stored
        stage = next(Path(client.path).glob("topics/**/_stage"))
        stage.rmdir()
        stage.touch()
        write(orders(spark), client)
        stage.unlink()
        assert held(client) == [*range(COUNT)]
        assert client.bulk("orders", key="k", batch="1").stored == first
        write(orders(spark, 3), client, batch="2")
        assert len(held(client)) == COUNT + 3

    def test_task_that_failed_is_tried_again(self, spark: SparkSession, client: Client) -> None:
        """A real second attempt: the topic has no message of the first attempt's files."""

        @F.udf(returnType="string", useArrow=False)
        def fail_late(value: str) -> str:
            context = TaskContext.get()
            assert context is not None
            if context.attemptNumber() < 2 and value == str(COUNT - 1):
                raise RuntimeError("the last row of the first attempts")
            return value

        rows = orders(spark).withColumn("value", fail_late("value"))
        write(rows, client)
        assert held(client) == [*range(COUNT)]
        assert stages(client) == []

    def test_job_that_fails_leaves_nothing(self, spark: SparkSession, client: Client) -> None:
        @F.udf(returnType="string", useArrow=False)
        def fail(value: str) -> str:
            if value == str(COUNT - 1):
                raise RuntimeError("it always fails")
            return value

        # One task: a second one might still write when the first has failed, and its files stay
        # until `stage_ttl_ms` is over.
        rows = orders(spark).coalesce(1).withColumn("value", fail("value"))
        assert "it always fails" in refused(rows, client)
        assert held(client) == [] and stages(client) == []
        assert client.bulk("orders", key="k", batch="1").stored is None
        write(orders(spark), client)
        assert held(client) == [*range(COUNT)]

    def test_error_behind_the_commit_takes_nothing_back(
        self, spark: SparkSession, client: Client
    ) -> None:
        """Spark calls abort with all messages then; the batch is stored, and stays."""

        class Broken(BatchSink):
            def commit(self, messages: Any) -> None:
                BatchSink.commit(self, messages)
                raise RuntimeError("behind the frame")

        class Source(TxlogSource):
            @classmethod
            def name(cls) -> str:
                return "txlog-broken"

            def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
                made = batch_sink(self.options, schema, overwrite)
                return Broken(made._plan, is_stored=made._is_stored)

        spark.dataSource.register(Source)
        options = {"topic": "orders", "txnKey": "k", "batchId": "1"}
        writer = orders(spark).write.format("txlog-broken").mode("append").options(**options)
        with pytest.raises(Exception, match="behind the frame"):
            writer.save(client.path)
        assert held(client) == [*range(COUNT)] and stages(client) == []
        write(orders(spark), client)
        assert held(client) == [*range(COUNT)]

    def test_bad_options_and_columns_are_refused(self, spark: SparkSession, client: Client) -> None:
        rows = orders(spark, 2)
        assert "txnKey is missing" in refused(rows, client, txnKey="")
        assert "no option colour" in refused(rows, client, colour="red")
        assert "no column extra" in refused(rows.withColumn("extra", F.lit(1)), client)
        floats = spark.range(2).select(F.col("id").cast("float").alias("value"))
        assert "column value is float" in refused(floats, client)
        assert "TopicNotFound" in refused(rows, client, topic="none")
        with pytest.raises(Exception, match="cannot be overwritten"):
            rows.write.format("txlog").mode("overwrite").options(
                topic="orders", txnKey="k", batchId="1"
            ).save(client.path)
        assert held(client) == []


class TestBulkLoad:
    """txlog.spark.bulk_load."""

    def test_frame_is_cast_routed_sorted(self, spark: SparkSession, client: Client) -> None:
        frame = spark.range(COUNT, numPartitions=3).select(
            F.col("id").alias("value"),
            (F.col("id") % 17).alias("key"),
            (F.col("id").cast("double")).cast("timestamp").alias("event_time"),
        )
        answer = bulk_load(
            frame, client.path, "orders", txn_key="k", batch_id="1", order_by=["event_time"]
        )
        assert (answer["already"], answer["messages"], answer["files"]) == (False, COUNT, 2)
        for partition in range(2):
            (table,) = client.read("orders", partitions=[partition])
            numbers = [int(value) for value in table["value"].to_pylist()]
            assert numbers == [n for n in range(COUNT) if crc32(b"%d" % (n % 17)) % 2 == partition]
        second_answer = bulk_load(frame, client.path, "orders", txn_key="k", batch_id="1")
        assert second_answer == {**answer, "already": True}
        with pytest.raises(InvalidArgument):
            bulk_load(
                frame.withColumn("x", F.lit(1)), client.path, "orders", txn_key="k", batch_id="2"
            )

    def test_empty_frame_stores_nothing(self, spark: SparkSession, client: Client) -> None:
        frame = orders(spark, 0)
        answer = bulk_load(frame, client.path, "orders", txn_key="k", batch_id="1")
        assert (answer["already"], answer["messages"]) == (False, 0)


class TestStream:
    """writeStream.format("txlog")."""

    def test_stream_is_stored_once_through_restarts(
        self, spark: SparkSession, client: Client, tmp_path: Path
    ) -> None:
        """The commit of a batch is lost, so Spark runs it again; then the query goes on."""
        source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
        source.mkdir()

        def feed(first: int) -> None:
            orders(spark, COUNT).where(F.col("value").cast("int") >= first).write.mode(
                "overwrite"
            ).parquet(str(tmp_path / "made"))
            for number, path in enumerate(sorted((tmp_path / "made").glob("part-*.parquet"))):
                shutil.move(path, source / f"{first}-{number}.parquet")

        def run(**options: str) -> None:
            frame = (
                spark.readStream.schema(orders(spark, 1).schema)
                .option("maxFilesPerTrigger", 1)
                .parquet(str(source))
            )
            query = (
                frame.writeStream.format("txlog")
                .options(topic="orders", checkpointLocation=str(checkpoint), **options)
                .trigger(availableNow=True)
                .start(client.path)
            )
            query.awaitTermination()

        feed(0)
        run()
        assert held(client) == [*range(COUNT)]
        lost = sorted(path for path in (checkpoint / "commits").glob("*") if path.name.isdecimal())
        assert len(lost) == 2
        for path in (lost[-1], lost[-1].with_name(f".{lost[-1].name}.crc")):
            path.unlink()
        run()
        assert held(client) == [*range(COUNT)]
        feed(COUNT - 10)
        run()
        assert held(client) == sorted([*range(COUNT), *range(COUNT - 10, COUNT)])
        assert stages(client) == []

    def test_name_belongs_to_one_checkpoint(
        self, spark: SparkSession, client: Client, tmp_path: Path
    ) -> None:
        """Kills: batches of a new checkpoint that are taken for those stored under the name."""
        client.create_topic("other", partitions=2)

        def load(rows: DataFrame, number: int) -> None:
            rows = rows.select("value", "key")
            bulk_load(rows, client.path, "other", txn_key="each", batch_id=str(number))

        def run(checkpoint: str, *, by_function: bool) -> None:
            for number in range(2):
                write(orders(spark, 3), client, topic="in", txnKey="in", batchId=f"{number}")
            frame = spark.readStream.format("txlog").option("topic", "in").load(client.path)
            writer = frame.select("value", "key").writeStream.trigger(availableNow=True)
            writer = writer.option("checkpointLocation", str(tmp_path / checkpoint))
            if by_function:
                query = writer.foreachBatch(load).start()
            else:
                writer = writer.format("txlog").options(topic="orders", txnAppId="app")
                query = writer.start(client.path)
            query.awaitTermination()

        client.create_topic("in")
        for topic, by_function in (("orders", False), ("other", True)):
            run(f"first {topic}", by_function=by_function)
            run(f"first {topic}", by_function=by_function)
            count_before = len(list(client.reader(topic)))
            assert count_before == 6
            with pytest.raises(Exception, match="of another checkpoint"):
                run(f"second {topic}", by_function=by_function)
            assert len(list(client.reader(topic))) == count_before
        assert stages(client) == []


class TestSmallFiles:
    """Both sinks warn of small files that a batch need not have."""

    KEYED = pa.table({"value": ["a"] * 8, "key": [str(n) for n in range(8)]})  # of both partitions

    def test_batch_warns_once_it_is_stored(
        self, client: Client, caplog: pytest.LogCaptureFixture
    ) -> None:
        for batch, tasks, warning in (
            ("1", 2, "orders: 4 of 4 files of this batch are below 4 MiB, for 2 partitions"),
            ("2", 1, ""),  # a file each is the least
            ("1", 2, ""),  # nothing was written
        ):
            caplog.clear()
            bulk = client.bulk("orders", key="k", batch=batch)
            sink = BatchSink(bulk.plan, is_stored=bulk.stored is not None)
            rows = self.KEYED.to_batches()
            sink.commit([sink.write(iter(rows)) for _ in range(tasks)])
            assert client.bulk("orders", key="k", batch=batch).stored is not None
            assert (warning in caplog.text) if warning else not caplog.text

    def test_stream_of_small_batches_makes_no_files(
        self, client: Client, caplog: pytest.LogCaptureFixture
    ) -> None:
        for batch in range(10):
            sink = StreamSink({"txnAppId": "app"}, client.plan_stage("orders"))
            written = [Written(stage(sink._plan, [self.KEYED], n), sink._plan) for n in (0, 1)]
            for _ in range(2):  # Spark repeats a batch whose end it does not know
                sink.commit(written, batch)
        assert [*Path(client.path).glob("topics/**/*.parquet")] == []
        assert sum(table.num_rows for table in client.read("orders")) == 20 * len(self.KEYED)
        assert caplog.text == ""

    def test_stream_warns_ever_more_seldom(
        self, client: Client, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(adopt, "ROWS_MAX", 0)
        warned = []
        for batch in range(10):
            caplog.clear()
            sink = StreamSink({"txnAppId": "app"}, client.plan_stage("orders"))
            written = [Written(stage(sink._plan, [self.KEYED], n), sink._plan) for n in (0, 1)]
            sink.commit(written, batch)
            warned += [batch] if "4 of 4 files" in caplog.text else []
        assert warned == [0, 1, 2, 4, 8]
        assert len(list(client.reader("orders"))) == 160
