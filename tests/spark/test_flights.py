"""The example of flights: the same by functions and by Spark, and exact when both are killed."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import txlog
from tests.harness import HOUR_S, KILLED, Child, run
from tests.source_tree import ROOT, SOURCE
from txlog.lake.spark.java import bundled_java, cache_directory, environment_for, find_java
from txlog.lake.spark.submit import submit_args

FLIGHTS = 8844
EXAMPLE, DATA = ROOT / "examples" / "flights", ROOT / "data"
FUNCTIONS = EXAMPLE / "functions.py"
OPTIONS = ["--key-column", "carrier", "--event-time-column", "scheduled"]


@pytest.fixture
def programs() -> Iterator[tuple[ModuleType, ModuleType]]:
    """Functions and stream of the example as modules."""
    names = ("functions", "stream")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(EXAMPLE)
        yield import_module(names[0]), import_module(names[1])
    for name in names:
        del sys.modules[name]


@pytest.mark.spark
def test_spark_enriches_as_the_function_does(
    spark: SparkSession, programs: tuple[ModuleType, ModuleType]
) -> None:
    """Kills: another limit for "late", a dropped null, an airline without a name."""
    functions, stream = programs
    rows = pq.read_table(DATA / "flights.parquet").slice(4100, 200).drop(["scheduled"]).to_pylist()
    values = [json.dumps(row).encode() for row in rows]
    times = pa.array(range(len(rows)), pa.timestamp("ms", "UTC"))
    table = pa.table({"key": values, "event_time": times, "value": values})
    airlines = spark.createDataFrame(pyarrow.csv.read_csv(DATA / "airlines.csv"))
    departures = stream.departures(spark.createDataFrame(table), airlines).toArrow().to_pylist()
    by_spark = {row["key"]: json.loads(row["value"]) for row in departures}
    by_function = {
        value: functions.enrich(txlog.Message(topic="t", partition=0, message_id=None, value=value))
        for value in values
    }
    assert by_spark == by_function
    assert {row["status"] for row in by_spark.values()} == {"cancelled", "late", "on time"}


def start(environment: dict[str, str], *words: str) -> Child:
    """A program in a process group of its own."""
    return Child(words, group=True, bound_s=HOUR_S, env=environment)


def finish(environment: dict[str, str], *words: str) -> str:
    """The output of a program, which must succeed."""
    return run(words, env=environment, timeout=HOUR_S).stdout


def killed_at(store: str, topic: str, messages: int, program: Child) -> None:
    """SIGKILL all processes of a program once the topic has so many messages."""
    with program, txlog.open(store) as client:
        answer = client.wait([topic], messages=messages, timeout_ms=900_000)
        assert answer["met"], answer
        assert program.end(signal.SIGKILL)[0] == KILLED


@pytest.fixture
def air(tmp_path: Path) -> str:
    """A store with topics; the flights are loaded by the tests."""
    store = str(tmp_path / "air")
    txlog.init(store)
    with txlog.open(store) as client:
        for topic in ("flights", "departures", "delays", "spark-departures", "spark-delays"):
            client.create_topic(topic, partitions=2)
    return store


@pytest.mark.slow
def test_functions_that_are_killed_give_exact_windows(air: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "TXLOG_STORE": air}
    command = [sys.executable, "-m", "txlog"]
    load = ["job", "bulk-load", str(DATA / "flights.parquet"), "flights", *OPTIONS]
    finish(environment, *command, *load, "--transaction-key", "a", "--engine", "duckdb")
    small = ["--txn-size", "200", "-q"]
    enrich = [*command, "run", f"{FUNCTIONS}:enrich", "--input", "flights", "-s", "enrich", *small]
    enrich += ["--output", "departures", "--create"]
    delays = [*command, "run", f"{FUNCTIONS}:delays", "--input", "departures", "-s", "delays"]
    delays += ["--output", "delays", "--create", *small]
    for least in (1, 3000, 6000):
        killed_at(air, "departures", least, start(environment, *enrich))
    finish(environment, *enrich)
    for least in (1, 200):
        killed_at(air, "delays", least, start(environment, *delays))
    finish(environment, *delays)
    report = finish(environment, sys.executable, str(EXAMPLE / "report.py"), air, "delays")
    assert report.splitlines()[-1].startswith("8334 flights in 38 windows, ")
    assert report.endswith(": exact\n")
    with txlog.open(air) as client:
        assert client.describe_topic("departures")["messages"] == FLIGHTS


@pytest.mark.slow
@pytest.mark.spark
def test_stream_with_a_killed_driver_gives_exact_windows(air: str, tmp_path: Path) -> None:
    """Loaded by Spark, killed ten times in its queries, ended by spark-submit; docs/flights.md 6.

    Kills: rows that a limit makes late; windows twice or not at all after the state is restored.
    """
    java = environment_for(find_java(os.environ, bundled_java()), cache_directory(os.environ))
    environment = {
        **os.environ,
        **java,
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PYTHONPATH": str(SOURCE),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    bulk_load = [sys.executable, "-m", "txlog.spark.jobs.bulk_load"]
    load = [*bulk_load, str(DATA / "flights.parquet"), "flights", *OPTIONS, "-S", air]
    finish(environment, *load, "--transaction-key", "a", "--master", "local[2]")
    words = [str(EXAMPLE / "stream.py"), air, str(tmp_path / "checkpoints")]
    kills = [("spark-departures", least) for least in (1, 1500, 3000, 4500, 6000, 7500)]
    kills += [("spark-delays", least) for least in (1, 100, 200, 300)]
    for topic, least in kills:
        killed_at(air, topic, least, start(environment, sys.executable, *words))
    submit = [str(Path(sys.executable).with_name("spark-submit")), "--master", "local[2]"]
    finish(environment, *submit, *submit_args(), *words)
    report = finish(environment, sys.executable, str(EXAMPLE / "report.py"), air, "spark-delays")
    assert report.splitlines()[-1] == "8007 flights in 37 windows, 443 messages: exact"
    with txlog.open(air) as client:
        assert client.describe_topic("spark-departures")["messages"] == FLIGHTS
    assert list(Path(air).glob("topics/**/_stage/*")) == []
