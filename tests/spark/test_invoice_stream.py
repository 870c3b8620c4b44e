"""The example invoice_stream: each order has one invoice, also when its driver is killed."""

from __future__ import annotations

import json
import signal
import sys
from decimal import Decimal
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import txlog
from tests.harness import HOUR_S, KILLED, Child, run
from tests.source_tree import ROOT

PROGRAM = ROOT / "examples" / "invoice_stream.py"
ORDERS = 25_900
KILLS = (1, 8000, 16_000)  # each one once the topic has so many invoices


def loaded() -> ModuleType:
    """The example as a module."""
    spec = spec_from_file_location("invoice_stream", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.spark
def test_invoice_has_the_value_of_its_order(spark: SparkSession) -> None:
    """By Spark and by hand, for the first orders; kills a value that is rounded."""
    example = loaded()
    rows = example.orders(60)
    table = pa.table(
        {
            "key": [row["invoice"].encode() for row in rows],
            "value": [json.dumps(row).encode() for row in rows],
        }
    )
    invoices = example.invoices(spark.createDataFrame(table)).toArrow().to_pylist()
    assert [row["key"].decode() for row in invoices] == [row["invoice"] for row in rows]
    for order, row in zip(rows, invoices, strict=True):
        invoice = json.loads(row["value"])
        worth = sum(Decimal(line["price"]) * line["quantity"] for line in order["lines"])
        assert Decimal(invoice["value"]) == worth
        assert invoice["lines"] == len(order["lines"])


def program(*words: str) -> list[str]:
    """The command of the example."""
    return [sys.executable, str(PROGRAM), *words]


@pytest.mark.slow
@pytest.mark.spark
def test_totals_are_exact_when_the_driver_is_killed_three_times(tmp_path: Path) -> None:
    """SIGKILL of Python and of the JVM, each time just after a frame of the sink; real orders."""
    store, checkpoint = str(tmp_path / "store"), str(tmp_path / "checkpoint")
    assert run(program("fill", store)).stdout == f"{ORDERS} orders\n"
    with txlog.open(store) as client:
        for least in KILLS:
            driver = program("run", store, checkpoint)
            with Child(driver, group=True, bound_s=HOUR_S) as child:
                answer = client.wait(["invoices"], messages=least, timeout_ms=900_000)
                assert answer["met"], answer
                assert child.end(signal.SIGKILL)[0] == KILLED
        assert client.describe_topic("invoices")["messages"] < ORDERS
    run(driver, timeout=HOUR_S)
    assert run(program("check", store), timeout=HOUR_S).stdout == (
        f"{ORDERS} invoices of {ORDERS} orders, worth 9747747.934: exact\n"
    )
    assert list(Path(store).glob("topics/**/_stage/*")) == []
