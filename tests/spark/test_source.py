"""Tests of the data source `txlog`: batches by Python have what a reader has."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, In, LessThan
from pyspark.sql.types import LongType, StructType

import txlog.spark
from tests.spark.test_reading import in_order
from tests.test_querying import SAME, STEPS, History
from tests.test_scanning import place, read, some_range
from txlog import Client, MessageId
from txlog.bounds import Range
from txlog.errors import TxlogError
from txlog.spark.source import Share, reader

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("quick_disk")]
SEED = "source-35"  # its rows lie in all places


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    """A client of a store with a topic `orders` of two partitions."""
    txlog.init(str(tmp_path / "store"))
    with txlog.open(str(tmp_path / "store")) as opened:
        opened.checkpoint_automatically = False
        opened.create_topic("orders", partitions=2)
        yield opened


def load(spark: SparkSession, path: str, topic: str = "orders", **options: str) -> DataFrame:
    """A frame by the data source."""
    return spark.read.format("txlog").options(topic=topic, **options).load(path)


def compare(spark: SparkSession, history: History, rng: random.Random) -> None:
    """The data source gives what a reader gives, all of it and a range."""
    everything = read(history.client, Range())
    found = in_order(load(spark, history.path, "t"))
    assert [{name: row[name] for name in SAME} for row in found] == [
        {name: row[name] for name in SAME} for row in everything
    ]
    assert [(row["txn_index"], row["message_id"], row["size_bytes"]) for row in found] == [
        (
            row["index"],
            str(MessageId(row["ledger"], row["entry"], row["index"] or 0)),  # type: ignore[arg-type]
            len(row["value"] or b""),  # type: ignore[arg-type]
        )
        for row in everything
    ]
    wanted = some_range(rng, everything)
    ends = {} if wanted.stop is None else {"end": str(wanted.stop)}
    part = in_order(load(spark, history.path, "t", start=str(wanted.start), **ends))
    assert [place(row) for row in part] == [place(row) for row in read(history.client, wanted)], (
        str(wanted)
    )


def test_source_has_what_a_reader_has(spark: SparkSession, tmp_path: Path) -> None:
    """API = Spark by the data source, whatever happened to the rows and wherever they lie."""
    history = History(tmp_path, SEED)
    try:
        for number in range(STEPS):
            history.step(random.Random(f"{SEED}:{number}"))
        compare(spark, history, random.Random(SEED))
        relation = history.client.relation("t")
        assert all([relation.direct, relation.unclean, relation.open, relation.large_files])
        assert relation.tail.num_rows
    except BaseException:
        print(f"seed {SEED}: {' '.join(history.trace)}")
        raise
    finally:
        history.client.close()


def test_sql_finds_the_source_by_itself(spark: SparkSession, client: Client) -> None:
    """Kills: a source that has to be registered; a type that Spark takes for another."""
    with client.transaction() as txn:
        client.producer("orders").send(
            b"v",
            key=b"k",
            properties={"a": "b"},
            event_time=1_700_000_000_123,
            partition=1,
            txn=txn,
        )
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW o USING txlog"
        f" OPTIONS (path '{client.path}', topic 'orders')"
    )
    [row] = spark.sql("SELECT *, unix_millis(event_time) AS ms FROM o").toArrow().to_pylist()
    [wanted] = in_order(txlog.spark.read(spark, client.path, "orders"))
    assert row.pop("ms") == 1_700_000_000_123
    assert row == wanted
    native = txlog.spark.read(spark, client.path, "orders")
    assert [(field.name, field.dataType) for field in spark.table("o").schema] == [
        (field.name, field.dataType) for field in native.schema
    ]


def test_only_the_columns_of_the_schema_are_read(spark: SparkSession, client: Client) -> None:
    client.producer("orders").send(b"v", key=b"k")
    source = spark.read.format("txlog").option("topic", "orders")
    assert source.schema("key binary, message_id string").load(client.path).collect() == [
        (bytearray(b"k"), "2:0")
    ]
    for schema, why in (("keys binary", "no column keys"), ("lsn int", "lsn is bigint")):
        with pytest.raises(Exception, match=why):
            source.schema(schema).load(client.path).collect()


def test_filters_leave_out_files_and_no_rows(spark: SparkSession, client: Client) -> None:
    """Kills: a filter that is taken as done, and one that leaves out what it should not."""
    for number in range(6):
        with client.transaction() as txn:
            client.producer("orders").send(b"t%d" % number, key=b"a", partition=number % 2, txn=txn)
        client.producer("orders").send(b"p%d" % number, key=b"b", partition=number % 2)
        if number % 2:
            client.checkpoint(roll_all=number < 4)
    everything = in_order(load(spark, client.path))
    middle = everything[5]
    unfiltered = load(spark, client.path)
    for where in (
        f"partition = 0 and ledger in ({middle['ledger']}, 1)",
        f"visible_time >= timestamp '{middle['visible_time']}' and key = 'b'",
    ):  # fmt: skip
        found = load(spark, client.path, pushdown="once").where(where)
        assert in_order(found) == in_order(unfiltered.where(where)), where


def test_filters_are_told_to_the_files(client: Client) -> None:
    """Kills: pushdown that reads everything: what is left out is left out on the driver."""
    for partition in (0, 1, 1):
        client.producer("orders").send(b"x", partition=partition)
        client.checkpoint(roll_all=True)
    schema = StructType().add("lsn", LongType())
    options = {"path": client.path, "topic": "orders", "pushdown": "once"}
    cases: list[tuple[list[Filter], int]] = [
        ([], 3),
        ([EqualTo(("partition",), 1)], 2),
        ([In(("partition",), (0, 7))], 3),
        ([GreaterThan(("partition",), 0), LessThan(("lsn",), 1)], 0),
        ([EqualTo(("value",), b"x"), In(("ledger",), ())], 3),
    ]
    for filters, scans in cases:
        made = reader(options, schema)
        assert made.pushFilters(filters) == filters
        shares = made.partitions()
        assert sum(len(share.scans) for share in shares if isinstance(share, Share)) == scans


def test_parts_and_tail_can_be_left_out(spark: SparkSession, client: Client) -> None:
    producer = client.producer("orders")
    producer.send(b"sealed", partition=0)
    client.checkpoint(roll_all=True)
    producer.send(b"part", partition=0)
    client.checkpoint()
    producer.send(b"tail", partition=0)
    rows = {"sealed", "part", "tail"}
    for options in ({}, {"includeOpen": "false"}, {"includeTail": "FALSE"}):
        frame = load(spark, client.path, **options).selectExpr("string(value) AS v")
        left_out = {"part"} if "includeOpen" in options else {"tail"} if options else set()
        assert {row["v"] for row in frame.collect()} == rows - left_out


def test_what_is_not_committed_has_a_state(spark: SparkSession, client: Client) -> None:
    """Isolation uncommitted: kills a preview that looks like a message."""
    txn = client.transaction()
    client.producer("orders").send(b"open", txn=txn)
    with client.transaction() as other:
        client.producer("orders").send(b"in", txn=other)
    client.producer("orders").send(b"plain")
    rows = load(spark, client.path, isolation="uncommitted").toArrow().to_pylist()
    assert {(row["value"], row["txn_state"], row["message_id"] is None) for row in rows} == {
        (b"open", "open", True), (b"in", "committed", False), (b"plain", None, False),
    }  # fmt: skip
    assert load(spark, client.path).count() == 2


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "option topic is missing"),
        ({"topic": "nowhere"}, "topic nowhere does not exist"),
        ({"topic": "orders", "strat": "start"}, "no option strat"),
        ({"topic": "orders", "subscription": "s"}, "no option subscription"),
        ({"topic": "orders", "start": "soon"}, "not a bound"),
        ({"topic": "orders", "atLsn": "-1"}, "number from 0 on"),
        ({"topic": "orders", "atLsn": "99"}, "no LSN 99"),
        ({"topic": "orders", "pushdown": "true"}, "once or never"),
        ({"topic": "orders", "includeTail": "1"}, "true or false"),
        ({"topic": "orders", "isolation": "none"}, "isolation 'none'"),
    ],
)
def test_options_are_checked(client: Client, options: dict[str, str], why: str) -> None:
    """Kills: an option that is misspelt and ignored."""
    with pytest.raises(TxlogError, match=why):
        reader({"path": client.path, **options}, StructType().add("lsn", LongType())).partitions()
