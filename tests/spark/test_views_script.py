"""Tests of `txlog views --spark`: its program gives the messages that a reader sees."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import txlog
from tests.engine_kit import relation_of
from tests.sql.test_querying import STEPS, History
from txlog import MessageId
from txlog.base.choices import Isolation
from txlog.base.ranges import Bound
from txlog.cli.main import main
from txlog.lake.sql.client_query import Query

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("quick_disk")]


def printed(capfd: pytest.CaptureFixture[str], *words: str) -> str:
    """Return what a command prints."""
    code = main(["views", "--spark", *words])
    out, err = capfd.readouterr()
    assert code == 0, err
    assert "txlog" not in {line.split()[1] for line in out.splitlines() if "import " in line}
    return out


def ran(spark: SparkSession, program: str, sql: str) -> list[dict[str, Any]]:
    """Return the rows of SQL over the views of a program."""
    exec(compile(program, "views", "exec"), {})
    rows: list[dict[str, Any]] = spark.sql(sql).toArrow().to_pylist()
    return rows


def read(client: txlog.Client, isolation: Isolation = "committed") -> Counter[tuple[object, ...]]:
    """Return the messages that a reader gives."""
    tables = list(client.read("t", isolation=isolation))
    return Counter(
        (
            None
            if row["ledger"] is None
            else str(MessageId(row["ledger"], row["entry"], row["index"] or 0)),
            row["value"],
            row["key"],
            row["visible_time"],
            row["producer"],
            str(sorted(row["properties"] or ())),
        )
        for row in (pa.concat_tables(tables).to_pylist() if tables else [])
    )


def found(rows: list[dict[str, Any]]) -> Counter[tuple[object, ...]]:
    """The same for rows from Spark."""
    return Counter(
        (
            row["message_id"],
            row["value"],
            row["key"],
            row["visible_time"],
            row["producer"],
            str(sorted(row["properties"] or ())),
        )
        for row in rows
    )


def test_views_program_reads_the_messages_of_a_reader(
    tmp_path: Path, spark: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
    """spec/analytics 4: the same views for PySpark; rows outside Parquet are counted or written."""
    history = History(tmp_path, "10")
    complete_folder = str(tmp_path / "rest")
    try:
        for number in range(STEPS):
            history.step(random.Random(f"10:{number}"))
            if number % 20 == 19:
                history.client.flush()
                store = ("-S", history.path, "--topic", "t")
                program = printed(capfd, *store)
                lacking = int(program.splitlines()[1].split()[3])
                [row] = ran(spark, program, "SELECT count(*) AS n FROM t")
                assert row["n"] + lacking == sum(read(history.client).values())
                program = printed(capfd, *store, "--complete", complete_folder, "--force")
                assert found(ran(spark, program, "SELECT * FROM t")) == read(history.client)
                program = printed(
                    capfd,
                    *store,
                    "--complete",
                    complete_folder,
                    "--force",
                    "--isolation",
                    "uncommitted",
                )
                assert found(ran(spark, program, "SELECT * FROM messages")) == read(
                    history.client, "uncommitted"
                )
    finally:
        history.client.close()


def test_files_that_were_moved_are_scanned_where_they_are(
    tmp_path: Path, spark: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
    """Kills: the address of a file in an archive, taken for a path in the store, and one scan of
    files below two directories.
    """
    path = str(tmp_path / "store")
    txlog.init(path)
    (tmp_path / "archive").mkdir()
    with txlog.open(path) as client:
        client.create_topic("t")
        for value in (b"1", b"2"):
            client.producer("t").send(value)
            client.checkpoint(roll_all=True)
            if value == b"1":
                client.admin.offload("t", str(tmp_path / "archive"))
                client.checkpoint()
        assert found(ran(spark, printed(capfd, "-S", path), "SELECT * FROM t")) == read(client)


def test_unclean_files_are_joined_with_their_markers(
    tmp_path: Path, spark: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
    """Kills: a marker of another kind of row, and rows of trimmed markers."""
    path = str(tmp_path / "it's a [store]")
    txlog.init(path, ledger_entries_max=4, free_bytes_min=0)
    with txlog.open(path) as client:
        client.create_topic("t")
        first, second = (
            client.transaction(write_through=True),
            client.transaction(write_through=True),
        )
        for txn, value in ((first, b"first"), (second, b"second")):
            client.producer("t").send(value, txn=txn)
        first.commit()
        for _ in range(4):
            client.producer("t").send(b"plain")
        second.commit()
        client.checkpoint(roll_all=True)
        client.admin.trim("t", Bound("last", 2), force_unacked=True)
        assert relation_of(client, "t").unclean
        program = printed(capfd, "-S", path)
        assert found(ran(spark, program, "SELECT * FROM t")) == read(client)
        sql = "SELECT topic, count(*) AS n FROM `public/default/t` GROUP BY topic"
        assert ran(spark, program, sql) == [{"topic": "t", "n": 2}]


def test_records_of_two_versions(
    tmp_path: Path, spark: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
    """Records of two versions in sealed, unclean and --complete files; none with a time of day."""
    path = str(tmp_path / "store")
    txlog.init(path, free_bytes_min=0, ledger_entries_max=4)
    older = pa.schema([("cups", pa.int32())])
    newer = pa.schema(
        [
            ("note", pa.string()),
            ("cups", pa.int64()),
            ("at", pa.timestamp("us", "UTC")),
            ("more", pa.list_(pa.struct([("n", pa.decimal128(9, 2))]))),
            ("tags", pa.map_(pa.string(), pa.float32())),
        ]
    )
    with txlog.open(path) as client:
        client.create_topic("t", schema=older)
        client.create_topic("clock", schema=pa.schema([("time", pa.time32("ms"))]))
        client.create_topic("empty", schema=newer)
        client.admin.set_schema_policies("t", compatibility="backward")
        open_txn = client.transaction(write_through=True)
        client.producer("t").send({"cups": 66}, txn=open_txn)
        with client.transaction() as txn:
            client.producer("t").send({"cups": 1}, txn=txn)
        client.producer("t").send({"cups": 2})
        client.producer("clock").send({"time": dt.time(8)})
        client.producer("t").send({"cups": 4})
        client.checkpoint(roll_all=True)
        client.admin.compact("t")
        client.checkpoint()
        client.topic("t").schemas.add(newer)
        record: dict[str, Any] = {"note": "n", "cups": 1 << 40, "more": [{"n": Decimal("1.25")}]}
        record["at"] = dt.datetime(2026, 11, 24, tzinfo=dt.UTC)
        client.producer("t").send({**record, "tags": {"a": 0.5}})
        client.producer("t").send(None)
        client.checkpoint(roll_all=True)
        client.producer("t").send({"cups": 3})
        open_txn.commit()
        assert relation_of(client, "t").unclean
        sql = "SELECT message_id, record FROM t"
        with Query(client, sql) as query:
            expected = {
                row["message_id"]: row["record"] for row in query.rows().read_all().to_pylist()
            }
        assert len(expected) == 7
        assert sum(row is not None for row in expected.values()) == 6
        flags = ("--complete", str(tmp_path / "rest"))
        for words in (flags, (*flags, "--force", "--isolation", "uncommitted")):
            program = printed(capfd, "-S", path, *words)
            assert {
                row["message_id"]: row["record"] for row in ran(spark, program, sql)
            } == expected
        assert ran(spark, program, "SELECT count(record.note) AS n FROM empty") == [{"n": 0}]
        assert "record" not in ran(spark, program, "SELECT * FROM clock")[0]
        assert "record" not in ran(spark, program, "SELECT * FROM messages")[0]
