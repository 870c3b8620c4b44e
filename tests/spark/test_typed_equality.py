"""Every way to read a typed topic shows the same records: all types, nulls, nested, two schemas;
in files of any kind, among any other messages.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import txlog
from tests.jobs.test_mirror import FULL, WIDE, of_hive
from txlog import Client
from txlog.base.schemas import values
from txlog.base.schemas.schema import of_arrow
from txlog.cli.main import main as command
from txlog.lake.jobs.mirrors.mirror import mirror
from txlog.lake.spark import reading
from txlog.lake.sql.client_query import Query
from txlog.spark import read, register, release

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("quick_disk")]
Found = dict[str, Any]
# The newest schema has `text`, too.
OLD = WIDE.remove(WIDE.get_field_index("text"))
TEXT = pa.field("text", pa.string())
TIMES = ("clock", "finer", "list")


def natural(one: Any, name: str = "") -> Any:
    """A value as all ways can show it: instants without a zone, in UTC."""
    if isinstance(one, dict):
        return {key: natural(item, key) for key, item in one.items()}
    if isinstance(one, list):
        return [natural(item) for item in one]
    if name in ("clock", "finer", "when") and isinstance(one, int):  # of a mirror
        return (dt.datetime(1, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=one)).time()
    if isinstance(one, dt.datetime) and one.tzinfo is not None:
        return one.astimezone(dt.UTC).replace(tzinfo=None)
    return bytes(one) if isinstance(one, bytearray) else one


def of_rows(rows: list[dict[str, Any]]) -> Found:
    return {row["message_id"]: natural(row["record"]) for row in rows}


def of_table(table: pa.Table) -> Found:
    rows = table.select(["message_id", "record"]).to_pylist(maps_as_pydicts="strict")
    return of_rows(rows)


def of_frame(frame: DataFrame) -> Found:
    rows = frame.select("message_id", "record").collect()
    return of_rows([row.asDict(recursive=True) for row in rows])


@pytest.fixture(params=[True, False], ids=["times of day", "others"])
def has_times(request: pytest.FixtureRequest) -> bool:
    """Spark's Parquet reader does not know times of day: `read` warns, and has no records."""
    return bool(request.param)


@pytest.fixture
def client(tmp_path: Path, has_times: bool) -> Any:
    """A topic with records sealed, adopted, offloaded, in parts and in the journal, of two schemas;
    committed, aborted, open, in batches, late, delayed, and one that is too large to have one.
    """
    txlog.init(
        str(tmp_path / "store"),
        durability="os",
        schema_validation="record",
        max_message_bytes=20_000,
        reader_grace_ms=0,
    )
    with txlog.open(str(tmp_path / "store")) as opened:
        opened.checkpoint_automatically = False
        first = pa.schema([one for one in OLD if has_times or one.name not in TIMES])
        if not has_times:
            first = first.append(pa.field("list", pa.list_(pa.struct([("a", pa.int64())]))))
        opened.create_topic("t", partitions=2, schema=first)
        opened.create_subscription("t", "s")
        old = {name: value for name, value in FULL.items() if name in first.names}
        if not has_times:
            old["list"] = [{"a": 1}, None]
        none = dict.fromkeys(old)
        for number, schema in enumerate((first, first.append(TEXT))):
            opened.topic("t").schemas.add(schema)
            producer = opened.producer("t")
            for record in (old, none, {**old, "list": [], "seats": {}, "big": number}):
                producer.send(record)
            producer.send(b"no record")
            producer.send(None)
            with opened.transaction() as txn:
                producer.send({**old, "small": number}, txn=txn)
            with opened.transaction() as txn:
                producer.send({**old, "small": 66}, txn=txn)
                txn.abort()
            if number == 0:  # it stays open, and its sidecar unclean
                producer.send({**old, "small": 55}, txn=opened.begin()["txn"])
            bulk = opened.bulk("t", key="k", batch=number)
            given = pa.array([{**old, "small": 100 + number}, None], pa.struct(first))
            bulk.commit(bulk.stage([pa.table({"record": given})]))
            opened.checkpoint(roll_all=number == 0)
            if number == 0:
                opened.producer("t", chunking=True).send(b"too large" * 3_000)
                opened.admin.compact("t")
                (tmp_path / "archive").mkdir()
                opened.admin.offload("t", str(tmp_path / "archive"), 0)
        opened.topic("t").watermarks.set(1_700_000_000_000, "w")
        opened.producer("t").send_batch(
            pa.table(
                {
                    "value": [values.encode_one(of_arrow(first), old), b"no record"],
                    "event_time": pa.array([1, 2], pa.timestamp("ms", "UTC")),
                }
            )
        )
        opened.producer("t").send({**old, "small": 77}, deliver_at=32_503_680_000_000)
        opened.producer("t").send({**old, "text": "caf\u00e9"})
        yield opened


def ways(spark: SparkSession, client: Client, folder: Path) -> dict[str, Callable[[], Found]]:
    """Each way to read the topic."""

    def consumed() -> Found:
        with client.consumer("t", "s") as consumer:
            found = [*iter(consumer.receive, None)]
        return decoded(found)

    def decoded(found: list[txlog.Message]) -> Found:
        return {
            str(one.message_id): natural(one.decode() if one.schema_version is not None else None)
            for one in found
        }

    def queried() -> Found:
        with Query(client, "SELECT message_id, record FROM t") as query:
            return of_table(pa.Table.from_batches(list(query.rows())))

    def views() -> Found:
        words = ["views", "-S", client.path, "--complete", str(folder / "rest"), "-q"]
        made = str(folder / "views.duckdb")
        assert command([*words, "--out", made, "--force"]) == 0
        with duckdb.connect(made, read_only=True) as opened:
            opened.execute("SET TimeZone = 'UTC'")
            return of_table(opened.sql("SELECT message_id, record FROM t").to_arrow_table())

    def source() -> DataFrame:
        return spark.read.format("txlog").option("topic", "t").load(client.path)

    def catalog() -> DataFrame:
        register(spark, client.path, database="equal")
        return spark.table("equal.t")

    def streamed() -> DataFrame:
        rows = spark.readStream.format("txlog").option("topic", "t").load(client.path)
        query = (
            rows.writeStream.format("memory")
            .queryName("typed_equal")
            .option("checkpointLocation", str(folder / "check"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return spark.table("typed_equal")

    def mirrored() -> Found:
        mirror(client, "t", str(folder / "lake"), "hive")
        return of_table(of_hive(folder / "lake"))

    def mirrored_by_spark() -> Found:
        return of_frame(spark.read.parquet(str(folder / "lake")))

    def read_with_a_file() -> Found:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reading, "_LOCAL_BYTES", -1)
            return of_frame(read(spark, client.path, "t"))

    return {
        "reader": lambda: decoded(list(client.reader("t"))),
        "consumer": consumed,
        "query": queried,
        "views": views,
        "txlog.spark.read": lambda: of_frame(read(spark, client.path, "t")),
        "txlog.spark.read, with a file": read_with_a_file,
        "format txlog": lambda: of_frame(source()),
        "catalog": lambda: of_frame(catalog()),
        "stream": lambda: of_frame(streamed()),
        "hive": mirrored,
        "hive by Spark": mirrored_by_spark,
    }


def test_all_ways_to_read_show_the_same_records(
    spark: SparkSession, client: Client, tmp_path: Path, has_times: bool
) -> None:
    each = ways(spark, client, tmp_path)
    if has_times:
        del each["txlog.spark.read"], each["txlog.spark.read, with a file"]
        with pytest.warns(UserWarning, match="a time of day"):
            assert "record" not in read(spark, client.path, "t").columns
    records_by_way = {name: way() for name, way in each.items()}
    spark.sql("DROP DATABASE IF EXISTS equal CASCADE")
    release(spark)
    expected = records_by_way["reader"]
    assert len(expected) == 21
    assert sum(one is None for one in expected.values()) == 8
    assert any((tmp_path / "archive").rglob("*.parquet"))
    assert sum(one is not None and one["text"] == "caf\u00e9" for one in expected.values()) == 1
    for name, records in records_by_way.items():
        assert set(records) == set(expected), name
        for message_id, record in records.items():
            one = expected[message_id]
            assert record == one, (name, message_id, json.dumps([record, one], default=repr))
