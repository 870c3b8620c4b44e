"""Tests of jobs on Spark: they give the results of DuckDB."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import txlog
from tests.engine_kit import relation_of
from tests.jobs.test_jobs import acknowledge, filled, timed
from tests.sql.test_querying import STEPS, History
from txlog import Client
from txlog.lake.jobs.audit import audit
from txlog.lake.jobs.lateness import lateness
from txlog.lake.jobs.local import Local
from txlog.spark import Spark
from txlog.spark.jobs.audit import main as audit_main
from txlog.spark.jobs.lateness import main as lateness_main

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("quick_disk", "spark")]


def engine() -> Spark:
    """The engine over the session of the tests."""
    return Spark(None, {})


def compare(client: Client, topic: str) -> None:
    """DuckDB = Spark: every check with its expected and actual values, and the digest."""
    here, there = (audit(client, [topic], engine_of_job) for engine_of_job in (Local(), engine()))
    assert here["failed"] == there["failed"] == 0
    assert [c for c in here["check_list"] if c["name"] != "bytes"] == there["check_list"]
    assert {c["name"] for c in there["check_list"]} >= {"large", "places", "sequences", "digest"}


@pytest.mark.slow
def test_audit_on_spark_equals_duckdb(tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    txlog.init(path, max_message_bytes=200)
    with txlog.open(path) as client:
        client.checkpoint_automatically = False
        client.create_topic("orders", partitions=2)
        filled(client)
        compare(client, "orders")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [10, 19, 23])
def test_audit_of_a_history_on_spark_equals_duckdb(tmp_path: Path, seed: int) -> None:
    history = History(tmp_path, str(seed))
    for number in range(STEPS):
        history.step(random.Random(f"{seed}:{number}"))
    acknowledge(history, random.Random(seed))
    compare(history.client, "t")
    history.client.close()


def test_lateness_on_spark_equals_duckdb(tmp_path: Path) -> None:
    with timed(tmp_path, 1) as client:
        assert lateness(client, "t", 60_000, engine()) == lateness(client, "t", 60_000, Local())


def test_engine_leaves_a_session_that_it_did_not_start(spark: SparkSession) -> None:
    table_names = {table.name for table in spark.catalog.listTables()}  # other tests share it
    engine().close()
    assert spark.range(3).count() == 3
    assert {table.name for table in spark.catalog.listTables()} == table_names


def test_jobs_of_spark_submit_answer_as_the_command(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """`txlog.spark.jobs.NAME:main`: Spark unless told otherwise, exit codes as of the command."""
    path = str(tmp_path / "store")
    txlog.init(path)
    with txlog.open(path) as client:
        client.create_topic("orders")
        client.producer("orders").send(b"x", event_time=1_700_000_000_000)
        client.checkpoint(roll_all=True)
        [source] = relation_of(client, "orders").direct
    assert lateness_main(["orders", "-S", path, "--json"]) == 0
    answer = json.loads(capfd.readouterr().out)
    assert (answer["job"], answer["engine"], answer["messages"]) == ("lateness", "spark", 1)
    assert audit_main(["-S", path, "--json", "--engine", "duckdb"]) == 0
    answer = json.loads(capfd.readouterr().out)
    assert (answer["job"], answer["engine"], answer["failed"]) == ("audit", "duckdb", 0)
    assert lateness_main(["nope", "-S", path]) == 3
    file = Path(path, source.ref.path)
    data = bytearray(file.read_bytes())
    data[40] ^= 1  # of the first page
    file.chmod(0o600)
    file.write_bytes(data)
    capfd.readouterr()
    assert audit_main(["orders", "-S", path, "--json"]) == 6
    checks = json.loads(capfd.readouterr().out)["check_list"]
    [check] = [check for check in checks if not check["ok"]]
    assert check["name"] == "bytes"
    assert file.name in check["found"]
