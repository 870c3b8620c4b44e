"""Format `txlog` accepts the options that Spark's own readers and writers set, and refuses its own
misspelled options as early as possible."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrameReader, DataFrameWriter, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

import txlog
from txlog import Client

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("quick_disk")]


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    path = str(tmp_path / "store")
    txlog.init(path, durability="os", free_bytes_min=0)
    with txlog.open(path) as opened:
        for topic in ("t", "out"):
            opened.create_topic(topic)
        opened.producer("t").send(b"a")
        yield opened


# Calls without a meaning for the source: other formats, tables, and the start of a query.
OTHER = set(
    "format option options load json table changes parquet text csv xml orc jdbc save insertInto"
    " saveAsTable foreach foreachBatch start toTable".split()
)
READER: dict[str, Callable[[Any], Any]] = {"schema": lambda it: it.schema("value binary")}
STREAM_READER: dict[str, Callable[[Any], Any]] = {
    "schema": lambda it: it.schema("value binary"),
    "name": lambda it: it,  # Spark refuses it for every source, unless a setting is on
}
WRITER: dict[str, Callable[[Any], Any]] = {"mode": lambda it: it.mode("append")}
# Spark itself refuses these for a source that has no table of its own.
WRITER_REFUSED = {"partitionBy", "bucketBy", "sortBy", "clusterBy"}
STREAM_WRITER: dict[str, Callable[[Any], Any]] = {
    "outputMode": lambda it: it.outputMode("append"),
    "partitionBy": lambda it: it.partitionBy("value"),
    "clusterBy": lambda it: it.clusterBy("value"),
    "queryName": lambda it: it.queryName("a query of ours"),
    "trigger": lambda it: it.trigger(availableNow=True),
}


def test_every_call_of_spark_is_listed() -> None:
    for kind, calls in (
        (DataFrameReader, READER),
        (DataFrameWriter, {**WRITER, **dict.fromkeys(WRITER_REFUSED)}),
        (DataStreamReader, STREAM_READER),
        (DataStreamWriter, STREAM_WRITER),
    ):
        assert {name for name in vars(kind) if name[0] != "_"} - OTHER == {*calls}, kind


def stream(spark: SparkSession, client: Client, *, change: str = "") -> Any:
    reader = spark.readStream.format("txlog").option("topic", "t")
    reader = reader.option("startingPosition", "start")
    return STREAM_READER.get(change, lambda it: it)(reader).load(client.path).select("value")


def copied(client: Client, frame: Any, folder: Path, change: Callable[[Any], Any]) -> list[Any]:
    writer = frame.writeStream.format("txlog").option("topic", "out")
    writer = writer.option("checkpointLocation", str(folder)).trigger(availableNow=True)
    query = change(writer).start(client.path)
    query.awaitTermination(120)
    assert query.exception() is None
    return [message.value for message in client.reader("out")]


@pytest.mark.parametrize("name", READER)
def test_options_of_a_reader_are_accepted(spark: SparkSession, client: Client, name: str) -> None:
    reader = READER[name](spark.read.format("txlog").option("topic", "t"))
    for place in (client.path, [client.path]):
        assert [bytes(row.value) for row in reader.load(place).collect()] == [b"a"]


@pytest.mark.parametrize("name", WRITER)
def test_options_of_a_writer_are_accepted(spark: SparkSession, client: Client, name: str) -> None:
    frame = spark.read.format("txlog").option("topic", "t").load(client.path).select("value")
    writer = frame.write.format("txlog").mode("append").option("topic", "out")
    WRITER[name](writer.option("txnKey", "k").option("batchId", "1")).save(client.path)
    assert [message.value for message in client.reader("out")] == [b"a"]


@pytest.mark.parametrize("name", STREAM_READER)
def test_options_of_a_stream_reader_are_accepted(
    spark: SparkSession, client: Client, tmp_path: Path, name: str
) -> None:
    frame = stream(spark, client, change=name)
    assert copied(client, frame, tmp_path / "checkpoint", lambda it: it) == [b"a"]


@pytest.mark.parametrize("name", STREAM_WRITER)
def test_options_of_a_stream_writer_are_accepted(
    spark: SparkSession, client: Client, tmp_path: Path, name: str
) -> None:
    """Spark passes the name of a query, which users set to monitor it, as an option."""
    frame = stream(spark, client)
    assert copied(client, frame, tmp_path / "checkpoint", STREAM_WRITER[name]) == [b"a"]


WRONG: list[tuple[dict[str, str], str]] = [
    ({"topic": "t", "startingPositon": "start"}, "did you mean startingPosition"),
    ({"topic": "t", "maxRowsPerTrigger": "many"}, "it must be a number"),
    ({"topic": "t", "startingPosition": "soon"}, "not a bound"),
    ({"topic": "t", "failOnDataLoss": "maybe"}, "true or false"),
    ({"topik": "t"}, "option topi"),
    ({"topic": "t", "queryNames": "x"}, "no option queryname"),
]


@pytest.mark.parametrize(("options", "why"), WRONG)
def test_wrong_options_of_a_stream_are_found_by_load(
    spark: SparkSession, client: Client, options: dict[str, str], why: str
) -> None:
    with pytest.raises(PySparkException, match=why) as caught:
        spark.readStream.format("txlog").options(**options).load(client.path)
    assert "UnboundLocalError" not in str(caught.value)


def test_batch_option_of_a_stream_has_a_plain_error(
    spark: SparkSession, client: Client, tmp_path: Path
) -> None:
    """`load` cannot know whether a batch or a stream is read."""
    frame = spark.readStream.format("txlog").options(topic="t", start="start").load(client.path)
    writer = frame.select("value").writeStream.format("txlog").option("topic", "out")
    writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(PySparkException, match="it is for reading a batch") as caught:
        writer.trigger(availableNow=True).start(client.path).awaitTermination(120)
    assert "UnboundLocalError" not in str(caught.value)
