"""bulk_load: rows of a data frame are messages as a producer's are, once."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import txlog
from tests.sql.test_querying import asked
from txlog import Client
from txlog.base.settings import INSTANT_MS_MAX
from txlog.engine.model.schema import INSTANT, MESSAGE
from txlog.errors import InvalidArgument, InvalidMessage
from txlog.lake.spark import sink
from txlog.spark import bulk_load, read

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
            "key": pa.array(
                [
                    None if n % 5 == 0 else b"" if n % 7 == 0 else b"k\xff%d" % (n % 9)
                    for n in range(count)
                ],
                pa.binary(),
            ),
            "value": pa.array(
                [
                    None if n % 11 == 0 else b"" if n % 13 == 0 else b"\0v%d" % n
                    for n in range(count)
                ],
                pa.binary(),
            ),
            "properties": pa.array(
                [
                    None
                    if n % 3 == 0
                    else []
                    if n % 4 == 0
                    else [("ä", f"ö{n}"), ("none", None), ("", "")]
                    for n in range(count)
                ],
                MESSAGE.field("properties").type,
            ),
            "event_time": pa.array(
                [None if n % 6 == 0 else (n - 200) * 1_000_003 + n for n in range(count)],
                pa.timestamp("us", "UTC"),
            ),
            "deliver_at": pa.array(
                [None if n % 4 else 1_700_000_000_000_000 + n for n in range(count)],
                pa.timestamp("us", "UTC"),
            ),
            "sequence_id": pa.array(
                [None if n % 2 else (1 << 60) + n for n in range(count)], pa.int64()
            ),
            "partition": pa.array([n * 2 // count for n in range(count)], pa.int32()),
        }
    )


def held(client: Client, topic: str) -> list[dict[str, Any]]:
    """The messages of a topic in order, without the columns that differ between batches."""
    messages = []
    for partition in range(2):
        for table in client.read(topic, partitions=[partition]):
            messages += table.select(["partition", *USER]).to_pylist()
    return messages


def stages(client: Client) -> list[str]:
    """The files below any _stage."""
    return sorted(str(path) for path in Path(client.path).glob("topics/**/_stage/**/*"))


def floored(table: pa.Table) -> pa.Table:
    """The messages as a sink makes them, with instants cut to milliseconds."""
    for name in ("event_time", "deliver_at"):
        at = table.column_names.index(name)
        whole = table[name].cast(INSTANT, safe=False)
        table = table.set_column(at, name, whole)
    return table


@pytest.mark.parametrize("shuffle", [True, False])
def test_messages_equal_those_of_a_producer(
    spark: SparkSession, client: Client, shuffle: bool
) -> None:
    """Every column and its nulls, in tasks of their own or brought together; as API, SQL and Spark
    read them. A session may send its rows in another layout."""
    table = messages()
    layout = "spark.sql.execution.arrow.useLargeVarTypes"
    spark.conf.set(layout, str(shuffle).lower())
    try:
        frame = spark.createDataFrame(table).repartition(3)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            answer = bulk_load(
                frame,
                client.path,
                "t",
                txn_key="k",
                batch_id="1",
                shuffle=shuffle,
                order_by=[F.coalesce("value", F.lit(b""))] if shuffle else (),
            )
    finally:
        spark.conf.unset(layout)
    small = [item for item in caught if "files of this batch" in str(item.message)]
    files = 2 if shuffle else 6
    assert (answer["messages"], answer["files"], answer["already"]) == (COUNT, files, False)
    assert len(small) == (not shuffle)
    client.producer("plain").send_batch(floored(table))
    sent, stored = held(client, "plain"), held(client, "t")
    assert sorted(stored, key=repr) == sorted(sent, key=repr)
    if shuffle:
        for partition in range(2):
            values = [item["value"] or b"" for item in stored if item["partition"] == partition]
            assert values == sorted(values) and len(values) == COUNT // 2
    payload = sum(len(item["key"] or b"") + len(item["value"] or b"") for item in sent)
    assert answer["size_bytes"] == payload
    assert stages(client) == []
    columns = ["partition", "ledger", "entry", *USER]
    sql = f"SELECT {', '.join(columns)} FROM t ORDER BY partition, ledger, entry"
    as_sql = asked(client, sql)
    native = read(spark, client.path, "t").select(*columns).orderBy(*columns[:3]).toArrow()
    assert len(as_sql) == COUNT
    assert native.to_pylist() == as_sql


def test_same_batch_again_computes_nothing(spark: SparkSession, client: Client) -> None:
    frame = spark.range(COUNT).select(F.col("id").alias("value"))
    answer = bulk_load(frame, client.path, "t", txn_key="k", batch_id="1")
    poison = frame.select(F.raise_error(F.lit("computed")).cast("binary").alias("value"))
    second_answer = bulk_load(poison, client.path, "t", txn_key="k", batch_id="1")
    assert second_answer == {**answer, "already": True}


def test_producer_is_in_every_row(spark: SparkSession, client: Client) -> None:
    frame = spark.range(COUNT, numPartitions=2).select(F.col("id").alias("value"))
    bulk_load(frame, client.path, "t", txn_key="k", batch_id="1", producer="nightly")
    counts = read(spark, client.path, "t").groupBy("producer").count().collect()
    assert [(row["producer"], row["count"]) for row in counts] == [("nightly", COUNT)]
    with pytest.raises(InvalidArgument, match="sequence_id"):
        bulk_load(
            frame.withColumn("sequence_id", F.lit(1)),
            client.path,
            "t",
            txn_key="k",
            batch_id="2",
            producer="nightly",
        )
    assert stages(client) == []


def test_attempts_that_fail_leave_nothing(spark: SparkSession, client: Client) -> None:
    """The second attempt is stored, and the rows of the first, which had a file, are not."""

    @F.udf(returnType="string", useArrow=False)
    def fail_late(value: int, last: int) -> str:
        context = TaskContext.get()
        assert context is not None
        if value == last and context.attemptNumber() < 2:
            raise RuntimeError("the last row of the first attempts")
        return f"{value} {context.attemptNumber()}"

    rows = spark.range(COUNT, numPartitions=1).select(
        fail_late("id", F.lit(COUNT - 1)).alias("value")
    )
    answer = bulk_load(rows, client.path, "t", txn_key="k", batch_id="1")
    assert answer["messages"] == COUNT
    values = [message["value"].decode().split() for message in held(client, "t")]
    assert sorted(int(number) for number, _ in values) == [*range(COUNT)]
    assert {attempt for _, attempt in values} == {"2"} and stages(client) == []


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        ({"value": "repeat('x', 6000000)"}, "a message has 6000000 bytes"),
        ({"key": "repeat('x', 70000)"}, "a key has 70000 bytes"),
        ({"deliver_after": "-1"}, "deliver_after is -1"),
        ({"deliver_after": "1", "deliver_at": "timestamp_millis(1)"}, "both"),
        ({"partition": "2"}, "partition 2 is not one of 0 to 1"),
        ({"partition": "CAST(NULL AS INT)"}, "names no partition"),
    ],
)  # fmt: skip
def test_bulk_load_refuses_like_a_producer(
    spark: SparkSession, client: Client, columns: dict[str, str], text: str
) -> None:
    frame = spark.range(2, numPartitions=1).select(F.col("id").alias("value"))
    for name, column in columns.items():
        frame = frame.withColumn(name, F.expr(column))
    with pytest.raises((InvalidArgument, InvalidMessage), match=text):
        bulk_load(frame, client.path, "t", txn_key="k", batch_id="1")
    assert held(client, "t") == [] and stages(client) == []


def test_refusal_removes_files_staged_by_other_tasks(spark: SparkSession, client: Client) -> None:
    frame = spark.range(4, numPartitions=2).select(
        F.expr("if(id = 3, repeat('x', 6000000), 'x')").alias("value")
    )
    with pytest.raises(InvalidMessage):
        bulk_load(frame, client.path, "t", txn_key="k", batch_id="1", shuffle=False)
    assert held(client, "t") == [] and stages(client) == []


def test_delays_count_from_the_job(spark: SparkSession, client: Client) -> None:
    table = pa.table(
        {
            "value": [b"none", b"soon", b"never", b"at"],
            "deliver_after": pa.array([None, 5000, 1 << 62, None], pa.int64()),
            "deliver_at": pa.array([None, None, None, 7_000_000], pa.timestamp("us", "UTC")),
        }
    )
    bulk_load(spark.createDataFrame(table), client.path, "t", txn_key="k", batch_id="1")
    delays = {}
    for rows in client.read("t"):
        published = rows["publish_time"].cast("int64").to_pylist()
        times = rows["deliver_at"].cast("int64").to_pylist()
        for value, time_ms, at in zip(rows["value"].to_pylist(), published, times, strict=True):
            delays[value] = None if at is None else (at, at - time_ms)
    assert delays[b"none"] is None
    assert delays[b"soon"] is not None and delays[b"soon"][1] == 5000
    assert delays[b"never"] is not None and delays[b"never"][0] == INSTANT_MS_MAX
    assert delays[b"at"] is not None and delays[b"at"][0] == 7000


def test_tasks_have_files_of_their_own_when_these_are_large(
    spark: SparkSession, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large frame is not shuffled, and each key still has its one partition."""
    frame = spark.range(COUNT, numPartitions=3).select(
        F.col("id").alias("value"), (F.col("id") % 17).alias("key")
    )
    assert bulk_load(frame, client.path, "t", txn_key="k", batch_id="1")["files"] == 2
    monkeypatch.setattr(sink, "SMALL_BYTES", 1)
    assert bulk_load(frame, client.path, "t", txn_key="k", batch_id="2")["files"] == 6
    for message in held(client, "t"):
        assert message["partition"] == crc32(message["key"]) % 2
    unkeyed = frame.select("value")
    assert bulk_load(unkeyed, client.path, "t", txn_key="k", batch_id="3")["files"] == 3
    ordered = bulk_load(frame, client.path, "t", txn_key="k", batch_id="4", order_by=["value"])
    assert ordered["files"] == 2
    with pytest.raises(InvalidArgument):
        bulk_load(
            frame, client.path, "t", txn_key="k", batch_id="5", order_by=["value"], shuffle=False
        )


@pytest.mark.parametrize("column", ["value", "key"])
def test_structs_are_refused_with_a_hint(spark: SparkSession, client: Client, column: str) -> None:
    """Kills: messages with Spark's own text of a struct, `{1, x}`, which no parser reads back."""
    for sql in ("struct(1 AS n, 'x' AS s)", "array(1)", "map('a', 1)"):
        frame = spark.sql(f"SELECT {sql} AS {column}" + ", 'v' AS value" * (column == "key"))
        with pytest.raises(InvalidArgument, match=f"column {column} is ") as caught:
            bulk_load(frame, client.path, "t", txn_key="k", batch_id="1")
        assert caught.value.hint == f"to_json({column}) AS {column}"
    assert client.bulk("t", key="k", batch="1").stored is None


@pytest.mark.parametrize(
    ("sql", "text"),
    [
        ("42", b"42"), ("-7L", b"-7"), ("1.50BD", b"1.50"), ("true", b"true"),
        ("DATE'2026-11-23'", b"2026-11-23"), ("'\u00e9'", b"\xc3\xa9"), ("X'00ff'", b"\x00\xff"),
    ],
)  # fmt: skip
def test_values_are_the_same_bytes_by_both_ways(
    spark: SparkSession, client: Client, sql: str, text: bytes
) -> None:
    frame = spark.sql(f"SELECT {sql} AS value, {sql} AS key")
    bulk_load(frame, client.path, "t", txn_key="k", batch_id="1")
    options = {"topic": "t", "txnKey": "k", "batchId": "2"}
    frame.write.format("txlog").mode("append").options(**options).save(client.path)
    pairs = [(message.value, message.key) for message in client.reader("t")]
    assert pairs == [(text, text)] * 2
