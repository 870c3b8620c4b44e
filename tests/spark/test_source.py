"""Tests of the data source `txlog`: batches by Python have the messages of a reader."""

from __future__ import annotations

import operator
import pickle
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

import txlog.spark
from tests.spark.test_reading import in_order
from tests.sql.test_querying import SAME, STEPS, History
from tests.sql.test_scanning import place, read, some_range
from txlog import Client
from txlog.base.ranges import Range
from txlog.errors import TxlogError
from txlog.lake.spark.datasource import SCHEMA
from txlog.lake.spark.source import PRUNED, Share, reader

pytestmark = pytest.mark.usefixtures("quick_disk")
SEEDS = ("source-32", "source-35")  # their histories end with rows in files of every kind
FILTERS: list[tuple[type[Any], Callable[[Any, Any], bool]]] = [
    (EqualTo, operator.eq), (In, operator.eq), (GreaterThan, operator.gt),
    (GreaterThanOrEqual, operator.ge), (LessThan, operator.lt), (LessThanOrEqual, operator.le),
]  # fmt: skip


def load(spark: SparkSession, path: str, topic: str = "orders", **options: str) -> DataFrame:
    """A frame by the data source."""
    return spark.read.format("txlog").options(topic=topic, **options).load(path)


def rows_of(
    path: str, filters: Sequence[Filter] = (), /, **options: str
) -> list[dict[str, object]]:
    """The rows of all tasks, run as Spark would run them."""
    pushdown = "once" if filters else "never"
    source = reader({"path": path, "pushdown": pushdown, **options}, _full_schema())
    if filters:
        source.pushFilters(list(filters))
    worker = pickle.loads(pickle.dumps(source))
    shares = pickle.loads(pickle.dumps(source.partitions()))
    rows = [row for share in shares for batch in worker.read(share) for row in batch.to_pylist()]
    return sorted(rows, key=place)


def _full_schema() -> StructType:
    kinds = {
        "string": StringType(),
        "int": IntegerType(),
        "bigint": LongType(),
        "binary": BinaryType(),
        "timestamp": TimestampType(),
        "map<string,string>": MapType(StringType(), StringType()),
    }
    schema = StructType()
    for column in SCHEMA.split(", "):
        name, kind = column.split(" ", 1)
        schema.add(name, kinds[kind])
    return schema


@pytest.mark.parametrize("seed", SEEDS)
def test_source_reads_the_messages_of_a_reader(tmp_path: Path, seed: str) -> None:
    """API = tasks of the data source, after any history, with rows in files of any kind."""
    history = History(tmp_path, seed)
    try:
        for number in range(STEPS):
            rng = random.Random(f"{seed}:{number}")
            history.step(rng)
            if number % 20 == 19:
                everything = read(history.client, Range())
                source_rows = rows_of(history.path, topic="t")
                assert [{name: row[name] for name in SAME} for row in source_rows] == [
                    {name: row[name] for name in SAME} for row in everything
                ]
                bounds = some_range(rng, everything)
                ends = {} if bounds.stop is None else {"end": str(bounds.stop)}
                part = rows_of(history.path, topic="t", start=str(bounds.start), **ends)
                expected = [place(row) for row in read(history.client, bounds)]
                assert [place(row) for row in part] == expected, str(bounds)
                compare_filtered(history.path, source_rows, rng)
    except BaseException:
        print(f"seed {seed}: {' '.join(history.trace)}")
        raise
    finally:
        history.client.close()


def compare_filtered(path: str, rows: list[dict[str, object]], rng: random.Random) -> None:
    """The source returns every row that passes the filters; it may also return others."""
    for _ in range(4):
        column = rng.choice(sorted(PRUNED))
        column_values = [row[column] for row in rows if row[column] is not None]
        if not column_values:
            continue
        value = rng.choice(column_values)
        kind, lets_through = rng.choice(FILTERS)
        filters = [kind((column,), value)] if kind is not In else [In((column,), (value, value))]
        filtered = rows_of(path, filters, topic="t")
        passing = [
            row for row in rows if row[column] is not None and lets_through(row[column], value)
        ]
        assert [row for row in filtered if row in passing] == passing, filters
        assert all(row in rows for row in filtered)


@pytest.mark.spark
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
    [expected] = in_order(txlog.spark.read(spark, client.path, "orders"))
    assert row.pop("ms") == 1_700_000_000_123
    assert row == expected
    native = txlog.spark.read(spark, client.path, "orders")
    assert [(field.name, field.dataType) for field in spark.table("o").schema] == [
        (field.name, field.dataType) for field in native.schema
    ]


@pytest.mark.spark
def test_only_the_columns_of_the_schema_are_read(spark: SparkSession, client: Client) -> None:
    client.producer("orders").send(b"v", key=b"k")
    source = spark.read.format("txlog").option("topic", "orders")
    assert source.schema("key binary, message_id string").load(client.path).collect() == [
        (bytearray(b"k"), "2:0")
    ]
    for schema, why in (("keys binary", "no column keys"), ("lsn int", "lsn is bigint")):
        with pytest.raises(Exception, match=why):
            source.schema(schema).load(client.path).collect()


@pytest.mark.spark
def test_filters_leave_out_files_and_no_rows(spark: SparkSession, client: Client) -> None:
    """Kills: a filter that Spark wrongly takes as done, and one that drops matching rows."""
    for number in range(4):
        client.producer("orders").send(b"%d" % number, partition=number % 2)
        client.checkpoint(roll_all=True)
    filtered = load(spark, client.path, pushdown="once").where("partition = 1 and lsn % 2 >= 0")
    assert [row["value"] for row in in_order(filtered.where("string(value) > '1'"))] == [b"3"]


def test_filters_leave_out_files_on_the_driver(client: Client) -> None:
    """Kills: pushdown that reads everything: the driver leaves out files before any task reads."""
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
        source = reader(options, schema)
        assert source.pushFilters(filters) == filters
        shares = source.partitions()
        assert sum(len(share.scans) for share in shares if isinstance(share, Share)) == scans


@pytest.mark.spark
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


@pytest.mark.spark
def test_uncommitted_rows_of_the_source_have_a_state(spark: SparkSession, client: Client) -> None:
    """Isolation uncommitted: kills a preview that looks like a message."""
    txn = client.transaction(write_through=True)
    client.producer("orders").send(b"open", txn=txn)
    with client.transaction() as other:
        client.producer("orders").send(b"in", txn=other)
    client.producer("orders").send(b"plain")
    rows = load(spark, client.path, isolation="uncommitted").toArrow().to_pylist()
    assert {(row["value"], row["txn_state"], row["message_id"] is None) for row in rows} == {
        (b"open", "open", True),
        (b"in", "committed", False),
        (b"plain", None, False),
    }
    assert load(spark, client.path).count() == 2


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, r"option topic is missing"),
        ({"path": ""}, "option path is missing"),
        ({"topic": "nowhere"}, "topic nowhere does not exist"),
        ({"topic": "orders", "strat": "start"}, "no option strat"),
        ({"topic": "orders", "subscription": "s"}, "no option subscription"),
        ({"topic": "orders", "start": "soon"}, "not a bound"),
        ({"topic": "orders", "atLsn": "-1"}, "number, at least 0"),
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
