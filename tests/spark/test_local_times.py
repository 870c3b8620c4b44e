"""A local timestamp of a record has one type and one value, in every file and every interface.

It is a date and a time of a wall clock, no instant: the time zone of a session has no influence,
and times that a change to summer time skips are as good as others.
"""

from __future__ import annotations

import datetime as dt
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

import txlog
from txlog import Client
from txlog.cli.main import main
from txlog.lake.sql.client_query import Query
from txlog.spark import read, release

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("quick_disk")]
ZONE = "spark.sql.session.timeZone"
SCHEMA = pa.schema([("at", pa.timestamp("ms")), ("fine", pa.list_(pa.timestamp("us")))])
TIMES = [
    dt.datetime.fromisoformat(text)
    for text in (
        "2026-03-29T02:30:00",  # in Berlin there is no such time
        "2026-10-25T02:30:00",  # there it comes twice
        "1883-11-18T12:00:01",
        "2026-06-01T00:00:00",
    )
]
ROWS = [(one, [one + dt.timedelta(microseconds=1000)]) for one in TIMES]


@pytest.fixture(params=["sealed", "journal", "both"])
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Client]:
    path = str(tmp_path / "store")
    txlog.init(path, durability="os", free_bytes_min=0)
    with txlog.open(path) as opened:
        opened.checkpoint_automatically = False
        opened.create_topic("t", schema=SCHEMA)
        half = len(ROWS) // 2 if request.param == "both" else 0
        producer = opened.producer("t")
        for number, (at, fine) in enumerate(ROWS):
            if half and number == half:
                opened.checkpoint(roll_all=True)
            producer.send({"at": at, "fine": fine})
        if request.param == "sealed":
            opened.checkpoint(roll_all=True)
        yield opened


def of_stream(spark: SparkSession, path: str) -> list[Any]:
    got: list[Any] = []

    def take(frame: DataFrame, number: int) -> None:
        got.extend(frame.select("record.at", "record.fine", "ledger", "entry").collect())

    stream = spark.readStream.format("txlog").option("topic", "t")
    frame = stream.option("startingPosition", "start").load(path)
    kind = frame.schema["record"].dataType.simpleString()
    assert kind == "struct<at:timestamp_ntz,fine:array<timestamp_ntz>>"
    with tempfile.TemporaryDirectory() as folder:
        writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", folder)
        writer.trigger(availableNow=True).start().awaitTermination()
    return got


def of_frame(frame: DataFrame) -> list[Any]:
    kind = frame.schema["record"].dataType.simpleString()
    assert kind == "struct<at:timestamp_ntz,fine:array<timestamp_ntz>>"
    return frame.select("record.at", "record.fine", "ledger", "entry").collect()


def of_arrow(frame: DataFrame) -> list[Any]:
    table = frame.select("record.at", "record.fine", "ledger", "entry").toArrow()
    assert table.schema.field("at").type.tz is None
    return [tuple(row.values()) for row in table.to_pylist()]


DOORS: dict[str, Callable[[SparkSession, Client], list[Any]]] = {
    "read": lambda spark, client: of_frame(read(spark, client.path, "t")),
    "read, arrow": lambda spark, client: of_arrow(read(spark, client.path, "t")),
    "format": lambda spark, client: of_frame(
        spark.read.format("txlog").option("topic", "t").load(client.path)
    ),
    "stream": lambda spark, client: of_stream(spark, client.path),
}


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York"])
@pytest.mark.parametrize("door", DOORS)
def test_a_local_timestamp_is_the_same_by_every_door(
    spark: SparkSession, client: Client, door: str, zone: str
) -> None:
    zone_before = spark.conf.get(ZONE)
    spark.conf.set(ZONE, zone)
    try:
        rows = DOORS[door](spark, client)
    finally:
        spark.conf.set(ZONE, str(zone_before))
        release(spark)
    values = [(at, list(fine)) for at, fine, *_ in sorted(rows, key=lambda row: tuple(row)[2:])]
    assert values == ROWS


def test_a_local_timestamp_is_the_same_without_spark(client: Client) -> None:
    assert [tuple((message.decode() or {}).values()) for message in client.reader("t")] == ROWS
    with Query(client, "SELECT record.at, record.fine FROM t ORDER BY ledger, entry") as query:
        table = query.rows().read_all()
    assert table.schema.field("at").type.tz is None
    assert [tuple(row.values()) for row in table.to_pylist()] == ROWS


def test_a_local_timestamp_is_the_same_in_the_program_of_views(
    spark: SparkSession, client: Client, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    complete_folder = str(tmp_path / "rest")
    assert main(["views", "--spark", "--complete", complete_folder, "-S", client.path]) == 0
    zone_before = spark.conf.get(ZONE)
    spark.conf.set(ZONE, "Europe/Berlin")
    try:
        exec(compile(capfd.readouterr().out, "views", "exec"), {})
        rows = of_frame(spark.sql("SELECT * FROM t ORDER BY ledger, entry"))
    finally:
        spark.conf.set(ZONE, str(zone_before))
    assert [(at, list(fine)) for at, fine, *_ in rows] == ROWS
