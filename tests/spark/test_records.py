"""Tests of records: values of typed topics are columns that Spark prunes, filters and writes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import txlog
from txlog import Client
from txlog.errors import InvalidArgument, InvalidMessage
from txlog.lake.sql.client_query import Query
from txlog.spark import bulk_load, read, register, release, schema_of

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("quick_disk")]


@dataclass
class Place:
    city: str
    code: int = 0


@dataclass
class First:
    cups: int
    place: Place
    tags: list[str]


@dataclass
class Second:
    cups: float
    place: Place
    tags: list[str]
    note: str | None = None


@pytest.fixture
def client(tmp_path: Path, spark: SparkSession) -> Iterator[Client]:
    """A client of a store whose topic `t` has rows of two versions in all places."""
    txlog.init(str(tmp_path / "store"), durability="os", schema_compatibility="backward")
    with txlog.open(str(tmp_path / "store")) as opened:
        opened.checkpoint_automatically = False
        opened.create_topic("t", schema=First)
        producer = opened.producer("t")
        for n in range(3):
            producer.send(First(n, Place("a", n), ["x"]))
        opened.checkpoint(roll_all=True)  # a sealed file of the first version
        opened.topic("t").schemas.add(Second)
        producer = opened.producer("t", schema=Second)
        producer.send(Second(3.5, Place("b"), []))
        opened.checkpoint(roll_all=True)  # of the second
        with opened.transaction() as txn:
            producer.send(Second(4.0, Place("c"), ["y", "z"], "n"), txn=txn)
        opened.checkpoint()  # a part
        producer.send(Second(5.0, Place("d"), []))  # the journal
        yield opened
    spark.sql("DROP DATABASE IF EXISTS shop CASCADE")
    release(spark)


def rows(frame: DataFrame) -> list[dict[str, Any] | None]:
    """The records of a frame, by their first field."""
    records = [row.record and row.record.asDict(recursive=True) for row in frame.collect()]
    return sorted(records, key=lambda record: -1 if record is None else record["cups"])


def of_duckdb(client: Client, topic: str = "t") -> list[dict[str, Any] | None]:
    """The same by SQL."""
    with Query(client, f"SELECT record FROM {topic}") as query:
        records = [row["record"] for batch in query.rows() for row in batch.to_pylist()]
    return sorted(records, key=lambda record: -1 if record is None else record["cups"])


def test_records_match_duckdb_in_files_of_every_kind(spark: SparkSession, client: Client) -> None:
    expected = of_duckdb(client)
    assert len(expected) == 6 and expected[0] is not None and expected[0]["note"] is None
    frame = read(spark, client.path, "t")
    assert frame.columns.index("record") == frame.columns.index("deliver_at") + 1
    assert rows(frame) == expected
    source = spark.read.format("txlog").option("topic", "t").load(client.path)
    assert rows(source) == expected
    assert source.schema["record"].dataType == frame.schema["record"].dataType
    register(spark, client.path, database="shop")
    assert rows(spark.table("shop.t")) == expected
    filtered = frame.where("record.place.city = 'c'").select("record.tags", "record.note").collect()
    assert [(row.tags, row.note) for row in filtered] == [(["y", "z"], "n")]


def test_fields_are_pruned_and_filters_reach_the_files(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "one")
    txlog.init(path, durability="os")
    with txlog.open(path) as opened:
        opened.create_topic("t", schema=Second)
        source_rows = spark.range(50).select(
            F.struct(
                F.col("id").cast("double").alias("cups"),
                F.struct(F.lit("a").alias("city"), F.lit(1).alias("code")).alias("place"),
                F.array(F.lit("x")).alias("tags"),
            ).alias("record")
        )
        bulk_load(source_rows, path, "t", txn_key="k", batch_id="1")
    filtered = read(spark, path, "t").where("record.cups > 44").select("record.place.code")
    assert filtered.count() == 5
    plan = filtered._jdf.queryExecution().executedPlan().toString()
    assert "ReadSchema: struct<record:struct<cups:double,place:struct<code:bigint>>>" in plan
    assert "GreaterThan(record.cups,44.0)" in plan
    release(spark)


def test_frames_are_written_by_the_schema(spark: SparkSession, client: Client) -> None:
    """A consumer decodes what bulk_load, the sink and INSERT wrote; no other is stored."""
    source_rows = spark.sql(
        "SELECT named_struct('cups', 7, 'place', named_struct('city', 'q'), 'tags', array('t'))"
        " AS record, 'k' AS key"
    )
    bulk_load(source_rows, client.path, "t", txn_key="k", batch_id="1")
    options = {"topic": "t", "txnKey": "k", "batchId": "2"}
    source_rows.write.format("txlog").mode("append").options(**options).save(client.path)
    register(spark, client.path, database="shop")
    spark.sql("INSERT INTO shop.t (record) SELECT record FROM shop.t WHERE record.cups = 3.5")
    records: list[Any] = [record.decode() for record in client.reader("t")]
    assert [record["cups"] for record in records[6:]] == [7.0, 7.0, 3.5]
    assert records[6] == {
        "cups": 7.0,
        "place": {"city": "q", "code": 0},
        "tags": ["t"],
        "note": None,
    }
    assert rows(read(spark, client.path, "t")) == of_duckdb(client)
    flat = spark.sql("SELECT 8 AS cups, named_struct('city', 'f') AS place, array('u') AS tags")
    bulk_load(flat, client.path, "t", txn_key="k", batch_id="flat")
    options["batchId"] = "flat too"
    flat.write.format("txlog").mode("append").options(**options).save(client.path)
    records = [record.decode() for record in client.reader("t")]
    assert [(record["cups"], record["place"]["city"]) for record in records[9:]] == [(8.0, "f")] * 2
    with pytest.raises(InvalidArgument, match="a message has no column sugar"):
        bulk_load(flat.withColumn("sugar", F.lit(1)), client.path, "t", txn_key="k", batch_id="4")
    wrong = spark.sql("SELECT named_struct('cups', 'many') AS record")
    with pytest.raises(InvalidMessage, match="schema 2 of topic t: row 0: cups"):
        bulk_load(wrong, client.path, "t", txn_key="k", batch_id="3")
    client.create_topic("plain")
    with pytest.raises(InvalidArgument, match="has no schema to write records by"):
        bulk_load(source_rows, client.path, "plain", txn_key="p", batch_id="1")


def test_schema_of_a_frame_makes_a_topic_for_its_rows(spark: SparkSession, client: Client) -> None:
    """Kills a topic that has to be described twice: once by Spark, once by hand."""
    frame = spark.sql(
        """SELECT 1S AS small, CAST(1.50 AS DECIMAL(12, 2)) AS price,
        TIMESTAMP '2026-11-26 10:00:00' AS at,
        TIMESTAMP_NTZ '2026-11-26 10:00:00' AS here, DATE '2026-11-26' AS day,
        array(named_struct('no', 1, 'text', 'caf\u00e9'), null) AS legs, map('a', 1L) AS counts,
        X'00FF' AS raw, CAST(null AS STRING) AS nothing"""
    )
    client.create_topic("trips", schema=schema_of(frame))
    client.create_topic("avro", schema=schema_of(frame.schema, "avro"))
    for topic in ("trips", "avro"):
        bulk_load(frame, client.path, topic, txn_key=topic, batch_id="1")
        stored = read(spark, client.path, topic).select("record.*")
        (stored_row,), (row,) = stored.collect(), frame.collect()
        assert stored_row.asDict(recursive=True) == row.asDict(recursive=True)
    with pytest.raises(InvalidArgument, match="schema: "):
        schema_of(spark.sql("SELECT INTERVAL '1' MONTH AS wait"))


def test_stream_of_records_into_records(
    spark: SparkSession, client: Client, tmp_path: Path
) -> None:
    """A small batch is rows of the journal, which are still known to fit the schema."""
    client.create_topic("copy", schema=Second)
    source = spark.readStream.format("txlog").option("topic", "t").load(client.path)
    query = (
        source.select("key", "record")
        .writeStream.format("txlog")
        .options(path=client.path, topic="copy", checkpointLocation=str(tmp_path / "ck"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert {message.schema_version for message in client.reader("copy")} == {1}
    assert of_duckdb(client, "copy") == of_duckdb(client)
    assert rows(read(spark, client.path, "copy")) == of_duckdb(client)


def test_arrow_fields_by_name() -> None:
    from txlog.lake.spark.records import as_type

    column = pa.array(
        [{"a": 1, "b": "x"}, None], pa.struct([("a", pa.int32()), ("b", pa.string())])
    )
    target = pa.struct([("c", pa.string()), ("a", pa.int64())])
    assert as_type(column, target).to_pylist() == [{"c": None, "a": 1}, None]
