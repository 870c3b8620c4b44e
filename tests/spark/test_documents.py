"""The blocks of Python in docs/analytics.md run as they are written, one after another."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import txlog
import txlog.spark
from tests.source_tree import ROOT

pytestmark = pytest.mark.spark


def test_examples_print_the_documented_output(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(txlog.spark, "session", lambda master: spark)
    txlog.init("shop")
    with txlog.open("shop") as client:
        client.create_topic("orders", partitions=2)
        client.create_topic("invoices")
        client.create_topic("archive")
        orders = client.producer("orders")
        with client.transaction() as txn:
            for key, value in ((b"ana", b"3 cups"), (b"ben", b"1 lamp"), (b"ana", b"1 spoon")):
                orders.send(value, key=key, txn=txn)
    text = (ROOT / "docs" / "analytics.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(blocks) == 5
    code = "".join(blocks)
    for name in ("shop", "checkpoint"):  # Spark's processes began elsewhere
        code = re.sub(rf"(?<=[\"'=]){name}(?=[\"',])", str(tmp_path / name), code)
    try:
        exec(code, {})
    finally:
        spark.catalog.dropTempView("lines")
        spark.sql("DROP DATABASE IF EXISTS txlog CASCADE")
    assert capsys.readouterr().out == "ben 1\nana 2\n3\n3\n3\n3 False\n3 True\n"
    with txlog.open("shop") as client:
        invoices = sorted(message.value or b"" for message in client.reader("invoices"))
    assert invoices == [b"invoice for 1 lamp", b"invoice for 1 spoon", b"invoice for 3 cups"]
