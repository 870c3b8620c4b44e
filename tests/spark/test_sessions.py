"""Tests of txlog.spark.session: the configuration of a new session, and later changes to it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import txlog.spark
from txlog.errors import InvalidArgument
from txlog.lake.spark.session import is_local

pytestmark = pytest.mark.spark


def test_session_has_our_defaults_and_the_callers_settings(spark: SparkSession) -> None:
    expected = {
        "spark.master": "local[2,3]",
        "spark.app.name": "txlog",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2",
    }
    assert {name: spark.conf.get(name) for name in expected} == expected
    assert spark.range(100).where("id % 7 = 1").count() == 15


def test_environment_is_as_it_was_before(spark: SparkSession) -> None:
    """Kills: a JAVA_HOME set by txlog, which every later child of the program would inherit."""
    for name in ("TXLOG_JRE", "PYSPARK_PYTHON", "SPARK_LOCAL_IP"):
        assert name not in os.environ


def test_options_of_java_reach_the_jvm(spark: SparkSession) -> None:
    flags = spark.sparkContext.getConf().get("spark.driver.extraJavaOptions")
    assert flags is not None
    assert "-XX:TieredStopAtLevel=1" in flags
    beans = spark._jvm.java.lang.management.ManagementFactory  # type: ignore[union-attr]
    assert "-XX:+UseSerialGC" in list(beans.getRuntimeMXBean().getInputArguments())


def test_running_session_takes_settings_that_can_change(spark: SparkSession) -> None:
    same = txlog.spark.session(conf={"spark.sql.shuffle.partitions": 3})
    try:
        assert same is spark
        assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", "2")
    assert txlog.spark.session("local[2,3]", {"spark.ui.enabled": False}) is spark


def test_running_session_refuses_the_rest_and_changes_nothing(spark: SparkSession) -> None:
    """Kills: a property that is taken, and has no effect."""
    with pytest.raises(InvalidArgument, match=r"change spark\.driver\.memory, spark\.master"):
        txlog.spark.session(
            "local[1]", {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": 9}
        )
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"


def test_session_leaves_nothing_in_the_working_directory(spark: SparkSession) -> None:
    """Spark makes a spark-warehouse and an artifacts directory where it likes."""
    spark.range(3).createOrReplaceTempView("three")
    assert spark.sql("SELECT count(*) AS n FROM three").collect()[0]["n"] == 3
    spark.catalog.dropTempView("three")
    assert not {"spark-warehouse", "artifacts", "metastore_db", "derby.log"} & {
        path.name for path in Path.cwd().iterdir()
    }


def test_local_masters_are_recognised() -> None:
    assert all(map(is_local, ("local", "local[*]", "local[2,3]", "local-cluster[2,1,1024]")))
    assert not any(map(is_local, ("yarn", "spark://host:7077", "k8s://https://host")))


def test_session_is_a_function_whatever_was_imported_before() -> None:
    """Kills: the module `session` in place of the function, once `txlog.spark.read` imports it."""
    script = (
        "import txlog.spark, txlog.lake.spark.session\nfirst = txlog.spark.session\n"
        "txlog.spark.read\nfrom txlog.spark import session\n"
        "print(callable(first), session is first is txlog.spark.session)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert done.stdout == b"True True\n"


def test_spark_connect_is_answered_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no JVM in this process; kills an AttributeError of PySpark."""
    of_connect: Any = type("Remote", (), {"__module__": "pyspark.sql.connect.dataframe"})()
    with pytest.raises(InvalidArgument, match=r"bulk_load needs .* Spark Connect") as raised:
        txlog.spark.bulk_load(of_connect, "nowhere", "t", txn_key="k", batch_id="1")
    assert "txnKey" in str(raised.value.hint)
    with pytest.raises(InvalidArgument, match=r"read needs .* Spark Connect"):
        txlog.spark.read(of_connect, "nowhere", "t")
    with pytest.raises(InvalidArgument, match=r"session needs .* Spark Connect"):
        txlog.spark.session("sc://host:15002")
    monkeypatch.setenv("SPARK_REMOTE", "sc://host")
    with pytest.raises(InvalidArgument, match=r"session needs .* Spark Connect"):
        txlog.spark.session()
