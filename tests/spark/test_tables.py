"""Tests of tables: SQL without a path, INSERT, errors, and options of other sources."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import txlog
from txlog import Client
from txlog.base.ranges import Bound
from txlog.errors import InvalidArgument, TxlogError
from txlog.lake.spark.datasource import SCHEMA, TxlogSource, first_line
from txlog.lake.spark.options import batch_options, stream_options
from txlog.spark import register, release

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("quick_disk")]
WITH_BOTH = "INSERT INTO shop.bills WITH ('txnKey' = 'k', 'batchId' = '1') (key, value)"


@pytest.fixture
def client(tmp_path: Path, spark: SparkSession) -> Iterator[Client]:
    """A client of a store with three messages in `orders`, at a path that is hard to quote."""
    path = str(tmp_path / "it's 100%25")
    txlog.init(path, durability="os")
    with txlog.open(path) as opened:
        opened.create_topic("orders", partitions=2)
        opened.create_topic("bills-eu")
        producer = opened.producer("orders")
        for n in range(3):
            producer.send(b"v%d" % n, key=b"k%d" % n)
        yield opened
    spark.sql("DROP DATABASE IF EXISTS shop CASCADE")
    release(spark)


def ask(spark: SparkSession, sql: str) -> list[tuple[object, ...]]:
    """The rows of a query."""
    return sorted(tuple(row) for row in spark.sql(sql).collect())


def first_of(spark: SparkSession, sql: str) -> str:
    """The first line of the error of a statement."""
    with pytest.raises(Exception) as caught:
        spark.sql(sql).collect()
    return str(caught.value).splitlines()[0]


def held(client: Client, topic: str) -> list[bytes]:
    """The values of a topic."""
    return [message.value or b"" for message in client.reader(topic)]


def test_tables_show_the_current_messages_of_topics(spark: SparkSession, client: Client) -> None:
    assert register(spark, client.path, database="shop") == ["shop.bills_eu", "shop.orders"]
    assert ask(spark, "SELECT string(key), string(value), topic FROM shop.orders") == [
        ("k0", "v0", "orders"), ("k1", "v1", "orders"), ("k2", "v2", "orders"),
    ]  # fmt: skip
    client.producer("orders").send(b"v3")
    assert ask(spark, "SELECT count(*) FROM shop.orders") == [(4,)]
    assert ask(spark, "SELECT count(*) FROM shop.orders WITH (`start` = 'end')") == [(0,)]
    client.create_topic("later")
    assert "shop.later" in register(spark, client.path, database="shop")


def test_insert_takes_the_columns_that_it_has(spark: SparkSession, client: Client) -> None:
    register(spark, client.path, database="shop", topics={"orders": "orders", "bills": "bills-eu"})
    for _ in range(2):  # a statement without a batch id is a new batch
        spark.sql("INSERT INTO shop.bills (value) VALUES (X'61')")
    assert held(client, "bills-eu") == [b"a", b"a"]
    for _ in range(2):
        spark.sql(f"{WITH_BOTH} SELECT key, value FROM shop.orders")
    assert sorted(held(client, "bills-eu")[2:]) == [b"v0", b"v1", b"v2"]
    spark.sql("SELECT X'62' AS value, 0 AS partition").writeTo("shop.bills").append()
    assert held(client, "bills-eu")[-1] == b"b"
    assert [row["transaction_key"] for row in client.admin.transaction_keys()] == ["k"]
    error = first_of_worker(spark, "INSERT INTO shop.bills SELECT * FROM shop.orders")
    assert error.endswith(
        "the column topic is set by the store; "
        "name the columns: INSERT INTO TABLE (key, value) SELECT key, value FROM …"
    )
    error = first_of(spark, "INSERT OVERWRITE shop.bills (value) VALUES (X'61')")
    assert error.endswith("a topic cannot be overwritten; mode append")
    assert len(held(client, "bills-eu")) == 6


def first_of_worker(spark: SparkSession, sql: str) -> str:
    """The first line of the error of a task, which Spark puts under one of its own."""
    with pytest.raises(Exception) as caught:
        spark.sql(sql)
    return str(caught.value).splitlines()[1]


def test_dropping_tables_removes_no_message(spark: SparkSession, client: Client) -> None:
    register(spark, client.path, database="shop")
    spark.sql("DROP TABLE shop.orders PURGE")
    register(spark, client.path, database="shop")
    spark.sql("DROP DATABASE shop CASCADE")
    assert sorted(held(client, "orders")) == [b"v0", b"v1", b"v2"]


def test_view_is_written_and_read_with_one_set_of_options(
    spark: SparkSession, client: Client
) -> None:
    spark.sql(
        f"""CREATE OR REPLACE TEMPORARY VIEW bills USING txlog
        OPTIONS (path "{client.path}", topic 'bills-eu', txnKey 'k', batchId '7')"""
    )
    spark.sql("INSERT INTO bills (key, value) VALUES (X'61', X'62')")
    assert ask(spark, "SELECT string(key), string(value) FROM bills") == [("a", "b")]


def test_table_by_hand_works_or_is_refused_at_once(spark: SparkSession, client: Client) -> None:
    spark.sql("CREATE DATABASE shop")
    create, path = "CREATE TABLE shop.t USING txlog", f'path "{client.path}"'
    for options, why in (
        ("", "the option path is missing; OPTIONS (path 'STORE', topic 'TOPIC')"),
        (f"OPTIONS ({path})", "the option topic is missing; OPTIONS (path 'STORE', topic 'TOPIC')"),
        (f"OPTIONS ({path}, topic 'odrers')", "topic odrers does not exist; did you mean orders?"),
        (f"OPTIONS ({path}, topics 'orders')", "no option topics; did you mean topic?"),
        (f"OPTIONS ({path}, topic 'orders', columns 'key,valeu')", "valeu; did you mean value?"),
    ):
        assert first_of(spark, f"{create} {options}").endswith(why)
    spark.sql(f"{create} OPTIONS ({path}, topic 'orders', columns 'key,value')")
    assert spark.table("shop.t").columns == ["key", "value"]
    assert ask(spark, "SELECT string(value) FROM shop.t") == [("v0",), ("v1",), ("v2",)]
    spark.sql("INSERT INTO shop.t VALUES (X'61', X'62')")
    assert held(client, "orders")[-1] in (b"b", b"v2") and len(held(client, "orders")) == 4
    spark.sql(f"CREATE TABLE shop.u (value binary) USING txlog OPTIONS ({path}, topic 'orders')")
    assert first_of(spark, "SELECT * FROM shop.u").endswith("leave out the list")


def test_stream_reads_a_table(spark: SparkSession, client: Client, tmp_path: Path) -> None:
    register(spark, client.path, database="shop")
    query = (
        spark.readStream.option("startingOffsets", "earliest")
        .table("shop.orders")
        .select("key", "value")
        .writeStream.format("txlog")
        .options(path=client.path, topic="bills-eu", checkpointLocation=str(tmp_path / "ck"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert sorted(held(client, "bills-eu")) == [b"v0", b"v1", b"v2"]


def test_snapshot_is_views_of_one_moment(spark: SparkSession, client: Client) -> None:
    names = register(spark, client.path, snapshot=True, columns=["topic", "value"])
    try:
        assert names == ["bills_eu", "orders"]
        client.producer("orders").send(b"v3")
        both = "SELECT topic, count(*) FROM (TABLE orders UNION ALL TABLE bills_eu) GROUP BY 1"
        assert ask(spark, both) == [("orders", 3)]
    finally:
        for name in names:
            spark.catalog.dropTempView(name)


def test_names_that_would_be_one_are_refused(spark: SparkSession, client: Client) -> None:
    client.create_topic("bills.eu")
    with pytest.raises(InvalidArgument, match="would have one name, bills_eu"):
        register(spark, client.path, database="shop")
    spark.sql("CREATE DATABASE shop")
    spark.sql("CREATE TABLE shop.orders (id int) USING parquet")
    with pytest.raises(InvalidArgument, match=r"table shop\.orders that is not one of txlog"):
        register(spark, client.path, database="shop", topics=["orders"])
    with pytest.raises(InvalidArgument, match="is not a name for Spark"):
        register(spark, client.path, database="shop; DROP", topics=["orders"])


class TestOptions:
    """Options of the source `kafka`, and misspelled names."""

    def test_options_of_kafka_that_mean_the_same(self) -> None:
        options = stream_options(
            {
                "path": "p", "subscribe": "orders", "startingOffsets": "latest",
                "maxOffsetsPerTrigger": "7", "failOnDataLoss": "false",
            }
        )  # fmt: skip
        assert (options.topic, options.starting, options.rows_max) == ("orders", Bound("end"), 7)
        batch = batch_options(
            {
                "path": "p", "subscribe": "orders", "startingOffsets": "earliest",
                "endingOffsets": "latest", "failOnDataLoss": "true",
            }
        )  # fmt: skip
        assert batch.topic == "orders"
        assert (batch.wanted.range.start, batch.wanted.range.stop) == (Bound("start"), Bound("end"))
        latest = stream_options({"path": "p", "topic": "t", "startingPosition": "latest"})
        assert latest.starting == Bound("end")

    @pytest.mark.parametrize(
        ("options", "why"),
        [
            ({"kafka.bootstrap.servers": "h:9092"}, "path is the directory of the store"),
            ({"kafka.group.id": "g"}, "subscription"),
            ({"kafka.security.protocol": "SSL"}, "there is no client to configure"),
            ({"subscribePattern": "o.*"}, "read takes a list"),
            ({"assign": "{}"}, "topic 'orders/2' is one partition"),
            ({"subscribe": "a,b"}, "read takes a list"),
            ({"subscribe": "a", "topic": "a"}, "are the same"),
            ({"startingOffsets": '{"a":{"0":5}}'}, "there are no offsets, a position is L:E"),
            ({"startingTimestamp": "5"}, "start '@TIME' in a batch"),
            ({"maxOffsetsPerTrigger": "5"}, "maxRowsPerTrigger, for reading a stream"),
            ({"maxRowsPerTrigger": "5"}, "it is for reading a stream"),
            ({"failOnDataLoss": "false"}, "it is for reading a stream"),
            ({"isolatoin": "5"}, "did you mean isolation"),
        ],
    )
    def test_other_options_of_kafka_have_a_hint(self, options: dict[str, str], why: str) -> None:
        with pytest.raises(InvalidArgument) as caught:
            batch_options({"path": "p", **options})
        assert why in f"{caught.value}; {caught.value.hint}"

    def test_source_with_columns_has_these(self, tmp_path: Path) -> None:
        options = {"path": str(tmp_path / "s"), "topic": "t"}
        txlog.init(options["path"])
        with txlog.open(options["path"]) as client:
            client.create_topic("t")
        source = TxlogSource({**options, "columns": "value, key"})
        assert source.schema() == "value binary, key binary"
        assert TxlogSource(options).schema() == SCHEMA

    def test_cause_of_an_error_stays_when_spark_shortens_it(self) -> None:
        with pytest.raises(TxlogError) as caught, first_line():
            raise InvalidArgument("it is wrong", hint="do this")
        caught.value.__cause__ = None
        assert str(caught.value.__cause__) == "it is wrong; do this"
        assert str(caught.value) == "it is wrong" and type(caught.value) is not InvalidArgument
