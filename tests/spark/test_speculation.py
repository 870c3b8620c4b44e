"""The batch sink when Spark runs a task twice at once: what both attempts stage is stored once.

Spark starts no second attempt on the host of the first, so neither local masters nor local-cluster
ever do: this cluster has a master, and two workers on two addresses of the loopback.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import txlog
from tests.harness import CHILDREN
from tests.spark.standalone import master, worker
from txlog.lake.spark.java import bundled_java, cache_directory, environment_for, find_java
from txlog.lake.spark.submit import submit_args

pytestmark = [pytest.mark.spark, pytest.mark.slow]
COUNT = 1000


def test_speculative_duplicates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kills: rows of both attempts, none of the second, files of the first that stay."""
    store, pipe, events = str(tmp_path / "store"), tmp_path / "pipe", tmp_path / "events"
    txlog.init(store)
    with txlog.open(store) as client:
        client.create_topic("orders", partitions=2)
    os.mkfifo(pipe)
    events.mkdir()
    java = environment_for(find_java(os.environ, bundled_java()), cache_directory(os.environ))
    environment = {
        **os.environ,
        **java,
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    environment.pop("PYTHONPATH", None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    settings = {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.efficiency.enabled": "false",
        "spark.executor.memory": "512m",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.rolling.enabled": "false",
        "spark.eventLog.compress": "false",
        "spark.log.level": "ERROR",
    }
    with ExitStack() as cluster:
        address = master(environment, "127.0.0.1", cluster)
        for host in ("127.0.0.1", "127.0.0.2"):
            worker(environment, host, tmp_path, address, cluster)
        done = subprocess.run(
            [
                str(Path(sys.executable).with_name("spark-submit")),
                "--master",
                address,
                "--driver-memory",
                "512m",
                *submit_args(),
                *(word for item in settings.items() for word in ("--conf", "=".join(item))),
                str(CHILDREN / "spark_speculation.py"),
                store,
                str(pipe),
                str(COUNT),
            ],
            check=False,
            text=True,
            capture_output=True,
            cwd=tmp_path,
            env={**environment, "SPARK_LOCAL_IP": "127.0.0.1"},
        )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    with txlog.open(store) as client:
        values = [
            text.decode().split()
            for table in client.read("orders")
            for text in table["value"].to_pylist()
        ]
    half = COUNT // 2  # rows of each task; attempt 1 is the speculative one
    assert sorted((int(number), int(attempt)) for number, attempt in values) == sorted(
        (number, int(number < half)) for number in range(COUNT) for _ in range(2)
    )
    assert [*Path(store).glob("**/_stage/*")] == []
    staged = [file.read_text().split() for file in tmp_path.glob("pipe.*")]
    names = [name for each in staged for name in each]
    assert (len(staged), len(names), len({*names})) == (3, 3, 3)  # both attempts, and task 1
    # The end of the first attempt of the last batch may come when the log is closed.
    done_by = [
        (is_speculative, attempt)
        for is_speculative, attempt, how in ends(events)
        if how != "TaskKilled"
    ]
    assert done_by == [(True, 1)] * 2


def ends(events: Path) -> list[tuple[bool, int, str]]:
    """(is speculative, attempt, how it ended) of the attempts of task 0, sorted."""
    (log,) = events.iterdir()
    lines: list[dict[str, Any]] = [json.loads(line) for line in log.read_text().splitlines()]
    return sorted(
        (
            line["Task Info"]["Speculative"],
            line["Task Info"]["Attempt"],
            line["Task End Reason"]["Reason"],
        )
        for line in lines
        if line["Event"] == "SparkListenerTaskEnd" and line["Task Info"]["Index"] == 0
    )
