"""Tests of the jobs compact and rebuild-delayed on Spark: the same files as by upkeep itself."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest

import txlog
from tests.jobs.histories import WITHOUT_TRIMS, in_topic, step
from tests.jobs.test_job_upkeep import LATER, _read
from tests.sql.test_querying import STEPS, History
from txlog.engine.model.schema import MESSAGE
from txlog.lake.jobs.audit import audit
from txlog.lake.jobs.local import Local
from txlog.lake.jobs.upkeep import compact, rebuild_delayed
from txlog.spark import Spark
from txlog.spark.jobs.compact import main as compact_main
from txlog.spark.jobs.rebuild_delayed import main as rebuild_main

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("quick_disk", "spark")]


@pytest.mark.parametrize("seed", [30, pytest.param(25, marks=pytest.mark.slow)])
def test_compaction_on_spark_gives_the_same_files(tmp_path: Path, seed: int) -> None:
    history = History(tmp_path, str(seed))
    names = tuple(name for name in WITHOUT_TRIMS if name != "compact")
    for number in range(STEPS):
        step(history, random.Random(f"{seed}:{number}"), names)
    messages = in_topic(history.client, "t")
    history.client.close()
    shutil.copytree(history.path, f"{history.path}-copy")
    answers, files = [], []
    for path, engine in ((history.path, Local()), (f"{history.path}-copy", Spark(None, {}))):
        with txlog.open(path) as client:
            client.checkpoint_automatically = False
            answers.append(compact(client, "t", engine))
            assert in_topic(client, "t") == messages
            assert audit(client, ["t"], Local())["failed"] == 0
            files.append(
                [
                    (row["role"], row["clean"], _read(Path(path, row["file"]), MESSAGE).to_pylist())
                    for row in client.segments()
                    if row.get("file", "").endswith(".parquet")
                ]
            )
    assert answers[0]["messages"] > 0
    assert {**answers[1], "size_after_bytes": 0} == {**answers[0], "size_after_bytes": 0}
    assert files[0] == files[1]


def test_index_made_on_spark_is_the_same(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "store")
    txlog.init(path, mutable_ids_max=7, max_num_buckets=50)
    rng = random.Random(1)
    with txlog.open(path) as client:
        client.checkpoint_automatically = False
        client.create_topic("t", partitions=2)
        client.create_subscription("t", "s", type="shared")
        producer = client.producer("t")
        for _ in range(30):
            at = rng.choice((None, LATER + rng.randrange(1000)))
            with client.transaction() as txn:
                for where in (txn, txn, None):
                    producer.send(b"x", deliver_at=at, partition=rng.randrange(2), txn=where)
        client.checkpoint()
        delayed_before = client.topic("t").delayed(limit=500)
        answers = [rebuild_delayed(client, "t", item) for item in (Local(), Spark(None, {}))]
        for item in answers:
            assert (item["indexed"], item["missing"], item["surplus"]) == (
                answers[0]["indexed"],
                0,
                0,
            )
        assert answers[0]["indexed"] > 20
        assert client.topic("t").delayed(limit=500) == delayed_before
    for main, job in ((rebuild_main, "rebuild-delayed"), (compact_main, "compact")):
        assert main(["t", "-S", path, "--json", "--dry-run"]) == 0
        answer = json.loads(capfd.readouterr().out)
        assert (answer["job"], answer["engine"], answer["dry_run"]) == (job, "spark", True)
