"""Outputs of a function may be delayed: Output, Context.publish, tables of outputs.

Source: spec/delayed 2.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import txlog
from tests.engine_kit import START_MS, Bench, read
from txlog import functions
from txlog.functions import Context, Output

pytestmark = pytest.mark.usefixtures("quick_disk")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    new_bench = Bench(tmp_path / "store")
    for name in ("in", "out", "aside"):
        new_bench.client.create_topic(name)
    new_bench.client.create_subscription("in", "s")
    return new_bench


def test_an_output_may_be_delayed(bench: Bench) -> None:
    """Each message in its own way, in the transaction of the batch."""
    client = bench.client
    for _ in range(3):
        client.producer("in").send(b"x", deliver_at=START_MS + 1)
    expected_rows = [
        [Output(b"a", deliver_after=5), Output(b"b", deliver_at=7), b"c"],
        pa.table({"value": [b"d", b"e"], "deliver_after": [None, 6]}),
        None,
    ]

    def function(message: txlog.Message, context: Context) -> object:
        context.publish("aside", message.value, deliver_after=9)
        return expected_rows.pop(0)

    functions.run(client, function, "in", "out", "s")
    assert [(m.value, m.deliver_at) for m in read(client, topic="out")] == [
        (b"a", START_MS + 5),
        (b"b", 7),
        (b"c", None),
        (b"d", None),
        (b"e", START_MS + 6),
    ]
    assert [m.deliver_at for m in read(client, topic="aside")] == [START_MS + 9] * 3
