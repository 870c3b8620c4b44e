"""Tests of `txlog views --spark`: its program gives the messages that a reader sees."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import txlog
from tests.sql.test_querying import STEPS, History
from txlog import MessageId
from txlog.cli.main import main
from txlog.ranges import Bound

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


def read(client: txlog.Client, isolation: str = "committed") -> Counter[tuple[object, ...]]:
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
    """The same of rows that Spark gave."""
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


def test_a_program_sees_what_txlog_sees(
    tmp_path: Path, spark: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
    """spec/analytics 4: the same views for PySpark; what no Parquet file has is told or written."""
    history = History(tmp_path, "10")
    rest = str(tmp_path / "rest")
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
                program = printed(capfd, *store, "--complete", rest, "--force")
                assert found(ran(spark, program, "SELECT * FROM t")) == read(history.client)
                program = printed(
                    capfd, *store, "--complete", rest, "--force", "--isolation", "uncommitted"
                )
                assert found(ran(spark, program, "SELECT * FROM messages")) == read(
                    history.client, "uncommitted"
                )
    finally:
        history.client.close()


def test_unclean_files_are_joined_with_their_markers(
    tmp_path: Path, spark: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
    """Kills: a marker of another kind of row, and rows of trimmed markers."""
    path = str(tmp_path / "it's a [store]")
    txlog.init(path, ledger_entries_max=4, free_bytes_min=0)
    with txlog.open(path) as client:
        client.create_topic("t")
        first, second = client.transaction(), client.transaction()
        for txn, value in ((first, b"first"), (second, b"second")):
            client.producer("t").send(value, txn=txn)
        first.commit()
        for _ in range(4):
            client.producer("t").send(b"plain")
        second.commit()
        client.checkpoint(roll_all=True)
        client.admin.trim("t", Bound("last", 2), force_unacked=True)
        assert client._relation("t").unclean
        program = printed(capfd, "-S", path)
        assert found(ran(spark, program, "SELECT * FROM t")) == read(client)
        sql = "SELECT topic, count(*) AS n FROM `public/default/t` GROUP BY topic"
        assert ran(spark, program, sql) == [{"topic": "t", "n": 2}]
